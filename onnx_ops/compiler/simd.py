"""Vectors as values in compiled code: LLVM's own, which it lowers to whatever the CPU has.

Functions make them by loads, combine them by `times` and `times_plus`, shuffle and store them. simd_blend.py,
simd_points.py, simd_rows.py and simd_boxes.py have loops of these, which `vectorized` puts in the place of those in
kernels/vectors.py.
"""

import inspect

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_jitable, register_model

from .halves import HALF, I16, I32, I64, has_half_instructions, sum_type
from .jit import BOUNDSCHECK, FLAGS, INNER, flags_of, marked

BYTES = 32  # of a vector of sums, but in simd_blend.py where the target has wider ones
FUSED = ["contract"]
inner = register_jitable(**FLAGS | INNER)  # decorator of parts of loops


def vectorized(loop):
    """Decorator: compiled code that calls a loop of kernels/vectors.py gets the function that this one returns.

    It gets the types of those of the loop's arguments that it names. Where it returns None, and where bounds are
    checked, compiled code gets the loop as it stands there.
    """
    marked.remove(loop)  # so that Numba gets it from here alone

    def use(make):
        def choose(*kinds):
            given = dict(zip(inspect.signature(loop).parameters, kinds, strict=True))
            wanted = {name: given[name] for name in inspect.signature(make).parameters}
            return loop if BOUNDSCHECK else make(**wanted) or loop

        choose.__signature__ = inspect.signature(loop)
        overload(loop, jit_options=flags_of[loop])(choose)
        return make

    return use


def plain(loop):
    """The loop as it stands in kernels/vectors.py, for compiled code."""
    return njit(**flags_of[loop])(loop)


class Vector(types.Type):
    """`lanes` numbers of one type."""

    def __init__(self, number, lanes):
        self.number, self.lanes = number, lanes
        super().__init__(f"Vector({number}, {lanes})")


@register_model(Vector)
class VectorModel(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, ir.VectorType(manager.lookup(kind.number).get_value_type(), kind.lanes))


def lanes_of(number):
    return BYTES * 8 // number.bitwidth


def pointer_to(context, builder, signature, values, k):
    """Return a pointer to the first element of argument k."""
    array = signature.args[k]
    data = context.make_array(array)(context, builder, values[k]).data
    return builder.bitcast(data, element_type(array).as_pointer())


def element_type(array):
    if isinstance(array.dtype, types.Record):
        return I16
    if isinstance(array.dtype, types.Float):
        return {types.float32: ir.FloatType(), types.float64: ir.DoubleType()}[array.dtype]
    return ir.IntType(8 if isinstance(array.dtype, types.Boolean) else array.dtype.bitwidth)


def alignment(kind):
    """Return how many bytes one element takes."""
    return kind.width // 8 if isinstance(kind, ir.IntType) else {"float": 4, "double": 8}[str(kind)]


def load_vector(builder, data, index, lanes):
    kind = data.type.pointee
    loaded = builder.load(builder.bitcast(builder.gep(data, [index]), ir.VectorType(kind, lanes).as_pointer()))
    loaded.align = alignment(kind)
    return loaded


def store_vector(builder, data, index, vector):
    at = builder.bitcast(builder.gep(data, [index]), vector.type.as_pointer())
    builder.store(vector, at).align = alignment(data.type.pointee)


def widen(builder, vector, array):
    """Convert elements to the type in which they are summed."""
    if not isinstance(array.dtype, types.Record):
        return vector
    lanes = vector.type.count
    floats = ir.VectorType(ir.FloatType(), lanes)
    if "float16" in array.dtype.fields:
        return builder.fpext(builder.bitcast(vector, ir.VectorType(HALF, lanes)), floats)
    integers = ir.VectorType(I32, lanes)
    return builder.bitcast(builder.shl(builder.zext(vector, integers), ir.Constant(integers, [16] * lanes)), floats)


def narrow(builder, vector, array):
    """Convert sums to elements of the array: the inverse of `widen`, rounded as halves.py does."""
    if vector.type.element == element_type(array):
        return vector
    integers, shorts = (ir.VectorType(kind, vector.type.count) for kind in (I32, I16))
    if "float16" in array.dtype.fields:
        return builder.bitcast(builder.fptrunc(vector, ir.VectorType(HALF, vector.type.count)), shorts)

    def constant(value):
        return ir.Constant(integers, [value] * integers.count)

    bits = builder.bitcast(vector, integers)
    high = builder.lshr(bits, constant(16))
    rounded = builder.add(builder.add(bits, constant(0x7FFF)), builder.and_(high, constant(1)))
    quiet = builder.or_(high, constant(0x40))
    nan = builder.fcmp_unordered("uno", vector, vector)
    return builder.trunc(builder.select(nan, quiet, builder.lshr(rounded, constant(16))), shorts)


def needs_library(array):
    """Whether LLVM would call a function for a conversion of the array's elements."""
    half = isinstance(array.dtype, types.Record) and "float16" in array.dtype.fields
    return half and not has_half_instructions()


def shuffle(builder, a, b, order):
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, len(order)), list(order)))


def repeat(builder, value, count):
    """Return a vector that has the value `count` times."""
    one = builder.insert_element(ir.Constant(ir.VectorType(value.type, 1), ir.Undefined), value, I32(0))
    return shuffle(builder, one, one, [0] * count)


def concatenate(builder, vectors):
    while len(vectors) > 1:
        count = vectors[0].type.count
        vectors = [shuffle(builder, a, b, range(2 * count)) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
    return vectors[0]


def transpose(builder, rows):
    """Return the columns of a square matrix whose size is a power of two and whose rows have at most 32 bytes.

    Longer rows are those of several matrices, side by side. Elements first move within 16 bytes, where CPUs shuffle
    best.
    """
    size = len(rows)
    matrices = rows[0].type.count // size

    def shuffle_each(a, b, order):
        """As `shuffle` of one matrix' rows: numbers from `size` on stand for elements of b."""
        steps = [step + (matrices - 1) * size * (step >= size) for step in order]
        return shuffle(builder, a, b, [m * size + step for m in range(matrices) for step in steps])

    lane = min(size, 16 // alignment(rows[0].type.element))
    lanes = range(0, size, lane)
    low = [begin + k // 2 + k % 2 * size for begin in lanes for k in range(lane)]
    high = [k + lane // 2 for k in low]
    parts = [rows[begin : begin + lane] for begin in lanes]
    for _ in range(lane.bit_length() - 1):
        pairs = [list(zip(part[: lane // 2], part[lane // 2 :], strict=True)) for part in parts]
        parts = [[shuffle_each(*pair, order) for pair in part for order in (low, high)] for part in pairs]
    if len(parts) == 1:
        return parts[0]
    orders = [[k + other for other in (0, size) for k in range(begin, begin + lane)] for begin in lanes]
    return [shuffle_each(*pair, order) for order in orders for pair in zip(*parts, strict=True)]


def gathered(size):
    """How many elements of `size` bytes, each with a 32-bit index, one instruction gathers."""
    return 64 // max(size, 4)


def gather(builder, data, index, width, exists=None):
    """Return a vector of the `width` bits, 32 or 64, that begin at each data[index]; 0 where `exists` is false.

    The index is a vector of 32-bit numbers, for as many results as 512 bits hold.
    """
    numbers, count = ir.VectorType(ir.IntType(width), index.type.count), index.type.count
    masks, byte = ir.VectorType(ir.IntType(1), count), ir.IntType(8).as_pointer()
    kind = ir.FunctionType(numbers, [numbers, byte, index.type, masks, I32])
    name = {32: "llvm.x86.avx512.mask.gather.dpi.512", 64: "llvm.x86.avx512.mask.gather.dpq.512"}[width]
    function = cgutils.get_or_insert_function(builder.module, kind, name)
    scale, exists = I32(alignment(data.type.pointee)), exists or ir.Constant(masks, [1] * count)
    return builder.call(function, [ir.Constant(numbers, None), builder.bitcast(data, byte), index, exists, scale])


@intrinsic
def transpose_elements(typing, source, i, pitch, target, j, stride, size):
    """target[j + q * stride + r] = source[i + r * pitch + q] for q, r < size (a literal)"""

    def codegen(context, builder, signature, values):
        data, into = (pointer_to(context, builder, signature, values, k) for k in (0, 3))
        count = size.literal_value
        steps = [I64(r) for r in range(count)]
        rows = [load_vector(builder, data, builder.add(values[1], builder.mul(r, values[2])), count) for r in steps]
        for q, column in zip(steps, transpose(builder, rows), strict=True):
            at = builder.add(values[4], builder.mul(q, values[5]))
            store_vector(builder, into, at, narrow(builder, column, target))
        return context.get_dummy_value()

    if isinstance(size, types.IntegerLiteral):
        return types.void(source, i, pitch, target, j, stride, size), codegen
    return None


@intrinsic
def vector_at(typing, row, b, like):
    """row[b:] as a vector like `like`."""

    def codegen(context, builder, signature, values):
        return load_vector(builder, pointer_to(context, builder, signature, values, 0), values[1], like.lanes)

    return like(row, b, like), codegen


@intrinsic
def put(typing, row, b, vector):
    """row[b:] = vector, of the type in which the row's elements are summed"""

    def codegen(context, builder, signature, values):
        elements = narrow(builder, values[2], signature.args[0])
        store_vector(builder, pointer_to(context, builder, signature, values, 0), values[1], elements)
        return context.get_dummy_value()

    return types.void(row, b, vector), codegen


@intrinsic
def broadcast(typing, value, like):
    """`value` in every lane of a vector like `like`."""

    def codegen(context, builder, signature, values):
        return repeat(builder, values[0], like.lanes)

    return like(value, like), codegen


def lane_by_lane(operation):
    """Return a function of two vectors that LLVM may fuse with the next one."""

    @intrinsic
    def combine(typing, a, b):
        return a(a, b), lambda context, builder, signature, values: getattr(builder, operation)(*values, flags=FUSED)

    return combine


times, plus = lane_by_lane("fmul"), lane_by_lane("fadd")


@intrinsic
def times_plus(typing, a, b, c):
    """a * b + c"""

    def codegen(context, builder, signature, values):
        return builder.fadd(builder.fmul(*values[:2], flags=FUSED), values[2], flags=FUSED)

    return a(a, b, c), codegen


@intrinsic
def lanes(typing, array):
    """How many of the array's sums are one vector."""
    count = lanes_of(sum_type(array))
    return types.int64(array), lambda context, builder, signature, values: I64(count)


def square(array):
    """Return the size of the squares of such elements that are transposed at once."""
    return min(8, whole_vector(array))


def transposer(size):
    """Return a function that transposes a matrix in squares of this size; the last ones overlap those before."""

    @inner
    def transpose_matrix(x, first, pitch, rows, columns, out, to, out_pitch):
        for column in range(0, columns, size):
            c = min(column, columns - size)
            for row in range(0, rows, size):
                r = min(row, rows - size)
                transpose_elements(x, first + r * pitch + c, pitch, out, to + c * out_pitch + r, out_pitch, size)

    return transpose_matrix


def whole_vector(out):
    """How many of the array's elements are one vector."""
    return BYTES // alignment(element_type(out))


@intrinsic
def sums_at(typing, source, i, like):
    """source[i:] as a vector like `like`, in the type in which the elements are summed."""

    def codegen(context, builder, signature, values):
        data = pointer_to(context, builder, signature, values, 0)
        return widen(builder, load_vector(builder, data, values[1], like.lanes), source)

    return like(source, i, like), codegen


@intrinsic
def zeros(typing, sums, lanes):
    """A vector of so many zeros (a literal) of the array's type."""

    def codegen(context, builder, signature, values):
        return ir.Constant(context.get_value_type(signature.return_type), None)

    if isinstance(lanes, types.IntegerLiteral):
        return Vector(sums.dtype, lanes.literal_value)(sums, lanes), codegen
    return None


@intrinsic
def are_zeros(typing, vector):
    """Whether all numbers of a vector are 0; no number is NaN then."""

    def codegen(context, builder, signature, values):
        zero = ir.Constant(values[0].type, None)
        bits = builder.fcmp_ordered("==", values[0], zero)
        number = ir.IntType(values[0].type.count)
        return builder.icmp_unsigned("==", builder.bitcast(bits, number), ir.Constant(number, -1))

    return types.boolean(vector), codegen
