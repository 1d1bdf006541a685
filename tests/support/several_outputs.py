"""Inputs of operators with several outputs, or with outputs of which only a bound is known."""

from typing import Any

import numpy as np

from .cases import drawn
from .detector import turned_boxes


def f32(values: Any) -> np.ndarray:
    return np.array(values, np.float32)


def upright_boxes(count: int, size: float = 60.0, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    corner = rng.uniform(0, size, (count, 2))
    return np.concatenate([corner, corner + rng.uniform(2, 30, (count, 2))], 1).astype(np.float32)


def scores(*shape: int, seed: int = 1) -> np.ndarray:
    """Scores, of which some are equal."""
    return np.random.default_rng(seed).choice(np.linspace(0, 1, 41, dtype=np.float32), shape)


ROTATED = {"iou_threshold": 0.3, "score_threshold": 0.1}


UPRIGHT = {"iou_threshold": 0.3, "offset": 0}


SOFT = {"iou_threshold": 0.3, "sigma": 0.5, "min_score": 0.05, "method": 0, "offset": 0}


BATCH = np.stack([turned_boxes(40), turned_boxes(40, seed=3)])


UPRIGHT_BATCH = np.stack([upright_boxes(40), upright_boxes(40, seed=3)])


NUMBERS = drawn(np.random.default_rng(0), (3, 4, 5), "float32").round()  # of which some are equal


CASES = {
    "NMSRotated": [
        (BATCH, scores(2, 3, 40), ROTATED),
        (BATCH[:, :1], scores(2, 1, 1), ROTATED),
        (BATCH[:, :0], scores(2, 3, 0), ROTATED),
        (BATCH, scores(2, 0, 40), ROTATED),
        (BATCH * f32([1, 1, 0, 1, 1]), scores(2, 2, 40), {**ROTATED, "iou_threshold": 0.0}),
        (BATCH, scores(2, 3, 40), {"iou_threshold": 0.5, "score_threshold": 1.0}),
    ],
    "NMSMatch": [
        (UPRIGHT_BATCH, scores(2, 3, 40), f32([0.3]), f32([0.2])),
        (UPRIGHT_BATCH, scores(2, 3, 40), f32([0]), f32([-1])),
        (UPRIGHT_BATCH[:, :0], scores(2, 3, 0), f32([0.3]), f32([0.2])),
    ],
    "NonMaxSuppression": [
        (upright_boxes(60), scores(60), UPRIGHT),
        (upright_boxes(60).round(), scores(60), {**UPRIGHT, "offset": 1}),
        (upright_boxes(0), scores(0), UPRIGHT),
    ],
    "SoftNonMaxSuppression": [
        *((upright_boxes(60), scores(60), {**SOFT, "method": method}) for method in range(3)),
        (upright_boxes(60).round(), scores(60), {**SOFT, "method": 1, "offset": 1}),
        (upright_boxes(1), scores(1), SOFT),
        (upright_boxes(0), scores(0), SOFT),
    ],
    **{
        name: [
            *((NUMBERS, {"dim": dim}) for dim in (-3, -1, 1)),
            (NUMBERS[:, :0], {"dim": 1}),
            (NUMBERS[:0], {"dim": 1}),
            (drawn(np.random.default_rng(0), (70_000,), "float32"), {"dim": 0}),
            (drawn(np.random.default_rng(0), (300, 2, 200), "float32"), {"dim": -1}),
        ]
        for name in ("cummax", "cummin")
    },
}
