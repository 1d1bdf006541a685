"""`onnx-ops bench`: a model with and without this package."""

import json
import tempfile
from pathlib import Path
from statistics import median

import click

from ..timing import interleave, ratio
from . import data
from .common import (
    NAMES,
    json_option,
    milliseconds,
    model_argument,
    number,
    print_json,
    reason,
    say,
    steps,
    table,
    threads_option,
)
from .compare import difference
from .routes import Route


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
    --shape. The speed-up is the median of the ratios within a turn.

    \b
    Examples:
      onnx-ops bench model.onnx
      onnx-ops bench model.onnx --input frame.png --threads 1
      onnx-ops bench model.onnx --shape x=8,3,224,224 --json
    """
    routes = {"onnx_ops": Route(model, "native", threads)}
    feeds, doubts = data.feeds(routes["onnx_ops"].inputs, given, shapes, seed, random=True)
    with data.doubted(doubts):
        expected = routes["onnx_ops"].run(feeds)
    report = {"model": str(model), "inputs": [data.described(n, a) for n, a in feeds.items()], "threads": threads}
    report |= {"repeats": repeats, "refused": None, "largest_difference": None}
    try:
        routes["builtin"] = Route(model, "builtin", threads)
        got = routes["builtin"].run(feeds)
    except Exception as error:
        routes.pop("builtin", None)
        report["refused"] = reason(error)
    else:
        report["largest_difference"] = max((difference(got[n], expected[n]).largest for n in expected), default=0)
    calls = {n: lambda r=r: r.run(feeds) for n, r in routes.items()}
    turns = [interleave(calls, 1) for _ in steps(range(repeats), lambda turn: "timing")]
    taken = {n: [turn[n][0] for turn in turns] for n in calls}
    report["seconds"] = {n: median(v) for n, v in taken.items()}
    report["nodes_seconds"] = {n: nodes_seconds(model, n, threads, feeds, repeats) for n in routes}
    report["speedup"] = ratio(taken["builtin"], taken["onnx_ops"]) if "builtin" in taken else None
    print_json(report) if as_json else show(report)


def nodes_seconds(model, route, threads, feeds, repeats):
    """Of the nodes of the declared operators in one run, by ONNX Runtime's profiler."""
    with tempfile.TemporaryDirectory() as directory:
        opened = Route(model, "native" if route == "onnx_ops" else route, threads, Path(directory) / "profile")
        for _ in range(repeats):
            opened.run(feeds)
        return summed(json.loads(Path(opened.session.end_profiling()).read_text()), repeats)


def summed(events, repeats):
    """The seconds that the profiler's events of some runs tell of these nodes, for one run."""
    taken = {}
    for event in events:
        arguments = event.get("args", {})
        if event["name"].endswith("_kernel_time") and arguments.get("op_name") in NAMES:
            # Each graph counts its nodes from 0.
            taken.setdefault((event["name"], arguments["node_index"]), []).append(event["dur"] * 1e-6)
    return sum(median(v) * len(v) / repeats for v in taken.values())


def show(report):
    names = {"builtin": "ONNX Runtime's own", "onnx_ops": "with onnx_ops"}
    table(
        f"{report['model']}, medians of {report['repeats']} runs",
        ("kernels", "a run, ms|", f"its {' and '.join(NAMES)} nodes, ms|"),
        [
            (names[n], milliseconds(report["seconds"][n]), milliseconds(report["nodes_seconds"][n]))
            for n in names
            if n in report["seconds"]
        ],
    )
    say("inputs: " + ", ".join(f"{i['name']} {i['type']} {data.dimensions(i['shape'])}" for i in report["inputs"]))
    if report["refused"]:
        say(f"ONNX Runtime alone refuses the model: {report['refused']}")
    else:
        say(f"{report['speedup']:.2f} times as fast; results differ by {number(report['largest_difference'])} at most")
