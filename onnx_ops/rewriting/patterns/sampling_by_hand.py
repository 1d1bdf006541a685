"""`grid_sample` that is written by hand, as one GridSample, or a ComputedGridSample if nodes compute the coordinates.

Before opset 16, and for runtimes without GridSample, models gather four pixels and add them up (taps.py).
"""

from contextlib import suppress
from dataclasses import replace

import numpy as np
from onnx import TensorProto

from ..expressions import expression
from ..finding import NearMiss, tried
from ..graph import AI_ONNX
from ..indices import shape
from ..positions import Position, Variable, broadcast_index, position, variable, variables
from ..programs_by_hand import Program, state_sizes
from ..reshapes import add_reshape, reshape
from ..taps import FLOATS, GATHERS, SUMS, Draw, Reader, sampled, varying, weighs

NAME = "grid_sample by hand"
NEEDS = tuple(("Floor", gather) for gather in GATHERS)  # a graph needs one of these sets of types of nodes
MOVED = "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Mul"  # a sum, when it is complete; Mul: by a mask
LAST, DOMAINS = ("Add", "Sum", *MOVED), AI_ONNX  # types and domains of the node that ends the pattern
LINEAR = "Add", "Sub", "Mul", "Div", "Neg"  # what makes pixels of coordinates in [-1, 1]
DRAWS = 3
FAR_AWAY = -1e6  # pixels


def match(graph, node):
    """Return the arguments of `Graph.replace` for a sum of four pixels, or what moves or hides it; None else."""
    later = node
    if node.output[0] not in weighs(graph) or (node.op_type in MOVED and not _moved_sum(graph, node)):
        return None
    while later := _next(graph, later):
        with suppress(NearMiss):
            if _replacement(graph, later):
                return None
    try:
        return _replacement(graph, node)
    except NearMiss:
        if node.op_type in MOVED or any(user.op_type in SUMS for user, _ in graph.consumers[node.output[0]]):
            return None  # it is a part of a sum, which another node reports
        raise


def _next(graph, node):
    """Return the node of MOVED that alone uses a node's output; None if there is none."""
    user, _ = graph.only_user(node.output[0])
    return user if user is not None and user.output and graph.producer(user.output[0], *MOVED) else None


def _moved_sum(graph, node):
    """Return what a node of MOVED moves or hides: a sum, or another such node after it, for it alone; or None."""
    for source in (graph.producers[name] for name in node.input if name in weighs(graph)):
        is_last = source.op_type in LAST and _next(graph, source) is node
        if is_last and (source.op_type not in MOVED or _moved_sum(graph, source)):
            return source
    return None


def _replacement(graph, node):
    dimensions = shape(graph, node.output[0])
    if not dimensions or 0 in dimensions:
        return None
    reader, index, masks, summed = Reader(graph), variables(dimensions), [], node.output[0]
    read = lambda name: reader.read(name, broadcast_index(shape(graph, name), dimensions, index))
    try:
        if node.op_type == "Mul":
            summed = _moved_sum(graph, node).output[0]
            masks = [read(name) for name in node.input if name != summed]
        found = sampled(graph, read(summed), index, masks)
    except (ValueError, TypeError):
        return None
    if found.factors:
        raise NearMiss("its pixels are multiplied by other values before they are added up")
    kinds = {graph.type(name).elements for name in (found.image, found.row.places[0][0], found.column.places[0][0])}
    if len(kinds) > 1 or not kinds <= FLOATS:
        raise NearMiss("its image and coordinates are not known to be floats of one type")
    image, (n, c, rows, columns) = shape(graph, found.image), found.axes
    batch, channels = (None if v is None else int(v) for v in found.variables)
    points = [k for k in range(len(dimensions)) if k not in (batch, channels)]
    single = [k for k in points if dimensions[k] == 1][: len(points) - 1]
    if batch is None and (n is None or image[n] == 1):
        batch = single.pop(0) if single else None
    if channels is None and image[c] == 1:
        channels = single.pop(0) if single else None
    points = [k for k in points if k not in (batch, channels)]
    if len(points) not in (1, 2) or any(k is None and axis is not None and image[axis] != 1
                                        for k, axis in ((batch, n), (channels, c))):  # fmt: skip
        raise NearMiss("it has other axes than images, channels, and one or two of points")
    names = {batch: "n", channels: "c", points[-1]: "w", **dict.fromkeys(points[:-1], "h")}
    rename = lambda index: tuple(_renamed(each, names, dimensions) for each in index)
    normalization, values = _normalized(found, image, rows, columns, masks)
    sizes = [1 if batch is None else dimensions[batch], *([1] * (2 - len(points))), *(dimensions[k] for k in points)]
    program = Program(graph, node, "float64" if kinds == {TensorProto.DOUBLE} else "float32")
    places = [(name, rename(its_index)) for name, its_index in (value.places[0] for value in values)]
    made = _permuted(graph, node, found.image, [*([] if n is None else [n]), c, rows, columns], n is None)
    sampling = {"padding_mode": found.padding_mode, **normalization}
    name = places[0][0]
    whole = [(name, (*map(variable, "nhw", sizes), Position(i))) for i in (0, 1)]
    if "pixels" not in sampling and shape(graph, name) == (*sizes, 2) and places == whole:
        arguments = {"op_type": "GridSample", "inputs": [made, name],
                     "domain": "" if graph.opset >= 16 else "com.microsoft",
                     "mode": "linear" if graph.opset >= 20 else "bilinear", **sampling}  # fmt: skip
    else:
        memo: dict = {}
        coordinates = [program.value(expression(graph, *place, memo)) for place in places]
        for k, shift in enumerate(found.shifts[::-1]):
            if "pixels" in sampling and shift:
                coordinates[k] = program.step("Add", coordinates[k], program.number(shift))
        if masks:  # what it hides is read where the image is 0
            coordinates[0] = program.step("Where", coordinates.pop(), coordinates[0], program.number(FAR_AWAY))
        state_sizes(program, (*sizes, 2))
        inputs, more = program.finished(coordinates)
        arguments = {"op_type": "ComputedGridSample", "inputs": [made, *inputs], "domain": "onnx_ops",
                     "mode": "bilinear", **sampling, **more}  # fmt: skip
    return _arranged(graph, node, arguments, [batch, channels, *points], dimensions, (found.image, *dict(places)))


def _arranged(graph, node, arguments, order, dimensions, open_in):
    """Return the arguments of `Graph.replace` for what brings samples [N, C, h, w] into the order of the output."""
    if order == [0, 1, 2, 3]:
        return arguments
    kept = [k for k in order if k is not None]
    sizes = [dimensions[k] for k in kept]
    finding, samples = arguments["op_type"], graph.add_node(node, **arguments)
    if kept == sorted(kept):
        return {"op_type": "Reshape", **reshape(graph, node, samples, sizes, open_in), "finding": finding}
    if len(kept) < 4:
        samples = add_reshape(graph, node, samples, sizes, open_in)
    perm = [kept.index(k) for k in range(len(kept))]
    return {"op_type": "Transpose", "inputs": [samples], "perm": perm, "finding": finding}


def _permuted(graph, node, image, order, is_single):
    """Return the name of an image with its axes in this order, and one for the batch before if it is a single one."""
    if order != sorted(order):
        image = graph.add_node(node, "Transpose", [image], perm=order)
    return graph.add_axes(node, image, 0) if is_single else image


def _renamed(index, names, dimensions):
    """Return a Position over variables with other names."""
    terms = []
    for term in index.terms:
        k = int(term.variable.name)
        terms.append(replace(term, variable=Variable(names[k], dimensions[k])))
    return position(index.start, terms)


def _chain(value):
    """Return [a value, what it is a linear function of, what that is a linear function of, ...]."""
    chain = [value]
    while value.op in LINEAR:
        inner = varying(value)
        if len(inner) != 1 or (value.op == "Div" and inner[0] is not value.operands[0]):
            break
        (value,) = inner
        chain.append(value)
    return chain


def _normalized(found, image, rows, columns, masks):
    """Return ({attribute: value}, [x, y, *masks]) of the coordinates that are sampled at: pixels, where masks hide."""
    chains = [
        (_chain(found.column), image[columns], found.shifts[1]),
        (_chain(found.row), image[rows], found.shifts[0]),
    ]
    for align_corners in () if masks else (1, 0):
        values = [_in_chain(chain, size, shift, align_corners) for chain, size, shift in chains]
        if None not in values:
            return {"align_corners": align_corners}, values
    return {"pixels": 1}, [found.column, found.row, *masks]


def _in_chain(chain, size, shift, align_corners):
    """Return the coordinate of a chain that is in [-1, 1], as near to the end as possible; None if none is."""
    for inner in reversed(chain):
        if all(_is_normalized(Draw(seed, {}), chain[0], inner, size, shift, align_corners) for seed in range(DRAWS)):
            return inner
    return None


def _is_normalized(draw, outer, inner, size, shift, align_corners):
    count, g = draw.size(size), np.array([-1.0, 0.0, 0.5, 1.0])
    made = tried(draw.value, outer, {inner: g})
    expected = (g + 1) / 2 * (count - 1) if align_corners else ((g + 1) * count - 1) / 2
    return made is not None and np.allclose(made + shift, expected, 2e-7, 2e-7)
