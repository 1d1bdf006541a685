"""Deformable attention, row by row.

A row has the points of one head of one query; its outputs are contiguous. A block has the points of
several rows, or a part of a long row's. First the pixels and weights of all its points are
computed, vectorized; then the pixels' values are added up, row by row. Taps outside of an image are
left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

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


class Block(NamedTuple):
    """The same points of each of some rows."""

    row: int  # the first row
    rows: int
    point: int  # the first point: its number in the row
    size: int  # points of each row


class Levels(NamedTuple):
    """The level of each point of a block, in the workspace."""

    height: Pixels
    width: Pixels
    start: Pixels  # its first pixel among those of all levels


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
    weight = sums_in(workspace, indices.nbytes, (TAPS, POINTS), out)
    totals = sums_in(workspace, indices.nbytes + weight.nbytes, CHANNELS, out)
    levels = Levels(indices[0], indices[1], indices[2])
    taps = Corners(indices[3], levels.width, indices[4], weight)
    blocks = max(1, pieces(g.points, POINTS))  # of a row
    rows_at_once = max(1, POINTS // max(g.points, 1))
    if blocks == 1:  # all blocks have the points of the same levels
        find_levels(g, Block(0, rows_at_once, 0, g.points), levels)
    row, end = share(g.rows, g, tile)
    while row < end:
        rows = min(rows_at_once, end - row)
        for channel in range(0, g.channels, CHANNELS):
            for b in range(blocks):
                point = b * POINTS
                block = Block(row, rows, point, min(POINTS, g.points - point))
                if blocks > 1:  # of a single row
                    find_levels(g, block, levels)
                first = row * g.points + point
                find_taps(
                    locations[2 * first :],
                    attention[first:][: rows * block.size],
                    levels,
                    taps.pixels,
                    taps.exist,
                    (weight[0], weight[1], weight[2], weight[3]),
                )
                add_rows(value, g, block, channel, taps, totals, out)
        row += rows


@jitable
def find_levels(g: DeformableAttentionGeometry, block: Block, levels: Levels) -> None:
    """Store the level of each point of a block."""
    for b in range(block.size):
        level = (block.point + b) // g.level_points
        start = 0
        for l in range(level):
            start += g.heights[l] * g.widths[l]
        for r in range(block.rows):
            k = r * block.size + b
            levels.height[k] = g.heights[level]
            levels.width[k] = g.widths[level]
            levels.start[k] = start


# The weights are four arrays: APART has no effect on rows of one array.
@jitable(**APART)
def find_taps(
    locations: Elements,
    attention: Elements,
    levels: Levels,
    pixel: Pixels,
    exist: Pixels,
    weights: tuple[Weights, Weights, Weights, Weights],
) -> None:
    """Store the taps of each point of a block, see `Corners`.

    locations  x and y of each point
    attention  weight of each point
    """
    upper_left, upper_right, lower_left, lower_right = weights
    number = upper_left.dtype.type
    one = number(1)
    for b in range(attention.size):
        height = levels.height[b]
        width = levels.width[b]
        weight = load(attention, b)
        x = coordinate(load(locations, 2 * b), width)
        y = coordinate(load(locations, 2 * b + 1), height)
        column = np.int32(np.floor(x))
        row = np.int32(np.floor(y))
        across = number(x - np.floor(x))
        down = number(y - np.floor(y))
        above = weight * (one - down)
        below = weight * down
        upper_left[b] = above * (one - across)
        upper_right[b] = above * across
        lower_left[b] = below * (one - across)
        lower_right[b] = below * across
        columns = existing(column, width)
        exist[b] = np.int32(
            (columns if 0 <= row < height else 0) + (4 * columns if -1 <= row < height - 1 else 0)
        )
        # Each step in int32, so that a vector holds as many indices as weights.
        pixel[b] = np.int32(levels.start[b] + np.int32(np.int32(row * width) + column))


@jitable
def coordinate(location: Number, size: Pixel32) -> Number:
    """Return the pixel coordinate of a location, rounded step by step as in GridSample.

    It is limited to coordinates that fit an int32, of which the limits are outside of the image.
    NaN becomes the lower one.
    """
    number = type(location)
    grid = location * number(2) - number(1)
    size = number(size)
    p = ((grid + number(1)) * size - number(1)) * number(0.5)
    # This limit is outside of the image even after rounding.
    high = number(2) * size + number(4)
    p = high if p > high else p
    return p if p >= number(-2) else number(-2)


@jitable
def existing(first: Pixel32, size: Pixel32) -> Pixel32:
    """Return the sum of 1 if pixel `first` lies within an axis and 2 if the next one does."""
    return np.int32((1 if 0 <= first < size else 0) + (2 if -1 <= first < size - 1 else 0))


@jitable
def add_rows(
    value: Elements,
    g: DeformableAttentionGeometry,
    block: Block,
    channel: int,
    taps: Corners,
    totals: Sums,
    out: Elements,
) -> None:
    """Add up the points of each row of a block, for channels from `channel` on.

    totals  room for sums of 16-bit floats
    """
    size = min(CHANNELS, g.channels - channel)
    query = block.row // g.heads
    m = block.row % g.heads
    for r in range(block.rows):
        n = query // g.queries
        source = value[(n * g.pixels * g.heads + m) * g.channels + channel :]
        target = out[(block.row + r) * g.channels + channel :][:size]
        row_sums = sums(target, totals)[:size]
        b = r * block.size
        corners = Corners(
            taps.pixels[b:][: block.size], taps.widths[b:], taps.exist[b:], taps.weight[:, b:]
        )
        # After a row's first points, its sums are those of the points before.
        add_points(source, g.heads * g.channels, corners, block.point > 0, row_sums)
        for d in range(size if is_wide(out) else 0):
            store(target, d, row_sums[d])
        m += 1
        if m == g.heads:
            m = 0
            query += 1
