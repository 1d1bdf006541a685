"""The table of data types: name, number in ONNX, NumPy type, and the type that kernels see.

Kernels see `storage`. The operators copy or add elements. Integers add modulo 2**bits whatever their sign, so signed
and unsigned integers of one width share a kernel. A 16-bit float is a record of its bits, with a field that has the
type's name: see kernels/elements.py. Strings have no storage. ONNX Runtime has no complex numbers.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class DType:
    name: str
    onnx: int
    storage: np.dtype[Any] | None
    in_sessions: bool = True

    @property
    def numpy(self) -> np.dtype[Any]:
        if self.name == "bfloat16":
            import ml_dtypes  # noqa: F401  teaches NumPy the name
        return np.dtype(object if self.name == "string" else self.name)


def _bits(name: str) -> np.dtype[Any]:
    return np.dtype([(name, np.uint16)])


TABLE = {
    t.name: t
    for t in (
        DType("float32", 1, np.dtype("float32")),
        DType("uint8", 2, np.dtype("uint8")),
        DType("int8", 3, np.dtype("uint8")),
        DType("uint16", 4, np.dtype("uint16")),
        DType("int16", 5, np.dtype("uint16")),
        DType("int32", 6, np.dtype("uint32")),
        DType("int64", 7, np.dtype("uint64")),
        DType("string", 8, None),
        DType("bool", 9, np.dtype("bool")),
        DType("float16", 10, _bits("float16")),
        DType("float64", 11, np.dtype("float64")),
        DType("uint32", 12, np.dtype("uint32")),
        DType("uint64", 13, np.dtype("uint64")),
        DType("complex64", 14, np.dtype("complex64"), in_sessions=False),
        DType("complex128", 15, np.dtype("complex128"), in_sessions=False),
        DType("bfloat16", 16, _bits("bfloat16")),
    )
}
NAMES = {t.onnx: name for name, t in TABLE.items()}
FLOATS = ("float16", "bfloat16", "float32", "float64")
WIDE_FLOATS = ("float32", "float64")
HALVES = ("float16", "bfloat16")
INTEGERS = tuple(name for name in TABLE if "int" in name)
ALL = tuple(TABLE)


def widest(array: "NDArray[Any]") -> "NDArray[Any]":
    """Convert an array to the type in which references compute: floats to float64, strings to objects."""
    if name_of(array) in FLOATS:
        return array.astype(np.float64)
    return array.astype(object) if name_of(array) == "string" else array


def zero(array: "NDArray[Any]") -> Any:
    """Return the sum of no elements: 0, or the empty string."""
    return "" if name_of(array) == "string" else array.dtype.type(0)


def type_name(dtype: np.dtype[Any]) -> str:
    """Return the table's name of a NumPy dtype, or NumPy's if the table has none."""
    return "string" if dtype.kind in "OUT" else dtype.name


def name_of(array: "NDArray[Any]") -> str:
    """Return the name of an array's data type, see `type_name`."""
    return type_name(array.dtype)
