"""Exports of PyTorch's two exporters run unchanged and agree with PyTorch, and so do our
functions.
"""

import functools
import inspect
import io
import itertools
import os
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from support.backends import NEWEST_OPSET, ORT_VERSION, quiet, run_session
from support.selection import long_unless

import onnx_ops
from onnx_ops.export import export

torch = pytest.importorskip("torch")
from support import attention_by_torch as by_torch  # noqa: E402
from support.torch_modules import Call  # noqa: E402

pytest.importorskip("onnxscript")
pytestmark = pytest.mark.filterwarnings("ignore")  # the exporters give many

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
        written = exporter(
            model.eval(), inputs, None if kwargs["dynamo"] else file, verbose=False, **kwargs
        )
    return written.model_proto if kwargs["dynamo"] else onnx.load_from_string(file.getvalue())


def assert_runs_alike(proto, model, *many, tolerance=1e-6):
    """Assert that a model gives PyTorch's results on inputs of several sizes."""
    session = onnx_ops.InferenceSession(proto.SerializeToString(), quiet())
    for inputs in many:
        feeds = {i.name: v.numpy() for i, v in zip(session.get_inputs(), inputs, strict=True)}
        expected = model(*inputs)
        expected = expected if isinstance(expected, tuple) else (expected,)
        for output, wanted in zip(
            session.run(None, feeds), (tensor.detach().numpy() for tensor in expected), strict=True
        ):
            assert (output.shape, output.dtype) == (wanted.shape, wanted.dtype)
            np.testing.assert_allclose(output, wanted, rtol=0, atol=tolerance)


def test_torchscript_mixes_up_paddings_that_differ():
    """It writes each axis' padding twice instead of all begins and then all ends.

    If this fails: say so in the docs.
    """
    model = Fold(padding=(1, 2))
    proto = exported(torch.onnx.export, model, model.inputs(), dynamo=False, opset_version=18)
    (node,) = (n for n in proto.graph.node if n.op_type == "Col2Im")
    assert [list(a.ints) for a in node.attribute if a.name == "pads"] == [[1, 1, 2, 2]]


class Unfold(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.unfold(x, (3, 2), dilation=(1, 2), padding=(1, 0), stride=(2, 1))

    @staticmethod
    def inputs(*shape):
        return (torch.randn(*shape, generator=torch.manual_seed(3)),)


class Grid(torch.nn.Module):
    """An affine_grid of a fixed size, or of the size of an image."""

    def __init__(self, align_corners, size=None):
        super().__init__()
        self.align_corners, self.size = align_corners, size

    def forward(self, theta, image=None):
        size = self.size or image.shape
        return torch.nn.functional.affine_grid(theta, size, align_corners=self.align_corners)

    def inputs(self, size=None, dtype=torch.float32):
        batch, axes = (self.size or size)[0], len(self.size or size) - 2
        theta = torch.randn(batch, axes, axes + 1, generator=torch.manual_seed(4)).to(dtype)
        return (theta,) if self.size else (theta, torch.zeros(size))


LAST = min(23, NEWEST_OPSET)
EXPORTS = [
    (True, 18),
    (True, 20),
    (True, LAST),
    (False, 11),
    (False, 16),
    (False, 20),
]  # dynamo, opset
FEW = (True, 18), (False, 20)
OURS = [(dynamo, opset) for dynamo, opset in EXPORTS if dynamo]  # which `export` takes


GRID_SAMPLE = {torch.ops.aten.grid_sampler.default: onnx_ops.export.com_microsoft_grid_sample}
export_as_com_microsoft = functools.partial(export, custom_translation_table=GRID_SAMPLE)
VOLUMES = [s for s in SETTINGS if s["mode"] != "bicubic"][::3]
SIZES = (2, 3, 5, 7), (1, 1, 1, 4), (2, 1, 3, 1, 4)  # of affine grids
AFFINE = (True, 20), (True, LAST)
# What exports, the network, its inputs, the exporters, the operators that are written, the one that
# runs.
EXPORTED = {
    **{f"fold by {'dynamo' if dynamo else 'torchscript'}": (
        torch.onnx.export, model, model.inputs(), [(dynamo, 18)], None, "Col2Im")
       for dynamo, model in ((True, Fold()), (False, Fold(padding=1)))},
    **{f"grid_sample, {s}": (
        torch.onnx.export, Sample(s), Sample.inputs(),
        [(True, 18), (True, 20), (False, 18), (False, 20)], None,
        "GridSample")
       for s in SETTINGS[::5]},
    **{f"grid_sample of a volume, {s}": (
        torch.onnx.export, Sample(s), Sample.inputs(3), [(True, 20), (False, 20)], None,
        "GridSample")
       for s in VOLUMES},
    **{f"grid_sample as com.microsoft, {s}": (
        export_as_com_microsoft, Sample(s), Sample.inputs(), [(True, 18)], None,
        "com.microsoft.GridSample")
       for s in SETTINGS[::4]},
    **{f"grid_sample by our export, {s}": (
        export, Sample(s), Sample.inputs(), [(True, 18), (True, 20)], ["GridSample"], "GridSample")
       for s in SETTINGS[::7]},
    "unfold": (export, Unfold(), Unfold.inputs(2, 3, 5, 7), OURS, ["Im2Col"], "onnx_ops.Im2Col"),
    "unfold without a batch": (export, Unfold(), Unfold.inputs(3, 5, 7), OURS, None,
        "onnx_ops.Im2Col"),
    **{f"affine_grid of {size}, {corners}": (
        export, Grid(corners, size), Grid(corners, size).inputs(), AFFINE,
        [*["Mul"] * (corners and 1 in size[2:]), "AffineGrid"], None)
       for size in SIZES for corners in (True, False)},
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "dynamo", "opset"),
    [
        long_unless(
            each in FEW and not (each[0] and "{" in name and "zeros" not in name), name, *each
        )
        for name, (_, _, _, exporters, *_) in EXPORTED.items()
        for each in exporters
    ],
)
def test_exports(name, dynamo, opset, kernels_made):
    exporter, model, inputs, _, written, title = EXPORTED[name]
    proto = exported(exporter, model, inputs, dynamo=dynamo, opset_version=opset)
    # PyTorch 2.6 leaves a Cast of a constant.
    assert written in (
        None,
        [n.op_type for n in proto.graph.node if n.op_type not in ("Cast", "Constant")],
    )
    assert_runs_alike(proto, model, inputs, tolerance=1e-5)
    assert kernels_made == ([title] if title else [])


@pytest.mark.parametrize("opset", [long_unless(each in FEW, each[1]) for each in OURS])
def test_export_of_unfold_of_open_sizes(opset, kernels_made):
    model, sizes = Unfold(), [(2, 3, 5, 7), (1, 3, 9, 4), (4, 3, 30, 31)]
    opened = torch.export.Dim.DYNAMIC
    how = {"dynamic_shapes": {"x": {0: opened, 2: opened, 3: opened}}}
    proto = exported(
        export, model, model.inputs(*sizes[0]), dynamo=True, opset_version=opset, **how
    )
    assert [n.op_type for n in proto.graph.node] == ["Im2Col"]
    assert_runs_alike(proto, model, *(model.inputs(*size) for size in sizes))
    assert kernels_made == ["onnx_ops.Im2Col"]


AFFINE_SETTINGS = [
    (torch.float32, 1e-5, True),
    # ONNX Runtime before 1.25 computes it in float32.
    long_unless(False, torch.float64, 1e-14 if ORT_VERSION >= (1, 25) else 1e-6, False),
    (torch.float16, 2e-3, False),
]


@pytest.mark.parametrize(("dtype", "tolerance", "align_corners"), AFFINE_SETTINGS, ids=str)
@pytest.mark.parametrize("axes", [2, long_unless(False, 3)])
def test_export_of_affine_grid_of_open_sizes(axes, dtype, tolerance, align_corners):
    """PyTorch's own exporter fixes the sizes, or fails. A single pixel lies in the middle."""
    model, dynamic = Grid(align_corners), torch.export.Dim.DYNAMIC
    sizes = [(2, 3, 4, 5, 7), (1, 1, 1, 1, 1), (1, 2, 3, 1, 300), (3, 2, 2, 40, 1)]
    many = [model.inputs(size[: 2 + axes], dtype) for size in sizes]
    opened = {"theta": {0: dynamic}, "image": dict.fromkeys(range(2 + axes), dynamic)}
    proto = exported(
        export, model, many[0], dynamo=True, dynamic_shapes=opened
    )  # PyTorch's default opset
    assert "AffineGrid" in [node.op_type for node in proto.graph.node]
    session = onnx_ops.InferenceSession(proto.SerializeToString(), quiet())
    for theta, image in many:
        feeds = {"theta": theta.numpy(), "image": image.numpy()}
        wide = torch.nn.functional.affine_grid(
            theta.double(), image.shape, align_corners=align_corners
        ).numpy()
        (got,) = session.run(
            None, {value.name: feeds[value.name] for value in session.get_inputs()}
        )
        assert got.dtype == feeds["theta"].dtype
        np.testing.assert_allclose(got, wide, rtol=0, atol=tolerance * abs(wide).max())


class Transformer(Grid):
    def forward(self, theta, image):
        return torch.nn.functional.grid_sample(
            image, super().forward(theta, image), align_corners=self.align_corners
        )


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, long_unless(False, torch.float16)], ids=str)
def test_export_of_a_spatial_transformer_is_optimized(dtype, is_open):
    dynamic, image = (
        torch.export.Dim.DYNAMIC,
        torch.rand(2, 3, 9, 12, generator=torch.manual_seed(0)).to(dtype),
    )
    model, theta = Transformer(True), Grid(True).inputs((2, 3, 9, 12), dtype)[0]
    how = {"dynamic_shapes": {"theta": {}, "image": {2: dynamic, 3: dynamic}}} if is_open else {}
    proto = exported(export, model, (theta, image), dynamo=True, opset_version=20, **how)
    optimized = onnx_ops.optimize(proto)
    samplers = [
        n.op_type for n in optimized.graph.node if n.op_type in ("AffineGrid", "GridSample")
    ]
    assert (samplers, optimized.graph.node[-1].op_type) == ([], "ComputedGridSample")
    grid = (
        torch.nn.functional.affine_grid(theta.double(), image.shape, align_corners=True)
        .to(dtype)
        .double()
    )
    exact = torch.nn.functional.grid_sample(image.double(), grid, align_corners=True).numpy()
    session = onnx_ops.InferenceSession(optimized.SerializeToString(), quiet())
    (got,) = session.run(None, {"theta": theta.numpy(), "image": image.numpy()})
    np.testing.assert_allclose(got, exact, rtol=0, atol=1e-5 if dtype == torch.float32 else 1e-2)


def test_export_of_affine_grid_below_opset_20():
    """PyTorch writes products and sums of a fixed size, which become the same node."""
    model = Transformer(False, (2, 3, 9, 12))
    theta, _ = Grid(False).inputs((2, 3, 9, 12))
    image = torch.rand(2, 3, 5, 6, generator=torch.manual_seed(0))
    proto = exported(export, model, (theta, image), dynamo=True, opset_version=18)
    assert "ReduceSum" in [node.op_type for node in proto.graph.node]
    optimized = onnx_ops.optimize(proto)
    assert "ReduceSum" not in [node.op_type for node in optimized.graph.node]


def test_export_of_affine_grid_that_is_traced_or_translated_elsewhere():
    """An ExportedProgram has PyTorch's own operator; a translation by the user is used."""
    model = Grid(True, (2, 3, 5, 7))
    program = torch.export.export(model.eval(), model.inputs())
    proto = exported(
        lambda _, *arguments, **how: export(program, *arguments, **how), model, (), dynamo=True
    )
    assert [node.op_type for node in proto.graph.node if node.op_type != "Constant"] == [
        "AffineGrid"
    ]
    import onnxscript

    def theirs(theta, size, align_corners: bool):
        return onnxscript.opset18.Identity(theta)

    table = {torch.ops.aten.affine_grid_generator.default: theirs}
    proto = exported(export, model, model.inputs(), dynamo=True, custom_translation_table=table)
    assert [node.op_type for node in proto.graph.node] == ["Identity"]


class ImageAndVolume(torch.nn.Module):
    def forward(self, image, grid, volume, volume_grid):
        sample = torch.nn.functional.grid_sample
        return sample(image, grid, align_corners=False), sample(
            volume, volume_grid, align_corners=True
        )

    @staticmethod
    def inputs():
        return *Sample.inputs(), *Sample.inputs(3)


@pytest.mark.parametrize("opset", [18, 20])
def test_com_microsoft_has_no_volumes(opset, kernels_made):
    """They become what PyTorch writes for them alone."""
    model = ImageAndVolume()
    proto, alone = (
        exported(function, model, model.inputs(), dynamo=True, opset_version=opset)
        for function in (export_as_com_microsoft, torch.onnx.export)
    )
    assert [n.domain for n in proto.graph.node] == ["com.microsoft", ""]
    assert proto.graph.node[1].attribute == alone.graph.node[1].attribute
    assert_runs_alike(proto, model, model.inputs(), tolerance=1e-5)
    assert kernels_made == ["com.microsoft.GridSample", "GridSample"]


@pytest.mark.filterwarnings("ignore:onnx_ops. com.microsoft is left out")
def test_every_way_to_register_serves_an_exported_grid_sample(kernels_made):
    content = exported(
        export, Sample(SETTINGS[0]), Sample.inputs(), dynamo=True
    ).SerializeToString()
    by_path = quiet()
    by_path.register_custom_ops_library(onnx_ops.get_library_path())
    for options in (by_path, onnx_ops.register(quiet()), onnx_ops.register(quiet(), content)):
        kernels_made.clear()
        onnxruntime.InferenceSession(content, options)
        assert kernels_made == ["GridSample"]


def test_export_leaves_grid_sample_to_pytorch():
    ours, alone = (exported(function, Sample(SETTINGS[0]), Sample.inputs(), dynamo=True,
        opset_version=20)
                   for function in (export, torch.onnx.export))  # fmt: skip
    assert ours.graph.node == alone.graph.node


@pytest.mark.parametrize(("exporter", "model", "inputs"), [
    (export_as_com_microsoft, Sample(SETTINGS[0]), Sample.inputs()),
    (export, Unfold(), Unfold.inputs(2, 3, 5, 7)),
], ids=["grid_sample", "unfold"])  # fmt: skip
def test_export_leaves_pytorch_as_it_was(exporter, model, inputs):
    before = exported(torch.onnx.export, model, inputs, dynamo=True, opset_version=20)
    ours = exported(exporter, model, inputs, dynamo=True, opset_version=20)
    after = exported(torch.onnx.export, model, inputs, dynamo=True, opset_version=20)
    assert {n.domain for n in ours.graph.node if n.op_type != "Constant"} & {
        "com.microsoft",
        "onnx_ops",
    }
    assert {n.domain for n in before.graph.node} == {""}
    assert after.graph.node == before.graph.node


class Weighted(Sample):
    """A model with weights, which are saved beside it."""

    def __init__(self):
        super().__init__(SETTINGS[0])
        self.weight = torch.nn.Parameter(torch.randn(3, 5, 6, generator=torch.manual_seed(2)))

    def forward(self, x, grid):
        return super().forward(x * self.weight, grid)


def test_export_has_one_exporter():
    rule = (
        r"must be True; onnx_ops\.optimize rewrites what "
        r"torch\.onnx\.export\(\.\.\., dynamo=False\) has written"
    )
    with pytest.raises(onnx_ops.OpError, match=f"^onnx_ops: dynamo = False: {rule}$"):
        export(Unfold(), Unfold.inputs(2, 3, 5, 7), io.BytesIO(), dynamo=False)


@pytest.mark.parametrize("path_type", [str, Path])
def test_export_to_a_file(path_type, tmp_path, kernels_made):
    path = tmp_path / "model.onnx"
    path.write_text("old")
    model = Weighted().eval()
    written = export(model, model.inputs(), path_type(path), opset_version=18, verbose=False)
    assert type(written).__name__ == "ONNXProgram"
    assert sorted(os.listdir(tmp_path)) == ["model.onnx", "model.onnx.data"]
    assert (tmp_path / "model.onnx.data").stat().st_size >= 3 * 5 * 6 * 4
    output = run_session(
        onnx_ops.InferenceSession(path, quiet()), [v.numpy() for v in model.inputs()]
    )
    assert kernels_made == ["GridSample"]
    np.testing.assert_allclose(
        output, model(*model.inputs()).detach().numpy(), rtol=1e-5, atol=1e-5
    )


def test_export_that_fails_leaves_the_files(tmp_path, monkeypatch):
    def torch_export(model, args, f, **kwargs):
        for path in (f, f"{f}.data"):
            Path(path).write_text("half")
        raise OSError("No space left on device")

    monkeypatch.setattr(torch.onnx, "export", torch_export)
    names = ["model.onnx", "model.onnx.data"]
    for name in names:
        (tmp_path / name).write_text("old")
    with pytest.raises(OSError, match="No space"):
        export(Weighted(), (), str(tmp_path / "model.onnx"))
    assert sorted(os.listdir(tmp_path)) == names
    assert [(tmp_path / name).read_text() for name in names] == ["old", "old"]


@pytest.mark.parametrize("opened", [long_unless(False, False), True], ids=["fixed", "open"])
@pytest.mark.parametrize(
    ("dynamo", "opset"), [long_unless(e in FEW, *e) for e in EXPORTS if e[1] > 11], ids=str
)
@pytest.mark.parametrize(
    "attention_type", [by_torch.Attention, by_torch.MergedAttention, by_torch.PlainAttention]
)
def test_exported_attention_becomes_one_node(attention_type, dynamo, opset, opened, kernels_made):
    model, how = attention_type((8, 10), (4, 5), (2, 3)), {}
    names = ["value", "locations", "weights"]
    if opened and dynamo:
        n, q = torch.export.Dim("n", min=1, max=64), torch.export.Dim("q", min=2, max=5000)
        how = {"dynamic_shapes": ({0: n}, {0: n, 1: q}, {0: n, 1: q})}
    elif opened:
        how = {
            "dynamic_axes": {
                "value": {0: "n"},
                "locations": {0: "n", 1: "q"},
                "weights": {0: "n", 1: "q"},
            }
        }
    many = [model.inputs(), *([model.inputs(n=3, q=40), model.inputs(n=1, q=2)] if opened else [])]
    with torch.no_grad():
        proto = exported(
            torch.onnx.export,
            model,
            many[0],
            dynamo=dynamo,
            opset_version=opset,
            input_names=names,
            **how,
        )
    optimized = onnx_ops.optimize(proto)
    assert_runs_alike(optimized, model, *many)
    assert kernels_made == ["onnx_ops.MultiScaleDeformableAttention"]
    assert len([n for n in optimized.graph.node if n.op_type != "Constant"]) <= 3


FUNCTIONS = "col2im", "deformable_attention", "grid_sample", "im2col", "roi_align"


@pytest.mark.parametrize("function", [getattr(onnx_ops, name) for name in FUNCTIONS])
def test_parameters_are_documented(function):
    assert all(name in inspect.getdoc(function) for name in inspect.signature(function).parameters)


def written_to_x_and_y(image, flow):
    """VoxelMorph's grid: each coordinate is written in place, then their order is turned."""
    points = flow.clone()
    for axis in range(2):
        points[:, axis] = 2 * (points[:, axis] / (flow.shape[2 + axis] - 1) - 0.5)
    return torch.nn.functional.grid_sample(
        image, points.permute(0, 2, 3, 1)[..., [1, 0]], align_corners=True
    )


def divided_in_place(image, flow):
    """monodepth2's grid: each coordinate is divided in place, then both are moved."""
    points = flow.permute(0, 2, 3, 1).clone()
    points[..., 0] /= flow.shape[3] - 1
    points[..., 1] /= flow.shape[2] - 1
    return torch.nn.functional.grid_sample(
        image, (points - 0.5) * 2, padding_mode="border", align_corners=True
    )


def by_keypoints(image, flow):
    """Patches of several keypoints, one below the other in one grid."""
    points = flow.reshape(2, 2, 3, 4, 7).permute(0, 2, 3, 4, 1) / 8 - 1
    return torch.nn.functional.grid_sample(image, points.reshape(2, 12, 7, 2), align_corners=False)


def affine_by_keypoints(image, flow):
    """Affine grids of several keypoints, one below the other in one grid."""
    thetas = flow[:, :, :3, :3].permute(0, 2, 1, 3).reshape(6, 2, 3) / 8
    grid = torch.nn.functional.affine_grid(thetas, (6, 3, 5, 4), align_corners=False)
    return torch.nn.functional.grid_sample(image, grid.reshape(2, 15, 4, 2), align_corners=False)


def windows(image, flow):
    return image.unfold(2, 3, 1).unfold(3, 3, 1).amax((-2, -1))


def framed(image, flow):
    return (
        image[:, 0, 0].unfold(1, 3, 2) * torch.hann_window(3).to(image) @ torch.ones(3, 4).to(image)
    )


def unfolded(image, flow):
    return torch.nn.functional.unfold(image, (3, 2), padding=(1, 0), stride=(2, 1), dilation=(1, 2))


def turned(image, flow):
    grid = torch.nn.functional.affine_grid(flow[:, :, 0, :3] / 8, image.shape, align_corners=False)
    return torch.nn.functional.grid_sample(image, grid, align_corners=False)


def correlated(image, flow):
    """A cost volume of 5 x 5 displacements."""
    n, c, h, w = image.shape
    moved = torch.nn.functional.unfold(image.flip(3), 5, padding=2).view(n, c, 25, h, w)
    return (image[:, :, None] * moved).mean(1)


def attended(image, flow):
    """Each pixel attends to the window around it; products are matrices, one for each pixel."""
    n, c, h, w = image.shape
    values = (
        torch.nn.functional.unfold(image, 3, padding=1)
        .view(n, 1, c, 9, h * w)
        .permute(0, 1, 4, 3, 2)
    )
    queries = image.view(n, 1, c, h * w).transpose(2, 3)[..., None, :]
    scores = (queries @ values.transpose(3, 4)).softmax(-1)
    return (scores @ values).squeeze(3).transpose(2, 3).reshape(n, c, h, w)


def attended_by_einsum(image, flow):
    values = torch.nn.functional.pad(image, [1] * 4).unfold(2, 3, 1).unfold(3, 3, 1)
    scores = torch.einsum("nchw,nchwij->nhwij", image, values).sigmoid()
    return torch.einsum("nhwij,nchwij->nchw", scores, values)


def enlarged(image, flow):
    """CARAFE: each pixel of an enlarged image is a weighted sum of a window, by weights of its
    own.
    """
    n, c, h, w = image.shape
    values = torch.nn.functional.unfold(image, 3, padding=1).view(n, c * 9, h, w)
    values = torch.nn.functional.interpolate(values, scale_factor=2).view(n, c, 9, 2 * h, 2 * w)
    weights = torch.nn.functional.interpolate(
        image.repeat(1, 3, 1, 1), scale_factor=2, mode="bilinear"
    )
    return (values * weights[:, None]).sum(2)


PRODUCTS = {
    "correlated": correlated,
    "attended": attended,
    "attended by Einsum": attended_by_einsum,
}
PRODUCTS["enlarged"] = enlarged
WRITTEN = {
    **{name: (function, "Im2ColProduct") for name, function in PRODUCTS.items()},
    "written to x and y": (written_to_x_and_y, "ComputedGridSample"),
    "divided in place": (divided_in_place, "ComputedGridSample"),
    "by keypoints": (by_keypoints, "ComputedGridSample"),
    "affine by keypoints": (affine_by_keypoints, "ComputedGridSample"),
    "windows": (windows, "Im2Col"),
    "framed": (framed, "Im2Col"),
    "unfold": (unfolded, "Im2Col"),
    "affine_grid of an image's size": (turned, "ComputedGridSample"),
}


@pytest.mark.parametrize("is_open", [long_unless(False, False), True], ids=["fixed", "open"])
@pytest.mark.parametrize("dynamo", [True, long_unless(False, False)], ids=["dynamo", "torchscript"])
@pytest.mark.parametrize("name", WRITTEN)
def test_exports_that_are_optimized(name, dynamo, is_open):
    """What both exporters write in other ways is found, and keeps its bits, but for sums.

    The batch is open.
    """
    function, operator = WRITTEN[name]
    if name == "attended by Einsum" and not dynamo:
        pytest.skip("this exporter refuses Tensor.unfold of what F.pad returns")
    if "by keypoints" in name and is_open:
        pytest.skip("it states its sizes")
    generator, count = torch.manual_seed(0), 2
    inputs = (
        torch.rand(count, 3, 9, 8, generator=generator),
        8 * torch.rand(count, 2, 12, 7, generator=generator),
    )
    settings = {"input_names": ["image", "flow"], "opset_version": 20}
    if is_open and dynamo:
        batch = torch.export.Dim("n", min=2, max=64)  # PyTorch 2.6 wants a greatest size
        settings["dynamic_shapes"] = {"inputs": ({0: batch}, {0: batch})}
    elif is_open:
        settings["dynamic_axes"] = {"image": {0: "n"}, "flow": {0: "n"}}
    proto = exported(torch.onnx.export, Call(function), inputs, dynamo=dynamo, **settings)
    optimized, op_types = onnx_ops.optimize(proto), {node.op_type for node in proto.graph.node}
    assert operator in [node.op_type for node in optimized.graph.node]
    absent = {
        "ScatterElements",
        "ScatterND",
        "GatherND",
        *["AffineGrid", "ReduceSum"] * ("affine" in name),
    }
    assert not absent & {node.op_type for node in optimized.graph.node}
    sessions = [
        onnx_ops.InferenceSession(model.SerializeToString(), quiet())
        for model in (proto, optimized)
    ]
    for n in (2, 5) if is_open else (2,):
        image, flow = (torch.cat([value] * 3)[:n] for value in inputs)
        feeds = {"image": image.numpy(), "flow": flow.numpy()}
        feeds = {value.name: feeds[value.name] for value in sessions[0].get_inputs()}
        expected, got = (session.run(None, feeds)[0] for session in sessions)
        tolerance = 1e-5 if operator == "Im2ColProduct" or "AffineGrid" in op_types else 0
        np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance)
        np.testing.assert_allclose(got, function(image, flow).numpy(), rtol=1e-4, atol=1e-4)


WITH_OPEN_SIZES = (
    "attended",
    "correlated",
    "divided in place",
    "framed",
    "unfold",
    "written to x and y",
)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 1e-5), long_unless(False, torch.float16, 4e-3)],
    ids=str,
)
@pytest.mark.parametrize("name", WITH_OPEN_SIZES)
def test_exports_of_open_sizes_that_are_optimized(name, dtype, tolerance):
    """Batch, height and width are open."""
    if name == "correlated" and dtype == torch.float16:
        pytest.skip("float16 may not hold the sums, although it holds the means")
    function, operator = WRITTEN[name]

    def inputs(n, h, w):
        image, flow = torch.rand(n, 3, h, w), 8 * torch.rand(n, 2, h + 3, w + 2)
        return image.to(dtype), flow.to(dtype)

    torch.manual_seed(0)
    settings = {"input_names": ["image", "flow"], "opset_version": 20}
    settings["dynamic_shapes"] = {
        "inputs": (dict.fromkeys((0, 2, 3), torch.export.Dim.DYNAMIC),) * 2
    }
    proto = exported(torch.onnx.export, Call(function), inputs(2, 9, 8), dynamo=True, **settings)
    optimized = onnx_ops.optimize(proto)
    assert operator in [node.op_type for node in optimized.graph.node]
    session = onnx_ops.InferenceSession(optimized.SerializeToString(), quiet())
    for size in ((2, 9, 8), (1, 13, 6)):
        values = dict(zip(("image", "flow"), inputs(*size), strict=True))
        (got,) = session.run(None, {i.name: values[i.name].numpy() for i in session.get_inputs()})
        expected = function(*(value.double() for value in values.values()))
        np.testing.assert_allclose(got, expected.numpy(), rtol=0, atol=tolerance)


def by_four_pixels(image, points, align_corners):
    """Sample an image at places in [-1, 1], or at pixels if align_corners is None; zeros are
    outside.
    """
    n, c, h, w = image.shape
    x, y = points[..., 0], points[..., 1]
    if align_corners is not None:
        x, y = (
            (v + 1) / 2 * (size - 1) if align_corners else ((v + 1) * size - 1) / 2
            for v, size in ((x, w), (y, h))
        )
    left, top, total = x.floor(), y.floor(), 0
    for column, row in ((left, top), (left + 1, top), (left, top + 1), (left + 1, top + 1)):
        inside = (column >= 0) & (column < w) & (row >= 0) & (row < h)
        weight = (1 - (x - column).abs()) * (1 - (y - row).abs()) * inside
        index = (row.long().clamp(0, h - 1) * w + column.long().clamp(0, w - 1)).flatten(1)
        pixels = image.flatten(2).gather(2, index[:, None].expand(-1, c, -1))
        total = total + pixels.view(n, c, *x.shape[1:]) * weight[:, None]
    return total


@pytest.mark.parametrize("align_corners", [None, False, True], ids=["pixels", "edges", "corners"])
@pytest.mark.parametrize("how", ["dynamo", "dynamo open", "torchscript"])
def test_exports_of_samplers_by_hand(how, align_corners):
    torch.manual_seed(0)
    image, points = torch.rand(2, 3, 9, 8), 4 * torch.rand(2, 12, 7, 2) - 2
    function = functools.partial(by_four_pixels, align_corners=align_corners)
    settings = {"input_names": ["image", "places"], "opset_version": 20}
    if "open" in how:
        dynamic = torch.export.Dim.DYNAMIC
        settings["dynamic_shapes"] = {
            "inputs": ({2: dynamic, 3: dynamic}, {1: dynamic, 2: dynamic})
        }
    proto = exported(
        torch.onnx.export, Call(function), (image, points), dynamo="dynamo" in how, **settings
    )
    optimized = onnx_ops.optimize(proto)
    operator = "ComputedGridSample" if align_corners is None else "GridSample"
    assert operator in [node.op_type for node in optimized.graph.node]
    assert not {"Floor", "GatherElements"} & {node.op_type for node in optimized.graph.node}
    session = onnx_ops.InferenceSession(optimized.SerializeToString(), quiet())
    for size in ((9, 8), (1, 5)) if "open" in how else ((9, 8),):
        values = {"image": torch.rand(2, 3, *size).numpy(), "places": points.numpy()}
        (got,) = session.run(None, values)
        np.testing.assert_allclose(
            got, function(*map(torch.from_numpy, values.values())).numpy(), 1e-4, 1e-5
        )


def warped(image, flow):
    """Sample an image at its pixels, moved by a flow."""
    height, width = image.shape[2:]
    pixels = torch.meshgrid(
        torch.arange(width).to(flow), torch.arange(height).to(flow), indexing="xy"
    )
    points = torch.stack(pixels) + 8 * flow
    grid = torch.stack([2 * points[:, 0] / width - 1, 2 * points[:, 1] / height - 1], -1)
    return torch.nn.functional.grid_sample(image, grid, align_corners=False)


def half(channels, out_channels, size=3):
    return torch.nn.Sequential(
        torch.nn.Conv2d(channels, out_channels, size, 2, size // 2), torch.nn.ReLU()
    )


class OpticalFlow(torch.nn.Module):
    """Features at a quarter of the size; their flow is enlarged by `how`."""

    multiple = 4

    def __init__(self, how):
        super().__init__()
        self.how, self.features, self.flow = (
            how,
            torch.nn.Sequential(half(6, 8), half(8, 8)),
            torch.nn.Conv2d(8, 2, 3, 1, 1),
        )
        self.enlarged = torch.nn.Sequential(
            *(torch.nn.ConvTranspose2d(2, 2, 4, 2, 1) for _ in range(2))
        )

    def forward(self, one, two):
        flow = self.flow(self.features(torch.cat([one, two], 1)))
        if self.how == "to a size":
            flow = torch.nn.functional.interpolate(flow, one.shape[2:], mode="bilinear")
        elif self.how == "by a factor":
            flow = torch.nn.functional.interpolate(flow, scale_factor=4, mode="bilinear")
        else:
            flow = self.enlarged(flow)
        return warped(two, flow)


class Registration(torch.nn.Module):
    """A U-Net with pools, skips and nearest neighbours, as VoxelMorph's."""

    multiple = 4

    def __init__(self):
        super().__init__()
        counts = (6, 8), (8, 8), (8, 8), (16, 8), (16, 2)
        self.convolutions = torch.nn.ModuleList(torch.nn.Conv2d(*each, 3, 1, 1) for each in counts)

    def forward(self, one, two):
        first, second, third, fourth, last = self.convolutions
        twice = torch.nn.Upsample(scale_factor=2)
        large = first(torch.cat([one, two], 1)).relu()
        middle = second(torch.nn.functional.max_pool2d(large, 2)).relu()
        small = third(torch.nn.functional.max_pool2d(middle, 2)).relu()
        middle = fourth(torch.cat([twice(small), middle], 1)).relu()
        return warped(one, last(torch.cat([twice(middle), large], 1)))


class Stereo(torch.nn.Module):
    """Disparities at a quarter of the size, which coarse features of the other image are warped
    by.
    """

    multiple = 1

    def __init__(self):
        super().__init__()
        self.features, self.disparity = (
            torch.nn.Sequential(half(3, 8, 5), half(8, 8)),
            torch.nn.Conv2d(16, 1, 3, 1, 1),
        )

    def forward(self, one, two):
        one, two = self.features(one), self.features(two)
        moved = self.disparity(torch.cat([one, two], 1))
        return warped(two, torch.cat([-moved, 0 * moved], 1))


FLOW_NETWORKS = {
    **{f"optical flow, enlarged {how}": lambda how=how: OpticalFlow(how)
       for how in ("to a size", "by a factor", "by convolutions")},
    "registration": Registration,
    "stereo": Stereo,
}  # fmt: skip


@pytest.mark.parametrize("dynamo", [long_unless(False, True), False], ids=["dynamo", "torchscript"])
@pytest.mark.parametrize(
    "name", [long_unless(name in ("registration", "stereo"), name) for name in FLOW_NETWORKS]
)
def test_flow_networks_of_open_sizes_are_optimized(name, dynamo):
    """Nothing is left between the network and the node that samples, as with fixed sizes."""
    if dynamo and torch.__version__.startswith("2.6."):
        if "enlarged to a size" in name or "by a factor" in name:
            pytest.skip("PyTorch 2.6 can't export interpolate with open sizes")
        if name == "stereo":
            pytest.skip(
                "PyTorch 2.6 writes the sizes behind a convolution as divisions of which the sign "
                "isn't known"
            )
    torch.manual_seed(0)
    model = FLOW_NETWORKS[name]().eval()
    settings = {"input_names": ["one", "two"], "opset_version": 20}
    if dynamo:
        size = {
            axis: model.multiple * torch.export.Dim("hw"[axis - 2], min=1, max=64)
            for axis in (2, 3)
        }
        settings["dynamic_shapes"] = (size, size)
    else:
        settings["dynamic_axes"] = {value: {2: "h", 3: "w"} for value in ("one", "two")}
    images = [[torch.rand(1, 3, *size) for _ in range(2)] for size in ((32, 48), (8, 20), (4, 4))]
    images += [[torch.rand(1, 3, *size) for _ in range(2)] for size in ((9, 23), (1, 2))] * (
        model.multiple == 1
    )
    optimized = onnx_ops.optimize(
        exported(torch.onnx.export, model, tuple(images[0]), dynamo=dynamo, **settings)
    )
    *_, last = (
        node for node in optimized.graph.node if node.op_type in ("Conv", "ConvTranspose", "Resize")
    )
    users = {node.op_type for node in optimized.graph.node if last.output[0] in node.input}
    assert users - {"Shape"} == {"ComputedGridSample"}
    assert_runs_alike(optimized, model, *images, tolerance=1e-4)
