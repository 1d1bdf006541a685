"""`onnx-ops run`: run a model once, or on many files: in this process, or on a cluster."""

from __future__ import annotations

import os
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np
from rich.progress import TimeRemainingColumn

from ..model.external_data import files
from ..registry import custom_operators
from ..session.runner import Runner
from . import comparison, data
from .arguments import (
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
    from collections.abc import Iterable, Sequence

    from ..model.types import PathLike
    from ..session.types import Backend, Described
    from .types import Feeds, Other, Report, Settings, Tolerances


@click.command()
@model_argument
@data.input_option
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the outputs into this folder.",
)
@click.option("--random", is_flag=True, help="Random data for inputs that are not given.")
@data.shape_option
@click.option("--backend", type=click.Choice(["native", "extensions"]), default="native")
@click.option("--optimize", is_flag=True, help="Optimize the model first, as `onnx-ops optimize`.")
@click.option(
    "--compare", type=Peer(), metavar="builtin|reference|MODEL|FILE",
    help="Compare with ONNX Runtime's built-in kernels; with this package's float64 references, "
    "with onnx's evaluator "
    "for other nodes; with another model, run by the built-in kernels or, if they don't run it, "
    "by onnx_ops; or with "
    "the outputs of another runtime in a .npz with their names, or in a .npy or .pb with the only "
    "one.",
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
    given: tuple[str, ...],
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
    if any(map(data.is_pattern, given)):
        if compare or random or shapes or not output:
            raise click.UsageError(
                "--input with a wildcard needs --output, and excludes --compare, --random and "
                "--shape."
            )
        options = {"backend": backend, "optimize": optimize}
        report = run_files(model, given, output, options, threads, cluster, overwrite)
        is_well = not report["failed"]
    else:
        if cluster or overwrite:
            raise click.UsageError(
                "--cluster and --overwrite are for many files: --input with a wildcard."
            )
        runner, seconds = timed(open_model, model, backend, threads, optimize)
        report = {
            "model": str(model),
            "backend": backend,
            "optimize": optimize,
            "seconds": {"open": seconds},
        }
        sources: list[PathLike] = [
            *files(model),
            *data.given_files(given),
            *([compare] if isinstance(compare, Path) else []),
        ]
        feeds, outputs = run_once(runner, report, sources, given, output, shapes, random)
        if compare:
            report["compare"] = comparison.compare(
                model, runner, compare, feeds, outputs, tolerances
            )
        is_well = not compare or all(d["ok"] for d in report["compare"]["outputs"])
    if as_json:
        print_json(report)
    elif "items" in report:
        show_items(report)
    else:
        show(report)
    if not is_well:
        raise click.exceptions.Exit(1)


# Once


def run_once(
    runner: Runner,
    report: Report,
    sources: Iterable[PathLike],
    given: tuple[str, ...],
    output: Path | None,
    shapes: tuple[str, ...],
    random: bool,
) -> tuple[Feeds, Feeds]:
    """Run the model, write the outputs and add to the report; return {input: array} and {output:
    array}.

    sources  files that the command reads, which it can't replace
    """
    data.check_outputs(runner.outputs)
    if output:
        names = data.file_names(runner.outputs).values()
        check_targets(
            [output / f"{name}{ending}" for name in names for ending in data.ENDINGS], sources
        )
    feeds, doubts = data.feeds(runner.inputs, given, shapes, random)
    with data.adding_doubts(doubts):
        outputs, report["seconds"]["run"] = timed(runner, feeds)
    report["inputs"] = data.described(feeds)
    report["outputs"] = [
        each | statistics(outputs[each["name"]]) for each in data.described(outputs)
    ]
    report["files"] = list(map(str, data.write(output, outputs))) if output else []
    return feeds, outputs


def statistics(array: np.ndarray) -> dict[str, float]:
    """Return the minimum, mean and maximum of the finite elements, and the number of others."""
    if array.dtype.kind in "OUS" or not array.size:
        return {}
    as_float64 = array.astype(np.float64)
    finite = as_float64[np.isfinite(as_float64)]
    values = (
        {"min": finite.min(), "mean": finite.mean(), "max": finite.max()} if finite.size else {}
    )
    return {n: float(v) for n, v in values.items()} | {"not_finite": as_float64.size - finite.size}


def show(report: Report) -> None:
    """Show the report on one run."""
    rows = [(kind, *row(v)) for kind in ("input", "output") for v in report[f"{kind}s"]]
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
        comparison.show(report["compare"])


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
    given: Sequence[str],
    output: Path,
    options: Settings,
    threads: int | None,
    address: str | None,
    overwrite: bool,
) -> Report:
    """Run the model on the unfinished items of the --input options `given`; return the report.

    options  {"backend": ..., "optimize": ...}
    address  of the Ray cluster that runs it; None: this process runs it
    """
    start = time.perf_counter()
    if address:
        threads = threads or 1
    runner = Runner(model.absolute(), threads=threads, operators=custom_operators(), **options)
    data.check_outputs(runner.outputs)
    patterns, shared = divide(given, runner.inputs)
    items = find(patterns, output)
    work = Work(runner, shared, output.absolute())
    read: list[PathLike] = [
        *files(model),
        *data.given_files(given),
        *(path for item in items for _, path in item.files),
    ]
    check_targets([output / SETTINGS, *map(work.path, items)], read)
    begin(
        work,
        options | {"patterns": [[name, os.path.realpath(pattern)] for name, pattern in patterns]},
        overwrite,
    )
    pending = [item for item in items if not work.is_finished(item)]
    outcomes = ((item.name, work(item)) for item in pending)
    if address:
        outcomes = run_on_cluster(work, pending, address, threads or 1)
    with closing(outcomes), progress(TimeRemainingColumn()) as bar:
        ends = bar.track(outcomes, total=len(pending), description=str(model))
        failed = {name: reason for name, reason in ends if reason}
    return {
        "model": str(model),
        **options,
        "items": len(items),
        "finished_before": len(items) - len(pending),
        "run": len(pending) - len(failed),
        "failed": [{"item": name, "problem": failed[name]} for name in sorted(failed)],
        "seconds": time.perf_counter() - start,
    }


def divide(given: Sequence[str], inputs: Described) -> tuple[list[tuple[str | None, str]], Feeds]:
    """Split the --input options into [(input, pattern)] for the items and {input: array} that all
    items share.
    """
    patterns = [data.assignment(text, inputs) for text in given if data.is_pattern(text)]
    shared = data.read_inputs([text for text in given if not data.is_pattern(text)], inputs)
    names = [*(name for name, _ in patterns), *shared]
    if again := sorted({name or "a .npz" for name in names if names.count(name) > 1}):
        raise click.UsageError(f"--input gives {', '.join(again)} twice.")
    if None not in names:
        data.check_complete(names, inputs)
    return patterns, shared


def show_items(report: Report) -> None:
    """Show the report of `run_files`."""
    for failure in report["failed"]:
        say(f"{failure['item']} has failed: {failure['problem']}", "bold red")
    counts = [
        f"{report['run']} run",
        f"{report['finished_before']} finished before",
        f"{len(report['failed'])} failed",
    ]
    say(f"{report['items']} items in {report['seconds']:.1f} s: {', '.join(counts)}")
