"""Every case, on every backend, against the plain NumPy reference."""

import inspect
from typing import get_args, get_type_hints

import numpy as np
import pytest
from support.backends import BACKENDS, run_session
from support.cases import (
    ATTENTION,
    CASES,
    COL2IM,
    DEFORM_CONV,
    GRID_SAMPLE,
    GRID_SAMPLER,
    IM2COL,
    ROI_ALIGN,
    VOLUMES,
    assert_close,
    computed,
    grid_sample,
    model,
    reference,
)
from support.selection import few, long_unless

import onnx_ops
from onnx_ops.ahead import build
from onnx_ops.arrays import functions
from onnx_ops.declaration import dtypes
from onnx_ops.declaration.dtypes import INTEGERS

BY_PYTHON_OPS = "extensions", "lowered"  # their sessions take long to make
OTHERS = tuple(name for name in BACKENDS if name not in BY_PYTHON_OPS)
OPTIONS = {case.name: case.options for case in CASES}
FEW, FEWER = few(OPTIONS), few(OPTIONS, together=1)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("case", "backends"),
    [
        *(long_unless(c.name in FEW, c, OTHERS) for c in CASES),
        *(long_unless(c.name in FEWER, c, ("function", *BY_PYTHON_OPS)) for c in CASES),
    ],
    ids=str,
)
def test_every_backend_equals_the_reference(case, backends, dtype):
    """Those that run machine code agree to the last bit."""
    inputs = case.inputs(dtype)
    expected, outputs = (
        reference(case, inputs),
        {name: BACKENDS[name](case, inputs) for name in backends},
    )
    for name, y in outputs.items():
        assert_close(y, expected, dtype, name)
    for name in outputs.keys() - {"reference"}:
        np.testing.assert_array_equal(outputs[name], outputs["function"], name)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("case", [COL2IM[1], COL2IM[7]], ids=str)
def test_integers_wrap(backend, case, dtype):
    inputs = case.inputs(dtype)
    assert np.any(
        reference(case, [inputs[0].astype(np.float64), *inputs[1:]]) > np.iinfo(dtype).max
    )
    # Modulo 2**64 and then 2**bits is modulo 2**bits.
    widest = reference(case, [inputs[0].astype(np.uint64), *inputs[1:]])
    np.testing.assert_array_equal(backend(case, inputs), widest.astype(dtype))


NAN, INF = np.nan, np.inf
# What each pair of grid values (x, y) must read from the 2 x 3 image [[1, 2, 3], [4, 5, 6]], by
# padding mode.
FAR_COORDINATES = [
    ((1e10, -1e10), 0, 3), ((3e38, 3e38), 0, 6), ((-3e38, 0.9), 0, 4), ((INF, -0.9), 0, 3),
    ((-INF, INF), 0, 4),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("align_corners", [0, 1])
def test_far_coordinates(backend, mode, align_corners, dtype):
    """zeros and border hold for all coordinates, and the reference agrees, also on reflection."""
    x = np.arange(1, 7, dtype=dtype).reshape(1, 1, 2, 3)
    grid = np.array([place for place, *_ in FAR_COORDINATES], dtype).reshape(1, 1, -1, 2)
    for padding_mode in ("zeros", "border", "reflection"):
        attributes = {"mode": mode, "padding_mode": padding_mode, "align_corners": align_corners}
        case = grid_sample("far", (1, 1, 2, 3), (1, len(FAR_COORDINATES)), **attributes)
        y = backend(case, [x, grid])
        if padding_mode != "reflection":
            expected = [
                zeros if padding_mode == "zeros" else border for _, zeros, border in FAR_COORDINATES
            ]
            if mode != "nearest" and padding_mode == "border":
                # Here the other coordinate is an ordinary one, which interpolates.
                blended = [
                    i for i, (place, *_) in enumerate(FAR_COORDINATES) if 0.5 < abs(place[1]) < 1
                ]
                expected = [y[0, 0, 0, i] if i in blended else v for i, v in enumerate(expected)]
            np.testing.assert_allclose(y[0, 0, 0], expected, rtol=1e-6)
        assert_close(y, reference(case, [x, grid]), dtype)


def with_nan(grid, axis=1):
    """Return a grid with NaN here and there, and behind it along `axis` the grid with -1 there."""
    absent = np.random.default_rng(0).random(grid.shape) < 0.3
    return np.concatenate([np.where(absent, v, grid) for v in (NAN, -1)], axis).astype(grid.dtype)


WITH_NAN = [
    [*GRID_SAMPLE[k : k + 6], *VOLUMES[k : k + 6], *GRID_SAMPLER[m:][:6]]
    for k, m in ((0, 24), (6, 18), (12, 30))
]


@pytest.mark.parametrize("cases", WITH_NAN, ids=["nearest", "linear", "cubic"])
def test_nan_counts_as_minus_one(backend, cases):
    """In each padding mode, of images and volumes, and by mmdeploy's operator."""
    for case in cases:
        x, grid = case.inputs("float32")
        of_nan, of_minus_one = np.split(backend(case, [x, with_nan(grid)]), 2, axis=2)
        np.testing.assert_array_equal(of_nan, of_minus_one, str(case))


@pytest.mark.parametrize("align_corners", [0, 1])
@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_computed_coordinates_that_are_nan(backend, mode, align_corners):
    sources = {"u": (0, "n", 0, "h", "w"), "v": (0, "n", 1, "h", "w")}
    attributes = {"mode": mode, "align_corners": align_corners}
    case = computed("points", (1, 2, 5, 6), [(1, 2, 4, 9)], sources, {}, "uv", **attributes)
    x, places = case.inputs("float32")
    of_nan, of_minus_one = np.split(backend(case, [x, with_nan(places, 2)]), 2, axis=2)
    np.testing.assert_array_equal(of_nan, of_minus_one)


@pytest.mark.parametrize(
    "dtype", [long_unless(t in ("uint8", "string"), t) for t in (*INTEGERS, "bool", "string")]
)
def test_nan_of_images_that_are_no_floats(dtype):
    for case in GRID_SAMPLE[:6]:
        x, grid = case.inputs(dtype)[0], case.inputs("float32")[1]
        y = onnx_ops.grid_sample(x, with_nan(grid), **case.attributes)
        np.testing.assert_array_equal(*np.split(y, 2, axis=2))


@pytest.mark.parametrize(
    "grid_dtype", ["float32", *(long_unless(False, t) for t in ("float16", "bfloat16", "float64"))]
)
@pytest.mark.parametrize(
    "case", [c for cases in WITH_NAN for c in cases if c.op_type == "GridSample"], ids=str
)
def test_nan_of_each_type(case, grid_dtype):
    x, grid = case.inputs("float32")
    grid = with_nan(grid.astype(dtypes.TABLE[grid_dtype].numpy))
    np.testing.assert_array_equal(
        *np.split(onnx_ops.grid_sample(x, grid, **case.attributes), 2, axis=2)
    )


@pytest.mark.parametrize("case", GRID_SAMPLE[:18] + VOLUMES[:12], ids=str)
def test_nan_as_in_the_builtin_kernel(case):
    """Of the version that was tried; an older one may compute something else."""
    ort = pytest.importorskip("onnxruntime", "1.32")
    x, grid = case.inputs("float32")
    attributes = {**case.attributes, "mode": case.attributes["mode"].removeprefix("bi")}
    proto = model("", "GridSample", [x, with_nan(grid)], attributes)
    session = ort.InferenceSession(proto.SerializeToString())
    y = run_session(session, [x, with_nan(grid)])
    assert_close(onnx_ops.grid_sample(x, with_nan(grid), **case.attributes), y, "float32")


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_infinite_pixels_stay_where_they_are(backend, mode):
    """A sample must not read other pixels than its own, not even with a weight of zero."""
    x = np.zeros((1, 1, 8, 8), np.float32)
    x[..., 0, 0] = np.inf
    case = grid_sample("inf", x.shape, (5, 5), extent=3.0, mode=mode)
    grid = case.inputs("float32")[1]
    outside = grid[(np.abs(grid) > 1.6).any(-1)]
    y = backend(
        grid_sample("inf", x.shape, (1, len(outside)), mode=mode), [x, outside.reshape(1, 1, -1, 2)]
    )
    np.testing.assert_array_equal(y, 0)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize(
    "out", [(4, 5), (32, 32), (2, 3, 4), (8, 8, 8)], ids=str
)  # many images a block, or one
def test_channels_do_not_depend_on_each_other(out, mode, dtype):
    """Though some are read together: not on how many there are, nor on infinities.

    Sums in 16 bits are rounded once.
    """
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 8, *(5, 6, 7)[-len(out) :])).astype(dtype)
    x[1, 2, ..., 3, 4], x[2, 4] = np.inf, np.nan
    grid = rng.uniform(-1.3, 1.3, (3, *out, len(out))).astype(np.float32)
    alone = [onnx_ops.grid_sample(x[:, c : c + 1], grid, mode=mode) for c in range(x.shape[1])]
    for count in range(1, x.shape[1] + 1):
        together = onnx_ops.grid_sample(x[:, :count], grid, mode=mode)
        np.testing.assert_array_equal(together, np.concatenate(alone[:count], axis=1))
    of_float32 = onnx_ops.grid_sample(x.astype(np.float32), grid, mode=mode)
    np.testing.assert_array_equal(together, of_float32.astype(dtype))
    assert np.isfinite(alone[0]).all()
    assert np.isnan(alone[4][2]).any()


@pytest.mark.parametrize(("function", "case"), [
    (onnx_ops.col2im, COL2IM[7]), (onnx_ops.grid_sample, GRID_SAMPLE[2]),
    (onnx_ops.im2col, IM2COL[2]),
    (onnx_ops.deformable_attention, ATTENTION[1]),
    (onnx_ops.deform_conv, DEFORM_CONV[3]), (onnx_ops.roi_align, ROI_ALIGN[0]),
], ids=lambda each: getattr(each, "__name__", str(each)))  # fmt: skip
def test_any_memory_order_and_number_of_threads(function, case):
    """Functions take any NumPy array, never write to it, and give the same bits on any number of
    threads.
    """
    inputs = case.inputs("float32")
    first = inputs[0]
    expected = function(*inputs, threads=1, **case.attributes)
    shuffled = np.moveaxis(np.ascontiguousarray(np.moveaxis(first, 0, -1)), -1, 0)
    read_only = first.copy()
    read_only.flags.writeable = False
    swapped = first.astype(first.dtype.newbyteorder())
    for x in (shuffled, read_only, swapped, first.tolist() if first.dtype == float else first):
        for threads in (1, 2, 7):
            np.testing.assert_array_equal(
                function(x, *inputs[1:], threads=threads, **case.attributes), expected
            )


@pytest.mark.parametrize(
    "function", [f for f in vars(functions).values() if isinstance(f, functions.Function)]
)
def test_annotations_state_the_choices_of_strings(function):
    hints, attributes = get_type_hints(function.function), function.declaration.attributes
    choices = {a.name: set(a.choices) for a in attributes if a.choices}
    assert choices == {name: set(get_args(hints[name])) for name in choices}
    of_functions = inspect.signature(function.function).parameters
    assert not [name for name in of_functions if hints[name] is str]


def test_annotations_state_the_systems():
    assert get_args(build.SystemName) == tuple(build.SYSTEMS)
