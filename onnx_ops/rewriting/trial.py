"""A replacement is tried out before it is made: the nodes and what replaces them run side by side
on random inputs.

ONNX Runtime runs the nodes, onnx's evaluator with the operators' references what replaces them, so
nothing is compiled. References run GridSample, too: built-in kernels are wrong far outside of the
image. 16-bit floats are float32 in both, since nodes round each step to 16 bits. Elements where the
nodes' result jumps, since inputs that are nearly the same change it as much, don't count.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ..declaration import dtypes
from ..declaration.errors import OpError
from ..model.nodes import subgraphs
from ..model.small_models import model_of
from ..sampling.computed_points import CAST_BFLOAT16, CAST_FLOAT16
from .finding import NearMiss
from .folding import run_onnx_runtime, run_reference
from .gain import PRODUCTS, seconds_of
from .graph import FLOATS, Graph
from .probing import Sizes
from .reading import TABLE
from .reading.affine import Array
from .reading.forms import CASTS, FORMULAS
from .reading.reader import attributes_of
from .versions import AI_ONNX

MOVES = {name for name, rule in TABLE.items() if rule.moves}
RUN = *AI_ONNX, "com.microsoft"  # domains of ONNX Runtime's nodes
ROUNDINGS = CAST_FLOAT16, CAST_BFLOAT16  # steps of programs
# Bytes of all values, and an estimate of the time, from which on nothing is tried out.
MEMORY, SECONDS = (
    2**26,
    0.2,
)
INTEGERS = {dtypes.TABLE[name].onnx for name in dtypes.INTEGERS}
MANY = 100  # elements
DRAWS = (
    3  # of sizes where these are open, else of values; fewer if they would need more than SECONDS
)
# Of the largest element; of inputs, some hundred times what rounding changes.
TOLERANCE, NUDGE = (
    1e-3,
    3e-5,
)
NUDGES = 2  # in one, the changes of large numbers that cancel each other may do so, too


def tried_out(graph: Graph, node: onnx.NodeProto, replacement: Mapping[str, Any]) -> str | None:
    """Run what computes a node's result and what replaces it.

    Return why they were not run, or None. Raises NearMiss if the results differ.
    """
    try:
        Trial(graph, node, replacement).run()
    except Untried as reason:
        return str(reason)
    return None


class Untried(Exception):  # noqa: N818  it is no error
    """Why nothing is tried out."""


class Trial:
    """A node's result, and an operator in place of what computes it.

    nodes      that compute the result
    replacing  the operator, behind nodes that bring its inputs into order
    drawn      values that are drawn by chance, of what both read
    before     nodes that compute the others, which depend on these
    computed   the others
    """

    def __init__(self, graph: Graph, node: onnx.NodeProto, replacement: Mapping[str, Any]):
        self.graph = graph
        self.output = node.output[0]
        inputs = _leaves(graph, replacement["inputs"])
        self.computed = [name for name in inputs if _depends(graph, name, {*inputs} - {name})]
        drawn = [name for name in inputs if name not in self.computed]
        added, _ = _between(graph, replacement["inputs"], inputs)
        self.nodes, unknown = _between(graph, [self.output], inputs)
        self.before, own = _between(graph, self.computed, drawn)
        self.drawn = [*dict.fromkeys((*drawn, *unknown, *own))]
        settings = {k: v for k, v in replacement.items() if k not in ("version", "finding")}
        self.replacing = [*added, helper.make_node(outputs=node.output[:1], **settings)]
        if any(_may_end_the_process(graph, inner) for inner in self.nodes):
            raise Untried("ONNX Runtime may not survive a division of integers")
        if {*ROUNDINGS}.intersection(replacement.get("steps", ())[::4]):
            raise Untried("its coordinates are rounded to 16 bits")

    def run(self) -> None:
        """Run both on several inputs. Raises NearMiss, Untried."""
        seconds = 0.0
        for seed in range(DRAWS):
            draw = Sizes(seed)
            size, more_seconds = self._needs(draw)
            seconds += more_seconds
            if seed and seconds > SECONDS:
                break
            if size > MEMORY or seconds > SECONDS:
                raise Untried(f"it needs some {size / 2**20:.0f} MB and {seconds:.1f} s")
            feeds = self._inputs(draw)
            expected = self._expected(feeds)
            with np.errstate(all="ignore"):
                difference = np.abs(self._replaced(feeds) - expected)
            is_near = difference <= TOLERANCE * np.abs(expected).max(initial=1e-30)
            if not is_near.all():
                is_near |= difference <= 2 * self._jumps(feeds, expected)
            if not is_near.all():
                raise NearMiss(f"run side by side, the results differ by {difference.max():.3g}")

    def _needs(self, draw: Sizes) -> tuple[int, float]:
        """Return (bytes, seconds) that running both needs, by an estimate."""
        size = 0
        seconds = 0.0
        for node in (*self.nodes, *self.before):
            for name in node.output:
                count = math.prod(_sizes(self.graph, name, draw))
                size += 8 * count
                products = (
                    PRODUCTS["Conv"](_sizes(self.graph, node.input[1], draw))
                    if node.op_type == "Conv"
                    else 0
                )
                seconds += seconds_of(node, count, products)
        count = math.prod(_sizes(self.graph, self.output, draw))
        return size, seconds + seconds_of(self.replacing[-1], count)

    def _inputs(self, draw: Sizes) -> dict[str, Array]:
        """Return inputs of both."""
        feeds = _feeds(self.graph, self.drawn, draw)
        with _failing("the nodes fail"):
            return feeds | {name: _value_of(self.graph, feeds, name) for name in self.computed}

    def _expected(self, feeds: Mapping[str, Array]) -> Array:
        """Return the result of the nodes."""
        with _failing("the nodes fail"):
            return _run_nodes(self.graph, self.nodes, feeds, self.output)

    def _replaced(self, feeds: dict[str, Array]) -> Array:
        """Return the result of the operator. Raises NearMiss if it refuses its inputs."""
        with _failing("the replacement fails"):
            proto = _model(self.graph, self.replacing, feeds, self.output)
            try:
                return run_reference(proto, feeds, self.output)
            except OpError as error:
                raise NearMiss(f"run side by side, the replacement fails: {error}") from None

    def _jumps(self, feeds: Mapping[str, Array], expected: Array) -> Array:
        """Return how far elements of the result change if the inputs are changed a little, up and
        down.
        """
        jumps = np.zeros(expected.shape)
        rng = np.random.default_rng(0)
        for _ in range(NUDGES):
            fractions = {
                name: NUDGE * rng.uniform(-1, 1, array.shape) for name, array in feeds.items()
            }
            for sign in (1, -1):
                nudged = {
                    name: np.asarray(array * (1 + sign * fractions[name]), array.dtype)
                    for name, array in feeds.items()
                }
                jumps = np.fmax(jumps, np.abs(self._expected(nudged) - expected))
        return jumps


@contextmanager
def _failing(title: str) -> Iterator[None]:
    """Turn an exception into Untried."""
    try:
        yield
    except (NearMiss, Untried):
        raise
    except Exception as error:
        raise Untried(f"on random inputs, {title}: {error}") from None


def _depends(graph: Graph, name: str, sources: Collection[str]) -> bool:
    """Return whether a value is computed from others."""
    nodes, _ = _between(graph, [name], sources)
    return any(any(operand in sources for operand in node.input) for node in nodes)


def _may_end_the_process(graph: Graph, node: onnx.NodeProto) -> bool:
    """Return whether a node divides integers by what may be 0, or -1."""
    if node.op_type not in ("Div", "Mod") or graph.type(node.input[0]).elements not in INTEGERS:
        return False
    divisor = graph.folded(node.input[1])
    return divisor is None or not bool(np.all(divisor > 0))


def _run_nodes(
    graph: Graph, nodes: Collection[onnx.NodeProto], feeds: Mapping[str, Array], output: str
) -> Array:
    """Return the result of nodes."""
    feeds = dict(feeds)
    for sampler in (node for node in nodes if node.op_type == "GridSample"):
        for name in sampler.input:
            if _between(graph, [name], feeds)[0]:
                feeds[name] = _value_of(graph, feeds, name)
        (result,) = sampler.output
        with np.errstate(all="ignore"):
            feeds[result] = run_reference(_model(graph, [sampler], feeds, result), feeds, result)
    return feeds[output] if output in feeds else _value_of(graph, feeds, output)


def _value_of(graph: Graph, feeds: Mapping[str, Array], output: str) -> Array:
    """Return a value that ONNX Runtime computes."""
    nodes, _ = _between(graph, [output], feeds)
    computed = {name for node in nodes for name in node.output}
    feeds = {name: array for name, array in feeds.items() if name not in computed}
    return run_onnx_runtime(_model(graph, nodes, feeds, output), feeds, output)


def _leaves(graph: Graph, names: Sequence[str]) -> list[str]:
    """Return the values that a replacement reads, given the names of its inputs.

    Not what was added, nor vectors and single numbers, as these may come from sizes, nor what
    FORMULAS make of others. Sums are drawn as they are: in another order of their many operands
    they are rounded otherwise.
    """
    leaves: dict[str, None] = {}
    pending = [*names]
    for name in pending:
        node, shape = graph.producers.get(name), graph.type(name).shape
        may_be_size = (
            shape is not None
            and len(shape) < 2
            and node is not None
            and "Reduce" not in node.op_type
        )
        if node is not None and (name in graph.added or may_be_size):
            pending += [operand for operand in node.input if operand not in pending]
        elif name == names[0] or graph.folded(name) is None:  # an image may be any
            leaves[name] = None
    reads_others = lambda name: _between(
        graph, [name], leaves.keys() - {name}, {*FORMULAS, "Sum", *MOVES}
    )[1]
    return [name for name in leaves if graph.is_constant(name) or reads_others(name)]


def _between(
    graph: Graph, outputs: Iterable[str], inputs: Iterable[str], op_types: Collection[str] = ()
) -> tuple[list[onnx.NodeProto], Iterable[str]]:
    """Return (the nodes from these values to outputs, other values that they read). op_types: only
    these, if any.
    """
    numbers: set[int] = set()
    unmade: dict[str, None] = {}
    pending = [*outputs]
    seen = {"", *inputs}
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        node = graph.producers.get(name)
        if graph.is_constant(name) and (node is None or node.op_type == "Constant"):
            continue
        if (
            node is None
            or any(subgraphs(node))
            or (op_types and node.op_type not in op_types)
            or not (node.domain in RUN or name in graph.added)
        ):
            unmade[name] = None
        else:
            numbers.add(id(node))
            pending += node.input
    return [node for node in graph.owner.node if id(node) in numbers], unmade


def _sizes(graph: Graph, name: str, draw: Sizes) -> list[int]:
    """Return the shape of a value, with numbers that are drawn for open sizes. Raises Untried."""
    dimensions = graph.type(name).shape
    if dimensions is None:
        raise Untried(f"the shape of {name} is not known")
    return [max(0, draw.size(size)) for size in dimensions]


def _feeds(graph: Graph, names: Sequence[str], draw: Sizes) -> dict[str, Array]:
    """Draw inputs, the first of them the image."""
    rng = draw.rng
    feeds = {}
    for k, name in enumerate(names):
        elements = graph.type(name).elements
        dimensions = _sizes(graph, name, draw)
        if elements not in (*FLOATS, *INTEGERS):
            raise Untried(f"{name} is not known to be of a type of numbers")
        array = rng.standard_normal(dimensions)
        if elements in INTEGERS:
            array = np.rint(np.abs(array) * 100)
        elif k:  # inside, outside, on the edge, and far from it
            choice, reach = rng.integers(0, 10, dimensions), max([2, *dimensions])
            array = np.where(choice < 3, rng.uniform(-reach, reach, dimensions), array)
            array = np.where(choice == 3, np.rint(array), array)
            if array.size >= MANY:  # of a matrix, a large number takes nearly all points outside
                array = np.where(choice == 4, array * 1000, array)
        feeds[name] = _widened(array.astype(graph.type(name).dtype))
    return feeds


def _widened(array: Array) -> Array:
    """Return an array of 16-bit floats as float32, in which these are tried out."""
    return (
        array.astype(np.float32)
        if array.dtype.itemsize == 2 and array.dtype.kind not in "iu"
        else array
    )


def _without_rounding(graph: Graph, node: onnx.NodeProto) -> onnx.NodeProto:
    """Return a node that doesn't round: to 16 bits, or again by the step by which its elements were
    rounded.
    """
    if node.op_type == "Cast" and attributes_of(node)["to"] in CASTS:
        return helper.make_node("Cast", node.input, node.output, to=TensorProto.FLOAT)
    if node.op_type in ("QuantizeLinear", "DequantizeLinear") and not graph.is_constant(
        node.input[0]
    ):
        return helper.make_node("Identity", node.input[:1], node.output)
    return node


def _model(
    graph: Graph, nodes: Iterable[onnx.NodeProto], feeds: Mapping[str, Array], output: str
) -> onnx.ModelProto:
    """Return a model of these nodes and the constants that they read."""
    nodes = [_without_rounding(graph, node) for node in nodes]
    computed = {name for node in nodes for name in node.output}
    names = dict.fromkeys(
        name
        for node in nodes
        for name in node.input
        if name and name not in feeds and name not in computed
    )
    constants = []
    for name in names:
        array = graph.folded(name)
        if array is None:
            raise Untried(f"{name} is not known")
        constants.append(numpy_helper.from_array(_widened(array), name))
    outputs = [helper.make_empty_tensor_value_info(output)]
    imports = graph.model.imports | {"onnx_ops": 1, "com.microsoft": 1}
    return model_of(nodes, feeds, outputs, imports, max(4, graph.model.proto.ir_version), constants)
