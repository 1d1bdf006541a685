"""Every case, on every backend, against the plain NumPy reference."""

import inspect
from typing import get_args, get_type_hints

import numpy as np
import pytest
from support.backends import BACKENDS, run_session
from support.cases import (
    CASES,
    GRID_SAMPLE_OPTIONS,
    GRID_SAMPLER,
    ROI_ALIGN,
    VOLUMES_OPTIONS,
    assert_close,
    case_named,
    computed,
    expected_of,
    grid_sample,
    model,
)
from support.selection import each_dtype, each_in_turn, each_mode, few, long_unless

import onnx_ops
from onnx_ops.ahead import build
from onnx_ops.arrays import functions
from onnx_ops.declaration import dtypes
from onnx_ops.declaration.dtypes import INTEGERS

# Cases of the short run, which together have each option; the long run has all of them.
FEW = few({case.name: case.axes for case in CASES}, together=1)


@each_dtype("float32", "float64")
@pytest.mark.parametrize("case", [long_unless(c.name in FEW, c) for c in CASES], ids=str)
def test_every_backend_equals_the_reference(case, dtype):
    """All are close to the operator's NumPy function. All but the backend `reference`, which runs
    that function in a model, run the same machine code and agree to the last bit.
    """
    inputs = case.inputs(dtype)
    expected = expected_of(case, inputs)
    outputs = {backend: run(case, inputs) for backend, run in BACKENDS.items()}
    for backend, y in outputs.items():
        assert_close(y, expected, dtype, backend)
        if backend != "reference":
            np.testing.assert_array_equal(y, outputs["function"], backend)


@each_dtype(*INTEGERS)
@pytest.mark.parametrize("case", [case_named("overlapping"), case_named("everything")], ids=str)
def test_integers_wrap(run, case, dtype):
    inputs = case.inputs(dtype)
    assert np.any(
        expected_of(case, [inputs[0].astype(np.float64), *inputs[1:]]) > np.iinfo(dtype).max
    )
    # Modulo 2**64 and then 2**bits is modulo 2**bits.
    widest = expected_of(case, [inputs[0].astype(np.uint64), *inputs[1:]])
    np.testing.assert_array_equal(run(case, inputs), widest.astype(dtype))


NAN, INF = np.nan, np.inf
# What each pair of grid values (x, y) must read from the 2 x 3 image [[1, 2, 3], [4, 5, 6]], by
# padding mode.
FAR_COORDINATES = [
    ((1e10, -1e10), 0, 3), ((3e38, 3e38), 0, 6), ((-3e38, 0.9), 0, 4), ((INF, -0.9), 0, 3),
    ((-INF, INF), 0, 4),
]  # fmt: skip


@each_dtype("float32", "float64")
@each_mode()
def test_far_coordinates(run, mode, align_corners, dtype):
    """zeros and border hold for all coordinates, and the reference agrees, also on reflection."""
    x = np.arange(1, 7, dtype=dtype).reshape(1, 1, 2, 3)
    grid = np.array([place for place, *_ in FAR_COORDINATES], dtype).reshape(1, 1, -1, 2)
    for padding_mode in ("zeros", "border", "reflection"):
        attributes = {"mode": mode, "padding_mode": padding_mode, "align_corners": align_corners}
        case = grid_sample("far", (1, 1, 2, 3), (1, len(FAR_COORDINATES)), **attributes)
        y = run(case, [x, grid])
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
        assert_close(y, expected_of(case, [x, grid]), dtype)


def with_nan(grid, axis=1):
    """Return a grid with NaN here and there, and behind it along `axis` the grid with -1 there."""
    absent = np.random.default_rng(0).random(grid.shape) < 0.3
    return np.concatenate([np.where(absent, v, grid) for v in (NAN, -1)], axis).astype(grid.dtype)


MODES = [("nearest", "nearest", 1), ("bilinear", "linear", 0), ("bicubic", "cubic", 2)]
WITH_NAN = [  # for each mode, by its three names
    [c for c in GRID_SAMPLE_OPTIONS if c.attributes["mode"] == mode]
    + [c for c in VOLUMES_OPTIONS if c.attributes["mode"] == of_volumes]
    + [
        c
        for c in GRID_SAMPLER
        if (c.domain, c.attributes["interpolation_mode"]) == ("mmdeploy", of_mmdeploy)
    ]
    for mode, of_volumes, of_mmdeploy in MODES
]


@each_in_turn(range(3), "mode")
def test_nan_counts_as_minus_one(run, mode):
    """In each padding mode, of images and volumes, and by mmdeploy's operator."""
    for case in WITH_NAN[mode]:
        x, grid = case.inputs("float32")
        of_nan, of_minus_one = np.split(run(case, [x, with_nan(grid)]), 2, axis=2)
        np.testing.assert_array_equal(of_nan, of_minus_one, str(case))


@each_mode()
def test_computed_coordinates_that_are_nan(run, mode, align_corners):
    sources = {"u": (0, "n", 0, "h", "w"), "v": (0, "n", 1, "h", "w")}
    attributes = {"mode": mode, "align_corners": align_corners}
    case = computed("points", (1, 2, 5, 6), [(1, 2, 4, 9)], sources, {}, "uv", **attributes)
    x, places = case.inputs("float32")
    of_nan, of_minus_one = np.split(run(case, [x, with_nan(places, 2)]), 2, axis=2)
    np.testing.assert_array_equal(of_nan, of_minus_one)


@pytest.mark.parametrize(
    "dtype", [long_unless(t in ("uint8", "string"), t) for t in (*INTEGERS, "bool", "string")]
)
def test_nan_of_images_that_are_no_floats(dtype):
    for case in GRID_SAMPLE_OPTIONS:
        if case.attributes["mode"] != "nearest":
            continue
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


@pytest.mark.parametrize(
    "case",
    GRID_SAMPLE_OPTIONS + [c for c in VOLUMES_OPTIONS if c.attributes["mode"] != "cubic"],
    ids=str,
)
def test_nan_as_in_the_builtin_kernel(case):
    """Of the version that was tried; an older one may compute something else."""
    ort = pytest.importorskip("onnxruntime", "1.32")
    x, grid = case.inputs("float32")
    attributes = {**case.attributes, "mode": case.attributes["mode"].removeprefix("bi")}
    proto = model("", "GridSample", [x, with_nan(grid)], attributes)
    session = ort.InferenceSession(proto.SerializeToString())
    y = run_session(session, [x, with_nan(grid)])
    assert_close(onnx_ops.grid_sample(x, with_nan(grid), **case.attributes), y, "float32")


@each_in_turn(["nearest", "bilinear", "bicubic"], "mode")
def test_infinite_pixels_stay_where_they_are(run, mode):
    """A sample must not read other pixels than its own, not even with a weight of zero."""
    x = np.zeros((1, 1, 8, 8), np.float32)
    x[..., 0, 0] = np.inf
    case = grid_sample("inf", x.shape, (5, 5), extent=3.0, mode=mode)
    grid = case.inputs("float32")[1]
    outside = grid[(np.abs(grid) > 1.6).any(-1)]
    y = run(
        grid_sample("inf", x.shape, (1, len(outside)), mode=mode), [x, outside.reshape(1, 1, -1, 2)]
    )
    np.testing.assert_array_equal(y, 0)


@each_dtype("float32", "float16")
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


OF_FUNCTIONS = [
    (onnx_ops.col2im, case_named("everything")),
    (onnx_ops.grid_sample, case_named("nearest_border_edges")),
    (onnx_ops.im2col, case_named("unfold_everything")),
    (onnx_ops.deformable_attention, case_named("attention_of_a_network")),
    (onnx_ops.deform_conv, case_named("deform_of_more_than_a_block")),
    (onnx_ops.roi_align, ROI_ALIGN[0]),
]


@pytest.mark.parametrize(
    ("function", "case"), OF_FUNCTIONS, ids=lambda v: getattr(v, "__name__", str(v))
)
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
    for x in (shuffled, read_only, swapped):
        for threads in (1, 2, 7):
            np.testing.assert_array_equal(
                function(x, *inputs[1:], threads=threads, **case.attributes), expected
            )


@pytest.mark.long  # the kernels for float64 are compiled for this test alone
@pytest.mark.parametrize(
    ("function", "case"), OF_FUNCTIONS, ids=lambda v: getattr(v, "__name__", str(v))
)
def test_lists_are_arrays_of_float64(function, case):
    inputs = case.inputs("float64")
    expected = function(*inputs, **case.attributes)
    got = function(inputs[0].tolist(), *inputs[1:], **case.attributes)
    assert got.dtype == np.float64
    np.testing.assert_array_equal(got, expected)


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
