"""What nodes compute, as expressions of constants and of other values' elements.

An index into a value has an entry for each axis: the position of one element, or the name of one of the AXES, along
all of which it runs, or several of these, if a Reshape has made one axis of them. Nodes that only move elements are
followed to the value that the elements come from. Sums and products become operations if they vary along image axes.
What is the same for all pixels of an image, such as an element of a matrix, is a leaf, however it was computed.
"""

from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from .finding import tried
from .integers import attributes_of, axes_of, integer_list, integers, shape, sliced
from .sizes import quotient

AXES = "ndhw"  # images, and the axes of each
DEEPEST = 100  # nodes on the way from a value to a leaf


@dataclass(frozen=True)
class Several:
    """AXES that are one axis, from the outermost to the innermost, and the size of each."""

    names: str
    sizes: tuple


def axes_in(index):
    """Return the names of the axes along which an index runs."""
    return "".join(at.names if isinstance(at, Several) else at for at in index if not isinstance(at, int))


def apart(index, sizes):
    """Return (sizes, index) with an axis for each of the AXES of Several."""
    pairs = [*zip(index, sizes, strict=True)]
    return (
        [n for at, size in pairs for n in (at.sizes if isinstance(at, Several) else (size,))],
        [each for at, _ in pairs for each in (at.names if isinstance(at, Several) else (at,))],
    )


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


@dataclass(frozen=True, eq=False)
class Operation:
    """An operator of ai.onnx. An operand is None where Clip has no limit."""

    op_type: str
    operands: tuple


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
    operands = tuple(expression(graph, *source, depth - 1, memo) if source[0] else None for source in sources)
    if node.op_type not in OPERATIONS:
        return operands[0]
    if node.op_type == "Pow":
        return Operation("Mul", operands * 2) if exponent(graph, node) == 2 else Operation("Cube", operands)
    return Operation(node.op_type, operands)


def _sources(graph, node, name, index):
    """Return [(name, index)] of what a node computes its output from, at an index; [None] for a leaf."""
    if node.op_type in MOVES:
        return [MOVES[node.op_type](graph, node, attributes_of(node), name, index)]
    if not set(axes_in(index)) & set(AXES[1:]):
        return [None]
    if node.op_type == "MatMul":
        return _products(graph, node, name, index)
    if node.op_type in OPERATIONS and is_exact(graph, node):
        operands = node.input[:1] if node.op_type == "Pow" else node.input
        return [broadcast(graph, operand, name, index) if operand else (operand, ()) for operand in operands]
    return [None]


COMPARISONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
OPERATIONS = (
    "Abs", "Add", "And", "Ceil", "Clip", "Div", "Floor", "Max", "Min", "Mul", "Neg", "Not", "Or", "Pow", "Reciprocal",
    "Round", "Sqrt", "Sub", "Where", "MatMul", *COMPARISONS,
)  # fmt: skip


def is_exact(graph, node):
    """Return whether a node is certain to do what its operation does to floats, bit for bit."""
    if node.op_type in COMPARISONS:
        return graph.type(node.input[0]).elements in (TensorProto.FLOAT, TensorProto.DOUBLE)
    if node.op_type == "Pow":
        return exponent(graph, node) in (2, 3)
    if node.op_type == "Clip":
        return graph.opset >= 11
    # ONNX Runtime makes y / x of 1 / x * y.
    makers = [graph.producer(name, "Div") for name in node.input] if node.op_type == "Mul" else []
    return all(graph.folded(maker.input[0]) is None for maker in makers if maker is not None)


def _products(graph, node, name, index):
    """Return the factors of the products that an element of a MatMul adds up: one's, then the next one's, and so on.

    ONNX Runtime adds matrices of one row or one column up in another way, and multiplies by numbers in the same step.
    """
    shapes = [shape(graph, operand) for operand in node.input]
    rows, terms, columns = shapes[0][-2], shapes[0][-1], shapes[1][-1]
    if min(map(len, shapes)) < 2 or not isinstance(terms, int) or not 0 < terms <= MOST_TERMS or 1 in (rows, columns):
        return [None]
    neighbours = [graph.producer(operand, "Mul", "Div") for operand in node.input]
    neighbours += [user for user, _ in graph.consumers()[name] if user.op_type in ("Mul", "Div", "Add")]
    if any(neighbours) or not isinstance(columns, int):
        return [None]
    batch = shape(graph, name)[:-2]
    return [
        (operand, (*broadcast_index(its_shape[:-2], batch, index[:-2]), *last))
        for k in range(terms)
        for operand, its_shape, last in zip(node.input, shapes, ((index[-2], k), (k, index[-1])), strict=True)
    ]


MOST_TERMS = 4  # of a product of matrices


def exponent(graph, node):
    """Return the number to whose power a Pow raises others, or None if it isn't a constant one."""
    array = graph.folded(node.input[1])
    return array.item() if array is not None and array.size == 1 and array.ndim <= 1 else None


def constant(array, index):
    """Return the elements of an array at an index, as a Constant."""
    sizes = [
        n
        for at, size in zip(index, array.shape, strict=True)
        for n in (at.sizes if isinstance(at, Several) else (size,))
    ]
    index = [each for at in index for each in (at.names if isinstance(at, Several) else (at,))]
    picked = array.reshape(sizes)[tuple(slice(None) if isinstance(at, str) else at for at in index)]
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
    return name, broadcast_index(shape(graph, name), shape(graph, output), index)


def broadcast_index(dimensions, target, index):
    """Return the index for a value of these dimensions that is broadcast to others. Raises ValueError if uncertain."""
    more = len(index) - len(dimensions)
    if more < 0 or any(not isinstance(d, int) and d != w for d, w in zip(dimensions, target[more:], strict=True)):
        raise ValueError("dimensions differ, or are unknown")
    return tuple(0 if d == 1 else at for d, at in zip(dimensions, index[more:], strict=True))


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
    if not isinstance(position, int | None):
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
        if not isinstance(at, int):
            if len(positions) != size or step != 1:
                return None
        else:
            index[axis] = positions[at]
    return node.input[0], tuple(index)


def _split(graph, node, attributes, name, index):
    axis = attributes.get("axis", 0) % len(index)
    sizes = [(shape(graph, output) or {axis: None})[axis] for output in node.output]
    before = sizes[: list(node.output).index(name)]
    if not isinstance(index[axis], int) or not all(isinstance(size, int) for size in before):
        return None
    return node.input[0], (*index[:axis], index[axis] + sum(before), *index[axis + 1 :])


def _concat(graph, node, attributes, name, index):
    axis = attributes["axis"] % len(index)
    at, target = index[axis], list(shape(graph, name))
    for operand in node.input:
        dimensions = list(shape(graph, operand))
        target[axis] = dimensions[axis]
        if dimensions != target or not isinstance(target[axis], int) or not isinstance(at, int):
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
    """Follow a Reshape, after which an axis may be a part of one, or several of them."""
    digits = []  # what the index consists of, from the outermost axis: (position or name, size)
    for at, size in zip(index, shape(graph, name), strict=True):
        digits += zip(at.names, at.sizes, strict=True) if isinstance(at, Several) else [(at, size)]
    digits, index = [digit for digit in digits if digit[1] != 1], []
    for size in shape(graph, node.input[0]):
        taken, rest = [], size
        while rest != 1:
            at, digit_size = digits.pop(0)
            whole = quotient(rest, digit_size)
            if whole is None:  # the axis ends within a position
                inner = quotient(digit_size, rest)
                digits.insert(0, (at % inner, inner))
                at, digit_size, whole = at // inner, rest, 1
            taken.append((at, digit_size))
            rest = whole
        index.append(_joined(taken))
    return node.input[0], tuple(index)


def _joined(digits):
    """Return an index' entry for digits that are one axis. Raises ValueError if it would be something else."""
    names = "".join(at for at, _ in digits if isinstance(at, str))
    if not names:
        position = 0
        for at, size in digits:
            position = position * size + at
        return position
    if len(names) < len(digits):
        raise ValueError("a position within an axis")
    return names if len(names) == 1 else Several(names, tuple(size for _, size in digits))


def _cast(graph, node, attributes, name, index):
    return (node.input[0], index) if graph.type(node.input[0]).elements == attributes["to"] else None


MOVES = {
    "Cast": _cast,
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
