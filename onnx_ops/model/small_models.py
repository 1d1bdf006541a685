"""Models of few nodes, for tests and trials."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnx import helper

from .schemas import node_attribute

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    import onnx

    from ..declaration.operator import Operator
    from .types import Arrays


def values_info(arrays: Arrays) -> list[onnx.ValueInfoProto]:
    """Return the types and shapes of arrays, {name: array}."""
    return [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in arrays.items()
    ]


def node_of(
    operator: Operator, inputs: Sequence[str], attributes: Mapping[str, Any]
) -> onnx.NodeProto:
    """Return a node of a declared operator. A name of the inputs is "" for an absent one."""
    declared = {a.name: a for a in operator.attributes}
    node = helper.make_node(
        operator.name, inputs, [o.name for o in operator.outputs], domain=operator.domain
    )
    node.attribute.extend(
        node_attribute(declared[name], value) for name, value in attributes.items()
    )
    return node


def model_of(
    nodes: Sequence[onnx.NodeProto],
    feeds: Arrays,
    outputs: Iterable[onnx.ValueInfoProto],
    imports: Mapping[str, int],
    ir_version: int,
    constants: Sequence[onnx.TensorProto] = (),
) -> onnx.ModelProto:
    """Return a model of these nodes, with inputs of the types and shapes of `feeds`.

    feeds  {name: array}

    With shapes, ONNX Runtime refuses what would end the process.
    """
    graph = helper.make_graph(nodes, "nodes", values_info(feeds), list(outputs), constants)
    opsets = [helper.make_opsetid(*pair) for pair in imports.items()]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)
