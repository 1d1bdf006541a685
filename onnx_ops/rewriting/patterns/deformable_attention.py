"""Deformable DETR's `multi_scale_deformable_attn` as one MultiScaleDeformableAttention.

Models that use it compute, for each level l,

    sample_l = GridSample(the pixels of level l of value, as N * M images [D, h_l, w_l],
                          2 * sampling_locations - 1 of level l, as N * M grids [Q, P, 2])

and add up, over levels and points, attention_weights * Concat(sample_0, sample_1, ...), in the end as [N, Q, M * D].
Of a mean, the weights are divided by the number of these.
All other nodes move elements. So an index into every tensor consists of variables (positions.py): N (batch), S (pixels
of all levels), M (heads), D (channels), Q (queries), L (levels), P (points), X (the two coordinates).
"""

import math

import numpy as np
from onnx import helper

from ..finding import NearMiss, tried
from ..graph import AI_ONNX, FLOATS
from ..indices import JOINS, MOVES, attributes_of, axes_of, followed, path, shape
from ..positions import Position, elements, layout, position, reshaped, variable
from ..shapes import UNKNOWN
from ..sizes import are_numbers, quotient

DOMAIN, OPERATOR = "onnx_ops", "MultiScaleDeformableAttention"
NAME = "deformable_attention"
SUMS = "ReduceSum", "ReduceMean"
NEEDS = (("GridSample", "Mul"),)  # a graph needs one of these sets of types of nodes
# Types and domains of the node that ends the pattern: ONNX Runtime's optimizer joins a Transpose and the next MatMul.
LAST, DOMAINS = ("Transpose", "FusedMatMul"), (*AI_ONNX, "com.microsoft")
LEVELS = 8  # the most that the operator takes
CUTS = "SequenceAt", "Slice", "Split"
SETTINGS = {"mode": ("linear", "bilinear"), "padding_mode": ("zeros",), "align_corners": (0,)}  # all are defaults


def match(graph, node):
    """Return the arguments of `Graph.replace` that make the last node, or its first input, the attention.

    None if the node is nothing like the end of one.
    """
    attributes = attributes_of(node)
    if node.op_type == "FusedMatMul" and [attributes.get(name, 0) for name in ("transA", "transBatchA")] != [1, 0]:
        return None
    order = attributes.get("perm", [2, 1, 0])
    is_joined = node.op_type == "FusedMatMul" or (len(order) == 3 and order != [0, 2, 1])
    result, axes = (node.input[0], ("N", "MD", "Q")) if is_joined else (node.output[0], ("N", "Q", "MD"))
    end, name = path(graph, result)
    total = graph.producer(_uncast(graph, name), *SUMS)
    product = total is not None and graph.producer(_uncast(graph, total.input[0]), "Mul")
    if not product:
        return None
    first, second = (_samples(graph, name) for name in product.input)
    if (first is None) == (second is None):
        return None
    samples, concat, concat_path = first or second
    if len(samples) > LEVELS:
        raise NearMiss(f"it has {len(samples)} levels, {OPERATOR} at most {LEVELS}")
    _check_settings(samples)
    grids = [_uncast(graph, sample.input[1]) for sample, _ in samples]
    grid, locations, sizes = _locations(graph, samples, grids)
    value, levels, sizes = _value(graph, samples, sizes)
    index = followed(graph, end, layout(sizes, *axes))
    if index is None or shape(graph, result) != tuple(math.prod(sizes[k] for k in axis) for axis in axes):
        raise NearMiss("its result is not [N, Q, M * D], or not for certain")
    index = _terms_index(graph, total, index, sizes)
    _check_samples(graph, samples, concat, concat_path, _operand(graph, product, 0 if first else 1, index), sizes)
    factor = _uncast(graph, product.input[1 if first else 0])
    weights = _weights(graph, factor, _operand(graph, product, 1 if first else 0, index), sizes)
    kinds = {graph.type(each).elements for each in (value, weights, product.output[0], name)} - {UNKNOWN.elements}
    if len(kinds) > 1:  # of nodes between which there are Casts
        raise NearMiss(f"{name}, {value} and {weights} are not of one type")
    constants = [each for each in (*grids, factor) if graph.folded(each) is not None]
    _check_uses(graph, result, (value, grid, weights, *constants))
    points = sizes["P"] if isinstance(sizes["P"], int) else -1  # which Reshape can't work out of no elements
    if total.op_type == "ReduceMean":
        if points < 0:
            raise NearMiss("it is the mean over an open number of points")
        count = graph.add_constant("count", np.array(sizes["L"] * points, graph.type(weights).dtype))
        weights = graph.add_node(node, "Div", [weights, count])
    inputs = [
        _with_last_axes(graph, node, value, 4, (sizes["M"], sizes["D"])),
        graph.add_integers(f"{node.output[0]}_spatial_shapes", *levels),
        _with_last_axes(graph, node, locations, 6, (sizes["L"], points, 2)),
        _with_last_axes(graph, node, weights, 5, (sizes["L"], points)),
    ]
    if is_joined:  # what the node reads has its two last axes swapped then
        change = {"transA": 0} if node.op_type == "FusedMatMul" else {"perm": [(0, 2, 1)[k] for k in order]}
        kept = [a for a in node.attribute if a.name not in change]
        del node.attribute[:]
        node.attribute.extend([*kept, *(helper.make_attribute(*item) for item in change.items())])
    return {"op_type": OPERATOR, "inputs": inputs, "domain": DOMAIN, "before": is_joined}


def _samples(graph, name):
    """Return ([(a GridSample, path of its output), ...], the Concat of these or None, path of its output).

    None if there is no GridSample.
    """
    concat_path, name = path(graph, name)
    concat = graph.producer(name, "Concat")
    paths = [path(graph, part) for part in (concat.input if concat is not None else [name])]
    samples = [(_grid_sample(graph, name), steps) for steps, name in paths]
    return None if any(sample is None for sample, _ in samples) else (samples, concat, concat_path)


def _grid_sample(graph, name):
    node = graph.producers.get(_uncast(graph, name))
    kind = node is not None and (node.domain, node.op_type, len(node.input))
    return node if kind == ("com.microsoft", "GridSample", 2) else graph.producer(_uncast(graph, name), "GridSample")


def _uncast(graph, name):
    """Return what a value is before a Cast between types of floats, as exporters write it around 16-bit sums."""
    cast = graph.producer(name, "Cast")
    if cast is None or not {graph.type(each).elements for each in (name, cast.input[0])} <= FLOATS:
        return name
    return cast.input[0]


def _check_settings(samples):
    for sample, _ in samples:
        for a in sample.attribute:
            value = a.s.decode(errors="replace") if a.s else a.i
            if a.ref_attr_name or value not in SETTINGS.get(a.name, (value,)):
                raise NearMiss(f"the {a.name} of {sample.output[0]} is {value}")


def _locations(graph, samples, grids):
    """Return (2 * sampling_locations - 1, sampling_locations, {axis: size}), the first two as names of values."""
    paths = [path(graph, name) for name in grids]
    grid = paths[0][1]
    if any(name != grid for _, name in paths):
        return None, *_constant_locations(graph, samples[0][0], grids)
    locations, dimensions = _undouble(graph, grid), shape(graph, grid)
    if dimensions is None or len(dimensions) not in (5, 6) or dimensions[-1] != 2:
        raise NearMiss(f"{grid} is not known to be [N, Q, M, L, P, 2]")
    points = quotient(math.prod(dimensions[3:-1]), len(samples))
    sizes = dict(zip("NQMLPX", (*dimensions[:3], len(samples), points, 2), strict=True))
    axes = ("L", "P") if len(dimensions) == 6 else ("LP",)
    if points is None or dimensions[3:-1] != tuple(math.prod(sizes[name] for name in axis) for axis in axes):
        raise NearMiss(f"{grid} has not as many levels as there are GridSample nodes, {len(samples)}")
    for level, (steps, _) in enumerate(paths):
        index = followed(graph, steps, layout(sizes, "NM", "Q", "P", "X"))
        if index != layout(sizes, "N", "Q", "M", *axes, "X", L=level):
            raise NearMiss(f"the grid of level {level} is not known to be that of its points")
    return grid, locations, sizes


def _constant_locations(graph, sample, grids):
    """Return (sampling_locations, {axis: size}) of grids that are constants, one for each level."""
    arrays = [graph.folded(name) for name in grids]
    shapes = {None if array is None else array.shape for array in arrays}
    if len(shapes) > 1 or arrays[0] is None or arrays[0].shape[3:] != (2,):
        raise NearMiss("the grids of its levels come from different sources")
    images, queries, points, _ = arrays[0].shape
    for node, _ in path(graph, _uncast(graph, sample.input[0]))[0]:  # one of which makes images of value
        dimensions = shape(graph, node.input[0]) or ()
        batch = quotient(images, dimensions[2]) if len(dimensions) == 4 else None
        if isinstance(batch, int):
            sizes = dict(zip("NQMLPX", (batch, queries, dimensions[2], len(grids), points, 2), strict=True))
            index = layout(sizes, "NM", "Q", "P", "X")
            grid = np.stack([elements(array, index, "NQMPX") for array in arrays], 3)
            return graph.add_constant("sampling_locations", ((grid + 1.0) / 2).astype(grid.dtype)), sizes
    raise NearMiss("the number of its heads is unknown")


def _undouble(graph, grid):
    """Return the name of x, where the grid is 2 * x - 1."""
    difference = graph.producer(grid, "Sub")
    product = difference is not None and graph.producer(difference.input[0], "Mul")
    if product and _is(graph, difference.input[1], 1):
        for factor, other in (product.input, product.input[::-1]):
            if _is(graph, factor, 2):
                return other
    raise NearMiss(f"{grid} is not 2 * x - 1")


def _is(graph, name, number):
    array = graph.array(name)
    if array is None and shape(graph, name) in ((), (1,)):
        array = graph.folded(name)
    return array is not None and array.ndim <= 1 and array.size == 1 and array.item() == number


def _value(graph, samples, sizes):
    """Return (value, the heights and widths of its levels, {axis: size} with the axes of value).

    The two last axes of value may be one.
    """
    names = [_uncast(graph, sample.input[0]) for sample, _ in samples]
    sources = [node.input[0] for node, _ in path(graph, names[0])[0]]
    # Values that have an axis of heads come first, and of these last what is cut.
    sources.sort(key=lambda name: (len(shape(graph, name) or ()) != 4, graph.producer(name, *CUTS) is not None))
    for source in sources:
        dimensions = shape(graph, source) or ()
        if len(dimensions) == 3:
            dimensions = (*dimensions[:2], sizes["M"], quotient(dimensions[2], sizes["M"]))
        if len(dimensions) != 4 or dimensions[2] != sizes["M"] or dimensions[3] is None:
            continue
        value_sizes = {**sizes, **dict(zip("NSMD", dimensions, strict=True))}
        levels = _levels(graph, source, names, value_sizes)
        if levels:
            # GridSample reads as many images as it has grids, N * M, so that value and grids have the same N.
            if isinstance(sizes["N"], int) and not isinstance(value_sizes["N"], int):
                value_sizes["N"] = sizes["N"]
            return source, levels, value_sizes
    raise NearMiss(f"{names[0]} and the other levels are not known to be parts of one value [N, S, M, D]")


def _levels(graph, source, names, sizes):
    """Return the heights and widths of images, if they are certain to be the levels of the source; or None."""
    levels, start = [], 0
    for name in names:
        steps, top = path(graph, name, source)
        height, width = (None, None, *(shape(graph, name) or ()))[-2:]
        if top != source or not (isinstance(height, int) and isinstance(width, int)):
            return None
        pixels = {**sizes, "H": height, "W": width}
        axes = ("M", "D") if len(shape(graph, source)) == 4 else ("MD",)
        n, s, *others = layout(pixels, "N", "HW", *axes)
        if followed(graph, steps, layout(pixels, "NM", "D", "H", "W")) != (n, Position(start) + s, *others):
            return None
        levels += [height, width]
        start += height * width
    return levels if start == sizes["S"] else None


def _terms_index(graph, total, index, sizes):
    """Return the index into what is added up over levels and points, for one into the sum."""
    dimensions = shape(graph, total.input[0]) or ()
    summed = {axis % len(dimensions) for axis in axes_of(graph, total) or ()}
    axes, count = [dimensions[k] for k in sorted(summed)], sizes["L"] * sizes["P"]
    over = tried(reshaped, layout(sizes, "LP"), [count], axes)
    if not summed or over is None or math.prod(axes) != count:
        raise NearMiss("it adds up over other axes than levels and points")
    over, others = iter(over), iter(index)
    keeps = attributes_of(total).get("keepdims", 1)
    if keeps:
        others = iter([at for k, at in enumerate(index) if k not in summed])
    return tuple(next(over) if k in summed else next(others) for k in range(len(dimensions)))


def _operand(graph, product, k, index):
    """Return the index into an operand of a product."""
    dimensions = shape(graph, product.input[k])
    if dimensions is None:
        return None
    index = index[len(index) - len(dimensions) :]
    return tuple(Position() if d == 1 else at for d, at in zip(dimensions, index, strict=True))


def _check_samples(graph, samples, concat, concat_path, index, sizes):
    """Raise NearMiss unless an index leads to the samples of all levels."""
    index = index and followed(graph, concat_path, index)
    for level, (_, steps) in enumerate(samples):
        part = index and (index if concat is None else _part(graph, concat, index, level))
        if part is None or followed(graph, steps, part) != layout(sizes, "NM", "D", "Q", "P"):
            raise NearMiss(f"how the samples of level {level} are put together with the others is not known")


def _part(graph, concat, index, level):
    """Return the index into a level for one into all levels, which a Concat puts together; None if that is unknown."""
    axis = range(len(index))[attributes_of(concat)["axis"]]
    levels = [term for term in index[axis].terms if term.variable.name == "L"]
    dimensions = shape(graph, concat.input[level])
    if dimensions is None or tuple(levels) != variable("L", len(concat.input)).times(dimensions[axis]).terms:
        return None
    others = [term for term in index[axis].terms if term not in levels]
    return (*index[:axis], position(index[axis].start, others), *index[axis + 1 :])


def _weights(graph, name, index, sizes):
    """Return the name of attention_weights, if a factor is certain to hold them at the index of the samples."""
    several_heads = isinstance(sizes["M"], int) and sizes["M"] > 1
    for source in (name, *(node.input[0] for node, _ in path(graph, name)[0])):
        batch, *others = shape(graph, source) or (None,)
        steps = path(graph, name, source)[0]
        takes_all = not any(step.op_type in (*CUTS, "Gather") for step, _ in steps)
        # Several heads rule out that all of another batch is broadcast along N * M.
        if index is None or (batch != sizes["N"] and not (several_heads and takes_all)):
            continue
        for axes in (("Q", "M", "L", "P"), ("Q", "M", "LP")):
            is_all = others == [math.prod(sizes[k] for k in axis) for axis in axes]
            if is_all and followed(graph, steps, index) == layout(sizes, "N", *axes):
                return source
    array, axes = graph.folded(name), [sizes[k] for k in "NQMLP"]
    weights = tried(elements, array, index, "NQMLP") if array is not None else None
    if weights is not None and are_numbers(axes):
        return graph.add_constant("attention_weights", np.ascontiguousarray(np.broadcast_to(weights, axes)))
    raise NearMiss(f"{name} is not known to be made of weights [N, Q, M, L, P], in the order of the samples")


def _check_uses(graph, result, sources):
    """Raise NearMiss if a value between the sources and the result is used elsewhere, except for its shape.

    Images may be: layers that share a value move its elements only once.
    """
    between, names = {}, [result]
    while names:
        name = names.pop()
        if name not in sources and name not in between:
            between[name] = graph.producers[name]
            inputs, op_type = between[name].input, between[name].op_type
            if op_type == "GridSample":
                names.append(inputs[1])
            elif op_type in (*MOVES, *SUMS) and op_type not in JOINS:
                names.append(inputs[0])
            else:
                names += inputs
    consumers = graph.consumers
    for name in between.keys() - {result}:
        users = [user for user, _ in consumers[name]]
        is_internal = all(user.op_type == "Shape" or user.output[0] in between for user in users)
        if graph.users[name] > len(users) or not is_internal:
            raise NearMiss(f"{name} is used elsewhere, too")


def _with_last_axes(graph, node, name, rank, last):
    """Return the name of a value if it has this rank, else of its Reshape to the last axes `last`."""
    if len(shape(graph, name) or ()) == rank:
        return name
    sizes = graph.add_integers(f"{name}_sizes", *[0] * (rank - len(last)), *last)
    return graph.add_node(node, "Reshape", [name, sizes])
