"""The table of who can run what, from runs: each cell is a call that was made and compared with the
float64 reference.

python scripts/generate/capabilities.py           print it
python scripts/generate/capabilities.py --write   put it into docs/comparison.md

PyTorch and OpenVINO have a column if they are installed.
"""

import argparse
import os
import warnings
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec

import add_tests_to_path  # noqa: F401
import numpy as np
from support import pages, peers
from support.backends import function, native
from support.cases import (
    ATTENTION,
    COL2IM,
    DEFORM_CONV,
    GRID_SAMPLE,
    IM2COL,
    VOLUMES,
    assert_close,
    expected_of,
)

from onnx_ops.declaration import dtypes


def find_case(cases, name):
    return next(c for c in cases if c.name == name)


def far_coordinates(case):
    """The case's inputs, with some finite coordinates far outside of the image."""
    x, grid = case.inputs("float32")
    grid[0, 0, :4] = [[1e10, 0], [-3e38, 3e38], [0.5, -1e20], [3e38, 0.1]]
    return [x, grid]


def not_finite(case):
    """The inputs of a case of DeformConv, with some offsets that are none."""
    inputs = case.inputs("float32")
    inputs[2].flat[:3] = np.nan, np.inf, -np.inf
    return inputs


def in_ai_onnx(case):
    return replace(case, domain="")


BORDER = find_case(GRID_SAMPLE, "bilinear_border_edges")
NEAREST = find_case(GRID_SAMPLE, "nearest_zeros_edges")
OVERLAPPING, DILATED = find_case(COL2IM, "overlapping"), find_case(COL2IM, "dilated")
SAME_SIZE = find_case(IM2COL, "unfold_same_size")
# (operator, what, case, inputs)
ROWS = [
    *(
        ("Col2Im", t, OVERLAPPING, OVERLAPPING.inputs(t))
        for t in (*dtypes.FLOATS, "int32", "bool", "string", "complex64")
    ),
    ("Col2Im", "asymmetric pads", find_case(COL2IM, "asymmetric_pads"), None),
    ("Col2Im", "2-D, dilated", DILATED, None),
    ("Col2Im", "1-D", find_case(COL2IM, "1d"), None),
    ("Col2Im", "1-D, dilated", find_case(COL2IM, "1d_dilated"), None),
    ("Col2Im", "3-D", find_case(COL2IM, "3d"), None),
    ("Col2Im", "3-D, dilated", find_case(COL2IM, "3d_dilated"), None),
    ("Col2Im", "4-D", find_case(COL2IM, "4d"), None),
    *(
        ("Im2Col", t, SAME_SIZE, SAME_SIZE.inputs(t))
        for t in (*dtypes.FLOATS, "int32", "bool", "string", "complex64")
    ),
    ("Im2Col", "asymmetric pads", find_case(IM2COL, "unfold_asymmetric_pads"), None),
    ("Im2Col", "1-D", find_case(IM2COL, "unfold_1d"), None),
    ("Im2Col", "3-D", find_case(IM2COL, "unfold_3d"), None),
    ("Im2Col", "4-D", find_case(IM2COL, "unfold_4d"), None),
    *(("GridSample, com.microsoft", t, BORDER, BORDER.inputs(t)) for t in dtypes.FLOATS),
    *(("GridSample, ai.onnx", t, in_ai_onnx(BORDER), BORDER.inputs(t)) for t in dtypes.FLOATS),
    (
        "GridSample, ai.onnx",
        "float16, grid float32",
        in_ai_onnx(BORDER),
        BORDER.inputs("float16", "float32"),
    ),
    *(
        ("GridSample, ai.onnx", f"nearest, {t}", in_ai_onnx(NEAREST), NEAREST.inputs(t, "float32"))
        for t in ("uint8", "int64", "bool", "string")
    ),
    (
        "GridSample, ai.onnx",
        "cubic",
        in_ai_onnx(find_case(GRID_SAMPLE, "bicubic_reflection_corners")),
        None,
    ),
    (
        "GridSample, ai.onnx",
        "coordinates far outside, border",
        in_ai_onnx(BORDER),
        far_coordinates(BORDER),
    ),
    (
        "GridSample, ai.onnx",
        "volume, nearest",
        find_case(VOLUMES, "volume_nearest_border_edges"),
        None,
    ),
    (
        "GridSample, ai.onnx",
        "volume, linear",
        find_case(VOLUMES, "volume_linear_border_edges"),
        None,
    ),
    ("GridSample, ai.onnx", "volume, cubic", find_case(VOLUMES, "volume_cubic_border_edges"), None),
    *(
        ("MultiScaleDeformableAttention", t, ATTENTION[0], ATTENTION[0].inputs(t))
        for t in dtypes.FLOATS
    ),
    (
        "MultiScaleDeformableAttention",
        "locations in float64",
        ATTENTION[0],
        ATTENTION[0].inputs("float32", "float64"),
    ),
    *(("DeformConv", t, DEFORM_CONV[0], DEFORM_CONV[0].inputs(t)) for t in dtypes.FLOATS),
    (
        "DeformConv",
        "mask and bias, several groups",
        find_case(DEFORM_CONV, "deform_in_fewer_groups_than_offsets"),
        None,
    ),
    ("DeformConv", "asymmetric pads", find_case(DEFORM_CONV, "deform_mostly_padding"), None),
    ("DeformConv", "offsets far outside", find_case(DEFORM_CONV, "deform_far_out"), None),
    ("DeformConv", "offsets that are NaN and infinite", DEFORM_CONV[0], not_finite(DEFORM_CONV[0])),
    ("DeformConv", "1-D", find_case(DEFORM_CONV, "deform_1d"), None),
    ("DeformConv", "3-D", find_case(DEFORM_CONV, "deform_3d"), None),
    ("MMCVModulatedDeformConv2d", "float32", find_case(DEFORM_CONV, "modulated"), None),
    ("MMCVDeformConv2d", "float32", find_case(DEFORM_CONV, "plain"), None),
]


def cell(runner, case, inputs):
    """Return "yes", "wrong", "no" if the call is refused, or "inexact" if it is off by less than 1
    %.
    """
    try:
        got = runner(case, inputs)
    except Exception:
        if runner is not native:
            return "no"
        got, verdict = function(case, inputs), "functions only"
    else:
        verdict = "yes"
    expected, dtype = expected_of(case, inputs), dtypes.name_of(inputs[0])
    try:
        assert_close(got, expected, dtype)
    except AssertionError:
        if dtype not in dtypes.FLOATS or got.shape != expected.shape:
            return "**wrong**"
        error = np.abs(got.astype(np.float64) - expected).max() / np.abs(expected).max()
        return "inexact" if error < 0.01 else "**wrong**"
    return verdict


def call_peer(peer, case, inputs):
    return peer(case, inputs)()


def table():
    runners = {name: partial(call_peer, peer) for name, peer in peers.PEERS.items()} | {
        "onnx_ops": native
    }
    yield f"| operator | case | {' | '.join(runners)} |"
    yield f"|---|---|{'---|' * len(runners)}"
    for operator, feature, case, inputs in ROWS:
        cells = [cell(r, case, inputs or case.inputs("float32")) for r in runners.values()]
        yield f"| {operator} | {feature} | {' | '.join(cells)} |"
    names = ("onnxruntime", "torch", "torchvision", "openvino")
    versions = [f"{name} {version(name)}" for name in names if find_spec(name)]
    yield f"\nVersions: {', '.join(versions)}."


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--write", action="store_true", help="put the table into docs/comparison.md"
    )
    warnings.simplefilter("ignore")
    write = parser.parse_args().write
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 2)  # runtimes print errors about what they lack
    lines = "\n".join(table())
    print(lines)
    if write:
        pages.put("capabilities", lines, "docs/comparison.md")


if __name__ == "__main__":
    main()
