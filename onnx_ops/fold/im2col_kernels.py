"""Im2Col: every row of the output is a strided window of an image plane, with zeros where it leaves
the image.

A unit of work is one position within the block along all axes but the last, x, and up to PART
neighbouring positions along x, for a band of blocks: some rows along the last two axes, or a part
of one row. With small images, a unit does that for a group of planes, so that the window's indices
are computed once for all. Consecutive units read the same band of the same planes, which stays in
the cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..declaration.jit import IN_PLACE, jitable
from ..kernels.shares import pieces, share
from ..kernels.vectors import View, clear_box, copy_box
from .geometry import SlidingBlocks
from .sliding_blocks import find_blocks

if TYPE_CHECKING:
    from ..kernels.types import Elements, Pixel, Tile, Unit, Workspace
    from .geometry import Block, Position

PART = 64  # positions along x in a unit, at most
AREA = 2**14  # elements that a unit writes, about
CACHED = 2**16  # elements of images that fit the second-level cache
SHORTEST = 256  # blocks in a part of a row, at least


class Im2ColGeometry(SlidingBlocks):
    """The division of the output into units of work, see im2col_kernels.py.

    Where there is a single block, its positions and their dilations are in the fields for blocks
    and their strides.
    """

    planes: int  # images, one for each channel
    group: int  # planes of a unit
    groups: int  # into which the planes are divided
    leads: int  # blocks along the axes before y
    band_y: int  # rows of blocks in a unit
    bands_y: int  # into which the rows are divided
    band_x: int  # blocks of a row in a unit
    bands_x: int  # into which a row is divided
    rows: int  # positions within the block along all axes but x
    part: int  # positions along x in a unit
    parts: int  # into which these are divided
    units: int  # of work
    # 1 if consecutive units are the bands of one position, 0 if they are the positions of one band.
    sweeps: int


class BlockUnit(NamedTuple):
    """A unit of work: a band of blocks, for some positions and some planes.

    The first of each:
    """

    plane: int
    k: Position  # along all axes but x
    j: Position  # along x
    lead: Block  # along the axes before y
    y: Block
    x: Block


class Window(NamedTuple):
    """Those of a band's blocks that have a pixel at some position: a part of some of its rows."""

    before: int  # blocks of the band before the window
    rows: int
    columns: int  # blocks of a row
    size: int  # blocks of the band


@jitable
def share_out(g: Im2ColGeometry) -> int:
    """Divide the work into units; return their number.

    A unit has some of a geometry's planes, blocks and positions.
    """
    if g.blocks == 1:
        # A single block's positions take the role of blocks: they lie in the output in the same
        # order.
        for a in range(g.axes):
            g.block[a], g.counts[a] = g.counts[a], g.block[a]
            g.strides[a], g.dilations[a] = g.dilations[a], g.strides[a]
        g.positions, g.blocks = g.blocks, g.positions
    height = g.counts[g.axes - 2]
    width = g.counts[g.axes - 1]
    k_x = g.block[g.axes - 1]
    g.rows = g.positions // k_x
    g.leads = g.blocks // (height * width)
    g.part = min(k_x, PART)
    g.band_x = min(width, max(SHORTEST, AREA // g.part))
    g.band_y = min(height, max(1, AREA // (g.part * g.band_x))) if g.band_x == width else 1
    g.group = max(1, AREA // max(g.part * g.band_y * g.band_x, g.pixels))
    g.parts = pieces(k_x, g.part)
    g.bands_x = pieces(width, g.band_x)
    g.bands_y = pieces(height, g.band_y)
    g.groups = pieces(g.planes, g.group)
    g.sweeps = g.group * g.pixels <= CACHED
    return g.groups * g.leads * g.bands_y * g.bands_x * g.rows * g.parts


@jitable(**IN_PLACE)
def block_unit_of(g: Im2ColGeometry, unit: Unit) -> BlockUnit:
    """Return a unit of work."""
    bands = g.leads * g.bands_y * g.bands_x
    positions = g.rows * g.parts
    if g.sweeps:
        band, rest = unit % bands, unit // bands
        position, group = rest % positions, rest // positions
    else:
        position, rest = unit % positions, unit // positions
        band, group = rest % bands, rest // bands
    x, band = band % g.bands_x, band // g.bands_x
    y, lead = band % g.bands_y, band // g.bands_y
    j = position % g.parts * g.part
    return BlockUnit(group * g.group, position // g.parts, j, lead, y * g.band_y, x * g.band_x)


@jitable
def im2col(x: Elements, g: Im2ColGeometry, tile: Tile, workspace: Workspace, out: Elements) -> None:
    """Compute a tile, unit by unit."""
    last, leading = g.axes - 1, g.axes - 2
    height, width = g.counts[leading], g.counts[last]
    begin, end = share(g.units, g, tile)
    for unit in range(begin, end):
        plane, k, j, lead, y_begin, x_begin = block_unit_of(g, unit)
        x_end, y_end = min(x_begin + g.band_x, width), min(y_begin + g.band_y, height)
        rows, columns = y_end - y_begin, x_end - x_begin
        i = k % g.block[leading]
        first = pixel_at(g, lead, k // g.block[leading])
        y_low, y_high = find_blocks(g, leading, i)
        y_low = max(y_low, y_begin)
        y_high = min(y_high, y_end) if first >= 0 else 0
        # The first pixel of the window's first row, if a row began at pixel 0.
        y = y_low * g.strides[leading] + i * g.dilations[leading] - g.pads[leading]
        row = (first * g.image[leading] + y) * g.image[last]
        x_steps = g.pixels, g.dilations[last], g.strides[leading] * g.image[last]
        steps = g.positions * g.blocks, g.blocks, columns
        j_end = min(j + g.part, g.block[last])
        while j < j_end:
            # Neighbouring positions with the same window form a box.
            low, high = find_blocks(g, last, j)
            box = 1
            while j + box < j_end and find_blocks(g, last, j + box) == (low, high):
                box += 1
            x_low, x_high = max(low, x_begin), min(high, x_end)
            pixel = row + x_low * g.strides[last] + j * g.dilations[last] - g.pads[last]
            block = (lead * height + y_begin) * width + x_begin
            target = (k * g.block[last] + j) * g.blocks + block
            before = (y_low - y_begin) * columns + x_low - x_begin
            copy_window(
                View(x, pixel + plane * g.pixels, x_steps),
                (min(g.group, g.planes - plane), box),
                Window(before, y_high - y_low, x_high - x_low, rows * columns),
                g.strides[last],
                View(out, target + plane * g.positions * g.blocks, steps),
            )
            j += box


@jitable
def copy_window(x: View, sizes: tuple[int, int], window: Window, stride: int, out: View) -> None:
    """For each plane and position, copy a window, and clear the output around it.

    x       the window's rows, for each plane and each position
    sizes   number of planes and of positions
    stride  from one element of a row to the next one, in x
    out     the same rows, but from the band's first block on
    """
    before, rows, count, size = window
    target, to, steps = out
    planes, box = sizes
    pitch = steps[2]
    after = size
    if rows > 0 and count > 0:
        after = before + (rows - 1) * pitch + count
        # If the rows lie one pitch apart in input and output, one copy takes all rows with what is
        # between them, which is then cleared.
        is_one_row = x.steps[2] == pitch * stride
        length = after - before if is_one_row else count
        boxes = planes, box, 1 if is_one_row else rows
        copy_box(x, boxes, length, stride, View(target, to + before, steps))
        gap = View(target, to + before + count, steps)
        clear_box(gap, (planes, box, rows - 1), pitch - count)
    else:
        before = size
    clear_box(out, (planes, box, 1), before)
    clear_box(View(target, to + after, steps), (planes, box, 1), size - after)


@jitable
def pixel_at(g: SlidingBlocks, l: Block, k: Position) -> Pixel:
    """Return the pixel, over the leading axes, of a position of a block.

    It is -1 outside of the image.
    """
    pixel = 0
    step = 1
    for a in range(g.axes - 3, -1, -1):
        p = l % g.counts[a] * g.strides[a] + k % g.block[a] * g.dilations[a] - g.pads[a]
        if p < 0 or p >= g.image[a]:
            return -1
        pixel += p * step
        step *= g.image[a]
        l //= g.counts[a]
        k //= g.block[a]
    return pixel
