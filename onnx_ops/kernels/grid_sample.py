"""GridSample over blocks of BLOCK output pixels: places and weights once per block, then every channel reads by them.

A point whose taps all lie inside the image is read at `base` (the offset of its first tap within a channel's image)
without any checks. The others, few in practice, are read again tap by tap: see `edge`.
"""

import numpy as np

from .elements import empty_sums, load, store, zero
from .jit import jitable

BLOCK = 512
ZEROS, BORDER, REFLECTION = 0, 1, 2


@jitable
def nearest(x, grid, g, tile, out):
    pixels = image_size(g)
    p = empty_sums(grid, (g.axes, BLOCK))
    base = np.empty(BLOCK, np.int64)
    units = g.batch * g.blocks
    for unit in range(units * tile // g.tiles, units * (tile + 1) // g.tiles):
        n, first = unit // g.blocks, unit % g.blocks * BLOCK
        count = min(BLOCK, g.points - first)
        coordinates(grid, n * g.points + first, count, g, p, False)
        for b in range(count):
            base[b] = 0
        for i in range(g.axes):
            size, places = g.image[i], p[i][:count]
            for b in range(count):
                k = np.int64(np.rint(places[b]))
                base[b] = base[b] * size + k if (base[b] >= 0) & (k >= 0) & (k < size) else -1
        for c in range(g.channels):
            source = x[(n * g.channels + c) * pixels :][:pixels]
            target = out[(n * g.channels + c) * g.points + first :][:count]
            for b in range(count):
                store(target, b, load(source, base[b]) if base[b] >= 0 else zero(out))


@jitable
def interpolated(x, grid, g, tile, out):
    """Linear and cubic: g.taps (2 or 4) taps per axis."""
    pixels, row, taps = image_size(g), g.image[g.axes - 1], g.taps
    p = empty_sums(grid, (g.axes, BLOCK))
    fraction, weight = empty_sums(out, (g.axes, BLOCK)), empty_sums(out, (g.axes, BLOCK, taps))
    base, outside = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    index, offsets, weights = np.empty((g.axes, taps), np.int64), np.empty(64, np.int64), empty_sums(out, 64)
    # Linear's coordinates are padded, so that its taps outside are none; cubic's taps are padded one by one.
    first_tap, padding_mode = (0, ZEROS) if taps == 2 else (-1, g.padding_mode)
    units = g.batch * g.blocks
    for unit in range(units * tile // g.tiles, units * (tile + 1) // g.tiles):
        n, first = unit // g.blocks, unit % g.blocks * BLOCK
        count = min(BLOCK, g.points - first)
        coordinates(grid, n * g.points + first, count, g, p, taps == 4)
        others = place(p, count, first_tap, first_tap + taps - 1, g, base, fraction, outside)
        lean = taps == 2 and g.axes == 2  # needs no weights but the fractions, except for the others
        for i in range(0 if lean else g.axes):
            for b in range(count):
                tap_weights(fraction[i, b], weight[i, b])
        for c in range(g.channels if others < count else 0):
            source = x[(n * g.channels + c) * pixels :][:pixels]
            target = out[(n * g.channels + c) * g.points + first :][:count]
            if g.axes > 2:
                blend_volume(source, g, base, weight, target)
            elif lean:
                blend_linear(source, row, base, fraction, target)
            else:
                blend_cubic(source, row, base, weight, target)
        for e in range(others):
            b = outside[e]
            for i in range(g.axes):
                k = np.int64(np.floor(p[i, b])) + first_tap
                for t in range(taps):
                    index[i, t] = pad_index(k + t, g.image[i], padding_mode, g.align_corners)
                if lean:
                    tap_weights(fraction[i, b], weight[i, b])
            found = combine(index, weight, b, g, offsets, weights)
            edge(x, n, first + b, g, offsets, weights, found, out)


@jitable
def image_size(g):
    """Pixels in one channel's image."""
    pixels = 1
    for i in range(g.axes):
        pixels *= g.image[i]
    return pixels


@jitable
def coordinates(grid, start, count, g, p, cubic):
    """p[axis, b]: pixel coordinates of `count` points, padded (except for cubic) and within reach of an integer.

    Whatever has no taps at all becomes -2 (for cubic: -3 * size - 8).
    """
    number = p.dtype.type
    one, half = number(1), number(0.5)
    split(grid[start * g.axes :][: count * g.axes], p)
    for i in range(g.axes):
        size, places = g.image[i], p[i][:count]
        if g.align_corners:
            span = number(size - 1)
            for b in range(count):
                places[b] = (places[b] + one) * half * span
        else:
            span = number(size)
            for b in range(count):
                places[b] = ((places[b] + one) * span - one) * half
        low, high = number(-2), number(size + 1)
        if cubic:
            low, high = number(-3 * size - 8), number(3 * size + 8)
            if g.padding_mode == REFLECTION:
                period = number(max(1, 2 * (size - g.align_corners)))
                for b in range(count):
                    if not abs(places[b]) < period:
                        places[b] = np.fmod(places[b], period)
            else:
                for b in range(count):
                    places[b] = clip(places[b], number(-4), number(size + 3))
        else:
            if g.padding_mode == REFLECTION:
                reflect(places, size, g.align_corners)
            if g.padding_mode != ZEROS:
                for b in range(count):
                    places[b] = clip(places[b], number(0), number(size - 1))
        for b in range(count):
            v = places[b] if places[b] >= low else low
            places[b] = v if v <= high else high


@jitable
def split(grid, p):
    """The grid's columns, which list the axes backwards, as rows; written out so that the strides are known."""
    if p.shape[0] == 2:
        x, y = p[1], p[0]
        for b in range(grid.size // 2):
            x[b], y[b] = load(grid, 2 * b), load(grid, 2 * b + 1)
    else:
        x, y, z = p[2], p[1], p[0]
        for b in range(grid.size // 3):
            x[b], y[b], z[b] = load(grid, 3 * b), load(grid, 3 * b + 1), load(grid, 3 * b + 2)


@jitable
def clip(v, low, high):
    """`v` within [low, high]; NaN stays NaN."""
    v = low if v < low else v
    return high if v > high else v


@jitable
def reflect(places, size, align_corners):
    """Mirrored at 0 and size - 1, or at -1/2 and size - 1/2. Exact up to the final addition, for every finite place."""
    number = places.dtype.type
    low, span = (number(0), number(size - 1)) if align_corners else (number(-0.5), number(size))
    twice, far = span + span, 0
    for b in range(places.size):
        d = abs(places[b] - low)
        places[b] = d
        far += 0 if d < twice else 1
    if far > 0:
        for b in range(places.size):
            if not places[b] < twice:
                places[b] = np.fmod(places[b], twice) if span > 0 else places[b] * number(0)
    for b in range(places.size):
        d = places[b]
        places[b] = (twice - d if d > span else d) + low


@jitable
def place(p, count, before, after, g, base, fraction, outside):
    """Offset of the first tap and fraction of the coordinates; lists, and counts, the points with taps outside."""
    for b in range(count):
        base[b], outside[b] = 0, 0
    for i in range(g.axes):
        size, low, high = g.image[i], -before, g.image[i] - 1 - after
        places, fractions = p[i][:count], fraction[i][:count]
        for b in range(count):
            whole = np.floor(places[b])
            fractions[b] = places[b] - whole
            k = np.int64(whole)
            base[b] = base[b] * size + k + before
            outside[b] |= np.int64(k < low) | np.int64(k > high)
    others = 0
    for b in range(count):
        others += outside[b]
    if others > 0:
        others = 0
        for b in range(count):
            if outside[b] != 0:
                base[b] = 0
                outside[others] = b
                others += 1
    return others


@jitable(fuse=True)
def blend_linear(source, width, base, fraction, target):
    # Unsigned offsets need no test for a negative index.
    one, next_one, next_row = fraction.dtype.type(1), np.uint64(1), np.uint64(width)
    fys, fxs = fraction[0], fraction[1]
    for b in range(target.size):
        s, fy, fx = np.uint64(base[b]), fys[b], fxs[b]
        top = (one - fx) * load(source, s) + fx * load(source, s + next_one)
        bottom = (one - fx) * load(source, s + next_row) + fx * load(source, s + next_row + next_one)
        store(target, b, (one - fy) * top + fy * bottom)


@jitable(fuse=True)
def blend_cubic(source, width, base, weight, target):
    for b in range(target.size):
        total = weight.dtype.type(0)
        for r in range(4):
            s = base[b] + r * width
            row = weight[1, b, 0] * load(source, s)
            for k in range(1, 4):
                row += weight[1, b, k] * load(source, s + k)
            total += weight[0, b, r] * row
        store(target, b, total)


@jitable(fuse=True)
def blend_volume(source, g, base, weight, target):
    """Three axes, any number of taps."""
    taps = weight.shape[2]
    for b in range(target.size):
        total = weight.dtype.type(0)
        for q in range(taps):
            plane = weight.dtype.type(0)
            for r in range(taps):
                s = base[b] + (q * g.image[1] + r) * g.image[2]
                row = weight[2, b, 0] * load(source, s)
                for k in range(1, taps):
                    row += weight[2, b, k] * load(source, s + k)
                plane += weight[1, b, r] * row
            total += weight[0, b, q] * plane
        store(target, b, total)


@jitable
def tap_weights(f, weight):
    """Weights of the taps at 0 and 1, or of those at -1, 0, 1 and 2, for the fraction f.

    The latter are cubic convolution with A = -0.75, in factors that lose no digits.
    """
    number = weight.dtype.type
    a, rest = number(-0.75), number(1) - f
    if weight.size == 2:
        weight[0], weight[1] = rest, f
    else:
        weight[0] = a * f * rest * rest
        weight[1] = ((a + number(2)) * f - (a + number(3))) * f * f + number(1)
        weight[2] = ((a + number(2)) * rest - (a + number(3))) * rest * rest + number(1)
        weight[3] = a * rest * f * f


@jitable
def combine(index, weight, b, g, offsets, weights):
    """Offsets and weights of those taps of point b that exist, from each axis' own; returns how many.

    index[axis, tap] is -1 where there is no such tap.
    """
    taps, last, found = index.shape[1], g.axes - 1, 0
    for q in range(taps if g.axes == 3 else 1):
        plane, plane_weight = 0, weight.dtype.type(1)
        if g.axes == 3:
            plane, plane_weight = index[0, q] * g.image[1], weight[0, b, q]
        for r in range(taps if plane >= 0 else 0):
            row, row_weight = (plane + index[last - 1, r]) * g.image[last], plane_weight * weight[last - 1, b, r]
            for k in range(taps if index[last - 1, r] >= 0 else 0):
                if index[last, k] >= 0:
                    offsets[found], weights[found] = row + index[last, k], row_weight * weight[last, b, k]
                    found += 1
    return found


@jitable
def pad_index(k, size, padding_mode, align_corners):
    """The pixel that stands for pixel `k` of an axis, -1 if none does."""
    if k < -2 * size - 4:
        return -1
    if padding_mode == BORDER:
        return min(max(k, 0), size - 1)
    if padding_mode == REFLECTION:
        k %= max(1, 2 * (size - align_corners))
        return k if k < size else 2 * size - 1 - align_corners - k
    return k if 0 <= k < size else -1


@jitable
def edge(x, n, point, g, offsets, weights, taps, out):
    """One point in all channels from `taps` taps."""
    pixels = image_size(g)
    for c in range(g.channels):
        source = (n * g.channels + c) * pixels
        total = weights.dtype.type(0)
        for t in range(taps):
            total += weights[t] * load(x, source + offsets[t])
        store(out, (n * g.channels + c) * g.points + point, total)
