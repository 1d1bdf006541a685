"""MultiScaleDeformableAttention: weighted sums of values at points in images of several sizes.

It is Deformable DETR's `multi_scale_deformable_attn`. Each query has points of its own:

    y[n, q, m * D + d] = sum over l, p and taps t of
                         attention_weights[n, q, m, l, p] * weight_h[t] * weight_w[t]
                         * value[n, pixel_l[t], m, d]

n: batch, q: query, m: head (M of them), d: channel of a head (D of them), l: level (L of them), p:
point (P of them for each query, head and level). `value` holds the images of all levels, pixel by
pixel, one after the other, S pixels in all; spatial_shapes lists their heights and widths, h_0,
w_0, h_1, w_1, ...

sampling_locations[n, q, m, l, p] is x, y in [0, 1], from one border of the image to the other. Its
taps are those of GridSample with mode linear, padding_mode zeros and align_corners 0 for the grid
2 * x - 1, 2 * y - 1. Along each axis, for the coordinate

    p = ((2 * x - 1 + 1) * size - 1) / 2

computed in float32 (float64 for float64 locations), step by step, these are the pixels
floor(p) + (0, 1) with weights 1 - f and f, where f = p - floor(p). Taps outside of the image are
left out; a location that is NaN has no taps.

Source: Deformable DETR (arXiv 2010.04159), as transformers has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..declaration import dtypes
from ..declaration.errors import require
from ..declaration.jit import jitable
from ..declaration.limits import ELEMENTS, UNKNOWN
from ..declaration.operator import Input, Kernel, Operator, Output, Plan
from .deformable_attention_kernels import (
    PIXELS,
    DeformableAttentionGeometry,
    deformable_attention,
    workspace_size,
)

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from ..kernels.types import AttributeTuple, OutputSizes, Sizes

WORK = 2**17  # work of a tile, points * (channels + 16): about 20 us


@jitable
def shape(
    attributes: AttributeTuple, inputs: tuple[Sizes, ...], outputs: tuple[OutputSizes, ...]
) -> int:
    value, _, locations, _ = inputs
    (y,) = outputs
    y[0] = UNKNOWN
    y[1] = UNKNOWN
    y[2] = UNKNOWN
    if len(locations) == 6:
        y[0] = locations[0]
        y[1] = locations[1]
    if len(value) == 4:
        y[0] = value[0]
        if value[3] >= 0 and 0 <= value[2] <= ELEMENTS // max(value[3], 1):
            y[2] = value[2] * value[3]
    return 3


@jitable
def plan(
    attributes: AttributeTuple,
    inputs: tuple[Sizes, ...],
    outputs: tuple[OutputSizes, ...],
    g: DeformableAttentionGeometry,
) -> None:
    value, sizes, locations, attention = inputs
    levels = len(sizes) // 2
    require(len(value) == 4, "shape of {value}", value, "must have rank 4: [N, S, M, D]")
    rule = "must be a height and a width for each of 1 to 8 levels"
    require(levels > 0 and len(sizes) == 2 * levels, "{spatial_shapes}", sizes, rule)
    check_points(value, levels, locations, attention)
    plan_levels(value, sizes, g)
    fits = value[3] <= ELEMENTS // max(value[0], 1) // max(locations[1], 1) // max(value[2], 1)
    require(fits, "shape of {value}", value, "output must have at most 2**58 elements")
    g.queries = locations[1]
    g.heads = value[2]
    g.channels = value[3]
    g.level_points = locations[4]
    g.points = levels * locations[4]
    g.rows = value[0] * g.queries * g.heads if g.channels > 0 else 0
    g.tiles = min(64, g.rows, g.rows // max(1, WORK // max(g.points, 1) // (g.channels + 16)) + 1)
    g.workspace = workspace_size()


@jitable
def check_points(value: Sizes, levels: int, locations: Sizes, attention: Sizes) -> None:
    """Refuse locations and weights that don't fit the value, the levels or each other."""
    argument = "shape of {sampling_locations}"
    fits = len(locations) == 6 and locations[5] == 2
    require(fits, argument, locations, "must be [N, Q, M, L, P, 2]")
    rule = "axis 0 must be the batch size N of {value},"
    require(locations[0] == value[0], argument, locations, rule, value[0])
    rule = "axis 2 must be the number of heads M of {value},"
    require(locations[2] == value[2], argument, locations, rule, value[2])
    rule = "axis 3 must be the number of levels L of {spatial_shapes},"
    require(locations[3] == levels, argument, locations, rule, levels)
    weights = "shape of {attention_weights}"
    require(len(attention) == 5, weights, attention, "must have rank 5: [N, Q, M, L, P]")
    points = 1
    for a in range(5):
        rule = "must be [N, Q, M, L, P], as in {sampling_locations}; it differs on axis"
        require(attention[a] == locations[a], weights, attention, rule, a)
        fits = locations[a] <= ELEMENTS // points
        require(fits, argument, locations, "must have at most 2**58 points")
        points *= max(locations[a], 1)


@jitable
def plan_levels(value: Sizes, sizes: Sizes, g: DeformableAttentionGeometry) -> None:
    """Fill the geometry's fields for levels of these heights and widths."""
    pixels = 0
    for l in range(len(sizes) // 2):
        g.heights[l] = sizes[2 * l]
        g.widths[l] = sizes[2 * l + 1]
        fits = 1 <= g.heights[l] <= PIXELS and 1 <= g.widths[l] <= PIXELS
        require(fits, "{spatial_shapes}", sizes, "must lie in [1, 2**29]")
        pixels += g.heights[l] * g.widths[l]
    require(pixels <= PIXELS, "{spatial_shapes}", sizes, "must have at most 2**29 pixels in all")
    rule = "axis 1 must be the number of pixels of all levels,"
    require(value[1] == pixels, "shape of {value}", value, rule, pixels)
    g.pixels = pixels


def reference(
    value: np.ndarray,
    spatial_shapes: ArrayLike,
    sampling_locations: np.ndarray,
    attention_weights: np.ndarray,
) -> np.ndarray:
    """Evaluate the formula: coordinates in their own dtype, weights and sums in float64."""
    dtype = np.float64 if sampling_locations.dtype == np.float64 else np.float32
    value = dtypes.widest(value)
    attention = dtypes.widest(attention_weights)
    n, _, m, _ = np.ogrid[tuple(map(slice, sampling_locations[:, :, :, 0, :, 0].shape))]
    total = np.zeros((*sampling_locations.shape[:3], value.shape[3]))
    start = 0
    for l, size in enumerate(np.asarray(spatial_shapes).reshape(-1, 2).tolist()):
        # the first tap and the weights, along y and then x, each [N, Q, M, P]
        first = []
        weights = []
        x_and_y = np.moveaxis(sampling_locations[:, :, :, l], -1, 0)
        for s, location in zip(size, x_and_y[::-1], strict=True):
            with np.errstate(invalid="ignore", over="ignore"):
                p = ((location.astype(dtype) * 2 - 1 + 1) * dtype(s) - 1) / 2
            p = np.clip(np.where(np.isnan(p), -2, p), -2, 2 * s + 4)
            first.append(np.floor(p).astype(np.int64))
            f = p - np.floor(p)  # in the type of the locations
            weights.append((1 - f, f))
        for i, j in np.ndindex(2, 2):
            row = first[0] + i
            column = first[1] + j
            exists = (row >= 0) & (row < size[0]) & (column >= 0) & (column < size[1])
            tap = value[n, np.where(exists, start + row * size[1] + column, 0), m]
            weight = attention[:, :, :, l] * weights[0][i] * weights[1][j]
            total += np.where(exists[..., None], weight[..., None] * tap, 0).sum(3)
        start += size[0] * size[1]
    return total.reshape(*total.shape[:2], value.shape[2] * value.shape[3])


DEFORMABLE_ATTENTION = Operator(
    domain="onnx_ops",
    name="MultiScaleDeformableAttention",
    ranks=(4,),
    inputs=(
        Input("value", "T1"),
        Input("spatial_shapes", "I", values=True),
        Input("sampling_locations", "T2"),
        Input("attention_weights", "T1"),
    ),
    outputs=(Output("output", "T1"),),
    types={"T1": dtypes.FLOATS, "T2": dtypes.FLOATS, "I": ("int64",)},
    plan=Plan(shape, plan, DeformableAttentionGeometry),
    kernels=(Kernel(deformable_attention),),
    reference=reference,
)
OPERATORS = (DEFORMABLE_ATTENTION,)
