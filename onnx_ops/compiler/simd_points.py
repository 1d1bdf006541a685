"""Loops of kernels/vectors.py over points of images, with vectors: `take`, `prefetch`, `prefetch_run`, `add_points`."""

import numpy as np
from llvmlite import ir

from ..kernels import vectors
from .halves import I32, I64
from .numba_internals import cgutils
from .simd import (
    BYTE,
    alignment,
    broadcast,
    gather,
    gathered,
    inner,
    lanes_of,
    needs_library,
    operation,
    plain,
    plus,
    put,
    repeat,
    size_of,
    sums_at,
    times_plus,
    vector_at,
    vectorized,
    zeros,
)
from .target import current

LARGEST = 2**31 - 1


@operation()
def take_vector(builder, source, pixel, b, target):
    """target[b:] = source[pixel[b:]], or 0 where a pixel is -1. The source has at least 4 elements."""
    size = alignment(source.data.type.pointee)
    index = pixel.load(b, gathered(size))
    count, exists = index.type.count, builder.icmp_signed(">=", index, ir.Constant(index.type, None))
    if size >= 4:
        elements = gather(builder, source.data, index, 8 * size, exists)
    else:
        # 32 bits that lie in the source, and begin with the element unless it is one of the last.
        last = builder.sub(source.count, I64(4 // size))
        last = builder.select(builder.icmp_signed("<", last, I64(LARGEST)), last, I64(LARGEST))
        last = repeat(builder, builder.trunc(last, I32), count)
        at = builder.select(builder.icmp_signed("<", index, last), index, last)
        bits = builder.mul(builder.sub(index, at), repeat(builder, I32(8 * size), count))
        numbers = builder.lshr(gather(builder, source.data, at, 32, exists), bits)
        elements = builder.trunc(numbers, ir.VectorType(ir.IntType(8 * size), count))
    target.store(b, builder.bitcast(elements, ir.VectorType(target.data.type.pointee, count)))


@vectorized(vectors.take)
def _(source):
    size = size_of(source)
    if not current().gathers or size > 8:
        return None
    count, take_rest = gathered(size), plain(vectors.take)

    def take(source, pixel, outside, target):
        whole = pixel.size // count * count if source.size >= 4 else 0
        for b in range(0, whole, count):
            take_vector(source, pixel, b, target)
        take_rest(source, pixel[whole:], outside, target[whole:])

    return take


@operation()
def prefetch_at(builder, source, i):
    """Have the CPU load source[i] into its caches. An address outside of the array does no harm."""
    kind = ir.FunctionType(ir.VoidType(), [BYTE.as_pointer(), I32, I32, I32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    at = builder.bitcast(source.begin(i), BYTE.as_pointer())
    builder.call(function, [at, I32(0), I32(3), I32(1)])  # to read, into all caches, data


@vectorized(vectors.prefetch)
def _():
    def prefetch(source, base, offset, step):
        for b in range(0, base.size, step):
            prefetch_at(source, np.int64(base[b]) + offset)

    return prefetch


@vectorized(vectors.prefetch_run)
def _(source):
    step = 64 // size_of(source)

    def prefetch_run(source, first, count):
        for k in range(first, first + count, step):
            prefetch_at(source, k)

    return prefetch_run


def points_adder(lanes):
    """Return add_points from a channel on: `lanes` channels at a time, then half as many of the rest, and so on."""
    add_rest = points_adder(lanes // 2) if lanes > 1 else inner(lambda *arguments: None)

    @inner
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


@vectorized(vectors.add_points)
def _(source, target):
    if needs_library(source):
        return None
    add_channels = points_adder(4 * lanes_of(target.dtype))

    def add_points(source, pitch, pixels, widths, exist, weight, add, target):
        add_channels(source, pitch, pixels, widths, exist, weight, add, target, 0)

    return add_points
