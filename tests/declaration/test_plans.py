"""Plans for sizes that exceed all memory, as a model may state them: compiled and in plain
Python.
"""

import itertools
import re
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cases import CASES
from support.selection import long_unless

from onnx_ops.compiler import records
from onnx_ops.declaration import limits, plain
from onnx_ops.declaration.errors import OpError
from onnx_ops.native import library, refusals

SIZES = st.sampled_from(
    [0, 1, 2, 3, 4, 5, 6, 9, 2**20, 2**31, 2**40, 2**57, 2**58, 2**62, 2**63 - 1]
)
PLANNED = {case.operator: case for case in CASES}  # one case of each operator
OPERATORS_BY_PLAN = {operator.plan: operator for operator in PLANNED}
# The short run has one operator of those that have the same plan.
EACH_OPERATOR = pytest.mark.parametrize(
    "case",
    [long_unless(OPERATORS_BY_PLAN[o.plan] is o, case) for o, case in PLANNED.items()],
    ids=lambda case: case.operator.title,
)


@st.composite
def attributes_of(draw, case):
    """The attributes of a case, some of whose integers and lists of integers are others that are
    allowed.
    """
    given = dict(case.attributes)
    for attribute in case.operator.attributes:
        least, most = attribute.length_bounds
        if not attribute.kind.startswith("int") or most > limits.MAX_SHOWN or draw(st.booleans()):
            continue
        numbers = SIZES.filter(lambda n, bounds=attribute.bounds: bounds[0] <= n <= bounds[1])
        lists = st.lists(numbers, min_size=least, max_size=min(most, least + 4))
        given[attribute.name] = draw(lists if attribute.is_list else numbers)
    try:
        return case.operator.values(given)
    except OpError:  # an attribute that has no other value
        return case.operator.values(case.attributes)


def plain_plan(operator, values, shapes):
    """Run a plan in plain Python; return ((shapes of the outputs, geometry), None) or (None, text
    of the refusal).
    """
    try:
        absent = [()] * (len(operator.inputs) - len(shapes))
        return plain.plan(
            operator, values, [np.array(shape, np.int64) for shape in (*shapes, *absent)]
        ), None
    except OpError as error:
        return None, str(error)


def compiled_plan(operator, values, shapes):
    """Run a compiled plan; return what `plain_plan` returns."""
    from onnx_ops.compiler.code import code  # which needs Numba

    call = np.zeros(1, records.call_dtype(operator.geometry_dtype))
    tensors = call["tensors"][0]
    tensors["rank"][: len(operator.inputs)] = limits.ABSENT
    for k, shape in enumerate(shapes):
        tensors["rank"][k], tensors["shape"][k, : len(shape)] = len(shape), shape
    plan = code(records.plan_entry(operator)).call
    call["attributes"] = values.block.ctypes.data
    if plan(call.ctypes.data):
        with pytest.raises(OpError) as caught:
            refusals.refuse(operator, call.ctypes.data + records.GEOMETRY)
        return None, str(caught.value)
    rank = tensors["rank"][records.OUTPUT]
    return ([tuple(tensors["shape"][records.OUTPUT, :rank].tolist())], call["geometry"]), None


@pytest.mark.skipif(
    not library.have_numba(), reason="plans that are in no library are compiled by Numba"
)
@EACH_OPERATOR
@given(data=st.data())
def test_nothing_overflows(case, data):
    """Compiled and plain plans agree; in plain Python NumPy warns of an overflow, and warnings are
    errors here.
    """
    operator, values = case.operator, data.draw(attributes_of(case))
    shapes = [list(shape) for shape in case.shapes]
    for _ in range(data.draw(st.integers(1, 5))):
        shape = data.draw(st.sampled_from(shapes))
        old, new, axis = (
            data.draw(st.sampled_from(shape)),
            data.draw(SIZES),
            data.draw(st.integers(0, len(shape) - 1)),
        )
        if data.draw(st.booleans()):  # so that what has to be equal stays so
            shapes = [[new if size == old else size for size in shape] for shape in shapes]
        else:
            shape[axis] = new
    shapes += [[]] * (len(operator.inputs) - len(shapes))  # optional ones that are left out
    planned, refusal = plain_plan(operator, values, shapes)
    compiled, compiled_refusal = compiled_plan(operator, values, shapes)
    assert compiled_refusal == refusal
    if refusal and (
        stated := re.search(r" (\d+)$", refusal)
    ):  # a number that is computed, or a size that is given
        assert int(stated[1]) <= max(limits.ELEMENTS, *itertools.chain(*shapes)), refusal
    if refusal is None:
        assert compiled[0] == planned[0]
        for field in operator.geometry_dtype.names:
            assert field == "refusal" or (compiled[1][field] == planned[1][field]).all(), field


@EACH_OPERATOR
@given(data=st.data())
def test_shapes_of_any_rank(case, data):
    """What states shapes from unknown ones reads no element that a shape or an attribute lacks."""
    sizes = st.lists(st.one_of(SIZES, st.none(), st.just("name")), max_size=limits.MAX_RANK)
    shapes = [data.draw(st.one_of(st.none(), sizes, st.just(list(shape)))) for shape in case.shapes]
    known = [None] * len(shapes)
    with suppress(OpError):
        plain.infer(case.operator, data.draw(attributes_of(case)), shapes, known)
