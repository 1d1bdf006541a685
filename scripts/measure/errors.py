"""Measure the rounding errors of single nodes, in onnx_ops and in the other implementations.

python scripts/measure/errors.py           print the tables
python scripts/measure/errors.py --write   put them into the pages of the operators

An error is the largest difference of an element from the reference in float64, divided by the
largest magnitude of the reference. Inputs are those of the tests' cases. Implementations that are
not installed have no column.
"""

import argparse
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.metadata import version

import add_tests_to_path  # noqa: F401
import numpy as np
import onnx
import onnxruntime as ort
from support import cases, pages, peers
from support.backends import native, quiet

import onnx_ops

VERSIONS = {"ONNX Runtime": "onnxruntime", "PyTorch": "torch", "OpenVINO": "openvino"}
FAR = [[1e10, 0], [-3e38, 3e38], [0.5, -1e20], [3e38, 0.1]]  # coordinates outside of the image
FLOW = """<ir_version: 9, opset_import: ["" : 20]>
flow (float[1, 8, 48, 64] image, float[1, 48, 64, 2] pixels, float[2] scale, float[2] one)
=> (float[1, 8, 48, 64] y) {
    scaled = Mul (pixels, scale)
    grid = Sub (scaled, one)
    y = GridSample <align_corners = 1> (image, grid)
}"""


@dataclass
class Node:
    """A node of which a page shows the errors.

    inputs  its inputs; by default those of the case in float32
    calls   {implementation: function of the inputs}, where it isn't that of `peers`
    """

    page: str
    title: str
    case: cases.Case
    inputs: list[np.ndarray] = field(default_factory=list)
    calls: dict[str, Callable[..., np.ndarray]] = field(default_factory=dict)

    def runs(self) -> dict[str, Callable[[], np.ndarray]]:
        """Return {implementation: function that computes the node}."""
        inputs = self.inputs or self.case.inputs("float32")
        runs: dict[str, Callable[[], np.ndarray]] = {"onnx_ops": lambda: native(self.case, inputs)}
        for name, peer in peers.PEERS.items():
            if name in self.calls:
                runs[name] = lambda call=self.calls[name]: call(*inputs)
            else:
                runs[name] = lambda peer=peer: peer(self.case, inputs)()
        return runs

    def expected(self) -> np.ndarray:
        return cases.reference(self.case, self.inputs or self.case.inputs("float32"))


class Flow(Node):
    """A GridSample with the nodes that compute its grid from places in pixels."""

    def __init__(self) -> None:
        super().__init__(
            "computed_grid_sample", "places in pixels, linear, float32", cases.FUSED[0]
        )
        rng = np.random.default_rng(0)
        size = np.array([64, 48])
        self.arrays = {
            "image": rng.standard_normal((1, 8, 48, 64), np.float32),
            "pixels": (rng.random((1, 48, 64, 2)) * (size - 1)).astype(np.float32),
            "scale": (2 / (size - 1)).astype(np.float32),
            "one": np.ones(2, np.float32),
        }

    def runs(self) -> dict[str, Callable[[], np.ndarray]]:
        model = onnx.parser.parse_model(FLOW).SerializeToString()
        providers = ["CPUExecutionProvider"]
        runs: dict[str, Callable[[], np.ndarray]] = {
            "onnx_ops": lambda: onnx_ops.InferenceSession(model, quiet(), optimize=True).run(
                None, self.arrays
            )[0],
            "ONNX Runtime": lambda: ort.InferenceSession(model, quiet(), providers).run(
                None, self.arrays
            )[0],
            "PyTorch": self.by_torch,
            "OpenVINO": lambda: self.by_openvino(model),
        }
        return {name: run for name, run in runs.items() if name in ("onnx_ops", *peers.PEERS)}

    def by_torch(self) -> np.ndarray:
        import torch

        image, pixels, scale, one = map(torch.from_numpy, self.arrays.values())
        grid = pixels * scale - one
        return torch.nn.functional.grid_sample(image, grid, align_corners=True).numpy()

    def by_openvino(self, model: bytes) -> np.ndarray:
        import openvino

        settings = {"INFERENCE_PRECISION_HINT": "f32"}
        core = openvino.Core()
        compiled = core.compile_model(core.read_model(model, b""), "CPU", settings)
        return next(iter(compiled(self.arrays).values()))

    def expected(self) -> np.ndarray:
        image, pixels, scale, one = (a.astype(np.float64) for a in self.arrays.values())
        case = cases.grid_sample(
            "", image.shape, pixels.shape[1:3], domain="", mode="bilinear", align_corners=1
        )
        return cases.reference(case, [image, pixels * scale - one])


class NotMeasuredError(Exception):
    """An implementation has another form of the operator, which isn't called."""


def leave_out(*_: np.ndarray) -> np.ndarray:
    raise NotMeasuredError


OTHERS: dict[str, Callable[..., np.ndarray]] = {"PyTorch": leave_out, "OpenVINO": leave_out}


def named(table: list[cases.Case], name: str) -> cases.Case:
    return next(case for case in table if case.name == name)


def product_by_torch(x: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Compute the case "correlation": columns times factors, added up over the channels."""
    import torch

    columns = torch.nn.functional.unfold(torch.from_numpy(x), (9, 9), padding=4)
    products = columns.reshape(1, 64, 81, -1) * torch.from_numpy(factors)[:, :, None]
    return products.sum(1).numpy()


def builtin_roi_align(case: cases.Case) -> Callable[..., np.ndarray]:
    """Return a function that runs the node by ONNX Runtime's kernel, which is of opset 16."""

    def run(*inputs: np.ndarray) -> np.ndarray:
        proto = cases.model("", "RoiAlign", inputs, case.attributes, opset=21)
        session = ort.InferenceSession(proto.SerializeToString(), quiet(), ["CPUExecutionProvider"])
        feeds = zip((i.name for i in session.get_inputs()), inputs, strict=True)
        return session.run(None, dict(feeds))[0]

    return run


def floats(
    page: str, title: str, case: cases.Case, calls: dict[str, Callable[..., np.ndarray]]
) -> list[Node]:
    """Return the node in float32, float16 and float64."""
    return [
        Node(page, f"{title}, {dtype}", case, case.inputs(dtype), calls)
        for dtype in ("float32", "float16", "float64")
    ]


def of_mmcv() -> list[Node]:
    """Return operators of mmcv beside the operators of ai.onnx that compute the same."""
    sampler = named(cases.GRID_SAMPLER, "mmcv_0_0_0")
    modes = {"mode": "bilinear", "padding_mode": "zeros", "align_corners": 0}
    sample = cases.Case("", "", "GridSample", sampler.shapes, modes)
    regions = named(cases.MMCV_ROI_ALIGN, "mmcv_avg_1_2")
    pool = named(cases.ROI_ALIGN, "regions_avg_half_2")

    def pooled(x: np.ndarray, rois: np.ndarray) -> np.ndarray:
        return builtin_roi_align(pool)(x, rois[:, 1:], rois[:, 0].astype(np.int64))

    samplers = {
        name: lambda *inputs, peer=peer: peer(sample, inputs)()
        for name, peer in peers.PEERS.items()
    }
    return [
        Node("mmdeploy", "grid_sampler, linear", sampler, calls=samplers),
        Node("mmdeploy", "MMCVRoiAlign, avg", regions, calls=OTHERS | {"ONNX Runtime": pooled}),
    ]


def in_ai_onnx(name: str, table: list[cases.Case] = cases.GRID_SAMPLE) -> cases.Case:
    return replace(named(table, name), domain="")


def far() -> Node:
    """Return a GridSample with coordinates far outside of the image."""
    case = in_ai_onnx("bilinear_border_edges")
    x, grid = case.inputs("float32")
    grid[0, 0, :4] = FAR
    return Node("grid_sample", "border, coordinates from 1e10 on", case, [x, grid])


def nodes() -> list[Node]:
    overlapping = named(cases.COL2IM, "overlapping")
    unfold = named(cases.IM2COL, "unfold_same_size")
    linear = in_ai_onnx("bilinear_zeros_edges")
    regions = named(cases.ROI_ALIGN, "regions_avg_half_2")
    largest = named(cases.ROI_ALIGN, "regions_max_half_2")
    correlation = named(cases.IM2COL_PRODUCT, "product_correlation_channels")
    return [
        *floats("col2im", "2-D", overlapping, {}),
        Node("col2im", "1-D, dilated", named(cases.COL2IM, "1d_dilated")),
        Node("col2im", "3-D, dilated", named(cases.COL2IM, "3d_dilated")),
        Node("im2col", "2-D, float32", unfold),
        Node("im2col_product", "81 positions of 64 channels, float32", correlation,
             calls={"PyTorch": product_by_torch}),
        *floats("grid_sample", "linear", linear, {}),
        Node("grid_sample", "cubic, float32", in_ai_onnx("bicubic_zeros_edges")),
        Node("grid_sample", "linear, volume, float32",
             named(cases.VOLUMES, "volume_linear_border_edges")),
        far(),
        Flow(),
        Node("roi_align", "avg, float32", regions,
             calls=OTHERS | {"ONNX Runtime": builtin_roi_align(regions)}),
        Node("roi_align", "max, float32", largest,
             calls=OTHERS | {"ONNX Runtime": builtin_roi_align(largest)}),
        *floats("deform_conv", "2-D", cases.DEFORM_CONV[0], {}),
        *floats("deformable_attention", "3 levels", cases.ATTENTION[0], {}),
        *of_mmcv(),
    ]  # fmt: skip


def error_of(run: Callable[[], np.ndarray], expected: np.ndarray) -> str:
    """Return the error of a result as text, or why there is none."""
    try:
        got = run()
    except (ImportError, NotMeasuredError):
        return "not measured"
    except Exception:
        return "refused"
    difference = np.abs(got.astype(np.float64) - expected).max()
    if np.isnan(difference):
        return "NaN"
    return f"{difference / np.abs(expected).max():.1e}" if difference else "0"


def table(shown: list[Node]) -> str:
    """Return the table of nodes of one page."""
    names = ["onnx_ops", *peers.PEERS]
    titles = [f"{n} {version(VERSIONS[n]).split('+')[0]}" if n in VERSIONS else n for n in names]
    rows = []
    for node in shown:
        expected, runs = node.expected(), node.runs()
        errors = [error_of(runs[name], expected) for name in names]
        rows.append(f"| {node.title} | {' | '.join(errors)} |")
    heading = f"| largest error | {' | '.join(titles)} |\n|---|{'---:|' * len(titles)}"
    return "\n".join([heading, *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put the tables into the pages")
    warnings.simplefilter("ignore")
    write = parser.parse_args().write
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 2)  # runtimes print errors about what they lack
    shown = nodes()
    for page in dict.fromkeys(node.page for node in shown):
        text = table([node for node in shown if node.page == page])
        print(f"{page}\n\n{text}\n")
        if write:
            pages.put("errors", text, f"docs/{page}.md")


if __name__ == "__main__":
    main()
