"""Views through reshapes: which element of a source each element of a value is, if all nodes between only move them.

The index along an axis of the value consists of digits, the most significant one first. Each digit runs along one axis
of the source:

    value[i] = source[c],  c_a = starts_a + sum over the digits that run along a of  step * digit

Digits that have one value only, 0, are left out.
"""

import math
from dataclasses import dataclass

import numpy as np

from . import views
from .finding import tried
from .integers import attributes_of, integer_list, integers, shape, sliced
from .sizes import Size, quotient

LONGEST = 60  # nodes of a path


@dataclass(frozen=True)
class Digit:
    """A digit from 0 to size - 1, and the axis of the source along which it runs, by name."""

    along: str
    step: object
    size: object


@dataclass(frozen=True)
class View:
    """A view of a source.

    axes    the digits of each axis
    starts  {axis of the source: the index at which the view starts}, without those that are 0
    """

    axes: tuple
    starts: dict

    def size(self, axis):
        return math.prod(digit.size for digit in self.axes[axis])

    def position(self, axis):
        """Return an axis, which may be negative, counted from 0. Raises IndexError if there is no such axis."""
        return range(len(self.axes))[axis]


def layout(sizes, *axes):
    """Return the digits of axes that consist of whole axes of the source. `axes` are texts of one-letter names."""
    return tuple(tuple(Digit(name, 1, sizes[name]) for name in axis if sizes[name] != 1) for axis in axes)


def path(graph, name, source=None):
    """Go back from a value through nodes that only move elements; returns ([(node, its output), ...], where it ends).

    The path ends at the source, if one is given and the path leads there.
    """
    steps = []
    while name != source and len(steps) < LONGEST and (node := graph.producer(name, *MOVES)) is not None:
        steps.append((node, name))
        name = node.input[0]
    return steps, name


def moved(graph, view, steps):
    """Return a view after the steps of a path, or None if what they do is unknown or gives no view."""
    for node, output in reversed(steps):
        if view is None:
            return None
        view = tried(MOVES[node.op_type], graph, view, node, attributes_of(node), output)
    return view


def _rearrange(graph, view, node, attributes, output):
    """Return the view after a node that permutes axes, or adds or removes axes of one element."""
    unit_view = [views.Axis(k if digits else None, 1, None) for k, digits in enumerate(view.axes)]
    unit_view = views.moved(graph, unit_view, node)
    if unit_view is None:
        return None
    return View(tuple(view.axes[axis.along] if axis.along is not None else () for axis in unit_view), view.starts)


def _reshape(graph, view, node, attributes, output):
    target = integers(graph, node.input[1])
    if not isinstance(target, np.ndarray):
        return None
    # Sizes of the input, by the names that the model gives them.
    names = dict(zip(shape(graph, node.input[0]) or (), map(view.size, range(len(view.axes))), strict=False))
    sizes = [names.get(size, size) if isinstance(size, Size) else int(size) for size in target.ravel()]
    if not attributes.get("allowzero"):
        if any(size == 0 for size in sizes[len(view.axes) :]):
            return None
        sizes = [view.size(k) if size == 0 else size for k, size in enumerate(sizes)]
    digits = [digit for axis in view.axes for digit in axis]
    unknown = [sizes.index(-1)] if -1 in sizes else [k for k, size in enumerate(sizes) if isinstance(size, Size)]
    if len(unknown) == 1:  # the other sizes determine it
        others = math.prod(size for k, size in enumerate(sizes) if k != unknown[0])
        sizes[unknown[0]] = quotient(math.prod(digit.size for digit in digits), others)
    axes = None if None in sizes else _regroup(digits, sizes)
    return None if axes is None else View(axes, view.starts)


def _regroup(digits, sizes):
    """Return the digits, in their order, grouped into axes of these sizes; None if that is impossible or uncertain."""
    axes, remaining = [], list(digits)
    for size in sizes:
        axis = []
        while size != 1:
            if not remaining:
                return None
            digit = remaining.pop(0)
            rest = quotient(size, digit.size)
            if rest is None:  # the axis ends within the digit
                inner, rest = quotient(digit.size, size), 1
                if inner is None:
                    return None
                remaining.insert(0, Digit(digit.along, digit.step, inner))
                digit = Digit(digit.along, digit.step * inner, size)
            axis.append(digit)
            size = rest
        axes.append(tuple(axis))
    return None if remaining else tuple(axes)


def _cut(view, axis, start, size):
    """Return the view of `size` elements of an axis from `start` on, or None if that is no view."""
    if not view.axes[axis]:
        return view if (start, size) == (0, 1) else None
    first, *others = view.axes[axis]
    inner = math.prod(digit.size for digit in others)
    start, size = quotient(start, inner), quotient(size, inner)
    if start is None or size is None:
        return None
    digits = (Digit(first.along, first.step, size), *others) if size != 1 else tuple(others)
    starts = {**view.starts, first.along: view.starts.get(first.along, 0) + first.step * start}
    axes = (*view.axes[:axis], digits, *view.axes[axis + 1 :])
    return View(axes, {along: at for along, at in starts.items() if at != 0})


def _slice(graph, view, node, attributes, output):
    parameters = [integer_list(graph, name) if name else None for name in node.input[1:]]
    if None in parameters[:2] or len(node.input) < 4 or parameters[2] is None:
        return None
    starts, ends, axes, steps = [*parameters, [1] * len(parameters[0])][:4]
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        size = view.size(axis)
        if step != 1 or not isinstance(size, int):
            return None
        cut = sliced(size, start, end, step)
        view = _cut(view, view.position(axis), cut.start, len(cut))
        if view is None:
            return None
    return view


def _split(graph, view, node, attributes, output):
    axis = view.position(attributes.get("axis", 0))
    parts = attributes.get("split")
    if len(node.input) > 1 and node.input[1]:
        parts = integer_list(graph, node.input[1])
    elif parts is None and isinstance(view.size(axis), int):
        each = -(-view.size(axis) // len(node.output))
        parts = [min(each, view.size(axis) - k * each) for k in range(len(node.output))]
    at = list(node.output).index(output)
    return None if parts is None else _cut(view, axis, sum(parts[:at]), parts[at])


def _sequence(graph, view, node, attributes, output):
    """Return the view unchanged: SequenceAt takes a part of it."""
    return view


def _sequence_at(graph, view, node, attributes, output):
    split, at = graph.producer(node.input[0], "SplitToSequence"), integer_list(graph, node.input[1])
    parts = integers(graph, split.input[1]) if split is not None and len(split.input) > 1 else None
    if not isinstance(parts, np.ndarray) or parts.dtype == object or at is None:
        return None
    axis = view.position(next((a.i for a in split.attribute if a.name == "axis"), 0))
    if parts.ndim == 0:
        parts = [min(int(parts), view.size(axis) - start) for start in range(0, view.size(axis), int(parts))]
    at = range(len(parts))[at[0]]
    return _cut(view, axis, int(sum(parts[:at])), int(parts[at]))


def _gather(graph, view, node, attributes, output):
    index = integers(graph, node.input[1])
    axis = view.position(attributes.get("axis", 0))
    if not isinstance(index, np.ndarray) or index.dtype == object or index.ndim or not isinstance(view.size(axis), int):
        return None
    view = _cut(view, axis, range(view.size(axis))[int(index)], 1)
    if view is None or view.axes[axis]:
        return None
    return View((*view.axes[:axis], *view.axes[axis + 1 :]), view.starts)


MOVES = {
    **dict.fromkeys(("Identity", "Squeeze", "Transpose", "Unsqueeze"), _rearrange),
    "Gather": _gather,
    "Reshape": _reshape,
    "SequenceAt": _sequence_at,
    "Slice": _slice,
    "Split": _split,
    "SplitToSequence": _sequence,
}
