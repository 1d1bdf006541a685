"""Elements in memory and in sums. Kernels use these functions to read, add and write elements of
any type.

A 16-bit float is a record of its bits. It is summed as float32 and rounded once, when it is
written. The sum of booleans is "or". Other types are summed in their own type. These functions
handle the types without a special case; those in compiler/halves.py handle all types.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .types import Elements, Index, Indices, Number, Pixels, Sums, Workspace


def load(array: Elements, i: Index) -> Number:
    """Read element i, in the type in which it is summed."""
    return array[i]


def store(array: Elements, i: Index, value: Number) -> None:
    """Write a sum as element i."""
    array[i] = value


def plus(a: Number, b: Number) -> Number:
    """Return the sum of two values."""
    return a + b


def zero(array: Elements) -> Number:
    """Return an empty sum of the array's elements."""
    return array.dtype.type(0)


def is_wide(array: Elements) -> bool:
    """Return whether the array's elements are summed in another type."""
    return False


def sums_in(
    workspace: Workspace, begin: int, shape: int | tuple[int, ...], array: Elements
) -> Sums:
    """Return an array for sums of elements of `array`, in the workspace.

    It lies there from the byte `begin` on.
    """
    return np.ndarray(shape, array.dtype, workspace, begin)


def elements_in(
    workspace: Workspace, begin: int, shape: int | tuple[int, ...], array: Elements
) -> Elements:
    """Return an array for elements of the type of `array`, in the workspace.

    It lies there from the byte `begin` on.
    """
    return np.ndarray(shape, array.dtype, workspace, begin)


def integers_in(workspace: Workspace, begin: int, shape: int | tuple[int, ...]) -> Indices:
    """Return an int64 array in the workspace, from its byte `begin` on."""
    return np.ndarray(shape, np.int64, workspace, begin)


def indices_in(workspace: Workspace, begin: int, shape: int | tuple[int, ...]) -> Pixels:
    """Return an int32 array in the workspace, from its byte `begin` on."""
    return np.ndarray(shape, np.int32, workspace, begin)


def sums(array: Elements, scratch: Sums) -> Sums:
    """Return the array for sums: `array` itself if its elements can hold sums, else `scratch`."""
    return array


def to_float16(value: Number) -> np.float32:
    """Round a float32 to a float16; returns it as a float32."""
    return np.float32(np.float16(value))


def to_bfloat16(value: Number) -> np.float32:
    """Round a float32 to a bfloat16, to nearest, ties to even; returns it as a float32."""
    bits = int(np.float32(value).view(np.uint32))
    rounded = bits if value != value else (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFFFFFF
    return np.uint32(rounded >> 16 << 16).view(np.float32)
