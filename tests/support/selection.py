"""Select the parameters that every run of the tests has, and those of the long run only (the marker `long`)."""

import pytest

from onnx_ops.runtime import library

# Each type represents those whose kernels are written alike: one width of floats or integers represents all.
REPRESENTATIVE = ("float32", "float16", "uint8", "bool", "string")


def is_representative(dtype, grid_dtype="float32"):
    """Whether the kernels for these types represent others, which differ from them in widths only.

    bfloat16 differs from float16 by a conversion alone, which
    tests/test_elements.py compares for every value.
    """
    if library.is_complete():  # then nothing is compiled, and every run has all types
        return True
    return dtype in REPRESENTATIVE and grid_dtype in (None, "float32")


def has_representative_types(signature):
    """Return `is_representative` for {type variable: element type}."""
    return is_representative(signature.get("T") or signature["T1"], signature.get("T2"))


def long_unless(representative, *values):
    """A parameter set for `pytest.mark.parametrize`, which only the long run has unless it is representative."""
    return pytest.param(*values, marks=() if representative else pytest.mark.long)


# Marks tests of compilation on demand, which does not happen where the library has every kernel.
on_demand = pytest.mark.skipif(library.is_complete(), reason="the library has every kernel")
