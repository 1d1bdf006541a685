"""The table of data types: name, number in ONNX, NumPy type, and the type that kernels see.

Kernels see `storage`. The operators copy or add elements. Integers add modulo 2**bits whatever
their sign, so signed and unsigned integers of one width share a kernel. A 16-bit float is a record
of its bits, with a field that has the type's name: see kernels/elements.py. Strings have no
storage. ONNX Runtime has no complex numbers.
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
    in_sessions: bool

    @property
    def numpy(self) -> np.dtype[Any]:
        if self.name == "bfloat16":
            import ml_dtypes  # noqa: F401  teaches NumPy the name
        return np.dtype(object if self.name == "string" else self.name)


# (name, storage), in the order of the numbers in ONNX, from 1 on.
_ROWS: Any = (
    ("float32", "float32"),
    ("uint8", "uint8"),
    ("int8", "uint8"),
    ("uint16", "uint16"),
    ("int16", "uint16"),
    ("int32", "uint32"),
    ("int64", "uint64"),
    ("string", None),
    ("bool", "bool"),
    ("float16", [("float16", "uint16")]),
    ("float64", "float64"),
    ("uint32", "uint32"),
    ("uint64", "uint64"),
    ("complex64", "complex64"),
    ("complex128", "complex128"),
    ("bfloat16", [("bfloat16", "uint16")]),
)
TABLE = {
    name: DType(name, number, storage and np.dtype(storage), "complex" not in name)
    for number, (name, storage) in enumerate(_ROWS, 1)
}
NAMES = {t.onnx: name for name, t in TABLE.items()}
FLOATS = ("float16", "bfloat16", "float32", "float64")
WIDE_FLOATS = ("float32", "float64")
HALVES = ("float16", "bfloat16")
INTEGERS = tuple(name for name in TABLE if "int" in name)
ALL = tuple(TABLE)


def widest(array: "NDArray[Any]") -> "NDArray[Any]":
    """Convert an array to the type in which references compute.

    Floats become float64, strings objects.
    """
    if name_of(array) in FLOATS:
        return array.astype(np.float64)
    return array.astype(object) if name_of(array) == "string" else array


def contiguous(value: Any) -> "NDArray[Any]":
    """Return a value as a contiguous array in native byte order, as kernels require."""
    array = np.asarray(value)
    return np.asarray(array, array.dtype.newbyteorder("="), order="C")


def zero(array: "NDArray[Any]") -> Any:
    """Return the sum of no elements: 0, or the empty string."""
    return "" if name_of(array) == "string" else array.dtype.type(0)


def type_name(dtype: np.dtype[Any]) -> str:
    """Return the table's name of a NumPy dtype, or NumPy's if the table has none."""
    return "string" if dtype.kind in "OUT" else dtype.name


def name_of(array: "NDArray[Any]") -> str:
    """Return the name of an array's data type, see `type_name`."""
    return type_name(array.dtype)
