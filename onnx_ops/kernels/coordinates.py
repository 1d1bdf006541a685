"""Where a grid's points lie in an image: pixel coordinates, moved into the image as the padding mode says."""

import numpy as np

from .elements import load
from .jit import jitable

ZEROS, BORDER, REFLECTION = 0, 1, 2


@jitable
def coordinates(grid, start, points, count, g, p, cubic):
    """p[axis, b]: pixel coordinates of `count` points, padded (except for cubic) and within reach of an integer.

    Whatever has no taps at all becomes -2 (for cubic: -3 * size - 8). What is more than there are `points` is a centre.
    """
    number = p.dtype.type
    zero, one, half = number(0), number(1), number(0.5)
    split(grid[start * g.axes :][: points * g.axes], p)
    for i in range(g.axes):
        size, places = g.image[i], p[i][:count]
        for b in range(points, count):
            places[b] = zero
        # (v + 1) / 2 * (size - 1) and ((v + 1) * size - 1) / 2, both as ((v + 1) * first - shift) * second.
        first, shift, second = (half, zero, number(size - 1)) if g.align_corners else (number(size), one, half)
        nowhere, low, high = number(-2), number(-2), number(size + 1)
        if cubic:
            nowhere, low, high = number(-3 * size - 8), number(-4), number(size + 3)
        elif g.padding_mode != ZEROS:
            low, high = zero, number(size - 1)
        if g.padding_mode == REFLECTION:
            for b in range(count):
                places[b] = ((places[b] + one) * first - shift) * second
            if cubic:
                remainders(places, number(max(1, 2 * (size - g.align_corners))))
                low, high = nowhere, -nowhere
            else:
                reflect(places, size, g.align_corners)
            for b in range(count):
                places[b] = within(places[b], low, high, nowhere)
        else:
            for b in range(count):
                places[b] = within(((places[b] + one) * first - shift) * second, low, high, nowhere)


@jitable
def split(grid, p):
    """The grid's columns, which list the axes backwards, as rows; written out so that the strides are known."""
    if p.shape[0] == 2:
        x, y = p[1], p[0]
        for b in range(grid.size // 2):
            x[b], y[b] = load(grid, 2 * b), load(grid, 2 * b + 1)
    else:
        x, y, z = p[2], p[1], p[0]
        for b in range(grid.size // 3):
            x[b], y[b], z[b] = load(grid, 3 * b), load(grid, 3 * b + 1), load(grid, 3 * b + 2)


@jitable
def within(v, low, high, nowhere):
    """`v` within [low, high]; of NaN `nowhere`, which is at most `low`."""
    v = low if v < low else v
    v = high if v > high else v
    return v if v >= nowhere else nowhere


@jitable
def reflect(places, size, align_corners):
    """Mirrored at 0 and size - 1, or at -1/2 and size - 1/2. Exact up to the final addition, for every finite place."""
    number = places.dtype.type
    low, span = (number(0), number(size - 1)) if align_corners else (number(-0.5), number(size))
    twice = span + span
    for b in range(places.size):
        places[b] = abs(places[b] - low)
    remainders(places, twice)
    for b in range(places.size):
        d = places[b]
        places[b] = (twice - d if d > span else d) + low


@jitable
def remainders(places, period):
    """Of a division by the period, exact; 0 of 0, but for NaN and infinities."""
    number, far = places.dtype.type, 0
    for b in range(places.size):
        far += 0 if abs(places[b]) < period else 1
    if far > 0:  # LLVM would compute all of them, one by one
        for b in range(places.size):
            if not abs(places[b]) < period:
                places[b] = np.fmod(places[b], period) if period > 0 else places[b] * number(0)


@jitable
def pad_index(k, size, padding_mode, align_corners):
    """The pixel that stands for pixel `k` of an axis, -1 if none does."""
    if k < -2 * size - 4:
        return -1
    if padding_mode == BORDER:
        return min(max(k, 0), size - 1)
    if padding_mode == REFLECTION:
        k %= max(1, 2 * (size - align_corners))
        return k if k < size else 2 * size - 1 - align_corners - k
    return k if 0 <= k < size else -1
