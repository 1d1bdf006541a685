"""Arrays beside pages that must not be touched: code that reads or writes past an end crashes at
once.
"""

import ctypes
import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np

_PAGE = mmap.PAGESIZE
_NONE, _READ, _BOTH = 0, 1, 3  # PROT_*
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_kept: dict[int, mmap.mmap] = {}  # {address: pages}: ONNX Runtime may go on using an array's memory


def empty(shape: int | Sequence[int], dtype: Any, *, at_end: bool = True) -> np.ndarray:
    """Like np.empty, with an unreadable page right after the last element or right before the
    first.
    """
    dtype = np.dtype(dtype)
    count = int(np.prod(shape, dtype=np.int64))
    pages = -(-max(count * dtype.itemsize, 1) // _PAGE)
    memory = mmap.mmap(-1, (pages + 2) * _PAGE)
    start = np.frombuffer(memory, np.uint8).ctypes.data
    for page in (start, start + (pages + 1) * _PAGE):
        _protect(page, 1, _NONE)
    offset = _PAGE + (pages * _PAGE - count * dtype.itemsize if at_end else 0)
    _kept[start] = memory
    return np.frombuffer(memory, dtype, count, offset).reshape(shape)


def readonly(array: np.ndarray, *, at_end: bool = True) -> np.ndarray:
    """Copy an array to read-only memory beside an unreadable page; return arrays of strings as they
    are.
    """
    if array.dtype.hasobject:
        return array
    copy = empty(array.shape, array.dtype, at_end=at_end)
    copy[...] = array
    first = copy.ctypes.data // _PAGE * _PAGE
    _protect(first, -(-max(copy.ctypes.data + copy.nbytes - first, 1) // _PAGE), _READ)
    copy.flags.writeable = False
    return copy


def free() -> None:
    """Release all arrays made so far; they must not be used any more."""
    for memory in _kept.values():
        start = np.frombuffer(memory, np.uint8).ctypes.data
        _protect(start, len(memory) // _PAGE, _BOTH)
    _kept.clear()


def _protect(start: int, pages: int, protection: int) -> None:
    if _libc.mprotect(start, pages * _PAGE, protection):
        raise OSError(ctypes.get_errno(), "mprotect")
