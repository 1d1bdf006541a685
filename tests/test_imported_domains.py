"""`imported_domains` finds the domains that a model imports without reading the rest of it."""

import onnx
import pytest
from onnx import TensorProto, helper
from support.cases import GRID_SAMPLE, model

from onnx_ops.runtime.model import imported_domains

CASE = GRID_SAMPLE[0]


@pytest.fixture
def proto():
    return model(CASE.domain, CASE.op_type, CASE.inputs("float32"), CASE.attributes)


def test_path_bytes_and_proto(proto, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    for source in (proto, proto.SerializeToString(), path, str(path)):
        assert imported_domains(source) == {"", "com.microsoft"}


def test_ai_onnx_by_its_other_name(proto):
    proto.opset_import[0].domain = "ai.onnx"
    assert imported_domains(proto.SerializeToString()) == {"", "com.microsoft"}


def test_what_local_functions_import(proto):
    node = helper.make_node("Relu", ["a"], ["b"])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("only.in.a.function", 1)]
    proto.functions.append(helper.make_function("local", "F", ["a"], ["b"], [node], opsets))
    expected = {"", "com.microsoft", "only.in.a.function"}
    assert imported_domains(proto) == imported_domains(proto.SerializeToString()) == expected


def test_a_model_of_more_than_2_gb_is_not_read(proto, tmp_path):
    """The imports follow a graph of 3 GB, in a sparse file that takes no room."""
    size = 3 * 2**30
    length = bytes([(size >> 7 * k & 0x7F) | (0x80 if size >> 7 * (k + 1) else 0) for k in range(5)])
    path = tmp_path / "large.onnx"
    with open(path, "wb") as file:
        file.write(bytes([7 << 3 | 2]) + length)
        file.seek(size, 1)
        for imported in proto.opset_import:
            file.write(bytes([8 << 3 | 2, imported.ByteSize()]) + imported.SerializeToString())
    assert path.stat().st_size > size
    assert imported_domains(path) == {"", "com.microsoft"}


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
