"""Addresses in compiled code: calls through pointers, memory of the caller's frame, arrays over a call's memory."""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, lower_builtin, overload, register_jitable, type_callable
from numba.np.arrayobj import populate_array

from . import elements
from .elements_numba import sum_type
from .jit import FLAGS

WORD = ir.IntType(64)


@intrinsic
def array_at(typing, place, shape, dtype):
    """An array over the memory at `place`, an address or a pointer.

    numba.carray is a function, and functions that count no references return no arrays of their own.
    """

    def codegen(context, builder, signature, values):
        return view(context, builder, signature.return_type, values[0], shape, values[1])

    return array_type(dtype.dtype, shape)(place, shape, dtype), codegen


def array_type(dtype, shape):
    return types.Array(dtype, 1 if isinstance(shape, types.Integer) else len(shape), "C")


def view(context, builder, made, place, shape, sizes):
    """A C-contiguous array of the type `made` over the memory at `place`; `sizes` is the value of type `shape`."""
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
    convert = builder.bitcast if isinstance(place.type, ir.PointerType) else builder.inttoptr
    array = context.make_array(made)(context, builder)
    populate_array(array, convert(place, kind.as_pointer()), sizes, steps, step, None)
    return array._getvalue()


def _view_of_workspace(context, builder, signature, values):
    kind, begin, shape = signature.args[:3]
    data = context.make_array(kind)(context, builder, values[0]).data
    begin = context.cast(builder, values[1], begin, types.intp)
    return view(context, builder, signature.return_type, builder.gep(data, [begin]), shape, values[2])


@type_callable(elements.sums_in)
def _(typing):
    return lambda workspace, begin, shape, array: array_type(sum_type(array), shape)


@type_callable(elements.integers_in)
def _(typing):
    return lambda workspace, begin, shape: array_type(types.int64, shape)


for function in (elements.sums_in, elements.integers_in):
    lower_builtin(function, types.VarArg(types.Any))(_view_of_workspace)


@intrinsic
def ccall(typing, address, args):
    """Call the C function at `address`, whose parameters and result are all 64-bit integers or pointers."""

    def codegen(context, builder, signature, values):
        given = [builder.extract_value(values[1], k) for k in range(len(signature.args[1]))]
        given = [builder.ptrtoint(v, WORD) if isinstance(v.type, ir.PointerType) else v for v in given]
        function = builder.inttoptr(values[0], ir.FunctionType(WORD, [WORD] * len(given)).as_pointer())
        return builder.call(function, given)

    return types.int64(address, args), codegen


@intrinsic
def address(typing, pointer):
    """The pointer as an integer."""

    def codegen(context, builder, signature, values):
        return builder.ptrtoint(values[0], WORD)

    return types.int64(pointer), codegen


@intrinsic
def copy(typing, source, target, count):
    """Copy `count` bytes from the address `source` to the address `target`."""

    def codegen(context, builder, signature, values):
        begin, end = (builder.inttoptr(v, cgutils.voidptr_t) for v in values[:2])
        cgutils.raw_memcpy(builder, end, begin, values[2], 1)
        return context.get_dummy_value()

    return types.void(source, target, count), codegen


@intrinsic(prefer_literal=True)
def stack(typing, count):
    """`count` (a literal) words in the frame of the compiled function that calls this; never return the pointer."""
    if not isinstance(count, types.IntegerLiteral):
        return None

    def codegen(context, builder, signature, values):
        memory = cgutils.alloca_once(builder, ir.ArrayType(WORD, count.literal_value))
        memory.align = 16
        return builder.bitcast(memory, cgutils.voidptr_t)

    return types.voidptr(count), codegen


@intrinsic
def take_first(typing, mask):
    """Set the lowest bit that is clear in the first element of `mask`, at once for all threads; returns its number.

    Of the workspaces that no other tile is using, the first are the likeliest to be in the cache.
    """

    def codegen(context, builder, signature, values):
        place = context.make_array(signature.args[0])(context, builder, values[0]).data
        again, done = builder.append_basic_block("again"), builder.append_basic_block("done")
        builder.branch(again)
        builder.position_at_end(again)
        old = builder.load_atomic(place, "monotonic", 8)
        number = builder.cttz(builder.not_(old), ir.Constant(ir.IntType(1), 0))
        # The number is 64 if there is none: then 63 takes part in the attempt, which counts for nothing.
        bit = builder.shl(WORD(1), builder.and_(number, WORD(63)))
        result = builder.cmpxchg(place, old, builder.or_(old, bit), "acquire", "monotonic")
        free = builder.icmp_unsigned("<", number, WORD(64))
        builder.cbranch(builder.and_(builder.extract_value(result, 1), free), done, again)
        builder.position_at_end(done)
        return number

    return types.int64(mask), codegen


@intrinsic
def give_back(typing, mask, number):
    """Clear this bit in the first element of `mask`, at once for all threads."""

    def codegen(context, builder, signature, values):
        place = context.make_array(signature.args[0])(context, builder, values[0]).data
        builder.atomic_rmw("and", place, builder.not_(builder.shl(WORD(1), values[1])), "release")
        return context.get_dummy_value()

    return types.void(mask, number), codegen


# Functions that count no references return no arrays of their own, but tuples of them.
@register_jitable(**FLAGS)
def _tensor(call, k, dtype):
    return (array_at(call.data[k], call.size[k], dtype),)


@register_jitable(**FLAGS)
def _shape(call, k):
    return (call.shape[k][: call.rank[k]],)


def tensors(call, p, d):
    """The inputs at the positions `p` of a call, as a tuple of flat arrays of the dtypes `d`."""
    raise NotImplementedError("for compiled code only")


def shapes(call, positions):
    """What a plan sees of the inputs at these positions, as a tuple of arrays of int64."""
    raise NotImplementedError("for compiled code only")


# Numba types a tuple of arrays of different dtypes only when it is written out.
@overload(tensors, jit_options=FLAGS)
def _(call, p, d):
    return {
        1: lambda call, p, d: _tensor(call, p[0], d[0]),
        2: lambda call, p, d: _tensor(call, p[0], d[0]) + _tensor(call, p[1], d[1]),
        3: lambda call, p, d: _tensor(call, p[0], d[0]) + _tensor(call, p[1], d[1]) + _tensor(call, p[2], d[2]),
        4: lambda call, p, d: (
            _tensor(call, p[0], d[0])
            + _tensor(call, p[1], d[1])
            + _tensor(call, p[2], d[2])
            + _tensor(call, p[3], d[3])
        ),
    }[len(p)]


@overload(shapes, jit_options=FLAGS)
def _(call, positions):
    return {
        1: lambda call, positions: _shape(call, 0),
        2: lambda call, positions: _shape(call, 0) + _shape(call, 1),
        3: lambda call, positions: _shape(call, 0) + _shape(call, 1) + _shape(call, 2),
        4: lambda call, positions: _shape(call, 0) + _shape(call, 1) + _shape(call, 2) + _shape(call, 3),
    }[len(positions)]
