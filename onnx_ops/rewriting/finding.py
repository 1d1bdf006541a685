"""What a pattern says of a place in a model."""

from dataclasses import dataclass


class NearMiss(Exception):  # noqa: N818  it is no error
    """What looks like a pattern and isn't it, or isn't it for certain; the text says why."""


@dataclass(frozen=True)
class Finding:
    """A place that a pattern fits, or nearly fits.

    pattern      what PyTorch calls it
    graph, node  where: the graph's title, and the name of the last node (of its output, if it has none)
    operator     what has taken its place, or None
    reason       why nothing has
    """

    pattern: str
    graph: str
    node: str
    operator: str | None = None
    reason: str | None = None
