"""Relations that must hold between results, whatever the numbers and independently of the
reference.
"""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from support.backends import ALL_BACKENDS, BACKENDS
from support.cases import (
    COL2IM,
    IM2COL,
    IM2COL_PRODUCT,
    block_counts,
    grid_sample,
    im2col_product,
    named,
)
from support.selection import by_type, each_in_turn, each_mode, some_of

import onnx_ops
from onnx_ops.arrays import functions


def unfold(image, block, dilations, pads, strides):
    """Unfold [N, C, *image] to [N, C * K, L], looking up each value by the definition of a
    block.
    """
    d = len(block)
    counts = block_counts(image.shape[2:], block, dilations, pads, strides)
    if min(counts) < 1:
        return np.zeros((image.shape[0], image.shape[1] * math.prod(block), 0))
    padded = np.pad(image, [(0, 0), (0, 0), *zip(pads[:d], pads[d:], strict=True)])
    columns = []
    for k in itertools.product(*map(range, block)):
        pixels = [
            k_i * dil + np.arange(c) * s
            for k_i, dil, c, s in zip(k, dilations, counts, strides, strict=True)
        ]
        columns.append(
            padded[(slice(None), slice(None), *np.ix_(*pixels))].reshape(*image.shape[:2], -1)
        )
    return np.stack(columns, axis=2).reshape(image.shape[0], -1, columns[0].shape[-1])


def all_settings(case):
    """The arguments of `unfold` besides the image, and the block for Im2Col, whose attribute it
    is.
    """
    settings = dict(case.attributes)
    block = {"block": settings.pop("kernel_shape")} if case.op_type == "Im2Col" else {}
    axes = len(block.get("block", case.shapes[-1]))
    return {
        **block,
        "dilations": [1] * axes,
        "pads": [0] * 2 * axes,
        "strides": [1] * axes,
        **settings,
    }


CLOSE = {"float32": 1e-5, "float64": 1e-13}


@pytest.fixture(params=by_type(CLOSE))
def dtype(request):
    return request.param


NOT_EMPTY = [case for case in COL2IM if 0 not in case.shapes[0]]


@each_in_turn(NOT_EMPTY)
def test_fold_of_unfold_is_divisor_times_image(run, case, dtype):
    x, image, block = case.inputs(dtype)
    shape = (x.shape[0], x.shape[1] // int(np.prod(block)), *image)
    y = np.random.default_rng(1).integers(-9, 9, shape).astype(dtype)
    settings = all_settings(case)
    divisor = run(case, [unfold(np.ones_like(y), block, **settings), image, block])
    np.testing.assert_array_equal(
        run(case, [unfold(y, block, **settings), image, block]), divisor * y
    )


@each_in_turn([case for case in IM2COL_PRODUCT if 0 not in case.shapes[0]])
def test_products_of_columns(run, case, dtype):
    """They are what multiplying and adding up gives, exactly, for integers."""
    rng, settings = np.random.default_rng(5), dict(case.attributes)
    x, factors = (rng.integers(-9, 9, shape).astype(dtype) for shape in case.shapes)
    over_channels, group = settings.pop("sum_over") == "channels", settings.pop("group", 1)
    columns = unfold(x, **all_settings(replace(case, op_type="Im2Col", attributes=settings)))
    n, _, blocks = columns.shape
    channels, positions = x.shape[1] // group, math.prod(settings["kernel_shape"])
    columns = columns.reshape(n, group, channels, positions, blocks)
    axes = (n, group, channels, 1, blocks) if over_channels else (n, group, 1, positions, blocks)
    expected = (factors.reshape(axes) * columns).sum(2 if over_channels else 3)
    expected = expected.reshape(n, group * expected.shape[2], blocks)
    np.testing.assert_array_equal(run(case, [x, factors]), expected)


def test_products_of_what_is_outside():
    """It is 0, so that a factor makes nothing of it, or NaN, as where the columns exist."""
    case = im2col_product("outside", (1, 2, 3, 3), (3, 3), "channels", pads=[1, 1, 1, 1])
    x, factors = case.inputs("float32")
    factors[0, 0, 0] = np.inf
    y = BACKENDS["function"](case, [x, factors]).reshape(3, 3, 9)
    assert np.isnan(y[0, :, 0]).all()
    assert np.isnan(y[:, 0, 0]).all()
    assert np.isinf(y[1:, 1:, 0]).all()
    assert np.isfinite(y[:, :, 1:]).all()


ON_THREADS = (
    "whole", "a_group_for_each_channel", "dilated", "patches", "nothing_but_padding", "one_block"
)  # fmt: skip


@pytest.mark.parametrize(
    "case", named(IM2COL_PRODUCT, *(f"product_{name}_channels" for name in ON_THREADS)), ids=str
)
def test_products_on_several_threads(case):
    inputs = case.inputs("float32")
    one, two, seven = (
        functions.call(case.operator, *inputs, threads=k, **case.attributes) for k in (1, 2, 7)
    )
    np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(one, seven)


@each_in_turn([case for case in IM2COL if 0 not in case.shapes[0]])
def test_unfold_is_looking_up_every_pixel(run, case, dtype):
    (x,) = case.inputs(dtype)
    np.testing.assert_array_equal(run(case, [x]), unfold(x, **all_settings(case)))


@each_in_turn([case for case in IM2COL if 0 not in case.shapes[0][2:]])
def test_unfold_is_the_transpose_of_fold(run, case, dtype):
    """<unfold(x), y> = <x, fold(y)>, exactly, for integers. There is no fold of no blocks."""
    rng, attributes = np.random.default_rng(5), dict(case.attributes)
    (x,) = case.inputs(dtype)
    x = rng.integers(-9, 9, x.shape).astype(dtype)
    columns = run(case, [x])
    if not columns.shape[2]:
        return
    y = rng.integers(-9, 9, columns.shape).astype(np.float32)
    folded = onnx_ops.col2im(y, x.shape[2:], attributes.pop("kernel_shape"), **attributes).astype(
        np.float64
    )
    assert np.vdot(columns, y.astype(np.float64)) == np.vdot(x, folded)


TILED = {  # block_shape, and the number of blocks along each axis
    "few positions": ((3, 4), (43, 31)),
    "many positions": ((7, 6), (20, 31)),
    "rows of several pieces": ((2, 3), (3, 7000)),
    "pieces of many positions": ((9, 4), (2, 5000)),
    "few rows": ((30, 1), (1, 50)),
    "a line": ((5,), (9001,)),
    "volumes": ((2, 3, 4), (3, 11, 40)),
    "volumes of many positions": ((3, 4, 5), (2, 7, 40)),
}


@pytest.mark.parametrize(("name", "channels", "rest"), some_of(TILED, [2, 40], [0, 1]))
def test_blocks_that_tile_are_transposed(name, channels, rest):
    """Pixels after the last block of an axis are 0."""
    block, counts = TILED[name]
    axes = len(block)
    x = np.random.default_rng(0).standard_normal((1, channels, *block, *counts), np.float32)
    tiled = [k * count for k, count in zip(block, counts, strict=True)]
    image = [size + min(rest, k - 1) for size, k in zip(tiled, block, strict=True)]
    expected = np.zeros((1, channels, *image), np.float32)
    order = [axis for a in range(axes) for axis in (2 + axes + a, 2 + a)]
    expected[..., *(slice(size) for size in tiled)] = x.transpose(0, 1, *order).reshape(
        1, channels, *tiled
    )
    x = x.reshape(1, channels * math.prod(block), -1)
    for threads in (1, 3):
        y = onnx_ops.col2im(x, image, block, strides=block, threads=threads)
        assert y.tobytes() == expected.tobytes()


def test_positions_far_outside_of_the_image():
    """They are 2**32 pixels after their blocks, of which a 32-bit number would hold 0."""
    x = np.random.default_rng(0).standard_normal((1, 6, 16), np.float32)
    y = onnx_ops.col2im(x, (16,), (2,), dilations=[2**32], pads=[0, 2**32])
    np.testing.assert_array_equal(y, x.reshape(1, 3, 2, 16)[:, :, 0])


def identity_grid(height, width, align_corners):
    def axis(size):
        return np.linspace(-1, 1, size) if align_corners else (np.arange(size) * 2 + 1) / size - 1

    y, x = np.meshgrid(axis(height), axis(width), indexing="ij")
    return np.stack([x, y], -1)[None]


@each_mode()
def test_identity_and_mirrored_grids(run, mode, align_corners, dtype):
    x = np.random.default_rng(3).standard_normal((1, 2, 6, 9)).astype(dtype)
    case = grid_sample(
        "identity", x.shape, (6, 9), mode=mode, padding_mode="border", align_corners=align_corners
    )
    grid = identity_grid(6, 9, align_corners).astype(dtype)
    np.testing.assert_allclose(run(case, [x, grid]), x, atol=CLOSE[dtype])
    np.testing.assert_allclose(run(case, [x, -grid]), x[..., ::-1, ::-1], atol=CLOSE[dtype])


@pytest.mark.parametrize(
    ("run", "mode", "padding_mode"),
    some_of(ALL_BACKENDS, ["bilinear", "bicubic"], ["border", "reflection"]),
    indirect=["run"],
)
def test_constant_images_stay_constant(run, mode, padding_mode, dtype):
    case = grid_sample(
        "constant", (1, 1, 5, 7), (20, 20), extent=4.0, mode=mode, padding_mode=padding_mode
    )
    _, grid = case.inputs(dtype)
    np.testing.assert_allclose(
        run(case, [np.full((1, 1, 5, 7), 3.5, dtype), grid]), 3.5, rtol=CLOSE[dtype] / 10
    )


@each_mode()
def test_reflection_is_sampling_the_mirrored_image(run, mode, align_corners, dtype):
    """Reflection is ordinary sampling inside a larger image made of mirror images."""
    h, w = 5, 6
    x = np.random.default_rng(4).standard_normal((1, 1, h, w)).astype(dtype)
    mirrored = np.pad(
        x,
        [(0, 0), (0, 0), (2 * h, 2 * h), (2 * w, 2 * w)],
        "reflect" if align_corners else "symmetric",
    )
    case = grid_sample(
        "small",
        x.shape,
        (9, 9),
        2.0,
        mode=mode,
        padding_mode="reflection",
        align_corners=align_corners,
    )
    _, grid = case.inputs(dtype)
    size, large = np.array([w, h]), np.array([5 * w, 5 * h])
    pixel = (grid + 1) / 2 * (size - 1) if align_corners else ((grid + 1) * size - 1) / 2
    pixel = pixel + 2 * size
    lifted = 2 * pixel / (large - 1) - 1 if align_corners else (2 * pixel + 1) / large - 1
    outer = grid_sample("large", mirrored.shape, (9, 9), mode=mode, align_corners=align_corners)
    expected = run(outer, [mirrored, lifted.astype(dtype)])
    np.testing.assert_allclose(run(case, [x, grid]), expected, atol=10 * CLOSE[dtype])
