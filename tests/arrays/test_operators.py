"""Every case, on every backend, against the plain NumPy reference."""

import inspect
from typing import get_args, get_type_hints

import numpy as np
import pytest
from support.backends import BACKENDS
from support.cases import (
    ATTENTION,
    CASES,
    COL2IM,
    DEFORM_CONV,
    GRID_SAMPLE,
    IM2COL,
    ROI_ALIGN,
    assert_close,
    grid_sample,
    reference,
)
from support.selection import few, long_unless

import onnx_ops
from onnx_ops.ahead import build
from onnx_ops.arrays import functions
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
    expected, outputs = reference(case, inputs), {name: BACKENDS[name](case, inputs) for name in backends}
    for name, y in outputs.items():
        assert_close(y, expected, dtype, name)
    for name in outputs.keys() - {"reference"}:
        np.testing.assert_array_equal(outputs[name], outputs["function"], name)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("case", [COL2IM[1], COL2IM[7]], ids=str)
def test_integers_wrap(backend, case, dtype):
    inputs = case.inputs(dtype)
    assert np.any(reference(case, [inputs[0].astype(np.float64), *inputs[1:]]) > np.iinfo(dtype).max)
    # Modulo 2**64 and then 2**bits is modulo 2**bits.
    widest = reference(case, [inputs[0].astype(np.uint64), *inputs[1:]])
    np.testing.assert_array_equal(backend(case, inputs), widest.astype(dtype))


NAN, INF = np.nan, np.inf
# What each pair of grid values (x, y) must read from the 2 x 3 image [[1, 2, 3], [4, 5, 6]], by padding mode.
FAR_COORDINATES = [
    ((1e10, -1e10), 0, 3), ((3e38, 3e38), 0, 6), ((-3e38, 0.9), 0, 4), ((INF, -0.9), 0, 3), ((-INF, INF), 0, 4),
    ((NAN, 0), 0, 0), ((0, NAN), 0, 0), ((NAN, NAN), 0, 0), ((INF, NAN), 0, 0),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("align_corners", [0, 1])
def test_far_and_meaningless_coordinates(backend, mode, align_corners, dtype):
    """zeros and border hold for all coordinates, NaN reads nothing, and the reference agrees, also on reflection."""
    x = np.arange(1, 7, dtype=dtype).reshape(1, 1, 2, 3)
    grid = np.array([place for place, *_ in FAR_COORDINATES], dtype).reshape(1, 1, -1, 2)
    for padding_mode in ("zeros", "border", "reflection"):
        attributes = {"mode": mode, "padding_mode": padding_mode, "align_corners": align_corners}
        case = grid_sample("far", (1, 1, 2, 3), (1, len(FAR_COORDINATES)), **attributes)
        y = backend(case, [x, grid])
        if padding_mode != "reflection":
            expected = [zeros if padding_mode == "zeros" else border for _, zeros, border in FAR_COORDINATES]
            if mode != "nearest" and padding_mode == "border":
                # Here the other coordinate is an ordinary one, which interpolates.
                blended = [i for i, (place, *_) in enumerate(FAR_COORDINATES) if 0.5 < abs(place[1]) < 1]
                expected = [y[0, 0, 0, i] if i in blended else v for i, v in enumerate(expected)]
            np.testing.assert_allclose(y[0, 0, 0], expected, rtol=1e-6)
        assert_close(y, reference(case, [x, grid]), dtype)


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_infinite_pixels_stay_where_they_are(backend, mode):
    """A sample must not read other pixels than its own, not even with a weight of zero."""
    x = np.zeros((1, 1, 8, 8), np.float32)
    x[..., 0, 0] = np.inf
    case = grid_sample("inf", x.shape, (5, 5), extent=3.0, mode=mode)
    grid = case.inputs("float32")[1]
    outside = grid[(np.abs(grid) > 1.6).any(-1)]
    y = backend(grid_sample("inf", x.shape, (1, len(outside)), mode=mode), [x, outside.reshape(1, 1, -1, 2)])
    np.testing.assert_array_equal(y, 0)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("out", [(4, 5), (32, 32), (2, 3, 4), (8, 8, 8)], ids=str)  # many images a block, or one
def test_channels_do_not_depend_on_each_other(out, mode, dtype):
    """Though some are read together: not on how many there are, nor on infinities. Sums in 16 bits are rounded once."""
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
    (onnx_ops.col2im, COL2IM[7]), (onnx_ops.grid_sample, GRID_SAMPLE[2]), (onnx_ops.im2col, IM2COL[2]),
    (onnx_ops.deformable_attention, ATTENTION[1]),
    (onnx_ops.deform_conv, DEFORM_CONV[3]), (onnx_ops.roi_align, ROI_ALIGN[0]),
], ids=lambda each: getattr(each, "__name__", str(each)))  # fmt: skip
def test_any_memory_order_and_number_of_threads(function, case):
    """Functions take any NumPy array, never write to it, and give the same bits on any number of threads."""
    inputs = case.inputs("float32")
    first = inputs[0]
    expected = function(*inputs, threads=1, **case.attributes)
    shuffled = np.moveaxis(np.ascontiguousarray(np.moveaxis(first, 0, -1)), -1, 0)
    read_only = first.copy()
    read_only.flags.writeable = False
    swapped = first.astype(first.dtype.newbyteorder())
    for x in (shuffled, read_only, swapped, first.tolist() if first.dtype == float else first):
        for threads in (1, 2, 7):
            np.testing.assert_array_equal(function(x, *inputs[1:], threads=threads, **case.attributes), expected)


@pytest.mark.parametrize("function", [f for f in vars(functions).values() if isinstance(f, functions.Function)])
def test_annotations_state_the_choices_of_strings(function):
    hints, attributes = get_type_hints(function.function), function.declaration.attributes
    choices = {a.name: set(a.choices) for a in attributes if a.choices}
    assert choices == {name: set(get_args(hints[name])) for name in choices}
    of_functions = inspect.signature(function.function).parameters
    assert not [name for name in of_functions if hints[name] is str]


def test_annotations_state_the_systems():
    assert get_args(build.SystemName) == tuple(build.SYSTEMS)
