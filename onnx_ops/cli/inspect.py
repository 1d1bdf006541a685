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
from .common import json_option, model_argument, print_json, reason, say, steps, table
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
    are refused, shapes that can't fit.

    \b
    Examples:
      onnx-ops inspect model.onnx
      onnx-ops inspect model.onnx --json
    """
    findings = examine(onnx.load(model, load_external_data=False), str(model.parent))
    if as_json:
        print_json({"model": str(model), "nodes": [asdict(f) for f in findings]})
    else:
        show(model, findings)
    if any(f.problems for f in findings):
        raise click.exceptions.Exit(1)


def examine(model, directory):
    """A Finding for each node that is, or nearly is, one of the declared operators."""
    model = onnx.inliner.inline_local_functions(model) if model.functions else model
    register_schemas()
    try:
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception as error:
        click.echo(f"Warning: shapes are unknown, as onnx can't infer them: {reason(error)}", err=True)
    nodes = list(relevant(model.graph, {}, "main", directory))
    imports = {"" if i.domain == "ai.onnx" else i.domain: i.version for i in model.opset_import}
    return [finding(model, imports, *n) for n in steps(nodes, lambda n: n[0].name or n[0].op_type)]


def finding(model, imports, node, inputs, path):
    operator = declared(node)
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    attributes = {name: plain(value) for name, value in given.items()}
    shown = [{"name": v.name, "type": v.type, "shape": v.shape} for v in inputs]
    title = operator.title if operator else f"{node.domain}.{node.op_type}".removeprefix(".")
    made = Finding(node.name or node.output[0], title, path, attributes, shown)
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


def show(model, findings):
    if not findings:
        lowered = DOMAIN in (imported_domains(model) or ())
        end = f"those of {DOMAIN} run with backend extensions" if lowered else "it runs as without"
        say(f"{model}: none of its nodes are for onnx_ops; {end}.")
        return
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
    table(str(model), ("node", "operator", "attributes", "inputs", "ONNX Runtime alone"), rows)
    for f in findings:
        for problem in f.problems:
            say(f"{f.node}: {problem}", "bold red")
    ran = sum(not f.problems for f in findings)
    helped = sum(f.builtin.startswith(("refuses", "runs it, wrong")) for f in findings)
    alone = f"refuses {helped} of them or gets them wrong" if helped else "would do so, too"
    untried = "" if all(f.builtin.startswith(("refuses", "runs")) for f in findings) else ", as far as it was tried"
    say(f"onnx_ops runs {ran} of {len(findings)} without problems; ONNX Runtime alone {alone}{untried}")
