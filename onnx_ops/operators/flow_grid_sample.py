"""FlowGridSample: GridSample with a grid whose coordinates are channels of a tensor, moved in some steps.

    y = GridSample(X, grid)
    grid[n, h, w, i]    = moved_i(flow[n, channels[i], h, w])
    grid[n, d, h, w, i] = moved_i(flow[n, channels[i], d, h, w])

without storing the grid: its points are computed some hundred at a time. With `interleaved`, the flow's channels are
its last axis instead of the second one. The function moved_i applies the steps, one after the other, to a number v:

    0   v + operands[step, i]
    1   v * operands[step, i]
    2   v / operands[step, i]
    3   v + shift_i[h, w], or shift_i[d, h, w]

each rounded, with the shifts x, y (and z) for i = 0, 1 (and 2). Axes of one element are broadcast: a shift of shape
[1, W] is the same in all rows. For two image axes, z is empty, of shape [0].

A flow in pixels needs a shift by the pixels' own coordinates, then steps to a grid's coordinates. `onnx_ops.optimize`
puts the operator in place of the nodes that exporters write for that.
"""

import numpy as np

from .. import dtypes
from ..attributes import Attribute
from ..compiler.jit import jitable
from ..declaration import Input, Plan
from ..errors import require
from ..kernels import flow_grid_sample as kernels
from ..kernels.grid_points import room_for_points
from ..limits import ELEMENTS, UNKNOWN
from . import grid_sample

CHANNELS = 3
ADD, MULTIPLY, DIVIDE, SHIFT = range(4)
STEPS = 8  # steps of a node, at most


@jitable
def shape(attributes, inputs, outputs):
    (image, flow, _, x, y, z), (out,) = inputs, outputs
    axes = max(len(image), len(flow)) - 2
    if not 2 <= axes <= 3:
        return UNKNOWN
    out[0], out[1] = UNKNOWN, UNKNOWN
    if len(image) == axes + 2:
        out[0], out[1] = image[0], image[1]
    for a in range(axes):
        out[2 + a] = UNKNOWN
        if len(flow) == axes + 2 and len(x) == axes and len(y) == axes and (axes == 2 or len(z) == axes):
            size = flow[1 + a if attributes.interleaved else 2 + a]
            size = broadcast(broadcast(size, x[a]), y[a])
            out[2 + a] = broadcast(size, z[a]) if axes == 3 else size
    return axes + 2


@jitable
def broadcast(one, other):
    """Broadcast two dimensions, which may be unknown."""
    if one == other or other == 1:
        return one
    if one == 1 or other > 1:
        return other
    return one if one > 1 else UNKNOWN


@jitable
def plan(attributes, inputs, outputs, g):
    (image, flow, operands, x, y, z), (out,) = inputs, outputs
    axes = len(image) - 2
    require(2 <= axes <= 3, "shape of {X}", image, "must have rank 4 or 5: [N, C, H, W] or [N, C, D, H, W]")
    channel_axis = axes + 1 if attributes.interleaved else 1
    require(len(flow) == axes + 2, "shape of {flow}", flow, "must have as many axes as {X},", axes + 2)
    require(
        flow[channel_axis] == axes, "shape of {flow}", flow, "must have as many channels as {X} has image axes,", axes
    )
    fits = flow[0] == 1 or flow[0] == image[0]
    require(fits, "shape of {flow}", flow, "axis 0 must be 1 or the batch size N of {X},", image[0])
    channels, steps = attributes.channels, len(attributes.steps)
    count = len(channels)
    require(count == 0 or count == axes, "number of {channels}", count, "must be that of {X}'s image axes,", axes)
    for i in range(axes):
        require(count == 0 or channels[i] < axes, "{channels}", channels, "must be less than their number,", axes)
        g.channels_of_flow[i] = channels[i] if count > 0 else i
    fits = len(operands) == 2 and operands[0] == steps and operands[1] == axes
    require(fits, "shape of {operands}", operands, "must be [steps, image axes]; steps are", steps)
    g.step_count = steps
    for s in range(steps):
        g.steps[s] = attributes.steps[s]
    # The geometry has a volume's axes: N, channels, d, h, w. Strides are 0 along axes that are broadcast or absent.
    stride = 1
    for k in range(axes + 2):
        a = axes + 1 - k
        place = 1 if a == channel_axis else 0 if a == 0 else a + (3 - axes) + (1 if a < channel_axis else 0)
        g.flow_strides[place] = stride if flow[a] != 1 else 0
        stride = next_stride(stride, flow[a])
    image_axes = flow[1 : 1 + axes] if attributes.interleaved else flow[2 : 2 + axes]
    rule = "must be that of {flow}'s image axes, or 1 along some; their number is"
    require(len(x) == axes and put_shift(x, 0, image_axes, out, g), "shape of {x}", x, rule, axes)
    require(len(y) == axes and put_shift(y, 1, image_axes, out, g), "shape of {y}", y, rule, axes)
    if axes == 2:
        require(len(z) == 1 and z[0] == 0, "shape of {z}", z, "must be [0] for two image axes")
    else:
        require(len(z) == axes and put_shift(z, 2, image_axes, out, g), "shape of {z}", z, rule, axes)
    grid_sample.plan_samples(attributes, image, out, room_for_points(axes), g)


@jitable
def put_shift(shape, i, image_axes, out, g):
    """Store the strides of coordinate i's shift; returns whether its shape can be broadcast with the flow's."""
    axes, stride, fits = len(shape), 1, True
    for k in range(axes):
        a = axes - 1 - k
        g.shift_strides[3 * i + 2 - k] = stride if shape[a] != 1 else 0
        stride = next_stride(stride, shape[a])
        fits &= shape[a] == 1 or shape[a] == (image_axes[a] if image_axes[a] != 1 else out[2 + a])
    return fits


@jitable
def next_stride(stride, size):
    """The stride of the axis before one of this size and stride; at most ELEMENTS, which only empty tensors exceed."""
    return stride * size if size <= ELEMENTS // max(stride, 1) else ELEMENTS


def reference(image, flow, operands, *shifts, interleaved, channels, steps, **sampling):
    """The formula: the grid step by step in its own dtype."""
    axes = image.ndim - 2
    flow, coordinates = np.moveaxis(flow, -1 if interleaved else 1, 0), []
    with np.errstate(all="ignore"):
        for i, shift in enumerate(shifts[:axes]):
            v = flow[channels[i] if channels else i]
            for step, operand in zip(steps or (), operands[:, i], strict=True):
                v = (v + operand, v * operand, v / operand, v + shift)[step]
            coordinates.append(v)
        shape = np.broadcast_shapes((len(image), *[1] * axes), *(v.shape for v in (*coordinates, *shifts[:axes])))
    grid = np.stack([np.broadcast_to(v, shape) for v in coordinates], -1)
    return grid_sample.reference(image, grid, **sampling)


FLOW_GRID_SAMPLE = grid_sample.without_grid(
    "FlowGridSample",
    kernels,
    ranks=(4, 5),
    inputs=tuple(Input(name, "T") for name in ("X", "flow", "operands", "x", "y", "z")),
    types={"T": dtypes.WIDE_FLOATS},
    attributes=(
        *grid_sample.MICROSOFT.attributes,
        Attribute("interleaved", "int", 0, bounds=(0, 1)),
        Attribute("channels", "ints", bounds=(0, CHANNELS - 1), length_bounds=(2, CHANNELS)),
        Attribute("steps", "ints", bounds=(ADD, SHIFT), length_bounds=(1, STEPS)),
    ),
    plan=Plan(shape, plan, {
        "channels_of_flow": CHANNELS, "flow_strides": 5, "shift_strides": 9, "step_count": None, "steps": STEPS,
        **grid_sample.GEOMETRY,
    }),
    reference=reference,
)  # fmt: skip
OPERATORS = (FLOW_GRID_SAMPLE,)
