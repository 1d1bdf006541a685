"""Col2Im, ordered by the output: pixels are summed in registers, row by row, and written once.

Along an axis, the positions k and the blocks l on a pixel are an arithmetic progression, the pixel's Hits: from one to
the next, k grows by a step and l falls by another.

    p + pads = l * strides + k * dilations

Pixels of a row (along the last image axis, x) that lie one stride apart are a lane. For each position of a lane, the
blocks are neighbours in the input: a run. Lanes are sums of runs, and are interleaved to pixels. The same holds along
the axis before (y): rows one stride apart have the same runs, each a row of blocks later. They are computed together,
so that each run is read from begin to end.

Four ways, of which `choose` takes one:

    together    planes with short rows are summed side by side (col2im_planes.py)
    tiled       where blocks tile the image, the runs are the lanes
    by blocks   rows with few blocks, or with a long stride, are summed block by block
    by lanes    all others
"""

from collections import namedtuple

from ..declaration.jit import IN_PLACE, jitable
from ..kernels.elements import integers_in, load, plus, store, sums_in, zero
from ..kernels.shares import pieces, share
from ..kernels.vectors import interleave, sum_runs
from .col2im_planes import PLANES, are_small, padded, planes_workspace, sum_planes
from .sliding_blocks import quotient

PIECE = 16384  # pixels whose sums, 64 KiB of float32, stay in the second-level cache
LONG = 2048  # beyond this stride, a piece has too few blocks for lanes to pay
FEW = 4  # fewer blocks in a row are added one by one
ROOM = 8  # lanes have room for a multiple of it: the sums of a vector
LARGEST_SUM = 16  # bytes of a sum: complex128
MOST_RUNS = 2**12  # of a lane: with more, blocks are added one by one
LARGEST_ROW = 2**30  # pixels that blocks reach, or pads: vectors compare 32-bit numbers of blocks
# Positions and blocks on a pixel: the first ones, how many there are, and how many pixels in a lane have as many.
Hits = namedtuple("Hits", "k l count alike")
# A unit of work: the rows y, y + stride, ... before y_end of a plane, from x on.
Rows = namedtuple("Rows", "plane y y_end x columns")


@jitable
def choose(g):
    """Choose the way, and the size of a unit of work: g.piece pixels of g.high rows. The number of tiles is known.

    Also state the room that a tile needs: g.leads hits, g.lanes lanes, g.runs runs of a lane, and g.sums sums.
    """
    y, x = g.axes - 2, g.axes - 1
    stride = g.strides[x]
    g.leads = 1
    for a in range(g.axes - 2):
        g.leads *= min(g.block[a], g.counts[a])
    g.runs = g.leads * min(g.block[y], g.counts[y]) * g.block[x]
    g.together = are_small(g)
    few = g.counts[x] < FEW or stride > LONG
    large = padded(g, x) > LARGEST_ROW or g.runs > MOST_RUNS
    g.by_blocks = (few or large) and not g.tiled
    g.piece = min(g.image[x], PIECE if g.by_blocks else max(PIECE // stride, ROOM) * stride)
    g.pitch = pieces(pieces(g.piece, stride), ROOM) * ROOM
    rows = pieces(g.image[y], g.strides[y])
    g.high = max(1, min(rows, g.planes * min(g.image[y], g.strides[y]) * rows // g.tiles))
    g.lanes, g.sums = stride, 0
    if g.by_blocks:
        g.high, g.sums = 1, g.piece
    elif stride > 1 and not g.tiled:
        g.high = max(1, min(g.high, PIECE // (stride * g.pitch)))
        g.sums = g.high * stride * g.pitch
    if g.by_blocks or g.tiled:
        g.lanes = g.runs = 0


@jitable
def unit_count(g):
    """Return the number of units of work."""
    if g.together:
        return pieces(g.planes, PLANES)
    y, x = g.axes - 2, g.axes - 1
    bands = pieces(pieces(g.image[y], g.strides[y]), g.high)
    return g.planes * min(g.image[y], g.strides[y]) * bands * pieces(g.image[x], g.piece)


@jitable
def workspace_size(g):
    """The bytes that a tile needs."""
    if g.together:
        return planes_workspace(g, LARGEST_SUM)
    return 8 * (g.leads + 3 * g.lanes + 2 * g.runs) + LARGEST_SUM * g.sums


@jitable
def col2im(x, g, tile, workspace, out):
    if g.together:
        sum_planes(x, g, tile, workspace, out)
    else:
        sum_rows(x, g, tile, workspace, out)


@jitable(**IN_PLACE)
def rows_at(g, unit):
    """Return the Rows of a unit of work."""
    height, width, stride = g.image[g.axes - 2], g.image[g.axes - 1], g.strides[g.axes - 2]
    across = pieces(width, g.piece)
    bands = pieces(pieces(height, stride), g.high)
    x, band = unit % across * g.piece, unit // across
    lane, first = band // bands, band % bands * g.high
    lanes = min(height, stride)
    y = lane % lanes + first * stride
    return Rows(lane // lanes, y, min(height, y + g.high * stride), x, min(g.piece, width - x))


@jitable
def hits(g, a, p):
    """Return the Hits of pixel p of axis a."""
    t, stride, dilation, step = p + g.pads[a], g.strides[a], g.dilations[a], g.k_steps[a]
    k = t % stride if dilation == 1 else 0
    while k < min(g.block[a], step) and (t - k * dilation) % stride != 0:
        k += 1
    if k >= min(g.block[a], step):
        return Hits(0, 0, 0, 1)
    l, l_step = (t - k * dilation) // stride, g.l_steps[a]
    count = (g.block[a] - 1 - k) // step + 1
    skipped = max(0, (l - g.counts[a]) // l_step + 1)  # blocks after the last one
    end = min(count, l // l_step + 1)
    alike = g.counts[a] - l if end - skipped == count else 1
    return Hits(k + skipped * step, l - skipped * l_step, max(0, end - skipped), alike)


@jitable
def find_leads(g, plane, leads):
    """Fill `leads` with the element of the input for each hit of a plane along the leading axes; returns the number."""
    y, x = g.axes - 2, g.axes - 1
    k_pitch, l_pitch = g.block[y] * g.block[x] * g.blocks, g.counts[y] * g.counts[x]
    leads[0] = 0
    count = 1
    for a in range(g.axes - 3, -1, -1):
        found = hits(g, a, plane % g.image[a])
        plane //= g.image[a]
        for m in range(found.count - 1, -1, -1):
            more = (found.k + m * g.k_steps[a]) * k_pitch + (found.l - m * g.l_steps[a]) * l_pitch
            for t in range(count):
                leads[m * count + t] = leads[t] + more
        count *= found.count
        k_pitch *= g.block[a]
        l_pitch *= g.counts[a]
    for t in range(count):
        leads[t] += plane * g.positions * g.blocks
    return count


@jitable
def sum_rows(x, g, tile, workspace, out):
    """Compute the units of a tile: tiled, by blocks or by lanes."""
    y_axis, x_axis = g.axes - 2, g.axes - 1
    k_pitch, l_pitch = g.block[x_axis] * g.blocks, g.counts[x_axis]
    y_step = g.k_steps[y_axis] * k_pitch - g.l_steps[y_axis] * l_pitch  # in the input, from one hit to the next
    leads = integers_in(workspace, 0, g.leads)
    lanes = integers_in(workspace, leads.nbytes, (3, g.lanes))
    runs = integers_in(workspace, leads.nbytes + lanes.nbytes, (2, g.runs))
    sums = sums_in(workspace, leads.nbytes + lanes.nbytes + runs.nbytes, g.sums, out)
    known, count, x_known = -1, 0, -1
    begin, end = share(unit_count(g), g, tile)
    for unit in range(begin, end):
        at = rows_at(g, unit)
        if at.plane != known:
            known, count = at.plane, find_leads(g, at.plane, leads)
        if at.x != x_known and g.lanes > 0:
            find_lanes(g, at.x, lanes)
            x_known = at.x
        y = at.y
        while y < at.y_end:
            found = hits(g, y_axis, y)
            rows = min(pieces(at.y_end - y, g.strides[y_axis]), 1 if g.by_blocks else found.alike)
            first = found.k * k_pitch + found.l * l_pitch
            pixel = (at.plane * g.image[y_axis] + y) * g.image[x_axis] + at.x
            hit = leads[:count], first, y_step, found.count
            if g.tiled:
                copy_lanes(x, g, *hit, rows, at.x, out, pixel, at.columns)
            elif g.by_blocks:
                add_blocks(x, g, *hit, at.x, sums[: at.columns])
                for b in range(at.columns):
                    store(out, pixel + b, sums[b])
            else:
                sum_lanes(x, g, *hit, lanes, runs, rows, sums, out, pixel, at.columns)
            y += rows * g.strides[y_axis]


@jitable
def find_lanes(g, x_begin, lanes):
    """Find the hits of the first pixel of each lane: an element of the input, its block, and how many there are."""
    last = g.axes - 1
    stride, step = g.strides[last], g.k_steps[last]
    lanes[2, :] = 0
    for k in range(min(g.block[last], step)):
        t = k * g.dilations[last] - g.pads[last] - x_begin
        r = t % stride
        l = (r - t) // stride
        lanes[0, r], lanes[1, r], lanes[2, r] = k * g.blocks + l, l, (g.block[last] - 1 - k) // step + 1


@jitable
def copy_lanes(x, g, leads, first, y_step, y_count, rows, x_begin, out, pixel, columns):
    """Copy rows of blocks that tile the image. Pixels after the last block are 0. See `sum_lanes`."""
    last = g.axes - 1
    stride, counts, out_pitch = g.strides[last], g.counts[last], g.strides[last - 1] * g.image[last]
    l, blocks = x_begin // stride, 0
    if leads.size * y_count > 0:
        blocks = min(columns // stride, counts - l)
        interleave(x, leads[0] + first + l, g.blocks, counts, stride, blocks, rows, out, pixel, out_pitch, stride)
    for y in range(rows if blocks * stride < columns else 0):
        for p in range(blocks * stride, columns):
            store(out, pixel + y * out_pitch + p, zero(out))


@jitable
def sum_lanes(x, g, leads, first, y_step, y_count, lanes, runs, rows, sums, out, pixel, columns):
    """Sum rows that have the same hits along y, by lanes.

    first, y_step, y_count  elements of the input, from `leads` on: of the first hit along y, from each to the next
    runs                    room for the runs of a lane
    """
    last = g.axes - 1
    stride, blocks, width = g.strides[last], g.counts[last], g.image[last]
    x_step = g.k_steps[last] * g.blocks - g.l_steps[last]
    out_pitch = g.strides[g.axes - 2] * width
    for r in range(stride):
        n = 0
        for lead in leads:
            for m in range(y_count):
                element, block = lead + first + m * y_step + lanes[0, r], lanes[1, r]
                for _ in range(lanes[2, r]):
                    runs[0, n], runs[1, n] = element, block
                    element += x_step
                    block -= g.l_steps[last]
                    n += 1
        if stride == 1:
            sum_runs(x, runs[0, :n], runs[1, :n], blocks, rows, out, pixel, out_pitch, columns)
        else:
            sum_runs(x, runs[0, :n], runs[1, :n], blocks, rows, sums, r * g.pitch, stride * g.pitch, g.pitch)
    if stride > 1:
        whole = columns // stride
        interleave(sums, 0, g.pitch, stride * g.pitch, stride, whole, rows, out, pixel, out_pitch, stride)
        for l in range(rows):
            for r in range(columns - whole * stride):
                store(out, pixel + l * out_pitch + whole * stride + r, sums[(l * stride + r) * g.pitch + whole])


@jitable
def add_blocks(x, g, leads, first, y_step, y_count, x_begin, row):
    """Sum a row, or a piece of it, block by block. The arguments are those of `sum_lanes`."""
    last = g.axes - 1
    stride, dilation, begin = g.strides[last], g.dilations[last], x_begin + g.pads[last]
    for b in range(row.size):
        row[b] = zero(row)
    low = max(0, -quotient((g.block[last] - 1) * dilation - begin, stride))
    high = min(g.counts[last], quotient(begin + row.size - 1, stride) + 1)
    for lead in leads:
        for m in range(y_count):
            for l in range(low, high):
                p = l * stride - begin
                k = max(0, -quotient(p, dilation))
                k_end = min(g.block[last], quotient(row.size - 1 - p, dilation) + 1)
                element = lead + first + m * y_step + l
                for j in range(k, k_end):
                    b = p + j * dilation
                    row[b] = plus(row[b], load(x, element + j * g.blocks))
