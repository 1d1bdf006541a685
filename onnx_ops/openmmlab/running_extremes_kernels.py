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

MAXIMUM, MINIMUM = known(1), known(2)


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
    run(x, MAXIMUM, g, tile, values, (indices,))


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
    run(x, MINIMUM, g, tile, values, (indices,))


@jitable
def corner_pool(
    x: Elements, g: RunningExtremesGeometry, tile: Tile, workspace: Workspace, values: Elements
) -> None:
    """Compute a tile."""
    run(x, MAXIMUM, g, tile, values, ())


@jitable
def run(
    x: Elements,
    way: Known,
    g: RunningExtremesGeometry,
    tile: Tile,
    values: Elements,
    indices: tuple[Indices, ...],
) -> None:
    """Compute running extremes, backwards if g.is_backwards. indices: (array of their positions,),
    or ().
    """
    begin, end = share(g.outer, g, tile)
    first, step = (g.length - 1, -1) if g.is_backwards else (0, 1)
    for o in range(begin, end):
        for k in range(g.length):
            row = (o * g.length + first + step * k) * g.inner
            for i in range(row, row + g.inner):
                number = load(x, i)
                position: Index = k
                if k > 0:
                    before = i - step * g.inner
                    extreme = load(values, before)
                    goes_on = number >= extreme if len(way) == len(MAXIMUM) else number <= extreme
                    if not goes_on:
                        number = extreme
                        if len(indices) > 0:
                            position = np.int64(indices[0][before])
                store(values, i, number)
                if len(indices) > 0:
                    indices[0][i] = position
