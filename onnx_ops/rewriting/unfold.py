"""`torch.nn.functional.unfold`, for which ONNX has no operator, as one Im2Col.

Exporters write, after padding, one Gather per image axis with the indices [position in the kernel, block], bring the
positions before the blocks, and flatten both:

    y = Reshape(Transpose(Gather(Gather(Pad(x), rows), columns)), [N, C * K, L])
"""

import math

from .finding import NearMiss
from .graph import AI_ONNX
from .indices import attributes_of, integer_list, integers, moved, path, shape
from .positions import variables
from .sizes import Size, at_least_zero, least

DOMAIN, OPERATOR = "onnx_ops", "Im2Col"
NAME = "unfold"
LAST, DOMAINS = ("Reshape",), AI_ONNX  # type and domains of the node that ends the pattern


def match(graph, node, standard):
    """Return the arguments of `Graph.replace` that make the Reshape an Im2Col; None if it is nothing like an unfold."""
    steps, _ = path(graph, node.input[0], shared=False)
    gathers = [k for k, (step, _) in enumerate(steps) if _is_table(graph, step)]
    if not gathers:
        return None
    steps = steps[: gathers[-1] + 1]
    x = steps[-1][0].input[0]  # of the nodes before it only Pad is part of the unfold
    pad = graph.producer(x, "Pad")
    source = pad.input[0] if pad is not None else x
    dimensions = shape(graph, source)
    if dimensions is None or len(dimensions) < 3:
        if len(gathers) > 1 and dimensions is None:
            raise NearMiss(f"the rank of {source} is unknown")
        return None
    axes = len(dimensions) - 2
    if len(gathers) != axes:
        return None
    if standard:
        raise NearMiss("ai.onnx has no operator for it")
    if graph.is_constant(source):
        raise NearMiss(f"{source} is constant: ONNX Runtime computes it once")
    pads = _pads(graph, pad, axes) if pad is not None else [0] * 2 * axes
    padded = [dimensions[2 + a] + pads[a] + pads[axes + a] for a in range(axes)]
    sizes = shape(graph, node.input[0])
    index = None if sizes is None or len(sizes) != 2 + 2 * axes else variables(sizes)
    for step, output in steps:
        index = index and (moved(graph, step, output, index) or (None, None))[1]
        if index is None:
            raise NearMiss(f"what {step.op_type} {output} does is unknown, or not what unfold does")
    kernel, blocks = sizes[2 : 2 + axes], sizes[2 + axes :]
    if not all(isinstance(size, int) and size > 0 for size in kernel):
        raise NearMiss("the size of the kernel is open")
    dilations, strides = [], []
    for a, at in enumerate(index[2:]):
        step_along = {term.variable.name: term.step for term in at.terms}
        # Along an axis with one position, or one block, there is no step.
        dilations.append(step_along.pop(str(2 + a), 0 if kernel[a] != 1 else 1))
        strides.append(step_along.pop(str(2 + axes + a), 0 if blocks[a] != 1 else 1))
        if step_along or at.start != 0:
            break
    whole = (index[:2], sizes[:2]) == (variables(sizes)[:2], dimensions[:2])
    if not whole or len(strides) != axes or step_along or at.start != 0:
        raise NearMiss("its axes are in another order than batch, channel, positions in the kernel, blocks")
    if not all(isinstance(step, int) and step > 0 for step in (*dilations, *strides)):
        raise NearMiss("its indices repeat")
    for a in range(axes):
        count = at_least_zero((padded[a] - dilations[a] * (kernel[a] - 1) - 1) // strides[a] + 1)
        if blocks[a] != count:
            raise NearMiss(f"axis {2 + a} has {blocks[a]} blocks instead of {count}")
    attributes = {"kernel_shape": [*kernel], "dilations": dilations, "strides": strides, "pads": pads}
    kept = not _flattens(graph, node, sizes, axes)
    return {"op_type": OPERATOR, "inputs": [source], "domain": DOMAIN, "before": kept, **attributes}


def _is_table(graph, node):
    """Return whether a node is a Gather whose indices are [position in the kernel, block]."""
    return node.op_type == "Gather" and len(shape(graph, node.input[1]) or ()) == 2


def _pads(graph, pad, axes):
    """Return what a Pad adds to the image's axes: all begins, then all ends. Raises NearMiss if it isn't known."""
    mode = attributes_of(pad).get("mode", b"constant")
    pads = integer_list(graph, pad.input[1]) if len(pad.input) > 1 else None
    if pads is None:
        raise NearMiss("the pads aren't constant")
    if mode != b"constant":
        raise NearMiss(f"the mode of its Pad is {mode.decode()}")
    if len(pad.input) > 2 and pad.input[2]:
        value = graph.array(pad.input[2])
        if value is None or value.size != 1 or value.item() not in (0, "", b"", False) or value.tobytes().strip(b"\0"):
            raise NearMiss("it pads with another value than 0")
    rank = axes + 2
    if len(pad.input) > 3 and pad.input[3]:
        padded_axes = integer_list(graph, pad.input[3])
        if padded_axes is None:
            raise NearMiss("the axes of its Pad aren't constant")
        if len(pads) != 2 * len(padded_axes):
            raise NearMiss("its pads are not two for each of their axes")
        all_pads = [0] * 2 * rank
        for axis, begin, end in zip(padded_axes, pads, pads[len(pads) // 2 :], strict=True):
            all_pads[axis % rank], all_pads[rank + axis % rank] = begin, end
        pads = all_pads
    if len(pads) != 2 * rank or any(pads[:2]) or any(pads[rank : rank + 2]) or min(pads) < 0:
        raise NearMiss(f"its pads are {pads}")
    return [*pads[2:rank], *pads[rank + 2 :]]


def _flattens(graph, node, sizes, axes):
    """Return whether the Reshape gives the shape of Im2Col, [N, C * K, L]. Raises NearMiss if that is unknown."""
    im2col_shape = [sizes[0], math.prod(sizes[1 : 2 + axes]), math.prod(sizes[2 + axes :])]
    reshape = integers(graph, node.input[1])
    if reshape is None or None in reshape:
        raise NearMiss("the shape that it gets is unknown")
    copies = not attributes_of(node).get("allowzero")
    target = [sizes[k] if copies and size == 0 else size for k, size in enumerate(reshape[: len(sizes)])]
    same = len(target) == 3 and [t if t != -1 else e for t, e in zip(target, im2col_shape, strict=True)] == im2col_shape
    if same and target.count(-1) < 2:
        return True
    if copies and any(size == 0 or may_be_zero(size) for size in reshape[1:]):
        raise NearMiss("the shape that it gets copies sizes from its input")
    return False


def may_be_zero(size):
    smallest = least(size)
    return isinstance(size, Size) and (smallest is None or smallest < 1)
