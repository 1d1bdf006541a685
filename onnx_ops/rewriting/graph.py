"""A model's graphs, as patterns look at them and change them.

Names are looked up through the graphs around a subgraph. A change overwrites one node and removes
what is then no longer used; everything else stays where it is.
"""

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import uses_external_data

from ..declaration import dtypes
from ..model import external_data
from ..model.nodes import (
    domain_of,
    model_nodes,
    subgraphs,
)
from .folding import computed, is_small
from .models import Model
from .reading import reader_of
from .reading.affine import Array
from .shapes import type_of
from .tensor_types import Type
from .versions import AI_ONNX, OLDEST, is_same, is_valid

FLOATS = {dtypes.TABLE[name].onnx for name in dtypes.FLOATS}  # types of elements
DEEPEST = 60  # nodes on the longest way through what computes a constant
# Types of nodes whose results differ in each run.
RANDOM = {"Bernoulli", "Dropout", "Multinomial", "RandomNormalLike", "RandomUniformLike"}


class Graph:
    """One graph.

    outer      the graph around a subgraph
    node       the node in that graph which has the subgraph
    producers  {value: the node that makes it}
    users      {value: how many inputs of nodes, also in subgraphs, and outputs of the graph it is}
    measured   {value: number of Shape nodes, of the graph as it was, that read it}
    types      {value: its type}, which shapes.py infers
    visited    values that shapes.py is working on
    """

    def __init__(
        self,
        model: Model,
        owner: onnx.GraphProto,
        title: str,
        outer: "Graph | None" = None,
        node: onnx.NodeProto | None = None,
    ):
        self.model = model
        self.owner = owner
        self.title = title
        self.outer = outer
        self.node = node
        self.producers = {name: maker for maker in owner.node for name in maker.output if name}
        self.users = model.uses(owner)
        self.measured = Counter(
            candidate.input[0]
            for candidate in owner.node
            if candidate.op_type == "Shape" and candidate.input
        )
        self.inputs = {value.name for value in owner.input}
        self.stated = {
            value.name: value.type for value in (*owner.value_info, *owner.input, *owner.output)
        }
        self.types: dict[str, Type] = {}
        self.visited: set[str] = set()
        self.initializers = {tensor.name: tensor for tensor in owner.initializer}
        self.versions: dict[str, int] = {}  # {domain: the newest version that an added node is of}
        self.added: list[str] = []  # constants and nodes' outputs since `sweep_added`
        self.reader = reader_of(self)
        self.are_constant: dict[str, bool] = {}  # {value: whether it comes from constants alone}
        self.constants: dict[str, Array | None] = {}  # {value: result of `array` or `folded`}
        self.sound: dict[str | None, bool] = {}  # {output: whether its node is sound}
        self._inside: dict[int, Graph] = {}  # {number of a subgraph: its graph}

    def nested(self) -> "Iterator[Graph]":
        """Yield this graph, then the graphs inside it."""
        yield self
        for node in list(self.owner.node):
            for graph in self.inside(node):
                yield from graph.nested()

    def inside(self, node: onnx.NodeProto) -> "Iterator[Graph]":
        """Yield the graphs inside of a node, each of which is made once."""
        for inner in subgraphs(node):
            if id(inner) not in self._inside:
                title = f"{self.title} / {node.name or node.op_type} / {inner.name}"
                self._inside[id(inner)] = Graph(self.model, inner, title, self, node)
            yield self._inside[id(inner)]

    @property
    def opset(self) -> int:
        """The version of ai.onnx that the model imports."""
        return self.model.imports.get("", 0)

    def home(self, name: str) -> "Graph | None":
        """Return the graph that makes a value, this one or one around it; None if none does."""
        graph: Graph | None = self
        while graph and not (
            name in graph.producers or name in graph.initializers or name in graph.inputs
        ):
            graph = graph.outer
        return graph

    def producer(self, name: str, *op_types: str) -> onnx.NodeProto | None:
        """Return the node of ai.onnx in this graph that makes a value and has one of these types,
        or any; else None.

        None also if the inputs or attributes are not those of its operator, which the session will
        report.
        """
        node = self.producers.get(name)
        if (
            node is None
            or node.domain not in AI_ONNX
            or (op_types and node.op_type not in op_types)
        ):
            return None
        return node if self.is_sound(node) else None

    def is_sound(self, node: onnx.NodeProto) -> bool:
        """Return whether a node has the inputs, outputs and attributes of its operator, and these
        have values here.

        Only the caller of a function knows the value of an attribute that refers to one of the
        function's. And only who declared an operator in place of one of ONNX Runtime's knows what
        it computes.
        """
        name = node.output[0] if node.output else None
        if name not in self.sound:
            self.sound[name] = self._check(node)
        return self.sound[name]

    def _check(self, node: onnx.NodeProto) -> bool:
        domain = domain_of(node)
        is_custom = (domain, node.op_type) in self.model.custom
        if is_custom or any(a.ref_attr_name for a in node.attribute):
            return False
        versions = {domain: self.model.imports[domain]} if domain in self.model.imports else {}
        versions |= dict.fromkeys(AI_ONNX, self.opset)
        return is_valid(node, self.model.proto.ir_version, versions)

    def can_import(self, version: int) -> bool:
        """Return whether the model imports this version of ai.onnx, or can, since its nodes mean
        the same in it.
        """
        proto = self.model.proto
        if self.opset >= version or self.opset < OLDEST or proto.functions:
            return self.opset >= version
        return all(
            is_same(node, self.opset, version)
            for node in model_nodes(proto)
            if node.domain in AI_ONNX
        )

    def type(self, name: str) -> Type:
        """Return the Type of a value."""
        return type_of(self, name)

    def array(self, name: str) -> Array | None:
        """Return a constant as an array; None if it is none, or is in a file and the model's folder
        is unknown.
        """
        graph = self.home(name)
        # A caller may replace an initializer that is an input.
        if graph is None or (name in graph.inputs and name in graph.initializers):
            return None
        tensor = graph.initializers.get(name)
        node = graph.producer(name, "Constant")
        stated = [] if node is None else node.attribute
        if tensor is None and len(stated) != 1:
            return None
        if name not in graph.constants:
            value = tensor or helper.get_attribute_value(stated[0])
            if isinstance(value, TensorProto):
                graph.constants[name] = self._read(value)
            else:
                dtype = {"value_int": "int64", "value_float": "float32"}.get(
                    stated[0].name.removesuffix("s")
                )
                graph.constants[name] = np.asarray(value, dtype) if dtype else None
        return graph.constants[name]

    def _read(self, tensor: TensorProto) -> Array | None:
        try:
            if uses_external_data(tensor):
                if self.model.origin is None:
                    return None
                file = external_data.file_of(
                    external_data.info_of(tensor).location, self.model.origin
                )
                self.model.read[file] += external_data.byte_size(tensor)
                # Tensors that overlap may be many times the file in all.
                if self.model.read[file] > os.path.getsize(file):
                    return None
                tensor = deepcopy(tensor)  # the data stay where they are
                external_data.read_data(tensor, self.model.origin)
            return numpy_helper.to_array(tensor)
        except (OSError, ValueError, TypeError, KeyError):  # the session will report it
            return None

    def folded(self, name: str) -> Array | None:
        """Return a value as an array if it is a constant, or nodes compute it from constants alone;
        else None.
        """
        graph = self.home(name)
        if graph is None or not self.is_constant(name):
            return None
        if name not in graph.constants:
            array = graph.array(name)
            graph.constants[name] = (
                graph._fold(name) if array is None and name in graph.producers else array
            )
        return graph.constants[name]

    def is_constant(self, name: str, depth: int = DEEPEST) -> bool:
        """Return whether a value comes from constants alone, without reading any of them."""
        graph = self.home(name)
        if graph is None or depth == 0:
            return False
        if name not in graph.are_constant:
            node = graph.producer(name)
            graph.are_constant[name] = (
                name in graph.initializers and name not in graph.inputs
            ) or (
                node is not None
                and (node.op_type == "Constant" or len(node.input) > 0)
                and node.op_type not in RANDOM
                and not any(subgraphs(node))
                and all(
                    self.is_constant(operand, depth - 1) for operand in filter(None, node.input)
                )
            )
        return graph.are_constant[name]

    def _fold(self, name: str) -> Array | None:
        if not self.model.runs_nodes:
            self.model.skipped.append(name)
            return None
        node = self.producer(name)
        if node is None or not is_small(node, self._types(node.input), self._types(node.output)):
            return None
        arrays = {operand: self.folded(operand) for operand in filter(None, node.input)}
        feeds = {operand: array for operand, array in arrays.items() if array is not None}
        if not feeds or len(feeds) < len(arrays):
            return None
        return computed(
            node,
            name,
            feeds,
            self._types(node.output),
            self.model.account,
            self.opset,
            self.model.proto.ir_version,
        )

    def _types(self, names: Iterable[str]) -> list[Type]:
        return [self.type(name) for name in names if name]

    @cached_property
    def consumers(self) -> Mapping[str, list[tuple[onnx.NodeProto, int]]]:
        """{value: [(node, position among its inputs)]} for the inputs of this graph's own nodes, as
        it was.
        """
        consumers = defaultdict(list)
        for node in self.owner.node:
            for position, name in enumerate(node.input):
                consumers[name].append((node, position))
        return consumers

    def add_integers(self, like: str, *integers: int) -> str:
        """Add a constant vector of integers; returns its name."""
        return self.add_constant(like, np.array(integers, np.int64))

    def add_constant(self, like: str, array: Array) -> str:
        """Add a constant; returns its name."""
        tensor = numpy_helper.from_array(array, self.model.new_name(like))
        self.added.append(tensor.name)
        if self.model.proto.ir_version < 4:  # where initializers must be inputs
            node = helper.make_node("Constant", [], [tensor.name], value=tensor)
            self.owner.node.insert(0, node)
            self.producers[tensor.name] = self.owner.node[0]
        else:
            self.owner.initializer.append(tensor)
            self.initializers[tensor.name] = self.owner.initializer[-1]
        return tensor.name

    def add_node(
        self,
        before: onnx.NodeProto,
        op_type: str,
        inputs: Sequence[str],
        domain: str = "",
        version: int = 1,
        **attributes: Any,
    ) -> str:
        """Add a node before another one, and with a name like that one's; returns its output's
        name.
        """
        output = self.model.new_name(f"{before.output[0]}_{op_type}")
        node = helper.make_node(
            op_type, inputs, [output], before.name and output, domain=domain, **attributes
        )
        position = next(
            k for k, candidate in enumerate(self.owner.node) if candidate.output == before.output
        )
        self.owner.node.insert(position, node)
        self.producers[output] = self.owner.node[position]
        self.added.append(output)
        self._connect(inputs, domain, version)
        return output

    def add_axes(self, before: onnx.NodeProto, name: str, *axes: int) -> str:
        """Add axes of one element to a value; returns the name of the result."""
        if self.opset < 13:
            return self.add_node(before, "Unsqueeze", [name], axes=axes)
        return self.add_node(before, "Unsqueeze", [name, self.add_integers("axes", *axes)])

    def replace(
        self,
        node: onnx.NodeProto,
        op_type: str,
        inputs: Sequence[str],
        domain: str = "",
        version: int = 1,
        before: bool = False,
        **attributes: Any,
    ) -> None:
        """Replace a node by another one or, with `before`, what computes the node's first input.

        What is then unused is removed.
        """
        obsolete = [name for name in node.input if name][: 1 if before else None]
        if before:
            node.input[0] = self.add_node(node, op_type, inputs, domain, version, **attributes)
            self._count(node.input[0], 1)
        else:
            self.type(node.output[0])  # stays unchanged
            new = helper.make_node(
                op_type, inputs, node.output, node.name, node.doc_string, domain, **attributes
            )
            new.metadata_props.extend(node.metadata_props)
            node.CopyFrom(new)
            self.sound.pop(node.output[0], None)
            self._connect(inputs, domain, version)
        self._import()
        for name in obsolete:
            self._count(name, -1)
        self._sweep(obsolete)

    def sweep_added(self) -> None:
        """Remove unused additions."""
        self._sweep(self.added)
        self.added = []
        self.versions = {}

    def _connect(self, inputs: Iterable[str], domain: str, version: int) -> None:
        """Count the inputs of a new node, and keep the version of its domain, which `replace`
        imports.
        """
        for name in inputs:
            self._count(name, 1)
        domain = "" if domain in AI_ONNX else domain
        self.versions[domain] = max(version, self.versions.get(domain, 0))

    def _import(self) -> None:
        """Import the versions of the new nodes' domains."""
        stated = self.model.proto.opset_import
        newest = self.versions.pop("", 0)
        for domain, version in self.versions.items():
            if domain not in self.model.imports:
                stated.append(helper.make_opsetid(domain, version))
                self.model.imports[domain] = version
        if newest > self.opset:  # which `can_import` allows
            for i in stated:
                i.version = newest if i.domain in AI_ONNX else i.version
            self.model.imports[""] = newest
            graph: Graph | None = self
            while graph:
                graph.sound = {}
                graph = graph.outer

    def _count(self, name: str, change: int) -> None:
        """Count a use of a value more, or less, by a node that has changed."""
        graph: Graph | None = self
        while graph:
            graph.users[name] += change
            graph = graph.outer if graph is not graph.home(name) else None

    def _sweep(self, names: list[str]) -> None:
        """Remove what makes these values if they are unused, and then what made the inputs of
        that.
        """
        while names:
            name = names.pop()
            graph = self.home(name)
            if graph is None or graph.users[name] > 0:
                continue
            if name in graph.initializers and name not in graph.inputs:
                graph.owner.initializer.remove(graph.initializers.pop(name))
            node = graph.producers.get(name)
            if (
                node is None
                or any(graph.users[output] > 0 for output in node.output)
                or any(subgraphs(node))
            ):
                continue
            for output in node.output:
                graph.producers.pop(output, None)
                graph._forget(output)
            inputs = [operand for operand in node.input if operand]
            graph.owner.node.remove(node)
            for operand in inputs:
                graph._count(operand, -1)
            names += inputs

    def _forget(self, name: str) -> None:
        info = next((value for value in self.owner.value_info if value.name == name), None)
        if info is not None:
            self.owner.value_info.remove(info)


def graphs_of(model: Model) -> "Iterator[Graph]":
    """Yield all graphs of a model, each before its subgraphs.

    A graph may be changed before the next one is taken.
    """
    yield from Graph(model, model.proto.graph, "main").nested()
