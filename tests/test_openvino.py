"""OpenVINO itself agrees, wherever it runs the same operator."""

import numpy as np
import pytest
from support.cases import COL2IM, GRID_SAMPLE, OPENVINO, VOLUMES, assert_close

from onnx_ops import functions

ov = pytest.importorskip("openvino")
opset = pytest.importorskip("openvino.opset15")


def compiled(node, parameters, inputs):
    return next(iter(ov.compile_model(ov.Model([node], parameters), "CPU")(inputs).values()))


# OpenVINO computes 64-bit types in 32 bits, and refuses others that it lists.
@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8", "int8"])
@pytest.mark.parametrize("case", OPENVINO, ids=str)
def test_col2im(case, dtype):
    inputs = case.inputs(dtype)
    ours = functions.call(case.operator, *inputs, **case.attributes)
    data = opset.parameter(inputs[0].shape, inputs[0].dtype)
    node = opset.col2im(data, opset.constant(inputs[1]), opset.constant(inputs[2]), **case.attributes)
    theirs = compiled(node, [data], inputs[:1])
    assert_close(ours, theirs.astype(np.float64) if dtype.startswith("float") else theirs, dtype)


@pytest.mark.parametrize("case", [c for c in COL2IM if len(c.shapes[1]) == 2 and 0 not in c.shapes[0]], ids=str)
def test_col2im_of_onnx(case):
    x, image, block = case.inputs("float32")
    ours = functions.call(case.operator, x, image, block, **case.attributes)
    pads = case.attributes.get("pads", [0] * 4)
    others = {n: v for n, v in case.attributes.items() if n != "pads"}
    data = opset.parameter(x.shape, x.dtype)
    node = opset.col2im(
        data, opset.constant(image), opset.constant(block), pads_begin=pads[:2], pads_end=pads[2:], **others
    )
    assert_close(ours, compiled(node, [data], [x]).astype(np.float64), "float32")


@pytest.mark.parametrize("case", GRID_SAMPLE[:18], ids=str)
def test_grid_sample(case):
    x, grid = case.inputs("float32")
    ours = functions.call(case.operator, x, grid, **case.attributes)
    parameters = [opset.parameter(v.shape, v.dtype) for v in (x, grid)]
    node = opset.grid_sample(*parameters, {**case.attributes, "align_corners": bool(case.attributes["align_corners"])})
    np.testing.assert_allclose(ours, compiled(node, parameters, [x, grid]), atol=2e-5)


def test_volumes_are_out_of_its_reach():
    x, grid = VOLUMES[0].inputs("float32")
    parameters = [opset.parameter(v.shape, v.dtype) for v in (x, grid)]
    with pytest.raises(RuntimeError):
        compiled(opset.grid_sample(*parameters, {}), parameters, [x, grid])
