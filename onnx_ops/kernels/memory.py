"""Memory in compiled code: arrays over it, and what `refuse` writes."""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, lower_builtin, overload, type_callable
from numba.np.arrayobj import populate_array

from ..errors import refuse
from . import elements
from .elements_numba import sum_type
from .jit import FLAGS, INNER

WORD = ir.IntType(64)


def array_type(dtype, shape):
    return types.Array(dtype, 1 if isinstance(shape, types.Integer) else len(shape), "C")


def view(context, builder, made, place, shape, sizes):
    """A C-contiguous array of the type `made` over the memory at `place`; `sizes` is the value of type `shape`.

    numba.carray is a function, and functions that count no references return no arrays of their own.
    """
    if isinstance(shape, types.Integer):
        shape, sizes = [shape], [sizes]
    else:
        sizes = cgutils.unpack_tuple(builder, sizes)
    sizes = [context.cast(builder, size, kind, types.intp) for size, kind in zip(sizes, shape, strict=True)]
    kind = context.get_data_type(made.dtype)
    step = WORD(context.get_abi_sizeof(kind))
    steps = [step]
    for size in reversed(sizes[1:]):
        steps.insert(0, builder.mul(steps[0], size))
    array = context.make_array(made)(context, builder)
    populate_array(array, builder.bitcast(place, kind.as_pointer()), sizes, steps, step, None)
    return array._getvalue()


def _view_of_workspace(context, builder, signature, values):
    kind, begin, shape = signature.args[:3]
    data = context.make_array(kind)(context, builder, values[0]).data
    begin = context.cast(builder, values[1], begin, types.intp)
    return view(context, builder, signature.return_type, builder.gep(data, [begin]), shape, values[2])


@type_callable(elements.sums_in)
def _(typing):
    return lambda workspace, begin, shape, array: array_type(sum_type(array), shape)


@type_callable(elements.elements_in)
def _(typing):
    return lambda workspace, begin, shape, array: array_type(array.dtype, shape)


@type_callable(elements.integers_in)
def _(typing):
    return lambda workspace, begin, shape: array_type(types.int64, shape)


@type_callable(elements.indices_in)
def _(typing):
    return lambda workspace, begin, shape: array_type(types.int32, shape)


for function in (elements.sums_in, elements.elements_in, elements.integers_in, elements.indices_in):
    lower_builtin(function, types.VarArg(types.Any))(_view_of_workspace)


@overload(refuse, prefer_literal=True, jit_options=FLAGS | INNER)
def _(record, argument, value, rule, expected=None):
    return lambda record, argument, value, rule, expected=None: note_refusal(record, argument, value, rule, expected)


@intrinsic(prefer_literal=True)
def note_refusal(typing, record, argument, value, rule, expected):
    """Fill in the record's field `refusal`, see operator.py; the vectors that are refused outlive the call."""

    def codegen(context, builder, signature, values):
        kinds = signature.args

        def number(k):
            return context.cast(builder, values[k], kinds[k], types.int64)

        words = builder.gep(values[0], [WORD(0), WORD(record.offset("refusal"))])
        words = builder.bitcast(words, WORD.as_pointer())

        def put(position, word):
            word = builder.ptrtoint(word, WORD) if isinstance(word.type, ir.PointerType) else word
            builder.store(word, builder.gep(words, [WORD(position)]))

        put(0, context.insert_const_string(builder.module, argument.literal_value))
        put(1, context.insert_const_string(builder.module, rule.literal_value))
        if isinstance(value, types.Array):
            array = context.make_array(value)(context, builder, values[2])
            put(2, array.data)
            put(3, builder.extract_value(array.shape, 0))
        else:
            put(6, number(2))
            put(2, builder.gep(words, [WORD(6)]))
            put(3, WORD(-1))
        given = not isinstance(expected, types.NoneType | types.Omitted)
        put(4, WORD(int(given)))
        put(5, number(4) if given else WORD(0))
        return WORD(1)

    return types.int64(record, argument, value, rule, expected), codegen
