"""`onnx-ops run`: run a model once, or on many files: in this process, in several, or in a cluster."""

import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import click
import numpy as np
from rich.progress import TimeRemainingColumn

from ..model.external_data import files, pack
from ..processes import cluster as ray_cluster
from ..processes.workers import answers
from ..registry import custom_operators
from ..session.runner import Runner
from ..system import available_cpus
from . import comparison, data
from .arguments import Peer, check_targets, custom_files, json_option, model_argument, threads_option, tolerance_option
from .comparison import open_model, timed
from .console import dimensions, milliseconds, print_json, progress, say, table
from .items import MANIFEST, Manifest, Problem, Work, digest, digest_of_file, encode, find, first_size, suffix

PATIENCE = 0.8  # seconds for a worker to finish writing a file
ENDED = Problem("a process that worked on it has ended, as has another one with no other item")


@click.command()
@model_argument
@data.input_option
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), help="Write the outputs into this folder.")
@click.option("--random", is_flag=True, help="Random data for inputs that are not given.")
@data.shape_option
@click.option("--backend", type=click.Choice(["native", "extensions"]), default="native", show_default=True)
@click.option("--optimize", is_flag=True, help="Optimize the model first, as `onnx-ops optimize`.")
@click.option(
    "--compare", type=Peer(), metavar="builtin|reference|MODEL",
    help="Compare with ONNX Runtime's built-in kernels, with onnx's evaluator, or with another model, run by these "
    "kernels or, if they don't run it, by onnx_ops.",
)  # fmt: skip
@tolerance_option("Tolerance of --compare, relative to the largest value.  [default: by type]")
@threads_option
@click.option("--batch", type=click.IntRange(1), help="Many files: files per run, along the first axis.")
@click.option("--workers", type=click.IntRange(1), help="Many files: number of processes.  [default: this one]")
@click.option(
    "--cluster", metavar="ADDRESS", help="Many files: address of a Ray cluster; auto for the one of this machine."
)
@json_option
def run(
    model, given, output, random, shapes, backend, optimize, compare, tolerances, threads, batch, workers, cluster,
    as_json,
):  # fmt: skip
    """Run a model once, or on many files.

    The command shows the outputs, and writes them with --output. Images become floats in [0, 1], or uint8 for a model
    with such an input. Outputs are written as .npy; outputs that look like an image also as .png.

    If an --input has wildcards, the model runs on each matching file, and --output gets one file for each: .npy, or
    .npz for a model with several outputs. A run that is started again skips finished files.

    \b
    Examples:
      onnx-ops run model.onnx --input x=frame.npy --output out/
      onnx-ops run model.onnx --input photo.png --output out/ --compare builtin
      onnx-ops run model.onnx --random --shape x=1,3,224,224 --json
      onnx-ops run model.onnx --random --optimize --compare builtin
      onnx-ops run optimized.onnx --random --compare model.onnx
      onnx-ops run model.onnx --input 'x=frames/*.png' --output out/ --workers 4
    """
    if any(map(data.is_pattern, given)):
        if compare or random or shapes or not output:
            raise click.UsageError("many files need --output, and leave no place for --compare, --random and --shape.")
        options = {"backend": backend, "optimize": optimize, "batch": batch}
        report = run_files(model, given, output, options, threads, workers, cluster)
        is_well = not report["failed"]
    else:
        if batch or workers or cluster:
            raise click.UsageError("--batch, --workers and --cluster are for many files: --input with a wildcard.")
        runner, seconds = timed(open_model, model, backend, threads, optimize)
        report = {"model": str(model), "backend": backend, "optimize": optimize, "seconds": {"open": seconds}}
        feeds, outputs = run_once(runner, report, model, given, output, shapes, random)
        if compare:
            report["compare"] = comparison.compare(model, runner, compare, feeds, outputs, tolerances)
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


def run_once(runner, report, model, given, output, shapes, random):
    """Run the model, write the outputs and add to the report; return {input: array} and {output: array}."""
    data.check_outputs(runner.outputs)
    if output:
        names = data.file_names(runner.outputs).values()
        targets = [output / f"{name}{ending}" for name in names for ending in data.ENDINGS]
        check_targets(targets, [*files(model), *data.given_files(given)])
    feeds, doubts = data.feeds(runner.inputs, given, shapes, random)
    with data.adding_doubts(doubts):
        outputs, report["seconds"]["run"] = timed(runner, feeds)
    report["inputs"] = data.described(feeds)
    report["outputs"] = [each | statistics(outputs[each["name"]]) for each in data.described(outputs)]
    report["files"] = list(map(str, data.write(output, outputs))) if output else []
    return feeds, outputs


def statistics(array):
    """Return the minimum, mean and maximum of the finite elements, and the number of others."""
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
        comparison.show(report["compare"])


def row(described):
    numbers = (f"{described[k]:.4g}" if k in described else "" for k in ("min", "mean", "max"))
    not_finite = described.get("not_finite", "")
    return described["name"], described["type"], dimensions(described["shape"]), *numbers, not_finite


# Many files


def run_files(model, given, output, options, threads, workers, cluster):
    """Run the model on the unfinished items of the --input options `given`; return the report.

    options  {"backend": ..., "optimize": ..., "batch": ...}, which affect the outputs; batch is None if not stated
    """
    if workers and cluster:
        raise click.UsageError("--workers are processes of this machine, --cluster has its own: state one of them.")
    start, batch = time.perf_counter(), options["batch"]
    if threads is None and (workers or cluster):
        threads = max(len(available_cpus()) // workers, 1) if workers else 1
    settings = {name: options[name] for name in ("backend", "optimize")}
    runner = Runner(model, threads=threads, operators=custom_operators(), **settings)
    data.check_outputs(runner.outputs)
    patterns, shared = divide(given, runner.inputs)
    items = find(patterns, output)
    if batch:
        check_batch(batch, runner, shared)
    work = Work(runner, output, suffix(runner.outputs), shared, batch)
    read = [*files(model), *data.given_files(given), *(path for item in items for _, path in item.files)]
    check_targets([output / MANIFEST, *map(work.path, items)], read)
    with closing(Manifest(output, dependencies(model, shared) | options)) as manifest:
        with progress() as bar:
            pending = [item for item in bar.track(items, description="what is finished") if not manifest.has(item)]
        engine = choose_engine(work, workers, cluster)
        problems = collect(outcomes(engine, pending, batch or 1), manifest, str(model), len(pending))
    return {
        "model": str(model),
        **options,
        "items": len(items),
        "finished_before": len(items) - len(pending),
        "run": len(pending) - len(problems),
        "failed": [{"item": name, "problem": problems[name].reason} for name in sorted(problems)],
        "seconds": time.perf_counter() - start,
        "manifest": str(manifest.path),
    }


def divide(given, inputs):
    """Split the --input options into [(input, pattern)] for the items and {input: array} that all items share."""
    patterns = [data.assignment(text, inputs) for text in given if data.is_pattern(text)]
    item_inputs = {name for name, _ in patterns}
    if len(item_inputs) < len(patterns):
        raise click.UsageError("two of the --input with wildcards are for the same input.")
    shared = data.read_inputs([text for text in given if not data.is_pattern(text)], inputs)
    if again := item_inputs & shared.keys():
        raise click.UsageError(f"--input gives {', '.join(again)} twice.")
    if None not in item_inputs:
        data.check_complete(item_inputs | shared.keys(), inputs)
    return patterns, shared


def check_batch(batch, runner, shared):
    """Raise an error if the model has another number of items."""
    for name, (_, dims) in runner.inputs.items():
        if name not in shared and isinstance(first_size(dims), int) and dims[0] != batch:
            raise click.UsageError(f"--batch {batch}: the model requires {dims[0]} along the first axis of {name}.")


def dependencies(model, shared):
    """Return everything that the outputs of a run depend on, except the items and the options.

    The numbers of threads and processes are not included, so a run can be continued with other numbers.
    """
    return {
        "model": [digest_of_file(path) for path in files(model)],
        "inputs": {name: digest(encode({name: array})) for name, array in shared.items()},
        "operators": sorted(map(digest_of_file, custom_files())),
        "versions": ray_cluster.versions(),
    }


def choose_engine(work, workers, cluster):
    """Return a function from batches [(item, ...), ...] to (index, outcomes, whether the process died), as they end."""
    if cluster:
        return lambda batches: by_cluster(work, batches, cluster)
    if workers:
        return lambda batches: answers(work.run_items, batches, workers, patience=PATIENCE)
    return lambda batches: ((index, work.run_items(*batch), False) for index, batch in enumerate(batches))


def by_cluster(work, batches, address):
    """Run batches in a cluster. This process reads and writes the files, so the cluster needn't see them."""
    if not batches:
        return
    options = {name: getattr(work.runner, name) for name in ("threads", "backend", "optimize", "operators")}
    runner = Runner(pack(work.runner.model), **options)
    contents = ([item.load() for item in batch] for batch in batches)
    answered = ray_cluster.answers(replace(work, runner=runner), contents, address, runner.threads)
    with closing(answered):
        for index, content, results, has_ended in answered:
            yield index, None if has_ended else work.store(batches[index], content, results), has_ended


def outcomes(engine, items, batch):
    """Yield (item, its record or Problem) as items are finished.

    If a process dies, the items of its batches run again, each by itself, because one of them may be the cause.
    """
    batches, retries = [tuple(items[k : k + batch]) for k in range(0, len(items), batch)], []
    with closing(engine(batches)) as answered:
        for index, results, has_ended in answered:
            if has_ended:
                retries += [(item,) for item in batches[index]]
            else:
                yield from zip(batches[index], results, strict=True)
    if retries:
        with closing(engine(retries)) as answered:
            for index, results, has_ended in answered:
                yield retries[index][0], ENDED if has_ended else results[0]


def collect(outcomes, manifest, title, count):
    """Add finished items to the manifest, with a progress bar; return {item's name: Problem} of failed ones."""
    problems = {}
    with closing(outcomes), progress(TimeRemainingColumn()) as bar:
        task = bar.add_task(title, total=count)
        for item, outcome in outcomes:
            if isinstance(outcome, Problem):
                problems[item.name] = outcome
            else:
                manifest.add(outcome)
            bar.advance(task)
    return problems


def show_items(report):
    for each in report["failed"]:
        say(f"{each['item']} has failed: {each['problem']}", "bold red")
    counts = [f"{report['run']} run", f"{report['finished_before']} finished before", f"{len(report['failed'])} failed"]
    say(f"{report['items']} items in {report['seconds']:.1f} s: {', '.join(counts)}; see {report['manifest']}")
