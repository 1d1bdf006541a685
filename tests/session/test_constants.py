"""Nodes whose inputs are all constant: ONNX Runtime's constant folding works, and nothing is
computed twice.
"""

import numpy as np
import onnxruntime as ort
import psutil
import pytest
from onnx import TensorProto, helper
from support.backends import ORT_VERSION, quiet
from support.cases import (
    ATTENTION,
    COL2IM,
    GRID_SAMPLE,
    OPENVINO,
    ROI_ALIGN,
    VOLUMES,
    assert_close,
    model,
    parsed,
    reference,
)

import onnx_ops
from onnx_ops.declaration import dtypes
from onnx_ops.session.runner import Runner

CASES = [COL2IM[1], COL2IM[7], GRID_SAMPLE[6], VOLUMES[0], VOLUMES[12], OPENVINO[0], ATTENTION[0]]
# ONNX Runtime before 1.32 finds its own kernel for constant nodes of RoiAlign: no session is made.
CASES += ROI_ALIGN[:1] if ORT_VERSION >= (1, 32) else []


def constant(case, dtype="float32"):
    """Return a model all of whose inputs are initializers, and its expected output."""
    inputs = case.inputs(dtype)
    names = [i.name for i in case.operator.inputs]
    proto = model(case.domain, case.op_type, inputs, case.attributes, constants=names)
    return proto, reference(case, inputs)


def only_output(session, feeds=()):
    (y,) = session.run(None, dict(feeds))
    return y


@pytest.mark.parametrize("case", CASES, ids=str)
def test_all_inputs_constant(case, results_made, kernels_made):
    proto, expected = constant(case)
    session = onnx_ops.InferenceSession(proto.SerializeToString(), quiet())
    for _ in range(3):
        assert_close(only_output(session), expected, "float32")
    assert results_made == [case.operator.title]
    assert kernels_made == [case.operator.title]


@pytest.mark.parametrize("case", [COL2IM[1], GRID_SAMPLE[6]], ids=str)
def test_a_version_that_has_no_such_operator(case, results_made):
    inputs = case.inputs("float32")
    names = [i.name for i in case.operator.inputs]
    proto = model(case.domain, case.op_type, inputs, case.attributes, opset=11, constants=names)
    session = onnx_ops.InferenceSession(proto.SerializeToString(), quiet())
    assert_close(only_output(session), reference(case, inputs), "float32")
    assert results_made == [case.operator.title]


@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_ALL"])
def test_every_level_of_optimization(level, results_made):
    proto, expected = constant(COL2IM[1])
    options = quiet(graph_optimization_level=getattr(ort.GraphOptimizationLevel, level))
    session = ort.InferenceSession(proto.SerializeToString(), onnx_ops.register(options, proto))
    assert_close(only_output(session), expected, "float32")
    assert results_made == ["Col2Im"]


@pytest.mark.parametrize("dtype", [name for name in dtypes.ALL if dtypes.TABLE[name].in_sessions])
def test_every_element_type(dtype, results_made):
    """Results of strings, for which there is no kernel, are computed in every run."""
    proto, expected = constant(COL2IM[2], dtype)
    assert_close(Runner(proto.SerializeToString())({})["y"], expected, dtype)
    assert results_made == ["Col2Im"] * (dtype != "string")


def test_what_follows_sees_it():
    """Exporters write an overlap-add that is divided by the constant sum of its windows."""
    case = COL2IM[1]
    x, image, block = case.inputs("float32")
    windows = np.random.default_rng(1).uniform(1, 2, x.shape).astype(np.float32)
    pads = "<pads = [1, 1, 1, 1]>"
    proto = parsed(f"""(float[N, C, L] x) => (float[N, D, H, W] y) {{
        sum = Col2Im {pads} (x, image, block)
        overlaps = Col2Im {pads} (windows, image, block)
        y = Div (sum, overlaps)
    }}""", windows=windows, image=image, block=block)  # fmt: skip
    expected = reference(case, [x, image, block]) / reference(case, [windows, image, block])
    for make in (onnx_ops.InferenceSession, ort.InferenceSession):
        y = only_output(make(proto.SerializeToString(), quiet()), {"x": x})
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


def test_an_initializer_that_may_be_replaced_is_not_constant(results_made):
    """The initializer is an input of the graph, too, so its value is a default."""
    inputs = COL2IM[1].inputs("float32")
    names = ["input", "image_shape", "block_shape"]
    proto = model("", "Col2Im", inputs, COL2IM[1].attributes, constants=names)
    proto.graph.input.append(
        helper.make_tensor_value_info("input", TensorProto.FLOAT, inputs[0].shape)
    )
    session = onnx_ops.InferenceSession(proto.SerializeToString(), quiet())
    assert_close(only_output(session), reference(COL2IM[1], inputs), "float32")
    other = inputs[0][::-1].copy()
    expected = reference(COL2IM[1], [other, *inputs[1:]])
    assert_close(only_output(session, {"input": other}), expected, "float32")
    assert not results_made


def test_empty_and_large_results_are_not_kept(results_made):
    empty = [c for c in COL2IM + GRID_SAMPLE if 0 in c.shapes[0]]
    assert {c.op_type for c in empty} == {"Col2Im", "GridSample"}
    for case in empty:
        proto, expected = constant(case)
        assert expected.size == 0
        assert_close(
            only_output(onnx_ops.InferenceSession(proto.SerializeToString(), quiet())),
            expected,
            "float32",
        )
    sizes = {"image_shape": np.array([4100, 4100]), "block_shape": np.array([1, 1])}
    inputs = [np.ones((1, 1, 1), np.float32), *sizes.values()]
    proto = model("", "Col2Im", inputs, {"strides": [4100, 4100]}, constants=["input", *sizes])
    assert only_output(onnx_ops.InferenceSession(proto.SerializeToString(), quiet())).sum() == 1
    assert not results_made


def test_results_are_freed_with_their_kernels():
    """Each session keeps 4 MB; when they are gone, the process is as large as before."""
    sizes = {"image_shape": np.array([1024, 1024]), "block_shape": np.array([1, 1])}
    x = np.ones((1, 1, 1024 * 1024), np.float32)
    proto = model(
        "", "Col2Im", [x, *sizes.values()], {}, constants=["input", *sizes]
    ).SerializeToString()
    make = lambda: only_output(onnx_ops.InferenceSession(proto, quiet(intra_op_num_threads=1)))
    process = psutil.Process()
    for _ in range(3):
        make()
    before = process.memory_info().rss
    for _ in range(20):
        make()
    assert process.memory_info().rss - before < 30e6
