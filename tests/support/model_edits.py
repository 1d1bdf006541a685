"""Edits of models: most change what is computed, or only how it is written. The table at the
end lists them.

An edit is a function of an `edited_models.Draft` and a random number generator. Those that compute
a value anew, between the node that makes it and one that uses it, return the new value's name.
"""

import functools
import tempfile
from collections import Counter

import numpy as np
import onnx
import onnx.inliner
import onnxruntime as ort
from onnx import AttributeProto, NodeProto, ValueInfoProto, helper, numpy_helper

from onnx_ops.model.nodes import all_nodes, graphs_in, model_nodes, own_names, subgraphs

from .backends import NEWEST_OPSET, quiet

INTEGERS = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"]
FLOATS = ["float32", "float16", "float64"]  # that seeds and edits draw
MODES = ["bilinear", "nearest", "bicubic"]
NEWER = {"bilinear": "linear", "bicubic": "cubic"}  # names of modes from version 20 on
PADDING = ["zeros", "border", "reflection"]
DIMS = [
    "n",
    "h",
    "N",
    "a-b",
    "h*2",
    "h+1",
    "h-1",
    "2*n",
    "h//2",
    "h-0",
]  # names that look like formulas, too
FIRST, LAST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class Inapplicable(Exception):  # noqa: N818  it is no error
    """An edit finds nothing to change."""


def one_of(rng, values):
    values = list(values)
    if not values:
        raise Inapplicable
    return values[rng.integers(len(values))]


def chance(rng, probability=0.5):
    return rng.random() < probability


def described(name, array, dims):
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), dims)


# Edits that compute a value anew.


def anew(wanted):
    """Make an edit of function(draft, rng, name, array), for a value that is wanted; it returns
    the new name.
    """

    def decorate(function):
        @functools.wraps(function)
        def edit(draft, rng):
            name = draft.pick(rng, wanted)
            draft.connect(function(draft, rng, name, draft.values[name]))

        return edit

    return decorate


def has_axes(array):
    return array.ndim > 0 and array.size > 0 and array.dtype.kind in "fiub"


def is_integers(array):
    return array.dtype.kind in "iu" and array.size > 0


def is_short(array):
    return array.dtype == np.int64 and 0 < array.size <= 8


def is_float(array):
    return array.dtype.kind == "f" and array.size > 0


def an_axis(rng, array):
    """Return (an axis, its size)."""
    axis = int(rng.integers(array.ndim))
    return (axis - array.ndim if chance(rng, 0.3) else axis), array.shape[axis]


@anew(has_axes)
def identity(draft, rng, name, array):
    return draft.add("Identity", name)


def picked(rng, size, count):
    """Return `count` positions along an axis of this size: any, sorted, in regular steps, or a
    permutation.
    """
    regular = np.arange(count) * rng.integers((size - 1) // max(count - 1, 1) + 1)
    random_indices = (
        rng.integers(-size, size, count),
        np.sort(rng.integers(0, size, count)),
        regular,
    )
    return one_of(
        rng, [*random_indices, rng.permutation(size)] if count == size else random_indices
    )


@anew(has_axes)
def gather(draft, rng, name, array):
    axis, size = an_axis(rng, array)
    if chance(rng, 0.6):
        count = size if chance(rng, 0.7) else int(rng.integers(1, size + 2))
        return draft.add("Gather", name, draft.constant(picked(rng, size, count)), axis=axis)
    element = draft.add("Gather", name, draft.constant(rng.integers(-size, size)), axis=axis)
    return draft.add("Unsqueeze", element, draft.constant([axis])) if chance(rng, 0.8) else element


@anew(has_axes)
def cut_slice(draft, rng, name, array):
    axis, size = an_axis(rng, array)
    slices = one_of(
        rng,
        [(0, size, 1), (0, LAST, 1), (-size, LAST, 1), (-1, FIRST, -1), (size - 1, -size - 1, -1)],
    )
    bounds_of_part = *map(int, rng.integers(-size - 1, size + 2, 2)), one_of(rng, [1, 2, -1, -2])
    start, end, step, axes = ([v] for v in (*(slices if chance(rng) else bounds_of_part), axis))
    if array.ndim > 1 and chance(rng, 0.2):  # along two axes
        start, end, step, axes = (
            [*start, 0],
            [*end, LAST],
            [*step, 1],
            [*axes, (axis + 1) % array.ndim],
        )
    axes_and_steps = (
        [axes, step] if step[0] != 1 or chance(rng) else [axes] if axis or chance(rng) else []
    )
    return draft.add("Slice", name, *map(draft.constant, (start, end, *axes_and_steps)))


@anew(has_axes)
def turn(draft, rng, name, array):
    """Turn an axis around twice, the first time perhaps only its last elements."""
    axis, size = an_axis(rng, array)
    end = one_of(rng, [FIRST, -size - 1, int(rng.integers(-size - 1, 0))])
    for bound in (end, FIRST):
        name = draft.add("Slice", name, *map(draft.constant, ([-1], [bound], [axis], [-1])))
    return name


@anew(lambda array: has_axes(array) and array.ndim > 1)
def reverse(draft, rng, name, array):
    """Turn sequences around: whole ones, or some of fewer elements."""
    time = int(chance(rng))
    size, count = array.shape[time], array.shape[1 - time]
    lengths = np.full(count, size) if chance(rng, 0.8) else rng.integers(1, size + 1, count)
    lengths = draft.constant(lengths)
    return draft.add("ReverseSequence", name, lengths, time_axis=time, batch_axis=1 - time)


@anew(has_axes)
def transpose(draft, rng, name, array):
    order = rng.permutation(array.ndim)
    turned = draft.add("Transpose", name, perm=order)
    return draft.add("Transpose", turned, perm=np.argsort(order)) if chance(rng, 0.6) else turned


@anew(has_axes)
def unsqueeze(draft, rng, name, array):
    count = int(rng.integers(1, 3))
    axes = sorted(rng.permutation(array.ndim + count)[:count])
    axes = [k - array.ndim - count for k in axes] if chance(rng, 0.3) else axes
    wider = draft.add("Unsqueeze", name, draft.constant(axes))
    return draft.add("Squeeze", wider, draft.constant(axes)) if chance(rng, 0.7) else wider


@anew(has_axes)
def squeeze(draft, rng, name, array):
    axes = [draft.constant([one_of(rng, [k for k, size in enumerate(array.shape) if size == 1])])]
    return draft.add("Squeeze", name, *axes[: int(chance(rng, 0.7))])


@anew(has_axes)
def reshape(draft, rng, name, array):
    if chance(rng, 0.3):
        name = draft.add("Reshape", name, draft.constant([-1]))
        return draft.add("Reshape", name, draft.constant([-1, *array.shape[1:]]))
    target = [0 if chance(rng, 0.2) else size for size in array.shape]
    target[rng.integers(array.ndim)] = -1
    return draft.add("Reshape", name, draft.constant(target if chance(rng, 0.8) else target[::-1]))


@anew(has_axes)
def expand(draft, rng, name, array):
    target = one_of(
        rng, [array.shape, [1] * array.ndim, [1, *array.shape], [s + (s == 1) for s in array.shape]]
    )
    return draft.add("Expand", name, draft.constant(target))


@anew(has_axes)
def split(draft, rng, name, array):
    axis, size = an_axis(rng, array)
    first = int(rng.integers(1, max(size, 2)))
    pieces = draft.add("Split", name, draft.constant([first, size - first]), outputs=2, axis=axis)
    return draft.add("Concat", *one_of(rng, [pieces, pieces[::-1], pieces[:1] * 2]), axis=axis)


@anew(has_axes)
def double(draft, rng, name, array):
    axis, size = an_axis(rng, array)
    start, twice = int(rng.integers(size + 1)), draft.add("Concat", name, name, axis=axis)
    return draft.add("Slice", twice, *map(draft.constant, ([start], [start + size], [axis])))


@anew(has_axes)
def tile(draft, rng, name, array):
    return draft.add("Tile", name, draft.constant([1 + chance(rng, 0.1) for _ in array.shape]))


def cast(draft, name, dtype):
    return draft.add("Cast", name, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


@anew(lambda array: is_integers(array) or is_float(array))
def cast_and_back(draft, rng, name, array):
    dtype = one_of(rng, FLOATS if array.dtype.kind == "f" else INTEGERS)
    return cast(draft, cast(draft, name, dtype), array.dtype)


@anew(is_integers)
def wrap_around(draft, rng, name, array):
    """Compute with integers of another type and undo it; for a constant, also without a Cast to
    this type.
    """
    kind, (do, undo) = (
        one_of(rng, INTEGERS),
        one_of(rng, [("Mul", "Div"), ("Sub", "Add"), ("Add", "Sub")]),
    )
    most, is_constant = (
        np.iinfo(kind).max,
        any(tensor.name == name for tensor in draft.graph.initializer),
    )
    number = np.array(one_of(rng, [2, 3, 100, most // 2, most, rng.integers(1, 100)]), kind)
    if (
        undo == "Div" and number.astype(array.dtype) == -1
    ):  # the least integer divided by it ends the process
        raise Inapplicable
    narrow = draft.constant(array.astype(kind), kind) if is_constant else cast(draft, name, kind)
    done = draft.add(do, narrow, draft.constant(number, kind))
    if chance(rng):
        return draft.add(
            undo,
            cast(draft, done, array.dtype),
            draft.constant(number.astype(array.dtype), array.dtype),
        )
    return cast(draft, draft.add(undo, done, draft.constant(number, kind)), array.dtype)


@anew(is_float)
def compute(draft, rng, name, array):
    """Compute with floats what changes nothing, or not much."""
    if chance(rng, 0.2):
        return draft.add("Neg", draft.add("Neg", name))
    op_type, number = one_of(
        rng, [("Mul", 1), ("Div", 1), ("Sub", 0), ("Add", 0), ("Mul", 2), ("Add", 1), ("Mul", -1)]
    )
    shape = one_of(rng, [[], [1], [1] * array.ndim, array.shape])
    return draft.add(op_type, name, draft.constant(np.full(shape, number), array.dtype))


def a_size(draft, rng, name, is_scalar=True):
    """Return (the name of one of a value's sizes, the size), as a scalar or as a vector of one
    element.
    """
    axis, size = an_axis(rng, draft.values[name])
    return draft.add(
        "Gather", draft.add("Shape", name), draft.constant(axis if is_scalar else [axis])
    ), size


@anew(is_float)
def times_size(draft, rng, name, array):
    factor = one_of(rng, [n for n in draft.known_before() if draft.values[n].ndim])
    size = draft.add("Size", factor) if chance(rng, 0.3) else a_size(draft, rng, factor)[0]
    return draft.add("Mul", name, cast(draft, size, array.dtype))


@anew(is_short)
def from_size(draft, rng, name, array):
    """Compute integers from the size of an input: they are as before only for inputs of this
    size.
    """
    source = one_of(rng, [i.name for i in draft.inputs if draft.values[i.name].ndim])
    name, size = a_size(draft, rng, source, array.ndim == 0)
    if array.ndim == 1 and chance(rng) and (np.diff(array) == 1).all():
        limit = draft.add("Add", draft.add("Squeeze", name), draft.constant(array[-1] + 1 - size))
        return draft.add("Range", draft.constant(array[0]), limit, draft.constant(1))
    return draft.add("Add", name, draft.constant(array - size)) if (array != size).any() else name


@anew(np.any)
def fold(draft, rng, name, array):
    """Write the value into the model."""
    return draft.constant(array, array.dtype)


@anew(np.any)
def other_value(draft, rng, name, array):
    values_of_its_shape = [
        n for n in draft.known_before() if draft.values[n].shape == array.shape and n != name
    ]
    return one_of(rng, [n for n in values_of_its_shape if draft.values[n].dtype == array.dtype])


# Edits of inputs, constants and nodes.


def more_input(draft, rng):
    """Take a value, or that of which a shape is taken, from an input of its own."""
    name, array = (
        draft.name("like"),
        draft.values[draft.pick(rng, has_axes, one_of(rng, [(), ["Shape"]]))],
    )
    dims = [f"{name}_{k}" for k in range(array.ndim)] if chance(rng) else array.shape
    draft.sizes |= {
        dim: size for dim, size in zip(dims, array.shape, strict=True) if isinstance(dim, str)
    }
    draft.graph.input.append(described(name, array, dims))
    draft.connect(name)


def larger_input(draft, rng):
    """Let an input have more elements than are used, or fewer, some of them several times."""
    value, axis, dimension = one_of(rng, draft.dimensions())
    used, size = (
        draft.values[value.name].shape[axis],
        int(rng.integers(1, draft.values[value.name].shape[axis] + 3)),
    )
    dimension.dim_value, draft.at = size, 0
    if size > used and chance(rng, 0.4):
        start, step = int(rng.integers(size - used + 1)), one_of(rng, [1, -1])
        ends = [start, start + used] if step > 0 else [start - size + used - 1, start - size - 1]
        new = draft.add("Slice", value.name, *(draft.constant([v]) for v in (*ends, axis, step)))
    else:
        new = draft.add("Gather", value.name, draft.constant(picked(rng, size, used)), axis=axis)
    rename(draft.graph.node[draft.at :], {value.name: new})


def rename(nodes, names):
    for node in nodes:
        for inner in (node, *inner_nodes(node)):
            for values in (inner.input, inner.output):
                values[:] = [names.get(name, name) for name in values]


def inner_nodes(node):
    return [inner for graph in subgraphs(node) for inner in all_nodes(graph)]


def name_dimension(draft, rng):
    """Let the size of an input be open, or give an open one another name, here or everywhere, or
    its value.
    """
    value, axis, dimension = one_of(rng, draft.dimensions())
    size, old = draft.values[value.name].shape[axis], dimension.dim_param
    if old and chance(rng, 0.2):
        dimension.dim_value = size
        return
    new = one_of(rng, [name for name in DIMS if draft.sizes.get(name, size) == size])
    draft.sizes[new] = size
    if old and chance(rng, 0.7):
        rename_dimension(draft, old, new)
    dimension.dim_param = new


def rename_dimension(draft, old, new):
    for dimension in (d for value in draft.graph.input for d in value.type.tensor_type.shape.dim):
        if dimension.dim_param == old:
            dimension.dim_param = new


def name_by_formula(draft, rng):
    """Name a dimension as if its size followed from another one's, and use that size in place of
    its own.
    """
    named = [
        (value.name, axis, d.dim_param) for value, axis, d in draft.dimensions() if d.dim_param
    ]
    source, axis, name = one_of(rng, named)
    other = one_of(rng, sorted({dimension[2] for dimension in named} - {name}))
    size, difference = draft.sizes[other], draft.sizes[other] - draft.sizes[name]
    draft.sizes[f"{name}{difference:+}"] = size
    rename_dimension(draft, other, f"{name}{difference:+}")
    draft.pick(rng, lambda array: is_short(array) and array.ndim == 0 and array == size)
    computed = draft.add("Gather", draft.add("Shape", source), draft.constant(axis))
    draft.connect(draft.add("Add", computed, draft.constant(difference)))


def a_constant(draft, rng):
    """Return an initializer that is no input."""
    names_of_inputs = {value.name for value in draft.graph.input}
    return one_of(
        rng, [tensor for tensor in draft.graph.initializer if tensor.name not in names_of_inputs]
    )


def change_constant(draft, rng):
    tensor = one_of(rng, [t for t in draft.graph.initializer if np.prod(t.dims) > 0])
    array = numpy_helper.to_array(tensor).copy()
    if chance(rng, 0.3):
        array = (
            one_of(rng, [array[::-1], array.ravel(), array.reshape(-1)[:1]])
            if array.ndim
            else array[None]
        )
    elif array.dtype.kind in "fiu":
        array.flat[rng.integers(array.size)] += np.array(one_of(rng, [-1, 1, 1, 2])).astype(
            array.dtype
        )
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), tensor.name))


def constant_by_node(draft, rng):
    tensor = a_constant(draft, rng)
    array, name, attributes = numpy_helper.to_array(tensor), tensor.name, {"value": tensor}
    if array.size and array.ndim < 2 and array.dtype in (np.int64, np.float32) and chance(rng):
        attribute_name = {"i": "value_int", "f": "value_float"}[array.dtype.kind]
        attributes = {attribute_name + "s" * array.ndim: array.tolist()}
    draft.graph.node.insert(0, helper.make_node("Constant", [], [name], **attributes))
    draft.graph.initializer.remove(tensor)


def constant_of_callers(draft, rng):
    """Let callers replace a constant: an initializer that is an input, too, is a default."""
    tensor = a_constant(draft, rng)
    draft.graph.input.append(described(tensor.name, numpy_helper.to_array(tensor), tensor.dims))


ATTRIBUTES = {
    "mode": [*MODES, *NEWER.values()], "padding_mode": PADDING, "align_corners": [0, 1],
    "keepdims": [0, 1],
    "allowzero": [0, 1], "axis": range(-4, 5), "start": range(-3, 3), "end": range(-3, 5),
}  # fmt: skip


def change_attribute(draft, rng):
    node = one_of(rng, [n for n in draft.graph.node if n.attribute and n.op_type != "Constant"])
    attribute = one_of(rng, node.attribute)
    if chance(rng, 0.4):
        node.attribute.remove(attribute)
    elif attribute.name in ATTRIBUTES:
        attribute.CopyFrom(
            helper.make_attribute(attribute.name, one_of(rng, ATTRIBUTES[attribute.name]))
        )
    else:
        attribute.ints[:] = rng.permutation(attribute.ints)


def remove_node(draft, rng):
    node = one_of(
        rng, [n for n in draft.graph.node if n.input and n.input[0] and len(n.output) == 1]
    )
    (old,), new = node.output, node.input[0]
    draft.graph.node.remove(node)
    rename(draft.graph.node, {old: new})
    for output in draft.graph.output:
        output.name = new if output.name == old else output.name


def duplicate(draft, rng):
    """Compute an output twice, from the same inputs and constants."""
    nodes = [NodeProto.FromString(node.SerializeToString()) for node in draft.graph.node]
    rename(nodes, {name: f"{name}_again" for node in nodes for name in node.output if name})
    for node in nodes:
        node.name = ""
    draft.graph.node.extend(nodes)
    draft.output(f"{draft.graph.output[0].name}_again")


def damage(draft, rng):
    """Damage a node, most likely so that it no longer runs."""
    # ONNX Runtime's Einsum ends the process where an input is missing.
    node, kind = (
        one_of(rng, [n for n in draft.graph.node if n.op_type != "Einsum"]),
        rng.integers(5),
    )
    if kind == 0 and node.input:
        del node.input[rng.integers(len(node.input))]
    elif kind == 1:
        del node.output[:]
    elif kind == 2 and node.input:
        node.input[rng.integers(len(node.input))] = one_of(rng, ["", "nothing", *node.output])
    elif kind == 3:
        node.op_type = one_of(rng, [n.op_type for n in draft.graph.node])
    elif node.attribute:
        attribute = one_of(rng, node.attribute)
        attribute.i = int(rng.integers(-3, 6))
        attribute.ints[:] = rng.integers(-3, 6, len(attribute.ints))


# Edits of models that pick pixels and weigh them: nearly the same model.

COMPARISONS = "Less", "LessOrEqual", "Greater", "GreaterOrEqual"
ALIKE = (
    COMPARISONS,
    ("And", "Or"),
    ("Min", "Max"),
    ("Add", "Sub"),
    ("Mul", "Div"),
    ("Floor", "Ceil", "Round"),
)
LIMITS = "Clip", "Min", "Max", "Where", *COMPARISONS


def one_more(draft, rng, name, array):
    """Return a value with one more, or one less, everywhere or at one place."""
    amount = np.zeros(array.shape if array.size < 100 and chance(rng) else [])
    amount.flat[rng.integers(amount.size)] = one_of(rng, [1, -1])
    return draft.add("Add", name, draft.constant(amount, array.dtype))


@anew(lambda array: is_integers(array) and array.ndim > 1)
def other_pixel(draft, rng, name, array):
    return one_more(draft, rng, name, array)


def other_weight(draft, rng):
    """Weigh by 1 - w in place of w, by a constant, or by another value of this shape."""
    name = draft.pick(rng, is_float, ["Mul"])
    array = draft.values[name]
    values_of_its_shape = [
        n for n in draft.known_before() if draft.values[n].shape == array.shape and n != name
    ]
    values_of_its_shape = [n for n in values_of_its_shape if draft.values[n].dtype == array.dtype]
    number = draft.constant(one_of(rng, [0, 0.5, 1]), array.dtype)
    rest = draft.add("Sub", draft.constant(1, array.dtype), name)
    draft.connect(
        one_of(
            rng, [rest, draft.add("Expand", number, draft.add("Shape", name)), *values_of_its_shape]
        )
    )


def other_limit(draft, rng):
    """Move a limit of a value, or what is compared with it, by one, or leave a limit out."""
    node = one_of(rng, [n for n in draft.graph.node if n.op_type in LIMITS])
    position = one_of(
        rng,
        [
            k
            for k, n in enumerate(node.input)
            if n in draft.values and draft.values[n].dtype != bool
        ],
    )
    name, draft.at = node.input[position], [*draft.graph.node].index(node)
    if node.op_type == "Clip" and position and chance(rng):
        node.input[position] = ""
    else:
        node.input[position] = one_more(draft, rng, name, draft.values[name])


def other_scale(draft, rng):
    """Compute with a single number that is one more or less."""
    name = draft.pick(
        rng, lambda a: a.size == 1 and a.dtype.kind in "if", ["Add", "Sub", "Mul", "Div"]
    )
    draft.connect(one_more(draft, rng, name, draft.values[name]))


def other_operator(draft, rng):
    """Round, compare, limit or compute otherwise."""
    node, alike = one_of(
        rng, [(n, alike) for n in draft.graph.node for alike in ALIKE if n.op_type in alike]
    )
    node.op_type = one_of(rng, {*alike} - {node.op_type})


def leave_out(draft, rng):
    """Use an operand, such as a pixel without its mask, in place of a result of the same shape."""
    results = [
        n
        for n in draft.graph.node
        if n.op_type in ("Add", "And", "Mul", "Or", "Sub", "Where", *LIMITS)
    ]
    fits = lambda first_value, second_value: (
        (first_value.shape, first_value.dtype) == (second_value.shape, second_value.dtype)
    )
    pairs = [(node, name) for node in results for name in node.input if {name,
            node.output[0]} <= draft.values.keys()
             and fits(draft.values[name], draft.values[node.output[0]])]  # fmt: skip
    node, name = one_of(rng, pairs)
    node.CopyFrom(helper.make_node("Identity", [name], node.output))


def exchange(draft, rng):
    """Exchange two values of one shape and type where they are used, such as two pixels or two
    weights.
    """
    first_value = draft.pick(rng, has_axes)
    position_of_node, array = draft.at, draft.values[first_value]
    candidates = {
        n for n in draft.known_before() if n != first_value and draft.values[n].dtype == array.dtype
    }
    later_nodes = enumerate(draft.graph.node[position_of_node:], position_of_node)
    edges = [(k, p, n) for k, node in later_nodes for p, n in enumerate(node.input)
             if n in candidates and draft.values[n].shape == array.shape]  # fmt: skip
    k, p, second_value = one_of(rng, edges)
    draft.connect(second_value)
    draft.graph.node[k].input[p] = first_value


# Edits that use values once more.


def shape_output(draft, rng):
    name, draft.at = one_of(rng, draft.values), len(draft.graph.node)
    draft.output(
        draft.add(
            "Shape", name, **({"start": int(rng.integers(-2, 3))} if chance(rng, 0.3) else {})
        )
    )


def share_output(draft, rng):
    """Divide the largest element of a value by the number of its pixels, as losses and
    normalizations do.
    """
    name, draft.at = (
        one_of(rng, [n for n, a in draft.values.items() if is_float(a)]),
        len(draft.graph.node),
    )
    count = draft.add(
        "ReduceProd", draft.add("Shape", name, start=int(rng.integers(-3, 1))), keepdims=0
    )
    largest = draft.add("ReduceMax", cast(draft, name, "float32"), keepdims=0)
    draft.output(draft.add("Div", largest, cast(draft, count, "float32")))


def more_output(draft, rng):
    names_of_outputs = {output.name for output in draft.graph.output}
    draft.output(
        one_of(
            rng,
            [
                name
                for node in draft.graph.node
                for name in node.output
                if name not in names_of_outputs
            ],
        )
    )


# Edits that put nodes into a function or a subgraph.


def take(draft, start, end):
    """Take successive nodes out of the graph; returns (nodes, names that they use, names that
    others use of theirs).
    """
    nodes = draft.graph.node
    inside, after = [*nodes[start:end]], nodes[end:]
    outputs_inside = {name for node in inside for name in node.output}
    users = names_used(after) | {output.name for output in draft.graph.output}
    inner = {
        name
        for node in inside
        for g in subgraphs(node)
        for graph in graphs_in(g)
        for name in own_names(graph)
    }
    used = names_used(inside) - outputs_inside - inner
    copies = [NodeProto.FromString(node.SerializeToString()) for node in inside]
    del nodes[start:end]
    draft.at = start
    if not users & outputs_inside:
        raise Inapplicable
    return copies, sorted(used), sorted(users & outputs_inside)


def take_some(draft, rng):
    start = one_of(rng, range(len(draft.graph.node)))
    return take(draft, start, int(rng.integers(start, len(draft.graph.node))) + 1)


def names_used(nodes):
    return {name for node in nodes for n in (node, *inner_nodes(node)) for name in n.input if name}


def function(draft, rng):
    call_function(
        draft, rng, *take_some(draft, rng), one_of(rng, [nothing, nothing, shapes, named_alike])
    )


def two_functions(draft, rng):
    """Put all nodes into two local functions that name dimensions alike, though these may have
    different sizes.
    """
    count = len(draft.graph.node)
    middle = int(rng.integers(1, max(2, count)))
    call_function(draft, rng, *take(draft, middle, count), named_alike)
    call_function(draft, rng, *take(draft, 0, middle), named_alike)


def call_function(draft, rng, nodes, used, outputs_inside, describe):
    """Insert a call of a local function, with constants and attributes of its own, and what
    `describe` adds.
    """
    tensors = {t.name: t for t in draft.graph.initializer if t.name in used and chance(rng, 0.8)}
    attributes, defaults, passed = references(rng, nodes)
    inputs, name, imports = (
        [n for n in used if n not in tensors],
        draft.name("Function"),
        draft.proto.opset_import,
    )
    nodes = [
        *(helper.make_node("Constant", [], [n], value=tensor) for n, tensor in tensors.items()),
        *nodes,
    ]
    nodes, infos = describe(draft, nodes, [n for n in inputs if n in draft.values])
    body = helper.make_function(
        "local",
        name,
        inputs,
        outputs_inside,
        nodes,
        imports,
        attributes,
        defaults,
        value_info=infos,
    )
    draft.proto.functions.append(body)
    draft.graph.node.insert(
        draft.at, helper.make_node(name, inputs, outputs_inside, domain="local", **passed)
    )
    if all(i.domain != "local" for i in imports):
        imports.append(helper.make_opsetid("local", 1))


# Each returns the nodes of a function, and what it states of its values.


def nothing(draft, nodes, inputs):
    return nodes, []


def shapes(draft, nodes, inputs):
    """State the shapes of all values, if no sizes are open."""
    names = {*inputs, *(n for node in nodes for n in node.output)} & draft.values.keys()
    is_open = any(dimension.dim_param for _, _, dimension in draft.dimensions())
    return nodes, [] if is_open else [
        described(n, draft.values[n], draft.values[n].shape) for n in sorted(names)
    ]


def named_alike(draft, nodes, inputs):
    """Name the dimensions of copies of the inputs, in each function alike."""
    infos, before, ranks = [], [], Counter()
    for n, array in [(n, draft.values[n]) for n in inputs]:
        copy, dims = (
            draft.name(n),
            [f"d{array.ndim}_{ranks[array.ndim]}_{axis}" for axis in range(array.ndim)],
        )
        rename(nodes, {n: copy})
        before.append(helper.make_node("Identity", [n], [copy]))
        infos.append(described(copy, array, dims))
        ranks[array.ndim] += 1
    return [*before, *nodes], infos


def references(rng, nodes):
    """Let attributes refer to the caller's; returns their names, those with defaults, and what the
    caller passes.
    """
    attributes, defaults, passed = [], [], {}
    candidates = [
        a for node in nodes for a in node.attribute if not (a.HasField("g") or a.ref_attr_name)
    ]
    for k, attribute in enumerate(a for a in candidates if chance(rng, 0.4)):
        name, copy = (
            f"{attribute.name}_{k}",
            AttributeProto.FromString(attribute.SerializeToString()),
        )
        copy.name = name
        has_default = chance(rng)
        defaults += [copy] * has_default
        attributes += [name] * (not has_default)
        if not has_default or chance(rng, 0.3):
            passed[name] = helper.get_attribute_value(attribute)
        attribute.CopyFrom(
            AttributeProto(name=attribute.name, type=attribute.type, ref_attr_name=name)
        )
    return attributes, defaults, passed


def branch(draft, rng):
    """Put nodes into a branch of an If; the other branch has the constants that they compute."""
    nodes, _, outputs_inside = take_some(draft, rng)
    if not draft.values.keys() >= set(outputs_inside):  # sequences
        raise Inapplicable
    one, two = ({name: draft.name(name) for name in outputs_inside} for _ in range(2))
    rename(nodes, one)
    tensors = {two[name]: numpy_helper.from_array(draft.values[name]) for name in outputs_inside}
    constants = [
        helper.make_node("Constant", [], [name], value=tensor) for name, tensor in tensors.items()
    ]
    then_branch = helper.make_graph(
        nodes, "one", [], [ValueInfoProto(name=name) for name in one.values()]
    )
    else_branch = helper.make_graph(
        constants, "two", [], [ValueInfoProto(name=name) for name in two.values()]
    )
    condition = draft.name("condition")
    draft.graph.input.append(described(condition, np.array(True), []))
    node = helper.make_node(
        "If", [condition], outputs_inside, then_branch=then_branch, else_branch=else_branch
    )
    draft.graph.node.insert(draft.at, node)
    move_constants(draft, rng, draft.graph.node[draft.at].attribute[0].g)


def loop(draft, rng):
    """Put nodes into the body of a Loop that runs once; one of their inputs may be the value that
    is carried.
    """
    nodes, used, outputs_inside = take_some(draft, rng)
    inner = {name: draft.name(name) for name in outputs_inside}
    steps = {node.input[4] for node in nodes if node.op_type == "Slice" and node.input[4:]}
    free = [
        name for name in used if name not in steps
    ]  # ONNX Runtime states sizes as if unknown steps were 1
    carried = [one_of(rng, free)] if free and chance(rng) else []
    step, go_on, state, going_on, passed, last = map(
        draft.name, ("step", "go_on", "state", "going_on", "passed", "last")
    )
    rename(nodes, {**inner, **dict.fromkeys(carried, state)})
    ends = {going_on: go_on, **({passed: state} if carried else {})}
    nodes += [helper.make_node("Identity", [name], [end]) for end, name in ends.items()]
    inputs = [described(step, np.array(0), []), described(go_on, np.array(True), [])]
    inputs += [ValueInfoProto(name=state)] * len(carried)
    body = helper.make_graph(
        nodes, "body", inputs, [ValueInfoProto(name=name) for name in (*ends, *inner.values())]
    )
    stacked = [draft.name(name) for name in outputs_inside]
    results = [last] * len(carried) + stacked
    turns = [draft.constant(1), draft.constant(True, bool) if chance(rng) else ""]
    draft.graph.node.insert(
        draft.at, helper.make_node("Loop", [*turns, *carried], results, body=body)
    )
    for name, several in zip(outputs_inside, stacked, strict=True):
        draft.graph.node.insert(
            draft.at + 1, helper.make_node("Squeeze", [several, draft.constant([0])], [name])
        )
    move_constants(draft, rng, draft.graph.node[draft.at].attribute[0].g)


def move_constants(draft, rng, graph):
    """Move some of the constants that only a subgraph uses into it."""
    outside = {name for node in draft.graph.node for name in node.input}
    outside |= {value.name for value in (*draft.graph.output, *draft.graph.input)}
    for tensor in [
        t for t in draft.graph.initializer if t.name in names_used(graph.node) - outside
    ]:
        if chance(rng):
            graph.initializer.append(tensor)
            draft.graph.initializer.remove(tensor)


# Edits of the whole model.


def versions(draft, rng):
    """Let the model state other versions, which mean the same."""
    alike = next(
        v
        for v in ([11, 12], range(13, 16), [16, 17], [18, 19], range(20, 23), [23])
        if draft.opset in v
    )
    opset = one_of(rng, [version for version in alike if version <= NEWEST_OPSET])
    for owner in (draft.proto, *draft.proto.functions):
        next(i for i in owner.opset_import if not i.domain).version = opset
    draft.proto.ir_version = one_of(rng, [3, 3, *range(3, 12)])
    if draft.proto.ir_version == 3:  # all initializers are inputs, too
        names_of_inputs = {value.name for value in draft.graph.input}
        for tensor in (t for t in draft.graph.initializer if t.name not in names_of_inputs):
            draft.graph.input.append(
                described(tensor.name, numpy_helper.to_array(tensor), tensor.dims)
            )


def whole(function):
    """Make an edit of function(model, rng), which returns another model.

    None for models with sequences: onnx takes all members for as large as the first one, and tools
    write that down.
    """

    @functools.wraps(function)
    def edit(draft, rng):
        if any(node.op_type == "SequenceAt" for node in model_nodes(draft.proto)):
            raise Inapplicable
        try:
            draft.proto.CopyFrom(function(draft.proto, rng))
        except Exception as error:
            raise Inapplicable from error

    return edit


@whole
def inference(proto, rng):
    """Write down what onnx infers; of values only in plain graphs, since it takes values in
    subgraphs for others.
    """
    is_plain = not proto.functions and not any(any(subgraphs(node)) for node in proto.graph.node)
    return onnx.shape_inference.infer_shapes(proto, data_prop=is_plain and chance(rng))


@whole
def onnx_runtime(proto, rng):
    """Optimize a model offline."""
    levels = ort.GraphOptimizationLevel
    options = quiet(
        graph_optimization_level=one_of(rng, [levels.ORT_ENABLE_BASIC, levels.ORT_ENABLE_EXTENDED])
    )
    with tempfile.NamedTemporaryFile() as file:
        options.optimized_model_filepath = file.name
        ort.InferenceSession(proto.SerializeToString(), options)
        return onnx.load(file.name)


@whole
def onnxsim(proto, rng):
    import onnxsim

    return onnxsim.simplify(proto)[0]


@whole
def onnxslim(proto, rng):
    import onnxslim

    return onnxslim.slim(proto)


@whole
def inliner(proto, rng):
    return onnx.inliner.inline_local_functions(proto)


# One that stands twice is drawn twice as often.
COMMON = (
    gather, gather, cut_slice, turn, reverse, transpose, unsqueeze, squeeze, reshape, expand, split,
    double, tile, identity,
    cast_and_back, wrap_around, compute, times_size, from_size, fold, other_value,
    larger_input, larger_input, name_dimension, name_dimension, name_by_formula, more_input,
    more_input,
    change_constant, constant_by_node, constant_of_callers, change_attribute, remove_node,
    duplicate, damage,
)  # fmt: skip
# Those of models that are written by hand, besides.
NEAR = (
    other_pixel,
    other_weight,
    other_limit,
    other_scale,
    other_operator,
    leave_out,
    exchange,
    exchange,
)
USES = shape_output, share_output, more_output
WRAPS = function, function, two_functions, branch, loop
TOOLS = onnx_runtime, onnxsim, onnxslim, inliner
EDITS = {
    edit.__name__: edit for edit in (*COMMON, *NEAR, *USES, *WRAPS, *TOOLS, versions, inference)
}
