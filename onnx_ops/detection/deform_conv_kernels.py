"""Deformable convolution, for a stripe of one image's output pixels at a time: read its columns,
multiply by weights.

A column has the values that one output pixel reads, for each channel and tap. GridSample's `blend`
writes the columns of a stripe as rows in the workspace, DEPTH rows at a time. Its points are all
taps of a stripe's pixels. Their places and weights are computed once for all channels with the same
offsets. The product adds to the totals, the stripe's part of the output, which stay in the
workspace until they are complete.

As in grid_sample.py, columns with an infinity or NaN are read again tap by tap, and so are images
that have a single pixel, or are too large for 32-bit indices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..declaration.jit import APART, jitable
from ..fold.geometry import SlidingBlocks
from ..kernels.elements import indices_in, integers_in, is_wide, load, store, sums, sums_in
from ..kernels.shares import pieces, share
from ..kernels.vectors import WIDTH, Neighbours, View, add_product, blend
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

STRIPE = 3 * WIDTH  # output pixels of a stripe, at most
TAPS = 32  # maximum number of kernel taps whose places are computed at a time
DEPTH = 288  # rows of columns at a time: these and their weights fit into the caches
OUTPUTS = 512  # output channels of a unit of work, at most
PANEL = 8  # rows of 16-bit weights that are widened at a time


class DeformConvGeometry(SlidingBlocks):
    """The channels, and the division of the output into units of work.

    The blocks of the image are the output's pixels, and the positions within a block are the
    kernel's taps. A unit is a stripe of one image's output pixels, and some output channels.
    """

    channels: int  # of an image
    outputs: int  # output channels
    groups: int  # into which both are divided
    offset_groups: int  # into which the image's channels are divided, each with offsets of its own
    image_axes: int  # with offsets; a lone axis is x beside a y of size 1, which has none
    most_taps: int  # of the kernel that are sampled at a time
    stripe: int  # output pixels of a unit, at most
    stripes: int  # into which the output pixels of an image are divided
    most_outputs: int  # output channels of a unit
    output_parts: int  # into which the output channels are divided
    units: int  # of work
    mmcv_order: int  # 1 if the inputs are in mmcv's order, 0 if in ONNX's


class Tensors(NamedTuple):
    """The inputs, see deform_conv.py."""

    x: Elements  # images
    w: Elements  # the kernel's weights
    offset: Elements
    bias: Elements  # empty if there is none
    mask: Elements  # empty if there is none


class Stripe(NamedTuple):
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
    """What the pixels of a stripe read, in the workspace. A point is one pixel's tap."""

    starts: Coordinates  # [axis, pixel]: where the kernel's first tap is, without offsets
    base: Pixels  # for each point, the first of the neighbouring pixels in the image
    weight: Weights  # [axis, neighbour, point]
    row_weight: (
        Weights  # [plane, row, point], of volumes: the products along the axes of planes and rows
    )
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
    x: Elements,
    offset: Elements,
    w: Elements,
    g: DeformConvGeometry,
    tile: Tile,
    workspace: Workspace,
    out: Elements,
) -> None:
    """Compute a tile of mmcv's operator without bias and mask."""
    convolve(Tensors(x, w, offset, x[:0], x[:0]), g, tile, workspace, out)


@jitable
def workspace_size(g: DeformConvGeometry) -> int:
    """Return the bytes that a tile needs, for the arrays of `convolve`."""
    # base, counted as 8 bytes; weight; row_weight.
    of_point = 1 + 2 * g.axes + (4 if g.axes == 3 else 0)
    of_taps = 2 * (2 * 3 + 2**3)  # the four arrays of `sample_tap_by_tap`
    # starts, points, columns, totals.
    of_pixel = g.axes + of_point * g.most_taps + DEPTH + g.most_outputs
    return 8 * (of_taps + STRIPE * of_pixel + PANEL * DEPTH)


@jitable
def convolve(
    tensors: Tensors, g: DeformConvGeometry, tile: Tile, workspace: Workspace, out: Elements
) -> None:
    """Compute a tile, unit by unit."""
    points = g.most_taps * STRIPE
    base = indices_in(workspace, 0, points)
    begin = base.nbytes
    starts = sums_in(workspace, begin, (g.axes, STRIPE), out)
    begin += starts.nbytes
    weight = sums_in(workspace, begin, (g.axes, 2, points), out)
    begin += weight.nbytes
    row_weight = sums_in(workspace, begin, (2 if g.axes == 3 else 0, 2, points), out)
    begin += row_weight.nbytes
    columns = sums_in(workspace, begin, DEPTH * STRIPE, out)
    begin += columns.nbytes
    totals = sums_in(workspace, begin, g.most_outputs * STRIPE, out)
    begin += totals.nbytes
    panel = sums_in(workspace, begin, PANEL * DEPTH, out)
    places = Places(starts, base, weight, row_weight, workspace[begin + panel.nbytes :])
    factors = Factors(columns, panel, totals)
    of_group = g.outputs // g.groups
    begin, end = share(g.units, g, tile)
    for unit in range(begin, end):
        number, output = unit // g.output_parts, unit % g.output_parts * g.most_outputs
        n, first = number // g.stripes, number % g.stripes * g.stripe
        count = min(g.stripe, g.blocks - first)
        width = pieces(count, WIDTH) * WIDTH
        stripe = Stripe(n, first, count, width)
        find_starts(g, first, count, starts)
        placed_at = -1  # what `places` has is of another stripe
        outputs_end = min(output + g.most_outputs, g.outputs)
        while output < outputs_end:  # a group, or a part of one, at a time
            group = output // of_group
            outputs = min(outputs_end, (group + 1) * of_group) - output
            begin_totals(tensors.bias, output, outputs, width, totals)
            placed_at = add_group(
                tensors, g, stripe, group, output, outputs, placed_at, places, factors
            )
            for r in range(outputs):
                target = out[(n * g.outputs + output + r) * g.blocks + first :][:count]
                total = totals[r * width :]
                for b in range(target.size):
                    store(target, b, total[b])
            output += outputs


@jitable
def find_starts(g: DeformConvGeometry, first: Pixel, count: int, starts: Coordinates) -> None:
    """Store where the kernel's first tap is, without offsets, along each axis, for `count` output
    pixels.
    """
    step = g.blocks
    for i in range(g.axes):
        step //= g.counts[i]
        for b in range(count):
            position = (first + b) // step % g.counts[i]
            starts[i, b] = starts.dtype.type(position * g.strides[i] - g.pads[i])


@jitable
def begin_totals(bias: Elements, output: int, outputs: int, width: int, totals: Sums) -> None:
    """Store the bias of output channels from `output` on, or 0, for each of `width` pixels."""
    for r in range(outputs):
        total = totals[r * width :][:width]
        value = totals.dtype.type(0)
        if bias.size > 0:
            value = load(bias, output + r)
        total[:] = value


@jitable
def add_group(
    tensors: Tensors,
    g: DeformConvGeometry,
    stripe: Stripe,
    group: int,
    output: int,
    outputs: int,
    placed_at: Tap,
    places: Places,
    factors: Factors,
) -> Tap:
    """Add the contribution of a group's channels to the totals of `outputs` output channels from
    `output` on.

    placed_at  `at` of the Taps with places in `places`, or -1; the new one is returned
    """
    group_channels = g.channels // g.groups
    offset_channels = g.channels // g.offset_groups
    begin = group * group_channels
    end = (group + 1) * group_channels
    fits = has_fast_path(g)
    for tap in range(0, g.positions, g.most_taps):
        size = min(g.most_taps, g.positions - tap)
        # Else weights aren't contiguous in w.
        most_channels = max(1, DEPTH // size) if size == g.positions else 1
        c = begin
        while c < end:
            d = c // offset_channels
            channels = min(most_channels, end - c, (d + 1) * offset_channels - c)
            taps = Taps((stripe.n * g.offset_groups + d) * g.positions + tap, tap, size)
            if fits and placed_at != taps.at:
                place(tensors, g, taps, stripe, places)
                placed_at = taps.at
            sample(tensors, g, c, channels, taps, stripe, places, factors.columns)
            weight_at = (output * group_channels + c - begin) * g.positions + tap
            pitch = group_channels * g.positions
            multiply(tensors.w, weight_at, pitch, outputs, channels * size, stripe.width, factors)
            c += channels
    return placed_at


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
    """Return the channel of all images' offsets for axis i of tap `at`; -1 for an axis without
    offsets.
    """
    i -= g.axes - g.image_axes
    return at * g.image_axes + i if i >= 0 else -1


@jitable
def place(
    tensors: Tensors, g: DeformConvGeometry, taps: Taps, stripe: Stripe, places: Places
) -> None:
    """Store the places and weights of a stripe's pixels, one tap after the other; 0 for what fills
    up the rows.
    """
    starts, base, weight, row_weight, _ = places
    _, pixel, count, width = stripe
    at, tap, size = taps
    mask = tensors.mask
    number = starts.dtype.type
    for t in range(size):
        begin, end, padded_end = t * width, t * width + count, t * width + width
        base[begin:padded_end] = 0
        for i in range(g.axes):
            left, right = weight[i, 0], weight[i, 1]
            channel = offset_at(g, at + t, i)
            left[begin:padded_end] = 0
            right[begin:padded_end] = 0
            if channel < 0:  # y beside a lone axis, of which the only pixel is read
                left[begin:end] = 1
            else:
                displacement = tensors.offset[channel * g.blocks + pixel :][:count]
                place_along(
                    starts[i], number(shift_of(g, i, tap + t)), displacement, np.int32(g.image[i]),
                    base[begin:end], left[begin:end], right[begin:end],
                )  # fmt: skip
        if mask.size > 0:  # along one axis is enough, since the weights are multiplied
            modulate(
                mask[(at + t) * g.blocks + pixel :][:count],
                weight[0, 0][begin:end],
                weight[0, 1][begin:end],
            )
    if g.axes == 3:
        multiply_weights(weight, reading_of(g, 2)[0], size * width, row_weight)


@jitable(**APART)
def place_along(
    starts: Coordinates,
    shift: Number,
    displacement: Elements,
    size: Pixel32,
    base: Pixels,
    left: Weights,
    right: Weights,
) -> None:
    """Add one axis to base[b], the first of two neighbours, and store both weights along it."""
    for b in range(base.size):
        k, left[b], right[b] = linear_weights(
            starts[b] + shift + load(displacement, b), size, left.dtype.type
        )
        base[b] = np.int32(base[b] * size + k)


@jitable(**APART)
def modulate(mask: Elements, left: Weights, right: Weights) -> None:
    """Multiply both weights along an axis by the mask."""
    for b in range(mask.size):
        left[b] *= load(mask, b)
        right[b] *= load(mask, b)


@jitable
def sample(
    tensors: Tensors,
    g: DeformConvGeometry,
    c: int,
    channels: int,
    taps: Taps,
    stripe: Stripe,
    places: Places,
    columns: Sums,
) -> None:
    """Store the columns of `channels` channels from c on, with a row for each channel and tap."""
    _, base, weight, row_weight, _ = places
    points = taps.size * stripe.width
    (plane, row, column), plane_offsets, row_offsets, _ = reading_of(
        g, 2
    )  # axes: if there are two, there is no plane
    planes = 0  # that `blend` reads
    if has_fast_path(g):
        planes = min(2, g.image[plane]) if g.axes == 3 else 1
    for k in range(channels):
        source = tensors.x[(stripe.n * g.channels + c + k) * g.pixels :][: g.pixels]
        target = columns[k * points :]
        is_finite = False
        for q in range(planes):  # the last call tests the sums of all planes
            of_rows = row_weight[q] if g.axes == 3 else weight[row]
            neighbours = Neighbours(base[:points], row_offsets, of_rows, weight[column])
            is_finite = blend(source[plane_offsets[q] :], neighbours, LINEAR, q > 0, target)
        if not is_finite:
            sample_tap_by_tap(source, tensors, g, taps, stripe, places, target)


@jitable
def sample_tap_by_tap(
    source: Elements,
    tensors: Tensors,
    g: DeformConvGeometry,
    taps: Taps,
    stripe: Stripe,
    places: Places,
    target: Sums,
) -> None:
    """Store the columns of one channel, of an image of any size, from just the pixels that
    exist.
    """
    starts, _, _, _, workspace = places
    _, pixel, count, width = stripe
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
                channel = offset_at(g, at + t, i)
                p = number(0)
                if channel >= 0:
                    p = (
                        starts[i, b]
                        + number(shift_of(g, i, tap + t))
                        + load(tensors.offset, channel * g.blocks + pixel + b)
                    )
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
                total *= load(mask, (at + t) * g.blocks + pixel + b)
            target[t * width + b] = total


@jitable
def multiply(
    w: Elements,
    first: Offset,
    pitch: Pitch,
    outputs: int,
    depth: int,
    width: int,
    factors: Factors,
) -> None:
    """Add to the totals the product of `outputs` rows of weights and `depth` rows of columns; widen
    16-bit weights.

    first, pitch  the first weight, and the distance of rows, in w
    width         of the rows of columns and of totals
    """
    columns, panel, totals = factors
    step = PANEL if is_wide(w) else outputs
    for row in range(0, outputs, step):
        size = min(step, outputs - row)
        weight_at = first + row * pitch
        row_pitch = pitch
        if is_wide(w):
            for r in range(size):
                stored = w[weight_at + r * pitch :][:depth]
                wide = panel[r * depth :][:depth]
                for k in range(depth):
                    wide[k] = load(stored, k)
            weight_at = 0  # in the panel
            row_pitch = depth
        weights = View(sums(w, panel), weight_at, (row_pitch,))
        add_product(weights, size, columns, depth, width, totals[row * width :])
