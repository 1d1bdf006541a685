"""The values of integer tensors and shapes, worked out from the model: exporters compute indices and sizes by nodes.

Sizes that the model leaves open are unknowns (sizes.py). A value is known as a `Lattice`, whose elements differ by
constant steps along each axis, so that its own sizes may be unknown, or as an array of ints and `Size`s. Both are
certain to be of int64 if they depend on unknowns. What is computed of known integers is the same in int32 and int64;
values that only one of them can hold are left to `Graph.folded`, and so is arithmetic in other types.
"""

import math
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from . import sizes
from .finding import tried
from .sizes import Size

LARGEST = 2**20  # elements of an array that is kept
INT32 = np.iinfo(np.int32)
DEEPEST = 60  # nodes on the way to a value
WIDE_FLOATS = TensorProto.FLOAT, TensorProto.DOUBLE


@dataclass(frozen=True)
class Lattice:
    """The integers start + sum of steps[k] * i[k], for i[k] from 0 to shape[k] - 1."""

    shape: tuple
    start: object
    steps: tuple


def lattice(value):
    """Return an array as a Lattice, or None if its steps aren't constant."""
    if isinstance(value, Lattice):
        return value
    if not value.size:
        return None
    start = value.item(0)
    steps = []
    for axis, size in enumerate(value.shape):
        second = value.item(tuple(1 if k == axis else 0 for k in range(value.ndim))) if size > 1 else start
        steps.append(second - start)
    steps = tuple(steps)
    regular = np.asarray(start)
    for step, size in zip(steps, value.shape, strict=True):
        regular = regular[..., np.newaxis] + np.arange(size, dtype=object) * step
    if not np.array_equal(regular, value):
        return None
    return Lattice(value.shape, start, steps)


def shape(graph, name):
    """Return a value's dimensions, as ints and Sizes; None if the rank is unknown."""
    return graph.type(name).shape


def whole_number(graph, name):
    """Return a whole number, an int or a Size, that a value of any type is; None if it isn't known to be one."""
    array = graph.folded(name)
    value = integers(graph, name) if array is None else array
    if value is None and (node := graph.producer(name, "Cast", "Identity")) is not None:
        # Of an open size; a type that has fewer numbers might hold another one.
        is_kept = attributes_of(node).get("to", TensorProto.INT64) in (TensorProto.INT64, *WIDE_FLOATS)
        return whole_number(graph, node.input[0]) if is_kept else None
    if not isinstance(value, np.ndarray) or value.size != 1 or value.dtype.kind not in "iufO":
        return None
    number = value.item()
    if isinstance(number, Size):
        return number
    return int(number) if np.isfinite(number) and number == int(number) else None


def integers(graph, name, depth=DEEPEST):
    """Return what a value holds, as a Lattice or an array; None if that is unknown."""
    home = graph.home(name)
    if home is None or not depth:
        return None
    if name not in home.integers:
        home.integers[name] = _evaluate(home, name, depth)
    return home.integers[name]


def integer_list(graph, name):
    """Return a value as a flat list of ints, or None if it is no array of known integers."""
    with suppress(TypeError):
        return known_list(integers(graph, name))


def attributes_of(node):
    """Return a node's attributes as {name: value}."""
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


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


def part_of_sequence(graph, node):
    """Return (axis, start, size) of what a SequenceAt takes of a SplitToSequence. Fails if that isn't known."""
    split = graph.producer(node.input[0], "SplitToSequence")
    parts = integers(graph, split.input[1]) if split is not None and len(split.input) > 1 else None
    if not isinstance(parts, np.ndarray):
        raise ValueError("not known")
    dimensions, (at,) = shape(graph, split.input[0]), integer_list(graph, node.input[1])
    axis = range(len(dimensions))[attributes_of(split).get("axis", 0)]
    if not attributes_of(split).get("keepdims", 1):
        raise ValueError("ONNX Runtime may leave the axis out, which onnx says it doesn't where there are sizes")
    if parts.ndim == 0:
        size, each = dimensions[axis], int(parts)
        parts = [min(each, size - start) for start in range(0, size, each)]
    else:
        parts = known_list(parts)
    at = range(len(parts))[at]
    return axis, sum(parts[:at]), parts[at]


def _evaluate(graph, name, depth):
    array = graph.array(name)
    value = _apply_rule(graph, name, depth) if array is None else array
    value = graph.folded(name) if value is None else value
    if isinstance(value, np.ndarray) and (value.size > LARGEST or value.dtype.kind not in "biuO"):
        return None
    return value


def _apply_rule(graph, name, depth):
    node = graph.producer(name)
    if node is None or node.op_type not in ("Shape", "Slice", "Split", *RESHAPES, *RULES):
        return None
    attributes = attributes_of(node)
    if node.op_type == "Shape":
        return _shape(shape(graph, node.input[0]), attributes)
    if math.prod(size for size in shape(graph, name) or () if isinstance(size, int)) > LARGEST:
        return None
    operands = [integers(graph, operand, depth - 1) if operand else None for operand in node.input]
    if any(value is None for value, operand in zip(operands, node.input, strict=True) if operand):
        return None
    if node.op_type == "Slice":
        return tried(_slice, graph, node, operands[0])
    if node.op_type == "Split":
        sizes_of_parts = [shape(graph, part) for part in node.output[: list(node.output).index(name) + 1]]
        return tried(_split, attributes, operands[0], sizes_of_parts)
    if node.op_type in RESHAPES:
        return tried(_with_shape, operands[0], shape(graph, name))
    return tried(RULES[node.op_type], attributes, *operands)


def _shape(dimensions, attributes):
    if dimensions is None:
        return None
    start = attributes.get("start", 0)
    end = attributes.get("end")
    return _array(dimensions[start:end])


def _array(values):
    values = list(values)
    return np.array(values, object if any(isinstance(v, Size) for v in values) else np.int64)


def _tidy(array):
    """Return an array, of int64 in place of objects if nothing in it is unknown."""
    array = np.asarray(array)
    is_known = not any(isinstance(v, Size) for v in array.ravel())
    return array.astype(np.int64) if array.dtype == object and is_known else array


def _same(attributes, value, *_):
    return value


def _cast(attributes, value):
    kind = attributes["to"]
    if isinstance(value, Lattice) or value.dtype == object:
        return value if kind == TensorProto.INT64 else None
    return value.astype(np.int64) if kind in (TensorProto.INT32, TensorProto.INT64) and _fits_int32(value) else None


def _fits_int32(array):
    """Return whether the numbers in an array, and the factors in its open sizes, are in the range of int32."""
    return all(INT32.min <= n <= INT32.max for value in array.ravel() for n in sizes.factors(value))


def known_list(value):
    """Return a value as a flat list of ints. Raises TypeError if it is no array of known integers."""
    if not isinstance(value, np.ndarray) or value.dtype == object:
        raise TypeError("not known")
    return [int(v) for v in value.ravel()]


def _transpose(attributes, value):
    rank = len(value.shape)
    order = attributes.get("perm", list(range(rank))[::-1])
    if isinstance(value, np.ndarray):
        return value.transpose(order)
    return Lattice(tuple(value.shape[k] for k in order), value.start, tuple(value.steps[k] for k in order))


def _gather(attributes, value, index):
    axis = attributes.get("axis", 0)
    if not isinstance(value, np.ndarray) or not isinstance(index, np.ndarray) or index.dtype == object:
        return None
    return _tidy(np.take(value, index, axis))


def _slice(graph, node, value):
    if not isinstance(value, np.ndarray):
        return None
    for axis, start, end, step in cuts(graph, node):
        value = value.take(sliced(value.shape[axis], start, end, step), axis)
    return _tidy(value)


def _split(attributes, value, parts):
    """Return the last one of parts of these shapes, of which all before it are left out."""
    axis = attributes.get("axis", 0)
    *before, last = (part[axis] for part in parts)
    return _tidy(value.take(range(sum(before), sum(before) + last), axis))


def sliced(size, start, end, step):
    """Return the positions along an axis of this size that a Slice takes, as a range."""
    if step < 0 and end >= INT32.max:
        raise ValueError("ONNX Runtime reads such an end as the first element, onnx as the last one")
    start, end = (at + size if at < 0 else at for at in (start, end))
    first, last = (0, size) if step > 0 else (-1, size - 1)  # a range's ends; a start is never before element 0
    return range(min(max(start, 0), last), min(max(end, first), last), step)


def _concat(attributes, *values):
    if not all(isinstance(v, np.ndarray) for v in values):
        return None
    if any(v.dtype == object for v in values):
        values = [v.astype(object) for v in values]
    return _tidy(np.concatenate(values, attributes["axis"]))


def _with_shape(value, target):
    """Return the elements of a value with another shape."""
    if isinstance(value, np.ndarray):
        return value.reshape([*target])
    sizes_and_steps = [pair for pair in zip(value.shape, value.steps, strict=True) if pair[0] != 1]
    if [size for size in target if size != 1] != [size for size, _ in sizes_and_steps]:
        return None
    steps = (step for _, step in sizes_and_steps)
    return Lattice(target, value.start, tuple(0 if size == 1 else next(steps) for size in target))


def _range(attributes, start, limit, step):
    operands = start, limit, step
    start, limit, step = (v.item() if isinstance(v, np.ndarray) and _is_wide(v) else None for v in operands)
    if None in (start, limit, step) or not isinstance(step, int) or step == 0:
        return None
    if isinstance(start, int) and isinstance(limit, int):
        return np.arange(start, limit, step) if abs(limit - start) <= LARGEST else None
    if step < 0:
        return None
    return Lattice((sizes.at_least_zero((limit - start + step - 1) // step),), start, (step,))


def _elementwise(operation):
    def rule(attributes, a, b):
        if not all(_is_wide(v) for v in (a, b)):
            return None
        if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
            result = np.asarray(operation(a.astype(object), b.astype(object)), object)
            return _tidy(result) if _fits_int32(result) else None
        a, b = lattice(a), lattice(b)
        return None if a is None or b is None else _combine(operation, a, b)

    return rule


def _is_wide(value):
    """Return whether a value is certain to be of int32 or int64."""
    return isinstance(value, Lattice) or value.dtype in (np.int32, np.int64, object)


def _combine(operation, a, b):
    """Return the sum or difference of two lattices, or their product if one of them is a single number; else None."""
    rank = max(len(a.shape), len(b.shape))
    shapes, steps = [], []
    for operand in (a, b):
        missing = rank - len(operand.shape)
        shapes.append((1,) * missing + operand.shape)
        steps.append((0,) * missing + operand.steps)
    if any(x != y and 1 not in (x, y) for x, y in zip(*shapes, strict=True)):
        return None
    shape = tuple(y if x == 1 else x for x, y in zip(*shapes, strict=True))
    # An axis of one element is broadcast: its step is 0.
    p, q = (
        [0 if size == 1 else step for size, step in zip(*pair, strict=True)] for pair in zip(shapes, steps, strict=True)
    )
    if operation is _multiply:
        single = a if not any(p) else b if not any(q) else None
        if single is None:
            return None
        other, other_steps = (b, q) if single is a else (a, p)
        return Lattice(shape, single.start * other.start, tuple(single.start * step for step in other_steps))
    return Lattice(shape, operation(a.start, b.start), tuple(operation(x, y) for x, y in zip(p, q, strict=True)))


def _add(a, b):
    return a + b


def _subtract(a, b):
    return a - b


def _multiply(a, b):
    return a * b


def _divide(attributes, a, b):
    """Divide integers that are certain not to be negative: rounding down is then what ONNX does, rounding to zero."""
    if not all(isinstance(v, np.ndarray) and _is_wide(v) for v in (a, b)) or b.dtype == object or (b < 1).any():
        return None
    if not all(map(sizes.never_negative, a.ravel())):
        return None
    return _tidy(a.astype(object) // b.astype(object))


def _modulo(attributes, a, b):
    whole = _divide(attributes, a, b)
    return None if whole is None else _tidy(a.astype(object) - whole.astype(object) * b.astype(object))


def _equal(attributes, a, b):
    """Compare integers, of which one may be open, if it is certain to be another one."""
    if not all(isinstance(v, np.ndarray) and _is_wide(v) for v in (a, b)):
        return None
    differences = np.asarray(a.astype(object) - b.astype(object), object)
    are_open = [isinstance(d, Size) for d in differences.ravel()]
    if any(are_open) and not all(map(_never_zero, differences.ravel()[are_open])):
        return None
    return differences == 0


def _never_zero(size):
    return sizes.never_negative(size - 1) or sizes.never_negative(-size - 1)


def _where(attributes, condition, a, b):
    if not all(isinstance(v, np.ndarray) for v in (condition, a, b)) or condition.dtype != bool:
        return None
    return _tidy(np.where(condition, a, b)) if _is_wide(a) and _is_wide(b) else None


def _expand(attributes, value, target):
    if not isinstance(value, np.ndarray) or math.prod(known_list(target)) > LARGEST:
        return None
    return np.broadcast_to(value, np.broadcast_shapes(value.shape, tuple(known_list(target))))


def _constant_of_shape(attributes, target):
    if math.prod(known_list(target)) > LARGEST or "value" not in attributes:
        return None
    value = numpy_helper.to_array(attributes["value"])
    return np.full(known_list(target), value.item(), value.dtype)


RESHAPES = "Flatten", "Reshape", "Squeeze", "Unsqueeze"
RULES = {
    "Add": _elementwise(_add),
    "Cast": _cast,
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "Div": _divide,
    "Equal": _equal,
    "Expand": _expand,
    "Gather": _gather,
    "Identity": _same,
    "Mod": _modulo,
    "Mul": _elementwise(_multiply),
    "Range": _range,
    "Sub": _elementwise(_subtract),
    "Transpose": _transpose,
    "Where": _where,
}
