"""Conversions of 16-bit floats, with and without instructions of the CPU, agree with NumPy and
ml_dtypes.
"""

import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from numba import njit
from support.selection import long_unless

from onnx_ops.compiler import halves

pytestmark = pytest.mark.compiler

ALL_BITS = np.arange(65536, dtype=np.uint16)


def mapped(function, values, dtype):
    """Apply a compiled conversion to each element."""

    @njit
    def loop(values, out):
        for i in range(values.size):
            out[i] = function(values[i])
        return out

    return loop(values, np.empty(values.size, dtype))


def floats():
    """Random float32 bit patterns, and all around the values of 16-bit floats, ties included."""
    rng = np.random.default_rng(0)
    with np.errstate(invalid="ignore"):
        exact = [
            ALL_BITS.view(np.float16).astype(np.float32),
            ALL_BITS.view(ml_dtypes.bfloat16).astype(np.float32),
        ]
    bits = np.concatenate([v.view(np.uint32) for v in exact])
    around = [
        bits + np.uint32(d % 2**32)
        for d in (0, 1, -1, 0x1000, 0xFFF, 0x1001, 0x8000, 0x7FFF, 0x8001)
    ]
    everywhere = rng.integers(0, 2**32, 500_000, np.uint32)
    return np.concatenate([*around, everywhere]).astype(np.uint32).view(np.float32)


def assert_same(got, expected, dtype):
    """Assert equal bits; the payloads of NaN may differ."""
    got, expected = got.view(dtype), expected.view(dtype)
    nan = np.isnan(expected.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(got.astype(np.float32)), nan)
    unsigned = np.uint16 if got.itemsize == 2 else np.uint32
    np.testing.assert_array_equal(got[~nan].view(unsigned), expected[~nan].view(unsigned))


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
@pytest.mark.parametrize("has_instructions", [False, halves.has_half_instructions()])
@pytest.mark.filterwarnings("ignore:.*encountered in cast")
def test_every_value(half, has_instructions, monkeypatch):
    monkeypatch.setattr(halves, "has_half_instructions", lambda: has_instructions)
    dtype = np.dtype(getattr(ml_dtypes, half, None) or half)
    wide = mapped(halves.WIDEN[half], ALL_BITS, np.float32)
    narrow = mapped(halves.NARROW[half], floats(), np.uint16)
    assert_same(wide, ALL_BITS.view(dtype).astype(np.float32), np.float32)
    assert_same(narrow, floats().astype(dtype), dtype)


# {name: (variables, bytes of the target's vectors; None: as this CPU has them)}
ENVIRONMENTS = {
    "this CPU": ({}, None),
    "a generic CPU": ({"NUMBA_CPU_NAME": "generic"}, 32),
    "without AVX": ({"NUMBA_ENABLE_AVX": "0"}, 32),
    "what a name implies": ({"NUMBA_CPU_NAME": "x86-64-v4", "NUMBA_CPU_FEATURES": ""}, 64),
    "halves of vectors": ({"NUMBA_CPU_FEATURES": "+avx512vbmi2,+prefer-256-bit"}, 32),
    "AVX-512 turned off": (
        {"NUMBA_CPU_NAME": "x86-64-v3", "NUMBA_CPU_FEATURES": "+avx512fp16,-avx512f"},
        32,
    ),
}


@pytest.mark.parametrize(
    "name", [long_unless(name == "a generic CPU", name) for name in ENVIRONMENTS]
)
def test_the_target_is_numbas(name):
    """The target is what Numba's variables say, but for whole vectors; only this CPU itself may
    have fast gathers.
    """
    variables, vector_bytes = ENVIRONMENTS[name]
    script = f"""
from numba.core.registry import cpu_target
from onnx_ops.compiler import target
ours = target.current()
triple, cpu, features = cpu_target.target_context.codegen().magic_tuple()
assert (triple, cpu) == (ours.triple, ours.cpu)
assert ours.settings - {{target.WHOLE_VECTORS}} == set(filter(None, features.split(",")))
assert {vector_bytes} in (None, ours.vector_bytes), ours
assert {vector_bytes} is None or not ours.gathers
"""
    unset = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    subprocess.run([sys.executable, "-c", script], check=True, env=unset | variables)
