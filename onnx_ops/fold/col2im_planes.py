"""Col2Im of planes with short rows, several side by side: a vector has one pixel of each.

Each plane is summed with its pads, so that every element of the input has a pixel. Its place is
looked up, which costs the same for any strides, dilations and number of axes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..declaration.jit import jitable
from ..kernels.elements import indices_in, sums_in
from ..kernels.shares import pieces, share
from ..kernels.vectors import PLANES, View, add_planes, interleave

if TYPE_CHECKING:
    from ..kernels.types import Axis, Elements, Pixel, Pixels, Tile, Workspace
    from .geometry import Col2ImGeometry

SHORT = 11  # blocks in a row: in longer ones, vectors of neighbours are faster
SHORT_LANES = (
    17  # the same where a row is made of several lanes, or with less than 2 * FEW_ROWS rows
)
FEW_HITS = 25  # the same where some lanes have one hit in a row at most
# The same where few rows have the same hits: with less rows of blocks than a block has, or than
# FEW_ROWS.
SHORT_ROWS, FEW_ROWS = 33, 8
# The same where blocks tile the image, unless a call would copy less than FEW_COPIED pixels.
SHORT_TILES, FEW_COPIED = 4, 128
# The same where there are fewer than PLANES, which leave a part of each vector empty. Blocks that
# tile the image are never summed side by side then.
SHORTEST = 5
MOST_PIXELS = 2**14  # the rows that a position touches stay in the second-level cache
MOST_ELEMENTS = 2**17  # of a plane's input, whose places stay there, too
LEAST_PLANES = 3


@jitable
def are_small(g: Col2ImGeometry) -> bool:
    """Return whether planes are summed side by side."""
    pixels = 1
    for a in range(g.axes):
        pixels *= min(padded_size(g, a), MOST_PIXELS + 1)
        if pixels > MOST_PIXELS:
            return False
    y, x = g.axes - 2, g.axes - 1
    planes = g.planes * g.image[y] * g.image[x] // g.pixels
    limit = SHORT
    if planes < PLANES:
        limit = 0 if g.disjoint else SHORTEST
    elif g.disjoint and g.counts[y] * g.image[x] >= FEW_COPIED:
        limit = SHORT_TILES
    elif g.counts[y] < max(g.block[y], FEW_ROWS):
        limit = SHORT_ROWS
    elif g.block[x] < 2 * g.strides[x]:
        limit = FEW_HITS
    elif g.strides[x] > 1 or g.counts[y] < 2 * FEW_ROWS:
        limit = SHORT_LANES
    return (
        g.counts[x] < limit and planes >= LEAST_PLANES and g.positions * g.blocks <= MOST_ELEMENTS
    )


@jitable
def padded_size(g: Col2ImGeometry, a: Axis) -> int:
    """Return the pixels of axis a, with the pads that blocks or the image reach."""
    reach = (g.counts[a] - 1) * g.strides[a] + (g.block[a] - 1) * g.dilations[a] + 1
    return max(reach, g.pads[a] + g.image[a])


@jitable
def padded_pixels(g: Col2ImGeometry) -> int:
    """Return the pixels of a plane with pads."""
    pixels = 1
    for a in range(g.axes):
        pixels *= padded_size(g, a)
    return pixels


@jitable
def places_size(g: Col2ImGeometry) -> int:
    """Return the bytes of the places, a multiple of 16."""
    return 16 * pieces(g.positions * g.blocks, 4)


@jitable
def planes_workspace(g: Col2ImGeometry, largest_sum: int) -> int:
    """Return the bytes of workspace that a tile needs.

    They are for the places, and for the planes' sums of at most `largest_sum` bytes.
    """
    return places_size(g) + largest_sum * PLANES * padded_pixels(g)


@jitable
def sum_planes(
    x: Elements, g: Col2ImGeometry, tile: Tile, workspace: Workspace, out: Elements
) -> None:
    """Compute the planes of a tile; g.planes has all image axes."""
    last = g.axes - 1
    elements = g.positions * g.blocks
    width = g.image[last]
    places = indices_in(workspace, 0, elements)
    sums = sums_in(workspace, places_size(g), PLANES * padded_pixels(g), out)
    begin, end = share(pieces(g.planes, PLANES), g, tile)
    if begin < end:
        find_places(g, places)
    for unit in range(begin, end):
        plane = unit * PLANES
        planes = min(PLANES, g.planes - plane)
        sums[:] = 0
        rows = View(x, plane * elements, (elements,))
        add_planes(rows, g.ahead, planes, places, sums)
        pixel = plane * g.pixels
        for row in range(g.pixels // width):
            lanes = View(sums, PLANES * row_place(g, row), (0, PLANES))
            interleave(lanes, 1, width, planes, View(out, pixel, (0, g.pixels)))
            pixel += width


@jitable
def find_places(g: Col2ImGeometry, places: Pixels) -> None:
    """Fill `places` with the pixel of the padded plane for each element of its input."""
    places[0] = 0
    count = 1
    for of_blocks in (True, False):  # elements are in order of positions, then blocks
        pitch = 1
        for a in range(g.axes - 1, -1, -1):
            size, step = (g.counts[a], g.strides[a]) if of_blocks else (g.block[a], g.dilations[a])
            for m in range(1, size):
                for t in range(count):
                    places[m * count + t] = places[t] + np.int32(m * step * pitch)
            count *= size
            pitch *= padded_size(g, a)


@jitable
def row_place(g: Col2ImGeometry, row: int) -> Pixel:
    """Return the pixel of the padded plane where a row of the image begins."""
    place = g.pads[g.axes - 1]
    pitch = padded_size(g, g.axes - 1)
    for a in range(g.axes - 2, -1, -1):
        place += (row % g.image[a] + g.pads[a]) * pitch
        row //= g.image[a]
        pitch *= padded_size(g, a)
    return place
