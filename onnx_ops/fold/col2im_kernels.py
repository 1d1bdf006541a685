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
from ..kernels.vectors import (
    RunRows,
    Runs,
    View,
    existing,
    fetch,
    interleave,
    quotient,
    sum_runs,
)
from .col2im_planes import PLANES, are_small, padded_size, planes_workspace, sum_planes

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
ELEMENT, BLOCK = range(2)  # rows of Scratch.runs
PIECE = 16384  # pixels of a piece: their sums, 64 KiB of float32, stay in the second-level cache
ROOM = 8  # a lane has room for a multiple of so many pixels: whole vectors of sums
# Rows are summed block by block if they have fewer blocks than FEW, or if one of these is exceeded:
FEW = 4
# Stride along x: lanes of a piece would have fewer pixels than ROOM; or, with dilations, each of so
# many lanes searches its first hit's position.
LONG, LONG_DILATED = PIECE // ROOM, 64
MOST_RUNS = 2**12  # runs of a lane
LARGEST_ROW = 2**30  # pixels and pads of a row: vectors compare 32-bit numbers of blocks
# Elements are fetched if all of them and of the pixels are UNCACHED or more: those of the next
# plane or planes, if a plane has CACHED or fewer, else those of the next row of blocks.
UNCACHED, CACHED = 3 * 2**19, 2**18
FETCHED = 2**9  # pixels of a tiling that are copied before more are fetched
LARGEST_SUM = 16  # bytes of a sum of complex128


class Hits(NamedTuple):
    """The positions and blocks on a pixel, along one axis, also of blocks that don't exist."""

    k: Position  # the first hit's position
    l: Block  # the first hit's block
    size: int  # number of hits


class Rows(NamedTuple):
    """A unit of work: a piece of each of the rows y_begin, y_begin + stride, ... of a plane.

    If DISJOINT, of each row from y_begin on.
    """

    plane: int
    y_begin: Pixel
    y_end: Pixel  # rows lie before it; there may be none
    x_begin: Pixel  # where the piece begins in a row
    columns: int  # pixels of the piece
    pixel: Offset  # where the first row's piece begins in the output


class RowHits(NamedTuple):
    """The hits of a row along y, also of blocks that don't exist. From one row of a phase to the
    next, they are a row of blocks later.

    As elements of the input, they are lead + offset + m * step for all leads and for m < size.
    """

    l: Block  # the first hit's row of blocks
    size: int  # number of hits along y
    offset: Offset  # from a lead to the first one, see `find_leads`
    step: Pitch  # from one to the next one


class Scratch(NamedTuple):
    """The parts of a tile's workspace."""

    leads: Indices  # [hit]: of a plane, from `find_leads`
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
    # At most so many runs in a lane. Along y and x, only the positions limit them, as hits of
    # blocks that don't exist count, too.
    runs = g.leads
    for a in (y_axis, x_axis):
        runs *= pieces(g.block[a], g.k_steps[a])
    long = LONG if g.dilations[x_axis] == 1 else LONG_DILATED
    few = g.counts[x_axis] < FEW or g.strides[x_axis] > long
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

    Also state for how many runs and sums it needs memory, and what it fetches. A lane has at
    most `runs` runs.
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
    g.runs = g.sums = 0
    if g.way == BY_BLOCKS:
        g.high = 1
        g.sums = g.piece
    elif g.way == BY_LANES:
        g.runs = runs
        g.pitch = pieces(pieces(g.piece, stride), ROOM) * ROOM  # `pieces` rounds up
        if stride > 1:  # lanes are summed apart, in the cache, and then interleaved
            row_sums = stride * g.pitch
            g.high = max(1, min(g.high, PIECE // row_sums))
            g.sums = g.high * row_sums
    g.groups = pieces(phase_rows, g.high)
    elements = g.positions * g.blocks
    g.ahead = 0
    # With more axes, the product might overflow.
    if g.axes == 2 and g.planes * (elements + g.pixels) >= UNCACHED:
        if g.way == TOGETHER:
            g.ahead = PLANES * elements
        elif elements <= CACHED:
            g.ahead = elements
        elif g.way == BY_LANES:
            g.ahead = g.counts[x_axis]


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
    return 8 * (g.leads + 2 * g.runs) + LARGEST_SUM * g.sums


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
    row_group = quotient(unit, g.row_pieces)
    x_begin = (unit - row_group * g.row_pieces) * g.piece
    phase = quotient(row_group, g.groups)
    group = row_group - phase * g.groups
    plane = quotient(phase, g.phases)
    y_begin = phase - plane * g.phases + group * g.high * stride
    y_end = min(g.image[y_axis], y_begin + g.high * stride)
    columns = min(g.piece, g.image[x_axis] - x_begin)
    pixel = (plane * g.image[y_axis] + y_begin) * g.image[x_axis] + x_begin
    return Rows(plane, y_begin, y_end, x_begin, columns, pixel)


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
    k = 0
    if dilation == 1:
        k = t - quotient(t, stride) * stride
    else:
        while k < k_end and (t - k * dilation) % stride:
            k += 1
    if k >= k_end:
        return Hits(0, 0, 0)
    l = quotient(t - k * dilation, stride)
    return Hits(k, l, quotient(g.block[a] - 1 - k, step) + 1)


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
        k, l, size = axis_hits(g, a, plane % g.image[a])
        begin, end = existing(l, g.counts[a], g.l_steps[a], size)
        plane //= g.image[a]
        # From the last hit on: the first one overwrites the leads that all others read.
        for m in range(end - 1, begin - 1, -1):
            offset = (k + m * g.k_steps[a]) * k_pitch + (l - m * g.l_steps[a]) * l_pitch
            for i in range(count):
                leads[(m - begin) * count + i] = leads[i] + offset
        count *= end - begin
        k_pitch *= g.block[a]
        l_pitch *= g.counts[a]
    for i in range(count):
        leads[i] += plane * g.positions * g.blocks  # `plane` is now the channel
    return count


@jitable(**IN_PLACE)
def scratch_in(workspace: Workspace, g: Col2ImGeometry, out: Elements) -> Scratch:
    """Return the parts of a tile's workspace, one after the other."""
    leads = integers_in(workspace, 0, g.leads)
    runs = integers_in(workspace, leads.nbytes, (2, g.runs))
    sums = sums_in(workspace, leads.nbytes + runs.nbytes, g.sums, out)
    return Scratch(leads, runs, sums)


@jitable
def sum_rows(
    data: Elements, g: Col2ImGeometry, tile: Tile, workspace: Workspace, out: Elements
) -> None:
    """Compute the units of a tile, in one of the ways DISJOINT, BY_BLOCKS and BY_LANES."""
    scratch = scratch_in(workspace, g, out)
    begin, end = share(unit_count(g), g, tile)
    for unit in range(begin, end):
        rows = rows_of(g, unit)
        leads = scratch.leads[: find_leads(g, rows.plane, scratch.leads)]
        if g.way == DISJOINT:
            copy_blocks(data, g, rows, leads, out)
        elif g.way == BY_LANES:
            sum_lanes(data, g, rows, leads, scratch, out)
        elif rows.y_begin < rows.y_end:
            sum_blocks(data, g, rows, leads, scratch, out)


@jitable
def row_hits(g: Col2ImGeometry, y: Pixel) -> RowHits:
    """Return the RowHits of row y."""
    y_axis, x_axis = g.axes - 2, g.axes - 1
    k, l, size = axis_hits(g, y_axis, y)
    # In the input, from one position and from one block along y to the next one.
    k_pitch = g.block[x_axis] * g.blocks
    l_pitch = g.counts[x_axis]
    step = g.k_steps[y_axis] * k_pitch - g.l_steps[y_axis] * l_pitch
    return RowHits(l, size, k * k_pitch + l * l_pitch, step)


@jitable
def copy_blocks(
    data: Elements, g: Col2ImGeometry, rows: Rows, leads: Indices, out: Elements
) -> None:
    """Copy rows of blocks that tile the image. Pixels after the last block are 0.

    A pixel has one hit at most, so there is at most one lead. `interleave` writes several rows, and
    in each the pixels r of all blocks, for r < stride.
    """
    _, y_begin, y_end, x_begin, columns, pixel = rows
    y_axis, x_axis = g.axes - 2, g.axes - 1
    height, stride = g.strides[y_axis], g.strides[x_axis]
    width, row_blocks = g.image[x_axis], g.counts[x_axis]
    l = x_begin // stride  # the first block of the piece
    count = min(columns // stride, row_blocks - l)  # blocks of the piece
    block_rows = 0
    if leads.size:
        y = y_begin // height
        block_rows = max(0, min((y_end - y_begin) // height, g.counts[y_axis] - y))
        l += leads[0] + y * row_blocks
    at_once = max(1, FETCHED // columns if g.ahead else block_rows)
    for r in range(height):  # the rows of a phase one after the other, in the order of the input
        for k in range(0, block_rows, at_once):
            first = l + r * g.block[x_axis] * g.blocks + k * row_blocks
            row = pixel + (k * height + r) * width
            some_rows = min(at_once, block_rows - k)
            if g.ahead:  # what is copied at the same place of the next plane
                for j in range(stride):
                    fetch(data, first + g.ahead + j * g.blocks, some_rows * row_blocks)
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
    data: Elements, g: Col2ImGeometry, rows: Rows, leads: Indices, scratch: Scratch, out: Elements
) -> None:
    """Sum a piece of a row, block by block. So there is one row, see `size_units`."""
    row = scratch.sums[: rows.columns]
    x_axis = g.axes - 1
    stride = g.strides[x_axis]
    dilation = g.dilations[x_axis]
    begin = rows.x_begin + g.pads[x_axis]
    for b in range(row.size):
        row[b] = zero(row)
    # A block's last position is not before the piece, and its first one not behind it.
    # -quotient(-a, b) is a / b, rounded up.
    l_begin = max(0, -quotient((g.block[x_axis] - 1) * dilation - begin, stride))
    l_end = min(g.counts[x_axis], quotient(begin + row.size - 1, stride) + 1)
    y_axis = x_axis - 1
    hits = row_hits(g, rows.y_begin)
    m_begin, m_end = existing(hits.l, g.counts[y_axis], g.l_steps[y_axis], hits.size)
    for lead in leads:
        for m in range(m_begin, m_end):
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
        store(out, rows.pixel + b, row[b])


@jitable
def sum_lanes(
    data: Elements, g: Col2ImGeometry, rows: Rows, leads: Indices, scratch: Scratch, out: Elements
) -> None:
    """Sum the pieces of rows of a phase, lane by lane."""
    y_axis, x_axis = g.axes - 2, g.axes - 1
    hits = row_hits(g, rows.y_begin)
    count = pieces(rows.y_end - rows.y_begin, g.strides[y_axis])  # of the rows
    columns = rows.columns
    stride = g.strides[x_axis]
    out_pitch = g.strides[y_axis] * g.image[x_axis]
    # sums[row, r, b] is pixel b * stride + r of a row's piece. A lane has room for whole vectors.
    sums = scratch.sums
    row_pitch = stride * g.pitch
    for r in range(stride):
        runs = find_runs(g, hits, leads, rows.x_begin + r, scratch)
        if stride == 1:  # the only lane is the row itself
            sum_runs(data, runs, count, columns, View(out, rows.pixel, (out_pitch,)))
            return
        sum_runs(data, runs, count, g.pitch, View(sums, r * g.pitch, (row_pitch,)))
    whole = columns // stride
    lanes = View(sums, 0, (row_pitch, g.pitch))
    interleave(lanes, count, stride, whole, View(out, rows.pixel, (out_pitch, stride)))
    # The first columns % stride lanes have one pixel more than `interleave` has stored.
    for row in range(count):
        for r in range(columns % stride):
            store(
                out,
                rows.pixel + row * out_pitch + whole * stride + r,
                sums[row * row_pitch + r * g.pitch + whole],
            )


@jitable(**IN_PLACE)
def find_runs(g: Col2ImGeometry, hits: RowHits, leads: Indices, x: Pixel, scratch: Scratch) -> Runs:
    """Store the first element and block of each run of the lane that begins at pixel x of a row.

    Blocks that don't exist count, too: on later pixels of the lane, or rows of the phase, the same
    run may have reached blocks that do. `sum_runs` skips the others.
    """
    runs = scratch.runs
    y_axis, x_axis = g.axes - 2, g.axes - 1
    k, l, size = axis_hits(g, x_axis, x)
    l_step = g.l_steps[x_axis]
    step = g.k_steps[x_axis] * g.blocks - l_step  # from one hit along x to the next one
    n = 0
    for m in range(hits.size):
        for lead in leads:
            element = lead + hits.offset + m * hits.step + k * g.blocks + l
            for i in range(size):
                runs[ELEMENT, n] = element + i * step
                runs[BLOCK, n] = l - i * l_step
                n += 1
    rows = RunRows(hits.l, g.counts[y_axis], g.l_steps[y_axis], hits.size, leads.size * size)
    return Runs(runs[ELEMENT, :n], runs[BLOCK, :n], g.counts[x_axis], rows, g.ahead)
