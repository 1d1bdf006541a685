"""`imported_domains` finds the domains that a model imports without reading the rest of it."""

import pytest
from onnx import helper
from support.backends import quiet
from support.cases import GRID_SAMPLE, imported_domains, model

import onnx_ops
from onnx_ops.ahead.warmup import needed_by
from onnx_ops.model import files as model_files
from onnx_ops.session.runner import open_session

pytestmark = pytest.mark.any_library

CASE = GRID_SAMPLE[0]
WAYS = {
    "a session": lambda model: onnx_ops.InferenceSession(model, quiet()),
    "options": lambda model: onnx_ops.register(quiet(), model),
    "a Runner": lambda model: onnx_ops.Runner(model).session,
    "a session of a command": open_session,
    "warmup": lambda model: needed_by([model]),
}


@pytest.fixture
def proto():
    return model(CASE.domain, CASE.op_type, CASE.inputs("float32"), CASE.attributes)


def test_ai_onnx_by_its_other_name(proto):
    proto.opset_import[0].domain = "ai.onnx"
    assert imported_domains(proto.SerializeToString()) == {"", "com.microsoft"}


def test_what_local_functions_import(proto):
    node = helper.make_node("Relu", ["a"], ["b"])
    opsets = [
        helper.make_opsetid(domain, 1) for domain in ("", "com.microsoft", "only.in.a.function")
    ]
    proto.functions.append(helper.make_function("local", "F", ["a"], ["b"], [node], opsets))
    expected = {"", "com.microsoft", "only.in.a.function"}
    assert imported_domains(proto) == imported_domains(proto.SerializeToString()) == expected
    del proto.opset_import[:]  # then ONNX Runtime runs its own operators in the function
    assert (
        imported_domains(proto)
        == imported_domains(proto.SerializeToString())
        == {"only.in.a.function"}
    )


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_they_are_read_once(way, proto, monkeypatch):
    """Whatever a session of the model is made for."""
    read, parts = [], model_files._entries
    monkeypatch.setattr(
        model_files, "_entries", lambda content: read.append(content) or parts(content)
    )
    content = proto.SerializeToString()
    way(content)
    assert read == [content]
