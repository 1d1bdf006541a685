"""`onnx-ops run --compare`: the same inputs by other kernels or another model."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import click
import numpy as np
import onnx

from ..arrays.comparison import difference, shown
from ..arrays.reference import Evaluator
from ..declaration.errors import OpError, shortened
from ..model.external_data import load
from ..model.nodes import all_nodes, declared, inlined, subgraphs
from ..rewriting import rewritten
from ..session.runner import Runner
from .arguments import OUTPUT_FILES
from .console import format_difference, one_line, say
from .data import read_outputs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, TypeAlias

    from ..arrays.comparison import Difference
    from ..model.types import Arrays
    from .types import Other, Report, Tolerances


Kind: TypeAlias = Literal["native", "extensions", "builtin", "reference"]
BACKENDS = get_args(Kind)
REFERENCE = "this package's operators in float64 and onnx's evaluator for other nodes"


def open_model(
    model: Path | bytes, backend: Kind, threads: int | None = None, optimize: bool = False
) -> Runner | Evaluator:
    """Open a model in one of BACKENDS, as a function from {input: array} to {output: array}."""
    if backend == "reference":
        return Evaluator(model)
    runner = Runner(model, backend=backend, threads=threads, optimize=optimize)
    runner.session  # noqa: B018  makes it
    return runner


def open_peer(model: Path, threads: int | None) -> Runner | Evaluator:
    """Open a model with the built-in kernels or, if these don't run all nodes, with onnx_ops."""
    try:
        return open_model(model, "builtin", threads)
    except Exception:
        return open_model(model, "native", threads)


def timed(function: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """Return (the function's result, the seconds that it took)."""
    start = time.perf_counter()
    result = function(*arguments)
    return result, time.perf_counter() - start


def compare_with(
    peer: Other,
    model: Path,
    runner: Runner,
    feeds: Arrays,
    outputs: Arrays,
    tolerances: Tolerances,
) -> Report:
    """Return a report on the differences of a model's outputs from other outputs.

    peer  a backend, another model, or a file with outputs
    """
    expected, seconds = run_peer(model, runner, peer, feeds)
    if missing := outputs.keys() - expected.keys():
        raise click.UsageError(
            f"--compare {peer}: that model has no output {', '.join(sorted(missing))}."
        )
    differences = [
        report_of(name, difference(outputs[name], expected[name], tolerances)) for name in outputs
    ]
    report: Report = {"with": str(peer), "seconds": seconds, "outputs": differences, "node": None}
    if peer == "builtin" and not all(d["ok"] for d in differences):
        try:
            report["node"] = node_that_differs(model, runner.optimize, feeds, tolerances)
        # A protobuf may be too large, for example. The differences above count.
        except Exception as error:
            report["node"] = {"name": None, "problem": one_line(error)}
    return report


def run_peer(
    model: Path, runner: Runner, peer: Other, feeds: Arrays
) -> tuple[Arrays, float | None]:
    """Return the outputs to compare with, and the seconds that the run took.

    These are None for outputs that a file has.
    """
    if isinstance(peer, Path) and peer.suffix in OUTPUT_FILES:
        return read_outputs(peer, runner.outputs), None
    threads = runner.threads
    try:
        function = (
            open_peer(peer, threads) if isinstance(peer, Path) else open_model(model, peer, threads)
        )
    except Exception as error:
        raise OpError(
            "--compare", str(peer), f"can't run the model: {one_line(error)}", "onnx_ops"
        ) from error
    return timed(function, feeds)


def report_of(name: str, compared: Difference) -> Report:
    """Return a Difference as a dict, with numbers of elements in place of its mask."""
    counts = {"wrong": compared.wrong.sum(), "elements": compared.wrong.size}
    return {"name": name, "ok": compared.ok, **vars(compared), **counts}


def show_comparison(report: Report) -> None:
    """Print the result of `compare_with`."""
    peer = REFERENCE if report["with"] == "reference" else report["with"]
    for d in report["outputs"]:
        say(f"{d['name']} against {peer}: {verdict(d)}", None if d["ok"] else "bold red")
    if all(d["ok"] for d in report["outputs"]):
        return
    if report["with"] == "reference":
        say(
            "onnx's evaluator computes the nodes that onnx_ops leaves to ONNX Runtime: any node "
            "may differ."
        )
    if report["with"] == "builtin":
        show_node(report["node"])


def verdict(report: Report) -> str:
    """Return the text of a difference: of the wrong element with the largest one, if any."""
    allowed = format_difference(report["allowed"])
    if report["index"] is None:
        return (
            report["problem"]
            or f"largest difference {format_difference(report['largest'])}, allowed {allowed}"
        )
    value, expected = (
        shortened(repr(v) if isinstance(v, str) else shown(v))
        for v in (report["value"], report["expected"])
    )
    count = f"exceeded by {report['wrong']} of {report['elements']} elements"
    return f"{list(report['index'])} is {value}, expected {expected}, tolerance {allowed}, {count}"


def show_node(node: Report | None) -> None:
    if node is None:
        say("no node of onnx_ops' operators differs where its inputs agree")
    elif node["name"] is None:
        say(f"the node that differs is unknown: {node['problem']}")
    else:
        operator = (
            f"{node['operator']} inside of {node['inside']}" if node["inside"] else node["operator"]
        )
        say(f"the first node that differs is {node['name']} ({operator}): {verdict(node)}")


# The node that differs


def node_that_differs(
    path: Path, optimize: bool, feeds: Arrays, tolerances: Tolerances
) -> Report | None:
    """Return the first node of onnx_ops' operators that differs from the built-in kernels, or None.

    Both run the model with the inputs and outputs of these nodes as additional outputs. Inputs of
    the node agree. A node with a subgraph that contains such nodes counts as one.
    """
    model = load(path, None)
    model = inlined(model) if model.functions else model
    ours = rewritten(model, path)[0] if optimize else model
    nodes = [(node, title) for node in ours.graph.node if (title := titles_in_node(node))]
    common = {name for node in model.graph.node for name in node.output if name}
    names = {
        name: None for node, _ in nodes for name in (*node.input, *node.output) if name in common
    }
    if not names:
        return None
    actual = Runner(with_outputs(ours, names), threads=None)(feeds)
    expected = Runner(with_outputs(model, names), backend="builtin", threads=None)(feeds)
    differences = {
        name: difference(actual[name], expected[name], tolerances)
        for name in names
        if isinstance(expected[name], np.ndarray)  # others are sequences
    }
    for node, title in nodes:
        agree = all(differences[name].ok for name in node.input if name in differences)
        wrong = [
            differences[name]
            for name in node.output
            if name in differences and not differences[name].ok
        ]
        if wrong and agree:
            inside = None if declared(node) else node.op_type
            return {
                **report_of(node.name or node.output[0], wrong[0]),
                "operator": title,
                "inside": inside,
            }
    return None


def titles_in_node(node: onnx.NodeProto) -> str:
    """Return the titles of the declared operators of a node and its subgraphs; "" for none."""
    nodes = [node, *(inner for graph in subgraphs(node) for inner in all_nodes(graph))]
    return ", ".join(
        dict.fromkeys(operator.title for inner_node in nodes if (operator := declared(inner_node)))
    )


def with_outputs(model: onnx.ModelProto, names: Iterable[str]) -> bytes:
    """Return a model that has these values as outputs."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.output[:]
    copy.graph.output.extend(map(onnx.helper.make_empty_tensor_value_info, names))
    return copy.SerializeToString()
