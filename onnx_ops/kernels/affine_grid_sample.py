"""GridSample's kernels for AffineGrid's points, which are computed a block at a time."""

from ..compiler.jit import jitable
from .elements import elements_in
from .grid_points import BLOCK, COLUMNS
from .grid_sample import CUBIC, LINEAR, copy_nearest, interpolate


@jitable
def nearest(image, theta, x, y, z, g, tile, workspace, out):
    points = elements_in(workspace, COLUMNS, BLOCK * g.axes, theta)
    copy_nearest(image, points, (theta, x, y, z), g, tile, workspace, out)


@jitable
def linear(image, theta, x, y, z, g, tile, workspace, out):
    points = elements_in(workspace, COLUMNS, BLOCK * g.axes, theta)
    interpolate(image, points, (theta, x, y, z), g, LINEAR, tile, workspace, out)


@jitable
def cubic(image, theta, x, y, z, g, tile, workspace, out):
    points = elements_in(workspace, COLUMNS, BLOCK * g.axes, theta)
    interpolate(image, points, (theta, x, y, z), g, CUBIC, tile, workspace, out)
