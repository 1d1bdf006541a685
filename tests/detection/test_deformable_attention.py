"""Relations of MultiScaleDeformableAttention to GridSample, between levels, heads and queries, and
at the edges.
"""

import numpy as np
import pytest
from support.cases import ATTENTION, TOLERANCE, attention, case_named
from support.selection import each_dtype, each_in_turn

import onnx_ops

NAN, INF = np.nan, np.inf
# The largest difference from sums of GridSample's samples, whose coordinates are rounded once more.
CLOSE = {"float32": 1e-4, "float64": 1e-13}
NOT_EMPTY = [c for c in ATTENTION if all(0 not in shape for shape in c.shapes)]


def levels_of(sizes):
    """Yield (pixels before it, height, width) of each level."""
    start = 0
    for h, w in np.reshape(sizes, (-1, 2)).tolist():
        yield start, h, w
        start += h * w


@each_dtype("float32", "float64")
@each_in_turn(NOT_EMPTY)
def test_is_weighted_sums_of_samples(run, case, dtype):
    """The samples are GridSample's, at the same places."""
    value, sizes, locations, weights = case.inputs(dtype)
    n, _, m, d = value.shape
    total = np.zeros((*locations.shape[:3], d))
    for level, (start, h, w) in enumerate(levels_of(sizes)):
        image = np.moveaxis(value[:, start : start + h * w], 1, -1).reshape(n * m, d, h, w)
        grid = np.moveaxis(2 * locations[:, :, :, level] - 1, 2, 1).reshape(
            n * m, *locations[0, :, 0, 0].shape
        )
        sampled = onnx_ops.grid_sample(image, grid).reshape(n, m, d, *grid.shape[1:3])
        total += np.einsum("nmdqp,nqmp->nqmd", sampled, weights[:, :, :, level])
    expected = total.reshape(n, -1, m * d)
    np.testing.assert_allclose(
        run(case, [value, sizes, locations, weights]), expected, atol=CLOSE[dtype]
    )


OUTSIDE = [
    (NAN, 0.5),
    (0.5, NAN),
    (INF, 0.5),
    (0.5, -INF),
    (3e38, -3e38),
    (-0.6, 0.5),
    (0.5, 1.6),
    (-1e10, 1e10),
]


@each_dtype("float32", "float64")
def test_nothing_is_read_outside(run, dtype):
    """The pixels are infinite or NaN, so that to read one with a weight of 0 would show."""
    case = attention("outside", (2, 3), (1, 1), N=1, Q=len(OUTSIDE), M=2, D=9, P=2)
    value, sizes, locations, weights = case.inputs(dtype)
    value[:], value[:, ::2] = INF, NAN
    locations[:] = np.array(OUTSIDE)[None, :, None, None, None]
    np.testing.assert_array_equal(
        run(case, [value, sizes, locations, weights]), np.zeros((1, len(OUTSIDE), 18))
    )


def test_only_taps_have_an_influence(run):
    """A point near a corner reads one pixel, and neither those beside it nor those of other
    levels.
    """
    case = attention("corners", (2, 2), (3, 4), (2, 2), N=1, Q=4, M=1, D=5, P=1)
    value, sizes, locations, weights = case.inputs("float32")
    value[:] = INF
    corners = [(0.01, 0.01), (0.99, 0.01), (0.01, 0.99), (0.99, 0.99)]
    at = [4, 7, 12, 15]
    value[0, at, 0] = np.arange(1, 21).reshape(4, 5)
    weights[:, :, :, ::2], locations[:, :, :, ::2] = 0, -1
    locations[0, :, 0, 1, 0] = corners
    share = np.array([(0.5 + 4 * 0.01) * (0.5 + 3 * 0.01)])
    expected = value[0, at, 0] * share * weights[0, :, 0, 1]
    np.testing.assert_allclose(
        run(case, [value, sizes, locations, weights])[0], expected, rtol=1e-5
    )


@pytest.mark.long
def test_locations_of_another_type():
    """Locations in float64 are not rounded for an image in float32."""
    case = case_named("attention_of_a_network")
    value, sizes, locations, weights = case.inputs("float32", "float64")
    got = onnx_ops.deformable_attention(value, sizes, locations, weights)
    expected = onnx_ops.deformable_attention(
        value.astype(np.float64), sizes, locations, weights.astype(np.float64)
    )
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, atol=4 * TOLERANCE["float32"] * abs(expected).max())


def test_function_takes_sizes_as_pairs_or_flat():
    value, sizes, locations, weights = ATTENTION[0].inputs("float32")
    expected = onnx_ops.deformable_attention(value, sizes, locations, weights)
    for given in (sizes.reshape(-1, 2), sizes.tolist(), sizes.reshape(-1, 2).tolist()):
        np.testing.assert_array_equal(
            onnx_ops.deformable_attention(value, given, locations, weights), expected
        )
    with pytest.raises(
        onnx_ops.OpError,
        match="dtype of attention_weights = float64: must be float32, that of value",
    ):
        onnx_ops.deformable_attention(value, sizes, locations, weights.astype(np.float64))
