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

from typing import TYPE_CHECKING, NamedTuple

from ..declaration.jit import APART, FUSE, IN_PLACE, jitable
from ..kernels.elements import load, store, sums_in
from ..kernels.shares import pieces, share
from ..kernels.vectors import View
from .geometry import SlidingBlocks
from .im2col_kernels import pixel_at
from .sliding_blocks import find_blocks

if TYPE_CHECKING:
    from ..kernels.types import Elements, Pitch, Sums, Tile, Workspace
    from .geometry import Block, Position

LENGTH = 192  # elements of a row in the workspace, about: those of a band's blocks
SPAN = 32  # elements that positions add to a row, at most
CHANNELS = 16  # in the workspace at a time
LANES = 32  # a row's length is a multiple of this
LARGEST_SUM = 8  # bytes of a sum: float64


class Im2ColProductGeometry(SlidingBlocks):
    """The division of the output into units of work, and the workspace.

    See im2col_product_kernels.py.
    """

    planes: int  # groups of channels in all images
    channels: int  # of a group
    # 1 if products are added up over channels, 0 if over positions within the block
    over_channels: int
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


class Band(NamedTuple):
    """The blocks of a unit of work: some of a row, in some rows."""

    lead: Block  # along the axes before y
    y: Block  # the first row
    x: Block  # the first one of a row
    height: int  # rows
    width: int  # blocks of a row


class Products(NamedTuple):
    """Products that are added up at a time: of some channels, at neighbouring positions along x."""

    channel: int  # the first one, of those of all images
    channels: int  # number of channels
    position: int  # the first one, of those of all groups of channels
    positions: int  # number of positions
    k: Position  # of these within a block, along all axes but x
    j: Position  # the first one along x


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


@jitable(**IN_PLACE)
def band_of(g: Im2ColProductGeometry, number: int) -> Band:
    """Return the band with a number."""
    x = number % g.bands_x * g.band_x
    number //= g.bands_x
    y = number % g.bands_y * g.band_y
    height = min(g.band_y, g.counts[g.axes - 2] - y)
    width = min(g.band_x, g.counts[g.axes - 1] - x)
    return Band(number // g.bands_y, y, x, height, width)


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
    k_x = g.block[g.axes - 1]
    # A row for each output, and the rows of factors.
    totals, scale = sums_in(workspace, 0, (2, max(CHANNELS, g.part) * g.length), out)
    rows = sums_in(workspace, 2 * totals.nbytes, CHANNELS * g.length + g.span, out)  # of the image
    scale[:] = 0
    rows[:] = 0  # also what no row fills: it might be numbers that take the CPU long
    positions = g.rows * g.parts
    choices = positions if g.over_channels else g.chunks
    bands = g.leads * g.bands_y * g.bands_x
    begin, end = share(g.units, g, tile)
    for unit in range(begin, end):
        choice, rest = unit % choices, unit // choices
        plane = rest // bands
        band = band_of(g, rest % bands)
        # All chunks of channels for one position, or all positions for one chunk.
        chosen = choice, choice + 1
        first_number, number_end = chosen if g.over_channels else (0, positions)
        first_chunk, chunk_end = (0, g.chunks) if g.over_channels else chosen
        totals[:] = 0
        for number in range(first_number, number_end):
            j = number % g.parts * g.part
            k = number // g.parts
            position = plane * g.positions + k * k_x + j
            count = min(g.part, k_x - j)
            for chunk in range(first_chunk, chunk_end):
                channel = plane * g.channels + chunk * CHANNELS
                channels = min(CHANNELS, g.channels - chunk * CHANNELS)
                products = Products(channel, channels, position, count, k, j)
                read_image(x, g, band, products, rows)
                multiply(factors, g, band, products, scale, rows, totals)
        first, outputs = (position, count) if g.over_channels else (channel, channels)
        write_totals(totals, g, band, first, outputs, out)


@jitable(**IN_PLACE)
def multiply(
    factors: Elements,
    g: Im2ColProductGeometry,
    band: Band,
    products: Products,
    scale: Sums,
    rows: Sums,
    totals: Sums,
) -> None:
    """Add products to the totals, of factors and of rows of the image.

    scale  gets the rows of factors
    """
    channel, channels, position, positions, _, _ = products
    dilation = g.dilations[g.axes - 1]
    steps = g.blocks, g.counts[g.axes - 1]
    corner = first_block(g, band)
    length = pieces(band.height * g.pitch, LANES) * LANES
    if g.over_channels:
        copy_rows(View(factors, channel * g.blocks + corner, steps), channels, g, band, scale)
        image = View(rows, 0, (dilation, g.length))
        add_products(scale, image, positions, channels, g.length, length, totals)
    else:
        copy_rows(View(factors, position * g.blocks + corner, steps), positions, g, band, scale)
        image = View(rows, 0, (g.length, dilation))
        add_products(scale, image, channels, positions, g.length, length, totals)


@jitable(**IN_PLACE)
def write_totals(
    totals: Sums, g: Im2ColProductGeometry, band: Band, first: int, count: int, out: Elements
) -> None:
    """Write the totals of a band to `count` outputs, from `first` on.

    Outputs are positions or channels.
    """
    corner = first_block(g, band)
    width = g.counts[g.axes - 1]
    for o in range(count):
        for y in range(band.height):
            row = out[(first + o) * g.blocks + corner + y * width :][: band.width]
            row_totals = totals[o * g.length + y * g.pitch :]
            for b in range(row.size):
                store(row, b, row_totals[b])


@jitable(**IN_PLACE)
def first_block(g: Im2ColProductGeometry, band: Band) -> Block:
    """Return the first block of a band, among all blocks."""
    return (band.lead * g.counts[g.axes - 2] + band.y) * g.counts[g.axes - 1] + band.x


@jitable
def copy_rows(factors: View, count: int, g: Im2ColProductGeometry, band: Band, rows: Sums) -> None:
    """Copy a band's rows of factors into the workspace: factors[s, y] for s < count."""
    array, first, (step, pitch) = factors
    for s in range(count):
        for y in range(band.height):
            source = array[first + s * step + y * pitch :][: band.width]
            row = rows[s * g.length + y * g.pitch :][: band.width]
            for b in range(source.size):
                row[b] = load(source, b)


@jitable
def read_image(
    x: Elements, g: Im2ColProductGeometry, band: Band, products: Products, rows: Sums
) -> None:
    """Copy the rows of the image with a band's pixels, from position (k, j) on.

    rows  gets the rows of one channel after the other, with 0 for pixels outside
    """
    last, leading = g.axes - 1, g.axes - 2
    i = products.k % g.block[leading]
    top = pixel_at(g, band.lead, products.k // g.block[leading])
    y_low, y_high = find_blocks(g, leading, i)
    size = band.width + g.span
    stride = g.strides[last]
    # The row's element b is the pixel left + b * stride.
    left = band.x * stride + products.j * g.dilations[last] - g.pads[last]
    low = min(size, max(0, (stride - 1 - left) // stride))
    end = max(low, min(size, (g.image[last] - left + stride - 1) // stride))
    for c in range(products.channels):
        for r in range(band.height):
            row = rows[c * g.length + r * g.pitch :][:size]
            y = band.y + r
            is_inside = top >= 0 and y_low <= y < y_high
            first, after = (low, end) if is_inside else (0, 0)
            row[:first] = 0
            row[after:] = 0
            if is_inside:
                pixel = (
                    top * g.image[leading]
                    + y * g.strides[leading]
                    + i * g.dilations[leading]
                    - g.pads[leading]
                )
                begin = pixel * g.image[last] + left + first * stride
                begin += (products.channel + c) * g.pixels
                pixels = row[first:after]
                if stride == 1:
                    source = x[begin:][: pixels.size]
                    for b in range(pixels.size):
                        pixels[b] = load(source, b)
                else:
                    for b in range(pixels.size):
                        pixels[b] = load(x, begin + b * stride)


@jitable(**FUSE | APART)
def add_products(
    factors: Sums, rows: View, outputs: int, terms: int, pitch: Pitch, length: int, totals: Sums
) -> None:
    """totals[o * pitch + b] += sum over s of  factors[s * pitch + b] * rows[o, s, b]

    for o < outputs, s < terms and b < length, which is a multiple of LANES.
    """
    array, first, (output_step, term_step) = rows
    for o in range(outputs):
        total = totals[o * pitch :][:length]
        for s in range(terms):
            add_row(
                factors[s * pitch :][:length],
                array[first + o * output_step + s * term_step :][:length],
                total,
            )


@jitable(**FUSE | APART)
def add_row(factors: Sums, row: Sums, total: Sums) -> None:
    """total[b] += factors[b] * row[b]"""
    for b in range(total.size):
        total[b] += factors[b] * row[b]
