"""Loops of kernels/vectors.py over rows and boxes, with vectors: copies, sums, transpositions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llvmlite import ir
from numba import types

from ..kernels import vectors
from .halves import I32, I64, sum_type
from .numba_internals import cgutils
from .simd import (
    BYTES,
    alignment,
    as_written,
    collect,
    inner,
    lanes_of,
    operation,
    plus,
    put,
    repeat,
    shuffle,
    square,
    stay_apart,
    sums_at,
    transpose,
    transposer,
    vectorized,
    whole_vector,
    zeros,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..kernels.types import Elements, Indices, Pixels, Sums
    from .simd import ArrayValue


@operation(lambda like: like)
def run_at(
    builder: ir.IRBuilder,
    source: ArrayValue,
    i: ir.Value,
    block: ir.Value,
    blocks: ir.Value,
    like: ir.Value,
) -> ir.Value:
    """source[i:] as a vector like `like`, where 0 <= block + b < blocks for its lane b, and 0
    elsewhere.
    """
    kind = source.data.type.pointee
    lanes = like.type.count
    vector = ir.VectorType(kind, lanes)
    low, high = (repeat(builder, builder.trunc(number, I32), lanes) for number in (block, blocks))
    exists = builder.icmp_unsigned(
        "<", builder.add(low, ir.Constant(low.type, list(range(lanes)))), high
    )
    letter = {"float": "f32", "double": "f64"}.get(str(kind), str(kind))
    function_type = ir.FunctionType(vector, [vector.as_pointer(), I32, exists.type, vector])
    name = f"llvm.masked.load.v{lanes}{letter}.p0v{lanes}{letter}"
    function = cgutils.get_or_insert_function(builder.module, function_type, name)
    at = builder.bitcast(source.begin(i), vector.as_pointer())
    found = builder.call(function, [at, I32(alignment(kind)), exists, ir.Constant(vector, None)])
    return source.widened(found)


@inner
def sum_whole(x: Elements, first: Indices, b: int, total: ir.Value) -> ir.Value:
    for t in range(first.size):
        total = plus(total, sums_at(x, first[t] + b, total))
    return total


@inner
def sum_existing(
    x: Elements, first: Indices, block: Indices, blocks: int, row: int, b: int, total: ir.Value
) -> ir.Value:
    for t in range(first.size):
        total = plus(total, run_at(x, first[t] + row + b, block[t] + b, blocks, total))
    return total


@vectorized(vectors.sum_runs)
def _(x: types.Array, out: types.Array) -> Callable[..., None] | None:
    if not isinstance(sum_type(x), types.Float):
        return None
    one = lanes_of(sum_type(x))
    four = 4 * one
    as_plain = as_written(vectors.sum_runs)

    def sum_runs(
        x: Elements,
        first: Indices,
        block: Indices,
        blocks: int,
        rows: int,
        out: Elements,
        to: int,
        out_pitch: int,
        count: int,
    ) -> None:
        if count < one:
            as_plain(x, first, block, blocks, rows, out, to, out_pitch, count)
            return
        low, high = 0, count  # where all runs exist
        for t in range(first.size):
            low, high = max(low, -block[t]), min(high, blocks - block[t])
        for l in range(rows):
            b, row = 0, l * blocks
            while b < count:
                large, small = min(b, high - four), min(b, count - one)
                if low <= large and b < high - one:
                    put(out, to + large, sum_whole(x, first, row + large, zeros(x, four)))
                    b = large + four
                else:
                    if low <= small and small + one <= high:
                        total = sum_whole(x, first, row + small, zeros(x, one))
                    else:
                        total = sum_existing(x, first, block, blocks, row, small, zeros(x, one))
                    put(out, to + small, total)
                    b = small + one
            to += out_pitch

    return sum_runs


@operation(literals="size")
def add_columns(
    builder: ir.IRBuilder,
    source: ArrayValue,
    i: ir.Value,
    pitch: ir.Value,
    planes: ir.Value,
    r: ir.Value,
    places: ArrayValue,
    e: ir.Value,
    skipped: ir.Value,
    sums: ArrayValue,
    size: int,
) -> None:
    """sums[places[e + q] * PLANES + r + k] += source[i + k * pitch + q] for skipped <= q < size and
    k < size

    The last of the `planes` stands for those after it.
    """
    rows = []
    for k in range(size):
        plane = builder.add(r, I64(k))
        last = builder.sub(planes, I64(1))
        plane = builder.select(builder.icmp_signed("<", plane, last), plane, last)
        rows.append(source.load_sums(builder.add(i, builder.mul(plane, pitch)), size))
    add = builder.fadd if isinstance(sums.kind.dtype, types.Float) else builder.add
    for q, column in enumerate(transpose(builder, rows)):
        place = builder.zext(places.one(builder.add(e, I64(q))), I64)
        at = builder.add(builder.mul(place, I64(vectors.PLANES)), r)
        with builder.if_then(builder.icmp_signed("<=", skipped, I64(q))):
            sums.store(at, add(sums.load(at, size), column))


@vectorized(vectors.add_planes)
def _(x: types.Array, sums: types.Array) -> Callable[..., None] | None:
    if isinstance(sums.dtype, types.Boolean | types.Complex):
        return None
    size = square(sums)
    as_plain = as_written(vectors.add_planes)

    def add_planes(
        x: Elements, first: int, pitch: int, planes: int, places: Pixels, sums: Sums
    ) -> None:
        if places.size < size:
            as_plain(x, first, pitch, planes, places, sums)
            return
        for r in range(0, planes, size):
            for e in range(0, places.size - size + 1, size):
                add_columns(x, first + e, pitch, planes, r, places, e, 0, sums, size)
            if places.size % size > 0:
                e = places.size - size
                add_columns(
                    x, first + e, pitch, planes, r, places, e, size - places.size % size, sums, size
                )

    return add_planes


@operation(literals="count size")
def zip_elements(
    builder: ir.IRBuilder,
    source: ArrayValue,
    i: ir.Value,
    pitch: ir.Value,
    target: ArrayValue,
    j: ir.Value,
    count: int,
    size: int,
) -> None:
    """target[j + q * count + r] = source[i + r * pitch + q] for q < size, r < count"""
    zipped = source.load(i, size)
    for r in range(1, count):
        row = source.load(builder.add(i, builder.mul(I64(r), pitch)), size)
        # Of one length, as both sides of a shuffle are: what comes after the row is not used.
        row = shuffle(builder, row, row, [*range(size), *[0] * (size * (r - 1))])
        order = [q * r + k if k < r else size * r + q for q in range(size) for k in range(r + 1)]
        zipped = shuffle(builder, zipped, row, order)
    target.store_sums(j, zipped)


def zipper(constant: int, size: int) -> Callable[..., None]:
    """`interleave` for one stride, `size` elements of each row at a time; the last ones overlap
    those before.
    """

    @inner
    def zip_rows(
        lanes: Elements,
        first: int,
        pitch: int,
        row_pitch: int,
        stride: int,
        count: int,
        rows: int,
        target: Elements,
        to: int,
        out_pitch: int,
    ) -> None:
        for l in range(rows):
            at, row = first + l * row_pitch, to + l * out_pitch
            for begin in range(0, count - size, size):
                zip_elements(
                    lanes, at + begin, pitch, target, row + begin * constant, constant, size
                )
            last = count - size
            zip_elements(lanes, at + last, pitch, target, row + last * constant, constant, size)

    return zip_rows


@vectorized(vectors.interleave)
def _(lanes: types.Array, target: types.Array) -> Callable[..., None] | None:
    if isinstance(target.dtype, types.Complex):
        return None
    large = square(lanes)
    zip_2_16, zip_2_8, zip_2_4, zip_2_2, zip_3_8 = (
        zipper(*each) for each in ((2, 16), (2, 8), (2, 4), (2, 2), (3, 8))
    )
    in_large_squares = transposer(large)
    in_small_squares = transposer(4)
    one_by_one = as_written(vectors.interleave)

    def interleave(
        lanes: Elements,
        first: int,
        pitch: int,
        row_pitch: int,
        stride: int,
        count: int,
        rows: int,
        target: Elements,
        to: int,
        out_pitch: int,
        step: int,
    ) -> None:
        stay_apart()
        matrices = lanes, first, pitch, row_pitch, stride, count, rows, target, to, out_pitch
        if step != stride and min(stride, count) < 4:
            one_by_one(*matrices, step)
        elif stride == 2 and count >= 16:
            zip_2_16(*matrices)
        elif stride == 2 and count >= 8:
            zip_2_8(*matrices)
        elif stride == 2 and count >= 4:
            zip_2_4(*matrices)
        elif stride == 2 and count >= 2:
            zip_2_2(*matrices)
        elif stride == 3 and count >= 8:
            zip_3_8(*matrices)
        elif stride >= large and count >= large:
            for l in range(rows):
                in_large_squares(
                    lanes,
                    first + l * row_pitch,
                    pitch,
                    stride,
                    count,
                    target,
                    to + l * out_pitch,
                    step,
                )
        elif stride >= 4 and count >= 4:
            for l in range(rows):
                in_small_squares(
                    lanes,
                    first + l * row_pitch,
                    pitch,
                    stride,
                    count,
                    target,
                    to + l * out_pitch,
                    step,
                )
        else:
            one_by_one(*matrices, step)

    return interleave


LONG = 8  # vectors of a run that pay for being aligned


def load_strided(
    builder: ir.IRBuilder, source: ArrayValue, index: ir.Value, stride: ir.Value | int, lanes: int
) -> ir.Value:
    """Load source[index + b * stride] for b < lanes as a vector, and nothing beyond.

    The stride: 1, 2 or a value.
    """
    if stride not in (1, 2):
        found = []
        for _ in range(lanes):
            found.append(source.one(index))
            index = builder.add(index, stride)
        return collect(builder, source.data.type.pointee, found)
    found = source.load(index, lanes)
    if stride == 1:
        return found
    # The second vector ends with the last element that is wanted.
    second = source.load(builder.add(index, I64(lanes - 1)), lanes)
    return shuffle(
        builder, found, second, [2 * b if 2 * b < lanes else 2 * b + 1 for b in range(lanes)]
    )


def by_length(
    builder: ir.IRBuilder, count: ir.Value, full: int, move: Callable[[ir.Value, int], None]
) -> None:
    """Move `count` < 2 * full elements by two overlapping vectors as long as fit: move(where,
    lanes).
    """
    if full > 1:
        with builder.if_else(builder.icmp_signed(">=", count, I64(full))) as (long, short):
            with long:
                move(I64(0), full)
                move(builder.sub(count, I64(full)), full)
            with short:
                by_length(builder, count, full // 2, move)
    else:
        with builder.if_then(builder.icmp_signed(">", count, I64(0))):
            move(I64(0), 1)


@operation(literals="literal_stride lanes")
def copy_vector(
    builder: ir.IRBuilder,
    x: ArrayValue,
    i: ir.Value,
    literal_stride: int,
    stride: ir.Value,
    out: ArrayValue,
    j: ir.Value,
    lanes: int,
) -> None:
    """out[j + b] = x[i + b * stride] for b < lanes; `literal_stride` is 0 for any stride but 1 and
    2.
    """
    out.store(j, load_strided(builder, x, i, literal_stride or stride, lanes))


@operation(literals="literal_stride full")
def copy_short(
    builder: ir.IRBuilder,
    x: ArrayValue,
    i: ir.Value,
    literal_stride: int,
    stride: ir.Value,
    out: ArrayValue,
    j: ir.Value,
    count: ir.Value,
    full: int,
) -> None:
    """out[j + b] = x[i + b * stride] for b < count < 2 * full; `literal_stride` as in
    copy_vector.
    """

    def move(b: ir.Value, lanes: int) -> None:
        found = load_strided(
            builder, x, builder.add(i, builder.mul(b, stride)), literal_stride or stride, lanes
        )
        out.store(builder.add(j, b), found)

    by_length(builder, count, full, move)


@operation(lambda: types.int64)
def to_boundary(builder: ir.IRBuilder, out: ArrayValue, j: ir.Value) -> ir.Value:
    """Return the number of elements from out[j] to the next aligned place of a vector."""
    at = builder.ptrtoint(out.begin(j), I64)
    return builder.udiv(
        builder.and_(builder.neg(at), I64(BYTES - 1)), I64(alignment(out.data.type.pointee))
    )


def copier(literal_stride: int, full: int) -> Callable[..., None]:
    """Return copy_box for one stride (0: for any), in vectors of `full` elements; the last overlaps
    those before.
    """

    @inner
    def copy(
        x: Elements,
        first: int,
        steps: tuple[int, int, int],
        sizes: tuple[int, int, int],
        count: int,
        stride: int,
        out: Elements,
        to: int,
        out_steps: tuple[int, int, int],
    ) -> None:
        for p in range(sizes[0]):
            for q in range(sizes[1]):
                source, target = (
                    first + p * steps[0] + q * steps[1],
                    to + p * out_steps[0] + q * out_steps[1],
                )
                for _ in range(sizes[2]):
                    if count < 2 * full:
                        copy_short(x, source, literal_stride, stride, out, target, count, full)
                    else:
                        copy_vector(x, source, literal_stride, stride, out, target, full)
                        b = to_boundary(out, target) if count > LONG * full else full
                        while b < count - full:
                            copy_vector(
                                x,
                                source + b * stride,
                                literal_stride,
                                stride,
                                out,
                                target + b,
                                full,
                            )
                            b += full
                        last = count - full
                        copy_vector(
                            x,
                            source + last * stride,
                            literal_stride,
                            stride,
                            out,
                            target + last,
                            full,
                        )
                    source += steps[2]
                    target += out_steps[2]

    return copy


@vectorized(vectors.copy_box)
def _(out: types.Array) -> Callable[..., None] | None:
    if isinstance(out.dtype, types.Complex):
        return None
    each, second, any_other = (
        copier(literal_stride, whole_vector(out)) for literal_stride in (1, 2, 0)
    )
    large = square(out)
    in_large_squares, in_small_squares = transposer(large), transposer(4)

    def copy_box(
        x: Elements,
        first: int,
        steps: tuple[int, int, int],
        sizes: tuple[int, int, int],
        count: int,
        stride: int,
        out: Elements,
        to: int,
        out_steps: tuple[int, int, int],
    ) -> None:
        # Where neighbours along q are neighbours in memory.
        side = min(sizes[1], count) if steps[1] == 1 else 0
        if stride == 1:
            each(x, first, steps, sizes, count, 1, out, to, out_steps)
        elif stride == 2:
            second(x, first, steps, sizes, count, 2, out, to, out_steps)
        elif side >= 4:
            for p in range(sizes[0]):
                for r in range(sizes[2]):
                    source, target = (
                        first + p * steps[0] + r * steps[2],
                        to + p * out_steps[0] + r * out_steps[2],
                    )
                    if side >= large:
                        in_large_squares(
                            x, source, stride, count, sizes[1], out, target, out_steps[1]
                        )
                    else:
                        in_small_squares(
                            x, source, stride, count, sizes[1], out, target, out_steps[1]
                        )
        else:
            any_other(x, first, steps, sizes, count, stride, out, to, out_steps)

    return copy_box
