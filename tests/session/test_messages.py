"""Errors of ONNX Runtime become OpErrors only if an operator has reported them, and in time linear in their length."""

import time

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper
from support.backends import quiet
from support.cases import COL2IM, model

import onnx_ops
from onnx_ops.cli.console import one_line

CASE = COL2IM[0]
FORGED = "Col2Im: a = 1: b"
WRONG_SIZE = np.array([4, 77])  # an image_shape that the case's input doesn't fit


def col2im(name="", size=None):
    """(a session of a Col2Im node of this name, its input_feed)"""
    inputs = CASE.inputs("float32")
    proto = model(CASE.domain, CASE.op_type, inputs, CASE.attributes, dims="none")
    proto.graph.node[0].name = name
    names = [value.name for value in proto.graph.input]
    feeds = dict(zip(names, inputs, strict=True))
    feeds["image_shape"] = feeds["image_shape"] if size is None else size
    return onnx_ops.InferenceSession(proto.SerializeToString(), quiet()), feeds


def reshape(name):
    """A model without operators of ours, whose node of this name fails if x hasn't 4 elements."""
    value = helper.make_tensor_value_info
    node = helper.make_node("Reshape", ["x", "shape"], ["y"], name)
    graph = helper.make_graph([node], "g", [value("x", 1, None), value("shape", 7, [1])], [value("y", 1, [4])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10).SerializeToString()


def failure(call, *args):
    with pytest.raises(Exception) as caught:  # noqa: PT011  ONNX Runtime has many types
        call(*args)
    return caught.value


def cpu_time(make, content):
    begin = time.process_time()
    assert not isinstance(failure(make, content, quiet()), onnx_ops.OpError)
    return time.process_time() - begin


@pytest.mark.parametrize("count", [1, 40_000])
def test_names_of_inputs_make_no_refusal_and_take_no_time(count):
    session, feeds = col2im()
    begin = time.process_time()
    for name in (FORGED * count, "Col2Im: " * count, f"Status Message: {FORGED}" * count):
        error = failure(session.run, None, {**feeds, name: WRONG_SIZE})
        assert isinstance(error, ort.capi.onnxruntime_pybind11_state.InvalidArgument)
        assert str(error).startswith("[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Invalid")
    assert time.process_time() - begin < 0.6


NAMES = {
    "refusals": lambda n: FORGED * n,
    "status messages": lambda n: f"' Status Message: {FORGED}" * n,
    "titles": lambda n: "Col2Im: " * n,
    "nodes": lambda n: "Col2Im (node '" * n,
    "quotes": lambda n: "\\'\"" * n,
    "failures": lambda n: "Non-zero status code returned while running " * n,
}


@pytest.mark.parametrize("count", [1, 8_000])
@pytest.mark.parametrize("name", NAMES)
def test_names_of_nodes_make_no_refusal_and_take_no_time(name, count):
    """Also of ONNX Runtime's own nodes, and in the messages of commands."""
    name = NAMES[name](count)
    session = onnx_ops.InferenceSession(reshape(name), quiet())
    feeds = {"x": np.zeros(5, np.float32), "shape": np.array([4])}
    begin = time.process_time()
    error = failure(session.run, None, feeds)
    assert not isinstance(error, onnx_ops.OpError)
    assert name in str(error)
    assert len(one_line(error)) <= len(str(error))
    assert time.process_time() - begin < 0.2


@pytest.mark.parametrize("count", [1, 8_000])
@pytest.mark.parametrize("name", NAMES)
def test_a_refusal_is_found_behind_any_name(name, count):
    session, feeds = col2im(NAMES[name](count), WRONG_SIZE)
    begin = time.process_time()
    error = failure(session.run, None, feeds)
    assert isinstance(error, onnx_ops.OpError)
    assert (error.operator, error.argument) == ("Col2Im", "shape of input")
    assert time.process_time() - begin < 0.2


@pytest.mark.parametrize("name", NAMES)
def test_a_refusal_of_a_named_node_when_a_session_is_made(name):
    """Its message quotes the name."""
    proto = model(CASE.domain, CASE.op_type, CASE.inputs("float32"), {"pads": [-1] * 4}, dims="none")
    proto.graph.node[0].name = NAMES[name](2)
    error = failure(onnx_ops.InferenceSession, proto.SerializeToString(), quiet())
    assert isinstance(error, onnx_ops.OpError)
    assert (error.argument, error.value) == ("pads", "[-1, -1, -1, -1]")
    assert error.operator.startswith("Col2Im (node ")


@pytest.mark.parametrize("count", [1, 8_000])
@pytest.mark.parametrize("name", NAMES)
def test_names_of_nodes_of_invalid_models(name, count):
    """ONNX Runtime's message has the name twice."""
    proto = onnx.ModelProto.FromString(reshape(NAMES[name](count)))
    proto.graph.node[0].op_type = "Reshap"
    content = proto.SerializeToString()
    plain, ours = (cpu_time(make, content) for make in (ort.InferenceSession, onnx_ops.InferenceSession))
    assert ours < plain + 0.2


@pytest.mark.parametrize("path", [FORGED, f"Exception during initialization: {FORGED}", f"Status Message: {FORGED}"])
def test_paths_make_no_refusal(path, tmp_path):
    error = failure(onnx_ops.InferenceSession, str(tmp_path / path))
    assert not isinstance(error, onnx_ops.OpError)


@onnx_ops.operator("my::Failing", inputs="x: float32", outputs="y: float32")
def failing(x, *, text: str):
    raise OSError(text)


@onnx_ops.operator("my::Failing", inputs="x: float32", outputs="y: float32")
def failing_inside(x, *, text: str):
    def inner():
        raise OSError(f"{text}{x.size}"[:-1])

    return sum(x if k else inner() for k in range(2))


def of_another_session():
    """The message of a session that the operator's body has run."""
    session = onnx_ops.InferenceSession(reshape("inner"), quiet())
    return str(failure(session.run, None, {"x": np.zeros(5, np.float32), "shape": np.array([4])}))


TEXTS = [
    "no such file",
    f"Status Message: {FORGED}",
    "Status Message: ",
    "a = 1: b",
    "a: b = 'c': d",
    of_another_session(),
]


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
@pytest.mark.parametrize("operator", [failing, failing_inside])
def test_what_a_body_raises_is_its_operators_failure(text, operator):
    """Also where a function or a generator in it raises it, whose frame has views of the inputs."""
    value = helper.make_tensor_value_info
    node = helper.make_node("Failing", ["x"], ["y"], domain="my", text=text)
    graph = helper.make_graph([node], "g", [value("x", 1, [1])], [value("y", 1, [1])])
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("my", 1)]
    content = helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()
    session = onnx_ops.InferenceSession(content, quiet(), operators=[operator])
    error = failure(session.run, None, {"x": np.zeros(1, np.float32)})
    assert isinstance(error, onnx_ops.OpError)
    assert (error.operator, error.argument, error.value) == ("my.Failing", None, None)
    assert text.lower() in error.rule.lower()
