"""Deformable DETR's `multi_scale_deformable_attn` as one MultiScaleDeformableAttention.

Those who have taken it over write, for each level l,

    sample_l = GridSample(the pixels of level l of value, as N * M images [D, h_l, w_l],
                          2 * sampling_locations - 1 of level l, as N * M grids [Q, P, 2])

and add up, over levels and points, attention_weights * Concat(sample_0, sample_1, ...), in the end as [N, Q, M * D].
All else moves elements. So every tensor is a view (digits.py) of one whose axes have names: N (batch), S (pixels of all
levels), M (heads), D (channels), Q (queries), L (levels), P (points), X (the two coordinates).
"""

import math

import numpy as np

from .digits import MOVES, Digit, View, layout, moved, path
from .finding import NearMiss
from .graph import AI_ONNX
from .integers import numbers, shape
from .sizes import quotient

DOMAIN, OPERATOR = "onnx_ops", "MultiScaleDeformableAttention"
NAME = "deformable_attention"
LAST, DOMAINS = "Transpose", AI_ONNX  # of the node that ends it
LEVELS = 8  # at most
CUTS = "SequenceAt", "Slice", "Split"
SETTINGS = {"mode": ("linear", "bilinear"), "padding_mode": ("zeros",), "align_corners": (0,)}  # the defaults, too


def match(graph, node, standard):
    """The arguments of `Graph.replace` that make the Transpose a MultiScaleDeformableAttention; None if it is nothing
    like one."""
    end, name = path(graph, node.output[0])
    total = graph.producer(name, "ReduceSum")
    product = total is not None and graph.producer(total.input[0], "Mul")
    if not product:
        return None
    first, second = (_samples(graph, name) for name in product.input)
    if (first is None) == (second is None):
        return None
    samples, concat, joined = first or second
    if standard:
        raise NearMiss("ai.onnx has no operator for it")
    if len(samples) > LEVELS:
        raise NearMiss(f"it has {len(samples)} levels, {OPERATOR} at most {LEVELS}")
    grid, locations, sizes = _locations(graph, samples)
    value, levels, sizes = _value(graph, samples, sizes)
    view = _joined(graph, samples, concat, joined, sizes)
    weights = _weights(graph, product.input[1 if first else 0], view, sizes)
    if moved(graph, _summed(graph, total, view, sizes), end) != View(layout(sizes, "N", "Q", "MD"), {}):
        raise NearMiss("its result is not [N, Q, M * D], or not for certain")
    _check_uses(graph, node, (value, grid, weights))
    if all(map(graph.is_constant, (value, locations, weights))):
        raise NearMiss("all of it is constant: ONNX Runtime computes it once")
    inputs = [
        value,
        graph.add_constant(f"{node.output[0]}_spatial_shapes", np.array(levels)),
        _unmerged(graph, node, locations, (sizes["L"], -1, 2)),
        _unmerged(graph, node, weights, (sizes["L"], -1)),
    ]
    return {"op_type": OPERATOR, "inputs": inputs, "domain": DOMAIN}


def _samples(graph, name):
    """([(a GridSample, what moves its output), ...], the Concat of these or None, what moves that); None if there is no
    GridSample."""
    joined, name = path(graph, name)
    concat = graph.producer(name, "Concat")
    paths = [path(graph, part) for part in (concat.input if concat is not None else [name])]
    samples = [(_grid_sample(graph, name), steps) for steps, name in paths]
    return None if any(sample is None for sample, _ in samples) else (samples, concat, joined)


def _grid_sample(graph, name):
    node = graph.producers.get(name)
    microsofts = node is not None and (node.domain, node.op_type, len(node.input)) == ("com.microsoft", "GridSample", 2)
    return node if microsofts else graph.producer(name, "GridSample")


def _locations(graph, samples):
    """(2 * sampling_locations - 1, sampling_locations, the sizes of their axes)"""
    for sample, _ in samples:
        for a in sample.attribute:
            value = a.s.decode(errors="replace") if a.s else a.i
            if a.ref_attr_name or value not in SETTINGS.get(a.name, (value,)):
                raise NearMiss(f"the {a.name} of {sample.output[0]} is {value}")
    paths = [path(graph, sample.input[1]) for sample, _ in samples]
    grid = paths[0][1]
    if any(name != grid for _, name in paths):
        raise NearMiss("the grids of its levels come from different sources")
    locations, dimensions = _doubled(graph, grid), shape(graph, grid)
    if dimensions is None or len(dimensions) not in (5, 6) or dimensions[-1] != 2:
        raise NearMiss(f"{grid} is not known to be [N, Q, M, L, P, 2]")
    points = quotient(math.prod(dimensions[3:-1]), len(samples))
    sizes = dict(zip("NQMLPX", (*dimensions[:3], len(samples), points, 2), strict=True))
    axes = ("L", "P") if len(dimensions) == 6 else ("LP",)
    if points is None or dimensions[3:-1] != tuple(math.prod(sizes[name] for name in axis) for axis in axes):
        raise NearMiss(f"{grid} has not as many levels as there are GridSample nodes, {len(samples)}")
    whole = View(layout(sizes, "N", "Q", "M", *axes, "X"), {})
    for level, (steps, _) in enumerate(paths):
        if moved(graph, whole, steps) != View(layout(sizes, "NM", "Q", "P", "X"), {"L": level} if level else {}):
            raise NearMiss(f"the grid of level {level} is not known to be that of its points")
    return grid, locations, sizes


def _doubled(graph, grid):
    """x of 2 * x - 1."""
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
        array = graph.computed(name)
    return array is not None and array.ndim <= 1 and array.size == 1 and array.item() == number


def _value(graph, samples, sizes):
    """(value, the heights and widths of its levels, the sizes with those of its axes)"""
    names = [sample.input[0] for sample, _ in samples]
    sources = [node.input[0] for node, _ in path(graph, names[0])[0]]
    sources.sort(key=lambda source: graph.producer(source, *CUTS) is not None)  # what is not cut first
    for source in sources:
        dimensions = shape(graph, source)
        if dimensions is None or len(dimensions) != 4 or dimensions[2] != sizes["M"]:
            continue
        of_value = {**sizes, **dict(zip("NSMD", dimensions, strict=True))}
        levels = _levels(graph, source, names, of_value)
        if levels:
            # GridSample reads as many images as it has grids, N * M, so that both have the same N.
            known = isinstance(of_value["N"], int) or not isinstance(sizes["N"], int)
            return source, levels, of_value if known else {**of_value, "N": sizes["N"]}
    raise NearMiss(f"what {names[0]} and the other levels are made of is not known to be one value [N, S, M, D]")


def _levels(graph, source, names, sizes):
    """The heights and widths of images, if these are known to be the source, level by level; or None."""
    levels, start = [], 0
    for name in names:
        steps, top = path(graph, name, source)
        view = moved(graph, View(layout(sizes, "N", "S", "M", "D"), {}), steps) if top == source else None
        if view is None or len(view.axes) != 4:
            return None
        height, width = view.size(2), view.size(3)
        rows, columns = (() if size == 1 else (Digit("S", step, size),) for step, size in ((width, height), (1, width)))
        expected = View((*layout(sizes, "NM", "D"), rows, columns), {"S": start} if start else {})
        if view != expected or not (isinstance(height, int) and isinstance(width, int)):
            return None
        levels += [height, width]
        start += height * width
    return levels if start == sizes["S"] else None


def _joined(graph, samples, concat, joined, sizes):
    """The view of the samples of all levels that is multiplied."""
    of_one = View(layout(sizes, "NM", "D", "Q", "P"), {})
    views = [moved(graph, of_one, steps) for _, steps in samples]
    if views[0] is None or any(view != views[0] for view in views):
        raise NearMiss("how the samples of its levels are put together is unknown, or differs")
    axes = list(views[0].axes)
    axis = next(a.i for a in concat.attribute if a.name == "axis") if concat is not None else 0
    if -len(axes) <= axis < len(axes):
        axes[axis] = layout(sizes, "L")[0] + axes[axis]
    view = moved(graph, View(tuple(axes), {}), joined)
    if view is None:
        raise NearMiss("what becomes of the samples before they are multiplied is unknown")
    return view


def _weights(graph, name, view, sizes):
    """attention_weights, which a value is a view of that can be multiplied by that of the samples."""
    expected = View(tuple(tuple(digit for digit in axis if digit.along != "D") for axis in view.axes), {})
    several = isinstance(sizes["M"], int) and sizes["M"] > 1
    for source in (name, *(node.input[0] for node, _ in path(graph, name)[0])):
        batch, *others = shape(graph, source) or (None,)
        if batch != sizes["N"] and not several:  # of several heads there are N * M, of which none is repeated
            continue
        for axes in (("Q", "M", "L", "P"), ("Q", "M", "LP")):
            whole, steps = View(layout(sizes, "N", *axes), {}), path(graph, name, source)[0]
            fits = others == [math.prod(sizes[k] for k in axis) for axis in axes]
            if fits and moved(graph, whole, steps) == expected:
                return source
    raise NearMiss(f"{name} is not known to be made of weights [N, Q, M, L, P], in the order of the samples")


def _summed(graph, total, view, sizes):
    """The view after the sum over levels and points."""
    attributes = {a.name: a for a in total.attribute}
    over = list(attributes["axes"].ints) if "axes" in attributes else None
    if len(total.input) > 1:
        over = numbers(graph, total.input[1])
    rank = len(view.axes)
    over = {axis % rank for axis in over or ()}
    digits = {digit for axis in over for digit in view.axes[axis]}
    if not over or digits != set(layout(sizes, "LP")[0]):
        raise NearMiss("it adds up over other axes than levels and points")
    keeps = attributes["keepdims"].i if "keepdims" in attributes else 1
    axes = [() if axis in over else digits for axis, digits in enumerate(view.axes) if keeps or axis not in over]
    return View(tuple(axes), {})


def _check_uses(graph, node, sources):
    """NearMiss if a value between the sources and a node is used elsewhere, but for its shape."""
    between, names = {}, [node.output[0]]
    while names:
        name = names.pop()
        if name not in sources and name not in between:
            between[name] = graph.producers[name]
            moves = between[name].op_type in (*MOVES, "ReduceSum")
            names += between[name].input[:1] if moves else between[name].input
    consumers = graph.consumers()
    for name in between.keys() - {node.output[0]}:
        takers = [taker for taker, _ in consumers[name]]
        known = all(taker.op_type == "Shape" or taker.output[0] in between for taker in takers)
        if graph.users[name] > len(takers) or not known:
            raise NearMiss(f"{name} is used elsewhere, too")


def _unmerged(graph, node, name, last):
    """A value with these last axes, or what it becomes by a Reshape."""
    if len(shape(graph, name) or ()) == 3 + len(last):
        return name
    return graph.add_node(node, "Reshape", [name, graph.add_constant(f"{name}_shape", np.array([0, 0, 0, *last]))])
