"""vectors.py for compiled code.

The vectors here are LLVM's own, which it lowers to whatever the CPU has. In Numba's code they are values like any
other: made by loads, combined by `times` and `times_plus`, shuffled, and stored.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, overload, register_jitable, register_model

from . import vectors
from .elements import load
from .elements_numba import HALF, I16, I32, has_half_instructions, sum_type
from .jit import BOUNDSCHECK, FLAGS, FUSE, INNER

WORD = ir.IntType(64)
BYTES = 32  # of a vector of sums
LONG = 8  # vectors of a run that pay for being aligned
FUSED = ["contract"]


class Vector(types.Type):
    """`lanes` numbers of one type."""

    def __init__(self, number, lanes):
        self.number, self.lanes = number, lanes
        super().__init__(f"Vector({number}, {lanes})")


@register_model(Vector)
class VectorModel(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, ir.VectorType(manager.lookup(kind.number).get_value_type(), kind.lanes))


def lanes_of(number):
    return BYTES * 8 // number.bitwidth


def address(context, builder, signature, values, k):
    """Of argument k's first element, as a pointer to its storage."""
    array = signature.args[k]
    data = context.make_array(array)(context, builder, values[k]).data
    return builder.bitcast(data, storage(array).as_pointer())


def storage(array):
    if isinstance(array.dtype, types.Record):
        return I16
    if isinstance(array.dtype, types.Float):
        return {types.float32: ir.FloatType(), types.float64: ir.DoubleType()}[array.dtype]
    return ir.IntType(8 if isinstance(array.dtype, types.Boolean) else array.dtype.bitwidth)


def alignment(kind):
    """Of one element, in bytes."""
    return kind.width // 8 if isinstance(kind, ir.IntType) else {"float": 4, "double": 8}[str(kind)]


def load_vector(builder, data, index, lanes):
    kind = data.type.pointee
    loaded = builder.load(builder.bitcast(builder.gep(data, [index]), ir.VectorType(kind, lanes).as_pointer()))
    loaded.align = alignment(kind)
    return loaded


def store_vector(builder, data, index, vector):
    at = builder.bitcast(builder.gep(data, [index]), vector.type.as_pointer())
    builder.store(vector, at).align = alignment(data.type.pointee)


def widen(builder, vector, array):
    """Elements as the numbers in which they are summed."""
    if not isinstance(array.dtype, types.Record):
        return vector
    lanes = vector.type.count
    floats = ir.VectorType(ir.FloatType(), lanes)
    if "float16" in array.dtype.fields:
        return builder.fpext(builder.bitcast(vector, ir.VectorType(HALF, lanes)), floats)
    words = ir.VectorType(I32, lanes)
    return builder.bitcast(builder.shl(builder.zext(vector, words), ir.Constant(words, [16] * lanes)), floats)


def narrow(builder, vector, array):
    """Sums as elements of the array; the inverse of `widen`, rounded as in elements_numba.py."""
    if vector.type.element == storage(array):
        return vector
    words, shorts = (ir.VectorType(kind, vector.type.count) for kind in (I32, I16))
    if "float16" in array.dtype.fields:
        return builder.bitcast(builder.fptrunc(vector, ir.VectorType(HALF, vector.type.count)), shorts)

    def constant(value):
        return ir.Constant(words, [value] * words.count)

    bits = builder.bitcast(vector, words)
    high = builder.lshr(bits, constant(16))
    rounded = builder.add(builder.add(bits, constant(0x7FFF)), builder.and_(high, constant(1)))
    quiet = builder.or_(high, constant(0x40))
    nan = builder.fcmp_unordered("uno", vector, vector)
    return builder.trunc(builder.select(nan, quiet, builder.lshr(rounded, constant(16))), shorts)


def needs_library(array):
    """Whether LLVM would call a function for a conversion of the array's elements."""
    half = isinstance(array.dtype, types.Record) and "float16" in array.dtype.fields
    return half and not has_half_instructions()


def shuffle(builder, a, b, order):
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, len(order)), list(order)))


def concatenate(builder, vectors):
    while len(vectors) > 1:
        count = vectors[0].type.count
        vectors = [shuffle(builder, a, b, range(2 * count)) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
    return vectors[0]


@intrinsic
def pairs(typing, source, base, b, offset):
    """source[base[b:] + offset + k] for k = 0 and 1, as two vectors over b."""
    vector = Vector(sum_type(source), lanes_of(sum_type(source)))

    def codegen(context, builder, signature, values):
        data = address(context, builder, signature, values, 0)
        bases = context.make_array(base)(context, builder, values[1]).data
        found = []
        for lane in range(vector.lanes):
            start = builder.sext(builder.load(builder.gep(bases, [builder.add(values[2], WORD(lane))])), WORD)
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
def four(typing, source, i):
    """source[i : i + 4] as a vector."""

    def codegen(context, builder, signature, values):
        data = address(context, builder, signature, values, 0)
        return widen(builder, load_vector(builder, data, values[1], 4), source)

    return Vector(sum_type(source), 4)(source, i), codegen


def transpose(builder, rows):
    """The columns of a square matrix whose size is a power of two, its rows of at most 32 bytes.

    Elements first move within 16 bytes, where CPUs shuffle best.
    """
    size = len(rows)
    lane = min(size, 16 // alignment(rows[0].type.element))
    lanes = range(0, size, lane)
    low = [begin + k // 2 + k % 2 * size for begin in lanes for k in range(lane)]
    high = [k + lane // 2 for k in low]
    parts = [rows[begin : begin + lane] for begin in lanes]
    for _ in range(lane.bit_length() - 1):
        pairs = [list(zip(part[: lane // 2], part[lane // 2 :], strict=True)) for part in parts]
        parts = [[shuffle(builder, *pair, order) for pair in part for order in (low, high)] for part in pairs]
    if len(parts) == 1:
        return parts[0]
    orders = [[k + other for other in (0, size) for k in range(begin, begin + lane)] for begin in lanes]
    return [shuffle(builder, *pair, order) for order in orders for pair in zip(*parts, strict=True)]


@intrinsic
def transposed(typing, a, b, c, d):
    """Four vectors of four, as rows of a matrix: its columns."""

    def codegen(context, builder, signature, values):
        return context.make_tuple(builder, signature.return_type, transpose(builder, values))

    return types.UniTuple(a, 4)(a, b, c, d), codegen


@intrinsic
def transpose_elements(typing, source, i, pitch, target, j, stride, size):
    """target[j + q * stride + r] = source[i + r * pitch + q] for q, r < size (a literal)"""

    def codegen(context, builder, signature, values):
        data, into = (address(context, builder, signature, values, k) for k in (0, 3))
        count = size.literal_value
        steps = [WORD(r) for r in range(count)]
        rows = [load_vector(builder, data, builder.add(values[1], builder.mul(r, values[2])), count) for r in steps]
        for q, column in zip(steps, transpose(builder, rows), strict=True):
            at = builder.add(values[4], builder.mul(q, values[5]))
            store_vector(builder, into, at, narrow(builder, column, target))
        return context.get_dummy_value()

    if isinstance(size, types.IntegerLiteral):
        return types.void(source, i, pitch, target, j, stride, size), codegen
    return None


@intrinsic
def zip_elements(typing, source, i, pitch, target, j, count, size):
    """target[j + q * count + r] = source[i + r * pitch + q] for q < size, r < count (both literals)"""

    def codegen(context, builder, signature, values):
        data, into = (address(context, builder, signature, values, k) for k in (0, 3))
        rows, lanes = count.literal_value, size.literal_value
        zipped = load_vector(builder, data, values[1], lanes)
        for r in range(1, rows):
            row = load_vector(builder, data, builder.add(values[1], builder.mul(WORD(r), values[2])), lanes)
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
def vector_at(typing, row, b, like):
    """row[b:] as a vector like `like`."""

    def codegen(context, builder, signature, values):
        return load_vector(builder, address(context, builder, signature, values, 0), values[1], like.lanes)

    return like(row, b, like), codegen


@intrinsic
def put(typing, row, b, vector):
    """row[b:] = vector"""

    def codegen(context, builder, signature, values):
        store_vector(builder, address(context, builder, signature, values, 0), values[1], values[2])
        return context.get_dummy_value()

    return types.void(row, b, vector), codegen


@intrinsic
def spread(typing, value, like):
    """`value` in every lane of a vector like `like`."""

    def codegen(context, builder, signature, values):
        one = builder.insert_element(ir.Constant(values[1].type, ir.Undefined), values[0], I32(0))
        return shuffle(builder, one, one, [0] * like.lanes)

    return like(value, like), codegen


@intrinsic
def times(typing, a, b):
    def codegen(context, builder, signature, values):
        return builder.fmul(*values, flags=FUSED)

    return a(a, b), codegen


@intrinsic
def times_plus(typing, a, b, c):
    """a * b + c"""

    def codegen(context, builder, signature, values):
        return builder.fadd(builder.fmul(*values[:2], flags=FUSED), values[2], flags=FUSED)

    return a(a, b, c), codegen


@intrinsic
def plus(typing, a, b):
    def codegen(context, builder, signature, values):
        return builder.fadd(*values, flags=FUSED)

    return a(a, b), codegen


@register_jitable(**FLAGS | INNER)
def column(source, start, pitch, row_weight, b):
    """The weighted sum over four rows, for each of four neighbours, of point b."""
    row = four(source, start)
    low = times(spread(row_weight[0, b], row), row)
    row = four(source, start + pitch)
    low = times_plus(spread(row_weight[1, b], row), row, low)
    row = four(source, start + 2 * pitch)
    low = times_plus(spread(row_weight[2, b], row), row, low)
    row = four(source, start + 3 * pitch)
    return times_plus(spread(row_weight[3, b], row), row, low)


@intrinsic
def lanes(typing, array):
    """How many of the array's sums are one vector."""
    count = lanes_of(sum_type(array))
    return types.int64(array), lambda context, builder, signature, values: WORD(count)


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


@intrinsic
def add_vector(typing, source, i, target, j, lanes):
    """target[j + b] += source[i + b] for b < lanes (a literal)"""

    def codegen(context, builder, signature, values):
        data, into = (address(context, builder, signature, values, k) for k in (0, 2))
        new, old = (load_vector(builder, *at, lanes.literal_value) for at in ((data, values[1]), (into, values[3])))
        store_vector(builder, into, values[3], builder.fadd(old, widen(builder, new, source)))
        return context.get_dummy_value()

    if isinstance(lanes, types.IntegerLiteral):
        return types.void(source, i, target, j, lanes), codegen
    return None


@overload(vectors.add_runs, jit_options=FLAGS | INNER)
def _(x, first, pitch, rows, count, out, pixel, out_pitch):
    if BOUNDSCHECK or not isinstance(out.dtype, types.Float) or needs_library(x):
        return vectors.add_runs_plainly

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
        data, into = (address(context, builder, signature, values, k) for k in (0, 3))
        count = size.literal_value
        places = [builder.add(values[1], builder.mul(WORD(r), values[2])) for r in range(count)]
        rows = [widen(builder, load_vector(builder, data, place, count), source) for place in places]
        add = builder.fadd if isinstance(target.dtype, types.Float) else builder.add
        for q, column in enumerate(transpose(builder, rows)):
            at = builder.add(values[4], builder.mul(WORD(q), values[5]))
            with builder.if_then(builder.icmp_signed("<=", values[6], WORD(q))):
                store_vector(builder, into, at, add(load_vector(builder, into, at, count), column))
        return context.get_dummy_value()

    if isinstance(size, types.IntegerLiteral):
        return types.void(source, i, pitch, target, j, stride, skipped, size), codegen
    return None


@overload(vectors.add_transposed, jit_options=FLAGS | INNER)
def _(x, first, pitch, places, count, out, pixel, stride):
    if BOUNDSCHECK or isinstance(out.dtype, types.Boolean | types.Complex) or needs_library(x):
        return vectors.add_transposed_plainly
    size = square(out)

    def add_transposed(x, first, pitch, places, count, out, pixel, stride):
        whole = places // size * size if count >= size and stride >= size else 0
        for k in range(0, whole, size):
            at, to = first + k * pitch, pixel + k
            for l in range(0, count, size):
                skipped = max(0, l + size - count)  # the last columns overlap those before
                add_square(x, at + l - skipped, pitch, out, to + (l - skipped) * stride, stride, skipped, size)
        rest = places - whole
        vectors.add_transposed_plainly(x, first + whole * pitch, pitch, rest, count, out, pixel + whole, stride)

    return add_transposed


def square(array):
    """The size of squares of such elements that are transposed at once."""
    return min(8, whole_vector(array))


def transposer(size):
    """The transposition of a matrix, in squares of this size, of which the last ones overlap those before."""

    @register_jitable(**FLAGS | INNER)
    def transpose_matrix(x, first, pitch, rows, columns, out, to, out_pitch):
        for column in range(0, columns, size):
            c = min(column, columns - size)
            for row in range(0, rows, size):
                r = min(row, rows - size)
                transpose_elements(x, first + r * pitch + c, pitch, out, to + c * out_pitch + r, out_pitch, size)

    return transpose_matrix


@overload(vectors.interleave, jit_options=FLAGS | INNER)
def _(lanes, first, pitch, row_pitch, stride, count, rows, target, to, out_pitch):
    if (
        BOUNDSCHECK
        or isinstance(target.dtype, types.Complex)
        or (lanes.dtype != target.dtype and needs_library(target))
    ):
        return vectors.interleave_plainly
    large = square(lanes)

    def zipped(stride, size):
        @register_jitable(**FLAGS | INNER)
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
            vectors.interleave_plainly(lanes, first, pitch, row_pitch, stride, count, rows, target, to, out_pitch)

    return interleave


@intrinsic
def repeated_columns(typing, columns, axes):
    """For each of `len(axes) + 1` columns, its numbers over and over: as many vectors as bring it to a whole period."""
    count, lanes = len(axes), lanes_of(columns.dtype)

    def codegen(context, builder, signature, values):
        data = address(context, builder, signature, values, 0)
        found = []
        for k in range(count + 1):
            numbers = [builder.load(builder.gep(data, [WORD(k * count + i)])) for i in range(count)]
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
        data, into = (address(context, builder, signature, values, k) for k in (0, 5))
        places = widen(builder, load_vector(builder, data, values[1], lanes), x)
        one = builder.insert_element(ir.Constant(places.type, ir.Undefined), values[2], I32(0))
        row = shuffle(builder, one, one, [0] * lanes)
        start = builder.mul(values[1], WORD(count))
        for r in range(count):
            along = shuffle(builder, places, places, [(r * lanes + lane) // count for lane in range(lanes)])
            first, second, *shifts = (builder.extract_value(values[3], k * count + r) for k in range(count + 1))
            total = builder.fadd(builder.fmul(first, along), builder.fmul(second, row))
            for shift in shifts:
                total = builder.fadd(total, shift)
            store_vector(builder, into, builder.add(start, WORD(r * lanes)), narrow(builder, total, target))
        return context.get_dummy_value()

    return types.void(x, w, y, columns, axes, target), codegen


@overload(vectors.transform_rows, jit_options=FLAGS | INNER)
def _(x, y, columns, axes, target):
    if BOUNDSCHECK or needs_library(target):
        return vectors.transform_rows_plainly

    def transform_rows(x, y, columns, axes, target):
        step = lanes(target)
        if x.size < step:
            vectors.transform_rows_plainly(x, y, columns, axes, target)
        else:
            vectors_of_columns = repeated_columns(columns, axes)
            last = x.size - step  # the last vectors overlap those before
            for h in range(y.size):
                at, row = load(y, h), target[h * x.size * len(axes) :]
                for w in range(0, last, step):
                    transform_places(x, w, at, vectors_of_columns, axes, row)
                transform_places(x, last, at, vectors_of_columns, axes, row)

    return transform_rows


def every(builder, data, index, stride, lanes):
    """The vector of data[index + b * stride] for b < lanes; it reads from no further. The stride is 1, 2 or a value."""
    if stride not in (1, 2):
        found = ir.Constant(ir.VectorType(data.type.pointee, lanes), ir.Undefined)
        for lane in range(lanes):
            found = builder.insert_element(found, builder.load(builder.gep(data, [index])), I32(lane))
            index = builder.add(index, stride)
        return found
    found = load_vector(builder, data, index, lanes)
    if stride == 1:
        return found
    # The second vector ends with the last element that is wanted.
    second = load_vector(builder, data, builder.add(index, WORD(lanes - 1)), lanes)
    return shuffle(builder, found, second, [2 * b if 2 * b < lanes else 2 * b + 1 for b in range(lanes)])


def by_length(builder, count, full, move):
    """Move less than 2 * full elements: two vectors that overlap, move(their place, their length), as long as fit."""
    if full > 1:
        with builder.if_else(builder.icmp_signed(">=", count, WORD(full))) as (long, short):
            with long:
                move(WORD(0), full)
                move(builder.sub(count, WORD(full)), full)
            with short:
                by_length(builder, count, full // 2, move)
    else:
        with builder.if_then(builder.icmp_signed(">", count, WORD(0))):
            move(WORD(0), 1)


@intrinsic
def copy_vector(typing, x, i, known, stride, out, j, lanes):
    """out[j + b] = x[i + b * stride] for b < lanes; the literal `known` is the stride if it is 1 or 2, else 0."""

    def codegen(context, builder, signature, values):
        data, into = (address(context, builder, signature, values, k) for k in (0, 4))
        found = every(builder, data, values[1], known.literal_value or values[3], lanes.literal_value)
        store_vector(builder, into, values[5], found)
        return context.get_dummy_value()

    if isinstance(lanes, types.IntegerLiteral) and isinstance(known, types.IntegerLiteral):
        return types.void(x, i, known, stride, out, j, lanes), codegen
    return None


@intrinsic
def copy_short(typing, x, i, known, stride, out, j, count, full):
    """The same for b < count < 2 * full (a literal)."""

    def codegen(context, builder, signature, values):
        data, into = (address(context, builder, signature, values, k) for k in (0, 4))

        def move(b, lanes):
            at = builder.add(values[1], builder.mul(b, values[3]))
            found = every(builder, data, at, known.literal_value or values[3], lanes)
            store_vector(builder, into, builder.add(values[5], b), found)

        by_length(builder, values[6], full.literal_value, move)
        return context.get_dummy_value()

    if isinstance(full, types.IntegerLiteral) and isinstance(known, types.IntegerLiteral):
        return types.void(x, i, known, stride, out, j, count, full), codegen
    return None


@intrinsic
def clear_vector(typing, out, j, lanes):
    """out[j + b] = 0 for b < lanes (a literal)"""

    def codegen(context, builder, signature, values):
        put_zeros(builder, address(context, builder, signature, values, 0), values[1], lanes.literal_value)
        return context.get_dummy_value()

    return (types.void(out, j, lanes), codegen) if isinstance(lanes, types.IntegerLiteral) else None


@intrinsic
def clear_short(typing, out, j, count, full):
    """out[j + b] = 0 for b < count < 2 * full (a literal)"""

    def codegen(context, builder, signature, values):
        into = address(context, builder, signature, values, 0)
        move = lambda b, lanes: put_zeros(builder, into, builder.add(values[1], b), lanes)
        by_length(builder, values[2], full.literal_value, move)
        return context.get_dummy_value()

    return (types.void(out, j, count, full), codegen) if isinstance(full, types.IntegerLiteral) else None


def put_zeros(builder, into, index, lanes):
    store_vector(builder, into, index, ir.Constant(ir.VectorType(into.type.pointee, lanes), None))


@intrinsic
def to_boundary(typing, out, j):
    """How many elements out[j] is from the next place in memory where a vector is aligned."""

    def codegen(context, builder, signature, values):
        data = address(context, builder, signature, values, 0)
        at = builder.ptrtoint(builder.gep(data, [values[1]]), WORD)
        return builder.udiv(builder.and_(builder.neg(at), WORD(BYTES - 1)), WORD(alignment(data.type.pointee)))

    return types.int64(out, j), codegen


def copier(known, full):
    """copy_box for this stride, or 0 for any, in vectors of so many elements; the last overlaps those before."""

    @register_jitable(**FLAGS | INNER)
    def copy(x, first, steps, sizes, count, stride, out, to, out_steps):
        for p in range(sizes[0]):
            for q in range(sizes[1]):
                source, target = first + p * steps[0] + q * steps[1], to + p * out_steps[0] + q * out_steps[1]
                for _ in range(sizes[2]):
                    if count < 2 * full:
                        copy_short(x, source, known, stride, out, target, count, full)
                    else:
                        copy_vector(x, source, known, stride, out, target, full)
                        b = to_boundary(out, target) if count > LONG * full else full
                        while b < count - full:
                            copy_vector(x, source + b * stride, known, stride, out, target + b, full)
                            b += full
                        last = count - full
                        copy_vector(x, source + last * stride, known, stride, out, target + last, full)
                    source += steps[2]
                    target += out_steps[2]

    return copy


def whole_vector(out):
    """How many of the array's elements are one vector."""
    return BYTES // alignment(storage(out))


@overload(vectors.copy_box, jit_options=FLAGS | INNER)
def _(x, first, steps, sizes, count, stride, out, to, out_steps):
    if BOUNDSCHECK or isinstance(out.dtype, types.Complex):
        return vectors.copy_box_plainly
    each, second, any_other = (copier(known, whole_vector(out)) for known in (1, 2, 0))
    large = square(out)
    in_large_squares, in_small_squares = transposer(large), transposer(4)

    def copy_box(x, first, steps, sizes, count, stride, out, to, out_steps):
        side = min(sizes[1], count) if steps[1] == 1 else 0  # where neighbours along q are neighbours in memory
        if stride == 1:
            each(x, first, steps, sizes, count, 1, out, to, out_steps)
        elif stride == 2:
            second(x, first, steps, sizes, count, 2, out, to, out_steps)
        elif side >= 4:
            for p in range(sizes[0]):
                for r in range(sizes[2]):
                    source, target = first + p * steps[0] + r * steps[2], to + p * out_steps[0] + r * out_steps[2]
                    if side >= large:
                        in_large_squares(x, source, stride, count, sizes[1], out, target, out_steps[1])
                    else:
                        in_small_squares(x, source, stride, count, sizes[1], out, target, out_steps[1])
        else:
            any_other(x, first, steps, sizes, count, stride, out, to, out_steps)

    return copy_box


@overload(vectors.clear_box, jit_options=FLAGS | INNER)
def _(out, to, steps, sizes, count):
    if BOUNDSCHECK or isinstance(out.dtype, types.Complex):
        return vectors.clear_box_plainly
    full = whole_vector(out)

    def clear_box(out, to, steps, sizes, count):
        for p in range(sizes[0] if count > 0 else 0):
            for q in range(sizes[1]):
                target = to + p * steps[0] + q * steps[1]
                # What a pad of one leaves between two rows.
                for _ in range(sizes[2] if count == 1 else 0):
                    clear_vector(out, target, 1)
                    target += steps[2]
                for _ in range(sizes[2] if count > 1 else 0):
                    if count < 2 * full:
                        clear_short(out, target, count, full)
                    else:
                        for b in range(0, count - full, full):
                            clear_vector(out, target + b, full)
                        clear_vector(out, target + count - full, full)
                    target += steps[2]

    return clear_box


@intrinsic
def sums_at(typing, source, i, like):
    """source[i:] as a vector like `like`, in the type in which the elements are summed."""

    def codegen(context, builder, signature, values):
        data = address(context, builder, signature, values, 0)
        return widen(builder, load_vector(builder, data, values[1], like.lanes), source)

    return like(source, i, like), codegen


@intrinsic
def zeros(typing, sums, lanes):
    """A vector of so many zeros (a literal) of the array's type."""

    def codegen(context, builder, signature, values):
        return ir.Constant(context.get_value_type(signature.return_type), None)

    if isinstance(lanes, types.IntegerLiteral):
        return Vector(sums.dtype, lanes.literal_value)(sums, lanes), codegen
    return None


def points_adder(lanes):
    """add_points from a channel on: for so many channels at a time, for half as many of what is left, and so on."""
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
                    upper = times_plus(spread(w0[b], upper), sums_at(source, above, upper), upper)
                if taps & 2:
                    upper = times_plus(spread(w1[b], upper), sums_at(source, above + pitch, upper), upper)
                if taps & 4:
                    lower = times_plus(spread(w2[b], lower), sums_at(source, below, lower), lower)
                if taps & 8:
                    lower = times_plus(spread(w3[b], lower), sums_at(source, below + pitch, lower), lower)
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
