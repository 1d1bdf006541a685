"""The functions of elements.py for compiled code, chosen by the array's type when it is compiled."""

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload, register_jitable

from ..kernels import elements
from . import target
from .jit import FLAGS


def _reinterpret(source, target, through):
    """An intrinsic that reads a scalar's bits as another type."""

    @intrinsic
    def reinterpret(typing, value):
        def codegen(context, builder, signature, values):
            return through(builder, values[0])

        return target(source), codegen

    return reinterpret


FLOAT, HALF = ir.FloatType(), ir.HalfType()
I16, I32, I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
bits_of_float = _reinterpret(types.float32, types.uint32, lambda b, v: b.bitcast(v, I32))
float_of_bits = _reinterpret(types.uint32, types.float32, lambda b, v: b.bitcast(v, FLOAT))
widen_half_by_hardware = _reinterpret(types.uint16, types.float32, lambda b, v: b.fpext(b.bitcast(v, HALF), FLOAT))
narrow_half_by_hardware = _reinterpret(types.float32, types.uint16, lambda b, v: b.bitcast(b.fptrunc(v, HALF), I16))


@register_jitable(**FLAGS)
def widen_half_by_bits(half):
    """Convert float16 to float32 without an instruction for it: the exponent's bias is 15 there, 127 in float32."""
    magnitude = np.uint32(half & np.uint16(0x7FFF)) << np.uint32(13)
    sign = np.uint32(half & np.uint16(0x8000)) << np.uint32(16)
    if magnitude >= np.uint32(0x0F800000):  # infinity or NaN
        return float_of_bits(np.uint32(sign | magnitude | np.uint32(0x7F800000)))
    return float_of_bits(np.uint32(sign | bits_of_float(float_of_bits(np.uint32(magnitude)) * np.float32(2.0**112))))


@register_jitable(**FLAGS)
def narrow_half_by_bits(value):
    """Round float32 to float16, to nearest, ties to even, without an instruction for it."""
    bits = bits_of_float(value)
    sign = np.uint16((bits >> np.uint32(16)) & np.uint32(0x8000))
    magnitude = np.uint32(bits & np.uint32(0x7FFFFFFF))
    if magnitude > np.uint32(0x7F800000):  # NaN, made quiet
        return np.uint16(sign | np.uint16(0x7E00) | np.uint16((magnitude >> np.uint32(13)) & np.uint32(0x1FF)))
    if magnitude >= np.uint32(0x47800000):  # 65536 and more
        return np.uint16(sign | np.uint16(0x7C00))
    if magnitude < np.uint32(0x38800000):  # subnormal: adding 0.5 moves the last bit that counts to the end
        shifted = bits_of_float(float_of_bits(magnitude) + np.float32(0.5))
        return np.uint16(sign | np.uint16(shifted - np.uint32(0x3F000000)))
    odd = (magnitude >> np.uint32(13)) & np.uint32(1)
    rounded = np.uint32(magnitude - np.uint32(0x38000000) + np.uint32(0xFFF) + odd)
    return np.uint16(sign | np.uint16(rounded >> np.uint32(13)))


@register_jitable(**FLAGS)
def widen_bfloat(bits):
    """Convert bfloat16 to float32."""
    return float_of_bits(np.uint32(np.uint32(bits) << np.uint32(16)))


@register_jitable(**FLAGS)
def narrow_bfloat(value):
    """Round float32 to bfloat16, to nearest, ties to even."""
    bits = bits_of_float(value)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    if np.uint32(bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000):  # NaN, made quiet
        return np.uint16((bits >> np.uint32(16)) | np.uint32(0x40))
    return np.uint16(np.uint32(bits + np.uint32(0x7FFF) + odd) >> np.uint32(16))


def has_half_instructions():
    """Whether the target CPU has instructions for float16. Without them, LLVM would call functions that don't exist."""
    to = target.current()
    return to.triple.startswith(("aarch64", "arm64")) or to.has("f16c")


def _kind(array):
    """The name of an array's 16-bit float type; None for other types."""
    return next(iter(array.dtype.fields)) if isinstance(array.dtype, types.Record) else None


def sum_type(array):
    """The type in which an array's elements are summed."""
    return types.float32 if _kind(array) else array.dtype


@overload(elements.load)
def _(array, i):
    widen_half = widen_half_by_hardware if has_half_instructions() else widen_half_by_bits
    return {
        "float16": lambda array, i: widen_half(array[i].float16),
        "bfloat16": lambda array, i: widen_bfloat(array[i].bfloat16),
        None: lambda array, i: array[i],
    }[_kind(array)]


@overload(elements.store)
def _(array, i, value):
    narrow_half = narrow_half_by_hardware if has_half_instructions() else narrow_half_by_bits

    def half(array, i, value):
        array[i].float16 = narrow_half(value)

    def bfloat(array, i, value):
        array[i].bfloat16 = narrow_bfloat(value)

    def same(array, i, value):
        array[i] = value

    return {"float16": half, "bfloat16": bfloat, None: same}[_kind(array)]


@overload(elements.to_float16)
def _(value):
    widen_half = widen_half_by_hardware if has_half_instructions() else widen_half_by_bits
    narrow_half = narrow_half_by_hardware if has_half_instructions() else narrow_half_by_bits
    return lambda value: widen_half(narrow_half(value))


@overload(elements.to_bfloat16)
def _(value):
    return lambda value: widen_bfloat(narrow_bfloat(value))


@overload(elements.plus)
def _(a, b):
    return (lambda a, b: a | b) if isinstance(a, types.Boolean) else (lambda a, b: a + b)


@overload(elements.zero)
def _(array):
    if isinstance(array.dtype, types.Boolean):
        return lambda array: False
    return (lambda array: np.float32(0)) if _kind(array) else (lambda array: array.dtype.type(0))


@overload(elements.is_wide)
def _(array):
    return (lambda array: True) if _kind(array) else (lambda array: False)


@overload(elements.sums, jit_options=FLAGS)
def _(array, scratch):
    return (lambda array, scratch: scratch) if _kind(array) else (lambda array, scratch: array)
