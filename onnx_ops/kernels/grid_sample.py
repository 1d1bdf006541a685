"""GridSample over blocks of BLOCK output pixels: places and weights once per block, then every channel reads by them.

A point whose taps all lie inside the image is read at `base` (the offset of its first tap within a channel's image)
without any checks. The others, few in practice, are read again tap by tap: see `edge`.
"""

import numpy as np

from .jit import jitable

BLOCK = 512
ZEROS, BORDER, REFLECTION = 0, 1, 2


@jitable
def nearest(x, grid, g, tile, out):
    width, height = g.image[1], g.image[0]
    plane = height * width
    p = np.empty((2, BLOCK), grid.dtype)
    base = np.empty(BLOCK, np.int64)
    zero = out.dtype.type(0)
    units = g.batch * g.blocks
    for unit in range(units * tile // g.tiles, units * (tile + 1) // g.tiles):
        n, first = unit // g.blocks, unit % g.blocks * BLOCK
        count = min(BLOCK, g.points - first)
        coordinates(grid, n * g.points + first, count, g, p)
        for b in range(count):
            i, j = np.int64(np.rint(p[0, b])), np.int64(np.rint(p[1, b]))
            base[b] = i * width + j if 0 <= i < height and 0 <= j < width else -1
        for c in range(g.channels):
            source = x[(n * g.channels + c) * plane :][:plane]
            target = out[(n * g.channels + c) * g.points + first :][:count]
            for b in range(count):
                target[b] = source[base[b]] if base[b] >= 0 else zero


@jitable
def linear(x, grid, g, tile, out):
    width, height = g.image[1], g.image[0]
    plane = height * width
    p = np.empty((2, BLOCK), grid.dtype)
    weight = np.empty((2, BLOCK), out.dtype)
    base, outside = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    index, pair = np.empty((2, 2), np.int64), np.empty((2, 2), out.dtype)
    offsets, weights = np.empty(4, np.int64), np.empty(4, out.dtype)
    units = g.batch * g.blocks
    for unit in range(units * tile // g.tiles, units * (tile + 1) // g.tiles):
        n, first = unit // g.blocks, unit % g.blocks * BLOCK
        count = min(BLOCK, g.points - first)
        coordinates(grid, n * g.points + first, count, g, p)
        others = place(p, count, 0, 1, g, base, weight, outside)
        if others < count:
            for c in range(g.channels):
                source = x[(n * g.channels + c) * plane :][:plane]
                target = out[(n * g.channels + c) * g.points + first :][:count]
                blend_linear(source, width, base, weight, target)
        for e in range(others):
            b = outside[e]
            for i in range(g.axes):
                k = np.int64(np.floor(p[i, b]))
                index[i, 0] = k if 0 <= k < g.image[i] else -1
                index[i, 1] = k + 1 if 0 <= k + 1 < g.image[i] else -1
                pair[i, 0], pair[i, 1] = weights.dtype.type(1) - weight[i, b], weight[i, b]
            taps = combine(index, pair, g, offsets, weights)
            edge(x, n, first + b, g, offsets, weights, taps, out)


@jitable
def cubic(x, grid, g, tile, out):
    width, height = g.image[1], g.image[0]
    plane = height * width
    p = np.empty((2, BLOCK), grid.dtype)
    fraction, weight = np.empty((2, BLOCK), out.dtype), np.empty((2, BLOCK, 4), out.dtype)
    base, outside = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    index = np.empty((2, 4), np.int64)
    offsets, weights = np.empty(16, np.int64), np.empty(16, out.dtype)
    units = g.batch * g.blocks
    for unit in range(units * tile // g.tiles, units * (tile + 1) // g.tiles):
        n, first = unit // g.blocks, unit % g.blocks * BLOCK
        count = min(BLOCK, g.points - first)
        coordinates(grid, n * g.points + first, count, g, p, True)
        others = place(p, count, -1, 2, g, base, fraction, outside)
        for a in range(2):
            for b in range(count):
                cubic_weights(fraction[a, b], weight[a, b])
        if others < count:
            for c in range(g.channels):
                source = x[(n * g.channels + c) * plane :][:plane]
                target = out[(n * g.channels + c) * g.points + first :][:count]
                blend_cubic(source, width, base, weight, target)
        for e in range(others):
            b = outside[e]
            for i in range(g.axes):
                k = np.int64(np.floor(p[i, b]))
                for t in range(4):
                    index[i, t] = pad_index(k - 1 + t, g.image[i], g)
            taps = combine(index, weight[:, b], g, offsets, weights)
            edge(x, n, first + b, g, offsets, weights, taps, out)


@jitable
def coordinates(grid, start, count, g, p, cubic=False):
    """p[axis, b]: pixel coordinates of `count` points, padded (except for cubic) and within reach of an integer.

    Whatever has no taps at all becomes -2 (for cubic: -3 * size - 8).
    """
    number = p.dtype.type
    one, half = number(1), number(0.5)
    for i in range(g.axes):
        size, column = g.image[i], g.axes - 1 - i
        if g.align_corners:
            span = number(size - 1)
            for b in range(count):
                p[i, b] = (grid[(start + b) * g.axes + column] + one) * half * span
        else:
            span = number(size)
            for b in range(count):
                p[i, b] = ((grid[(start + b) * g.axes + column] + one) * span - one) * half
        low, high = number(-2), number(size + 1)
        if cubic:
            low, high = number(-3 * size - 8), number(3 * size + 8)
            if g.padding_mode == REFLECTION:
                period = number(max(1, 2 * (size - g.align_corners)))
                for b in range(count):
                    if not abs(p[i, b]) < period:
                        p[i, b] = np.fmod(p[i, b], period)
            else:
                for b in range(count):
                    p[i, b] = clip(p[i, b], number(-4), number(size + 3))
        elif g.padding_mode == BORDER:
            for b in range(count):
                p[i, b] = clip(p[i, b], number(0), number(size - 1))
        elif g.padding_mode == REFLECTION:
            for b in range(count):
                p[i, b] = clip(reflect(p[i, b], size, g.align_corners), number(0), number(size - 1))
        for b in range(count):
            v = p[i, b] if p[i, b] >= low else low
            p[i, b] = v if v <= high else high


@jitable
def clip(v, low, high):
    """`v` within [low, high]; NaN stays NaN."""
    v = low if v < low else v
    return high if v > high else v


@jitable
def reflect(v, size, align_corners):
    """`v` mirrored at 0 and size - 1, or at -1/2 and size - 1/2. Exact up to the final addition, for every finite v."""
    number = type(v)
    low, span = (number(0), number(size - 1)) if align_corners else (number(-0.5), number(size))
    d = abs(v - low)
    if d > span:
        if span == 0:
            return v * number(0)
        if not d < span + span:
            d = np.fmod(d, span + span)
        if d > span:
            d = span + span - d
    return d + low


@jitable
def place(p, count, before, after, g, base, fraction, outside):
    """Offset of the first tap and fraction of the coordinates; lists, and counts, the points with taps outside."""
    others = 0
    for b in range(count):
        offset, inside = 0, True
        for i in range(g.axes):
            whole = np.floor(p[i, b])
            fraction[i, b] = p[i, b] - whole
            k = np.int64(whole)
            inside = inside and k + before >= 0 and k + after < g.image[i]
            offset = offset * g.image[i] + k + before
        base[b] = offset if inside else 0
        if not inside:
            outside[others] = b
            others += 1
    return others


@jitable(fuse=True)
def blend_linear(source, width, base, fraction, target):
    one = target.dtype.type(1)
    for b in range(target.size):
        s, fy, fx = base[b], fraction[0, b], fraction[1, b]
        top = (one - fx) * source[s] + fx * source[s + 1]
        bottom = (one - fx) * source[s + width] + fx * source[s + width + 1]
        target[b] = (one - fy) * top + fy * bottom


@jitable(fuse=True)
def blend_cubic(source, width, base, weight, target):
    for b in range(target.size):
        total = target.dtype.type(0)
        for r in range(4):
            s = base[b] + r * width
            row = weight[1, b, 0] * source[s]
            for k in range(1, 4):
                row += weight[1, b, k] * source[s + k]
            total += weight[0, b, r] * row
        target[b] = total


@jitable
def cubic_weights(f, weight):
    """Weights of the taps at -1, 0, 1 and 2 for the fraction f: cubic convolution, A = -0.75, in factors that
    lose no digits."""
    number = weight.dtype.type
    a, rest = number(-0.75), number(1) - f
    weight[0] = a * f * rest * rest
    weight[1] = ((a + number(2)) * f - (a + number(3))) * f * f + number(1)
    weight[2] = ((a + number(2)) * rest - (a + number(3))) * rest * rest + number(1)
    weight[3] = a * rest * f * f


@jitable
def combine(index, weight, g, offsets, weights):
    """Offsets and weights of the taps that exist, from those of each axis (index -1: no such tap); returns how many."""
    size, taps = index.shape[1], 1
    offsets[0], weights[0] = 0, 1
    for i in range(g.axes):
        for t in range(taps - 1, -1, -1):
            offset, w = offsets[t], weights[t]
            for k in range(size - 1, -1, -1):
                exists = offset >= 0 and index[i, k] >= 0
                offsets[t * size + k] = offset * g.image[i] + index[i, k] if exists else -1
                weights[t * size + k] = w * weight[i, k]
        taps *= size
    found = 0
    for t in range(taps):
        if offsets[t] >= 0:
            offsets[found], weights[found] = offsets[t], weights[t]
            found += 1
    return found


@jitable
def pad_index(k, size, g):
    """The pixel that stands for pixel `k` of an axis, -1 if none does."""
    if k < -2 * size - 4:
        return -1
    if g.padding_mode == BORDER:
        return min(max(k, 0), size - 1)
    if g.padding_mode == REFLECTION:
        k %= max(1, 2 * (size - g.align_corners))
        return k if k < size else 2 * size - 1 - g.align_corners - k
    return k if 0 <= k < size else -1


@jitable
def edge(x, n, point, g, offsets, weights, taps, out):
    """One point in all channels from `taps` taps."""
    plane = g.image[0] * g.image[1]
    for c in range(g.channels):
        source = (n * g.channels + c) * plane
        total = out.dtype.type(0)
        for t in range(taps):
            total += weights[t] * x[source + offsets[t]]
        out[(n * g.channels + c) * g.points + point] = total
