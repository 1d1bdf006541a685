"""The records that compiled code gets, and the views by which Python functions see them. All numbers have 64 bits.

    block        the attributes' values; for each attribute of the operator
                     count   number of its values, 0 if it has none
                     offset  of the first value from the block's beginning
                 and then the values, integers or doubles
    call         for each input and, from position OUTPUT on, for each output:
                     data    address of the elements
                     size    number of elements
                     rank    number of axes, or ABSENT
                     shape   for an input whose values the plan reads: these values; `rank` is their number
                 input_count  number of the node's inputs, including absent ones
                 parameters   address of the parameters
                 geometry     what the plan computes, see declaration.py

native/table.h has the same records for the C library.
A compiled function has up to three parameters, each an address or a number. It returns 0 for success, 1 for a refusal,
and 2 if the code has raised an exception:

    resolve(block, parameters), infer(parameters, call), plan(parameters, call), kernel(call, tile, workspace)

A compiled function calls Python functions, its steps, with views of these records. An Entry lists its steps.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from .. import dtypes
from ..declaration import ABSENT, KINDS, MAX_INPUTS, MAX_OUTPUTS, MAX_RANK

OUTPUT = MAX_INPUTS
LONGEST = 200  # characters of an entry's name: file systems allow 255 for a name, and a digest and suffixes follow
VECTOR = np.dtype([("count", np.int64), ("offset", np.int64)])
TENSOR = np.dtype([("data", np.int64), ("size", np.int64), ("rank", np.int64), ("shape", np.int64, (MAX_RANK,))])
INT64 = np.dtype(np.int64)


@cache
def call_dtype(geometry):
    """The dtype of the record of a call of an operator with this geometry."""
    tensors = TENSOR, (MAX_INPUTS + MAX_OUTPUTS,)
    numbers = [("input_count", np.int64), ("parameters", np.int64)]
    return np.dtype([("tensors", *tensors), *numbers, ("geometry", geometry)])


CALL = call_dtype(np.dtype([]))  # without its geometry
PARAMETERS = CALL.fields["parameters"][1]  # offset of the parameters' address in a call
GEOMETRY = CALL.itemsize  # offset of the geometry in a call


@dataclass(frozen=True)
class Place:
    """A place in memory: base + offset + further, in bytes.

    base     an address: the position of the parameter that has it, or where it is Held
    further  where another number of bytes is Held, or None
    """

    base: "int | Held"
    offset: int = 0
    further: "Held | None" = None


@dataclass(frozen=True)
class Held:
    """A number that is held in memory, at a Place."""

    at: Place
    dtype: np.dtype = INT64


@dataclass(frozen=True)
class Number:
    """A number that is passed as a parameter."""

    parameter: int


@dataclass(frozen=True)
class RecordView:
    """A record at a Place."""

    dtype: np.dtype
    at: Place


@dataclass(frozen=True)
class ArrayView:
    """An array at a Place, with an axis for each number of the shape.

    ruled     if not None, the number of axes is known only when the rule is compiled
    is_input  whether the array is read-only
    """

    dtype: np.dtype
    at: Place
    shape: tuple[Held, ...]
    ruled: "Ruled | None" = None
    is_input: bool = False


@dataclass(frozen=True)
class Tensors:
    """The records of `count` tensors, from a Place on, into which the result of a function is written.

    shapes   whether the result is the shape of the one tensor, or a tuple of shapes; else it is the length of the first
             axis of all tensors, or a tuple with a length for each
    """

    at: Place
    count: int
    shapes: bool = True


@dataclass(frozen=True)
class Ruled:
    """The number of axes of the shape that a step, a rule, returns for the tensor at this position."""

    step: "Step"
    position: int


@dataclass(frozen=True)
class Step:
    """A Python function that is compiled, with its arguments.

    arguments  views as above, None, or tuples of them
    result     where the number that it returns is written, or Tensors, or None if it returns nothing
    role       what the function is for its operator, in errors
    """

    function: Callable = field(repr=False)
    arguments: tuple
    result: "Place | Tensors | None" = None
    role: str = "kernel"

    @property
    def dtypes(self):
        """The dtypes of the tensors that the function gets as arrays."""
        return [a.dtype for a in self.arguments if isinstance(a, ArrayView) and isinstance(a.at.base, Held)]

    @property
    def place(self):
        """The file and line of the function, and for a kernel the types of its tensors."""
        code = self.function.__code__
        types = f" for {', '.join(d.names[0] if d.names else d.name for d in self.dtypes)}" * (self.role == "kernel")
        return f"{code.co_filename.replace(chr(92), '/').rpartition('/')[2]}, line {code.co_firstlineno}{types}"


@dataclass(frozen=True)
class Entry:
    """A compiled function: its steps, its number of parameters, and the record into which refusals are written."""

    steps: tuple[Step, ...]
    parameters: int
    refusal: Place

    @property
    def functions(self):
        """The functions of its steps, and of the rules on which these depend."""
        views = [a for step in self.steps for a in step.arguments if isinstance(a, ArrayView) and a.ruled]
        return tuple(dict.fromkeys(each.function for each in (*self.steps, *(view.ruled.step for view in views))))

    @property
    def name(self):
        """The first part of the names of its file and of the compiled function; a digest follows."""
        function = self.steps[0].function
        parts = [function.__name__, *(d.names[0] if d.names else d.name for d in self.steps[0].dtypes)]
        name = "-".join([function.__module__.rpartition(".")[2], *parts])
        return re.sub(r"[^\w-]", "_", name, flags=re.ASCII)[:LONGEST]  # not every linker takes other letters


def _tensor(k, field):
    """The offset of a field of tensor k in a call."""
    return k * TENSOR.itemsize + TENSOR.fields[field][1]


def _attribute(base, begin, k, dtype=INT64):
    """A view of the values of attribute k, in the block that begins at this offset from a base."""
    at = begin + k * VECTOR.itemsize
    place = Place(base, begin, Held(Place(base, at + VECTOR.fields["offset"][1])))
    return ArrayView(dtype, place, (Held(Place(base, at)),))


def attribute_content(attribute, vector):
    """The values of an attribute as they stand in a block, as int64; a tensor's follow its type, rank and shape."""
    header = []
    if attribute.kind == "tensor":
        header = [dtypes.TABLE[dtypes.name_of(vector)].onnx, vector.ndim, *vector.shape]
    content = np.array(header, np.int64).tobytes() + vector.tobytes()
    return np.frombuffer(content + bytes(-len(content) % 8), np.int64)


def resolve_entry(operator):
    """The Entry of an operator's resolve."""
    vectors = tuple(_attribute(0, 0, k) for k in range(len(operator.attributes)))
    record = RecordView(operator.parameters_dtype, Place(1))
    return Entry((Step(operator.resolve, (vectors, record), role="resolve"),), 2, Place(1))


def _shapes_entry(operator, function, role):
    """The Entry of an operator's infer or plan."""
    shapes = tuple(
        ArrayView(INT64, Place(1, _tensor(k, "shape")), (Held(Place(1, _tensor(k, "rank"))),))
        for k in range(len(operator.inputs))
    )
    geometry = RecordView(operator.geometry_dtype, Place(1, GEOMETRY))
    arguments = RecordView(operator.parameters_dtype, Place(0)), shapes, geometry
    return Entry((Step(function, arguments, role=role),), 2, Place(1, GEOMETRY))


def infer_entry(operator):
    """The Entry of an operator's infer."""
    return _shapes_entry(operator, operator.infer, "infer")


def plan_entry(operator, position=0):
    """The Entry of an operator's plan; of a function's rule, loop and workspace for a combination of ranks."""
    if not operator.is_function:
        return _shapes_entry(operator, operator.plan, "plan")
    rule = _rule(operator, operator.combination(position))
    geometry, steps = operator.geometry_dtype, [rule]
    for name, function in (("tiles", operator.loop), ("workspace", operator.workspace)):
        if function:
            role = "loop" if name == "tiles" else name
            steps.append(Step(function, rule.arguments, Place(1, GEOMETRY + geometry.fields[name][1]), role))
    return Entry(tuple(steps), 2, Place(1, GEOMETRY))


def kernel_entry(operator, position, signature):
    """The Entry of a kernel for these types. position: of the kernel; of a function, of a combination of ranks."""
    geometry = RecordView(operator.geometry_dtype, Place(0, GEOMETRY))
    refusal, is_function = Place(0, GEOMETRY), operator.is_function
    kernel = position if is_function else operator.kernels[position]
    storage = operator.storage(kernel, signature)
    if not is_function:
        positions = (*operator.tensors, *range(OUTPUT, OUTPUT + len(operator.outputs)))
        tensors = [_flat(k, dtype) for k, dtype in zip(positions, storage, strict=True)]
        count = len(operator.tensors)
        arguments = *tensors[:count], geometry, Number(1), _workspace(geometry), *tensors[count:]
        return Entry((Step(kernel.function, arguments),), 3, refusal)
    ranks, count = operator.combination(position), len(operator.inputs)
    inputs = [
        None if rank == ABSENT else _flat(k, dtype, True) if i.values else _array(k, dtype, rank, is_input=True)
        for k, (i, rank, dtype) in enumerate(zip(operator.inputs, ranks, storage, strict=False))
    ]
    attributes = _attributes(operator, Held(Place(0, PARAMETERS)))
    rule = _rule(operator, ranks)
    outputs = [_array(OUTPUT + k, dtype, MAX_RANK, ruled=Ruled(rule, k)) for k, dtype in enumerate(storage[count:])]
    tiles = Held(Place(0, GEOMETRY + geometry.dtype.fields["tiles"][1]))
    workspace = _workspace(geometry) if operator.workspace else None
    arguments = *inputs, *attributes, Number(1), tiles, workspace, *outputs
    result = Tensors(Place(0, _tensor(OUTPUT, "data")), len(outputs), shapes=False) if operator.is_bound else None
    return Entry((Step(operator.kernel, arguments, result),), 3, refusal)


def _rule(function, ranks):
    """The Step of a function's rule for these ranks of the inputs."""
    shapes = []
    for k, (i, rank) in enumerate(zip(function.inputs, ranks, strict=True)):
        at = _tensor(k, "shape")
        if i.values and rank != ABSENT:
            shapes.append(ArrayView(INT64, Place(1, at), (Held(Place(1, _tensor(k, "rank"))),)))
        else:
            shapes.append(None if rank == ABSENT else tuple(Held(Place(1, at + 8 * a)) for a in range(rank)))
    result = Tensors(Place(1, _tensor(OUTPUT, "data")), len(function.outputs))
    return Step(function.rule, (*shapes, *_attributes(function, 0)), result, "rule")


def _attributes(function, base):
    """Views of the values of a function's attributes, whose parameters are at a base."""
    begin = function.parameters_dtype.itemsize
    views = []
    for k, attribute in enumerate(function.attributes):
        dtype = np.dtype(np.float64 if attribute.kind.startswith("float") else np.int64)
        view = _attribute(base, begin, k, dtype)
        views.append(view if KINDS[attribute.kind].is_list else Held(view.at, dtype))
    return views


def _flat(k, dtype, is_input=False):
    """A view of tensor k as an array with one axis."""
    return ArrayView(dtype, _data(k), (Held(Place(0, _tensor(k, "size"))),), is_input=is_input)


def _array(k, dtype, axes, **more):
    """A view of tensor k as an array with so many axes."""
    at = _tensor(k, "shape")
    return ArrayView(dtype, _data(k), tuple(Held(Place(0, at + 8 * a)) for a in range(axes)), **more)


def _data(k):
    """The Place of tensor k's elements."""
    return Place(Held(Place(0, _tensor(k, "data"))))


def _workspace(geometry):
    """A view of a tile's workspace, as bytes."""
    size = Held(Place(0, GEOMETRY + geometry.dtype.fields["workspace"][1]))
    return ArrayView(np.dtype(np.uint8), Place(2), (size,))
