"""The declared operators for onnx.

Schemas for its checker and its shape inference, classes for its evaluator.
"""

from __future__ import annotations

import atexit
import functools
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, TypeProto, helper, numpy_helper
from onnx.defs import OpSchema
from onnx.external_data_helper import uses_external_data

from ..declaration import dtypes, plain
from ..declaration.attributes import KINDS
from ..declaration.calls import compute_reference
from ..declaration.errors import OpError, errors_of, require
from ..registry import available
from ..system.locks import REGISTRATION

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from onnx.onnx_cpp2py_export.shape_inference import InferenceContext
    from onnx.reference.op_run import OpRun

    from ..declaration.attributes import Attribute, AttributeValues
    from ..declaration.operator import Operator
    from ..registry import Declared
    from .types import Array, Dimension


_NAMES = {name: TensorProto.DataType.Name(t.onnx).lower() for name, t in dtypes.TABLE.items()}


def register_schemas(operators: Iterable[Declared] = ()) -> None:
    """Register the operators' schemas with onnx, as far as it lacks them.

    From then on, `onnx.checker.check_model(..., full_check=True)` and
    `onnx.shape_inference` support them. Calling it again is harmless.

    Parameters
    ----------
    operators : iterable of custom operators
        Custom operators to include. One that was declared again replaces the
        former one.

    Raises
    ------
    OpError
        An operator is none, or two have the same name.

    Examples
    --------
    >>> import onnx
    >>> onnx_ops.register_schemas()
    >>> onnx.checker.check_model("model.onnx", full_check=True)
    """
    # Importing it later fails if two domains have an operator of one name.
    from onnx.reference import op_run  # noqa: F401

    with REGISTRATION:
        for operator in available(operators).values():
            _teach(operator)


_taught: dict[str, Operator] = {}  # {title: the operator registered with onnx}


def _teach(operator: Operator) -> None:
    if (before := _taught.get(operator.title)) is operator:
        return
    if before:
        _deregister(before)
    if not _has(operator):
        onnx.defs.register_schema(schema(operator))
        atexit.register(_deregister, operator)
        _taught[operator.title] = operator


def _has(operator: Operator) -> bool:
    return onnx.defs.has(operator.name, domain=operator.domain)


def _deregister(operator: Operator) -> None:
    """Deregister an operator at exit.

    onnx before 1.23 would free its Python function too late, and hang or crash.
    """
    if _has(operator):
        onnx.defs.deregister_schema(operator.name, operator.versions[0], operator.domain)


@functools.cache
def schema(operator: Operator) -> OpSchema:
    """Return the onnx.defs.OpSchema of a declared operator."""
    attributes = [
        OpSchema.Attribute(
            name,
            getattr(OpSchema.AttrType, KINDS[a.kind].onnx),
            "",
            required=a.required and not a.other_names,
        )
        if a.default is None or name != a.name
        else OpSchema.Attribute(name, node_attribute(a, a.default), "")
        for a in operator.attributes
        for name in a.names
    ]
    option = OpSchema.FormalParameterOption
    options = {"required": option.Single, "optional": option.Optional, "variadic": option.Variadic}
    op_schema = OpSchema(
        operator.name,
        operator.domain,
        operator.versions[0],
        inputs=[
            OpSchema.FormalParameter(i.name, i.type, param_option=options[i.presence])
            for i in operator.inputs
        ],
        outputs=[OpSchema.FormalParameter(o.name, o.type) for o in operator.outputs],
        type_constraints=[
            (v, [f"tensor({_NAMES[n]})" for n in names], "") for v, names in operator.types.items()
        ],
        attributes=attributes,
    )
    op_schema.set_type_and_shape_inference_function(functools.partial(set_output_types, operator))
    return op_schema


def reference_op(operator: Operator) -> type[OpRun]:
    """Return the class of a declared operator for onnx's ReferenceEvaluator, in plain NumPy."""
    from onnx.reference.op_run import OpRun  # its import takes long

    def compute_outputs(self: OpRun, *inputs: Array | None, **attributes: Any) -> tuple[Array, ...]:
        with errors_of(operator):
            if operator.has_older:
                version = self.run_params["opsets"].get(operator.domain, 0)
                rule = "must be at least"
                require(
                    version >= operator.versions[0],
                    "version of the domain",
                    version,
                    rule,
                    operator.versions[0],
                )
            values = operator.values(attributes)
        return tuple(compute_reference(operator, values, inputs))

    members = {"op_domain": operator.domain, "op_schema": schema(operator), "_run": compute_outputs}
    return type(operator.name, (OpRun,), members)


def node_attribute(declared: Attribute, value: Any) -> onnx.AttributeProto:
    """Return an onnx.AttributeProto for a declared Attribute and its value."""
    value = numpy_helper.from_array(np.asarray(value)) if declared.kind == "tensor" else value
    attribute_type = getattr(AttributeProto, KINDS[declared.kind].onnx)
    return helper.make_attribute(declared.name, value, attr_type=attribute_type)


def set_output_types(operator: Operator, context: InferenceContext) -> None:
    """Set the outputs' data types and, as far as they are known, their shapes."""
    types = [context.get_input_type(k) or TypeProto() for k in range(context.get_num_inputs())]
    try:
        inputs = operator.each_input(len(types))
    except OpError:  # the checker reports a wrong number of inputs
        return
    tensors = [context.get_input_data(k) if i.values else None for k, i in enumerate(inputs)]
    values = [
        numpy_helper.to_array(tensor).tolist()
        if isinstance(tensor, TensorProto) and not uses_external_data(tensor)
        else None
        for tensor in tensors
    ]
    shapes = None
    with suppress(OpError):
        shapes = plain.infer(
            operator, attribute_values(operator, context), [dimensions(t) for t in types], values
        )
    for k, like in enumerate(operator.likeness()[: context.get_num_outputs()]):
        constant_type = operator.types[operator.outputs[k].type][0]
        element = (
            dtypes.TABLE[constant_type].onnx if like is None else types[like].tensor_type.elem_type
        )
        if element != TensorProto.UNDEFINED:
            context.set_output_type(
                k, helper.make_tensor_type_proto(element, shapes[k] if shapes else None)
            )


def attribute_values(operator: Operator, context: InferenceContext) -> AttributeValues | None:
    """Return the values of the node's attributes; None if they are invalid.

    They are None, too, if a function's caller passes one.
    """
    attributes = {name: context.get_attribute(name) for name in operator.attribute_names}
    try:
        values = {
            name: helper.get_attribute_value(a) for name, a in attributes.items() if a is not None
        }
        return operator.values(values)
    except ValueError:
        return None


def dimensions(type_proto: TypeProto) -> list[Dimension] | None:
    """Return a TypeProto's dimensions, each an int, a name or None; None if the rank is unknown."""
    if not type_proto.tensor_type.HasField("shape"):
        return None
    return [
        d.dim_value if d.HasField("dim_value") else d.dim_param or None
        for d in type_proto.tensor_type.shape.dim
    ]
