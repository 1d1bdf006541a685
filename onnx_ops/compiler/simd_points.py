"""Loops of vectors.py over points of images, for compiled code: `take`, `prefetch`, `prefetch_run`, `add_points`."""

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ..kernels import vectors
from .halves import I32, I64
from .simd import (
    alignment,
    broadcast,
    element_type,
    gather,
    gathered,
    inner,
    lanes_of,
    load_vector,
    needs_library,
    plain,
    plus,
    pointer_to,
    put,
    repeat,
    store_vector,
    sums_at,
    times_plus,
    vector_at,
    vectorized,
    zeros,
)
from .target import current

LARGEST = 2**31 - 1


@intrinsic
def take_vector(typing, source, pixel, b, target):
    """target[b:] = source[pixel[b:]], or 0 where a pixel is -1. The source has at least 4 elements."""

    def codegen(context, builder, signature, values):
        data, pixels, into = (pointer_to(context, builder, signature, values, k) for k in (0, 1, 3))
        size = alignment(data.type.pointee)
        index = load_vector(builder, pixels, values[2], gathered(size))
        exists = builder.icmp_signed(">=", index, ir.Constant(index.type, None))
        if size >= 4:
            elements = gather(builder, data, index, 8 * size, exists)
        else:
            # 32 bits that lie in the source, and begin with the element unless it is one of the last.
            last = builder.sub(context.make_array(source)(context, builder, values[0]).nitems, I64(4 // size))
            last = builder.select(builder.icmp_signed("<", last, I64(LARGEST)), last, I64(LARGEST))
            last = repeat(builder, builder.trunc(last, I32), index.type.count)
            at = builder.select(builder.icmp_signed("<", index, last), index, last)
            bits = builder.mul(builder.sub(index, at), repeat(builder, I32(8 * size), index.type.count))
            numbers = builder.lshr(gather(builder, data, at, 32, exists), bits)
            elements = builder.trunc(numbers, ir.VectorType(ir.IntType(8 * size), index.type.count))
        elements = builder.bitcast(elements, ir.VectorType(into.type.pointee, index.type.count))
        store_vector(builder, into, values[2], elements)
        return context.get_dummy_value()

    return types.void(source, pixel, b, target), codegen


@vectorized(vectors.take)
def _(source):
    size = alignment(element_type(source))
    if not current().gathers or size > 8:
        return None
    count, take_rest = gathered(size), plain(vectors.take)

    def take(source, pixel, outside, target):
        whole = pixel.size // count * count if source.size >= 4 else 0
        for b in range(0, whole, count):
            take_vector(source, pixel, b, target)
        take_rest(source, pixel[whole:], outside, target[whole:])

    return take


@intrinsic
def prefetch_at(typing, source, i):
    """Have the CPU load source[i] into its caches. An address outside of the array does no harm."""

    def codegen(context, builder, signature, values):
        at = builder.gep(pointer_to(context, builder, signature, values, 0), [values[1]])
        byte = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, I32, I32, I32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        builder.call(function, [builder.bitcast(at, byte), I32(0), I32(3), I32(1)])  # to read, into all caches, data
        return context.get_dummy_value()

    return types.void(source, i), codegen


@vectorized(vectors.prefetch)
def _():
    def prefetch(source, base, offset, step):
        for b in range(0, base.size, step):
            prefetch_at(source, np.int64(base[b]) + offset)

    return prefetch


@vectorized(vectors.prefetch_run)
def _(source):
    step = 64 // alignment(element_type(source))

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
