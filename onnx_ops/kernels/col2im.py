"""Col2Im from the image's side: every part of the output is written by whoever owns its tile, and stays in the cache
until it is complete.

A unit of work is a band: some rows (along the last two image axes, y and x) of one image plane, at most BAND pixels.
For every position k of the leading axes that lands on that plane, and every position (i, j) along y and x, the blocks
whose pixels lie inside the band are whole rows of blocks: runs that are contiguous in the input, one after the other. A
run's block b is added to the pixel b * stride + shift of its row. With a stride the runs are first added up in lanes,
one per pixel modulo stride, where they are contiguous; the lanes are interleaved when the band is complete.
"""

import numpy as np

from .elements import empty_sums, is_wide, load, plus, store, sums, zero
from .jit import BORROW, jitable
from .vectors import add_runs, interleave

BAND = 16384  # pixels: 64 KiB of float32 stay in the second-level cache while they are added to
LANES = 64  # strides beyond this one leave too few blocks in a row for lanes to pay


@jitable
def col2im(x, g, tile, out):
    last, leading = g.axes - 1, g.axes - 2
    stride = g.strides[last]
    in_lanes = 1 < stride <= min(LANES, g.band_x) and not g.tiled
    lane = g.band_x // stride + 2 if in_lanes else 0
    # Sums that the output can't hold are made elsewhere, like lanes, and written when the band is complete.
    aside = is_wide(out) and not in_lanes and not g.tiled
    scratch = empty_sums(out, g.band_y * (stride * lane + (g.band_x if aside else 0)))
    runs, leads = np.empty((3, g.block[last]), np.int64), np.empty((2, leading), np.int64)
    add_up(x, g, lane, aside, scratch, runs, leads, tile, out)


@jitable(**BORROW)
def add_up(x, g, lane, aside, scratch, runs, leads, tile, out):
    """`lane`: elements of a lane, 0 without lanes."""
    last, leading, in_lanes = g.axes - 1, g.axes - 2, lane > 0
    height, width, stride = g.image[leading], g.image[last], g.strides[last]
    k_y, k_x, counts_y, counts_x = g.block[leading], g.block[last], g.counts[leading], g.counts[last]
    k_leading, blocks = 1, counts_y * counts_x
    for a in range(leading):
        k_leading *= g.block[a]
        blocks *= g.counts[a]
    target, pitch = sums(out, scratch), g.band_x if aside else width
    low, high, start, p, k = runs[0], runs[1], runs[2], leads[0], leads[1]

    # Units are shared out without forming units * tile, which could overflow.
    units = g.planes * g.bands_y * g.bands_x
    share, more = units // g.tiles, units % g.tiles
    first_unit = share * tile + min(tile, more)
    x_known, whole = -1, 0
    for unit in range(first_unit, first_unit + share + (1 if tile < more else 0)):
        x_begin = unit % g.bands_x * g.band_x
        x_end = min(x_begin + g.band_x, width)
        y_begin = unit // g.bands_x % g.bands_y * g.band_y
        y_end = min(y_begin + g.band_y, height)
        plane = unit // (g.bands_x * g.bands_y)
        if x_begin != x_known:
            for j in range(k_x):
                low[j], high[j], start[j] = run(g, last, j, x_begin, x_end)
                if in_lanes:
                    start[j] = start[j] % stride * lane + start[j] // stride
            x_known, whole = x_begin, (x_end - x_begin) // stride
        corner = (plane * height + y_begin) * width + x_begin
        corner_of_sums = 0 if aside else corner
        scratch[:] = 0
        if not aside and not in_lanes:
            for y in range(y_end - y_begin):
                row = out[corner + y * width :][: x_end - x_begin]
                for b in range(row.size):
                    store(row, b, zero(out))
        for a in range(leading - 1, -1, -1):
            p[a], k[a] = plane % g.image[a], 0
            plane //= g.image[a]
        for lead in range(k_leading):
            block = hit(g, p, k)
            for i in range(k_y if block >= 0 else 0):
                y_low, y_high, y_start = run(g, leading, i, y_begin, y_end)
                source = ((plane * k_leading + lead) * k_y + i) * k_x * blocks + block * counts_y * counts_x
                rows, row_step = y_high - y_low, g.strides[leading]
                source += y_low * counts_x
                for j in range(k_x if rows > 0 and not g.tiled else 0):
                    count, first = high[j] - low[j], source + j * blocks + low[j]
                    pixel = corner_of_sums + y_start * pitch + start[j]
                    if in_lanes:
                        pixel = y_start * stride * lane + start[j]
                        add_runs(x, first, counts_x, rows, count, scratch, pixel, row_step * stride * lane)
                    elif stride == 1:
                        add_runs(x, first, counts_x, rows, count, target, pixel, row_step * pitch)
                    else:
                        for l in range(rows):
                            for b in range(count):
                                at = pixel + l * row_step * pitch + b * stride
                                target[at] = plus(target[at], load(x, first + l * counts_x + b))
                for l in range(rows if g.tiled else 0):
                    pixel = corner + (y_start + l * row_step) * width
                    interleave(x[source + l * counts_x :], blocks, stride, whole, out[pixel:])
            for a in range(leading - 1, -1, -1):
                k[a] += 1
                if k[a] < g.block[a]:
                    break
                k[a] = 0
        for y in range(y_end - y_begin if in_lanes or aside else 0):
            row = out[corner + y * width :][: x_end - x_begin]
            if aside:
                for b in range(row.size):
                    store(row, b, scratch[y * pitch + b])
            else:
                lanes = scratch[y * stride * lane :]
                interleave(lanes, lane, stride, whole, row)
                for r in range(row.size - whole * stride):
                    store(row, whole * stride + r, lanes[r * lane + whole])


@jitable(**BORROW)
def run(g, a, k, begin, end):
    """The blocks [low, high) of axis a whose position k lies on the pixels [begin, end), and the first one's pixel."""
    stride = g.strides[a]
    shift = k * g.dilations[a] - g.pads[a] - begin
    low = max(0, -quotient(shift, stride))
    return low, min(g.counts[a], quotient(end - begin - 1 - shift, stride) + 1), low * stride + shift


@jitable
def quotient(a, b):
    """a // b, which takes some CPUs as long as adding up a row."""
    return a if b == 1 else a // b


@jitable(**BORROW)
def hit(g, p, k):
    """Which block, over the leading axes, has its position k on the pixel p; -1 if none."""
    block = 0
    for a in range(p.size):
        t = p[a] + g.pads[a] - k[a] * g.dilations[a]
        l = t // g.strides[a]
        if t < 0 or l >= g.counts[a] or l * g.strides[a] != t:
            return -1
        block = block * g.counts[a] + l
    return block
