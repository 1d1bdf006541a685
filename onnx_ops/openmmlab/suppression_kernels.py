"""Non-maximum suppression: kernels with one tile, which return the number of kept boxes.

Boxes are compared with those kept before, by descending score. Bounding boxes and areas rule out an
overlap of most pairs; the others are intersected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
FIELDS, BOUNDS = 9, 4  # the first BOUNDS fields rule out most pairs
TOGETHER = 16  # kept boxes that are compared by these in one vector loop
CORNERS = 8  # of the intersection of two rectangles, at most
POLYGONS = 4 * (CORNERS + 4)  # numbers of two polygons, with room for each cut's new corners
DIGITS = 256  # values of a digit by which scores are sorted


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
    """Store the rows of kept boxes; return their number.

    All is one step: `index` is 0 and `count` 1.
    """
    size = boxes.shape[1]
    integers = workspace[: 8 * (2 * size + sorting(size))].view(np.int64)
    order = integers[:size]
    kept = integers[size : 2 * size]
    room = integers[2 * size :]
    numbers = workspace[8 * integers.size :][: 8 * ((FIELDS + BOUNDS) * size + POLYGONS)].view(
        np.float64
    )
    described = numbers[: FIELDS * size]
    bounds = numbers[FIELDS * size :][: BOUNDS * size]
    corners = numbers[(FIELDS + BOUNDS) * size :]
    rows = 0
    for n in range(scores.shape[0]):
        for c in range(size):
            describe(boxes[n, c], described[FIELDS * c :][:FIELDS])
        for k in range(scores.shape[1]):
            candidates = by_score(scores[n, k], score_threshold, order, room)
            survivors = 0
            for c in range(candidates):
                box = order[c]
                if not is_suppressed(
                    box, kept[:survivors], bounds, described, iou_threshold, corners
                ):
                    selected[rows, 0] = n
                    selected[rows, 1] = k
                    selected[rows, 2] = box
                    kept[survivors] = box
                    for field in range(BOUNDS):
                        bounds[field * size + survivors] = described[FIELDS * box + field]
                    survivors += 1
                    rows += 1
    return rows


@jitable
def by_score(scores: Elements, threshold: float, order: Indices, room: Indices) -> int:
    """Store the positions of scores above the threshold by descending score, of equal ones the
    lower first.

    Returns their number. Other elements of `order` are undefined.
    """
    count = 0
    for k in range(scores.size):
        if scores[k] > threshold:
            order[count] = k
            count += 1
    sort_by_score(scores, order[:count], room)
    return count


@jitable
def sort_by_score(scores: Elements, order: Indices, room: Indices) -> None:
    """Sort positions by descending score, with NaN at the end. Those of equal scores stay in their
    order.

    The scores' bits are sorted digit by digit, from the last one on. room: `sorting` integers.
    """
    counts = room[:DIGITS]
    keys = room[DIGITS:][: scores.size]
    other = room[DIGITS + scores.size :]
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
            begin, counts[digit] = begin + counts[digit], begin
        for k in range(order.size):
            digit = (keys[order[k]] >> shift) % DIGITS
            other[counts[digit]] = order[k]
            counts[digit] += 1
        for k in range(order.size):
            order[k] = other[k]


@jitable
def key_of(bits: Index) -> Index:
    """Return a 32-bit integer that decreases with a float32 number; the largest one for NaN."""
    if bits % 2**31 > 0x7F800000:
        return 2**32 - 1
    if bits <= 2**31:  # both zeros are equal
        return 2**31 - bits % 2**31
    return bits


@jitable
def describe(box: Elements, out: Fields) -> None:
    """Store the fields of a box: centre, sides, angle."""
    angle = np.float64(box[4])
    cosine, sine = np.cos(angle), np.sin(angle)
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
def is_suppressed(
    box: Index, kept: Indices, bounds: Fields, described: Fields, threshold: float, corners: Polygon
) -> bool:
    """Return whether the overlap of a box with one of the kept ones is above the threshold, which
    is 0 or more.

    The overlap is rounded to float32 before it is compared.

    bounds     the first fields of the kept boxes: those with the same name side by side
    described  the fields of all boxes: those of a box side by side
    """
    here = described[FIELDS * box :][:FIELDS]
    for begin in range(0, kept.size, TOGETHER):
        end = min(begin + TOGETHER, kept.size)
        if are_apart(here, bounds, begin, end):  # as most are
            continue
        for k in range(begin, end):
            other = described[FIELDS * kept[k] :][:FIELDS]
            u = other[X] - here[X]
            v = other[Y] - here[Y]
            reach_u = other[REACH_X]
            reach_v = other[REACH_Y]
            width = min(here[REACH_X], u + reach_u) - max(-here[REACH_X], u - reach_u)
            height = min(here[REACH_Y], v + reach_v) - max(-here[REACH_Y], v - reach_v)
            if width > 0 and height > 0:
                # No intersection is larger than one of the boxes, or than that of their bounding
                # boxes.
                areas = here[AREA] + other[AREA]
                most = min(width * height, here[AREA], other[AREA])
                if overlap(most * (1 + 1e-9), areas) > threshold and (
                    overlap(intersection(here, other, corners), areas) > threshold
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
    xs, ys = bounds[X * size + begin :][:count], bounds[Y * size + begin :][:count]
    reaches_x, reaches_y = (
        bounds[REACH_X * size + begin :][:count],
        bounds[REACH_Y * size + begin :][:count],
    )
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
    """Return the area of the intersection: b, relative to a's centre and axes, is cut off at a's
    sides.
    """
    room = 2 * (CORNERS + 4)
    polygon, cut = corners[:room], corners[room:]
    x, y = b[X] - a[X], b[Y] - a[Y]
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
    """Store the part of a convex polygon where sign * coordinate <= limit; return the number of its
    corners.
    """
    corners = 0
    for k in range(count):
        p, q = 2 * k, 2 * (k + 1) if k + 1 < count else 0
        beyond_p, beyond_q = sign * polygon[p + axis] - limit, sign * polygon[q + axis] - limit
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
            part = beyond_p / (beyond_p - beyond_q)
            for a in range(2):
                cut[2 * corners + a] = polygon[p + a] + part * (polygon[q + a] - polygon[p + a])
            cut[2 * corners + axis] = sign * limit
            corners += 1
    return corners


@jitable
def upright_overlap(a: Elements, b: Elements, offset: float, more: float) -> Number:
    """Return the overlap of two boxes [x1, y1, x2, y2], in float64.

    offset is added to every width and height, `more` to the area of the union.
    """
    x1, y1, x2, y2 = np.float64(a[0]), np.float64(a[1]), np.float64(a[2]), np.float64(a[3])
    u1, v1, u2, v2 = np.float64(b[0]), np.float64(b[1]), np.float64(b[2]), np.float64(b[3])
    width: float = min(x2, u2) - max(x1, u1) + offset
    height: float = min(y2, v2) - max(y1, v1) + offset
    width, height = width if width > 0 else 0.0, height if height > 0 else 0.0
    areas = (x2 - x1 + offset) * (y2 - y1 + offset) + (u2 - u1 + offset) * (v2 - v1 + offset)
    return width * height / (areas - width * height + more)


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
    integers = workspace[: 8 * (2 * size + sorting(size))].view(np.int64)
    order = integers[:size]
    is_alive = integers[size : 2 * size]
    room = integers[2 * size :]
    for n in range(scores.shape[0]):
        for k in range(scores.shape[1]):
            for c in range(size):
                order[c] = c
                is_alive[c] = 1
            sort_by_score(scores[n, k], order, room)
            for c in range(size):
                keeper = order[c]
                if is_alive[keeper] == 0 or not scores[n, k, keeper] > score_threshold[0]:
                    continue
                for d in range(c + 1, size):
                    other = order[d]
                    if is_alive[other] == 0:
                        continue
                    found = upright_overlap(boxes[n, keeper], boxes[n, other], 0.0, 1e-10)
                    if np.float32(found) >= iou_threshold[0]:
                        is_alive[other] = 0
                        matches[rows, 0] = n
                        matches[rows, 1] = k
                        matches[rows, 2] = keeper
                        matches[rows, 3] = other
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
    integers = workspace[: 8 * (size + sorting(size))].view(np.int64)
    order = integers[:size]
    room = integers[size:]
    for k in range(size):
        order[k] = k
    sort_by_score(scores, order, room)
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
    """Store the kept boxes with their new scores, and their positions; return their number for
    both.
    """
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
            found = upright_overlap(dets[i], dets[k], np.float64(offset), 0.0)
            factor = 1.0
            if method == 2:
                factor = np.exp(-(found * found) / sigma)
            elif np.float32(found) >= iou_threshold:
                factor = 1.0 - found if method == 1 else 0.0
            dets[k, 4] = np.float32(dets[k, 4] * factor)
            if dets[k, 4] < min_score:
                end -= 1
                swap(dets, inds, k, end)
            else:
                k += 1
        i += 1
    return end, end


@jitable
def swap(dets: Elements, inds: Indices, i: int, k: int) -> None:
    """Let two boxes change places."""
    for a in range(5):
        dets[i, a], dets[k, a] = dets[k, a], dets[i, a]
    inds[i], inds[k] = inds[k], inds[i]
