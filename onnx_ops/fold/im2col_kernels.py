"""Im2Col: every row of the output is a strided window of an image plane, with zeros where it leaves
the image.

A unit of work is one position within the block along all axes but the last, x, and up to PART
neighbouring positions along x, for a band of blocks: some rows along the last two axes, or a part
of one row. With small images, a unit does that for a group of planes, so that the window's indices
are computed once for all. Consecutive units read the same band of the same planes, which stays in
the cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..declaration.jit import jitable
from ..kernels.shares import pieces, share
from ..kernels.vectors import View, clear_box, copy_box
from .geometry import SlidingBlocks
from .sliding_blocks import find_blocks

if TYPE_CHECKING:
    from ..kernels.types import Elements, Offset, Pitch, Pixel, Tile, Workspace
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


@jitable
def share_out(g: Im2ColGeometry) -> int:
    """Divide a geometry's planes, blocks and positions into units of work; returns the number of
    units.
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


@jitable
def im2col(x: Elements, g: Im2ColGeometry, tile: Tile, workspace: Workspace, out: Elements) -> None:
    """Compute a tile, unit by unit."""
    last, leading = g.axes - 1, g.axes - 2
    height, width = g.counts[leading], g.counts[last]
    area = g.image[leading] * g.image[last]
    spots = g.leads * g.bands_y * g.bands_x
    positions = g.rows * g.parts
    begin, end = share(g.units, g, tile)
    for unit in range(begin, end):
        if g.sweeps:
            spot, rest = unit % spots, unit // spots
            position, group = rest % positions, rest // positions
        else:
            position, rest = unit % positions, unit // positions
            spot, group = rest % spots, rest // spots
        j_begin = position % g.parts * g.part
        k = position // g.parts
        x_begin, spot = spot % g.bands_x * g.band_x, spot // g.bands_x
        y_begin, lead = spot % g.bands_y * g.band_y, spot // g.bands_y
        plane = group * g.group
        x_end, y_end = min(x_begin + g.band_x, width), min(y_begin + g.band_y, height)
        rows, columns = y_end - y_begin, x_end - x_begin

        i = k % g.block[leading]
        first = pixel_at(g, lead, k // g.block[leading])
        y_low, y_high = find_blocks(g, leading, i)
        y_low = max(y_low, y_begin)
        y_high = min(y_high, y_end) if first >= 0 else 0
        y = y_low * g.strides[leading] + i * g.dilations[leading] - g.pads[leading]
        x_steps = g.pixels, g.dilations[last], g.strides[leading] * g.image[last]
        steps = g.positions * g.blocks, g.blocks, columns
        j = j_begin
        j_end = min(j_begin + g.part, g.block[last])
        while j < j_end:
            # Neighbouring positions with the same window form a box.
            low, high = find_blocks(g, last, j)
            box = 1
            while j + box < j_end and find_blocks(g, last, j + box) == (low, high):
                box += 1
            x_low, x_high = max(low, x_begin), min(high, x_end)
            source = (
                first * area
                + y * g.image[last]
                + x_low * g.strides[last]
                + j * g.dilations[last]
                - g.pads[last]
            )
            target = (
                ((k * g.block[last] + j) * g.leads + lead) * height * width
                + y_begin * width
                + x_begin
            )
            copy_window(
                x, source + plane * g.pixels, x_steps, (min(g.group, g.planes - plane), box),
                (y_low - y_begin) * columns + x_low - x_begin, y_high - y_low, x_high - x_low,
                rows * columns,
                g.strides[last], out, target + plane * g.positions * g.blocks, steps,
            )  # fmt: skip
            j += box


@jitable
def copy_window(
    x: Elements,
    source: Offset,
    x_steps: tuple[Pitch, Pitch, Pitch],
    sizes: tuple[int, int],
    before: int,
    rows: int,
    count: int,
    size: int,
    stride: int,
    out: Elements,
    target: Offset,
    steps: tuple[Pitch, Pitch, Pitch],
) -> None:
    """For each plane and position, copy a window: `rows` rows of `count` elements. Clear the output
    around it.

    source   the window's first element in x, for the first plane and position
    x_steps  from one plane, one position and one row of the window to the next one, in x
    sizes    number of planes and of positions
    before   elements of the output before the first row of the window
    size     elements of the output for each plane and position
    stride   from one element of a row to the next one, in x
    target   the first element of the output
    steps    as `x_steps`, in the output
    """
    planes, box = sizes
    pitch = steps[2]
    has_pixels = rows > 0 and count > 0
    if not has_pixels:
        before = size
    after = before + (rows - 1) * pitch + count if has_pixels else size
    if has_pixels:
        # If the rows lie one pitch apart in input and output, one copy takes all rows with what is
        # between them, which is then cleared.
        whole = x_steps[2] == pitch * stride
        length = after - before if whole else count
        times = 1 if whole else rows
        target_box = View(out, target + before, steps)
        copy_box(View(x, source, x_steps), (planes, box, times), length, stride, target_box)
    for part in range(3):
        begin = 0
        times = 1
        length = before
        if part == 1:
            begin = after
            length = size - after
        elif part == 2:
            begin = before + count
            times = rows - 1 if has_pixels else 0
            length = pitch - count
        clear_box(View(out, target + begin, steps), (planes, box, times), length)


@jitable
def pixel_at(g: SlidingBlocks, l: Block, k: Position) -> Pixel:
    """Return the pixel, over the leading axes, of position k of the block l; -1 if it is
    outside.
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
