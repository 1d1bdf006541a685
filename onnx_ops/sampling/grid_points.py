"""The points at which GridSample reads: those of a grid, or points that are computed a block at a
time.

Points are a tuple: (grid,), with all coordinates of a point one after the other, or (x, y, z), with
an array for each coordinate. Compiled code distinguishes them by the length. For two image axes, z
is unused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..declaration.jit import jitable
from ..kernels.elements import load
from .computed_points import compute_values, forget_values

if TYPE_CHECKING:
    from typing import Any

    from ..kernels.types import Known, Number, Workspace
    from .geometry import Point, Points, Sources

BLOCK = 512  # maximum number of points at a time


@jitable
def begin_points(sources: Sources, workspace: Workspace) -> None:
    """Prepare for a tile's first points."""
    if len(sources):
        forget_values(workspace)


@jitable
def provide_points(
    sources: Sources, n: int, stripe: int, first: Point, g: Any, workspace: Workspace
) -> Point:
    """Provide points of image n from `first` on; returns the position of the first one.

    With sources, the points of the whole stripe are computed. `g` is then a
    ComputedGridSampleGeometry.
    """
    if len(sources) == 0:
        return n * g.points + first
    return first - compute_values(sources, n, stripe, g, workspace)


@jitable
def load_point(points: Points, b: Point, axes: Known) -> tuple[Number, Number, Number]:
    """Return the coordinates x, y, z of point b, with any z for two image axes.

    `axes` has a member for each axis.
    """
    # Without signs: a negative index would count from the end, so that LLVM would have to compare.
    if len(points) == 1:
        k = b * len(axes)
        x, y, z = np.uintp(k), np.uintp(k + 1), np.uintp(k + len(axes) - 1)
        return load(points[0], x), load(points[0], y), load(points[0], z)
    i = np.uintp(b)
    return load(points[0], i), load(points[1], i), load(points[2], i)


@jitable
def load_coordinate(points: Points, b: Point, i: int, axes: int) -> Number:
    """Return coordinate i of point b, 0 for x. axes: number of a point's coordinates."""
    if len(points) == 1:
        return load(points[0], b * axes + i)
    return load(points[i], b)
