"""Compute the taps of a grid's points, the pixels that they read, and their weights. Indices have
32 bits.

Nearest and linear have one loop for all steps. Cubic has a loop for coordinates, and one for each
axis. LLVM vectorizes them over points.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..declaration.jit import APART, jitable
from ..kernels.vectors import OUTSIDE, whole
from .coordinates import (
    ALL_PERIODS,
    IMAGE,
    NO_LIMITS,
    NO_PERIOD,
    ONE_PERIOD,
    REFLECTION,
    VOLUME,
    ZEROS,
    axis_of,
    coordinate,
    coordinate_of,
)
from .grid_points import load_point

if TYPE_CHECKING:
    from ..kernels.types import Axis, Coordinates, Known, Number, NumberType, Pixel, Pixels, Weights
    from .coordinates import ImageAxes
    from .geometry import GridSampleGeometry, Offsets, Pixel32, Point, Points, TapOffsets, WithImage

MOVED = 16  # points that are tested together for taps outside
LARGEST_AXIS = 2**24  # of an image with 32-bit indices: float32 has all integers up to here
LARGEST_IMAGE = 2**31  # pixels
NO_PIXEL = np.int32(LARGEST_IMAGE - 1)  # of an axis


class Reading(NamedTuple):
    """Where the neighbours of a point lie in memory.

    They are planes of rows of pixels side by side.
    """

    # The axes along which planes, rows and pixels differ; an image has no first one.
    order: tuple[Axis, Axis, Axis]
    planes: Offsets  # of the neighbours' planes, from the first one
    rows: Offsets  # of their rows
    # Pixels left after the last vector that a point reads from a row; below 0, so many lack.
    spare: int


class PointSpan(NamedTuple):
    """Points one after the other."""

    points: Points
    first: Point  # the first one's number in `points`
    size: int


class BlockTaps(NamedTuple):
    """The taps of linear or cubic for each point b of a block, all inside the image."""

    base: Pixels  # the first one's pixel
    weight: Weights  # [axis, tap, b]
    # [plane, row, b], of volumes: the products along the axes of planes and rows.
    row_weight: Weights
    coordinates: Coordinates  # [axis, b]: scratch memory of cubic


@jitable
def image_size(g: WithImage) -> int:
    """Return the number of pixels in one channel's image."""
    pixels = 1
    for i in range(g.axes):
        pixels *= g.image[i]
    return pixels


@jitable
def reading_of(g: WithImage, taps: int) -> Reading:
    """Return the Reading of an image with this number of taps along each axis.

    Axes of a single pixel come first, as they don't change where pixels lie in memory. So columns
    are of the last axis that has more pixels, which lie side by side. `spare` is less than 0 if
    rows can't be read as vectors.
    """
    column = g.axes - 1
    while column > 0 and g.image[column] == 1:
        column -= 1
    row = (column if column > 0 else g.axes) - 1
    plane = 3 - row - column
    if g.axes == 3 and g.image[row] == 1:
        plane, row = row, plane
    planes = offsets_along(g, plane)
    rows = offsets_along(g, row)
    return Reading(
        (plane, row, column), planes, rows, image_size(g) - planes[taps - 1] - rows[taps - 1] - taps
    )


@jitable
def offsets_along(g: WithImage, axis: Axis) -> Offsets:
    """Return the offsets of four taps along an axis from the first one.

    Missing taps repeat the last one.
    """
    pitch = 1
    last = g.image[axis] - 1 if axis < g.axes else 0
    for i in range(axis + 1, g.axes):
        pitch *= g.image[i]
    return 0, min(1, last) * pitch, min(2, last) * pitch, min(3, last) * pitch


@jitable
def indexed_images(g: WithImage) -> int:
    """Return the number of images with 32-bit indices.

    It is 0 for images that are too large, or go beyond float32's integers.
    """
    images = LARGEST_IMAGE
    for i in range(g.axes):
        images = images // g.image[i] if g.image[i] <= LARGEST_AXIS else 0
    return images


@jitable
def place_nearest(span: PointSpan, g: GridSampleGeometry, zyx: ImageAxes, base: Pixels) -> None:
    """Store in base[b] the pixel of the image that point b of the span reads, or OUTSIDE.

    `zyx` is what `image_axes` returns.
    """
    if g.axes == 2:
        find_all(span, IMAGE, g, zyx, base)
    else:
        find_all(span, VOLUME, g, zyx, base)


@jitable
def find_all(
    span: PointSpan, axes: Known, g: GridSampleGeometry, zyx: ImageAxes, base: Pixels
) -> None:
    """Do what `place_nearest` does, for this number of axes."""
    sizes = image_sizes(g)
    if g.padding_mode != REFLECTION:
        find_pixels(span, axes, NO_PERIOD, zyx, sizes, base)
    elif find_pixels(span, axes, ONE_PERIOD, zyx, sizes, base) > 0:
        find_pixels(span, axes, ALL_PERIODS, zyx, sizes, base)


@jitable(**APART)
def find_pixels(
    span: PointSpan,
    axes: Known,
    periods: Known,
    zyx: ImageAxes,
    sizes: tuple[Pixel32, Pixel32, Pixel32],
    base: Pixels,
) -> Pixel32:
    """Store in base[b] the pixel that point b of the span reads, or OUTSIDE.

    Returns how many points are beyond these periods, so that their pixels are wrong.
    """
    points, first, count = span
    depth, height, width = sizes
    # 32 bits, as all else: the widest type decides how many fit a vector.
    all_beyond = np.int32(0)
    for b in range(count):
        z, y, x, beyond = locate_point(points, first + b, axes, zyx, False, periods)
        column, row = np.int32(np.rint(x)), np.int32(np.rint(y))
        exists = is_below(column, width) & is_below(row, height)
        if len(axes) == 3:
            plane = np.int32(np.rint(z))
            exists &= is_below(plane, depth)
            row = np.int32(plane * height + row)
        base[b] = np.int32(row * width + column) if exists else OUTSIDE
        all_beyond = np.int32(all_beyond + beyond)
    return all_beyond


@jitable
def locate_point(
    points: Points,
    b: Point,
    axes: Known,
    zyx: ImageAxes,
    cubic: bool,
    periods: Known | None,
) -> tuple[Number, Number, Number, bool]:
    """Return the coordinates of point b along the last three axes.

    Return also whether one is beyond these periods.
    """
    z_axis, y_axis, x_axis = zyx
    x, y, z = load_point(points, b, axes)
    x, beyond = coordinate(x, x_axis, cubic, periods)
    y, y_beyond = coordinate(y, y_axis, cubic, periods)
    beyond |= y_beyond
    if len(axes) == 3:
        z, z_beyond = coordinate(z, z_axis, cubic, periods)
        beyond |= z_beyond
    return z, y, x, beyond


@jitable
def is_below(k: Pixel32, size: Pixel32) -> np.bool_:
    """Return whether 0 <= k < size, by one comparison.

    Without its sign, a negative number is larger than any size.
    """
    return np.uint32(k) < np.uint32(size)


@jitable
def nearest_pixel(points: Points, b: Point, g: GridSampleGeometry) -> Pixel:
    """Return the pixel that point b reads in an image of any size, or -1."""
    pixel = 0
    for i in range(g.axes):
        k = np.int64(np.rint(coordinate_of(points, b, i, g, False)))
        pixel = pixel * g.image[i] + k if pixel >= 0 and 0 <= k < g.image[i] else -1
    return pixel


@jitable
def place_points(
    span: PointSpan, g: GridSampleGeometry, zyx: ImageAxes, offsets: TapOffsets, taps: BlockTaps
) -> None:
    """Store the taps of a span of points, all inside: their weights, and the first one's pixel.

    After the last point, weights are 0 up to the end of a vector. `zyx` is what `image_axes`
    returns.
    """
    end = span.size
    base, weight, _, coordinates = taps
    count = whole(end)
    base[end:count] = 0
    for i in range(g.axes):
        for t in range(len(offsets)):
            weight[i, t][end:count] = 0
    if g.axes == 2:
        place_all(span, IMAGE, g, zyx, offsets, taps)
    else:
        place_all(span, VOLUME, g, zyx, offsets, taps)
    if len(offsets) == 4:
        base[:end] = 0
        (_, _, column), _, _, spare = reading_of(g, len(offsets))
        for i in range(g.axes):
            size = np.int32(g.image[i])
            w = weight[i]
            along = coordinates[i][:end]
            pixels = base[:end]
            last = np.int32(spare if i == column and spare >= 0 else NO_PIXEL)
            if place_cubic(along, size, pixels, (w[0], w[1], w[2], w[3])) > 0:
                for b in range(0, end, MOVED):
                    move_inside(
                        along[b:][:MOVED], size, last, g.padding_mode, g.align_corners, pixels[b:],
                        (w[0][b:], w[1][b:], w[2][b:], w[3][b:]),
                    )  # fmt: skip


@jitable
def place_all(
    span: PointSpan,
    axes: Known,
    g: GridSampleGeometry,
    zyx: ImageAxes,
    offsets: TapOffsets,
    taps: BlockTaps,
) -> None:
    """Store linear's pixels and weights, or cubic's coordinates, of a span of points."""
    if len(offsets) == 2 and g.padding_mode == ZEROS:
        place_within(span, axes, NO_LIMITS, g, zyx, offsets, taps)
    elif g.padding_mode != REFLECTION:
        place_within(span, axes, NO_PERIOD, g, zyx, offsets, taps)
    # Most points lie within one period; only if some don't, the slow loop for all periods runs.
    elif place_within(span, axes, ONE_PERIOD, g, zyx, offsets, taps) > 0:
        place_within(span, axes, ALL_PERIODS, g, zyx, offsets, taps)


@jitable
def place_within(
    span: PointSpan,
    axes: Known,
    periods: Known | None,
    g: GridSampleGeometry,
    zyx: ImageAxes,
    offsets: TapOffsets,
    taps: BlockTaps,
) -> Pixel32:
    """Place points as `place_all`; return the number of points beyond these periods."""
    y, x = len(axes) - 2, len(axes) - 1  # without a third axis, values of axis 0 are unused
    if len(offsets) == 4:
        p = taps.coordinates
        return locate(span, axes, periods, zyx, (p[0], p[y], p[x]))
    weight = taps.weight
    back = weight[0, 0], weight[0, 1]
    down = weight[y, 0], weight[y, 1]
    across = weight[x, 0], weight[x, 1]
    sizes = image_sizes(g)
    return place_linear(span, axes, periods, zyx, sizes, taps.base, (back, down, across))


@jitable(**APART)
def place_linear(
    span: PointSpan,
    axes: Known,
    periods: Known | None,
    zyx: ImageAxes,
    sizes: tuple[Pixel32, Pixel32, Pixel32],
    base: Pixels,
    weights: tuple[tuple[Weights, Weights], ...],
) -> Pixel32:
    """Store in base[b] the first of linear's neighbours, and the weights along each axis.

    Each axis has the weights of the first neighbour and of the next one. Returns how many points
    are beyond these periods.
    """
    points, first, count = span
    depth, height, width = sizes
    (front, back), (up, down), (left, right) = weights
    dtype = left.dtype.type
    all_beyond = np.int32(0)
    for b in range(count):
        z, y, x, beyond = locate_point(points, first + b, axes, zyx, False, periods)
        column, left[b], right[b] = linear_weights(x, width, dtype)
        row, up[b], down[b] = linear_weights(y, height, dtype)
        if len(axes) == 3:
            plane, front[b], back[b] = linear_weights(z, depth, dtype)
            row = np.int32(plane * height + row)
        base[b] = np.int32(row * width + column)
        all_beyond = np.int32(all_beyond + beyond)
    return all_beyond


@jitable
def linear_weights(p: Number, size: Pixel32, dtype: NumberType) -> tuple[Pixel32, Number, Number]:
    """Return the index of the first of linear's two neighbours along an axis, and both weights.

    Both neighbours are inside. Both weights are 0 at coordinates a pixel or more outside of the
    image, at infinities, and at NaN; the second one is 0 if the axis has a single pixel.
    """
    first = type(p)(0)
    last = type(p)(max(size - 2, 0))
    reach = dtype(2 * min(size - 1, 1))
    limited = p if p > first else first  # also at NaN
    k = np.int32(limited if limited < last else last)
    # The distance to that neighbour: exact in the coordinate's type unless both weights are 0.
    d = dtype(p - type(p)(k))
    zero = dtype(0)
    left = dtype(1) - abs(d)
    right = reach - d
    right = d if d < right else right
    return k, left if left > zero else zero, right if right > zero else zero


@jitable(**APART)
def locate(
    span: PointSpan,
    axes: Known,
    periods: Known,
    zyx: ImageAxes,
    coordinates: tuple[Coordinates, Coordinates, Coordinates],
) -> Pixel32:
    """Store cubic's coordinates, in an array for each axis.

    Returns how many points are beyond these periods.
    """
    points, first, count = span
    z, y, x = coordinates
    all_beyond = np.int32(0)
    for b in range(count):
        plane, y[b], x[b], beyond = locate_point(points, first + b, axes, zyx, True, periods)
        if len(axes) == 3:
            z[b] = plane
        all_beyond = np.int32(all_beyond + beyond)
    return all_beyond


@jitable(**APART)
def place_cubic(
    coordinates: Coordinates,
    size: Pixel32,
    base: Pixels,
    weights: tuple[Weights, Weights, Weights, Weights],
) -> Pixel32:
    """Add one axis to base[b], the first of cubic's taps, and store the weights along it.

    Returns how many points have taps outside: `move_inside` must still move their weights.
    """
    w0, w1, w2, w3 = weights
    dtype = w0.dtype.type
    last = np.int32(max(size - 4, 0))
    outside = np.int32(size < 4)
    for b in range(coordinates.size):
        p = coordinates[b]
        first = first_tap(p)
        k = clamped(first, last)
        base[b] = np.int32(base[b] * size + k)
        w0[b], w1[b], w2[b], w3[b] = cubic_weights(dtype(p - np.floor(p)))
        outside = np.int32(outside + (first != k))
    return outside


@jitable
def cubic_weights(f: Number) -> tuple[Number, Number, Number, Number]:
    """Return the weights of the four taps, for the fraction f of a coordinate."""
    return cubic_end(f), cubic_middle(f), cubic_middle(type(f)(1) - f), cubic_end(type(f)(1) - f)


@jitable
def cubic_middle(f: Number) -> Number:
    """Cubic convolution with A = -0.75 at the distance f < 1 from a tap.

    The factors lose no digits.
    """
    return (type(f)(1.25) * f - type(f)(2.25)) * f * f + type(f)(1)


@jitable
def cubic_end(f: Number) -> Number:
    """Cubic convolution at the distance 1 + f from a tap."""
    return type(f)(-0.75) * f * (type(f)(1) - f) * (type(f)(1) - f)


@jitable(**APART)
def move_inside(
    coordinates: Coordinates,
    size: Pixel32,
    last_base: Pixel32,
    padding_mode: int,
    align_corners: int,
    base: Pixels,
    weights: tuple[Weights, Weights, Weights, Weights],
) -> None:
    """Move the weights of cubic's taps outside to the pixels of padding.

    This is along one axis, for at most MOVED points.

    `base` is then the first of four pixels that exist. If the axis has fewer, weights of others are
    0: those that follow in memory, or beyond the `last_base`, those that precede.
    """
    w0, w1, w2, w3 = weights
    last = np.int32(max(size - 4, 0))
    outside = np.int32(size < 4)
    missing = np.int32(max(4 - size, 0))
    for b in range(coordinates.size):
        k = first_tap(coordinates[b])
        outside = np.int32(outside + (clamped(k, last) != k))
    for b in range(coordinates.size if outside > 0 else 0):
        k = first_tap(coordinates[b])
        at0 = padded_tap(k, size, padding_mode, align_corners)
        at1 = padded_tap(np.int32(k + 1), size, padding_mode, align_corners)
        at2 = padded_tap(np.int32(k + 2), size, padding_mode, align_corners)
        at3 = padded_tap(np.int32(k + 3), size, padding_mode, align_corners)
        first = min(min(min(at0, at1), min(at2, at3)), last)
        first = np.int32(first - (missing if base[b] > last_base else np.int32(0)))
        base[b] = np.int32(base[b] + first - clamped(k, last))
        pixels = at0, at1, at2, at3
        values = w0[b], w1[b], w2[b], w3[b]
        w0[b] = pixel_weight(first, pixels, values)
        w1[b] = pixel_weight(np.int32(first + 1), pixels, values)
        w2[b] = pixel_weight(np.int32(first + 2), pixels, values)
        w3[b] = pixel_weight(np.int32(first + 3), pixels, values)


@jitable
def first_tap(p: Number) -> Pixel32:
    """Return the first of cubic's four taps at a coordinate."""
    return np.int32(np.int32(np.floor(p)) - 1)


@jitable
def clamped(k: Pixel32, last: Pixel32) -> Pixel32:
    """k, moved into [0, last]."""
    return min(max(k, np.int32(0)), last)


@jitable
def padded_tap(tap: Pixel32, size: Pixel32, padding_mode: int, align_corners: int) -> Pixel32:
    """Return the pixel that padding substitutes for a tap, or NO_PIXEL.

    This is `pad_index` without a division.

    The tap is at most a period and two pixels away from the image, or nowhere.
    """
    k = tap
    if padding_mode == REFLECTION:
        low, high = np.int32(align_corners - 1), np.int32(2 * size - 1 - align_corners)
        k = np.int32(low - k) if k < 0 else k
        k = np.int32(high - k) if k >= size else k
        k = np.int32(low - k) if k < 0 else k
    if padding_mode != ZEROS:  # a reflected tap may still be outside of a single pixel
        k = clamped(k, np.int32(size - 1))
    return k if is_below(k, size) and tap >= np.int32(-2 * size - 4) else NO_PIXEL


@jitable
def pixel_weight(
    pixel: Pixel32,
    taps: tuple[Pixel32, Pixel32, Pixel32, Pixel32],
    weights: tuple[Number, Number, Number, Number],
) -> Number:
    """Return the weight of a pixel: the sum of the weights of the taps that read it."""
    t0, t1, t2, t3 = taps
    w0, w1, w2, w3 = weights
    zero = type(w0)(0)
    low = (w0 if t0 == pixel else zero) + (w1 if t1 == pixel else zero)
    return low + ((w2 if t2 == pixel else zero) + (w3 if t3 == pixel else zero))


@jitable
def image_axes(g: GridSampleGeometry, cubic: bool, zero: Number) -> ImageAxes:
    """Return the parameters of `coordinate` for the last three axes.

    For an image, the first is unused.
    """
    return (
        axis_of(g, 0, cubic, zero),
        axis_of(g, g.axes - 2, cubic, zero),
        axis_of(g, g.axes - 1, cubic, zero),
    )


@jitable
def image_sizes(g: WithImage) -> tuple[Pixel32, Pixel32, Pixel32]:
    """Return the sizes of the last three axes. For an image, the first of these is unused."""
    return np.int32(g.image[0]), np.int32(g.image[g.axes - 2]), np.int32(g.image[g.axes - 1])
