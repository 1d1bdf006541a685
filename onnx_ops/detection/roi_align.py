"""RoiAlign: sample regions of feature maps between pixels, and pool the samples in bins.

    y[r, c, p, q] = pool over i < count_y, j < count_x of  x[batch_indices[r], c](y_p,i, x_q,j)

r: region, c: channel, p, q: bin, i, j: sample of a bin. A region has output_height times
output_width bins. Along each axis, a region from `begin` to `end` (rois[r] lists x and y of the
begin, then of the end) has the samples

    start + p * step + (i + 0.5) * step / count
    start = begin * spatial_scale - offset,    size = end * spatial_scale - offset - start
    step = size / output_size,    count = sampling_ratio, or ceil(step) if that is 0, but from 0 to
                                  2**10

computed in float32 (float64 for float64), step by step. `offset` is 0.5 with half_pixel. With
output_half_pixel it is 0, and sizes below 1 become 1. A region has no samples if start or step is
not finite.

x[n, c](y, x) is 0 if y < -1, y > height, x < -1 or x > width. Else coordinates are moved into [0,
size - 1], and the four pixels around are the sample's taps, with weights 1 - f and f along each
axis, where f = v - floor(v).

    avg   the sum of all taps' weighted pixels / max(count_y * count_x, 1)
    max   the largest *weighted pixel* of any tap: not the largest sample, which ONNX's operator
          never computes. Taps with a weight of 0, and samples outside, count as 0; without samples
          the result is 0

Taps with a weight of 0 are not read: an infinite pixel beside a sample makes no NaN.

MMCVRoiAlign and MMCVRoIAlignRotated of the domains mmcv and mmdeploy are the same, except that

    rois      has the image's position, rounded towards 0, as its first column
    aligned   stands for half_pixel if it is 1, for output_half_pixel if it is 0
    max       (MMCVRoiAlign) is the largest sample, or -10000 if that is larger

MMCVRoIAlignRotated has boxes [centre x, centre y, width, height, angle in radians], with
start = -size / 2. It turns the coordinates v, u of samples by the angle a, or by -a if clockwise is
0:

    y = v * cos(a) + u * sin(a) + centre_y,    x = u * cos(a) - v * sin(a) + centre_x

The centre is scaled, and offset is subtracted from it. Its pooling is avg.

In ai.onnx a kernel can't learn its node's version. Version 10 has no
coordinate_transformation_mode, and means output_half_pixel by its absence; nodes of that version
are left to ONNX Runtime.

Sources: Mask R-CNN (arXiv 1703.06870); ONNX operator specification, RoiAlign-16 and -22; mmcv and
mmdeploy, see docs/mmdeploy.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ..declaration import dtypes
from ..declaration.attributes import Attribute
from ..declaration.errors import require
from ..declaration.jit import jitable
from ..declaration.limits import ELEMENTS, UNKNOWN
from ..declaration.operator import Input, Kernel, Operator, Output, Plan
from ..kernels.shares import pieces
from . import roi_align_kernels as kernels
from .roi_align_kernels import RoiAlignGeometry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Any

    from ..kernels.types import AttributeTuple, Number, NumberType, OutputSizes, Sizes
    from .roi_align_kernels import FeatureMaps

MODES = ("avg", "max")
HALF_PIXEL = ("output_half_pixel", "half_pixel")
BINS = 2**20  # of an output's axis, at most
PIXELS = 2**31 - 1  # of an image's axis, at most
# Pixels of a unit's channels, which fit the second-level cache, unless four channels have more.
CACHED = 2**18
# A copy for turned regions has a multiple of so many channels, or all of them if they are fewer.
COPIED_CHANNELS = 8
COPIED = 2**19  # elements of that copy, at most
TAPS = 16  # of a bin, if it has four samples
# Taps for each pixel of a channel, from which on a copy pays; parts of regions have four times as
# many.
PAYS = 8
WORK = 2**12  # outputs of a tile, at least


@jitable
def shape(
    attributes: AttributeTuple, inputs: tuple[Sizes, ...], outputs: tuple[OutputSizes, ...]
) -> int:
    x = inputs[0]
    rois = inputs[1]
    (y,) = outputs
    y[0] = rois[0] if len(rois) == 2 else UNKNOWN
    y[1] = x[1] if len(x) == 4 else UNKNOWN
    y[2] = attributes.output_height
    y[3] = attributes.output_width
    return 4


@jitable
def lay_out_maps(attributes: AttributeTuple, x: Sizes, g: FeatureMaps) -> None:
    """Check feature maps of shape x, and fill the fields of `FeatureMaps`."""
    require(len(x) == 4, "shape of {X}", x, "must have rank 4: [N, C, H, W]")
    for a in range(2, 4):
        rule = "image axes must lie in [1, 2**31 - 1]; see axis"
        require(1 <= x[a] <= PIXELS, "shape of {X}", x, rule, a)
    g.batch = x[0]
    g.channels = x[1]
    g.height = x[2]
    g.width = x[3]
    g.pixels = x[2] * x[3]
    g.scale = np.float64(attributes.spatial_scale).view(np.int64)


@jitable
def plan(
    attributes: AttributeTuple,
    inputs: tuple[Sizes, ...],
    outputs: tuple[OutputSizes, ...],
    g: RoiAlignGeometry,
) -> None:
    x, rois, images = inputs
    g.half_pixel = attributes.coordinate_transformation_mode
    plan_regions(attributes, x, rois, 4, g)
    fits = len(images) == 1 and images[0] == rois[0]
    require(fits, "shape of {batch_indices}", images, "must be [R], with R", rois[0])


@jitable
def plan_mmcv(
    attributes: AttributeTuple,
    inputs: tuple[Sizes, ...],
    outputs: tuple[OutputSizes, ...],
    g: RoiAlignGeometry,
) -> None:
    x, rois = inputs
    g.half_pixel = attributes.aligned
    plan_regions(attributes, x, rois, 5, g)


@jitable
def plan_rotated(
    attributes: AttributeTuple,
    inputs: tuple[Sizes, ...],
    outputs: tuple[OutputSizes, ...],
    g: RoiAlignGeometry,
) -> None:
    x, rois = inputs
    g.half_pixel = attributes.aligned
    g.clockwise = attributes.clockwise
    plan_regions(attributes, x, rois, 6, g)
    taps = g.regions * g.bins * TAPS // g.pixels // max(g.batch, 1)  # of a channel, for each pixel
    groups = COPIED // g.pixels // COPIED_CHANNELS
    if taps >= PAYS and groups > 0:
        cut_regions(groups * COPIED_CHANNELS, max(1, taps // (4 * PAYS)), g)
        g.copied = g.block * g.pixels
        g.workspace += 8 * g.copied


@jitable
def plan_regions(
    attributes: AttributeTuple, x: Sizes, rois: Sizes, roi_pitch: int, g: RoiAlignGeometry
) -> None:
    """Plan for regions with `roi_pitch` numbers in `rois`.

    The attributes that select the kind of region are in `g`.
    """
    lay_out_maps(attributes, x, g)
    fits = len(rois) == 2 and rois[1] == roi_pitch
    require(fits, "shape of {rois}", rois, "must be [R, K], with K", roi_pitch)
    g.regions = rois[0]
    g.roi_pitch = roi_pitch
    g.out_height = attributes.output_height
    g.out_width = attributes.output_width
    g.bins = g.out_height * g.out_width
    g.ratio = attributes.sampling_ratio
    fits = max(g.regions, 1) <= ELEMENTS // g.bins // max(g.channels, 1)
    require(fits, "shape of {rois}", rois, "output must have at most 2**58 elements")
    cut_regions(max(1, CACHED // g.pixels // kernels.TOGETHER) * kernels.TOGETHER, 64, g)
    g.workspace = kernels.workspace_size()


@jitable
def cut_regions(channels: int, parts: int, g: RoiAlignGeometry) -> None:
    """Cut the output into units, with at most so many channels and parts of the regions."""
    g.block = max(1, min(kernels.CHANNELS, g.channels, channels))
    blocks = pieces(g.channels, g.block)
    g.parts = max(1, min(g.regions, 64 // max(blocks, 1), parts))
    g.units = blocks * g.parts if g.regions > 0 else 0
    # One tile also without channels: a kernel refuses images that aren't there.
    g.tiles = min(64, max(1, g.units), g.regions * g.channels * g.bins // WORK + 1)


def reference(
    x: np.ndarray,
    rois: np.ndarray,
    batch_indices: np.ndarray,
    *,
    coordinate_transformation_mode: str,
    mode: str,
    **geometry: Any,
) -> np.ndarray:
    """Evaluate the formula: coordinates in their own dtype, weights and sums in float64."""
    samples = upright(x, rois, coordinate_transformation_mode == "half_pixel", **geometry)
    return pooled(
        x, batch_indices.tolist(), samples, {"avg": average, "max": largest_tap}[mode], **geometry
    )


def reference_mmcv(
    input: np.ndarray, rois: np.ndarray, *, aligned: bool, mode: str, **geometry: Any
) -> np.ndarray:
    samples = upright(input, rois[:, 1:], aligned, **geometry)
    return pooled(
        input, positions(rois), samples, {"avg": average, "max": largest_sample}[mode], **geometry
    )


def reference_rotated(
    input: np.ndarray, rois: np.ndarray, *, aligned: bool, clockwise: bool, **geometry: Any
) -> np.ndarray:
    samples = turned(input, rois[:, 1:], aligned, clockwise, **geometry)
    return pooled(input, positions(rois), samples, average, **geometry)


def positions(rois: np.ndarray) -> list[int]:
    """Return the positions of images in the first column of regions; -1 for invalid ones."""
    first = dtypes.widest(rois[:, 0])
    return np.where(abs(first) < 2**31, np.trunc(first), -1).astype(int).tolist()


def coordinates_of(x: np.ndarray) -> NumberType:
    """Return the type in which places in images are computed."""
    return np.float64 if x.dtype == np.float64 else np.float32


def upright(
    x: np.ndarray, rois: np.ndarray, half_pixel: bool, spatial_scale: float, **geometry: Any
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield y and x of each region's samples, see `samples_of`."""
    dtype = coordinates_of(x)
    offset = dtype(0.5 if half_pixel else 0)
    for left, top, right, bottom in rois.astype(dtype) * dtype(spatial_scale) - offset:
        yield samples_of((top, bottom - top), (left, right - left), half_pixel, **geometry)


def turned(
    x: np.ndarray,
    rois: np.ndarray,
    half_pixel: bool,
    clockwise: bool,
    spatial_scale: float,
    **geometry: Any,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield what `upright` yields, for boxes of centre, size and angle."""
    dtype = coordinates_of(x)
    offset = dtype(0.5 if half_pixel else 0)
    for *box, angle in rois.astype(dtype):
        centre_x, centre_y, *sizes = np.array(box) * dtype(spatial_scale)
        width, height = (size if half_pixel or size >= 1 else dtype(1) for size in sizes)
        v, u = samples_of((-height / 2, height), (-width / 2, width), half_pixel, **geometry)
        angle = np.float64(angle) * (1 if clockwise else -1)
        sine = dtype(np.sin(angle))
        cosine = dtype(np.cos(angle))
        yield (
            v * cosine + u * sine + (centre_y - offset),
            u * cosine - v * sine + (centre_x - offset),
        )


def samples_of(
    y_axis: tuple[Number, Number],
    x_axis: tuple[Number, Number],
    half_pixel: bool,
    output_height: int,
    output_width: int,
    sampling_ratio: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return y and x of a box's samples, from its start and size along each axis.

    They are [output_height, 1, count_y, 1] and [1, output_width, 1, count_x].
    """
    v = samples_along(*y_axis, output_height, sampling_ratio, half_pixel)
    u = samples_along(*x_axis, output_width, sampling_ratio, half_pixel)
    return v[:, None, :, None], u[None, :, None, :]


def samples_along(
    start: Number, size: Number, bins: int, ratio: int, half_pixel: bool
) -> np.ndarray:
    """Return the coordinates of a region's samples along an axis, [bins, count]."""
    # Not type(start): NumPy 1 makes a float64 of half a float32.
    dtype = type(size)
    if not half_pixel and not size >= 1:
        size = dtype(1)
    step = size / dtype(bins)
    count = ratio if ratio > 0 else int(min(np.ceil(step), kernels.MOST_SAMPLES)) if step > 0 else 0
    if not (np.isfinite(start) and np.isfinite(step)):
        count = 0
    p = np.arange(bins, dtype=dtype)[:, None]
    i = np.arange(count, dtype=dtype)
    return (start + p * step) + (i + dtype(0.5)) * step / dtype(max(count, 1))


@np.errstate(invalid="ignore", over="ignore")  # also for `regions`, which are computed one by one
def pooled(
    x: np.ndarray,
    images: Sequence[int],
    regions: Iterable[tuple[np.ndarray, np.ndarray]],
    pool: Callable[..., np.ndarray],
    output_height: int,
    output_width: int,
    **_: Any,
) -> np.ndarray:
    """Pool each region's samples.

    pool  a function of the result of `read_taps` for samples [bin's row, its column, sample's row,
          its column]
    """
    total = np.zeros((len(images), x.shape[1], output_height, output_width))
    for n in images:
        rule = "must be positions of images, less than"
        require(0 <= n < len(x), "{batch_indices}", n, rule, len(x))
    for r, samples in enumerate(regions):
        total[r] = pool(*read_taps(x[images[r]], np.broadcast_arrays(*samples)))
    return total


def read_taps(image: np.ndarray, points: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the weighted taps of points (y, x) in an image [C, H, W], and which points are inside.

    The taps are [4, C, *points].
    """
    image = dtypes.widest(image)
    sizes = image.shape[1:]
    inside = np.logical_and.reduce(
        [(v >= -1) & (v <= v.dtype.type(s)) for v, s in zip(points, sizes, strict=True)]
    )
    taps = []  # along y and x, the two pixels and their weights
    for v, size in zip(points, sizes, strict=True):
        v = np.where(inside, np.maximum(v, 0), 0)
        low = np.minimum(np.floor(v).astype(np.int64), size - 1)
        f = np.where(low < size - 1, v.astype(np.float64) - low, 0)
        taps.append(((low, 1 - f), (np.minimum(low + 1, size - 1), f)))
    pixels = np.array([image[:, i, j] for i, _ in taps[0] for j, _ in taps[1]])
    weights = np.array([a * b for _, a in taps[0] for _, b in taps[1]])[:, None] * inside
    return np.where(weights > 0, pixels, 0) * weights, inside


def average(weighted: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Return the average of each bin's samples, from the result of `read_taps`."""
    return weighted.sum(axis=(0, -2, -1)) / max(inside.shape[-2] * inside.shape[-1], 1)


def largest_tap(weighted: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Return the largest weighted pixel of each bin, from the result of `read_taps`."""
    return weighted.max(axis=(0, -2, -1), initial=-np.inf if inside.size else 0)


def largest_sample(weighted: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Return the largest of each bin's samples, from the result of `read_taps`."""
    return weighted.sum(axis=0).max(axis=(-2, -1), initial=kernels.LEAST_SAMPLE)


MODE = Attribute("mode", "string", "avg", choices=MODES)
COMMON = (
    Attribute("output_height", "int", 1, bounds=(1, BINS)),
    Attribute("output_width", "int", 1, bounds=(1, BINS)),
    Attribute("sampling_ratio", "int", 0, bounds=(0, kernels.MOST_SAMPLES)),
    Attribute("spatial_scale", "float", 1.0),
)
MMCV_COMMON = (  # all are required, and a sampling_ratio below 0 means 0
    *(replace(a, required=True, default=None) for a in COMMON[:2]),
    Attribute("sampling_ratio", "int", required=True, bounds=(-(2**31), kernels.MOST_SAMPLES)),
    Attribute("aligned", "int", required=True, bounds=(0, 1)),
    Attribute("spatial_scale", "float", required=True),
)
ROI_ALIGN = Operator(
    domain="",
    name="RoiAlign",
    versions=(16, 22),
    has_older=True,
    ranks=(4,),
    inputs=(Input("X", "T"), Input("rois", "T"), Input("batch_indices", "I")),
    outputs=(Output("output", "T"),),
    types={"T": dtypes.FLOATS, "I": ("int64",)},
    attributes=(
        Attribute("coordinate_transformation_mode", "string", "half_pixel", choices=HALF_PIXEL),
        MODE, *COMMON
    ),
    plan=Plan(shape, plan, RoiAlignGeometry),
    kernels=(
        Kernel(kernels.roi_align, {"mode": ("avg",)}, tupled=2),
        Kernel(kernels.roi_align_max, {"mode": ("max",)}, tupled=2),
    ),
    reference=reference,
)  # fmt: skip
MMCV = ("mmcv", "mmdeploy")
MMCV_ROI_ALIGN = Operator(
    domain=MMCV[0],
    name="MMCVRoiAlign",
    ranks=(4,),
    inputs=(Input("input", "T"), Input("rois", "T")),
    outputs=(Output("output", "T"),),
    types={"T": ("float16", "float32", "float64")},
    attributes=(replace(MODE, required=True, default=None), *MMCV_COMMON),
    terms={"X": "input", "batch_indices": "batch indices in rois"},
    plan=Plan(shape, plan_mmcv, RoiAlignGeometry),
    kernels=(
        Kernel(kernels.roi_align, {"mode": ("avg",)}, tupled=2),
        Kernel(kernels.mmcv_roi_align_max, {"mode": ("max",)}, tupled=2),
    ),
    reference=reference_mmcv,
)  # fmt: skip
MMCV_ROI_ALIGN_ROTATED = replace(
    MMCV_ROI_ALIGN,
    name="MMCVRoIAlignRotated",
    attributes=(*MMCV_COMMON, Attribute("clockwise", "int", required=True, bounds=(0, 1))),
    plan=Plan(shape, plan_rotated, RoiAlignGeometry),
    kernels=(Kernel(kernels.mmcv_roi_align_rotated),),
    reference=reference_rotated,
)
OPERATORS = (
    ROI_ALIGN,
    *(replace(o, domain=d) for o in (MMCV_ROI_ALIGN, MMCV_ROI_ALIGN_ROTATED) for d in MMCV),
)
