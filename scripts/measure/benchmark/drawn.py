"""Cases drawn at random: models as exporters write them, their inputs, and the same computation by
PyTorch.

A draw is repeated until it isn't too small or too large, so shapes follow the ranges below and
nobody's choice.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.random import Generator
from support.cases import block_counts
from support.peers import OLDER_NAMES

Array = np.ndarray[Any, Any]
LEAST, MOST = 2_000, 40_000_000  # elements of the largest tensor
MODES = ("nearest", "linear", "cubic")


@dataclass(frozen=True)
class Drawn:
    """A model, its inputs, and PyTorch's function of these, if it has one."""

    operator: str
    kind: str  # what the time depends on besides the size: a line of the map
    name: str
    model: onnx.ModelProto
    inputs: dict[str, Array]
    by_torch: Callable[..., Any] | None = None  # of the floats in `inputs`, as tensors


def one_of(rng: Generator, *values: Any) -> Any:
    return values[int(rng.integers(len(values)))]


def normal(rng: Generator, *shape: int) -> Array:
    return rng.standard_normal(shape, np.float32)


def parsed(text: str, version: int = 20, **constants: Array) -> onnx.ModelProto:
    """Return the model of a graph in onnx's text format, with constants."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {version}]> {text}')
    model.graph.initializer.extend(onnx.numpy_helper.from_array(v, n) for n, v in constants.items())
    return model


# Blocks


@dataclass(frozen=True)
class Blocks:
    """Square blocks of an image: n images of c channels, h x w pixels, blocks of k x k."""

    n: int
    c: int
    h: int
    w: int
    k: int
    stride: int
    pad: int

    @property
    def counts(self) -> list[int]:
        """The numbers of blocks along both axes."""
        size, pads = [self.k, self.k], [self.pad] * 4
        return block_counts((self.h, self.w), size, [1, 1], pads, [self.stride] * 2)

    @property
    def elements(self) -> int:
        return self.n * self.c * self.k * self.k * math.prod(self.counts)

    @property
    def kind(self) -> str:
        if self.stride == self.k:
            return "blocks side by side"
        return "stride 1" if self.stride == 1 else "blocks that overlap"

    def __str__(self) -> str:
        sizes = f"n{self.n} c{self.c} {self.h}x{self.w}, block {self.k}x{self.k}"
        return f"{sizes}, stride {self.stride}, pad {self.pad}"


def blocks(rng: Generator, *sizes: int) -> Blocks:
    """Draw blocks of one of these sizes."""
    while True:
        k = one_of(rng, *sizes)
        stride = one_of(rng, 1, 2, max(k // 2, 1), k, k)
        pad = one_of(rng, 0, k // 2) if stride < k else 0
        h, w = (int(size) for size in rng.integers(max(k, 8), 160, 2) * one_of(rng, 1, 1, 3))
        if stride == k:
            h, w = h // k * k, w // k * k
        drawn = Blocks(
            one_of(rng, 1, 1, 2, 8, 16), one_of(rng, 1, 3, 16, 48, 96, 192), h, w, k, stride, pad
        )
        if LEAST < drawn.elements < MOST:
            return drawn


def col2im(rng: Generator) -> Drawn:
    b = blocks(rng, 2, 2, 3, 3, 4, 4, 5, 7, 8, 16)
    model = parsed(
        f"""fold (float[N, CK, L] x, int64[2] image_shape, int64[2] block_shape)
            => (float[N, C, H, W] y) {{
            y = Col2Im <strides = [{b.stride}, {b.stride}],
                pads = [{b.pad}, {b.pad}, {b.pad}, {b.pad}]>
                (x, image_shape, block_shape)
        }}"""
    )
    inputs = {
        "x": normal(rng, b.n, b.c * b.k * b.k, math.prod(b.counts)),
        "image_shape": np.array([b.h, b.w]),
        "block_shape": np.array([b.k, b.k]),
    }

    def fold(x: Any) -> Any:
        from torch.nn import functional

        return functional.fold(x, (b.h, b.w), b.k, 1, b.pad, b.stride)

    return Drawn("Col2Im", b.kind, str(b), model, inputs, fold)


PATCHES = """
    padded = Pad (x, image_pads)
    by_row = Gather <axis = 2> (padded, rows)
    by_column = Gather <axis = 4> (by_row, columns)
    ordered = Transpose <perm = [0, 1, 2, 4, 3, 5]> (by_column)"""


def patches(b: Blocks) -> dict[str, Array]:
    """Return the constants of PATCHES, the nodes that PyTorch's exporter writes for `unfold`."""
    rows, columns = (np.arange(b.k)[:, None] + b.stride * np.arange(count) for count in b.counts)
    return {"image_pads": np.array([0, 0, b.pad, b.pad] * 2), "rows": rows, "columns": columns}


def im2col(rng: Generator) -> Drawn:
    b = blocks(rng, 2, 3, 3, 5, 7, 8, 16)
    text = f"""unfold (float[{b.n}, {b.c}, {b.h}, {b.w}] x) => (float[N, CK, L] y) {{{PATCHES}
        y = Reshape (ordered, joined)
    }}"""
    joined = np.array([b.n, b.c * b.k * b.k, -1])

    def unfold(x: Any) -> Any:
        from torch.nn import functional

        return functional.unfold(x, b.k, 1, b.pad, b.stride)

    inputs = {"x": normal(rng, b.n, b.c, b.h, b.w)}
    return Drawn(
        "Im2Col", b.kind, str(b), parsed(text, joined=joined, **patches(b)), inputs, unfold
    )


def im2col_product(rng: Generator) -> Drawn:
    """Draw a weighted sum of each block, as the upsampling of flows computes it."""
    b = blocks(rng, 3, 3, 5)
    count = math.prod(b.counts)
    text = f"""blend (float[{b.n}, {b.c}, {b.h}, {b.w}] x,
        float[{b.n}, 1, {b.k * b.k}, {count}] weights)
        => (float[N, C, L] y) {{{PATCHES}
        blocks = Reshape (ordered, by_channel)
        weighed = Mul (blocks, weights)
        y = ReduceSum <keepdims = 0> (weighed, within_block)
    }}"""
    constants = {"by_channel": np.array([b.n, b.c, b.k * b.k, -1]), "within_block": np.array([2])}

    def blend(x: Any, weights: Any) -> Any:
        from torch.nn import functional

        unfolded = functional.unfold(x, b.k, 1, b.pad, b.stride)
        return (unfolded.view(b.n, b.c, b.k * b.k, count) * weights).sum(2)

    inputs = {
        "x": normal(rng, b.n, b.c, b.h, b.w),
        "weights": normal(rng, b.n, 1, b.k * b.k, count),
    }
    return Drawn(
        "Im2ColProduct", b.kind, str(b), parsed(text, **constants, **patches(b)), inputs, blend
    )


# Samplers


def image(rng: Generator) -> tuple[int, ...]:
    """Draw (n, c, h, w)."""
    while True:
        n, c = one_of(rng, 1, 1, 2, 8), one_of(rng, 1, 2, 3, 4, 16, 64)
        size = one_of(rng, 24, 56, 112, 224, 480, 1000)
        if n * c * size * size <= 6_000_000:
            return n, c, size, size + int(rng.integers(0, size // 2))


def points(rng: Generator, arrangement: str, h: int, w: int) -> Array:
    """Return a grid [h, w, 2]: points anywhere, near the pixels, of a rotated image, or of a smooth
    flow.
    """
    x, y = np.meshgrid(np.linspace(-1, 1, w), np.linspace(-1, 1, h))
    if arrangement == "anywhere":
        return rng.uniform(-1.05, 1.05, (h, w, 2))
    if arrangement == "near the pixels":
        return np.stack([x, y], -1) * 1.02 + rng.standard_normal((h, w, 2)) * 0.02
    if arrangement == "rotated":
        angle, zoom = rng.uniform(0.1, 0.7), rng.uniform(0.7, 1.1)
        cos, sin = math.cos(angle), math.sin(angle)
        return zoom * np.stack([cos * x - sin * y, sin * x + cos * y], -1)
    return np.stack([x + 0.02 * np.sin(9 * y + 4 * x), y + 0.02 * np.cos(7 * x)], -1)


def sampling(rng: Generator, mode: str) -> tuple[str, dict[str, Any]]:
    """Draw the attributes of a GridSample, and return them in onnx's text format and as PyTorch has
    them.
    """
    padding_mode, align_corners = one_of(rng, "zeros", "border", "reflection"), int(rng.integers(2))
    text = f'<mode = "{mode}", padding_mode = "{padding_mode}", align_corners = {align_corners}>'
    older = OLDER_NAMES.get(mode, mode)
    return text, {"mode": older, "padding_mode": padding_mode, "align_corners": bool(align_corners)}


def grid_sample(rng: Generator) -> Drawn:
    mode = one_of(rng, *MODES)
    arrangement = one_of(rng, "anywhere", "near the pixels", "rotated", "flow")
    n, c, h, w = image(rng)
    attributes, settings = sampling(rng, mode)
    model = parsed(
        f"""sample (float[N, C, H, W] x, float[N, H, W, 2] grid) => (float[N, C, H, W] y) {{
            y = GridSample {attributes} (x, grid)
        }}"""
    )
    grid = np.repeat(points(rng, arrangement, h, w)[None], n, 0).astype(np.float32)

    def sample(x: Any, grid: Any) -> Any:
        from torch.nn import functional

        return functional.grid_sample(x, grid, **settings)

    name = f"n{n} c{c} {h}x{w}, {arrangement}, {settings['padding_mode']}"
    inputs = {"x": normal(rng, n, c, h, w), "grid": grid}
    return Drawn(f"GridSample, {mode}", arrangement, name, model, inputs, sample)


def computed_grid_sample(rng: Generator) -> Drawn:
    """Draw a transformation of images by matrices."""
    mode = one_of(rng, *MODES)
    n, c, h, w = image(rng)
    attributes, settings = sampling(rng, mode)
    aligned = settings["align_corners"]
    model = parsed(
        f"""transform (float[{n}, {c}, {h}, {w}] x, float[{n}, 2, 3] theta)
            => (float[{n}, {c}, {h}, {w}] y) {{
            grid = AffineGrid <align_corners = {int(aligned)}> (theta, size)
            y = GridSample {attributes} (x, grid)
        }}""",
        size=np.array([n, c, h, w]),
    )

    def transform(x: Any, theta: Any) -> Any:
        from torch.nn import functional

        grid = functional.affine_grid(theta, [n, c, h, w], aligned)
        return functional.grid_sample(x, grid, **settings)

    theta = (np.eye(2, 3) + rng.uniform(-0.3, 0.3, (n, 2, 3))).astype(np.float32)
    inputs = {"x": normal(rng, n, c, h, w), "theta": theta}
    return Drawn("ComputedGridSample", mode, f"n{n} c{c} {h}x{w}, {mode}", model, inputs, transform)


# Detection


def roi_align(rng: Generator) -> Drawn:
    while True:
        n, c = one_of(rng, 1, 1, 2), one_of(rng, 3, 16, 64, 256)
        h, w = int(rng.integers(16, 200)), int(rng.integers(16, 300))
        count, size = one_of(rng, 1, 10, 100, 300, 1000), one_of(rng, 7, 7, 14)
        if 20_000 < count * c * size * size < 600_000:
            break
    scale, ratio, mode = (
        one_of(rng, 0.25, 0.125, 0.0625),
        one_of(rng, 0, 2, 2),
        one_of(rng, "avg", "avg", "max"),
    )
    model = parsed(
        f"""pool (float[N, C, H, W] x, float[R, 4] rois, int64[R] batch_indices)
            => (float[R, C, S, S] y) {{
            y = RoiAlign <mode = "{mode}", output_height = {size}, output_width = {size},
                sampling_ratio = {ratio},
                spatial_scale = {scale}> (x, rois, batch_indices)
        }}"""
    )
    largest = one_of(rng, 0.3, 0.7, 1.0) * min(h, w)
    extents = np.exp(rng.uniform(math.log(4), math.log(largest), (count, 2))) / scale
    centres = rng.uniform(0, 1, (count, 2)) * [w / scale, h / scale]
    inputs = {
        "x": normal(rng, n, c, h, w),
        "rois": np.concatenate([centres - extents / 2, centres + extents / 2], 1).astype(
            np.float32
        ),
        "batch_indices": rng.integers(0, n, count),
    }
    name = f"n{n} c{c} {h}x{w}, {count} regions, {size}x{size}, {mode}, sampling_ratio {ratio}"
    return Drawn("RoiAlign", mode, name, model, inputs)


def deform_conv(rng: Generator) -> Drawn:
    while True:
        n, c, outputs = (
            one_of(rng, 1, 2),
            one_of(rng, 3, 16, 32, 64, 128),
            one_of(rng, 16, 32, 64, 128, 256),
        )
        h, w = (int(size) for size in rng.integers(10, 90, 2))
        k = one_of(rng, 1, 3, 3, 3, 5)
        if 3e6 < n * c * outputs * k * k * h * w < 4e8:
            break
    groups = one_of(rng, 1, 1, 1, 3) if c == 3 else one_of(rng, 1, 1, 2, 4)
    pads = f"{k // 2}, {k // 2}, {k // 2}, {k // 2}"
    model = parsed(
        f"""convolve (float[N, C, H, W] x, float[M, C, {k}, {k}] weights, float[N, D, H, W] offset)
            => (float[N, M, H, W] y) {{
            y = DeformConv <pads = [{pads}], offset_group = {groups},
                kernel_shape = [{k}, {k}]> (x, weights, offset)
        }}"""
    )
    inputs = {
        "x": normal(rng, n, c, h, w),
        "weights": normal(rng, outputs, c, k, k),
        "offset": normal(rng, n, groups * k * k * 2, h, w) * np.float32(one_of(rng, 0.5, 2)),
    }
    name = f"n{n} c{c} {h}x{w} to {outputs}, kernel {k}x{k}, offset_group {groups}"
    return Drawn("DeformConv", f"kernel {k}x{k}", name, model, inputs)


DRAWS = {  # the title on the command line: what draws a case
    "Col2Im": col2im,
    "GridSample": grid_sample,
    "Im2Col": im2col,
    "Im2ColProduct": im2col_product,
    "ComputedGridSample": computed_grid_sample,
    "RoiAlign": roi_align,
    "DeformConv": deform_conv,
}
