"""`onnx-ops demo`: models with and without this package, and pictures."""

from pathlib import Path
from statistics import median

import click
import numpy as np
import onnx
import onnxruntime as ort
from onnx.reference import ReferenceEvaluator

import onnx_ops

from . import gallery
from .common import format_difference, json_option, milliseconds, print_json, reason, say, steps, table
from .compare import difference
from .routes import Route
from .timing import interleave, ratio

REPEATS = 11


def smooth(image, patch=8, stride=4, waves=6):
    """Return a model of noise removal, as PyTorch exports it: `unfold`, a projection of each patch, and `fold`.

    The projection keeps the `waves` longest cosine waves of a patch. Where patches overlap they are averaged.
    """
    height, width = image.shape[2:]
    counts = [(size - patch) // stride + 1 for size in (height, width)]
    k, n = patch * patch, np.arange(patch)
    dct = np.cos(np.pi / patch * (n + 0.5) * n[:, None]) * np.sqrt(2 / patch)
    dct[0] /= np.sqrt(2)
    lowest = np.argsort(n[:, None] + n, axis=None, kind="stable")[:waves]
    basis = np.kron(dct, dct).astype(np.float32)[lowest]
    ones = np.ones((1, k, counts[0] * counts[1]), np.float32)
    rows, columns = (n[:, None] + stride * np.arange(count) for count in counts)
    return with_constants(
        f"""<ir_version: 9, opset_import: ["" : 18]>
        smooth (float[1, 3, {height}, {width}] image) => (float[1, 3, {height}, {width}] clean) {{
            padded = Pad (image, pads)
            by_row = Gather <axis = 2> (padded, rows)
            by_column = Gather <axis = 4> (by_row, columns)
            ordered = Transpose <perm = [0, 1, 2, 4, 3, 5]> (by_column)
            patches = Reshape (ordered, by_channel)
            smoothed = MatMul (projection, patches)
            blocks = Reshape (smoothed, joined)
            added = Col2Im <strides = [{stride}, {stride}]> (blocks, image_shape, block_shape)
            clean = Div (added, overlaps)
        }}""",
        pads=np.zeros(8, int),
        rows=rows,
        columns=columns,
        by_channel=np.array([1, 3, k, -1]),
        projection=basis.T @ basis,
        overlaps=onnx_ops.col2im(ones, (height, width), (patch, patch), strides=[stride, stride]),
        joined=np.array([1, 3 * k, -1]),
        image_shape=np.array([height, width]),
        block_shape=np.array([patch, patch]),
    )


def transform(image):
    """Return the end of a spatial transformer, as PyTorch exports it: `affine_grid` of a matrix, then `grid_sample`."""
    shape, (height, width) = ", ".join(map(str, image.shape)), image.shape[2:]
    x, y = ((2 * np.arange(size) + 1) / size - 1 for size in (width, height))
    base = np.stack([*np.meshgrid(x, y), np.ones((height, width))], -1)
    return with_constants(
        f"""<ir_version: 9, opset_import: ["" : 20]>
        transform (float[{shape}] image, float[1, 2, 3] theta) => (float[{shape}] warped) {{
            rows = Transpose <perm = [0, 2, 1]> (theta)
            by_pixel = Unsqueeze (rows, pixels)
            products = Mul (base, by_pixel)
            points = ReduceSum <keepdims = 0> (products, coordinates)
            grid = Reshape (points, size)
            warped = GridSample <mode = "linear"> (image, grid)
        }}""",
        base=base.reshape(-1, 3, 1).astype(np.float32),
        pixels=np.array([1]),
        coordinates=np.array([-2]),
        size=np.array([1, height, width, 2]),
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
    """Yield (title, model, inputs) of each example."""
    rng = np.random.default_rng(0)
    image = gallery.photograph()
    noisy = image + 0.1 * rng.standard_normal(image.shape, np.float32)
    theta = np.array([[[0.8, -0.2, 0], [0.3, 0.8, 0]]], np.float32)
    yield "network: unfold, fold", smooth(image), {"image": noisy}
    yield "network: affine_grid, grid_sample", transform(image), {"image": image, "theta": theta}
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
    pixels = (image * 255).astype(np.uint8)
    yield "GridSample, nearest, uint8", grid_sample("uint8", "nearest"), {"X": pixels, "Grid": grid}
    volume, coordinates = rng.standard_normal((1, 1, 32, 32, 32), np.float32), rng.uniform(-1, 1, (1, 32, 32, 32, 3))
    yield (
        "GridSample, cubic, volume",
        grid_sample("float", "cubic", "D, H, W", 3),
        {"X": volume, "Grid": coordinates.astype(np.float32)},
    )


WAYS = {  # name: arguments of Route
    "builtin": {"route": "builtin"},
    "native": {},
    "optimized": {"optimize": True},
}


def measure(example):
    """Run one example in all ways; returns its row of the table, as a dict."""
    name, model, feeds = example
    (reference,) = ReferenceEvaluator(model, new_ops=onnx_ops.reference_ops()).run(None, feeds)
    row, calls = {"model": name, "refused": None, "error": {}, "wrong": []}, {}
    for way, settings in WAYS.items():
        if way == "optimized" and onnx_ops.optimize(model) == model:
            continue
        try:
            session = Route(model.SerializeToString(), **settings)
            (result,) = session.run(feeds).values()
        except Exception as error:
            if way != "builtin":
                raise
            row["refused"] = reason(error)
            continue
        deviation = difference(result, reference)
        row["error"][way] = deviation.largest
        row["wrong"] += [] if deviation.ok else [way]
        calls[way] = lambda session=session: session.run(feeds)
    times = interleave(calls, REPEATS)
    row["seconds"] = {n: median(v) for n, v in times.items()}
    row["speedup"] = {n: ratio(times["builtin"], v) for n, v in times.items() if n != "builtin" and "builtin" in times}
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
    output.mkdir(parents=True, exist_ok=True)  # first, so that an error comes before the work
    rows = list(map(measure, steps(list(examples()), lambda e: e[0])))
    pictures = [(str(path), what) for path, what in gallery.write(output)]
    if as_json:
        print_json({"models": rows, "pictures": [path for path, _ in pictures]})
    else:
        show(rows, pictures)
    if any({*row["wrong"]} - {"builtin"} for row in rows):
        raise click.exceptions.Exit(1)


def show(rows, pictures):
    columns = ("model", "alone, ms|", "error|", "with onnx_ops, ms|", "error|", "speed-up|")
    title = f"onnxruntime {ort.__version__} alone and with onnx_ops {onnx_ops.__version__}"
    table(title, columns, [line for row in rows for line in lines(row)])
    say("error: the largest difference to the operators computed in float64, by onnx's own evaluator")
    say("optimized: with what exporters write around the operators as single nodes; optimize=True")
    for path, what in pictures:
        say(f"{path}: {what}")


def lines(row):
    """Yield a line of the table for each way to run an example with onnx_ops."""
    alone = cells(row, "builtin")
    for way in WAYS:
        if way != "builtin" and way in row["seconds"]:
            speedup = f"{row['speedup'][way]:.1f} x" if way in row["speedup"] else ""
            first = way == "native"
            yield row["model"] if first else "  optimized", *(alone if first else ("", "")), *cells(row, way), speedup


def cells(row, way):
    if way not in row["seconds"]:
        return "refused", ""
    return milliseconds(row["seconds"][way]), format_difference(row["error"][way]) + ", wrong" * (way in row["wrong"])
