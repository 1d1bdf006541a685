"""Regions of images, pooled to bins: the kernels of RoiAlign and of its relatives.

A unit of work has a part of the regions, read one after the other, and some channels. Their planes
stay in the second-level cache meanwhile. A region's pixels and weights are computed once for all
channels of the unit.

In an upright box, a tap's weight is the product of the weights of its row and of its column. So
rows are added or compared first, along whole vectors of neighbouring pixels. Then each bin combines
its columns. Other regions are read tap by tap: turned ones, those with samples to compare, and
those with columns so far apart that reading all pixels between them would take longer.

If turned regions read more taps than their images have pixels, a unit first copies its channels
with the channels of a pixel side by side. Then a tap is a vector.
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
        Offset,
        Pitch,
        Pixels,
        Sums,
        Tile,
        Unit,
        Weights,
        Workspace,
    )

AVERAGE, LARGEST_TAP, LARGEST_SAMPLE = (
    known(1),
    known(2),
    known(3),
)  # how a bin's samples are pooled
MOST = 2**10  # samples of a bin along an axis
LEAST = -10_000  # where mmcv's search for the largest sample begins
CHANNELS = 64  # of a unit, at most
BINS, COLUMNS, ROWS, TAPS = 512, 1024, 512, 2048  # that there is room for
SPAN = 4096  # pixels from the first to the last column of a region that is read by rows, at most
SPARSE = 32  # pixels, for each column that is read, up to which that pays
LANES = 16  # rows are added up over multiples of so many pixels, if the image is as wide
# Channels that are read at a time, so that indices and weights are loaded once for all of them.
TOGETHER = 4
SAMPLES = 32  # of a copy that are added up at a time


class FeatureMaps(Geometry):
    """The sizes of feature maps, and the scale of regions in them."""

    batch: int  # feature maps
    channels: int  # of a feature map
    height: int  # of a channel, in pixels
    width: int
    pixels: int  # of a channel: their product
    scale: np.int64  # pixels for each unit of a region's coordinates: the bits of a float64


class RoiAlignGeometry(FeatureMaps):
    """The regions with their bins, the attributes, and the division of the output into units of
    work.

    A unit is a part of the regions, and a block of channels.
    """

    regions: int
    columns: int  # numbers of a region in `rois`; the box is the last 4 or, turned, 5 of them
    out_height: int  # bins of a region, from top to bottom
    out_width: int
    bins: int  # of a region: their product
    ratio: int  # samples of a bin along each axis; 0 or less: as many as the bin has pixels
    half_pixel: (
        int  # 1 if a coordinate's integers are the edges of pixels, 0 if they are the centres
    )
    clockwise: int  # 1 if turned boxes are turned by their angles, 0 if by the negated ones
    block: int  # channels of a unit, at most
    parts: int  # into which the regions are divided
    units: int  # of work
    copied: int  # elements of a unit's copy of its channels; 0: there is no copy


class RegionAxis(NamedTuple):
    """A region along an axis, in pixels."""

    start: Number  # from the image's first pixel; from the centre of a turned box
    step: Number  # size of a bin
    samples: int  # of a bin


class Box(NamedTuple):
    """A region."""

    y: RegionAxis
    x: RegionAxis
    turn: tuple[
        Number, ...
    ]  # (sine, cosine, the centre's y and x) of a turned box; () for an upright one


class Round(NamedTuple):
    """The taps of some bins, in the workspace. The last bin may continue in the next round."""

    offset: Indices  # for each tap, its pixel's number in the image
    weight: Weights  # of each tap
    ends: Pixels  # bin b has the taps from ends[b] on and before ends[b + 1]
    zeros: Pixels  # for each bin, whether a sample or a tap counts as 0
    totals: Sums  # for each channel, the bin that continues, so far


@jitable
def workspace_size() -> int:
    """Return the bytes that a tile needs: arrays of `pool_by_rows` or `pool_by_taps`, then a
    copy.
    """
    by_rows = 8 * (TOGETHER * (SPAN + LANES) + 4 * ROWS + COLUMNS) + 4 * (
        COLUMNS + 3 * ROWS + 2 * BINS + 1
    )
    by_taps = 8 * (2 * TAPS + CHANNELS) + 4 * (2 * BINS + 1)
    return (max(by_rows, by_taps) + 127) // 64 * 64


@jitable
def roi_align(
    x: Elements,
    rois: Elements,
    batch_indices: Indices,
    g: RoiAlignGeometry,
    tile: Tile,
    workspace: Workspace,
    out: Elements,
) -> None:
    """Compute a tile of ONNX's operator with mode avg."""
    pool(x, rois, (batch_indices,), AVERAGE, g, tile, workspace, out)


@jitable
def roi_align_max(
    x: Elements,
    rois: Elements,
    batch_indices: Indices,
    g: RoiAlignGeometry,
    tile: Tile,
    workspace: Workspace,
    out: Elements,
) -> None:
    """Compute a tile of ONNX's operator with mode max."""
    pool(x, rois, (batch_indices,), LARGEST_TAP, g, tile, workspace, out)


@jitable
def mmcv_roi_align(
    x: Elements,
    rois: Elements,
    g: RoiAlignGeometry,
    tile: Tile,
    workspace: Workspace,
    out: Elements,
) -> None:
    """Compute a tile of mmcv's operator with mode avg."""
    pool(x, rois, (), AVERAGE, g, tile, workspace, out)


@jitable
def mmcv_roi_align_max(
    x: Elements,
    rois: Elements,
    g: RoiAlignGeometry,
    tile: Tile,
    workspace: Workspace,
    out: Elements,
) -> None:
    """Compute a tile of mmcv's operator with mode max."""
    pool(x, rois, (), LARGEST_SAMPLE, g, tile, workspace, out)


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
    check_images(rois, (), g)
    begin, end = share(g.units, g, tile)
    for unit in range(begin, end):
        if g.copied:
            pool_copies(x, rois, unit, g, workspace, out)
            continue
        channel, channels, region, last = part_of(g, unit)
        for r in range(region, last):
            first = (image_of(rois, (), r, g) * g.channels + channel) * g.pixels
            to = (r * g.channels + channel) * g.bins
            pool_by_taps(
                x,
                first,
                channels,
                turned_box(rois, r, g, zero(out)),
                AVERAGE,
                g,
                workspace,
                out,
                to,
            )


@jitable
def pool(
    x: Elements,
    rois: Elements,
    batches: tuple[Indices, ...],
    way: Known,
    g: RoiAlignGeometry,
    tile: Tile,
    workspace: Workspace,
    out: Elements,
) -> None:
    """Compute a tile of upright boxes.

    batches  (batch_indices,), or () if the first column of `rois` has them
    way      AVERAGE, LARGEST_TAP or LARGEST_SAMPLE
    """
    check_images(rois, batches, g)
    begin, end = share(g.units, g, tile)
    for unit in range(begin, end):
        channel, channels, region, region_end = part_of(g, unit)
        for r in range(region, region_end):
            first = (image_of(rois, batches, r, g) * g.channels + channel) * g.pixels
            to = (r * g.channels + channel) * g.bins
            box = upright_box(rois, r, g, zero(out))
            if not pool_by_rows(x, first, channels, box, way, g, workspace, out, to):
                pool_by_taps(x, first, channels, box, way, g, workspace, out, to)


@jitable
def part_of(g: RoiAlignGeometry, unit: Unit) -> tuple[int, int, int, int]:
    """Return a unit's first channel and number of channels, its first region, and the region after
    its last one.
    """
    channel, part = unit // g.parts * g.block, unit % g.parts
    each = pieces(g.regions, g.parts)
    return (
        channel,
        min(g.block, g.channels - channel),
        min(part * each, g.regions),
        min((part + 1) * each, g.regions),
    )


@jitable
def check_images(rois: Elements, batches: tuple[Indices, ...], g: RoiAlignGeometry) -> None:
    """Refuse regions of nonexistent images."""
    for r in range(g.regions):
        n = image_of(rois, batches, r, g)
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
    if len(batches) > 0:
        return np.int64(batches[0][r])
    n = load(rois, r * g.columns)
    return np.int64(n) if abs(n) < type(n)(2**31) else -1


@jitable
def scale_of(g: FeatureMaps) -> np.float64:
    """Return the pixels for each unit of a region's coordinates."""
    return np.int64(g.scale).view(np.float64)


@jitable
def upright_box(rois: Elements, r: int, g: RoiAlignGeometry, zero: Number) -> Box:
    """Return the box of a region. zero: a number of the type in which coordinates are computed."""
    number = type(zero)
    at = r * g.columns + g.columns - 4
    scale = number(scale_of(g))
    offset = number(0.5) if g.half_pixel else zero
    left, top = load(rois, at) * scale - offset, load(rois, at + 1) * scale - offset
    right, bottom = load(rois, at + 2) * scale - offset, load(rois, at + 3) * scale - offset
    return Box(
        axis_of(top, bottom - top, g.out_height, g), axis_of(left, right - left, g.out_width, g), ()
    )


@jitable
def turned_box(rois: Elements, r: int, g: RoiAlignGeometry, zero: Number) -> Box:
    """Return the box of a region, whose axes are counted from its centre."""
    number = type(zero)
    at = r * g.columns + 1
    scale = number(scale_of(g))
    offset = number(0.5) if g.half_pixel else zero
    x, y = load(rois, at) * scale - offset, load(rois, at + 1) * scale - offset
    width, height = load(rois, at + 2) * scale, load(rois, at + 3) * scale
    angle = np.float64(load(rois, at + 4))
    if not g.clockwise:
        angle = -angle
    if not g.half_pixel:
        width, height = at_least_one(width), at_least_one(height)
    y_axis = axis_of(height * number(-0.5), height, g.out_height, g)
    x_axis = axis_of(width * number(-0.5), width, g.out_width, g)
    return Box(y_axis, x_axis, (number(np.sin(angle)), number(np.cos(angle)), y, x))


@jitable
def at_least_one(size: Number) -> Number:
    """Return a size, or 1 if it is smaller."""
    return size if size >= type(size)(1) else type(size)(1)


@jitable
def axis_of(start: Number, size: Number, bins: int, g: RoiAlignGeometry) -> RegionAxis:
    """Return the RegionAxis of a region from `start` on."""
    number = type(start)
    if not g.half_pixel:
        size = at_least_one(size)
    step = size / number(bins)
    count: Number = g.ratio
    if count <= 0:
        count = 0
        if step > number(0):
            count = np.int64(min(np.ceil(step), number(MOST)))
    if not (abs(start) < number(np.inf) and abs(step) < number(np.inf)):
        count = 0
    return RegionAxis(start, step, count)


@jitable
def position(axis: RegionAxis, p: int, j: int) -> Number:
    """Return the coordinate of sample j of bin p along an axis."""
    number = type(axis.start)
    return (axis.start + number(p) * axis.step) + (number(j) + number(0.5)) * axis.step / number(
        axis.samples
    )


@jitable
def turned(turn: tuple[Number, ...], y: Number, x: Number) -> tuple[Number, Number]:
    """Return the place in the image of a place in a box; `turn` is that of the Box."""
    if len(turn) == 0:
        return y, x
    sine, cosine, centre_y, centre_x = turn
    return y * cosine + x * sine + centre_y, x * cosine - y * sine + centre_x


@jitable
def sample_at(box: Box, p: int, q: int, i: int, j: int) -> tuple[Number, Number]:
    """Return the place in the image of sample (i, j) of bin (p, q)."""
    return turned(box.turn, position(box.y, p, i), position(box.x, q, j))


@jitable
def is_inside(v: Number, size: int) -> bool:
    """Return whether a coordinate is at most a pixel away from an axis of this size."""
    return v >= type(v)(-1) and v <= type(v)(size)


@jitable
def taps_of(v: Number, size: int) -> tuple[Index, Index, Number]:
    """Return the two pixels of an axis that a coordinate lies between, and the weight of the second
    one.
    """
    number = type(v)
    if v <= number(0):
        v = number(0)
    low = np.int64(v)
    if low >= size - 1:
        return size - 1, size - 1, number(0)
    return low, low + 1, v - number(low)


@jitable
def tap_weight(t: int, down: Number, across: Number) -> Number:
    """Return the weight of tap t of four, the second row's being `down`, and the second column's
    `across`.
    """
    number = type(down)
    return (down if t // 2 else number(1) - down) * (across if t % 2 else number(1) - across)


@jitable
def share_of_sample(box: Box) -> Number:
    """Return the weight of a sample in the average of a bin."""
    number = type(box.y.start)
    return number(1) / (number(max(box.y.samples, 1)) * number(max(box.x.samples, 1)))


@jitable
def pool_by_rows(
    x: Elements,
    first: Offset,
    channels: int,
    box: Box,
    way: Known,
    g: RoiAlignGeometry,
    workspace: Workspace,
    out: Elements,
    to: Offset,
) -> bool:
    """Pool a region for some channels; returns False if there is too little room, or it won't pay.

    If it returns False, what it has stored must be computed again.

    way         only AVERAGE or LARGEST_TAP: the largest sample is no product of a row's and a
                column's weights
    first, to   the positions in x of the first channel's plane, and in `out` of its first bin
    """
    if len(way) == len(LARGEST_SAMPLE) or g.out_width > BINS:
        return False
    sums = sums_in(workspace, 0, (TOGETHER, SPAN + LANES), out)
    after = 8 * TOGETHER * (SPAN + LANES)
    row_weight = sums_in(workspace, after, (4, ROWS), out)
    column_weight = sums_in(workspace, after + 8 * 4 * ROWS, COLUMNS, out)
    after += 8 * (4 * ROWS + COLUMNS)
    row, exist, widths = indices_in(workspace, after, (3, ROWS))
    column = indices_in(workspace, after + 4 * 3 * ROWS, COLUMNS)
    ends = indices_in(workspace, after + 4 * (3 * ROWS + COLUMNS), BINS + 1)
    zeros = indices_in(workspace, after + 4 * (3 * ROWS + COLUMNS + BINS + 1), BINS)
    count: Index = 0
    left: Number = g.width  # the columns from `left` on and before `right` are read
    right: Number = 0
    ends[0] = 0
    for q in range(g.out_width):
        begin = count
        count, zeros[q] = add_taps(box.x, q, g.width, way, column, column_weight, count)
        if count < 0:
            return False
        for t in range(begin, count):
            left = min(left, np.int64(column[t]))
            right = max(right, np.int64(column[t]) + 1)
        ends[q + 1] = count
    span = min(g.width, pieces(right - left, LANES) * LANES) if count > 0 else 0
    if span > SPAN or span > SPARSE * count:
        return False
    left = min(left, g.width - span)  # so that all of the span lies in the image
    for t in range(count):
        column[t] -= left
    # A row is a point for `add_points`, of which only the first of four taps exists: bit 0, and
    # weights row_weight[0].
    for b in range(ROWS):
        exist[b] = widths[b] = 1
    for p in range(g.out_height):
        rows, is_zero = add_taps(box.y, p, g.height, way, row, row_weight[0], 0)
        if rows < 0:
            return False
        for c in range(0, channels, TOGETHER):
            together = min(TOGETHER, channels - c)
            bins = out[to + c * g.bins + p * g.out_width :]
            for k in range(together):
                source = x[first + (c + k) * g.pixels + left :]
                target = sums[k, :span]
                if len(way) == len(AVERAGE):
                    points = Corners(row[:rows], widths, exist, row_weight)
                    add_points(source, g.width, points, False, target)
                else:
                    compare_rows(source, g.width, row, row_weight[0], rows, target)
            pool_columns(
                sums,
                together,
                way,
                column,
                column_weight,
                ends,
                g.out_width,
                zeros,
                is_zero,
                bins,
                g.bins,
            )
    return True


@jitable
def add_taps(
    axis: RegionAxis, p: int, size: int, way: Known, pixel: Pixels, weight: Weights, begin: Index
) -> tuple[Index, bool]:
    """Store the pixels along an axis that bin p reads, and their weights, from position `begin` on.

    For an average each pixel is stored once, and weights are divided by the number of samples.
    Returns the position after the last one, or -1 if there is no room, and whether there are
    samples outside, or taps with a weight of 0.
    """
    end = begin
    count = axis.samples
    is_zero = axis.samples == 0
    number = type(axis.start)
    each = number(1)
    if len(way) == len(AVERAGE):
        each = number(1) / number(max(count, 1))
    for j in range(count):
        v = position(axis, p, j)
        if not is_inside(v, size):
            is_zero = True
            continue
        if end + 2 > pixel.size:
            return -1, is_zero
        low, high, f = taps_of(v, size)
        if f < number(1):
            end = add_tap(way, pixel, weight, begin, end, low, (number(1) - f) * each)
        if f > number(0):
            end = add_tap(way, pixel, weight, begin, end, high, f * each)
        else:
            is_zero = True
    return end, is_zero


@jitable
def add_tap(
    way: Known, pixel: Pixels, weight: Weights, begin: Index, end: Index, k: Index, w: Number
) -> Index:
    """Add a pixel's weight to that of the last two taps that is the same pixel, or store a new one;
    returns the end.
    """
    if len(way) == len(AVERAGE):
        for t in range(max(begin, end - 2), end):
            if pixel[t] == k:
                weight[t] += w
                return end
    pixel[end] = k
    weight[end] = w
    return end + 1


@jitable
def compare_rows(
    source: Elements, width: Pitch, row: Pixels, weight: Weights, rows: Index, target: Sums
) -> None:
    """target[b] = the largest weight[t] * source[row[t] * width + b]   for t < rows"""
    for b in range(target.size):
        target[b] = target.dtype.type(-np.inf)
    for t in range(0, rows, 4):
        u, v, w = min(t + 1, rows - 1), min(t + 2, rows - 1), min(t + 3, rows - 1)
        keep_largest(
            source[row[t] * width :], source[row[u] * width :], source[row[v] * width :],
            source[row[w] * width :],
            weight[t], weight[u], weight[v], weight[w], target,
        )  # fmt: skip


@jitable(**APART)
def keep_largest(
    p: Elements,
    q: Elements,
    r: Elements,
    s: Elements,
    p_weight: Number,
    q_weight: Number,
    r_weight: Number,
    s_weight: Number,
    target: Sums,
) -> None:
    """Replace elements of `target` that are smaller than those of one of four rows, times their
    weights.
    """
    for b in range(target.size):
        first = larger(p_weight * load(p, b), q_weight * load(q, b))
        second = larger(r_weight * load(r, b), s_weight * load(s, b))
        target[b] = larger(target[b], larger(first, second))


@jitable(**FUSE)
def pool_columns(
    pooled: Sums,
    together: int,
    way: Known,
    column: Pixels,
    weight: Weights,
    ends: Pixels,
    count: int,
    zeros: Pixels,
    is_zero: bool,
    target: Elements,
    pitch: Pitch,
) -> None:
    """target[c * pitch + q] = sum or largest of weight[t] * pooled[c, column[t]]   for
    ends[q] <= t < ends[q + 1]

    for q < count, and for the channels c < together, at most four. If there are fewer, the last one
    is written again. Where is_zero or zeros[q] says so, the largest is at least 0.
    """
    c1, c2, c3 = (
        min(1, together - 1),
        min(2, together - 1),
        min(3, together - 1),
    )  # the channels beside 0
    number = pooled.dtype.type
    for q in range(count):
        v0 = v1 = v2 = v3 = (
            number(0) if len(way) == len(AVERAGE) or is_zero or zeros[q] else number(-np.inf)
        )
        for t in range(ends[q], ends[q + 1]):
            w = weight[t]
            p = np.uint32(column[t])
            v0 = with_tap(v0, w * pooled[0, p], way)
            v1 = with_tap(v1, w * pooled[c1, p], way)
            v2 = with_tap(v2, w * pooled[c2, p], way)
            v3 = with_tap(v3, w * pooled[c3, p], way)
        store(target, q, v0)
        store(target, c1 * pitch + q, v1)
        store(target, c2 * pitch + q, v2)
        store(target, c3 * pitch + q, v3)


@jitable(**FUSE)
def with_tap(total: Number, tap: Number, way: Known) -> Number:
    """Return what a bin has after one more tap."""
    return total + tap if len(way) == len(AVERAGE) else larger(total, tap)


@jitable
def pool_by_taps(
    x: Elements,
    first: Offset,
    channels: int,
    box: Box,
    way: Known,
    g: RoiAlignGeometry,
    workspace: Workspace,
    out: Elements,
    to: Offset,
) -> None:
    """Pool a region as `pool_by_rows` does, of any box in any way.

    A round has the taps of some bins, or of a part of one. They are found once, and then read from
    each channel.
    """
    after = 16 * TAPS + 8 * CHANNELS
    taps = Round(
        integers_in(workspace, 0, TAPS), sums_in(workspace, 8 * TAPS, TAPS, out),
        indices_in(workspace, after, BINS + 1), indices_in(workspace, after + 4 * (BINS + 1), BINS),
        sums_in(workspace, 16 * TAPS, CHANNELS, out),
    )  # fmt: skip
    has_no_samples = box.y.samples * box.x.samples == 0 and len(way) != len(LARGEST_SAMPLE)
    is_zero = has_no_samples
    bin_ = i = j = 0  # the bin, and the row and column of its sample, that come next
    while bin_ < g.bins:
        begin = bin_
        bins = 0
        count = 0
        goes_on = i > 0 or j > 0
        taps.ends[0] = 0
        while bin_ < g.bins and bins < BINS and count + 4 <= TAPS:
            i, j, count, is_zero = find_taps(box, bin_, i, j, way, g, taps, count, is_zero)
            taps.zeros[bins] = is_zero
            bins += 1
            taps.ends[bins] = count
            if (
                i == box.y.samples
            ):  # else there is no room for the rest of its taps, which the next round has
                bin_ += 1
                i = 0
                j = 0
                is_zero = has_no_samples
        read_bins(x[first:], channels, taps, bins, bin_ - begin, goes_on, way, g, out[to + begin :])


@jitable
def find_taps(
    box: Box,
    bin_: int,
    i: int,
    j: int,
    way: Known,
    g: RoiAlignGeometry,
    taps: Round,
    count: int,
    is_zero: bool,
) -> tuple[int, int, int, bool]:
    """Append the taps of a bin's samples from (i, j) on to the `count` stored ones, as far as they
    fit.

    Taps with a weight of 0 are left out, unless samples are compared, which need all four taps.
    Returns the next sample, the number of taps, and whether a sample or a tap counts as 0, before
    or now.
    """
    p = bin_ // g.out_width
    q = bin_ % g.out_width
    rows = box.y.samples
    columns = box.x.samples
    number = taps.weight.dtype.type
    each = share_of_sample(box) if len(way) == len(AVERAGE) else number(1)
    while i < rows and count + 4 <= TAPS:
        while j < columns and count + 4 <= TAPS:
            y, x = sample_at(box, p, q, i, j)
            j += 1
            if not (is_inside(y, g.height) and is_inside(x, g.width)):
                is_zero = True
                continue
            top, bottom, down = taps_of(y, g.height)
            left, right, across = taps_of(x, g.width)
            for t in range(4):
                w = tap_weight(t, down, across)
                if w > number(0) or len(way) == len(LARGEST_SAMPLE):
                    taps.offset[count] = (bottom if t // 2 else top) * g.width + (
                        right if t % 2 else left
                    )
                    taps.weight[count] = w * each
                    count += 1
                else:
                    is_zero = True
        if j == columns:
            j = 0
            i += 1
    return i, j, count, is_zero


@jitable
def read_bins(
    planes: Elements,
    channels: int,
    taps: Round,
    bins: int,
    whole: int,
    goes_on: bool,
    way: Known,
    g: RoiAlignGeometry,
    target: Elements,
) -> None:
    """Read the taps of a round's bins from each channel, and store the results of the first `whole`
    bins.

    goes_on  whether the first bin began in an earlier round
    """
    offset, weight, ends, zeros, totals = taps
    if len(way) == len(AVERAGE):
        for c in range(0, channels, TOGETHER):
            if not goes_on:
                totals[c:][:TOGETHER] = 0
            for b in range(bins):
                add_taps_of_bin(
                    planes[c * g.pixels :], min(TOGETHER, channels - c), offset, weight, ends[b],
                    ends[b + 1],
                    totals[c:], b < whole, g, target[c * g.bins + b :],
                )  # fmt: skip
        return
    number = totals.dtype.type
    of_samples = len(way) == len(LARGEST_SAMPLE)
    for c in range(channels):
        source = planes[c * g.pixels :][: g.pixels]
        for b in range(bins):
            total = number(LEAST if of_samples else -np.inf)
            if b == 0 and goes_on:
                total = totals[c]
            if of_samples:
                total = largest_sample(total, source, offset, weight, ends[b], ends[b + 1])
            else:
                total = largest_tap(total, source, offset, weight, ends[b], ends[b + 1])
            if b == whole:
                totals[c] = total
            else:
                store(target, c * g.bins + b, larger(total, number(0)) if zeros[b] else total)


@jitable(**FUSE)
def add_taps_of_bin(
    planes: Elements,
    together: int,
    offset: Indices,
    weight: Weights,
    begin: Index,
    end: Index,
    sums: Sums,
    is_whole: bool,
    g: RoiAlignGeometry,
    target: Elements,
) -> None:
    """sums[c] += sum over t of weight[t] * planes[c * g.pixels + offset[t]]   for begin <= t < end

    for the channels c < together, at most four. If there are fewer, the last one is read again. If
    the bin is_whole, target[c * g.bins] becomes sums[c], which becomes 0. Some taps are added up at
    a time, so that rounding errors of a long sum stay small.
    """
    c1, c2, c3 = (
        min(1, together - 1),
        min(2, together - 1),
        min(3, together - 1),
    )  # the channels beside 0
    first = planes
    second = planes[c1 * g.pixels :]
    third = planes[c2 * g.pixels :]
    fourth = planes[c3 * g.pixels :]
    none = sums.dtype.type(0)
    for part in range(begin, end, 64):
        v0 = v1 = v2 = v3 = none
        weights = weight[part : min(part + 64, end)]
        offsets = offset[part:]
        for t in range(weights.size):
            w = weights[t]
            at = np.uintp(offsets[t])
            v0 += w * load(first, at)
            v1 += w * load(second, at)
            v2 += w * load(third, at)
            v3 += w * load(fourth, at)
        sums[0] += v0
        if c1 == 1:  # else it is channel 0 again, which would be added twice
            sums[1] += v1
        if c2 == 2:
            sums[2] += v2
        if c3 == 3:
            sums[3] += v3
    if is_whole:
        for c in range(together):
            store(target, c * g.bins, sums[c])
            sums[c] = none


@jitable
def largest_sample(
    total: Number, source: Elements, offset: Indices, weight: Weights, begin: Index, end: Index
) -> Number:
    """Return the largest of `total` and sum over u < 4 of
    weight[4 * t + u] * source[offset[4 * t + u]]

    for begin <= 4 * t < end, without weights of 0.
    """
    for t in range(begin, end, 4):
        sample = zero(source)
        for u in range(t, t + 4):
            if weight[u] > zero(source):
                sample += weight[u] * load(source, np.uintp(offset[u]))
        total = larger(total, sample)
    return total


@jitable
def largest_tap(
    total: Number, source: Elements, offset: Indices, weight: Weights, begin: Index, end: Index
) -> Number:
    """Return the largest of `total` and weight[t] * source[offset[t]]   for begin <= t < end"""
    for t in range(begin, end):
        total = larger(total, weight[t] * load(source, np.uintp(offset[t])))
    return total


@jitable
def larger(a: Number, b: Number) -> Number:
    """Return the larger of two numbers, or NaN if one is."""
    return b if b > a or b != b else a


@jitable
def pool_copies(
    x: Elements,
    rois: Elements,
    unit: Unit,
    g: RoiAlignGeometry,
    workspace: Workspace,
    out: Elements,
) -> None:
    """Pool a unit's regions, image by image, from a copy of its channels."""
    copy = sums_in(workspace, workspace_size(), g.copied, out)
    channel, channels, region, last = part_of(g, unit)
    for n in range(g.batch):
        is_there = False
        for r in range(region, last):
            if image_of(rois, (), r, g) == n:
                if not is_there:
                    copy_side_by_side(
                        x, (n * g.channels + channel) * g.pixels, channels, g.pixels, copy
                    )
                    is_there = True
                to = (r * g.channels + channel) * g.bins
                pool_copy(copy, channels, turned_box(rois, r, g, zero(out)), g, workspace, out, to)


@jitable
def copy_side_by_side(x: Elements, first: Offset, channels: int, pixels: int, copy: Sums) -> None:
    """copy[k * channels + c] = x[first + c * pixels + k]   for k < pixels and c < channels"""
    for begin in range(0, pixels, LANES):  # of a cache line or two
        for c in range(channels):
            source = x[first + c * pixels + begin :]
            target = copy[begin * channels + c :]
            for k in range(min(LANES, pixels - begin)):
                target[np.uintp(k) * np.uintp(channels)] = load(source, np.uintp(k))


@jitable
def pool_copy(
    copy: Sums,
    channels: int,
    box: Box,
    g: RoiAlignGeometry,
    workspace: Workspace,
    out: Elements,
    to: Offset,
) -> None:
    """Pool a turned box for all channels of the copy by `copy_side_by_side`."""
    pixels, exist, widths = indices_in(workspace, 0, (3, SAMPLES))
    weight = sums_in(workspace, 12 * SAMPLES, (4, SAMPLES), out)
    totals, part = sums_in(workspace, 12 * SAMPLES + 8 * 4 * SAMPLES, (2, channels), out)
    number = totals.dtype.type
    each = share_of_sample(box)
    for k in range(SAMPLES):
        widths[k] = g.width
    for b in range(g.bins):
        p = b // g.out_width
        q = b % g.out_width
        count = 0
        is_first = True
        for i in range(box.y.samples):
            for j in range(box.x.samples):
                if count == SAMPLES:
                    points = Corners(pixels, widths, exist, weight)
                    add_points(copy, channels, points, False, part)
                    add_part(totals, part, is_first)
                    count = 0
                    is_first = False
                y, x = sample_at(box, p, q, i, j)
                if is_inside(y, g.height) and is_inside(x, g.width):
                    top, _, down = taps_of(y, g.height)
                    left, _, across = taps_of(x, g.width)
                    pixels[count] = top * g.width + left
                    exist[count] = 0
                    for t in range(4):
                        w = tap_weight(t, down, across)
                        weight[t, count] = w * each
                        exist[count] |= (w > number(0)) << t
                    count += 1
        points = Corners(pixels[:count], widths, exist, weight)
        add_points(copy, channels, points, False, part)
        add_part(totals, part, is_first)
        for c in range(channels):
            store(out, to + c * g.bins + b, totals[c])


@jitable
def add_part(totals: Sums, part: Sums, is_first: bool) -> None:
    """Add a part of a bin's samples to its totals, or store it if it is the first one."""
    for c in range(totals.size):
        totals[c] = part[c] if is_first else totals[c] + part[c]
