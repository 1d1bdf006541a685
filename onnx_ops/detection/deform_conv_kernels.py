"""Deformable convolution: a product of weights and columns, for a stripe of pixels at a time.

The columns are a matrix, as in im2col: element [channel and tap, pixel] is the interpolated value
that an output pixel reads from a channel at a tap of the kernel. At most DEPTH rows of it are in
the workspace at a time. GridSample's `blend` computes them channel by channel. Its points are all
taps of a stripe's pixels; their neighbours and weights are computed once for all channels with the
same offsets. Weights times columns are added to the totals, the stripe's part of the output, which
stay in the workspace until they are complete.

For a tap outside of the image, `blend` reads a pixel inside with weight 0, which gives NaN at an
infinity. So, as in grid_sample_kernels.py, if a channel's sums are not all finite, its rows are
computed again tap by tap, from existing pixels only. Images that have a single pixel, or are too
large for 32-bit indices, are read tap by tap from the start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..declaration.jit import APART, IN_PLACE, jitable
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
        Indices,
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
TAPS = 32  # of the kernel, at most, that are sampled at a time
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


class Inputs(NamedTuple):
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


class Outputs(NamedTuple):
    """Output channels of one group, one after the other."""

    group: int
    first: int
    size: int  # number of channels


class Channels(NamedTuple):
    """Channels of the image with the same offsets, one after the other."""

    first: int
    size: int  # number of channels


class Taps(NamedTuple):
    """Some of the kernel's taps, one after the other, for one image and one offset group."""

    # The first tap's number among the taps of all images and offset groups: its row of the mask. It
    # also tells whether `points` already has these taps, see `cached_row`.
    row: int
    first: Tap
    size: int  # number of taps


class Points(NamedTuple):
    """What a stripe reads from the image, in the workspace. A point is one pixel's tap."""

    starts: Coordinates  # [axis, pixel]: where the kernel's first tap is, without offsets
    base: Pixels  # for each point, the first of the neighbouring pixels in the image
    weight: Weights  # [axis, neighbour, point]
    # [plane, row, point], of volumes: the products along the axes of planes and rows
    row_weight: Weights
    rest: Workspace  # for `sample_tap_by_tap`


class Factors(NamedTuple):
    """The matrices of the product, in the workspace."""

    columns: Sums  # [channel and tap, pixel]
    panel: Sums  # [output channel, channel and tap]: weights, if they must be widened
    totals: Sums  # [output channel, pixel]: the result


@jitable
def deform_conv(
    x: Elements,
    operands: tuple[Elements, ...],
    g: DeformConvGeometry,
    tile: Tile,
    workspace: Workspace,
    out: Elements,
) -> None:
    """Compute a tile, with operands in ONNX's order or, if g.mmcv_order is set, in mmcv's."""
    if len(operands) == 2:  # mmcv's operator without mask and bias
        offset, w = operands
        mask = bias = x[:0]
    elif g.mmcv_order:
        offset, mask, w, bias = operands
    else:
        w, offset, bias, mask = operands
    convolve(Inputs(x, w, offset, bias, mask), g, tile, workspace, out)


@jitable
def workspace_size(g: DeformConvGeometry) -> int:
    """Return the bytes that a tile needs, for the arrays of `arrays_in`."""
    # base, counted as 8 bytes; weight; row_weight.
    of_point = 1 + 2 * g.axes + (4 if g.axes == 3 else 0)
    of_slow_path = 2 * (2 * 3 + 2**3)  # the four arrays of `sample_tap_by_tap`
    # starts, points, columns, totals.
    of_pixel = g.axes + of_point * g.most_taps + DEPTH + g.most_outputs
    return 8 * (of_slow_path + STRIPE * of_pixel + PANEL * DEPTH)


# In place: LLVM generates 4 % more instructions for arrays that a function returns.
@jitable(**IN_PLACE)
def arrays_in(workspace: Workspace, g: DeformConvGeometry, out: Elements) -> tuple[Points, Factors]:
    """Return the arrays in a tile's workspace."""
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
    rest = workspace[begin + panel.nbytes :]
    return Points(starts, base, weight, row_weight, rest), Factors(columns, panel, totals)


@jitable
def convolve(
    inputs: Inputs, g: DeformConvGeometry, tile: Tile, workspace: Workspace, out: Elements
) -> None:
    """Compute a tile, unit by unit."""
    points, factors = arrays_in(workspace, g, out)
    group_outputs = g.outputs // g.groups
    begin, end = share(g.units, g, tile)
    for unit in range(begin, end):
        number = unit // g.output_parts  # of the stripe among those of all images
        first = number % g.stripes * g.stripe
        pixels = min(g.stripe, g.blocks - first)
        stripe = Stripe(number // g.stripes, first, pixels, pieces(pixels, WIDTH) * WIDTH)
        find_starts(g, stripe, points.starts)
        cached_row = -1  # `points` has those of the stripe before
        output = unit % g.output_parts * g.most_outputs
        outputs_end = min(output + g.most_outputs, g.outputs)
        while output < outputs_end:  # a group, or a part of one, at a time
            group = output // group_outputs
            size = min(outputs_end, (group + 1) * group_outputs) - output
            outputs = Outputs(group, output, size)
            begin_totals(inputs.bias, outputs, stripe.width, factors.totals)
            cached_row = add_group(inputs, g, stripe, outputs, cached_row, points, factors)
            store_totals(factors.totals, outputs, stripe, g, out)
            output += size


@jitable
def find_starts(g: DeformConvGeometry, stripe: Stripe, starts: Coordinates) -> None:
    """Store where the kernel's first tap is, without offsets, for a stripe's pixels."""
    step = g.blocks
    for i in range(g.axes):
        step //= g.counts[i]
        for b in range(stripe.size):
            position = (stripe.first + b) // step % g.counts[i]
            starts[i, b] = starts.dtype.type(position * g.strides[i] - g.pads[i])


@jitable
def begin_totals(bias: Elements, outputs: Outputs, width: int, totals: Sums) -> None:
    """Store the bias of output channels, or 0, for each of `width` pixels."""
    for r in range(outputs.size):
        total = totals[r * width :][:width]
        value = totals.dtype.type(0)
        if bias.size > 0:
            value = load(bias, outputs.first + r)
        total[:] = value


@jitable
def store_totals(
    totals: Sums, outputs: Outputs, stripe: Stripe, g: DeformConvGeometry, out: Elements
) -> None:
    """Store the totals of a stripe's pixels in the output."""
    for r in range(outputs.size):
        channel = stripe.n * g.outputs + outputs.first + r
        target = out[channel * g.blocks + stripe.first :][: stripe.size]
        total = totals[r * stripe.width :]
        for b in range(target.size):
            store(target, b, total[b])


@jitable
def add_group(
    inputs: Inputs,
    g: DeformConvGeometry,
    stripe: Stripe,
    outputs: Outputs,
    cached_row: int,
    points: Points,
    factors: Factors,
) -> int:
    """Add the contribution of a group's channels to the totals of its output channels.

    cached_row  `row` of the Taps with points in `points`, or -1; the new one is returned
    """
    group_channels = g.channels // g.groups
    offset_channels = g.channels // g.offset_groups
    begin = outputs.group * group_channels
    end = (outputs.group + 1) * group_channels
    fits = has_fast_path(g)
    for tap in range(0, g.positions, g.most_taps):
        size = min(g.most_taps, g.positions - tap)
        # The weights are [output, channel, tap]: those of several channels are one run only if all
        # of their taps are read.
        most_channels = max(1, DEPTH // size) if size == g.positions else 1
        c = begin
        while c < end:
            d = c // offset_channels
            channels = Channels(c, min(most_channels, end - c, (d + 1) * offset_channels - c))
            taps = Taps((stripe.n * g.offset_groups + d) * g.positions + tap, tap, size)
            if fits and cached_row != taps.row:
                find_points(inputs, g, taps, stripe, points)
                cached_row = taps.row
            sample(inputs, g, channels, taps, stripe, points, factors.columns)
            first = (outputs.first * group_channels + c - begin) * g.positions + tap
            pitch = group_channels * g.positions
            depth = channels.size * size
            multiply(inputs.w, first, pitch, outputs.size, depth, stripe.width, factors)
            c += channels.size
    return cached_row


@jitable
def has_fast_path(g: DeformConvGeometry) -> bool:
    """Return whether `blend` can read the image: it loads two neighbours at once."""
    return indexed_images(g) > 0 and g.pixels > 1


@jitable
def shift_of(g: DeformConvGeometry, i: Axis, tap: Tap) -> int:
    """Return the distance of a tap of the kernel from the first one along axis i."""
    for a in range(i + 1, g.axes):
        tap //= g.block[a]
    return tap % g.block[i] * g.dilations[i]


@jitable
def offset_row(g: DeformConvGeometry, row: int, i: Axis) -> int:
    """Return the row of the offsets along axis i of a tap; -1 for an axis without offsets.

    row  the tap's row of the mask
    """
    i -= g.axes - g.image_axes
    return row * g.image_axes + i if i >= 0 else -1


@jitable
def find_points(
    inputs: Inputs, g: DeformConvGeometry, taps: Taps, stripe: Stripe, points: Points
) -> None:
    """Store the neighbours and weights of a stripe's points, one tap after the other.

    Those that fill up the rows are 0.
    """
    starts, base, weight, row_weight, _ = points
    _, pixel, count, width = stripe
    row, tap, size = taps
    mask = inputs.mask
    number = starts.dtype.type
    for t in range(size):
        begin = t * width
        end = begin + count
        padded_end = begin + width
        base[begin:padded_end] = 0
        for i in range(g.axes):
            left, right = weight[i, 0], weight[i, 1]
            displacement_row = offset_row(g, row + t, i)
            left[begin:padded_end] = 0
            right[begin:padded_end] = 0
            if displacement_row < 0:  # y beside a lone axis, of which the only pixel is read
                left[begin:end] = 1
            else:
                displacement = inputs.offset[displacement_row * g.blocks + pixel :][:count]
                add_axis(
                    starts[i], number(shift_of(g, i, tap + t)), displacement, np.int32(g.image[i]),
                    base[begin:end], left[begin:end], right[begin:end],
                )  # fmt: skip
        if mask.size > 0:  # along one axis is enough, since the weights are multiplied
            modulate(
                mask[(row + t) * g.blocks + pixel :][:count],
                weight[0, 0][begin:end],
                weight[0, 1][begin:end],
            )
    if g.axes == 3:
        multiply_weights(weight, reading_of(g, 2)[0], size * width, row_weight)


@jitable(**APART)
def add_axis(
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
    inputs: Inputs,
    g: DeformConvGeometry,
    channels: Channels,
    taps: Taps,
    stripe: Stripe,
    points: Points,
    columns: Sums,
) -> None:
    """Store the columns of some channels, with a row for each channel and tap."""
    _, base, weight, row_weight, _ = points
    count = taps.size * stripe.width
    # `blend` reads squares: two rows along the axis `row`, of two pixels each along the axis
    # `column`. A volume needs two calls, one for each plane along the axis `plane`; the second one
    # adds to the sums of the first. With two axes there is one call, and `plane` is no axis.
    (plane, row, column), plane_offsets, row_offsets, _ = reading_of(g, 2)
    planes = 0  # calls of `blend`
    if has_fast_path(g):
        planes = min(2, g.image[plane]) if g.axes == 3 else 1
    for k in range(channels.size):
        source = inputs.x[(stripe.n * g.channels + channels.first + k) * g.pixels :][: g.pixels]
        target = columns[k * count :]
        is_finite = False  # if there is no call; else what the last one says of the complete sums
        for q in range(planes):
            of_rows = row_weight[q] if g.axes == 3 else weight[row]
            neighbours = Neighbours(base[:count], row_offsets, of_rows, weight[column], g.pixels)
            is_finite = blend(source[plane_offsets[q] :], neighbours, LINEAR, q > 0, target)
        if not is_finite:
            sample_tap_by_tap(source, inputs, g, taps, stripe, points, target)


@jitable
def sample_tap_by_tap(
    source: Elements,
    inputs: Inputs,
    g: DeformConvGeometry,
    taps: Taps,
    stripe: Stripe,
    points: Points,
    target: Sums,
) -> None:
    """Store the columns of one channel, of an image of any size, reading only existing pixels."""
    _, pixel, count, width = stripe
    row, tap, size = taps
    mask = inputs.mask
    index = integers_in(points.rest, 0, (3, 2))
    pixels = integers_in(points.rest, 8 * 3 * 2, 2**3)
    begin = index.nbytes + pixels.nbytes
    weight = sums_in(points.rest, begin, (3, 2), target)
    pixel_weight = sums_in(points.rest, begin + weight.nbytes, 2**3, target)
    number = target.dtype.type
    for t in range(size):
        target[t * width + count : (t + 1) * width] = 0
        for b in range(count):
            for i in range(g.axes):
                displacement_row = offset_row(g, row + t, i)
                p = number(0)
                if displacement_row >= 0:
                    p = (
                        points.starts[i, b]
                        + number(shift_of(g, i, tap + t))
                        + load(inputs.offset, displacement_row * g.blocks + pixel + b)
                    )
                find_neighbours(p, g.image[i], index[i], weight[i])
            total = number(0)
            for s in range(combine(index, weight, g, pixels, pixel_weight)):
                total += pixel_weight[s] * load(source, pixels[s])
            if mask.size > 0:
                total *= load(mask, (row + t) * g.blocks + pixel + b)
            target[t * width + b] = total


@jitable
def find_neighbours(p: Number, size: int, index: Indices, weight: Weights) -> None:
    """Store the two pixels around a coordinate, -1 for those outside of the axis, and weights."""
    number = weight.dtype.type
    index[0] = index[1] = -1
    if p > -1 and p < size:
        low = np.int64(np.floor(p))
        weight[1] = p - number(low)
        weight[0] = number(1) - weight[1]
        for s in range(2):
            index[s] = low + s if 0 <= low + s < size else -1


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
    """Add the product of rows of weights and rows of columns to the totals; widen 16-bit weights.

    first, pitch    the first weight, and the distance of rows, in w
    outputs, depth  numbers of rows of weights, and of columns
    width           of the rows of columns and of totals
    """
    columns, panel, totals = factors
    # Weights of 16 bits are summed in a wider type; `is_wide` says so. PANEL rows of them at a time
    # are converted into the panel, and read from there. Other weights are read from w itself.
    step = PANEL if is_wide(w) else outputs
    for row in range(0, outputs, step):
        size = min(step, outputs - row)
        weight_at = first + row * pitch
        row_pitch = pitch
        if is_wide(w):
            for r in range(size):
                weights = w[weight_at + r * pitch :][:depth]
                wide = panel[r * depth :][:depth]
                for k in range(depth):
                    wide[k] = load(weights, k)
            weight_at = 0  # from here on: where the rows are in the panel, no longer in w
            row_pitch = depth
        # `sums` adds nothing up: it returns the panel for 16-bit weights, else w.
        rows = View(sums(w, panel), weight_at, (row_pitch,))
        add_product(rows, size, columns, depth, width, totals[row * width :])
