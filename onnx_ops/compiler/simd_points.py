"""Loops of kernels/vectors.py over points of images, with vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from llvmlite import ir
from numba import types

from ..kernels import vectors
from .halves import I32, I64, sum_type
from .numba_internals import cgutils
from .simd import (
    Vector,
    alignment,
    are_zeros,
    as_written,
    collect,
    concatenate,
    element_bytes,
    fetch_line,
    inner,
    lanes_of,
    operation,
    plus,
    put,
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

LARGEST = 2**31 - 1  # pixel
TAKEN = 8  # elements that are taken at a time
PAIRS = 16  # that are gathered at a time, by two instructions


@operation()
def take_vector(
    builder: ir.IRBuilder, source: ArrayValue, pixel: ArrayValue, b: ir.Value, target: ArrayValue
) -> None:
    """target[b:] = source[pixel[b:]] for TAKEN pixels, or 0 where a pixel is OUTSIDE.

    Two pixels are loaded at once, and elements are collected in a vector. Loads and stores one by
    one take 1.5 times as long in the caches, and beyond them up to 3 times, since a CPU waits for
    few stores at a time.
    """
    words = builder.bitcast(pixel.begin(b), I64.as_pointer())
    elements = []
    for k in range(TAKEN // 2):
        word = builder.load(builder.gep(words, [I64(k)]), align=4)
        for index in (word, builder.lshr(word, I64(32))):
            elements.append(source.one(builder.and_(index, I64(LARGEST))))
    vector = collect(builder, source.data.type.pointee, elements)
    pixels = pixel.load(b, TAKEN)
    exists = builder.icmp_signed(">=", pixels, ir.Constant(pixels.type, None))
    target.store(b, builder.select(exists, vector, ir.Constant(vector.type, None)))


@vectorized(vectors.take)
def make_take(source: types.Array) -> Callable[..., None] | None:
    if element_bytes(source) > 8:
        return None
    take_rest = as_written(vectors.take)

    def take(source: Elements, pixel: Pixels, ahead: int, target: Elements) -> None:
        end = pixel.size // TAKEN * TAKEN
        for b in range(0, end, TAKEN):
            fetch_line(source, (pixel[b] & LARGEST) + ahead)
            take_vector(source, pixel, b, target)
        take_rest(source, pixel[end:], ahead, target[end:])

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


def gathers(source: types.Array) -> bool:
    """Return whether pairs are gathered: those of 64 bits, where the CPU does so fast."""
    return current().gathers and element_bytes(source) == 4


def gathered_pairs(builder: ir.IRBuilder, source: ArrayValue, index: ir.Value) -> list[ir.Value]:
    """Return the elements source[index] and source[index + 1], as two vectors."""
    count = PAIRS // 2  # that an instruction gathers
    words, masks = ir.VectorType(I64, count), ir.VectorType(ir.IntType(1), count)
    data = builder.bitcast(source.data, ir.IntType(8).as_pointer())
    none, existing = ir.Constant(words, None), ir.Constant(masks, [1] * count)
    gathered = []
    for k in (0, count):
        half = shuffle(builder, index, index, range(k, k + count))
        operands = none, data, half, existing, I32(4)
        function_type = ir.FunctionType(words, [operand.type for operand in operands])
        name = "llvm.x86.avx512.mask.gather.dpq.512"
        function = cgutils.get_or_insert_function(builder.module, function_type, name)
        pairs = ir.VectorType(source.data.type.pointee, PAIRS)
        gathered.append(builder.bitcast(builder.call(function, operands), pairs))
    low, high = gathered
    return [shuffle(builder, low, high, range(k, 2 * PAIRS, 2)) for k in (0, 1)]


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
    return PAIRS if gathers(array) else lanes_of(sum_type(array))


def vector_of_indices(source: types.Array) -> types.Type:
    """Return the index argument of `pairs`."""
    count = pair_count(source)
    return Vector(types.int32, count) if gathers(source) else types.UniTuple(types.int64, count)


@operation(vector_of_indices)
def indices(
    builder: ir.IRBuilder, source: ArrayValue, base: ArrayValue, b: ir.Value
) -> ir.Value | list[ir.Value]:
    """base[b:], as an index of the source."""
    array = source.numba_type
    count = pair_count(array)
    return base.load(b, count) if gathers(array) else starts(builder, base, b, range(count))


@operation(lambda source: types.UniTuple(Vector(sum_type(source), pair_count(source)), 2))
def pairs(
    builder: ir.IRBuilder, source: ArrayValue, index: ir.Value, offset: ir.Value
) -> list[ir.Value]:
    """source[index + offset + k] for k = 0 and 1, as two vectors."""
    load = gathered_pairs if gathers(source.numba_type) else loaded_pairs
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
        base, rows, row_weight, _, _ = points
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


@inner
def stored(target: Elements, b: int, total: ir.Value, add: bool) -> ir.Value:
    """Store sums, or add them; return them. Times 0 they are NaN for good, if one is not finite."""
    if add:
        total = plus(total, sums_at(target, b, total))
    put(target, b, total)
    return total


def pairwise(step: int) -> Callable[..., bool]:
    """Return `blend` for two taps along an axis, `step` points at a time."""

    def blend(
        source: Elements, points: Neighbours, offsets: tuple[int, ...], add: bool, target: Elements
    ) -> bool:
        base, rows, row_weight, weight, ahead = points
        above, below, left, right = row_weight[0], row_weight[1], weight[0], weight[1]
        zero = faults = zeros(left, step)
        for b in range(0, base.size, step):
            fetch_line(source, np.int64(base[b]) + ahead)
            up, down = sums_at(above, b, zero), sums_at(below, b, zero)
            w, next_w = sums_at(left, b, zero), sums_at(right, b, zero)
            index = indices(source, base, b)
            x, next_x = pairs(source, index, 0)
            y, next_y = pairs(source, index, rows[1])
            row = times_plus(w, x, times(next_w, next_x))
            next_row = times_plus(w, y, times(next_w, next_y))
            total = times_plus(up, row, times(down, next_row))
            faults = times_plus(stored(target, b, total, add), zero, faults)
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
            fetch_line(source, np.int64(points.base[b]) + points.ahead)
            c0, c1, c2, c3 = transposed(
                add_rows0(source, points, b),
                add_rows1(source, points, b),
                add_rows2(source, points, b),
                add_rows3(source, points, b),
            )
            low = times_plus(sums_at(w0, b, c0), c0, times(sums_at(w1, b, c1), c1))
            high = times_plus(sums_at(w2, b, c2), c2, times(sums_at(w3, b, c3), c3))
            faults = times_plus(stored(target, b, plus(low, high), add), zero, faults)
        return are_zeros(faults)

    return blend


@vectorized(vectors.blend)
def make_blend(source: types.Array, offsets: types.BaseTuple) -> Callable[..., bool]:
    step = pair_count(source) if len(offsets) == 2 else 4 * four_count(source)
    assert vectors.MOST_LANES % step == 0
    return pairwise(step) if len(offsets) == 2 else fourfold(step)
