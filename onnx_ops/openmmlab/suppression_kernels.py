"""Non-maximum suppression: kernels with one tile, which return the number of kept boxes.

Boxes are compared with those kept before, by descending score. Bounding boxes and areas rule out an
overlap of most pairs; the others are intersected.

A kernel's parameters are those that `onnx_ops.operator` prescribes: inputs, attributes, index and
count of its steps, workspace, outputs. All is one step: `index` is 0 and `count` 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..declaration.jit import jitable

if TYPE_CHECKING:
    from typing import TypeAlias

    from numpy.typing import NDArray

    from ..kernels.types import Elements, Index, Indices, Number, Workspace

    Fields: TypeAlias = NDArray[np.float64]  # of a box, see X to AREA, or of several boxes
    Polygon: TypeAlias = NDArray[np.float64]  # x and y of each corner, with room for more

# Of a box, side by side: the centre, half the sides of its bounding box, half its own sides, the
# cosine and sine of its angle, its area.
X, Y, REACH_X, REACH_Y, HALF_WIDTH, HALF_HEIGHT, COSINE, SINE, AREA = range(9)
FIELDS = 9
BOUNDS = 4  # the first fields, which rule out most pairs
TOGETHER = 16  # kept boxes that are compared by these in one vector loop
CORNERS = 8  # of the intersection of two rectangles, at most
POLYGONS = 4 * (CORNERS + 4)  # numbers of two polygons, with room for each cut's new corners
DIGITS = 256  # values of a digit by which scores are sorted


class Boxes(NamedTuple):
    """The boxes of an image, in the workspace."""

    fields: Fields  # of all boxes: those of a box side by side
    bounds: Fields  # of kept boxes, the first fields: those with the same name side by side
    corners: Polygon  # two polygons, for `intersection`


@jitable
def workspace_of_rotated(size: int) -> int:
    """Return the bytes that `nms_rotated` needs for so many boxes."""
    return 8 * ((2 + FIELDS + BOUNDS) * size + POLYGONS + sorting(size))


@jitable
def sorting(size: int) -> int:
    """Return the integers that `sort_by_score` needs for so many scores."""
    return DIGITS + 2 * size


def nms_rotated(
    boxes: Elements,
    scores: Elements,
    iou_threshold: float,
    score_threshold: float,
    index: int,
    count: int,
    workspace: Workspace,
    selected: Indices,
) -> int:
    """Store the rows of kept boxes; return their number."""
    size = boxes.shape[1]
    integers = workspace.view(np.int64)
    order = integers[:size]
    kept = integers[size : 2 * size]
    scratch = integers[2 * size :]
    numbers = scratch[sorting(size) :].view(np.float64)
    bounds = numbers[FIELDS * size :][: BOUNDS * size]
    image = Boxes(numbers[: FIELDS * size], bounds, numbers[(FIELDS + BOUNDS) * size :])
    rows = 0
    for n in range(scores.shape[0]):
        for c in range(size):
            store_fields(boxes[n, c], image.fields[FIELDS * c :][:FIELDS])
        for k in range(scores.shape[1]):
            candidates = by_score(scores[n, k], score_threshold, order, scratch)
            for c in range(keep(order[:candidates], iou_threshold, image, kept)):
                selected[rows, 0] = n
                selected[rows, 1] = k
                selected[rows, 2] = kept[c]
                rows += 1
    return rows


@jitable
def keep(candidates: Indices, threshold: float, boxes: Boxes, kept: Indices) -> int:
    """Store the candidates that no box kept before suppresses; return their number."""
    size = kept.size
    count = 0
    for c in range(candidates.size):
        box = candidates[c]
        if not is_suppressed(box, kept[:count], boxes, threshold):
            kept[count] = box
            for field in range(BOUNDS):
                boxes.bounds[field * size + count] = boxes.fields[FIELDS * box + field]
            count += 1
    return count


@jitable
def by_score(scores: Elements, threshold: float, order: Indices, scratch: Indices) -> int:
    """Store the positions of scores above the threshold by descending score; return their number.

    Of equal scores, the lower position comes first.
    """
    count = 0
    for k in range(scores.size):
        if scores[k] > threshold:
            order[count] = k
            count += 1
    sort_by_score(scores, order[:count], scratch)
    return count


@jitable
def sort_by_score(scores: Elements, order: Indices, scratch: Indices) -> None:
    """Sort positions by descending score, NaN at the end. Those of equal scores keep their order.

    It is a radix sort: the scores' bits are sorted digit by digit, from the last one on.

    scratch  `sorting` integers, or more
    """
    counts = scratch[:DIGITS]
    keys = scratch[DIGITS:][: scores.size]
    sorted_order = scratch[DIGITS + scores.size :]
    bits = scores.view(np.uint32)
    for k in range(scores.size):
        keys[k] = key_of(np.int64(bits[k]))
    for shift in range(0, 32, 8):
        for digit in range(DIGITS):
            counts[digit] = 0
        for k in range(order.size):
            counts[(keys[order[k]] >> shift) % DIGITS] += 1
        begin = 0
        for digit in range(DIGITS):
            # The count becomes the position of the first one with this digit.
            begin, counts[digit] = begin + counts[digit], begin
        for k in range(order.size):
            digit = (keys[order[k]] >> shift) % DIGITS
            sorted_order[counts[digit]] = order[k]
            counts[digit] += 1
        for k in range(order.size):
            order[k] = sorted_order[k]


@jitable
def key_of(bits: Index) -> Index:
    """Return a 32-bit integer that decreases with a float32 number; the largest one for NaN."""
    if bits % 2**31 > 0x7F800000:
        return 2**32 - 1
    if bits <= 2**31:  # both zeros are equal
        return 2**31 - bits % 2**31
    return bits


@jitable
def store_fields(box: Elements, out: Fields) -> None:
    """Store the fields of a box: centre, sides, angle."""
    angle = np.float64(box[4])
    cosine = np.cos(angle)
    sine = np.sin(angle)
    x = np.float64(box[0])
    y = np.float64(box[1])
    w = abs(np.float64(box[2])) / 2
    h = abs(np.float64(box[3])) / 2
    out[X] = x
    out[Y] = y
    out[HALF_WIDTH] = w
    out[HALF_HEIGHT] = h
    out[COSINE] = cosine
    out[SINE] = sine
    out[REACH_X] = abs(w * cosine) + abs(h * sine)
    out[REACH_Y] = abs(w * sine) + abs(h * cosine)
    out[AREA] = 4 * w * h


@jitable
def is_suppressed(box: Index, kept: Indices, boxes: Boxes, threshold: float) -> bool:
    """Return whether the overlap of a box with one of the kept ones is above the threshold.

    The overlap is rounded to float32 before it is compared. The threshold is 0 or more.
    """
    fields, bounds, corners = boxes
    a = fields[FIELDS * box :][:FIELDS]
    for begin in range(0, kept.size, TOGETHER):
        end = min(begin + TOGETHER, kept.size)
        if are_apart(a, bounds, begin, end):  # as most are
            continue
        for k in range(begin, end):
            b = fields[FIELDS * kept[k] :][:FIELDS]
            u = b[X] - a[X]
            v = b[Y] - a[Y]
            width = min(a[REACH_X], u + b[REACH_X]) - max(-a[REACH_X], u - b[REACH_X])
            height = min(a[REACH_Y], v + b[REACH_Y]) - max(-a[REACH_Y], v - b[REACH_Y])
            if width > 0 and height > 0:
                # No intersection is larger than one of the boxes, or than that of their bounding
                # boxes.
                areas = a[AREA] + b[AREA]
                largest = min(width * height, a[AREA], b[AREA])
                if overlap(largest * (1 + 1e-9), areas) > threshold and (
                    overlap(intersection(a, b, corners), areas) > threshold
                ):
                    return True
    return False


@jitable
def are_apart(box: Fields, bounds: Fields, begin: int, end: int) -> bool:
    """Return whether a box's bounding box meets that of none of these kept boxes."""
    x = box[X]
    y = box[Y]
    reach_x = box[REACH_X]
    reach_y = box[REACH_Y]
    size = bounds.size // BOUNDS
    count = end - begin
    apart = 0
    xs = bounds[X * size + begin :][:count]
    ys = bounds[Y * size + begin :][:count]
    reaches_x = bounds[REACH_X * size + begin :][:count]
    reaches_y = bounds[REACH_Y * size + begin :][:count]
    for k in range(count):
        apart += (abs(xs[k] - x) >= reach_x + reaches_x[k]) | (
            abs(ys[k] - y) >= reach_y + reaches_y[k]
        )
    return apart == count


@jitable
def overlap(intersection: Number, areas: Number) -> np.float32:
    """Return the intersection of two boxes over their union, in float32; NaN if both are empty."""
    return np.float32(intersection / (areas - intersection))


@jitable
def intersection(a: Fields, b: Fields, corners: Polygon) -> float:
    """Return the area of the intersection of two boxes.

    b, relative to a's centre and axes, is cut off at a's sides.
    """
    half = 2 * (CORNERS + 4)
    polygon = corners[:half]
    cut = corners[half:]
    x = b[X] - a[X]
    y = b[Y] - a[Y]
    x, y = x * a[COSINE] + y * a[SINE], y * a[COSINE] - x * a[SINE]
    cosine = a[COSINE] * b[COSINE] + a[SINE] * b[SINE]
    sine = a[COSINE] * b[SINE] - a[SINE] * b[COSINE]
    for k in range(4):
        u = b[HALF_WIDTH] if k == 0 or k == 3 else -b[HALF_WIDTH]
        v = b[HALF_HEIGHT] if k < 2 else -b[HALF_HEIGHT]
        polygon[2 * k] = x + u * cosine - v * sine
        polygon[2 * k + 1] = y + u * sine + v * cosine
    count = 4
    for side in range(4):
        axis = side % 2
        limit = a[HALF_WIDTH] if axis == 0 else a[HALF_HEIGHT]
        sign = 1 - side // 2 * 2
        count = cut_off(polygon, count, axis, limit, sign, cut)
        polygon, cut = cut, polygon
    area = 0.0
    for k in range(count):  # the remainder of k + 1 would take as long as all else
        p, q = 2 * k, 2 * (k + 1) if k + 1 < count else 0
        area += polygon[p] * polygon[q + 1] - polygon[q] * polygon[p + 1]
    return abs(area) / 2


@jitable
def cut_off(polygon: Polygon, count: int, axis: int, limit: Number, sign: int, cut: Polygon) -> int:
    """Store a convex polygon where sign * coordinate <= limit; return the number of its corners."""
    corners = 0
    for k in range(count):
        p, q = 2 * k, 2 * (k + 1) if k + 1 < count else 0
        beyond_p = sign * polygon[p + axis] - limit
        beyond_q = sign * polygon[q + axis] - limit
        if beyond_p <= 0 and corners < CORNERS:
            cut[2 * corners] = polygon[p]
            cut[2 * corners + 1] = polygon[p + 1]
            corners += 1
        if (
            (beyond_p < 0) != (beyond_q < 0)
            and beyond_p != 0
            and beyond_q != 0
            and corners < CORNERS
        ):
            fraction = beyond_p / (beyond_p - beyond_q)  # from p to q
            for a in range(2):
                cut[2 * corners + a] = polygon[p + a] + fraction * (polygon[q + a] - polygon[p + a])
            cut[2 * corners + axis] = sign * limit
            corners += 1
    return corners


@jitable
def upright_overlap(a: Elements, b: Elements, offset: float, epsilon: float) -> Number:
    """Return the overlap of two boxes [x1, y1, x2, y2], in float64.

    offset is added to every width and height, epsilon to the area of the union.
    """
    x1, y1, x2, y2 = np.float64(a[0]), np.float64(a[1]), np.float64(a[2]), np.float64(a[3])
    u1, v1, u2, v2 = np.float64(b[0]), np.float64(b[1]), np.float64(b[2]), np.float64(b[3])
    width: float = min(x2, u2) - max(x1, u1) + offset
    height: float = min(y2, v2) - max(y1, v1) + offset
    width = width if width > 0 else 0.0  # 0 also for NaN
    height = height if height > 0 else 0.0
    areas = (x2 - x1 + offset) * (y2 - y1 + offset) + (u2 - u1 + offset) * (v2 - v1 + offset)
    return width * height / (areas - width * height + epsilon)


def nms_match(
    boxes: Elements,
    scores: Elements,
    iou_threshold: Elements,
    score_threshold: Elements,
    index: int,
    count: int,
    workspace: Workspace,
    matches: Indices,
) -> int:
    """Store the rows of kept boxes with those that they suppress; return their number."""
    size = boxes.shape[1]
    rows = 0
    integers = workspace.view(np.int64)
    order = integers[:size]
    is_alive = integers[size : 2 * size]
    for n in range(scores.shape[0]):
        for k in range(scores.shape[1]):
            for c in range(size):
                order[c] = c
                is_alive[c] = 1
            sort_by_score(scores[n, k], order, integers[2 * size :])
            for c in range(size):
                keeper = order[c]
                if is_alive[keeper] == 0 or not scores[n, k, keeper] > score_threshold[0]:
                    continue
                for d in range(c + 1, size):
                    box = order[d]
                    if is_alive[box] == 0:
                        continue
                    iou = upright_overlap(boxes[n, keeper], boxes[n, box], 0.0, 1e-10)
                    if np.float32(iou) >= iou_threshold[0]:
                        is_alive[box] = 0
                        matches[rows, 0] = n
                        matches[rows, 1] = k
                        matches[rows, 2] = keeper
                        matches[rows, 3] = box
                        rows += 1
    return rows


def nms(
    boxes: Elements,
    scores: Elements,
    iou_threshold: float,
    offset: int,
    index: int,
    count: int,
    workspace: Workspace,
    indices: Indices,
) -> int:
    """Store the positions of kept boxes; return their number."""
    size = scores.size
    survivors = 0
    integers = workspace.view(np.int64)
    order = integers[:size]
    for k in range(size):
        order[k] = k
    sort_by_score(scores, order, integers[size:])
    for c in range(size):
        box = order[c]
        k = 0
        while k < survivors and not (
            np.float32(upright_overlap(boxes[indices[k]], boxes[box], np.float64(offset), 0.0))
            > iou_threshold
        ):
            k += 1
        if k == survivors:
            indices[survivors] = box
            survivors += 1
    return survivors


def soft_nms(
    boxes: Elements,
    scores: Elements,
    iou_threshold: float,
    sigma: float,
    min_score: float,
    method: int,
    offset: int,
    index: int,
    count: int,
    workspace: None,
    dets: Elements,
    inds: Indices,
) -> tuple[int, int]:
    """Store the kept boxes with their new scores, and their positions; return their numbers."""
    end = scores.size
    i = 0
    for k in range(end):
        for a in range(4):
            dets[k, a] = boxes[k, a]
        dets[k, 4] = scores[k]
        inds[k] = k
    while i < end:
        best = i
        for k in range(i + 1, end):
            if dets[best, 4] < dets[k, 4]:
                best = k
        swap(dets, inds, i, best)
        k = i + 1
        while k < end:
            iou = upright_overlap(dets[i], dets[k], np.float64(offset), 0.0)
            dets[k, 4] = np.float32(dets[k, 4] * decay(iou, iou_threshold, sigma, method))
            if dets[k, 4] < min_score:
                end -= 1
                swap(dets, inds, k, end)
            else:
                k += 1
        i += 1
    return end, end


@jitable
def decay(iou: Number, iou_threshold: float, sigma: float, method: int) -> Number:
    """Return the factor of a score, by the box's overlap with a better one."""
    if method == 2:
        return np.exp(-(iou * iou) / sigma)
    if np.float32(iou) >= iou_threshold:
        return 1.0 - iou if method == 1 else 0.0
    return 1.0


@jitable
def swap(dets: Elements, inds: Indices, i: int, k: int) -> None:
    """Let two boxes change places."""
    for a in range(5):
        dets[i, a], dets[k, a] = dets[k, a], dets[i, a]
    inds[i], inds[k] = inds[k], inds[i]
