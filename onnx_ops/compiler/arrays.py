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
    place: ir.Value,
    sizes: Sequence[ir.Value],
) -> ir.Value:
    """Return a C-contiguous array of a Numba type, with these sizes, over the memory at `place`."""
    kind = context.get_data_type(type_.dtype)
    step = I64(context.get_abi_sizeof(kind))
    steps = [step]
    for size in reversed(sizes[1:]):
        steps.insert(0, builder.mul(steps[0], size))
    array = context.make_array(type_)(context, builder)
    populate_array(
        array, builder.bitcast(place, kind.as_pointer()), sizes, steps[: len(sizes)], step, None
    )
    return array._getvalue()


def _view_of_workspace(
    context: BaseContext, builder: ir.IRBuilder, signature: Signature, values: Sequence[ir.Value]
) -> ir.Value:
    array, begin, shape = signature.args[:3]
    data = context.make_array(array)(context, builder, values[0]).data
    begin = context.cast(builder, values[1], begin, types.intp)
    sizes, kinds = (
        ([values[2]], [shape])
        if isinstance(shape, types.Integer)
        else (cgutils.unpack_tuple(builder, values[2]), shape)
    )
    sizes = [
        context.cast(builder, size, kind, types.intp)
        for size, kind in zip(sizes, kinds, strict=True)
    ]
    return array_over(context, builder, signature.return_type, builder.gep(data, [begin]), sizes)


def axes_of(shape: types.Integer | types.BaseTuple) -> int:
    """Return the number of axes for the type of a shape."""
    return 1 if isinstance(shape, types.Integer) else len(shape)


# {function of kernels/elements.py that views the workspace: function from its arguments' types to
# its result's type}
VIEWS: dict[Callable[..., Any], Callable[..., types.Array]] = {
    elements.sums_in: lambda workspace, begin, shape, array: array_type(
        sum_type(array), axes_of(shape)
    ),
    elements.elements_in: lambda workspace, begin, shape, array: array_type(
        array.dtype, axes_of(shape)
    ),
    elements.integers_in: lambda workspace, begin, shape: array_type(types.int64, axes_of(shape)),
    elements.indices_in: lambda workspace, begin, shape: array_type(types.int32, axes_of(shape)),
}
for function, type_of in VIEWS.items():
    type_callable(function)(lambda typing, type_of=type_of: type_of)
    lower_builtin(function, types.VarArg(types.Any))(_view_of_workspace)


def is_shape(kind: types.Type) -> bool:
    return isinstance(kind, types.BaseTuple) and all(
        isinstance(size, types.Integer) for size in kind
    )


def shapes_of(outputs: types.BaseTuple, returned: types.Type) -> types.Tuple:
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
    """Convert a shape function's result to the type that `shapes_of` states."""
    value, kind = values[-1], signature.args[-1]
    if is_shape(kind):  # of the only output
        kind = types.Tuple([kind])
        value = context.make_tuple(builder, kind, [value])
    return context.cast(builder, value, kind, signature.return_type)


type_callable(returned.shapes_of)(lambda typing: shapes_of)
lower_builtin(returned.shapes_of, types.Any, types.Any)(_shapes)


def _write_shapes(
    context: BaseContext, builder: ir.IRBuilder, signature: Signature, values: Sequence[ir.Value]
) -> ir.Value:
    """Write shapes into vectors of MAX_RANK sizes; return the ranks."""
    vectors, shapes = (cgutils.unpack_tuple(builder, value) for value in values)
    kinds, of_shapes = signature.args
    for vector, kind, shape, of_shape in zip(vectors, kinds, shapes, of_shapes, strict=True):
        place = context.make_array(kind)(context, builder, vector).data
        for axis in range(min(len(of_shape), MAX_RANK)):
            builder.store(builder.extract_value(shape, axis), builder.gep(place, [I64(axis)]))
    return context.make_tuple(
        builder, signature.return_type, [I64(len(of_shape)) for of_shape in of_shapes]
    )


type_callable(returned.write_shapes)(
    lambda typing: lambda outputs, shapes: types.UniTuple(types.intp, len(shapes))
)
lower_builtin(returned.write_shapes, types.Any, types.Any)(_write_shapes)
