"""GridSample's kernels for points that are computed a block at a time."""

from ..compiler.jit import jitable
from .computed_points import LINE
from .elements import elements_in
from .grid_sample import CUBIC, LINEAR, copy_nearest, interpolate


@jitable
def nearest(image, a, b, c, d, e, f, h, i, j, k, l, m, n, o, p, g, tile, workspace, out):
    values, x, y, z = elements_in(workspace, LINE, g.room, a), g.coordinates[0], g.coordinates[1], g.coordinates[2]
    points = values[x:], values[y:], values[z:]
    copy_nearest(image, (a, b, c, d, e, f, h, i, j, k, l, m, n, o, p), points, g, tile, workspace, out)


@jitable
def linear(image, a, b, c, d, e, f, h, i, j, k, l, m, n, o, p, g, tile, workspace, out):
    values, x, y, z = elements_in(workspace, LINE, g.room, a), g.coordinates[0], g.coordinates[1], g.coordinates[2]
    points = values[x:], values[y:], values[z:]
    interpolate(image, (a, b, c, d, e, f, h, i, j, k, l, m, n, o, p), points, g, LINEAR, tile, workspace, out)


@jitable
def cubic(image, a, b, c, d, e, f, h, i, j, k, l, m, n, o, p, g, tile, workspace, out):
    values, x, y, z = elements_in(workspace, LINE, g.room, a), g.coordinates[0], g.coordinates[1], g.coordinates[2]
    points = values[x:], values[y:], values[z:]
    interpolate(image, (a, b, c, d, e, f, h, i, j, k, l, m, n, o, p), points, g, CUBIC, tile, workspace, out)
