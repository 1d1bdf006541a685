"""What PyTorch's two exporters write runs as it is and agrees with PyTorch; and so do our functions with PyTorch's."""

import inspect
import io
import itertools
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
from backends import quiet, run
from cases import COL2IM, GRID_SAMPLE, IM2COL, VOLUMES

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


class ImageAndVolume(torch.nn.Module):
    def forward(self, image, grid, volume, volume_grid):
        sample = torch.nn.functional.grid_sample
        return sample(image, grid, align_corners=False), sample(volume, volume_grid, align_corners=True)

    @staticmethod
    def inputs():
        return *Sample.inputs(), *Sample.inputs(3)


@pytest.mark.parametrize(("dynamo", "opset"), [(True, 18), (True, 20), (False, 20)])
def test_export_leaves_volumes_to_pytorch(dynamo, opset, kernels_made):
    """What com.microsoft lacks becomes what PyTorch alone makes of it, and the rest of the network ours."""
    model = ImageAndVolume()
    proto, alone = (
        exported(function, model, model.inputs(), dynamo=dynamo, opset_version=opset)
        for function in (export, torch.onnx.export)
    )
    assert [n.domain for n in proto.graph.node] == ["com.microsoft", ""]
    assert proto.graph.node[1].attribute == alone.graph.node[1].attribute
    session = onnx_ops.InferenceSession(proto.SerializeToString(), quiet())
    assert kernels_made == ["com.microsoft.GridSample", "GridSample"]
    feeds = {i.name: v.numpy() for i, v in zip(session.get_inputs(), model.inputs(), strict=True)}
    for output, expected in zip(session.run(None, feeds), model(*model.inputs()), strict=True):
        np.testing.assert_allclose(output, expected.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("opset", [11, 18])
def test_export_of_volumes_that_pytorch_refuses(opset):
    """TorchScript knows volumes from opset 20 on. Before that the error is PyTorch's, the same with and without us."""
    model, errors = ImageAndVolume(), []
    for function in (export, torch.onnx.export):
        with pytest.raises(torch.onnx.errors.OnnxExporterError) as caught:
            exported(function, model, model.inputs(), dynamo=False, opset_version=opset)
        errors.append((type(caught.value), str(caught.value)))
    assert errors[0] == errors[1]


def test_export_in_a_fresh_process_knows_what_pytorch_has():
    """PyTorch fills its table for TorchScript only when its own exporter first runs."""
    code = """
import io, warnings
import onnx, torch
from test_torch import ImageAndVolume
from onnx_ops.export import export
warnings.simplefilter("ignore")
model, file = ImageAndVolume(), io.BytesIO()
export(model.eval(), model.inputs(), file, dynamo=False, opset_version=20, verbose=False)
print([n.domain for n in onnx.load_from_string(file.getvalue()).graph.node])
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "['com.microsoft', '']\n"


def test_export_leaves_pytorch_as_it_was():
    model = Sample(SETTINGS[0])
    exported(export, model, model.inputs(), dynamo=False, opset_version=18)
    proto = exported(torch.onnx.export, model, model.inputs(), dynamo=False, opset_version=18)
    assert [n.domain for n in proto.graph.node if n.op_type == "GridSample"] == [""]


def symbolic(g, x, grid, mode, padding_mode, align_corners):
    """What a user may have written for grid_sample."""
    return g.op("their.domain::Sample", x, grid)


@pytest.fixture
def registered():
    torch.onnx.register_custom_op_symbolic("aten::grid_sampler", symbolic, 16)
    yield
    torch.onnx.unregister_custom_op_symbolic("aten::grid_sampler", 16)


@pytest.mark.parametrize("fails", [False, True])
def test_export_gives_back_what_others_have_registered(fails, registered):
    model = Sample(SETTINGS[0])
    if fails:
        model.settings = {**model.settings, "mode": "unheard of"}
        with pytest.raises(ValueError, match="unheard of"):
            exported(export, model, model.inputs(), dynamo=False, opset_version=18)
        model = Sample(SETTINGS[0])
    else:
        exported(export, model, model.inputs(), dynamo=False, opset_version=18)
    settings = {"dynamo": False, "opset_version": 18, "custom_opsets": {"their.domain": 1}}
    proto = exported(torch.onnx.export, model, model.inputs(), **settings)
    assert [(n.domain, n.op_type) for n in proto.graph.node] == [("their.domain", "Sample")]


def test_export_of_a_volume_for_which_others_have_registered(registered):
    """What com.microsoft lacks is theirs, as without us."""
    model = Sample(SETTINGS[0])
    settings = {"dynamo": False, "opset_version": 18, "custom_opsets": {"their.domain": 1}}
    proto = exported(export, model, model.inputs(3), **settings)
    assert [(n.domain, n.op_type) for n in proto.graph.node] == [("their.domain", "Sample")]


def test_exports_in_threads_wait_for_each_other(monkeypatch):
    """PyTorch has one table for all: whose export ends first would take the other's operator away."""
    inside, most = [], []

    def torch_export(*args, **kwargs):
        inside.append(threading.get_ident())
        most.append(len(inside))
        threading.Event().wait(0.1)
        inside.pop()

    monkeypatch.setattr(torch.onnx, "export", torch_export)
    threads = [threading.Thread(target=export, args=(None,), kwargs={"dynamo": False}) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1, 1]


class Weighted(Sample):
    """Large enough for data beside the model."""

    def __init__(self):
        super().__init__(SETTINGS[0])
        self.weight = torch.nn.Parameter(torch.randn(3, 5, 6, generator=torch.manual_seed(2)))

    def forward(self, x, grid):
        return super().forward(x * self.weight, grid)


@pytest.mark.parametrize("kind", [str, Path])
@pytest.mark.parametrize("dynamo", [True, False], ids=["dynamo", "torchscript"])
def test_export_to_a_file(dynamo, kind, tmp_path, kernels_made):
    path = tmp_path / "model.onnx"
    path.write_text("old")
    model = Weighted().eval()
    written = export(model, model.inputs(), kind(path), dynamo=dynamo, opset_version=18, verbose=False)
    assert type(written).__name__ == ("ONNXProgram" if dynamo else "NoneType")
    assert sorted(os.listdir(tmp_path)) == ["model.onnx", *["model.onnx.data"] * dynamo]
    assert not dynamo or (tmp_path / "model.onnx.data").stat().st_size >= 3 * 5 * 6 * 4
    output = run(onnx_ops.InferenceSession(path, quiet()), [v.numpy() for v in model.inputs()])
    assert kernels_made == ["com.microsoft.GridSample"]
    np.testing.assert_allclose(output, model(*model.inputs()).detach().numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dynamo", [True, False], ids=["dynamo", "torchscript"])
def test_export_that_fails_leaves_the_files(dynamo, tmp_path, monkeypatch):
    def torch_export(model, args, f, **kwargs):
        for path in (f, f"{f}.data"):
            Path(path).write_text("half")
        raise OSError("No space left on device")

    monkeypatch.setattr(torch.onnx, "export", torch_export)
    names = ["model.onnx", "model.onnx.data"]
    for name in names:
        (tmp_path / name).write_text("old")
    with pytest.raises(OSError, match="No space"):
        export(Weighted(), (), str(tmp_path / "model.onnx"), dynamo=dynamo)
    assert sorted(os.listdir(tmp_path)) == names
    assert [(tmp_path / name).read_text() for name in names] == ["old", "old"]


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


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bool", "complex64"])
@pytest.mark.parametrize("case", [c for c in IM2COL if len(c.shapes[0]) == 4 and 0 not in c.shapes[0][:2]], ids=str)
def test_function_agrees_on_unfolds(case, dtype):
    """Bit for bit. PyTorch pads both sides alike; what else there is, it is given padded."""
    (x,) = case.inputs(dtype)
    attributes = dict(case.attributes)
    top, left, bottom, right = attributes.pop("pads", [0] * 4)
    padded = torch.nn.functional.pad(torch.from_numpy(x), (left, right, top, bottom))
    dilation, stride = attributes.get("dilations", 1), attributes.get("strides", 1)
    theirs = torch.nn.functional.unfold(padded, attributes["kernel_shape"], dilation, 0, stride)
    np.testing.assert_array_equal(onnx_ops.im2col(x, **case.attributes), theirs.numpy())


@pytest.mark.parametrize("function", [onnx_ops.col2im, onnx_ops.grid_sample, onnx_ops.im2col])
def test_parameters_are_documented(function):
    assert all(name in inspect.getdoc(function) for name in inspect.signature(function).parameters)
