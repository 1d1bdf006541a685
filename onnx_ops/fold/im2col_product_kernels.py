"""Im2ColProduct: columns of an image exist for one tile of blocks at a time, and as rows that
positions share.

A unit of work is a band of blocks, rows along the last two axes, y and x, and for these some of the
outputs: those of one position of the axes before x and neighbouring positions along x, if channels
are added up, else those of some channels. It copies rows of factors and of the image into the
workspace, where they have the same places and 0 stands for what is outside of the image. With
stride 1, a row is that of several positions, from one element on for the first one, from `dilation`
elements later on for the next one. What is added up are then products of whole rows, in the order
of channels or positions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..declaration.jit import APART, FUSE, jitable
from ..kernels.elements import load, store, sums_in
from ..kernels.shares import pieces, share
from .geometry import SlidingBlocks
from .im2col_kernels import pixel_at
from .sliding_blocks import find_blocks

if TYPE_CHECKING:
    from ..kernels.types import Elements, Offset, Pitch, Sums, Tile, Workspace
    from .geometry import Block, Position

LENGTH = 192  # elements of a row in the workspace, about: those of a band's blocks
SPAN = 32  # elements that positions add to a row, at most
CHANNELS = 16  # in the workspace at a time
LANES = 32  # a row's length is a multiple of this
LARGEST_SUM = 8  # bytes of a sum: float64


class Im2ColProductGeometry(SlidingBlocks):
    """The division of the output into units of work, and the workspace, see
    im2col_product_kernels.py.
    """

    planes: int  # groups of channels in all images
    channels: int  # of a group
    over_channels: (
        int  # 1 if products are added up over channels, 0 if over positions within the block
    )
    rows: int  # positions within the block along all axes but x
    leads: int  # blocks along the axes before y
    part: int  # positions along x that share rows in the workspace
    parts: int  # into which these are divided
    chunks: int  # of channels, into which a group is divided
    span: int  # elements that the positions of a part add to a row, from the first one to the last
    pitch: int  # elements of a row in the workspace: of a band's blocks and of `span`
    length: int  # elements of a band's rows in the workspace
    band_y: int  # rows of blocks in a unit
    bands_y: int  # into which the rows are divided
    band_x: int  # blocks of a row in a unit
    bands_x: int  # into which a row is divided
    units: int  # of work


@jitable
def share_out(g: Im2ColProductGeometry) -> int:
    """Divide a geometry's blocks and outputs into units of work; returns the number of units."""
    last = g.axes - 1
    height = g.counts[g.axes - 2]
    width = g.counts[last]
    k_x = g.block[last]
    g.rows = g.positions // k_x
    g.leads = g.blocks // (height * width)
    g.part = min(k_x, 1 + SPAN // g.dilations[last]) if g.strides[last] == 1 else 1
    g.span = (g.part - 1) * g.dilations[last]
    g.band_x = pieces(width, pieces(width, LENGTH))
    g.pitch = g.band_x + g.span
    g.band_y = pieces(height, pieces(height, max(1, LENGTH // g.pitch)))
    g.length = pieces(g.band_y * g.pitch, LANES) * LANES
    g.parts = pieces(k_x, g.part)
    g.chunks = pieces(g.channels, CHANNELS)
    g.bands_x = pieces(width, g.band_x)
    g.bands_y = pieces(height, g.band_y)
    return (
        g.planes
        * g.leads
        * g.bands_y
        * g.bands_x
        * (g.rows * g.parts if g.over_channels else g.chunks)
    )


@jitable
def workspace_size(g: Im2ColProductGeometry) -> int:
    """Return the bytes that a tile needs: rows of factors, of the image and of sums."""
    return LARGEST_SUM * (
        (max(CHANNELS, g.part) + CHANNELS + max(CHANNELS, g.part)) * g.length + g.span
    )


@jitable
def im2col_product(
    x: Elements,
    factors: Elements,
    g: Im2ColProductGeometry,
    tile: Tile,
    workspace: Workspace,
    out: Elements,
) -> None:
    """Compute a tile, unit by unit."""
    last, leading = g.axes - 1, g.axes - 2
    height, width = g.counts[leading], g.counts[last]
    most = max(CHANNELS, g.part)
    totals = sums_in(workspace, 0, most * g.length, out)
    scale = sums_in(workspace, totals.nbytes, most * g.length, out)
    rows = sums_in(workspace, 2 * totals.nbytes, CHANNELS * g.length + g.span, out)
    scale[:] = 0
    rows[:] = 0  # also what no row fills: it might be numbers that take the CPU long
    positions = g.rows * g.parts
    choices = positions if g.over_channels else g.chunks
    spots = g.leads * g.bands_y * g.bands_x
    begin, end = share(g.units, g, tile)
    for unit in range(begin, end):
        choice, spot = unit % choices, unit // choices
        plane, spot = spot // spots, spot % spots
        x_begin, spot = spot % g.bands_x * g.band_x, spot // g.bands_x
        y_begin, lead = spot % g.bands_y * g.band_y, spot // g.bands_y
        high, wide = min(g.band_y, height - y_begin), min(g.band_x, width - x_begin)
        length = pieces(high * g.pitch, LANES) * LANES
        corner = (lead * height + y_begin) * width + x_begin
        first_of_all = choice if g.over_channels else 0
        chunk_begin = 0 if g.over_channels else choice
        chunk_end = g.chunks if g.over_channels else choice + 1
        totals[:] = 0
        for position in range(first_of_all, first_of_all + 1 if g.over_channels else positions):
            j, k = position % g.parts * g.part, position // g.parts
            count = min(g.part, g.block[last] - j)
            for chunk in range(chunk_begin, chunk_end):
                c = chunk * CHANNELS
                channels = min(CHANNELS, g.channels - c)
                read_image(
                    x,
                    plane * g.channels + c,
                    channels,
                    g,
                    lead,
                    k,
                    j,
                    y_begin,
                    x_begin,
                    high,
                    wide,
                    rows,
                )
                if g.over_channels:
                    at = (plane * g.channels + c) * g.blocks + corner
                    copy_rows(factors, at, channels, g.blocks, width, high, wide, g, scale)
                    add_products(
                        scale,
                        rows,
                        g.dilations[last],
                        g.length,
                        count,
                        channels,
                        g.length,
                        length,
                        totals,
                    )
                else:
                    at = (plane * g.positions + k * g.block[last] + j) * g.blocks + corner
                    copy_rows(factors, at, count, g.blocks, width, high, wide, g, scale)
                    add_products(
                        scale,
                        rows,
                        g.length,
                        g.dilations[last],
                        channels,
                        count,
                        g.length,
                        length,
                        totals,
                    )
        if g.over_channels:
            first = plane * g.positions + k * g.block[last] + j
        else:
            first = plane * g.channels + c
            count = channels
        for o in range(count):
            for y in range(high):
                row = out[(first + o) * g.blocks + corner + y * width :][:wide]
                row_totals = totals[o * g.length + y * g.pitch :]
                for b in range(row.size):
                    store(row, b, row_totals[b])


@jitable
def copy_rows(
    a: Elements,
    first: Offset,
    count: int,
    step: Pitch,
    width: Pitch,
    high: int,
    wide: int,
    g: Im2ColProductGeometry,
    rows: Sums,
) -> None:
    """Copy `high` rows of `wide` elements of each of `count` planes into the workspace.

    first  the first element in `a`; `step` is from plane to plane, `width` from row to row
    """
    for s in range(count):
        for y in range(high):
            source = a[first + s * step + y * width :][:wide]
            row = rows[s * g.length + y * g.pitch :][:wide]
            for b in range(source.size):
                row[b] = load(source, b)


@jitable
def read_image(
    x: Elements,
    plane: int,
    count: int,
    g: Im2ColProductGeometry,
    lead: Block,
    k: Position,
    j: Position,
    y_begin: Block,
    x_begin: Block,
    high: int,
    wide: int,
    rows: Sums,
) -> None:
    """Copy the rows of the image on which a band's positions lie, from position (k, j) on, for
    `count` channels.

    plane             the first channel of all images
    lead              the band's block along the axes before y
    k, j              position along all axes but x, and along x
    y_begin, x_begin  the band's first block along y and x
    high, wide        the band's blocks along y and x
    rows              gets the rows of one channel after the other, with 0 for pixels outside
    """
    last, leading = g.axes - 1, g.axes - 2
    i = k % g.block[leading]
    top = pixel_at(g, lead, k // g.block[leading])
    y_low, y_high = find_blocks(g, leading, i)
    size = wide + g.span
    stride = g.strides[last]
    # The row's element b is the pixel left + b * stride.
    left = x_begin * stride + j * g.dilations[last] - g.pads[last]
    low = min(size, max(0, (stride - 1 - left) // stride))
    end = max(low, min(size, (g.image[last] - left + stride - 1) // stride))
    for c in range(count):
        for r in range(high):
            row = rows[c * g.length + r * g.pitch :][:size]
            y = y_begin + r
            inside = top >= 0 and y_low <= y < y_high
            first, after = (low, end) if inside else (0, 0)
            row[:first] = 0
            row[after:] = 0
            if inside:
                pixel = (
                    top * g.image[leading]
                    + y * g.strides[leading]
                    + i * g.dilations[leading]
                    - g.pads[leading]
                )
                at = (plane + c) * g.pixels + pixel * g.image[last] + left + first * stride
                part = row[first:after]
                if stride == 1:
                    source = x[at:][: part.size]
                    for b in range(part.size):
                        part[b] = load(source, b)
                else:
                    for b in range(part.size):
                        part[b] = load(x, at + b * stride)


@jitable(**FUSE | APART)
def add_products(
    factors: Sums,
    rows: Sums,
    output_step: Pitch,
    term_step: Pitch,
    outputs: int,
    terms: int,
    pitch: Pitch,
    length: int,
    totals: Sums,
) -> None:
    """totals[o * pitch + b] += sum over s of
    factors[s * pitch + b] * rows[o * output_step + s * term_step + b]

    for o < outputs, s < terms and b < length, which is a multiple of LANES.
    """
    for o in range(outputs):
        total = totals[o * pitch :][:length]
        for s in range(terms):
            add_row(
                factors[s * pitch :][:length],
                rows[o * output_step + s * term_step :][:length],
                total,
            )


@jitable(**FUSE | APART)
def add_row(factors: Sums, row: Sums, total: Sums) -> None:
    """total[b] += factors[b] * row[b]"""
    for b in range(total.size):
        total[b] += factors[b] * row[b]
