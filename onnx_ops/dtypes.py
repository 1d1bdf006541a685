"""The one table of element types: name, number in ONNX, NumPy type, and the type that kernels see.

Kernels see `storage`: the operators either copy elements or add them up, and integers add modulo 2**bits
whatever their sign, so one kernel per integer width serves both.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class DType:
    name: str
    onnx: int
    storage: str

    @property
    def numpy(self):
        return np.dtype(self.name)


TABLE = {
    t.name: t
    for t in (
        DType("float32", 1, "float32"),
        DType("uint8", 2, "uint8"),
        DType("int8", 3, "uint8"),
        DType("uint16", 4, "uint16"),
        DType("int16", 5, "uint16"),
        DType("int32", 6, "uint32"),
        DType("int64", 7, "uint64"),
        DType("float64", 11, "float64"),
        DType("uint32", 12, "uint32"),
        DType("uint64", 13, "uint64"),
    )
}
INTEGERS = tuple(name for name in TABLE if "int" in name)
