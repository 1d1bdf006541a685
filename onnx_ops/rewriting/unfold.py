"""`torch.nn.functional.unfold`, for which ONNX has no operator, as one Im2Col.

Exporters write, after padding, one Gather per image axis with the indices [position in the kernel, block], bring the
positions before the blocks, and flatten both:

    y = Reshape(Transpose(Gather(Gather(Pad(x), rows), columns)), [N, C * K, L])
"""

import math

import numpy as np

from .finding import NearMiss
from .graph import AI_ONNX
from .integers import attributes_of, integer_list, integers, shape
from .sizes import Size, least
from .views import moved, movers, whole

DOMAIN, OPERATOR = "onnx_ops", "Im2Col"
NAME = "unfold"
LAST, DOMAINS = "Reshape", AI_ONNX  # type and domains of the node that ends the pattern


def match(graph, node, standard):
    """Return the arguments of `Graph.replace` that make the Reshape an Im2Col; None if it is nothing like an unfold."""
    chain = movers(graph, node.input[0])
    gathers = [k for k, mover in enumerate(chain) if mover.op_type == "Gather"]
    if not gathers:
        return None
    first = gathers[-1]  # of the nodes before it only Pad is part of the unfold
    x = chain[first].input[0]
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
    view = whole([*dimensions[:2], *padded])
    for mover in reversed(chain[: first + 1]):
        view = moved(graph, view, mover)
        if view is None:
            raise NearMiss(f"what {mover.op_type} {mover.output[0]} does is unknown, or not what unfold does")
    image = list(range(2, 2 + axes))
    if [axis.along for axis in view] != [0, 1, *image, *image]:
        raise NearMiss("its axes are in another order than batch, channel, positions in the kernel, blocks")
    positions, blocks = view[2 : 2 + axes], view[2 + axes :]
    kernel, dilations, strides = (
        [axis.size for axis in positions],
        [axis.step for axis in positions],
        [axis.step for axis in blocks],
    )
    if not all(isinstance(size, int) and size > 0 for size in kernel):
        raise NearMiss("the size of the kernel is open")
    # Along an axis with one position, or one block, there is no step.
    dilations = [1 if size == 1 else step for size, step in zip(kernel, dilations, strict=True)]
    strides = [1 if axis.size == 1 else step for axis, step in zip(blocks, strides, strict=True)]
    if min(*dilations, *strides) < 1:
        raise NearMiss("its indices repeat")
    for a in range(axes):
        count = (padded[a] - dilations[a] * (kernel[a] - 1) - 1) // strides[a] + 1
        if blocks[a].size != count:
            raise NearMiss(f"axis {2 + a} has {blocks[a].size} blocks instead of {count}")
    attributes = {"kernel_shape": kernel, "dilations": dilations, "strides": strides, "pads": pads}
    kept = not _flattens(graph, node, [axis.size for axis in view], axes)
    return {"op_type": OPERATOR, "inputs": [source], "domain": DOMAIN, "before": kept, **attributes}


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
    if not isinstance(reshape, np.ndarray):
        raise NearMiss("the shape that it gets is unknown")
    reshape = reshape.ravel()
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
