"""`onnx-ops inspect`: a model's nodes for this package, their problems, the next step."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from shlex import quote
from typing import TYPE_CHECKING

import click

from ..model.files import EXTENSIONS
from ..registry import available
from .arguments import json_option, model_argument, named_files, program_with_operators
from .attempts import attempts
from .console import dimensions, print_json, say, table
from .reading import examine
from .rewrite import counted

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ..rewriting.finding import Finding
    from .reading import ModelReport, NodeReport
    from .types import Report, Stated

SHOWN = 8  # reasons why nodes stay


@click.command()
@model_argument
@click.option(
    "--try", "tries", is_flag=True, help="Also make sessions, each in a process of its own."
)
@json_option
def inspect(model: Path, tries: bool, as_json: bool) -> None:
    """List the nodes that onnx_ops runs, and problems.

    The list includes nodes in subgraphs and local functions. Nothing of the model runs, and nothing
    is compiled.

    \b
    Problems are
      operators, domains and attributes that seem misspelt;
      values that will be refused, and shapes that can't fit;
      operators that neither ONNX Runtime nor this package has;
      data types for which ONNX Runtime has no kernel.

    The last lines report what `onnx-ops optimize` would replace, how the operators are registered,
    and the next step. --json adds the attributes and all inputs of each node.

    --try makes a session with ONNX Runtime alone, with onnx_ops, and of the optimized model. It
    reports the node that is refused. It may compile kernels, and runs parts of the model.

    \b
    Examples:
      onnx-ops inspect model.onnx
      onnx-ops inspect model.onnx --try
      onnx-ops inspect model.onnx --json
    """
    report = examine(model)
    sessions = attempts(model, named_files(), report.is_lowered) if tries else None
    will_fail = fails(report, sessions)
    step = next_step(model, report, sessions)
    if as_json:
        print_json({"model": model, **asdict(report), "sessions": sessions, "next": step})
    else:
        show_inspection(model, report, sessions)
        say(f"next: {step}", "bold")
    if will_fail:
        raise click.exceptions.Exit(1)


def fails(report: ModelReport, sessions: list[Report] | None) -> bool:
    """Return whether a node or the whole model will fail with onnx_ops."""
    if report.has_problems or report.unknown or report.data:
        return True
    if sessions is None:
        return bool(report.no_kernel) and not report.needs_optimize
    return all(session["error"] for session in sessions[1:])


# Output


def show_inspection(model: Path, report: ModelReport, sessions: list[Report] | None) -> None:
    if report.nodes:
        rows = [(r.node, r.operator, tensors(r), r.builtin) for r in report.nodes]
        table(str(model), ("node", "operator", "tensors", "ONNX Runtime"), rows)
    for r in report.nodes:
        for problem in r.problems:
            say(f"{r.node}: {problem}", "bold red")
    show_missing(report)
    say(summary(report.nodes) if report.nodes else f"{model}: {without_nodes(report)}.")
    show_patterns(report.optimize)
    if sessions:
        show_sessions(sessions)
    if report.operators:
        click.echo(f"custom operators that compute these nodes:\n\n{report.operators}")
    if report.register and not report.has_problems:
        say(f"the operators of {', '.join(report.domains)} are registered by")
        for call in report.register:
            say(f"  {call}")


def show_missing(report: ModelReport) -> None:
    """Print the files, operators and kernels that are missing."""
    if report.data:
        say(f"the weights can't be read: {report.data}", "bold red")
    if report.unknown:
        say(f"neither ONNX Runtime nor onnx_ops has {with_counts(report.unknown)}", "bold red")
    if report.extensions:
        say(f"onnxruntime-extensions may have {with_counts(report.extensions)}")
    if report.no_kernel:
        text = f"ONNX Runtime has no kernel on the CPU for {with_counts(report.no_kernel)}"
        if report.needs_optimize:
            say(
                f"{text}; only optimize=True makes the model run, as it replaces these nodes",
                "bold",
            )
        else:
            say(text, "bold red")


def with_counts(counts: Mapping[str, int]) -> str:
    """Return the text of titles and their numbers of nodes: "Add (2 nodes), Sub (1 node)"."""
    return ", ".join(
        f"{title} ({count} node{'s' * (count > 1)})" for title, count in counts.items()
    )


def show_patterns(patterns: list[Finding]) -> None:
    """Print what `onnx-ops optimize` would replace, and why it would keep similar nodes."""
    certain = counted([finding for finding in patterns if not finding.untried])
    tried = counted([finding for finding in patterns if finding.untried])
    if certain:
        say(f"onnx-ops optimize would replace {certain}")
    if tried:
        say(f"onnx-ops optimize would run, and perhaps replace, {tried}")
    reasons = Counter(
        (finding.pattern, finding.reason) for finding in patterns if not finding.operator
    )
    for (pattern, reason), count in reasons.most_common(SHOWN):
        say(f"onnx-ops optimize would keep {count} {pattern}: {reason}")
    if len(reasons) > SHOWN:
        say(f"{len(reasons) - SHOWN} more reasons: --json")


def show_sessions(sessions: list[Report]) -> None:
    rows = []
    for session in sessions:
        prefix = f"refused at {session['node']}: " if session["node"] else "refused: "
        rows.append(
            (session["session"], f"{prefix}{session['error']}" if session["error"] else "made")
        )
    table("sessions", ("session", "result"), rows)


def next_step(model: Path, report: ModelReport, sessions: list[Report] | None) -> str:
    """Return what to type next."""
    cli = program_with_operators()
    path = quote(str(model))
    if report.operators:
        return (
            f"save the operators above as my_operators.py, then {cli} --operators "
            f"my_operators.py inspect {path}"
        )
    if report.unknown and not report.has_problems and not report.data:
        return (
            "declare these operators (docs/custom-operators.md) or export without them; "
            f"{cli} --operators FILE inspect {path}"
        )
    if report.has_problems or report.data or (sessions and fails(report, sessions)):
        hint = (
            "; operators by @onnx_op need --operators FILE"
            if sessions and report.extensions
            else ""
        )
        return f"fix the problems above, or export the model again{hint}"
    if not sessions and (report.extensions or (report.no_kernel and not report.needs_optimize)):
        return f"{cli} inspect {path} --try"
    if report.is_lowered:
        return f"{cli} run {path} --random --backend extensions"
    if not (report.nodes or report.gains):
        return "nothing: onnx_ops changes nothing for this model"
    has_kernels = not report.no_kernel and all(r.builtin == "has a kernel" for r in report.nodes)
    options = (
        f"{' --optimize' if report.gains else ''} --compare "
        f"{'builtin' if has_kernels else 'reference'}"
    )
    return f"{cli} run {path} --random{options}; {cli} bench {path}"


def tensors(report: NodeReport) -> str:
    """Return the types and shapes of the inputs that a node has, without its lists of sizes."""
    operator = available().get(report.operator.rpartition(".")[::2])
    sizes = [k for k, i in enumerate(operator.inputs) if i.values] if operator else []
    return ", ".join(
        type_and_shape(v) for k, v in enumerate(report.inputs) if v["name"] and k not in sizes
    )


def type_and_shape(described: Stated) -> str:
    """Return the text of an input's type and shape, as float32 [N, 3, ?]."""
    shape = ["..."] if described["shape"] is None else described["shape"]
    return f"{described['type'] or '?'} {dimensions(shape)}"


def summary(reports: list[NodeReport]) -> str:
    """Return one line on the number of nodes that onnx_ops and ONNX Runtime can run."""
    count = len(reports)
    faulty = sum(bool(r.problems) for r in reports)
    builtin = sum(r.builtin == "has a kernel" for r in reports)
    return (
        f"onnx_ops runs {count - faulty} of {count} without problems; ONNX Runtime has "
        f"kernels for {builtin}"
    )


def without_nodes(report: ModelReport) -> str:
    """Return one line on a model without nodes for onnx_ops."""
    end = f"; those of {EXTENSIONS} run with backend extensions" if report.is_lowered else ""
    return f"none of its nodes are for onnx_ops{end}"
