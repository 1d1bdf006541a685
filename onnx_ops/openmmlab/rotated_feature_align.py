"""MMCVRotatedFeatureAlign: add the values at the points of a pixel's box to the pixel (R3Det).

    output[n, c, i, j] = features[n, c, i, j] + sum over points k of  features[n, c](y_k, x_k)

n: batch, c: channel. boxes[n, i, j] is y, x, width, height, each multiplied by spatial_scale, and
an angle in radians; *the first number is y*, though detectors write x there. With points = 1 there
is the box's centre, with points = 5 also its corners,

    x = centre_x + s * width / 2 * cos(angle) - t * height / 2 * sin(angle)
    y = centre_y + s * width / 2 * sin(angle) + t * height / 2 * cos(angle)        for s, t = 1, -1

computed in float32 (float64 for float64). A feature map is read there as by RoiAlign
(roi_align.py).

Source: mmcv, see docs/mmdeploy.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..declaration.attributes import Attribute
from ..declaration.errors import require
from ..declaration.jit import jitable
from ..declaration.limits import ELEMENTS, UNKNOWN
from ..declaration.operator import Input, Kernel, Operator, Output, Plan
from ..detection.roi_align import coordinates_of, lay_out_maps, read_taps
from ..kernels.shares import pieces
from . import rotated_feature_align_kernels as kernels

if TYPE_CHECKING:
    from ..kernels.types import AttributeTuple, OutputSizes, Sizes

WORK = 2**11  # outputs of a tile, at least


@jitable
def shape(
    attributes: AttributeTuple, inputs: tuple[Sizes, ...], outputs: tuple[OutputSizes, ...]
) -> int:
    features, boxes = inputs
    (y,) = outputs
    for a in range(4):
        y[a] = features[a] if len(features) == 4 else UNKNOWN
        if y[a] == UNKNOWN and a != 1 and len(boxes) == 4:  # boxes lack axis 1, the channels
            y[a] = boxes[max(0, a - 1)]
    return 4


@jitable
def plan(
    attributes: AttributeTuple,
    inputs: tuple[Sizes, ...],
    outputs: tuple[OutputSizes, ...],
    g: kernels.RotatedFeatureAlignGeometry,
) -> None:
    x, boxes = inputs
    lay_out_maps(attributes, x, g)
    require(len(boxes) == 4 and boxes[3] == 5, "shape of boxes", boxes, "must be [N, H, W, 5]")
    for a in range(3):
        fits = boxes[a] == x[0 if a == 0 else a + 1]
        rule = "must be [N, H, W, 5], as features are [N, C, H, W]; see axis"
        require(fits, "shape of boxes", boxes, rule, a)
    points = attributes.points
    require(points == 1 or points == 5, "points", points, "must be 1 or 5")
    fits = max(x[0], 1) <= ELEMENTS // (x[2] * x[3]) // max(x[1], 1)
    require(fits, "shape of features", x, "must have at most 2**58 elements")
    g.points = points
    g.blocks = pieces(g.pixels, kernels.PIXELS)
    g.tiles = min(64, g.batch * g.blocks, g.batch * g.channels * g.pixels // WORK + 1)
    g.workspace = kernels.workspace_size()


@np.errstate(invalid="ignore", over="ignore")
def reference(
    features: np.ndarray, boxes: np.ndarray, *, spatial_scale: float, points: int
) -> np.ndarray:
    """Evaluate the formula: points in their own dtype, weights and sums in float64."""
    dtype = coordinates_of(features)
    boxes = boxes.astype(dtype)
    y, x, width, height = np.moveaxis(boxes[..., :4] * dtype(spatial_scale), -1, 0)
    angle = boxes[..., 4].astype(np.float64)
    cosine = np.cos(angle).astype(dtype)
    sine = np.sin(angle).astype(dtype)
    total = features.astype(np.float64)
    for s, t in ((0, 0), (1, 1), (-1, 1), (1, -1), (-1, -1))[:points]:
        along = dtype(s) * (width * dtype(0.5))
        across = dtype(t) * (height * dtype(0.5))
        if s == t == 0:  # also for an infinite width
            along = across = np.zeros_like(width)
        sampled = y + along * sine + across * cosine, x + along * cosine - across * sine
        for n in range(len(features)):
            weighted, _ = read_taps(features[n], [v[n] for v in sampled])
            total[n] += weighted.sum(axis=0)
    return total


ROTATED_FEATURE_ALIGN = Operator(
    domain="mmcv",
    name="MMCVRotatedFeatureAlign",
    ranks=(4,),
    inputs=(Input("features", "T"), Input("boxes", "T")),
    outputs=(Output("output", "T"),),
    types={"T": ("float16", "float32", "float64")},
    attributes=(
        Attribute("spatial_scale", "float", required=True),
        Attribute("points", "int", required=True, bounds=(1, 5)),
    ),
    terms={"X": "features"},
    plan=Plan(shape, plan, kernels.RotatedFeatureAlignGeometry),
    kernels=(Kernel(kernels.rotated_feature_align),),
    reference=reference,
)
OPERATORS = (ROTATED_FEATURE_ALIGN,)
