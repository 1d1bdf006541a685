"""What nodes compute, as expressions of constants and of other values' elements.

Nodes that only move elements are followed to the value that the elements come from. Sums and products become operations
if they vary along image axes. What is the same for all pixels of an image, such as an element of a matrix, is a leaf,
however it was computed. Operations on 16-bit floats are those on float32: only a Cast to 16 bits rounds to these.
"""

import math
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from .finding import tried
from .indices import MOVES, attributes_of, axes_of, integers, keeps_type, moved, shape
from .positions import Position, broadcast_index, digits_of, elements, joined, variable

AXES = "ndhw"  # variables of indices: images, and the axes of each
DEEPEST = 100  # nodes on the way from a value to a leaf
MOST_EXPRESSIONS = 10_000  # that coordinates consist of: sums of sums may have any number
LARGEST = 2**24  # pixels along an axis of the grid that a constant states


@dataclass(frozen=True)
class Leaf:
    """The elements of a value at an index."""

    name: str
    index: tuple


def axes_in(index):
    """Return the names of the AXES along which an index runs."""
    return {term.variable.name for at in index for term in at.terms}


def axes_apart(index, dimensions):
    """Return (sizes, entries) of a value's axes after those that run along several of AXES are taken apart, and joined.

    An entry is a number or one of AXES. Raises ValueError if some run in another way than along all of one of AXES.
    """
    if 0 in dimensions:
        raise ValueError("no elements: any digits could be those of its axes")
    sizes, entries, parts = [], [], []  # parts: what may be one axis together with the digits that follow
    for at, size in zip(index, dimensions, strict=True):
        for digit in digits_of(at, size):
            parts.append(digit)
            whole, length = joined(parts), math.prod(size for _, size in parts)
            names = [term.variable.name for term in whole.terms]
            if not names or whole == variable(names[0], length):
                sizes.append(length)
                entries += names or [whole.start]
                parts = []
    if parts:
        raise ValueError("a part of an axis")
    return sizes, entries


@dataclass(frozen=True, eq=False)
class Constant:
    """An array with an axis for each of AXES, of size 1 where it doesn't vary."""

    array: np.ndarray

    def __eq__(self, other):
        return isinstance(other, Constant) and self.array.shape == other.array.shape and same(self.array, other.array)


@dataclass(frozen=True)
class Pixels:
    """0, 1, 2, ... along one of AXES, as many as the element of a vector of sizes at a position."""

    sizes: str
    position: int
    axis: str


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
    array, node = graph.folded(leaf.name), _producer(graph, leaf.name)
    if array is not None and graph.type(leaf.name).elements in NARROWING:
        array = array.astype(np.float32)
    if array is not None and array.dtype.kind == "f":
        return tried(constant, array, leaf.index) or leaf
    may_follow = node is not None and depth and len(memo) < MOST_EXPRESSIONS
    sources = tried(_sources, graph, node, leaf.name, leaf.index) if may_follow else None
    if sources is None or None in sources:
        return leaf
    operands = tuple(expression(graph, *source, depth - 1, memo) if source[0] else None for source in sources)
    if not all(not isinstance(each, Leaf) or is_readable(graph, each) for each in operands):
        return leaf
    if node.op_type == "Cast" and not keeps_type(graph, node):
        narrow = {attributes_of(node)["to"], graph.type(node.input[0]).elements} & {*NARROWING}
        return Operation(NARROWING[narrow.pop()], operands)
    if node.op_type in MOVES:
        return operands[0]
    if node.op_type == "Pow":
        return Operation("Mul", operands * 2) if exponent(graph, node) == 2 else Operation("Cube", operands)
    if node.op_type == "AffineGrid":
        places = tried(_base_coordinates, graph, node, leaf.index)
        return leaf if places is None else _sum_of_products(operands, places)
    if node.op_type == "ReduceSum":
        return Operation("Sum", operands)
    return Operation("MatMul" if node.op_type == "FusedMatMul" else node.op_type, operands)


def is_readable(graph, leaf):
    """Return whether a source of a program can be the elements of a value at this index."""
    return tried(axes_apart, leaf.index, shape(graph, leaf.name)) is not None


def _producer(graph, name):
    """Return the node of ai.onnx that makes a value, or a FusedMatMul, which is what ONNX Runtime makes of MatMul."""
    node = graph.producers.get(name)
    is_fused = node is not None and (node.domain, node.op_type) == ("com.microsoft", "FusedMatMul")
    return node if is_fused else graph.producer(name)


def _sources(graph, node, name, index):
    """Return [(name, index)] of what a node computes its output from, at an index; [None] for a leaf."""
    if node.op_type in MOVES and (node.op_type != "Cast" or keeps_type(graph, node)):
        is_certain = node.op_type != "Transpose" or not _turns_what_changes_weights(graph, node)
        return [moved(graph, node, name, index) if is_certain else None]
    if not axes_in(index) & set(AXES[1:]):
        return [None]
    if node.op_type == "Cast":
        return [_before_narrowing(graph, node, index)]
    if node.op_type == "ReduceSum":
        return _terms(graph, node, index)
    if node.op_type == "AffineGrid":
        return _affine_factors(graph, node, name, index)
    if node.op_type in ("MatMul", "FusedMatMul"):
        return _products(graph, node, name, index)
    if node.op_type in OPERATIONS and is_exact(graph, node):
        operands = node.input[:1] if node.op_type == "Pow" else node.input
        target = shape(graph, name)
        return [(each, broadcast_index(shape(graph, each), target, index) if each else ()) for each in operands]
    return [None]


NARROWING = {TensorProto.FLOAT16: "CastFloat16", TensorProto.BFLOAT16: "CastBFloat16"}


def _before_narrowing(graph, node, index):
    """Return (name, index) of the float32 that a Cast rounds to 16 bits, or has before this one widens it; or None."""
    name, narrow = node.input[0], graph.type(node.input[0]).elements
    if attributes_of(node)["to"] in NARROWING and narrow == TensorProto.FLOAT:
        return name, index
    is_wide = attributes_of(node)["to"] == TensorProto.FLOAT and narrow in NARROWING
    # ONNX Runtime, which computes in float32, may leave out casts between arithmetic in 16 bits and in float32, or make
    # them a part of other nodes.
    if not is_wide or not _only_leads_to(graph, node.output[0], (*MOVES, *OPERATIONS, "GridSample")):
        return None
    for _ in range(DEEPEST):
        maker = graph.producer(name, *MOVES)
        if maker is None or not _only_leads_to(graph, name, MOVES):
            return None
        if maker.op_type == "Cast" and graph.type(maker.input[0]).elements == TensorProto.FLOAT:
            return None if graph.producer(maker.input[0], "Cast") else (maker.input[0], index)
        name, index = moved(graph, maker, name, index)
    return None


def _only_leads_to(graph, name, op_types):
    return all(user.op_type in op_types for user, _ in graph.consumers()[name])


COMPARISONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
OPERATIONS = (
    "Abs", "Add", "And", "Ceil", "Clip", "Div", "Floor", "Max", "Min", "Mul", "Neg", "Not", "Or", "Pow", "Reciprocal",
    "Round", "Sqrt", "Sub", "Where", "AffineGrid", "MatMul", "ReduceSum", *COMPARISONS,
)  # fmt: skip


def is_exact(graph, node):
    """Return whether a node is certain to do what its operation does to floats, bit for bit."""
    if node.op_type in COMPARISONS:
        return graph.type(node.input[0]).elements in (TensorProto.FLOAT, TensorProto.DOUBLE)
    if node.op_type == "Pow":  # ONNX Runtime rounds powers otherwise where the last axis has one element
        return exponent(graph, node) in (2, 3) and shape(graph, node.input[0])[-1] != 1
    if node.op_type == "Clip":
        return graph.opset >= 11
    # ONNX Runtime makes y / x of 1 / x * y.
    makers = [_maker(graph, name)[0] for name in node.input] if node.op_type == "Mul" else []
    if any(_is(maker, "Div") and graph.folded(maker.input[0]) is not None for maker in makers):
        return False
    return not (changes_weights(graph, node) or may_be_joined(graph, node))


def _maker(graph, name):
    """Return the node that makes a value, and whether a Transpose follows it.

    Nodes that ONNX Runtime leaves out, or a Transpose, which it may move elsewhere, are passed.
    """
    is_turned = False
    for _ in range(DEEPEST):
        node = _producer(graph, name)
        may_pass = _is(node, "Cast", "Dropout", "Expand", "Identity", "Slice", "Transpose")
        if not (may_pass or (_is(node, "Add", "Sub") and _is_zero(graph.folded(node.input[1])))):
            return node, is_turned
        if node.op_type != "Transpose" and graph.type(node.input[0]) != graph.type(name):
            return node, is_turned
        name, is_turned = node.input[0], is_turned or node.op_type == "Transpose"
    return None, is_turned


def _is_zero(array):
    return array is not None and array.size == 1 and array.item() == 0


def changes_weights(graph, node):
    """Return whether ONNX Runtime may do in the Conv or MatMul before what a node does, which rounds otherwise.

    It multiplies weights by a number, or by one for each channel, and adds these to a bias, or a Conv's sums to others.
    A Transpose between them it moves to the next one, if there is one.
    """
    is_turned = _is_after_weights(graph, node)
    return is_turned is False or (is_turned is True and _leads_to_transpose(graph, node.output[0]))


def _turns_what_changes_weights(graph, transpose):
    """Return whether a Transpose may make ONNX Runtime do in weights what a node before it does."""
    names, seen = [*transpose.input], set()
    while names:
        node = _producer(graph, names.pop())
        if node is None or node.op_type in (*WEIGHTED, "GridSample", "Transpose"):
            continue
        if _is_after_weights(graph, node):
            return True
        names += [name for name in node.input if name not in seen]
        seen.update(node.input)
    return False


def _is_after_weights(graph, node):
    """Return whether a Transpose lies between a node and weights that could do what it does; None if none could."""
    was_turned = False
    for _ in range(DEEPEST):
        if node is None or node.op_type in WEIGHTED:
            break
        if not _is(node, "Add", "Div", "Mul", "Sub"):
            return None
        names = [name for name in node.input if not _is_few(graph.folded(name))]
        makers = [_maker(graph, name) for name in names]
        if node.op_type == "Add" and len(makers) == 2:
            others = zip(makers, names[::-1], strict=True)
            if any(_is(maker, "MatMul") and len(shape(graph, other) or ()) < 3 for (maker, _), other in others):
                return False  # a Gemm adds products up to the other operand
            makers.sort(key=lambda maker: _conv(graph, maker[0]) is not None)
            conv = _conv(graph, makers[1][0])
            if conv is None or not (_is_in_blocks(graph, makers[0][0]) or _may_lack_blocks(graph, conv)):
                return None
        elif len(makers) != 1:
            return None
        turned = sum(is_turned for _, is_turned in makers)
        was_turned = was_turned or turned == 1  # Transposes of both terms it moves to their sum
        node = makers[-1][0]
    return was_turned if _is(node, *WEIGHTED) else None


def _conv(graph, node):
    """Return the Conv by which ONNX Runtime may compute a node, and to whose sums it then adds others; None if none."""
    for _ in range(DEEPEST):
        if not _is(node, "Add", "Div", "Mul", "Sub"):
            break
        names = [name for name in node.input if not _is_few(graph.folded(name))]
        node = _maker(graph, names[0])[0] if len(names) == 1 else None
    return node if _is(node, "BatchNormalization", "Conv") else None


def _may_lack_blocks(graph, node):
    """Return whether ONNX Runtime may not have the channels of a Conv in blocks, as of groups or of uneven numbers.

    It then adds anything to its sums. node: the Conv, or a BatchNormalization that may follow one.
    """
    conv = _maker(graph, node.input[0])[0] if node.op_type == "BatchNormalization" else node
    if not _is(conv, "Conv"):
        return False
    _, channels, *_ = shape(graph, conv.input[1]) or (None, None)
    is_even = isinstance(channels, int) and (channels < SMALLEST_BLOCK or channels % 4 == 0)
    return attributes_of(conv).get("group", 1) != 1 or not is_even


def _is_in_blocks(graph, node, depth=5):
    """Return whether ONNX Runtime may have a node's channels in blocks, as a Conv makes them: it adds only these."""
    if depth == 0 or _is(node, "Conv"):
        return True
    names = [name for name in node.input if name and not _is_few(graph.folded(name))] if node else []
    makers = [_maker(graph, name)[0] for name in names]
    return _is(node, *KEEPING_BLOCKS) and all(_is_in_blocks(graph, maker, depth - 1) for maker in makers)


def _is(node, *op_types):
    return node is not None and node.op_type in op_types


def _leads_to_transpose(graph, name):
    """Return whether a Transpose follows a value, before a Conv, MatMul or GridSample does."""
    consumers, names, seen = graph.consumers(), [name], set()
    while names:
        users = [user for user, _ in consumers[names.pop()] if user.op_type not in (*WEIGHTED, "GridSample")]
        if any(user.op_type == "Transpose" for user in users):
            return True
        names += [output for user in users for output in user.output if output not in seen]
        seen.update(names)
    return False


def may_be_joined(graph, node, depth=5):
    """Return whether ONNX Runtime may make one node of some that compute a LayerNormalization or a Gelu.

    They end by up to 4 nodes after the sum of a number and a mean, or by 2 after that of a number and an Erf or a Tanh.
    """
    if depth == 0 or not _is(node, "Add", "Div", "Mul", "Sqrt"):
        return False
    makers = [_maker(graph, name)[0] for name in node.input]
    numbers = [array for array in map(graph.folded, node.input) if array is not None and array.size == 1]
    last = ("ReduceMean",) if depth < 3 else ("ReduceMean", "Erf", "Tanh")
    if node.op_type == "Add" and numbers and any(_is(maker, *last) for maker in makers):
        return True
    return any(may_be_joined(graph, maker, depth - 1) for maker in makers)


def _is_few(array):
    """Return whether an array is a constant that is a number, or a vector along one axis."""
    return array is not None and array.size == max(array.shape, default=1)


def _products(graph, node, name, index):
    """Return the factors of the products that an element of a MatMul adds up: one's, then the next one's, and so on.

    ONNX Runtime adds matrices of one row or one column up in another way, and multiplies by numbers in the same step.
    """
    attributes, shapes = attributes_of(node), [list(shape(graph, operand)) for operand in node.input]
    if min(map(len, shapes)) < 2 or attributes.get("alpha", 1) != 1:
        return [None]
    if attributes.get("transBatchA") or attributes.get("transBatchB"):
        return [None]
    turned = [attributes.get(each, 0) for each in ("transA", "transB")]
    (rows, terms), (_, columns) = (s[:-3:-1] if turn else s[-2:] for s, turn in zip(shapes, turned, strict=True))
    if not isinstance(terms, int) or not 0 < terms <= MOST_TERMS or 1 in (rows, columns):
        return [None]
    makers = [_maker(graph, operand)[0] for operand in node.input]
    neighbours = [maker for maker in makers if _is(maker, "Mul", "Div")]
    neighbours += [user for user, _ in graph.consumers()[name] if user.op_type in ("Mul", "Div", "Add")]
    if any(neighbours) or not isinstance(columns, int):
        return [None]
    batch = shape(graph, name)[:-2]
    factors = []
    for k in range(terms):
        matrix_indices = (index[-2], Position(k)), (Position(k), index[-1])
        for operand, its_shape, turn, last in zip(node.input, shapes, turned, matrix_indices, strict=True):
            last = last[::-1] if turn else last
            factors.append((operand, (*broadcast_index(its_shape[:-2], batch, index[:-2]), *last)))
    return factors


def _terms(graph, node, index):
    """Return what an element of a ReduceSum adds up."""
    dimensions, index = shape(graph, node.input[0]), list(index)
    axes = sorted(axis % len(dimensions) for axis in axes_of(graph, node))
    sizes = [dimensions[axis] for axis in axes]
    if not axes or not all(isinstance(size, int) for size in sizes) or not 0 < math.prod(sizes) <= MOST_TERMS:
        return [None]
    if not attributes_of(node).get("keepdims", 1):
        for axis in axes:
            index.insert(axis, Position())
    terms = []
    for numbers in np.ndindex(*sizes):
        for axis, number in zip(axes, numbers, strict=True):
            index[axis] = Position(number)
        terms.append((node.input[0], tuple(index)))
    return terms


def _affine_factors(graph, node, name, index):
    """Return the elements of theta by which an AffineGrid multiplies the base coordinates x, y (and z) and 1."""
    (theta, _), (n, *pixel, i) = node.input, index
    images, _, columns = shape(graph, theta)
    if not i.is_number():
        return [None]
    if n == variable("n", shape(graph, name)[0]):  # two names of one number
        n = variable("n", images)
    return [(theta, (n, i, Position(j))) for j in range(columns)] if len(pixel) == columns - 1 else [None]


def _base_coordinates(graph, node, index):
    """Return the expressions of the base coordinates x, y (and z) of an AffineGrid."""
    sizes, dimensions = integers(graph, node.input[1]), shape(graph, node.output[0])
    dtype = np.float64 if graph.type(node.input[0]).elements == TensorProto.DOUBLE else np.float32
    align_corners, places = attributes_of(node).get("align_corners", 0), []
    for axis in range(len(index) - 2, 0, -1):  # x runs along the last image axis
        size, at = None if sizes is None else sizes[axis + 1], index[axis]  # of [N, C, (D,) H, W]
        if isinstance(size, int):
            places.append(constant(base_coordinates(size, align_corners).astype(dtype), (at,)))
            continue
        (along,) = axes_in((at,))
        if at != variable(along, dimensions[axis]):
            return None
        pixels, count = Pixels(node.input[1], axis + 1, along), Leaf(node.input[1], (Position(axis + 1),))
        places.append(_open_coordinates(pixels, count, align_corners, dtype))
    return places


def base_coordinates(size, align_corners):
    """Return the coordinates of the pixels along an axis, as ONNX Runtime's AffineGrid computes them.

    -1 and 1 are the outer pixels' centres with `align_corners`, else their outer edges. A single centre is 1.
    """
    if not 0 < size <= LARGEST:
        raise ValueError("no pixels, or too many")
    if align_corners:
        return np.linspace(-1, 1, size) if size > 1 else np.ones(1)
    return (2 * np.arange(size) + 1) / size - 1


def _open_coordinates(pixels, count, align_corners, dtype):
    """Return the expression of the base coordinates along an axis whose size is known when the model runs."""
    one, two = (Constant(np.full([1] * len(AXES), number, dtype)) for number in (1, 2))
    if align_corners:
        last = Operation("Sub", (count, one))
        steps = Operation("Max", (last, one))  # of one pixel, whose coordinate is 1
        doubled = Operation("Mul", (two, Operation("Add", (pixels, Operation("Sub", (steps, last))))))
    else:
        doubled, steps = Operation("Add", (Operation("Mul", (two, pixels)), one)), count
    return Operation("Sub", (Operation("Div", (doubled, steps)), one))


def _sum_of_products(factors, places):
    *factors, last = factors
    products = (Operation("Mul", pair) for pair in zip(factors, places, strict=True))
    return Operation("Sum", (*products, last))


MOST_TERMS = 4  # of a sum
SMALLEST_BLOCK = 8  # channels; 16 on CPUs with AVX-512
WEIGHTED = "BatchNormalization", "Conv", "FusedMatMul", "MatMul"
KEEPING_BLOCKS = (
    "Add", "BatchNormalization", "Clip", "Concat", "Div", "HardSigmoid", "LeakyRelu", "Mul", "Relu", "Resize",
    "Sigmoid", "Sub", "Sum", "Tanh",
)  # fmt: skip


def exponent(graph, node):
    """Return the number to whose power a Pow raises others, or None if it isn't a constant one."""
    array = graph.folded(node.input[1])
    return array.item() if array is not None and array.size == 1 and array.ndim <= 1 else None


def constant(array, index):
    """Return the elements of an array at an index, as a Constant."""
    picked = elements(array, index, AXES)
    for k in range(picked.ndim):  # axes along which nothing varies get size 1
        first = picked.take([0], k) if picked.shape[k] else picked
        if same(picked, first):
            picked = first
    return Constant(picked)


def same(one, other):
    """Return whether two arrays hold the same numbers. Zeros of different signs differ."""
    return bool(((one == other) & (np.signbit(one) == np.signbit(other))).all())
