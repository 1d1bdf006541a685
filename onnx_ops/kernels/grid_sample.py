"""GridSample over blocks of BLOCK output pixels: places and weights once per block, then every channel reads by them.

A block is part of one image's points, or all points of several small images. Interpolation reads, for each point, a
square of neighbours from the pixel `base` on, all of which exist: what a tap outside of the image stands for is a
matter of weights alone, which are zero, or added to those of the pixels inside. Only where that fails, beside
infinities and in images smaller than the square, points are read again tap by tap.
"""

import numpy as np

from .coordinates import BORDER, REFLECTION, ZEROS, coordinates, pad_index
from .elements import indices_in, integers_in, is_wide, load, store, sums, sums_in, zero
from .jit import APART, REORDER, jitable
from .vectors import GROUP, blend

BLOCK = 512
LARGEST = 2**29  # size of an axis, and a quarter of the pixels, of images whose pixels have 32-bit numbers


@jitable
def workspace_size(axes, taps):
    """Bytes that a tile needs: for the arrays of `interpolate` and `tap_by_tap`, or of `nearest`, which has no taps."""
    of_points = axes + 1 + axes * taps + (taps if axes == 3 else 1) * taps + 1
    return 8 * (of_points * BLOCK + 2 * 3 * taps + 2 * taps**3)


@jitable
def nearest(x, grid, g, tile, workspace, out):
    p = sums_in(workspace, 0, (g.axes, BLOCK), grid)
    copy_nearest(x, grid, g, p, indices_in(workspace, p.nbytes, BLOCK), tile, out)


@jitable
def copy_nearest(x, grid, g, p, base, tile, out):
    pixels, indexed = image_size(g), has_indices(g)
    for unit in range(g.units * tile // g.tiles, g.units * (tile + 1) // g.tiles):
        n, first, images, count = part(g, unit)
        total = images * count
        coordinates(grid, n * g.points + first, total, total, g, p, (0,))
        outside = 0
        if indexed:
            outside = place_nearest(p, total, g, base)
            shift_images(base, images, count, g.channels * pixels)
        for c in range(g.channels):
            source = x[(n * g.channels + c) * pixels :]
            for m in range(images):
                target, at = out[((n + m) * g.channels + c) * g.points + first :][:count], base[m * count :][:count]
                if not indexed:
                    for b in range(count):
                        k = nearest_pixel(p, m * count + b, g)
                        store(target, b, load(source, k) if k >= 0 else zero(out))
                elif outside > 0:
                    for b in range(at.size):
                        v = load(source, np.uint32(max(at[b], 0)))
                        store(target, b, v if at[b] >= 0 else zero(out))
                else:
                    for b in range(at.size):
                        store(target, b, load(source, np.uint32(at[b])))


@jitable
def has_indices(g):
    """Whether 32 bits hold the number of every pixel of an image, and what is added to it meanwhile."""
    small = image_size(g) < 4 * LARGEST
    for i in range(g.axes):
        small &= g.image[i] < LARGEST
    return small


@jitable
def place_nearest(p, count, g, base):
    """base[b]: the pixel of the image that point b reads, or -1. Returns how many read none."""
    outside, rows = 0, base[:count]
    rows[:] = 0
    for i in range(g.axes):
        outside = place_nearest_on_axis(p[i][:count], np.int32(g.image[i]), rows)
    return outside


@jitable(**APART)
def place_nearest_on_axis(places, size, base):
    outside = 0
    for b in range(places.size):
        k = np.int32(np.rint(places[b]))
        exists = (base[b] >= 0) & (k >= 0) & (k < size)
        base[b] = np.int32(base[b] * size + k) if exists else np.int32(-1)
        outside += not exists
    return outside


@jitable
def nearest_pixel(p, b, g):
    """The same of one point of a larger image."""
    pixel = 0
    for i in range(g.axes):
        k = np.int64(np.rint(p[i, b]))
        pixel = pixel * g.image[i] + k if pixel >= 0 and 0 <= k < g.image[i] else -1
    return pixel


@jitable
def shift_images(base, images, count, pitch):
    """Offsets of `count` points in each of several images, `pitch` elements apart: from the first image; -1 stays."""
    for m in range(1, images):
        of_image, shift = base[m * count : (m + 1) * count], np.int32(m * pitch)
        for b in range(of_image.size):
            of_image[b] = np.int32(of_image[b] + shift) if of_image[b] >= 0 else np.int32(-1)


@jitable
def linear(x, grid, g, tile, workspace, out):
    interpolate(x, grid, g, (0, 1), tile, workspace, out)


@jitable
def cubic(x, grid, g, tile, workspace, out):
    interpolate(x, grid, g, (-1, 0, 1, 2), tile, workspace, out)


@jitable
def interpolate(x, grid, g, offsets, tile, workspace, out):
    """`offsets`: of an axis' taps from the coordinate's floor. How many there are is known when this is compiled."""
    taps = len(offsets)
    p = sums_in(workspace, 0, (g.axes, BLOCK), grid)
    base = indices_in(workspace, p.nbytes, BLOCK)
    begin = p.nbytes + base.nbytes
    weight = sums_in(workspace, begin, (g.axes, taps, BLOCK), out)
    begin += weight.nbytes
    row_weight = sums_in(workspace, begin, (taps if g.axes == 3 else 1, taps, BLOCK), out)
    begin += row_weight.nbytes
    values = sums_in(workspace, begin, BLOCK, out)
    rest = workspace[begin + values.nbytes :]
    add_up(x, grid, g, offsets, p, base, weight, row_weight, values, rest, tile, out)


@jitable
def add_up(x, grid, g, offsets, p, base, weight, row_weight, values, rest, tile, out):
    pixels, taps, width = image_size(g), len(offsets), g.image[g.axes - 1]
    planes, plane, fits, across = 1, 0, has_indices(g), weight[g.axes - 1]
    if g.axes == 3:
        planes, plane = taps, g.image[1] * width
    for i in range(g.axes):
        fits &= g.image[i] >= taps
    for unit in range(g.units * tile // g.tiles, g.units * (tile + 1) // g.tiles):
        n, first, images, count = part(g, unit)
        total = images * count
        padded = (total + GROUP - 1) // GROUP * GROUP
        coordinates(grid, n * g.points + first, total, padded, g, p, offsets)
        if fits:
            place(p, padded, g, offsets, base, weight)
            shift_images(base, images, count, g.channels * pixels)
            for q in range(planes if planes > 1 else 0):
                for r in range(taps):
                    product, w, w_plane = row_weight[q, r][:padded], weight[1, r][:padded], weight[0, q]
                    for b in range(product.size):
                        product[b] = w[b] * w_plane[b]
        # The sums can be made where they belong if there is room for them, and they belong one after another.
        in_place = total == padded and (images == 1 or g.channels == 1) and not is_wide(out)
        for c in range(g.channels):
            source = x[(n * g.channels + c) * pixels :][: ((images - 1) * g.channels + 1) * pixels]
            into = (sums(out[(n * g.channels + c) * g.points + first :], values) if in_place else values)[:padded]
            for q in range(planes if fits else 0):
                rows = row_weight[q] if planes > 1 else weight[0]
                blend(source[q * plane :], base, width, rows, across, offsets, q > 0, into)
            # A tap that does not exist has weight 0 at one that does, where there may be an infinity.
            done = fits and all_finite(into)
            for m in range(0 if in_place and done else images):
                target = out[((n + m) * g.channels + c) * g.points + first :][:count]
                for b in range(0 if in_place else count):
                    store(target, b, values[m * count + b])
                if not done:
                    tap_by_tap(source[m * g.channels * pixels :], p, m * count, g, offsets, fits, rest, target)


@jitable
def part(g, unit):
    """A unit of work: the first image and point, how many images, how many points of each."""
    if g.images > 1:
        n = unit * g.images
        return n, 0, min(g.images, g.batch - n), g.points
    blocks = g.units // g.batch
    first = unit % blocks * BLOCK
    return unit // blocks, first, 1, min(BLOCK, g.points - first)


@jitable
def image_size(g):
    """Pixels in one channel's image."""
    pixels = 1
    for i in range(g.axes):
        pixels *= g.image[i]
    return pixels


@jitable
def place(p, count, g, offsets, base, weight):
    """weight[axis, tap, b] of neighbours that exist, the first of which is the pixel at `base[b]`."""
    for i in range(g.axes):
        places, size, w = p[i][:count], np.int32(g.image[i]), weight[i]
        rows = base[:count]  # of pixels, in which base[b] is one so far
        if i == 0:
            rows[:] = 0
        if len(offsets) == 2:
            place_linear(places, size, rows, w[0], w[1])
        elif place_cubic(places, size, rows, w[0], w[1], w[2], w[3]) > 0:
            for b in range(0, count, GROUP):
                bring_inside(
                    places[b:], size, g.padding_mode, g.align_corners, rows[b:], w[0][b:], w[1][b:], w[2][b:], w[3][b:]
                )


@jitable(**APART)
def place_linear(places, size, base, left, right):
    number, last = left.dtype.type, np.int32(size - 2)
    zero, one, two = number(0), number(1), number(2)
    for b in range(places.size):
        whole = np.floor(places[b])
        first = np.int32(whole)
        k = inside(first, last)
        base[b] = np.int32(base[b] * size + k)
        # From the first neighbour: the fraction, and by how much the neighbours had to move.
        d = number(places[b] - whole) + number(np.int32(first - k))
        rest, f = one - abs(d), d if d < one else two - d
        left[b] = rest if rest > zero else zero
        right[b] = f if f > zero else zero


@jitable(**APART)
def place_cubic(places, size, base, w0, w1, w2, w3):
    """Returns how many points have taps outside, whose weights are still to be moved."""
    number, last, outside = w0.dtype.type, np.int32(size - 4), 0
    for b in range(places.size):
        whole = np.floor(places[b])
        first = first_tap(places[b])
        k = inside(first, last)
        base[b] = np.int32(base[b] * size + k)
        w0[b], w1[b], w2[b], w3[b] = cubic_weights(number(places[b] - whole))
        outside += first != k
    return outside


@jitable
def inside(k, last):
    k = np.int32(0) if k < 0 else k
    return last if k > last else k


@jitable
def first_tap(place):
    """Of cubic's four."""
    return np.int32(np.int32(np.floor(place)) - 1)


@jitable(**APART)
def bring_inside(places, size, padding_mode, align_corners, base, w0, w1, w2, w3):
    """Of cubic's taps of GROUP points: add the weights of those outside of an axis of this size to those of the pixels
    that they stand for. The first of these is at `base` then."""
    zero, last, outside = w0.dtype.type(0), np.int32(size - 4), 0
    for b in range(GROUP):
        k = first_tap(places[b])
        outside += inside(k, last) != k
    for b in range(GROUP if outside > 0 else 0):
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
def of_pixel(pixel, at0, at1, at2, at3, v0, v1, v2, v3):
    """The sum of the weights v0 to v3 of taps that stand at this pixel."""
    zero = type(v0)(0)
    low = (v0 if at0 == pixel else zero) + (v1 if at1 == pixel else zero)
    return low + ((v2 if at2 == pixel else zero) + (v3 if at3 == pixel else zero))


@jitable
def padded(tap, size, padding_mode, align_corners):
    """`pad_index` without a division, for taps less than two sizes away; `size` if no pixel stands for the tap."""
    k = tap
    if padding_mode == REFLECTION:
        k = align_corners - 1 - k if k < 0 else k
        k = 2 * size - 1 - align_corners - k if k >= size else k
        k = align_corners - 1 - k if k < 0 else k
    if padding_mode == BORDER and tap >= -2 * size - 4:
        k = min(max(k, 0), size - 1)
    return np.int32(k) if 0 <= k < size else np.int32(size)


@jitable
def cubic_middle(f):
    """Cubic convolution with A = -0.75 at the distance f from a tap, if f < 1; in factors that lose no digits."""
    return (type(f)(1.25) * f - type(f)(2.25)) * f * f + type(f)(1)


@jitable
def cubic_end(f):
    """The same at the distance 1 + f."""
    return type(f)(-0.75) * f * (type(f)(1) - f) * (type(f)(1) - f)


@jitable
def cubic_weights(f):
    """Of the four taps, for the fraction f of a coordinate."""
    return cubic_end(f), cubic_middle(f), cubic_middle(type(f)(1) - f), cubic_end(type(f)(1) - f)


@jitable
def axis_weights(f, weight):
    """The taps' weights along one axis for the fraction f of a coordinate."""
    if weight.size == 2:
        weight[0], weight[1] = type(f)(1) - f, f
    else:
        weight[0], weight[1], weight[2], weight[3] = cubic_weights(f)


@jitable(**REORDER)
def all_finite(values):
    zero = values.dtype.type(0)
    total = zero
    for b in range(values.size):
        total += values[b] * zero
    return total == zero


@jitable
def tap_by_tap(source, p, begin, g, offsets, fits, workspace, target):
    """All points, whose coordinates begin at p[:, begin], or if the image `fits` the rest only those that have taps
    outside: from just the taps that exist."""
    taps = len(offsets)
    index, found_at = integers_in(workspace, 0, (3, taps)), integers_in(workspace, 8 * 3 * taps, taps**3)
    weight = sums_in(workspace, index.nbytes + found_at.nbytes, (3, taps), target)
    found_weights = sums_in(workspace, index.nbytes + found_at.nbytes + weight.nbytes, taps**3, target)
    number = weight.dtype.type
    # Linear's coordinates are padded, so that its taps outside are none; cubic's taps are padded one by one.
    padding_mode = ZEROS if taps == 2 else g.padding_mode
    for b in range(target.size):
        outside = not fits
        for i in range(g.axes):
            place = p[i, begin + b]
            whole = np.floor(place)
            k = np.int64(whole) + offsets[0]
            outside |= (k < 0) | (k + taps > g.image[i])
            for t in range(taps):
                index[i, t] = pad_index(k + t, g.image[i], padding_mode, g.align_corners)
            axis_weights(number(place - whole), weight[i])
        if outside:
            found = combine(index, weight, g, found_at, found_weights)
            total = number(0)
            for t in range(found):
                total += found_weights[t] * load(source, found_at[t])
            store(target, b, total)


@jitable
def combine(index, weight, g, offsets, weights):
    """Offsets and weights of those taps that exist, from each axis' own; returns how many.

    index[axis, tap] is -1 where there is no such tap.
    """
    taps, last, found = index.shape[1], g.axes - 1, 0
    for q in range(taps if g.axes == 3 else 1):
        plane, plane_weight = 0, weight.dtype.type(1)
        if g.axes == 3:
            plane, plane_weight = index[0, q] * g.image[1], weight[0, q]
        for r in range(taps if plane >= 0 else 0):
            row, row_weight = (plane + index[last - 1, r]) * g.image[last], plane_weight * weight[last - 1, r]
            for k in range(taps if index[last - 1, r] >= 0 else 0):
                if index[last, k] >= 0:
                    offsets[found], weights[found] = row + index[last, k], row_weight * weight[last, k]
                    found += 1
    return found
