"""`onnx-ops inspect`: what this package makes of a model, and what is wrong with it."""

import difflib
import logging
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import groupby

import click
import onnx
import onnx.inliner
from onnx import helper

from ..nodes import declared
from ..operators import known
from ..runtime.attributes import WARNING, unknown
from ..runtime.lowering import DOMAIN
from ..runtime.model import imported_domains
from ..schemas import register_schemas
from . import data, optimize
from .check import builtin, check
from .common import ORT_FORMAT, json_option, model_argument, print_json, reason, say, steps, table
from .routes import Route
from .values import intended, relevant

# Characters in the table, where a node shall have one line: of its name, of a dimension's, and of what refuses it.
NAME_WIDTH, DIMENSION_WIDTH, ALONE_WIDTH = 24, 10, 50


@dataclass
class Finding:
    """A node. builtin: what ONNX Runtime's own kernel makes of it. problems: what will fail, or isn't what it seems."""

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
    """Which nodes of a model this package runs, and which of them ONNX Runtime alone can't.

    Subgraphs are looked into, local functions written out where they are called. Each node is tried alone on ONNX
    Runtime's own kernel, on made-up data as far as the model tells the shapes, and the results are compared. Also said
    is what will fail or be ignored: operators, domains and attributes that seem misspelt, values that are refused,
    shapes that can't fit; why no session of the whole model can be made, if so; and what `onnx-ops optimize` would
    replace.

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
    """Keep from the log what is among the problems."""

    def is_other(record):
        return record.msg != WARNING

    log = logging.getLogger("onnx_ops")
    log.addFilter(is_other)
    try:
        yield
    finally:
        log.removeFilter(is_other)


def find_obstacle(model):
    """Why no session of the whole model can be made, or None."""
    try:
        Route(model, "extensions" if is_lowered(model) else "native")
    except Exception as error:
        return reason(error)
    return None


def is_lowered(model):
    """Whether a model needs onnxruntime-extensions."""
    return DOMAIN in (imported_domains(model) or ())


def examine(path):
    """A Finding for each node that is, or nearly is, one of the declared operators."""
    model = onnx.load(path, load_external_data=False)
    model = onnx.inliner.inline_local_functions(model) if model.functions else model
    register_schemas()
    try:
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception as error:
        click.echo(f"Warning: shapes are unknown, as onnx can't infer them: {reason(error)}", err=True)
    nodes = list(relevant(model.graph, {}, "main", str(path.parent)))
    imports = {"" if i.domain == "ai.onnx" else i.domain: i.version for i in model.opset_import}
    return [finding(model, imports, *n) for n in steps(nodes, lambda n: n[0].name or n[0].op_type)]


def finding(model, imports, node, inputs, path):
    operator = declared(node)
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    attributes = {name: plain(value) for name, value in given.items()}
    shown = [{"name": v.name, "type": v.type, "shape": v.shape} for v in inputs]
    title = operator.title if operator else f"{node.domain}.{node.op_type}".removeprefix(".")
    made = Finding(node.name or ", ".join(node.output), title, path, attributes, shown)
    if operator is None:
        made.problems.append(refusal(node))
        return made
    version = imports.get(operator.domain)
    if version is None:
        made.problems.append(f"the model doesn't import the domain {operator.domain or 'ai.onnx'}")
    elif version < operator.versions[0]:
        domain = operator.domain or "ai.onnx"
        made.problems.append(f"{domain} has it from version {operator.versions[0]} on, the model imports {version}")
    made.problems += unknown(operator, attributes)
    refused, sample = check(operator, {a.name: given.get(a.name) for a in operator.attributes}, inputs)
    made.problems += refused
    made.builtin = builtin(model, node, operator, inputs, None if made.problems else sample)
    return made


def plain(value):
    """An attribute's value for people and JSON."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, int | float | str) else list(value) if hasattr(value, "__iter__") else str(value)


def refusal(node):
    """What to say of a node that is none of the declared operators, but has nearly their name or another domain."""
    name = intended(node)
    if node.op_type != name:
        return f"not run by onnx_ops; did you mean {name}?"
    domains = [o.domain or "ai.onnx" for o in known().values() if o.name == name]
    near = difflib.get_close_matches(node.domain, domains, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"not run by onnx_ops, which has {name} in the domains {', '.join(domains)}{hint}"


def show(model, findings, obstacle, details):
    if findings:
        names = shortened([f.node for f in findings])
        rows = [(n, f.operator, tensors(f), alone(f)) for n, f in zip(names, findings, strict=True)]
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
    """What `onnx-ops optimize` would do, on one line, and where."""
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
    """Names for one line each: of the long ones the end, or where they begin to differ if that tells more apart.

    Those that would still look alike stay long.
    """
    first = next((k for k, letters in enumerate(zip(*names, strict=False)) if len(set(letters)) > 1), 0)
    common = names[0].rfind("/", 0, first) + 1
    ends = [part(n, len(n) - NAME_WIDTH) for n in names]
    middles = [part(n, min(common, len(n) - NAME_WIDTH)) for n in names]
    short = max(ends, middles, key=lambda found: len(set(found)))
    return [s if short.count(s) == 1 else n for s, n in zip(short, names, strict=True)]


def part(name, begin):
    """The part of a name that the table has room for, from position `begin` on."""
    begin = max(begin, 0)
    return "…" * (begin > 0) + cut(name[begin:], NAME_WIDTH)


def cut(text, width):
    return text if len(text) <= width else f"{text[: width - 1]}…"


def tensors(finding):
    """The types and shapes of what a node computes on, without its lists of sizes: float32 [1,3,8,9] [1,5,6,2]"""
    operator = next((o for o in known().values() if o.title == finding.operator), None)
    shown = [v for k, v in enumerate(finding.inputs) if operator is None or k in operator.tensors]
    groups = groupby(shown, key=lambda v: v["type"] or "?")
    return ", ".join(f"{kind} {' '.join(map(shape, values))}" for kind, values in groups)


def shape(described):
    """[N,3,?], or [...] if not even the rank is known."""
    dims = ["..."] if described["shape"] is None else described["shape"]
    return f"[{','.join('?' if d is None else cut(str(d), DIMENSION_WIDTH) for d in dims)}]"


def alone(finding):
    return cut(finding.builtin or "not tried", ALONE_WIDTH)


def summary(findings, obstacle):
    """One line of what runs the nodes."""
    ran, count = sum(not f.problems for f in findings), len(findings)
    own = f"onnx_ops runs {ran} of {count} without problems"
    if obstacle:
        own = f"{ran} of {count} nodes have no problem of their own"
    helped = sum(f.builtin.startswith(("refuses", "runs it, wrong")) for f in findings)
    tried = sum(f.builtin.startswith(("refuses", "runs")) for f in findings)
    alone = (
        f"refuses {helped} of them or gets them wrong"
        if helped
        else "would run them, too"
        if tried
        else "has run none of them"
    )
    return f"{own}; ONNX Runtime alone {alone}{', as far as it was tried' if 0 < tried < count else ''}"


def without_findings(model, obstacle):
    """The same of a model in which none was found."""
    if model.suffix == ORT_FORMAT:
        return "its nodes can't be listed, as this is ONNX Runtime's own format"
    end = f"those of {DOMAIN} run with backend extensions" if is_lowered(model) else "it runs as without"
    return "none of its nodes are for onnx_ops" + ("" if obstacle else f"; {end}")
