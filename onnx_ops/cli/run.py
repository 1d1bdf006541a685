"""`onnx-ops run`: run a model once, or hand over to many.py."""

import time
from pathlib import Path

import click
import numpy as np

from ..comparison import difference
from ..external_data import files
from ..reference import Evaluator
from ..runtime.runner import Runner
from . import data, many
from .arguments import check_targets, json_option, model_argument, threads_option, tolerance_option
from .console import dimensions, format_difference, milliseconds, print_json, say, table

BACKENDS = ("native", "extensions", "builtin", "reference")


@click.command()
@model_argument
@data.input_option
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), help="Write the outputs into this folder.")
@click.option("--random", is_flag=True, help="Make up the inputs that are not given.")
@data.shape_option
@data.seed_option
@click.option("--backend", type=click.Choice(["native", "extensions"]), default="native", show_default=True)
@click.option("--optimize", is_flag=True, help="Run what `onnx-ops optimize` makes of the model.")
@click.option(
    "--compare", type=click.Choice(["builtin", "reference"]),
    help="Also run it by ONNX Runtime's own kernels, or by onnx's evaluator, and compare.",
)  # fmt: skip
@tolerance_option("Of --compare, relative to the largest value.  [default: by type]")
@threads_option
@click.option("--batch", type=click.IntRange(1), help="Of many files: so many in one run, along the first axis.")
@click.option("--workers", type=click.IntRange(1), help="Of many files: by so many processes.  [default: by this one]")
@click.option("--cluster", metavar="ADDRESS", help="Of many files: by this Ray cluster; auto for the one at hand.")
@json_option
def run(
    model, given, output, random, shapes, seed, backend, optimize, compare, tolerances, threads, batch, workers,
    cluster, as_json,
):  # fmt: skip
    """Run a model once and show what comes out; or on many files, and write what comes out.

    Images become floats in [0, 1] (or stay uint8, if the model wants that). Outputs are written as .npy, those that
    look like an image also as .png.

    Where an --input has wildcards, the model is run on each file that matches, and --output gets one file for each:
    .npy, or .npz where the model has several outputs. A run that is started again skips what is finished.

    \b
    Examples:
      onnx-ops run model.onnx --input x=frame.npy --output out/
      onnx-ops run model.onnx --input photo.png --output out/ --compare builtin
      onnx-ops run model.onnx --random --shape x=1,3,224,224 --json
      onnx-ops run model.onnx --random --optimize --compare builtin
      onnx-ops run model.onnx --input 'x=frames/*.png' --output out/ --workers 4
    """
    if any(map(data.is_pattern, given)):
        if compare or random or shapes or not output:
            raise click.UsageError("many files need --output, and leave no place for --compare, --random and --shape.")
        options = {"backend": backend, "optimize": optimize, "threads": threads, "batch": batch}
        many.run_files(model, given, output, options, workers, cluster, as_json)
        return
    if batch or workers or cluster:
        raise click.UsageError("--batch, --workers and --cluster are for many files: --input with a wildcard.")
    runner, seconds_open = timed(open_model, model, backend, threads, optimize=optimize)
    data.check_outputs(runner.outputs)
    if output:
        targets = [output / f"{name}{end}" for name in data.file_names(runner.outputs).values() for end in data.ENDINGS]
        check_targets(targets, [*files(model), *data.given_files(given)])
    feeds, doubts = data.feeds(runner.inputs, given, shapes, seed, random)
    with data.adding_doubts(doubts):
        outputs, seconds_run = timed(runner, feeds)
    report = {
        "model": str(model),
        "backend": backend,
        "optimize": optimize,
        "seconds": {"open": seconds_open, "run": seconds_run},
        "inputs": [data.described(n, a) for n, a in feeds.items()],
        "outputs": [data.described(n, a) | statistics(a) for n, a in outputs.items()],
        "files": list(map(str, data.write(output, outputs))) if output else [],
    }
    if compare:
        others, seconds = timed(open_model(model, compare, threads), feeds)
        differences = compared(outputs, others, tolerances)
        report["compare"] = {"with": compare, "seconds": seconds, "outputs": differences}
    print_json(report) if as_json else show(report)
    if compare and not all(d["ok"] for d in differences):
        raise click.exceptions.Exit(1)


def open_model(model, backend, threads=None, optimize=False):
    """Return a model (path or bytes) as a function from {input: array} to {output: array}, open in one of BACKENDS."""
    if backend == "reference":
        return Evaluator(model)
    runner = Runner(model, backend=backend, threads=threads, optimize=optimize)
    runner.session  # noqa: B018  makes it
    return runner


def timed(function, *args, **kwargs):
    """Return (what the function returns, the seconds that it took)."""
    start = time.perf_counter()
    result = function(*args, **kwargs)
    return result, time.perf_counter() - start


def compared(outputs, others, tolerances):
    """Return the difference of each output, as a dict."""
    differences = {n: difference(outputs[n], others[n], tolerances) for n in outputs}
    return [
        {"name": n, "largest": d.largest, "allowed": d.allowed, "problem": d.problem, "ok": d.ok}
        for n, d in differences.items()
    ]


def statistics(array):
    """Return the least, mean and greatest of the finite elements, and how many others there are."""
    if array.dtype.kind in "OUS" or not array.size:
        return {}
    as_float64 = array.astype(np.float64)
    finite = as_float64[np.isfinite(as_float64)]
    values = {"min": finite.min(), "mean": finite.mean(), "max": finite.max()} if finite.size else {}
    return {n: float(v) for n, v in values.items()} | {"not_finite": as_float64.size - finite.size}


def show(report):
    rows = [("input", *row(v)) for v in report["inputs"]] + [("output", *row(v)) for v in report["outputs"]]
    table(report["model"], ("", "name", "type", "shape", "min|", "mean|", "max|", "not finite|"), rows)
    seconds = report["seconds"]
    say(f"session made in {milliseconds(seconds['open'])} ms, run in {milliseconds(seconds['run'])} ms (the first one)")
    for path in report["files"]:
        say(f"written: {path}")
    if "compare" in report:
        for d in report["compare"]["outputs"]:
            largest, allowed = format_difference(d["largest"]), format_difference(d["allowed"])
            verdict = d["problem"] or f"largest difference {largest}, allowed {allowed}"
            say(f"{d['name']} against {report['compare']['with']}: {verdict}", None if d["ok"] else "bold red")


def row(described):
    numbers = (f"{described[k]:.4g}" if k in described else "" for k in ("min", "mean", "max"))
    not_finite = described.get("not_finite", "")
    return described["name"], described["type"], dimensions(described["shape"]), *numbers, not_finite
