"""Finds what the values of a graph are, the outermost ones first, and replaces what computes
them.
"""

import math
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from ..declaration.errors import escaped
from . import trial
from .finding import NOT_RUN, Finding, NearMiss
from .graph import FLOATS, Graph
from .patterns import (
    deform_conv,
    deformable_attention,
    fold,
    grid_sample,
    im2col_product,
    sampler,
    unfold,
)
from .reading import reader_of
from .reading.affine import Unknown
from .reading.forms import Element, Exhausted, Form
from .reading.reader import Reader
from .reshapes import states_its_shape
from .sizes import quotient
from .versions import AI_ONNX
from .windows import between

if TYPE_CHECKING:
    from typing import Protocol

    class Match(Protocol):
        """An operator that computes a value.

        operator  its name
        sources   the values that it reads
        """

        operator: str
        sources: Collection[str]

        def replacement(self, graph: Graph, node: onnx.NodeProto) -> dict[str, Any]:
            """Return the arguments of `Graph.replace` for the node that makes the value.

            Raises NearMiss.
            """

    Matcher = Callable[[Reader, str, Form], Match | None]


PATTERNS = (
    deformable_attention,
    deform_conv,
    sampler,
    grid_sample,
    unfold,
    fold,
    im2col_product,
)
# Those of which a Reshape may make another shape if there are no elements: then it fails, or makes
# no samples.
SAMPLING = {deform_conv.NAME, sampler.NAME}
BEGINNINGS = {  # types of nodes that windows, folds and pixels are written with
    "ConvTranspose", "Gather", "GatherElements", "GatherND", "GridSample", "Im2Col",
    "ScatterElements", "ScatterND",
}  # fmt: skip
LARGE = 2**16  # elements of a value from which on it is said why its node stays
STAYING = "GridSample", "Im2Col"  # beginnings that onnx_ops runs as they are
NO_OPERATOR = "what becomes of its elements is no unfold, fold, product of windows or sampler"
MOST_TRIED = 20  # replacements of a model
STACKS = {"Concat": 3, "SequenceConstruct": 3}  # {type: inputs from which on it is a beginning}
ENDS = {  # types of nodes that end what is found
    "Add", "Concat", "Conv", "ConvTranspose", "Div", "Einsum", "FusedMatMul", "Gather",
    "GatherElements",
    "GatherND", "GridSample", "MatMul", "Mul", "ReduceMean", "ReduceSum", "Reshape",
    "ScatterElements", "ScatterND",
    "Slice", "Squeeze", "Sub", "Sum", "Transpose", "Unsqueeze", "Where",
}  # fmt: skip


class Search:
    """The search of one graph."""

    def __init__(self, graph: Graph, patterns: Sequence[ModuleType] = PATTERNS):
        self.graph = graph
        self.matchers: Mapping[str, Matcher] = {module.NAME: module.match for module in patterns}
        self.reader = reader_of(graph)
        self.findings: list[Finding] = []
        self._replaced: set[str] = set()  # values that are found
        self._near: dict[
            int, Collection[str]
        ] = {}  # {number of a near miss: values that it consists of}
        self._explained: set[str] = set()  # values of near misses

    def run(self) -> list[Finding]:
        """Replace what is found, and return the findings. The graph's nodes must be in order."""
        marked = marked_values(self.graph, self.reader)
        for node in reversed([*self.graph.owner.node]):
            name = node.output[0] if node.output else ""
            is_there = self.graph.producers.get(name) is node
            if name not in marked or not is_there or node.op_type not in ENDS:
                continue
            try:
                self._look_at(node, name)
            except Exhausted as reason:
                self._report(node, "search", reason=str(reason))
                break
        if not self.graph.model.runs_nodes:
            self._explain()
        return [
            finding
            for k, finding in enumerate(self.findings)
            if self._replaced.isdisjoint(self._near.get(k, ()))
        ]

    def _explain(self) -> None:
        """Report why nodes stay that move many elements by indices, add them up, or stack them."""
        for node in self.graph.owner.node:
            name = node.output[0] if node.output else ""
            is_asked = is_beginning(self.graph, node) and node.op_type not in STAYING
            if not name or name in self._explained or not is_asked:
                continue
            tensor = self.graph.type(name)
            is_small = tensor.shape and tensor.count < LARGE
            if is_small or tensor.elements not in FLOATS or self.graph.is_constant(name):
                continue
            why = self.reader.failed.get(name)
            unread = f"how it moves elements is not known: {why}" if why else ""
            self._report(node, node.op_type, reason=unread or NO_OPERATOR)

    def _look_at(self, node: onnx.NodeProto, name: str) -> None:
        """Replace a node, or report why not."""
        try:
            form = self.reader.whole(name)
        except Unknown:
            form = self.reader.forms.element(name, ())
        is_unknown = isinstance(form, Element) and form.root == name
        may_read_found = node.op_type in ("Conv", "GridSample")
        if is_unknown and not may_read_found:
            return
        free = self.reader.forms.free(form)
        if len({variable.name for variable in free}) < len(free):
            self._report(node, "search", reason="an axis has two sizes, of which one isn't known")
            return
        near: tuple[str, str] | None = None
        inside: Collection[str] = self.reader.forms.occurrences[form].keys()
        has_shape = node.op_type != "Reshape" or states_its_shape(self.graph, node)
        for pattern, matcher in self.matchers.items():
            if not has_shape and pattern not in SAMPLING:
                continue
            try:
                match = matcher(self.reader, name, form)
                if match is not None:
                    self._replace(node, name, pattern, match)
                    return
            except (NearMiss, Unknown) as miss:
                if near is None and isinstance(miss, NearMiss) and miss.sources:
                    inside = between(self.graph, name, miss.sources)
                near = near or (pattern, str(miss))
            except Exhausted:
                raise
            except Exception as error:  # the model is right as it is
                where = f"{pattern} at {node.name or name} of {self.graph.title}"
                reason = f"{type(error).__name__}: {error}"
                text = f"onnx_ops: {where} was not optimized, for {reason}"
                warnings.warn(escaped(text), stacklevel=2)
            finally:
                self.graph.sweep_added()
        if near is not None and name not in self._explained:
            roots = {f.root for f in self.reader.forms.walk(form) if isinstance(f, Element)}
            region = between(self.graph, name, roots)
            self._explained |= region
            self._near[len(self.findings)] = inside
            self._report(node, near[0], reason=near[1] + self._hope({*region, *roots}))

    def _hope(self, values: Collection[str]) -> str:
        """Return a text for a constant among values that is not known, since no nodes run; or
        none.
        """
        graph = self.graph
        for value in () if graph.model.runs_nodes else sorted(values):
            if graph.is_constant(value) and graph.array(value) is None:
                return f"; optimize first computes {value}, and may replace it"
        return ""

    def _replace(self, node: onnx.NodeProto, name: str, pattern: str, match: "Match") -> None:
        graph = self.graph
        replacement = match.replacement(graph, node)
        key = "onnx_ops", match.operator
        if key in graph.model.custom:
            raise NearMiss(f"{match.operator} is another operator in this session")
        added = [graph.producers[name] for name in graph.added if name in graph.producers]
        names = {
            *replacement["inputs"],
            *(operand for new_node in added for operand in new_node.input),
        }
        order = self.reader.order
        later = {operand for operand in names if order.get(operand, -1) >= order[name]}
        if later and not later <= between(graph, name, ()):
            raise NearMiss("it would read a value that is computed later")
        untried = self._tried(match, node, replacement)
        self._explained |= between(graph, name, match.sources)
        graph.replace(node, **replacement)
        self._replaced.add(name)
        self._report(node, pattern, operator=match.operator, untried=untried)

    def _tried(
        self, match: "Match", node: onnx.NodeProto, replacement: Mapping[str, Any]
    ) -> str | None:
        """Try a replacement, each distinct one once; return why not, or None.

        Raises NearMiss if it differs.
        """
        graph = self.graph
        if not graph.model.runs_nodes:
            return NOT_RUN
        added = [graph.producers[name] for name in graph.added if name in graph.producers]
        nodes = [(new_node.op_type, sorted(map(str, new_node.attribute))) for new_node in added]
        settings = {k: v for k, v in replacement.items() if k not in ("inputs", "finding")}
        shapes = [graph.type(name) for name in sorted(match.sources)]
        key = repr((nodes, sorted(settings.items()), shapes))
        tried = graph.model.tried
        if key not in tried:
            if len(tried) == MOST_TRIED:
                return f"{MOST_TRIED} others were run beside the nodes that they replace"
            tried[key] = trial.tried_out(graph, node, replacement)
        return tried[key]

    def _report(self, node: onnx.NodeProto, pattern: str, **result: str | None) -> None:
        title = node.name or node.output[0]
        self.findings.append(Finding(pattern, self.graph.title, title, **result))


def may_find(op_types: Collection[str]) -> bool:
    """Return whether a graph of these types of nodes may have what is searched for."""
    return not {*BEGINNINGS, *STACKS, "Conv"}.isdisjoint(op_types)


def marked_values(graph: Graph, reader: Reader) -> set[str]:
    """Return the values that what is to be found goes into, in one pass: only these are read."""
    marked: set[str] = set()
    for node in graph.owner.node:
        is_read = node.domain in AI_ONNX and node.op_type in (*reader.table, "QuantizeLinear")
        if is_beginning(graph, node) or (is_read and not marked.isdisjoint(node.input)):
            marked.update(node.output)
    return marked


def is_beginning(graph: Graph, node: onnx.NodeProto) -> bool:
    """Return whether a node is of those that windows, folds and pixels are written with.

    Of convolutions, those with as many weights that aren't 0 as channels of their output.
    """
    if node.op_type == "Conv":
        shape = graph.type(node.input[1]).shape if len(node.input) == 2 else None
        # Whatever the weights are, which it takes time to read.
        if not shape or math.prod(shape[2:]) == 1 or not quotient(shape[0], math.prod(shape[1:])):
            return False
        weights = graph.folded(node.input[1])
        return weights is not None and np.count_nonzero(weights) == len(weights)
    return node.op_type in BEGINNINGS or len(node.input) >= STACKS.get(node.op_type, 2**31)


def search(graph: Graph) -> list[Finding]:
    """Replace what is found in a graph, and return the findings."""
    findings = Search(graph).run()
    if any(finding.operator == "GridSample" for finding in findings):  # nodes may make its grid
        more = Search(graph, (grid_sample,)).run()
        findings += [finding for finding in more if finding not in findings]
    return findings
