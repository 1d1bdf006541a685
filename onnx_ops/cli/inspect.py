"""`onnx-ops inspect`: the nodes of a model that this package runs, and their problems."""

import difflib
import logging
from collections import Counter
from dataclasses import asdict, dataclass, field

import click
import numpy as np
import onnx
from onnx import helper

from ..arrays.comparison import difference
from ..declaration import dtypes
from ..declaration.calls import signature_of
from ..declaration.errors import OpError, as_text, errors_of
from ..declaration.plain import infer, shapes_of
from ..model.attributes import WARNING, unknown_attributes
from ..model.external_data import load, model_in
from ..model.files import EXTENSIONS, imported_domains, is_lowered
from ..model.nodes import builtin_operators, declared, domain_of, imports, in_its_versions, inlined, model_nodes
from ..model.operator_files import python_ops
from ..native.library import extensions_obstacle
from ..registry import available, custom_operators, first_version
from ..rewriting.graph import Model
from ..rewriting.shapes import UNKNOWN
from ..session.runner import Runner, needs_extensions, open_session
from .arguments import json_option, model_argument, named_files, names, program_with_operators
from .console import dimensions, one_line, print_json, say, steps, table
from .data import random_array
from .rewrite import counted, find_patterns
from .suggest import suggested

LIKENESS = 0.8  # minimum similarity of a misspelt name to the right one, by difflib
STAND_IN = 2  # the size of an open dimension
LARGEST = 2**24  # elements of a random input
NO_KERNEL = "Could not find an implementation", "Failed to find kernel"  # for these types, or this version


@dataclass
class Report:
    """The findings about a node.

    inputs    {"name": ..., "type": ..., "shape": ...} of each; None for parts that the model doesn't state
    builtin   the outcome with ONNX Runtime's built-in kernel
    problems  texts on errors, and on probable mistakes
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
@json_option
def inspect(model, as_json):
    """List the nodes that onnx_ops runs, and problems.

    The list also shows the nodes that ONNX Runtime alone can't run. It includes nodes in subgraphs and local functions.
    Each node also runs alone on ONNX Runtime's built-in kernel, on random data, if the model states the shapes, and the
    results are compared.

    \b
    Problems are
      operators, domains and attributes that seem misspelt;
      values that will be refused, and shapes that can't fit;
      operators that neither ONNX Runtime nor this package has;
      the reason why no session of the model can be made.

    The last lines report the nodes that `onnx-ops optimize` would fuse, and the next step. --json adds the attributes
    and all inputs of each node, and the reasons why `optimize` would keep similar nodes.

    \b
    Examples:
      onnx-ops inspect model.onnx
      onnx-ops inspect model.onnx --json
    """
    log = logging.getLogger("onnx_ops")
    log.addFilter(is_no_warning_of_attributes)
    try:
        reports, unknown_operators, sources = examine(model)
        obstacle, patterns = find_obstacle(model), find_patterns(model)
    finally:
        log.removeFilter(is_no_warning_of_attributes)
    next_step = advice(model, reports, unknown_operators, obstacle, patterns)
    if sources:
        next_step = f"save the operators above as my_operators.py and pass --operators my_operators.py; or {next_step}"
    source = "\n\n".join(["import onnx_ops\n", *sources])
    if as_json:
        lists = {"nodes": list(map(asdict, reports)), "optimize": list(map(asdict, patterns))}
        more = {"unknown": unknown_operators, "operators": source if sources else None, "next": next_step}
        print_json({"model": str(model), "session": obstacle, **lists, **more})
    else:
        show(model, reports, unknown_operators, obstacle)
        show_patterns(patterns)
        if sources:
            click.echo(f"custom operators that compute these nodes:\n\n{source}")
        say(f"next: {next_step}", "bold")
    if obstacle or any(r.problems for r in reports):
        raise click.exceptions.Exit(1)


def is_no_warning_of_attributes(record):
    """Return whether a log record is something else than a warning of an unknown attribute, which is a problem."""
    return record.msg != WARNING


def find_obstacle(model):
    """Return the reason why no session of the whole model can be made, or None."""
    try:
        open_session(model, "extensions" if is_lowered(model) else "native")
    except Exception as error:
        return one_line(error)
    return None


# Findings about a node


def examine(path):
    """Return Reports on nodes with the name, or nearly the name, of a declared operator, and `unknown_in`.

    Also return the sources of custom operators for nodes that no session runs.
    """
    try:
        model = load(path)
    except (OSError, OpError):  # a file may be missing, which the session reports
        model = model_in(path)
    try:
        model = inlined(model) if model.functions else model
    except (RuntimeError, onnx.checker.ValidationError) as error:
        click.echo(f"Warning: nodes in functions are not shown, as these can't be inlined: {one_line(error)}", err=True)
    known, sources = Model(model, path), {}
    nodes = list(relevant(known))
    reports = [examine_node(*each) for each in steps(nodes, lambda each: each[0].name or each[0].op_type)]
    unknown_operators = unknown_in(model)
    for graph in known.graphs():
        for node in graph.owner.node:
            key = title(domain_of(node), node.op_type)
            if key in unknown_operators or (intended(node) and not declared(node)):
                sources[key] = sources.get(key) or suggested(node, [stated(graph, name) for name in node.input])
    return reports, unknown_operators, list(filter(None, sources.values()))


def unknown_in(model):
    """Return {title: number of nodes} of the operators that no session has.

    Nodes that get a Report are left out.
    """
    known = builtin_operators().keys() | {(f.domain, f.name) for f in model.functions}
    counts = Counter((domain_of(node), node.op_type, of_aten(node)) for node in model_nodes(model)
                     if not intended(node) and not onnx_has(node))  # fmt: skip
    found = [key for key in counts if key[:2] not in known]
    return {title(*key): counts[key] for key in sorted(found, key=repr) if not is_registered(*map(as_text, key[:2]))}


def title(domain, name, of=""):
    return f"{as_text(domain)}.{as_text(name)}{of}".removeprefix(".")


def of_aten(node):
    """Return the PyTorch operator of an ATen node, in brackets; "" for other nodes."""
    names = [as_text(a.s) for a in node.attribute if a.name == "operator" and node.op_type == "ATen"]
    return f"({names[0]})" if names else ""


def is_registered(domain, name):
    """Return whether a session has such an operator, which may be one of onnxruntime-extensions."""
    node = helper.make_node(name, [], ["y"], domain=domain)
    graph = helper.make_graph([node], "alone", [], [onnx.ValueInfoProto(name="y")])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid(domain, 1)], ir_version=8)
    try:
        open_session(proto.SerializeToString(), "extensions" if domain == EXTENSIONS else "builtin")
    except OpError:  # onnxruntime-extensions can't be imported
        return False
    except Exception as error:
        return "is not a registered function/op" not in str(error)
    return True


def onnx_has(node):
    """Return whether onnx has the operator of a node."""
    return onnx.defs.has(as_text(node.op_type), domain=as_text(domain_of(node)))


def relevant(model):
    """Yield (node, its graph) for the `intended` nodes of a model, except those of older versions."""
    operators = in_its_versions(available(), model.proto)
    for graph in model.graphs():
        for node in graph.owner.node:
            if intended(node) and (declared(node, operators) or not declared(node)):
                yield node, graph


def intended(node):
    """Return the name of the declared operator that a node has or, unless onnx has it, misspells; or None."""
    if declared(node):
        return node.op_type
    domain = domain_of(node)
    if (domain, node.op_type) in python_ops() or onnx_has(node):
        return None
    if node.op_type in names():
        return node.op_type
    by_small_letters = {name.lower(): name for name in names()}
    near = difflib.get_close_matches(as_text(node.op_type).lower(), by_small_letters, 1, LIKENESS)
    return by_small_letters[near[0]] if near else None


def examine_node(node, graph):
    """Return the Report on one node."""
    operator, proto = declared(node), graph.model.proto
    values = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    inputs = [stated(graph, name) for name in node.input]
    if operator:
        complete_types(operator, inputs)
    report = Report(
        node.name or ", ".join(node.output),
        operator.title if operator else title(node.domain, node.op_type),
        graph.title,
        {name: plain(value) for name, value in values.items()},
        inputs,
    )
    if operator is None:
        report.problems.append(why_not_run(node))
        return report
    domain, first, version = operator.domain or "ai.onnx", first_version(operator), imports(proto).get(operator.domain)
    if version is None:
        report.problems.append(f"the model doesn't import the domain {domain}")
    elif version < first:
        report.problems.append(f"{domain} has it from version {first} on, the model imports {version}")
    report.problems += unknown_attributes(operator, values)
    arrays = None
    try:
        with errors_of(operator):
            known = {name for a in operator.attributes for name in a.names}
            arrays = made_up(graph, operator, {name: values[name] for name in known & values.keys()}, inputs)
    except OpError as error:
        report.problems.append(str(error).removeprefix(f"{operator.title}: "))
    unknown_shapes = "shapes are unknown" if arrays is None else ""
    lack = "see its problem below" if report.problems else unknown_shapes
    report.builtin = try_builtin(proto, node, operator, inputs, arrays, lack)
    return report


def stated(graph, name):
    """Return the known parts of a node's input, see Report."""
    its_type = graph.type(name) if name else UNKNOWN
    return {"name": name, "type": dtypes.NAMES.get(its_type.elements), "shape": its_type.dimensions}


def complete_types(operator, inputs):
    """Fill in unknown types of inputs that follow from other inputs, or from an operator with only one type."""
    pairs = list(zip(operator.inputs, inputs, strict=False))
    signature = {variable: types[0] for variable, types in operator.types.items() if len(types) == 1}
    signature |= {i.type: v["type"] for i, v in pairs if v["type"]}
    for i, v in pairs:
        if v["name"] and v["type"] is None:
            v["type"] = signature.get(i.type)


def plain(value):
    """Return an attribute's value in a form for people and JSON."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, int | float | str) else list(value) if hasattr(value, "__iter__") else str(value)


def why_not_run(node):
    """Return the reason why a node with nearly the name or domain of a declared operator isn't run."""
    name = intended(node)
    if node.op_type != name:
        return f"not run by onnx_ops; did you mean {name}?"
    domains = [o.domain or "ai.onnx" for o in available().values() if o.name == name]
    near = difflib.get_close_matches(node.domain, domains, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"not run by onnx_ops, which has {name} in the domains {', '.join(domains)}{hint}"


def made_up(graph, operator, attributes, inputs):
    """Return random arrays for the inputs, or the values of constants; None if too little is known.

    Raises OpError if the declaration refuses the known parts.
    """
    values = operator.values(attributes)
    operator.padded([v["name"] or None for v in inputs])  # refuses missing inputs
    signature_of(operator, operator.choice(values), [v["type"] for v in inputs])
    pairs = [(i, v) for i, v in zip(operator.each_input(len(inputs)), inputs, strict=True) if v["name"]]
    arrays = [graph.array(v["name"]) if i.values else None for i, v in pairs]
    infer(operator, values, [v["shape"] for _, v in pairs], [None if a is None else a.tolist() for a in arrays])
    sizes = [known_sizes(i, v["shape"], array) for (i, v), array in zip(pairs, arrays, strict=True)]
    if any(each is None for each in sizes):
        return None
    is_open = any(not i.values and each.tolist() != v["shape"] for (i, v), each in zip(pairs, sizes, strict=True))
    if len(pairs) == len(operator.inputs):
        try:
            shapes_of(operator, values, [tuple(each.tolist()) for each in sizes])
        except OpError:
            if is_open:  # stand-ins don't fit each other
                return None
            raise
    if any(v["type"] is None for _, v in pairs) or max(np.prod(each, dtype=float) for each in sizes) > LARGEST:
        return None
    rng = np.random.default_rng(0)
    are_positions = [operator.types[i.type] == ("int64",) for i, _ in pairs]  # such as indices, so 0 is valid
    return [
        array if i.values
        else np.zeros(each, np.int64) if k
        else random_array(rng, v["name"], v["type"], each.tolist())
        for (i, v), array, each, k in zip(pairs, arrays, sizes, are_positions, strict=True)
    ]  # fmt: skip


def known_sizes(declared_input, shape, array):
    """Return an input's shape, with STAND_IN for open dimensions, or the sizes that it holds; None if unknown."""
    if declared_input.values:
        return None if array is None or array.ndim != 1 else array.astype(np.int64)
    if shape is None:
        return None
    return np.array([d if isinstance(d, int) else STAND_IN for d in shape], np.int64)


# ONNX Runtime's built-in kernel


def try_builtin(model, node, operator, inputs, arrays, lack):
    """Try ONNX Runtime's built-in kernel on the node alone; return "runs it", or the reason why not.

    lack  the reason to make a session without running it; or ""
    """
    if not (builtin_schema := builtin_operators().get((operator.domain, operator.name))):
        return "refuses it: has no such operator"
    version, first = imports(model).get(operator.domain), builtin_schema.since_version
    if version is not None and version < first:
        return f"refuses it: has it from version {first} on, the model imports {version}"
    if not all(v["type"] for v in inputs if v["name"]):
        return "not tried: types are unknown"
    lone_model = node_alone(model, node, inputs)
    try:
        builtin = Runner(lone_model, backend="builtin", threads=None)
        names_of_inputs = list(builtin.inputs)
        if lack:
            return f"makes a session of it; not run: {lack}"
        feeds = dict(zip(names_of_inputs, arrays, strict=True))
        outputs = builtin(feeds)
    except Exception as error:
        pairs = [(i, v["type"]) for i, v in zip(operator.inputs, inputs, strict=False) if not i.values]
        unusual = [f"{its_type} {i.name}" for i, its_type in pairs
                   if its_type not in (None, "float32") and len(operator.types[i.type]) > 1]  # fmt: skip
        if unusual and any(text in str(error) for text in NO_KERNEL):
            return f"refuses it: no kernel for {' and '.join(unusual)}"
        return f"refuses it: {one_line(error).partition(' node with name')[0]}"
    try:
        own_outputs = Runner(lone_model, threads=None)(feeds)
    except Exception as error:
        return f"runs it; onnx_ops does not: {one_line(error)}"
    found = difference(*outputs.values(), *own_outputs.values())
    return "runs it" if found.ok else f"runs it, wrong: {found.problem or f'off by {found.largest:.2g}'}"


def node_alone(model, node, inputs):
    """Return a model with a copy of this node alone, as bytes. Its inputs are those of the node."""
    names_in = [f"input_{k}" if v["name"] else "" for k, v in enumerate(inputs)]
    described = [
        helper.make_tensor_value_info(name, dtypes.TABLE[v["type"]].onnx, v["shape"])
        for name, v in zip(names_in, inputs, strict=True) if name
    ]  # fmt: skip
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    del copy.input[:], copy.output[:]
    copy.input.extend(names_in)
    copy.output.append("output")
    output = helper.make_tensor_value_info("output", described[0].type.tensor_type.elem_type, None)
    graph = helper.make_graph([copy], "alone", described, [output])
    imports = [i for i in model.opset_import if i.domain != EXTENSIONS]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=model.ir_version)
    return proto.SerializeToString()


# Output


def show(model, reports, unknown_operators, obstacle):
    if reports:
        rows = [(r.node, r.operator, tensors(r), r.builtin or "not tried") for r in reports]
        table(str(model), ("node", "operator", "tensors", "ONNX Runtime alone"), rows)
    problems = [(r.node, problem) for r in reports for problem in r.problems]
    for node, problem in problems:
        say(f"{node}: {problem}", "bold red")
    if unknown_operators:
        counted_nodes = (f"{title} ({count} node{'s' * (count > 1)})" for title, count in unknown_operators.items())
        say(f"neither ONNX Runtime nor onnx_ops has {', '.join(counted_nodes)}", "bold red")
    if obstacle and not any(problem in obstacle for _, problem in problems):
        say(f"no session can be made: {obstacle}", "bold red")
    say(summary(reports, obstacle) if reports else f"{model}: {without_nodes(model, obstacle)}.")


def show_patterns(patterns):
    """Print one line on the patterns that `onnx-ops optimize` would replace."""
    if patterns:
        stays = counted(patterns, replaced=False)
        text = f"onnx-ops optimize would replace {counted(patterns) or 'nothing'}"
        say(f"{text}; not {stays} (reasons: --json)" if stays else text)


def advice(model, reports, unknown_operators, obstacle, patterns):
    """Return the next step with a model."""
    has_problems, imported = any(r.problems for r in reports), imported_domains(model)
    cli = program_with_operators()
    if unknown_operators and not has_problems:
        has_python_ops = EXTENSIONS in imported and not extensions_obstacle()
        files = f"the file with their {'@onnx_op functions' if has_python_ops else 'declarations'}"
        own = f"declare these operators (docs/custom-operators.md) and pass {files} (--operators FILE)"
        return f"{own}, or export without them"
    if obstacle or has_problems:
        return "fix the problems above, or export the model again"
    if is_lowered(model):
        return f"run it with {cli} run --random --backend extensions"
    gains = any(f.operator for f in patterns)
    if not (reports or gains):
        return "nothing: onnx_ops changes nothing for this model"
    options = ", options" if needs_extensions(imported, available()) else ""  # docs/backends.md shows them
    more = options + (", operators=[...]" if named_files() and custom_operators() else "")
    call = f"onnx_ops.InferenceSession(path{more}{', optimize=True' if gains else ''})"
    call += ", with the library of onnxruntime-extensions on its options (docs/backends.md)" if options else ""
    peer = "reference" if any(r.builtin.startswith("refuses") for r in reports) else "builtin"
    return f"{call}; to test it: {cli} bench, {cli} run --random{' --optimize' if gains else ''} --compare {peer}"


def tensors(report):
    """Return the types and shapes of the inputs that a node has, without its lists of sizes."""
    operator = next((o for o in available().values() if o.title == report.operator), None)
    sizes = [k for k, i in enumerate(operator.inputs) if i.values] if operator else []
    return ", ".join(type_and_shape(v) for k, v in enumerate(report.inputs) if v["name"] and k not in sizes)


def type_and_shape(described):
    """Return the text of an input's type and shape: float32 [N, 3, ?]"""
    shape = ["..."] if described["shape"] is None else described["shape"]
    return f"{described['type'] or '?'} {dimensions(shape)}"


def summary(reports, obstacle):
    """Return one line on the number of nodes that onnx_ops runs, and that ONNX Runtime alone runs."""
    count, faulty = len(reports), sum(bool(r.problems) for r in reports)
    failed = sum(r.builtin.startswith(("refuses", "runs it, wrong")) for r in reports)
    tried = sum(r.builtin.startswith(("refuses", "runs")) for r in reports)
    if not obstacle:
        own = f"onnx_ops runs {count - faulty} of {count} without problems"
    else:
        own = f"{faulty} of {count} nodes {'has a problem of its own' if faulty == 1 else 'have problems of their own'}"
    if failed:
        alone = f"refuses {failed} of the {count} or gets them wrong"
    else:
        alone = "would run them, too" if tried else "ran none of them"
    limit = ", as far as it was tried" if 0 < tried < count else ""
    return f"{own}; ONNX Runtime alone {alone}{limit}"


def without_nodes(model, obstacle):
    """Return one line on a model without nodes for onnx_ops."""
    if obstacle:
        return "none of its nodes are for onnx_ops"
    end = f"those of {EXTENSIONS} run with backend extensions" if is_lowered(model) else "it runs as without onnx_ops"
    return f"none of its nodes are for onnx_ops; {end}"
