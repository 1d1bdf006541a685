"""Non-maximum suppression as mmdeploy and mmcv export it: keep boxes by descending score so that no
two of them overlap too much.

    overlap(a, b) = area(a and b) / area(a or b)

computed in float64 and rounded to float32, before it is compared. Of equal scores the lower
position comes first.

    NMSRotated (mmdeploy)         boxes [N, B, 5]: centre x, y, width, height, angle in radians; the
                                  width lies along (cos, sin); scores [N, K, B] of K classes. For
                                  each image and class, a box is kept if its score
                                  is > score_threshold, and its overlap is > iou_threshold with none
                                  of those kept before. Rows [image, class, box]
    NMSMatch (mmdeploy)           boxes [N, B, 4]: x1, y1, x2, y2. A box is suppressed if its
                                  overlap, with 1e-10 added to area(a or b), is >= iou_threshold
                                  with one kept before. Rows [image, class, kept box, suppressed
                                  box] for those kept boxes whose score is > score_threshold
    NonMaxSuppression (mmcv)      boxes [B, 4], scores [B], overlap > iou_threshold. The positions
                                  of kept boxes. offset, 0 or 1, is added to every width and height
    SoftNonMaxSuppression (mmcv)  For i = 0, 1, ...: the box with the largest score of those from i
                                  on, the first of equal ones, changes places with box i. Then the
                                  score of each later one is multiplied by

        0 (method 0) or 1 - overlap (method 1) if overlap >= iou_threshold, else 1
        exp(-overlap**2 / sigma) (method 2)

                                  and rounded to float32. A box whose score is < min_score now
                                  changes places with the last one and is dropped. Rows [x1, y1, x2,
                                  y2, score] and the boxes' positions

An overlap that is NaN, as of two boxes without area, suppresses nothing, and decays only by method
2.

These operators are declared by `onnx_ops.operator`, as custom ones: ranks are fixed, types are few,
and only a bound of the outputs' lengths is known. Therefore one tile, and so one thread, computes
them.

Sources: mmcv and mmdeploy, see docs/suppression.md, also for differences.
"""

import numpy as np

from ..custom.operator import operator
from ..declaration.errors import require
from ..declaration.jit import jitable
from . import suppression_kernels as kernels


@operator(
    "mmdeploy::NMSRotated", inputs="boxes: float32, scores: float32", outputs="selected: int64",
    ranks={"boxes": (3,), "scores": (3,)},
)  # fmt: skip
def nms_rotated(
    boxes: np.ndarray, scores: np.ndarray, *, iou_threshold: float, score_threshold: float
) -> np.ndarray:
    rows = []
    for n, k in np.ndindex(scores.shape[:2]):
        order = [c for c in by_score(scores[n, k]) if scores[n, k, c] > score_threshold]
        numbers = boxes[n].astype(np.float64)
        kept: list[int] = []
        for c in order:
            if not any(rotated_overlap(numbers[c], numbers[d]) > iou_threshold for d in kept):
                kept.append(c)
        rows += [(n, k, c) for c in kept]
    return np.array(rows, np.int64).reshape(-1, 3)


@operator(
    "mmdeploy::NMSMatch",
    inputs="boxes: float32, scores: float32, iou_threshold: float32, score_threshold: float32",
    outputs="matches: int64", ranks={"boxes": (3,), "scores": (3,)},
)  # fmt: skip
def nms_match(
    boxes: np.ndarray, scores: np.ndarray, iou_threshold: np.ndarray, score_threshold: np.ndarray
) -> np.ndarray:
    rows = []
    for n, k in np.ndindex(scores.shape[:2]):
        order = by_score(scores[n, k])
        while order:
            keeper, *rest = order
            ious = overlaps(boxes[n, keeper], boxes[n, rest], 0, 1e-10).astype(np.float32)
            suppressed = [c for c, iou in zip(rest, ious, strict=True) if iou >= iou_threshold[0]]
            order = [c for c in rest if c not in suppressed]
            if scores[n, k, keeper] > score_threshold[0]:
                rows += [(n, k, keeper, c) for c in suppressed]
    return np.array(rows, np.int64).reshape(-1, 4)


@operator(
    "mmcv::NonMaxSuppression", inputs="boxes: float32, scores: float32", outputs="indices: int64",
    ranks={"boxes": (2,)},
)  # fmt: skip
def nms(boxes: np.ndarray, scores: np.ndarray, *, iou_threshold: float, offset: bool) -> np.ndarray:
    kept: list[int] = []
    for c in by_score(scores):
        if not (overlaps(boxes[c], boxes[kept], offset).astype(np.float32) > iou_threshold).any():
            kept.append(c)
    return np.array(kept, np.int64)


@operator(
    "mmcv::SoftNonMaxSuppression", inputs="boxes: float32, scores: float32",
    outputs="dets: float32, inds: int64",
    ranks={"boxes": (2,)},
)  # fmt: skip
def soft_nms(
    boxes: np.ndarray,
    scores: np.ndarray,
    *,
    iou_threshold: float,
    sigma: float,
    min_score: float,
    method: int,
    offset: bool,
) -> tuple[np.ndarray, np.ndarray]:
    dets = np.concatenate([boxes, scores[:, None]], axis=1)
    inds = np.arange(len(dets))
    i = 0
    while i < len(dets):
        best = i if np.isnan(dets[i, 4]) else i + int(np.nanargmax(dets[i:, 4]))
        dets[[i, best]] = dets[[best, i]]
        inds[[i, best]] = inds[[best, i]]
        k = i + 1
        while k < len(dets):
            (iou,) = overlaps(dets[i, :4], dets[k : k + 1, :4], offset)
            factor = 1.0
            if method == 2:
                factor = np.exp(-(iou * iou) / sigma)
            elif np.float32(iou) >= iou_threshold:
                factor = 1 - iou if method == 1 else 0.0
            dets[k, 4] = np.float32(dets[k, 4] * factor)
            if dets[k, 4] < min_score:
                dets[k] = dets[-1]
                inds[k] = inds[-1]
                dets, inds = dets[:-1], inds[:-1]
            else:
                k += 1
        i += 1
    return dets, inds


def by_score(scores: np.ndarray) -> list[int]:
    """Return the positions of scores by descending score."""
    return np.argsort(-scores, kind="stable").tolist()


def overlaps(box: np.ndarray, boxes: np.ndarray, offset: float, epsilon: float = 0.0) -> np.ndarray:
    """Return the overlap of a box [x1, y1, x2, y2] with several boxes, [B], in float64.

    See `upright_overlap`.
    """
    box = box.astype(np.float64)
    boxes = boxes.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        low = np.maximum(box[:2], boxes[:, :2])
        high = np.minimum(box[2:], boxes[:, 2:])
        intersection = np.prod(np.fmax(high - low + offset, 0), axis=1)
        areas = np.prod(box[2:] - box[:2] + offset) + np.prod(
            boxes[:, 2:] - boxes[:, :2] + offset, axis=1
        )
        return intersection / (areas - intersection + epsilon)


@np.errstate(invalid="ignore", divide="ignore", over="ignore")
def rotated_overlap(box: np.ndarray, other: np.ndarray) -> np.float32:
    """Return the overlap of two boxes of centre, size and angle, in float64.

    Points are complex numbers. The box, seen from the other one's centre and along its sides, is
    cut off at these.
    """
    corner = complex(*abs(box[2:4]) / 2)
    sides = abs(other[2:4]) / 2
    towards = np.exp(-1j * other[4])
    upright = np.array([corner, -corner.conjugate(), -corner, corner.conjugate()])
    corners = upright * (np.exp(1j * box[4]) * towards)
    polygon = corners + complex(*(box[:2] - other[:2])) * towards
    for k, limit in enumerate(sides):
        for sign in (1, -1):
            polygon = cut_off(polygon, k, sign, limit)
    doubled = (polygon.conj() * np.roll(polygon, -1)).imag.sum()
    areas = abs(box[2] * box[3]), abs(other[2] * other[3])
    shared = min(abs(doubled) / 2, *areas)  # despite rounding
    return np.float32(shared / (sum(areas) - shared))


def cut_off(polygon: np.ndarray, axis: int, sign: int, limit: float) -> np.ndarray:
    """Return a convex polygon where sign * x (or y, of axis 1) <= limit."""
    beyond = sign * (polygon.imag if axis else polygon.real) - limit
    corners = []
    for k in range(len(polygon)):
        before = beyond[k - 1]
        here = beyond[k]
        if before * here < 0:
            fraction = before / (before - here)
            corners.append(polygon[k - 1] + fraction * (polygon[k] - polygon[k - 1]))
        if here <= 0:
            corners.append(polygon[k])
    return np.array(corners, complex)


# Rules and kernels


@jitable
def check_batch(boxes: tuple[int, ...], scores: tuple[int, ...], numbers: int) -> None:
    """Refuse shapes other than [N, B, numbers] and [N, K, B]."""
    require(len(boxes) == 3, "shape of boxes", boxes, "must have rank 3: [N, B, numbers of a box]")
    rule = "the last axis must be the numbers of a box,"
    require(boxes[2] == numbers, "shape of boxes", boxes, rule, numbers)
    fits = len(scores) == 3 and scores[0] == boxes[0] and scores[2] == boxes[1]
    rule = "must be [N, K, B], with N and B as in boxes, B being"
    require(fits, "shape of scores", scores, rule, boxes[1])


@jitable
def check_one(boxes: tuple[int, ...], scores: tuple[int, ...]) -> None:
    """Refuse shapes other than [B, 4] and [B]."""
    require(len(boxes) == 2 and boxes[1] == 4, "shape of boxes", boxes, "must be [B, 4]")
    require(scores == boxes[:1], "shape of scores", scores, "must be [B], with B", boxes[0])


@nms_rotated.shape(bound=True)
def shape_of_rotated(
    boxes: tuple[int, ...], scores: tuple[int, ...], *, iou_threshold: float, score_threshold: float
) -> tuple[int, int]:
    check_batch(boxes, scores, 5)
    require(iou_threshold >= 0, "iou_threshold", iou_threshold, "must be at least 0")
    return scores[0] * scores[1] * scores[2], 3


@nms_match.shape(bound=True)
def shape_of_match(
    boxes: tuple[int, ...],
    scores: tuple[int, ...],
    iou_threshold: tuple[int, ...],
    score_threshold: tuple[int, ...],
) -> tuple[int, int]:
    check_batch(boxes, scores, 4)
    require(iou_threshold == (1,), "shape of iou_threshold", iou_threshold, "must be [1]")
    require(score_threshold == (1,), "shape of score_threshold", score_threshold, "must be [1]")
    return scores[0] * scores[1] * scores[2], 4


@nms.shape(bound=True)
def shape_of_nms(
    boxes: tuple[int, ...], scores: tuple[int, ...], *, iou_threshold: float, offset: bool
) -> tuple[int]:
    check_one(boxes, scores)
    return (scores[0],)


@soft_nms.shape(bound=True)
def shape_of_soft_nms(
    boxes: tuple[int, ...],
    scores: tuple[int, ...],
    *,
    iou_threshold: float,
    sigma: float,
    min_score: float,
    method: int,
    offset: bool,
) -> tuple[tuple[int, int], tuple[int]]:
    check_one(boxes, scores)
    require(0 <= method <= 2, "method", method, "must lie in [0, 2]")
    require(method != 2 or sigma > 0, "sigma", sigma, "must be above 0 for method 2")
    return (scores[0], 5), (scores[0],)


nms_rotated.kernel(
    kernels.nms_rotated,
    workspace=lambda boxes, scores, *, iou_threshold, score_threshold: kernels.workspace_of_rotated(
        boxes[1]
    ),
)
nms_match.kernel(
    kernels.nms_match,
    workspace=lambda boxes, scores, iou_threshold, score_threshold: (
        8 * (2 * boxes[1] + kernels.sorting(boxes[1]))
    ),
)
nms.kernel(
    kernels.nms,
    workspace=lambda boxes, scores, *, iou_threshold, offset: (
        8 * (boxes[0] + kernels.sorting(boxes[0]))
    ),
)
soft_nms.kernel(kernels.soft_nms)
OPERATORS = tuple(o.declaration for o in (nms_rotated, nms_match, nms, soft_nms))
