"""Bounds checks in all code that this process compiles, to find errors (ONNX_OPS_BOUNDSCHECK=1).

Compiled code with an index outside of its array returns at once, and the call fails with "compiled
code has raised an exception". Importing this module turns the checks on.
"""

import ctypes

import llvmlite.binding
from llvmlite import ir
from numba import config

from .halves import I64
from .numba_internals import count_boundschecks

_SYMBOL = "onnx_ops_bounds_checks"
_count = ctypes.c_int64()
# Code refers to the counter by name: code from the cache was compiled by another process, with
# another address.
llvmlite.binding.add_symbol(_SYMBOL, ctypes.addressof(_count))


def checks() -> int:
    """Return the number of indices that have been checked so far."""
    return _count.value


def _add_one(builder: ir.IRBuilder) -> None:
    counter = builder.module.globals.get(_SYMBOL) or ir.GlobalVariable(builder.module, I64, _SYMBOL)
    builder.atomic_rmw("add", counter, I64(1), "monotonic")


count_boundschecks(_add_one)
config.BOUNDSCHECK = 1
