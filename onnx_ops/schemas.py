"""The declared operators as onnx schemas, for the checker and for shape inference, where onnx has none."""

import atexit
import functools
from contextlib import suppress

import onnx
from onnx import TensorProto, TypeProto, helper, numpy_helper
from onnx.defs import OpSchema

from . import dtypes
from .errors import OpError
from .operator import Record
from .operators import OPERATORS

_NAMES = {name: helper.tensor_dtype_to_string(t.onnx).split(".")[1].lower() for name, t in dtypes.TABLE.items()}


@functools.cache
def register_schemas() -> None:
    """Teach onnx the declared operators that it lacks; once is enough, more is harmless.

    From then on `onnx.checker.check_model(..., full_check=True)` and `onnx.shape_inference` know them.
    """
    from onnx.reference import op_run  # noqa: F401  whose import fails once two domains have an operator of one name

    for operator in OPERATORS:
        try:
            if not _has(operator):
                onnx.defs.register_schema(schema(operator))
                atexit.register(_deregister, operator)
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
    kinds = {"int": OpSchema.AttrType.INT, "ints": OpSchema.AttrType.INTS, "string": OpSchema.AttrType.STRING}
    attributes = [
        OpSchema.Attribute(a.name, kinds[a.kind], "", required=a.required)
        if a.default is None
        else OpSchema.Attribute(a.name, helper.make_attribute(a.name, a.default), "")
        for a in operator.attributes
    ]
    made = OpSchema(
        operator.name,
        operator.domain,
        operator.versions[0],
        inputs=[OpSchema.FormalParameter(i.name, i.type) for i in operator.inputs],
        outputs=[OpSchema.FormalParameter("output", operator.output)],
        type_constraints=[(v, [f"tensor({_NAMES[n]})" for n in names], "") for v, names in operator.types.items()],
        attributes=attributes,
    )
    made.set_type_and_shape_inference_function(functools.partial(infer, operator))
    return made


def infer(operator, context):
    """Set the output's element type and, as far as it is known, its shape."""
    types = [context.get_input_type(k) or TypeProto() for k in range(len(operator.inputs))]
    output = TypeProto()
    variable = [i.type for i in operator.inputs].index(operator.output)
    output.tensor_type.elem_type = types[variable].tensor_type.elem_type
    if output.tensor_type.elem_type == TensorProto.UNDEFINED:
        return
    values = [context.get_input_data(k) if i.values else None for k, i in enumerate(operator.inputs)]
    values = [numpy_helper.to_array(v).tolist() if isinstance(v, TensorProto) else None for v in values]
    shape = None
    with suppress(OpError):
        shape = operator.inferred(parameters(operator, context), [dimensions(t) for t in types], values)
    for dimension in shape or ():
        dim = output.tensor_type.shape.dim.add()
        if isinstance(dimension, str):
            dim.dim_param = dimension
        elif dimension is not None:
            dim.dim_value = dimension
    context.set_output_type(0, output)


def parameters(operator, context):
    """What the node's attributes resolve to; None if they are wrong, or what a function's caller passes."""
    given = {a.name: context.get_attribute(a.name) for a in operator.attributes}
    try:
        values = {name: helper.get_attribute_value(a) for name, a in given.items() if a is not None}
        return Record(operator.resolved(values)[0])
    except ValueError:
        return None


def dimensions(described):
    """A TypeProto's shape: a list of int, name or None; None if the rank is unknown."""
    if not described.tensor_type.HasField("shape"):
        return None
    return [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in described.tensor_type.shape.dim]
