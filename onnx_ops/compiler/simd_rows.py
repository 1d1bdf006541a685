"""Loops of kernels/vectors.py over rows and boxes, with vectors: copies, sums, transpositions."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

from llvmlite import ir
from numba import types

from ..kernels import vectors
from ..kernels.vectors import Runs, View, fetch, runs_of
from .halves import I32, I64, sum_type
from .numba_internals import cgutils
from .simd import (
    alignment,
    array_of,
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
    from typing import Any

    from ..kernels.types import Elements, Indices, Offset, Pixel, Pixels, Sums
    from .simd import ArrayValue, ViewValue


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
    element = source.data.type.pointee
    lanes = like.type.count
    vector = ir.VectorType(element, lanes)
    low, high = (repeat(builder, builder.trunc(number, I32), lanes) for number in (block, blocks))
    exists = builder.icmp_unsigned(
        "<", builder.add(low, ir.Constant(low.type, list(range(lanes)))), high
    )
    letter = {"float": "f32", "double": "f64"}.get(str(element), str(element))
    function_type = ir.FunctionType(vector, [vector.as_pointer(), I32, exists.type, vector])
    name = f"llvm.masked.load.v{lanes}{letter}.p0v{lanes}{letter}"
    function = cgutils.get_or_insert_function(builder.module, function_type, name)
    pointer = builder.bitcast(source.begin(i), vector.as_pointer())
    zeros = ir.Constant(vector, None)
    loaded = builder.call(function, [pointer, I32(alignment(element)), exists, zeros])
    return source.widened(loaded)


# Runs that are added for all rows before the next ones are: each is read from another part of the
# input, and the CPU foresees the reads of some parts only.
GROUP = 32


@inner
def sum_whole(x: Elements, first: Indices, b: int, total: ir.Value) -> ir.Value:
    for t in range(first.size):
        total = plus(total, sums_at(x, first[t] + b, total))
    return total


@inner
def sum_existing(x: Elements, runs: Runs, row: int, b: int, total: ir.Value) -> ir.Value:
    first, block, blocks, _, _ = runs
    for t in range(first.size):
        total = plus(total, run_at(x, first[t] + row + b, block[t] + b, blocks, total))
    return total


@inner
def begun(target: Elements, b: int, t: int, total: ir.Value) -> ir.Value:
    """Return the sums of the runs before run t: `total` if there are none."""
    return sums_at(target, b, total) if t else total


class Row(NamedTuple):
    """Where a row of the output is summed."""

    element: Offset  # from the first row of blocks to this one
    begin: Offset  # the row's first pixel in the output
    pixels: int
    low: Pixel  # the first one on which all runs exist
    high: Pixel  # and the one after the last


def row_adder(small: int, large: int) -> Callable[..., None]:
    """Return a function that adds runs to a row of the output.

    It sums vectors of `large` pixels where all runs exist, and of `small` ones elsewhere. Runs
    before run t have been added.
    """

    @inner
    def add_row(x: Elements, runs: Runs, t: int, row: Row, out: Elements) -> None:
        element, begin, pixels, low, high = row
        overlap = 0 if t else large // 4
        last = begun(out, begin + pixels - small, t, zeros(x, small))
        b = 0
        while b < pixels:
            # The last vector overlaps the one before.
            whole, part = min(b, high - large), min(b, pixels - small)
            if low <= whole and b - whole <= overlap:
                total = begun(out, begin + whole, t, zeros(x, large))
                put(out, begin + whole, sum_whole(x, runs.first, element + whole, total))
                b = whole + large
            else:
                total = last if part < b else begun(out, begin + part, t, last)
                put(out, begin + part, sum_existing(x, runs, element, part, total))
                b = part + small

    return add_row


@vectorized(vectors.sum_runs)
def make_sum_runs(x: types.Array) -> Callable[..., None] | None:
    if not isinstance(sum_type(x), types.Float):
        return None
    one = lanes_of(sum_type(x))
    two, four = 2 * one, 4 * one
    add_row, add_short_row = row_adder(two, four), row_adder(one, four)
    # Sums of 16-bit elements would be rounded where a group ends. There are 4,096 runs at most.
    at_once = GROUP if sum_type(x) == x.dtype else 8192
    as_plain = as_written(vectors.sum_runs)

    def sum_runs(x: Elements, runs: Runs, rows: int, count: int, out: View) -> None:
        if count < one:
            as_plain(x, runs, rows, count, out)
            return
        first, block, blocks, run_rows, ahead = runs
        target, begin, (pitch,) = out
        low, high = 0, count  # where all runs exist
        for t in range(run_rows.of_row):
            low, high = max(low, -block[t]), min(high, blocks - block[t])
        is_short = count < two
        for t in range(0, max(first.size, 1), at_once):
            l = 0
            while l < rows:
                t_begin, t_end, alike = runs_of(run_rows, l)
                t_begin, t_end = max(t, t_begin), min(t + at_once, t_end)
                group = Runs(first[t_begin:t_end], block[t_begin:t_end], blocks, run_rows, ahead)
                end = min(rows, l + alike)
                if t and t_begin >= t_end:
                    l = end
                while l < end:
                    if ahead != 0:
                        for n in range(group.first.size):
                            fetch(x, group.first[n] + l * blocks + ahead, blocks)
                    row = Row(l * blocks, begin + l * pitch, count, low, high)
                    if is_short:
                        add_short_row(x, group, t, row, target)
                    else:
                        add_row(x, group, t, row, target)
                    l += 1

    return sum_runs


LINE = 64  # bytes of a line of the caches


@vectorized(vectors.fetch)
def make_fetch(array: types.Array) -> Callable[..., None]:
    step = LINE // element_bytes(array)

    def fetch_lines(array: Elements, first: int, count: int) -> None:
        for k in range(0, count, step):
            fetch_line(array, first + k)

    return fetch_lines


class Square(NamedTuple):
    """Elements of `add_planes`, a square of them: those from e on, of the planes from r on."""

    e: int
    r: int
    skipped: int  # elements that the square before this one has added


@operation(literals="size")
def add_columns(
    builder: ir.IRBuilder,
    x: ViewValue,
    planes: ir.Value,
    square: Square,
    places: ArrayValue,
    sums: ArrayValue,
    size: int,
) -> None:
    """sums[places[e + q] * PLANES + r + k] += x[r + k, e + q] for skipped <= q < size and k < size

    The last of the `planes` stands for those after it.
    """
    source, first, (pitch,) = x
    e, r, skipped = square
    rows = []
    for k in range(size):
        plane = builder.add(r, I64(k))
        last = builder.sub(planes, I64(1))
        plane = builder.select(builder.icmp_signed("<", plane, last), plane, last)
        begin = builder.add(builder.add(first, e), builder.mul(plane, pitch))
        rows.append(source.load_sums(begin, size))
    add = builder.fadd if isinstance(sums.numba_type.dtype, types.Float) else builder.add
    for q, column in enumerate(transpose(builder, rows)):
        pixel = builder.zext(places.one(builder.add(e, I64(q))), I64)
        index = builder.add(builder.mul(pixel, I64(vectors.PLANES)), r)
        with builder.if_then(builder.icmp_signed("<=", skipped, I64(q))):
            sums.store(index, add(sums.load(index, size), column))


@vectorized(vectors.add_planes)
def make_add_planes(x: types.NamedTuple, sums: types.Array) -> Callable[..., None] | None:
    if isinstance(sums.dtype, types.Boolean | types.Complex):
        return None
    size = square(sums)
    at_once = 4 * LINE // element_bytes(array_of(x))  # elements between those that are fetched
    as_plain = as_written(vectors.add_planes)

    def add_planes(x: View, ahead: Offset, planes: int, places: Pixels, sums: Sums) -> None:
        if places.size < size:
            as_plain(x, ahead, planes, places, sums)
            return
        source, first, (pitch,) = x
        for r in range(0, planes, size):
            for some in range(0, places.size, at_once):
                if ahead != 0:
                    for k in range(r, min(r + size, planes)):
                        fetch(source, first + k * pitch + some + ahead, at_once)
                for e in range(some, min(some + at_once, places.size), size):
                    begin = min(e, places.size - size)
                    add_columns(x, planes, Square(begin, r, e - begin), places, sums, size)

    return add_planes


@operation(literals="longest")
def zip_rows(
    builder: ir.IRBuilder,
    lanes: ViewValue,
    matrices: ir.Value,
    rows: ir.Value,
    columns: ir.Value,
    size: ir.Value,
    out: ViewValue,
    longest: int,
) -> None:
    """`interleave` for 2 to 7 rows without gaps in `out`, `size` <= `columns` at a time.

    The size is the longest one, half or a quarter of it; the last columns overlap those before.
    Each number of rows has loops of its own for each size. They are made here, because Numba takes
    half a second for each pair if it compiles them.
    """
    source, first, (step, pitch) = lanes
    target, begin, (out_step, _) = out
    after = builder.append_basic_block()
    switch = builder.switch(builder.add(builder.mul(size, I64(8)), rows), after)
    for height, width in itertools.product(range(2, 8), (longest // 4, longest // 2, longest)):
        block = builder.append_basic_block()
        switch.add_case(I64(width * 8 + height), block)
        with builder.goto_block(block):
            last = builder.sub(columns, I64(width))
            with (
                cgutils.for_range(builder, matrices) as loop,
                cgutils.for_range_slice(builder, I64(0), columns, I64(width)) as (q, _),
            ):
                q = builder.select(builder.icmp_signed("<", q, last), q, last)
                i = builder.add(builder.add(first, q), builder.mul(loop.index, step))
                # Copies of the last row, which no element is taken from, make a power of two.
                places = [
                    builder.add(i, builder.mul(I64(min(r, height - 1)), pitch))
                    for r in range(1 << (height - 1).bit_length())
                ]
                joined = concatenate(builder, [source.load(place, width) for place in places])
                order = [r * width + b for b in range(width) for r in range(height)]
                j = builder.add(begin, builder.mul(q, I64(height)))
                j = builder.add(j, builder.mul(loop.index, out_step))
                target.store_sums(j, shuffle(builder, joined, joined, order))
            builder.branch(after)
    builder.position_at_end(after)


@vectorized(vectors.interleave)
def make_interleave(lanes: types.NamedTuple, out: types.NamedTuple) -> Callable[..., None] | None:
    if isinstance(array_of(out).dtype, types.Complex):
        return None
    longest = whole_vector(array_of(lanes))
    in_squares = transposer(array_of(lanes))
    one_by_one = as_written(vectors.interleave)

    def interleave(lanes: View, matrices: int, rows: int, columns: int, out: View) -> None:
        stay_apart()
        if out.steps[1] == rows and 2 <= rows < 8 and columns >= longest // 4:
            size = longest
            while size > columns:
                size //= 2
            zip_rows(lanes, matrices, rows, columns, size, out, longest)
        elif min(rows, columns) >= 4:
            in_squares(lanes, matrices, rows, columns, out)
        else:
            one_by_one(lanes, matrices, rows, columns, out)

    return interleave


def load_strided(
    builder: ir.IRBuilder, source: ArrayValue, index: ir.Value, stride: ir.Value | int, lanes: int
) -> ir.Value:
    """Load source[index + b * stride] for b < lanes as a vector, and nothing beyond.

    The stride: 1, 2 or a value.
    """
    if stride not in (1, 2):
        elements = []
        for _ in range(lanes):
            elements.append(source.one(index))
            index = builder.add(index, stride)
        return collect(builder, source.data.type.pointee, elements)
    first = source.load(index, lanes)
    if stride == 1:
        return first
    # The second vector ends with the last element that is wanted.
    second = source.load(builder.add(index, I64(lanes - 1)), lanes)
    return shuffle(
        builder, first, second, [2 * b if 2 * b < lanes else 2 * b + 1 for b in range(lanes)]
    )


def by_length(
    builder: ir.IRBuilder, count: ir.Value, full: int, move: Callable[[ir.Value, int], None]
) -> None:
    """Move `count` < 2 * full elements by two overlapping vectors.

    They are as long as fit: move(where, lanes).
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


class StridedRow(NamedTuple):
    """A row of elements with gaps: array[first + b * stride] for each b."""

    array: Any  # Elements, or the ArrayValue that an operation gets
    first: int
    stride: int


@operation(literals="literal_stride lanes")
def copy_vector(
    builder: ir.IRBuilder,
    row: StridedRow,
    literal_stride: int,
    lanes: int,
    out: ArrayValue,
    j: ir.Value,
) -> None:
    """out[j + b] = row[b] for b < lanes; `literal_stride` is 0 for any stride but 1 and 2."""
    x, i, stride = row
    out.store(j, load_strided(builder, x, i, literal_stride or stride, lanes))


@operation(literals="literal_stride full")
def copy_short(
    builder: ir.IRBuilder,
    row: StridedRow,
    literal_stride: int,
    full: int,
    out: ArrayValue,
    j: ir.Value,
    count: ir.Value,
) -> None:
    """out[j + b] = row[b] for b < count < 2 * full; `literal_stride` as in copy_vector."""
    x, first, stride = row

    def move(b: ir.Value, lanes: int) -> None:
        i = builder.add(first, builder.mul(b, stride))
        out.store(builder.add(j, b), load_strided(builder, x, i, literal_stride or stride, lanes))

    by_length(builder, count, full, move)


def copier(literal_stride: int, full: int) -> Callable[..., None]:
    """Return copy_box for one stride, or for any (0).

    It copies vectors of `full` elements; the last one overlaps the one before.
    """

    @inner
    def copy(x: View, sizes: tuple[int, int, int], count: int, stride: int, out: View) -> None:
        source, first, steps = x
        target, begin, out_steps = out
        for p in range(sizes[0]):
            for q in range(sizes[1]):
                i = first + p * steps[0] + q * steps[1]
                j = begin + p * out_steps[0] + q * out_steps[1]
                for _ in range(sizes[2]):
                    if count < 2 * full:
                        copy_short(
                            StridedRow(source, i, stride), literal_stride, full, target, j, count
                        )
                    else:
                        for b in range(0, count, full):
                            c = min(b, count - full)
                            copy_vector(
                                StridedRow(source, i + c * stride, stride),
                                literal_stride,
                                full,
                                target,
                                j + c,
                            )
                    i += steps[2]
                    j += out_steps[2]

    return copy


@vectorized(vectors.copy_box)
def make_copy_box(out: types.NamedTuple) -> Callable[..., None] | None:
    array = array_of(out)
    if isinstance(array.dtype, types.Complex):
        return None
    copy_1, copy_2, copy_any = (copier(stride, whole_vector(array)) for stride in (1, 2, 0))
    in_squares = transposer(array)

    def copy_box(x: View, sizes: tuple[int, int, int], count: int, stride: int, out: View) -> None:
        # Where neighbours along q are neighbours in memory, they are the columns of a matrix.
        if stride == 1:
            copy_1(x, sizes, count, 1, out)
        elif stride == 2:
            copy_2(x, sizes, count, 2, out)
        elif x.steps[1] == 1 and min(sizes[1], count) >= 4:
            for p in range(sizes[0]):
                matrices = View(x.array, x.first + p * x.steps[0], (x.steps[2], stride))
                begin = out.first + p * out.steps[0]
                transposed = View(out.array, begin, (out.steps[2], out.steps[1]))
                in_squares(matrices, sizes[2], count, sizes[1], transposed)
        else:
            copy_any(x, sizes, count, stride, out)

    return copy_box
