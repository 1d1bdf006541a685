"""Select the parameters that every run of the tests has, and those of the long run only (the marker `long`)."""

import pytest

from onnx_ops.native import library
from support.backends import ABSENT, HAVE_EXTENSIONS

# Each type represents those whose kernels are written alike: one width of floats or integers represents all.
REPRESENTATIVE = ("float32", "uint8", "bool", "string")
IN_16_BITS = ("Col2Im", "GridSample", "Im2Col")  # represent the operators whose kernels convert floats of 16 bits


def is_representative(op_type, dtype, grid_dtype="float32"):
    """Whether an operator's kernels for these types represent others, which differ from them in widths only.

    float16 differs from float32, and bfloat16 from float16, by conversions alone, which
    tests/compiler/test_elements.py compares for every value.
    """
    if library.is_complete():  # then nothing is compiled, and every run has all types
        return True
    is_known = dtype in REPRESENTATIVE or (dtype == "float16" and op_type in IN_16_BITS)
    return is_known and grid_dtype in (None, "float32")


def has_representative_types(op_type, signature):
    """Return `is_representative` for an operator and {type variable: element type}."""
    return is_representative(op_type, signature.get("T") or signature["T1"], signature.get("T2"))


def long_unless(representative, *values):
    """A parameter set for `pytest.mark.parametrize`, which only the long run has unless it is representative."""
    return pytest.param(*values, marks=() if representative else pytest.mark.long)


def names_absent_backend(parameters):
    """Return whether one of a test's parameters, or what it contains, is a backend that can't run here."""
    values = [v.values() if isinstance(v, dict) else v if isinstance(v, tuple | list) else [v] for v in parameters]
    return any(isinstance(v, str) and v in ABSENT for each in values for v in each)


needs_extensions = pytest.mark.skipif(not HAVE_EXTENSIONS, reason="needs onnxruntime-extensions")
# Marks tests of compilation on demand, which does not happen where the library has every kernel.
on_demand = pytest.mark.skipif(library.is_complete(), reason="the library has every kernel")
