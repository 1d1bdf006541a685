"""Loops of vectors.py over rows, for compiled code: sums, transpositions, transformed coordinates."""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ..kernels import vectors
from ..kernels.elements import load
from .halves import I32, I64
from .simd import (
    Vector,
    inner,
    lanes,
    lanes_of,
    load_vector,
    narrow,
    needs_library,
    plain,
    pointer_to,
    shuffle,
    square,
    store_vector,
    transpose,
    transposer,
    vectorized,
    widen,
)


@intrinsic
def zip_elements(typing, source, i, pitch, target, j, count, size):
    """target[j + q * count + r] = source[i + r * pitch + q] for q < size, r < count (both literals)"""

    def codegen(context, builder, signature, values):
        data, into = (pointer_to(context, builder, signature, values, k) for k in (0, 3))
        rows, lanes = count.literal_value, size.literal_value
        zipped = load_vector(builder, data, values[1], lanes)
        for r in range(1, rows):
            row = load_vector(builder, data, builder.add(values[1], builder.mul(I64(r), values[2])), lanes)
            # Of one length, as both sides of a shuffle are: what comes after the row is not used.
            row = shuffle(builder, row, row, [*range(lanes), *[0] * (lanes * (r - 1))])
            order = [q * r + k if k < r else lanes * r + q for q in range(lanes) for k in range(r + 1)]
            zipped = shuffle(builder, zipped, row, order)
        store_vector(builder, into, values[4], narrow(builder, zipped, target))
        return context.get_dummy_value()

    if isinstance(count, types.IntegerLiteral) and isinstance(size, types.IntegerLiteral):
        return types.void(source, i, pitch, target, j, count, size), codegen
    return None


@intrinsic
def add_vector(typing, source, i, target, j, lanes):
    """target[j + b] += source[i + b] for b < lanes (a literal)"""

    def codegen(context, builder, signature, values):
        data, into = (pointer_to(context, builder, signature, values, k) for k in (0, 2))
        new, old = (load_vector(builder, *at, lanes.literal_value) for at in ((data, values[1]), (into, values[3])))
        store_vector(builder, into, values[3], builder.fadd(old, widen(builder, new, source)))
        return context.get_dummy_value()

    if isinstance(lanes, types.IntegerLiteral):
        return types.void(source, i, target, j, lanes), codegen
    return None


@vectorized(vectors.add_runs)
def _(x, out):
    if not isinstance(out.dtype, types.Float) or needs_library(x):
        return None

    def add_runs(x, first, pitch, rows, count, out, pixel, out_pitch):
        whole = count // 8 * 8
        for _ in range(rows if count > 0 else 0):
            for b in range(0, whole, 8):
                add_vector(x, first + b, out, pixel + b, 8)
            if count & 4:
                add_vector(x, first + whole, out, pixel + whole, 4)
            if count & 2:
                add_vector(x, first + whole + (count & 4), out, pixel + whole + (count & 4), 2)
            if count & 1:
                add_vector(x, first + count - 1, out, pixel + count - 1, 1)
            first += pitch
            pixel += out_pitch

    return add_runs


@intrinsic
def add_square(typing, source, i, pitch, target, j, stride, skipped, size):
    """target[j + q * stride + r] += source[i + r * pitch + q] for skipped <= q < size and r < size (a literal)"""

    def codegen(context, builder, signature, values):
        data, into = (pointer_to(context, builder, signature, values, k) for k in (0, 3))
        count = size.literal_value
        places = [builder.add(values[1], builder.mul(I64(r), values[2])) for r in range(count)]
        rows = [widen(builder, load_vector(builder, data, place, count), source) for place in places]
        add = builder.fadd if isinstance(target.dtype, types.Float) else builder.add
        for q, column in enumerate(transpose(builder, rows)):
            at = builder.add(values[4], builder.mul(I64(q), values[5]))
            with builder.if_then(builder.icmp_signed("<=", values[6], I64(q))):
                store_vector(builder, into, at, add(load_vector(builder, into, at, count), column))
        return context.get_dummy_value()

    if isinstance(size, types.IntegerLiteral):
        return types.void(source, i, pitch, target, j, stride, skipped, size), codegen
    return None


@vectorized(vectors.add_transposed)
def _(x, out):
    if isinstance(out.dtype, types.Boolean | types.Complex) or needs_library(x):
        return None
    size, add_rest = square(out), plain(vectors.add_transposed)

    def add_transposed(x, first, pitch, places, count, out, pixel, stride):
        whole = places // size * size if count >= size and stride >= size else 0
        for k in range(0, whole, size):
            at, to = first + k * pitch, pixel + k
            for l in range(0, count, size):
                skipped = max(0, l + size - count)  # the last columns overlap those before
                add_square(x, at + l - skipped, pitch, out, to + (l - skipped) * stride, stride, skipped, size)
        add_rest(x, first + whole * pitch, pitch, places - whole, count, out, pixel + whole, stride)

    return add_transposed


@vectorized(vectors.interleave)
def _(lanes, target):
    if isinstance(target.dtype, types.Complex) or (lanes.dtype != target.dtype and needs_library(target)):
        return None
    large, one_by_one = square(lanes), plain(vectors.interleave)

    def zipped(stride, size):
        @inner
        def zip_rows(lanes, first, pitch, row_pitch, count, rows, target, to, out_pitch):
            for l in range(rows):
                at, row = first + l * row_pitch, to + l * out_pitch
                for begin in range(0, count - size, size):
                    zip_elements(lanes, at + begin, pitch, target, row + begin * stride, stride, size)
                last = count - size
                zip_elements(lanes, at + last, pitch, target, row + last * stride, stride, size)

        return zip_rows

    # The last vectors overlap those before. Steps are constants: ranges divide by them.
    zipped_2_8, zipped_2_4, zipped_2_2, zipped_3_8 = zipped(2, 8), zipped(2, 4), zipped(2, 2), zipped(3, 8)
    in_large_squares, in_small_squares = transposer(large), transposer(4)

    def interleave(lanes, first, pitch, row_pitch, stride, count, rows, target, to, out_pitch):
        if stride == 2 and count >= 8:
            zipped_2_8(lanes, first, pitch, row_pitch, count, rows, target, to, out_pitch)
        elif stride == 2 and count >= 4:
            zipped_2_4(lanes, first, pitch, row_pitch, count, rows, target, to, out_pitch)
        elif stride == 2 and count >= 2:
            zipped_2_2(lanes, first, pitch, row_pitch, count, rows, target, to, out_pitch)
        elif stride == 3 and count >= 8:
            zipped_3_8(lanes, first, pitch, row_pitch, count, rows, target, to, out_pitch)
        elif stride >= large and count >= large:
            for l in range(rows):
                at, row = first + l * row_pitch, to + l * out_pitch
                in_large_squares(lanes, at, pitch, stride, count, target, row, stride)
        elif stride >= 4 and count >= 4:
            for l in range(rows):
                at, row = first + l * row_pitch, to + l * out_pitch
                in_small_squares(lanes, at, pitch, stride, count, target, row, stride)
        else:
            one_by_one(lanes, first, pitch, row_pitch, stride, count, rows, target, to, out_pitch)

    return interleave


@intrinsic
def repeated_columns(typing, columns, axes):
    """Repeat the numbers of each of `len(axes) + 1` columns until they fill a whole number of vectors."""
    count, lanes = len(axes), lanes_of(columns.dtype)

    def codegen(context, builder, signature, values):
        data = pointer_to(context, builder, signature, values, 0)
        found = []
        for k in range(count + 1):
            numbers = [builder.load(builder.gep(data, [I64(k * count + i)])) for i in range(count)]
            for r in range(count):
                vector = ir.Constant(ir.VectorType(numbers[0].type, lanes), ir.Undefined)
                for lane in range(lanes):
                    vector = builder.insert_element(vector, numbers[(r * lanes + lane) % count], I32(lane))
                found.append(vector)
        return context.make_tuple(builder, signature.return_type, found)

    return types.UniTuple(Vector(columns.dtype, lanes), count * (count + 1))(columns, axes), codegen


@intrinsic
def transform_places(typing, x, w, y, columns, axes, target):
    """target[(w + b) * a + i] for the places x[w + b], as many as a vector has lanes; `columns` are repeated ones."""
    count, lanes = len(axes), columns.dtype.lanes

    def codegen(context, builder, signature, values):
        data, into = (pointer_to(context, builder, signature, values, k) for k in (0, 5))
        places = widen(builder, load_vector(builder, data, values[1], lanes), x)
        one = builder.insert_element(ir.Constant(places.type, ir.Undefined), values[2], I32(0))
        row = shuffle(builder, one, one, [0] * lanes)
        start = builder.mul(values[1], I64(count))
        for r in range(count):
            along = shuffle(builder, places, places, [(r * lanes + lane) // count for lane in range(lanes)])
            first, second, *shifts = (builder.extract_value(values[3], k * count + r) for k in range(count + 1))
            total = builder.fadd(builder.fmul(first, along), builder.fmul(second, row))
            for shift in shifts:
                total = builder.fadd(total, shift)
            store_vector(builder, into, builder.add(start, I64(r * lanes)), narrow(builder, total, target))
        return context.get_dummy_value()

    return types.void(x, w, y, columns, axes, target), codegen


@vectorized(vectors.transform_rows)
def _(target):
    if needs_library(target):
        return None
    one_by_one = plain(vectors.transform_rows)

    def transform_rows(x, y, columns, axes, target):
        step = lanes(target)
        if x.size < step:
            one_by_one(x, y, columns, axes, target)
        else:
            vectors_of_columns = repeated_columns(columns, axes)
            last = x.size - step  # the last vectors overlap those before
            for h in range(y.size):
                at, row = load(y, h), target[h * x.size * len(axes) :]
                for w in range(0, last, step):
                    transform_places(x, w, at, vectors_of_columns, axes, row)
                transform_places(x, last, at, vectors_of_columns, axes, row)

    return transform_rows
