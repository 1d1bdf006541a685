"""Custom operators for the tests: each uses other parts of what a declaration can state."""

from typing import Literal

import numpy as np

import onnx_ops


@onnx_ops.operator(
    "my.domain::TopK",
    inputs="x: T, k: int64, bias: T?",
    outputs="values: T, indices: int64",
    types={"T": onnx_ops.FLOATS},
    ranks={"x": (1, 2, 3)},
)
def topk(x, k, bias=None, *, axes: tuple[int, ...] = (-1,), scale: float = 1.0):
    """The k largest numbers of the last axis.

    It has two outputs, an optional input, and a rule that needs values.
    """
    y = x.astype(np.float32 if x.dtype.itemsize == 2 else x.dtype) * x.dtype.type(scale).astype(
        np.float64
    )
    y = (y if bias is None else y + bias).astype(
        np.float32 if x.dtype != np.float64 else np.float64
    )
    chosen = np.argsort(-y, axis=axes[0], kind="stable")[..., : int(k[0])]
    return np.take_along_axis(y, chosen, axes[0]).astype(x.dtype), chosen


@topk.shape(values=["k"])
def _(x, k, bias, *, axes, scale):
    onnx_ops.require(axes[0] in (-1, len(x) - 1), "axes", axes, "must be the last axis")
    onnx_ops.require(0 < k[0] <= x[-1], "k", k, "must lie in [1, size of the last axis]")
    return (*x[:-1], k[0]), (*x[:-1], k[0])


def rows(x, k, bias, *, axes, scale):
    count = 1
    for axis in range(len(x) - 1):
        count *= x[axis]
    return count


@topk.kernel(loop=rows, workspace=lambda x, k, bias, *, axes, scale: x[-1])
def _(x, k, bias, axes, scale, index, count, workspace, values, indices):
    lines, v, p = x.reshape(-1, x.shape[-1]), values.reshape(-1, k[0]), indices.reshape(-1, k[0])
    for r in range(index, len(lines), count):
        workspace[:] = 0  # 1 for numbers that are among the largest already
        for j in range(k[0]):
            best, most = -1, lines[r, 0]
            for c in range(lines.shape[1]):
                if not workspace[c]:
                    y = lines[r, c] * scale + (0.0 if bias is None else bias[c])
                    if best < 0 or y > most:
                        best, most = c, y
            workspace[best] = 1
            p[r, j] = best
            v[r, j] = most


@onnx_ops.operator(
    "my.domain::Above",
    inputs="x: T",
    outputs="values: T, places: int64",
    types={"T": ("float32", "int8")},
    ranks={"x": (1,)},
)
def above(x, *, limit: float = 0.0):
    """The numbers above a limit, whose count depends on the values."""
    places = np.flatnonzero(x > limit)
    return x[places], places


@above.shape(bound=True)
def _(x, *, limit):
    return x, x


@above.kernel
def _(x, limit, index, count, workspace, values, places):
    size = 0
    for k in range(len(x)):
        if x[k] > limit:
            values[size], places[size] = x[k], k
            size += 1
    return size


@onnx_ops.jitable
def combined(a, b, mode):
    onnx_ops.require(b != 0 or mode != 1, "b", b, "must not be 0 where it divides")
    return a * b if mode == 0 else a / b


@onnx_ops.operator(
    "my.domain::Combine", inputs="a: T, b: T", outputs="y: T", types={"T": onnx_ops.FLOATS}
)
def combine(
    a,
    b,
    *,
    mode: Literal["product", "quotient"],
    flags: tuple[float, ...] = (1.0, 0.5),
    swap: bool = False,
):
    """A product or quotient.

    It has a choice, a list and a truth value as attributes; its kernel refuses values.
    """
    a, b = (b, a) if swap else (a, b)
    zeros = np.flatnonzero(b == 0)
    onnx_ops.require(
        mode == "product" or not len(zeros), "b", 0.0, "must not be 0 where it divides"
    )
    wide = [v.astype(np.float64) for v in (a, b)]
    y = wide[0] * wide[1] if mode == "product" else wide[0] / wide[1]
    return (y * sum(flags)).astype(a.dtype)


@combine.shape
def _(a, b, *, mode, flags, swap):
    onnx_ops.require(a == b, "shape of b", b, "must be that of a")
    return a


@combine.kernel
def _(a, b, mode, flags, swap, index, count, workspace, y):
    total = 0.0
    for flag in flags:
        total += flag
    for k in range(len(a)):
        y[k] = combined(b[k] if swap else a[k], a[k] if swap else b[k], mode) * total


@onnx_ops.operator("my.domain::Join", inputs="texts: string*", outputs="y: string, length: int64")
def join(*texts, between: str = ", ", table: np.ndarray | None = None, least: int | None = None):
    """Texts joined.

    It takes any number of inputs, has attributes with a tensor or None, and no kernel.
    """
    joined = np.array([between.join(parts) for parts in zip(*texts, strict=True)], object)
    length = np.array([len(text) for text in joined], np.int64)
    if table is not None:
        length = length + table.astype(np.int64)
    return joined, np.maximum(length, least or 0)


@onnx_ops.operator(
    "my.domain::Window",
    inputs="x: T, size: int64?, start: int64?",
    outputs="y: T",
    types={"T": ("float32", "int16")},
    ranks={"x": (1,), "start": (0, 1)},
)
def window(x, size=None, start=None):
    """A part of x.

    It has an optional input whose values the rule needs, and one that may be a scalar.
    """
    begin = 0 if start is None else int(start.reshape(-1)[0])
    return x[begin : begin + (len(x) if size is None else int(size[0]))]


@window.shape(values=["size"], bound=True)
def _(x, size, start):
    return (x[0] if size is None else min(size[0], x[0]),)


@window.kernel
def _(x, size, start, index, count, workspace, y):
    begin = 0 if start is None else start.reshape(-1)[0]
    onnx_ops.require(0 <= begin <= len(x), "start", begin, "must lie within x")
    length = min(len(y), len(x) - begin)
    for k in range(length):
        y[k] = x[begin + k]
    return length
