"""`onnx-ops run` on many files, in this process, in several, or in a cluster."""

import time
from contextlib import closing
from dataclasses import replace

import click
import onnxruntime as ort
from rich.progress import ProgressColumn, TimeRemainingColumn
from rich.text import Text

from .. import __version__
from ..external_data import files, pack
from ..operators import own_operators
from ..runtime import cluster as ray_cluster
from ..runtime.runner import Runner
from ..runtime.threads import available_cpus
from ..runtime.workers import answers
from . import data
from .arguments import check_targets, own_files
from .console import print_json, progress, say
from .items import (
    MANIFEST,
    Folder,
    LocalWork,
    Manifest,
    Problem,
    Work,
    digest,
    digest_of_file,
    encode,
    find,
    first_size,
    suffix,
)

PATIENCE = 0.8  # seconds that a worker has to finish a file that it is writing
ENDED = Problem("a process that worked on it has ended, and so has another one that had nothing else to do")


class Rate(ProgressColumn):
    def render(self, task):
        return Text(f"{task.speed:.3g}/s" if task.speed else "")


def run_files(model, given, output, options, workers, cluster, as_json):
    """Run the model on the items of the --input options `given` that aren't finished, and report on them.

    options  {"backend": ..., "optimize": ..., "threads": ..., "batch": ...}; None is an option that wasn't stated
    """
    if workers and cluster:
        raise click.UsageError("--workers are processes of this machine, --cluster has its own: state one of them.")
    start = time.perf_counter()
    threads, batch = options.pop("threads"), options.pop("batch")
    if threads is None and (workers or cluster):
        threads = max(len(available_cpus()) // workers, 1) if workers else 1
    runner = Runner(model, threads=threads, operators=own_operators(), **options)
    data.check_outputs(runner.outputs)
    patterns, shared = divide(given, runner.inputs)
    items, folder = find(patterns, output), Folder(output, suffix(runner.outputs))
    if batch:
        check_batch(batch, runner, shared)
    read = [*files(model), *data.given_files(given), *(path for item in items for _, path in item.files)]
    check_targets([output / MANIFEST, *(output / folder.file(item) for item in items)], read)
    # Threads and processes are not among the settings: a run may be continued with others than it was begun with.
    with Manifest(output, settings(model, shared, batch=batch, **options)) as manifest:
        with progress() as bar:
            pending = [item for item in bar.track(items, description="what is finished") if not manifest.has(item)]
        engine = choose_engine(Work(runner, shared, batch), folder, workers, cluster)
        problems = collect(outcomes(engine, pending, batch or 1), manifest, str(model), len(pending))
    report = {
        "model": str(model),
        **options,
        "batch": batch,
        "items": len(items),
        "finished_before": len(items) - len(pending),
        "run": len(pending) - len(problems),
        "failed": [{"item": name, "problem": problems[name].reason} for name in sorted(problems)],
        "seconds": time.perf_counter() - start,
        "manifest": str(manifest.path),
    }
    print_json(report) if as_json else show(report)
    if problems:
        raise click.exceptions.Exit(1)


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
    """Raise an error if the model states first axes that are not those of a batch."""
    sizes = {name: first_size(dims) for name, (_, dims) in runner.inputs.items() if name not in shared}
    for name, size in sizes.items():
        if isinstance(size, int) and size != batch:
            raise click.UsageError(f"--batch {batch}: the model wants {size} along the first axis of {name}.")
    others = {dim for _, dims in runner.inputs.values() for dim in dims if isinstance(dim, str)} - set(sizes.values())
    for name, (_, dims) in runner.outputs.items():
        size = first_size(dims)
        if size in others or (isinstance(size, int) and size not in sizes.values()):
            raise click.UsageError(f"--batch {batch}: the first axis of {name} is {size}, and not that of the items.")


def settings(model, shared, **others):
    """Return everything except the items that the outputs of a run depend on."""
    return {
        "model": [digest_of_file(path) for path in files(model)],
        "inputs": {name: digest(encode({name: array})) for name, array in shared.items()},
        "operators": sorted(map(digest_of_file, own_files())),
        "versions": {"onnx_ops": __version__, "onnxruntime": ort.__version__},
        **others,
    }


def choose_engine(work, folder, workers, cluster):
    """Return a function of [(item, ...), ...] that iterates over (index, outcomes, whether the process died).

    With `alone`, a process has no other batch than the one that it runs, so that it dies by none but that.
    """
    local = LocalWork(work, folder)
    if cluster:
        return lambda batches, alone: by_cluster(work, folder, batches, alone, cluster)
    if workers:
        return lambda batches, alone: answers(local, batches, workers, patience=PATIENCE)
    return lambda batches, alone: ((index, local(*batch), False) for index, batch in enumerate(batches))


def by_cluster(work, folder, batches, alone, address):
    """Run batches in a cluster. This process reads and writes the files, so the cluster needn't see them."""
    if not batches:
        return
    local = work.runner
    options = {name: getattr(local, name) for name in ("threads", "backend", "optimize", "operators")}
    runner = Runner(pack(local.model), **options)
    contents = ([item.load() for item in batch] for batch in batches)
    answered = ray_cluster.answers(replace(work, runner=runner), contents, address, runner.threads, alone=alone)
    with closing(answered):
        for index, content, results, has_ended in answered:
            yield index, None if has_ended else folder.store(batches[index], content, results), has_ended


def outcomes(engine, items, batch):
    """Yield (item, its record or Problem) as items are finished.

    If a process dies, the items of the batches that it had are run again, each by itself: one of them may be the cause.
    """
    batches, retries = [tuple(items[k : k + batch]) for k in range(0, len(items), batch)], []
    with closing(engine(batches, alone=False)) as answered:
        for index, results, has_ended in answered:
            if has_ended:
                retries += [(item,) for item in batches[index]]
            else:
                yield from zip(batches[index], results, strict=True)
    if retries:
        with closing(engine(retries, alone=True)) as answered:
            for index, results, has_ended in answered:
                yield retries[index][0], ENDED if has_ended else results[0]


def collect(outcomes, manifest, title, count):
    """Add finished items to the manifest, with a progress bar; returns {item's name: Problem} of the failed ones."""
    problems = {}
    with closing(outcomes), progress(Rate(), TimeRemainingColumn()) as bar:
        task = bar.add_task(title, total=count)
        for item, outcome in outcomes:
            if isinstance(outcome, Problem):
                problems[item.name] = outcome
            else:
                manifest.add(outcome)
            bar.advance(task)
    return problems


def show(report):
    for each in report["failed"]:
        say(f"{each['item']} has failed: {each['problem']}", "bold red")
    counts = [f"{report['run']} run", f"{report['finished_before']} finished before", f"{len(report['failed'])} failed"]
    say(f"{report['items']} items in {report['seconds']:.1f} s: {', '.join(counts)}; see {report['manifest']}")
