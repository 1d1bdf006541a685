"""Kernels as plain Python, without Numba: they compute what the references do."""

import numpy as np
import pytest
from support.backends import uncompiled
from support.cases import CASES, assert_close, expected_of

pytestmark = pytest.mark.any_library

SMALL = 2500  # elements of the inputs and the output; an element takes some microseconds


@pytest.mark.parametrize("op_type", sorted({case.op_type for case in CASES}))
def test_every_small_case(op_type):
    tested = 0
    for case in (case for case in CASES if case.op_type == op_type):
        inputs = case.inputs("float32")
        expected = expected_of(case, inputs)
        if sum(array.size for array in inputs) + expected.size <= SMALL:
            with np.errstate(all="ignore"):
                assert_close(uncompiled(case, inputs), expected, "float32", case.name)
            tested += 1
    assert tested
