"""Non-maximum suppression: kernels with one tile, which find out how many boxes they keep.

Boxes are compared with those that have been kept before, by descending score. Most pairs are told apart by what their
bounding boxes and areas allow; the others are intersected.
"""

import numpy as np

from ..compiler.jit import jitable

# Of a box, side by side: the centre, half the sides, the cosine and sine of its angle, half the sides of its bounding
# box, its area.
X, Y, HALF_WIDTH, HALF_HEIGHT, COSINE, SINE, REACH_X, REACH_Y, AREA = range(9)
FIELDS = 9
CORNERS = 8  # of the intersection of two rectangles, at most
POLYGONS = 8 * 4 * (CORNERS + 4)  # bytes of two polygons, with room for each cut's new corners


@jitable
def workspace_of_rotated(size):
    """The bytes that `nms_rotated` needs for so many boxes."""
    return (16 + 8 * FIELDS) * size + POLYGONS


def nms_rotated(boxes, scores, iou_threshold, score_threshold, index, count, workspace, selected):
    size = boxes.shape[1]
    numbers = workspace[: 16 * size].view(np.int64)
    order, scratch = numbers[:size], numbers[size:]
    kept = workspace[16 * size :][: 8 * FIELDS * size].view(np.float64)
    corners = workspace[(16 + 8 * FIELDS) * size :][:POLYGONS].view(np.float64)
    rows = 0
    for n in range(scores.shape[0]):
        for k in range(scores.shape[1]):
            candidates, survivors = by_score(scores[n, k], score_threshold, order, scratch), 0
            for c in range(candidates):
                box = order[c]
                here = kept[FIELDS * survivors :][:FIELDS]
                describe(boxes[n, box], here)
                if not is_suppressed(kept, survivors, here, iou_threshold, corners):
                    selected[rows, 0], selected[rows, 1], selected[rows, 2] = n, k, box
                    survivors, rows = survivors + 1, rows + 1
    return rows


@jitable
def by_score(scores, threshold, order, scratch):
    """Store the positions of scores above the threshold by descending score, of equal ones the lower first.

    Returns their number. Other elements of `order` and `scratch` are undefined.
    """
    count = 0
    for k in range(scores.size):
        if scores[k] > threshold:
            order[count] = k
            count += 1
    sort_by_score(scores, order[:count], scratch[:count])
    return count


@jitable
def sort_by_score(scores, order, scratch):
    """Sort positions by descending score, with NaN at the end. Those of equal scores stay in their order."""
    width, count = 1, order.size
    while width < count:
        for begin in range(0, count, 2 * width):
            middle, end = min(begin + width, count), min(begin + 2 * width, count)
            a, b = begin, middle
            for k in range(begin, end):
                if b >= end or (a < middle and not is_before(scores[order[b]], scores[order[a]])):
                    scratch[k], a = order[a], a + 1
                else:
                    scratch[k], b = order[b], b + 1
        for k in range(count):
            order[k] = scratch[k]
        width *= 2


@jitable
def is_before(a, b):
    return a > b or (b != b and a == a)


@jitable
def describe(box, out):
    """Store the fields of a box: centre, sides, angle."""
    angle = np.float64(box[4])
    cosine, sine = np.cos(angle), np.sin(angle)
    x, y, w, h = np.float64(box[0]), np.float64(box[1]), abs(np.float64(box[2])) / 2, abs(np.float64(box[3])) / 2
    out[X], out[Y], out[HALF_WIDTH], out[HALF_HEIGHT], out[COSINE], out[SINE] = x, y, w, h, cosine, sine
    out[REACH_X], out[REACH_Y] = abs(w * cosine) + abs(h * sine), abs(w * sine) + abs(h * cosine)
    out[AREA] = 4 * w * h


@jitable
def is_suppressed(kept, count, box, threshold, corners):
    """Whether the overlap of a box with one of the first `count` kept ones is above the threshold, which is 0 or more.

    The overlap is rounded to float32 before it is compared.
    """
    x, y, reach_x, reach_y = box[X], box[Y], box[REACH_X], box[REACH_Y]
    for k in range(count):
        other = kept[FIELDS * k :][:FIELDS]
        u, v, reach_u, reach_v = other[X] - x, other[Y] - y, other[REACH_X], other[REACH_Y]
        if abs(u) >= reach_x + reach_u or abs(v) >= reach_y + reach_v:  # as most are
            continue
        width = min(reach_x, u + reach_u) - max(-reach_x, u - reach_u)
        height = min(reach_y, v + reach_v) - max(-reach_y, v - reach_v)
        if width > 0 and height > 0:
            # No intersection is larger than one of the boxes, or than that of what bounds them.
            areas, most = box[AREA] + other[AREA], min(width * height, box[AREA], other[AREA])
            if overlap(most * (1 + 1e-9), areas) > threshold and (
                overlap(intersection(box, other, corners), areas) > threshold
            ):
                return True
    return False


@jitable
def overlap(intersection, areas):
    """The intersection of two boxes over their union, in float32; NaN if both are empty."""
    return np.float32(intersection / (areas - intersection))


@jitable
def intersection(a, b, corners):
    """The area in which two boxes intersect: b, seen from a's centre and along its sides, is cut off at these."""
    room = 2 * (CORNERS + 4)
    polygon, cut = corners[:room], corners[room:]
    x, y = b[X] - a[X], b[Y] - a[Y]
    x, y = x * a[COSINE] + y * a[SINE], y * a[COSINE] - x * a[SINE]
    cosine = a[COSINE] * b[COSINE] + a[SINE] * b[SINE]
    sine = a[COSINE] * b[SINE] - a[SINE] * b[COSINE]
    for k in range(4):
        u = b[HALF_WIDTH] if k == 0 or k == 3 else -b[HALF_WIDTH]
        v = b[HALF_HEIGHT] if k < 2 else -b[HALF_HEIGHT]
        polygon[2 * k], polygon[2 * k + 1] = x + u * cosine - v * sine, y + u * sine + v * cosine
    count = 4
    for side in range(4):
        axis = side % 2
        limit, sign = a[HALF_WIDTH] if axis == 0 else a[HALF_HEIGHT], 1 - side // 2 * 2
        count = cut_off(polygon, count, axis, limit, sign, cut)
        polygon, cut = cut, polygon
    area = 0.0
    for k in range(count):
        p, q = 2 * k, 2 * ((k + 1) % count)
        area += polygon[p] * polygon[q + 1] - polygon[q] * polygon[p + 1]
    return abs(area) / 2


@jitable
def cut_off(polygon, count, axis, limit, sign, cut):
    """Store the part of a convex polygon where sign * coordinate <= limit; returns the number of its corners."""
    corners = 0
    for k in range(count):
        p, q = 2 * k, 2 * ((k + 1) % count)
        beyond_p, beyond_q = sign * polygon[p + axis] - limit, sign * polygon[q + axis] - limit
        if beyond_p <= 0 and corners < CORNERS:
            cut[2 * corners], cut[2 * corners + 1] = polygon[p], polygon[p + 1]
            corners += 1
        if (beyond_p < 0) != (beyond_q < 0) and beyond_p != 0 and beyond_q != 0 and corners < CORNERS:
            part = beyond_p / (beyond_p - beyond_q)
            for a in range(2):
                cut[2 * corners + a] = polygon[p + a] + part * (polygon[q + a] - polygon[p + a])
            cut[2 * corners + axis] = sign * limit
            corners += 1
    return corners


@jitable
def upright_overlap(a, b, offset, more):
    """The overlap of two boxes [x1, y1, x2, y2], in float64.

    offset is added to every width and height, `more` to the area of the union.
    """
    x1, y1, x2, y2 = np.float64(a[0]), np.float64(a[1]), np.float64(a[2]), np.float64(a[3])
    u1, v1, u2, v2 = np.float64(b[0]), np.float64(b[1]), np.float64(b[2]), np.float64(b[3])
    width, height = min(x2, u2) - max(x1, u1) + offset, min(y2, v2) - max(y1, v1) + offset
    width, height = width if width > 0 else 0.0, height if height > 0 else 0.0
    areas = (x2 - x1 + offset) * (y2 - y1 + offset) + (u2 - u1 + offset) * (v2 - v1 + offset)
    return width * height / (areas - width * height + more)


def nms_match(boxes, scores, iou_threshold, score_threshold, index, count, workspace, matches):
    size, rows = boxes.shape[1], 0
    numbers = workspace[: 24 * size].view(np.int64)
    order, scratch, is_alive = numbers[:size], numbers[size : 2 * size], numbers[2 * size :]
    for n in range(scores.shape[0]):
        for k in range(scores.shape[1]):
            for c in range(size):
                order[c], is_alive[c] = c, 1
            sort_by_score(scores[n, k], order[:size], scratch[:size])
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
                        matches[rows, 0], matches[rows, 1] = n, k
                        matches[rows, 2], matches[rows, 3] = keeper, other
                        rows += 1
    return rows


def nms(boxes, scores, iou_threshold, offset, index, count, workspace, indices):
    size, survivors = scores.size, 0
    numbers = workspace[: 16 * size].view(np.int64)
    order, scratch = numbers[:size], numbers[size:]
    for k in range(size):
        order[k] = k
    sort_by_score(scores, order, scratch)
    for c in range(size):
        box, k = order[c], 0
        while k < survivors and not (
            np.float32(upright_overlap(boxes[indices[k]], boxes[box], np.float64(offset), 0.0)) > iou_threshold
        ):
            k += 1
        if k == survivors:
            indices[survivors] = box
            survivors += 1
    return survivors


def soft_nms(boxes, scores, iou_threshold, sigma, min_score, method, offset, index, count, workspace, dets, inds):
    end, i = scores.size, 0
    for k in range(end):
        for a in range(4):
            dets[k, a] = boxes[k, a]
        dets[k, 4], inds[k] = scores[k], k
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
def swap(dets, inds, i, k):
    for a in range(5):
        dets[i, a], dets[k, a] = dets[k, a], dets[i, a]
    inds[i], inds[k] = inds[k], inds[i]
