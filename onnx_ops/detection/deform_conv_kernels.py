"""Deformable convolution, for a block of one image's output pixels at a time: read its columns, multiply by weights.

A column has the values that one output pixel reads, for each channel and tap. GridSample's `blend` writes the columns
of a block as rows in the workspace, DEPTH rows at a time. Its points are all taps of a block's pixels. Their places and
weights are computed once for all channels with the same offsets. The product adds to the totals, the block's part of
the output, which stay in the workspace until they are complete.

As in grid_sample.py, columns with an infinity or NaN are read again tap by tap, and so are images that have a single
pixel, or are too large for 32-bit indices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..declaration.jit import APART, jitable
from ..fold.geometry import SlidingBlocks
from ..kernels.elements import indices_in, integers_in, is_wide, load, store, sums, sums_in
from ..kernels.shares import pieces, share
from ..kernels.vectors import WIDTH, add_product, blend
from ..sampling.grid_sample_kernels import LINEAR, combine, multiply_weights
from ..sampling.taps import indexed_images, linear_weights, reading_of

if TYPE_CHECKING:
    from typing import TypeAlias

    from ..kernels.types import (
        Axis,
        Coordinates,
        Elements,
        Number,
        Offset,
        Pitch,
        Pixel,
        Pixels,
        Sums,
        Tile,
        Weights,
        Workspace,
    )
    from ..sampling.geometry import Pixel32

    Tap: TypeAlias = int  # a position within the kernel

BLOCK = 3 * WIDTH  # output pixels of a block, at most
TAPS = 32  # maximum number of kernel taps whose places are computed at a time
DEPTH = 288  # rows of columns at a time: these and their weights fit into the caches
ROWS = 512  # output channels of a unit of work, at most
PANEL = 8  # rows of 16-bit weights that are widened at a time


class DeformConvGeometry(SlidingBlocks):
    """The channels, and the division of the output into units of work.

    The blocks of the image are the output's pixels, and the positions within a block are the kernel's taps. A unit is
    a block of one image's output pixels, and some output channels.
    """

    channels: int  # of an image
    outputs: int  # output channels
    groups: int  # into which both are divided
    offset_groups: int  # into which the image's channels are divided, each with offsets of its own
    image_axes: int  # with offsets; a lone axis is x beside a y of size 1, which has none
    taps: int  # of the kernel that are sampled at a time, at most
    block_size: int  # output pixels of a unit, at most
    pixel_blocks: int  # of this size, into which the output pixels of an image are divided
    rows: int  # output channels of a unit, at most
    row_blocks: int  # into which the output channels are divided
    units: int  # of work
    mmcv_order: int  # 1 if the inputs are in mmcv's order, 0 if in ONNX's


class Tensors(NamedTuple):
    """The inputs, see deform_conv.py."""

    x: Elements  # images
    w: Elements  # the kernel's weights
    offset: Elements
    bias: Elements  # empty if there is none
    mask: Elements  # empty if there is none


class PixelBlock(NamedTuple):
    """Output pixels of one image, one after the other."""

    n: int  # the image
    first: Pixel
    size: int  # number of pixels
    width: int  # of rows in the workspace: `size` and up to the next multiple of WIDTH


class Taps(NamedTuple):
    """Some of the kernel's taps, one after the other, for one image and one offset group."""

    at: Tap  # the first one: its number among those of all images and offset groups
    first: Tap  # its number in the kernel
    size: int  # number of taps


class Places(NamedTuple):
    """What the pixels of a block read, in the workspace. A point is one pixel's tap."""

    starts: Coordinates  # [axis, pixel]: where the kernel's first tap is, without offsets
    base: Pixels  # for each point, the first of the neighbouring pixels in the image
    weight: Weights  # [axis, neighbour, point]
    row_weight: Weights  # [plane, row, point], of volumes: the products along the axes of planes and rows
    rest: Workspace  # for `sample_tap_by_tap`


class Factors(NamedTuple):
    """The matrices of the product, in the workspace."""

    columns: Sums  # [channel and tap, pixel]
    panel: Sums  # [output channel, channel and tap]: weights, if they must be widened
    totals: Sums  # [output channel, pixel]: the result


@jitable
def deform_conv(
    x: Elements,
    second: Elements,
    third: Elements,
    fourth: Elements,
    fifth: Elements,
    g: DeformConvGeometry,
    tile: Tile,
    workspace: Workspace,
    out: Elements,
) -> None:
    """Compute a tile, with inputs in ONNX's order or, if g.mmcv_order is set, in mmcv's."""
    if g.mmcv_order:
        offset, mask, w, bias = second, third, fourth, fifth
    else:
        w, offset, bias, mask = second, third, fourth, fifth
    convolve(Tensors(x, w, offset, bias, mask), g, tile, workspace, out)


@jitable
def plain_deform_conv(
    x: Elements, offset: Elements, w: Elements, g: DeformConvGeometry, tile: Tile, workspace: Workspace, out: Elements
) -> None:
    """Compute a tile of mmcv's operator without bias and mask."""
    convolve(Tensors(x, w, offset, x[:0], x[:0]), g, tile, workspace, out)


@jitable
def workspace_size(g: DeformConvGeometry) -> int:
    """Return the bytes that a tile needs, for the arrays of `convolve`."""
    of_point = 1 + 2 * g.axes + (4 if g.axes == 3 else 0)
    of_taps = 2 * (2 * 3 + 2**3)
    return 8 * (of_taps + BLOCK * (g.axes + of_point * g.taps + DEPTH + g.rows) + PANEL * DEPTH)


@jitable
def convolve(tensors: Tensors, g: DeformConvGeometry, tile: Tile, workspace: Workspace, out: Elements) -> None:
    """Compute a tile, unit by unit."""
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
    places = Places(starts, base, weight, row_weight, workspace[begin + panel.nbytes :])
    factors = Factors(columns, panel, totals)
    begin, end = share(g.units, g, tile)
    for unit in range(begin, end):
        number, row = unit // g.row_blocks, unit % g.row_blocks * g.rows
        n, first = number // g.pixel_blocks, number % g.pixel_blocks * g.block_size
        count = min(g.block_size, g.blocks - first)
        width = pieces(count, WIDTH) * WIDTH
        block = PixelBlock(n, first, count, width)
        find_starts(g, first, count, starts)
        placed = -1
        row_end = min(row + g.rows, g.outputs)
        while row < row_end:
            group = row // (g.outputs // g.groups)
            rows = min(row_end, (group + 1) * (g.outputs // g.groups)) - row
            begin_totals(tensors.bias, row, rows, width, totals)
            placed = add_group(tensors, g, block, group, row, rows, placed, places, factors)
            for r in range(rows):
                target = out[(n * g.outputs + row + r) * g.blocks + first :][:count]
                total = totals[r * width :]
                for b in range(target.size):
                    store(target, b, total[b])
            row += rows


@jitable
def find_starts(g: DeformConvGeometry, first: Pixel, count: int, starts: Coordinates) -> None:
    """Store where the kernel's first tap is, without offsets, along each axis, for `count` output pixels."""
    step = g.blocks
    for i in range(g.axes):
        step //= g.counts[i]
        for b in range(count):
            position = (first + b) // step % g.counts[i]
            starts[i, b] = starts.dtype.type(position * g.strides[i] - g.pads[i])


@jitable
def begin_totals(bias: Elements, row: int, rows: int, width: int, totals: Sums) -> None:
    """Store the bias of output channels from `row` on, or 0, for each of `width` pixels."""
    for r in range(rows):
        total = totals[r * width :][:width]
        value = totals.dtype.type(0)
        if bias.size > 0:
            value = load(bias, row + r)
        total[:] = value


@jitable
def add_group(
    tensors: Tensors,
    g: DeformConvGeometry,
    block: PixelBlock,
    group: int,
    row: int,
    rows: int,
    placed: Tap,
    places: Places,
    factors: Factors,
) -> Tap:
    """Add the contribution of a group's channels to the totals of `rows` output channels from `row` on.

    placed  `at` of the Taps with places in `places`, or -1; the new one is returned
    """
    of_group = g.channels // g.groups
    of_offsets = g.channels // g.offset_groups
    begin = group * of_group
    end = (group + 1) * of_group
    fits = has_fast_path(g)
    for tap in range(0, g.positions, g.taps):
        size = min(g.taps, g.positions - tap)
        most = max(1, DEPTH // size) if size == g.positions else 1  # else their weights aren't contiguous in w
        c = begin
        while c < end:
            d = c // of_offsets
            channels = min(most, end - c, (d + 1) * of_offsets - c)
            taps = Taps((block.n * g.offset_groups + d) * g.positions + tap, tap, size)
            if fits and placed != taps.at:
                place(tensors, g, taps, block, places)
                placed = taps.at
            sample(tensors, g, c, channels, taps, block, places, factors.columns)
            weights = (row * of_group + c - begin) * g.positions + tap
            multiply(tensors.w, weights, of_group * g.positions, rows, channels * size, block.width, factors)
            c += channels
    return placed


@jitable
def has_fast_path(g: DeformConvGeometry) -> bool:
    """Return whether `blend` can read the image."""
    return indexed_images(g) > 0 and g.pixels > 1


@jitable
def shift_of(g: DeformConvGeometry, i: Axis, tap: Tap) -> int:
    """Return the distance of a tap of the kernel from the first one along axis i."""
    for a in range(i + 1, g.axes):
        tap //= g.block[a]
    return tap % g.block[i] * g.dilations[i]


@jitable
def offset_at(g: DeformConvGeometry, at: int, i: Axis) -> int:
    """Return the channel of all images' offsets for axis i of tap `at`; -1 for an axis without offsets."""
    i -= g.axes - g.image_axes
    return at * g.image_axes + i if i >= 0 else -1


@jitable
def place(tensors: Tensors, g: DeformConvGeometry, taps: Taps, block: PixelBlock, places: Places) -> None:
    """Store the places and weights of a block's pixels, one tap after the other; 0 for what fills up the rows."""
    starts, base, weight, row_weight, _ = places
    _, first, count, width = block
    at, tap, size = taps
    mask = tensors.mask
    number = starts.dtype.type
    for t in range(size):
        begin, end = t * width, t * width + count
        base[begin : begin + width] = 0
        for i in range(g.axes):
            first_weight = weight[i, 0]
            second_weight = weight[i, 1]
            k = offset_at(g, at + t, i)
            first_weight[begin : begin + width] = 0
            second_weight[begin : begin + width] = 0
            if k < 0:
                first_weight[begin:end] = 1
            else:
                displacement = tensors.offset[k * g.blocks + first :][:count]
                pixels = np.int32(g.image[i])
                place_along(
                    starts[i], number(shift_of(g, i, tap + t)), displacement, pixels,
                    base[begin:end], first_weight[begin:end], second_weight[begin:end],
                )  # fmt: skip
        if mask.size > 0:
            modulate(mask[(at + t) * g.blocks + first :][:count], weight[0, 0][begin:end], weight[0, 1][begin:end])
    if g.axes == 3:
        multiply_weights(weight, reading_of(g, 2)[0], size * width, row_weight)


@jitable(**APART)
def place_along(
    starts: Coordinates,
    shift: Number,
    displacement: Elements,
    size: Pixel32,
    base: Pixels,
    first: Weights,
    second: Weights,
) -> None:
    """Add one axis to base[b], the first of two neighbours, and store both weights along it."""
    for b in range(base.size):
        k, first[b], second[b] = linear_weights(starts[b] + shift + load(displacement, b), size, first.dtype.type)
        base[b] = np.int32(base[b] * size + k)


@jitable(**APART)
def modulate(mask: Elements, first: Weights, second: Weights) -> None:
    """Multiply both weights along an axis by the mask."""
    for b in range(mask.size):
        first[b] *= load(mask, b)
        second[b] *= load(mask, b)


@jitable
def sample(
    tensors: Tensors,
    g: DeformConvGeometry,
    c: int,
    channels: int,
    taps: Taps,
    block: PixelBlock,
    places: Places,
    columns: Sums,
) -> None:
    """Store the columns of `channels` channels from c on, with a row for each channel and tap."""
    _, base, weight, row_weight, _ = places
    points = taps.size * block.width
    fits = has_fast_path(g)
    (plane, row, column), planes, rows, _ = reading_of(g, 2)
    for k in range(channels):
        source = tensors.x[(block.n * g.channels + c + k) * g.pixels :][: g.pixels]
        target = columns[k * points :]
        done = False
        for q in range((min(2, g.image[plane]) if g.axes == 3 else 1) if fits else 0):
            of_rows = row_weight[q] if g.axes == 3 else weight[row]
            done = blend(source[planes[q] :], base[:points], rows, of_rows, weight[column], LINEAR, q > 0, target)
        if not done:
            sample_tap_by_tap(source, tensors, g, taps, block, places, target)


@jitable
def sample_tap_by_tap(
    source: Elements,
    tensors: Tensors,
    g: DeformConvGeometry,
    taps: Taps,
    block: PixelBlock,
    places: Places,
    target: Sums,
) -> None:
    """Store the columns of one channel, of an image of any size, from just the pixels that exist."""
    starts, _, _, _, workspace = places
    _, first, count, width = block
    at, tap, size = taps
    mask = tensors.mask
    index = integers_in(workspace, 0, (3, 2))
    found_at = integers_in(workspace, 8 * 3 * 2, 2**3)
    weight = sums_in(workspace, index.nbytes + found_at.nbytes, (3, 2), target)
    found_weights = sums_in(workspace, index.nbytes + found_at.nbytes + weight.nbytes, 2**3, target)
    number = target.dtype.type
    for t in range(size):
        target[t * width + count : (t + 1) * width] = 0
        for b in range(count):
            for i in range(g.axes):
                k = offset_at(g, at + t, i)
                p = number(0)
                if k >= 0:
                    p = starts[i, b] + number(shift_of(g, i, tap + t)) + load(tensors.offset, k * g.blocks + first + b)
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
def multiply(
    w: Elements,
    first: Offset,
    pitch: Pitch,
    rows: int,
    depth: int,
    width: int,
    factors: Factors,
) -> None:
    """Add to the totals the product of `rows` rows of weights and `depth` rows of columns; widen 16-bit weights.

    first, pitch  the first weight, and the distance of rows, in w
    width         of the rows of columns and of totals
    """
    columns, panel, totals = factors
    step = PANEL if is_wide(w) else rows
    for row in range(0, rows, step):
        size = min(step, rows - row)
        at = first + row * pitch
        row_pitch = pitch
        for r in range(size if is_wide(w) else 0):
            weights = w[at + r * pitch :][:depth]
            wide = panel[r * depth :][:depth]
            for k in range(depth):
                wide[k] = load(weights, k)
        if is_wide(w):
            at = 0
            row_pitch = depth
        add_product(sums(w, panel), at, row_pitch, size, columns, depth, width, totals[row * width :])
