"""Deformable attention, row by row: a row is what one head of one query reads, and gives numbers that lie side by side.

A block is the points of several rows, or a part of a long one's. Where its points lie is worked out in vectors, for all
of them; then the pixels there are added up, row by row. Taps that don't exist are left out: whatever lies in memory
where they would be has no influence.
"""

import numpy as np

from .elements import indices_in, is_wide, load, store, sums, sums_in
from .jit import APART, jitable
from .vectors import add_points

BLOCK = 256  # points
CHANNELS = 256  # added up at once
TAPS = 4  # of a point: the pixel at the upper left of it, the one to the right, and the two below
PIXELS = 2**29  # of all levels: 32 bits hold their numbers, and what is added to these meanwhile


@jitable
def workspace_size():
    """Bytes that a tile needs: for the arrays of `deformable_attention`."""
    return 4 * 5 * BLOCK + 8 * (TAPS * BLOCK + CHANNELS)


@jitable
def deformable_attention(value, locations, attention, g, tile, workspace, out):
    numbers = indices_in(workspace, 0, (5, BLOCK))
    weights = sums_in(workspace, numbers.nbytes, (TAPS, BLOCK), out)
    totals = sums_in(workspace, numbers.nbytes + weights.nbytes, CHANNELS, out)
    levels, pixels, exist = numbers[:3], numbers[3], numbers[4]
    parts = max(1, (g.points + BLOCK - 1) // BLOCK)
    rows_at_once = max(1, BLOCK // max(g.points, 1))
    if parts == 1:
        describe(g, 0, g.points, rows_at_once, levels)
    # Rows are shared out without forming rows * tile, which could overflow.
    share, more = g.rows // g.tiles, g.rows % g.tiles
    row = share * tile + min(tile, more)
    end = row + share + (1 if tile < more else 0)
    while row < end:
        rows = min(rows_at_once, end - row)
        for channel in range(0, g.channels, CHANNELS):
            for part in range(parts):
                first = part * BLOCK
                count = min(BLOCK, g.points - first)
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
    """The height, the width and the first pixel of the level of each of so many points of a row, for several rows."""
    for b in range(count):
        level, start = (first + b) // g.level_points, 0
        for l in range(level):
            start += g.heights[l] * g.widths[l]
        for r in range(rows):
            k = r * count + b
            levels[0, k], levels[1, k], levels[2, k] = g.heights[level], g.widths[level], start


@jitable(**APART)
def place(locations, attention, heights, widths, starts, pixels, exist, w0, w1, w2, w3):
    """pixels[b]: the first tap of point b; exist[b]: which of its taps exist, as bits; and their weights."""
    number, one = w0.dtype.type, w0.dtype.type(1)
    for b in range(attention.size):
        height, width, weight = heights[b], widths[b], load(attention, b)
        x, y = coordinate(load(locations, 2 * b), width), coordinate(load(locations, 2 * b + 1), height)
        column, row = np.int32(np.floor(x)), np.int32(np.floor(y))
        across, down = number(x - np.floor(x)), number(y - np.floor(y))
        above, below = weight * (one - down), weight * down
        w0[b], w1[b], w2[b], w3[b] = above * (one - across), above * across, below * (one - across), below * across
        columns = neighbours(column, width)
        exist[b] = np.int32((columns if 0 <= row < height else 0) + (4 * columns if -1 <= row < height - 1 else 0))
        pixels[b] = np.int32(starts[b] + np.int32(np.int32(row * width) + column))


@jitable
def coordinate(location, size):
    """In pixels, step by step as GridSample has it; outside, but within reach of an integer, for what is no place."""
    number = type(location)
    grid, size = location * number(2) - number(1), number(size)
    p = ((grid + number(1)) * size - number(1)) * number(0.5)
    # So far to the right that it is still there when it is rounded.
    high = number(2) * size + number(4)
    p = high if p > high else p
    return p if p >= number(-2) else number(-2)


@jitable
def neighbours(first, size):
    """Which of the two from `first` on exist along an axis, as bits."""
    return np.int32((1 if 0 <= first < size else 0) + (2 if -1 <= first < size - 1 else 0))


@jitable
def add_rows(value, g, row, rows, channel, count, pixels, widths, exist, weights, more, totals, out):
    """So many points of each of these rows, from a channel on; `more` are added to what the row has already."""
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
