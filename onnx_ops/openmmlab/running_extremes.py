"""Running maxima and minima along an axis: mmcv's cummax, cummin and MMCVCornerPool.

    values[..., k, ...] = max (cummax) or min (cummin) of x[..., i, ...] over i <= k along the axis
    `dim` indices[..., k, ...] = the last i of these with that value

The extreme begins with x[..., 0, ...], and x[..., k, ...] replaces it if it is >= (cummin: <=). So
NaN replaces nothing, and nothing replaces a NaN at the begin.

MMCVCornerPool takes images [N, C, H, W] and has no indices. By `mode` it is the largest pixel of

    0 (top)   the pixel's column from its row on         1 (bottom)   up to its row
    2 (left)  the pixel's row from its column on         3 (right)    up to its column

Sources: mmcv, see docs/mmdeploy.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..declaration.attributes import Attribute
from ..declaration.errors import require
from ..declaration.jit import jitable
from ..declaration.limits import ELEMENTS, MAX_RANK
from ..declaration.operator import Input, Kernel, Operator, Output, Plan
from . import running_extremes_kernels as kernels
from .running_extremes_kernels import RunningExtremesGeometry

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..kernels.types import AttributeTuple, OutputSizes, Sizes

WORK = 2**14  # elements of a tile, at least


@jitable
def copy_sizes(x: Sizes, y: OutputSizes) -> int:
    """State sizes like those of the input; return the rank."""
    for a in range(len(x)):
        y[a] = x[a]
    return len(x) or -1


@jitable
def shape(
    attributes: AttributeTuple, inputs: tuple[Sizes, ...], outputs: tuple[OutputSizes, ...]
) -> tuple[int, int]:
    return copy_sizes(inputs[0], outputs[0]), copy_sizes(inputs[0], outputs[1])


@jitable
def shape_of_pool(
    attributes: AttributeTuple, inputs: tuple[Sizes, ...], outputs: tuple[OutputSizes, ...]
) -> int:
    return copy_sizes(inputs[0], outputs[0])


@jitable
def plan(
    attributes: AttributeTuple,
    inputs: tuple[Sizes, ...],
    outputs: tuple[OutputSizes, ...],
    g: RunningExtremesGeometry,
) -> None:
    x = inputs[0]
    axis = attributes.dim
    require(len(x) > 0, "shape of input", x, "must have rank 1 or more")
    require(-len(x) <= axis < len(x), "dim", axis, "must be an axis of input, with rank", len(x))
    plan_rows(x, axis % len(x), g)


@jitable
def plan_pool(
    attributes: AttributeTuple,
    inputs: tuple[Sizes, ...],
    outputs: tuple[OutputSizes, ...],
    g: RunningExtremesGeometry,
) -> None:
    x = inputs[0]
    mode = attributes.mode
    require(len(x) == 4, "shape of input", x, "must have rank 4: [N, C, H, W]")
    g.is_backwards = 1 - mode % 2
    plan_rows(x, 2 + mode // 2, g)


@jitable
def plan_rows(x: Sizes, axis: int, g: RunningExtremesGeometry) -> None:
    """Fill the geometry, with extremes that run along this axis, and cut it into tiles."""
    g.outer = 1
    g.length = x[axis]
    g.inner = 1
    size = 1
    is_empty = False
    for a in range(len(x)):
        count = max(x[a], 1)
        require(count <= ELEMENTS // size, "shape of input", x, "must have at most 2**58 elements")
        size *= count
        is_empty = is_empty or x[a] == 0
        if a < axis:
            g.outer *= count
        if a > axis:
            g.inner *= count
    if is_empty:
        g.outer = 0
    g.tiles = min(64, g.outer, size // WORK + 1)


def reference(input: np.ndarray, *, dim: int, replaces: np.ufunc) -> tuple[np.ndarray, np.ndarray]:
    """Evaluate the formula. replaces: whether a number replaces the extreme so far."""
    values = np.empty_like(input)
    indices = np.empty(input.shape, np.int64)
    x, extremes, positions = (np.moveaxis(a, dim, 0) for a in (input, values, indices))
    with np.errstate(invalid="ignore"):
        for k in range(len(x)):
            is_new = replaces(x[k], extremes[k - 1]) if k else np.ones_like(x[k], bool)
            extremes[k] = np.where(is_new, x[k], extremes[k - 1])
            positions[k] = np.where(is_new, k, positions[k - 1])
    return values, indices


def cummax(input: np.ndarray, *, dim: int) -> tuple[np.ndarray, np.ndarray]:
    return reference(input, dim=dim, replaces=np.greater_equal)


def cummin(input: np.ndarray, *, dim: int) -> tuple[np.ndarray, np.ndarray]:
    return reference(input, dim=dim, replaces=np.less_equal)


def corner_pool(input: np.ndarray, *, mode: int) -> np.ndarray:
    """Evaluate the formula: cummax, of images that are flipped for even modes."""
    axis = 2 + mode // 2
    flipped = () if mode % 2 else axis
    return np.flip(cummax(np.flip(input, flipped), dim=axis)[0], flipped)


def running(
    name: str, kernel: Callable[..., None], body: Callable[..., tuple[np.ndarray, np.ndarray]]
) -> Operator:
    """Declare cummax or cummin."""
    return Operator(
        domain="mmcv",
        name=name,
        ranks=tuple(range(1, MAX_RANK + 1)),
        inputs=(Input("input", "T"),),
        outputs=(Output("values", "T"), Output("indices", "I")),
        types={"T": ("float32",), "I": ("int64",)},
        attributes=(Attribute("dim", "int", required=True),),
        plan=Plan(shape, plan, RunningExtremesGeometry),
        kernels=(Kernel(kernel),),
        reference=body,
    )


CORNER_POOL = Operator(
    domain="mmcv",
    name="MMCVCornerPool",
    ranks=(4,),
    inputs=(Input("input", "T"),),
    outputs=(Output("output", "T"),),
    types={"T": ("float16", "float32", "float64")},
    attributes=(Attribute("mode", "int", required=True, bounds=(0, 3)),),
    plan=Plan(shape_of_pool, plan_pool, RunningExtremesGeometry),
    kernels=(Kernel(kernels.corner_pool),),
    reference=corner_pool,
)
OPERATORS = (
    running("cummax", kernels.cummax, cummax),
    running("cummin", kernels.cummin, cummin),
    CORNER_POOL,
)
