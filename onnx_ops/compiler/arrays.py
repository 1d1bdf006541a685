"""Arrays over given memory in compiled code: views of tensors and workspace, and shapes from shape
functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from numba import types
from numba.extending import lower_builtin, type_callable

from ..declaration.errors import OpError
from ..declaration.limits import MAX_RANK
from ..kernels import elements, returned
from .halves import I64, sum_type
from .numba_internals import cgutils, populate_array

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from llvmlite import ir
    from numba.core.base import BaseContext
    from numba.core.typing import Signature


def array_type(dtype: types.Type, axes: int, is_input: bool = False) -> types.Array:
    return types.Array(dtype, axes, "C", readonly=is_input)


def array_over(
    context: BaseContext,
    builder: ir.IRBuilder,
    type_: types.Array,
    memory: ir.Value,
    sizes: Sequence[ir.Value],
) -> ir.Value:
    """Return a C-contiguous array of a Numba type, with these sizes, over this memory."""
    element = context.get_data_type(type_.dtype)
    step = I64(context.get_abi_sizeof(element))
    steps = [step]
    for size in reversed(sizes[1:]):
        steps.insert(0, builder.mul(steps[0], size))
    array = context.make_array(type_)(context, builder)
    data = builder.bitcast(memory, element.as_pointer())
    populate_array(array, data, sizes, steps[: len(sizes)], step, None)
    return array._getvalue()


def _view_of_workspace(
    context: BaseContext, builder: ir.IRBuilder, signature: Signature, values: Sequence[ir.Value]
) -> ir.Value:
    array, begin, shape = signature.args[:3]
    data = context.make_array(array)(context, builder, values[0]).data
    begin = context.cast(builder, values[1], begin, types.intp)
    sizes, size_types = (
        ([values[2]], [shape])
        if isinstance(shape, types.Integer)
        else (cgutils.unpack_tuple(builder, values[2]), shape)
    )
    sizes = [
        context.cast(builder, size, size_type, types.intp)
        for size, size_type in zip(sizes, size_types, strict=True)
    ]
    return array_over(context, builder, signature.return_type, builder.gep(data, [begin]), sizes)


def axis_count(shape: types.Integer | types.BaseTuple) -> int:
    """Return the number of axes for the type of a shape."""
    return 1 if isinstance(shape, types.Integer) else len(shape)


# {function of kernels/elements.py that views the workspace: function from its arguments' types to
# its result's type}
VIEWS: dict[Callable[..., Any], Callable[..., types.Array]] = {
    elements.sums_in: lambda workspace, begin, shape, array: array_type(
        sum_type(array), axis_count(shape)
    ),
    elements.elements_in: lambda workspace, begin, shape, array: array_type(
        array.dtype, axis_count(shape)
    ),
    elements.integers_in: lambda workspace, begin, shape: array_type(
        types.int64, axis_count(shape)
    ),
    elements.indices_in: lambda workspace, begin, shape: array_type(types.int32, axis_count(shape)),
}
for function, type_of in VIEWS.items():
    type_callable(function)(lambda typing, type_of=type_of: type_of)
    lower_builtin(function, types.VarArg(types.Any))(_view_of_workspace)


def is_shape(type_: types.Type) -> bool:
    is_tuple = isinstance(type_, types.BaseTuple)
    return is_tuple and all(isinstance(size, types.Integer) for size in type_)


def shape_types(outputs: types.BaseTuple, returned: types.Type) -> types.Tuple:
    """Return the types of a shape function's results, tuples of integers, for each output."""
    shapes = (
        (returned,)
        if is_shape(returned)
        else returned
        if isinstance(returned, types.BaseTuple)
        else ()
    )
    if len(shapes) != len(outputs) or not all(map(is_shape, shapes)):
        rule = "a tuple of integers" if len(outputs) == 1 else f"{len(outputs)} tuples of integers"
        raise OpError("rule", f"a function that returns {returned}", f"must return {rule}")
    return types.Tuple([types.UniTuple(types.intp, len(shape)) for shape in shapes])


def _shapes(
    context: BaseContext, builder: ir.IRBuilder, signature: Signature, values: Sequence[ir.Value]
) -> ir.Value:
    """Convert a shape function's result to the type that `shape_types` states."""
    value = values[-1]
    type_ = signature.args[-1]
    if is_shape(type_):  # of the only output
        type_ = types.Tuple([type_])
        value = context.make_tuple(builder, type_, [value])
    return context.cast(builder, value, type_, signature.return_type)


type_callable(returned.returned_shapes)(lambda typing: shape_types)
lower_builtin(returned.returned_shapes, types.Any, types.Any)(_shapes)


def _write_shapes(
    context: BaseContext, builder: ir.IRBuilder, signature: Signature, values: Sequence[ir.Value]
) -> ir.Value:
    """Write shapes into vectors of MAX_RANK sizes; return the ranks."""
    vectors, shapes = (cgutils.unpack_tuple(builder, value) for value in values)
    vector_types, shape_types = signature.args
    for vector, type_, shape, shape_type in zip(
        vectors, vector_types, shapes, shape_types, strict=True
    ):
        sizes = context.make_array(type_)(context, builder, vector).data
        for axis in range(min(len(shape_type), MAX_RANK)):
            builder.store(builder.extract_value(shape, axis), builder.gep(sizes, [I64(axis)]))
    ranks = [I64(len(shape)) for shape in shape_types]
    return context.make_tuple(builder, signature.return_type, ranks)


type_callable(returned.write_shapes)(
    lambda typing: lambda outputs, shapes: types.UniTuple(types.intp, len(shapes))
)
lower_builtin(returned.write_shapes, types.Any, types.Any)(_write_shapes)
