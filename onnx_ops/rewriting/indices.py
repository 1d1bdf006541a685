"""Which elements of values the elements of others are, and the integers that these hold: exporters compute indices and
sizes by nodes.

For nodes that only move elements, rules go from an index into the output to one into an input (positions.py). The
integer that a value holds at an index is a `Position`, too: a number, which may depend on sizes that the model leaves
open (sizes.py), and a sum over the index' variables. So a tensor may be known as a whole, or element by element.

What depends on open sizes is of int64. What is computed of known integers is the same in int32 and int64; values that
only one of them can hold are left to `Graph.folded`, and so is arithmetic in other types.
"""

import math
from dataclasses import replace
from functools import partial
from operator import add, sub
from typing import NamedTuple

import numpy as np
from onnx import TensorProto, numpy_helper

from .finding import tried
from .positions import Position, broadcast_index, divided, reshaped, solved, variables
from .reading.integers import part_of_sequence
from .reading.operators.moves import pads_with_zeros
from .reading.reader import attributes_of
from .sizes import Size, are_numbers, at_least_zero, factors, never_negative, quotient, truncated

LONGEST = 60  # nodes of a path, and on the way to an integer
LARGEST = 2**22  # elements of a constant that is searched for steps
MANY = 2**10  # integers that are worked out one by one
INT32_MAX = 2**31 - 1
INT32 = range(-INT32_MAX - 1, INT32_MAX + 1)
QUANTIZED = TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT16
WIDE_FLOATS = TensorProto.FLOAT, TensorProto.DOUBLE


def shape(graph, name):
    """Return a value's dimensions, as ints and Sizes; None if the rank is unknown."""
    return graph.type(name).shape


# Elements that move.


def moved(graph, node, name, index):
    """Return (input, index) of the elements that a node moves to an index of its output `name`; None if unknown."""
    made = tried(MOVES[node.op_type], graph, node, attributes_of(node), name, index)
    return made if made is None or node.op_type in JOINS else (node.input[0], made)


def path(graph, name, source=None, uses=None, through_blocks=False):
    """Go back from a value through nodes that only move elements; returns ([(node, its output), ...], where it ends).

    The path ends at the source, if one is given and the path leads there, and where several values are put together,
    except for blocks of one value, if it leads through_blocks. If it is said how many uses the first value may have, it
    also ends at a value that is used elsewhere, too, except for its shape.
    """
    steps = []
    while name != source and len(steps) < LONGEST:
        if uses is not None and graph.users[name] - graph.measured[name] > uses:
            break
        uses = uses and 1
        unrounded = requantized(graph, name)
        node = graph.producer(name, *MOVES)
        blocks = through_blocks and node is not None and node.op_type == "Concat" and blocks_of(graph, node)
        if unrounded is not None:
            name = unrounded
        elif blocks:
            steps.append((node, name))
            name, uses = blocks.source, uses and len(node.input)
        elif node is None or not _moves_one(graph, node):
            break
        else:
            steps.append((node, name))
            name = node.input[0]
    return steps, name


class Blocks(NamedTuple):
    """Operands of a Concat that are blocks of one value, side by side or overlapping.

    source      the value
    steps       of the path from the first block to the source
    axis, step  of the source: where one block begins after the other
    length      of a block along this axis
    """

    source: str
    steps: list
    axis: int
    step: int
    length: int


def blocks_of(graph, concat):
    """Return the Blocks that a Concat puts together, or None if there are none, or not for certain."""
    name = concat.output[0]
    if name not in graph.blocks:
        graph.blocks[name] = tried(_blocks_of, graph, concat)
    return graph.blocks[name]


def _blocks_of(graph, concat):
    paths = [path(graph, operand) for operand in concat.input]
    names = [[*(node.input[0] for node, _ in steps), end] for steps, end in paths]
    source, *_ = [name for name in names[0] if all(name in others for others in names)]
    paths = [steps[: each.index(source) + 1] for (steps, _), each in zip(paths, names, strict=True)]
    # Shapes take long to work out: in most models no Concat gets so far.
    if {node.op_type for node, _ in paths[0]}.isdisjoint(("Reshape", "Unsqueeze")):
        return None
    dimensions = shape(graph, concat.input[0])
    indices = [followed(graph, steps, variables(dimensions)) for steps in paths]
    if {shape(graph, operand) for operand in concat.input} != {dimensions} or None in indices:
        return None
    first, second = ([at.start for at in index] for index in indices[:2])
    steps = [b - a for a, b in zip(first, second, strict=True)]
    for k, index in enumerate(indices):
        starts = [start + k * step for start, step in zip(first, steps, strict=True)]
        if list(index) != [replace(at, start=start) for at, start in zip(indices[0], starts, strict=True)]:
            return None
    ((a, step),) = [(a, step) for a, step in enumerate(steps) if step != 0]
    length = math.prod(term.size for term in indices[0][a].terms)
    return Blocks(source, paths[0], a, step, length)


def _moves_one(graph, node):
    """Return whether a node of MOVES moves the elements of its first input alone, as they are."""
    return node.op_type not in JOINS and (node.op_type != "Cast" or keeps_type(graph, node))


def followed(graph, steps, index):
    """Return the index at which the steps of a path lead to the value where it ends; None if that is unknown."""
    for node, name in steps:
        target = moved(graph, node, name, index)
        if target is None:
            return None
        index = target[1]
    return index


# Tools quantize and dequantize after every node. Of what only moves quantized elements that changes nothing.


def requantized(graph, name):
    """Return the value that another one equals after quantizing and dequantizing; None if there is none.

    All elements of that value are from an equal DequantizeLinear, or zeros of a Pad.
    """
    node = graph.producer(name, "DequantizeLinear")
    quantizer = node and graph.producer(node.input[0], "QuantizeLinear")
    step = quantizer and tried(_step, graph, node, node.input[0])
    if not step or step != tried(_step, graph, quantizer, node.input[0]):
        return None
    name = quantizer.input[0]
    for _ in range(LONGEST):
        node = graph.producer(name, "DequantizeLinear", "Pad", *MOVES)
        if node is None or node.op_type == "DequantizeLinear":
            is_quantized = node is not None and tried(_step, graph, node, node.input[0]) == step
            return quantizer.input[0] if is_quantized else None
        if not (pads_with_zeros(graph, node) if node.op_type == "Pad" else _moves_one(graph, node)):
            return None
        name = node.input[0]
    return None


def _step(graph, node, quantized):
    """Return all that decides what a QuantizeLinear or DequantizeLinear makes of an element, by one step for all.

    Fails, or returns None, unless dequantized integers certainly become the same ones when they are quantized.
    """
    scale, zero = graph.folded(node.input[1]).item(), 0
    if len(node.input) > 2 and node.input[2]:
        zero = graph.folded(node.input[2]).item()
    kinds = graph.type(node.input[1]).elements, graph.type(quantized).elements
    is_exact = kinds[0] == TensorProto.FLOAT and kinds[1] in QUANTIZED and 1e-30 < scale < 1e30
    return (scale, zero, *kinds) if is_exact and attributes_of(node).keys() <= {"axis", "saturate"} else None


# Rules for `moved`: each returns the index into the first input, or (input, index) if it is of JOINS; or fails, or
# returns None.


def _same(graph, node, attributes, name, index):
    return index


def _cast(graph, node, attributes, name, index):
    return index if keeps_type(graph, node) else None


def keeps_type(graph, node):
    return graph.type(node.input[0]).elements == attributes_of(node)["to"]


def _transpose(graph, node, attributes, name, index):
    order = attributes.get("perm", list(range(len(index)))[::-1])
    return tuple(index[order.index(k)] for k in range(len(index)))


def _reshape(graph, node, attributes, name, index):
    return reshaped(index, shape(graph, name), shape(graph, node.input[0]))


def _gather(graph, node, attributes, name, index):
    dimensions, rank = shape(graph, node.input[0]), len(shape(graph, node.input[1]))
    axis = range(len(dimensions))[attributes.get("axis", 0)]
    at = _from_the_start(integer_at(graph, node.input[1], index[axis : axis + rank]), dimensions[axis])
    return *index[:axis], at, *index[axis + rank :]


def _from_the_start(at, size):
    """Return a position along an axis, which may be counted from its end. Raises ValueError if that isn't known."""
    if all(map(never_negative, (at.start, *(term.step for term in at.terms)))):
        return at
    if at.terms or not isinstance(size, int):
        raise ValueError("it may be negative")
    return Position(at.start % size)


def _gather_nd(graph, node, attributes, name, index):
    dimensions, (*sizes, depth) = (shape(graph, each) for each in node.input)
    first, count = attributes.get("batch_dims", 0), len(sizes)
    ats = [integer_at(graph, node.input[1], (*index[:count], Position(k))) for k in range(depth)]
    ats = [_from_the_start(at, size) for at, size in zip(ats, dimensions[first:], strict=False)]
    return *index[:first], *ats, *index[count:]


def _scatter_elements(graph, node, attributes, name, index):
    places, axis = variables(shape(graph, node.input[1])), range(len(index))[attributes.get("axis", 0)]
    written = [*places]
    written[axis] = integer_at(graph, node.input[1], places)
    return _scattered(graph, node, attributes, written, places, index)


def _scatter_nd(graph, node, attributes, name, index):
    *sizes, depth = shape(graph, node.input[1])
    places = variables(sizes)
    written = [integer_at(graph, node.input[1], (*places, Position(k))) for k in range(depth)]
    return _scattered(graph, node, attributes, written, places, index)


def _scattered(graph, node, attributes, written, places, index):
    """Return where an element of a scatter's output is from: from the updates, if one of these is written there.

    written  the first axes of the index to which the update at the index `places` is written
    """
    if attributes.get("reduction", b"none") != b"none":
        return None
    data, _, updates = node.input
    solutions = {}  # {variable of places: where it has a value}
    for at, wanted, size in zip(written, index, shape(graph, data), strict=False):
        at = _from_the_start(at, size)
        solution = solved(at, wanted)
        if solution is None:
            return data, index
        for term in at.terms:
            if solutions.setdefault(term.variable.name, solution) != solution:
                return None
    # All of them must be found: where several updates are written to one element, it isn't said which one remains.
    found = [at if at.is_number() else solutions[at.terms[0].variable.name] for at in places]
    return updates, (*found, *index[len(written) :])


def _slice(graph, node, attributes, name, index):
    dimensions, index = shape(graph, node.input[0]), list(index)
    for axis, start, end, step in cuts(graph, node):
        if (start, step) == (0, 1):
            continue
        first, _ = sliced(dimensions[axis], start, end, step)
        index[axis] = Position(first) + index[axis].times(step)
    return tuple(index)


def _split(graph, node, attributes, name, index):
    axis = range(len(index))[attributes.get("axis", 0)]
    before = node.output[: list(node.output).index(name)]
    return _shifted(index, axis, sum(shape(graph, output)[axis] for output in before))


def _shifted(index, axis, start):
    return (*index[:axis], Position(start) + index[axis], *index[axis + 1 :])


def _sequence_at(graph, node, attributes, name, index):
    axis, start, _ = part_of_sequence(graph, node)
    return _shifted(index, axis, start)


def _concat(graph, node, attributes, name, index):
    """ONNX Runtime leaves out what has no elements, whatever its other sizes: numbers must be known to be equal."""
    axis, target = range(len(index))[attributes["axis"]], list(shape(graph, name))
    start, blocks = index[axis].start, blocks_of(graph, node)
    if not index[axis].is_number() and (blocks or len({*node.input}) == 1):
        parts = [*target[:axis], len(node.input), shape(graph, node.input[0])[axis], *target[axis + 1 :]]
        index = [*reshaped(index, target, parts)]
        which = index.pop(axis)
        if not blocks:
            return node.input[0], (*index,)
        first = followed(graph, blocks.steps, index)
        along = first[blocks.axis] + which.times(blocks.step)
        return blocks.source, (*first[: blocks.axis], along, *first[blocks.axis + 1 :])
    spans = [term.step * (term.size - 1) for term in index[axis].terms]
    for operand in node.input:
        sizes = shape(graph, operand)
        target[axis] = sizes[axis]
        its_index = broadcast_index(sizes, target, _shifted(index, axis, start - index[axis].start), True)
        if start >= -sum(s for s in spans if s < 0) and start + sum(s for s in spans if s > 0) < target[axis]:
            return operand, its_index
        start -= target[axis]
    return None


def _expand(graph, node, attributes, name, index):
    return broadcast_index(shape(graph, node.input[0]), shape(graph, name), index)


def _tile(graph, node, attributes, name, index):
    repeats, dimensions = integer_list(graph, node.input[1]), shape(graph, node.input[0])
    if any(r != 1 != d for r, d in zip(repeats, dimensions, strict=True)):
        return None
    return tuple(at if r == 1 else Position() for r, at in zip(repeats, index, strict=True))


def _resize(graph, node, attributes, name, index):
    """Of the nearest elements, where all are repeated equally often."""
    settings = {"mode": b"nearest", "coordinate_transformation_mode": b"asymmetric", "nearest_mode": b"floor"}
    is_whole = attributes.get("keep_aspect_ratio_policy", b"stretch") == b"stretch" and not attributes.get("axes")
    if graph.opset < 11 or not is_whole or any(attributes.get(key) != value for key, value in settings.items()):
        return None
    dimensions = shape(graph, node.input[0])
    times = [quotient(made, size) for made, size in zip(shape(graph, name), dimensions, strict=True)]
    scales = graph.folded(node.input[2]) if len(node.input) < 4 else times  # of sizes, it makes them itself
    if not are_numbers(times) or [*scales] != times:
        return None
    return tuple(divided(at, n)[0] if n != 1 else at for at, n in zip(index, times, strict=True))


MOVES = {
    "Cast": _cast,
    "Concat": _concat,
    "Expand": _expand,
    "Flatten": _reshape,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "Identity": _same,
    "Reshape": _reshape,
    "Resize": _resize,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "SequenceAt": _sequence_at,
    "Slice": _slice,
    "Split": _split,
    "SplitToSequence": _same,
    "Squeeze": _reshape,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _reshape,
}
JOINS = "Concat", "ScatterElements", "ScatterND"  # nodes with elements from one of several inputs


# Integers.


def integer_at(graph, name, index, depth=LONGEST):
    """Return the integer that a value holds at an index, or 0 or 1 for a boolean, as a Position; None if unknown."""
    home = graph.home(name)
    if home is None or not depth:
        return None
    if (name, index) not in home.integers:
        home.integers[name, index] = _integer_at(home, name, index, depth)
    return home.integers[name, index]


def integers(graph, name):
    """Return a flat list of the integers that a value holds, ints and Sizes, and None for what isn't known.

    None instead of the list if it has many, or it isn't known how many.
    """
    dimensions = shape(graph, name)
    if dimensions is None or not are_numbers(dimensions):
        return None
    if math.prod(max(size, 1) for size in dimensions) > MANY:  # np.ndindex lists long axes, even of no elements
        return None
    ats = [integer_at(graph, name, tuple(map(Position, index))) for index in np.ndindex(*dimensions)]
    return [None if at is None else at.start for at in ats]


def integer_list(graph, name):
    """Return a value as a flat list of ints; None if any isn't known, or depends on open sizes."""
    known = integers(graph, name)
    return known if known is not None and are_numbers(known) else None


def whole_number(graph, name):
    """Return a whole number, an int or a Size, that a value of any type is; None if it isn't known to be one."""
    array, known = graph.folded(name), integers(graph, name)
    if array is not None:
        number = array.item() if array.size == 1 and array.dtype.kind in "iuf" else np.nan
        return int(number) if np.isfinite(number) and number == int(number) else None
    if known is not None and len(known) == 1 and known[0] is not None:
        return known[0]
    node = graph.producer(name, "Cast", "Identity")
    # Of an open size; a type that has fewer numbers might hold another one.
    is_kept = node and attributes_of(node).get("to", TensorProto.INT64) in (TensorProto.INT64, *WIDE_FLOATS)
    return whole_number(graph, node.input[0]) if is_kept else None


def axes_of(graph, node):
    """Return the axes that a node states, by an attribute or by its second input; None if none, or not for certain."""
    axes = attributes_of(node).get("axes")
    return integer_list(graph, node.input[1]) if axes is None and len(node.input) > 1 else axes


def cuts(graph, node):
    """Return [(axis, start, end, step)] of a Slice, with None for what isn't known; None if the axes aren't known."""
    attributes, lists = attributes_of(node), [integer_list(graph, name) if name else () for name in node.input[1:]]
    if "starts" in attributes:
        lists = [attributes["starts"], attributes["ends"], attributes.get("axes", ())]
    starts, ends, axes, steps = [*lists, (), ()][:4]
    count = next((len(each) for each in (axes, starts, ends, steps) if each), None)
    if axes is None or count is None:
        return None
    axes, steps = axes or range(count), [1] * count if steps == () else steps
    return [*zip(axes, *([None] * count if each is None else each for each in (starts, ends, steps)), strict=True)]


def sliced(size, start, end, step):
    """Return (first position, number of positions) that a Slice takes along an axis. Raises ValueError if unknown."""
    if step < 0 and end >= INT32_MAX:
        raise ValueError("ONNX Runtime reads such an end as the first element, onnx as the last one")
    first, last = (0, size) if step > 0 else (-1, size - 1)  # where an end may lie; a start is never before element 0
    start, end = _clamped(start, size, 0, last), _clamped(end, size, first, last)
    span = end - start if step > 0 else start - end
    return start, at_least_zero((span + abs(step) - 1) // abs(step))


def _clamped(at, size, low, high):
    """Return where a start or end that a Slice states lies on an axis. Raises ValueError if that is unknown."""
    if not isinstance(size, int) and abs(at) >= INT32_MAX:  # far outside
        at = high if at > 0 else low
    elif at < 0:
        at = at + size
    if isinstance(at, int) and isinstance(high, int):
        return min(max(at, low), high)
    if at != high and not (never_negative(at - low) and never_negative(high - at)):
        raise ValueError("it may lie outside")
    return at


def _integer_at(graph, name, index, depth):
    array, node = graph.array(name), graph.producer(name)
    known = tried(_computed, graph, node, name, index, depth) if array is None and node is not None else None
    if known is not None:
        return known
    array = graph.folded(name)
    return None if array is None else tried(element, array, index)


def element(array, index):
    """Return the element of a constant at an index. Raises ValueError unless it is a Position."""
    if array.dtype.kind not in "biu" or array.size > LARGEST:
        raise ValueError("no integers, or too many")
    places = [range(size)[at.start] if at.is_number() else slice(None)
              for at, size in zip(index, array.shape, strict=True)]  # fmt: skip
    array, index = array[(*places, ...)], [at for at in index if not at.is_number()]
    is_small = array.min().item() in INT32 and array.max().item() in INT32
    array = array.astype(np.int64 if is_small else object)
    first = array.item(0)
    at, regular = Position(first), np.asarray(first)
    for axis, size in enumerate(array.shape):
        step = array.item(tuple(min(size - 1, int(k == axis)) for k in range(array.ndim))) - first
        regular = regular[..., np.newaxis] + np.arange(size, dtype=array.dtype) * step
        at += index[axis].times(step)
    if not np.array_equal(regular, array):
        raise ValueError("its steps differ")
    return at


def _computed(graph, node, name, index, depth):
    """Return the content of a node's output at an index. Fails, or returns None, if it is unknown."""
    attributes, kind = attributes_of(node), graph.type(name).elements
    if node.op_type in MOVES and node.op_type != "Cast":
        return integer_at(graph, *moved(graph, node, name, index), depth - 1)
    if node.op_type not in RULES or kind not in (TensorProto.BOOL, TensorProto.INT32, TensorProto.INT64):
        return None
    if node.op_type == "Shape":
        (at,) = index
        dimensions = shape(graph, node.input[0])[attributes.get("start", 0) : attributes.get("end")]
        return Position(dimensions[at.start]) if at.is_number() else None
    if node.op_type == "ConstantOfShape":
        return Position(int(numpy_helper.to_array(attributes["value"]).item()))
    if node.op_type == "ReduceProd":
        product = math.prod(integers(graph, node.input[0])) if math.prod(shape(graph, name)) == 1 else None
        return Position(product) if _fits(Position(product), kind) else None
    if node.op_type == "Range":
        start, _, step = (integer_at(graph, each, (), depth - 1) for each in node.input)
        value = start + index[0].times(step.start)
    else:
        indices = [broadcast_index(shape(graph, each), shape(graph, name), index) for each in node.input]
        operands = [integer_at(graph, *pair, depth - 1) for pair in zip(node.input, indices, strict=True)]
        value = RULES[node.op_type](*operands)
    return value if _fits(value, kind) else None


def _fits(value, kind):
    """Return whether a computed integer is the same in int32 and int64, or of int64 if it depends on open sizes."""
    reaches = [term.step * (term.size - 1) for term in value.terms]
    if any(isinstance(number, Size) for number in (value.start, *reaches)):
        numbers = [value.start, *(term.step for term in value.terms)]
        return kind == TensorProto.INT64 and all(factor in INT32 for number in numbers for factor in factors(number))
    ends = [value.start + sum(limit(reach, 0) for reach in reaches) for limit in (min, max)]
    return all(end in (range(2) if kind == TensorProto.BOOL else INT32) for end in ends)


# Rules for integers: each returns a Position for those that the operands are.


def _multiply(a, b):
    return a.times(b.start) if b.is_number() else b.times(a.start) if a.is_number() else None


def _divide(a, b):
    """Divide integers, rounding to zero. What varies must be certain not to be negative, and is rounded down."""
    if not b.is_number():
        return None
    is_whole = a.is_number() and isinstance(b.start, int) and b.start > 0
    return Position(truncated(a.start, b.start)) if is_whole else divided(a, b.start)[0]


def _modulo(a, b):
    return divided(a, b.start)[1] if b.is_number() else None


def _equal(a, b):
    """Compare integers. One may be open if it is certainly another one."""
    difference = a - b
    if not difference.is_number():
        return None
    size = difference.start
    if isinstance(size, Size) and not (never_negative(size - 1) or never_negative(-size - 1)):
        return None
    return Position(int(size == 0))


def _extreme(sign, *operands):
    """Return the operand that is certain to be the largest one (sign 1), or the smallest one (-1)."""
    for at in operands:
        differences = [at - other for other in operands]
        if all(each.is_number() and never_negative(each.start * sign) for each in differences):
            return at
    return None


def _where(condition, a, b):
    return (a if condition.start else b) if condition.is_number() else None


RULES = {  # {type of node: its rule, or None where `_computed` does it}
    "Add": add,
    "Cast": lambda value: value,
    "ConstantOfShape": None,
    "Div": _divide,
    "Equal": _equal,
    "Max": partial(_extreme, 1),
    "Min": partial(_extreme, -1),
    "Mod": _modulo,
    "Mul": _multiply,
    "Range": None,
    "ReduceProd": None,
    "Shape": None,
    "Sub": sub,
    "Where": _where,
}
