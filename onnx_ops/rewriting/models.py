"""A model that is being rewritten: what its graphs share."""

import os
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import Any

import onnx
from onnx.external_data_helper import uses_external_data

from ..model import external_data, files
from ..model.nodes import graphs_in, imports, own_names, subgraphs, used_names
from ..registry import available, is_built_in
from .folding import LARGEST, Account


class Model:
    """A model, which its graphs share.

    origin      its file or the folder of its external data, or None if unknown
    operators   what `registry.available` returns, by default without custom operators
    runs_nodes  whether nodes run, to compute constants and to try replacements out
    imports     {domain: version}
    account     what computing constants may still take
    skipped     names of constants that no node computed, since nodes don't run
    tried       {a replacement: why it was not run beside the nodes that it replaces, or None}
    custom      (domain, name) of the custom ones among the operators
    """

    def __init__(
        self,
        proto: onnx.ModelProto,
        origin: str | os.PathLike[str] | None = None,
        operators: Mapping[tuple[str, str], Any] | None = None,
        runs_nodes: bool = True,
    ) -> None:
        self.proto = proto
        self.origin = origin
        self.runs_nodes = runs_nodes
        self.skipped: list[str] = []
        self.imports = imports(proto)
        self.account = Account()
        self.tried: dict[str, str | None] = {}
        # {a file of external data: bytes of the tensors that were read from it}
        self.read = Counter[str]()
        self.numbers = Counter[str]()  # {a name: the next number to add to it}
        # {number of a subgraph: (it, what it reads of the graphs around it)}: each is read once.
        self._inner: dict[int, tuple[onnx.GraphProto, Counter[str]]] = {}
        self.operators = available() if operators is None else operators
        self.custom = {key for key, operator in self.operators.items() if not is_built_in(operator)}

    def uses(self, owner: onnx.GraphProto) -> Counter[str]:
        """Return {value: how many inputs of nodes, also in subgraphs, and outputs of a graph it
        is}.
        """
        uses = Counter(value.name for value in owner.output)
        for node in owner.node:
            uses.update(self.reads(node))
        return uses

    def reads(self, node: onnx.NodeProto) -> Counter[str]:
        """Return {value: how many inputs of a node, and of those in its subgraphs, it is}."""
        reads = Counter(filter(None, node.input))
        for inner in subgraphs(node):
            if id(inner) not in self._inner:
                own = own_names(inner)
                outer = Counter(
                    {name: count for name, count in self.uses(inner).items() if name not in own}
                )
                self._inner[id(inner)] = inner, outer
            _, outer = self._inner[id(inner)]
            reads.update(outer)
        return reads

    def sort(self) -> None:
        """Bring nodes into an order in which each comes after those that make its inputs: sessions
        take any order.
        """
        for owner in graphs_in(self.proto.graph):
            nodes = [*owner.node]
            makers = {name: k for k, node in enumerate(nodes) for name in node.output if name}
            needs = {
                k: {makers[name] for name in self.reads(node) if name in makers}
                for k, node in enumerate(nodes)
            }
            if any(needed >= k for k in needs for needed in needs[k]):
                with suppress(CycleError):  # which the session will report
                    numbers = {
                        id(nodes[k]): number
                        for number, k in enumerate(TopologicalSorter(needs).static_order())
                    }
                    owner.node.sort(key=lambda node, numbers=numbers: numbers[id(node)])

    @cached_property
    def names(self) -> set[str]:
        """The names of all values and nodes, including added ones: nodes get their outputs'
        names.
        """
        return set(used_names(self.proto.graph))

    def new_name(self, like: str) -> str:
        """Return a name that no value and no node has, and reserve it."""
        name = like
        while name in self.names:
            name = f"{like}_{self.numbers[like]}"
            self.numbers[like] += 1
        self.names.add(name)
        return name

    @cached_property
    def room(self) -> int:
        """The bytes that constants may still add to the model: few, and a protobuf has less than
        2**31.
        """
        weights = (tensor for graph in graphs_in(self.proto.graph) for tensor in graph.initializer)
        inside = sum(
            external_data.byte_size(tensor) for tensor in weights if not uses_external_data(tensor)
        )
        return min(LARGEST, files.LARGEST - inside - LARGEST // 16)
