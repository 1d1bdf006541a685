"""`onnx-ops run` on many files: by this process, by several, or by a cluster."""

import time
from contextlib import closing
from dataclasses import replace

import click
from rich.progress import ProgressColumn, TimeRemainingColumn
from rich.text import Text

from ..operators import own_operators
from ..runtime import cluster as ray_cluster
from ..runtime.execute import cpus
from ..runtime.external_data import pack
from ..runtime.runner import Runner
from ..runtime.workers import answers
from . import data
from .common import print_json, progress, say
from .items import LocalWork, Problem, Work, find, fixed_size, is_pattern, load, store
from .manifest import Manifest, settings

PATIENCE = 0.8  # seconds in which a worker can write a file that it has begun
ENDED = Problem("a process that worked on it has ended, and so has another one that had nothing else to do")


class Rate(ProgressColumn):
    def render(self, task):
        return Text(f"{task.speed:.3g}/s" if task.speed else "")


def run(model, given, output, how, workers, cluster, as_json):
    """Run the model on the items that are `given`, as far as that isn't done, and say what became of them.

    how  {"backend": ..., "optimize": ..., "threads": ..., "batch": ...}, None where the command line doesn't say
    """
    if workers and cluster:
        raise click.UsageError("--workers are processes of this machine, --cluster has its own: state one of them.")
    began = time.perf_counter()
    threads, batch = how.pop("threads"), how.pop("batch")
    if threads is None and (workers or cluster):
        threads = max(len(cpus()) // workers, 1) if workers else 1
    runner = Runner(model, threads=threads, operators=own_operators(), **how)
    patterns, shared = divide(given, runner.inputs)
    items = find(patterns, output)
    check_batch(batch, [name for name in runner.inputs if name not in shared], runner.inputs)
    # Threads and processes are not among the settings: a run may be finished with others than it was begun with.
    with Manifest(output, settings(model, shared, batch=batch, **how)) as manifest:
        with progress() as bar:
            left = [item for item in bar.track(items, description="what is finished") if not manifest.has(item)]
        found = outcomes(engine(Work(runner, shared, batch), output, workers, cluster), left, batch or 1)
        problems = collect(found, manifest, str(model), len(left))
    report = {
        "model": str(model),
        **how,
        "batch": batch,
        "items": len(items),
        "finished_before": len(items) - len(left),
        "run": len(left) - len(problems),
        "failed": [{"item": name, "problem": problems[name].reason} for name in sorted(problems)],
        "seconds": time.perf_counter() - began,
        "manifest": str(manifest.path),
    }
    print_json(report) if as_json else show(report)
    if problems:
        raise click.exceptions.Exit(1)


def collect(outcomes, manifest, title, count):
    """Add what is done to the manifest, with a progress bar; returns {item's name: Problem} of what has failed."""
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


def divide(given, inputs):
    """([(input, pattern)] that state the items, {input: array} of what is the same for all of them)."""
    patterns = [data.assignment(text, inputs) for text in given if is_pattern(text)]
    others = [text for text in given if not is_pattern(text)]
    of_items = {name for name, _ in patterns}
    if len(of_items) < len(patterns):
        raise click.UsageError("two of the --input with wildcards are for the same input.")
    shared = data.read_inputs(others, inputs)
    if again := of_items & shared.keys():
        raise click.UsageError(f"--input gives {', '.join(again)} twice.")
    if None not in of_items:
        data.check_complete(dict.fromkeys([*of_items, *shared]), inputs)
    return patterns, shared


def check_batch(batch, names, inputs):
    """Refuse a batch that the model doesn't take."""
    for name in names if batch else ():
        if (size := fixed_size(inputs[name][1]) or batch) != batch:
            raise click.UsageError(f"--batch {batch}: the model wants {size} along the first axis of {name}.")


def engine(work, folder, workers, cluster):
    """What does it: ([(item, ...)]) -> iterator of (index, outcome of each item, whether the process has ended)."""
    local = LocalWork(work, folder)
    if cluster:
        return lambda batches: by_cluster(work, folder, batches, cluster)
    if workers:
        return lambda batches: answers(local, batches, workers, patience=PATIENCE)
    return lambda batches: ((index, local(*batch), False) for index, batch in enumerate(batches))


def by_cluster(work, folder, batches, address):
    """Files are read and written here: the machines of the cluster need not see them."""
    if not batches:
        return
    here = work.runner
    how = {"threads": here.threads, "backend": here.backend, "optimize": here.optimize, "operators": here.operators}
    runner = Runner(pack(here.model), **how)
    contents = (list(map(load, batch)) for batch in batches)
    sent = ray_cluster.answers(replace(work, runner=runner), contents, address, runner.threads)
    with closing(sent):
        for index, content, results, has_ended in sent:
            yield index, None if has_ended else store(folder, batches[index], content, results), has_ended


def outcomes(engine, items, batch):
    """Yield (item, its record or Problem) as they are done.

    Items that were together when their process ended are done again, each by itself: one of them may be the cause.
    """
    batches, alone = [tuple(items[k : k + batch]) for k in range(0, len(items), batch)], []
    with closing(engine(batches)) as found:
        for index, results, has_ended in found:
            if has_ended:
                alone += [(item,) for item in batches[index]]
            else:
                yield from zip(batches[index], results, strict=True)
    if alone:
        with closing(engine(alone)) as found:
            for index, results, has_ended in found:
                yield alone[index][0], ENDED if has_ended else results[0]


def show(report):
    for each in report["failed"]:
        say(f"{each['item']} has failed: {each['problem']}", "bold red")
    counts = [f"{report['run']} run", f"{report['finished_before']} finished before", f"{len(report['failed'])} failed"]
    say(f"{report['items']} items in {report['seconds']:.1f} s: {', '.join(counts)}; see {report['manifest']}")
