"""What a model's file shows without running anything.

These are the nodes of this package's operators, problems, and what is missing.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click
import onnx
from onnx import helper

from ..declaration import dtypes
from ..declaration.calls import plan_input, signature_of
from ..declaration.errors import OpError, as_text, errors_of
from ..declaration.plain import infer, shapes_of
from ..model.attributes import unknown_attributes
from ..model.builtin import first_builtin_version, has_kernel, schema_of
from ..model.external_data import external, load, model_in, read_data
from ..model.files import EXTENSIONS, is_lowered, lowered
from ..model.nodes import declared, domain_of, imports, in_its_versions, inlined
from ..model.operator_files import python_ops
from ..registry import available, first_version, is_built_in, is_default
from ..rewriting import rewritten
from ..rewriting.graph import graphs_of
from ..rewriting.models import Model
from ..rewriting.shapes import UNKNOWN
from ..session.runner import needs_extensions
from .arguments import names
from .console import one_line
from .suggest import suggested

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from typing import Any

    from ..declaration.operator import Operator
    from ..rewriting.finding import Finding
    from ..rewriting.graph import Graph
    from .types import Stated

LIKENESS = 0.8  # minimum similarity of a misspelt name to the right one, by difflib
# Domains of operators of onnxruntime-extensions.
OF_EXTENSIONS = (EXTENSIONS, "com.microsoft.extensions")


@dataclass
class NodeReport:
    """The findings about a node.

    inputs    {"name": ..., "type": ..., "shape": ...} of each; None for parts that the model
              doesn't state
    builtin   what ONNX Runtime's lists say about its built-in kernel
    problems  texts on errors, and on probable mistakes
    """

    node: str
    operator: str
    graph: str
    attributes: dict[str, Any]
    inputs: list[Stated]
    builtin: str = ""
    problems: list[str] = field(default_factory=list)


@dataclass
class ModelReport:
    """The findings about a model.

    nodes       of nodes with the name, or nearly the name, of an operator of this package, or a
                custom one in use
    unknown     {title of an operator that nobody has: number of nodes}
    extensions  {title of an operator that onnxruntime-extensions may have: number of nodes}
    no_kernel   {operator and types for which ONNX Runtime has no kernel: number of nodes}
    optimize    Findings of `optimize`, which has run nothing
    operators   source of custom operators for nodes that no session runs, or None
    domains     of the operators of this package and custom ones, which must be registered
    register    the calls that register them
    data        why the model's external data can't be read, or None
    is_lowered  whether `onnx_ops.lower` has made the model

    needs_optimize  whether `optimize` replaces all nodes of `no_kernel`, of which there are some
    """

    nodes: list[NodeReport] = field(default_factory=list)
    unknown: dict[str, int] = field(default_factory=dict)
    extensions: dict[str, int] = field(default_factory=dict)
    no_kernel: dict[str, int] = field(default_factory=dict)
    needs_optimize: bool = False
    optimize: list[Finding] = field(default_factory=list)
    operators: str | None = None
    domains: list[str] = field(default_factory=list)
    register: list[str] = field(default_factory=list)
    data: str | None = None
    is_lowered: bool = False

    @property
    def has_problems(self) -> bool:
        return any(report.problems for report in self.nodes)

    @property
    def gains(self) -> bool:
        """Whether `optimize` replaces nodes."""
        return any(finding.operator for finding in self.optimize)


def examine(path: Path) -> ModelReport:
    """Return the report on a model's file. Nothing of the model runs, and nothing is compiled."""
    try:
        model = load(path)
    except (OSError, OpError):
        model = model_in(path)
    try:
        model = inlined(model) if model.functions else model
    except RuntimeError as error:
        click.echo(
            "Warning: nodes in functions are not shown, as these can't be inlined: "
            f"{one_line(error)}",
            err=True,
        )
    report = ModelReport(data=missing_data(model, path), is_lowered=is_lowered(model))
    graphs = list(graphs_of(Model(model, path, runs_nodes=False)))
    operators = in_its_versions(available(), model)
    nodes = [(node, graph) for graph in graphs for node in graph.owner.node if intended(node)]
    report.nodes = [
        examine_node(*pair)
        for pair in nodes
        if declared(pair[0], operators) or not declared(pair[0])
    ]
    report.operators = sources(
        find_missing(report, graphs) + [pair for pair in nodes if not declared(pair[0])]
    )
    used = {operator for node, _ in nodes if (operator := declared(node, operators))}
    with_extensions = needs_extensions(imports(model), available())
    result, report.optimize = rewritten(model, path, in_place=True, runs_nodes=False)
    if report.no_kernel and report.gains:
        after = ModelReport()
        find_missing(after, graphs_of(Model(result, path, runs_nodes=False)))
        report.needs_optimize = not after.no_kernel
    report.domains = sorted({operator.domain or "ai.onnx" for operator in used})
    report.register = ways_to_register(report, used, with_extensions) if used else []
    return report


def missing_data(model: onnx.ModelProto, path: Path) -> str | None:
    """Return why a model's external data can't be read, as far as their files show it, or None."""
    try:
        for tensor in external(model):
            read_data(tensor, path, only_check=True)
    except (OSError, OpError) as error:
        return one_line(error)
    return None


def intended(node: onnx.NodeProto) -> str | None:
    """Return the name of the declared operator that a node has or misspells, or None.

    A name that other libraries have isn't misspelled.
    """
    if declared(node):
        return node.op_type
    key = domain_of(node), node.op_type
    if first_builtin_version(key) or onnx.defs.has(as_text(key[1]), domain=as_text(key[0])):
        return None
    if key in python_ops() or key in lowered():
        return None
    if node.op_type in names():
        return node.op_type
    by_small_letters = {name.lower(): name for name in names()}
    near = difflib.get_close_matches(as_text(node.op_type).lower(), by_small_letters, 1, LIKENESS)
    return by_small_letters[near[0]] if near else None


# Operators and kernels that are missing


def find_missing(
    report: ModelReport, graphs: Iterable[Graph]
) -> list[tuple[onnx.NodeProto, Graph]]:
    """Fill in the operators and kernels of a report that are missing.

    These are `unknown`, `extensions` and `no_kernel`. Returns [(node, graph)] of `unknown`.
    """
    strangers = []
    for graph in graphs:
        proto = graph.model.proto
        versions = imports(proto)
        supported = (
            {(domain_of(f), f.name) for f in proto.functions}
            | python_ops().keys()
            | lowered()
            | in_its_versions(available(), proto).keys()
        )
        for node in graph.owner.node:
            key = domain_of(node), node.op_type
            if key in supported:
                continue
            if schema := schema_of(key, versions.get(key[0])):
                inputs, outputs = ([graph.type(name).elements if name else None for name in values]
                                   for values in (node.input, node.output))  # fmt: skip
                if not has_kernel(schema, inputs, outputs):
                    count(
                        report.no_kernel,
                        f"{title(*key)}-{schema.since_version} of {text_of_types(inputs)}",
                    )
            elif declared(node) or not intended(node):  # the former in a version that nobody has
                version = (
                    f" in version {versions.get(key[0])}" if first_builtin_version(key) else ""
                )
                text = f"{title(*key)}{of_aten(node)}{version}"
                if key[0] in OF_EXTENSIONS and find_spec("onnxruntime_extensions"):
                    count(report.extensions, text)
                else:
                    count(report.unknown, text)
                    strangers.append((node, graph))
    return strangers


def text_of_types(types: Iterable[int | None]) -> str:
    """Return the names of data types by their numbers, as text."""
    names = dict.fromkeys(dtypes.NAMES[number] for number in types if number in dtypes.NAMES)
    return " and ".join(names) or "any type"


def count(counts: dict[str, int], text: str) -> None:
    counts[text] = counts.get(text, 0) + 1


def title(domain: str | bytes, name: str | bytes) -> str:
    return f"{as_text(domain)}.{as_text(name)}".removeprefix(".")


def of_aten(node: onnx.NodeProto) -> str:
    """Return the PyTorch operator of an ATen node, in brackets; "" for other nodes."""
    operators = [
        as_text(a.s) for a in node.attribute if a.name == "operator" and node.op_type == "ATen"
    ]
    return f"({operators[0]})" if operators else ""


def sources(strangers: list[tuple[onnx.NodeProto, Graph]]) -> str | None:
    """Return the source of custom operators for nodes that no session runs, or None."""
    suggestions: dict[str, str | None] = {}
    for node, graph in strangers:
        key = title(domain_of(node), node.op_type)
        suggestions[key] = suggestions.get(key) or suggested(
            node, [stated_input(graph, name) for name in node.input]
        )
    texts = list(filter(None, suggestions.values()))
    return "\n\n".join(["import onnx_ops\n", *texts]) if texts else None


# One node


def examine_node(node: onnx.NodeProto, graph: Graph) -> NodeReport:
    """Return the report on one node."""
    operator = declared(node)
    values = {a.name: helper.get_attribute_value(a) for a in node.attribute if not a.ref_attr_name}
    inputs = [stated_input(graph, name) for name in node.input]
    if operator:
        complete_types(operator, inputs)
    report = NodeReport(
        title_of(node),
        operator.title if operator else title(node.domain, node.op_type),
        graph.title,
        {as_text(name): as_text(value) for name, value in values.items()},
        inputs,
    )
    if operator is None:
        report.problems.append(why_not_run(node))
        return report
    domain = operator.domain or "ai.onnx"
    first = first_version(operator)
    version = imports(graph.model.proto).get(operator.domain)
    if version is None:
        report.problems.append(f"the model doesn't import the domain {domain}")
    elif version < first:
        report.problems.append(
            f"{domain} has it from version {first} on, the model imports {version}"
        )
    report.problems += unknown_attributes(operator, values)
    accepted = values.keys() & operator.attribute_names
    try:
        with errors_of(operator):
            check_node(graph, operator, {name: values[name] for name in accepted}, inputs)
    except OpError as error:
        report.problems.append(str(error).removeprefix(f"{operator.title}: "))
    report.builtin = builtin_kernel(operator, version, inputs)
    return report


def title_of(node: onnx.NodeProto) -> str:
    """Return the name of a node or, if it has none, the names of its outputs."""
    return as_text(node.name) or ", ".join(map(as_text, node.output))


def stated_input(graph: Graph, name: str) -> Stated:
    """Return the known parts of a node's input, see NodeReport."""
    its_type = graph.type(name) if name else UNKNOWN
    return {"name": name, "type": dtypes.NAMES.get(its_type.elements), "shape": its_type.dimensions}


def complete_types(operator: Operator, inputs: list[Stated]) -> None:
    """Fill in types of inputs that follow from other inputs, or of which there is only one."""
    pairs = list(zip(operator.inputs, inputs, strict=False))
    signature = {
        variable: types[0] for variable, types in operator.types.items() if len(types) == 1
    }
    signature |= {i.type: v["type"] for i, v in pairs if v["type"]}
    for i, v in pairs:
        if v["name"] and v["type"] is None:
            v["type"] = signature.get(i.type)


def why_not_run(node: onnx.NodeProto) -> str:
    """Return the reason why a node that resembles a declared operator isn't run."""
    name = intended(node)
    if node.op_type != name:
        return f"not run by onnx_ops; did you mean {name}?"
    domains = [o.domain or "ai.onnx" for o in available().values() if o.name == name]
    near = difflib.get_close_matches(node.domain, domains, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"not run by onnx_ops, which has {name} in the domains {', '.join(domains)}{hint}"


def check_node(
    graph: Graph, operator: Operator, attributes: dict[str, Any], inputs: list[Stated]
) -> None:
    """Raise OpError if the declaration refuses what the model states of a node."""
    values = operator.values(attributes)
    operator.padded([v["name"] or None for v in inputs])  # refuses missing inputs
    signature_of(operator, operator.choice(values), [v["type"] for v in inputs])
    parameters = operator.pairs(inputs)
    arrays = [graph.array(v["name"]) if i.values and v["name"] else None for i, v in parameters]
    lists: list[Any] = [
        None if a is None else plan_input(i, a)
        for (i, _), a in zip(parameters, arrays, strict=True)
    ]
    if all(v["name"] for v in inputs):
        infer(operator, values, [v["shape"] for v in inputs], lists)
    sizes: list[Any] = [
        k if i.values else v["shape"] for (i, v), k in zip(parameters, lists, strict=True)
    ]
    are_known = all(
        isinstance(size, list) and all(isinstance(n, int) for n in size)
        for v, size in zip(inputs, sizes, strict=True)
        if v["name"]
    )
    if are_known and len(inputs) <= len(operator.inputs):
        shapes_of(
            operator,
            values,
            operator.padded([None if size is None else tuple(size) for size in sizes]),
        )


def builtin_kernel(operator: Operator, version: int | None, inputs: list[Stated]) -> str:
    """Return whether ONNX Runtime has a built-in kernel for an operator and input types.

    The text is based on ONNX Runtime's lists.
    """
    key = operator.domain, operator.name
    if (first := first_builtin_version(key)) is None:
        return "has no such operator"
    if (schema := schema_of(key, version)) is None:
        return f"has it from version {first} on, the model imports {version}"
    types = [v["type"] for v in inputs]
    if has_kernel(schema, [dtypes.TABLE[t].onnx if t else None for t in types], []):
        return (
            "has a kernel" if all(v["type"] for v in inputs if v["name"]) else "types are unknown"
        )
    pairs = [(i, t) for i, t in zip(operator.inputs, types, strict=False) if t and not i.values]
    unusual = [
        f"{t} {i.name}" for i, t in pairs if t != "float32" and len(operator.types[i.type]) > 1
    ]
    return f"has no kernel for {' and '.join(unusual) or f'version {schema.since_version}'}"


def ways_to_register(
    report: ModelReport, operators: Iterable[Operator], with_extensions: bool
) -> list[str]:
    """Return the calls that register these operators of a model."""
    is_built_in_alone = all(map(is_built_in, operators))
    argument = "" if is_built_in_alone else ", operators=[...]"
    # With the other library on them: docs/backends.md.
    options = ", options" if with_extensions else ""
    optimize = ", optimize=True" if report.gains else ""
    calls = [f"onnx_ops.InferenceSession(path{options}{argument}{optimize})"]
    if report.needs_optimize:
        return calls
    calls.append(f"onnx_ops.register(options, path{argument})")
    if left_out := sorted(
        {o.domain for o in operators if not is_default(o.domain, is_built_in(o))}
    ):
        calls[-1] += (
            f"  (without the path, and by the library's path, {' and '.join(left_out)} is left out)"
        )
    elif is_built_in_alone:
        calls.append("options.register_custom_ops_library(onnx_ops.get_library_path())")
    return calls
