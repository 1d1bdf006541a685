"""The records that compiled code gets, and how it sees them. All numbers have 64 bits.

    block        of attributes: for each attribute of the operator
                     count   of its values, 0 where there is none
                     offset  of the first one from the block's beginning
                 and then the values, integers or doubles
    call         for each input and, from position OUTPUT on, for each output:
                     data    address of the elements
                     size    number of elements
                     rank    or ABSENT
                     shape   or, of an input whose values the plan wants, these, and `rank` is how many
                 input_count  of the node, absent ones among them
                 parameters   their address
                 geometry     what the plan finds, see declaration.py

The C library's side of them is in native/table.h.
Compiled code consists of functions of up to three parameters, each an address or a number, that return 0 for success
and 1 where a rule refuses something:

    resolve(block, parameters), infer(parameters, call), plan(parameters, call), kernel(call, tile, workspace)

The Python functions in it get views of what lies there: an entry's steps say which.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from .. import dtypes
from ..declaration import ABSENT, KINDS, MAX_INPUTS, MAX_OUTPUTS, MAX_RANK

OUTPUT = MAX_INPUTS
VECTOR = np.dtype([("count", np.int64), ("offset", np.int64)])
TENSOR = np.dtype([("data", np.int64), ("size", np.int64), ("rank", np.int64), ("shape", np.int64, (MAX_RANK,))])
INT64 = np.dtype(np.int64)


@cache
def call_dtype(geometry):
    """The dtype of one call of an operator with this geometry."""
    tensors = TENSOR, (MAX_INPUTS + MAX_OUTPUTS,)
    numbers = [("input_count", np.int64), ("parameters", np.int64)]
    return np.dtype([("tensors", *tensors), *numbers, ("geometry", geometry)])


CALL = call_dtype(np.dtype([]))  # without its geometry
PARAMETERS = CALL.fields["parameters"][1]  # where in a call their address is
GEOMETRY = CALL.itemsize  # where in a call it begins


@dataclass(frozen=True)
class Place:
    """An address: that in a parameter, or one that is held somewhere, and so many bytes on.

    further  the place of a number of bytes more, or None
    """

    base: "int | Held"
    offset: int = 0
    further: "Held | None" = None


@dataclass(frozen=True)
class Held:
    """The number at a place."""

    at: Place
    dtype: np.dtype = INT64


@dataclass(frozen=True)
class Number:
    """A parameter that is a number."""

    parameter: int


@dataclass(frozen=True)
class RecordView:
    dtype: np.dtype
    at: Place


@dataclass(frozen=True)
class ArrayView:
    """An array at a place, of as many axes as the shape has numbers.

    ruled     how many of these there are is only known when it is compiled
    is_input  it can't be written to
    """

    dtype: np.dtype
    at: Place
    shape: tuple[Held, ...]
    ruled: "Ruled | None" = None
    is_input: bool = False


@dataclass(frozen=True)
class Tensors:
    """Where what a function returns describes the tensors from a place on.

    shapes   it is the shape of the one tensor, or a tuple of those of `count`; else it is the length of the first axis
             of each, or a tuple of these
    """

    at: Place
    count: int
    shapes: bool = True


@dataclass(frozen=True)
class Ruled:
    """As many axes as the shape has that a step returns for one of its tensors."""

    step: "Step"
    position: int


@dataclass(frozen=True)
class Step:
    """A Python function as it is compiled: what it gets, and where what it returns goes.

    arguments  the views above, None, or tuples of them
    result     the place of the number that it returns, Tensors, or None
    """

    function: Callable = field(repr=False)
    arguments: tuple
    result: "Place | Tensors | None" = None


@dataclass(frozen=True)
class Entry:
    """A compiled function: the steps that it takes, how many parameters it has, and the record that it refuses into."""

    steps: tuple[Step, ...]
    parameters: int
    refusal: Place

    @property
    def functions(self):
        """Those of its steps, and of the rules that these depend on."""
        views = [a for step in self.steps for a in step.arguments if isinstance(a, ArrayView) and a.ruled]
        return tuple(dict.fromkeys(each.function for each in (*self.steps, *(view.ruled.step for view in views))))

    @property
    def name(self):
        """What its file is called, as far as that isn't a digest."""
        function, arguments = self.steps[0].function, self.steps[0].arguments
        kinds = [a.dtype for a in arguments if isinstance(a, ArrayView) and isinstance(a.at.base, Held)]
        parts = [function.__name__, *(d.names[0] if d.names else d.name for d in kinds)]
        return "-".join([function.__module__.rpartition(".")[2], *parts])


def _tensor(k, field):
    return k * TENSOR.itemsize + TENSOR.fields[field][1]


def _attribute(base, begin, k, dtype=INT64):
    """The values of an attribute, in the block that begins there."""
    at = begin + k * VECTOR.itemsize
    place = Place(base, begin, Held(Place(base, at + VECTOR.fields["offset"][1])))
    return ArrayView(dtype, place, (Held(Place(base, at)),))


def attribute_words(attribute, vector):
    """The values of an attribute as they stand in a block; those of a tensor after its type, its rank and its shape."""
    header = []
    if attribute.kind == "tensor":
        header = [dtypes.TABLE[dtypes.name_of(vector)].onnx, vector.ndim, *vector.shape]
    content = np.array(header, np.int64).tobytes() + vector.tobytes()
    return np.frombuffer(content + bytes(-len(content) % 8), np.int64)


def resolve_entry(operator):
    vectors = tuple(_attribute(0, 0, k) for k in range(len(operator.attributes)))
    record = RecordView(operator.parameters_dtype, Place(1))
    return Entry((Step(operator.resolve, (vectors, record)),), 2, Place(1))


def _shapes_entry(operator, function):
    shapes = tuple(
        ArrayView(INT64, Place(1, _tensor(k, "shape")), (Held(Place(1, _tensor(k, "rank"))),))
        for k in range(len(operator.inputs))
    )
    geometry = RecordView(operator.geometry_dtype, Place(1, GEOMETRY))
    arguments = RecordView(operator.parameters_dtype, Place(0)), shapes, geometry
    return Entry((Step(function, arguments),), 2, Place(1, GEOMETRY))


def infer_entry(operator):
    return _shapes_entry(operator, operator.infer)


def plan_entry(operator, position=0):
    """Of an operator, or of a function for the combination of ranks at this position."""
    if not operator.is_function:
        return _shapes_entry(operator, operator.plan)
    rule = _rule(operator, operator.combination(position))
    geometry, steps = operator.geometry_dtype, [rule]
    for name, function in (("tiles", operator.loop), ("workspace", operator.workspace)):
        if function:
            steps.append(Step(function, rule.arguments, Place(1, GEOMETRY + geometry.fields[name][1])))
    return Entry(tuple(steps), 2, Place(1, GEOMETRY))


def kernel_entry(operator, position, signature):
    """Of the kernel at this position, or of a function's for the combination of ranks there, for these types."""
    geometry = RecordView(operator.geometry_dtype, Place(0, GEOMETRY))
    refusal, is_function = Place(0, GEOMETRY), operator.is_function
    chosen = position if is_function else operator.kernels[position]
    storage = operator.storage(chosen, signature)
    if not is_function:
        positions = (*operator.tensors, *range(OUTPUT, OUTPUT + len(operator.outputs)))
        tensors = [_flat(k, dtype) for k, dtype in zip(positions, storage, strict=True)]
        count = len(operator.tensors)
        arguments = *tensors[:count], geometry, Number(1), _workspace(geometry), *tensors[count:]
        return Entry((Step(chosen.function, arguments),), 3, refusal)
    ranks, count = operator.combination(position), len(operator.inputs)
    inputs = [
        None if rank == ABSENT else _flat(k, dtype, True) if i.values else _array(k, dtype, rank, is_input=True)
        for k, (i, rank, dtype) in enumerate(zip(operator.inputs, ranks, storage, strict=False))
    ]
    attributes = _attributes(operator, Held(Place(0, PARAMETERS)))
    rule = _rule(operator, ranks)
    outputs = [_array(OUTPUT + k, dtype, MAX_RANK, ruled=Ruled(rule, k)) for k, dtype in enumerate(storage[count:])]
    tiles = Held(Place(0, GEOMETRY + geometry.dtype.fields["tiles"][1]))
    arguments = *inputs, *attributes, Number(1), tiles, _workspace(geometry), *outputs
    result = Tensors(Place(0, _tensor(OUTPUT, "data")), len(outputs), shapes=False) if operator.is_bound else None
    return Entry((Step(operator.kernel, arguments, result),), 3, refusal)


def _rule(function, ranks):
    shapes = []
    for k, (i, rank) in enumerate(zip(function.inputs, ranks, strict=True)):
        at = _tensor(k, "shape")
        if i.values and rank != ABSENT:
            shapes.append(ArrayView(INT64, Place(1, at), (Held(Place(1, _tensor(k, "rank"))),)))
        else:
            shapes.append(None if rank == ABSENT else tuple(Held(Place(1, at + 8 * a)) for a in range(rank)))
    result = Tensors(Place(1, _tensor(OUTPUT, "data")), len(function.outputs))
    return Step(function.rule, (*shapes, *_attributes(function, 0)), result)


def _attributes(function, base):
    """The values of a function's attributes, whose parameters are at a base."""
    begin = function.parameters_dtype.itemsize
    found = []
    for k, attribute in enumerate(function.attributes):
        dtype = np.dtype(np.float64 if attribute.kind.startswith("float") else np.int64)
        view = _attribute(base, begin, k, dtype)
        found.append(view if KINDS[attribute.kind].is_list else Held(view.at, dtype))
    return found


def _flat(k, dtype, is_input=False):
    return ArrayView(dtype, _data(k), (Held(Place(0, _tensor(k, "size"))),), is_input=is_input)


def _array(k, dtype, axes, **more):
    at = _tensor(k, "shape")
    return ArrayView(dtype, _data(k), tuple(Held(Place(0, at + 8 * a)) for a in range(axes)), **more)


def _data(k):
    return Place(Held(Place(0, _tensor(k, "data"))))


def _workspace(geometry):
    size = Held(Place(0, GEOMETRY + geometry.dtype.fields["workspace"][1]))
    return ArrayView(np.dtype(np.uint8), Place(2), (size,))
