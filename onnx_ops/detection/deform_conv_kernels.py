"""Deformable convolution, for a block of one image's output pixels at a time: read its columns, multiply by weights.

A column has the values that one output pixel reads, for each channel and tap. GridSample's `blend` writes the columns
of a block as rows in the workspace, DEPTH rows at a time. Its points are all taps of a block's pixels. Their places and
weights are computed once for all channels with the same offsets. The product adds to the totals, the block's part of
the output, which stay in the workspace until they are complete.

As in grid_sample.py, columns with an infinity or NaN are read again tap by tap, and so are images that have a single
pixel, or are too large for 32-bit indices.
"""

import numpy as np

from ..declaration.jit import APART, jitable
from ..kernels.elements import indices_in, integers_in, is_wide, load, store, sums, sums_in
from ..kernels.shares import pieces, share
from ..kernels.vectors import WIDTH, add_product, blend
from ..sampling.grid_sample_kernels import LINEAR, combine, multiply_weights
from ..sampling.taps import indexed_images, linear_weights, reading_of

BLOCK = 3 * WIDTH  # output pixels of a block, at most
TAPS = 32  # maximum number of kernel taps whose places are computed at a time
DEPTH = 288  # rows of columns at a time: these and their weights fit into the caches
ROWS = 512  # output channels of a unit of work, at most
PANEL = 8  # rows of 16-bit weights that are widened at a time


@jitable
def deform_conv(x, second, third, fourth, fifth, g, tile, workspace, out):
    """Compute a tile, with inputs in ONNX's order or, if g.mmcv_order is set, in mmcv's."""
    if g.mmcv_order:
        offset, mask, w, bias = second, third, fourth, fifth
    else:
        w, offset, bias, mask = second, third, fourth, fifth
    convolve(x, w, offset, bias, mask, g, tile, workspace, out)


@jitable
def plain_deform_conv(x, offset, w, g, tile, workspace, out):
    convolve(x, w, offset, x[:0], x[:0], g, tile, workspace, out)


@jitable
def workspace_size(g):
    """Return the bytes that a tile needs, for the arrays of `convolve`."""
    of_point = 1 + 2 * g.axes + (4 if g.axes == 3 else 0)
    of_taps = 2 * (2 * 3 + 2**3)
    return 8 * (of_taps + BLOCK * (g.axes + of_point * g.taps + DEPTH + g.rows) + PANEL * DEPTH)


@jitable
def convolve(x, w, offset, bias, mask, g, tile, workspace, out):
    """`bias` and `mask` are empty if there are none."""
    points = g.taps * BLOCK
    base = indices_in(workspace, 0, points)
    begin = base.nbytes
    starts = sums_in(workspace, begin, (g.axes, BLOCK), out)
    begin += starts.nbytes
    weight = sums_in(workspace, begin, (g.axes, 2, points), out)
    begin += weight.nbytes
    row_weight = sums_in(workspace, begin, (2 if g.axes == 3 else 0, 2, points), out)
    begin += row_weight.nbytes
    columns = sums_in(workspace, begin, DEPTH * BLOCK, out)
    begin += columns.nbytes
    totals = sums_in(workspace, begin, g.rows * BLOCK, out)
    begin += totals.nbytes
    panel = sums_in(workspace, begin, PANEL * DEPTH, out)
    places = starts, base, weight, row_weight, workspace[begin + panel.nbytes :]
    begin, end = share(g.units, g, tile)
    for unit in range(begin, end):
        block, row = unit // g.row_blocks, unit % g.row_blocks * g.rows
        n, first = block // g.pixel_blocks, block % g.pixel_blocks * g.block_size
        count = min(g.block_size, g.blocks - first)
        width = pieces(count, WIDTH) * WIDTH
        find_starts(g, first, count, starts)
        placed, row_end = -1, min(row + g.rows, g.outputs)
        while row < row_end:
            group = row // (g.outputs // g.groups)
            rows = min(row_end, (group + 1) * (g.outputs // g.groups)) - row
            begin_totals(bias, row, rows, width, totals)
            placed = add_group(
                x, w, offset, mask, g, n, first, count, width, group, row, rows, placed, places, columns, panel, totals
            )
            for r in range(rows):
                target, total = out[(n * g.outputs + row + r) * g.blocks + first :][:count], totals[r * width :]
                for b in range(target.size):
                    store(target, b, total[b])
            row += rows


@jitable
def find_starts(g, first, count, starts):
    """Store where the kernel's first tap is, without offsets, along each axis, for `count` output pixels."""
    step = g.blocks
    for i in range(g.axes):
        step //= g.counts[i]
        for b in range(count):
            position = (first + b) // step % g.counts[i]
            starts[i, b] = starts.dtype.type(position * g.strides[i] - g.pads[i])


@jitable
def begin_totals(bias, row, rows, width, totals):
    for r in range(rows):
        total, value = totals[r * width :][:width], totals.dtype.type(0)
        if bias.size > 0:
            value = load(bias, row + r)
        total[:] = value


@jitable
def add_group(x, w, offset, mask, g, n, first, count, width, group, row, rows, placed, places, columns, panel, totals):
    """Add the contribution of a group's channels to the totals of `rows` output channels in the group.

    `placed` states the taps and the offset group with places in `places`; returns the new ones.
    """
    of_group, of_offsets = g.channels // g.groups, g.channels // g.offset_groups
    begin, end, fits = group * of_group, (group + 1) * of_group, has_fast_path(g)
    for tap in range(0, g.positions, g.taps):
        taps = min(g.taps, g.positions - tap)
        most = max(1, DEPTH // taps) if taps == g.positions else 1  # else their weights aren't contiguous in w
        c = begin
        while c < end:
            d = c // of_offsets
            channels, at = min(most, end - c, (d + 1) * of_offsets - c), (n * g.offset_groups + d) * g.positions + tap
            if fits and placed != at:
                place(offset, mask, at, tap, taps, g, first, count, width, places)
                placed = at
            sample(x, offset, mask, g, n, c, channels, at, tap, taps, first, count, width, places, columns)
            weights = (row * of_group + c - begin) * g.positions + tap
            multiply(w, weights, of_group * g.positions, rows, columns, channels * taps, width, panel, totals)
            c += channels
    return placed


@jitable
def has_fast_path(g):
    """Return whether `blend` can read the image."""
    return indexed_images(g) > 0 and g.pixels > 1


@jitable
def shift_of(g, i, tap):
    """Return the distance of a tap of the kernel from the first one along axis i."""
    for a in range(i + 1, g.axes):
        tap //= g.block[a]
    return tap % g.block[i] * g.dilations[i]


@jitable
def offset_at(g, at, i):
    """Return the channel of all images' offsets for axis i of tap `at`; -1 for an axis without offsets."""
    i -= g.axes - g.image_axes
    return at * g.image_axes + i if i >= 0 else -1


@jitable
def place(offset, mask, at, tap, taps, g, first, count, width, places):
    """Store the places and weights of a block's pixels, for the taps from `tap` on, one after the other.

    These are the taps from `at` on of all images and offset groups. `width` - `count` pixels are not used: weights 0.
    """
    starts, base, weight, row_weight, _ = places
    number = starts.dtype.type
    for t in range(taps):
        begin, end = t * width, t * width + count
        base[begin : begin + width] = 0
        for i in range(g.axes):
            first_weight, second_weight, k = weight[i, 0], weight[i, 1], offset_at(g, at + t, i)
            first_weight[begin : begin + width] = 0
            second_weight[begin : begin + width] = 0
            if k < 0:
                first_weight[begin:end] = 1
            else:
                displacement, size = offset[k * g.blocks + first :][:count], np.int32(g.image[i])
                place_along(
                    starts[i], number(shift_of(g, i, tap + t)), displacement, size,
                    base[begin:end], first_weight[begin:end], second_weight[begin:end],
                )  # fmt: skip
        if mask.size > 0:
            modulate(mask[(at + t) * g.blocks + first :][:count], weight[0, 0][begin:end], weight[0, 1][begin:end])
    if g.axes == 3:
        multiply_weights(weight, reading_of(g, 2)[0], taps * width, row_weight)


@jitable(**APART)
def place_along(starts, shift, displacement, size, base, first, second):
    """Add one axis to base[b], the first of two neighbours, and store both weights along it."""
    for b in range(base.size):
        k, first[b], second[b] = linear_weights(starts[b] + shift + load(displacement, b), size, first.dtype.type)
        base[b] = np.int32(base[b] * size + k)


@jitable(**APART)
def modulate(mask, first, second):
    for b in range(mask.size):
        first[b] *= load(mask, b)
        second[b] *= load(mask, b)


@jitable
def sample(x, offset, mask, g, n, c, channels, at, tap, taps, first, count, width, places, columns):
    """Store the columns of `channels` channels from c on, with a row for each channel and tap."""
    starts, base, weight, row_weight, rest = places
    points, fits, ((plane, row, column), planes, rows, _) = taps * width, has_fast_path(g), reading_of(g, 2)
    for k in range(channels):
        source, target = x[(n * g.channels + c + k) * g.pixels :][: g.pixels], columns[k * points :]
        done = False
        for q in range((min(2, g.image[plane]) if g.axes == 3 else 1) if fits else 0):
            of_rows = row_weight[q] if g.axes == 3 else weight[row]
            done = blend(source[planes[q] :], base[:points], rows, of_rows, weight[column], LINEAR, q > 0, target)
        if not done:
            sample_tap_by_tap(source, starts, offset, mask, g, at, tap, taps, first, count, width, rest, target)


@jitable
def sample_tap_by_tap(source, starts, offset, mask, g, at, tap, taps, first, count, width, workspace, target):
    """Store the columns of one channel, of an image of any size, from just the pixels that exist."""
    index, found_at = integers_in(workspace, 0, (3, 2)), integers_in(workspace, 8 * 3 * 2, 2**3)
    weight = sums_in(workspace, index.nbytes + found_at.nbytes, (3, 2), target)
    found_weights = sums_in(workspace, index.nbytes + found_at.nbytes + weight.nbytes, 2**3, target)
    number = target.dtype.type
    for t in range(taps):
        target[t * width + count : (t + 1) * width] = 0
        for b in range(count):
            for i in range(g.axes):
                k, p = offset_at(g, at + t, i), number(0)
                if k >= 0:
                    p = starts[i, b] + number(shift_of(g, i, tap + t)) + load(offset, k * g.blocks + first + b)
                index[i, 0] = index[i, 1] = -1
                if p > -1 and p < g.image[i]:
                    whole = np.int64(np.floor(p))
                    weight[i, 1] = p - number(whole)
                    weight[i, 0] = number(1) - weight[i, 1]
                    for s in range(2):
                        index[i, s] = whole + s if 0 <= whole + s < g.image[i] else -1
            total = number(0)
            for s in range(combine(index, weight, g, found_at, found_weights)):
                total += found_weights[s] * load(source, found_at[s])
            if mask.size > 0:
                total *= load(mask, (at + t) * g.blocks + first + b)
            target[t * width + b] = total


@jitable
def multiply(w, first, pitch, rows, columns, depth, width, panel, totals):
    """Add to the totals the product of `rows` rows of weights, `pitch` apart, and columns; widen 16-bit weights."""
    step = PANEL if is_wide(w) else rows
    for row in range(0, rows, step):
        size, at, row_pitch = min(step, rows - row), first + row * pitch, pitch
        for r in range(size if is_wide(w) else 0):
            weights, wide = w[at + r * pitch :][:depth], panel[r * depth :][:depth]
            for k in range(depth):
                wide[k] = load(weights, k)
        if is_wide(w):
            at, row_pitch = 0, depth
        add_product(sums(w, panel), at, row_pitch, size, columns, depth, width, totals[row * width :])
