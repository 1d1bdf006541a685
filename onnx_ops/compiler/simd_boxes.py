"""Loops of vectors.py that copy and clear boxes, for compiled code."""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ..kernels import vectors
from .halves import I32, I64
from .simd import (
    BYTES,
    alignment,
    inner,
    load_vector,
    pointer_to,
    shuffle,
    square,
    store_vector,
    transposer,
    vectorized,
    whole_vector,
)

LONG = 8  # vectors of a run that pay for being aligned


def load_strided(builder, data, index, stride, lanes):
    """Load data[index + b * stride] for b < lanes as a vector, and nothing beyond. The stride: 1, 2 or a value."""
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
    second = load_vector(builder, data, builder.add(index, I64(lanes - 1)), lanes)
    return shuffle(builder, found, second, [2 * b if 2 * b < lanes else 2 * b + 1 for b in range(lanes)])


def by_length(builder, count, full, move):
    """Move `count` < 2 * full elements by two overlapping vectors as long as fit: move(where, lanes)."""
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


@intrinsic
def copy_vector(typing, x, i, literal_stride, stride, out, j, lanes):
    """out[j + b] = x[i + b * stride] for b < lanes; `literal_stride` is a literal, 0 for any stride but 1 and 2."""

    def codegen(context, builder, signature, values):
        data, into = (pointer_to(context, builder, signature, values, k) for k in (0, 4))
        found = load_strided(builder, data, values[1], literal_stride.literal_value or values[3], lanes.literal_value)
        store_vector(builder, into, values[5], found)
        return context.get_dummy_value()

    if isinstance(lanes, types.IntegerLiteral) and isinstance(literal_stride, types.IntegerLiteral):
        return types.void(x, i, literal_stride, stride, out, j, lanes), codegen
    return None


@intrinsic
def copy_short(typing, x, i, literal_stride, stride, out, j, count, full):
    """out[j + b] = x[i + b * stride] for b < count < 2 * full (a literal); `literal_stride` as in copy_vector."""

    def codegen(context, builder, signature, values):
        data, into = (pointer_to(context, builder, signature, values, k) for k in (0, 4))

        def move(b, lanes):
            at = builder.add(values[1], builder.mul(b, values[3]))
            found = load_strided(builder, data, at, literal_stride.literal_value or values[3], lanes)
            store_vector(builder, into, builder.add(values[5], b), found)

        by_length(builder, values[6], full.literal_value, move)
        return context.get_dummy_value()

    if isinstance(full, types.IntegerLiteral) and isinstance(literal_stride, types.IntegerLiteral):
        return types.void(x, i, literal_stride, stride, out, j, count, full), codegen
    return None


@intrinsic
def clear_vector(typing, out, j, lanes):
    """out[j + b] = 0 for b < lanes (a literal)"""

    def codegen(context, builder, signature, values):
        put_zeros(builder, pointer_to(context, builder, signature, values, 0), values[1], lanes.literal_value)
        return context.get_dummy_value()

    return (types.void(out, j, lanes), codegen) if isinstance(lanes, types.IntegerLiteral) else None


@intrinsic
def clear_short(typing, out, j, count, full):
    """out[j + b] = 0 for b < count < 2 * full (a literal)"""

    def codegen(context, builder, signature, values):
        into = pointer_to(context, builder, signature, values, 0)
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
        data = pointer_to(context, builder, signature, values, 0)
        at = builder.ptrtoint(builder.gep(data, [values[1]]), I64)
        return builder.udiv(builder.and_(builder.neg(at), I64(BYTES - 1)), I64(alignment(data.type.pointee)))

    return types.int64(out, j), codegen


def copier(literal_stride, full):
    """Return copy_box for one stride (0: for any), in vectors of `full` elements; the last overlaps those before."""

    @inner
    def copy(x, first, steps, sizes, count, stride, out, to, out_steps):
        for p in range(sizes[0]):
            for q in range(sizes[1]):
                source, target = first + p * steps[0] + q * steps[1], to + p * out_steps[0] + q * out_steps[1]
                for _ in range(sizes[2]):
                    if count < 2 * full:
                        copy_short(x, source, literal_stride, stride, out, target, count, full)
                    else:
                        copy_vector(x, source, literal_stride, stride, out, target, full)
                        b = to_boundary(out, target) if count > LONG * full else full
                        while b < count - full:
                            copy_vector(x, source + b * stride, literal_stride, stride, out, target + b, full)
                            b += full
                        last = count - full
                        copy_vector(x, source + last * stride, literal_stride, stride, out, target + last, full)
                    source += steps[2]
                    target += out_steps[2]

    return copy


@vectorized(vectors.copy_box)
def _(out):
    if isinstance(out.dtype, types.Complex):
        return None
    each, second, any_other = (copier(literal_stride, whole_vector(out)) for literal_stride in (1, 2, 0))
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


@vectorized(vectors.clear_box)
def _(out):
    if isinstance(out.dtype, types.Complex):
        return None
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
