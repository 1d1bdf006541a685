"""PerspectiveGridSample: GridSample with the grid of a homography, applied to the pixels' own coordinates x and y.

    y = GridSample(X, grid)
    grid[n, h, w, i] = ((theta[n, i, 0] * x[w] + theta[n, i, 1] * y[h]) + theta[n, i, 2])
                     / ((theta[n, 2, 0] * x[w] + theta[n, 2, 1] * y[h]) + theta[n, 2, 2])

for i < 2, rounded after every operation, without storing the grid: its points are computed some hundred at a time. A
division by zero gives a coordinate that is NaN or infinite. `onnx_ops.optimize` puts the operator in place of the nodes
that exporters write for kornia's `warp_perspective`.
"""

import numpy as np

from .. import dtypes
from ..compiler.jit import jitable
from ..declaration import Input, Plan
from ..errors import require
from ..kernels import perspective_grid_sample as kernels
from ..kernels.grid_points import room_for_points
from ..limits import UNKNOWN
from . import grid_sample


@jitable
def shape(attributes, inputs, outputs):
    (image, theta, x, y), (out,) = inputs, outputs
    out[0], out[1] = UNKNOWN, UNKNOWN
    if len(image) == 4:
        out[0], out[1] = image[0], image[1]
    if len(theta) == 3 and out[0] == UNKNOWN:
        out[0] = theta[0]
    out[2] = y[0] if len(y) == 1 else UNKNOWN
    out[3] = x[0] if len(x) == 1 else UNKNOWN
    return 4


@jitable
def plan(attributes, inputs, outputs, g):
    image, theta, x, y = inputs
    require(len(image) == 4, "shape of {X}", image, "must have rank 4: [N, C, H, W]")
    require(len(theta) == 3 and theta[1] == theta[2] == 3, "shape of {theta}", theta, "must be [N, 3, 3]")
    require(theta[0] == image[0], "shape of {theta}", theta, "axis 0 must be the batch size N of {X},", image[0])
    require(len(x) == 1, "shape of {x}", x, "must have rank 1")
    require(len(y) == 1, "shape of {y}", y, "must have rank 1")
    grid_sample.plan_samples(attributes, image, outputs[0], room_for_points(2), g)


def reference(image, theta, x, y, **sampling):
    """The formula: the grid step by step in its own dtype."""
    a, b, c = theta[:, None, None, :, :].transpose(4, 0, 1, 2, 3)
    with np.errstate(all="ignore"):
        point = (a * x[:, None] + b * y[:, None, None]) + c
        return grid_sample.reference(image, point[..., :2] / point[..., 2:], **sampling)


PERSPECTIVE_GRID_SAMPLE = grid_sample.without_grid(
    "PerspectiveGridSample",
    kernels,
    ranks=(4,),
    inputs=(Input("X", "T"), Input("theta", "T"), Input("x", "T"), Input("y", "T")),
    types={"T": dtypes.WIDE_FLOATS},
    plan=Plan(shape, plan, grid_sample.GEOMETRY),
    reference=reference,
)
OPERATORS = (PERSPECTIVE_GRID_SAMPLE,)
