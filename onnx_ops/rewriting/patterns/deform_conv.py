"""`deform_conv2d` that is written by gathering and adding pixels (taps.py), as one DeformConv of ai.onnx.

deform-conv2d-onnx-exporter and modules in plain PyTorch gather four pixels for each place of the kernel at each pixel
of the output, arrange the sums as an image of blocks, and convolve these:

    Conv(Reshape(Transpose(mask * sum of weighted pixels)), W, strides = kernel_shape)

The place of row i of the kernel and row h of the output is h * stride + i * dilation - pad + offset.
"""

import math

import numpy as np

from ..finding import NearMiss, tried
from ..graph import AI_ONNX
from ..indices import attributes_of, element, shape
from ..positions import Position, divided, elements, joined, layout, variable
from ..sizes import block_count, quotient
from ..taps import FLOATS, GATHERS, Reader, sampled, weighs

NAME = "deform_conv2d"
NEEDS = tuple(("Floor", "Conv", gather) for gather in GATHERS)  # sets of types of nodes, one of which a graph has
LAST, DOMAINS = ("Conv", "Add"), AI_ONNX  # types and domains of the node that ends the pattern
VERSION = 19  # of ai.onnx, the first with DeformConv


def match(graph, node):
    """Return the arguments of `Graph.replace` for the convolution, or for the bias that is added to it; else None."""
    conv, bias = _with_bias(graph, node)
    if conv is None or len(conv.input) < 2 or conv.input[0] not in weighs(graph):
        return None
    blocks, weight = shape(graph, conv.input[0]), shape(graph, conv.input[1])
    if not blocks or len(blocks) != 4 or not weight or len(weight) != 4:
        return None
    attributes, kernel = attributes_of(conv), [*weight[2:]]
    heights = [quotient(size, k) for size, k in zip(blocks[2:], kernel, strict=True)]
    is_plain = not any(attributes.get("pads", ())) and set(attributes.get("dilations", [1])) == {1}
    if None in heights or attributes.get("strides", [1, 1]) != kernel or not is_plain or attributes.get("auto_pad"):
        return None
    if not all(isinstance(size, int) for size in (*weight, blocks[1])):
        raise NearMiss("the sizes of its kernel or the number of its channels are open")
    sizes = {"n": blocks[0], "c": blocks[1], **dict(zip("hwij", (*heights, *kernel), strict=True))}
    index = layout(sizes, "n", "c", "hi", "wj")
    try:
        found = sampled(graph, Reader(graph).read(conv.input[0], index), index)
    except ValueError:
        return None
    return _replacement(graph, conv, bias, found, sizes, attributes.get("group", 1))


def _with_bias(graph, node):
    """Return (Conv, the constant that is added to it or None) for the last node of a convolution; else (None, None)."""
    if node.op_type == "Conv":
        users = graph.consumers()[node.output[0]]
        is_last = len(node.input) > 2 or len(users) != 1 or _with_bias(graph, users[0][0])[0] is None
        return (node if is_last else None), None
    if node.op_type != "Add" or node.domain not in AI_ONNX:
        return None, None
    for name, other in (node.input, node.input[::-1]):
        conv, bias = graph.producer(name, "Conv"), graph.folded(other)
        if conv is not None and bias is not None and graph.users[name] == 1 and len(conv.input) == 2:
            channels = (shape(graph, conv.input[1]) or (None,))[0]
            if bias.shape in ((1, channels, 1, 1), (channels, 1, 1)):
                return conv, bias.reshape(-1)
    return None, None


def _replacement(graph, conv, bias, found, sizes, group):
    (n, c, rows, columns), image = found.axes, shape(graph, found.image)
    if (n, c, rows, columns) != (0, 1, 2, 3) or image[:2] != (sizes["n"], sizes["c"]) or found.padding_mode != "zeros":
        raise NearMiss("its image has other axes than batch, channels, height and width, or another border")
    if any(v not in (name, None) for v, name in zip(found.variables, "nc", strict=True)):
        raise NearMiss("its image has other axes than batch, channels, height and width")
    spacings = [
        _spacing(graph, *each, sizes) for each in zip((found.row, found.column), "hw", "ij", found.shifts, strict=True)
    ]
    strides, dilations, pads, offsets = zip(*spacings, strict=True)
    ends = [_end(image[2 + a], sizes["ij"[a]], sizes["hw"[a]], dilations[a], strides[a], pads[a]) for a in (0, 1)]
    offset, groups = _offset(graph, offsets, sizes)
    mask = _mask(graph, found.factors, sizes, groups)
    inputs = [found.image, conv.input[1], offset, *conv.input[2:]]
    kinds = {graph.type(name).elements for name in (*inputs, *filter(None, [mask]))}
    if len(kinds) > 1 or not kinds <= {*FLOATS}:
        raise NearMiss("its inputs are not known to be all of float32, or all of float64")
    if bias is not None and bias.any():
        inputs.append(graph.add_constant("bias", bias))
    if mask is not None:
        inputs = [*inputs, *[""] * (4 - len(inputs)), mask]
    domain, version = ("", VERSION) if graph.can_import(VERSION) else ("onnx_ops", 1)
    return {
        "op_type": "DeformConv", "inputs": inputs, "domain": domain, "version": version,
        "kernel_shape": [sizes["i"], sizes["j"]], "group": group,
        "offset_group": groups, "strides": [*strides], "dilations": [*dilations], "pads": [*pads, *ends],
    }  # fmt: skip


def _spacing(graph, value, out, kernel, shift, sizes):
    """Return (stride, dilation, pad, offset) for a coordinate: h * stride + i * dilation - pad + offset."""
    regular, others = Position(shift), []
    for each in _addends(value):
        known = each.what if each.op == "Place" else None
        if each.op == "Number":
            known = Position(int(each.what)) if each.what == int(each.what) else None
        elif each.op == "Array":
            known = tried(_regular, graph.folded(each.what[0]), each.what[1], sizes)
        if known is None:
            others.append(each)
        else:
            regular += known
    if len(others) != 1:
        raise NearMiss(f"its places are not those of a regular grid and one offset, but {len(others)} values")
    steps = [next((t.step for t in regular.terms if t.variable.name == name), 1) for name in (out, kernel)]
    expected = variable(out, sizes[out]).times(steps[0]) + variable(kernel, sizes[kernel]).times(steps[1])
    pad = -regular.start
    if regular != expected + Position(regular.start) or not all(isinstance(s, int) and s > 0 for s in steps):
        raise NearMiss("its places are not those of a regular grid")
    if not isinstance(pad, int) or pad < 0:
        raise NearMiss(f"its first place is pixel {regular.start}, inside of the image")
    return (*steps, pad, others[0])


def _addends(value):
    """Return the Values that a value is the sum of."""
    if value.op in ("Add", "Sum"):
        return [each for operand in value.operands for each in _addends(operand)]
    if value.op == "Sub" and value.operands[1].op == "Number":
        return [*_addends(value.operands[0]), type(value)("Number", (), -value.operands[1].what)]
    return [value]


def _regular(array, index, sizes):
    """Return the Position that the elements of an array are."""
    picked = elements(array, index, "hwij")
    whole = picked.astype(np.int64)
    return element(whole, [variable(k, sizes[k]) for k in "hwij"]) if np.array_equal(whole, picked) else None


def _end(size, kernel, count, dilation, stride, pad):
    """Return by how many pixels the end of an axis is padded."""
    for end in (pad, *range(pad + stride + dilation * kernel)):
        if block_count(size + pad + end, kernel, dilation, stride) == count:
            return end
    raise NearMiss(f"its output has {count} pixels along an axis, which no padding makes of {size}")


def _offset(graph, offsets, sizes):
    """Return (name of the offsets, number of their groups)."""
    (row, column), count = offsets, 2 * sizes["i"] * sizes["j"]
    for name, index in row.places:
        channels = (*shape(graph, name), None)[1]
        groups = channels // count if isinstance(channels, int) else 0
        expected = [tried(_in_groups, graph, name, sizes, groups, "gijy", y) for y in (0, 1)]
        if expected[0] == index and (name, expected[1]) in column.places:
            return name, groups
    raise NearMiss("its offsets are not known to be a value [N, groups * kernel * 2, height, width]")


def _in_groups(graph, name, sizes, groups, order, y=0):
    """Return the index of an offset or a mask in a value with groups, positions in the kernel, and rows and columns."""
    group = divided(variable("c", sizes["c"]), quotient(sizes["c"], groups))[0]
    parts = {"g": (group, groups), "y": (Position(y), 2), **{k: (variable(k, sizes[k]), sizes[k]) for k in "ij"}}
    n, h, w = (variable(k, sizes[k]) for k in "nhw")
    channels = math.prod(parts[k][1] for k in order)
    is_whole = shape(graph, name) == (sizes["n"], channels, sizes["h"], sizes["w"])
    return (n, joined([parts[k] for k in order]), h, w) if is_whole else None


def _mask(graph, factors, sizes, groups):
    """Return the name of the mask, or None if there is none."""
    for name, index in factors[0].places if len(factors) == 1 else ():
        if tried(_in_groups, graph, name, sizes, groups, "gij") == index:
            return name
    if factors:
        raise NearMiss("what multiplies its pixels is not known to be a mask [N, groups * kernel, height, width]")
    return None
