"""What nodes compute, as expressions of constants and of other values' elements.

Nodes that only move elements are followed to the value that the elements come from. Sums and products become operations
if they vary along image axes. What is the same for all pixels of an image, such as an element of a matrix, is a leaf,
however it was computed.

Expressions of 16-bit floats are computed in float32. They are rounded where they become coordinates or another type.
"""

import math
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from ..declaration.dtypes import FLOATS, HALVES
from .finding import tried
from .indices import MOVES, attributes_of, axes_of, integers, keeps_type, moved, shape
from .positions import Position, broadcast_index, digits_of, elements, joined, variable
from .reshapes import unknown_size
from .shapes import COMPARISONS
from .sizes import are_numbers, quotient

AXES = "ndhw"  # variables of indices: images, and the axes of each
DEEPEST = 100  # nodes on the way from a value to a leaf
MOST_EXPRESSIONS = 10_000  # that coordinates consist of: sums of sums may have any number
LARGEST = 2**24  # pixels along an axis of the grid that a constant states


@dataclass(frozen=True)
class Leaf:
    """The elements of a value at an index."""

    name: str
    index: tuple


def axes_in(index, each=False):
    """Return the names of the AXES along which an index runs. each: those along which it differs at each step."""
    return {term.variable.name for at in index for term in at.terms if not each or term.inner == 1}


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


def as_source(index, dimensions):
    """Return (parts, sizes, entries): the parts of a value's axes, and `axes_apart` of these after their repeats.

    A part is (times around, size, times each). An index that runs along a digit of one of AXES, as that of an image
    among those that are stacked along it, runs along all of it after the repeats. Raises ValueError.
    """
    apart = tried(axes_apart, index, dimensions)
    if apart is not None:
        return [(1, size, 1) for size in dimensions], *apart
    digits = [d for at, size in zip(index, dimensions, strict=True) for d in digits_of(at, size)]
    names = [term.variable.name for digit, _ in digits for term in digit.terms]
    whole, parts = [], []
    for digit, size in digits:
        around, each = 1, 1
        if len(digit.terms) == 1 and (digit.start, digit.terms[0].step, digit.terms[0].size) == (0, 1, size):
            (term,) = digit.terms
            around, each = quotient(term.variable.size, term.inner * size), term.inner
            if names.count(term.variable.name) > 1 or not isinstance(each, int) or not isinstance(around, int):
                raise ValueError("several digits, or an open number of repeats")
            whole.append(variable(*term.variable))
        else:
            whole.append(digit)
        parts.append((around, size, each))
    return parts, *axes_apart(whole, [math.prod(part) for part in parts])


@dataclass(frozen=True, eq=False)
class Constant:
    """An array with an axis for each of AXES, of size 1 where it doesn't vary."""

    array: np.ndarray


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


def expression(graph, name, index, memo, depth=DEEPEST):
    """Return the expression of a value at an index.

    memo  {leaf: expression} of what has been expressed so far, and "type": that of the first value
    """
    memo.setdefault("type", graph.type(name).elements)
    leaf = Leaf(name, index)
    if leaf not in memo:
        memo[leaf] = _expression(graph, leaf, memo, depth)
    return memo[leaf]


def _expression(graph, leaf, memo, depth):
    array, node = graph.folded(leaf.name), _producer(graph, leaf.name)
    if array is not None and array.dtype.name in FLOATS:
        wide = array.astype(np.float32) if array.dtype.name in HALVES else array
        return tried(constant, wide, leaf.index) or leaf
    may_follow = node is not None and depth and len(memo) < MOST_EXPRESSIONS
    sources = tried(_sources, graph, node, leaf.name, leaf.index, memo["type"]) if may_follow else None
    if sources is None or None in sources:
        return leaf
    operands = tuple(expression(graph, *source, memo, depth - 1) if source[0] else None for source in sources)
    if not all(not isinstance(each, Leaf) or is_readable(graph, each) for each in operands):
        return leaf
    narrow = graph.type(node.input[0]).elements
    if node.op_type == "Cast" and narrow in NARROWING and not keeps_type(graph, node):
        return operands[0] if is_rounded(graph, operands[0], narrow) else Operation(NARROWING[narrow], operands)
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


def unknown_size_behind(graph, name):
    """Return such a text for a value and its sources."""
    reached, unknown = [name], None
    for value in reached:
        node, unknown = _producer(graph, value), unknown or unknown_size(graph, shape(graph, value) or ())
        if node is not None and node.op_type in (*MOVES, *OPERATIONS) and not unknown and len(reached) < DEEPEST:
            reached += [each for each in node.input if each and each not in reached]
    return unknown


def is_readable(graph, leaf):
    """Return whether a source of a program can be the elements of a value at this index."""
    return tried(as_source, leaf.index, shape(graph, leaf.name)) is not None


def _producer(graph, name):
    """Return the node of ai.onnx that makes a value, or a FusedMatMul, which is what ONNX Runtime makes of MatMul."""
    node = graph.producers.get(name)
    is_fused = node is not None and (node.domain, node.op_type) == ("com.microsoft", "FusedMatMul")
    return node if is_fused else graph.producer(name)


def _sources(graph, node, name, index, kind):
    """Return [(name, index)] of what a node computes its output from, at an index; None, or [None], for a leaf."""
    if node.op_type in MOVES and (node.op_type != "Cast" or keeps_type(graph, node)):
        return [moved(graph, node, name, index)]
    if not axes_in(index, each=True) & set(AXES[1:]):
        return None
    if node.op_type == "Cast":
        kinds = {before := graph.type(node.input[0]).elements, attributes_of(node)["to"]}
        follows = before == TensorProto.BOOL or (TensorProto.FLOAT in kinds and kinds & {*NARROWING})
        return [(node.input[0], index) if follows else None]
    if node.op_type == "ReduceSum":
        return _terms(graph, node, index)
    if node.op_type == "AffineGrid":
        return _affine_factors(graph, node, name, index)
    if node.op_type in ("MatMul", "FusedMatMul"):
        return _products(graph, node, name, index)
    if node.op_type in OPERATIONS and is_supported(graph, node, kind):
        operands = node.input[:1] if node.op_type == "Pow" else node.input
        target = shape(graph, name)
        return [(each, broadcast_index(shape(graph, each), target, index, True) if each else ()) for each in operands]
    return None


def is_rounded(graph, what, elements):
    """Return whether an expression is of a 16-bit type, by its number, without rounding."""
    return isinstance(what, Leaf) and graph.type(what.name).elements == elements


NARROWING = {TensorProto.FLOAT16: "CastFloat16", TensorProto.BFLOAT16: "CastBFloat16"}
OPERATIONS = (
    "Abs", "Add", "And", "Ceil", "Clip", "Div", "Floor", "Max", "Min", "Mul", "Neg", "Not", "Or", "Pow", "Reciprocal",
    "Round", "Sqrt", "Sub", "Where", "AffineGrid", "MatMul", "ReduceSum", *COMPARISONS,
)  # fmt: skip


def is_supported(graph, node, kind):
    """Return whether a node of OPERATIONS does what its operation does in a program for coordinates of a type."""
    if node.op_type in COMPARISONS:
        kinds = {graph.type(node.input[0]).elements, kind}
        return kinds == {TensorProto.DOUBLE} or kinds <= {TensorProto.FLOAT, *NARROWING}
    if node.op_type == "Pow":
        return exponent(graph, node) in (2, 3)
    return node.op_type != "Clip" or graph.opset >= 11


def _products(graph, node, name, index):
    """Return the factors of the products that an element of a MatMul adds up: one's, then the next one's, and so on."""
    attributes, shapes = attributes_of(node), [list(shape(graph, operand)) for operand in node.input]
    if min(map(len, shapes)) < 2 or attributes.get("alpha", 1) != 1:
        return None
    if attributes.get("transBatchA") or attributes.get("transBatchB"):
        return None
    turned = [attributes.get(each, 0) for each in ("transA", "transB")]
    terms = shapes[0][-2 if turned[0] else -1]
    if not isinstance(terms, int) or not 0 < terms <= MOST_TERMS or _has_several_grids(graph, name):
        return None
    batch = shape(graph, name)[:-2]
    factors = []
    for k in range(terms):
        matrix_indices = (index[-2], Position(k)), (Position(k), index[-1])
        for operand, its_shape, turn, last in zip(node.input, shapes, turned, matrix_indices, strict=True):
            last = last[::-1] if turn else last
            factors.append((operand, (*broadcast_index(its_shape[:-2], batch, index[:-2]), *last)))
    return factors


def _has_several_grids(graph, name):
    """Return whether nodes compute several grids from a value: it is then better computed once for all of them."""
    grids, reached = set(), {name}
    for value in (values := [name]):
        for node, position in graph.consumers.get(value, ()):
            if node.op_type == "ComputedGridSample" or (node.op_type, position) == ("GridSample", 1):
                grids.add(value if node.op_type == "GridSample" else node.output[0])
            elif node.op_type in (*MOVES, *OPERATIONS):
                values += [each for each in node.output if each not in reached]
                reached.update(node.output)
    return len(grids) > 1


def _terms(graph, node, index):
    """Return the terms of an element of a ReduceSum."""
    dimensions, index = shape(graph, node.input[0]), list(index)
    axes = sorted(axis % len(dimensions) for axis in axes_of(graph, node))
    sizes = [dimensions[axis] for axis in axes]
    if not axes or not are_numbers(sizes) or not 0 < math.prod(sizes) <= MOST_TERMS:
        return None
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
        return None
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


def exponent(graph, node):
    """Return the exponent of a Pow, or None if it isn't constant."""
    array = graph.folded(node.input[1])
    return array.item() if array is not None and array.size == 1 and array.ndim <= 1 else None


def constant(array, index):
    """Return the elements of an array at an index, as a Constant."""
    picked = elements(array, index, AXES)
    for k in range(picked.ndim):  # axes along which nothing varies get size 1
        first = picked.take([0], k) if picked.shape[k] else picked
        if np.array_equal(picked, np.broadcast_to(first, picked.shape)):
            picked = first
    return Constant(picked)
