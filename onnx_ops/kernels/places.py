"""From a grid's points to what kernels read for them: numbers of pixels, in 32 bits, and weights.

Each loop takes a point from the grid to the end, in vectors of as many points as the CPU has room for.
"""

import numpy as np

from .coordinates import BORDER, FAR, NEAR, REFLECTION, axis_of, coordinate, coordinate_of
from .elements import load, zero
from .jit import APART, jitable
from .vectors import GROUP

IMAGE, VOLUME = (0, 1), (0, 1, 2)  # their axes, whose number compiled code knows
LARGEST = 2**29  # size of an axis, and a quarter of the pixels, of images whose pixels have 32-bit numbers


@jitable
def image_size(g):
    """Pixels in one channel's image."""
    pixels = 1
    for i in range(g.axes):
        pixels *= g.image[i]
    return pixels


@jitable
def has_indices(g):
    """Whether 32 bits hold the number of every pixel of an image, and what is added to it meanwhile."""
    small = image_size(g) < 4 * LARGEST
    for i in range(g.axes):
        small &= g.image[i] < LARGEST
    return small


@jitable
def place_nearest(points, g, base):
    """base[b]: the pixel of the image that point b reads, or -1. Returns how many read none."""
    z, y, x = axes_of(g, False, zero(points))
    depth, height, width = sizes_of(g)
    if g.axes == 2:
        far, outside = pixels_of(points, IMAGE, NEAR, z, y, x, depth, height, width, base)
        if far > 0:
            far, outside = pixels_of(points, IMAGE, FAR, z, y, x, depth, height, width, base)
    else:
        far, outside = pixels_of(points, VOLUME, NEAR, z, y, x, depth, height, width, base)
        if far > 0:
            far, outside = pixels_of(points, VOLUME, FAR, z, y, x, depth, height, width, base)
    return outside


@jitable(**APART)
def pixels_of(points, axes, way, z_axis, y_axis, x_axis, depth, height, width, base):
    """Returns how many points are too far away for this way, and how many read no pixel."""
    all_far = outside = np.int32(0)  # as wide as all else: of the widest LLVM decides how many fit a vector
    for b in range(points.size // len(axes)):
        x, far = coordinate(load(points, b * len(axes)), x_axis, False, way)
        y, y_far = coordinate(load(points, b * len(axes) + 1), y_axis, False, way)
        column, row = np.int32(np.rint(x)), np.int32(np.rint(y))
        far |= y_far
        exists = (column >= 0) & (column < width) & (row >= 0) & (row < height)
        if len(axes) == 3:
            z, z_far = coordinate(load(points, b * len(axes) + 2), z_axis, False, way)
            plane = np.int32(np.rint(z))
            far |= z_far
            exists &= (plane >= 0) & (plane < depth)
            row = np.int32(plane * height + row)
        base[b] = np.int32(row * width + column) if exists else np.int32(-1)
        outside = np.int32(outside + (not exists))
        all_far = np.int32(all_far + far)
    return all_far, outside


@jitable
def nearest_pixel(points, b, g):
    """The pixel that point b reads, or -1, in an image of any size."""
    pixel = 0
    for i in range(g.axes):
        k = np.int64(np.rint(coordinate_of(points, b, i, g, False)))
        pixel = pixel * g.image[i] + k if pixel >= 0 and 0 <= k < g.image[i] else -1
    return pixel


@jitable
def place(points, count, g, offsets, p, base, weight):
    """weight[axis, tap, b] of neighbours that exist, the first of which is the pixel at `base[b]`.

    What is more than there are points, up to `count`, has no weight. `p` is room for cubic's coordinates.
    """
    there = points.size // g.axes
    base[there:count] = 0
    for i in range(g.axes):
        for t in range(len(offsets)):
            weight[i, t][there:count] = 0
    if g.axes == 2:
        if place_by(points, IMAGE, NEAR, g, offsets, p, base, weight) > 0:
            place_by(points, IMAGE, FAR, g, offsets, p, base, weight)
    elif place_by(points, VOLUME, NEAR, g, offsets, p, base, weight) > 0:
        place_by(points, VOLUME, FAR, g, offsets, p, base, weight)
    if len(offsets) == 4:
        base[:there] = 0
        for i in range(g.axes):
            size, w, places, at = np.int32(g.image[i]), weight[i], p[i][:there], base[:there]
            if place_cubic(places, size, at, w[0], w[1], w[2], w[3]) > 0:
                for b in range(0, there, GROUP):
                    bring_inside(
                        places[b:][:GROUP], size, g.padding_mode, g.align_corners, at[b:],
                        w[0][b:], w[1][b:], w[2][b:], w[3][b:],
                    )  # fmt: skip


@jitable
def place_by(points, axes, way, g, offsets, p, base, weight):
    """Linear's places and weights, cubic's coordinates. Returns how many points are too far away for this way."""
    z, y, x = axes_of(g, len(offsets) == 4, zero(points))
    if len(offsets) == 4:
        return locate(points, axes, way, z, y, x, p[0], p[len(axes) - 2], p[len(axes) - 1])
    depth, height, width = sizes_of(g)
    a, b, c = weight[0], weight[len(axes) - 2], weight[len(axes) - 1]
    return place_linear(points, axes, way, z, y, x, depth, height, width, base, a[0], a[1], b[0], b[1], c[0], c[1])


@jitable(**APART)
def place_linear(
    points, axes, way, z_axis, y_axis, x_axis, depth, height, width, base, front, back, up, down, left, right
):
    """For an image, which has no planes, `front` and `back` are arrays that it does not touch."""
    number, all_far = left.dtype.type, np.int32(0)
    for b in range(points.size // len(axes)):
        x, far = coordinate(load(points, b * len(axes)), x_axis, False, way)
        y, y_far = coordinate(load(points, b * len(axes) + 1), y_axis, False, way)
        column, left[b], right[b] = neighbours(x, width, number)
        row, up[b], down[b] = neighbours(y, height, number)
        far |= y_far
        if len(axes) == 3:
            z, z_far = coordinate(load(points, b * len(axes) + 2), z_axis, False, way)
            plane, front[b], back[b] = neighbours(z, depth, number)
            row = np.int32(plane * height + row)
            far |= z_far
        base[b] = np.int32(row * width + column)
        all_far = np.int32(all_far + far)
    return all_far


@jitable
def neighbours(place, size, number):
    """Of linear's two neighbours that exist along an axis, the first one's number and both weights."""
    zero, one, two = number(0), number(1), number(2)
    whole = np.floor(place)
    first = np.int32(whole)
    k = inside(first, np.int32(size - 2))
    # From the first neighbour: the fraction, and by how much the neighbours had to move.
    d = number(place - whole) + number(np.int32(first - k))
    rest, f = one - abs(d), d if d < one else two - d
    return k, rest if rest > zero else zero, f if f > zero else zero


@jitable(**APART)
def locate(points, axes, way, z_axis, y_axis, x_axis, z, y, x):
    """Coordinates as rows; of an image, `z` is an array that is not touched."""
    all_far = np.int32(0)
    for b in range(points.size // len(axes)):
        x[b], far = coordinate(load(points, b * len(axes)), x_axis, True, way)
        y[b], y_far = coordinate(load(points, b * len(axes) + 1), y_axis, True, way)
        far |= y_far
        if len(axes) == 3:
            z[b], z_far = coordinate(load(points, b * len(axes) + 2), z_axis, True, way)
            far |= z_far
        all_far = np.int32(all_far + far)
    return all_far


@jitable(**APART)
def place_cubic(places, size, base, w0, w1, w2, w3):
    """Along one axis. Returns how many points have taps outside, whose weights are still to be moved."""
    number, last, outside = w0.dtype.type, np.int32(size - 4), np.int32(0)
    for b in range(places.size):
        first = first_tap(places[b])
        k = inside(first, last)
        base[b] = np.int32(base[b] * size + k)
        w0[b], w1[b], w2[b], w3[b] = cubic_weights(number(places[b] - np.floor(places[b])))
        outside = np.int32(outside + (first != k))
    return outside


@jitable
def cubic_weights(f):
    """Of the four taps, for the fraction f of a coordinate."""
    return cubic_end(f), cubic_middle(f), cubic_middle(type(f)(1) - f), cubic_end(type(f)(1) - f)


@jitable
def cubic_middle(f):
    """Cubic convolution with A = -0.75 at the distance f from a tap, if f < 1; in factors that lose no digits."""
    return (type(f)(1.25) * f - type(f)(2.25)) * f * f + type(f)(1)


@jitable
def cubic_end(f):
    """The same at the distance 1 + f."""
    return type(f)(-0.75) * f * (type(f)(1) - f) * (type(f)(1) - f)


@jitable(**APART)
def bring_inside(places, size, padding_mode, align_corners, base, w0, w1, w2, w3):
    """Of cubic's taps of at most GROUP points: add the weights of those outside of an axis of this size to those of the
    pixels that they stand for. The first of these is at `base` then."""
    zero, last, outside = w0.dtype.type(0), np.int32(size - 4), np.int32(0)
    for b in range(places.size):
        k = first_tap(places[b])
        outside = np.int32(outside + (inside(k, last) != k))
    for b in range(places.size if outside > 0 else 0):
        k = first_tap(places[b])
        at0 = padded(k, size, padding_mode, align_corners)
        at1 = padded(k + 1, size, padding_mode, align_corners)
        at2 = padded(k + 2, size, padding_mode, align_corners)
        at3 = padded(k + 3, size, padding_mode, align_corners)
        first = min(min(min(at0, at1), min(at2, at3)), last)
        v0, v1 = w0[b] if at0 < size else zero, w1[b] if at1 < size else zero
        v2, v3 = w2[b] if at2 < size else zero, w3[b] if at3 < size else zero
        base[b] += np.int32(first - inside(k, last))
        w0[b] = of_pixel(first, at0, at1, at2, at3, v0, v1, v2, v3)
        w1[b] = of_pixel(first + 1, at0, at1, at2, at3, v0, v1, v2, v3)
        w2[b] = of_pixel(first + 2, at0, at1, at2, at3, v0, v1, v2, v3)
        w3[b] = of_pixel(first + 3, at0, at1, at2, at3, v0, v1, v2, v3)


@jitable
def first_tap(place):
    """Of cubic's four."""
    return np.int32(np.int32(np.floor(place)) - 1)


@jitable
def inside(k, last):
    k = np.int32(0) if k < 0 else k
    return last if k > last else k


@jitable
def padded(tap, size, padding_mode, align_corners):
    """`pad_index` without a division, for taps at most a period and two pixels away, or nowhere; `size` if no pixel
    stands for the tap."""
    k, somewhere = tap, tap >= -2 * size - 4
    if padding_mode == REFLECTION and somewhere:
        k = align_corners - 1 - k if k < 0 else k
        k = 2 * size - 1 - align_corners - k if k >= size else k
        k = align_corners - 1 - k if k < 0 else k
    if padding_mode == BORDER and somewhere:
        k = min(max(k, 0), size - 1)
    return np.int32(k) if 0 <= k < size else np.int32(size)


@jitable
def of_pixel(pixel, at0, at1, at2, at3, v0, v1, v2, v3):
    """The sum of the weights v0 to v3 of taps that stand at this pixel."""
    zero = type(v0)(0)
    low = (v0 if at0 == pixel else zero) + (v1 if at1 == pixel else zero)
    return low + ((v2 if at2 == pixel else zero) + (v3 if at3 == pixel else zero))


@jitable
def axes_of(g, cubic, zero):
    """The last three axes; an image has its rows in place of planes, which are not asked for."""
    return axis_of(g, 0, cubic, zero), axis_of(g, g.axes - 2, cubic, zero), axis_of(g, g.axes - 1, cubic, zero)


@jitable
def sizes_of(g):
    return np.int32(g.image[0]), np.int32(g.image[g.axes - 2]), np.int32(g.image[g.axes - 1])
