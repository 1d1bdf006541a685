"""A replacement is tried out before it is made: the nodes and what replaces them run side by side on random inputs.

ONNX Runtime runs the nodes, onnx's evaluator with the operators' references what replaces them, so nothing is compiled.
References run GridSample, too: built-in kernels are wrong far outside of the image.
16-bit floats are float32 in both, since nodes round each step to 16 bits.
Elements where the nodes' result jumps, since inputs that are nearly the same change it as much, don't count.
"""

import math

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from ..declaration import dtypes
from ..declaration.errors import OpError
from ..model.nodes import subgraphs
from ..model.small_models import model_of
from ..sampling.computed_points import CAST_BFLOAT16, CAST_FLOAT16
from .finding import NearMiss
from .graph import AI_ONNX, FLOATS, run_onnx_runtime, run_reference
from .probing import Sizes
from .reading import TABLE
from .reading.forms import CASTS, FORMULAS
from .reading.reader import attributes_of

MOVES = {name for name, rule in TABLE.items() if rule.moves}
ROUNDINGS = CAST_FLOAT16, CAST_BFLOAT16  # steps of programs
MEMORY, SECONDS = 2**26, 0.2  # bytes of all values, and an estimate of the time, from which on nothing is tried out
INTEGERS = {dtypes.TABLE[name].onnx for name in dtypes.INTEGERS}
PER_ELEMENT, PER_PRODUCT = 5e-9, 5e-10  # seconds
DRAWS = 3  # of sizes where these are open, else of values
TOLERANCE, NUDGE = 1e-3, 1e-5  # of the largest element; of inputs


def tried_out(graph, node, replacement):
    """Run what computes a node's result and what replaces it.

    Return why they were not run, or None. Raises NearMiss if the results differ.
    """
    inputs, output = _leaves(graph, replacement["inputs"]), node.output[0]
    computed = [name for name in inputs if _depends(graph, name, {*inputs} - {name})]
    drawn = [name for name in inputs if name not in computed]
    try:
        added, _ = _between(graph, replacement["inputs"], inputs)
        nodes, more = _between(graph, [output], inputs)
        before, own = _between(graph, computed, drawn)
        if any(_may_end_the_process(graph, each) for each in nodes):
            raise Untried("ONNX Runtime may not survive a division of integers")
        if {*ROUNDINGS}.intersection(replacement.get("steps", ())[::4]):
            raise Untried("its coordinates are rounded to 16 bits")
        settings = {k: v for k, v in replacement.items() if k not in ("version", "finding")}
        made = helper.make_node(outputs=node.output[:1], **settings)
        for seed in range(DRAWS):
            feeds = _feeds(graph, [*dict.fromkeys((*drawn, *more, *own))], [*nodes, *before], seed)
            try:
                feeds |= {name: _run(graph, feeds, name) for name in computed}
                after = _model(graph, [*added, made], feeds, output)
                nudged = {name: np.asarray(array * (1 + NUDGE), array.dtype) for name, array in feeds.items()}
                expected, other = (_run_nodes(graph, nodes, each, output) for each in (feeds, nudged))
            except Untried:
                raise
            except Exception as error:
                raise Untried(f"on random inputs, the nodes fail: {error}") from None
            jumps = np.abs(other - expected)
            try:
                with np.errstate(all="ignore"):
                    difference = np.abs(run_reference(after, feeds, output) - expected)
            except OpError as error:
                raise NearMiss(f"run side by side, the replacement fails: {error}") from None
            except Exception as error:
                raise Untried(f"on random inputs, the replacement fails: {error}") from None
            limit = TOLERANCE * np.abs(expected).max(initial=1e-30)
            if not (difference <= np.maximum(limit, 2 * jumps)).all():
                raise NearMiss(f"run side by side, the results differ by {difference.max():.3g}")
    except Untried as reason:
        return str(reason)
    return None


def _depends(graph, name, others):
    """Return whether a value is computed from others."""
    nodes, _ = _between(graph, [name], others)
    return any(not others.isdisjoint(node.input) for node in nodes)


def _may_end_the_process(graph, node):
    """Return whether a node divides integers by what may be 0, or -1."""
    if node.op_type not in ("Div", "Mod") or graph.type(node.input[0]).elements not in INTEGERS:
        return False
    divisor = graph.folded(node.input[1])
    return divisor is None or not np.all(divisor > 0)


def _run_nodes(graph, nodes, feeds, output):
    """Return the result of nodes."""
    feeds = dict(feeds)
    for sampler in (node for node in nodes if node.op_type == "GridSample"):
        for name in sampler.input:
            if _between(graph, [name], feeds)[0]:
                feeds[name] = _run(graph, feeds, name)
        (result,) = sampler.output
        with np.errstate(all="ignore"):
            feeds[result] = run_reference(_model(graph, [sampler], feeds, result), feeds, result)
    return feeds[output] if output in feeds else _run(graph, feeds, output)


def _run(graph, feeds, output):
    """Return a value that ONNX Runtime computes."""
    nodes, _ = _between(graph, [output], feeds)
    made = {name for node in nodes for name in node.output}
    feeds = {name: array for name, array in feeds.items() if name not in made}
    return run_onnx_runtime(_model(graph, nodes, feeds, output), feeds, output)


class Untried(Exception):  # noqa: N818  it is no error
    """Why nothing is tried out."""


def _leaves(graph, names):
    """Return the values that a replacement reads, given the names of its inputs.

    Not what was added, nor vectors and single numbers, as these may come from sizes, nor what FORMULAS make of others.
    """
    leaves, pending = {}, [*names]
    for name in pending:
        node, shape = graph.producers.get(name), graph.type(name).shape
        if node is not None and (name in graph.added or (shape is not None and len(shape) < 2)):
            pending += [each for each in node.input if each not in pending]
        elif name == names[0] or graph.folded(name) is None:  # an image may be any
            leaves[name] = None
    others = lambda name: _between(graph, [name], leaves.keys() - {name}, {*FORMULAS, "Sum", *MOVES})[1]
    return [name for name in leaves if graph.is_constant(name) or others(name)]


def _between(graph, outputs, inputs, op_types=()):
    """Return (the nodes from these values to outputs, other values that they read). op_types: only these, if any."""
    found, more, pending, seen = set(), {}, [*outputs], {"", *inputs}
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        node = graph.producers.get(name)
        if graph.is_constant(name) and (node is None or node.op_type == "Constant"):
            continue
        is_run = node is not None and (node.domain in (*AI_ONNX, "com.microsoft") or name in graph.added)
        is_known = is_run and not any(subgraphs(node))
        if not is_known or (op_types and node.op_type not in op_types):
            more[name] = None
        else:
            found.add(id(node))
            pending += node.input
    return [node for node in graph.owner.node if id(node) in found], more


def _feeds(graph, names, nodes, seed):
    """Draw inputs, the first of them the image. Open sizes are drawn, too."""
    draw = Sizes(seed)
    rng = draw.rng

    def sizes(name):
        dimensions = graph.type(name).shape
        if dimensions is None:
            raise Untried(f"the shape of {name} is not known")
        return [max(0, draw.size(size)) for size in dimensions]

    size, work = 0, 0.0
    for node in nodes:
        for name in node.output:
            count = math.prod(sizes(name))
            size += 8 * count
            work += PER_ELEMENT * count
            if node.op_type == "Conv":
                work += PER_PRODUCT * count * math.prod(sizes(node.input[1])[1:])
    if size > MEMORY or work > SECONDS:
        raise Untried(f"it needs some {size / 2**20:.0f} MB and {work:.1f} s")
    feeds = {}
    for k, name in enumerate(names):
        elements, dimensions = graph.type(name).elements, sizes(name)
        if elements not in (*FLOATS, *INTEGERS):
            raise Untried(f"{name} is not known to be of a type of numbers")
        array = rng.standard_normal(dimensions)
        if elements in INTEGERS:
            array = np.rint(np.abs(array) * 100)
        elif k:  # inside, outside, on the edge, and far from it
            kind, reach = rng.integers(0, 10, dimensions), max([2, *dimensions])
            array = np.where(kind < 3, rng.uniform(-reach, reach, dimensions), array)
            array = np.where(kind == 3, np.rint(array), array)
            array = np.where(kind == 4, array * 1000, array)
        feeds[name] = _widened(array.astype(graph.type(name).dtype))
    return feeds


def _widened(array):
    """Return an array of 16-bit floats as float32, in which these are tried out."""
    return array.astype(np.float32) if array.dtype.itemsize == 2 and array.dtype.kind not in "iu" else array


def _without_rounding(graph, node):
    """Return a node that doesn't round: to 16 bits, or again by the step by which its elements were rounded."""
    if node.op_type == "Cast" and attributes_of(node)["to"] in CASTS:
        return helper.make_node("Cast", node.input, node.output, to=TensorProto.FLOAT)
    if node.op_type in ("QuantizeLinear", "DequantizeLinear") and not graph.is_constant(node.input[0]):
        return helper.make_node("Identity", node.input[:1], node.output)
    return node


def _model(graph, nodes, feeds, output):
    """Return a model of these nodes and the constants that they read."""
    nodes = [_without_rounding(graph, node) for node in nodes]
    made = {name for node in nodes for name in node.output}
    names = dict.fromkeys(
        name for node in nodes for name in node.input if name and name not in feeds and name not in made
    )
    constants = []
    for name in names:
        array = graph.folded(name)
        if array is None:
            raise Untried(f"{name} is not known")
        constants.append(numpy_helper.from_array(_widened(array), name))
    outputs = [helper.make_empty_tensor_value_info(output)]
    imports = {i.domain: i.version for i in graph.model.proto.opset_import} | {"onnx_ops": 1, "com.microsoft": 1}
    return model_of(nodes, feeds, outputs, imports, max(4, graph.model.proto.ir_version), constants)
