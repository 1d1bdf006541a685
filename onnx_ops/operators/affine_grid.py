"""AffineGrid: the grid of an affine transformation, applied to the pixels' own coordinates (PyTorch's `affine_grid`).

    grid[n, h, w, i]    = (theta[n, i, 0] * x[w] + theta[n, i, 1] * y[h]) + theta[n, i, 2]
    grid[n, d, h, w, i] = ((theta[n, i, 0] * x[w] + theta[n, i, 1] * y[h]) + theta[n, i, 2] * z[d]) + theta[n, i, 3]

n: batch, d, h, w: output pixel, i: image axis, of which there are 2 or 3; a grid lists them backwards: x, y, z. The
vectors x, y and z are the pixels' coordinates along each axis. With two image axes, z has length 0.

Rounding is part of the definition, since a sampler with mode nearest shows it: each product is rounded, then each sum,
from the left, beginning with +0 (so that no result is -0), in float32 (float64 for float64); 16-bit floats are rounded
once more, at the end. Bit for bit, ONNX Runtime computes the same from the nodes that PyTorch exports: a product of
theta with the coordinates [x, y, (z,) 1], and ReduceSum.

Source: PyTorch's affine_grid. AffineGrid-20 of ai.onnx has no inputs x, y, z: it computes the coordinates itself.
"""

import numpy as np

from .. import dtypes
from ..compiler.jit import jitable
from ..declaration import Input, Kernel, Operator, Output, Plan
from ..errors import require
from ..kernels.affine_grid import COLUMNS, affine_grid
from ..limits import ELEMENTS, UNKNOWN

WORK = 2**15  # numbers that a tile writes, in about 5 us


@jitable
def check_affine(theta, x, y, z):
    """Refuse shapes that give no grid."""
    fits = len(theta) == 3 and 2 <= theta[1] <= 3 and theta[2] == theta[1] + 1
    require(fits, "shape of {theta}", theta, "must be [N, 2, 3] or [N, 3, 4]")
    require(len(x) == 1, "shape of {x}", x, "must have rank 1")
    require(len(y) == 1, "shape of {y}", y, "must have rank 1")
    require(len(z) == 1, "shape of {z}", z, "must have rank 1")
    require(theta[1] == 3 or z[0] == 0, "length of {z}", z[0], "must be 0 for two image axes")


@jitable
def shape(attributes, inputs, outputs):
    (theta, x, y, z), (grid,) = inputs, outputs
    axes = UNKNOWN if len(theta) != 3 else theta[1] if theta[1] >= 0 else theta[2] - 1
    if not 2 <= axes <= 3:
        return UNKNOWN
    grid[0], grid[axes + 1] = theta[0], axes
    grid[axes] = x[0] if len(x) == 1 else UNKNOWN
    grid[axes - 1] = y[0] if len(y) == 1 else UNKNOWN
    if axes == 3:
        grid[1] = z[0] if len(z) == 1 else UNKNOWN
    return axes + 2


@jitable
def plan(attributes, inputs, outputs, g):
    (theta, x, y, z), (grid,) = inputs, outputs
    check_affine(theta, x, y, z)
    axes, elements = theta[1], 1
    for a in range(axes + 2):
        size = max(grid[a], 1)
        require(size <= ELEMENTS // elements, "shape of {theta}", theta, "output must have at most 2**58 elements")
        elements *= size
    g.axes, g.width, g.height, g.depth = axes, x[0], y[0], z[0] if axes == 3 else 1
    g.rows = theta[0] * g.depth * y[0] if x[0] > 0 else 0
    g.tiles = min(64, g.rows, elements // WORK + 1)
    g.workspace = COLUMNS


def reference(theta, x, y, z):
    """The formula without roundings in the sums."""
    return affine_sums(*(dtypes.widest(v) for v in (theta, x, y, z)))


def affine_sums(theta, *vectors):
    """The formula, from the left, in the type of the arguments."""
    axes = theta.shape[1]
    *factors, last = (np.expand_dims(column, tuple(range(1, axes + 1))) for column in np.moveaxis(theta, -1, 0))
    # Broadcast x along the last axis but one, as i has the last one; y along the axis before it; z along the next.
    coordinates = [vector.reshape(-1, *[1] * (k + 1)) for k, vector in enumerate(vectors[:axes])]
    total = factors[0] * coordinates[0]
    for factor, coordinate in zip(factors[1:], coordinates[1:], strict=True):
        total = total + factor * coordinate
    return total + last


AFFINE_GRID = Operator(
    domain="onnx_ops",
    name="AffineGrid",
    versions=(1,),
    ranks=(3,),
    inputs=(Input("theta", "T"), Input("x", "T"), Input("y", "T"), Input("z", "T")),
    outputs=(Output("output", "T"),),
    types={"T": dtypes.FLOATS},
    plan=Plan(shape, plan, {"axes": None, "width": None, "height": None, "depth": None, "rows": None}),
    kernels=(Kernel(affine_grid),),
    reference=reference,
)
OPERATORS = (AFFINE_GRID,)
