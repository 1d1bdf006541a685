"""Running maxima and minima along an axis, for contiguous rows one after the other.

Kernels see a tensor as [outer, length, inner]. A unit of work is one index of `outer`, with
contiguous rows of `inner` elements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..declaration.jit import jitable, known
from ..declaration.operator import Geometry
from ..kernels.elements import load, store
from ..kernels.shares import share

if TYPE_CHECKING:
    from ..kernels.types import Elements, Index, Indices, Known, Tile, Workspace

# Which extreme is meant is known when a function is compiled, as the length of a tuple.
MAXIMUM = known(1)
MINIMUM = known(2)


class RunningExtremesGeometry(Geometry):
    """The input as [outer, length, inner], with extremes that run along the middle axis."""

    outer: int
    length: int
    inner: int
    is_backwards: int  # 1 if extremes run from the end of the axis to its begin


@jitable
def cummax(
    x: Elements,
    g: RunningExtremesGeometry,
    tile: Tile,
    workspace: Workspace,
    values: Elements,
    indices: Indices,
) -> None:
    """Compute a tile."""
    store_extremes(x, MAXIMUM, g, tile, values, (indices,))


@jitable
def cummin(
    x: Elements,
    g: RunningExtremesGeometry,
    tile: Tile,
    workspace: Workspace,
    values: Elements,
    indices: Indices,
) -> None:
    """Compute a tile."""
    store_extremes(x, MINIMUM, g, tile, values, (indices,))


@jitable
def corner_pool(
    x: Elements, g: RunningExtremesGeometry, tile: Tile, workspace: Workspace, values: Elements
) -> None:
    """Compute a tile."""
    store_extremes(x, MAXIMUM, g, tile, values, ())


@jitable
def store_extremes(
    x: Elements,
    extreme: Known,
    g: RunningExtremesGeometry,
    tile: Tile,
    values: Elements,
    indices: tuple[Indices, ...],
) -> None:
    """Compute a tile for an extreme, with or without positions.

    extreme  MAXIMUM or MINIMUM
    indices  (array of the extremes' positions,), or ()
    """
    begin, end = share(g.outer, g, tile)
    first = g.length - 1 if g.is_backwards else 0
    step = -1 if g.is_backwards else 1
    for o in range(begin, end):
        for k in range(g.length):
            row = (o * g.length + first + step * k) * g.inner
            for i in range(row, row + g.inner):
                number = load(x, i)
                position: Index = k
                if k > 0:
                    before = i - step * g.inner
                    value = load(values, before)
                    is_new = number >= value if len(extreme) == len(MAXIMUM) else number <= value
                    if not is_new:
                        number = value
                        if len(indices):
                            position = np.int64(indices[0][before])
                store(values, i, number)
                if len(indices):
                    indices[0][i] = position
