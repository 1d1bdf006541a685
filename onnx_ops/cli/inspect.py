"""`onnx-ops inspect`: what this package makes of a model, and what is wrong with it."""

import difflib
from contextlib import suppress
from dataclasses import asdict, dataclass, field

import click
import numpy as np
import onnx
import onnx.inliner
from onnx import helper

from .. import OpError, dtypes
from ..errors import named
from ..operator import Record
from ..operators import OPERATORS
from ..runtime.lowering import DOMAIN
from ..runtime.model import imported_domains
from ..runtime.nodes import declared, subgraphs
from ..schemas import dimensions as known_dimensions
from ..schemas import register_schemas
from . import data
from .common import NAMES, json_option, model_argument, print_json, reason, say, steps, table
from .compare import difference
from .routes import Route

STAND_IN = 2  # for a dimension that the model leaves open
LARGEST = 2**24  # elements of an input that are made up to try a node
ELEMENT_TYPES = {t.onnx: name for name, t in dtypes.TABLE.items()}


@dataclass
class Value:
    """What a model tells of a node's input. value: the array, if it is a constant."""

    name: str
    type: str | None = None
    shape: list | None = None
    value: np.ndarray | None = None


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


def relevant(graph, outer, path, directory):
    """(node, its inputs as Values, name of its graph) of a graph and its subgraphs."""
    values = dict(outer)
    for v in (*graph.input, *graph.value_info, *graph.output):
        values[v.name] = Value(v.name, ELEMENT_TYPES.get(v.type.tensor_type.elem_type), known_dimensions(v.type))
    for tensor in graph.initializer:
        values[tensor.name] = constant(tensor.name, tensor, directory)
    for node in graph.node:
        if node.op_type == "Constant" and (made := constant_of(node)):
            values[node.output[0]] = made
        if node.op_type in NAMES:
            yield node, [values.get(name, Value(name)) for name in node.input], path
        for inner in subgraphs(node):
            yield from relevant(inner, values, f"{path} / {node.name or node.op_type} / {inner.name}", directory)


def constant(name, tensor, directory):
    """A tensor's Value; its elements only if it is small, as sizes are."""
    described = Value(name, ELEMENT_TYPES.get(tensor.data_type), list(tensor.dims))
    if len(tensor.dims) <= 1 and np.prod(tensor.dims, dtype=int) <= 64:
        described.value = onnx.numpy_helper.to_array(tensor, directory)
    return described


def constant_of(node):
    for attribute in node.attribute:
        if attribute.name == "value":
            return constant(node.output[0], attribute.t, "")
        if attribute.name == "value_ints":
            return Value(node.output[0], "int64", [len(attribute.ints)], np.array(attribute.ints, np.int64))
    return None


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


def misspelt(operator, attributes):
    known = [a.name for a in operator.attributes]
    for name in attributes.keys() - set(known):
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
        yield f"attribute {name} is unknown and will be ignored; {hint}"


def check(operator, attributes, inputs):
    """([what the declaration refuses], the inputs made up as arrays, or None where too little is known)."""
    if len(inputs) != len(operator.inputs) or not all(v.name for v in inputs):
        return [f"must have {len(operator.inputs)} inputs"], None
    pairs = list(zip(operator.inputs, inputs, strict=True))
    try:
        with named(operator):
            parameters = Record(operator.resolved(attributes)[0])
            signature = types(operator, pairs)
            if len(signature) == len(operator.types):
                operator.allows(parameters, signature)
            operator.lengths(parameters, [length(v) for i, v in pairs if i.values])
            seen = [planned(i, v) for i, v in pairs]
            if any(s is None for s in seen):
                return [], None
            with suppress(OpError if is_open(pairs) else ()):  # it may be the stand-ins that don't fit
                operator.plan(parameters, seen, Record(np.zeros(1, operator.geometry)[0]))
                return [], sample(pairs, seen)
    except OpError as error:
        return [str(error).removeprefix(f"{operator.title}: ")], None
    return [], None


def types(operator, pairs):
    """{type variable: element type} as far as it is known."""
    signature = {}
    for i, v in pairs:
        if v.type is None:
            continue
        if v.type not in operator.types[i.type]:
            raise OpError(f"dtype of {i.name}", v.type, f"must be one of {', '.join(operator.types[i.type])}")
        if signature.setdefault(i.type, v.type) != v.type:
            raise OpError(f"dtype of {i.name}", v.type, f"must be {signature[i.type]} as before")
    return signature


def is_open(pairs):
    """Whether the model leaves any dimension open."""
    return any(not i.values and not all(isinstance(d, int) for d in v.shape) for i, v in pairs)


def length(v):
    """Of an input whose values a plan wants, or None."""
    if v.value is not None:
        return v.value.size
    return v.shape[0] if v.shape and isinstance(v.shape[0], int) else None


def planned(declared_input, v):
    """What the plan sees of an input, with stand-ins for open dimensions; None if too little is known."""
    if declared_input.values:
        return None if v.value is None or v.value.ndim != 1 else v.value.astype(np.int64)
    if v.shape is None:
        return None
    return np.array([d if isinstance(d, int) else STAND_IN for d in v.shape], np.int64)


def sample(pairs, seen):
    if any(v.type is None or np.prod(s, dtype=float) > LARGEST for (_, v), s in zip(pairs, seen, strict=True)):
        return None
    rng = np.random.default_rng(0)
    return [
        v.value if i.values else data.random_array(rng, v.name, v.type, s.tolist())
        for (i, v), s in zip(pairs, seen, strict=True)
    ]


def builtin(model, node, inputs, arrays):
    """What ONNX Runtime's own kernel makes of the node alone: "runs it", or why not. Run only if there are arrays."""
    alone = node_alone(model, node, inputs)
    if alone is None:
        return "not tried: types are unknown"
    try:
        route = Route(alone, "builtin")
        if arrays is None:
            return "makes a session of it; not run: shapes are unknown"
        feeds = dict(zip(route.inputs, arrays, strict=True))
        got = route.run(feeds)
    except Exception as error:
        return f"refuses it: {reason(error)}"
    apart = difference(*got.values(), *Route(alone).run(feeds).values())
    return "runs it" if apart.ok else f"runs it, wrong: {apart.problem or f'off by {apart.largest:.2g}'}"


def node_alone(model, node, inputs):
    if not all(v.type for v in inputs):
        return None
    described = [
        helper.make_tensor_value_info(f"input_{k}", dtypes.TABLE[v.type].onnx, v.shape) for k, v in enumerate(inputs)
    ]
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    del copy.input[:], copy.output[:]
    copy.input.extend(d.name for d in described)
    copy.output.append("output")
    output = helper.make_tensor_value_info("output", described[0].type.tensor_type.elem_type, None)
    graph = helper.make_graph([copy], "alone", described, [output])
    proto = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    return proto.SerializeToString()


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
