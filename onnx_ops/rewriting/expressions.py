"""What nodes compute, as expressions of constants and of other values' elements.

An index into a value has an entry for each axis: the position of one element, or the name of one of the AXES, along
all of which it runs. Nodes that only move elements are followed to the value that the elements come from. Sums and
products become operations if they vary along image axes. What is the same for all pixels of an image, such as an
element of a matrix, is a leaf, however it was computed.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .finding import tried
from .integers import attributes_of, axes_of, integer_list, integers, shape, sliced

AXES = "ndhw"  # images, and the axes of each
DEEPEST = 100  # nodes on the way from a value to a leaf
LARGEST = 100  # operations in an expression


@dataclass(frozen=True)
class Leaf:
    """The elements of a value at an index."""

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
            if isinstance(operand, Operation):
                yield from operand.leaves()
            elif isinstance(operand, Leaf):
                yield operand


def expression(graph, name, index, depth=DEEPEST, memo=None):
    """Return the expression of a value at an index. memo: {leaf: expression} of what has been expressed so far."""
    memo, leaf = {} if memo is None else memo, Leaf(name, index)
    if leaf not in memo:
        memo[leaf] = _expression(graph, leaf, depth, memo)
    return memo[leaf]


def _expression(graph, leaf, depth, memo):
    array, node = graph.folded(leaf.name), graph.producer(leaf.name)
    if array is not None and array.dtype.kind == "f":
        return tried(constant, array, leaf.index) or leaf
    sources = tried(_sources, graph, node, leaf.name, leaf.index) if node is not None and depth else None
    if sources is None or None in sources:
        return leaf
    operands = tuple(expression(graph, *source, depth - 1, memo) for source in sources)
    if node.op_type not in OPERATIONS:
        return operands[0]
    # Whoever walks an expression meets a value as often as it is used: hence the limit.
    return Operation(node.op_type, operands) if sum(map(size_of, operands)) < LARGEST else leaf


def size_of(operand):
    """Return how many operations an expression consists of."""
    return operand.size if isinstance(operand, Operation) else 0


def _sources(graph, node, name, index):
    """Return [(name, index)] of what a node computes its output from, at an index; [None] for a leaf."""
    if node.op_type in MOVES:
        return [MOVES[node.op_type](graph, node, attributes_of(node), name, index)]
    if node.op_type in OPERATIONS and any(axis in index for axis in AXES[1:]):
        return [broadcast(graph, operand, name, index) for operand in node.input]
    return [None]


OPERATIONS = ("Add", "Div", "Mul", "Neg", "Sub")


def constant(array, index):
    """Return the elements of an array at an index, as a Constant."""
    picked = array[tuple(slice(None) if isinstance(at, str) else at for at in index)]
    axis_names = [at for at in index if isinstance(at, str)]
    picked = np.transpose(picked, sorted(range(len(axis_names)), key=lambda k: AXES.index(axis_names[k])))
    sizes = iter(picked.shape)
    picked = picked.reshape([next(sizes) if axis in axis_names else 1 for axis in AXES])
    for k in range(picked.ndim):  # axes along which nothing varies get size 1
        first = picked.take([0], k) if picked.shape[k] else picked
        if same(picked, first):
            picked = first
    return Constant(picked)


def same(one, other):
    """Return whether two arrays hold the same numbers. Zeros of different signs differ."""
    return bool(((one == other) & (np.signbit(one) == np.signbit(other))).all())


def broadcast(graph, name, output, index):
    """Return (name, index) in a value that is broadcast to an output, for an index of the output; None if uncertain."""
    dimensions, target = shape(graph, name), shape(graph, output)
    if dimensions is None or target is None or len(dimensions) > len(index):
        return None
    more = len(index) - len(dimensions)
    if any(not isinstance(d, int) and d != w for d, w in zip(dimensions, target[more:], strict=True)):
        return None
    return name, tuple(0 if d == 1 else at for d, at in zip(dimensions, index[more:], strict=True))


# Rules for nodes that move elements: each returns (input, index) for an index of the node's output, or None.


def _same(graph, node, attributes, name, index):
    return node.input[0], index


def _transpose(graph, node, attributes, name, index):
    order = attributes.get("perm", list(range(len(index)))[::-1])
    return node.input[0], tuple(index[order.index(k)] for k in range(len(index)))


def _unsqueeze(graph, node, attributes, name, index):
    axes = axes_of(graph, node)
    return None if axes is None else (node.input[0], tuple(np.delete(np.array(index, object), axes)))


def _squeeze(graph, node, attributes, name, index):
    dimensions = shape(graph, node.input[0])
    if dimensions is None:
        return None
    axes = axes_of(graph, node)
    if axes is None and len(node.input) == 1:
        axes = [k for k, size in enumerate(dimensions) if size == 1]
    if axes is None or len(dimensions) != len(index) + len(axes):
        return None
    axes, positions = [axis % len(dimensions) for axis in axes], iter(index)
    return node.input[0], tuple(0 if k in axes else next(positions) for k in range(len(dimensions)))


def _gather(graph, node, attributes, name, index):
    dimensions, at = shape(graph, node.input[0]), attributes.get("axis", 0)
    picked = integers(graph, node.input[1])
    if dimensions is None or not isinstance(picked, np.ndarray) or picked.dtype == object or picked.ndim > 1:
        return None
    at %= len(dimensions)
    position = index[at] if picked.ndim else None
    if isinstance(position, str):
        return None
    position = int(picked[position] if picked.ndim else picked)
    if position < 0 and not isinstance(dimensions[at], int):
        return None
    position += dimensions[at] if position < 0 else 0
    return node.input[0], (*index[:at], position, *index[at + picked.ndim :])


def _slice(graph, node, attributes, name, index):
    dimensions, parameters = shape(graph, node.input[0]), [integer_list(graph, v) if v else () for v in node.input[1:]]
    if dimensions is None or len(parameters) < 2 or None in parameters:
        return None
    starts, ends, axes, steps = [*parameters, (), ()][:4]
    axes, steps, index = axes or range(len(starts)), steps or [1] * len(starts), list(index)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        size, at = dimensions[axis], index[axis]
        if not isinstance(size, int):
            return None
        positions = sliced(size, start, end, step)
        if isinstance(at, str):
            if len(positions) != size or step != 1:
                return None
        else:
            index[axis] = positions[at]
    return node.input[0], tuple(index)


def _split(graph, node, attributes, name, index):
    axis = attributes.get("axis", 0) % len(index)
    sizes = [(shape(graph, output) or {axis: None})[axis] for output in node.output]
    before = sizes[: list(node.output).index(name)]
    if isinstance(index[axis], str) or not all(isinstance(size, int) for size in before):
        return None
    return node.input[0], (*index[:axis], index[axis] + sum(before), *index[axis + 1 :])


def _concat(graph, node, attributes, name, index):
    axis = attributes["axis"] % len(index)
    at = index[axis]
    for operand in node.input:
        dimensions = shape(graph, operand)
        if dimensions is None or not isinstance(dimensions[axis], int) or isinstance(at, str):
            return None
        if at < dimensions[axis]:
            return operand, (*index[:axis], at, *index[axis + 1 :])
        at -= dimensions[axis]
    return None


def _expand(graph, node, attributes, name, index):
    return broadcast(graph, node.input[0], name, index)


def _tile(graph, node, attributes, name, index):
    repeats, dimensions = integer_list(graph, node.input[1]), shape(graph, node.input[0])
    if repeats is None or dimensions is None or any(r != 1 != d for r, d in zip(repeats, dimensions, strict=True)):
        return None
    return node.input[0], tuple(at if r == 1 else 0 for r, at in zip(repeats, index, strict=True))


def _reshape(graph, node, attributes, name, index):
    """Follow a Reshape that only adds and removes axes of one element."""
    before, after = shape(graph, node.input[0]), shape(graph, name)
    if before is None or after is None or [d for d in before if d != 1] != [d for d in after if d != 1]:
        return None
    kept = iter([at for d, at in zip(after, index, strict=True) if d != 1])  # `before` has as many, as checked above
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
