"""Addresses in compiled code: calls through pointers, memory of the caller's frame, arrays over a call's tensors."""

from llvmlite import ir
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic, overload, register_jitable

WORD = ir.IntType(64)


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
def pointer(typing, address):
    """The integer `address` as a pointer."""

    def codegen(context, builder, signature, values):
        return builder.inttoptr(values[0], cgutils.voidptr_t)

    return types.voidptr(address), codegen


@intrinsic
def address(typing, pointer):
    """The pointer as an integer."""

    def codegen(context, builder, signature, values):
        return builder.ptrtoint(values[0], WORD)

    return types.int64(pointer), codegen


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


@register_jitable
def _tensor(call, k, dtype):
    return carray(pointer(call.data[k]), (call.size[k],), dtype)


@register_jitable
def _shape(call, k):
    return call.shape[k][: call.rank[k]]


def tensors(call, positions, dtypes):
    """The inputs at these positions of a call, as a tuple of flat arrays of these dtypes."""
    raise NotImplementedError("for compiled code only")


def shapes(call, positions):
    """What a plan sees of the inputs at these positions, as a tuple of arrays of int64."""
    raise NotImplementedError("for compiled code only")


# Numba types a tuple of arrays of different dtypes only when it is written out.
@overload(tensors)
def _(call, positions, dtypes):
    return {
        1: lambda call, positions, dtypes: (_tensor(call, positions[0], dtypes[0]),),
        2: lambda call, positions, dtypes: (
            _tensor(call, positions[0], dtypes[0]),
            _tensor(call, positions[1], dtypes[1]),
        ),
        3: lambda call, positions, dtypes: (
            _tensor(call, positions[0], dtypes[0]),
            _tensor(call, positions[1], dtypes[1]),
            _tensor(call, positions[2], dtypes[2]),
        ),
    }[len(positions)]


@overload(shapes)
def _(call, positions):
    return {
        1: lambda call, positions: (_shape(call, 0),),
        2: lambda call, positions: (_shape(call, 0), _shape(call, 1)),
        3: lambda call, positions: (_shape(call, 0), _shape(call, 1), _shape(call, 2)),
        4: lambda call, positions: (_shape(call, 0), _shape(call, 1), _shape(call, 2), _shape(call, 3)),
    }[len(positions)]
