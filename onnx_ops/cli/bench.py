"""`onnx-ops bench`: a model with and without this package."""

import json
import tempfile
from collections import Counter
from pathlib import Path
from statistics import median

import click

from . import data, optimize
from .common import (
    format_difference,
    json_option,
    milliseconds,
    model_argument,
    print_json,
    reason,
    say,
    steps,
    table,
    threads_option,
)
from .compare import difference
from .routes import Route
from .timing import interleave, ratio

WAYS = {  # name: (title, arguments of Route); the first one that runs is the baseline of the comparison
    "builtin": ("ONNX Runtime's own", {"route": "builtin"}),
    "onnx_ops": ("with onnx_ops", {}),
    "optimized": ("with onnx_ops, optimized", {"optimize": True}),
}
SHOWN = 8  # types of operators that have a line of their own in the table


@click.command()
@model_argument
@data.input_option
@data.shape_option
@data.seed_option
@click.option("--repeats", default=21, show_default=True, type=click.IntRange(1), help="Turns that each one has.")
@threads_option
@json_option
def bench(model, given, shapes, seed, repeats, threads, as_json):
    """Time a model with onnx_ops and with ONNX Runtime's own kernels.

    Both run the whole model, turn by turn, on the same inputs; those that are not given with --input are made up:
    floats from -1 to 1, integers from 0 to 9, with 1 for each dimension that the model leaves open: state these with
    --shape. The speed-up is the median of the ratios within a turn. Where `onnx-ops optimize` would replace something,
    the optimized model takes its turns, too.

    Then each one is run again with ONNX Runtime's profiler, to tell which types of operators the time goes to.

    \b
    Examples:
      onnx-ops bench model.onnx
      onnx-ops bench model.onnx --input frame.png --threads 1
      onnx-ops bench model.onnx --shape x=8,3,224,224 --json
    """
    routes = {"onnx_ops": open_route(model, "onnx_ops", threads)}
    data.check_tensors(routes["onnx_ops"].outputs)
    feeds, doubts = data.feeds(routes["onnx_ops"].inputs, given, shapes, seed, random=True)
    with data.adding_doubts(doubts):
        outputs = {"onnx_ops": routes["onnx_ops"].run(feeds)}
    if optimize.counted(optimize.find(model)):
        routes["optimized"] = open_route(model, "optimized", threads)
        outputs["optimized"] = routes["optimized"].run(feeds)
    report = {"model": str(model), "inputs": [data.described(n, a) for n, a in feeds.items()], "threads": threads}
    report |= {"repeats": repeats, "refused": None}
    try:
        routes["builtin"] = open_route(model, "builtin", threads)
        outputs["builtin"] = routes["builtin"].run(feeds)
    except Exception as error:
        routes.pop("builtin", None)
        report["refused"] = reason(error)
    first, *others = names = [n for n in WAYS if n in routes]
    report["compared_with"] = first
    report["largest_difference"] = {n: largest_difference(outputs[n], outputs[first]) for n in others}
    calls = {n: lambda n=n: routes[n].run(feeds) for n in names}
    turns = [interleave(calls, 1) for _ in steps(range(repeats), lambda turn: "timing")]
    times = {n: [turn[n][0] for turn in turns] for n in names}
    report["seconds"] = {n: median(v) for n, v in times.items()}
    report["speedup"] = {n: ratio(times[first], times[n]) for n in others}
    report["operators"] = {n: profile(model, n, threads, feeds, repeats) for n in steps(names, lambda n: "profiling")}
    print_json(report) if as_json else show(report)


def open_route(model, name, threads, **more):
    return Route(model, threads=threads, **WAYS[name][1], **more)


def largest_difference(outputs, baseline):
    return max((difference(outputs[n], baseline[n]).largest for n in baseline), default=0)


def profile(model, name, threads, feeds, repeats):
    """Run a model under ONNX Runtime's profiler; returns where the time goes, as `by_operator` does."""
    with tempfile.TemporaryDirectory() as directory:
        route = open_route(model, name, threads, profile=Path(directory) / "profile")
        for _ in range(repeats):
            route.run(feeds)
        return by_operator(json.loads(Path(route.session.end_profiling()).read_text()), repeats)


def by_operator(events, repeats):
    """Return [{operator, seconds of its nodes in one run, their share of all nodes' time}, ...], longest first.

    `events` are the profiler's, from all repeats. The time of a node in the body of an If or a Loop counts for that
    node only.
    """
    events_by_node = {}
    for event in events:
        if event["name"].endswith("_kernel_time") and "op_name" in event.get("args", {}):
            # Each graph counts its nodes from 0, so that an index alone is ambiguous.
            node = event["args"]["op_name"], event["name"], event["args"]["node_index"]
            events_by_node.setdefault(node, []).append(event)
    own = own_microseconds([event for node_events in events_by_node.values() for event in node_events])
    seconds = Counter()
    for (operator, *_), node_events in events_by_node.items():
        seconds[operator] += median(own[id(e)] for e in node_events) * len(node_events) / repeats * 1e-6
    total = seconds.total()
    return [{"operator": n, "seconds": s, "share": s / total if total else 0} for n, s in seconds.most_common()]


def own_microseconds(events):
    """Return {id of an event: its duration minus the durations of the events inside it}."""
    own, enclosing = {}, []
    for event in sorted(events, key=lambda e: (e["tid"], e["ts"], -e["dur"])):
        while enclosing and not is_inside(event, enclosing[-1]):
            enclosing.pop()
        if enclosing:
            own[id(enclosing[-1])] -= event["dur"]
        own[id(event)] = event["dur"]
        enclosing.append(event)
    return own


def is_inside(event, other):
    return event["tid"] == other["tid"] and event["ts"] + event["dur"] <= other["ts"] + other["dur"]


def show(report):
    names = list(report["seconds"])
    first = names[0]
    table(
        f"{report['model']}, medians of {report['repeats']} runs",
        ("kernels", "a run, ms|", "speed-up|", "results differ by|"),
        [(WAYS[first][0], milliseconds(report["seconds"][first]), "", "")]
        + [
            (
                WAYS[n][0],
                milliseconds(report["seconds"][n]),
                f"{report['speedup'][n]:.2f} x",
                format_difference(report["largest_difference"][n]),
            )
            for n in names[1:]
        ],
    )
    show_operators(report["operators"])
    say("inputs: " + ", ".join(f"{i['name']} {i['type']} {data.dimensions(i['shape'])}" for i in report["inputs"]))
    if report["refused"]:
        say(f"ONNX Runtime alone refuses the model: {report['refused']}")


def show_operators(operators):
    """Print a table of the types of operators that take longest in any of the models."""
    entries = {n: {o["operator"]: o for o in profiled} for n, profiled in operators.items()}
    every = [o for profiled in operators.values() for o in profiled]
    longest = list(dict.fromkeys(o["operator"] for o in sorted(every, key=lambda o: -o["seconds"])))
    rows = [
        (o, *(v for n in entries for v in cells([entries[n][o]] if o in entries[n] else []))) for o in longest[:SHOWN]
    ]
    if rest := longest[SHOWN:]:
        others = {n: [entries[n][o] for o in rest if o in entries[n]] for n in entries}
        rows.append((f"{len(rest)} others", *(v for n in entries for v in cells(others[n]))))
    columns = [header for n in entries for header in (f"{WAYS[n][0]}, ms|", "share|")]
    table("where the time goes, by type of operator", ("operator", *columns), rows)


def cells(entries):
    """Return the two cells for some types of operators together, which are empty if there are none."""
    if not entries:
        return "", ""
    seconds, share = (sum(o[k] for o in entries) for k in ("seconds", "share"))
    return milliseconds(seconds), f"{share * 100:.0f} %"
