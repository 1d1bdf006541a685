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

from ..declaration.jit import APART, IN_PLACE, jitable
from ..kernels.blocks import find_blocks, pieces, share
from ..kernels.elements import integers_in, is_wide, store, sums, sums_in
from ..kernels.vectors import add_runs, add_transposed, clear_box, interleave

BAND = 16384  # pixels: their sums, 64 KiB of float32, stay in the second-level cache
GROUP = 4096  # pixels of several planes: their sums, 16 KiB of float32, stay in the first-level cache
LONG = 8  # from this stride on, neighbouring positions along x are added side by side, if there are as many
LANES = 64  # beyond this stride, rows have too few blocks for lanes to pay
RUNS = 512  # positions along x whose runs are computed at once
LARGEST_SUM = 16  # bytes of a sum: complex128


@jitable
def lane_pitch(g):
    """The distance from one lane to the next, in sums; 0 without lanes."""
    last = g.axes - 1
    stride = g.strides[last]
    side_by_side = g.dilations[last] == 1 and min(stride, g.block[last]) >= LONG
    return g.band_x // stride + 2 if 1 < stride <= min(LANES, g.band_x) and not (g.tiled or side_by_side) else 0


@jitable
def row_pitch(g):
    """The distance from one row of a band to the next, in scratch memory, in sums."""
    lane = lane_pitch(g)
    return g.strides[g.axes - 1] * lane if lane > 0 else g.band_x


@jitable
def workspace_size(g):
    """The bytes that a tile needs: a band's sums, three numbers for each run, two for each leading axis. A copy needs
    none."""
    return 0 if g.tiled else LARGEST_SUM * g.group * g.band_y * row_pitch(g) + 8 * (3 * RUNS + 2 * g.axes)


@jitable
def unit_count(g):
    """The number of units of work."""
    return pieces(g.planes, g.group) * g.bands_y * g.bands_x


@jitable
def col2im(x, g, tile, workspace, out):
    if g.tiled:
        copy_tiles(x, g, tile, out)
    else:
        sum_tiles(x, g, tile, workspace, out)


@jitable
def sum_tiles(x, g, tile, workspace, out):
    lane = lane_pitch(g)
    # Sums that the output's type can't hold are in scratch memory, like lanes, until the band is complete.
    aside = is_wide(out) and lane == 0
    leads = integers_in(workspace, 0, (2, g.axes))
    runs = integers_in(workspace, leads.nbytes, (3, RUNS))
    size = g.group * g.band_y * row_pitch(g) if lane > 0 or aside else 0
    scratch = sums_in(workspace, leads.nbytes + runs.nbytes, size, out)
    fold_tiles(x, g, lane, aside, scratch, runs, leads, tile, out)


@jitable
def fold_tiles(x, g, lane, aside, scratch, runs, leads, tile, out):
    """Compute all bands of a tile. lane: the pitch of lanes, or 0; aside: whether the sums are in scratch memory."""
    last, leading = g.axes - 1, g.axes - 2
    height, width, stride = g.image[leading], g.image[last], g.strides[last]
    k_leading, counts, blocks = 1, g.counts[leading] * g.counts[last], 1
    for a in range(leading):
        k_leading *= g.block[a]
        blocks *= g.counts[a]
    blocks *= counts
    positions, in_place = g.block[leading] * g.block[last], scratch.size == 0
    # From one row of sums to the next; from one block's pixel to the next block's.
    pitch, step = width if in_place else row_pitch(g), 1 if lane > 0 else stride
    target, p, k = scratch if lane > 0 else sums(out, scratch), leads[0][:leading], leads[1][:leading]

    begin, end = share(unit_count(g), g, tile)
    runs_x, runs_j = -1, -1  # where the band and the positions begin for which `runs` holds
    for unit in range(begin, end):
        x_begin = unit % g.bands_x * g.band_x
        x_end = min(x_begin + g.band_x, width)
        y_begin = unit // g.bands_x % g.bands_y * g.band_y
        y_end = min(y_begin + g.band_y, height)
        plane = unit // (g.bands_x * g.bands_y) * g.group
        planes, rows, columns = min(g.group, g.planes - plane), y_end - y_begin, x_end - x_begin
        whole = columns // stride
        corner = (plane * height + y_begin) * width + x_begin
        scratch[:] = 0
        if in_place:
            clear_band(out, corner, width, planes, rows, columns)
        for a in range(leading - 1, -1, -1):
            p[a], k[a] = plane % g.image[a], 0
            plane //= g.image[a]
        for lead in range(k_leading):
            block = block_at(g, p, k)
            first = (plane * k_leading + lead) * positions * blocks + block * counts
            if block >= 0:
                for j in range(0, g.block[last], RUNS):
                    if x_begin != runs_x or j != runs_j:
                        find_runs(g, x_begin, x_end, j, lane, runs)
                        runs_x, runs_j = x_begin, j
                    at = corner if in_place else 0
                    add_blocks(x, first, blocks, g, y_begin, y_end, j, runs, step, planes, target, at, pitch)
            advance(k, leading, g)
        # The rows of whole planes follow each other, in the output and in the scratch.
        rows *= planes
        if lane > 0:
            interleave(scratch, 0, lane, pitch, stride, whole, rows, out, corner, width)
        for y in range(0 if in_place else rows):
            row, row_sums = out[corner + y * width :][:columns], scratch[y * pitch :]
            if aside:
                for b in range(row.size):
                    store(row, b, row_sums[b])
            else:
                for r in range(row.size - whole * stride):
                    store(row, whole * stride + r, row_sums[r * lane + whole])


@jitable(**IN_PLACE)
def clear_band(out, corner, width, planes, rows, columns):
    """Clear a band's pixels, from `corner` on: planes that follow each other, or a part of one."""
    if columns == width:
        clear_box(out, corner, (0, 0, 0), (1, 1, 1), planes * rows * width)
    else:
        clear_box(out, corner, (0, 0, width), (1, 1, rows), columns)


@jitable(**IN_PLACE)
def advance(k, leading, g):
    """Go to the next position k of the leading axes."""
    for a in range(leading - 1, -1, -1):
        k[a] += 1
        if k[a] < g.block[a]:
            break
        k[a] = 0


@jitable
def add_blocks(x, first, blocks, g, y_begin, y_end, j_begin, runs, step, planes, target, at, pitch):
    """Add the blocks for one position of the leading axes: for every (i, j) and plane, one run along x for each row.

    `runs` has the runs of the positions j from `j_begin` on.
    """
    last, leading = g.axes - 1, g.axes - 2
    k_x, counts_x, y_pitch = g.block[last], g.counts[last], g.strides[leading] * pitch
    # From plane to plane; if there are several, a band is a whole plane.
    x_step, plane_pitch = g.positions * g.blocks, g.band_y * pitch
    j_count = min(RUNS, k_x - j_begin)
    low, high, start = runs[0], runs[1], runs[2]
    for i in range(g.block[leading]):
        y_low, y_high, y_start = find_blocks(g, leading, i, y_begin, y_end)
        j = 0
        while j < j_count and y_low < y_high:
            row, count, places = first + (i * k_x + j_begin + j) * blocks, high[j] - low[j], 1
            source, pixel = row + y_low * counts_x + low[j], at + y_start * pitch + start[j]
            while step > 1 and j + places < j_count and adjoins(runs, j, places):
                places += 1
            for _ in range(planes):
                if step == 1:
                    add_runs(x, source, counts_x, y_high - y_low, count, target, pixel, y_pitch)
                for l in range(0 if step == 1 else y_high - y_low):
                    add_transposed(x, source + l * counts_x, blocks, places, count, target, pixel + l * y_pitch, step)
                source += x_step
                pixel += plane_pitch
            j += places


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
            clear_band(out, pixel, width, planes, y_end - y_begin, width)
        # Of the leading axes: the block, and the position within it.
        block, lead, exists, k_leading, blocks = 0, 0, True, 1, g.counts[leading] * counts
        for a in range(leading - 1, -1, -1):
            p, plane = plane % g.image[a], plane // g.image[a]
            exists &= p // g.strides[a] < g.counts[a]
            block, lead = block + p // g.strides[a] * blocks, lead + p % g.strides[a] * k_leading
            k_leading, blocks = k_leading * g.block[a], blocks * g.counts[a]
        first = (plane * k_leading + lead) * side * stride * blocks + block
        # Without divisions, which would take as long as to copy a small plane: where the band is, counted in blocks.
        low, above, high, below = y_begin // side, y_begin % side, y_end // side, y_end % side
        for _ in range(planes if exists else 0):
            for i in range(side):
                y_low = low + (1 if i < above else 0)
                rows = min(high + (1 if i < below else 0), g.counts[leading]) - y_low
                source, to = first + i * stride * blocks + y_low * counts, pixel + (y_low * side + i - y_begin) * width
                interleave(x, source, blocks, counts, stride, counts, rows, out, to, side * width)
            first += side * stride * blocks
            pixel += height * width


@jitable
def find_runs(g, x_begin, x_end, j_begin, lane, runs):
    """Fill the rows of `runs`: for each j, the range of its blocks along x, and where the first block is added."""
    last = g.axes - 1
    stride = g.strides[last]
    for j in range(min(RUNS, g.block[last] - j_begin)):
        low, high, start = find_blocks(g, last, j_begin + j, x_begin, x_end)
        runs[0, j], runs[1, j] = low, high
        runs[2, j] = start % stride * lane + start // stride if lane > 0 else start


@jitable
def block_at(g, p, k):
    """The block, over the leading axes, whose position k lies on the pixel p; -1 if there is none."""
    block = 0
    for a in range(p.size):
        t = p[a] + g.pads[a] - k[a] * g.dilations[a]
        l = t // g.strides[a]
        if t < 0 or l >= g.counts[a] or l * g.strides[a] != t:
            return -1
        block = block * g.counts[a] + l
    return block
