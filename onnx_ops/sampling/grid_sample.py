"""GridSample: sample an image at the points of a grid (PyTorch's `grid_sample`), for 2 or 3 image
axes.

    y[n, c, o] = sum over taps t of  prod_i weight_i[t_i] * x[n, c, tap_1[t_1], ..., tap_d[t_d]]

n: batch, c: channel, o: output pixel, i: image axis. For each i, the grid's value g (the last axis
of the grid lists the image axes backwards: x, y) becomes the pixel coordinate

    p = (g + 1) / 2 * (size - 1)  if align_corners,  else  ((g + 1) * size - 1) / 2

computed in float32 (float64 for a float64 grid), step by step. Then, by mode,

    nearest   the tap round(p), ties to even
    linear    the taps floor(p) + (0, 1), weights 1 - f and f with f = p - floor(p)
    cubic     the taps floor(p) + (-1, 0, 1, 2), weights of the cubic convolution with A = -0.75

and, by padding_mode, for points outside of the image: `zeros` leaves taps outside out; `border`
moves p (under cubic: each tap) to the border; `reflection` mirrors it there: at the centres of the
border pixels if align_corners, else at their outer edges. A g that is NaN counts as -1. One that is
infinite under reflection has no taps: y is 0.

In ai.onnx a kernel can't learn the version of its node, so it accepts the modes' names of all
versions, and 3 image axes. Images of integers, booleans, strings and complex numbers can be read
with mode nearest only.

grid_sampler of the domains mmcv and mmdeploy is the same with two image axes. It numbers modes (0
linear, 1 nearest, 2 cubic) and padding modes (0 zeros, 1 border, 2 reflection).

Sources: ONNX operator specification, GridSample-16, -20 and -22; onnxruntime's operator
documentation, com.microsoft GridSample-1; PyTorch's grid_sample.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ..declaration import dtypes
from ..declaration.attributes import Attribute
from ..declaration.errors import require
from ..declaration.jit import jitable
from ..declaration.limits import ELEMENTS, UNKNOWN
from ..declaration.operator import Input, Kernel, Operator, Output, Plan
from . import grid_sample_kernels as kernels
from .geometry import GridSampleGeometry

if TYPE_CHECKING:
    from typing import Any

    from ..kernels.types import AttributeTuple, OutputSizes, Sizes

NEAREST, LINEAR, CUBIC = range(3)
TAPS = (0, 2, 4)
MODES = ("nearest", "bilinear", "bicubic")
NEWER_MODES = (*MODES, "linear", "cubic")
NAMES = (("nearest",), ("bilinear", "linear"), ("bicubic", "cubic"))  # of each mode
PADDING_MODES = ("zeros", "border", "reflection")  # in the order of sampling/coordinates.py
WORK = 2**13  # outputs that a tile computes, in about 10 us
FEW_CHANNELS = 8  # an image with fewer gains little by long spans
FEW_UNITS = 8  # units of work for which long spans should leave points
# Maximum number of points in a span. Their places and weights fit the second-level cache: 20 to 36
# bytes a point of images in float32, 116 of cubic volumes. Nearest has no weights.
LONGEST, LONGEST_NEAREST = 2**13, 2**15
PART = 32  # minimum channels in a part, if channels are cut because units are fewer than FEW_UNITS


@jitable
def mode_of(attributes: AttributeTuple) -> int:
    """Return NEAREST, LINEAR or CUBIC. The newer names of modes are the same as the older ones."""
    return attributes.mode if attributes.mode <= CUBIC else attributes.mode - CUBIC


@jitable
def shape(
    attributes: AttributeTuple, inputs: tuple[Sizes, ...], outputs: tuple[OutputSizes, ...]
) -> int:
    x, grid = inputs
    (y,) = outputs
    if max(len(x), len(grid)) < 3 or 0 < len(x) < 3 or 0 < len(grid) < 3:
        return UNKNOWN
    rank = len(grid) if len(grid) > 0 else len(x)
    y[0] = y[1] = UNKNOWN
    for i in range(2, rank):
        y[i] = grid[i - 1] if len(grid) > 0 else UNKNOWN
    if len(x) > 0:
        y[0] = x[0]
        y[1] = x[1]
    if y[0] == UNKNOWN and len(grid) > 0:
        y[0] = grid[0]
    return rank


@jitable
def check_shapes(x: Sizes, grid: Sizes) -> None:
    """Refuse shapes of image and grid that don't go together."""
    axes = len(x) - 2
    require(
        2 <= axes <= 3, "shape of {X}", x, "must have rank 4 or 5: [N, C, H, W] or [N, C, D, H, W]"
    )
    if axes == 2:
        require(len(grid) == 4, "shape of {Grid}", grid, "must have rank 4: [N, H_out, W_out, 2]")
    else:
        require(
            len(grid) == 5, "shape of {Grid}", grid, "must have rank 5: [N, D_out, H_out, W_out, 3]"
        )
    require(
        grid[0] == x[0], "shape of {Grid}", grid, "axis 0 must be the batch size N of {X},", x[0]
    )
    require(
        grid[axes + 1] == axes,
        "shape of {Grid}",
        grid,
        "the last axis must be the number of image axes,",
        axes,
    )


@jitable
def plan(
    attributes: AttributeTuple,
    inputs: tuple[Sizes, ...],
    outputs: tuple[OutputSizes, ...],
    g: GridSampleGeometry,
) -> None:
    check_shapes(inputs[0], inputs[1])
    plan_samples(attributes, mode_of(attributes), inputs[0], outputs[0], g)


@jitable
def plan_microsoft(
    attributes: AttributeTuple,
    inputs: tuple[Sizes, ...],
    outputs: tuple[OutputSizes, ...],
    g: GridSampleGeometry,
) -> None:
    require(len(inputs[0]) == 4, "shape of {X}", inputs[0], "must have rank 4: [N, C, H, W]")
    plan(attributes, inputs, outputs, g)


@jitable
def plan_mmcv(
    attributes: AttributeTuple,
    inputs: tuple[Sizes, ...],
    outputs: tuple[OutputSizes, ...],
    g: GridSampleGeometry,
) -> None:
    x = inputs[0]
    mode = attributes.interpolation_mode
    require(len(x) == 4, "shape of {X}", x, "must have rank 4: [N, C, H, W]")
    check_shapes(x, inputs[1])
    plan_samples(attributes, CUBIC if mode == 2 else LINEAR - mode, x, outputs[0], g)


@jitable
def plan_samples(
    attributes: AttributeTuple, mode: int, x: Sizes, y: OutputSizes, g: GridSampleGeometry
) -> int:
    """Plan for images of shape `x`, an output of shape `y`, and a mode.

    The mode is NEAREST, LINEAR or CUBIC.

    Points in a column are planned as a row. Returns the number of axes that this moves to the
    front.
    """
    axes = len(x) - 2
    points = 1
    for i in range(axes):
        require(x[2 + i] >= 1, "shape of {X}", x, "image axes must not be empty; is axis", 2 + i)
        g.image[i] = x[2 + i]
        g.output[i] = y[2 + i]
        fits = y[2 + i] <= ELEMENTS // max(points, 1)
        require(fits, "shape of the output", y[: axes + 2], "must have at most 2**58 elements")
        points *= y[2 + i]
    # A product of these may overflow.
    fits = max(x[0], 1) <= ELEMENTS // max(points, 1) // max(x[1], 1)
    require(fits, "shape of the output", y[: axes + 2], "must have at most 2**58 elements")
    g.batch = x[0]
    g.channels = x[1]
    g.axes = axes
    g.points = points
    g.padding_mode = attributes.padding_mode
    g.align_corners = attributes.align_corners
    g.pixels = 0
    g.span = span_of(g, TAPS[mode])
    # there is one row of blocks
    g.row_length = points
    g.stripe = g.span
    g.of_points = 0
    g.workspace = kernels.workspace_size(axes, TAPS[mode], g.span)
    cut_tiles(g)
    turned = 0
    while g.output[axes - 1] == 1 and turned < axes - 1:
        for i in range(axes - 1, 0, -1):
            g.output[i] = g.output[i - 1]
        g.output[0] = 1
        turned += 1
    return turned


@jitable
def span_of(g: GridSampleGeometry, taps: int) -> int:
    """Return the number of points in a span, which is read channel by channel.

    More points read more cached pixels of a channel, but their places also take room in the caches.
    """
    span = kernels.BLOCK
    if g.channels >= FEW_CHANNELS:
        # This leaves work for some threads, also by the parts of channels in `cut_tiles`.
        parts = max(1, g.channels // PART)
        longest = LONGEST if taps > 0 else LONGEST_NEAREST
        while span < min(longest, g.points, g.batch * g.points * parts // FEW_UNITS):
            span *= 2
    return span


@jitable
def cut_tiles(g: GridSampleGeometry) -> None:
    """Cut the work into units: a stripe of an image, or some channels of it.

    Tiles have some units.
    """
    g.stripes = (g.points + g.stripe - 1) // g.stripe
    if g.stripe < g.row_length:
        g.stripes = g.points // g.row_length * ((g.row_length + g.stripe - 1) // g.stripe)
    g.units = 0
    g.parts = 1
    g.part = g.channels
    if g.channels > 0 and g.points > 0:
        g.units = g.batch * g.stripes
    if g.units > 0:
        while g.units * g.parts < FEW_UNITS and g.channels >= 2 * PART * g.parts:
            g.parts *= 2
        g.part = (g.channels + g.parts - 1) // g.parts
        g.parts = (g.channels + g.part - 1) // g.part
        g.units *= g.parts
    g.tiles = min(64, g.units, g.batch * g.points * (g.channels + 2) // WORK + 1)


def reference(
    x: np.ndarray,
    grid: np.ndarray,
    *,
    mode: str,
    padding_mode: str,
    align_corners: bool,
    pixels: int = 0,
) -> np.ndarray:
    """Evaluate the formula, tap by tap.

    Coordinates are computed step by step in their own dtype, weights and sums in float64.
    """
    number = next(k for k, names in enumerate(NAMES) if mode in names)
    dtype = np.float64 if grid.dtype == np.float64 else np.float32
    image = x.shape[2:]
    taps = []  # of each image axis
    with np.errstate(invalid="ignore", over="ignore"):
        for size, g in zip(image, np.moveaxis(grid, -1, 0)[::-1], strict=True):
            g = np.where(np.isnan(g), dtype(-1), g.astype(dtype))
            p = g + 1 - 1 if pixels else unnormalize(g, dtype(size), align_corners)
            taps.append(axis_taps(p, size, number, padding_mode, align_corners))
        x = dtypes.widest(x)
        total = np.full((*x.shape[:2], *grid.shape[1:-1]), dtypes.zero(x), x.dtype)
        batch = np.arange(len(x)).reshape(-1, *[1] * len(image))
        for combination in itertools.product(*taps):
            indices, inside, weights = zip(*combination, strict=True)
            values = np.moveaxis(x[(batch, slice(None), *indices)], -1, 1)  # [N, C, *output image]
            inside, weight = (
                np.expand_dims(v, 1)
                for v in (np.logical_and.reduce(inside), np.prod(weights, axis=0))
            )
            values = values if number == NEAREST else values * weight
            total = total + np.where(inside, values, dtypes.zero(x)).astype(x.dtype)
    return total


def axis_taps(
    p: np.ndarray, size: int, mode: int, padding_mode: str, align_corners: bool
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return (index, whether the tap exists, weight) of each tap along an axis of this size."""
    # Of infinite g along an axis of a single pixel.
    p = np.where(np.isnan(p), p.dtype.type(-np.inf), p)
    if mode != CUBIC:
        p = pad_coordinate(p, size, padding_mode, align_corners)
    elif padding_mode == "reflection":  # exact; the mirror image repeats
        p = np.fmod(p, p.dtype.type(max(1, 2 * (size - align_corners))))
    p = np.where(np.isnan(p), p, np.clip(p, -2 * size - 4, 2 * size + 4))
    first = np.rint(p) if mode == NEAREST else np.floor(p)
    f = (p - first).astype(np.float64)
    exists = ~np.isnan(p)
    first = np.where(exists, first, 0).astype(np.int64)
    taps = []
    for offset, weight in WEIGHTS[mode](f):
        index = first + offset
        if mode == CUBIC:
            index = pad_index(index, size, padding_mode, align_corners)
        inside = exists & (index >= 0) & (index < size)
        taps.append((np.where(inside, index, 0), inside, weight))
    return taps


def unnormalize(g: np.ndarray, size: np.floating, align_corners: bool) -> np.ndarray:
    """Return the pixel coordinate for a grid's value in [-1, 1]."""
    return (g + 1) / 2 * (size - 1) if align_corners else (g + 1) * (size / 2) - 0.5


def pad_coordinate(p: np.ndarray, size: int, padding_mode: str, align_corners: bool) -> np.ndarray:
    """Move a coordinate into the image by the padding mode."""
    if padding_mode == "zeros":
        return p
    if padding_mode == "reflection":
        low, span = (0, size - 1) if align_corners else (-0.5, size)
        low = p.dtype.type(low)
        span = p.dtype.type(span)
        p = np.fmod(abs(p - low), 2 * span) if span else p * 0
        p = np.where(p > span, 2 * span - p, p) + low
    return np.clip(p, 0, size - 1)


def pad_index(i: np.ndarray, size: int, padding_mode: str, align_corners: bool) -> np.ndarray:
    """Move the index of a tap of cubic into the image by the padding mode."""
    if padding_mode == "border":
        return np.clip(i, 0, size - 1)
    if padding_mode == "reflection":
        i = i % max(1, 2 * (size - align_corners))
        return np.where(i < size, i, 2 * size - 1 - align_corners - i)
    return i


def cubic_weights(f: np.ndarray) -> tuple[tuple[int, np.ndarray], ...]:
    """Return (offset of a tap, its weight) for each of the four taps, for the fraction f of a
    coordinate.
    """
    a = -0.75

    def inner(d: np.ndarray) -> np.ndarray:
        """Return the weight at a distance of at most 1."""
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def outer(d: np.ndarray) -> np.ndarray:
        """Return the weight at a distance from 1 to 2."""
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    return (-1, outer(f + 1)), (0, inner(f)), (1, inner(1 - f)), (2, outer(2 - f))


# {mode: function from the fraction to (offset of a tap, its weight), ...}
WEIGHTS = {
    NEAREST: lambda f: ((0, np.ones_like(f)),),
    LINEAR: lambda f: ((0, 1 - f), (1, f)),
    CUBIC: cubic_weights,
}


def gradient(
    grad_output: Any,
    X: Any,  # noqa: N803  the inputs' names
    Grid: Any,  # noqa: N803
    mode: str,
    padding_mode: str,
    align_corners: bool,
) -> tuple[Any, Any]:
    """Call PyTorch's gradient, which supports neither cubic volumes nor a grid of another type than
    the image's.
    """
    import torch

    number = next(k for k, names in enumerate(NAMES) if mode in names)
    require(
        number != CUBIC or X.dim() == 4,
        "rank of {X}",
        X.dim(),
        "must be 4 for a gradient with mode bicubic",
    )
    aten = torch.ops.aten
    backward = aten.grid_sampler_2d_backward if X.dim() == 4 else aten.grid_sampler_3d_backward
    # PyTorch's numbers of the modes: bilinear is 0, nearest 1, bicubic 2.
    settings = (1, 0, 2)[number], PADDING_MODES.index(padding_mode), align_corners, [True, True]
    of_x, of_grid = backward(grad_output, X, Grid.to(X.dtype), *settings)
    return of_x, of_grid.to(Grid.dtype)


ONNX = Operator(
    domain="",
    name="GridSample",
    versions=(16, 20, 22),
    ranks=(4, 5),
    inputs=(Input("X", "T1"), Input("Grid", "T2")),
    outputs=(Output("output", "T1"),),
    types={"T1": dtypes.ALL, "T2": dtypes.FLOATS},
    attributes=(
        Attribute("mode", "string", "bilinear", choices=NEWER_MODES),
        Attribute("padding_mode", "string", "zeros", choices=PADDING_MODES),
        Attribute("align_corners", "int", 0, bounds=(0, 1)),
    ),
    terms={"Grid": "grid"},
    plan=Plan(shape, plan, GridSampleGeometry),
    kernels=(
        Kernel(kernels.nearest, {"mode": NAMES[NEAREST]}, sees_bits=True),
        Kernel(kernels.linear, {"mode": NAMES[LINEAR]}, types={"T1": dtypes.FLOATS},
            unless="mode is nearest"),
        Kernel(kernels.cubic, {"mode": NAMES[CUBIC]}, types={"T1": dtypes.FLOATS},
            unless="mode is nearest"),
    ),
    reference=reference,
    gradient=gradient,
)  # fmt: skip
MICROSOFT = replace(
    ONNX,
    domain="com.microsoft",
    versions=(1,),
    ranks=(4,),
    types={"T1": dtypes.FLOATS, "T2": dtypes.FLOATS},
    attributes=(replace(ONNX.attributes[0], choices=MODES), *ONNX.attributes[1:]),
    terms={},
    plan=Plan(shape, plan_microsoft, GridSampleGeometry),
)
# As PyTorch, mmcv and mmdeploy number them.
INTERPOLATION_MODES = "bilinear", "nearest", "bicubic"


def reference_mmcv(
    input: np.ndarray,
    grid: np.ndarray,
    *,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
) -> np.ndarray:
    mode = INTERPOLATION_MODES[interpolation_mode]
    return reference(
        input,
        grid,
        mode=mode,
        padding_mode=PADDING_MODES[padding_mode],
        align_corners=align_corners,
    )


MMCV = Operator(
    domain="mmcv",
    name="grid_sampler",
    ranks=(4,),
    inputs=(Input("input", "T"), Input("grid", "T")),
    outputs=(Output("output", "T"),),
    types={"T": ("float16", "float32", "float64")},
    attributes=(
        Attribute("interpolation_mode", "int", required=True, bounds=(0, 2)),
        Attribute("padding_mode", "int", required=True, bounds=(0, 2)),
        Attribute("align_corners", "int", required=True, bounds=(0, 1)),
    ),
    terms={"X": "input", "Grid": "grid"},
    plan=Plan(shape, plan_mmcv, GridSampleGeometry),
    kernels=(
        Kernel(kernels.nearest, {"interpolation_mode": (1,)}),
        Kernel(kernels.linear, {"interpolation_mode": (0,)}),
        Kernel(kernels.cubic, {"interpolation_mode": (2,)}),
    ),
    reference=reference_mmcv,
)  # fmt: skip
OPERATORS = (ONNX, MICROSOFT, MMCV, replace(MMCV, domain="mmdeploy"))
