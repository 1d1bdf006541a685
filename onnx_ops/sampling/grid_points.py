"""The points at which GridSample reads: those of a grid, or points that are computed a block at a time.

Points are a tuple: (grid,), with all coordinates of a point one after the other, or (x, y, z), with an array for each
coordinate. Compiled code distinguishes them by the length. For two image axes, z is unused.
"""

import numpy as np

from ..declaration.jit import jitable
from ..kernels.elements import load
from .computed_points import compute_values, forget_values

BLOCK = 512  # maximum number of points at a time


@jitable
def begin_points(sources, workspace):
    """Prepare for a tile's first points. `sources` is a tuple: ComputedGridSample's, or empty if there is a grid."""
    if len(sources) > 0:
        forget_values(workspace)


@jitable
def provide_points(sources, n, stripe, first, g, workspace):
    """Provide points of image n from `first` on; returns the position of the first one.

    With sources, the points of the whole stripe are computed.
    """
    if len(sources) == 0:
        return n * g.points + first
    return first - compute_values(sources, n, stripe, g, workspace)


@jitable
def load_point(points, b, axes):
    """Return the coordinates x, y, z of point b, with any z for two image axes. `axes` has a member for each axis."""
    # Without signs: a negative index would count from the end, so that LLVM would have to compare.
    if len(points) == 1:
        k = b * len(axes)
        x, y, z = np.uintp(k), np.uintp(k + 1), np.uintp(k + len(axes) - 1)
        return load(points[0], x), load(points[0], y), load(points[0], z)
    k = np.uintp(b)
    return load(points[0], k), load(points[1], k), load(points[2], k)


@jitable
def load_coordinate(points, b, i, axes):
    """Coordinate i of point b, of so many."""
    if len(points) == 1:
        return load(points[0], b * axes + i)
    return load(points[i], b)
