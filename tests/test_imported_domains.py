"""`imported_domains` finds the domains that a model imports without reading the rest of it."""

import onnx
import pytest
from onnx import TensorProto, helper
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


@pytest.mark.parametrize("keep", [1, 10, 100, -1])
def test_truncated_and_foreign_files(proto, keep, tmp_path):
    """These raise nothing: ONNX Runtime will refuse the files."""
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString()[:keep])
    domains = imported_domains(path)
    assert domains is None or domains <= {"", "com.microsoft"}
    assert imported_domains(b"\xff" * 50) is None
    tensor = helper.make_tensor("t", TensorProto.FLOAT, [1], [1.0])
    assert imported_domains(onnx.TensorProto.SerializeToString(tensor)) in (None, set())
