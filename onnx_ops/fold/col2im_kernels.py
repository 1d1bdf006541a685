"""Col2Im, ordered by the output: pixels are summed in registers, row by row, and written once.

Along an axis, the positions k and the blocks l on a pixel are an arithmetic progression, the
pixel's Hits: from one to the next, k grows by a step and l falls by another.

    p + pads = l * strides + k * dilations

Pixels of a row (along the last image axis, x) that lie one stride apart are a lane. For each
position of a lane, the blocks are neighbours in the input: a run. Lanes are sums of runs, and are
interleaved to pixels. The same holds along the axis before (y): rows one stride apart have the same
runs, each a row of blocks later. They are computed together, so that each run is read from begin to
end.

There are four ways to do so, see `choose_way`:

    together    planes with short rows are summed side by side (col2im_planes.py)
    disjoint    where blocks tile the image, the runs are the lanes
    by blocks   rows with few blocks, or with a long stride, are summed block by block
    by lanes    all others
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..declaration.jit import IN_PLACE, jitable
from ..kernels.elements import integers_in, load, plus, store, sums_in, zero
from ..kernels.shares import pieces, share
from ..kernels.vectors import Runs, View, interleave, sum_runs
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

PIECE = 16384  # pixels whose sums, 64 KiB of float32, stay in the second-level cache
LONG = 2048  # beyond this stride, a piece has too few blocks for lanes to pay
FEW = 4  # fewer blocks in a row are added one by one
ROOM = 8  # lanes have room for a multiple of it: the sums of a vector
LARGEST_SUM = 16  # bytes of a sum: complex128
MOST_RUNS = 2**12  # of a lane: with more, blocks are added one by one
LARGEST_ROW = 2**30  # pixels that blocks reach, or pads: vectors compare 32-bit numbers of blocks


class Hits(NamedTuple):
    """The positions and blocks on a pixel, along one axis."""

    k: Position  # of the first one
    l: Block  # of the first one
    size: int  # number of hits
    # Pixels, this one and those after it in its lane, with the same k, and l one more for each.
    alike: int


class Rows(NamedTuple):
    """A unit of work: a piece of each of the rows y, y + stride, ... of a plane."""

    plane: int
    y: Pixel
    y_end: Pixel  # after the last row
    x: Pixel  # where the piece begins in a row
    columns: int  # pixels of the piece


class RowHits(NamedTuple):
    """The hits of a row along all axes but x.

    As elements of the input, they are lead + first + m * step, for m < size.
    """

    leads: Indices  # for each hit along the axes before y
    first: Offset  # of the first hit along y, from a lead on
    step: Pitch  # from one hit along y to the next one
    size: int  # number of hits along y


class Band(NamedTuple):
    """Pieces of rows that lie one stride apart and have alike hits.

    The hits of the next row are a row of blocks later.
    """

    hits: RowHits  # of the first row
    rows: int
    x: Pixel  # where the pieces begin in the rows
    columns: int  # pixels of a piece
    pixel: Offset  # where the first row's piece begins in the output


class Scratch(NamedTuple):
    """The parts of the workspace."""

    leads: Indices  # of a plane, from `find_leads`
    lanes: Indices  # from `find_lanes`
    runs: Indices  # of a lane: [0] has the element, and [1] the block where each begins
    sums: Sums  # of all lanes of a band, or of the pixels of a piece


@jitable
def choose_way(g: Col2ImGeometry) -> None:
    """Choose the way, and the size of a unit of work: g.piece pixels of g.high rows.

    The number of tiles is already in `g`. Also state what a tile needs memory for: g.leads hits,
    g.lanes lanes, g.runs runs of a lane, and g.sums sums.
    """
    y, x = g.axes - 2, g.axes - 1
    stride = g.strides[x]
    g.leads = 1
    for a in range(y):
        g.leads *= min(g.block[a], g.counts[a])
    g.runs = g.leads * min(g.block[y], g.counts[y]) * g.block[x]
    g.together = are_small(g)
    few = g.counts[x] < FEW or stride > LONG
    large = padded_size(g, x) > LARGEST_ROW or g.runs > MOST_RUNS
    g.by_blocks = (few or large) and not g.disjoint
    g.piece = min(g.image[x], PIECE if g.by_blocks else max(PIECE // stride, ROOM) * stride)
    g.pitch = pieces(pieces(g.piece, stride), ROOM) * ROOM
    rows = pieces(g.image[y], g.strides[y])
    # A tile's share of all rows, but none longer than a lane.
    g.high = max(1, min(rows, g.planes * min(g.image[y], g.strides[y]) * rows // g.tiles))
    g.lanes = stride
    g.sums = 0
    if g.disjoint or g.by_blocks:
        g.lanes = g.runs = 0
    if g.by_blocks:
        g.high = 1
        g.sums = g.piece
    elif g.lanes > 1:  # lanes are summed apart, and then interleaved
        g.high = max(1, min(g.high, PIECE // (stride * g.pitch)))
        g.sums = g.high * stride * g.pitch


@jitable
def unit_count(g: Col2ImGeometry) -> int:
    """Return the number of units of work."""
    if g.together:
        return pieces(g.planes, PLANES)
    y, x = g.axes - 2, g.axes - 1
    groups = pieces(pieces(g.image[y], g.strides[y]), g.high)
    return g.planes * min(g.image[y], g.strides[y]) * groups * pieces(g.image[x], g.piece)


@jitable
def workspace_size(g: Col2ImGeometry) -> int:
    """Return the bytes of workspace that a tile needs."""
    if g.together:
        return planes_workspace(g, LARGEST_SUM)
    return 8 * (g.leads + 3 * g.lanes + 2 * g.runs) + LARGEST_SUM * g.sums


@jitable
def col2im(x: Elements, g: Col2ImGeometry, tile: Tile, workspace: Workspace, out: Elements) -> None:
    """Compute a tile."""
    if g.together:
        sum_planes(x, g, tile, workspace, out)
    else:
        sum_rows(x, g, tile, workspace, out)


@jitable(**IN_PLACE)
def rows_of(g: Col2ImGeometry, unit: Unit) -> Rows:
    """Return a unit of work.

    Units count pieces of rows first, then groups of g.high rows, then lanes along y, then planes.
    """
    height = g.image[g.axes - 2]
    width = g.image[g.axes - 1]
    stride = g.strides[g.axes - 2]
    across = pieces(width, g.piece)
    groups = pieces(pieces(height, stride), g.high)
    x = unit % across * g.piece
    group = unit // across
    y_lane = group // groups
    lanes = min(height, stride)
    y = y_lane % lanes + group % groups * g.high * stride
    return Rows(y_lane // lanes, y, min(height, y + g.high * stride), x, min(g.piece, width - x))


@jitable
def axis_hits(g: Col2ImGeometry, a: Axis, p: Pixel) -> Hits:
    """Return the Hits of pixel p of axis a."""
    t = p + g.pads[a]
    stride = g.strides[a]
    dilation = g.dilations[a]
    step = g.k_steps[a]
    k_end = min(g.block[a], step)  # from `step` on, the remainders repeat
    k = t % stride if dilation == 1 else 0
    while k < k_end and (t - k * dilation) % stride != 0:
        k += 1
    if k >= k_end:
        return Hits(0, 0, 0, 1)
    l = (t - k * dilation) // stride
    l_step = g.l_steps[a]
    # If blocks went on to both sides, there were so many hits. Those before `begin` are of blocks
    # after the last one, those from the end on of blocks before the first one.
    count = (g.block[a] - 1 - k) // step + 1
    begin = max(0, (l - g.counts[a]) // l_step + 1)
    size = max(0, min(count, l // l_step + 1) - begin)
    # Where none is missing, none is on later pixels either, until l reaches the last block.
    alike = g.counts[a] - l if size == count else 1
    return Hits(k + begin * step, l - begin * l_step, size, alike)


@jitable
def find_leads(g: Col2ImGeometry, plane: int, leads: Indices) -> int:
    """Store the leads of a plane; return their number.

    A lead is an element of the input, for each hit along the axes before y.
    """
    y, x = g.axes - 2, g.axes - 1
    k_pitch = g.block[y] * g.block[x] * g.blocks
    l_pitch = g.counts[y] * g.counts[x]
    leads[0] = 0
    count = 1
    for a in range(g.axes - 3, -1, -1):
        k, l, size, _ = axis_hits(g, a, plane % g.image[a])
        plane //= g.image[a]
        # From the last hit on: the first one overwrites the leads that all others read.
        for m in range(size - 1, -1, -1):
            offset = (k + m * g.k_steps[a]) * k_pitch + (l - m * g.l_steps[a]) * l_pitch
            for t in range(count):
                leads[m * count + t] = leads[t] + offset
        count *= size
        k_pitch *= g.block[a]
        l_pitch *= g.counts[a]
    for t in range(count):
        leads[t] += plane * g.positions * g.blocks
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
    x: Elements, g: Col2ImGeometry, tile: Tile, workspace: Workspace, out: Elements
) -> None:
    """Compute the units of a tile: of disjoint blocks, by blocks or by lanes."""
    y_axis, x_axis = g.axes - 2, g.axes - 1
    k_pitch = g.block[x_axis] * g.blocks
    l_pitch = g.counts[x_axis]
    # In the input, from one hit to the next.
    y_step = g.k_steps[y_axis] * k_pitch - g.l_steps[y_axis] * l_pitch
    scratch = scratch_in(workspace, g, out)
    plane = -1  # whose leads are in the scratch memory
    count = 0  # of these leads
    x_begin = -1  # of the pieces whose lanes are in the scratch memory
    begin, end = share(unit_count(g), g, tile)
    for unit in range(begin, end):
        unit_rows = rows_of(g, unit)
        if unit_rows.plane != plane:
            plane = unit_rows.plane
            count = find_leads(g, plane, scratch.leads)
        if unit_rows.x != x_begin and g.lanes > 0:
            x_begin = unit_rows.x
            find_lanes(g, x_begin, scratch.lanes)
        y = unit_rows.y
        while y < unit_rows.y_end:
            k, l, size, alike = axis_hits(g, y_axis, y)
            rows = min(pieces(unit_rows.y_end - y, g.strides[y_axis]), 1 if g.by_blocks else alike)
            row_hits = RowHits(scratch.leads[:count], k * k_pitch + l * l_pitch, y_step, size)
            pixel = (plane * g.image[y_axis] + y) * g.image[x_axis] + unit_rows.x
            band = Band(row_hits, rows, unit_rows.x, unit_rows.columns, pixel)
            if g.disjoint:
                copy_lanes(x, g, band, out)
            elif g.by_blocks:
                add_blocks(x, g, row_hits, band.x, scratch.sums[: band.columns])
                for b in range(band.columns):
                    store(out, pixel + b, scratch.sums[b])
            else:
                sum_lanes(x, g, band, scratch, out)
            y += rows * g.strides[y_axis]


@jitable
def find_lanes(g: Col2ImGeometry, x_begin: Pixel, lanes: Indices) -> None:
    """Find the hits of the first pixel of each lane.

    lanes[:, r] = (element of the input, its block, number of hits)

    Other than in `axis_hits`, blocks that don't exist count: `sum_runs` skips them.

    x_begin  the pixel of lane 0
    """
    last = g.axes - 1
    stride = g.strides[last]
    step = g.k_steps[last]
    lanes[2, :] = 0
    for k in range(min(g.block[last], step)):
        t = k * g.dilations[last] - g.pads[last] - x_begin
        r = t % stride
        l = (r - t) // stride
        lanes[0, r] = k * g.blocks + l
        lanes[1, r] = l
        lanes[2, r] = (g.block[last] - 1 - k) // step + 1


@jitable
def copy_lanes(x: Elements, g: Col2ImGeometry, band: Band, out: Elements) -> None:
    """Copy rows of blocks that tile the image. Pixels after the last block are 0.

    A pixel has one hit at most, so there is one lead. After the last block there are fewer pixels
    than a stride.
    """
    hits, rows, x_begin, columns, pixel = band
    last = g.axes - 1
    stride = g.strides[last]
    row_blocks = g.counts[last]
    out_pitch = g.strides[last - 1] * g.image[last]
    l = x_begin // stride
    count = 0  # blocks of the piece
    if hits.leads.size * hits.size > 0:  # else no block has these rows
        count = min(columns // stride, row_blocks - l)
        lanes = View(x, hits.leads[0] + hits.first + l, (row_blocks, g.blocks))
        interleave(lanes, rows, stride, count, View(out, pixel, (out_pitch, stride)))
    for row in range(rows):
        for p in range(count * stride, columns):
            store(out, pixel + row * out_pitch + p, zero(out))


@jitable
def sum_lanes(x: Elements, g: Col2ImGeometry, band: Band, scratch: Scratch, out: Elements) -> None:
    """Sum the pieces of a band, by lanes."""
    hits, rows, _, columns, pixel = band
    last = g.axes - 1
    stride = g.strides[last]
    out_pitch = g.strides[g.axes - 2] * g.image[last]
    sums = scratch.sums
    for r in range(stride):
        n = find_runs(g, hits, r, scratch.lanes, scratch.runs)
        runs = Runs(scratch.runs[0, :n], scratch.runs[1, :n], g.counts[last])
        if stride == 1:
            sum_runs(x, runs, rows, columns, View(out, pixel, (out_pitch,)))
        else:
            lane = View(sums, r * g.pitch, (stride * g.pitch,))
            sum_runs(x, runs, rows, g.pitch, lane)
    if stride > 1:
        count = columns // stride  # pixels of each lane: the first ones may have one more
        lanes = View(sums, 0, (stride * g.pitch, g.pitch))
        interleave(lanes, rows, stride, count, View(out, pixel, (out_pitch, stride)))
        for row in range(rows):
            for r in range(columns - count * stride):
                store(
                    out,
                    pixel + row * out_pitch + count * stride + r,
                    sums[(row * stride + r) * g.pitch + count],
                )


@jitable(**IN_PLACE)
def find_runs(g: Col2ImGeometry, hits: RowHits, r: int, lanes: Indices, runs: Indices) -> int:
    """Store the first element and block of each run of lane r; return their number."""
    last = g.axes - 1
    l_step = g.l_steps[last]
    x_step = g.k_steps[last] * g.blocks - l_step
    n = 0
    for lead in hits.leads:
        for m in range(hits.size):
            element = lead + hits.first + m * hits.step + lanes[0, r]
            block = lanes[1, r]
            for _ in range(lanes[2, r]):
                runs[0, n] = element
                runs[1, n] = block
                element += x_step
                block -= l_step
                n += 1
    return n


@jitable
def add_blocks(
    x: Elements, g: Col2ImGeometry, row_hits: RowHits, x_begin: Pixel, row: Sums
) -> None:
    """Sum a row, or a piece of it that begins at pixel `x_begin`, block by block."""
    last = g.axes - 1
    stride = g.strides[last]
    dilation = g.dilations[last]
    begin = x_begin + g.pads[last]
    for b in range(row.size):
        row[b] = zero(row)
    # A block's last position is not before the piece, and its first one not behind it.
    # -quotient(-a, b) is a / b, rounded up.
    l_begin = max(0, -quotient((g.block[last] - 1) * dilation - begin, stride))
    l_end = min(g.counts[last], quotient(begin + row.size - 1, stride) + 1)
    for lead in row_hits.leads:
        for m in range(row_hits.size):
            for l in range(l_begin, l_end):
                # The block's first pixel, from the piece's first one on: may be negative.
                p = l * stride - begin
                k_begin = max(0, -quotient(p, dilation))
                k_end = min(g.block[last], quotient(row.size - 1 - p, dilation) + 1)
                element = lead + row_hits.first + m * row_hits.step + l
                for k in range(k_begin, k_end):
                    b = p + k * dilation
                    row[b] = plus(row[b], load(x, element + k * g.blocks))
