"""Memory in compiled code: arrays over it, and the block in which `require` passes a refusal to the caller."""

from llvmlite import ir
from numba import types
from numba.core import callconv, cgutils
from numba.extending import intrinsic, lower_builtin, overload, type_callable
from numba.np.arrayobj import populate_array

from ..declaration import REFUSAL
from ..errors import require
from ..kernels import elements
from ..limits import MAX_SHOWN
from .halves import I64, sum_type
from .jit import FLAGS, INNER


def array_type(dtype, axes, is_input=False):
    return types.Array(dtype, axes, "C", readonly=is_input)


def array_over(context, builder, type_, place, sizes):
    """A C-contiguous array of a Numba type, with these sizes, over the memory at `place`.

    numba.carray can't be used: it is a function, and without reference counts no function may return a new array.
    """
    kind = context.get_data_type(type_.dtype)
    step = I64(context.get_abi_sizeof(kind))
    steps = [step]
    for size in reversed(sizes[1:]):
        steps.insert(0, builder.mul(steps[0], size))
    array = context.make_array(type_)(context, builder)
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
    """The number of axes for the type of a shape."""
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


# A block with a refusal, which `require` allocates: Numba's description of an exception, in case Python has called the
# function as one of Numba's, then the numbers of a refusal, which declaration.py describes.
NUMBERS = ir.ArrayType(I64, REFUSAL["refusal"])
BLOCK = ir.LiteralStructType([callconv.excinfo_t, NUMBERS])
CODE = ir.IntType(32)(165)  # the status of functions that return with a refusal; callers pass on any status above 0
ARGUMENT, RULE, AT, COUNT, HAS_EXPECTED, EXPECTED, DOUBLES, VALUES = range(8)


def c_function(builder, name, returned, *kinds):
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(returned, kinds), name)


def leave_with_refusal(context, builder, fill):
    """Emit a return with a refusal, in a new BLOCK that `fill` fills in. If malloc fails, an exception is raised."""
    malloc = c_function(builder, "malloc", cgutils.voidptr_t, I64)
    place = builder.call(malloc, [I64(context.get_abi_sizeof(BLOCK))])
    with builder.if_then(cgutils.is_null(builder, place), likely=False):
        context.call_conv._return_errcode_raw(builder, callconv.RETCODE_EXC)
    fill(builder.bitcast(place, BLOCK.as_pointer()))
    pointer = context.call_conv._get_excinfo_argument(builder.function)
    builder.store(builder.bitcast(place, pointer.type.pointee), pointer)
    context.call_conv._return_errcode_raw(builder, CODE)


def note_refusal(builder, status, record):
    """Emit code that copies the refusal of a call into a record, which begins with room for it, and frees the BLOCK.

    If several tiles refuse, the record keeps the first refusal.
    """
    place = builder.bitcast(status.excinfoptr, cgutils.voidptr_t)
    numbers = cgutils.gep_inbounds(builder, builder.bitcast(place, BLOCK.as_pointer()), 0, 1)
    record = builder.bitcast(record, NUMBERS.as_pointer())
    first, argument = (cgutils.gep_inbounds(builder, each, 0, ARGUMENT) for each in (record, numbers))
    outcome = builder.cmpxchg(first, I64(0), builder.load(argument), "acq_rel", "monotonic")
    with builder.if_then(builder.extract_value(outcome, 1)):
        for k in range(RULE, NUMBERS.count):
            number = builder.load(cgutils.gep_inbounds(builder, numbers, 0, k))
            builder.store(number, cgutils.gep_inbounds(builder, record, 0, k))
        values = cgutils.gep_inbounds(builder, record, 0, VALUES)
        builder.store(builder.ptrtoint(values, I64), cgutils.gep_inbounds(builder, record, 0, AT))
    builder.call(c_function(builder, "free", ir.VoidType(), cgutils.voidptr_t), [place])


@intrinsic(prefer_literal=True)
def refuse_unless(typing, condition, argument, value, rule, expected):
    """Return from the function, and from its callers, with a refusal if the condition is false."""

    number_type = value.dtype if isinstance(value, types.Array) else value
    if isinstance(value, types.BaseTuple):
        number_type = types.float64 if any(isinstance(kind, types.Float) for kind in value) else types.int64

    def codegen(context, builder, signature, values):
        def as_int64(item, kind):
            if isinstance(kind, types.Float):
                return builder.bitcast(context.cast(builder, item, kind, types.float64), I64)
            return context.cast(builder, item, kind, types.int64)

        def text(kind):
            return builder.ptrtoint(context.insert_const_string(builder.module, kind.literal_value), I64)

        def fill(block):
            def put(position, number):
                builder.store(number, cgutils.gep(builder, block, 0, 1, position))

            exception = ValueError, (f"{argument.literal_value}: {rule.literal_value}",), None
            excinfo = builder.load(context.get_python_api(builder).serialize_object(exception))
            builder.store(excinfo, cgutils.gep_inbounds(builder, block, 0, 0))
            put(ARGUMENT, text(argument))
            put(RULE, text(rule))
            has_expected = not isinstance(expected, types.NoneType | types.Omitted)
            put(HAS_EXPECTED, I64(int(has_expected)))
            put(EXPECTED, as_int64(values[4], expected) if has_expected else I64(0))
            put(DOUBLES, I64(isinstance(number_type, types.Float) + 2 * isinstance(expected, types.Float)))
            if isinstance(value, types.Array):
                array = context.make_array(value)(context, builder, values[2])
                count = builder.extract_value(array.shape, 0)
                count = builder.select(builder.icmp_signed("<", count, I64(MAX_SHOWN)), count, I64(MAX_SHOWN))
                with cgutils.for_range(builder, count) as loop:
                    item = builder.load(builder.gep(array.data, [loop.index]))
                    put(builder.add(loop.index, I64(VALUES)), as_int64(item, value.dtype))
                put(COUNT, count)
            elif isinstance(value, types.BaseTuple):
                items = cgutils.unpack_tuple(builder, values[2])[:MAX_SHOWN]
                for k, (item, kind) in enumerate(zip(items, value, strict=False)):
                    put(VALUES + k, as_int64(context.cast(builder, item, kind, number_type), number_type))
                put(COUNT, I64(len(items)))
            else:
                put(VALUES, as_int64(values[2], value))
                put(COUNT, I64(-1))

        holds = context.is_true(builder, condition, values[0])
        with builder.if_then(builder.not_(holds), likely=False):
            leave_with_refusal(context, builder, fill)
        return context.get_dummy_value()

    return types.none(condition, argument, value, rule, expected), codegen
