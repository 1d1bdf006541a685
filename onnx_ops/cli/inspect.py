"""`onnx-ops inspect`: what this package makes of a model, and what is wrong with it."""

from dataclasses import asdict, dataclass, field

import click
import onnx
import onnx.inliner
from onnx import helper

from ..operators import OPERATORS
from ..runtime.lowering import DOMAIN
from ..runtime.model import imported_domains
from ..runtime.nodes import declared
from ..schemas import register_schemas
from . import data
from .check import builtin, check, misspelt
from .common import ORT_FORMAT, json_option, model_argument, print_json, reason, say, steps, table
from .routes import Route
from .values import relevant


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
@json_option
def inspect(model, as_json):
    """Which nodes of a model this package runs, and which of them ONNX Runtime alone can't.

    Subgraphs are looked into, local functions written out where they are called. Each node is tried alone on ONNX
    Runtime's own kernel, on made-up data as far as the model tells the shapes, and the results are compared. Also said
    is what will fail or be ignored: misspelt attributes (ONNX Runtime checks none of custom operators'), values that
    are refused, shapes that can't fit; and why no session of the whole model can be made, if so.

    \b
    Examples:
      onnx-ops inspect model.onnx
      onnx-ops inspect model.onnx --json
    """
    findings = [] if model.suffix == ORT_FORMAT else examine(model)
    obstacle = find_obstacle(model)
    if as_json:
        print_json({"model": str(model), "session": obstacle, "nodes": [asdict(f) for f in findings]})
    else:
        show(model, findings, obstacle)
    if obstacle or any(f.problems for f in findings):
        raise click.exceptions.Exit(1)


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
        domains = ", ".join(o.domain or "ai.onnx" for o in OPERATORS if o.name == node.op_type)
        made.problems.append(f"not run by onnx_ops, which has {node.op_type} in the domains {domains}")
        return made
    version = imports.get(operator.domain)
    if version is None:
        made.problems.append(f"the model doesn't import the domain {operator.domain or 'ai.onnx'}")
    elif version < operator.versions[0]:
        domain = operator.domain or "ai.onnx"
        made.problems.append(f"{domain} has it from version {operator.versions[0]} on, the model imports {version}")
    made.problems += misspelt(operator, attributes)
    refused, sample = check(operator, {a.name: given.get(a.name) for a in operator.attributes}, inputs)
    made.problems += refused
    made.builtin = builtin(model, node, inputs, None if made.problems else sample)
    return made


def plain(value):
    """An attribute's value for people and JSON."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, int | float | str) else list(value) if hasattr(value, "__iter__") else str(value)


def show(model, findings, obstacle):
    rows = [
        (
            f.node,
            f.operator + (f"\nin {f.graph}" if f.graph != "main" else ""),
            "\n".join(f"{n} = {v}" for n, v in f.attributes.items()),
            "\n".join(f"{v['name']} {v['type'] or '?'} {data.dimensions(v['shape'] or ['...'])}" for v in f.inputs),
            f.builtin,
        )
        for f in findings
    ]
    if rows:
        table(str(model), ("node", "operator", "attributes", "inputs", "ONNX Runtime alone"), rows)
    for f in findings:
        for problem in f.problems:
            say(f"{f.node}: {problem}", "bold red")
    if obstacle and not any(problem in obstacle for f in findings for problem in f.problems):
        say(f"no session can be made: {obstacle}", "bold red")
    say(summary(findings, obstacle) if findings else f"{model}: {without_findings(model, obstacle)}.")


def summary(findings, obstacle):
    """One line of what runs the nodes."""
    ran, count = sum(not f.problems for f in findings), len(findings)
    own = f"onnx_ops runs {ran} of {count} without problems"
    if obstacle:
        own = f"{ran} of {count} nodes have no problem of their own"
    helped = sum(f.builtin.startswith(("refuses", "runs it, wrong")) for f in findings)
    alone = f"refuses {helped} of them or gets them wrong" if helped else "would run them, too"
    untried = "" if all(f.builtin.startswith(("refuses", "runs")) for f in findings) else ", as far as it was tried"
    return f"{own}; ONNX Runtime alone {alone}{untried}"


def without_findings(model, obstacle):
    """The same of a model in which none was found."""
    if model.suffix == ORT_FORMAT:
        return "its nodes can't be listed, as this is ONNX Runtime's own format"
    end = f"those of {DOMAIN} run with backend extensions" if is_lowered(model) else "it runs as without"
    return "none of its nodes are for onnx_ops" + ("" if obstacle else f"; {end}")
