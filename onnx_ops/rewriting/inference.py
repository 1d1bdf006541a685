"""What is inferred of one node's outputs without a rule: by onnx, by a declaration, or by a schema
of ONNX Runtime.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ..declaration import plain
from ..declaration.dtypes import TABLE
from ..model.builtin import schemas
from ..model.nodes import domain_of
from .finding import tried
from .reading.integers import integer_list, integers
from .reading.reader import attributes_of
from .sizes import Dimension, are_numbers
from .tensor_types import Inferred, Type

LARGEST = 256  # elements of a constant that onnx's inference gets to know

if TYPE_CHECKING:
    from collections.abc import Container, Iterator
    from typing import Protocol

    from .reading.reader import GraphView

    Inputs = Sequence[Type | None]  # with None for an input that is left out
    Letters = dict[str, Dimension | None]  # {text: the open size that it stands for}

    class ModelView(Protocol):
        """What inference sees of a model: rewriting.graph.Model."""

        @property
        def proto(self) -> onnx.ModelProto: ...
        @property
        def imports(self) -> Mapping[str, int]: ...
        @property
        def operators(self) -> Mapping[tuple[str, str], Any]: ...
        @property
        def custom(self) -> Container[tuple[str, str]]: ...
        def reads(self, node: onnx.NodeProto) -> Iterable[str]: ...

    class TypedGraph(GraphView, Protocol):
        """What inference sees of a graph: rewriting.graph.Graph.

        types    {value: its type}, as far as it has been asked for
        visited  values that inference is working on
        """

        title: str
        initializers: dict[str, TensorProto]
        inputs: set[str]
        stated: dict[str, onnx.TypeProto]
        types: dict[str, Type]
        visited: set[str]
        node: onnx.NodeProto | None

        @property
        def model(self) -> ModelView: ...
        @property
        def outer(self) -> "TypedGraph | None": ...
        @property
        def opset(self) -> int: ...

        def home(self, name: str) -> "TypedGraph | None": ...
        def inside(self, node: onnx.NodeProto) -> "Iterator[TypedGraph]": ...


class Operation(NamedTuple):
    """What a rule for shapes (shape_rules.py) sees of a node.

    graph       the graph that the node is in
    node        the node
    attributes  {name: value} of those that the node states
    """

    graph: "TypedGraph"
    node: onnx.NodeProto
    attributes: dict[str, Any]

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute, or a default if the node doesn't state it."""
        return self.attributes.get(name, default)

    def integers(self, k: int) -> list[Dimension | None] | None:
        """Return the integers that the k-th input holds, see reading/integers.py."""
        return integers(self.graph, self.node.input[k])

    def by_onnx(self, *inputs: Type | None) -> Inferred:
        """Return what onnx infers of the first output."""
        return by_onnx(self.graph, self.node, inputs)[self.node.output[0]]


def by_declaration(
    graph: "TypedGraph", node: onnx.NodeProto, inputs: "Inputs"
) -> dict[str, Inferred]:
    """Return {output: type} of an operator of this package.

    Its plan may copy open sizes, and computes with others.
    """
    operator = graph.model.operators[domain_of(node), node.op_type]
    letters: Letters = {}
    attributes = attributes_of(node)
    values = [
        _texts(integers(graph, name), letters) if parameter.values and name else None
        for parameter, name in zip(operator.each_input(len(inputs)), node.input, strict=True)
    ]
    shapes = tried(
        lambda: plain.infer(
            operator,
            operator.values(
                {
                    name: attributes[name]
                    for a in operator.attributes
                    for name in a.names
                    if name in attributes
                }
            ),
            [None if i is None else _texts(i.shape, letters) for i in inputs],
            values,
        )
    ) or [None] * len(operator.outputs)
    inferred: dict[str, Inferred] = {}
    for name, like, output, shape in zip(
        node.output, operator.likeness(), operator.outputs, shapes, strict=False
    ):
        elements = (
            TABLE[operator.types[output.type][0]].onnx if like is None else inputs[like].elements
        )
        inferred[name] = Inferred(
            elements, None if shape is None else tuple(letters.get(d, d) for d in shape)
        )
    return inferred


def _texts(
    dimensions: Iterable[Dimension | None] | None, letters: "Letters"
) -> list[int | str | None] | None:
    """Return a shape with texts for open sizes, which are added to `letters`; None if it is
    unknown.
    """
    letters.update((repr(d), d) for d in dimensions or ())
    return (
        None
        if dimensions is None
        else [d if isinstance(d, int | None) else repr(d) for d in dimensions]
    )


def by_onnx(graph: "TypedGraph", node: onnx.NodeProto, inputs: "Inputs") -> dict[str, Inferred]:
    """Return {output: type} as far as onnx infers them for a node."""
    letters: Letters = {}
    domain = domain_of(node)
    version = graph.model.imports.get(domain, 1) if domain else graph.opset
    types = {}
    data = {}
    for name, its_type in zip(node.input, inputs, strict=False):
        if not its_type:
            continue
        if not its_type.elements:
            return {}
        types[name] = helper.make_tensor_type_proto(
            its_type.elements, _texts(its_type.shape, letters)
        )
        constant = _constant(graph, name, its_type)
        if constant is not None:
            data[name] = constant
    try:
        inferred = onnx.shape_inference.infer_node_outputs(
            onnx.defs.get_schema(node.op_type, version, node.domain),
            node,
            types,
            data,
            None,
            [helper.make_opsetid("", graph.opset), helper.make_opsetid(domain, version)],
            graph.model.proto.ir_version,
        )
    except Exception:  # an operator that onnx doesn't know, or a node that the session will refuse
        return {}
    return {name: _read(its_type.tensor_type, letters) for name, its_type in inferred.items()}


def by_onnx_runtime(
    node: onnx.NodeProto, inputs: "Inputs", kind: type[Inferred] = Inferred
) -> dict[str, Inferred]:
    """Return {output: type of this kind}, with the elements if a schema says that those of an input
    are the same.
    """
    schema = schemas().get((domain_of(node), node.op_type))
    element_types = []
    if schema is not None:
        first = schema[-1]
        pairs = list(zip(first.inputs, inputs, strict=False))
        # Of inputs with one type the first one counts: once, Tile's repeats were floats.
        same_types = {
            formal.typeStr: its_type.elements for formal, its_type in reversed(pairs) if its_type
        }
        element_types = [same_types.get(formal.typeStr, 0) for formal in first.outputs]
    element_types += [0] * len(node.output)
    return {
        name: kind(elements)
        for name, elements in zip(node.output, element_types, strict=False)
        if name
    }


def _read(tensor: onnx.TypeProto.Tensor, letters: "Letters") -> Inferred:
    """Return the type that onnx infers."""
    if not tensor.HasField("shape"):
        return Inferred(tensor.elem_type)
    dimensions = (
        d.dim_value if d.HasField("dim_value") else letters.get(d.dim_param)
        for d in tensor.shape.dim
    )
    return Inferred(tensor.elem_type, tuple(dimensions))


def _constant(graph: "TypedGraph", name: str, its_type: Type) -> TensorProto | None:
    """Return a small constant as a TensorProto; None for other values."""
    dimensions = its_type.shape
    if (
        dimensions is None
        or not are_numbers(dimensions)
        or math.prod(max(n, 1) for n in dimensions) > LARGEST
    ):
        return None
    array = graph.array(name)
    if array is None and its_type.elements in (TensorProto.INT64, TensorProto.INT32):
        values = integer_list(graph, name)
        array = None if values is None else np.array(values, its_type.dtype).reshape(dimensions)
    return None if array is None else numpy_helper.from_array(np.asarray(array))
