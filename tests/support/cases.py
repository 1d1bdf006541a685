"""Named cases that all tests of the operators share, and functions that build models from them."""

from dataclasses import dataclass, field, replace

import ml_dtypes
import numpy as np
import onnx
from onnx import helper

from onnx_ops.declaration import dtypes
from onnx_ops.model.files import imports_and_nodes
from onnx_ops.registry import OPERATORS
from onnx_ops.sampling.computed_grid_sample import INPUTS, program

IR_VERSION = 9
# `assert_close` allows a difference from the float64 reference of
#     TOLERANCE * (|reference| + the largest |reference|, or 1 if that is less).
# Over CASES, results of machine code use at most 0.25 of it in 16 bits, by the last rounding, 0.18
# in float32, 0.38 in float64, and nothing in complex types, of which few are added.
TOLERANCE = {
    "float16": 2**-10, "bfloat16": 2**-7, "float32": 2e-6, "float64": 1e-14, "complex64": 2e-6,
    "complex128": 1e-14,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One call of one operator, its inputs drawn from a seeded generator."""

    name: str
    domain: str
    op_type: str
    shapes: tuple  # one per input; for inputs such as image_shape their values
    attributes: dict = field(default_factory=dict)
    # Grids and offsets are drawn from [-extent, extent]; infinite: from `extremes`.
    extent: float = 1.0
    # {name of an input: the function that draws it, in place of the one in DRAWS}
    draws: dict = field(default_factory=dict)

    @property
    def operator(self):
        return operator(self.domain, self.op_type)

    @property
    def axes(self):
        """{axis: option} of the case, as for `selection.few`: operator and rank, number of inputs,
        names of attributes, and the values of those that are numbers or texts.
        """
        values = {
            name: value for name, value in self.attributes.items() if isinstance(value, int | str)
        }
        operator_and_rank = self.domain, self.op_type, len(self.shapes[0])
        return {
            "kind": operator_and_rank,
            "inputs": len(self.shapes),
            "attributes": [*self.attributes],
            **values,
        }

    def inputs(self, dtype, grid_dtype=None, values_dtype="int64", seed=0):
        """Draw the inputs. dtype: a name in dtypes.py; grid_dtype: of grids and locations, by
        default dtype.
        """
        rng, arrays = np.random.default_rng(seed), []
        for i, shape in zip(self.operator.inputs, self.shapes, strict=False):
            if i.values:
                arrays.append(np.array(shape, values_dtype))
                continue
            draw = self.draws.get(i.name) or DRAWS.get(i.name, draw_elements)
            arrays.append(draw(self, rng, shape, dtype, grid_dtype))
        return arrays

    def taking(self, *shapes):
        """The case with more inputs before its own."""
        return replace(self, shapes=(*shapes, *self.shapes))

    def __str__(self):
        return self.name


def draw_elements(case, rng, shape, dtype, grid_dtype):
    return drawn(rng, shape, dtype)


def draw_grid(case, rng, shape, dtype, grid_dtype):
    """Coordinates in [-extent, extent]: those of an image are in [-1, 1]."""
    return coordinates(case, rng, shape, grid_dtype or dtype)


def draw_locations(case, rng, shape, dtype, grid_dtype):
    """Coordinates as of `draw_grid`, moved: those of an image are in [0, 1]."""
    return coordinates(case, rng, shape, grid_dtype or dtype, to_unit_range=True)


def draw_offsets(case, rng, shape, dtype, grid_dtype):
    """Distances in [-extent, extent] pixels."""
    return coordinates(case, rng, shape, dtype)


def draw_images_of_regions(case, rng, shape, dtype, grid_dtype):
    """Positions in the batch, the first axis of the first input."""
    return rng.integers(0, max(case.shapes[0][0], 1), shape)


def draw_regions(case, rng, shape, dtype, grid_dtype):
    return upright_regions(case, rng, shape).astype(dtypes.TABLE[dtype].numpy)


def draw_turned_regions(case, rng, shape, dtype, grid_dtype):
    return turned_regions(case, rng, shape).astype(dtypes.TABLE[dtype].numpy)


def draw_grid_source(case, rng, shape, dtype, grid_dtype):
    """Elements from which ComputedGridSample computes a grid."""
    return drawn(rng, shape, grid_dtype or ("float64" if dtype == "float64" else "float32"))


DRAWS = {  # {name of an input: the function that draws it}, but for `draw_elements`
    "Grid": draw_grid,
    "grid": draw_grid,
    "sampling_locations": draw_locations,
    "offset": draw_offsets,
    "batch_indices": draw_images_of_regions,
    "rois": draw_regions,
    "boxes": draw_regions,
    **{f"source_{k}": draw_grid_source for k in range(INPUTS)},
}


def coordinates(case, rng, shape, dtype, to_unit_range=False):
    """Draw from [-extent, extent], or from `extremes` if the extent is infinite.

    to_unit_range  whether numbers in [-1, 1] are moved to [0, 1]
    """
    numpy_dtype = dtypes.TABLE[dtype].numpy
    if np.isinf(case.extent):
        return rng.choice(extremes(numpy_dtype), shape).astype(numpy_dtype)
    values = (rng.random(shape) * 2 - 1) * case.extent
    return ((values + 1) / 2 if to_unit_range else values).astype(numpy_dtype)


# Sides of drawn regions, in units of the image's: inverted, empty, parts of the image's, and as
# large.
SIDES = (-0.1, 0, 0.1, 0.4, 0.4, 1)


def upright_regions(case, rng, shape):
    """Draw regions [x, y of a corner, x, y of the opposite one]; see `placed_regions`."""
    corner, sides, size = placed_regions(case, rng, shape)
    return completed_regions(case, rng, shape, [corner * size, (corner + sides) * size])


def turned_regions(case, rng, shape):
    """Draw regions [x, y of the centre, width, height, angle]; see `placed_regions`."""
    centre, sides, size = placed_regions(case, rng, shape)
    angle = rng.normal(0, 2, (*shape[:-1], 1))
    return completed_regions(case, rng, shape, [centre * size, abs(sides) * size, angle])


def placed_regions(case, rng, shape):
    """Draw points and sides, in and around an image, as far as the case's extent.

    They are in units of the image's sides, which are returned as well.
    """
    around = case.extent if np.isfinite(case.extent) else 1.0
    image = case.shapes[0][:1:-1] if len(case.shapes[0]) == 4 else (20, 20)
    point = (rng.uniform(-0.1, 1, (*shape[:-1], 2)) - 0.5) * around + 0.5
    sides = rng.choice(SIDES, (*shape[:-1], 2)) * rng.uniform(0.5, 1, (*shape[:-1], 2)) * around
    return point, sides, np.array(image) / case.attributes.get("spatial_scale", 1.0)


def completed_regions(case, rng, shape, numbers):
    """Join the numbers of regions, after the image's position if the last axis has room for it.

    With an infinite extent some numbers become `extremes`.
    """
    boxes = np.concatenate(numbers, -1)
    if np.isinf(case.extent):
        numpy_dtype = np.dtype(np.float32)
        boxes = np.where(
            rng.random(boxes.shape) < 0.4, rng.choice(extremes(numpy_dtype), boxes.shape), boxes
        )
    if shape[-1] == boxes.shape[-1] + 1:
        images = rng.integers(0, max(case.shapes[0][0], 1), (*shape[:-1], 1))
        boxes = np.concatenate([images, boxes], -1)
    return boxes


def extremes(numpy_dtype):
    """Coordinates of a float type: the largest, some past all integers, infinities, NaN, tiny and
    ordinary ones.
    """
    info = ml_dtypes.finfo(numpy_dtype)
    largest = float(info.max)
    sizes = [
        largest,
        largest / 4,
        min(2.0**63, largest),
        40_000.0,
        np.inf,
        float(info.smallest_subnormal),
        0.9,
        0.2,
    ]
    return np.array([np.nan, *sizes, *(-v for v in sizes)])


def drawn(rng, shape, dtype):
    """Random elements of any type; integers are drawn from the whole range of the type."""
    numpy_dtype = dtypes.TABLE[dtype].numpy
    if dtype == "bool":
        return rng.random(shape) < 0.2
    if dtype == "string":
        texts = np.array(
            ["", "a", "B", "cd", "\u00e9\u4e2d", "a longer one than fits a short string's buffer"],
            object,
        )
        return texts[rng.integers(0, len(texts), shape)]
    if dtype.startswith("complex"):
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(numpy_dtype)
    if dtype in dtypes.FLOATS:
        return rng.standard_normal(shape).astype(numpy_dtype)
    info = np.iinfo(numpy_dtype)
    return rng.integers(info.min, info.max, shape, numpy_dtype, endpoint=True)


def operator(domain, name):
    return next(o for o in OPERATORS if (o.domain, o.name) == (domain, name))


def named(cases, *names):
    """Return the cases with these names, in this order."""
    by_name = {case.name: case for case in cases}
    return [by_name[name] for name in names]


def expected_of(case, inputs):
    """Return what the operator's reference computes for a case."""
    return reference_of(case.operator, case.attributes, inputs)


def reference_of(operator, attributes, inputs):
    """What an operator's reference returns, which may be wider than the operator's output."""
    return operator.reference(*inputs, **operator.values(attributes).by_name)


def assert_close(got, expected, dtype, of=""):
    """Assert that `got` has this dtype and equals the float64 `expected`; floats may differ by
    TOLERANCE.

    of: what `got` is, for the message
    """
    assert (got.dtype, got.shape) == (dtypes.TABLE[dtype].numpy, expected.shape), of
    if dtype not in TOLERANCE:
        np.testing.assert_array_equal(got, expected, of)
        return
    wide = np.complex128 if dtype.startswith("complex") else np.float64
    scale = np.abs(expected[np.isfinite(expected)]).max(initial=1)
    np.testing.assert_allclose(
        got.astype(wide), expected, TOLERANCE[dtype], TOLERANCE[dtype] * scale, err_msg=of
    )


def block_counts(image, block, dilations=None, pads=None, strides=None):
    d = len(image)
    dilations, pads, strides = dilations or [1] * d, pads or [0] * 2 * d, strides or [1] * d
    sizes = zip(image, block, dilations, pads[:d], pads[d:], strides, strict=True)
    return [(i + begin + end - dil * (b - 1) - 1) // s + 1 for i, b, dil, begin, end, s in sizes]


def col2im(name, image, block, N=2, C=3, **attributes):  # noqa: N803
    counts = block_counts(image, block, **attributes)
    shape = (N, C * int(np.prod(block)), int(np.prod(counts)))
    return Case(name, "", "Col2Im", (shape, tuple(image), tuple(block)), attributes)


COL2IM = [
    col2im("blocks_in_a_row", (5, 5), (1, 5)),
    col2im("overlapping", (9, 11), (3, 3), pads=[1, 1, 1, 1]),
    col2im("strided", (12, 10), (3, 4), strides=[2, 3]),
    col2im("tiling", (12, 20), (3, 4), strides=[3, 4]),
    col2im("tiling_with_a_rest", (13, 23), (3, 4), strides=[3, 4]),
    col2im("gaps", (13, 17), (2, 3), strides=[3, 5]),
    col2im("dilated", (14, 15), (3, 2), dilations=[2, 5]),
    col2im("everything", (31, 32), (4, 3), dilations=[2, 1], pads=[1, 0, 2, 3], strides=[2, 3]),
    col2im("asymmetric_pads", (6, 7), (2, 2), pads=[3, 0, 0, 4]),
    col2im("mostly_padding", (1, 2), (3, 3), pads=[5, 6, 7, 8]),
    col2im("stride_past_the_lanes", (3, 400), (2, 5), strides=[1, 70]),
    col2im("stride_past_the_image", (4, 4), (2, 2), strides=[100, 100]),
    col2im("one_pixel", (1, 1), (1, 1)),
    col2im("many_small_planes", (4, 4), (3, 3), N=8, C=32, pads=[1, 1, 1, 1]),
    col2im("many_runs", (19, 37), (7, 6), N=1, C=2, pads=[3, 2, 3, 2]),
    col2im("small_planes", (12, 12), (3, 3), N=5, C=7),
    col2im("small_planes_strided", (13, 12), (4, 4), N=3, C=20, dilations=[1, 2], strides=[2, 3]),
    col2im("small_planes_tiling", (4, 8), (2, 2), N=3, C=150, strides=[2, 2]),
    col2im("long_strides", (5, 150), (2, 20), strides=[2, 9], pads=[0, 3, 1, 5]),
    col2im("frames", (20_000,), (13,), N=1, C=1, strides=[12]),
    col2im("no_batch", (5, 5), (2, 2), N=0),
    col2im("no_channels", (5, 5), (2, 2), C=0),
    col2im("1d", (20,), (3,), strides=[2]),
    col2im("1d_dilated", (20,), (3,), dilations=[3], pads=[1, 2]),
    col2im("1d_longer_than_a_band", (40_000,), (5,), N=1, C=2, pads=[1, 3], strides=[2]),
    col2im("2d_wider_than_a_band", (3, 20_001), (2, 3), N=1, C=1, strides=[1, 3]),
    col2im(
        "2d_higher_than_a_band", (301, 130), (5, 3), N=1, C=2, strides=[2, 1], pads=[2, 1, 2, 1]
    ),
    col2im("3d", (4, 5, 6), (2, 3, 2), pads=[1, 0, 1, 0, 2, 1]),
    col2im("3d_dilated", (7, 6, 8), (2, 3, 2), dilations=[3, 2, 2], strides=[1, 2, 3]),
    col2im("3d_tiling", (4, 6, 8), (2, 3, 4), strides=[2, 3, 4]),
    col2im("4d", (3, 4, 5, 4), (2, 1, 2, 3), strides=[1, 2, 1, 1], pads=[1, 0, 0, 1, 0, 1, 1, 0]),
    col2im("5d", (3, 2, 4, 3, 5), (2, 2, 1, 2, 3), dilations=[1, 1, 2, 1, 2]),
    col2im("tiling_into_the_end_padding", (5, 7), (2, 3), strides=[2, 3], pads=[0, 0, 1, 2]),
]


def im2col(name, x, kernel, **attributes):
    return Case(
        name, "onnx_ops", "Im2Col", (tuple(x),), {"kernel_shape": list(kernel), **attributes}
    )


IM2COL = [
    im2col("unfold", (2, 3, 9, 11), (3, 3)),
    im2col("unfold_same_size", (2, 3, 9, 11), (3, 3), pads=[1, 1, 1, 1]),
    im2col(
        "unfold_everything",
        (2, 3, 31, 32),
        (4, 3),
        dilations=[2, 1],
        pads=[1, 0, 2, 3],
        strides=[2, 3],
    ),
    im2col("unfold_asymmetric_pads", (2, 3, 6, 7), (2, 2), pads=[3, 0, 0, 4]),
    im2col("unfold_mostly_padding", (2, 3, 1, 2), (3, 3), pads=[5, 6, 7, 8]),
    im2col("unfold_dilated", (2, 3, 14, 15), (3, 2), dilations=[2, 5], pads=[2, 1, 2, 1]),
    im2col("unfold_every_second", (2, 3, 20, 41), (3, 3), strides=[2, 2], pads=[1, 1, 1, 1]),
    im2col("unfold_every_second_dilated", (1, 2, 20, 90), (3, 3), strides=[2, 2], dilations=[1, 3]),
    im2col("unfold_every_third", (2, 2, 21, 33), (3, 3), strides=[3, 3]),
    im2col("unfold_overlapping_patches", (1, 2, 40, 61), (8, 8), strides=[4, 4], pads=[2, 3, 2, 1]),
    im2col("unfold_patches", (2, 3, 32, 176), (16, 16), strides=[16, 16]),
    im2col("unfold_small_patches", (2, 3, 24, 30), (4, 5), strides=[4, 5]),
    im2col("unfold_stride_past_the_image", (2, 3, 4, 4), (2, 2), strides=[100, 100]),
    im2col("unfold_pixels", (2, 3, 5, 6), (1, 1)),
    im2col("unfold_one_pixel", (1, 1, 1, 1), (1, 1)),
    im2col("unfold_one_block", (2, 3, 13, 17), (13, 17)),
    im2col(
        "unfold_one_padded_block",
        (2, 3, 5, 6),
        (4, 3),
        dilations=[2, 3],
        pads=[1, 0, 1, 2],
        strides=[3, 4],
    ),
    im2col("unfold_many_small_planes", (8, 130, 4, 4), (3, 3), pads=[1, 1, 1, 1]),
    im2col("unfold_no_batch", (0, 3, 5, 5), (2, 2)),
    im2col("unfold_no_channels", (2, 0, 5, 5), (2, 2)),
    im2col("unfold_no_block", (2, 3, 2, 5), (3, 3)),
    im2col("unfold_no_block_strided", (2, 3, 5, 4), (3, 3), dilations=[1, 3], strides=[2, 4]),
    im2col("unfold_no_pixels", (2, 3, 0, 2), (3, 3), pads=[2, 1, 2, 1]),
    im2col("unfold_no_pixels_one_block", (2, 3, 4, 0), (3, 2), pads=[0, 1, 0, 1]),
    im2col("unfold_no_pixels_no_block", (2, 3, 0, 5), (3, 3), pads=[1, 1, 1, 1]),
    im2col("unfold_3d_no_pixels", (2, 3, 0, 5, 6), (2, 3, 2), pads=[2, 0, 1, 1, 2, 1]),
    im2col("unfold_1d", (2, 3, 20), (3,), strides=[2]),
    im2col("unfold_1d_every_fourth", (2, 3, 200), (16,), strides=[4], pads=[3, 8]),
    im2col("unfold_1d_wider_than_a_band", (1, 2, 40_000), (5,), pads=[1, 3]),
    im2col("unfold_1d_long_block", (1, 1, 600), (300,), dilations=[2], pads=[40, 1]),
    im2col("unfold_higher_than_a_band", (1, 1, 301, 130), (5, 3), pads=[2, 1, 2, 1]),
    im2col("unfold_3d", (2, 3, 4, 5, 6), (2, 3, 2), pads=[1, 0, 1, 0, 2, 1]),
    im2col("unfold_3d_dilated", (2, 3, 7, 6, 8), (2, 3, 2), dilations=[3, 2, 2], strides=[1, 2, 3]),
    im2col("unfold_3d_patches", (2, 3, 4, 6, 8), (2, 3, 4), strides=[2, 3, 4]),
    im2col(
        "unfold_4d",
        (2, 3, 3, 4, 5, 4),
        (2, 1, 2, 3),
        strides=[1, 2, 1, 1],
        pads=[1, 0, 0, 1, 0, 1, 1, 0],
    ),
    im2col("unfold_5d", (1, 2, 3, 2, 4, 3, 5), (2, 2, 1, 2, 3), dilations=[1, 1, 2, 1, 2]),
]


def im2col_product(name, x, kernel, sum_over, group=1, **attributes):
    counts, positions = block_counts(x[2:], kernel, **attributes), int(np.prod(kernel))
    shapes = (
        tuple(x),
        (
            x[0],
            x[1] if sum_over == "channels" else group * positions,
            int(np.prod(np.maximum(counts, 0))),
        ),
    )
    attributes = {"kernel_shape": list(kernel), "sum_over": sum_over, **attributes}
    return Case(
        name,
        "onnx_ops",
        "Im2ColProduct",
        shapes,
        attributes | ({"group": group} if group > 1 else {}),
    )


IM2COL_PRODUCT = [
    im2col_product(f"product_{name}_{sum_over}", x, kernel, sum_over, **attributes)
    for sum_over in ("channels", "kernel")
    for name, x, kernel, attributes in (
        ("whole", (2, 3, 9, 11), (3, 3), {}),
        ("groups", (2, 12, 9, 11), (3, 5), {"group": 4, "pads": [1, 2, 1, 2]}),
        ("everything", (2, 6, 31, 32), (4, 3), {
            "group": 2, "dilations": [2, 1], "pads": [1, 0, 2, 3], "strides": [2, 3]}),
        ("a_group_for_each_channel", (2, 5, 6, 7), (3, 3), {"group": 5, "pads": [1, 1, 1, 1]}),
        ("correlation", (1, 64, 24, 32), (9, 9), {"pads": [4, 4, 4, 4]}),
        ("more_channels_than_rows", (1, 37, 6, 7), (3, 3), {"pads": [1, 1, 1, 1]}),
        ("dilated", (2, 3, 14, 15), (3, 2), {"dilations": [2, 5], "pads": [2, 1, 2, 1]}),
        ("dilated_past_a_span", (1, 2, 5, 150), (2, 5),
            {"dilations": [1, 20], "pads": [0, 40, 1, 40]}),
        ("every_second", (2, 3, 20, 41), (3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ("patches", (2, 3, 24, 30), (4, 5), {"strides": [4, 5]}),
        ("stride_past_the_image", (2, 3, 4, 4), (2, 2), {"strides": [100, 100]}),
        ("mostly_padding", (2, 3, 1, 2), (3, 3), {"pads": [5, 6, 7, 8]}),
        ("nothing_but_padding", (1, 2, 3, 3), (2, 2), {"pads": [9, 9, 9, 9], "dilations": [2, 2]}),
        ("pixels", (2, 3, 5, 6), (1, 1), {}),
        ("one_pixel", (1, 1, 1, 1), (1, 1), {}),
        ("one_block", (2, 3, 13, 17), (13, 17), {}),
        ("small_planes", (8, 30, 4, 4), (3, 3), {"group": 3, "pads": [1, 1, 1, 1]}),
        ("wider_than_a_band", (1, 3, 3, 500), (2, 3), {"pads": [0, 1, 1, 1]}),
        ("longer_than_a_span", (1, 2, 4, 60), (1, 50), {"pads": [0, 9, 0, 30]}),
        ("no_batch", (0, 3, 5, 5), (2, 2), {}),
        ("no_channels", (2, 0, 5, 5), (2, 2), {}),
        ("no_block", (2, 3, 2, 5), (3, 3), {}),
        ("no_pixels", (2, 3, 0, 2), (3, 3), {"pads": [2, 1, 2, 1]}),
        ("1d", (2, 4, 20), (3,), {"group": 2, "strides": [2]}),
        ("1d_longer_than_a_band", (1, 2, 1000), (5,), {"pads": [1, 3]}),
        ("3d", (2, 4, 4, 5, 6), (2, 3, 2), {"group": 2, "pads": [1, 0, 1, 0, 2, 1]}),
        ("3d_dilated", (2, 3, 7, 6, 8), (2, 3, 2), {"dilations": [3, 2, 2], "strides": [1, 2, 3]}),
        ("5d", (1, 2, 3, 2, 4, 3, 5), (2, 2, 1, 2, 3), {"dilations": [1, 1, 2, 1, 2]}),
    )
]  # fmt: skip


def grid_sample(name, x, out, extent=1.3, domain="com.microsoft", **attributes):
    return Case(name, domain, "GridSample", (x, (x[0], *out, len(out))), attributes, extent)


GRID_SAMPLE_OPTIONS = [  # each combination of options
    grid_sample(f"{mode}_{padding_mode}_{corners}", (2, 3, 9, 11), (12, 13), mode=mode,
        padding_mode=padding_mode,
                align_corners=align_corners)
    for mode in ("nearest", "bilinear", "bicubic")
    for padding_mode in ("zeros", "border", "reflection")
    for align_corners, corners in ((0, "edges"), (1, "corners"))
]  # fmt: skip
GRID_SAMPLE = GRID_SAMPLE_OPTIONS + [
    grid_sample(f"{name}_{mode}", x, out, extent, mode=mode, padding_mode=padding_mode,
        align_corners=align_corners)
    for mode in ("nearest", "bilinear", "bicubic")
    for name, x, out, extent, padding_mode, align_corners in (
        ("one_pixel", (1, 1, 1, 1), (4, 4), 3.0, "reflection", 0),
        ("one_pixel_corners", (1, 1, 1, 1), (4, 4), 3.0, "reflection", 1),
        ("thin", (2, 2, 1, 7), (5, 5), 1.5, "border", 0),
        ("one_column", (2, 5, 7, 1), (5, 5), 1.5, "zeros", 0),
        ("three_rows", (1, 4, 3, 20), (7, 8), 1.3, "zeros", 1),
        ("two_columns", (2, 1, 9, 2), (7, 8), 1.3, "reflection", 0),
        ("three_columns", (1, 1, 9, 3), (7, 8), 1.3, "border", 0),
        ("nine_pixels", (2, 3, 3, 3), (20, 30), 1.5, "reflection", 1),
        ("more_than_a_block", (1, 2, 20, 30), (40, 41), 1.0, "zeros", 0),
        ("many_channels", (2, 65, 5, 6), (3, 7), 1.1, "zeros", 1),
        ("far_out", (1, 1, 6, 7), (10, 10), 1000.0, "reflection", 0),
        ("all_inside", (1, 2, 50, 50), (30, 30), 0.5, "zeros", 0),
        ("no_batch", (0, 2, 5, 5), (3, 3), 1.0, "zeros", 0),
        ("no_channels", (1, 0, 5, 5), (3, 3), 1.0, "zeros", 0),
        ("no_output", (1, 2, 5, 5), (0, 3), 1.0, "zeros", 0),
    )
]  # fmt: skip
VOLUMES_OPTIONS = [
    grid_sample(f"volume_{mode}_{padding_mode}_{corners}", (2, 3, 5, 6, 7), (4, 5, 6), domain="",
        mode=mode,
                padding_mode=padding_mode, align_corners=align_corners)
    for mode in ("nearest", "linear", "cubic")
    for padding_mode in ("zeros", "border", "reflection")
    for align_corners, corners in ((0, "edges"), (1, "corners"))
]  # fmt: skip
VOLUMES = VOLUMES_OPTIONS + [
    grid_sample(f"{name}_{mode}", x, out, extent, "", mode=mode, padding_mode="reflection")
    for mode in ("nearest", "linear", "cubic")
    for name, x, out, extent in (
        ("volume_of_one_plane", (1, 2, 1, 8, 9), (3, 4, 5), 1.5),
        ("volume_all_inside", (1, 2, 12, 13, 14), (6, 7, 8), 0.4),
        ("empty_volume", (0, 2, 4, 4, 4), (2, 2, 2), 1.0),
        ("volume_of_one_row", (1, 4, 6, 1, 7), (3, 4, 5), 1.5),
        ("volume_of_one_column", (2, 1, 6, 5, 1), (3, 4, 5), 1.5),
        ("volume_of_three_columns", (1, 1, 6, 5, 3), (3, 4, 5), 1.5),
        ("volume_of_few_pixels", (2, 4, 4, 1, 2), (8, 9, 9), 1.5),
        ("volume_of_one_pixel", (1, 2, 1, 1, 1), (3, 4, 5), 3.0),
    )
]  # fmt: skip


def openvino(name, image, block, N=2, C=3, batched=True, **attributes):  # noqa: N803
    begin, end = attributes.get("pads_begin", [0, 0]), attributes.get("pads_end", [0, 0])
    counts = block_counts(
        image, block, attributes.get("dilations"), [*begin, *end], attributes.get("strides")
    )
    shape = (*([N] if batched else []), C * int(np.prod(block)), int(np.prod(counts)))
    return Case(
        name, "org.openvinotoolkit", "Col2Im", (shape, tuple(image), tuple(block)), attributes
    )


OPENVINO = [
    openvino("openvino_defaults", (8, 9), (2, 3)),
    openvino("openvino_unbatched", (8, 9), (2, 3), batched=False),
    openvino("openvino_everything", (15, 13), (3, 2), strides=[2, 1], dilations=[2, 3],
        pads_begin=[1, 0],
             pads_end=[0, 2]),
    openvino("openvino_unbatched_everything", (15, 13), (3, 2), batched=False, strides=[2, 1],
        dilations=[2, 3],
             pads_begin=[1, 0], pads_end=[0, 2]),
    openvino("openvino_unbatched_tiling", (6, 9), (2, 3), batched=False, strides=[2, 3]),
]  # fmt: skip


def attention(name, *levels, N=2, Q=5, M=3, D=4, P=2, extent=1.3):  # noqa: N803
    pixels, count = sum(h * w for h, w in levels), len(levels)
    shapes = (
        (N, pixels, M, D),
        tuple(np.ravel(levels).tolist()),
        (N, Q, M, count, P, 2),
        (N, Q, M, count, P),
    )
    return Case(name, "onnx_ops", "MultiScaleDeformableAttention", shapes, extent=extent)


ATTENTION = [
    attention("attention", (7, 9), (4, 5), (2, 3)),
    attention(
        "attention_of_a_network", (16, 20), (8, 10), (4, 5), N=1, Q=70, M=8, D=32, P=4, extent=1.1
    ),
    attention("attention_on_one_level", (6, 5), P=3),
    attention("attention_on_eight_levels", *((9 - k, 2 + k) for k in range(8)), D=8),
    attention("attention_on_pixels", (1, 1), (1, 1), extent=3.0),
    attention("attention_on_thin_levels", (1, 7), (6, 1), (1, 2), (2, 1), extent=1.5),
    attention("attention_all_inside", (30, 20), (20, 15), extent=0.8),
    attention("attention_far_out", (6, 5), (3, 2), extent=1000.0),
    attention("attention_of_one_head", (6, 5), (3, 4), M=1, D=16),
    attention("attention_of_one_channel", (6, 5), (3, 4), D=1),
    attention("attention_of_63_channels", (6, 5), (3, 4), M=2, D=63),
    attention("attention_of_more_channels_than_a_sum", (5, 4), N=1, Q=3, M=2, D=300),
    attention("attention_to_more_points_than_a_block", (5, 4), (3, 2), Q=2, M=2, P=200),
    attention("attention_to_many_points_and_channels", (5, 4), (3, 2), N=1, Q=2, M=1, D=257, P=150),
    attention("attention_of_many_queries", (12, 10), (6, 5), Q=300, M=5, D=9, P=3),
    attention("attention_without_batch", (6, 5), (3, 4), N=0),
    attention("attention_without_queries", (6, 5), (3, 4), Q=0),
    attention("attention_without_heads", (6, 5), (3, 4), M=0),
    attention("attention_without_channels", (6, 5), (3, 4), D=0),
    attention("attention_without_points", (6, 5), (3, 4), P=0),
]


def deform_conv(name, x, w, D=1, bias=False, mask=False, extent=1.5, domain="", **attributes):  # noqa: N803
    """A case of DeformConv. D: the number of offset groups; a case with a mask has a bias, too."""
    names = "dilations", "pads", "strides"
    counts = block_counts(x[2:], w[2:], **{n: attributes[n] for n in names if n in attributes})
    offset_count = D * int(np.prod(w[2:]))
    shapes = x, w, (x[0], offset_count * len(counts), *counts), *([(w[0],)] * (bias or mask))
    shapes = *shapes, *([(x[0], offset_count, *counts)] * mask)
    attributes = {**attributes, "offset_group": D} if D > 1 else attributes
    return Case(name, domain, "DeformConv", shapes, attributes, extent)


def mmcv_deform_conv(
    name,
    x,
    w,
    D=1,  # noqa: N803
    with_bias=False,
    modulated=True,
    domain="mmdeploy",
    extent=1.5,
    **attributes,
):
    """A case of MMCVModulatedDeformConv2d or, if not modulated, of MMCVDeformConv2d.

    D: the number of offset groups; with_bias: whether a modulated one has that input; attributes:
    of the node, in place of the defaults here, which are mmdeploy's
    """
    defaults = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1}
    if "deformable_groups" not in attributes:  # the other name of deform_groups
        defaults["deform_groups"] = D
    attributes = {**defaults, **attributes}
    stride, padding, dilation = (
        [value, value] if isinstance(value, int) else value
        for value in (attributes[name] for name in ("stride", "padding", "dilation"))
    )
    if len(padding) == 4:  # each is written twice: [ph, ph, pw, pw]
        padding = padding[::2]
    counts = block_counts(x[2:], w[2:], dilation, padding * 2, stride)
    offset_count = D * w[2] * w[3]
    offset, mask = (x[0], 2 * offset_count, *counts), (x[0], offset_count, *counts)
    if not modulated:
        return Case(name, domain, "MMCVDeformConv2d", (x, offset, w), attributes, extent)
    shapes = x, offset, mask, w, *([(w[0],)] * with_bias)
    return Case(name, domain, "MMCVModulatedDeformConv2d", shapes, attributes, extent)


def dcn(name, x, w, D, op_type, domain="", **attributes):  # noqa: N803
    """A case of an operator that is MMCVModulatedDeformConv2d by another name."""
    shapes = mmcv_deform_conv(
        name, x, w, D, True, **{n: attributes[n] for n in ("stride", "padding", "dilation")}
    ).shapes
    return Case(name, domain, op_type, shapes, attributes, 1.5)


DEFORM_CONV = [
    deform_conv("deform", (2, 4, 9, 11), (3, 4, 3, 3)),
    deform_conv("deform_everything", (2, 6, 9, 11), (8, 3, 3, 2), D=3, mask=True, group=2,
        kernel_shape=[3, 2],
                strides=[2, 1], dilations=[1, 3], pads=[1, 0, 2, 3]),
    deform_conv("deform_with_bias", (1, 3, 7, 8), (5, 3, 3, 3), bias=True, pads=[1, 1, 1, 1]),
    deform_conv("deform_of_more_than_a_block", (1, 5, 20, 23), (9, 5, 3, 3), mask=True,
        pads=[1, 1, 1, 1]),
    deform_conv("deform_of_many_channels", (1, 70, 6, 7), (17, 70, 3, 3), mask=True,
        pads=[1, 1, 1, 1]),
    deform_conv("deform_to_many_channels", (1, 3, 5, 5), (1041, 3, 1, 2), bias=True),
    deform_conv("deform_by_a_large_kernel", (1, 3, 9, 10), (4, 3, 7, 8), pads=[3, 3, 3, 3]),
    deform_conv("deform_in_groups", (1, 8, 6, 7), (8, 1, 3, 3), D=4, group=8),
    deform_conv("deform_in_fewer_groups_than_offsets", (1, 12, 6, 7), (4, 6, 2, 2), D=6, group=2,
        mask=True),
    deform_conv("deform_far_out", (2, 2, 6, 7), (3, 2, 3, 3), mask=True, extent=1000.0),
    deform_conv("deform_nowhere", (1, 2, 3, 3), (3, 2, 1, 1), extent=0.0),
    deform_conv("deform_mostly_padding", (1, 2, 2, 3), (3, 2, 2, 2), pads=[5, 4, 3, 6]),
    deform_conv("deform_one_pixel", (1, 2, 1, 1), (3, 2, 1, 1), mask=True),
    deform_conv("deform_one_row", (2, 2, 1, 9), (3, 2, 1, 3)),
    deform_conv("deform_one_column", (2, 2, 9, 1), (3, 2, 3, 1), mask=True),
    deform_conv("deform_no_batch", (0, 2, 5, 5), (3, 2, 2, 2), mask=True),
    deform_conv("deform_no_channels", (2, 0, 5, 5), (3, 0, 2, 2), mask=True),
    deform_conv("deform_no_output", (2, 2, 5, 5), (0, 2, 2, 2)),
    deform_conv("deform_1d", (2, 4, 40), (6, 2, 3), D=2, mask=True, group=2, strides=[2],
        pads=[1, 2]),
    deform_conv("deform_1d_one_pixel", (2, 2, 1), (3, 2, 2), pads=[1, 1]),
    deform_conv("deform_3d", (2, 4, 4, 5, 6), (3, 4, 2, 3, 2), D=2, mask=True,
        pads=[1, 0, 1, 0, 2, 1]),
    deform_conv("deform_3d_everything", (1, 6, 6, 5, 7), (8, 3, 3, 1, 2), D=3, group=2, mask=True,
        strides=[1, 2, 1],
                dilations=[2, 1, 3], pads=[1, 0, 1, 0, 2, 1]),
    deform_conv("deform_3d_one_plane", (1, 2, 1, 5, 6), (3, 2, 1, 2, 2)),
    deform_conv("deform_3d_one_row", (1, 2, 4, 1, 6), (3, 2, 2, 1, 2)),
    deform_conv("deform_in_older_models", (1, 4, 6, 7), (6, 2, 3, 3), D=2, bias=True, mask=True,
        group=2,
                pads=[1, 1, 1, 1], domain="onnx_ops"),
    mmcv_deform_conv("modulated", (2, 6, 8, 9), (4, 3, 3, 2), D=3, with_bias=True, stride=[2, 1],
        padding=[1, 2], dilation=[1, 2], groups=2),
    mmcv_deform_conv("modulated_without_bias", (1, 4, 6, 7), (5, 4, 3, 3), padding=[1, 1],
        domain="mmcv"),
    mmcv_deform_conv("modulated_no_batch", (0, 4, 6, 7), (5, 4, 3, 3), padding=[1, 1],
        domain="mmcv"),
    mmcv_deform_conv("plain", (2, 6, 8, 9), (4, 3, 3, 2), D=2, modulated=False, domain="mmcv",
        stride=[2, 1], padding=[1, 2], dilation=[1, 2], groups=2, bias=0, im2col_step=32),
    mmcv_deform_conv("plain_with_numbers", (1, 4, 6, 7), (4, 1, 1, 1), D=4, modulated=False,
        stride=1, padding=0, dilation=1, groups=4),
    dcn("dcn_of_centernet", (1, 4, 6, 7), (6, 4, 3, 3), 1, "_DCNv2", stride=[1, 1], padding=[1, 1],
        dilation=[1, 1], deformable_groups=1),
    dcn("dcn_of_tensorrt_centernet", (1, 8, 6, 7), (4, 4, 3, 2), 2, "DCNv2", stride=[2, 2],
        padding=[1, 1], dilation=[1, 1], groups=2, deform_groups=2),
    dcn("dcn_of_a_plugin", (1, 4, 6, 7), (5, 4, 3, 3), 2, "DCNv2", "custom", stride=[1, 1],
        padding=[1, 1], dilation=[1, 1], deformable_groups=2, kernel_size=[3, 3], info="{}"),
    dcn("dcn_of_torchvision", (1, 4, 6, 7), (5, 4, 3, 3), 4, "DeformConv2d", "custom",
        stride=[1, 2], padding=[0, 1], dilation=[2, 1], deformable_groups=4, activation_type=-1,
        alpha=0.0, beta=0.0),
    mmcv_deform_conv("plain_with_other_names", (1, 4, 6, 7), (4, 4, 3, 3), D=2, modulated=False,
        padding=[1, 1, 2, 2], deformable_groups=2),
]  # fmt: skip


def computed(name, x, inputs, sources, steps, coordinates, **attributes):
    """A case of ComputedGridSample. inputs: the shapes of those after X."""
    attributes = {**attributes, **program(sources, steps, coordinates)}
    return Case(name, "onnx_ops", "ComputedGridSample", (tuple(x), *map(tuple, inputs)), attributes)


def affine(x, out):
    """What makes the coordinates of an affine transformation: inputs, sources, steps,
    coordinates.
    """
    axes = len(out)
    names, rows = "whd"[:axes], range(axes)
    sources = {f"{i}{j}": (0, "n", i, j) for i in rows for j in range(axes + 1)}
    sources |= {axis: (1 + k, axis) for k, axis in enumerate(names)}
    steps = {}
    for i in rows:
        steps |= {f"{i}{j} {axis}": ("Mul", f"{i}{j}", axis) for j, axis in enumerate(names)}
        total = f"{i}0 w"
        for j, term in enumerate((*(f"{i}{j} {names[j]}" for j in range(1, axes)), f"{i}{axes}")):
            steps[f"sum {i} {j}"] = "Add", total, term
            total = f"sum {i} {j}"
    inputs = (x[0], axes, axes + 1), *((size,) for size in out[::-1])
    return inputs, sources, steps, [f"sum {i} {axes - 1}" for i in rows]


def flow(x, out, order="nkhw", shape=None):
    """What makes the coordinates of a flow in pixels; order: of its axes, k being that of the two
    coordinates.
    """
    size = dict(zip("nhw", (x[0], *out), strict=True)) | {"k": 2}
    sources = {"u": (0, *order.replace("k", "0")), "v": (0, *order.replace("k", "1"))}
    sources = {
        name: (0, *(int(axis) if axis.isdigit() else axis for axis in index))
        for name, (_, *index) in sources.items()
    }
    sources |= {"x": (1, "w"), "y": (2, "h"), "a": (3, 0), "b": (3, 1), "c": (3, 2)}
    # A / d isn't large.
    steps = {
        "|a|": ("Abs", "a"),
        "|c|": ("Abs", "c"),
        "d": ("Max", "|a|", "|c|"),
        "s": ("Add", "u", "x"),
        "t": ("Add", "v", "y"),
        "s2": ("Mul", "a", "s"),
        "t2": ("Mul", "t", "a"),
        "s3": ("Div", "s2", "d"),
        "t3": ("Div", "t2", "d"),
        "s4": ("Sub", "s3", "b"),
    }
    return (
        (shape or [size[axis] for axis in order], (out[1],), (out[0],), (3,)),
        sources,
        steps,
        ["s4", "t3"],
    )


ALL_STEPS = {  # each operation once, of vectors, rows and numbers
    "add": ("Add", "p", "y"), "sub": ("Sub", "y", "p"), "mul": ("Mul", "p", "c"),
    "div": ("Div", "c", "q"),
    "neg": ("Neg", "y"), "abs": ("Abs", "p"), "sqrt": ("Sqrt", "abs"), "floor": ("Floor", "mul"),
    "ceil": ("Ceil", "y"),
    "round": ("Round", "sub"), "min": ("Min", "add", "x"), "max": ("Max", "y", "div"),
    "less": ("Less", "p", "y"),
    "not more": ("LessOrEqual", "y", "c"), "equal": ("Equal", "round", "floor"),
    "clip": ("Clip", "div", "neg", "y"),
    "where": ("Where", "less", "min", "max"), "fma": ("MulAdd", "sqrt", "y", "ceil"),
    "cast": ("CastFloat16", "fma"),
    "cast too": ("CastBFloat16", "cast"),
    "mask": ("Mul", "equal", "not more"), "both": ("Where", "mask", "clip", "where"),
    "end": ("Add", "both", "cast too"),
}  # fmt: skip


SAMPLED = [
    ("small_images", (9, 2, 5, 6), (4, 5), {}),
    ("more_than_a_block", (2, 3, 11, 12), (27, 40), {"padding_mode": "border"}),
    ("rows_of_more_than_a_block", (1, 2, 9, 10), (3, 1100), {"align_corners": 1}),
    ("rows_of_more_than_a_stripe", (2, 2, 9, 10), (3, 4200), {}),
    ("column", (2, 2, 9, 10), (4200, 1), {}),
    ("reflected", (2, 3, 9, 11), (12, 13), {"padding_mode": "reflection"}),
    ("one_pixel", (1, 1, 1, 1), (1, 1), {}),
    ("no_images", (0, 2, 5, 5), (3, 3), {}),
    ("no_channels", (2, 0, 5, 5), (3, 3), {}),
    ("no_points", (2, 2, 5, 5), (0, 3), {}),
]  # fmt: skip
MODES = "nearest", "bilinear", "bicubic"
PLANES = {
    "p": (0, "n", 0, "h", "w"),
    "q": (0, "n", 1, "h", "w"),
    "x": (1, "w"),
    "y": (1, "h"),
    "c": (2, 0),
}
FUSED = [
    computed(f"{name}_{mode}", x, *parameters, mode=mode, **attributes)
    for mode in MODES
    for name, x, parameters, attributes in (
        *((f"affine_{name}", x, affine(x, out), options) for name, x, out, options in SAMPLED),
        *((f"flow_{name}", x, flow(x, out), options) for name, x, out, options in SAMPLED),
        ("affine_volumes", (2, 3, 5, 6, 7), affine((2,), (4, 5, 33)), {"padding_mode": "border"}),
        ("affine_small_volumes", (5, 2, 4, 5, 4), affine((5,), (3, 2, 5)), {"align_corners": 1}),
        ("affine_no_volumes", (2, 3, 5, 6, 7), affine((2,), (0, 5, 33)), {}),
        ("affine_large_volumes", (2, 2, 5, 6, 7), affine((2,), (9, 20, 33)), {}),
        ("affine_column_of_volumes", (2, 2, 5, 6, 7), affine((2,), (700, 1, 1)), {}),
        ("affine_plane_of_volumes", (4, 2, 5, 6, 7), affine((4,), (9, 20, 1)), {}),
        ("flow_channels_last", (2, 3, 9, 11), flow((2,), (12, 50), "nhwk"), {}),
        ("flow_transposed", (2, 3, 9, 11), flow((2,), (50, 60), "wnkh"), {}),
        ("flow_for_all_images", (3, 2, 9, 11), flow((3,), (12, 50), shape=(1, 2, 12, 50)), {}),
        ("flow_for_all_rows", (3, 2, 9, 11), flow((3,), (50, 50), shape=(3, 2, 1, 50)), {}),
        ("flow_for_all_columns", (3, 2, 9, 11), flow((3,), (12, 50), shape=(3, 2, 12, 1)), {}),
        ("lookup", (20, 1, 9, 11), flow((20,), (5, 5), shape=(20, 2, 1, 1)), {}),
        ("lookup_in_rows", (20, 1, 1, 11), flow((20,), (1, 5), shape=(20, 2, 1, 1)),
            {"align_corners": 1}),
        ("affine_volumes_of_a_column", (2, 4, 6, 7, 1), affine((2,), (4, 5, 33)),
            {"padding_mode": "border"}),
        ("one_value_for_all", (2, 3, 9, 11),
            (((5, 30), (2,)), {"p": (0, "h", "w"), "q": (1, 1)}, {}, "qp"), {}),
        ("diagonal", (2, 3, 9, 11), (((30, 30, 2),), {"p": (0, "w", "w", 0), "q": (0, "h", 7, 1)},
            {}, "pq"), {}),
        ("all_steps", (2, 3, 9, 11),
            (((2, 2, 40, 40), (40,), (1,)), PLANES, ALL_STEPS, ("end", "x")), {}),
        ("all_steps_of_few_points", (2, 3, 4, 5),
            (((2, 2, 7, 7), (7,), (1,)), PLANES, ALL_STEPS, ("end", "x")), {}),
    )
]  # fmt: skip


def roi_align_case(name, x, region_count, out=(4, 5), extent=1.2, **attributes):
    attributes = {"output_height": out[0], "output_width": out[1], **attributes}
    return Case(name, "", "RoiAlign", (x, (region_count, 4), (region_count,)), attributes, extent)


MMCV_DEFAULTS = {"sampling_ratio": 0, "spatial_scale": 1.0, "aligned": 1}


def mmcv_roi_align(name, x, region_count, out=(4, 5), extent=1.2, domain="mmcv", **attributes):
    sizes = {"output_height": out[0], "output_width": out[1]}
    attributes = {**MMCV_DEFAULTS, **sizes, **attributes}
    return Case(name, domain, "MMCVRoiAlign", (x, (region_count, 5)), attributes, extent)


def rotated_roi_align(name, *args, **attributes):
    """A case of MMCVRoIAlignRotated, with the arguments of `mmcv_roi_align`."""
    case = mmcv_roi_align(name, *args, **attributes)
    x, (region_count, _) = case.shapes
    return replace(
        case,
        op_type="MMCVRoIAlignRotated",
        shapes=(x, (region_count, 6)),
        draws={"rois": draw_turned_regions},
    )


POOLED = {  # {name: (shape of the images, number of regions, further arguments)}
    "defaults": ((1, 2, 9, 11), 5, {"out": (1, 1)}),
    "scaled": ((2, 3, 9, 11), 7, {"spatial_scale": 0.25, "sampling_ratio": 2}),
    "more_channels_than_a_unit": ((1, 65, 7, 6), 3, {"sampling_ratio": 2}),
    "one_channel_of_many_regions": ((2, 1, 20, 30), 40, {"sampling_ratio": 1}),
    "of_one_pixel": ((2, 2, 1, 1), 6, {"extent": 4.0, "sampling_ratio": 2}),
    "of_one_row": ((1, 2, 1, 40), 6, {"sampling_ratio": 3}),
    "of_one_column": ((1, 2, 40, 1), 6, {}),
    "far_out": ((1, 2, 5, 6), 8, {"extent": 50.0}),
    "upsampled": ((1, 2, 5, 6), 4, {"out": (9, 20), "sampling_ratio": 2}),
    "many_samples": ((1, 1, 9, 9), 2, {"out": (2, 1), "sampling_ratio": 50}),
    "many_regions_of_many_samples": ((2, 9, 5, 6), 30, {"out": (2, 3), "sampling_ratio": 9}),
    "more_bins_than_rows_have_room_for": ((1, 1, 3, 8), 2, {"out": (1, 600), "sampling_ratio": 1}),
    "more_rows_than_there_is_room_for": ((1, 1, 1500, 2), 2, {"out": (1, 1)}),
    "wide": ((1, 2, 2, 3000), 4, {"sampling_ratio": 1, "out": (2, 3)}),
    "no_regions": ((1, 2, 5, 6), 0, {}),
    "no_channels": ((1, 0, 5, 6), 3, {}),
    "no_images": ((0, 2, 5, 6), 0, {}),
}
POOLED_BY_MMCV = (  # half of them, as MMCVRoiAlign shares the code of RoiAlign
    "scaled", "one_channel_of_many_regions", "of_one_row", "far_out", "many_samples",
    "more_bins_than_rows_have_room_for", "wide", "no_channels",
)  # fmt: skip
ROI_ALIGN_OPTIONS = [  # each combination of options
    roi_align_case(
        f"regions_{mode}_{transformation}_{ratio}", (2, 3, 19, 21), 12, mode=mode,
        coordinate_transformation_mode=transformation, sampling_ratio=ratio,
    )
    for mode in ("avg", "max")
    for transformation in ("output_half_pixel", "half_pixel")
    for ratio in (0, 1, 2, 3)
]  # fmt: skip
ROI_ALIGN = ROI_ALIGN_OPTIONS + [
    roi_align_case(f"regions_{name}_{mode}", x, count, mode=mode, **arguments)
    for mode in ("avg", "max")
    for name, (x, count, arguments) in POOLED.items()
]
MMCV_ROI_ALIGN_OPTIONS = [
    mmcv_roi_align(
        f"{domain}_{mode}_{aligned}_{ratio}", (2, 3, 19, 21), 12, domain=domain, mode=mode,
        aligned=aligned, sampling_ratio=ratio,
    )
    for domain in ("mmcv", "mmdeploy")
    for mode in ("avg", "max")
    for aligned in (0, 1)
    for ratio in (-1, 2)
]  # fmt: skip
MMCV_ROI_ALIGN = MMCV_ROI_ALIGN_OPTIONS + [
    mmcv_roi_align(f"mmcv_{name}_{mode}", x, count, mode=mode, **arguments)
    for mode in ("avg", "max")
    for name, (x, count, arguments) in POOLED.items()
    if name in POOLED_BY_MMCV
]
ROTATED_OPTIONS = [
    rotated_roi_align(
        f"rotated_{domain}_{aligned}_{clockwise}_{ratio}", (2, 3, 19, 21), 12, domain=domain,
        aligned=aligned, clockwise=clockwise, sampling_ratio=ratio,
    )
    for domain in ("mmcv", "mmdeploy")
    for aligned in (0, 1)
    for clockwise in (0, 1)
    for ratio in (0, 2)
]  # fmt: skip
ROTATED = ROTATED_OPTIONS + [
    rotated_roi_align(f"rotated_{name}", x, count, domain="mmdeploy", clockwise=1, **arguments)
    for name, (x, count, arguments) in POOLED.items()
]
GRID_SAMPLER = [
    Case(f"{domain}_{mode}_{padding_mode}_{corners}", domain, "grid_sampler",
        ((2, 3, 9, 11), (2, 12, 13, 2)),
         {"interpolation_mode": mode, "padding_mode": padding_mode, "align_corners": corners}, 1.3)
    for domain in ("mmcv", "mmdeploy") for mode in range(3) for padding_mode in range(3)
        for corners in range(2)
]  # fmt: skip
FEATURE_ALIGN = [
    Case(f"feature_align_{name}_{points}", "mmcv", "MMCVRotatedFeatureAlign",
        (x, (x[0], *x[2:], 5)),
         {"points": points, "spatial_scale": scale}, 1.2, {"boxes": draw_turned_regions})
    for points in (1, 5)
    for name, x, scale in (
        ("whole", (2, 3, 9, 11), 1.0), ("scaled", (1, 2, 20, 23), 0.25),
        ("of_one_pixel", (2, 2, 1, 1), 1.0),
        ("without_channels", (1, 0, 4, 5), 1.0), ("without_images", (0, 2, 4, 5), 1.0),
    )
]  # fmt: skip
CORNER_POOL = [
    Case(f"corner_pool_{name}_{mode}", "mmcv", "MMCVCornerPool", (x,), {"mode": mode})
    for mode in range(4)
    for name, x in (("whole", (2, 3, 9, 11)), ("large", (1, 3, 70, 90)), ("empty", (1, 2, 0, 3)))
]
REGIONS = ROI_ALIGN + MMCV_ROI_ALIGN + ROTATED + GRID_SAMPLER + FEATURE_ALIGN + CORNER_POOL
EXTREME = [
    replace(c, name=f"extreme_{c.name}", extent=np.inf)
    for c in (
        *GRID_SAMPLE_OPTIONS, *VOLUMES_OPTIONS, *named(DEFORM_CONV, "deform", "deform_everything"),
        *named(ATTENTION, "attention", "attention_of_a_network"), *ROI_ALIGN_OPTIONS,
        *(c for c in MMCV_ROI_ALIGN_OPTIONS + ROTATED_OPTIONS if c.domain == "mmcv"),
    )
]  # fmt: skip
CASES = COL2IM + GRID_SAMPLE + VOLUMES + OPENVINO + EXTREME + IM2COL + ATTENTION + FUSED
CASES += DEFORM_CONV + REGIONS + IM2COL_PRODUCT
assert len({case.name for case in CASES}) == len(CASES), "names of cases must be unique"
# Operators with several outputs, or with outputs of which only a bound is known: test_mmdeploy.py
# checks them.
OTHERS = [o for o in OPERATORS if all(c.operator is not o for c in CASES)]


def case_named(name):
    """Return the case of CASES with this name."""
    (case,) = named(CASES, name)
    return case


def type_of(dtype):
    """ONNX's number for the element type of an array."""
    return dtypes.TABLE[dtypes.name_of(np.empty(0, dtype))].onnx


def model(domain, op_type, inputs, attributes, *, opset=21, dims="fixed", constants=()):
    """A model of one node. dims: "fixed", "symbolic" or "none"; constants: names of inputs that
    become initializers.
    """
    its_operator = operator(domain, op_type)
    declared = its_operator.inputs[: len(inputs)]
    alike = zip(its_operator.outputs, its_operator.likeness(), strict=True)
    element_types = [
        dtypes.TABLE[its_operator.types[o.type][0]].onnx if k is None else type_of(inputs[k].dtype)
        for o, k in alike
    ]
    # The graph's output is y, so an input of the operator that is called y has another name there.
    names = [i.name + "_in" * (i.name == "y") for i in declared]
    results = ["y", *(o.name for o in its_operator.outputs[1:])]
    node = helper.make_node(op_type, names, results, name="the_node", domain=domain, **attributes)
    described, initializers = [], []
    for i, name, value in zip(declared, names, inputs, strict=True):
        if i.name in constants:
            initializers.append(onnx.numpy_helper.from_array(value, name))
        else:
            symbols = [f"{name}_{a}" for a in range(value.ndim)]
            shape = {"fixed": value.shape, "symbolic": symbols, "none": None}[dims]
            described.append(helper.make_tensor_value_info(name, type_of(value.dtype), shape))
    outputs = [
        helper.make_tensor_value_info(y, element_type, None)
        for y, element_type in zip(node.output, element_types, strict=True)
    ]
    graph = helper.make_graph([node], "one_node", described, outputs, initializers)
    return finished(graph, opset, domain)


def imported_domains(model):
    """The domains that a model imports; None if they are unknown."""
    return imports_and_nodes(model)[0]


def finished(graph, opset=21, *domains):
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains if d)]
    return helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION)


def parsed(text, opset=21, *domains, ir_version=IR_VERSION, **constants):
    """The model of a text in onnx's syntax, which begins with the inputs; constants: {name: value}
    of initializers.

    domains: those that it imports in version 1
    """
    versions = {"": opset, **dict.fromkeys(domains, 1)}
    imports = ", ".join(f'"{domain}" : {version}' for domain, version in versions.items())
    proto = onnx.parser.parse_model(
        f"<ir_version: {ir_version}, opset_import: [{imports}]> g {text}"
    )
    proto.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items()
    )
    return proto
