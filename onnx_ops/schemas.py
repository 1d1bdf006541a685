"""The declared operators as onnx schemas, for the checker and for shape inference, where onnx has none."""

import atexit
import functools
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, TypeProto, helper, numpy_helper
from onnx.defs import OpSchema

from . import dtypes
from .declaration import KINDS
from .errors import OpError
from .operators import known

_NAMES = {name: helper.tensor_dtype_to_string(t.onnx).split(".")[1].lower() for name, t in dtypes.TABLE.items()}


def register_schemas(operators: Iterable[Any] = ()) -> None:
    """Teach onnx the declared operators that it lacks; once is enough, more is harmless.

    From then on `onnx.checker.check_model(..., full_check=True)` and `onnx.shape_inference` know them.

    operators  of one's own, in addition; one that was declared again replaces what onnx knew
    """
    from onnx.reference import op_run  # noqa: F401  whose import fails once two domains have an operator of one name

    for operator in known(operators).values():
        _teach(operator)


_taught: dict = {}  # title -> the operator that onnx knows by it


def _teach(operator):
    if (before := _taught.get(operator.title)) is operator:
        return
    if before:
        _deregister(before)
    try:
        if not _has(operator):
            onnx.defs.register_schema(schema(operator))
            atexit.register(_deregister, operator)
        _taught[operator.title] = operator
    except onnx.defs.SchemaError:
        if not _has(operator):  # nor has another thread taught it meanwhile
            raise


def _has(operator):
    return onnx.defs.has(operator.name, domain=operator.domain)


def _deregister(operator):
    """At exit: onnx before 1.23 would let go of `infer` after the interpreter's end, and hang or crash there."""
    if _has(operator):
        onnx.defs.deregister_schema(operator.name, operator.versions[0], operator.domain)


@functools.cache
def schema(operator):
    """The onnx.defs.OpSchema of one declared operator."""
    attributes = [
        OpSchema.Attribute(a.name, getattr(OpSchema.AttrType, KINDS[a.kind].onnx), "", required=a.required)
        if a.default is None
        else OpSchema.Attribute(a.name, attribute(a, a.default), "")
        for a in operator.attributes
    ]
    options = {name.lower(): option for name, option in OpSchema.FormalParameterOption.__members__.items()}
    presences = {"required": "single"}
    made = OpSchema(
        operator.name,
        operator.domain,
        operator.versions[0],
        inputs=[
            OpSchema.FormalParameter(i.name, i.type, param_option=options[presences.get(i.presence, i.presence)])
            for i in operator.inputs
        ],
        outputs=[OpSchema.FormalParameter(o.name, o.type) for o in operator.outputs],
        type_constraints=[(v, [f"tensor({_NAMES[n]})" for n in names], "") for v, names in operator.types.items()],
        attributes=attributes,
    )
    made.set_type_and_shape_inference_function(functools.partial(infer, operator))
    return made


def attribute(declared, value):
    """An attribute of a node with this value."""
    value = numpy_helper.from_array(np.asarray(value)) if declared.kind == "tensor" else value
    kind = getattr(AttributeProto, KINDS[declared.kind].onnx)
    return helper.make_attribute(declared.name, value, attr_type=kind)


def infer(operator, context):
    """Set the outputs' element types and, as far as they are known, their shapes."""
    types = [context.get_input_type(k) or TypeProto() for k in range(context.get_num_inputs())]
    declared = operator.each_input(len(types))
    values = [context.get_input_data(k) if i.values else None for k, i in enumerate(declared)]
    values = [numpy_helper.to_array(v).tolist() if isinstance(v, TensorProto) else None for v in values]
    shapes = None
    with suppress(OpError):
        shapes = operator.output_shapes(parameters(operator, context), [dimensions(t) for t in types], values)
    for k, like in enumerate(operator.likeness()):
        output, fixed = TypeProto(), operator.types[operator.outputs[k].type][0]
        element = dtypes.TABLE[fixed].onnx if like is None else types[like].tensor_type.elem_type
        if element == TensorProto.UNDEFINED:
            continue
        output.tensor_type.elem_type = element
        for dimension in (shapes[k] if shapes else None) or ():
            dim = output.tensor_type.shape.dim.add()
            if isinstance(dimension, str):
                dim.dim_param = dimension
            elif dimension is not None:
                dim.dim_value = dimension
        context.set_output_type(k, output)


def parameters(operator, context):
    """What the node's attributes resolve to; None if they are wrong, or what a function's caller passes."""
    given = {a.name: context.get_attribute(a.name) for a in operator.attributes}
    try:
        values = {name: helper.get_attribute_value(a) for name, a in given.items() if a is not None}
        return operator.resolved(values)
    except ValueError:
        return None


def dimensions(described):
    """A TypeProto's shape: a list of int, name or None; None if the rank is unknown."""
    if not described.tensor_type.HasField("shape"):
        return None
    return [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in described.tensor_type.shape.dim]
