"""Col2Im, ordered by the output: pixels are summed in registers, row by row, and written once.

The input is data[c, k, l]: c counts the channels of all images, k the positions in a block, and l
the blocks. Positions and blocks are counted over all axes, row by row. Along axis a there are
g.block[a] positions and g.counts[a] blocks; their products are g.positions and g.blocks. So from
one l to the next is one element, and from one k to the next are g.blocks elements.

Along an axis, position k of block l lies on pixel p if

    p + pads = l * strides + k * dilations

The (k, l) that do are the pixel's hits. From one hit to the next, k grows by g.k_steps, which is
strides / gcd(strides, dilations), and l falls by g.l_steps, dilations / gcd(strides, dilations).

The last axis is x, and the one before it is y; both together are a plane. Pixels of a row (along x)
that lie one stride apart are a lane. They have the same positions k, and from one pixel to the next
each block l is one later: for each k they read neighbours in the input, a run. So a lane is a sum
of runs. With stride 2 and blocks of 3 positions, and without pads:

    pixels 0, 2, 4, ...   data[k=0, l=0, 1, 2, ...] + data[k=2, l=-1, 0, 1, ...]
    pixels 1, 3, 5, ...   data[k=1, l=0, 1, 2, ...]

Blocks that don't exist, such as -1, count as 0. With a stride above 1, lanes are interleaved to a
row. Rows that lie one stride apart (along y) are a phase. From one to the next, all runs begin a
row of blocks, g.counts[x], later in the input: just where those of the row before end. So the rows
of a phase are computed together, and the input is read in its order.

There are four ways to do so, see `choose_way`:

    TOGETHER   planes with short rows are summed side by side (col2im_planes.py)
    DISJOINT   where blocks tile the image, the runs are the lanes
    BY_BLOCKS  rows with few blocks, or with a long stride, are summed block by block
    BY_LANES   all others

Letters: m is a hit, r a lane, n a run, and b a pixel of a lane or of a piece of a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..declaration.jit import IN_PLACE, jitable
from ..kernels.elements import integers_in, load, plus, store, sums_in, zero
from ..kernels.shares import pieces, share
from ..kernels.vectors import Runs, View, fetch, interleave, sum_runs
from .col2im_planes import PLANES, are_small, padded_size, planes_workspace, sum_planes
from .sliding_blocks import quotient

if TYPE_CHECKING:
    from ..kernels.types import (
        Axis,
        Elements,
        Indices,
        Offset,
        Pitch,
        Pixel,
        Sums,
        Tile,
        Unit,
        Workspace,
    )
    from .geometry import Block, Col2ImGeometry, Position

TOGETHER, DISJOINT, BY_BLOCKS, BY_LANES = range(4)
ELEMENT, BLOCK, HITS = range(3)  # rows of Scratch.lanes; the first two are those of Scratch.runs
PIECE = 16384  # pixels of a piece: their sums, 64 KiB of float32, stay in the second-level cache
ROOM = 8  # a lane has room for a multiple of so many pixels: whole vectors of sums
# Rows are summed block by block if they have fewer blocks than FEW, or if one of these is exceeded:
FEW = 4
LONG = PIECE // ROOM  # stride along x: lanes of a piece would have fewer pixels than ROOM
MOST_RUNS = 2**12  # runs of a lane
LARGEST_ROW = 2**30  # pixels and pads of a row: vectors compare 32-bit numbers of blocks
# Elements are fetched if all of them and of the pixels are UNCACHED or more, and those of a plane
# CACHED or fewer.
UNCACHED, CACHED = 3 * 2**19, 2**18
FETCHED = 2**9  # pixels of a tiling that are copied before more are fetched
LARGEST_SUM = 16  # bytes of a sum of complex128


class Hits(NamedTuple):
    """The positions and blocks on a pixel, along one axis."""

    k: Position  # the first hit's position
    l: Block  # the first hit's block
    size: int  # number of hits
    # Pixels of this lane or phase, from this one on, that have its hits, each a block later.
    alike: int


class Rows(NamedTuple):
    """A unit of work: a piece of each of the rows y_begin, y_begin + stride, ... of a plane.

    If DISJOINT, of each row from y_begin on.
    """

    plane: int
    y_begin: Pixel
    y_end: Pixel  # rows lie before it; there may be none
    x_begin: Pixel  # where the piece begins in a row
    columns: int  # pixels of the piece


class RowHits(NamedTuple):
    """The hits of a row along all axes but x.

    As elements of the input, they are lead + offset + m * step for all leads and for m < size.
    """

    leads: Indices  # a lead for each hit along the axes before y, see `find_leads`
    offset: Offset  # from a lead to the first hit along y
    step: Pitch  # from one hit along y to the next one
    size: int  # number of hits along y


class Band(NamedTuple):
    """Pieces of rows of a phase that have the same hits, from row to row a row of blocks later."""

    hits: RowHits  # hits of the first row
    rows: int  # number of rows
    x_begin: Pixel  # where the pieces begin in the rows
    columns: int  # pixels of a piece
    pixel: Offset  # where the first row's piece begins in the output
    out_pitch: Pitch  # from one row to the next one in the output


class Scratch(NamedTuple):
    """The parts of a tile's workspace."""

    leads: Indices  # [hit]: of a plane, from `find_leads`
    lanes: Indices  # [ELEMENT, BLOCK or HITS, r]: of a piece, from `find_lanes`
    runs: Indices  # [ELEMENT or BLOCK, n]: of a lane, from `find_runs`
    sums: Sums  # of a band: [row, r, b], with g.pitch sums of a lane; or of a piece: [b]


@jitable
def choose_way(g: Col2ImGeometry) -> None:
    """Choose the way, and the units of work, which TOGETHER doesn't use.

    g.tiles is already known.
    """
    y_axis, x_axis = g.axes - 2, g.axes - 1
    # A pixel's hits along an axis differ in position and in block: there are at most as many as
    # there are positions, and as many as there are blocks.
    g.leads = 1
    for a in range(y_axis):
        g.leads *= min(g.block[a], g.counts[a])
    # At most so many runs in a lane. Along x, only the positions limit them, as `find_lanes` also
    # counts hits of blocks that don't exist.
    runs = g.leads * min(g.block[y_axis], g.counts[y_axis]) * g.block[x_axis]
    few = g.counts[x_axis] < FEW or g.strides[x_axis] > LONG
    large = padded_size(g, x_axis) > LARGEST_ROW or runs > MOST_RUNS
    if are_small(g):
        g.way = TOGETHER
    elif g.disjoint:
        g.way = DISJOINT
    elif few or large:
        g.way = BY_BLOCKS
    else:
        g.way = BY_LANES
    size_units(g, runs)


@jitable
def size_units(g: Col2ImGeometry, runs: int) -> None:
    """Choose the size of a unit of work: g.piece pixels of each of g.high rows.

    If DISJOINT, of each row of g.high rows of blocks.

    Also state for how many lanes, runs and sums it needs memory, and whether it fetches what the
    next plane needs. A lane has at most `runs` runs.
    """
    y_axis, x_axis = g.axes - 2, g.axes - 1
    stride = g.strides[x_axis]
    lane_pixels = max(PIECE // stride, ROOM)
    g.piece = min(g.image[x_axis], PIECE if g.way == BY_BLOCKS else lane_pixels * stride)
    g.row_pieces = pieces(g.image[x_axis], g.piece)
    g.phases = 1 if g.way == DISJOINT else min(g.image[y_axis], g.strides[y_axis])
    phase_rows = pieces(g.image[y_axis], g.strides[y_axis])
    rows_per_tile = g.planes * g.phases * phase_rows // g.tiles
    g.high = max(1, min(phase_rows, rows_per_tile))  # so that there are enough units for all tiles
    g.lanes = g.runs = g.sums = 0
    if g.way == BY_BLOCKS:
        g.high = 1
        g.sums = g.piece
    elif g.way == BY_LANES:
        g.lanes = stride
        g.runs = runs
        g.pitch = pieces(pieces(g.piece, stride), ROOM) * ROOM  # `pieces` rounds up
        if stride > 1:  # lanes are summed apart, in the cache, and then interleaved
            row_sums = stride * g.pitch
            g.high = max(1, min(g.high, PIECE // row_sums))
            g.sums = g.high * row_sums
    g.groups = pieces(phase_rows, g.high)
    elements = g.positions * g.blocks
    g.fetches = g.axes == 2 and elements <= CACHED and g.planes * (elements + g.pixels) >= UNCACHED


@jitable
def unit_count(g: Col2ImGeometry) -> int:
    """Return the number of units of work."""
    if g.way == TOGETHER:
        return pieces(g.planes, PLANES)
    return g.planes * g.phases * g.groups * g.row_pieces


@jitable
def workspace_size(g: Col2ImGeometry) -> int:
    """Return the bytes of workspace that a tile needs."""
    if g.way == TOGETHER:
        return planes_workspace(g, LARGEST_SUM)
    return 8 * (g.leads + 3 * g.lanes + 2 * g.runs) + LARGEST_SUM * g.sums


@jitable
def col2im(
    data: Elements, g: Col2ImGeometry, tile: Tile, workspace: Workspace, out: Elements
) -> None:
    """Compute a tile."""
    if g.way == TOGETHER:
        sum_planes(data, g, tile, workspace, out)
    else:
        sum_rows(data, g, tile, workspace, out)


@jitable(**IN_PLACE)
def rows_of(g: Col2ImGeometry, unit: Unit) -> Rows:
    """Return a unit of work.

    Units count pieces of rows first, then groups of g.high rows, then phases, then planes. If the
    stride doesn't divide the height, some phases have a row less, and their last group may have
    none.
    """
    y_axis, x_axis = g.axes - 2, g.axes - 1
    stride = g.strides[y_axis]
    x_begin = (unit % g.row_pieces) * g.piece
    rest = unit // g.row_pieces
    group = rest % g.groups
    rest //= g.groups
    y_begin = rest % g.phases + group * g.high * stride
    y_end = min(g.image[y_axis], y_begin + g.high * stride)
    columns = min(g.piece, g.image[x_axis] - x_begin)
    return Rows(rest // g.phases, y_begin, y_end, x_begin, columns)


@jitable
def axis_hits(g: Col2ImGeometry, a: Axis, p: Pixel) -> Hits:
    """Return the Hits of pixel p of axis a."""
    t = p + g.pads[a]  # l * stride + k * dilation
    stride = g.strides[a]
    dilation = g.dilations[a]
    step = g.k_steps[a]
    k_end = min(g.block[a], step)  # from `step` on, k * dilation modulo the stride repeats
    # The first hit's position: t - k * dilation is a multiple of the stride. Dilation 1 needs no
    # search for it.
    k = t % stride if dilation == 1 else 0
    while k < k_end and (t - k * dilation) % stride:
        k += 1
    if k >= k_end:
        return Hits(0, 0, 0, 1)
    l = (t - k * dilation) // stride
    l_step = g.l_steps[a]
    # If blocks went on to both sides, there were `count` hits. Those before `begin` are of blocks
    # after the last one, those from `end` on of blocks before the first one.
    count = (g.block[a] - 1 - k) // step + 1
    begin = max(0, (l - g.counts[a]) // l_step + 1)
    end = min(count, l // l_step + 1)
    size = max(0, end - begin)
    # If no hit is missing, none is on the next pixels, until the first hit's block is the last one.
    # Else nothing is promised.
    alike = g.counts[a] - l if size == count else 1
    return Hits(k + begin * step, l - begin * l_step, size, alike)


@jitable
def find_leads(g: Col2ImGeometry, plane: int, leads: Indices) -> int:
    """Store the leads of a plane; return their number.

    There is one for each hit of the plane along the axes before y: the element of the input that
    has the hit's positions and blocks, and position 0 and block 0 along y and x.
    """
    y_axis, x_axis = g.axes - 2, g.axes - 1
    k_pitch = g.block[y_axis] * g.block[x_axis] * g.blocks
    l_pitch = g.counts[y_axis] * g.counts[x_axis]
    leads[0] = 0
    count = 1
    for a in range(y_axis - 1, -1, -1):
        k, l, size, _ = axis_hits(g, a, plane % g.image[a])
        plane //= g.image[a]
        # From the last hit on: the first one overwrites the leads that all others read.
        for m in range(size - 1, -1, -1):
            offset = (k + m * g.k_steps[a]) * k_pitch + (l - m * g.l_steps[a]) * l_pitch
            for i in range(count):
                leads[m * count + i] = leads[i] + offset
        count *= size
        k_pitch *= g.block[a]
        l_pitch *= g.counts[a]
    for i in range(count):
        leads[i] += plane * g.positions * g.blocks  # `plane` is now the channel
    return count


@jitable(**IN_PLACE)
def scratch_in(workspace: Workspace, g: Col2ImGeometry, out: Elements) -> Scratch:
    """Return the parts of a tile's workspace, one after the other."""
    leads = integers_in(workspace, 0, g.leads)
    lanes = integers_in(workspace, leads.nbytes, (3, g.lanes))
    runs = integers_in(workspace, leads.nbytes + lanes.nbytes, (2, g.runs))
    sums = sums_in(workspace, leads.nbytes + lanes.nbytes + runs.nbytes, g.sums, out)
    return Scratch(leads, lanes, runs, sums)


@jitable
def sum_rows(
    data: Elements, g: Col2ImGeometry, tile: Tile, workspace: Workspace, out: Elements
) -> None:
    """Compute the units of a tile, in one of the ways DISJOINT, BY_BLOCKS and BY_LANES."""
    y_axis, x_axis = g.axes - 2, g.axes - 1
    out_pitch = g.strides[y_axis] * g.image[x_axis]
    # In the input, from one position and from one block along y to the next one.
    k_pitch = g.block[x_axis] * g.blocks
    l_pitch = g.counts[x_axis]
    y_step = g.k_steps[y_axis] * k_pitch - g.l_steps[y_axis] * l_pitch
    scratch = scratch_in(workspace, g, out)
    cached_plane = -1  # the plane whose leads are in scratch.leads
    lead_count = 0  # number of its leads
    cached_x = -1  # where the pieces begin whose lanes are in scratch.lanes
    begin, end = share(unit_count(g), g, tile)
    for unit in range(begin, end):
        rows = rows_of(g, unit)
        if rows.plane != cached_plane:
            cached_plane = rows.plane
            lead_count = find_leads(g, cached_plane, scratch.leads)
        if g.way == DISJOINT:
            copy_blocks(data, g, rows, scratch.leads[:lead_count], out)
            continue
        if rows.x_begin != cached_x and g.way == BY_LANES:
            cached_x = rows.x_begin
            find_lanes(g, cached_x, scratch.lanes)
        y = rows.y_begin
        while y < rows.y_end:
            k, l, size, alike = axis_hits(g, y_axis, y)
            hits = RowHits(scratch.leads[:lead_count], k * k_pitch + l * l_pitch, y_step, size)
            band_rows = min(pieces(rows.y_end - y, g.strides[y_axis]), alike)
            pixel = (rows.plane * g.image[y_axis] + y) * g.image[x_axis] + rows.x_begin
            band = Band(hits, band_rows, rows.x_begin, rows.columns, pixel, out_pitch)
            if g.way == BY_BLOCKS:
                sum_blocks(data, g, band, scratch, out)
            else:
                sum_lanes(data, g, band, scratch, out)
            y += band_rows * g.strides[y_axis]


@jitable
def copy_blocks(
    data: Elements, g: Col2ImGeometry, rows: Rows, leads: Indices, out: Elements
) -> None:
    """Copy rows of blocks that tile the image. Pixels after the last block are 0.

    A pixel has one hit at most, so there is at most one lead. `interleave` writes several rows, and
    in each the pixels r of all blocks, for r < stride.
    """
    plane, y_begin, y_end, x_begin, columns = rows
    y_axis, x_axis = g.axes - 2, g.axes - 1
    height, stride = g.strides[y_axis], g.strides[x_axis]
    width, row_blocks = g.image[x_axis], g.counts[x_axis]
    pixel = (plane * g.image[y_axis] + y_begin) * width + x_begin
    l = x_begin // stride  # the first block of the piece
    count = min(columns // stride, row_blocks - l)  # blocks of the piece
    block_rows = 0
    if leads.size:
        y = y_begin // height
        block_rows = max(0, min((y_end - y_begin) // height, g.counts[y_axis] - y))
        l += leads[0] + y * row_blocks
    at_once = max(1, FETCHED // columns if g.fetches else block_rows)
    for r in range(height):  # the rows of a phase one after the other, in the order of the input
        for k in range(0, block_rows, at_once):
            first = l + r * g.block[x_axis] * g.blocks + k * row_blocks
            row = pixel + (k * height + r) * width
            some_rows = min(at_once, block_rows - k)
            if g.fetches:  # what is copied at the same place of the next plane
                for j in range(stride):
                    fetch(data, first + (g.positions + j) * g.blocks, some_rows * row_blocks)
                for j in range(some_rows):
                    fetch(out, row + (g.image[y_axis] + j * height) * width, columns)
            lanes = View(data, first, (row_blocks, g.blocks))
            phase = View(out, row, (height * width, stride))
            interleave(lanes, some_rows, stride, count, phase)
    for y in range(y_end - y_begin):
        for b in range(count * stride if y < block_rows * height else 0, columns):
            store(out, pixel + y * width + b, zero(out))


@jitable
def sum_blocks(
    data: Elements, g: Col2ImGeometry, band: Band, scratch: Scratch, out: Elements
) -> None:
    """Sum a piece of a row, block by block. So a band has one row, see `size_units`."""
    hits = band.hits
    row = scratch.sums[: band.columns]
    x_axis = g.axes - 1
    stride = g.strides[x_axis]
    dilation = g.dilations[x_axis]
    begin = band.x_begin + g.pads[x_axis]
    for b in range(row.size):
        row[b] = zero(row)
    # A block's last position is not before the piece, and its first one not behind it.
    # -quotient(-a, b) is a / b, rounded up.
    l_begin = max(0, -quotient((g.block[x_axis] - 1) * dilation - begin, stride))
    l_end = min(g.counts[x_axis], quotient(begin + row.size - 1, stride) + 1)
    for lead in hits.leads:
        for m in range(hits.size):
            for l in range(l_begin, l_end):
                # The block's first pixel, from the piece's first one on: may be negative.
                first = l * stride - begin
                k_begin = max(0, -quotient(first, dilation))
                k_end = min(g.block[x_axis], quotient(row.size - 1 - first, dilation) + 1)
                element = lead + hits.offset + m * hits.step + l
                for k in range(k_begin, k_end):
                    b = first + k * dilation
                    row[b] = plus(row[b], load(data, element + k * g.blocks))
    for b in range(row.size):
        store(out, band.pixel + b, row[b])


@jitable
def find_lanes(g: Col2ImGeometry, x_begin: Pixel, lanes: Indices) -> None:
    """Find the hits of the first pixel of each lane of a piece.

    Lane r begins at pixel x_begin + r.

    lanes[ELEMENT, r]  elements from a row's hit along y to the first hit along x
    lanes[BLOCK, r]    block of the first hit
    lanes[HITS, r]     number of hits; if it is 0, the others aren't set

    Unlike `axis_hits`, this counts blocks that don't exist (l < 0, or l >= g.counts): on later
    pixels of the lane, the same run may have reached blocks that do. `sum_runs` skips the others.
    """
    x_axis = g.axes - 1
    stride = g.strides[x_axis]
    step = g.k_steps[x_axis]
    lanes[HITS, :] = 0
    # Positions k < step differ in k * dilation modulo the stride: each lies on a lane of its own,
    # and is that lane's first hit.
    for k in range(min(g.block[x_axis], step)):
        # Position k of block l lies on pixel x_begin + start + l * stride. Find the l for which
        # this is one of the piece's first pixels, x_begin + r with 0 <= r < stride.
        start = k * g.dilations[x_axis] - g.pads[x_axis] - x_begin
        r = start % stride
        l = (r - start) // stride
        lanes[ELEMENT, r] = k * g.blocks + l
        lanes[BLOCK, r] = l
        lanes[HITS, r] = (g.block[x_axis] - 1 - k) // step + 1


@jitable
def sum_lanes(
    data: Elements, g: Col2ImGeometry, band: Band, scratch: Scratch, out: Elements
) -> None:
    """Sum the pieces of a band, lane by lane."""
    hits, rows, _, columns, pixel, out_pitch = band
    stride = g.strides[g.axes - 1]
    # sums[row, r, b] is pixel b * stride + r of a row's piece. A lane has room for whole vectors.
    sums = scratch.sums
    row_pitch = stride * g.pitch
    for r in range(stride):
        runs = find_runs(g, hits, r, scratch)
        if stride == 1:  # the only lane is the row itself
            sum_runs(data, runs, rows, columns, View(out, pixel, (out_pitch,)))
            return
        sum_runs(data, runs, rows, g.pitch, View(sums, r * g.pitch, (row_pitch,)))
    count = columns // stride
    lanes = View(sums, 0, (row_pitch, g.pitch))
    interleave(lanes, rows, stride, count, View(out, pixel, (out_pitch, stride)))
    # The first columns % stride lanes have one pixel more than `interleave` has stored.
    for row in range(rows):
        for r in range(columns % stride):
            store(
                out,
                pixel + row * out_pitch + count * stride + r,
                sums[row * row_pitch + r * g.pitch + count],
            )


@jitable(**IN_PLACE)
def find_runs(g: Col2ImGeometry, hits: RowHits, r: int, scratch: Scratch) -> Runs:
    """Store the first element and block of each run of lane r; return the runs."""
    lanes = scratch.lanes
    runs = scratch.runs
    x_axis = g.axes - 1
    l_step = g.l_steps[x_axis]
    step = g.k_steps[x_axis] * g.blocks - l_step  # from one hit along x to the next one
    n = 0
    for lead in hits.leads:
        for m in range(hits.size):
            element = lead + hits.offset + m * hits.step + lanes[ELEMENT, r]
            block = lanes[BLOCK, r]
            for _ in range(lanes[HITS, r]):
                runs[ELEMENT, n] = element
                runs[BLOCK, n] = block
                element += step
                block -= l_step
                n += 1
    ahead = g.positions * g.blocks if g.fetches else 0
    return Runs(runs[ELEMENT, :n], runs[BLOCK, :n], g.counts[x_axis], ahead)
