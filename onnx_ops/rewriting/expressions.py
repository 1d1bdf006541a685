"""What nodes compute of an element: an expression of other values' elements and constants.

A value is looked at through an index, with an entry for each of its axes: the position of one element along it, or the
name of one of the AXES, along all of which it runs. Nodes that only move elements are followed to where these come
from. So are sums and products, but only of what runs along image axes: what is the same for all of an image's pixels is
somebody's matrix, and a leaf as it is.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .integers import integers, numbers, shape

AXES = "ndhw"  # images, and the axes of each
DEEPEST = 100  # nodes, one after the other
LARGEST = 100  # operations in an expression


@dataclass(frozen=True)
class Leaf:
    """A value that isn't known, through an index."""

    name: str
    index: tuple


@dataclass(frozen=True, eq=False)
class Constant:
    """An array with an axis for each of AXES, of size 1 where it doesn't vary."""

    array: np.ndarray

    def __eq__(self, other):
        return isinstance(other, Constant) and self.array.shape == other.array.shape and same(self.array, other.array)


@dataclass(frozen=True)
class Operation:
    op_type: str
    operands: tuple

    @cached_property
    def size(self):
        return 1 + sum(map(size_of, self.operands))

    def leaves(self):
        for operand in self.operands:
            yield from operand.leaves() if isinstance(operand, Operation) else [operand][: isinstance(operand, Leaf)]


def expression(graph, name, index, depth=DEEPEST, known=None):
    """Of a value as seen through an index. known: what has been found on the way, {leaf: expression}."""
    known, leaf = {} if known is None else known, Leaf(name, index)
    if leaf not in known:
        known[leaf] = _expression(graph, leaf, depth, known)
    return known[leaf]


def _expression(graph, leaf, depth, known):
    array, node = graph.computed(leaf.name), graph.producer(leaf.name)
    try:
        if array is not None and array.dtype.kind == "f":
            return constant(array, leaf.index)
        if node is None or not depth or any(a.ref_attr_name for a in node.attribute):
            return leaf
        inner = _inner(graph, node, leaf.name, leaf.index)
    except (ValueError, IndexError, TypeError, ZeroDivisionError):  # a node that ONNX Runtime will refuse
        return leaf
    if None in inner:
        return leaf
    given = tuple(expression(graph, *operand, depth - 1, known) for operand in inner)
    if node.op_type not in OPERATIONS:
        return given[0]
    # What is used again and again would be looked at as often.
    return Operation(node.op_type, given) if sum(map(size_of, given)) < LARGEST else leaf


def size_of(found):
    """How many operations an expression consists of."""
    return found.size if isinstance(found, Operation) else 0


def _inner(graph, node, name, index):
    """What a node makes an element of, as names and indices into them; [None] where that is to be a leaf."""
    if node.op_type in MOVES:
        return [MOVES[node.op_type](graph, node, {a.name: a for a in node.attribute}, name, index)]
    if node.op_type in OPERATIONS and any(axis in index for axis in AXES[1:]):
        return [repeated(graph, given, name, index) for given in node.input]
    return [None]


OPERATIONS = ("Add", "Div", "Mul", "Neg", "Sub")


def constant(array, index):
    """The elements of an array that an index names."""
    picked = array[tuple(slice(None) if isinstance(at, str) else at for at in index)]
    named = [at for at in index if isinstance(at, str)]
    picked = np.transpose(picked, sorted(range(len(named)), key=lambda k: AXES.index(named[k])))
    sizes = iter(picked.shape)
    picked = picked.reshape([next(sizes) if axis in named else 1 for axis in AXES])
    for k in range(picked.ndim):  # without what is repeated
        first = picked.take([0], k) if picked.shape[k] else picked
        if same(picked, first):
            picked = first
    return Constant(picked)


def same(one, other):
    """Whether two arrays hold the same numbers, zeros of different signs being different."""
    return bool(((one == other) & (np.signbit(one) == np.signbit(other))).all())


def repeated(graph, name, made, index):
    """What an index leads to in what is repeated along axes of one element; None if it can't be told along which."""
    dimensions, wanted = shape(graph, name), shape(graph, made)
    if dimensions is None or wanted is None or len(dimensions) > len(index):
        return None
    more = len(index) - len(dimensions)
    if any(not isinstance(d, int) and d != w for d, w in zip(dimensions, wanted[more:], strict=True)):
        return None
    return name, tuple(0 if d == 1 else at for d, at in zip(dimensions, index[more:], strict=True))


# What nodes that move elements do: where in which input an index of their output leads, or None.


def _same(graph, node, attributes, name, index):
    return node.input[0], index


def _transpose(graph, node, attributes, name, index):
    order = list(attributes["perm"].ints) if "perm" in attributes else list(range(len(index)))[::-1]
    return node.input[0], tuple(index[order.index(k)] for k in range(len(index)))


def _axes(graph, node, attributes, rank):
    axes = list(attributes["axes"].ints) if "axes" in attributes else None
    if axes is None and len(node.input) > 1:
        axes = numbers(graph, node.input[1])
    return None if axes is None else sorted(axis % rank for axis in axes)


def _unsqueeze(graph, node, attributes, name, index):
    axes = _axes(graph, node, attributes, len(index))
    return None if axes is None else (node.input[0], tuple(at for k, at in enumerate(index) if k not in axes))


def _squeeze(graph, node, attributes, name, index):
    dimensions = shape(graph, node.input[0])
    if dimensions is None:
        return None
    axes = _axes(graph, node, attributes, len(dimensions))
    if axes is None and "axes" not in attributes and len(node.input) == 1:
        axes = [k for k, size in enumerate(dimensions) if size == 1]
    if axes is None or len(dimensions) != len(index) + len(axes):
        return None
    given = iter(index)
    return node.input[0], tuple(0 if k in axes else next(given) for k in range(len(dimensions)))


def _gather(graph, node, attributes, name, index):
    dimensions, at = shape(graph, node.input[0]), attributes["axis"].i if "axis" in attributes else 0
    picked = integers(graph, node.input[1])
    if dimensions is None or not isinstance(picked, np.ndarray) or picked.dtype == object or picked.ndim > 1:
        return None
    at %= len(dimensions)
    place = index[at] if picked.ndim else None
    if isinstance(place, str):
        return None
    place = int(picked[place] if picked.ndim else picked)
    if place < 0 and not isinstance(dimensions[at], int):
        return None
    place += dimensions[at] if place < 0 else 0
    return node.input[0], (*index[:at], place, *index[at + picked.ndim :])


def _slice(graph, node, attributes, name, index):
    dimensions, given = shape(graph, node.input[0]), [numbers(graph, v) if v else () for v in node.input[1:]]
    if dimensions is None or len(given) < 2 or None in given:
        return None
    starts, ends, axes, steps = [*given, (), ()][:4]
    axes, steps, index = axes or range(len(starts)), steps or [1] * len(starts), list(index)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        size, at = dimensions[axis], index[axis]
        if not isinstance(size, int):
            return None
        places = range(size)[slice(start, end if step > 0 or end >= -size else None, step)]
        if isinstance(at, str):
            if len(places) != size or step != 1:
                return None
        else:
            index[axis] = places[at]
    return node.input[0], tuple(index)


def _split(graph, node, attributes, name, index):
    axis = (attributes["axis"].i if "axis" in attributes else 0) % len(index)
    sizes = [(shape(graph, made) or {axis: None})[axis] for made in node.output]
    before = sizes[: list(node.output).index(name)]
    if isinstance(index[axis], str) or not all(isinstance(size, int) for size in before):
        return None
    return node.input[0], (*index[:axis], index[axis] + sum(before), *index[axis + 1 :])


def _concat(graph, node, attributes, name, index):
    axis = attributes["axis"].i % len(index)
    at = index[axis]
    for given in node.input:
        dimensions = shape(graph, given)
        if dimensions is None or not isinstance(dimensions[axis], int) or isinstance(at, str):
            return None
        if at < dimensions[axis]:
            return given, (*index[:axis], at, *index[axis + 1 :])
        at -= dimensions[axis]
    return None


def _expand(graph, node, attributes, name, index):
    return repeated(graph, node.input[0], name, index)


def _tile(graph, node, attributes, name, index):
    repeats, dimensions = numbers(graph, node.input[1]), shape(graph, node.input[0])
    if repeats is None or dimensions is None or any(r != 1 != d for r, d in zip(repeats, dimensions, strict=True)):
        return None
    return node.input[0], tuple(at if r == 1 else 0 for r, at in zip(repeats, index, strict=True))


def _reshape(graph, node, attributes, name, index):
    """Where only axes of one element come and go."""
    before, after = shape(graph, node.input[0]), shape(graph, name)
    if before is None or after is None or [d for d in before if d != 1] != [d for d in after if d != 1]:
        return None
    kept = iter([at for d, at in zip(after, index, strict=True) if d != 1])  # as many as of `before`, see above
    return node.input[0], tuple(0 if d == 1 else next(kept) for d in before)


MOVES = {
    "Concat": _concat,
    "Expand": _expand,
    "Gather": _gather,
    "Identity": _same,
    "Reshape": _reshape,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
