"""`torch.nn.functional.unfold` and `torch.Tensor.unfold`, for which ONNX has no operator, as one Im2Col.

Exporters write, after padding, one Gather per image axis with the indices [position in the kernel, block], bring the
positions before the blocks, and flatten both:

    y = Reshape(Transpose(Gather(Gather(Pad(x), rows), columns)), [N, C * K, L])

Of Tensor.unfold the indices are [block, position in the kernel], and its axes [N, C, *blocks, *kernel]. Im2Col makes
that of a kernel with as many positions as there are blocks: in y[n, c, k, l], which is x at dilations * k +
strides * l, both have the same part. If that number is open, or the blocks leave something over, a Transpose follows.
"""

import itertools
import math
from contextlib import suppress

from ..finding import NearMiss, tried
from ..graph import AI_ONNX
from ..indices import (
    JOINS,
    MOVES,
    attributes_of,
    blocks_of,
    followed,
    integer_at,
    integer_list,
    integers,
    pads_with_zeros,
    path,
    requantized,
    shape,
)
from ..positions import reshaped, variables
from ..reshapes import add_reshape, reshape
from ..sizes import Size, are_positive, block_count, never_negative, quotient, stride_for

DOMAIN, OPERATOR = "onnx_ops", "Im2Col"
NAME = "unfold"
NEEDS = ("Gather",), ("Slice", "Concat")  # a graph needs one of these sets of types of nodes
LAST, DOMAINS = ("Reshape", "Transpose", "Concat", "Gather"), AI_ONNX  # types and domains of the node that ends it
ROUNDS = "QuantizeLinear", "DequantizeLinear"  # which `path` may go through


def match(graph, node):
    """Return the arguments of `Graph.replace` that make a node, or what a Reshape reads, an Im2Col.

    None if it is nothing like the end of an unfold, or nodes that only move its elements follow and are a better end.
    """
    steps = _steps(graph, node) if _may_end(graph, node) else []
    later = [*_later(graph, node)] if steps else []
    for end in later:
        with suppress(NearMiss):
            if _replacement(graph, _steps(graph, end), end) is not None:
                return None
    try:
        return _replacement(graph, steps, node)
    except NearMiss:
        if later or (node.op_type == "Concat" and graph.users[node.output[0]] > 1):
            return None  # the last one says it
        raise


def _may_end(graph, node):
    """Return whether the pattern may end at a node: of Gathers, at one with a matrix of regular indices."""
    if node.op_type != "Gather":
        return node.op_type in LAST
    sizes, (data, indices) = _table(graph, node), node.input
    return sizes and 1 not in sizes and graph.folded(data) is None and integer_at(graph, indices, variables(sizes))


def _replacement(graph, steps, node):
    """Return the arguments of `Graph.replace` for a node that ends an unfold; None if it ends none."""
    fit = _fit(graph, steps, node)
    if fit is None:
        return None
    source, sizes, attributes, is_turned = fit
    axes = len(attributes["kernel_shape"])
    first, second = math.prod(sizes[-2 * axes : -axes]), math.prod(sizes[-axes:])
    lead = sizes[: -2 * axes]
    ones = [1] * (2 - len(lead))
    n, c = (*lead, *ones) if axes == 1 else (*ones, *lead)
    made = [n, c, first, second] if is_turned and c != 1 else [n, c * first, second]
    is_before = node.op_type == "Reshape"
    is_same = _flattens(graph, node, made) if is_before else shape(graph, node.output[0]) == (*made,)
    if ones:
        source = graph.add_axes(node, source, *(0, 1) if not lead else [int(axes == 1)])
    arguments = {"inputs": [source], "op_type": OPERATOR, "domain": DOMAIN, **attributes}
    if is_turned:
        result = add_reshape(graph, node, graph.add_node(node, **arguments), [*made[:-2], second, first])
        *others, second_last, last = range(len(made))
        arguments = {"inputs": [result], "op_type": "Transpose", "perm": [*others, last, second_last]}
    if not (is_before or is_same):
        result, target = graph.add_node(node, **arguments), shape(graph, node.output[0])
        arguments = {"op_type": "Reshape", **reshape(graph, node, result, target)}
    return {**arguments, "before": is_before and not is_same, "finding": OPERATOR}


def _steps(graph, node):
    """Return the path [(node, its output), ...] to the first table from a node, or from what a Reshape reads; or []."""
    is_before, end = node.op_type == "Reshape", node.output[0]
    start, uses = (node.input[0], 1) if is_before else (end, max(1, graph.users[end]))
    steps, _ = path(graph, start, uses=uses, through_blocks=True)
    tables = [k for k, (step, _) in enumerate(steps) if _table(graph, step)]
    return steps[: tables[-1] + 1] if tables else []


def _later(graph, node):
    """Yield other nodes at which the pattern may end: each is the only user of the value before it."""
    while True:
        node, position = graph.only_user(node.output[0])
        if position != 0:
            break
        if node.op_type in ROUNDS:
            continue
        moves = node.op_type in MOVES and node.op_type not in JOINS and node.domain in DOMAINS
        if not moves or not graph.is_sound(node):
            break
        if _may_end(graph, node):
            yield node


def _fit(graph, steps, node):
    """Return (source, sizes of [N, C, *kernel, *blocks], attributes, False) of an Im2Col; None if it is no unfold.

    Without a batch or channels, these are missing. If blocks come before the kernel, the last one is True.
    """
    if not steps:
        return None
    last, _ = steps[-1]
    x = blocks_of(graph, last).source if last.op_type == "Concat" else last.input[0]
    x = requantized(graph, x) or x  # of the nodes before it only Pad is part of the unfold
    tables = [_table(graph, step) for step, _ in reversed(steps) if _table(graph, step)]
    axes, dimensions = len(tables), shape(graph, x)
    if dimensions is None and axes > 1:
        raise NearMiss(f"the rank of {x} is unknown")
    if dimensions is None or len(dimensions) - axes not in range(3):
        return None
    pad = graph.producer(x, "Pad")
    pads = None if pad is None else image_pads(graph, pad, axes)
    source = x if pads is None else pad.input[0]
    if pads is None:
        pads = [0] * 2 * axes
    dimensions = shape(graph, source)
    padded = [size + pads[a] + pads[axes + a] for a, size in enumerate(dimensions[-axes:])]
    if graph.folded(source) is not None:
        raise NearMiss(f"{source} is constant: ONNX Runtime computes it once")
    target = shape(graph, node.input[0] if node.op_type == "Reshape" else node.output[0])
    pairs, reasons = [*zip(*tables, strict=True)], []
    for is_turned, (first, second) in itertools.product((False, True), (pairs, pairs[::-1])):
        sizes = (*dimensions[:-axes], *first, *second)
        kernel, blocks = (second, first) if is_turned else (first, second)
        try:
            dilations, strides = _attributes(graph, steps, sizes, target, axes)[:: -1 if is_turned else 1]
            if not are_positive(kernel):
                raise NearMiss("the size of the kernel is open")
            for a, size in enumerate(padded):
                spacing = size, kernel[a], dilations[a], strides[a]
                strides[a] = stride_for(blocks[a], *spacing)
                if strides[a] is None:
                    axis, count = len(dimensions) - axes + a, block_count(*spacing)
                    raise NearMiss(f"axis {axis} has {blocks[a]} blocks instead of {count}")
        except NearMiss as miss:
            reasons.append(str(miss))
        else:
            attributes = {"kernel_shape": [*kernel], "dilations": dilations, "strides": strides, "pads": pads}
            return source, sizes, attributes, is_turned
    raise NearMiss(reasons[0])


def _attributes(graph, steps, sizes, target, axes):
    """Return (dilations, strides), if steps lead from elements [N, C, *kernel, *blocks] to those of an unfold.

    Blocks may come first, and so strides.
    """
    before = len(sizes) - 2 * axes
    has_all = target is not None and math.prod(target) == math.prod(sizes)  # no Expand repeats some
    index = tried(reshaped, variables(sizes), sizes, target) if has_all else None
    index = None if index is None else followed(graph, steps, index)
    if index is None:
        raise NearMiss("its elements are moved in an unknown way, or not as by unfold")
    dilations, strides = [], []
    for a, at in enumerate(index[before:]):
        step_along = {term.variable.name: term.step for term in at.terms}
        digits = [term for term in at.terms if (term.inner, term.size) != (1, term.variable.size)]
        # Along an axis with one position, or one block, there is no step.
        dilations.append(step_along.pop(str(before + a), 0 if sizes[before + a] != 1 else 1))
        strides.append(step_along.pop(str(before + axes + a), 0 if sizes[before + axes + a] != 1 else 1))
        others = bool(step_along or digits or at.start != 0)
        if others:
            break
    if index[:before] != variables(sizes)[:before] or len(strides) != axes or others:
        raise NearMiss("its axes are in another order than batch, channel, positions in the kernel, blocks")
    if not are_positive((*dilations, *strides)):
        raise NearMiss("its indices repeat")
    return dilations, strides


def _table(graph, node):
    """Return the sizes of a Gather's indices, positions in the kernel and blocks, if they are a matrix; else None.

    Of a Concat of blocks those that they would have.
    """
    if node.op_type == "Concat":
        return len(node.input), blocks_of(graph, node).length
    dimensions = shape(graph, node.input[1]) if node.op_type == "Gather" else None
    return dimensions if len(dimensions or ()) == 2 else None


def image_pads(graph, pad, axes):
    """Return what a Pad adds to the image's axes: all begins, then all ends; None if Im2Col can't do the same."""
    lists = [integer_list(graph, name) if name else None for name in (*pad.input[1:], "", "", "")]
    pads, padded_axes, rank = lists[0], lists[2], len(shape(graph, pad.output[0]))
    if pads is None or attributes_of(pad).get("mode", b"constant") != b"constant":
        return None
    if not pads_with_zeros(graph, pad):
        return None
    if len(pad.input) > 3 and pad.input[3]:
        if padded_axes is None or len(pads) != 2 * len(padded_axes):
            return None
        all_pads = [0] * 2 * rank
        for axis, begin, end in zip(padded_axes, pads, pads[len(padded_axes) :], strict=False):
            all_pads[axis % rank], all_pads[rank + axis % rank] = begin, end
        pads = all_pads
    before = rank - axes
    if len(pads) != 2 * rank or any(pads[:before]) or any(pads[rank : rank + before]) or min(pads) < 0:
        return None
    return [*pads[before:rank], *pads[rank + before :]]


def _flattens(graph, node, made):
    """Return whether the Reshape gives the shape that is made. Raises NearMiss if that is unknown."""
    reshape = integers(graph, node.input[1])
    if reshape is None or None in reshape:
        raise NearMiss("the shape that it gets is unknown")
    copies, sizes = not attributes_of(node).get("allowzero"), shape(graph, node.input[0])
    target = [sizes[k] if copies and size == 0 and k < len(sizes) else size for k, size in enumerate(reshape)]
    same = len(target) == len(made) and [t if t != -1 else e for t, e in zip(target, made, strict=True)] == made
    may_copy = copies and not all(map(_is_zero_with, sizes[:2], target[:2]))
    if same and target.count(-1) < 2 and not may_copy:
        return True
    copied = reshape[int(sizes[0] == made[0]) :]  # sizes that are not copied if they aren't 0
    if copies and any(size == 0 or may_be_zero(size) for size in copied):
        raise NearMiss("the shape that it gets copies sizes from its input")
    return False


def _is_zero_with(size, other):
    """Return whether a size is certain to be 0 where another one is, which is then copied from it."""
    return not may_be_zero(other) or quotient(size, other) is not None or isinstance(quotient(other, size), int)


def may_be_zero(size):
    return isinstance(size, Size) and not never_negative(size - 1)
