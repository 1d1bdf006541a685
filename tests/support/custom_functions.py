"""Custom operators for test_library.py, which together have everything that such operators can
have.
"""

from typing import Literal

import numpy as np

import onnx_ops


@onnx_ops.operator(
    "test.own::Blend",
    inputs="x: T, bias: T?",
    outputs="y: T, halves: int64",
    types={"T": ("float16", "float32")},
)
def blend(
    x,
    bias=None,
    *,
    weights: tuple[float, ...],
    factor: float = 2.0,
    shifts: tuple[int, ...] = (1, 2),
    mode: Literal["add", "subtract"] = "add",
):
    """A tensor times a factor plus or minus a sum, and half its length."""
    total = sum(weights) + sum(shifts) + (0 if bias is None else bias[0])
    return (x * factor + (total if mode == "add" else -total)).astype(x.dtype), np.array(
        [len(x) // 2]
    )


@blend.shape
def _(x, bias, *, weights, factor, shifts, mode):
    onnx_ops.require(x[0] > 1, "length of x", x[0], "must be more than 1")
    return (x[0],), (1,)


def length(x, bias, *, weights, factor, shifts, mode):
    return x[0]


def eight(x, bias, *, weights, factor, shifts, mode):
    return 8


@blend.kernel(loop=length, workspace=eight)
def _(x, bias, weights, factor, shifts, mode, index, count, workspace, y, halves):
    total = 0.0
    for weight in weights:
        total += weight
    for shift in shifts:
        total += shift
    if bias is not None:
        total += bias[0]
    for i in range(len(x) * index // count, len(x) * (index + 1) // count):
        y[i] = x[i] * factor + (total if mode == 0 else -total)
    if index == 0:
        halves[0] = len(x) // 2


@onnx_ops.operator("test.own::Positive", inputs="x: float32", outputs="y: float32, places: int64")
def positive(x):
    """The positive elements, and their places."""
    return x[x > 0], np.flatnonzero(x > 0)


@positive.shape(bound=True)
def _(x):
    return (x[0],), (x[0],)


@positive.kernel
def _(x, index, count, workspace, y, places):
    size = 0
    for i in range(len(x)):
        if x[i] > 0:
            y[size], places[size] = x[i], i
            size += 1
    return size


@onnx_ops.operator("test.own::Fill", inputs="x: float32, size: int64", outputs="y: float32")
def fill(x, size):
    """A tensor of shape `size` that repeats x."""
    return np.resize(x, size)


@fill.shape(values=["size"])
def _(x, size):
    onnx_ops.require(len(size) == 2, "length of size", len(size), "must be 2")
    return size[0], size[1]


@onnx_ops.operator("test.own::Join", inputs="texts: string*", outputs="y: string")
def join(*texts, between: str = " ", order: np.ndarray):
    """The texts at each place, joined in this order."""
    return np.array(
        [between.join(each[k] for k in order) for each in zip(*texts, strict=True)], object
    )


FUNCTIONS = tuple(each.declaration for each in (blend, positive, fill, join))
