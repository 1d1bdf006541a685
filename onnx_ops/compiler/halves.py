"""16-bit floats in compiled code, in scalars and vectors; and the functions of elements.py for all
types.

Compilation selects elements.py's functions by the array's type.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from llvmlite import ir
from numba import extending, types

from ..declaration.jit import FLAGS
from ..kernels import elements
from . import target

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from numba.core.base import BaseContext
    from numba.core.typing import Context, Signature

    from ..kernels.types import Element, Elements, Index, Number

    Implementation = Callable[..., Any]  # a function that Numba compiles in place of another one

# Strict, it would demand that the implementation has the annotations of the function that chooses
# it.
overload = partial(extending.overload, strict=False)
FLOAT, HALF = ir.FloatType(), ir.HalfType()
I16, I32, I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)


def has_half_instructions() -> bool:
    """Return whether the target CPU converts float16 by instructions; else LLVM would call missing
    functions.
    """
    to = target.current()
    return to.triple.startswith(("aarch64", "arm64")) or to.has("f16c")


def _as(number: ir.Type, value: ir.Value) -> ir.Type:
    """LLVM's type for as many numbers of a type as there are in a value, a vector or a scalar."""
    return (
        ir.VectorType(number, value.type.count) if isinstance(value.type, ir.VectorType) else number
    )


def _constant_like(number: float, like: ir.Value) -> ir.Value:
    """Return a number as a constant of another value's LLVM type."""
    is_vector = isinstance(like.type, ir.VectorType)
    return ir.Constant(like.type, [number] * like.type.count if is_vector else number)


def widened_bits(builder: ir.IRBuilder, bits: ir.Value, name: str) -> ir.Value:
    """Emit the conversion of 16-bit floats, given as integers, to float32.

    name: float16 or bfloat16
    """
    floats = _as(FLOAT, bits)
    if name == "float16" and has_half_instructions():
        return builder.fpext(builder.bitcast(bits, _as(HALF, bits)), floats)
    bits = builder.zext(bits, _as(I32, bits))
    if name == "bfloat16":
        return builder.bitcast(builder.shl(bits, _constant_like(16, bits)), floats)
    # The exponent's bias is 15 there, 127 in float32; infinities and NaN keep the largest exponent.
    magnitude = builder.shl(
        builder.and_(bits, _constant_like(0x7FFF, bits)), _constant_like(13, bits)
    )
    sign = builder.shl(builder.and_(bits, _constant_like(0x8000, bits)), _constant_like(16, bits))
    number = builder.bitcast(magnitude, floats)
    number = builder.bitcast(builder.fmul(number, _constant_like(2.0**112, number)), bits.type)
    is_finite = builder.icmp_unsigned("<", magnitude, _constant_like(0x0F800000, bits))
    number = builder.select(
        is_finite, number, builder.or_(magnitude, _constant_like(0x7F800000, bits))
    )
    return builder.bitcast(builder.or_(sign, number), floats)


def narrowed(builder: ir.IRBuilder, value: ir.Value, name: str) -> ir.Value:
    """Emit the inverse of `widened_bits`, rounded to nearest, ties to even. NaN becomes quiet."""
    shorts = _as(I16, value)
    bits = builder.bitcast(value, _as(I32, value))
    if name == "float16" and has_half_instructions():
        return builder.bitcast(builder.fptrunc(value, _as(HALF, value)), shorts)

    def shifted(number: ir.Value, count: int) -> ir.Value:
        return builder.lshr(number, _constant_like(count, bits))

    def rounded(number: ir.Value, dropped: int) -> ir.Value:
        """Add half of what the last bit stands for that stays, less a bit if that one is even."""
        odd = builder.and_(shifted(number, dropped), _constant_like(1, bits))
        return builder.add(builder.add(number, _constant_like((1 << (dropped - 1)) - 1, bits)), odd)

    nan = builder.fcmp_unordered("uno", value, value)
    if name == "bfloat16":
        quiet = builder.or_(shifted(bits, 16), _constant_like(0x40, bits))
        return builder.trunc(builder.select(nan, quiet, shifted(rounded(bits, 16), 16)), shorts)
    sign = builder.and_(shifted(bits, 16), _constant_like(0x8000, bits))
    magnitude = builder.and_(bits, _constant_like(0x7FFFFFFF, bits))
    number = shifted(
        builder.sub(rounded(magnitude, 13), _constant_like((127 - 15) << 23, bits)), 13
    )
    # Of a subnormal number, the addition of 0.5 moves the last bit that counts to the end.
    half = builder.bitcast(magnitude, value.type)
    half = builder.bitcast(builder.fadd(half, _constant_like(0.5, value)), bits.type)
    is_subnormal = builder.icmp_unsigned("<", magnitude, _constant_like(0x38800000, bits))
    number = builder.select(
        is_subnormal, builder.sub(half, _constant_like(0x3F000000, bits)), number
    )
    # From 65536 on.
    is_infinite = builder.icmp_unsigned(">=", magnitude, _constant_like(0x47800000, bits))
    number = builder.select(is_infinite, _constant_like(0x7C00, bits), number)
    payload = builder.and_(shifted(magnitude, 13), _constant_like(0x1FF, bits))
    number = builder.select(nan, builder.or_(payload, _constant_like(0x7E00, bits)), number)
    return builder.trunc(builder.or_(sign, number), shorts)


def conversion(
    convert: Callable[..., ir.Value], source: types.Type, result: types.Type, *settings: str | None
) -> Callable[..., Any]:
    """`widened_bits` or `narrowed` as a function of compiled code, from one type of numbers to
    another.
    """

    @extending.intrinsic
    def converted(typing: Context, value: types.Type) -> tuple[Signature, Callable[..., ir.Value]]:
        def codegen(
            context: BaseContext,
            builder: ir.IRBuilder,
            signature: Signature,
            values: Sequence[ir.Value],
        ) -> ir.Value:
            return convert(builder, values[0], *settings)

        return result(source), codegen

    return converted


WIDEN: dict[str | None, Any] = {
    name: conversion(widened_bits, types.uint16, types.float32, name)
    for name in ("float16", "bfloat16")
}
NARROW: dict[str | None, Any] = {
    name: conversion(narrowed, types.float32, types.uint16, name) for name in WIDEN
}


def half_of(array: types.Array) -> str | None:
    """Return the name of an array's 16-bit float type; None for other types."""
    return next(iter(array.dtype.fields)) if isinstance(array.dtype, types.Record) else None


def sum_type(array: types.Array) -> types.Type:
    """Return the type in which an array's elements are summed."""
    return types.float32 if half_of(array) else array.dtype


@overload(elements.load)
def choose_load(array: types.Array, i: types.Integer) -> Implementation:
    widen: Any = WIDEN.get(half_of(array))
    return {
        "float16": lambda array, i: widen(array[i].float16),
        "bfloat16": lambda array, i: widen(array[i].bfloat16),
        None: lambda array, i: array[i],
    }[half_of(array)]


@overload(elements.store)
def choose_store(array: types.Array, i: types.Integer, value: types.Type) -> Implementation:
    narrow: Any = NARROW.get(half_of(array))

    def half(array: Elements, i: Index, value: Number) -> None:
        array[i].float16 = narrow(value)

    def bfloat(array: Elements, i: Index, value: Number) -> None:
        array[i].bfloat16 = narrow(value)

    def same(array: Elements, i: Index, value: Element) -> None:
        array[i] = value

    return {"float16": half, "bfloat16": bfloat, None: same}[half_of(array)]


def rounding(name: str) -> Callable[[types.Float], Implementation]:
    """Return the overload of a function that rounds a float32 to a 16-bit type."""
    widen, narrow = WIDEN[name], NARROW[name]
    return lambda value: lambda value: widen(narrow(value))


overload(elements.to_float16)(rounding("float16"))
overload(elements.to_bfloat16)(rounding("bfloat16"))


@overload(elements.plus)
def choose_plus(a: types.Type, b: types.Type) -> Implementation:
    return (lambda a, b: a | b) if isinstance(a, types.Boolean) else (lambda a, b: a + b)


@overload(elements.zero)
def choose_zero(array: types.Array) -> Implementation:
    if isinstance(array.dtype, types.Boolean):
        return lambda array: False
    return (lambda array: np.float32(0)) if half_of(array) else (lambda array: array.dtype.type(0))


@overload(elements.is_wide)
def choose_is_wide(array: types.Array) -> Implementation:
    is_wide = bool(half_of(array))
    return lambda array: is_wide


@overload(elements.sums, jit_options=FLAGS)
def choose_sums(array: types.Array, scratch: types.Array) -> Implementation:
    return (lambda array, scratch: scratch) if half_of(array) else (lambda array, scratch: array)
