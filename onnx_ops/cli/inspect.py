"""`onnx-ops inspect`: which nodes of a model this package runs, and what is wrong with them."""

import difflib
import logging
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import groupby

import click
import onnx
from onnx import helper

from ..errors import OpError
from ..external_data import load
from ..nodes import declared, inlined
from ..operators import available
from ..runtime.attributes import WARNING, unknown
from ..runtime.lowering import DOMAIN
from ..runtime.model import imported_domains
from ..schemas import register_schemas
from . import data, optimize
from .common import ORT_FORMAT, json_option, model_argument, print_json, reason, say, steps, table
from .node_check import check_declared, try_builtin
from .routes import Route
from .values import intended, relevant

# Widths in characters, so that a node fits on one line of the table: its name, a dimension's name, the last column.
NAME_WIDTH, DIMENSION_WIDTH, ALONE_WIDTH = 24, 10, 50


@dataclass
class Finding:
    """A node and what was found out about it.

    builtin   what ONNX Runtime's own kernel does with it
    problems  texts on what will fail, or is not what it seems
    """

    node: str
    operator: str
    graph: str
    attributes: dict
    inputs: list
    builtin: str = ""
    problems: list = field(default_factory=list)


@click.command()
@model_argument
@click.option("--details", is_flag=True, help="Also show each node's full name, its attributes and all of its inputs.")
@json_option
def inspect(model, details, as_json):
    """Show which nodes of a model this package runs, and which of them ONNX Runtime alone can't.

    Subgraphs are looked into, local functions written out where they are called. Each node is tried alone on ONNX
    Runtime's own kernel, on made-up data as far as the model states the shapes, and the results are compared. The
    report also names what will fail or be ignored: operators, domains and attributes that seem misspelt, values that
    are refused, shapes that can't fit; why no session of the whole model can be made, if so; and what
    `onnx-ops optimize` would replace.

    \b
    Examples:
      onnx-ops inspect model.onnx
      onnx-ops inspect model.onnx --details
      onnx-ops inspect model.onnx --json
    """
    with without_warnings_of_attributes():
        findings = [] if model.suffix == ORT_FORMAT else examine(model)
        obstacle = find_obstacle(model)
        patterns = optimize.find(model)
    if as_json:
        lists = {"nodes": list(map(asdict, findings)), "optimize": list(map(asdict, patterns))}
        print_json({"model": str(model), "session": obstacle, **lists})
    else:
        show(model, findings, obstacle, details)
        show_patterns(patterns, details)
    if obstacle or any(f.problems for f in findings):
        raise click.exceptions.Exit(1)


@contextmanager
def without_warnings_of_attributes():
    """Silence the log's warnings of unknown attributes, which are listed among the problems."""

    def is_other(record):
        return record.msg != WARNING

    log = logging.getLogger("onnx_ops")
    log.addFilter(is_other)
    try:
        yield
    finally:
        log.removeFilter(is_other)


def find_obstacle(model):
    """Return why no session of the whole model can be made, or None."""
    try:
        Route(model, "extensions" if is_lowered(model) else "native")
    except Exception as error:
        return reason(error)
    return None


def is_lowered(model):
    """Return whether a model needs onnxruntime-extensions."""
    return DOMAIN in (imported_domains(model) or ())


def examine(path):
    """Return a Finding for each node that is, or nearly is, one of the declared operators."""
    try:
        model = load(path)
    except (OSError, OpError):  # a file may be missing, which the session reports
        model = onnx.load(path, load_external_data=False)
    try:
        model = inlined(model) if model.functions else model
    except RuntimeError as error:
        click.echo(f"Warning: nodes in functions are not shown, as these can't be inlined: {reason(error)}", err=True)
    register_schemas()
    try:
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception as error:
        click.echo(f"Warning: shapes are unknown, as onnx can't infer them: {reason(error)}", err=True)
    nodes = list(relevant(model.graph, {}, "main"))
    imports = {"" if i.domain == "ai.onnx" else i.domain: i.version for i in model.opset_import}
    return [examine_node(model, imports, *n) for n in steps(nodes, lambda n: n[0].name or n[0].op_type)]


def examine_node(model, imports, node, inputs, path):
    """Return the Finding of one node."""
    operator = declared(node)
    attribute_values = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    attributes = {name: plain(value) for name, value in attribute_values.items()}
    described_inputs = [{"name": v.name, "type": v.type, "shape": v.shape} for v in inputs]
    title = operator.title if operator else f"{node.domain}.{node.op_type}".removeprefix(".")
    finding = Finding(node.name or ", ".join(node.output), title, path, attributes, described_inputs)
    if operator is None:
        finding.problems.append(refusal(node))
        return finding
    version = imports.get(operator.domain)
    if version is None:
        finding.problems.append(f"the model doesn't import the domain {operator.domain or 'ai.onnx'}")
    elif version < operator.versions[0]:
        domain = operator.domain or "ai.onnx"
        finding.problems.append(f"{domain} has it from version {operator.versions[0]} on, the model imports {version}")
    finding.problems += unknown(operator, attributes)
    declared_values = {a.name: attribute_values.get(a.name) for a in operator.attributes}
    refusals, sample = check_declared(operator, declared_values, inputs)
    finding.problems += refusals
    finding.builtin = try_builtin(model, node, operator, inputs, None if finding.problems else sample, finding.problems)
    return finding


def plain(value):
    """Return an attribute's value in a form for people and JSON."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, int | float | str) else list(value) if hasattr(value, "__iter__") else str(value)


def refusal(node):
    """Return why a node isn't run whose name or domain is close to those of a declared operator."""
    name = intended(node)
    if node.op_type != name:
        return f"not run by onnx_ops; did you mean {name}?"
    domains = [o.domain or "ai.onnx" for o in available().values() if o.name == name]
    near = difflib.get_close_matches(node.domain, domains, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"not run by onnx_ops, which has {name} in the domains {', '.join(domains)}{hint}"


def show(model, findings, obstacle, details):
    if findings:
        names = shortened([f.node for f in findings])
        rows = [(n, f.operator, tensors(f), builtin_cell(f)) for n, f in zip(names, findings, strict=True)]
        table(str(model), ("node", "operator", "tensors", "ONNX Runtime alone"), rows)
    for f in findings if details else ():
        show_details(f)
    for f in findings:
        for problem in f.problems:
            say(f"{f.node}: {problem}", "bold red")
    if obstacle and not any(problem in obstacle for f in findings for problem in f.problems):
        say(f"no session can be made: {obstacle}", "bold red")
    say(summary(findings, obstacle) if findings else f"{model}: {without_findings(model, obstacle)}.")


def show_patterns(patterns, details):
    """Print on one line what `onnx-ops optimize` would replace; with `details`, also where."""
    if not patterns:
        return
    if details:
        optimize.show("what onnx-ops optimize would do", patterns)
    stays = optimize.counted(patterns, replaced=False)
    near = f"; not {stays}{'' if details else ' (--details says why)'}" if stays else ""
    say(f"onnx-ops optimize would replace {optimize.counted(patterns) or 'nothing'}{near}")


def show_details(finding):
    rows = [("operator", finding.operator), ("graph", finding.graph)]
    rows += [("attribute", f"{name} = {value}") for name, value in finding.attributes.items()]
    rows += [
        ("input", f"{v['name']} {v['type'] or '?'} {data.dimensions(v['shape'] or ['...'])}") for v in finding.inputs
    ]
    rows += [("alone", f"ONNX Runtime {finding.builtin}")] if finding.builtin else []
    say(finding.node, "bold")
    for kind, text in rows:
        say(f"  {kind:<9}  {text}")
    say("")


def shortened(names):
    """Shorten long names to NAME_WIDTH: to their ends, or from where they begin to differ if that keeps more distinct.

    A name stays long if its short form would not be unique.
    """
    first = next((k for k, letters in enumerate(zip(*names, strict=False)) if len(set(letters)) > 1), 0)
    common = names[0].rfind("/", 0, first) + 1
    ends = [part(n, len(n) - NAME_WIDTH) for n in names]
    middles = [part(n, min(common, len(n) - NAME_WIDTH)) for n in names]
    short = max(ends, middles, key=lambda candidates: len(set(candidates)))
    return [s if short.count(s) == 1 else n for s, n in zip(short, names, strict=True)]


def part(name, begin):
    """Return NAME_WIDTH characters of a name from position `begin` on, with … where something is left out."""
    begin = max(begin, 0)
    return "…" * (begin > 0) + cut(name[begin:], NAME_WIDTH)


def cut(text, width):
    return text if len(text) <= width else f"{text[: width - 1]}…"


def tensors(finding):
    """Return the types and shapes of a node's inputs, without its lists of sizes: float32 [1,3,8,9] [1,5,6,2]"""
    operator = next((o for o in available().values() if o.title == finding.operator), None)
    sizes = [k for k, i in enumerate(operator.inputs) if i.values] if operator else []
    described_inputs = [v for k, v in enumerate(finding.inputs) if k not in sizes]
    groups = groupby(described_inputs, key=lambda v: v["type"] or "?")
    return ", ".join(f"{kind} {' '.join(map(shape, values))}" for kind, values in groups)


def shape(described):
    """Return a shape's text: [N,3,?], or [...] if the rank is unknown."""
    dims = ["..."] if described["shape"] is None else described["shape"]
    return f"[{','.join('?' if d is None else cut(str(d), DIMENSION_WIDTH) for d in dims)}]"


def builtin_cell(finding):
    return cut(finding.builtin or "not tried", ALONE_WIDTH)


def summary(findings, obstacle):
    """Return one line on how many nodes onnx_ops runs, and how many ONNX Runtime alone does."""
    sound, count = sum(not f.problems for f in findings), len(findings)
    own = f"onnx_ops runs {sound} of {count} without problems"
    if obstacle:
        faulty = count - sound
        have = "has a problem of its own" if faulty == 1 else "have problems of their own"
        own = f"{faulty} of {count} nodes {have}"
    failed = sum(f.builtin.startswith(("refuses", "runs it, wrong")) for f in findings)
    tried = sum(f.builtin.startswith(("refuses", "runs")) for f in findings)
    alone = (
        f"refuses {failed} of the {count} or gets them wrong"
        if failed
        else "would run them, too"
        if tried
        else "has run none of them"
    )
    return f"{own}; ONNX Runtime alone {alone}{', as far as it was tried' if 0 < tried < count else ''}"


def without_findings(model, obstacle):
    """Return one line on a model without nodes for onnx_ops."""
    if model.suffix == ORT_FORMAT:
        return "its nodes can't be listed, as this is ONNX Runtime's own format"
    end = f"those of {DOMAIN} run with backend extensions" if is_lowered(model) else "it runs as without"
    return "none of its nodes are for onnx_ops" + ("" if obstacle else f"; {end}")
