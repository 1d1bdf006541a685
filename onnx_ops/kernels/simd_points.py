"""Loops of vectors.py over points of images, for compiled code: interpolation, and deformable attention."""

import numpy as np
from numba import types
from numba.extending import intrinsic, overload, register_jitable

from . import vectors
from .elements_numba import I64, sum_type
from .jit import BOUNDSCHECK, FLAGS, FUSE, INNER
from .simd import (
    Vector,
    alignment,
    broadcast,
    concatenate,
    lanes,
    lanes_of,
    load_vector,
    needs_library,
    plus,
    pointer_to,
    put,
    shuffle,
    sums_at,
    times,
    times_plus,
    transpose,
    vector_at,
    widen,
    zeros,
)


@intrinsic
def pairs(typing, source, base, b, offset):
    """source[base[b:] + offset + k] for k = 0 and 1, as two vectors over b."""
    vector = Vector(sum_type(source), lanes_of(sum_type(source)))

    def codegen(context, builder, signature, values):
        data = pointer_to(context, builder, signature, values, 0)
        bases = context.make_array(base)(context, builder, values[1]).data
        found = []
        for lane in range(vector.lanes):
            start = builder.sext(builder.load(builder.gep(bases, [builder.add(values[2], I64(lane))])), I64)
            found.append(load_vector(builder, data, builder.add(start, values[3]), 2))
        # 16 bytes each, the even ones in one vector and the odd ones in another: no element then leaves its 16 bytes.
        count = max(1, 8 // alignment(data.type.pointee))
        parts = [concatenate(builder, found[k : k + count]) for k in range(0, vector.lanes, count)]
        even, odd = (concatenate(builder, parts[k::2]) for k in (0, 1))
        order = [lane // count % 2 * vector.lanes + lane // count // 2 * 2 * count + lane % count * 2
                 for lane in range(vector.lanes)]  # fmt: skip
        firsts, seconds = (shuffle(builder, even, odd, [at + k for at in order]) for k in (0, 1))
        return context.make_tuple(
            builder, signature.return_type, [widen(builder, v, source) for v in (firsts, seconds)]
        )

    return types.UniTuple(vector, 2)(source, base, b, offset), codegen


@intrinsic
def load_four(typing, source, i):
    """source[i : i + 4] as a vector."""

    def codegen(context, builder, signature, values):
        data = pointer_to(context, builder, signature, values, 0)
        return widen(builder, load_vector(builder, data, values[1], 4), source)

    return Vector(sum_type(source), 4)(source, i), codegen


@intrinsic
def transposed(typing, a, b, c, d):
    """Return the columns of the matrix whose rows are these four vectors of four."""

    def codegen(context, builder, signature, values):
        return context.make_tuple(builder, signature.return_type, transpose(builder, values))

    return types.UniTuple(a, 4)(a, b, c, d), codegen


@register_jitable(**FLAGS | INNER)
def column(source, start, pitch, row_weight, b):
    """Return, for each of the four columns of point b's neighbours, the weighted sum over their four rows."""
    row = load_four(source, start)
    low = times(broadcast(row_weight[0, b], row), row)
    row = load_four(source, start + pitch)
    low = times_plus(broadcast(row_weight[1, b], row), row, low)
    row = load_four(source, start + 2 * pitch)
    low = times_plus(broadcast(row_weight[2, b], row), row, low)
    row = load_four(source, start + 3 * pitch)
    return times_plus(broadcast(row_weight[3, b], row), row, low)


def pairwise(source, base, pitch, row_weight, weight, offsets, add, target):
    above, below, left, right = row_weight[0], row_weight[1], weight[0], weight[1]
    for b in range(0, target.size, lanes(source)):
        x, next_x = pairs(source, base, b, 0)
        y, next_y = pairs(source, base, b, pitch)
        w, next_w = vector_at(left, b, x), vector_at(right, b, x)
        row, next_row = times_plus(w, x, times(next_w, next_x)), times_plus(w, y, times(next_w, next_y))
        total = times_plus(vector_at(above, b, x), row, times(vector_at(below, b, x), next_row))
        if add:
            total = plus(total, vector_at(target, b, x))
        put(target, b, total)


def fourfold(source, base, pitch, row_weight, weight, offsets, add, target):
    w0, w1, w2, w3 = weight[0], weight[1], weight[2], weight[3]
    for b in range(0, target.size, 4):
        c0, c1, c2, c3 = transposed(
            column(source, base[b], pitch, row_weight, b),
            column(source, base[b + 1], pitch, row_weight, b + 1),
            column(source, base[b + 2], pitch, row_weight, b + 2),
            column(source, base[b + 3], pitch, row_weight, b + 3),
        )
        low = times_plus(vector_at(w0, b, c0), c0, times(vector_at(w1, b, c1), c1))
        high = times_plus(vector_at(w2, b, c2), c2, times(vector_at(w3, b, c3), c3))
        total = plus(low, high)
        if add:
            total = plus(total, vector_at(target, b, total))
        put(target, b, total)


@overload(vectors.blend, jit_options=FLAGS | INNER | FUSE)
def _(source, base, pitch, row_weight, weight, offsets, add, target):
    if BOUNDSCHECK or needs_library(source):
        return vectors.blend_plainly
    return {2: pairwise, 4: fourfold}[len(offsets)]


def points_adder(lanes):
    """Return add_points from a channel on: `lanes` channels at a time, then half as many of the rest, and so on."""
    add_rest = points_adder(lanes // 2) if lanes > 1 else register_jitable(**FLAGS | INNER)(lambda *arguments: None)

    @register_jitable(**FLAGS | INNER)
    def add_channels(source, pitch, pixels, widths, exist, weight, add, target, channel):
        w0, w1, w2, w3 = weight[0], weight[1], weight[2], weight[3]
        while channel + lanes <= target.size:
            # Two sums, so that an addition need not wait for the one before it.
            upper = lower = zeros(target, lanes)
            if add:
                upper = vector_at(target, channel, upper)
            for b in range(pixels.size):
                above, taps = np.int64(pixels[b]) * pitch + channel, exist[b]
                below = above + np.int64(widths[b]) * pitch
                if taps & 1:
                    upper = times_plus(broadcast(w0[b], upper), sums_at(source, above, upper), upper)
                if taps & 2:
                    upper = times_plus(broadcast(w1[b], upper), sums_at(source, above + pitch, upper), upper)
                if taps & 4:
                    lower = times_plus(broadcast(w2[b], lower), sums_at(source, below, lower), lower)
                if taps & 8:
                    lower = times_plus(broadcast(w3[b], lower), sums_at(source, below + pitch, lower), lower)
            put(target, channel, plus(upper, lower))
            channel += lanes
        add_rest(source, pitch, pixels, widths, exist, weight, add, target, channel)

    return add_channels


@overload(vectors.add_points, jit_options=FLAGS | INNER)
def _(source, pitch, pixels, widths, exist, weight, add, target):
    if BOUNDSCHECK or needs_library(source):
        return vectors.add_points_plainly
    add_channels = points_adder(4 * lanes_of(target.dtype))

    def add_points(source, pitch, pixels, widths, exist, weight, add, target):
        add_channels(source, pitch, pixels, widths, exist, weight, add, target, 0)

    return add_points
