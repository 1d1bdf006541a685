"""`imported_domains` finds the domains that a model imports without reading the rest of it."""

import pytest
from onnx import helper
from support.cases import GRID_SAMPLE, model

from onnx_ops.model_files import imported_domains

CASE = GRID_SAMPLE[0]


@pytest.fixture
def proto():
    return model(CASE.domain, CASE.op_type, CASE.inputs("float32"), CASE.attributes)


def test_ai_onnx_by_its_other_name(proto):
    proto.opset_import[0].domain = "ai.onnx"
    assert imported_domains(proto.SerializeToString()) == {"", "com.microsoft"}


def test_what_local_functions_import(proto):
    node = helper.make_node("Relu", ["a"], ["b"])
    opsets = [helper.make_opsetid(domain, 1) for domain in ("", "com.microsoft", "only.in.a.function")]
    proto.functions.append(helper.make_function("local", "F", ["a"], ["b"], [node], opsets))
    expected = {"", "com.microsoft", "only.in.a.function"}
    assert imported_domains(proto) == imported_domains(proto.SerializeToString()) == expected
    del proto.opset_import[:]  # then ONNX Runtime runs its own operators in the function
    assert imported_domains(proto) == imported_domains(proto.SerializeToString()) == {"only.in.a.function"}
