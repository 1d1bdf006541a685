"""What PyTorch's two exporters write runs as it is and agrees with PyTorch; and so do our functions with PyTorch's."""

import inspect
import io
import itertools
import warnings

import numpy as np
import onnx
import pytest
from backends import quiet
from cases import COL2IM, GRID_SAMPLE, VOLUMES

import onnx_ops
from onnx_ops import functions
from onnx_ops.export import export

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
pytestmark = pytest.mark.filterwarnings("ignore")  # the exporters have many to give

SETTINGS = [
    {"mode": mode, "padding_mode": padding_mode, "align_corners": align_corners}
    for mode, padding_mode, align_corners in itertools.product(
        ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection"), (False, True)
    )
]


class Fold(torch.nn.Module):
    def __init__(self, padding=(1, 2)):
        super().__init__()
        self.fold = torch.nn.Fold((11, 12), (3, 4), dilation=(2, 1), padding=padding, stride=(2, 3))

    def forward(self, x):
        return self.fold(x)

    def inputs(self):
        blocks = 5 * (4 + (self.fold.padding == (1, 2)))
        return (torch.randn(2, 3 * 12, blocks, generator=torch.manual_seed(0)),)


class Sample(torch.nn.Module):
    def __init__(self, settings):
        super().__init__()
        self.settings = settings

    def forward(self, x, grid):
        return torch.nn.functional.grid_sample(x, grid, **self.settings)

    @staticmethod
    def inputs(axes=2):
        generator = torch.manual_seed(1)
        x = torch.randn(2, 3, *(5, 6, 7)[:axes], generator=generator)
        return x, torch.rand(2, *(4, 5, 6)[:axes], axes, generator=generator) * 2.6 - 1.3


def exported(exporter, model, inputs, **kwargs):
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        written = exporter(model.eval(), inputs, None if kwargs["dynamo"] else file, verbose=False, **kwargs)
    return written.model_proto if kwargs["dynamo"] else onnx.load_from_string(file.getvalue())


def check(proto, model, inputs, title, kernels_made):
    session = onnx_ops.InferenceSession(proto.SerializeToString(), quiet())
    assert kernels_made == [title]
    feeds = {i.name: v.numpy() for i, v in zip(session.get_inputs(), inputs, strict=True)}
    np.testing.assert_allclose(session.run(None, feeds)[0], model(*inputs).detach().numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dynamo", [True, False], ids=["dynamo", "torchscript"])
def test_fold(dynamo, kernels_made):
    model = Fold() if dynamo else Fold(padding=1)
    proto = exported(torch.onnx.export, model, model.inputs(), dynamo=dynamo, opset_version=18)
    check(proto, model, model.inputs(), "Col2Im", kernels_made)


def test_torchscript_mixes_up_paddings_that_differ():
    """It writes each axis' padding twice instead of all begins and then all ends. If it no longer does: say so."""
    model = Fold(padding=(1, 2))
    proto = exported(torch.onnx.export, model, model.inputs(), dynamo=False, opset_version=18)
    (node,) = (n for n in proto.graph.node if n.op_type == "Col2Im")
    assert [list(a.ints) for a in node.attribute if a.name == "pads"] == [[1, 1, 2, 2]]


@pytest.mark.parametrize("dynamo", [True, False], ids=["dynamo", "torchscript"])
@pytest.mark.parametrize("settings", SETTINGS[::5], ids=lambda s: "-".join(map(str, s.values())))
@pytest.mark.parametrize("opset", [18, 20])
def test_grid_sample(settings, dynamo, opset, kernels_made):
    model = Sample(settings)
    proto = exported(torch.onnx.export, model, model.inputs(), dynamo=dynamo, opset_version=opset)
    check(proto, model, model.inputs(), "GridSample", kernels_made)


@pytest.mark.parametrize("dynamo", [True, False], ids=["dynamo", "torchscript"])
@pytest.mark.parametrize("settings", [s for s in SETTINGS if s["mode"] != "bicubic"][::3], ids=lambda s: s["mode"])
def test_grid_sample_of_volumes(settings, dynamo, kernels_made):
    model = Sample(settings)
    proto = exported(torch.onnx.export, model, model.inputs(3), dynamo=dynamo, opset_version=20)
    check(proto, model, model.inputs(3), "GridSample", kernels_made)


@pytest.mark.parametrize(("dynamo", "opset"), [(True, 18), (False, 18), (False, 11)])
@pytest.mark.parametrize("settings", SETTINGS[::4], ids=lambda s: "-".join(map(str, s.values())))
def test_export_as_com_microsoft(settings, dynamo, opset, kernels_made):
    model = Sample(settings)
    proto = exported(export, model, model.inputs(), dynamo=dynamo, opset_version=opset)
    assert [n.domain for n in proto.graph.node if n.op_type == "GridSample"] == ["com.microsoft"]
    check(proto, model, model.inputs(), "com.microsoft.GridSample", kernels_made)


@pytest.mark.parametrize("dynamo", [True, False], ids=["dynamo", "torchscript"])
def test_export_refuses_volumes(dynamo):
    model = Sample(SETTINGS[0])
    with pytest.raises(Exception, match="must have rank 4"):
        exported(export, model, model.inputs(3), dynamo=dynamo, opset_version=18)


def test_export_leaves_pytorch_as_it_was():
    model = Sample(SETTINGS[0])
    exported(export, model, model.inputs(), dynamo=False, opset_version=18)
    proto = exported(torch.onnx.export, model, model.inputs(), dynamo=False, opset_version=18)
    assert [n.domain for n in proto.graph.node if n.op_type == "GridSample"] == [""]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "case",
    [c for c in GRID_SAMPLE + VOLUMES if c.attributes["mode"] not in ("cubic",) and 0 not in c.shapes[0]],
    ids=str,
)
def test_function_agrees_on_grids(case, dtype):
    x, grid = case.inputs(dtype)
    if 0 in grid.shape:
        pytest.skip("PyTorch refuses an empty output")
    settings = {**case.attributes, "mode": case.attributes["mode"].replace("linear", "bilinear").replace("bibi", "bi")}
    settings["align_corners"] = bool(settings.get("align_corners", 0))
    theirs = torch.nn.functional.grid_sample(torch.from_numpy(x), torch.from_numpy(grid), **settings).numpy()
    tolerance = 2e-5 if dtype == "float32" else 1e-13
    if case.spread > 100:
        tolerance *= 10  # of its own rounding, far out
    np.testing.assert_allclose(functions.call(case.operator, x, grid, **case.attributes), theirs, atol=tolerance)


@pytest.mark.parametrize("case", [c for c in COL2IM if len(c.shapes[1]) == 2 and 0 not in c.shapes[0]], ids=str)
def test_function_agrees_on_folds(case):
    x, image, block = case.inputs("float32")
    begin, end = np.array(case.attributes.get("pads", [0] * 4)).reshape(2, 2).tolist()
    if begin != end:
        pytest.skip("PyTorch pads both sides alike")
    settings = {
        new: case.attributes.get(old, [1, 1]) for old, new in (("dilations", "dilation"), ("strides", "stride"))
    }
    theirs = torch.nn.functional.fold(torch.from_numpy(x), image.tolist(), block.tolist(), padding=begin, **settings)
    np.testing.assert_allclose(onnx_ops.col2im(x, image, block, **case.attributes), theirs.numpy(), atol=2e-5)


def test_parameters_are_documented():
    assert all(
        name in inspect.getdoc(onnx_ops.grid_sample) for name in inspect.signature(onnx_ops.grid_sample).parameters
    )
    assert all(name in inspect.getdoc(onnx_ops.col2im) for name in inspect.signature(onnx_ops.col2im).parameters)
