"""Loops of kernels/vectors.py over points of images, with vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from llvmlite import ir
from numba import types

from ..kernels import vectors
from .halves import I32, I64, sum_type
from .simd import (
    Vector,
    alignment,
    are_zeros,
    as_written,
    concatenate,
    element_bytes,
    emit_gather,
    gathered,
    inner,
    lanes_of,
    operation,
    plus,
    put,
    repeat,
    shuffle,
    splat,
    sums_at,
    times,
    times_plus,
    transpose,
    vectorized,
    zeros,
)
from .target import current

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ..kernels.types import Elements, Pixels
    from ..kernels.vectors import Corners, Neighbours
    from .simd import ArrayValue

LARGEST = 2**31 - 1


@operation()
def take_vector(
    builder: ir.IRBuilder, source: ArrayValue, pixel: ArrayValue, b: ir.Value, target: ArrayValue
) -> None:
    """target[b:] = source[pixel[b:]], or 0 where a pixel is -1.

    The source has at least 4 elements.
    """
    size = alignment(source.data.type.pointee)
    index = pixel.load(b, gathered(size))
    count = index.type.count
    exists = builder.icmp_signed(">=", index, ir.Constant(index.type, None))
    if size >= 4:
        elements = emit_gather(builder, source.data, index, 8 * size, exists)
    else:
        # 32 bits that lie in the source, and begin with the element unless it is one of the last.
        last = builder.sub(source.count, I64(4 // size))
        last = builder.select(builder.icmp_signed("<", last, I64(LARGEST)), last, I64(LARGEST))
        last = repeat(builder, builder.trunc(last, I32), count)
        begin = builder.select(builder.icmp_signed("<", index, last), index, last)
        bits = builder.mul(builder.sub(index, begin), repeat(builder, I32(8 * size), count))
        numbers = builder.lshr(emit_gather(builder, source.data, begin, 32, exists), bits)
        elements = builder.trunc(numbers, ir.VectorType(ir.IntType(8 * size), count))
    target.store(b, builder.bitcast(elements, ir.VectorType(target.data.type.pointee, count)))


@vectorized(vectors.take)
def make_take(source: types.Array) -> Callable[..., None] | None:
    size = element_bytes(source)
    if not current().gathers or size > 8:
        return None
    count = gathered(size)
    take_rest = as_written(vectors.take)

    def take(source: Elements, pixel: Pixels, outside: int, target: Elements) -> None:
        vectors_end = pixel.size // count * count if source.size >= 4 else 0
        for b in range(0, vectors_end, count):
            take_vector(source, pixel, b, target)
        take_rest(source, pixel[vectors_end:], outside, target[vectors_end:])

    return take


def points_adder(lanes: int) -> Callable[..., None]:
    """Return add_points from a channel on.

    It adds `lanes` channels at a time, then half as many of the rest, and so on.
    """
    add_rest = points_adder(lanes // 2) if lanes > 1 else inner(lambda *arguments: None)

    @inner
    def add_channels(
        source: Elements, pitch: int, points: Corners, add: bool, target: Elements, channel: int
    ) -> None:
        pixels, widths, exist, weight = points
        w0, w1, w2, w3 = weight[0], weight[1], weight[2], weight[3]
        while channel + lanes <= target.size:
            # Two sums, so that an addition need not wait for the one before it.
            upper = lower = zeros(target, lanes)
            if add:
                upper = sums_at(target, channel, upper)
            for b in range(pixels.size):
                above, corners = np.int64(pixels[b]) * pitch + channel, exist[b]
                below = above + np.int64(widths[b]) * pitch
                if corners & 1:
                    left = sums_at(source, above, upper)
                    upper = times_plus(splat(w0[b], upper), left, upper)
                if corners & 2:
                    right = sums_at(source, above + pitch, upper)
                    upper = times_plus(splat(w1[b], upper), right, upper)
                if corners & 4:
                    left = sums_at(source, below, lower)
                    lower = times_plus(splat(w2[b], lower), left, lower)
                if corners & 8:
                    right = sums_at(source, below + pitch, lower)
                    lower = times_plus(splat(w3[b], lower), right, lower)
            put(target, channel, plus(upper, lower))
            channel += lanes
        add_rest(source, pitch, points, add, target, channel)

    return add_channels


@vectorized(vectors.add_points)
def make_add_points(target: types.Array) -> Callable[..., None]:
    add_channels = points_adder(4 * lanes_of(target.dtype))

    def add_points(
        source: Elements, pitch: int, points: Corners, add: bool, target: Elements
    ) -> None:
        add_channels(source, pitch, points, add, target, 0)

    return add_points


# `blend`: weighted sums over two or four neighbours of points along each axis.


def gathered_pairs(builder: ir.IRBuilder, source: ArrayValue, index: ir.Value) -> list[ir.Value]:
    """Return the elements source[index] and source[index + 1], as two vectors."""
    data = source.data
    count = index.type.count
    element = data.type.pointee
    elements = ir.VectorType(element, count)
    if alignment(element) == 8:
        words = [emit_gather(builder, builder.gep(data, [I64(k)]), index, 64) for k in (0, 1)]
        return [builder.bitcast(word, elements) for word in words]
    if alignment(element) == 2:
        words = emit_gather(builder, data, index, 32)
        return [
            builder.trunc(builder.lshr(words, ir.Constant(words.type, [k] * count)), elements)
            for k in (0, 16)
        ]
    halves = [shuffle(builder, index, index, range(k, k + count // 2)) for k in (0, count // 2)]
    low, high = [builder.bitcast(emit_gather(builder, data, half, 64), elements) for half in halves]
    return [shuffle(builder, low, high, range(k, 2 * count, 2)) for k in (0, 1)]


def loaded_pairs(
    builder: ir.IRBuilder, source: ArrayValue, index: Sequence[ir.Value]
) -> list[ir.Value]:
    """Return the vectors of `gathered_pairs`, by a load for each pair.

    The index is a list of 64-bit integers.
    """
    count = len(index)
    loads = [source.load(begin, 2) for begin in index]
    # 16 bytes each, the even ones in one vector and the odd ones in another: no element then leaves
    # its 16 bytes.
    group = max(1, 8 // alignment(source.data.type.pointee))
    groups = [concatenate(builder, loads[k : k + group]) for k in range(0, count, group)]
    even, odd = (concatenate(builder, groups[k::2]) for k in (0, 1))
    order = [
        lane // group % 2 * count + lane // group // 2 * 2 * group + lane % group * 2
        for lane in range(count)
    ]
    return [shuffle(builder, even, odd, [lane + k for lane in order]) for k in (0, 1)]


def pair_count(array: types.Array) -> int:
    """Return the number of pairs of the array's elements that `pairs` loads."""
    return 512 // sum_type(array).bitwidth if current().gathers else lanes_of(sum_type(array))


def vector_of_indices(source: types.Array) -> types.Type:
    """Return the index argument of `pairs`."""
    count = pair_count(source)
    return Vector(types.int32, count) if current().gathers else types.UniTuple(types.int64, count)


@operation(vector_of_indices)
def indices(
    builder: ir.IRBuilder, source: ArrayValue, base: ArrayValue, b: ir.Value
) -> ir.Value | list[ir.Value]:
    """base[b:], as an index of the source."""
    count = pair_count(source.numba_type)
    return base.load(b, count) if current().gathers else starts(builder, base, b, range(count))


@operation(lambda source: types.UniTuple(Vector(sum_type(source), pair_count(source)), 2))
def pairs(
    builder: ir.IRBuilder, source: ArrayValue, index: ir.Value, offset: ir.Value
) -> list[ir.Value]:
    """source[index + offset + k] for k = 0 and 1, as two vectors."""
    load = gathered_pairs if current().gathers else loaded_pairs
    return [source.widened(v) for v in load(builder, source.after(offset), index)]


def starts(
    builder: ir.IRBuilder, base: ArrayValue, b: ir.Value, steps: Iterable[int]
) -> list[ir.Value]:
    """Load base[b + step] for each step, as 64-bit integers."""
    return [builder.sext(base.one(builder.add(b, I64(step))), I64) for step in steps]


def four_count(array: types.Array) -> int:
    """Return the number of points with rows of four neighbours in one vector."""
    return max(1, current().vector_bytes * 8 // (4 * sum_type(array).bitwidth))


@operation(lambda source: Vector(sum_type(source), 4 * four_count(source)))
def fours(
    builder: ir.IRBuilder, source: ArrayValue, base: ArrayValue, b: ir.Value, offset: ir.Value
) -> ir.Value:
    """source[base[b + 4 * l] + offset :][:4] for l = 0, 1, ..., side by side in one vector."""
    begins = starts(builder, base, b, range(0, 4 * four_count(source.numba_type), 4))
    source = source.after(offset)
    return source.widened(concatenate(builder, [source.load(begin, 4) for begin in begins]))


@operation(lambda like: like, literals="k")
def fours_of(
    builder: ir.IRBuilder, row: ArrayValue, b: ir.Value, k: int, like: ir.Value
) -> ir.Value:
    """row[b + k + 4 * l] four times for each l = 0, 1, ..., side by side in a vector like
    `like`.
    """
    weights = row.load(b, like.type.count)
    return shuffle(
        builder, weights, weights, [lane // 4 * 4 + k for lane in range(like.type.count)]
    )


@operation(lambda a: types.UniTuple(a, 4))
def transposed(
    builder: ir.IRBuilder, a: ir.Value, b: ir.Value, c: ir.Value, d: ir.Value
) -> Sequence[ir.Value]:
    """Return the columns of the matrices whose rows are these four vectors, side by side."""
    return transpose(builder, [a, b, c, d])


def rows_adder(k: int) -> Callable[..., ir.Value]:
    """Return a function that adds up the rows of the points b + k, b + k + 4, ..., weighted."""

    @inner
    def add_rows(source: Elements, points: Neighbours, b: int) -> ir.Value:
        base, rows, row_weight, _ = points
        row = fours(source, base, b + k, 0)
        total = times(fours_of(row_weight[0], b, k, row), row)
        row = fours(source, base, b + k, rows[1])
        total = times_plus(fours_of(row_weight[1], b, k, row), row, total)
        row = fours(source, base, b + k, rows[2])
        total = times_plus(fours_of(row_weight[2], b, k, row), row, total)
        row = fours(source, base, b + k, rows[3])
        return times_plus(fours_of(row_weight[3], b, k, row), row, total)

    return add_rows


add_rows0, add_rows1, add_rows2, add_rows3 = map(rows_adder, range(4))


def pairwise(step: int) -> Callable[..., bool]:
    """Return `blend` for two taps along an axis, `step` points at a time."""

    def blend(
        source: Elements, points: Neighbours, offsets: tuple[int, ...], add: bool, target: Elements
    ) -> bool:
        base, rows, row_weight, weight = points
        above, below, left, right = row_weight[0], row_weight[1], weight[0], weight[1]
        zero = faults = zeros(left, step)
        for b in range(0, base.size, step):
            up, down = sums_at(above, b, zero), sums_at(below, b, zero)
            w, next_w = sums_at(left, b, zero), sums_at(right, b, zero)
            index = indices(source, base, b)
            x, next_x = pairs(source, index, 0)
            y, next_y = pairs(source, index, rows[1])
            row = times_plus(w, x, times(next_w, next_x))
            next_row = times_plus(w, y, times(next_w, next_y))
            total = times_plus(up, row, times(down, next_row))
            if add:
                total = plus(total, sums_at(target, b, total))
            put(target, b, total)
            faults = times_plus(total, zero, faults)  # NaN for good, if one is not finite
        return are_zeros(faults)

    return blend


def fourfold(step: int) -> Callable[..., bool]:
    """Return `blend` for four taps along an axis, `step` points at a time."""

    def blend(
        source: Elements, points: Neighbours, offsets: tuple[int, ...], add: bool, target: Elements
    ) -> bool:
        weight = points.weight
        w0, w1, w2, w3 = weight[0], weight[1], weight[2], weight[3]
        zero = faults = zeros(w0, step)
        for b in range(0, points.base.size, step):
            c0, c1, c2, c3 = transposed(
                add_rows0(source, points, b),
                add_rows1(source, points, b),
                add_rows2(source, points, b),
                add_rows3(source, points, b),
            )
            low = times_plus(sums_at(w0, b, c0), c0, times(sums_at(w1, b, c1), c1))
            high = times_plus(sums_at(w2, b, c2), c2, times(sums_at(w3, b, c3), c3))
            total = plus(low, high)
            if add:
                total = plus(total, sums_at(target, b, total))
            put(target, b, total)
            faults = times_plus(total, zero, faults)
        return are_zeros(faults)

    return blend


@vectorized(vectors.blend)
def make_blend(source: types.Array, offsets: types.BaseTuple) -> Callable[..., bool]:
    step = pair_count(source) if len(offsets) == 2 else 4 * four_count(source)
    assert vectors.MOST_LANES % step == 0
    return pairwise(step) if len(offsets) == 2 else fourfold(step)
