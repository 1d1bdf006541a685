"""GridSample on images too large for 32-bit pixel numbers, simulated by a lower limit in uncompiled
kernels.
"""

import numpy as np
import pytest
from support.backends import uncompiled
from support.cases import GRID_SAMPLE, VOLUMES, assert_close, expected_of, named
from support.selection import long_unless

import onnx_ops
from onnx_ops.sampling import grid_sample_kernels as grid_sample
from onnx_ops.sampling import taps

CASES = [
    *named(
        GRID_SAMPLE, "nearest_zeros_edges", "nearest_reflection_corners",
        "bilinear_reflection_edges", "bicubic_border_corners",
    ),
    *named(
        VOLUMES, "volume_nearest_zeros_edges", "volume_linear_zeros_corners",
        "volume_cubic_border_edges",
    ),
]  # fmt: skip


# The short run has the uncompiled kernels of small images in test_uncompiled.py.
@pytest.mark.parametrize(
    "large", [long_unless(False, False, id="small"), long_unless(True, True, id="large")]
)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_pixels(case, large, monkeypatch):
    inputs = case.inputs("float32")
    if large:
        monkeypatch.setattr(taps, "LARGEST_AXIS", 1)
        for function in ("place_points", "place_nearest", "blend"):  # these need 32-bit numbers
            monkeypatch.delattr(grid_sample, function)
    expected = expected_of(case, inputs)
    with np.errstate(invalid="ignore"):
        assert_close(uncompiled(case, inputs), expected, "float32")


# Small types take less memory, and cubic kernels for them are those of the long run.
KINDS = {"nearest": np.uint8, "bilinear": np.float16, "bicubic": np.float32}


@pytest.mark.parametrize("mode", KINDS)
@pytest.mark.parametrize("padding_mode", ["zeros", "reflection"])
def test_places_on_axes_longer_than_float32_has_digits(mode, padding_mode):
    """Points right of the image stay outside, infinite ones under reflection, too.

    NaN is the left edge.
    """
    length = 2**27 + 5
    x, grid = np.zeros((1, 1, 4, length), KINDS[mode]), np.zeros((1, 1, 2, 2), np.float32)
    x[..., -64:] = 7
    grid[0, 0, :, 0] = np.nan, 10 if padding_mode == "zeros" else np.inf
    y = onnx_ops.grid_sample(x, grid, mode=mode, padding_mode=padding_mode)
    np.testing.assert_array_equal(y, np.zeros((1, 1, 1, 2)))


@pytest.mark.parametrize("mode", KINDS)
@pytest.mark.parametrize("length", [2**24, 2**24 + 3, 2**24 + 5])
def test_the_last_pixel_where_float32_ends(length, mode):
    """On the second and third axis float32 rounds the size, and the index of the first of two
    neighbours.
    """
    x, grid = np.zeros((1, 1, 4, length), KINDS[mode]), np.ones((1, 1, 1, 2), np.float32)
    x[..., -1] = 7
    y = onnx_ops.grid_sample(x, grid, mode=mode, padding_mode="border", align_corners=1)
    np.testing.assert_array_equal(y, np.full((1, 1, 1, 1), 7))
