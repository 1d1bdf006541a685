"""Col2Im, ordered by the output: each tile owns a part of the image, and completes it while it is in the cache.

A unit of work is a band: some rows (along the last two image axes, y and x) of one image plane, at most BAND pixels. Or
it is a group of whole planes, at most GROUP pixels: each step handles all of them, so that its indices are computed
once.

For every position k of the leading axes that lands on that plane, and every position (i, j) along y and x, the blocks
whose pixels lie inside the band are whole rows of blocks: runs that are contiguous in the input, one after the other. A
run's block b is added to the pixel b * stride + shift of its row. With a short stride, the runs are first added up in
lanes, one per pixel modulo stride, where they are contiguous; the lanes are interleaved when the band is complete. With
a long stride, the runs of neighbouring j are transposed, so that neighbours in a row are added to neighbouring pixels.

Blocks that tile the image are copied, by a function of its own: within a network, where a call finds neither code nor
data in the caches, a short one is twice as fast.
"""

from collections import namedtuple

from ..declaration.jit import APART, IN_PLACE, jitable
from ..kernels.elements import integers_in, is_wide, store, sums, sums_in
from ..kernels.shares import pieces, share
from ..kernels.vectors import add_runs, add_transposed, clear_box, interleave
from .sliding_blocks import find_blocks

BAND = 16384  # pixels: their sums, 64 KiB of float32, stay in the second-level cache
GROUP = 4096  # pixels of several planes: their sums, 16 KiB of float32, stay in the first-level cache
LONG = 8  # from this stride on, neighbouring positions along x are added side by side, if there are as many
LANES = 64  # beyond this stride, rows have too few blocks for lanes to pay
RUNS = 512  # positions along x whose runs are computed at once
UNCACHED = 2**23  # bytes of an output that, with its input, caches don't hold: it is best written from begin to end
LARGEST_SUM = 16  # bytes of a sum: complex128
# The pixels of a unit of work: so many planes, rows and columns from these on, and the first one's place in the output.
Band = namedtuple("Band", "plane planes y rows x columns corner")
# Where a band is added up: the array, the place in it of the band's first pixel, the distance from one row to the next,
# and from one lane to the next, which is 0 without lanes.
Sums = namedtuple("Sums", "array first pitch lane")


@jitable
def lane_pitch(g):
    """Return the distance between lanes, in sums; 0 without lanes."""
    last = g.axes - 1
    stride = g.strides[last]
    side_by_side = g.dilations[last] == 1 and min(stride, g.block[last]) >= LONG
    return g.band_x // stride + 2 if 1 < stride <= min(LANES, g.band_x) and not (g.tiled or side_by_side) else 0


@jitable
def row_pitch(g):
    """Return the distance between rows of a band in scratch memory, in sums."""
    lane = lane_pitch(g)
    return g.strides[g.axes - 1] * lane if lane > 0 else g.band_x


@jitable
def workspace_size(g):
    """The bytes that a tile needs: a band's sums, three numbers for each run, two for each leading axis. A copy needs
    none."""
    return 0 if g.tiled else LARGEST_SUM * g.group * g.band_y * row_pitch(g) + 8 * (3 * RUNS + 2 * g.axes)


@jitable
def unit_count(g):
    """Return the number of units of work."""
    return pieces(g.planes, g.group) * g.bands_y * g.bands_x


@jitable
def col2im(x, g, tile, workspace, out):
    if g.tiled:
        copy_tiles(x, g, tile, out)
    else:
        sum_tiles(x, g, tile, workspace, out)


@jitable
def sum_tiles(x, g, tile, workspace, out):
    """Compute all bands of a tile, where blocks overlap or leave gaps: clear, add up, and write each."""
    width, lane = g.image[g.axes - 1], lane_pitch(g)
    aside = lane > 0 or is_wide(out)  # whether sums are in scratch memory until the band is complete
    leads = integers_in(workspace, 0, (2, g.axes))
    runs = integers_in(workspace, leads.nbytes, (3, RUNS))
    size = g.group * g.band_y * row_pitch(g) if aside else 0
    scratch = sums_in(workspace, leads.nbytes + runs.nbytes, size, out)
    target, pitch = scratch if aside else sums(out, scratch), row_pitch(g) if aside else width
    begin, end = share(unit_count(g), g, tile)
    found = (-1, -1)
    for unit in range(begin, end):
        band = band_at(g, unit)
        if aside:
            scratch[:] = 0
        else:
            clear_band(out, band, width)
        found = add_band(x, g, band, Sums(target, 0 if aside else band.corner, pitch, lane), leads, runs, found)
        if lane > 0:
            write_lanes(g, band, scratch, lane, out)
        elif aside:
            write_rows(g, band, scratch, pitch, out)


@jitable(**IN_PLACE)
def band_at(g, unit):
    """Return the Band of a unit of work."""
    height, width = g.image[g.axes - 2], g.image[g.axes - 1]
    x, y = unit % g.bands_x * g.band_x, unit // g.bands_x % g.bands_y * g.band_y
    plane = unit // (g.bands_x * g.bands_y) * g.group
    planes, rows, columns = min(g.group, g.planes - plane), min(g.band_y, height - y), min(g.band_x, width - x)
    return Band(plane, planes, y, rows, x, columns, (plane * height + y) * width + x)


@jitable(**IN_PLACE)
def clear_band(out, band, width):
    """Clear a band's pixels: of planes that follow each other, or of a part of one."""
    if band.columns == width:
        clear_box(out, band.corner, (0, 0, 0), (1, 1, 1), band.planes * band.rows * width)
    else:
        clear_box(out, band.corner, (0, 0, width), (1, 1, band.rows), band.columns)


@jitable
def add_band(x, g, band, sums, leads, runs, found):
    """Add all blocks to a band, for one position of the leading axes after the other; returns `found`.

    leads, runs  room for what is found about leading axes, and about runs
    found        where along x the band and the positions begin for which `runs` holds: small bands have the same
    """
    last, leading = g.axes - 1, g.axes - 2
    p, k, channel = leads[0][:leading], leads[1][:leading], band.plane
    for a in range(leading - 1, -1, -1):
        p[a], k[a] = channel % g.image[a], 0
        channel //= g.image[a]
    positions, blocks = g.block[leading] * g.block[last], g.counts[leading] * g.counts[last]  # along y and x
    first = channel * g.positions * g.blocks  # in the input
    for _ in range(g.positions // positions):
        block = block_at(g, p, k)
        if block >= 0:
            for j in range(0, g.block[last], RUNS):
                if found != (band.x, j):
                    find_runs(g, band, j, sums.lane, runs)
                    found = (band.x, j)
                add_rows(x, first + block * blocks, g, band, j, runs, sums)
        first += positions * g.blocks
        advance(k, leading, g)
    return found


@jitable(**IN_PLACE)
def advance(k, leading, g):
    """Go to the next position k of the leading axes."""
    for a in range(leading - 1, -1, -1):
        k[a] += 1
        if k[a] < g.block[a]:
            break
        k[a] = 0


@jitable
def add_rows(x, first, g, band, j_begin, runs, sums):
    """Add the blocks for one position of the leading axes: for every (i, j) and plane, one run along x for each row.

    `first` is the first of these blocks in the input. `runs` has the runs of the positions j from `j_begin` on.
    """
    last, leading = g.axes - 1, g.axes - 2
    k_x, counts_x, y_pitch = g.block[last], g.counts[last], g.strides[leading] * sums.pitch
    step = 1 if sums.lane > 0 else g.strides[last]  # from one block's pixel to the next block's
    j_count = min(RUNS, k_x - j_begin)
    # From plane to plane; if there are several, a band is whole planes. Products in the loop cost small bands a tenth.
    x_step, plane_pitch = g.positions * g.blocks, g.band_y * sums.pitch
    low, high, start = runs[0], runs[1], runs[2]
    for i in range(g.block[leading]):
        y_low, y_high, y_start = find_blocks(g, leading, i, band.y, band.y + band.rows)
        j = 0
        while j < j_count and y_low < y_high:
            row, count, places = first + (i * k_x + j_begin + j) * g.blocks, high[j] - low[j], 1
            source, pixel = row + y_low * counts_x + low[j], sums.first + y_start * sums.pitch + start[j]
            while step > 1 and j + places < j_count and adjoins(runs, j, places):
                places += 1
            for _ in range(band.planes):
                if step == 1:
                    add_runs(x, source, counts_x, y_high - y_low, count, sums.array, pixel, y_pitch)
                for l in range(0 if step == 1 else y_high - y_low):
                    to = pixel + l * y_pitch
                    add_transposed(x, source + l * counts_x, g.blocks, places, count, sums.array, to, step)
                source += x_step
                pixel += plane_pitch
            j += places


@jitable
def write_lanes(g, band, lanes, lane, out):
    """Write a complete band whose sums are in lanes. The rows of several planes follow each other, here and there."""
    width, stride = g.image[g.axes - 1], g.strides[g.axes - 1]
    pitch, rows, whole = stride * lane, band.planes * band.rows, band.columns // stride
    interleave(lanes, 0, lane, pitch, stride, whole, rows, out, band.corner, width)
    for y in range(rows):
        row, row_lanes = out[band.corner + y * width :], lanes[y * pitch :]
        for r in range(band.columns - whole * stride):
            store(row, whole * stride + r, row_lanes[r * lane + whole])


@jitable
def write_rows(g, band, row_sums, pitch, out):
    """Write a complete band whose sums are in rows."""
    width = g.image[g.axes - 1]
    for y in range(band.planes * band.rows):
        row, sums_of_row = out[band.corner + y * width :][: band.columns], row_sums[y * pitch :]
        for b in range(row.size):
            store(row, b, sums_of_row[b])


@jitable
def adjoins(runs, j, distance):
    """Whether the run of position j + distance has the same blocks as that of j, each `distance` pixels further."""
    k = j + distance
    return runs[0, k] == runs[0, j] and runs[1, k] == runs[1, j] and runs[2, k] == runs[2, j] + distance


@jitable(**APART)
def copy_tiles(x, g, tile, out):
    """Compute all bands of a tile, where blocks tile the image: each pixel is one element of one block, or none."""
    last, leading = g.axes - 1, g.axes - 2
    height, width, counts = g.image[leading], g.image[last], g.counts[last]
    clear = False  # unless blocks leave pixels at the image's ends
    for a in range(g.axes):
        clear |= g.counts[a] * g.strides[a] != g.image[a]
    side, stride = g.strides[leading], g.strides[last]  # as the blocks' sizes
    begin, end = share(unit_count(g), g, tile)
    for unit in range(begin, end):
        y_begin, plane = unit % g.bands_y * g.band_y, unit // g.bands_y * g.group
        y_end, planes = min(y_begin + g.band_y, height), min(g.group, g.planes - plane)
        pixel = (plane * height + y_begin) * width
        if clear:
            clear_box(out, pixel, (0, 0, 0), (1, 1, 1), planes * (y_end - y_begin) * width)
        # Of the leading axes: the block, and the position within it.
        block, lead, exists, k_leading, blocks = 0, 0, True, 1, g.counts[leading] * counts
        for a in range(leading - 1, -1, -1):
            p, plane = plane % g.image[a], plane // g.image[a]
            exists &= p // g.strides[a] < g.counts[a]
            block, lead = block + p // g.strides[a] * blocks, lead + p % g.strides[a] * k_leading
            k_leading, blocks = k_leading * g.block[a], blocks * g.counts[a]
        first = (plane * k_leading + lead) * side * stride * blocks + block
        low = y_begin // side  # where the band begins, counted in blocks: it is whole blocks high
        # Of two axes, the rows within a block and those of blocks: how many, and the steps in the input and the output.
        far, near = (side, stride * blocks, width), (y_end // side - low, counts, side * width)
        if out.nbytes >= UNCACHED:
            far, near = near, far
        for _ in range(planes if exists else 0):
            source, to = first + low * counts, pixel
            for _ in range(far[0]):
                interleave(x, source, blocks, near[1], stride, counts, near[0], out, to, near[2])
                source += far[1]
                to += far[2]
            first += side * stride * blocks
            pixel += height * width


@jitable
def find_runs(g, band, j_begin, lane, runs):
    """Fill the rows of `runs`: for each j, the range of its blocks along x, and where the first block is added."""
    last = g.axes - 1
    stride = g.strides[last]
    for j in range(min(RUNS, g.block[last] - j_begin)):
        low, high, start = find_blocks(g, last, j_begin + j, band.x, band.x + band.columns)
        runs[0, j], runs[1, j] = low, high
        runs[2, j] = start % stride * lane + start // stride if lane > 0 else start


@jitable
def block_at(g, p, k):
    """Return the block, over the leading axes, with position k on the pixel p; -1 if there is none."""
    block = 0
    for a in range(p.size):
        t = p[a] + g.pads[a] - k[a] * g.dilations[a]
        l = t // g.strides[a]
        if t < 0 or l >= g.counts[a] or l * g.strides[a] != t:
            return -1
        block = block * g.counts[a] + l
    return block
