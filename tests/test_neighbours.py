"""Neighbours loaded together, against the same sums made one element at a time."""

import ml_dtypes
import numpy as np
import pytest
from numba import njit

from onnx_ops import dtypes
from onnx_ops.kernels import entry, neighbours
from onnx_ops.kernels.jit import FLAGS

entry.tell_numba()
TAPS = {"pairs": (0, 1), "fours": (-1, 0, 1, 2)}
PITCH, ROWS = 37, 9


def storage(values, dtype):
    """`values` as kernels see an array of this dtype."""
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    return values.astype(kind).view(dtypes.TABLE[dtype].storage)


@njit(**FLAGS)
def together(*arguments):
    neighbours.blend(*arguments)


@njit(**FLAGS)
def plainly(*arguments):
    neighbours.blend_plainly(*arguments)


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("taps", TAPS)
@pytest.mark.parametrize("dtype", dtypes.FLOATS)
def test_blend(dtype, taps, add):
    rng, offsets = np.random.default_rng(0), TAPS[taps]
    sums = np.float64 if dtype == "float64" else np.float32
    source = storage(rng.standard_normal(PITCH * ROWS), dtype)
    rows, across = rng.standard_normal((2, len(offsets), 3 * neighbours.GROUP)).astype(sums)
    base = rng.integers(0, source.size - (len(offsets) - 1) * (PITCH + 1), rows.shape[1])
    base[:2] = 0, source.size - (len(offsets) - 1) * (PITCH + 1) - 1
    got, expected = np.ones((2, base.size), sums)
    for blend, target in ((together, got), (plainly, expected)):
        blend(source, base, PITCH, rows, across, offsets, add, target)
    np.testing.assert_allclose(got, expected, atol=1e-13 if sums == np.float64 else 1e-5)
    assert got.std() > 0.5
