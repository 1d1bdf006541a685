"""Which element of a source each element of a value is, where nodes that only move elements reshape it, too.

The index along an axis of the value consists of digits, the most significant one first, of which each runs along one
axis of the source:

    value[i] = source[c],  c_a = starts_a + sum over the digits that run along a of  step * digit

Digits of one value only are left out: they are always 0.
"""

import math
from dataclasses import dataclass

import numpy as np

from . import views
from .integers import integers, numbers, shape
from .sizes import Size, quotient

LONGEST = 60  # nodes, one after the other


@dataclass(frozen=True)
class Digit:
    """One that runs from 0 to size - 1. Axes of the source have names."""

    along: str
    step: object
    size: object


@dataclass(frozen=True)
class View:
    """axes: the digits of each axis; starts: {axis of the source: where it starts}, if that is not 0."""

    axes: tuple
    starts: dict

    def size(self, axis):
        return math.prod(digit.size for digit in self.axes[axis])

    def position(self, axis):
        """Of an axis that may be counted from the last one; IndexError if there is none."""
        return range(len(self.axes))[axis]


def layout(sizes, *axes):
    """The digits of axes that each consist of whole axes of the source, whose sizes and one-letter names are given."""
    return tuple(tuple(Digit(name, 1, sizes[name]) for name in axis if sizes[name] != 1) for axis in axes)


def path(graph, name, source=None):
    """([(a node that moves elements, the value that it makes), ...] from a value back, what the last of them takes).

    It ends at the source, if one is given and it leads there.
    """
    steps = []
    while name != source and len(steps) < LONGEST and (node := graph.producer(name, *MOVES)) is not None:
        steps.append((node, name))
        name = node.input[0]
    return steps, name


def moved(graph, view, steps):
    """A view after the steps of a path, or None if what they do is unknown or more than a view."""
    for node, made in reversed(steps):
        if view is None or any(a.ref_attr_name for a in node.attribute):
            return None
        try:
            view = MOVES[node.op_type](graph, view, node, {a.name: a for a in node.attribute}, made)
        except (ValueError, IndexError, TypeError):  # a node that ONNX Runtime will refuse
            return None
    return view


def _rearranged(graph, view, node, attributes, made):
    """Axes as they are, in another order or with ones of one element more or less."""
    places = [views.Axis(k if digits else None, 1, None) for k, digits in enumerate(view.axes)]
    places = views.moved(graph, places, node)
    return None if places is None else View(tuple(view.axes[p.along] if p.along is not None else () for p in places),
                                            view.starts)  # fmt: skip


def _reshape(graph, view, node, attributes, made):
    target = integers(graph, node.input[1])
    if not isinstance(target, np.ndarray):
        return None
    # What the model calls the sizes of what is reshaped.
    names = dict(zip(shape(graph, node.input[0]) or (), map(view.size, range(len(view.axes))), strict=False))
    sizes = [names.get(size, size) if isinstance(size, Size) else int(size) for size in target.ravel()]
    if not ("allowzero" in attributes and attributes["allowzero"].i):
        if any(size == 0 for size in sizes[len(view.axes) :]):
            return None
        sizes = [view.size(k) if size == 0 else size for k, size in enumerate(sizes)]
    digits = [digit for axis in view.axes for digit in axis]
    unknown = [sizes.index(-1)] if -1 in sizes else [k for k, size in enumerate(sizes) if isinstance(size, Size)]
    if len(unknown) == 1:  # it is what the others leave, whatever it is made of
        others = math.prod(size for k, size in enumerate(sizes) if k != unknown[0])
        sizes[unknown[0]] = quotient(math.prod(digit.size for digit in digits), others)
    axes = None if None in sizes else _regrouped(digits, sizes)
    return None if axes is None else View(axes, view.starts)


def _regrouped(digits, sizes):
    """Digits in their order as those of axes of these sizes, or None if that can't be told."""
    axes, left = [], list(digits)
    for size in sizes:
        axis = []
        while size != 1:
            if not left:
                return None
            digit = left.pop(0)
            rest = quotient(size, digit.size)
            if rest is None:  # the axis ends within the digit
                inner, rest = quotient(digit.size, size), 1
                if inner is None:
                    return None
                left.insert(0, Digit(digit.along, digit.step, inner))
                digit = Digit(digit.along, digit.step * inner, size)
            axis.append(digit)
            size = rest
        axes.append(tuple(axis))
    return None if left else tuple(axes)


def _cut(view, axis, start, size):
    """So many elements of an axis, as far as the others stay what they are."""
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


def _slice(graph, view, node, attributes, made):
    given = [numbers(graph, name) if name else None for name in node.input[1:]]
    if None in given[:2] or len(node.input) < 4 or given[2] is None:
        return None
    starts, ends, axes, steps = [*given, [1] * len(given[0])][:4]
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        size = view.size(axis)
        if step != 1 or not isinstance(size, int):
            return None
        start, end, _ = slice(start, end).indices(size)
        view = _cut(view, view.position(axis), start, max(end - start, 0))
        if view is None:
            return None
    return view


def _split(graph, view, node, attributes, made):
    axis = view.position(attributes["axis"].i if "axis" in attributes else 0)
    parts = list(attributes["split"].ints) if "split" in attributes else None
    if len(node.input) > 1 and node.input[1]:
        parts = numbers(graph, node.input[1])
    elif parts is None and isinstance(view.size(axis), int):
        each = -(-view.size(axis) // len(node.output))
        parts = [min(each, view.size(axis) - k * each) for k in range(len(node.output))]
    at = list(node.output).index(made)
    return None if parts is None else _cut(view, axis, sum(parts[:at]), parts[at])


def _sequence(graph, view, node, attributes, made):
    """As it is, until an element of the sequence is taken."""
    return view


def _sequence_at(graph, view, node, attributes, made):
    split, at = graph.producer(node.input[0], "SplitToSequence"), numbers(graph, node.input[1])
    parts = integers(graph, split.input[1]) if split is not None and len(split.input) > 1 else None
    if not isinstance(parts, np.ndarray) or parts.dtype == object or at is None:
        return None
    axis = view.position(next((a.i for a in split.attribute if a.name == "axis"), 0))
    if parts.ndim == 0:
        parts = [min(int(parts), view.size(axis) - start) for start in range(0, view.size(axis), int(parts))]
    at = range(len(parts))[at[0]]
    return _cut(view, axis, int(sum(parts[:at])), int(parts[at]))


def _gather(graph, view, node, attributes, made):
    index = integers(graph, node.input[1])
    axis = view.position(attributes["axis"].i if "axis" in attributes else 0)
    if not isinstance(index, np.ndarray) or index.dtype == object or index.ndim or not isinstance(view.size(axis), int):
        return None
    view = _cut(view, axis, range(view.size(axis))[int(index)], 1)
    if view is None or view.axes[axis]:
        return None
    return View((*view.axes[:axis], *view.axes[axis + 1 :]), view.starts)


MOVES = {
    **dict.fromkeys(("Identity", "Squeeze", "Transpose", "Unsqueeze"), _rearranged),
    "Gather": _gather,
    "Reshape": _reshape,
    "SequenceAt": _sequence_at,
    "Slice": _slice,
    "Split": _split,
    "SplitToSequence": _sequence,
}
