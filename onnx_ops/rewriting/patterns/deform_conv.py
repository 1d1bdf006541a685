"""`deform_conv2d` that is written by gathering and adding pixels (taps.py), as one DeformConv of ai.onnx.

deform-conv2d-onnx-exporter and modules in plain PyTorch gather four pixels for each place of the kernel at each pixel
of the output, arrange the sums as an image of blocks, and convolve these:

    Conv(Reshape(Transpose(mask * sum of weighted pixels)), W, strides = kernel_shape)

The place of row i of the kernel and row h of the output is h * stride + i * dilation - pad + offset.
"""

import numpy as np

from ..finding import NearMiss, tried
from ..graph import AI_ONNX
from ..indices import attributes_of, element, shape
from ..positions import Position, elements, layout, variable
from ..sizes import are_numbers, are_positive, block_count, quotient
from ..taps import FLOATS, GATHERS, Reader, sampled, weighs

NAME = "deform_conv2d"
NEEDS = tuple(("Floor", "Conv", gather) for gather in GATHERS)  # a graph needs one of these sets of types
LAST, DOMAINS = ("Conv", "Add"), AI_ONNX  # types and domains of the node that ends the pattern
VERSION = 19  # of ai.onnx, the first with DeformConv


def match(graph, node):
    """Return the arguments of `Graph.replace` for the convolution, or for the bias that is added to it; else None."""
    conv, bias = _with_bias(graph, node)
    if conv is None or conv.input[0] not in weighs(graph):
        return None
    blocks, weight = (shape(graph, name) or () for name in conv.input[:2])
    if {len(blocks), len(weight)} != {4}:
        return None
    attributes, kernel = attributes_of(conv), [*weight[2:]]
    heights = [quotient(size, k) for size, k in zip(blocks[2:], kernel, strict=True)]
    is_plain = not any(attributes.get("pads", ())) and attributes.get("auto_pad", b"NOTSET") == b"NOTSET"
    is_dilated = {*attributes.get("dilations", [1])} != {1}
    if None in heights or attributes.get("strides", [1, 1]) != kernel or not is_plain or is_dilated:
        return None
    if not are_numbers((*weight, blocks[1])):
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
        user, _ = graph.only_user(node.output[0])
        has_bias = len(node.input) == 2 and user is not None and user.op_type == "Add" and _with_bias(graph, user)[0]
        return (None if has_bias else node), None
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
    image = shape(graph, found.image)
    is_own = all(v in (name, None) for v, name in zip(found.variables, "nc", strict=True))
    if (found.axes, found.padding_mode, *image[:2]) != ((0, 1, 2, 3), "zeros", sizes["n"], sizes["c"]) or not is_own:
        raise NearMiss("its image has other axes than batch, channels, height and width, or another border")
    spacings = [
        _spacing(graph, *each, sizes) for each in zip((found.row, found.column), "hw", "ij", found.shifts, strict=True)
    ]
    strides, dilations, pads, offsets = zip(*spacings, strict=True)
    ends = [_end(image[2 + a], sizes["ij"[a]], sizes["hw"[a]], dilations[a], strides[a], pads[a]) for a in (0, 1)]
    offset = _grouped(graph, conv, offsets, sizes)
    if offset is None:
        raise NearMiss("its offsets are not known to be a value [N, groups * kernel * 2, height, width]")
    masks = [_grouped(graph, conv, [factor], sizes) for factor in found.factors]
    if len(masks) > 1 or any(mask is None or mask[1] != offset[1] for mask in masks):
        raise NearMiss("the factor of its pixels is not known to be a mask [N, groups * kernel, height, width]")
    inputs = [found.image, conv.input[1], offset[0], *conv.input[2:]]
    kinds = {graph.type(name).elements for name in (*inputs, *dict(masks))}
    if len(kinds) > 1 or not kinds <= FLOATS:
        raise NearMiss("its inputs are not known to be floats of one type")
    if bias is not None and bias.any():
        inputs.append(graph.add_constant("bias", bias))
    for mask in dict(masks):
        inputs = [*inputs, *[""] * (4 - len(inputs)), mask]
    domain, version = ("", VERSION) if graph.can_import(VERSION) else ("onnx_ops", 1)
    return {
        "op_type": "DeformConv", "inputs": inputs, "domain": domain, "version": version,
        "kernel_shape": [sizes["i"], sizes["j"]], "group": group,
        "offset_group": offset[1], "strides": [*strides], "dilations": [*dilations], "pads": [*pads, *ends],
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
    if regular != expected + Position(regular.start) or not are_positive(steps):
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


def _grouped(graph, node, parts, sizes):
    """Return (name, groups) of a value [N, groups * kernel * parts, height, width] with these parts; None if none is.

    If its channels have another order, they are gathered in this one.
    """
    for name, _ in reversed(parts[0].places):
        order = tried(_order, [dict(part.places).get(name) for part in parts], shape(graph, name), sizes)
        if order is not None:
            groups, order = len(order), order.ravel()
            if not np.array_equal(order, np.arange(shape(graph, name)[1])):
                name = graph.add_node(node, "Gather", [name, graph.add_constant("order", order)], axis=1)
            return name, groups
    return None


def _order(indices, dimensions, sizes):
    """Return the channels of a value [groups, positions in the kernel * parts]; None if other axes differ."""
    plane, counts = layout(sizes, "n", "h", "w"), [sizes[k] for k in "cij"]
    n, channels, *others = dimensions
    if [n, *others] != [sizes[k] for k in "nhw"] or any((n, h, w) != plane for n, _, h, w in indices):
        return None
    each = [np.broadcast_to(elements(np.arange(channels), index[1:2], "cij"), counts) for index in indices]
    per_group = counts[1] * counts[2] * len(indices)
    order = np.stack(each, -1).reshape(channels // per_group, -1, per_group)
    return order[:, 0] if (order == order[:, :1]).all() else None
