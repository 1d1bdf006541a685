"""Kernels as plain Python, without Numba: they compute what the references do."""

import numpy as np
import pytest
from support.backends import uncompiled
from support.cases import CASES, assert_close, expected_of
from support.selection import long_unless

pytestmark = pytest.mark.any_library

# Elements of the inputs, and with the output at most MANY; one takes some microseconds.
FEW, MANY = 300, 2500


@pytest.mark.parametrize("most", [FEW, long_unless(False, MANY)])
@pytest.mark.parametrize("op_type", sorted({case.op_type for case in CASES}))
def test_small_cases(op_type, most):
    """Those of at most so many elements, or the smallest one of an operator."""
    examples = [(case, case.inputs("float32")) for case in CASES if case.op_type == op_type]
    sizes = [sum(a.size for a in inputs) for _, inputs in examples]
    most, ran = max(most, min(sizes)), 0
    for (case, inputs), size in zip(examples, sizes, strict=True):
        if size <= most:
            expected = expected_of(case, inputs)
            if size + expected.size > MANY:
                continue
            ran += 1
            with np.errstate(all="ignore"):
                assert_close(uncompiled(case, inputs), expected, "float32", case.name)
    assert ran
