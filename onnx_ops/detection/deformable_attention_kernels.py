"""Deformable attention, row by row. A row has the points of one head of one query; its outputs are contiguous.

A block has the points of several rows, or a part of a long row's. First the pixels and weights of all its points are
computed, vectorized; then the pixels' values are added up, row by row. Taps outside of an image are left out.
"""

import numpy as np

from ..declaration.jit import APART, jitable
from ..kernels.elements import indices_in, is_wide, load, store, sums, sums_in
from ..kernels.shares import pieces, share
from ..kernels.vectors import add_points

POINTS = 256  # of a block
CHANNELS = 256  # channels that are added up at a time
TAPS = 4  # of a point: the pixel to its upper left, the next one to the right, and the two below
PIXELS = 2**29  # limit for all levels: 32 bits hold a pixel's index, and the values that occur while it is computed


@jitable
def workspace_size():
    """Return the bytes that a tile needs, for the arrays of `deformable_attention`."""
    return 4 * 5 * POINTS + 8 * (TAPS * POINTS + CHANNELS)


@jitable
def deformable_attention(value, locations, attention, g, tile, workspace, out):
    indices = indices_in(workspace, 0, (5, POINTS))
    weights = sums_in(workspace, indices.nbytes, (TAPS, POINTS), out)
    totals = sums_in(workspace, indices.nbytes + weights.nbytes, CHANNELS, out)
    levels, pixels, exist = indices[:3], indices[3], indices[4]
    parts = max(1, pieces(g.points, POINTS))
    rows_at_once = max(1, POINTS // max(g.points, 1))
    if parts == 1:
        describe(g, 0, g.points, rows_at_once, levels)
    row, end = share(g.rows, g, tile)
    while row < end:
        rows = min(rows_at_once, end - row)
        for channel in range(0, g.channels, CHANNELS):
            for part in range(parts):
                first = part * POINTS
                count = min(POINTS, g.points - first)
                if parts > 1:
                    describe(g, first, count, 1, levels)
                at = row * g.points + first
                place(
                    locations[2 * at :], attention[at:][: rows * count], levels[0], levels[1], levels[2], pixels, exist,
                    weights[0], weights[1], weights[2], weights[3],
                )  # fmt: skip
                add_rows(value, g, row, rows, channel, count, pixels, levels[1], exist, weights, part > 0, totals, out)
        row += rows


@jitable
def describe(g, first, count, rows, levels):
    """Store each point's level, as its height, width and first pixel, for `count` points of each of several rows."""
    for b in range(count):
        level, start = (first + b) // g.level_points, 0
        for l in range(level):
            start += g.heights[l] * g.widths[l]
        for r in range(rows):
            k = r * count + b
            levels[0, k], levels[1, k], levels[2, k] = g.heights[level], g.widths[level], start


@jitable(**APART)
def place(locations, attention, heights, widths, starts, pixels, exist, w0, w1, w2, w3):
    """Store each point's first tap in `pixels`, a bit for each tap that exists in `exist`, and the taps' weights."""
    dtype, one = w0.dtype.type, w0.dtype.type(1)
    for b in range(attention.size):
        height, width, weight = heights[b], widths[b], load(attention, b)
        x, y = coordinate(load(locations, 2 * b), width), coordinate(load(locations, 2 * b + 1), height)
        column, row = np.int32(np.floor(x)), np.int32(np.floor(y))
        across, down = dtype(x - np.floor(x)), dtype(y - np.floor(y))
        above, below = weight * (one - down), weight * down
        w0[b], w1[b], w2[b], w3[b] = above * (one - across), above * across, below * (one - across), below * across
        columns = existing(column, width)
        exist[b] = np.int32((columns if 0 <= row < height else 0) + (4 * columns if -1 <= row < height - 1 else 0))
        pixels[b] = np.int32(starts[b] + np.int32(np.int32(row * width) + column))


@jitable
def coordinate(location, size):
    """Return the pixel coordinate, rounded as in GridSample and limited to integers; NaN becomes a place outside."""
    dtype = type(location)
    grid, size = location * dtype(2) - dtype(1), dtype(size)
    p = ((grid + dtype(1)) * size - dtype(1)) * dtype(0.5)
    # The high limit is outside of the image even after rounding.
    high = dtype(2) * size + dtype(4)
    p = high if p > high else p
    return p if p >= dtype(-2) else dtype(-2)


@jitable
def existing(first, size):
    """Return a bit for each of the pixels first, first + 1 within an axis."""
    return np.int32((1 if 0 <= first < size else 0) + (2 if -1 <= first < size - 1 else 0))


@jitable
def add_rows(value, g, row, rows, channel, count, pixels, widths, exist, weights, more, totals, out):
    """Add up `count` points of each row, for channels from `channel` on. more: add them to the sums that are there."""
    size = min(CHANNELS, g.channels - channel)
    query, m = row // g.heads, row % g.heads
    for r in range(rows):
        n = query // g.queries
        source = value[(n * g.pixels * g.heads + m) * g.channels + channel :]
        target = out[(row + r) * g.channels + channel :][:size]
        into, b = sums(target, totals)[:size], r * count
        add_points(source, g.heads * g.channels, pixels[b:][:count], widths[b:], exist[b:], weights[:, b:], more, into)
        for d in range(size if is_wide(out) else 0):
            store(target, d, into[d])
        m += 1
        if m == g.heads:
            m, query = 0, query + 1
