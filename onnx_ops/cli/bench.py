"""`onnx-ops bench`: a model with and without this package."""

from __future__ import annotations

import json
import tempfile
import time
from bisect import bisect
from collections import Counter
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import click

from ..arrays.comparison import difference
from ..session.runner import Runner, open_session, run_session
from . import data
from .arguments import json_option, model_argument, threads_option
from .console import (
    dimensions,
    format_difference,
    milliseconds,
    one_line,
    print_json,
    say,
    steps,
    table,
)
from .rewrite import counted, find_patterns

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from ..model.types import Arrays, File
    from ..rewriting.finding import Finding
    from .types import Event, Feeds, Report, Share, Way


WAYS: dict[str, Way] = {  # {name: way}; the first one that runs is the baseline of the comparison
    "builtin": ("built-in kernels", {"backend": "builtin"}),
    "onnx_ops": ("with onnx_ops", {}),
    "optimized": ("with onnx_ops, optimized", {"optimize": True}),
}
SHOWN = 8  # types of operators that have a line of their own in the table
# Seconds: a call that takes less is repeated and timed as a whole, as threads and clocks wake up
# slowly.
SHORT = 3e-2
PAUSE = 0.06  # seconds until the threads of a runtime have stopped spinning


@click.command()
@model_argument
@data.input_option
@data.shape_option
@click.option("--repeats", default=21, type=click.IntRange(1), help="Number of turns.")
@threads_option
@json_option
def bench(
    model: Path,
    input_texts: tuple[str, ...],
    shapes: tuple[str, ...],
    repeats: int,
    threads: int | None,
    as_json: bool,
) -> None:
    """Measure a model with and without onnx_ops.

    onnx_ops and ONNX Runtime's built-in kernels run the whole model in turns on the same inputs. If
    `onnx-ops optimize` would fuse nodes, the optimized model takes turns, too. The speed-up is the
    median of the ratios within a turn. A second table shows the time by type of operator, from ONNX
    Runtime's profiler.

    Inputs that are not given with --input are random: floats from -1 to 1, integers from 0 to 9.
    Open dimensions have size 1: state others with --shape.

    \b
    Examples:
      onnx-ops bench model.onnx
      onnx-ops bench model.onnx --input frame.png --threads 1
      onnx-ops bench model.onnx --shape x=8,3,224,224 --json
    """
    runner = open_way(model, "onnx_ops", threads)
    data.check_outputs(runner.outputs)
    feeds, doubts = data.feeds(runner.inputs, input_texts, shapes, random=True)
    with data.adding_doubts(doubts):
        runners, outputs, refused = open_ways(model, runner, feeds, find_patterns(model))
    baseline, *compared = names = list(runners)
    report = {
        "model": model,
        "inputs": data.types_and_shapes(feeds),
        "threads": threads,
        "repeats": repeats,
        "refused": refused,
        "compared_with": baseline,
        "largest_difference": {
            name: largest_difference(outputs[name], outputs[baseline]) for name in compared
        },
        **times(runners, feeds, steps(range(repeats), lambda turn: "timing")),
        "operators": {
            name: profile(model, name, threads, feeds, repeats)
            for name in steps(names, lambda name: "profiling")
        },
    }
    print_json(report) if as_json else show_benchmark(report, doubts)


def open_way(model: File, name: str, threads: int | None = None) -> Runner:
    return Runner(model, threads=threads, **WAYS[name][1])


def open_ways(
    model: File, runner: Runner, feeds: Arrays, findings: Iterable[Finding]
) -> tuple[dict[str, Runner], dict[str, Feeds], str | None]:
    """Open a model in the WAYS that run it, and run it once in each.

    runner    the Runner for onnx_ops
    findings  of `optimize`; an optimized way needs a replacement

    Returns {way: Runner}, {way: {output: array}}, and the error of ONNX Runtime's built-in kernels,
    or None.
    """
    runners: dict[str, Runner] = {}
    outputs: dict[str, Feeds] = {}
    refused = None
    for name in WAYS:
        if name == "optimized" and not counted(findings):
            continue
        try:
            opened = runner if name == "onnx_ops" else open_way(model, name, runner.threads)
            outputs[name] = opened(feeds)
            runners[name] = opened
        except Exception as error:
            if name != "builtin":
                raise
            refused = one_line(error)
    return runners, outputs, refused


def largest_difference(outputs: Arrays, baseline: Arrays) -> float:
    return max((difference(outputs[n], baseline[n]).largest for n in baseline), default=0)


def times(
    runners: Mapping[str, Runner], feeds: Arrays, turns: Iterable[object]
) -> dict[str, dict[str, float]]:
    """Time functions on the same inputs in turns.

    So changes of the machine's speed affect all alike.

    Returns {"seconds": {name: median of a run}, "speedup": {name: median of the ratios to the first
    one}}.
    """
    seconds: dict[str, list[float]] = {name: [] for name in runners}
    for _ in turns:
        for name, runner in runners.items():
            time.sleep(PAUSE)
            seconds[name].append(seconds_of_run(runner, feeds))
    baseline, *compared = runners
    ratios = {
        name: [a / b for a, b in zip(seconds[baseline], seconds[name], strict=True)]
        for name in compared
    }
    medians = lambda values: {name: median(values[name]) for name in values}
    return {"seconds": medians(seconds), "speedup": medians(ratios)}


def seconds_of_run(runner: Runner, feeds: Arrays) -> float:
    """Return the seconds of one run, after a first run has woken the runtime's threads."""
    start = time.perf_counter()
    runner(feeds)
    count = max(1, int(SHORT / max(time.perf_counter() - start, 1e-7)))
    start = time.perf_counter()
    for _ in range(count):
        runner(feeds)
    return (time.perf_counter() - start) / count


def profile(
    model: Path, name: str, threads: int | None, feeds: Arrays, repeats: int
) -> list[Share]:
    """Run a model under ONNX Runtime's profiler; return the times as `by_operator` does."""
    with tempfile.TemporaryDirectory() as directory:
        session = open_session(
            model, threads=threads, profile=Path(directory) / "profile", **WAYS[name][1]
        )
        for _ in range(repeats):
            run_session(session, feeds)
        return by_operator(json.loads(Path(session.end_profiling()).read_text(encoding="utf-8")))


def by_operator(events: Iterable[Event]) -> list[Share]:
    """Return the times of types of operators, the longest first.

    Each is {operator, seconds of its nodes in a run, share of the time of all nodes}.

    `events` are the profiler's. The seconds are medians of all runs. The time of a node in the body
    of an If or a Loop counts for that node only.
    """
    begins = sorted(event["ts"] for event in events if event["name"] == "model_run")
    nodes = [
        e for e in events if e["name"].endswith("_kernel_time") and "op_name" in e.get("args", {})
    ]
    runs: list[Counter[str]] = [Counter() for _ in begins]
    for event, microseconds in own_microseconds(nodes):
        runs[bisect(begins, event["ts"]) - 1][event["args"]["op_name"]] += microseconds
    operators = {event["args"]["op_name"] for event in nodes}
    seconds = {name: median(run[name] for run in runs) * 1e-6 for name in operators}
    total = sum(seconds.values())
    longest = sorted(operators, key=lambda name: (-seconds[name], name))
    return [
        {"operator": n, "seconds": seconds[n], "share": seconds[n] / total if total else 0}
        for n in longest
    ]


def own_microseconds(events: Iterable[Event]) -> list[tuple[Event, int]]:
    """Return [(event, its duration minus the durations of the events inside it)]."""
    ordered = sorted(events, key=lambda e: (e["tid"], e["ts"], -e["dur"]))
    own = [event["dur"] for event in ordered]
    enclosing: list[int] = []  # positions of the events around the next one
    for k, event in enumerate(ordered):
        while enclosing and not is_inside(event, ordered[enclosing[-1]]):
            enclosing.pop()
        if enclosing:
            own[enclosing[-1]] -= event["dur"]
        enclosing.append(k)
    return list(zip(ordered, own, strict=True))


def is_inside(event: Event, outer: Event) -> bool:
    return event["tid"] == outer["tid"] and event["ts"] + event["dur"] <= outer["ts"] + outer["dur"]


def show_benchmark(report: Report, doubts: str) -> None:
    rows = []
    for name, seconds in report["seconds"].items():
        rows.append([WAYS[name][0], milliseconds(seconds)])
        if name in report["speedup"]:
            rows[-1] += (
                f"{report['speedup'][name]:.2f} x",
                format_difference(report["largest_difference"][name]),
            )
    title = f"{report['model']}, medians of {report['repeats']} runs"
    table(title, ("kernels", "a run, ms|", "speed-up|", "results differ by|"), rows)
    show_operators(report["operators"])
    say(
        "inputs: "
        + ", ".join(f"{i['name']} {i['type']} {dimensions(i['shape'])}" for i in report["inputs"])
    )
    if doubts:
        say(doubts)
    if report["refused"]:
        say(f"ONNX Runtime alone refuses the model: {report['refused']}")


def show_operators(profiles: Mapping[str, Sequence[Share]]) -> None:
    """Print a table of the slowest types of operators in any of the models.

    The table also has those that the first model lacks.
    """
    every = sorted(
        (o for profile in profiles.values() for o in profile), key=lambda o: -o["seconds"]
    )
    longest = list(dict.fromkeys(o["operator"] for o in every))
    before = {o["operator"] for o in next(iter(profiles.values()))}
    shown = [name for k, name in enumerate(longest) if k < SHOWN or name not in before]
    groups = [(name, [name]) for name in shown]
    if rest := [name for name in longest if name not in shown]:
        groups.append((f"{len(rest)} others", rest))
    rows = [
        (title, *(cell for p in profiles.values() for cell in cells(p, names)))
        for title, names in groups
    ]
    columns = [header for name in profiles for header in (f"{WAYS[name][0]}, ms|", "share|")]
    table("time by type of operator", ("operator", *columns), rows)


def cells(profile: Iterable[Share], names: Collection[str]) -> tuple[str, str]:
    """Return the two cells for some types of operators together; empty for none."""
    entries = [o for o in profile if o["operator"] in names]
    if not entries:
        return "", ""
    return milliseconds(
        sum(o["seconds"] for o in entries)
    ), f"{sum(o['share'] for o in entries) * 100:.0f} %"
