"""Views: which element of a source each element of a value is, if all nodes between only move them.

value[i] = source[c],  c_a = sum over the value's axes k that run along source axis a of  step_k * i_k
"""

from dataclasses import dataclass

from .finding import tried
from .integers import attributes_of, axes_of, integers, lattice


@dataclass(frozen=True)
class Axis:
    """An axis of a view, and the axis of the source along which it runs; None for a new axis, of one element."""

    along: int | None
    step: object
    size: object


def movers(graph, name):
    """Return the nodes that lead to a value and only move elements, the last one first.

    No other node uses what is between them: they are unused once another node makes the value.
    """
    nodes = []
    while (node := graph.producer(name, *MOVES)) is not None and graph.users[name] == 1:
        nodes.append(node)
        name = node.input[0]
    return nodes


def whole(dimensions):
    """Return the view that is the whole source."""
    return [Axis(k, 1, size) for k, size in enumerate(dimensions)]


def moved(graph, view, node):
    """Return a view (a list of Axis) after a node, or None if what the node does is unknown or gives no view."""
    return tried(MOVES[node.op_type], graph, view, node, attributes_of(node))


def _identity(graph, view, node, attributes):
    return view


def _transpose(graph, view, node, attributes):
    order = attributes.get("perm", list(range(len(view)))[::-1])
    return [view[k] for k in order] if sorted(order) == list(range(len(view))) else None


def _gather(graph, view, node, attributes):
    index = integers(graph, node.input[1])
    index = None if index is None else lattice(index)
    at = attributes.get("axis", 0)
    at += len(view) if at < 0 else 0
    if index is None or index.start != 0 or not 0 <= at < len(view) or view[at].along is None:
        return None
    if not all(isinstance(step, int) and step >= 0 for step in index.steps):
        return None
    gathered = [
        Axis(view[at].along, view[at].step * step, size) for step, size in zip(index.steps, index.shape, strict=True)
    ]
    return [*view[:at], *gathered, *view[at + 1 :]]


def _unsqueeze(graph, view, node, attributes):
    axes = axes_of(graph, node)
    if axes is None:
        return None
    rank, view = len(view) + len(axes), list(view)
    for axis in sorted(axis % rank for axis in axes):
        view.insert(axis, Axis(None, 0, 1))
    return view


def _squeeze(graph, view, node, attributes):
    axes = axes_of(graph, node)
    if axes is None or any(view[axis].along is not None for axis in axes):
        return None
    axes = [axis % len(view) for axis in axes]
    return [axis for k, axis in enumerate(view) if k not in axes]


MOVES = {  # operator that only moves elements: function that returns the view after its node
    "Gather": _gather,
    "Identity": _identity,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
