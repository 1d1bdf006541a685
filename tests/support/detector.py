"""A rotated detector as mmdeploy writes it, with the last layer of its backbone, and what it must
return.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx

import onnx_ops
from onnx_ops.native.execute import call
from onnx_ops.openmmlab.suppression import rotated_overlap

from .cases import operator, parsed

POOLED: dict[str, Any] = {
    "output_height": 7, "output_width": 7, "spatial_scale": 0.25, "sampling_ratio": 2, "aligned": 1,
    "clockwise": 1,
}  # fmt: skip
# A convolution computes offsets and masks. A row of zeros for each box that may lack follows what
# is found. mmdeploy's default version of ai.onnx is 11.
DETECTOR = """(float[1, 8, height, width] x, float[R, 6] rois)
    => (float[1, 4, 5] boxes, float[1, 4] scores) {
    o = Conv <pads = [1, 1, 1, 1]> (x, ow, ob)
    offset = Slice (o, zero, eighteen, one)
    m = Slice (o, eighteen, all, one)
    mask = Sigmoid (m)
    a = mmdeploy.MMCVModulatedDeformConv2d <stride = [1, 1], padding = [1, 1], dilation = [1, 1],
        groups = 1,
                                            deform_groups = 1> (x, offset, mask, w, b)
    features = Relu (a)
    bins = mmdeploy.MMCVRoIAlignRotated <ATTRIBUTES> (features, rois)
    rows = Reshape (bins, row_of_bins)
    logits = MatMul (rows, weight)
    sigmoid = Sigmoid (logits)
    classes = Transpose <perm = [1, 0]> (sigmoid)
    class_scores = Unsqueeze <axes = [0]> (classes)
    five_columns = Slice (rois, one, six, one)
    all_boxes = Unsqueeze <axes = [0]> (five_columns)
    kept = mmdeploy.NMSRotated <iou_threshold = 0.1,
        score_threshold = 0.05> (all_boxes, class_scores)
    third_column = Gather <axis = 1> (kept, two)
    positions = Squeeze <axes = [1]> (third_column)
    kept_boxes = Gather <axis = 1> (all_boxes, positions)
    kept_score_list = GatherND (class_scores, kept)
    kept_scores = Unsqueeze <axes = [0]> (kept_score_list)
    padded_boxes = Concat <axis = 1> (kept_boxes, zero_boxes)
    padded_scores = Concat <axis = 1> (kept_scores, zero_scores)
    scores, order_of_images = TopK <axis = 1> (padded_scores, four)
    order = Squeeze <axes = [0]> (order_of_images)
    boxes = Gather <axis = 1> (padded_boxes, order)
}""".replace("ATTRIBUTES", ", ".join(f"{name} = {value}" for name, value in POOLED.items()))


def turned_boxes(count: int, size: float = 60.0, seed: int = 0) -> np.ndarray:
    """Boxes [count, 5] in a square of this size: centre, sides, angle."""
    rng = np.random.default_rng(seed)
    columns = (
        rng.uniform(0, size, (count, 2)),
        rng.uniform(2, 30, (count, 2)),
        rng.uniform(-4, 4, (count, 1)),
    )
    return np.concatenate(columns, 1).astype(np.float32)


def plainly_kept(
    boxes: np.ndarray,
    scores: np.ndarray,
    overlap: Callable[..., Any],
    suppresses: Callable[..., Any],
) -> Any:
    """Greedy suppression as it is defined: the kept positions, and which box has suppressed each
    other one.
    """
    order = sorted(range(len(scores)), key=lambda k: (-scores[k], k))
    suppressor, kept = {}, []
    for position, k in enumerate(order):
        if k in suppressor:
            continue
        kept.append(k)
        for other in order[position + 1 :]:
            if other not in suppressor and suppresses(overlap(boxes[k], boxes[other])):
                suppressor[other] = k
    return kept, suppressor


def rotated_detector() -> tuple[onnx.ModelProto, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return (model, its inputs by name, its outputs by name)."""
    rng = np.random.default_rng(0)
    shapes = {
        "ow": (27, 8, 3, 3),
        "ob": (27,),
        "w": (3, 8, 3, 3),
        "b": (3,),
        "weight": (3 * 7 * 7, 2),
    }
    weights = {
        name: rng.standard_normal(shape, np.float32) * np.float32(0.3)
        for name, shape in shapes.items()
    }
    indices = {"zero": 0, "one": 1, "two": 2, "four": 4, "six": 6, "eighteen": 18, "all": 2**31}
    x = rng.standard_normal((1, 8, 16, 16), np.float32)
    rois = np.concatenate([np.zeros((30, 1), np.float32), turned_boxes(30)], 1)
    proto = parsed(
        DETECTOR, 11, "mmdeploy", ir_version=6, **weights,
        **{name: np.array([k]) for name, k in indices.items()},
        row_of_bins=np.array([-1, 3 * 7 * 7]),
        zero_boxes=np.zeros((1, 4, 5), np.float32), zero_scores=np.zeros((1, 4), np.float32),
    )  # fmt: skip
    boxes, scores = detected(features_of(x, **weights), rois, weights["weight"])
    return proto, {"x": x, "rois": rois}, {"boxes": boxes, "scores": scores}


def features_of(
    x: np.ndarray, ow: np.ndarray, ob: np.ndarray, w: np.ndarray, b: np.ndarray, **_: np.ndarray
) -> np.ndarray:
    o = onnx_ops.deform_conv(x, ow, np.zeros((1, 18, 16, 16), np.float32), ob, pads=[1] * 4)
    mask = 1 / (1 + np.exp(-o[:, 18:]))
    return np.maximum(onnx_ops.deform_conv(x, w, o[:, :18], b, mask, pads=[1] * 4), 0)


def detected(features: np.ndarray, rois: np.ndarray, weight: np.ndarray) -> Any:
    bins = call(operator("mmdeploy", "MMCVRoIAlignRotated"), features, rois, **POOLED)
    found = 1 / (1 + np.exp(-(bins.reshape(len(rois), -1) @ weight)))
    boxes = rois[:, 1:].astype(np.float64)
    kept = [
        (found[r, k], r)
        for k in range(found.shape[1])
        for r in plainly_kept(boxes, found[:, k], rotated_overlap, lambda overlap: overlap > 0.1)[0]
        if found[r, k] > 0.05
    ]
    best = sorted(kept, reverse=True)[:4]
    return rois[[r for _, r in best], 1:][None], np.array(
        [[score for score, _ in best]], np.float32
    )
