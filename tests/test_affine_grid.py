"""AffineGrid equals, bit for bit, the nodes that it replaces in ONNX Runtime; and relations between its results."""

import itertools

import numpy as np
import onnxruntime as ort
import pytest
from onnx.reference import ReferenceEvaluator
from support.backends import quiet
from support.cases import AFFINE_GRID, TOLERANCE, affine_grid_nodes, parsed

import onnx_ops

SHAPES = [
    *itertools.product((1, 2, 5, 24), (1, 2, 3, 7, 8, 31, 64, 333)),
    *((depth, height, width) for depth, height in ((1, 1), (2, 3), (5, 4)) for width in (1, 2, 5, 16, 33)),
]
SPECIAL = [0.0, -0.0, np.nan, np.inf, -np.inf, 1e30, -3e38, 1e-40, 1e-45]


def places(size, align_corners):
    """The coordinates of an axis' pixels in PyTorch, up to rounding."""
    return np.linspace(-1, 1, size) * (1 if align_corners else (size - 1) / size) if size > 1 else np.zeros(1)


def transformations(rng, batch, axes):
    """Yield thetas with ordinary numbers, with special ones, and with so many signed zeros that whole sums are 0."""
    theta = rng.standard_normal((batch, axes, axes + 1))
    yield theta
    yield np.where(rng.random(theta.shape) < 0.3, rng.choice(SPECIAL, theta.shape), theta)
    yield np.where(rng.random(theta.shape) < 0.8, rng.choice(SPECIAL[:2], theta.shape), theta)


def assert_same_bits(got, expected):
    """Assert equal bits; the payloads of NaN may differ."""
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    for values in (got, expected):
        values[np.isnan(values)] = np.nan
    assert got.tobytes() == expected.tobytes()


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_bits_of_the_nodes_that_pytorch_exports(dtype, threads):
    """The rounding that the operator's definition states is that of the installed ONNX Runtime."""
    rng, negative_zeros = np.random.default_rng(0), 0
    for shape, align_corners in itertools.product(SHAPES, (True, False)):
        batch, axes = rng.integers(1, 4), len(shape)
        vectors = [places(size, align_corners) for size in reversed(shape)] + [np.empty(0)] * (3 - axes)
        inputs = [np.zeros((batch, axes, axes + 1), dtype), *(v.astype(dtype) for v in vectors)]
        session = ort.InferenceSession(
            affine_grid_nodes(inputs).SerializeToString(), quiet(intra_op_num_threads=threads), ["CPUExecutionProvider"]
        )
        for theta in transformations(rng, batch, axes):
            inputs[0] = theta.astype(dtype)
            (expected,) = session.run(None, dict(zip(("theta", "x", "y_in", "z"), inputs, strict=True)))
            assert_same_bits(onnx_ops.affine_grid(*inputs, threads=threads), expected)
            with np.errstate(all="ignore"):
                negative_zeros += np.signbit(products_from_the_left(inputs)[expected == 0]).sum()
    assert negative_zeros > 100, "there must be sums that differ if they begin with +0"


def products_from_the_left(inputs):
    """The sums in the specified order, but without the +0 with which they begin."""
    theta, *vectors = inputs
    wide = np.float64 if theta.dtype == np.float64 else np.float32
    axes = theta.shape[1]
    mesh = np.meshgrid(*vectors[:axes][::-1], indexing="ij")[::-1]
    columns = np.moveaxis(theta.astype(wide), -1, 0)[(..., *[None] * axes)]
    terms = [column * place.astype(wide) for column, place in zip(columns, [*mesh, np.ones(1)], strict=True)]
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return np.moveaxis(total, 1, -1).astype(theta.dtype)


@pytest.mark.parametrize("align_corners", [0, 1])
@pytest.mark.parametrize("shape", [(5, 7), (3, 4, 6)], ids=["image", "volume"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_agrees_with_affine_grid_of_onnx(dtype, shape, align_corners):
    """onnx's evaluator computes the coordinates of pixels itself; AffineGrid is given them."""
    axes, kind = len(shape), {"float32": "float", "float64": "double"}[dtype]
    theta = np.random.default_rng(1).standard_normal((2, axes, axes + 1)).astype(dtype)
    text = f"y = AffineGrid <align_corners = {align_corners}> (theta, size)"
    proto = parsed(f"({kind}[N, A, B] theta, int64[R] size) => ({kind}[] y) {{ {text} }}", 20)
    (expected,) = ReferenceEvaluator(proto).run(None, {"theta": theta, "size": np.array([2, 1, *shape])})
    vectors = [places(n, align_corners).astype(dtype) for n in reversed(shape)]
    np.testing.assert_allclose(onnx_ops.affine_grid(theta, *vectors), expected, atol=4 * TOLERANCE[dtype])


def test_function_without_z():
    theta, x, y, z = AFFINE_GRID[0].inputs("float32")
    np.testing.assert_array_equal(onnx_ops.affine_grid(theta, x, y), onnx_ops.affine_grid(theta, x, y, z))
    assert onnx_ops.affine_grid(theta.tolist(), x.tolist(), y.tolist()).dtype == np.float64
    with pytest.raises(onnx_ops.OpError, match="dtype of x = float64: must be float32 as before"):
        onnx_ops.affine_grid(theta, x.astype(np.float64), y)
