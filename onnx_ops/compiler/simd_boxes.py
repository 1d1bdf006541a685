"""Loops of kernels/vectors.py that copy and clear boxes, with vectors."""

from llvmlite import ir
from numba import types

from ..kernels import vectors
from .halves import I64
from .simd import (
    BYTES,
    alignment,
    collect,
    inner,
    operation,
    shuffle,
    square,
    transposer,
    vectorized,
    whole_vector,
)

LONG = 8  # vectors of a run that pay for being aligned


def load_strided(builder, source, index, stride, lanes):
    """Load source[index + b * stride] for b < lanes as a vector, and nothing beyond. The stride: 1, 2 or a value."""
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


@operation(literals="literal_stride lanes")
def copy_vector(builder, x, i, literal_stride, stride, out, j, lanes):
    """out[j + b] = x[i + b * stride] for b < lanes; `literal_stride` is 0 for any stride but 1 and 2."""
    out.store(j, load_strided(builder, x, i, literal_stride or stride, lanes))


@operation(literals="literal_stride full")
def copy_short(builder, x, i, literal_stride, stride, out, j, count, full):
    """out[j + b] = x[i + b * stride] for b < count < 2 * full; `literal_stride` as in copy_vector."""

    def move(b, lanes):
        found = load_strided(builder, x, builder.add(i, builder.mul(b, stride)), literal_stride or stride, lanes)
        out.store(builder.add(j, b), found)

    by_length(builder, count, full, move)


@operation(literals="lanes")
def clear_vector(builder, out, j, lanes):
    """out[j + b] = 0 for b < lanes"""
    out.store(j, ir.Constant(ir.VectorType(out.data.type.pointee, lanes), None))


@operation(literals="full")
def clear_short(builder, out, j, count, full):
    """out[j + b] = 0 for b < count < 2 * full"""

    def move(b, lanes):
        out.store(builder.add(j, b), ir.Constant(ir.VectorType(out.data.type.pointee, lanes), None))

    by_length(builder, count, full, move)


@operation(lambda: types.int64)
def to_boundary(builder, out, j):
    """How many elements out[j] is from the next place in memory where a vector is aligned."""
    at = builder.ptrtoint(out.begin(j), I64)
    return builder.udiv(builder.and_(builder.neg(at), I64(BYTES - 1)), I64(alignment(out.data.type.pointee)))


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
