"""`blend` of vectors.py for compiled code: weighted sums over two by two or four by four neighbours of many points."""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ..kernels import vectors
from .halves import I64, sum_type
from .simd import (
    Vector,
    alignment,
    are_zeros,
    concatenate,
    gather,
    inner,
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
    vectorized,
    widen,
    zeros,
)
from .target import current


def gathered_pairs(builder, data, index):
    """Return the elements data[index] and data[index + 1], as two vectors."""
    size, count = alignment(data.type.pointee), index.type.count
    elements = ir.VectorType(data.type.pointee, count)
    if size == 8:
        found = [gather(builder, builder.gep(data, [I64(k)]), index, 64) for k in (0, 1)]
        return [builder.bitcast(v, elements) for v in found]
    if size == 2:
        words = gather(builder, data, index, 32)
        return [builder.trunc(builder.lshr(words, ir.Constant(words.type, [k] * count)), elements) for k in (0, 16)]
    halves = [shuffle(builder, index, index, range(k, k + count // 2)) for k in (0, count // 2)]
    halves = [builder.bitcast(gather(builder, data, half, 64), elements) for half in halves]
    return [shuffle(builder, *halves, range(k, 2 * count, 2)) for k in (0, 1)]


def loaded_pairs(builder, data, index):
    """As `gathered_pairs`, by a load for each pair; the index is a list of 64-bit integers."""
    count = len(index)
    found = [load_vector(builder, data, start, 2) for start in index]
    # 16 bytes each, the even ones in one vector and the odd ones in another: no element then leaves its 16 bytes.
    group = max(1, 8 // alignment(data.type.pointee))
    parts = [concatenate(builder, found[k : k + group]) for k in range(0, count, group)]
    even, odd = (concatenate(builder, parts[k::2]) for k in (0, 1))
    order = [lane // group % 2 * count + lane // group // 2 * 2 * group + lane % group * 2 for lane in range(count)]
    return [shuffle(builder, even, odd, [at + k for at in order]) for k in (0, 1)]


def pair_count(array):
    """How many pairs of the array's elements `pairs` loads."""
    return 512 // sum_type(array).bitwidth if current().gathers else lanes_of(sum_type(array))


@intrinsic
def pairs(typing, source, base, b, offset):
    """source[base[b:] + offset + k] for k = 0 and 1, as two vectors over b."""
    vector = Vector(sum_type(source), pair_count(source))

    def codegen(context, builder, signature, values):
        data = builder.gep(pointer_to(context, builder, signature, values, 0), [values[3]])
        bases = pointer_to(context, builder, signature, values, 1)
        if current().gathers:
            found = gathered_pairs(builder, data, load_vector(builder, bases, values[2], vector.lanes))
        else:
            found = loaded_pairs(builder, data, starts(builder, bases, values[2], range(vector.lanes)))
        return context.make_tuple(builder, signature.return_type, [widen(builder, v, source) for v in found])

    return types.UniTuple(vector, 2)(source, base, b, offset), codegen


def starts(builder, bases, b, steps):
    """Load bases[b + step] for each step, as 64-bit integers."""
    return [builder.sext(builder.load(builder.gep(bases, [builder.add(b, I64(step))])), I64) for step in steps]


def four_count(array):
    """How many points' rows of four neighbours are one vector."""
    return max(1, current().vector_bytes * 8 // (4 * sum_type(array).bitwidth))


@intrinsic
def fours(typing, source, base, b, offset):
    """source[base[b + 4 * l] + offset :][:4] for l = 0, 1, ..., side by side in one vector."""
    count = four_count(source)
    vector = Vector(sum_type(source), 4 * count)

    def codegen(context, builder, signature, values):
        data = builder.gep(pointer_to(context, builder, signature, values, 0), [values[3]])
        bases = pointer_to(context, builder, signature, values, 1)
        rows = [load_vector(builder, data, at, 4) for at in starts(builder, bases, values[2], range(0, 4 * count, 4))]
        return widen(builder, concatenate(builder, rows), source)

    return vector(source, base, b, offset), codegen


@intrinsic
def fours_of(typing, row, b, k, like):
    """row[b + k + 4 * l] four times for each l = 0, 1, ..., side by side in a vector like `like`. k is a literal."""
    if not isinstance(k, types.IntegerLiteral):
        return None

    def codegen(context, builder, signature, values):
        weights = load_vector(builder, pointer_to(context, builder, signature, values, 0), values[1], like.lanes)
        return shuffle(builder, weights, weights, [lane // 4 * 4 + k.literal_value for lane in range(like.lanes)])

    return like(row, b, k, like), codegen


@intrinsic
def transposed(typing, a, b, c, d):
    """Return the columns of the matrices whose rows are these four vectors, side by side."""

    def codegen(context, builder, signature, values):
        return context.make_tuple(builder, signature.return_type, transpose(builder, values))

    return types.UniTuple(a, 4)(a, b, c, d), codegen


def rows_adder(k):
    """Return a function that adds up the rows of the points b + k, b + k + 4, ..., weighted."""

    @inner
    def add_rows(source, base, first, pitch, row_weight, b):
        row = fours(source, base, b + k, first)
        low = times(fours_of(row_weight[0], b, k, row), row)
        row = fours(source, base, b + k, first + pitch)
        low = times_plus(fours_of(row_weight[1], b, k, row), row, low)
        row = fours(source, base, b + k, first + 2 * pitch)
        low = times_plus(fours_of(row_weight[2], b, k, row), row, low)
        row = fours(source, base, b + k, first + 3 * pitch)
        return times_plus(fours_of(row_weight[3], b, k, row), row, low)

    return add_rows


add_rows0, add_rows1, add_rows2, add_rows3 = map(rows_adder, range(4))


def pairwise(step):
    """Return `blend` for two taps along an axis, `step` points at a time."""

    def blend(source, pixels, channels, base, pitch, row_weight, weight, offsets, add, target, target_pitch):
        above, below, left, right = row_weight[0], row_weight[1], weight[0], weight[1]
        zero = faults = zeros(left, step)
        for b in range(0, base.size, step):
            up, down = vector_at(above, b, zero), vector_at(below, b, zero)
            w, next_w = vector_at(left, b, zero), vector_at(right, b, zero)
            for c in range(len(channels)):
                x, next_x = pairs(source, base, b, c * pixels)
                y, next_y = pairs(source, base, b, c * pixels + pitch)
                row, next_row = times_plus(w, x, times(next_w, next_x)), times_plus(w, y, times(next_w, next_y))
                total = times_plus(up, row, times(down, next_row))
                if add:
                    total = plus(total, sums_at(target, c * target_pitch + b, total))
                put(target, c * target_pitch + b, total)
                faults = times_plus(total, zero, faults)  # NaN for good, if one is not finite
        return are_zeros(faults)

    return blend


def fourfold(step):
    """Return `blend` for four taps along an axis, `step` points at a time."""

    def blend(source, pixels, channels, base, pitch, row_weight, weight, offsets, add, target, target_pitch):
        w0, w1, w2, w3 = weight[0], weight[1], weight[2], weight[3]
        zero = faults = zeros(w0, step)
        for b in range(0, base.size, step):
            for c in range(len(channels)):
                c0, c1, c2, c3 = transposed(
                    add_rows0(source, base, c * pixels, pitch, row_weight, b),
                    add_rows1(source, base, c * pixels, pitch, row_weight, b),
                    add_rows2(source, base, c * pixels, pitch, row_weight, b),
                    add_rows3(source, base, c * pixels, pitch, row_weight, b),
                )
                low = times_plus(vector_at(w0, b, c0), c0, times(vector_at(w1, b, c1), c1))
                high = times_plus(vector_at(w2, b, c2), c2, times(vector_at(w3, b, c3), c3))
                total = plus(low, high)
                if add:
                    total = plus(total, sums_at(target, c * target_pitch + b, total))
                put(target, c * target_pitch + b, total)
                faults = times_plus(total, zero, faults)
        return are_zeros(faults)

    return blend


@vectorized(vectors.blend)
def _(source, offsets):
    if needs_library(source):
        return None
    step = pair_count(source) if len(offsets) == 2 else 4 * four_count(source)
    assert vectors.GROUP % step == 0
    return pairwise(step) if len(offsets) == 2 else fourfold(step)
