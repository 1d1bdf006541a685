"""The results of matching a pattern at a node of a model."""

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    T = TypeVar("T")

NOT_RUN = "optimize runs these nodes first, and may keep them"


class NearMiss(Exception):  # noqa: N818  it is no error
    """A node looks like a pattern and isn't it, or isn't it for certain; the text says why.

    sources  values from which on the node was looked at, if these are known
    """

    def __init__(self, reason: str, sources: Collection[str] = ()):
        super().__init__(reason)
        self.sources = sources


def tried(rule: "Callable[..., T]", *arguments: Any) -> "T | None":
    """Return the result of a rule for a node, or None if it fails: for an unknown value or an
    invalid node.
    """
    with suppress(ValueError, IndexError, KeyError, TypeError, AttributeError, ZeroDivisionError):
        return rule(*arguments)
    return None


@dataclass(frozen=True)
class Finding:
    """A place that a pattern fits, or nearly fits.

    pattern      its name in PyTorch
    graph, node  the graph's title, and the name of the pattern's last node, or of its output if it
                 has none
    operator     the operator that has replaced the node, or None
    reason       why none has, or None
    untried      why the nodes and what replaces them were not run side by side, where patterns do
                 so; or None
    """

    pattern: str
    graph: str
    node: str
    operator: str | None = None
    reason: str | None = None
    untried: str | None = None
