"""Refusals in compiled code: `require` passes the refused values to the caller, which makes the
error message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llvmlite import ir
from numba import extending, types

from ..declaration.errors import require
from ..declaration.limits import MAX_SHOWN
from ..declaration.operator import REFUSAL_FIELDS, REFUSAL_SIZE
from .halves import I64
from .numba_internals import DESCRIPTION, RAISED, cgutils, description_of, leave

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numba.core.base import BaseContext
    from numba.core.callconv import Status
    from numba.core.typing import Context, Signature


@extending.type_callable(require)
def require_type(typing: Context) -> Callable[..., types.Type | None]:
    def result_type(
        condition: types.Type,
        argument: types.Type,
        value: types.Type,
        rule: types.Type,
        expected: types.Type = types.none,
    ) -> types.Type | None:
        """Return None for texts that aren't literals yet: Numba asks again."""
        are_literals = all(isinstance(text, types.StringLiteral) for text in (argument, rule))
        return types.none if are_literals else None

    return result_type


# The block that `require` allocates: Numba's description of an exception, in case Python has called
# the function as a Numba function, then the numbers of a refusal (declaration/operator.py).
NUMBERS = ir.ArrayType(I64, REFUSAL_SIZE)
REFUSED = ir.LiteralStructType([DESCRIPTION, NUMBERS])
# The status of functions that return with a refusal; callers pass on any status above 0.
CODE = ir.IntType(32)(165)
ARGUMENT, RULE, AT, COUNT, HAS_EXPECTED, EXPECTED, KINDS = range(len(REFUSAL_FIELDS))
VALUES = len(REFUSAL_FIELDS)  # the position of the first one


def c_function(
    builder: ir.IRBuilder, name: str, returned: ir.Type, *parameters: ir.Type
) -> ir.Function:
    return cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(returned, parameters), name
    )


def note_refusal(builder: ir.IRBuilder, status: Status, record: ir.Value) -> None:
    """Emit code that copies the refusal of a call to the begin of a record, and frees it.

    If several tiles refuse, the record keeps the first refusal.
    """
    block = builder.bitcast(status.excinfoptr, cgutils.voidptr_t)
    numbers = cgutils.gep_inbounds(builder, builder.bitcast(block, REFUSED.as_pointer()), 0, 1)
    record = builder.bitcast(record, NUMBERS.as_pointer())
    noted = cgutils.gep_inbounds(builder, record, 0, ARGUMENT)
    argument = builder.load(cgutils.gep_inbounds(builder, numbers, 0, ARGUMENT))
    outcome = builder.cmpxchg(noted, I64(0), argument, "acq_rel", "monotonic")
    with builder.if_then(builder.extract_value(outcome, 1)):
        for k in range(RULE, NUMBERS.count):
            number = builder.load(cgutils.gep_inbounds(builder, numbers, 0, k))
            builder.store(number, cgutils.gep_inbounds(builder, record, 0, k))
        values = cgutils.gep_inbounds(builder, record, 0, VALUES)
        builder.store(builder.ptrtoint(values, I64), cgutils.gep_inbounds(builder, record, 0, AT))
    builder.call(c_function(builder, "free", ir.VoidType(), cgutils.voidptr_t), [block])


# Not a function for each message: a Col2Im has 20.
@extending.lower_builtin(require, types.VarArg(types.Any))
def refuse_unless(
    context: BaseContext,
    builder: ir.IRBuilder,
    signature: Signature,
    values: Sequence[ir.Value],
) -> ir.Value:
    """Return from the function, and from its callers, with a refusal if the condition is false.

    If malloc fails, an exception is raised.
    """
    argument_types = *signature.args, types.none  # the last one for what is left out
    condition, argument, _, rule, *_ = argument_types
    holds = context.is_true(builder, condition, values[0])
    with builder.if_then(builder.not_(holds), likely=False):
        malloc = c_function(builder, "malloc", cgutils.voidptr_t, I64)
        block = builder.call(malloc, [I64(context.get_abi_sizeof(REFUSED))])
        with builder.if_then(cgutils.is_null(builder, block), likely=False):
            leave(context, builder, RAISED)
        refused = builder.bitcast(block, REFUSED.as_pointer())
        exception = ValueError, (f"{argument.literal_value}: {rule.literal_value}",), None
        builder.store(
            description_of(context, builder, exception),
            cgutils.gep_inbounds(builder, refused, 0, 0),
        )
        for position, number in numbers_of(context, builder, argument_types, values, refused):
            builder.store(number, cgutils.gep(builder, refused, 0, 1, position))
        leave(context, builder, CODE, block)
    return context.get_dummy_value()


def numbers_of(
    context: BaseContext,
    builder: ir.IRBuilder,
    argument_types: Sequence[types.Type],
    values: Sequence[ir.Value],
    refused: ir.Value,
) -> Iterator[tuple[ir.Value | int, ir.Value]]:
    """Yield the positions and numbers of a refusal, for the argument types and values of
    `refuse_unless`.
    """
    _, argument, value, rule, expected, *_ = argument_types
    has_expected = not isinstance(expected, types.NoneType)
    yield ARGUMENT, text(context, builder, argument)
    yield RULE, text(context, builder, rule)
    yield HAS_EXPECTED, I64(int(has_expected))
    yield EXPECTED, as_int64(context, builder, values[4], expected) if has_expected else I64(0)
    number = number_type(value)
    yield KINDS, I64(isinstance(number, types.Float) + 2 * isinstance(expected, types.Float))
    if isinstance(value, types.Array):
        array = context.make_array(value)(context, builder, values[2])
        count = builder.extract_value(array.shape, 0)
        count = builder.select(
            builder.icmp_signed("<", count, I64(MAX_SHOWN)), count, I64(MAX_SHOWN)
        )
        with cgutils.for_range(builder, count) as loop:
            item = builder.load(builder.gep(array.data, [loop.index]))
            yield builder.add(loop.index, I64(VALUES)), as_int64(context, builder, item, number)
        yield COUNT, count
    elif isinstance(value, types.BaseTuple):
        items = cgutils.unpack_tuple(builder, values[2])[:MAX_SHOWN]
        for k, (item, item_type) in enumerate(zip(items, value, strict=False)):
            item = context.cast(builder, item, item_type, number)
            yield VALUES + k, as_int64(context, builder, item, number)
        yield COUNT, I64(len(items))
    else:
        yield VALUES, as_int64(context, builder, values[2], number)
        yield COUNT, I64(-1)


def number_type(value: types.Type) -> types.Type:
    """Return the type of the numbers of a value: of an array, a tuple or a number."""
    if isinstance(value, types.BaseTuple):
        has_float = any(isinstance(item, types.Float) for item in value)
        return types.float64 if has_float else types.int64
    return value.dtype if isinstance(value, types.Array) else value


def as_int64(
    context: BaseContext, builder: ir.IRBuilder, item: ir.Value, number: types.Type
) -> ir.Value:
    """Return a number as an integer, or the bits of a double."""
    if isinstance(number, types.Float):
        return builder.bitcast(context.cast(builder, item, number, types.float64), I64)
    return context.cast(builder, item, number, types.int64)


def text(context: BaseContext, builder: ir.IRBuilder, literal: types.StringLiteral) -> ir.Value:
    """Return the address of a text in the code."""
    return builder.ptrtoint(context.insert_const_string(builder.module, literal.literal_value), I64)
