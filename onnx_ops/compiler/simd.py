"""LLVM's vectors as values in compiled code; LLVM lowers them to the CPU's instructions.

Functions load vectors, combine them by `times` and `times_plus`, shuffle and store them. The
modules simd_* have loops with vectors, which `vectorized` substitutes for those in
kernels/vectors.py.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, models, register_jitable, register_model

from ..declaration.jit import BOUNDSCHECK, FLAGS, INNER, flags_of, marked
from ..kernels.vectors import View
from .halves import I16, I32, I64, half_of, narrowed, overload, sum_type, widened_bits
from .numba_internals import cgutils

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, NamedTuple, TypeVar

    from numba.core.base import BaseContext
    from numba.core.typing import Context, Signature

    Make = TypeVar("Make", bound=Callable[..., Any])

    class ViewValue(NamedTuple):
        """A View, as an operation gets it."""

        array: ArrayValue
        first: ir.Value
        steps: tuple[ir.Value, ...]


BYTES = 32  # of a vector of sums, but in `blend` where the target has wider ones
FUSED = ["contract"]
inner = register_jitable(**FLAGS | INNER)  # decorator of parts of loops


def applied(function: Callable[..., Any], named: Mapping[str, types.Type]) -> Any:
    """Call a function with the named values that are its parameters."""
    return function(**{name: named[name] for name in inspect.signature(function).parameters})


def vectorized(loop: Callable[..., Any]) -> Callable[[Make], Make]:
    """Decorator: replace a loop of kernels/vectors.py in compiled code.

    The function that this one returns takes its place.

    Its parameters are names of the loop's arguments, and it gets their types. If it returns None,
    or if bounds are checked, compiled code keeps the plain loop.
    """
    marked.remove(loop)  # so that Numba gets it from here alone

    def use(make: Make) -> Make:
        def substitute(*argument_types: types.Type) -> Callable[..., Any]:
            named = dict(zip(inspect.signature(loop).parameters, argument_types, strict=True))
            return loop if BOUNDSCHECK else applied(make, named) or loop

        overload(loop, jit_options=flags_of[loop])(substitute)
        return make

    return use


def as_written(loop: Callable[..., Any]) -> Callable[..., Any]:
    """Return the plain loop of kernels/vectors.py for compiled code."""
    return njit(**flags_of[loop])(loop)


def operation(
    returns: Callable[..., types.Type] = lambda: types.void, literals: str = ""
) -> Callable[[Callable[..., object]], Callable[..., Any]]:
    """Decorator: make an instruction for compiled code.

    The decorated function emits LLVM's instructions.

    The function gets LLVM's builder, and for each argument an `operand`, or the number itself if
    the argument is among the literals. It returns LLVM's value, or a list of values for a tuple.

    returns   a function from the types of the arguments that it names to the result's type
    literals  names of arguments that are compile-time constants
    """

    def define(function: Callable[..., object]) -> Callable[..., Any]:
        names = list(inspect.signature(function).parameters)[1:]

        def typed(
            typing: Context, *argument_types: types.Type
        ) -> tuple[Signature, Callable[..., ir.Value]] | None:
            named = dict(zip(names, argument_types, strict=True))
            if not all(isinstance(named[name], types.IntegerLiteral) for name in literals.split()):
                return None  # Numba asks again, with the numbers

            def codegen(
                context: BaseContext,
                builder: ir.IRBuilder,
                signature: Signature,
                values: Sequence[ir.Value],
            ) -> ir.Value:
                operands = [
                    named[name].literal_value
                    if name in literals.split()
                    else operand(context, builder, named[name], value)
                    for name, value in zip(names, values, strict=True)
                ]
                result = function(builder, *operands)
                if isinstance(result, list):
                    return context.make_tuple(builder, signature.return_type, result)
                return context.get_dummy_value() if signature.return_type == types.void else result

            return applied(returns, named)(*argument_types), codegen

        instruction: Any = typed
        instruction.__name__ = function.__name__
        instruction.__signature__ = inspect.signature(function)
        return intrinsic(instruction)

    return define


def operand(
    context: BaseContext, builder: ir.IRBuilder, numba_type: types.Type, value: ir.Value
) -> Any:
    """Return an ArrayValue for an array, a tuple of operands for a tuple, else LLVM's value."""
    if isinstance(numba_type, types.Array):
        array = context.make_array(numba_type)(context, builder, value)
        return ArrayValue(builder, numba_type, array.data)
    if isinstance(numba_type, types.BaseTuple):
        values = cgutils.unpack_tuple(builder, value)
        members = [
            operand(context, builder, *pair) for pair in zip(numba_type, values, strict=True)
        ]
        is_named = isinstance(numba_type, types.BaseNamedTuple)
        return numba_type.instance_class(*members) if is_named else members
    return value


class Vector(types.Type):
    """`lanes` numbers of one type."""

    def __init__(self, number: types.Number, lanes: int) -> None:
        self.number, self.lanes = number, lanes
        super().__init__(f"Vector({number}, {lanes})")


@register_model(Vector)
class VectorModel(models.PrimitiveModel):
    def __init__(self, manager: models.DataModelManager, vector: Vector) -> None:
        number = manager.lookup(vector.number).get_value_type()
        super().__init__(manager, vector, ir.VectorType(number, vector.lanes))


def lanes_of(number: types.Number) -> int:
    return BYTES * 8 // number.bitwidth


def element_type(array: types.Array) -> ir.Type:
    if isinstance(array.dtype, types.Record):
        return I16
    if isinstance(array.dtype, types.Float):
        return {types.float32: ir.FloatType(), types.float64: ir.DoubleType()}[array.dtype]
    return ir.IntType(8 if isinstance(array.dtype, types.Boolean) else array.dtype.bitwidth)


def alignment(element: ir.Type) -> int:
    """Return the bytes of one element of LLVM's type."""
    is_integer = isinstance(element, ir.IntType)
    return element.width // 8 if is_integer else {"float": 4, "double": 8}[str(element)]


def element_bytes(array: types.Array) -> int:
    """Return the bytes of one element of an array."""
    return alignment(element_type(array))


class ArrayValue:
    """The elements of an array, as LLVM sees them.

    numba_type  of the array
    data        LLVM's pointer to the first element
    """

    def __init__(self, builder: ir.IRBuilder, numba_type: types.Array, data: ir.Value) -> None:
        self.builder, self.numba_type = builder, numba_type
        self.data = builder.bitcast(data, element_type(numba_type).as_pointer())

    def begin(self, index: ir.Value) -> ir.Value:
        """Return the pointer to an element."""
        return self.builder.gep(self.data, [index])

    def after(self, index: ir.Value) -> ArrayValue:
        """Return the elements from an index on."""
        return ArrayValue(self.builder, self.numba_type, self.begin(index))

    def one(self, index: ir.Value) -> ir.Value:
        return self.builder.load(self.begin(index))

    def load(self, index: ir.Value, lanes: int) -> ir.Value:
        """Return a vector of so many elements from an index on."""
        element = self.data.type.pointee
        vector = ir.VectorType(element, lanes)
        loaded = self.builder.load(self.builder.bitcast(self.begin(index), vector.as_pointer()))
        loaded.align = alignment(element)
        return loaded

    def store(self, index: ir.Value, vector: ir.Value) -> None:
        pointer = self.builder.bitcast(self.begin(index), vector.type.as_pointer())
        self.builder.store(vector, pointer).align = alignment(self.data.type.pointee)

    def load_sums(self, index: ir.Value, lanes: int) -> ir.Value:
        """Load a vector as `load`, in the type in which elements are summed."""
        return self.widened(self.load(index, lanes))

    def widened(self, vector: ir.Value) -> ir.Value:
        """Convert elements to the type in which they are summed."""
        name = half_of(self.numba_type)
        return widened_bits(self.builder, vector, name) if name else vector

    def store_sums(self, index: ir.Value, vector: ir.Value) -> None:
        """Store sums, as elements."""
        # Not None if elements and their sums have different types.
        name: Any = half_of(self.numba_type)
        is_sum = vector.type.element != element_type(self.numba_type)
        self.store(index, narrowed(self.builder, vector, name) if is_sum else vector)


def shuffle(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, order: Sequence[int]) -> ir.Value:
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, len(order)), list(order)))


def collect(builder: ir.IRBuilder, number: ir.Type, values: Sequence[ir.Value]) -> ir.Value:
    """Return a vector of values of LLVM's type `number`."""
    vector = ir.Constant(ir.VectorType(number, len(values)), ir.Undefined)
    for lane, value in enumerate(values):
        vector = builder.insert_element(vector, value, I32(lane))
    return vector


def repeat(builder: ir.IRBuilder, value: ir.Value, count: int) -> ir.Value:
    """Return a vector of `count` copies of a value."""
    one = collect(builder, value.type, [value])
    return shuffle(builder, one, one, [0] * count)


def concatenate(builder: ir.IRBuilder, vectors: Sequence[ir.Value]) -> ir.Value:
    while len(vectors) > 1:
        count = vectors[0].type.count
        vectors = [
            shuffle(builder, a, b, range(2 * count))
            for a, b in zip(vectors[::2], vectors[1::2], strict=True)
        ]
    return vectors[0]


def transpose(builder: ir.IRBuilder, rows: Sequence[ir.Value]) -> Sequence[ir.Value]:
    """Return the columns of a square matrix.

    Its size is a power of two, and its rows have at most 32 bytes.

    Longer rows are those of several matrices, side by side. Elements first move within 16 bytes,
    where CPUs shuffle best. With 4 elements in them, each round shuffles two rows into each other,
    the first with the third, the second with the fourth:

        a0 a1 a2 a3         a0 c0 a1 c1         a0 b0 c0 d0
        b0 b1 b2 b3   -->   a2 c2 a3 c3   -->   a1 b1 c1 d1
        c0 c1 c2 c3         b0 d0 b1 d1         a2 b2 c2 d2
        d0 d1 d2 d3         b2 d2 b3 d3         a3 b3 c3 d3

    Where rows have 32 bytes, each quarter of the matrix is transposed so, and then two of them
    change places:

        A B         A' B'         A' C'
        C D   -->   C' D'   -->   B' D'
    """
    size = len(rows)
    matrices = rows[0].type.count // size

    def shuffle_each(a: ir.Value, b: ir.Value, order: Sequence[int]) -> ir.Value:
        """Shuffle each matrix as `shuffle` does one: numbers from `size` on stand for elements of
        b.
        """
        steps = [step + (matrices - 1) * size * (step >= size) for step in order]
        return shuffle(builder, a, b, [m * size + step for m in range(matrices) for step in steps])

    side = min(size, 16 // alignment(rows[0].type.element))  # of a quarter, or of the whole
    begins = range(0, size, side)
    low = [begin + k // 2 + k % 2 * size for begin in begins for k in range(side)]
    high = [k + side // 2 for k in low]
    bands = [rows[begin : begin + side] for begin in begins]
    for _ in range(side.bit_length() - 1):
        pairs = [list(zip(band[: side // 2], band[side // 2 :], strict=True)) for band in bands]
        bands = [
            [shuffle_each(*pair, order) for pair in band for order in (low, high)] for band in pairs
        ]
    if len(bands) == 1:
        return bands[0]
    left_and_right = [
        [matrix + k for matrix in (0, size) for k in range(begin, begin + side)] for begin in begins
    ]
    return [
        shuffle_each(a, b, order) for order in left_and_right for a, b in zip(*bands, strict=True)
    ]


@operation()
def fetch_line(builder: ir.IRBuilder, array: ArrayValue, index: ir.Value) -> None:
    """Have the CPU load the line that has an element, which need not exist, into its caches."""
    bytes_type = ir.IntType(8).as_pointer()
    function_type = ir.FunctionType(ir.VoidType(), [bytes_type, I32, I32, I32])
    function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch")
    pointer = builder.bitcast(array.begin(index), bytes_type)
    # As data, to be read: lines that are written come faster so. Into the second-level cache, which
    # has room for what is used later.
    builder.call(function, [pointer, I32(0), I32(2), I32(1)])


@operation()
def stay_apart(builder: ir.IRBuilder) -> None:
    """Keep LLVM from copying the function that has this instruction into those that call it.

    A function with a loop for each of many cases would put the numbers of all of them into its
    caller's loop.
    """
    builder.function.attributes.add("noinline")


@operation(literals="size")
def transpose_elements(builder: ir.IRBuilder, matrix: ViewValue, out: ViewValue, size: int) -> None:
    """out[q, r] = matrix[r, q] for q, r < size"""
    source, first, (pitch,) = matrix
    target, begin, (out_pitch,) = out
    rows = [source.load(builder.add(first, builder.mul(I64(r), pitch)), size) for r in range(size)]
    for q, column in enumerate(transpose(builder, rows)):
        target.store_sums(builder.add(begin, builder.mul(I64(q), out_pitch)), column)


@operation(lambda like: like)
def sums_at(builder: ir.IRBuilder, source: ArrayValue, i: ir.Value, like: ir.Value) -> ir.Value:
    """source[i:] as a vector like `like`, in the type in which the elements are summed."""
    return source.load_sums(i, like.type.count)


@operation()
def put(builder: ir.IRBuilder, row: ArrayValue, b: ir.Value, vector: ir.Value) -> None:
    """row[b:] = vector, of the row's type, or of the one in which its 16-bit floats are summed"""
    row.store_sums(b, vector)


@operation(lambda like: like)
def splat(builder: ir.IRBuilder, value: ir.Value, like: ir.Value) -> ir.Value:
    """`value` in every lane of a vector like `like`."""
    return repeat(builder, value, like.type.count)


# LLVM may fuse a product with the sum that it is added to.


@operation(lambda a: a)
def times(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    return builder.fmul(a, b, flags=FUSED)


@operation(lambda a: a)
def plus(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    return builder.fadd(a, b, flags=FUSED)


@operation(lambda a: a)
def times_plus(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    """a * b + c"""
    return builder.fadd(builder.fmul(a, b, flags=FUSED), c, flags=FUSED)


@operation(lambda array, lanes: Vector(sum_type(array), lanes.literal_value), literals="lanes")
def zeros(builder: ir.IRBuilder, array: ArrayValue, lanes: int) -> ir.Value:
    """Return a vector of so many zeros, of the type in which the array's elements are summed."""
    none = ir.Constant(ir.VectorType(array.data.type.pointee, lanes), None)
    return ir.Constant(array.widened(none).type, None)


@operation(lambda: types.boolean)
def are_zeros(builder: ir.IRBuilder, vector: ir.Value) -> ir.Value:
    """Return whether all numbers of a vector are 0; no number is NaN then."""
    bits = builder.fcmp_ordered("==", vector, ir.Constant(vector.type, None))
    number = ir.IntType(vector.type.count)
    return builder.icmp_unsigned("==", builder.bitcast(bits, number), ir.Constant(number, -1))


def array_of(view: types.NamedTuple) -> types.Array:
    """Return the type of a View's array."""
    return view.types[0]


def whole_vector(array: types.Array) -> int:
    """Return the number of the array's elements in a vector."""
    return BYTES // element_bytes(array)


def square(array: types.Array) -> int:
    """Return the size of the squares of such elements that one transposition handles."""
    return min(8, whole_vector(array))


def transposer(array: types.Array) -> Callable[..., None]:
    """Return a function that transposes matrices of an array's elements, with sides of at least 4.

    out[l, q, r] = x[l, r, q]
    """
    large = square(array)
    in_large_squares, in_small_squares = by_squares(large), by_squares(4)

    @inner
    def transpose_matrices(x: View, matrices: int, rows: int, columns: int, out: View) -> None:
        if min(rows, columns) >= large:
            in_large_squares(x, matrices, rows, columns, out)
        else:
            in_small_squares(x, matrices, rows, columns, out)

    return transpose_matrices


def by_squares(size: int) -> Callable[..., None]:
    """Return a function as `transposer` does, for squares of this size.

    The last squares overlap those before.
    """

    @inner
    def transpose_matrices(x: View, matrices: int, rows: int, columns: int, out: View) -> None:
        source, first, (step, pitch) = x
        target, begin, (out_step, out_pitch) = out
        for l in range(matrices):
            i = first + l * step
            j = begin + l * out_step
            for column in range(0, columns, size):
                c = min(column, columns - size)
                for row in range(0, rows, size):
                    r = min(row, rows - size)
                    square = View(source, i + r * pitch + c, (pitch,))
                    transposed = View(target, j + c * out_pitch + r, (out_pitch,))
                    transpose_elements(square, transposed, size)

    return transpose_matrices
