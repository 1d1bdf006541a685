"""`onnx-ops demo`: models with and without this package, and pictures."""

from pathlib import Path
from statistics import median

import click
import numpy as np
import onnx
import onnxruntime as ort
from onnx.reference import ReferenceEvaluator

import onnx_ops

from ..timing import interleave, ratio
from . import gallery
from .common import json_option, milliseconds, number, print_json, reason, say, steps, table
from .compare import difference
from .routes import Route

REPEATS = 11


def smooth(image, patch=8, stride=2, waves=6):
    """Noise removal as a network: each patch becomes its few longest cosine waves, the overlaps are averaged."""
    height, width = image.shape[2:]
    counts = [(size - patch) // stride + 1 for size in (height, width)]
    k, n = patch * patch, np.arange(patch)
    dct = np.cos(np.pi / patch * (n + 0.5) * n[:, None]) * np.sqrt(2 / patch)
    dct[0] /= np.sqrt(2)
    lowest = np.argsort(n[:, None] + n, axis=None, kind="stable")[:waves]
    basis = np.kron(dct, dct).astype(np.float32)[lowest]
    ones = np.ones((1, k, counts[0] * counts[1]), np.float32)
    return with_constants(
        f"""<ir_version: 9, opset_import: ["" : 18]>
        smooth (float[1, 3, {height}, {width}] image) => (float[1, 3, {height}, {width}] clean) {{
            spectra = Conv <group = 3, strides = [{stride}, {stride}]> (image, kernels)
            by_channel = Reshape (spectra, channels)
            patches = MatMul (waves, by_channel)
            columns = Reshape (patches, joined)
            added = Col2Im <strides = [{stride}, {stride}]> (columns, image_shape, block_shape)
            clean = Div (added, overlaps)
        }}""",
        kernels=np.tile(basis.reshape(waves, 1, patch, patch), (3, 1, 1, 1)),
        waves=np.ascontiguousarray(basis.T),
        overlaps=onnx_ops.col2im(ones, (height, width), (patch, patch), strides=[stride, stride]),
        channels=np.array([1, 3, waves, -1]),
        joined=np.array([1, 3 * k, -1]),
        image_shape=np.array([height, width]),
        block_shape=np.array([patch, patch]),
    )


def transform(image):
    """The end of a spatial transformer: six numbers become a grid, and the grid an image."""
    shape = ", ".join(map(str, image.shape))
    return with_constants(
        f"""<ir_version: 9, opset_import: ["" : 20]>
        transform (float[{shape}] image, float[1, 2, 3] theta) => (float[{shape}] warped) {{
            grid = AffineGrid (theta, size)
            warped = GridSample <mode = "linear"> (image, grid)
        }}""",
        size=np.array(image.shape),
    )


def with_constants(text, **constants):
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(v, n) for n, v in constants.items())
    return model


def col2im(dtype, image="H, W", attributes=""):
    return onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]>
        col2im ({dtype}[N, CK, L] x, int64[axes] image_shape, int64[axes] block_shape) => ({dtype}[N, C, {image}] y) {{
            y = Col2Im {attributes} (x, image_shape, block_shape)
        }}"""
    )


def grid_sample(dtype, mode, image="H, W", axes=2):
    out = image.replace(",", "_out,") + "_out"
    return onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 20]>
        grid_sample ({dtype}[N, C, {image}] X, float[N, {out}, {axes}] Grid) => ({dtype}[N, C, {out}] Y) {{
            Y = GridSample <mode = "{mode}", padding_mode = "border"> (X, Grid)
        }}"""
    )


def examples():
    """(what it is, model, inputs)"""
    rng = np.random.default_rng(0)
    image = gallery.photograph()
    noisy = image + 0.1 * rng.standard_normal(image.shape, np.float32)
    theta = np.array([[[0.8, -0.2, 0], [0.3, 0.8, 0]]], np.float32)
    yield "network: noise removal, Col2Im", smooth(image), {"image": noisy}
    yield "network: affine_grid, GridSample", transform(image), {"image": image, "theta": theta}
    blocks = rng.standard_normal((1, 16 * 9, 254 * 254), np.float32)
    sizes = {"image_shape": np.array([256, 256]), "block_shape": np.array([3, 3])}
    yield "Col2Im, float32", col2im("float"), {"x": blocks, **sizes}
    yield "Col2Im, float64", col2im("double"), {"x": blocks.astype(np.float64), **sizes}
    line = {"image_shape": np.array([1000]), "block_shape": np.array([5])}
    windows = rng.standard_normal((1, 64 * 5, 992), np.float32)
    yield "Col2Im, 1-D, dilated", col2im("float", "W", "<dilations = [2]>"), {"x": windows, **line}
    grid = rng.uniform(-1.1, 1.1, (1, 256, 400, 2)).astype(np.float32)
    for mode in ("linear", "cubic"):
        yield f"GridSample, {mode}, float32", grid_sample("float", mode), {"X": image, "Grid": grid}
    bytes_ = (image * 255).astype(np.uint8)
    yield "GridSample, nearest, uint8", grid_sample("uint8", "nearest"), {"X": bytes_, "Grid": grid}
    volume, places = rng.standard_normal((1, 1, 32, 32, 32), np.float32), rng.uniform(-1, 1, (1, 32, 32, 32, 3))
    yield (
        "GridSample, cubic, volume",
        grid_sample("float", "cubic", "D, H, W", 3),
        {"X": volume, "Grid": places.astype(np.float32)},
    )


def measured(example):
    """One row of the table, as a dict."""
    name, model, feeds = example
    (expected,) = ReferenceEvaluator(model, new_ops=onnx_ops.reference_ops()).run(None, feeds)
    row, calls = {"model": name, "refused": None, "error": {}, "wrong": []}, {}
    for route in ("builtin", "native"):
        try:
            opened = Route(model.SerializeToString(), route)
            (got,) = opened.run(feeds).values()
        except Exception as error:
            if route == "native":
                raise
            row["refused"] = reason(error)
            continue
        apart = difference(got, expected)
        row["error"][route] = apart.largest
        row["wrong"] += [] if apart.ok else [route]
        calls[route] = lambda opened=opened: opened.run(feeds)
    taken = interleave(calls, REPEATS)
    row["seconds"] = {n: median(v) for n, v in taken.items()}
    row["speedup"] = ratio(taken["builtin"], taken["native"]) if "builtin" in taken else None
    return row


@click.command()
@click.option(
    "--output", type=click.Path(file_okay=False, path_type=Path), default="out", show_default=True, help="Of pictures."
)
@json_option
def demo(output, as_json):
    """Run models with and without onnx_ops, and make pictures with it.

    The first run compiles the kernels that it uses, for about half a minute.

    \b
    Example:
      onnx-ops demo --output out/
    """
    output.mkdir(parents=True, exist_ok=True)  # if it can't be made, rather now than at the end
    rows = list(map(measured, steps(list(examples()), lambda e: e[0])))
    pictures = [(str(path), what) for path, what in gallery.write(output)]
    if as_json:
        print_json({"models": rows, "pictures": [path for path, _ in pictures]})
    else:
        show(rows, pictures)
    if any("native" in row["wrong"] for row in rows):
        raise click.exceptions.Exit(1)


def show(rows, pictures):
    columns = ("model", "alone, ms|", "error|", "with onnx_ops, ms|", "error|", "speed-up|")
    title = f"onnxruntime {ort.__version__} alone and with onnx_ops {onnx_ops.__version__}"
    table(title, columns, [shown(row) for row in rows])
    say("error: the largest difference to the operators computed in float64, by onnx's own evaluator")
    for path, what in pictures:
        say(f"{path}: {what}")


def shown(row):
    alone, own = (
        (milliseconds(row["seconds"][r]), number(row["error"][r]) + ", wrong" * (r in row["wrong"]))
        if r in row["seconds"]
        else ("refused", "")
        for r in ("builtin", "native")
    )
    return row["model"], *alone, *own, f"{row['speedup']:.1f} x" if row["speedup"] else ""
