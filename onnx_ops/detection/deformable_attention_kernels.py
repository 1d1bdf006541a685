"""Deformable attention, row by row. A row has the points of one head of one query; its outputs are
contiguous.

A block has the points of several rows, or a part of a long row's. First the pixels and weights of
all its points are computed, vectorized; then the pixels' values are added up, row by row. Taps
outside of an image are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..declaration.jit import APART, jitable
from ..declaration.limits import MAX_RANK
from ..declaration.operator import Geometry, vector
from ..kernels.elements import indices_in, is_wide, load, store, sums, sums_in
from ..kernels.shares import pieces, share
from ..kernels.vectors import Corners, add_points

if TYPE_CHECKING:
    from ..kernels.types import Elements, Number, Pixels, Sums, Tile, Vector, Weights, Workspace
    from ..sampling.geometry import Pixel32

POINTS = 256  # of a block
CHANNELS = 256  # channels that are added up at a time
TAPS = 4  # of a point: the pixel to its upper left, the next one to the right, and the two below
LEVELS = MAX_RANK // 2  # at most
# Limit for all levels: 32 bits hold a pixel's index, and the values that occur while it is
# computed.
PIXELS = 2**29


class DeformableAttentionGeometry(Geometry):
    """The sizes of all tensors.

    A row is the result for one head of one query: the sum over points of their pixels.
    """

    rows: int  # of all images; 0 if there are no channels
    queries: int  # for each image
    heads: int  # of a query
    channels: int  # of a head
    pixels: int  # of all levels of an image
    points: int  # of a row: those of all levels
    level_points: int  # of these on each level
    heights: Vector = vector(LEVELS)  # of each level, in pixels
    widths: Vector = vector(LEVELS)


@jitable
def workspace_size() -> int:
    """Return the bytes that a tile needs, for the arrays of `deformable_attention`."""
    return 4 * 5 * POINTS + 8 * (TAPS * POINTS + CHANNELS)


@jitable
def deformable_attention(
    value: Elements,
    locations: Elements,
    attention: Elements,
    g: DeformableAttentionGeometry,
    tile: Tile,
    workspace: Workspace,
    out: Elements,
) -> None:
    """Compute a tile, block by block."""
    indices = indices_in(workspace, 0, (5, POINTS))
    weights = sums_in(workspace, indices.nbytes, (TAPS, POINTS), out)
    totals = sums_in(workspace, indices.nbytes + weights.nbytes, CHANNELS, out)
    levels = indices[:3]
    pixels = indices[3]
    exist = indices[4]
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
                    locations[2 * at :], attention[at:][: rows * count], levels[0], levels[1],
                    levels[2], pixels, exist,
                    weights[0], weights[1], weights[2], weights[3],
                )  # fmt: skip
                add_rows(
                    value,
                    g,
                    row,
                    rows,
                    channel,
                    count,
                    pixels,
                    levels[1],
                    exist,
                    weights,
                    part > 0,
                    totals,
                    out,
                )
        row += rows


@jitable
def describe(
    g: DeformableAttentionGeometry, first: int, count: int, rows: int, levels: Pixels
) -> None:
    """Store each point's level, as its height, width and first pixel, for `count` points of each of
    several rows.

    first  the first of these points: its number in the row
    """
    for b in range(count):
        level = (first + b) // g.level_points
        start = 0
        for l in range(level):
            start += g.heights[l] * g.widths[l]
        for r in range(rows):
            k = r * count + b
            levels[0, k] = g.heights[level]
            levels[1, k] = g.widths[level]
            levels[2, k] = start


@jitable(**APART)
def place(
    locations: Elements,
    attention: Elements,
    heights: Pixels,
    widths: Pixels,
    starts: Pixels,
    pixels: Pixels,
    exist: Pixels,
    w0: Weights,
    w1: Weights,
    w2: Weights,
    w3: Weights,
) -> None:
    """Store each point's first tap in `pixels`, a bit for each tap that exists in `exist`, and the
    taps' weights.

    locations               x and y of each point
    attention               weight of each point
    heights, widths, starts  of each point's level, in pixels, and its first pixel
    """
    dtype = w0.dtype.type
    one = w0.dtype.type(1)
    for b in range(attention.size):
        height = heights[b]
        width = widths[b]
        weight = load(attention, b)
        x, y = (
            coordinate(load(locations, 2 * b), width),
            coordinate(load(locations, 2 * b + 1), height),
        )
        column, row = np.int32(np.floor(x)), np.int32(np.floor(y))
        across, down = dtype(x - np.floor(x)), dtype(y - np.floor(y))
        above, below = weight * (one - down), weight * down
        w0[b] = above * (one - across)
        w1[b] = above * across
        w2[b] = below * (one - across)
        w3[b] = below * across
        columns = existing(column, width)
        exist[b] = np.int32(
            (columns if 0 <= row < height else 0) + (4 * columns if -1 <= row < height - 1 else 0)
        )
        pixels[b] = np.int32(starts[b] + np.int32(np.int32(row * width) + column))


@jitable
def coordinate(location: Number, size: Pixel32) -> Number:
    """Return the pixel coordinate, rounded as in GridSample and limited to integers; NaN becomes a
    place outside.
    """
    dtype = type(location)
    grid = location * dtype(2) - dtype(1)
    size = dtype(size)
    p = ((grid + dtype(1)) * size - dtype(1)) * dtype(0.5)
    # The high limit is outside of the image even after rounding.
    high = dtype(2) * size + dtype(4)
    p = high if p > high else p
    return p if p >= dtype(-2) else dtype(-2)


@jitable
def existing(first: Pixel32, size: Pixel32) -> Pixel32:
    """Return bit 1 if the pixel `first` lies within an axis of this size, and bit 2 if the next one
    does.
    """
    return np.int32((1 if 0 <= first < size else 0) + (2 if -1 <= first < size - 1 else 0))


@jitable
def add_rows(
    value: Elements,
    g: DeformableAttentionGeometry,
    row: int,
    rows: int,
    channel: int,
    count: int,
    pixels: Pixels,
    widths: Pixels,
    exist: Pixels,
    weights: Weights,
    more: bool,
    totals: Sums,
    out: Elements,
) -> None:
    """Add up the points of each row, for channels from `channel` on.

    row, rows                      first row, and number of rows
    count                          points of each row
    pixels, widths, exist, weights  of these points, see `place`
    more                           whether they are added to sums that are there
    totals                         room for sums of 16-bit floats
    """
    size = min(CHANNELS, g.channels - channel)
    query, m = row // g.heads, row % g.heads
    for r in range(rows):
        n = query // g.queries
        source = value[(n * g.pixels * g.heads + m) * g.channels + channel :]
        target = out[(row + r) * g.channels + channel :][:size]
        into = sums(target, totals)[:size]
        b = r * count
        points = Corners(pixels[b:][:count], widths[b:], exist[b:], weights[:, b:])
        add_points(source, g.heads * g.channels, points, more, into)
        for d in range(size if is_wide(out) else 0):
            store(target, d, into[d])
        m += 1
        if m == g.heads:
            m = 0
            query += 1
