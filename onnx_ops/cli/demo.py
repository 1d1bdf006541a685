"""`onnx-ops demo`: models with and without this package, and pictures with their models.

The photograph, cat.jpg, is Chelsea by Stefan van der Walt, who put it in the public domain (CC0);
it is made smaller.
"""

from __future__ import annotations

import itertools
import math
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np
import onnx
import onnxruntime as ort

import onnx_ops

from ..arrays.comparison import difference
from ..arrays.reference import Evaluator
from ..rewriting import rewritten
from ..session.runner import Runner
from ..system.files import named, staged
from .arguments import TARGET_FOLDER, json_option
from .bench import open_ways, times
from .compile import compiling
from .console import format_difference, milliseconds, print_json, say, steps, table
from .data import read_image, write_image

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import TypeVar

    from ..model.types import Array
    from .types import Example, Feeds, Report

    T = TypeVar("T")

REPEATS = 5
HEIGHT, WIDTH = 192, 300  # of what GridSample makes, in pixels
MODES, PADDING_MODES = ("nearest", "linear", "cubic"), ("zeros", "border", "reflection")


@click.command()
@click.option(
    "--output",
    type=TARGET_FOLDER,
    default="out",
    help="For pictures.",
)
@json_option
def demo(output: Path, as_json: bool) -> None:
    """Run small models with and without onnx_ops, and draw pictures.

    The first run compiles the kernels on all CPUs, in less than a minute on two.

    \b
    Example:
      onnx-ops demo --output out/
    """
    output.mkdir(parents=True, exist_ok=True)  # first, so that an error precedes the work
    cases = list(examples())
    compile_kernels([model for _, model, _ in cases])
    rows = [measure(*example) for example in steps(cases, lambda example: example[0])]
    pictures = write_pictures(output)
    if as_json:
        print_json({"models": rows, "pictures": [path for path, _ in pictures]})
    else:
        show_demo(rows, pictures)
    if any({*row["wrong"]} - {"builtin"} for row in rows):
        raise click.exceptions.Exit(1)


# Models


def col2im_model(image: str = "H, W", attributes: str = "") -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]>
        col2im (float[N, CK, L] x, int64[axes] image_shape, int64[axes] block_shape)
        => (float[N, C, {image}] y) {{
            y = Col2Im {attributes} (x, image_shape, block_shape)
        }}"""
    )


def grid_sample_model(
    dtype: str, mode: str, image: str = "H, W", padding_mode: str = "border"
) -> onnx.ModelProto:
    out = image.replace(",", "_out,") + "_out"
    return onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 20]>
        grid_sample ({dtype}[N, C, {image}] X, float[N, {out}, {image.count(",") + 1}] Grid)
        => ({dtype}[N, C, {out}] Y) {{
            Y = GridSample <mode = "{mode}", padding_mode = "{padding_mode}"> (X, Grid)
        }}"""
    )


# PyTorch's `unfold` of an image of three channels, as it exports it; `unfold_constants` makes the
# constants.
UNFOLD = """
            padded = Pad (image, pads)
            by_row = Gather <axis = 2> (padded, rows)
            by_column = Gather <axis = 4> (by_row, columns)
            ordered = Transpose <perm = [0, 1, 2, 4, 3, 5]> (by_column)
            patches = Reshape (ordered, by_channel)"""


def unfold_constants(shape: tuple[int, ...], patch: int, stride: int, pad: int) -> Feeds:
    """Return the constants of UNFOLD.

    Square patches begin at every `stride` pixels, with zeros around the image.
    """
    counts = [(size + 2 * pad - patch) // stride + 1 for size in shape[2:]]
    rows, columns = (np.arange(patch)[:, None] + stride * np.arange(count) for count in counts)
    sizes = np.array([1, 3, patch * patch, -1])
    return {
        "pads": np.array([0, 0, pad, pad] * 2),
        "rows": rows,
        "columns": columns,
        "by_channel": sizes,
    }


def smooth(
    shape: tuple[int, ...], patch: int = 8, stride: int = 4, waves: int = 6
) -> onnx.ModelProto:
    """Return a model of noise removal, as PyTorch exports it.

    It is `unfold`, a projection of each patch, and `fold`.

    The projection keeps the `waves` longest cosine waves of a patch. Where patches overlap they are
    averaged.
    """
    height, width = shape[2:]
    k = patch * patch
    n = np.arange(patch)
    dct = np.cos(np.pi / patch * (n + 0.5) * n[:, None]) * np.sqrt(2 / patch)
    dct[0] /= np.sqrt(2)
    lowest = np.argsort(n[:, None] + n, axis=None, kind="stable")[:waves]
    basis = np.kron(dct, dct).astype(np.float32)[lowest]
    constants = unfold_constants(shape, patch, stride, 0)
    overlaps = np.outer(*(np.bincount(constants[axis].ravel()) for axis in ("rows", "columns")))
    return with_constants(
        f"""<ir_version: 9, opset_import: ["" : 18]>
        smooth (float[1, 3, {height}, {width}] image) => (float[1, 3, {height}, {width}] clean) {{
            {UNFOLD}
            smoothed = MatMul (projection, patches)
            blocks = Reshape (smoothed, joined)
            added = Col2Im <strides = [{stride}, {stride}]> (blocks, image_shape, block_shape)
            clean = Div (added, overlaps)
        }}""",
        **constants,
        projection=basis.T @ basis,
        overlaps=overlaps.astype(np.float32),
        joined=np.array([1, 3 * k, -1]),
        image_shape=np.array([height, width]),
        block_shape=np.array([patch, patch]),
    )


def blend(shape: tuple[int, ...]) -> onnx.ModelProto:
    """Return a model that blends the 3 x 3 pixels around each pixel by weights.

    The upsampling of flows does so.
    """
    height, width = shape[2:]
    return with_constants(
        f"""<ir_version: 9, opset_import: ["" : 18]>
        blend (float[1, 3, {height}, {width}] image, float[1, 1, 9, {height * width}] weights)
            => (float[1, 3, {height}, {width}] blended) {{{UNFOLD}
            weighed = Mul (patches, weights)
            summed = ReduceSum <keepdims = 0> (weighed, within_patch)
            blended = Reshape (summed, size)
        }}""",
        **unfold_constants(shape, 3, 1, 1),
        within_patch=np.array([2]),
        size=np.array(shape),
    )


def with_constants(text: str, **constants: Array) -> onnx.ModelProto:
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(v, n) for n, v in constants.items())
    return model


def examples() -> Iterator[Example]:
    """Yield (title, model, inputs) of each example."""
    rng = np.random.default_rng(0)
    image = photograph()
    noisy = image + 0.1 * rng.standard_normal(image.shape, np.float32)
    weights = rng.dirichlet(np.ones(9), image[0, 0].size).T[None, None].astype(np.float32)
    yield "network: unfold, fold", smooth(image.shape), {"image": noisy}
    yield "network: unfold, weighted sum", blend(image.shape), {"image": image, "weights": weights}
    blocks = rng.standard_normal((1, 16 * 9, 254 * 254), np.float32)
    sizes = {"image_shape": np.array([256, 256]), "block_shape": np.array([3, 3])}
    yield "Col2Im, float32", col2im_model(), {"x": blocks, **sizes}
    line = {"image_shape": np.array([1000]), "block_shape": np.array([5])}
    windows = rng.standard_normal((1, 64 * 5, 992), np.float32)
    yield "Col2Im, 1-D, dilated", col2im_model("W", "<dilations = [2]>"), {"x": windows, **line}
    random_grid = rng.uniform(-1.1, 1.1, (1, 256, 400, 2)).astype(np.float32)
    for mode in ("linear", "cubic"):
        yield (
            f"GridSample, {mode}, float32",
            grid_sample_model("float", mode),
            {"X": image, "Grid": random_grid},
        )
    labels = (image * 255).astype(np.int32)
    yield (
        "GridSample, nearest, int32",
        grid_sample_model("int32", "nearest"),
        {"X": labels, "Grid": random_grid},
    )
    volume = rng.standard_normal((1, 1, 32, 32, 32), np.float32)
    points = rng.uniform(-1, 1, (1, 32, 32, 32, 3)).astype(np.float32)
    yield (
        "GridSample, cubic, volume",
        grid_sample_model("float", "cubic", "D, H, W"),
        {"X": volume, "Grid": points},
    )


def compile_kernels(models: Iterable[onnx.ModelProto]) -> None:
    """Compile what the models and the pictures need, on all CPUs.

    Models need it as they are and optimized.
    """
    models = [
        *models,
        *(rewritten(model)[0] for model in models),
        *(grid_sample_model("float", mode) for mode in MODES),
    ]
    contents = [model.SerializeToString() for model in models]
    compiling(onnx_ops.warmup, models=contents, jobs=None)


def measure(title: str, model: onnx.ModelProto, feeds: Feeds) -> Report:
    """Run one example in all ways; returns its row of the table, as a dict."""
    (expected,) = Evaluator(model)(feeds).values()
    content = model.SerializeToString()
    runners, outputs, refused = open_ways(
        content, Runner(content, threads=None), feeds, rewritten(model)[1]
    )
    differences = {
        name: difference(*[*arrays.values(), expected]) for name, arrays in outputs.items()
    }
    return {
        "model": title,
        "refused": refused,
        "error": {name: compared.largest for name, compared in differences.items()},
        "wrong": [name for name in differences if not differences[name].ok],
        **times(runners, feeds, range(REPEATS)),
    }


def show_demo(rows: Iterable[Report], pictures: Iterable[tuple[Path, str]]) -> None:
    columns = ("model", "alone, ms|", "error|", "with onnx_ops, ms|", "error|", "speed-up|")
    title = f"onnxruntime {ort.__version__} alone and with onnx_ops {onnx_ops.__version__}"
    table(title, columns, [line for row in rows for line in lines(row)])
    say(
        "error: the largest difference to the operators computed in float64, by onnx's own "
        "evaluator"
    )
    say("optimized: with the exporters' nodes around the operators fused; optimize=True")
    for path, caption in pictures:
        say(f"{path}: {caption}")


def lines(row: Report) -> Iterator[tuple[str, ...]]:
    """Yield the lines of the table for one example, each for a way to run it with onnx_ops."""
    *alone, _ = cells(row, "builtin")
    yield row["model"], *alone, *cells(row, "onnx_ops")
    if "optimized" in row["seconds"]:
        yield "  optimized", "", "", *cells(row, "optimized")


def cells(row: Report, name: str) -> tuple[str, str, str]:
    """Return the texts of the time, the error and the speed-up."""
    if name not in row["seconds"]:
        return "refused", "", ""
    error = format_difference(row["error"][name])
    speedup = row["speedup"].get(name)
    is_wrong = ", wrong" if name in row["wrong"] else ""
    return (
        milliseconds(row["seconds"][name]),
        f"{error}{is_wrong}",
        f"{speedup:.1f} x" if speedup else "",
    )


# Pictures


def write_pictures(directory: Path) -> list[tuple[Path, str]]:
    """Write models, their inputs and the pictures that they make, or nothing.

    Returns [(path, what it shows)].
    """
    image = photograph()
    pictures = []
    with staged(directory) as folder:

        def write(name: str, writer: Callable[[Path, T], object], content: T) -> None:
            with named(directory / name):
                writer(folder / name, content)

        write("photograph.png", write_image, image)
        for name, coordinates in GRIDS.items():
            write(f"{name}.npy", np.save, coordinates)
        for mode, padding_mode in itertools.product(MODES, PADDING_MODES):
            name = f"grid_sample_{mode}_{padding_mode}"
            model = grid_sample_model("float", mode, padding_mode=padding_mode).SerializeToString()
            write(f"{name}.onnx", Path.write_bytes, model)
            write(
                f"{name}.png", write_image, Runner(model)({"X": image, "Grid": GRIDS["lens"]})["Y"]
            )
            caption = (
                f"the photograph through a lens, by GridSample with mode {mode}, padding_mode "
                f"{padding_mode}"
            )
            pictures.append((directory / f"{name}.png", caption))
    return pictures


def photograph() -> Array:
    """Return the photograph, float32 [1, 3, 256, 400] in [0, 1]."""
    with resources.as_file(resources.files(__package__).joinpath("cat.jpg")) as path:
        return read_image(path, "float32", [1, 3, None, None])


def grid(scale: float, degrees: float = 0.0, strength: float = 0.0) -> Array:
    """Return a Grid [1, HEIGHT, WIDTH, 2] that turns and scales coordinates about the centre.

    The unit is half the width. strength: how much the scale grows with the square of the distance,
    as a lens has it
    """
    y, x = np.mgrid[:HEIGHT, :WIDTH].astype(np.float32)
    x, y = (2 * x + 1) / WIDTH - 1, ((2 * y + 1) / HEIGHT - 1) * HEIGHT / WIDTH
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    scales = scale + strength * (x * x + y * y)
    x, y = scales * (cos * x - sin * y), scales * (sin * x + cos * y)
    return np.stack([x, y * WIDTH / HEIGHT], -1)[None].astype(np.float32)


GRIDS = {"rotated": grid(1 / 0.6, 25), "lens": grid(0.7, strength=0.9)}
