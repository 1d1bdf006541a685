"""Find the node with data types that its operator doesn't support.

This explains why ONNX Runtime has made no session.

ONNX Runtime reports such a node before it calls this package, and names neither the input nor the
types.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from ..declaration import dtypes
from ..declaration.calls import signature_of
from ..declaration.errors import OpError, errors_of
from ..model.external_data import opened
from ..model.nodes import declared, in_its_versions
from ..rewriting.graph import graphs_of
from ..rewriting.models import Model

if TYPE_CHECKING:
    from collections.abc import Iterator

    import onnx

    from ..declaration.operator import Operator
    from ..model.types import Source
    from ..registry import Operators


def refused_types(source: Source | None, operators: Operators) -> OpError | None:
    """Return the OpError for the first such node of a model, or None.

    The model is invalid in some way, and may be in any. Where it can't be read, ONNX Runtime's
    exception stands.

    source     the model's path or bytes
    operators  the result of `registry.available`
    """
    try:
        nodes = list(_nodes_and_types(source, operators))
    except Exception:
        return None
    for operator, name, types in nodes:
        try:
            with errors_of(operator, name):
                signature_of(operator, None, types)
        except OpError as error:
            return error
    return None


def _nodes_and_types(
    source: Source | None, operators: Operators
) -> Iterator[tuple[Operator, str, list[str | None]]]:
    """Yield (operator, name, data type of each input) for the nodes of graphs.

    The type is None for unknown and absent inputs.
    """
    assert source is not None
    model, path = opened(source)
    operators = in_its_versions(operators, model)
    for graph in graphs_of(Model(model, path, operators, runs_nodes=False)):
        for node in graph.owner.node:
            operator = declared(node, operators)
            if operator and has_inputs(operator, node):
                types = [
                    dtypes.NAMES.get(graph.type(name).elements) if name else None
                    for name in node.input
                ]
                yield operator, node.name, types


def has_inputs(operator: Operator, node: onnx.NodeProto) -> bool:
    """Return whether a node has as many inputs as its operator.

    ONNX Runtime reports a wrong number clearly.
    """
    with suppress(OpError):
        return bool(operator.each_input(len(node.input)))
    return False
