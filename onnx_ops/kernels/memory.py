"""Memory in compiled code: arrays over it, and what `require` leaves behind."""

from llvmlite import ir
from numba import types
from numba.core import callconv, cgutils
from numba.extending import intrinsic, lower_builtin, overload, type_callable
from numba.np.arrayobj import populate_array

from ..declaration import MAX_SHOWN, REFUSAL
from ..errors import require
from . import elements
from .elements_numba import sum_type
from .jit import FLAGS, INNER

WORD = ir.IntType(64)


def array_type(dtype, axes, is_input=False):
    return types.Array(dtype, axes, "C", readonly=is_input)


def array_over(context, builder, made, place, sizes):
    """A C-contiguous array of the type `made`, with these sizes, over the memory at `place`.

    numba.carray is a function, and functions that count no references return no arrays of their own.
    """
    kind = context.get_data_type(made.dtype)
    step = WORD(context.get_abi_sizeof(kind))
    steps = [step]
    for size in reversed(sizes[1:]):
        steps.insert(0, builder.mul(steps[0], size))
    array = context.make_array(made)(context, builder)
    populate_array(array, builder.bitcast(place, kind.as_pointer()), sizes, steps[: len(sizes)], step, None)
    return array._getvalue()


def _view_of_workspace(context, builder, signature, values):
    array, begin, shape = signature.args[:3]
    data = context.make_array(array)(context, builder, values[0]).data
    begin = context.cast(builder, values[1], begin, types.intp)
    sizes, kinds = (
        ([values[2]], [shape])
        if isinstance(shape, types.Integer)
        else (cgutils.unpack_tuple(builder, values[2]), shape)
    )
    sizes = [context.cast(builder, size, kind, types.intp) for size, kind in zip(sizes, kinds, strict=True)]
    return array_over(context, builder, signature.return_type, builder.gep(data, [begin]), sizes)


def axes_of(shape):
    return 1 if isinstance(shape, types.Integer) else len(shape)


@type_callable(elements.sums_in)
def _(typing):
    return lambda workspace, begin, shape, array: array_type(sum_type(array), axes_of(shape))


@type_callable(elements.elements_in)
def _(typing):
    return lambda workspace, begin, shape, array: array_type(array.dtype, axes_of(shape))


@type_callable(elements.integers_in)
def _(typing):
    return lambda workspace, begin, shape: array_type(types.int64, axes_of(shape))


@type_callable(elements.indices_in)
def _(typing):
    return lambda workspace, begin, shape: array_type(types.int32, axes_of(shape))


for function in (elements.sums_in, elements.elements_in, elements.integers_in, elements.indices_in):
    lower_builtin(function, types.VarArg(types.Any))(_view_of_workspace)


@overload(require, prefer_literal=True, jit_options=FLAGS | INNER)
def _(condition, argument, value, rule, expected=None):
    return lambda condition, argument, value, rule, expected=None: refuse_unless(
        condition, argument, value, rule, expected
    )


# What `require` leaves behind where it refuses: what Numba knows an exception by, in case Python has called the
# function as one of Numba's, and the words of a refusal, which declaration.py describes.
WORDS = ir.ArrayType(WORD, REFUSAL["refusal"])
REFUSED = ir.LiteralStructType([callconv.excinfo_t, WORDS])
CODE = ir.IntType(32)(165)  # by which functions return with a refusal; Numba hands on whatever is above 0
ARGUMENT, RULE, AT, COUNT, HAS_EXPECTED, EXPECTED, VALUES = range(7)


def c_function(builder, name, returned, *kinds):
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(returned, kinds), name)


def leave_with_refusal(context, builder, fill):
    """Return from the function that is compiled, with a block of the type REFUSED that `fill` has filled in."""
    malloc = c_function(builder, "malloc", cgutils.voidptr_t, WORD)
    place = builder.call(malloc, [WORD(context.get_abi_sizeof(REFUSED))])
    with builder.if_then(cgutils.is_null(builder, place), likely=False):
        context.call_conv._return_errcode_raw(builder, callconv.RETCODE_EXC)
    fill(builder.bitcast(place, REFUSED.as_pointer()))
    pointer = context.call_conv._get_excinfo_argument(builder.function)
    builder.store(builder.bitcast(place, pointer.type.pointee), pointer)
    context.call_conv._return_errcode_raw(builder, CODE)


def note_refusal(builder, status, record):
    """Write what a call has left behind into a record that begins with room for it, whose address this is.

    Of several tiles that refuse at once the first is heard.
    """
    place = builder.bitcast(status.excinfoptr, cgutils.voidptr_t)
    words = cgutils.gep_inbounds(builder, builder.bitcast(place, REFUSED.as_pointer()), 0, 1)
    record = builder.bitcast(record, WORDS.as_pointer())
    first, argument = (cgutils.gep_inbounds(builder, each, 0, ARGUMENT) for each in (record, words))
    outcome = builder.cmpxchg(first, WORD(0), builder.load(argument), "acq_rel", "monotonic")
    with builder.if_then(builder.extract_value(outcome, 1)):
        for k in range(RULE, WORDS.count):
            word = builder.load(cgutils.gep_inbounds(builder, words, 0, k))
            builder.store(word, cgutils.gep_inbounds(builder, record, 0, k))
        values = cgutils.gep_inbounds(builder, record, 0, VALUES)
        builder.store(builder.ptrtoint(values, WORD), cgutils.gep_inbounds(builder, record, 0, AT))
    builder.call(c_function(builder, "free", ir.VoidType(), cgutils.voidptr_t), [place])


@intrinsic(prefer_literal=True)
def refuse_unless(typing, condition, argument, value, rule, expected):
    """Leave the function that is compiled, and those that have called it, with a refusal if the condition fails."""

    def codegen(context, builder, signature, values):
        def word(item, kind):
            return context.cast(builder, item, kind, types.int64)

        def text(kind):
            return builder.ptrtoint(context.insert_const_string(builder.module, kind.literal_value), WORD)

        def fill(block):
            def put(position, word):
                builder.store(word, cgutils.gep(builder, block, 0, 1, position))

            words = ValueError, (f"{argument.literal_value}: {rule.literal_value}",), None
            exception = builder.load(context.get_python_api(builder).serialize_object(words))
            builder.store(exception, cgutils.gep_inbounds(builder, block, 0, 0))
            put(ARGUMENT, text(argument))
            put(RULE, text(rule))
            given = not isinstance(expected, types.NoneType | types.Omitted)
            put(HAS_EXPECTED, WORD(int(given)))
            put(EXPECTED, word(values[4], expected) if given else WORD(0))
            if isinstance(value, types.Array):
                array = context.make_array(value)(context, builder, values[2])
                count = builder.extract_value(array.shape, 0)
                count = builder.select(builder.icmp_signed("<", count, WORD(MAX_SHOWN)), count, WORD(MAX_SHOWN))
                with cgutils.for_range(builder, count) as loop:
                    item = builder.load(builder.gep(array.data, [loop.index]))
                    put(builder.add(loop.index, WORD(VALUES)), word(item, value.dtype))
                put(COUNT, count)
            elif isinstance(value, types.BaseTuple):
                items = cgutils.unpack_tuple(builder, values[2])[:MAX_SHOWN]
                for k, (item, kind) in enumerate(zip(items, value, strict=False)):
                    put(VALUES + k, word(item, kind))
                put(COUNT, WORD(len(items)))
            else:
                put(VALUES, word(values[2], value))
                put(COUNT, WORD(-1))

        holds = context.is_true(builder, condition, values[0])
        with builder.if_then(builder.not_(holds), likely=False):
            leave_with_refusal(context, builder, fill)
        return context.get_dummy_value()

    return types.none(condition, argument, value, rule, expected), codegen
