"""Running maxima and minima along an axis, for contiguous rows one after the other.

Kernels see a tensor as [outer, length, inner]. A unit of work is one index of `outer`, with contiguous rows of `inner`
elements.
"""

import numpy as np

from ..declaration.jit import jitable, known
from ..kernels.elements import load, store
from ..kernels.shares import share

MAXIMUM, MINIMUM = known(1), known(2)


@jitable
def cummax(x, g, tile, workspace, values, indices):
    run(x, MAXIMUM, g, tile, values, (indices,))


@jitable
def cummin(x, g, tile, workspace, values, indices):
    run(x, MINIMUM, g, tile, values, (indices,))


@jitable
def corner_pool(x, g, tile, workspace, values):
    run(x, MAXIMUM, g, tile, values, ())


@jitable
def run(x, way, g, tile, values, indices):
    """Compute running extremes, backwards if g.is_backwards. indices: (array of their positions,), or ()."""
    begin, end = share(g.outer, g, tile)
    first, step = (g.length - 1, -1) if g.is_backwards else (0, 1)
    for o in range(begin, end):
        for k in range(g.length):
            row = (o * g.length + first + step * k) * g.inner
            for i in range(row, row + g.inner):
                number, position = load(x, i), k
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
