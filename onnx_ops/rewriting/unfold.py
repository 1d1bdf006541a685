"""`torch.nn.functional.unfold` and `torch.Tensor.unfold`, for which ONNX has no operator, as one Im2Col.

Exporters write, after padding, one Gather per image axis with the indices [position in the kernel, block], bring the
positions before the blocks, and flatten both:

    y = Reshape(Transpose(Gather(Gather(Pad(x), rows), columns)), [N, C * K, L])

Of Tensor.unfold the indices are [block, position in the kernel], and its axes [N, C, *blocks, *kernel]. Im2Col makes
that of a kernel with as many positions as there are blocks: in y[n, c, k, l], which is x at dilations * k +
strides * l, both have the same part.
"""

import math
from contextlib import suppress

import numpy as np

from .finding import NearMiss, tried
from .graph import AI_ONNX
from .indices import JOINS, MOVES, attributes_of, followed, integer_list, integers, path, shape
from .positions import reshaped, variables
from .sizes import Size, block_count, least

DOMAIN, OPERATOR = "onnx_ops", "Im2Col"
NAME = "unfold"
LAST, DOMAINS = ("Reshape", "Transpose"), AI_ONNX  # types and domains of the node that ends the pattern
NEEDED = {"Gather"}  # types of nodes without which a graph has none of it


def match(graph, node, standard):
    """Return the arguments of `Graph.replace` that make a node, or what a Reshape reads, an Im2Col.

    None if it is nothing like the end of an unfold, or nodes that only move its elements follow and are a better end.
    """
    steps = _steps(graph, node)
    later = [*_later(graph, node)] if steps else []
    for end in later:
        with suppress(NearMiss):
            if _end(graph, _steps(graph, end), end) is not None:
                return None
    try:
        fit = _end(graph, steps, node)
    except NearMiss:
        if later:
            return None  # the last one says it
        raise
    if fit is None:
        return None
    if standard:
        raise NearMiss("ai.onnx has no operator for it")
    source, sizes, attributes, how = fit
    axes = len(attributes["kernel_shape"])
    made = {"op_type": OPERATOR, "domain": DOMAIN, **attributes, **how}
    if len(sizes) == 1 + 2 * axes:  # without a batch
        if graph.opset < 13:
            raise NearMiss("it has no batch")
        source = graph.add_node(node, "Unsqueeze", [source, graph.add_constant("axes", np.array([0]))])
    return {"inputs": [source], **made}


def _steps(graph, node):
    """Return the path [(node, its output), ...] to the first table from a node, or from what a Reshape reads; or []."""
    steps, _ = path(graph, node.input[0], shared=False)
    if node.op_type != "Reshape":
        steps = [(node, node.output[0]), *steps]
    tables = [k for k, (step, _) in enumerate(steps) if _is_table(graph, step)]
    return steps[: tables[-1] + 1] if tables else []


def _later(graph, node):
    """Yield the nodes at which the pattern may end, too, since only they use what nodes before them make."""
    consumers = graph.consumers()
    while graph.users[node.output[0]] == 1 and len(consumers[node.output[0]]) == 1:
        ((node, position),) = consumers[node.output[0]]
        moves = node.op_type in MOVES and node.op_type not in JOINS and node.domain in DOMAINS and position == 0
        if not moves or not graph.is_sound(node):
            break
        if node.op_type in LAST:
            yield node


def _end(graph, steps, node):
    """Return (source, sizes, attributes, how): what `_fit` does, and the arguments of `Graph.replace` for the end."""
    fit = _fit(graph, steps, node)
    if fit is None:
        return None
    _, sizes, attributes = fit
    axes = len(attributes["kernel_shape"])
    if node.op_type == "Reshape":
        *batch, channels = sizes[: -2 * axes]
        kernel, blocks = (math.prod(each) for each in (sizes[-2 * axes : -axes], sizes[-axes:]))
        return *fit, {"before": not _flattens(graph, node, [*(batch or [1]), channels * kernel, blocks])}
    target = [size if isinstance(size, int) else -1 for size in shape(graph, node.output[0])]
    if target.count(-1) > 1 or 0 in target:
        raise NearMiss("more than one of its sizes is open")
    return *fit, {"target": target}


def _fit(graph, steps, node):
    """Return (source, sizes of [N, C, *kernel, *blocks], attributes) of an Im2Col; None if it is no unfold.

    Without a batch, N is missing.
    """
    if not steps:
        return None
    x = steps[-1][0].input[0]  # of the nodes before it only Pad is part of the unfold
    tables = [shape(graph, step.input[1]) for step, _ in reversed(steps) if _is_table(graph, step)]
    axes, dimensions = len(tables), shape(graph, x)
    if dimensions is None and axes > 1:
        raise NearMiss(f"the rank of {x} is unknown")
    if dimensions is None or len(dimensions) < 3 or len(dimensions) - axes not in (1, 2):
        return None
    pad = graph.producer(x, "Pad")
    pads = None if pad is None else _pads(graph, pad, axes)
    source = x if pads is None else pad.input[0]
    if pads is None:
        pads = [0] * 2 * axes
    dimensions = shape(graph, source)
    padded = [size + pads[a] + pads[axes + a] for a, size in enumerate(dimensions[-axes:])]
    if graph.is_constant(source):
        raise NearMiss(f"{source} is constant: ONNX Runtime computes it once")
    target = shape(graph, node.input[0] if node.op_type == "Reshape" else node.output[0])
    firsts, seconds = zip(*tables, strict=True)
    reasons = []
    for kernel, blocks in ((firsts, seconds), (seconds, firsts)):
        sizes = (*dimensions[:-axes], *kernel, *blocks)
        try:
            dilations, strides = _attributes(graph, steps, sizes, target, axes)
            for a, size in enumerate(padded):
                count = block_count(size, kernel[a], dilations[a], strides[a])
                if blocks[a] != count:
                    raise NearMiss(f"axis {len(dimensions) - axes + a} has {blocks[a]} blocks instead of {count}")
        except NearMiss as miss:
            reasons.append(str(miss))
        else:
            attributes = {"kernel_shape": [*kernel], "dilations": dilations, "strides": strides, "pads": pads}
            return source, sizes, attributes
    raise NearMiss(reasons[0])


def _attributes(graph, steps, sizes, target, axes):
    """Return (dilations, strides), if steps lead from elements [N, C, *kernel, *blocks] to those of an unfold."""
    before = len(sizes) - 2 * axes
    has_all = target is not None and math.prod(target) == math.prod(sizes)  # no Expand repeats some
    index = tried(reshaped, variables(sizes), sizes, target) if has_all else None
    index = None if index is None else followed(graph, steps, index)
    if index is None:
        raise NearMiss("what moves its elements is unknown, or not what unfold does")
    if not all(isinstance(size, int) and size > 0 for size in sizes[before : before + axes]):
        raise NearMiss("the size of the kernel is open")
    dilations, strides = [], []
    for a, at in enumerate(index[before:]):
        step_along = {term.variable.name: term.step for term in at.terms}
        # Along an axis with one position, or one block, there is no step.
        dilations.append(step_along.pop(str(before + a), 0 if sizes[before + a] != 1 else 1))
        strides.append(step_along.pop(str(before + axes + a), 0 if sizes[before + axes + a] != 1 else 1))
        if step_along or at.start != 0:
            break
    if index[:before] != variables(sizes)[:before] or len(strides) != axes or step_along or at.start != 0:
        raise NearMiss("its axes are in another order than batch, channel, positions in the kernel, blocks")
    if not all(isinstance(step, int) and step > 0 for step in (*dilations, *strides)):
        raise NearMiss("its indices repeat")
    return dilations, strides


def _is_table(graph, node):
    """Return whether a node is a Gather whose indices are a matrix, of positions in the kernel and blocks."""
    return node.op_type == "Gather" and len(shape(graph, node.input[1]) or ()) == 2


def _pads(graph, pad, axes):
    """Return what a Pad adds to the image's axes: all begins, then all ends; None if Im2Col can't do the same."""
    lists = [integer_list(graph, name) if name else None for name in (*pad.input[1:], "", "", "")]
    pads, padded_axes, rank = lists[0], lists[2], len(shape(graph, pad.output[0]))
    if pads is None or attributes_of(pad).get("mode", b"constant") != b"constant":
        return None
    if len(pad.input) > 2 and pad.input[2]:
        value = graph.array(pad.input[2])
        if value is None or value.size != 1 or value.item() not in (0, "", b"", False) or value.tobytes().strip(b"\0"):
            return None
    if len(pad.input) > 3 and pad.input[3]:
        if padded_axes is None or len(pads) != 2 * len(padded_axes):
            return None
        all_pads = [0] * 2 * rank
        for axis, begin, end in zip(padded_axes, pads, pads[len(pads) // 2 :], strict=True):
            all_pads[axis % rank], all_pads[rank + axis % rank] = begin, end
        pads = all_pads
    before = rank - axes
    if len(pads) != 2 * rank or any(pads[:before]) or any(pads[rank : rank + before]) or min(pads) < 0:
        return None
    return [*pads[before:rank], *pads[rank + before :]]


def _flattens(graph, node, im2col_shape):
    """Return whether the Reshape gives the shape of Im2Col, [N, C * K, L]. Raises NearMiss if that is unknown."""
    reshape = integers(graph, node.input[1])
    if reshape is None or None in reshape:
        raise NearMiss("the shape that it gets is unknown")
    copies, sizes = not attributes_of(node).get("allowzero"), shape(graph, node.input[0])
    target = [sizes[k] if copies and size == 0 and k < len(sizes) else size for k, size in enumerate(reshape)]
    same = len(target) == 3 and [t if t != -1 else e for t, e in zip(target, im2col_shape, strict=True)] == im2col_shape
    if same and target.count(-1) < 2:
        return True
    copied = reshape[int(sizes[0] == im2col_shape[0]) :]  # sizes that are not copied if they aren't 0
    if copies and any(size == 0 or may_be_zero(size) for size in copied):
        raise NearMiss("the shape that it gets copies sizes from its input")
    return False


def may_be_zero(size):
    smallest = least(size)
    return isinstance(size, Size) and (smallest is None or smallest < 1)
