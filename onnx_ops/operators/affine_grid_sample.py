"""AffineGridSample: GridSample with the grid of an affine transformation.

    y = GridSample(X, AffineGrid(theta, x, y, z))

for 2 or 3 image axes, with all roundings of both (affine_grid.py, grid_sample.py), but without storing the grid: its
points are computed some hundred at a time. `onnx_ops.optimize` puts it in place of the two operators.
"""

import numpy as np

from .. import dtypes
from ..compiler.jit import jitable
from ..declaration import Input, Plan
from ..errors import require
from ..kernels import affine_grid_sample as kernels
from ..kernels.grid_points import room_for_points
from ..limits import UNKNOWN
from . import affine_grid, grid_sample


@jitable
def shape(attributes, inputs, outputs):
    (image, theta, x, y, z), (out,) = inputs, outputs
    axes = len(image) - 2 if len(image) > 0 or len(theta) != 3 else theta[1]
    if not 2 <= axes <= 3:
        return UNKNOWN
    out[0], out[1] = UNKNOWN, UNKNOWN
    if len(image) > 0:
        out[0], out[1] = image[0], image[1]
    if len(theta) > 0 and out[0] == UNKNOWN:
        out[0] = theta[0]
    out[axes + 1] = x[0] if len(x) == 1 else UNKNOWN
    out[axes] = y[0] if len(y) == 1 else UNKNOWN
    if axes == 3:
        out[2] = z[0] if len(z) == 1 else UNKNOWN
    return axes + 2


@jitable
def plan(attributes, inputs, outputs, g):
    image, theta, x, y, z = inputs
    axes = len(image) - 2
    require(2 <= axes <= 3, "shape of {X}", image, "must have rank 4 or 5: [N, C, H, W] or [N, C, D, H, W]")
    affine_grid.check_affine(theta, x, y, z)
    require(theta[1] == axes, "shape of {theta}", theta, "axis 1 must be the number of image axes of {X},", axes)
    require(theta[0] == image[0], "shape of {theta}", theta, "axis 0 must be the batch size N of {X},", image[0])
    grid_sample.plan_samples(attributes, image, outputs[0], room_for_points(axes), g)


def reference(image, theta, *vectors, **sampling):
    """The formula: the grid step by step in its own dtype, or in float32 and then rounded to 16-bit floats."""
    wide = np.float64 if theta.dtype == np.float64 else np.float32
    with np.errstate(all="ignore"):
        grid = affine_grid.affine_sums(*(v.astype(wide) for v in (theta, *vectors))).astype(theta.dtype)
    return grid_sample.reference(image, grid, **sampling)


AFFINE_GRID_SAMPLE = grid_sample.without_grid(
    "AffineGridSample",
    kernels,
    ranks=(4, 5),
    inputs=(Input("X", "T"), Input("theta", "T"), Input("x", "T"), Input("y", "T"), Input("z", "T")),
    types={"T": dtypes.FLOATS},
    plan=Plan(shape, plan, grid_sample.GEOMETRY),
    reference=reference,
)
OPERATORS = (AFFINE_GRID_SAMPLE,)
