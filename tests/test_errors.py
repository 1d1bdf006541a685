"""Whatever is wrong is refused with operator, argument, value and rule, and nothing else breaks."""

from dataclasses import replace

import numpy as np
import pytest
from backends import quiet, run
from cases import COL2IM, GRID_SAMPLE, assert_close, model, operator, reference
from malformed import AT_CREATION, AT_RUN

import onnx_ops
from onnx_ops import functions

GOOD = {"Col2Im": COL2IM[0], "GridSample": replace(GRID_SAMPLE[6], attributes={})}
TITLES = {"Col2Im": "Col2Im", "GridSample": r"com\.microsoft\.GridSample"}


@pytest.mark.parametrize("bad", AT_RUN + AT_CREATION, ids=str)
def test_function(bad):
    with pytest.raises(onnx_ops.OpError, match=f"^{TITLES[bad.op_type]}: {bad.message}"):
        functions.call(operator(bad.domain, bad.op_type), *bad.inputs, **bad.attributes)


@pytest.mark.parametrize("bad", AT_RUN, ids=str)
def test_run_fails_and_the_session_goes_on(bad):
    good = GOOD[bad.op_type]
    inputs = good.inputs("float32")
    session = onnx_ops.InferenceSession(unshaped(bad), quiet())
    with pytest.raises(Exception, match=f"{TITLES[bad.op_type]}: {bad.message}"):
        run(session, bad.inputs)
    if not bad.attributes:
        assert_close(run(session, inputs), reference(good, inputs), "float32")


@pytest.mark.parametrize("bad", AT_CREATION, ids=str)
def test_session_is_refused(bad):
    with pytest.raises(Exception, match=rf"{TITLES[bad.op_type]} \(node 'the_node'\): {bad.message}"):
        onnx_ops.InferenceSession(unshaped(bad), quiet())


def unshaped(bad):
    """A model whose inputs may have any shape."""
    return model(bad.domain, bad.op_type, bad.inputs, bad.attributes, dims="none").SerializeToString()


@pytest.mark.parametrize("bad", [b for b in AT_RUN if b.op_type == "Col2Im" and b.inputs[1].ndim == 1], ids=str)
def test_session_is_refused_where_the_model_shows_it(bad):
    constants = ["image_shape", "block_shape"]
    proto = model("", "Col2Im", bad.inputs, bad.attributes, constants=constants)
    with pytest.raises(Exception, match=rf"Col2Im \(node 'the_node'\): {bad.message}|attributes are for image axes"):
        onnx_ops.InferenceSession(proto.SerializeToString(), quiet())


def test_attributes_of_wrong_length_are_refused_by_the_declared_shape():
    x, image, block = COL2IM[1].inputs("float32")
    proto = model("", "Col2Im", [x, image, block], {"strides": [1, 1, 1]})
    with pytest.raises(Exception, match="length of image_shape = 2: attributes are for image axes: 3"):
        onnx_ops.InferenceSession(proto.SerializeToString(), quiet())


def test_functions_name_what_they_do_not_know():
    x, grid = GRID_SAMPLE[0].inputs("float32")
    with pytest.raises(onnx_ops.OpError, match=r"dtype of X = complex64: must be one of float16, .* unless mode is n"):
        onnx_ops.grid_sample(x.astype(np.complex64), grid)
    with pytest.raises(onnx_ops.OpError, match=r"dtype of X = float128: must be one of"):
        onnx_ops.grid_sample(x.astype(np.longdouble), grid)
    with pytest.raises(onnx_ops.OpError, match="dtype of Grid = int64: must be one of float16"):
        onnx_ops.grid_sample(x, grid.astype(np.int64))
    with pytest.raises(onnx_ops.OpError, match="dtype of image_shape = float64: must be one of int64"):
        onnx_ops.col2im(np.zeros((1, 9, 9), np.float32), [5.0, 5.0], [3, 3])
    with pytest.raises(onnx_ops.OpError, match="dtype of input = object: must be of strings only"):
        onnx_ops.col2im(np.array([[["a", 1]]], object), [2], [1])
    with pytest.raises(onnx_ops.OpError, match="stride = 2: no such attribute"):
        functions.call(operator("", "Col2Im"), x, [5, 5], [3, 3], stride=2)
    with pytest.raises(onnx_ops.OpError, match="must fit 64-bit integers"):
        onnx_ops.col2im(np.zeros((1, 9, 9), np.float32), [5, 5], [3, 3], strides=[2**70, 1])
