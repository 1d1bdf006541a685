"""Regions of images, pooled to bins: the kernels of RoiAlign and of its relatives.

A unit of work has a part of the regions, read one after the other, and some channels. Their planes
stay in the second-level cache meanwhile. A tap is a pixel that a sample reads, with its weight. A
region's taps are computed once for all channels of the unit. There are three ways to pool a region:

    by rows      In an upright box, a tap's weight is the product of the weights of its row and of
                 its column. So rows are added or compared first, along whole vectors of
                 neighbouring pixels. Then each bin combines its columns
    by taps      All other regions: turned ones, those with samples to compare, and those with
                 columns so far apart that reading all pixels between them would take longer
    from a copy  If turned regions read more taps than their images have pixels, a unit first copies
                 its channels with the channels of a pixel side by side. Then a tap is a vector
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..declaration.errors import require
from ..declaration.jit import APART, FUSE, jitable, known
from ..declaration.operator import Geometry
from ..kernels.elements import indices_in, integers_in, load, store, sums_in, zero
from ..kernels.shares import pieces, share
from ..kernels.vectors import Corners, add_points

if TYPE_CHECKING:
    from ..kernels.types import (
        Elements,
        Index,
        Indices,
        Known,
        Number,
        Pitch,
        Pixels,
        Sums,
        Tile,
        Unit,
        Weights,
        Workspace,
    )

# How a bin's samples are pooled. A mode is a tuple, of which only the length matters: it is known
# when a function is compiled; see `is_average` and `compares_samples`.
AVERAGE = known(1)  # the mean of the interpolated samples
LARGEST_TAP = known(2)  # ONNX's max: the largest of all weighted pixels of all samples
LARGEST_SAMPLE = known(3)  # mmcv's max: the largest interpolated sample
# Both maxima also compare zeros that are never read: samples outside of the image, and for
# LARGEST_TAP also taps with weight 0, and bins without samples. A flag `at_least_zero` remembers
# that there was one, and the maximum is raised to 0 in the end. Averages ignore the flag.
MOST_SAMPLES = 2**10  # of a bin along an axis
LEAST_SAMPLE = -10_000  # where mmcv's search for the largest sample begins
CHANNELS = 64  # the most channels of a unit
# Sizes of arrays in the workspace. If those of `pool_by_rows` are too small for a region, it is
# pooled by taps, in as many rounds as it needs.
BINS = 512  # bins of a row of bins that is pooled by rows, and of a round
COLUMNS = 1024  # columns of the image that a row of bins reads
ROWS = 512  # rows of the image that a bin reads
TAPS = 2048  # taps of a round
# The span of a region that is pooled by rows: the pixels of each row that are read, from the
# region's first to its last column. It is rounded up to a multiple of SPAN_UNIT, but not beyond the
# image's width. Regions whose span is longer than SPAN, or has more than SPARSE pixels for each
# column tap, are pooled by taps.
SPAN_UNIT = 16
SPAN = 4096
SPARSE = 32  # beyond this `pool_by_taps` is faster
PITCH = SPAN + SPAN_UNIT  # of pooled rows: with a power of two, they would share cache lines
# Channels that are read at a time, so that indices and weights are loaded once for all of them.
# `pool_columns` and `sum_taps` are written for four.
TOGETHER = 4
# A sum of many terms is a sum of sums, so that its rounding errors stay small.
CHUNK = 64  # taps of a bin that are added up at a time
SAMPLES = 32  # samples of a bin that are added up at a time, from a copy
COPIED_TOGETHER = 16  # pixels that are copied at a time: a cache line or two


class FeatureMaps(Geometry):
    """The sizes of feature maps, and the scale of regions in them."""

    batch: int  # feature maps
    channels: int  # of a feature map
    height: int  # of a channel, in pixels
    width: int
    pixels: int  # pixels of a channel: height times width
    scale: np.int64  # pixels for each unit of a region's coordinates: the bits of a float64


class RoiAlignGeometry(FeatureMaps):
    """The regions with their bins, the attributes, and the division of the output into units.

    A unit of work is a part of the regions, and a block of channels.
    """

    regions: int
    roi_pitch: int  # numbers of a region in `rois`; the box is the last 4 or, turned, 5 of them
    out_height: int  # bins of a region, from top to bottom
    out_width: int
    bins: int  # bins of a region: the product of these two
    ratio: int  # samples of a bin along each axis; 0 or less: as many as the bin has pixels
    half_pixel: int  # 1 if integer coordinates are the edges of pixels, 0 if they are the centres
    clockwise: int  # 1 if turned boxes are turned by their angles, 0 if by the negated ones
    block: int  # the most channels of a unit
    parts: int  # parts into which the regions are divided
    units: int  # units of work: parts times blocks of channels
    copied: int  # elements of a unit's copy of its channels; 0 if there is no copy


class Inputs(NamedTuple):
    """The inputs, see roi_align.py."""

    x: Elements
    rois: Elements
    batches: tuple[Indices, ...]  # (batch_indices,), or () if the first column of `rois` has them


class Work(NamedTuple):
    """A unit of work: some channels of some regions."""

    channel: int  # the first channel
    channels: int  # number of channels
    region: int  # the first region
    region_end: int  # the number after that of the last region


class RegionAxis(NamedTuple):
    """A region along an axis, in pixels."""

    start: Number  # from the image's first pixel; from the centre of a turned box
    step: Number  # size of a bin
    samples: int  # of a bin


class Box(NamedTuple):
    """A region's place in its image."""

    y: RegionAxis
    x: RegionAxis
    turn: tuple[Number, ...]  # (sine, cosine, centre's y, its x) if turned; () for an upright box


class Region(NamedTuple):
    """A region in some channels: what is read, and where the results are stored."""

    box: Box
    planes: Elements  # its image, from the first of these channels on
    channels: int
    out: Elements  # its bins in the output, from the first one in the first of these channels on


class AxisTaps(NamedTuple):
    """Taps along an axis, in the workspace."""

    pixel: Pixels
    weight: Weights


class RowTaps(NamedTuple):
    """The rows of the image that a bin reads, in the workspace.

    For averages `pool_rows` passes them to `add_points`, which is made for squares of 2 x 2
    corners. Each row is given to it as a square of which only corner 0 exists.
    """

    taps: AxisTaps  # its `weight` is the same memory as weight[0] below
    weight: Weights  # [corner, row]: only corner 0 is ever stored or read
    ones: Pixels  # for each row, which corners exist, as bits: always 0b0001


class ColumnTaps(NamedTuple):
    """The columns that are read for a region's bins, from left to right, in the workspace."""

    taps: AxisTaps
    ends: Pixels  # bin q of a row has the taps from ends[q] on and before ends[q + 1]
    at_least_zero: Pixels  # for each of them, whether its maximum includes a 0 that isn't read


class Round(NamedTuple):
    """The taps of some bins, in the workspace. The last bin may continue in the next round."""

    offset: Indices  # for each tap, its pixel's number in the image
    weight: Weights  # of each tap
    totals: Sums  # for each channel, the result so far of the bin that continues
    ends: Pixels  # bin b has the taps from ends[b] on and before ends[b + 1]
    at_least_zero: Pixels  # for each bin, whether its maximum includes a 0 that isn't read


class RoundBins(NamedTuple):
    """The bins of a round."""

    first: int  # its number among the region's bins
    size: int  # number of bins
    complete: int  # bins that have their last tap in this round: all, or all but the last one
    resumes: bool  # whether the first one began in an earlier round


class NextSample(NamedTuple):
    """The sample whose taps come next."""

    bin: int
    i: int  # its row among the bin's samples
    j: int  # its column
    at_least_zero: bool  # whether the bin's maximum so far includes a 0 that isn't read


# A mode is known when a function is compiled, as the length of a tuple. So LLVM drops the branches
# for the other modes.
@jitable
def is_average(mode: Known) -> bool:
    """Return whether bins are averages of samples."""
    return len(mode) == len(AVERAGE)


@jitable
def compares_samples(mode: Known) -> bool:
    """Return whether bins are the largest samples."""
    return len(mode) == len(LARGEST_SAMPLE)


@jitable
def workspace_size() -> int:
    """Return the bytes of `row_arrays`, `round_in` or `pool_copy`; copied channels come behind."""
    # Each integer of 4 bytes is counted as 8, as are sums. The counts are multiples of 8, so that a
    # copy begins with a cache line; 8 more have room for the last element of `ends`. `copy_arrays`
    # needs less: 44 bytes for each of SAMPLES, and 16 for each of CHANNELS.
    by_rows = TOGETHER * PITCH + 6 * ROWS + 2 * COLUMNS + 2 * BINS
    by_taps = 2 * TAPS + CHANNELS + 2 * BINS
    return 8 * (max(by_rows, by_taps) + 8)


@jitable
def roi_align(
    x: Elements,
    rois: Elements,
    batches: tuple[Indices, ...],
    g: RoiAlignGeometry,
    tile: Tile,
    workspace: Workspace,
    out: Elements,
) -> None:
    """Compute a tile with mode avg."""
    pool(Inputs(x, rois, batches), AVERAGE, g, tile, workspace, out)


@jitable
def roi_align_max(
    x: Elements,
    rois: Elements,
    batches: tuple[Indices, ...],
    g: RoiAlignGeometry,
    tile: Tile,
    workspace: Workspace,
    out: Elements,
) -> None:
    """Compute a tile of ONNX's operator with mode max."""
    pool(Inputs(x, rois, batches), LARGEST_TAP, g, tile, workspace, out)


@jitable
def mmcv_roi_align_max(
    x: Elements,
    rois: Elements,
    batches: tuple[Indices, ...],
    g: RoiAlignGeometry,
    tile: Tile,
    workspace: Workspace,
    out: Elements,
) -> None:
    """Compute a tile of mmcv's operator with mode max."""
    pool(Inputs(x, rois, batches), LARGEST_SAMPLE, g, tile, workspace, out)


@jitable
def mmcv_roi_align_rotated(
    x: Elements,
    rois: Elements,
    g: RoiAlignGeometry,
    tile: Tile,
    workspace: Workspace,
    out: Elements,
) -> None:
    """Compute a tile of turned boxes."""
    inputs = Inputs(x, rois, ())
    check_images(inputs, g)
    begin, end = share(g.units, g, tile)
    for unit in range(begin, end):
        if g.copied:
            pool_copies(inputs, unit, g, workspace, out)
            continue
        work = work_of(g, unit)
        for r in range(work.region, work.region_end):
            box = turned_box(rois, r, g)
            region = region_of(inputs, r, box, work, g, out)
            pool_by_taps(region, AVERAGE, g, workspace)


@jitable
def pool(
    inputs: Inputs,
    mode: Known,
    g: RoiAlignGeometry,
    tile: Tile,
    workspace: Workspace,
    out: Elements,
) -> None:
    """Compute a tile of upright boxes. mode: AVERAGE, LARGEST_TAP or LARGEST_SAMPLE."""
    check_images(inputs, g)
    begin, end = share(g.units, g, tile)
    for unit in range(begin, end):
        work = work_of(g, unit)
        for r in range(work.region, work.region_end):
            box = upright_box(inputs.rois, r, g)
            region = region_of(inputs, r, box, work, g, out)
            if not pool_by_rows(region, mode, g, workspace):
                pool_by_taps(region, mode, g, workspace)


@jitable
def work_of(g: RoiAlignGeometry, unit: Unit) -> Work:
    """Return the channels and regions of a unit of work."""
    channel = unit // g.parts * g.block
    part = unit % g.parts
    regions = pieces(g.regions, g.parts)
    return Work(
        channel,
        min(g.block, g.channels - channel),
        min(part * regions, g.regions),
        min((part + 1) * regions, g.regions),
    )


@jitable
def region_of(
    inputs: Inputs, r: int, box: Box, work: Work, g: RoiAlignGeometry, out: Elements
) -> Region:
    """Return region r, which has this box, in the channels of a unit of work."""
    plane = image_of(inputs.rois, inputs.batches, r, g) * g.channels + work.channel
    first_bin = (r * g.channels + work.channel) * g.bins
    return Region(box, inputs.x[plane * g.pixels :], work.channels, out[first_bin:])


@jitable
def check_images(inputs: Inputs, g: RoiAlignGeometry) -> None:
    """Refuse regions of nonexistent images."""
    for r in range(g.regions):
        n = image_of(inputs.rois, inputs.batches, r, g)
        require(
            0 <= n < g.batch,
            "{batch_indices}",
            n,
            "must be positions of images, less than",
            g.batch,
        )


@jitable
def image_of(rois: Elements, batches: tuple[Indices, ...], r: int, g: RoiAlignGeometry) -> Index:
    """Return the position of a region's image, or a negative number."""
    # Numba leaves this branch out for () only if the tuple is a parameter.
    if len(batches):
        return np.int64(batches[0][r])
    n = load(rois, r * g.roi_pitch)
    return np.int64(n) if abs(n) < type(n)(2**31) else -1


@jitable
def scale_of(g: FeatureMaps) -> np.float64:
    """Return the pixels for each unit of a region's coordinates."""
    return np.int64(g.scale).view(np.float64)


@jitable
def upright_box(rois: Elements, r: int, g: RoiAlignGeometry) -> Box:
    """Return the box of region r."""
    number = type(zero(rois))
    begin = r * g.roi_pitch + g.roi_pitch - 4
    scale = number(scale_of(g))
    offset = number(0.5) if g.half_pixel else number(0)
    left = load(rois, begin) * scale - offset
    top = load(rois, begin + 1) * scale - offset
    right = load(rois, begin + 2) * scale - offset
    bottom = load(rois, begin + 3) * scale - offset
    y_axis = axis_of(top, bottom - top, g.out_height, g)
    x_axis = axis_of(left, right - left, g.out_width, g)
    return Box(y_axis, x_axis, ())


@jitable
def turned_box(rois: Elements, r: int, g: RoiAlignGeometry) -> Box:
    """Return the box of region r, with axes that are counted from its centre."""
    number = type(zero(rois))
    begin = r * g.roi_pitch + 1
    scale = number(scale_of(g))
    offset = number(0.5) if g.half_pixel else number(0)
    x = load(rois, begin) * scale - offset
    y = load(rois, begin + 1) * scale - offset
    width = load(rois, begin + 2) * scale
    height = load(rois, begin + 3) * scale
    angle = np.float64(load(rois, begin + 4))
    if not g.clockwise:
        angle = -angle
    if not g.half_pixel:  # as in `axis_of`, but before the start is computed from the size
        width = at_least_one(width)
        height = at_least_one(height)
    y_axis = axis_of(height * number(-0.5), height, g.out_height, g)
    x_axis = axis_of(width * number(-0.5), width, g.out_width, g)
    return Box(y_axis, x_axis, (number(np.sin(angle)), number(np.cos(angle)), y, x))


@jitable
def at_least_one(size: Number) -> Number:
    """Return a size, or 1 if it is smaller."""
    return size if size >= type(size)(1) else type(size)(1)


@jitable
def axis_of(start: Number, size: Number, bins: int, g: RoiAlignGeometry) -> RegionAxis:
    """Return a region's axis of this size, from `start` on. bins: the number of bins along it."""
    number = type(start)
    if not g.half_pixel:
        size = at_least_one(size)
    step = size / number(bins)
    if not (abs(start) < number(np.inf) and abs(step) < number(np.inf)):
        return RegionAxis(start, step, 0)
    if g.ratio > 0:
        return RegionAxis(start, step, g.ratio)
    pixels = min(max(np.ceil(step), number(0)), number(MOST_SAMPLES))
    return RegionAxis(start, step, int(pixels))


@jitable
def sample_coordinate(axis: RegionAxis, p: int, j: int) -> Number:
    """Return the coordinate of sample j of bin p along an axis."""
    number = type(axis.start)
    bin_start = axis.start + number(p) * axis.step
    return bin_start + (number(j) + number(0.5)) * axis.step / number(axis.samples)


@jitable
def turned(turn: tuple[Number, ...], y: Number, x: Number) -> tuple[Number, Number]:
    """Return the coordinates in the image of a point of a box; `turn` is that of the Box."""
    if len(turn) == 0:
        return y, x
    sine, cosine, centre_y, centre_x = turn
    return y * cosine + x * sine + centre_y, x * cosine - y * sine + centre_x


@jitable
def sample_at(box: Box, p: int, q: int, i: int, j: int) -> tuple[Number, Number]:
    """Return the coordinates in the image of sample (i, j) of bin (p, q)."""
    return turned(box.turn, sample_coordinate(box.y, p, i), sample_coordinate(box.x, q, j))


@jitable
def is_inside(v: Number, size: int) -> bool:
    """Return whether a coordinate is at most a pixel away from an axis of this size."""
    return v >= type(v)(-1) and v <= type(v)(size)


@jitable
def taps_of(v: Number, size: int) -> tuple[Index, Index, Number]:
    """Return the two pixels of an axis around a coordinate, and the weight of the second one."""
    number = type(v)
    if v <= number(0):
        v = number(0)
    low = np.int64(v)
    if low >= size - 1:
        return size - 1, size - 1, number(0)
    return low, low + 1, v - number(low)


@jitable
def tap_weight(t: int, down: Number, across: Number) -> Number:
    """Return the weight of tap t of four: 0 and 1 in the upper row, 2 and 3 in the lower one.

    down, across  the weights of the lower row and of the right column
    """
    number = type(down)
    return (down if t // 2 else number(1) - down) * (across if t % 2 else number(1) - across)


@jitable
def share_of_sample(box: Box) -> Number:
    """Return the weight of a sample in the average of a bin."""
    number = type(box.y.start)
    return number(1) / (number(max(box.y.samples, 1)) * number(max(box.x.samples, 1)))


@jitable
def pool_by_rows(region: Region, mode: Known, g: RoiAlignGeometry, workspace: Workspace) -> bool:
    """Pool a region; return False if there is too little room, or if it would not pay.

    If it returns False, what it has stored must be computed again. LARGEST_SAMPLE can't be
    pooled by rows: it is the largest of sums. LARGEST_TAP can, as no weight is negative.
    """
    if compares_samples(mode) or g.out_width > BINS:
        return False
    pooled, rows, columns = row_arrays(workspace, region.out)
    left, span = find_columns(region.box.x, mode, g, columns)
    if span < 0:
        return False
    rows.ones[:] = 1
    for p in range(g.out_height):
        count, at_least_zero = append_axis_taps(region.box.y, p, g.height, mode, rows.taps, 0)
        if count < 0:  # more rows than there is room for
            return False
        for c in range(0, region.channels, TOGETHER):
            together = min(TOGETHER, region.channels - c)
            for k in range(together):
                source = region.planes[(c + k) * g.pixels + left :]
                pool_rows(source, rows, count, mode, g.width, pooled[k, :span])
            out = region.out[c * g.bins + p * g.out_width :]
            pool_columns(pooled, together, mode, columns, at_least_zero, g, out)
    return True


@jitable
def row_arrays(workspace: Workspace, out: Elements) -> tuple[Sums, RowTaps, ColumnTaps]:
    """Return the arrays of `pool_by_rows`; the first one has the pooled rows, [channel, column]."""
    # The bytes at which arrays begin, in the order of memory, after the pooled rows.
    row_weight = 8 * TOGETHER * PITCH
    column_weight = row_weight + 8 * 4 * ROWS
    row_pixel = column_weight + 8 * COLUMNS
    column_pixel = row_pixel + 4 * 2 * ROWS
    ends = column_pixel + 4 * COLUMNS
    at_least_zero = ends + 4 * (BINS + 1)
    weight = sums_in(workspace, row_weight, (4, ROWS), out)
    pixel, ones = indices_in(workspace, row_pixel, (2, ROWS))
    column_taps = AxisTaps(
        indices_in(workspace, column_pixel, COLUMNS),
        sums_in(workspace, column_weight, COLUMNS, out),
    )
    return (
        sums_in(workspace, 0, (TOGETHER, PITCH), out),
        RowTaps(AxisTaps(pixel, weight[0]), weight, ones),
        ColumnTaps(
            column_taps,
            indices_in(workspace, ends, BINS + 1),
            indices_in(workspace, at_least_zero, BINS),
        ),
    )


@jitable
def find_columns(
    axis: RegionAxis, mode: Known, g: RoiAlignGeometry, columns: ColumnTaps
) -> tuple[Number, Number]:
    """Store the columns that bins read; return the first one, and how many pixels of a row to read.

    The stored columns are counted from the first one. If there is no room for them, or if it would
    not pay to read all pixels between them, the number of pixels is -1.
    """
    pixel = columns.taps.pixel
    count: Index = 0
    left: Number = g.width  # the columns from `left` on and before `right` are read
    right: Number = 0
    columns.ends[0] = 0
    for q in range(g.out_width):
        begin = count
        count, columns.at_least_zero[q] = append_axis_taps(
            axis, q, g.width, mode, columns.taps, count
        )
        if count < 0:
            return 0, -1
        for t in range(begin, count):
            left = min(left, pixel[t])
            right = max(right, pixel[t] + 1)
        columns.ends[q + 1] = count
    span = min(g.width, pieces(right - left, SPAN_UNIT) * SPAN_UNIT) if count > 0 else 0
    if span > SPAN or span > SPARSE * count:
        return 0, -1
    left = min(left, g.width - span)  # so that all of the span lies in the image
    for t in range(count):
        pixel[t] -= left
    return left, span


@jitable
def append_axis_taps(
    axis: RegionAxis, p: int, size: int, mode: Known, taps: AxisTaps, begin: Index
) -> tuple[Index, bool]:
    """Store the taps of bin p along an axis from position `begin` on.

    For an average each pixel is stored once, and weights are divided by the number of samples.
    Returns the position after the last one, or -1 if there is no room, and whether there are
    samples outside, or taps with a weight of 0.
    """
    end = begin
    at_least_zero = axis.samples == 0
    number = type(axis.start)
    sample_weight = number(1)
    if is_average(mode):
        sample_weight = number(1) / number(max(axis.samples, 1))
    for j in range(axis.samples):
        v = sample_coordinate(axis, p, j)
        if not is_inside(v, size):
            at_least_zero = True
            continue
        if end + 2 > taps.pixel.size:
            return -1, at_least_zero
        low, high, f = taps_of(v, size)  # 0 <= f < 1, so the first tap always counts
        end = append_tap(mode, taps, begin, end, low, (number(1) - f) * sample_weight)
        if f > number(0):
            end = append_tap(mode, taps, begin, end, high, f * sample_weight)
        else:  # the second tap isn't read, but counts as 0
            at_least_zero = True
    return end, at_least_zero


@jitable
def append_tap(
    mode: Known, taps: AxisTaps, begin: Index, end: Index, pixel: Index, weight: Number
) -> Index:
    """Append a tap to those from `begin` on and before `end`; return the new end.

    For an average, its weight is added to that of one of the last two taps if they have its pixel.
    """
    if is_average(mode):
        for t in range(max(begin, end - 2), end):
            if taps.pixel[t] == pixel:
                taps.weight[t] += weight
                return end
    taps.pixel[end] = pixel
    taps.weight[end] = weight
    return end + 1


@jitable
def pool_rows(
    source: Elements, rows: RowTaps, count: Index, mode: Known, width: Pitch, target: Sums
) -> None:
    """Pool `count` rows of a channel, column by column. width: of a row in `source`."""
    if is_average(mode):
        pixel = rows.taps.pixel[:count]
        # `add_points` sums squares of 2 x 2 corners. Here a row of the image is a "pixel" of
        # `width` channels, and only corner 0 exists, as the bits 0b0001 say. So `add_points` reads
        # neither the weights of the other corners nor the widths, and any array does for these.
        unread_widths = rows.ones
        corners = Corners(pixel, unread_widths, rows.ones, rows.weight)
        add_points(source, width, corners, False, target)
    else:
        compare_rows(source, rows.taps, count, width, target)


@jitable
def compare_rows(
    source: Elements, taps: AxisTaps, count: Index, width: Pitch, target: Sums
) -> None:
    """Store the largest weighted pixel of each column.

    target[b] = the largest of  weight[t] * source[pixel[t] * width + b]   for t < count
    """
    target[:] = -np.inf
    pixel, weight = taps
    for t in range(0, count, 4):  # if less than four are left, the last one is compared again
        u = min(t + 1, count - 1)
        v = min(t + 2, count - 1)
        w = min(t + 3, count - 1)
        keep_largest(
            (
                source[pixel[t] * width :],
                source[pixel[u] * width :],
                source[pixel[v] * width :],
                source[pixel[w] * width :],
            ),
            (weight[t], weight[u], weight[v], weight[w]),
            target,
        )


@jitable(**APART)
def keep_largest(
    rows: tuple[Elements, Elements, Elements, Elements],
    weights: tuple[Number, Number, Number, Number],
    target: Sums,
) -> None:
    """Replace elements of `target` that are smaller than those of one of four weighted rows."""
    p, q, r, s = rows
    p_weight, q_weight, r_weight, s_weight = weights
    for b in range(target.size):
        first = larger(p_weight * load(p, b), q_weight * load(q, b))
        second = larger(r_weight * load(r, b), s_weight * load(s, b))
        target[b] = larger(target[b], larger(first, second))


@jitable(**FUSE)
def pool_columns(
    pooled: Sums,
    together: int,
    mode: Known,
    columns: ColumnTaps,
    at_least_zero: bool,
    g: RoiAlignGeometry,
    target: Elements,
) -> None:
    """Pool the columns of each bin of a row of bins, in at most four channels.

    target[c * g.bins + q] = sum or largest of  weight[t] * pooled[c, pixel[t]]
                             for ends[q] <= t < ends[q + 1]

    for q < g.out_width, and for the channels c < together. If there are fewer than four, the last
    one is written again. Where at_least_zero says so, the largest is at least 0.
    """
    # The channels after channel 0; missing ones are the last one again.
    c1 = min(1, together - 1)
    c2 = min(2, together - 1)
    c3 = min(3, together - 1)
    pixel, weight = columns.taps
    pitch = g.bins
    number = pooled.dtype.type
    for q in range(g.out_width):
        initial = number(0)
        if not (is_average(mode) or at_least_zero or columns.at_least_zero[q]):
            initial = number(-np.inf)
        v0 = v1 = v2 = v3 = initial
        for t in range(columns.ends[q], columns.ends[q + 1]):
            w = weight[t]
            k = np.uint32(pixel[t])  # unsigned, so that Numba doesn't test whether it is negative
            v0 = with_tap(v0, w * pooled[0, k], mode)
            v1 = with_tap(v1, w * pooled[c1, k], mode)
            v2 = with_tap(v2, w * pooled[c2, k], mode)
            v3 = with_tap(v3, w * pooled[c3, k], mode)
        store(target, q, v0)
        store(target, c1 * pitch + q, v1)
        store(target, c2 * pitch + q, v2)
        store(target, c3 * pitch + q, v3)


@jitable(**FUSE)
def with_tap(total: Number, tap: Number, mode: Known) -> Number:
    """Return the result of a bin after one more tap."""
    return total + tap if is_average(mode) else larger(total, tap)


@jitable
def pool_by_taps(region: Region, mode: Known, g: RoiAlignGeometry, workspace: Workspace) -> None:
    """Pool a region, with any box in any mode.

    A round has the taps of some bins, or of a part of one. They are found once, and then read from
    each channel.
    """
    round_ = round_in(workspace, region.out)
    sample = first_sample(region.box, 0, mode)
    while sample.bin < g.bins:
        first = sample
        sample, size = fill_round(region.box, first, mode, g, round_)
        resumes = first.i > 0 or first.j > 0
        part = RoundBins(first.bin, size, sample.bin - first.bin, resumes)
        if is_average(mode):
            sum_bins(region, round_, part, g)
        else:
            compare_bins(region, round_, part, mode, g)


@jitable
def round_in(workspace: Workspace, out: Elements) -> Round:
    """Return the arrays of `pool_by_taps`."""
    # The bytes at which arrays begin, in the order of memory, after `offset`.
    weight = 8 * TAPS
    totals = weight + 8 * TAPS
    ends = totals + 8 * CHANNELS
    at_least_zero = ends + 4 * (BINS + 1)
    return Round(
        integers_in(workspace, 0, TAPS),
        sums_in(workspace, weight, TAPS, out),
        sums_in(workspace, totals, CHANNELS, out),
        indices_in(workspace, ends, BINS + 1),
        indices_in(workspace, at_least_zero, BINS),
    )


@jitable
def first_sample(box: Box, bin_: int, mode: Known) -> NextSample:
    """Return the first sample of a bin. A bin without samples is 0, except for mmcv's maximum."""
    has_samples = box.y.samples * box.x.samples != 0
    return NextSample(bin_, 0, 0, not has_samples and not compares_samples(mode))


@jitable
def fill_round(
    box: Box, sample: NextSample, mode: Known, g: RoiAlignGeometry, round_: Round
) -> tuple[NextSample, int]:
    """Store the taps of bins, from a sample on, as far as they fit.

    Returns the next sample, and the number of bins with taps in this round.
    """
    size = 0
    count = 0
    round_.ends[0] = 0
    while sample.bin < g.bins and size < BINS and count + 4 <= TAPS:
        sample, count = append_taps(box, sample, mode, g, round_, count)
        round_.at_least_zero[size] = sample.at_least_zero
        size += 1
        round_.ends[size] = count
        if sample.i == box.y.samples:  # else the next round has the rest of the bin's taps
            sample = first_sample(box, sample.bin + 1, mode)
    return sample, size


@jitable
def append_taps(
    box: Box, sample: NextSample, mode: Known, g: RoiAlignGeometry, round_: Round, count: int
) -> tuple[NextSample, int]:
    """Append taps of a bin, from a sample on, to the `count` stored ones, as far as they fit.

    Taps with a weight of 0 are left out, unless samples are compared, which need all four taps.
    Returns the next sample and the number of taps.
    """
    bin_, i, j, at_least_zero = sample
    p = bin_ // g.out_width
    q = bin_ % g.out_width
    number = round_.weight.dtype.type
    sample_weight = share_of_sample(box) if is_average(mode) else number(1)
    while i < box.y.samples and count + 4 <= TAPS:
        while j < box.x.samples and count + 4 <= TAPS:
            y, x = sample_at(box, p, q, i, j)
            j += 1
            if not (is_inside(y, g.height) and is_inside(x, g.width)):
                at_least_zero = True
                continue
            top, bottom, down = taps_of(y, g.height)
            left, right, across = taps_of(x, g.width)
            for t in range(4):
                w = tap_weight(t, down, across)
                if w > number(0) or compares_samples(mode):
                    row = bottom if t // 2 else top
                    round_.offset[count] = row * g.width + (right if t % 2 else left)
                    round_.weight[count] = w * sample_weight
                    count += 1
                else:
                    at_least_zero = True
        if j == box.x.samples:
            j = 0
            i += 1
    return NextSample(bin_, i, j, at_least_zero), count


@jitable
def sum_bins(region: Region, round_: Round, part: RoundBins, g: RoiAlignGeometry) -> None:
    """Add up the taps of a round's bins in each channel."""
    # Between calls of `sum_taps`, totals[c : c + TOGETHER] are the sums so far of a bin that
    # continues in the next round, or else 0.
    for c in range(0, region.channels, TOGETHER):
        if not part.resumes:
            round_.totals[c : c + TOGETHER] = 0
        for b in range(part.size):
            sum_taps(region, c, round_, part, b, g)


@jitable(**FUSE)
def sum_taps(
    region: Region, c: int, round_: Round, part: RoundBins, b: int, g: RoiAlignGeometry
) -> None:
    """Add up the taps of bin b of a round in at most four channels, from channel c on.

    totals[c + k] += sum over t of  weight[t] * planes[(c + k) * g.pixels + offset[t]]
                     for ends[b] <= t < ends[b + 1] and k < 4

    If there are fewer than four channels, the last one is read again, for totals that are never
    stored. The totals of a complete bin are stored, and become 0.
    """
    together = min(TOGETHER, region.channels - c)
    # The channels after channel c, counted from it; missing ones are the last one again.
    c1 = min(1, together - 1)
    c2 = min(2, together - 1)
    c3 = min(3, together - 1)
    first = region.planes[c * g.pixels :]
    second = first[c1 * g.pixels :]
    third = first[c2 * g.pixels :]
    fourth = first[c3 * g.pixels :]
    totals = round_.totals[c:]
    end = round_.ends[b + 1]
    for begin in range(round_.ends[b], end, CHUNK):
        v0 = v1 = v2 = v3 = zero(totals)
        weights = round_.weight[begin : min(begin + CHUNK, end)]
        offsets = round_.offset[begin:]
        for t in range(weights.size):
            w = weights[t]
            offset = np.uintp(offsets[t])  # unsigned, as in `pool_columns`
            v0 += w * load(first, offset)
            v1 += w * load(second, offset)
            v2 += w * load(third, offset)
            v3 += w * load(fourth, offset)
        totals[0] += v0
        totals[1] += v1
        totals[2] += v2
        totals[3] += v3
    if b < part.complete:
        target = region.out[c * g.bins + part.first + b :]
        for k in range(together):
            store(target, k * g.bins, totals[k])
            totals[k] = 0


@jitable
def compare_bins(
    region: Region, round_: Round, part: RoundBins, mode: Known, g: RoiAlignGeometry
) -> None:
    """Compare the taps of a round's bins, or its samples, in each channel."""
    totals = round_.totals
    number = totals.dtype.type
    for c in range(region.channels):
        source = region.planes[c * g.pixels :][: g.pixels]
        target = region.out[c * g.bins + part.first :]
        for b in range(part.size):
            total = number(LEAST_SAMPLE if compares_samples(mode) else -np.inf)
            if b == 0 and part.resumes:
                total = totals[c]
            if compares_samples(mode):
                total = largest_sample(total, source, round_, b)
            else:
                total = largest_tap(total, source, round_, b)
            if b == part.complete:
                totals[c] = total
            else:
                store(target, b, larger(total, number(0)) if round_.at_least_zero[b] else total)


@jitable
def largest_sample(total: Number, source: Elements, round_: Round, b: int) -> Number:
    """Return the largest of `total` and the samples of bin b.

    A sample is the sum over u < 4 of  weight[t + u] * source[offset[t + u]],  without weights of 0.
    """
    for t in range(round_.ends[b], round_.ends[b + 1], 4):
        sample = zero(source)
        for u in range(t, t + 4):
            if round_.weight[u] > zero(source):
                # An unsigned index, as in `pool_columns`.
                sample += round_.weight[u] * load(source, np.uintp(round_.offset[u]))
        total = larger(total, sample)
    return total


@jitable
def largest_tap(total: Number, source: Elements, round_: Round, b: int) -> Number:
    """Return the largest of `total` and the weighted pixels of bin b."""
    for t in range(round_.ends[b], round_.ends[b + 1]):
        # An unsigned index, as in `pool_columns`.
        total = larger(total, round_.weight[t] * load(source, np.uintp(round_.offset[t])))
    return total


@jitable
def larger(a: Number, b: Number) -> Number:
    """Return the larger of two numbers, or NaN if one is."""
    return b if b > a or b != b else a


@jitable
def pool_copies(
    inputs: Inputs, unit: Unit, g: RoiAlignGeometry, workspace: Workspace, out: Elements
) -> None:
    """Pool a unit's regions, image by image, from a copy of its channels."""
    copy = sums_in(workspace, workspace_size(), g.copied, out)
    work = work_of(g, unit)
    for n in range(g.batch):
        is_copied = False
        for r in range(work.region, work.region_end):
            if image_of(inputs.rois, inputs.batches, r, g) == n:
                box = turned_box(inputs.rois, r, g)
                region = region_of(inputs, r, box, work, g, out)
                if not is_copied:
                    copy_side_by_side(region.planes, region.channels, g.pixels, copy)
                    is_copied = True
                pool_copy(copy, region, g, workspace)


@jitable
def copy_side_by_side(planes: Elements, channels: int, pixels: int, copy: Sums) -> None:
    """copy[k * channels + c] = planes[c * pixels + k]   for k < pixels and c < channels"""
    for begin in range(0, pixels, COPIED_TOGETHER):
        for c in range(channels):
            source = planes[c * pixels + begin :]
            target = copy[begin * channels + c :]
            for k in range(min(COPIED_TOGETHER, pixels - begin)):
                # Unsigned indices, as in `pool_columns`.
                target[np.uintp(k) * np.uintp(channels)] = load(source, np.uintp(k))


@jitable
def pool_copy(copy: Sums, region: Region, g: RoiAlignGeometry, workspace: Workspace) -> None:
    """Pool a region with a turned box from a copy of its channels by `copy_side_by_side`."""
    box, _, channels, out = region
    points, totals, chunk = copy_arrays(workspace, channels, out)
    points.widths[:] = g.width
    for b in range(g.bins):
        i = j = 0
        is_first = True
        while is_first or i < box.y.samples:
            i, j, placed = place_samples(box, b, i, j, g, points)
            add_points(copy, channels, placed, False, chunk)  # stores 0 if there are no points
            for c in range(channels):
                totals[c] = chunk[c] if is_first else totals[c] + chunk[c]
            is_first = False
        for c in range(channels):
            store(out, c * g.bins + b, totals[c])


@jitable
def copy_arrays(workspace: Workspace, channels: int, out: Elements) -> tuple[Corners, Sums, Sums]:
    """Return the arrays of `pool_copy`: points, and sums of all and of some of a bin's samples."""
    # The bytes at which arrays begin, in the order of memory, after the integers.
    weight = 4 * 3 * SAMPLES
    totals = weight + 8 * 4 * SAMPLES
    pixels, widths, exist = indices_in(workspace, 0, (3, SAMPLES))
    points = Corners(pixels, widths, exist, sums_in(workspace, weight, (4, SAMPLES), out))
    total, chunk = sums_in(workspace, totals, (2, channels), out)
    return points, total, chunk


@jitable
def place_samples(
    box: Box, b: int, i: int, j: int, g: RoiAlignGeometry, points: Corners
) -> tuple[int, int, Corners]:
    """Store the samples of bin b that are inside, from sample (i, j) on, as points.

    Returns the row and the column of the next sample, and the stored points: at most SAMPLES.
    """
    pixels, widths, exist, weight = points
    p = b // g.out_width
    q = b % g.out_width
    sample_weight = share_of_sample(box)
    count = 0
    while i < box.y.samples and count < SAMPLES:
        while j < box.x.samples and count < SAMPLES:
            y, x = sample_at(box, p, q, i, j)
            j += 1
            if is_inside(y, g.height) and is_inside(x, g.width):
                top, _, down = taps_of(y, g.height)
                left, _, across = taps_of(x, g.width)
                pixels[count] = top * g.width + left
                exist[count] = 0
                for t in range(4):
                    w = tap_weight(t, down, across)
                    weight[t, count] = w * sample_weight
                    exist[count] |= (w > type(w)(0)) << t
                count += 1
        if j == box.x.samples:
            j = 0
            i += 1
    return i, j, Corners(pixels[:count], widths, exist, weight)
