"""The table of who can run what, from runs: each cell is a call that was made and compared with the float64 reference.

python scripts/capabilities.py           print it
python scripts/capabilities.py --write   put it into README.md

PyTorch and OpenVINO have a column if they are installed.
"""

import argparse
import importlib.util
import os
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime as ort

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from backends import function, native, output_shape, quiet, run  # noqa: E402
from cases import COL2IM, GRID_SAMPLE, VOLUMES, assert_close, model, reference  # noqa: E402

from onnx_ops import dtypes  # noqa: E402

MARK = "<!-- capabilities -->"
OLDER_NAMES = {"linear": "bilinear", "cubic": "bicubic"}


def named(cases, name):
    return next(c for c in cases if c.name == name)


def far(case):
    """The case's inputs with coordinates that are finite but far out."""
    x, grid = case.inputs("float32")
    grid[0, 0, :4] = [[1e10, 0], [-3e38, 3e38], [0.5, -1e20], [3e38, 0.1]]
    return [x, grid]


def on_ai_onnx(case):
    return replace(case, domain="")


BORDER = named(GRID_SAMPLE, "bilinear_border_edges")
NEAREST = named(GRID_SAMPLE, "nearest_zeros_edges")
OVERLAPPING, DILATED = named(COL2IM, "overlapping"), named(COL2IM, "dilated")
# (operator, what, case, inputs)
ROWS = [
    *(
        ("Col2Im", t, OVERLAPPING, OVERLAPPING.inputs(t))
        for t in (*dtypes.FLOATS, "int32", "bool", "string", "complex64")
    ),
    ("Col2Im", "asymmetric pads", named(COL2IM, "asymmetric_pads"), None),
    ("Col2Im", "2-D, dilated", DILATED, None),
    ("Col2Im", "1-D", named(COL2IM, "1d"), None),
    ("Col2Im", "1-D, dilated", named(COL2IM, "1d_dilated"), None),
    ("Col2Im", "3-D", named(COL2IM, "3d"), None),
    ("Col2Im", "3-D, dilated", named(COL2IM, "3d_dilated"), None),
    ("Col2Im", "4-D", named(COL2IM, "4d"), None),
    *(("GridSample, com.microsoft", t, BORDER, BORDER.inputs(t)) for t in dtypes.FLOATS),
    *(("GridSample, ai.onnx", t, on_ai_onnx(BORDER), BORDER.inputs(t)) for t in dtypes.FLOATS),
    ("GridSample, ai.onnx", "float16, grid float32", on_ai_onnx(BORDER), BORDER.inputs("float16", "float32")),
    *(
        ("GridSample, ai.onnx", f"nearest, {t}", on_ai_onnx(NEAREST), NEAREST.inputs(t, "float32"))
        for t in ("uint8", "int64", "bool", "string")
    ),
    ("GridSample, ai.onnx", "cubic", on_ai_onnx(named(GRID_SAMPLE, "bicubic_reflection_corners")), None),
    ("GridSample, ai.onnx", "coordinates far outside, border", on_ai_onnx(BORDER), far(BORDER)),
    ("GridSample, ai.onnx", "volume, nearest", named(VOLUMES, "volume_nearest_border_edges"), None),
    ("GridSample, ai.onnx", "volume, linear", named(VOLUMES, "volume_linear_border_edges"), None),
    ("GridSample, ai.onnx", "volume, cubic", named(VOLUMES, "volume_cubic_border_edges"), None),
]


def builtin(case, inputs):
    attributes = dict(case.attributes)
    if case.op_type == "GridSample" and not case.domain:
        attributes["mode"] = {older: newer for newer, older in OLDER_NAMES.items()}.get(
            attributes["mode"], attributes["mode"]
        )
    proto = model(case.domain, case.op_type, inputs, attributes, opset=22)
    return run(ort.InferenceSession(proto.SerializeToString(), quiet()), inputs, output_shape(case, inputs))


def pytorch(case, inputs):
    import torch

    first, *others = (torch.from_numpy(v.view(np.uint16)).view(torch.bfloat16) if v.dtype.name == "bfloat16"
                      else torch.from_numpy(v) for v in inputs)  # fmt: skip
    settings = dict(case.attributes)
    if case.op_type == "Col2Im":
        image, block = (v.tolist() for v in others)
        pads = np.array(settings.get("pads", [0] * 2 * len(image))).reshape(2, -1)
        if (pads[0] != pads[1]).any():
            raise NotImplementedError("pads differ")
        y = torch.nn.functional.fold(
            first, image, block, settings.get("dilations", 1), pads[0].tolist(), settings.get("strides", 1)
        )
    else:
        settings["mode"] = OLDER_NAMES.get(settings["mode"], settings["mode"])
        settings["align_corners"] = bool(settings["align_corners"])
        y = torch.nn.functional.grid_sample(first, others[0], **settings)
    return y.view(torch.uint16).numpy().view(inputs[0].dtype) if y.dtype == torch.bfloat16 else y.numpy()


def openvino(case, inputs):
    import openvino as ov
    import openvino.opset15 as opset

    settings, first = dict(case.attributes), opset.parameter(inputs[0].shape, ov.Type(inputs[0].dtype))
    if case.op_type == "Col2Im":
        pads = settings.pop("pads", [0] * 2 * len(inputs[1]))
        half = len(pads) // 2
        parameters, sizes = [first], (opset.constant(v) for v in inputs[1:])
        node = opset.col2im(first, *sizes, pads_begin=pads[:half], pads_end=pads[half:], **settings)
    else:
        parameters = [first, opset.parameter(inputs[1].shape, ov.Type(inputs[1].dtype))]
        settings["align_corners"] = bool(settings["align_corners"])
        settings["mode"] = OLDER_NAMES.get(settings["mode"], settings["mode"])
        node = opset.grid_sample(*parameters, settings)
    call = ov.compile_model(ov.Model([node], parameters), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return next(iter(call(inputs[: len(parameters)]).values()))


def cell(runner, case, inputs):
    """yes; or inexact: up to a hundredth off, as by a coordinate in too few bits; or wrong; or no, it is refused."""
    try:
        got = runner(case, inputs)
    except Exception:
        if runner is not native:
            return "no"
        got, where = function(case, inputs), "functions only"
    else:
        where = "yes"
    expected, dtype = reference(case, inputs), dtypes.name_of(inputs[0])
    try:
        assert_close(got, expected, dtype)
    except AssertionError:
        if dtype not in dtypes.FLOATS or got.shape != expected.shape:
            return "**wrong**"
        error = np.abs(got.astype(np.float64) - expected).max() / np.abs(expected).max()
        return "inexact" if error < 0.01 else "**wrong**"
    return where


def table():
    runners = {"ONNX Runtime": builtin, "PyTorch": pytorch, "OpenVINO": openvino, "onnx_ops": native}
    installed = {"PyTorch": "torch", "OpenVINO": "openvino"}
    runners = {n: r for n, r in runners.items() if n not in installed or importlib.util.find_spec(installed[n])}
    yield f"| operator | case | {' | '.join(runners)} |"
    yield f"|---|---|{'---|' * len(runners)}"
    for operator, what, case, inputs in ROWS:
        cells = [cell(r, case, inputs or case.inputs("float32")) for r in runners.values()]
        yield f"| {operator} | {what} | {' | '.join(cells)} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put the table into README.md")
    warnings.simplefilter("ignore")
    write = parser.parse_args().write
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 2)  # what the runtimes have to say about what they lack
    lines = "\n".join(table())
    print(lines)
    if write:
        readme = ROOT / "README.md"
        before, _, after = readme.read_text().split(MARK)
        readme.write_text(f"{before}{MARK}\n{lines}\n{MARK}{after}")


if __name__ == "__main__":
    main()
