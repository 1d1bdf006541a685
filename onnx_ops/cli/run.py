"""`onnx-ops run`: run a model once, or on many files: in this process, or on a cluster."""

from __future__ import annotations

import os
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np
from click import UsageError
from rich.progress import TimeRemainingColumn

from ..model.external_data import files
from ..registry import custom_operators
from ..session.runner import Runner
from . import comparison, data
from .arguments import (
    TARGET_FOLDER,
    Peer,
    check_targets,
    json_option,
    model_argument,
    threads_option,
    tolerance_option,
)
from .cluster import run_on_cluster
from .comparison import open_model, timed
from .console import dimensions, milliseconds, print_json, progress, say, table
from .items import SETTINGS, Work, begin, find

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..model.types import PathLike
    from ..session.types import Backend, Described
    from .items import Item
    from .types import Feeds, Other, Report, Settings, Tolerances


@click.command()
@model_argument
@data.input_option
@click.option(
    "--output",
    type=TARGET_FOLDER,
    help="Write the outputs into this folder.",
)
@click.option("--random", is_flag=True, help="Random data for inputs that are not given.")
@data.shape_option
@click.option("--backend", type=click.Choice(["native", "extensions"]), default="native")
@click.option("--optimize", is_flag=True, help="Optimize the model first, as `onnx-ops optimize`.")
@click.option(
    "--compare", type=Peer(), metavar="builtin|reference|MODEL|FILE",
    help="Compare with ONNX Runtime's built-in kernels; with this package's float64 references, "
    "with onnx's evaluator for other nodes; with another model, run by the built-in kernels or, "
    "if they don't run it, by onnx_ops; or with the outputs of another runtime in a .npz with "
    "their names, or in a .npy or .pb with the only one.",
)  # fmt: skip
@tolerance_option("Tolerance of --compare, relative to the largest value.  [default: by type]")
@threads_option
@click.option(
    "--cluster",
    metavar="ADDRESS",
    help="Many files: address of a Ray cluster; auto for the one of this machine. The default of "
    "--threads is 1 there.",
)
@click.option(
    "--overwrite",
    is_flag=True,
    help="Many files: run finished ones again, also those of another run.",
)
@json_option
def run(
    model: Path,
    input_texts: tuple[str, ...],
    output: Path | None,
    random: bool,
    shapes: tuple[str, ...],
    backend: Backend,
    optimize: bool,
    compare: Other | None,
    tolerances: Tolerances,
    threads: int | None,
    cluster: str | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Run a model once, or on many files.

    The command shows the outputs, and writes them with --output. Images become floats in [0, 1], or
    uint8 for a model with such an input. Outputs are written as .npy; outputs that look like an
    image also as .png.

    If an --input has wildcards, the model runs on each matching file, and --output gets one file
    for each: .npy, or .npz for a model with several outputs. A run that is started again skips
    files with a newer output.

    \b
    Examples:
      onnx-ops run model.onnx --input x=frame.npy --output out/
      onnx-ops run model.onnx --input photo.png --output out/ --compare builtin
      onnx-ops run model.onnx --random --shape x=1,3,224,224 --json
      onnx-ops run model.onnx --random --optimize --compare builtin
      onnx-ops run optimized.onnx --random --compare model.onnx
      onnx-ops run model.onnx --input x=frame.npy --compare outputs_of_another_runtime.npz
      onnx-ops run model.onnx --input 'x=frames/*.png' --output out/
    """
    options: Settings = {"backend": backend, "optimize": optimize}
    if any(map(data.is_pattern, input_texts)):
        if compare or random or shapes or not output:
            raise UsageError(
                "--input with a wildcard needs --output, and excludes --compare, --random and "
                "--shape."
            )
        report = run_files(model, input_texts, output, options, threads, cluster, overwrite)
        is_well = not report["failed"]
    else:
        if cluster or overwrite:
            raise UsageError(
                "--cluster and --overwrite are for many files: --input with a wildcard."
            )
        inputs = data.InputOptions(input_texts, shapes, random)
        report = run_once(model, options, threads, inputs, output, compare, tolerances)
        is_well = not compare or all(d["ok"] for d in report["compare"]["outputs"])
    if as_json:
        print_json(report)
    elif "items" in report:
        show_items(report)
    else:
        show_run(report)
    if not is_well:
        raise click.exceptions.Exit(1)


# Once


def run_once(
    model: Path,
    options: Settings,
    threads: int | None,
    inputs: data.InputOptions,
    output: Path | None,
    peer: Other | None,
    tolerances: Tolerances,
) -> Report:
    """Run the model, write the outputs and compare them; return the report.

    options     {"backend": ..., "optimize": ...}
    output      the folder of the outputs, which are not written without it
    peer        what the outputs are compared with, if anything
    tolerances  of the comparison
    """
    runner, seconds = timed(partial(open_model, model, threads=threads, **options))
    report: Report = {"model": str(model), **options, "seconds": {"open": seconds}}
    data.check_outputs(runner.outputs)
    if output:
        names = data.file_names(runner.outputs).values()
        targets = [output / f"{name}{ending}" for name in names for ending in data.ENDINGS]
        sources: list[PathLike] = [*files(model), *data.input_files(inputs.texts)]
        check_targets(targets, [*sources, peer] if isinstance(peer, Path) else sources)
    feeds, doubts = data.feeds(runner.inputs, *inputs)
    with data.adding_doubts(doubts):
        outputs, report["seconds"]["run"] = timed(runner, feeds)
    report["inputs"] = data.types_and_shapes(feeds)
    report["outputs"] = [
        tensor | statistics(outputs[tensor["name"]]) for tensor in data.types_and_shapes(outputs)
    ]
    report["files"] = data.write(output, outputs) if output else []
    if peer:
        report["compare"] = comparison.compare_with(peer, model, runner, feeds, outputs, tolerances)
    return report


def statistics(array: np.ndarray) -> dict[str, float]:
    """Return the minimum, mean and maximum of the finite elements, and the number of others."""
    if array.dtype.kind in "OUS" or not array.size:
        return {}
    as_float64 = array.astype(np.float64)
    finite = as_float64[np.isfinite(as_float64)]
    values = (
        {"min": finite.min(), "mean": finite.mean(), "max": finite.max()} if finite.size else {}
    )
    return values | {"not_finite": as_float64.size - finite.size}


def show_run(report: Report) -> None:
    """Show the report on one run."""
    rows = [(role, *row(v)) for role in ("input", "output") for v in report[f"{role}s"]]
    table(
        report["model"], ("", "name", "type", "shape", "min|", "mean|", "max|", "not finite|"), rows
    )
    seconds = report["seconds"]
    say(
        f"session made in {milliseconds(seconds['open'])} ms, run in "
        f"{milliseconds(seconds['run'])} ms (the first one)"
    )
    for path in report["files"]:
        say(f"written: {path}")
    if "compare" in report:
        comparison.show_comparison(report["compare"])


def row(described: Report) -> tuple[str, ...]:
    """Return the row of a table for an input or output."""
    numbers = (f"{described[k]:.4g}" if k in described else "" for k in ("min", "mean", "max"))
    not_finite = described.get("not_finite", "")
    return (
        described["name"],
        described["type"],
        dimensions(described["shape"]),
        *numbers,
        not_finite,
    )


# Many files


def run_files(
    model: Path,
    input_texts: Sequence[str],
    output: Path,
    options: Settings,
    threads: int | None,
    address: str | None,
    overwrite: bool,
) -> Report:
    """Run the model on the unfinished items of the --input options; return the report.

    options  {"backend": ..., "optimize": ...}
    address  of the Ray cluster that runs it; None: this process runs it
    """
    start = time.perf_counter()
    if address:
        threads = threads or 1
    runner = Runner(model.absolute(), threads=threads, operators=custom_operators(), **options)
    data.check_outputs(runner.outputs)
    patterns, shared = divide(input_texts, runner.inputs)
    items = find(patterns, output)
    work = Work(runner, shared, output.absolute())
    read: list[PathLike] = [
        *files(model),
        *data.input_files(input_texts),
        *(path for item in items for _, path in item.files),
    ]
    check_targets([output / SETTINGS, *map(work.path, items)], read)
    begin(
        work,
        options | {"patterns": [[name, os.path.realpath(pattern)] for name, pattern in patterns]},
        overwrite,
    )
    pending = [item for item in items if not work.is_finished(item)]
    failed = run_items(work, pending, address, str(model))
    return {
        "model": model,
        **options,
        "items": len(items),
        "finished_before": len(items) - len(pending),
        "run": len(pending) - len(failed),
        "failed": [{"item": name, "problem": failed[name]} for name in sorted(failed)],
        "seconds": time.perf_counter() - start,
    }


def run_items(work: Work, items: Sequence[Item], address: str | None, title: str) -> dict[str, str]:
    """Run items with a progress bar that has a title; return {name: reason} of those that fail.

    address  as for `run_files`
    """
    outcomes = ((item.name, work(item)) for item in items)
    if address:
        outcomes = run_on_cluster(work, items, address, work.runner.threads or 1)
    with closing(outcomes), progress(TimeRemainingColumn()) as bar:
        ends = bar.track(outcomes, total=len(items), description=title)
        return {name: reason for name, reason in ends if reason}


def divide(
    input_texts: Sequence[str], inputs: Described
) -> tuple[list[tuple[str | None, str]], Feeds]:
    """Split the --input options into those for items and those that all items share.

    Returns [(input, pattern)] and {input: array}.
    """
    patterns = [data.assignment(text, inputs) for text in input_texts if data.is_pattern(text)]
    shared = data.read_inputs([text for text in input_texts if not data.is_pattern(text)], inputs)
    names = [*(name for name, _ in patterns), *shared]
    if again := sorted({name or "a .npz" for name in names if names.count(name) > 1}):
        raise UsageError(f"--input gives {', '.join(again)} twice.")
    if None not in names:
        data.check_complete(names, inputs)
    return patterns, shared


def show_items(report: Report) -> None:
    """Show the report of `run_files`."""
    for failure in report["failed"]:
        say(f"{failure['item']} has failed: {failure['problem']}", "bold red")
    say(
        f"{report['items']} items in {report['seconds']:.1f} s: {report['run']} run, "
        f"{report['finished_before']} finished before, {len(report['failed'])} failed"
    )
