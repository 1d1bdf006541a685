"""Plans for sizes that exceed all memory, as a model may state them: compiled and in plain Python."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cases import CASES

from onnx_ops.compiler import records
from onnx_ops.declaration import ABSENT, Record
from onnx_ops.errors import OpError, errors_of
from onnx_ops.runtime import execute, library

SIZES = st.sampled_from([0, 1, 2, 3, 4, 5, 6, 9, 2**20, 2**31, 2**40, 2**57, 2**58, 2**62, 2**63 - 1])
PLANNED = {case.operator: case for case in CASES}  # one case of each operator


def plain_plan(operator, parameters, shapes):
    """Run a plan in plain Python; return (geometry, None) or (None, message of the refusal)."""
    geometry = np.zeros(1, operator.geometry_dtype)
    geometry["rank"] = ABSENT
    vectors = tuple(np.array(shape, np.int64) for shape in shapes)
    try:
        with errors_of(operator):
            operator.plan(Record(parameters[0]), vectors, Record(geometry[0]))
    except OpError as error:
        return None, str(error)
    return geometry, None


def compiled_plan(operator, parameters, shapes):
    """Run a compiled plan; return (geometry, None) or (None, message of the refusal)."""
    call = np.zeros(1, records.call_dtype(operator.geometry_dtype))
    call["geometry"]["rank"] = ABSENT
    for k, shape in enumerate(shapes):
        call["tensors"]["rank"][0, k], call["tensors"]["shape"][0, k, : len(shape)] = len(shape), shape
    signature = {variable: names[0] for variable, names in operator.types.items()}
    plan, _ = execute.functions(operator, int(parameters["kernel_index"][0]), signature)
    if plan(parameters.ctypes.data, call.ctypes.data):
        return None, str(execute.refusal(operator, call["geometry"][0]))
    return call["geometry"], None


@pytest.mark.skipif(not library.have_numba(), reason="plans that are in no library are compiled by Numba")
@pytest.mark.parametrize("case", PLANNED.values(), ids=lambda case: case.operator.title)
@given(data=st.data())
@settings(deadline=None, max_examples=300)
def test_nothing_overflows(case, data):
    """Compiled and plain plans agree; in plain Python NumPy warns of an overflow, and warnings are errors here."""
    operator, parameters = case.operator, case.operator.resolved(case.attributes)
    shapes = [list(shape) for shape in case.shapes]
    for _ in range(data.draw(st.integers(1, 5))):
        shape = data.draw(st.sampled_from(shapes))
        old, new, axis = data.draw(st.sampled_from(shape)), data.draw(SIZES), data.draw(st.integers(0, len(shape) - 1))
        if data.draw(st.booleans()):  # so that what has to be equal stays so
            shapes = [[new if size == old else size for size in shape] for shape in shapes]
        else:
            shape[axis] = new
    geometry, refusal = plain_plan(operator, parameters, shapes)
    compiled_geometry, compiled_refusal = compiled_plan(operator, parameters, shapes)
    assert compiled_refusal == refusal
    if refusal is None:
        for field in operator.geometry_dtype.names:
            assert field == "refusal" or (compiled_geometry[field] == geometry[field]).all(), field
