"""The records that compiled code gets, and the views by which Python functions see them. All numbers have 64 bits.

    block        the values of a node's attributes, see attributes.py
    call         for each input and, from position OUTPUT on, for each output:
                     data    address of the elements
                     size    number of elements
                     rank    number of axes, or ABSENT
                     shape   for an input whose values the plan reads: these values; `rank` is their number
                 input_count  number of the node's inputs, including absent ones
                 attributes   address of their block
                 phase        the one that runs
                 shared       address of the memory that all tiles of all phases share
                 geometry     a refusal, the bytes of a tile's workspace and of the shared memory, the number of each
                              phase's tiles, and what a Plan adds

native/table.h has the same records for the C library.
A compiled function has up to three parameters, each an address or a number. It returns 0 for success, 1 for a refusal,
and 2 if the code has raised an exception:

    infer(block, call), plan(block, call), kernel(call, tile, workspace)

A compiled function calls Python functions, its steps, with views of these records. An Entry lists its steps.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from ..attributes import VECTOR, named_tuple
from ..declaration import Rule
from ..limits import ABSENT, MAX_INPUTS, MAX_OUTPUTS, MAX_RANK

OUTPUT = MAX_INPUTS
LONGEST = 200  # characters of an entry's name: file systems allow 255 for a name, and a digest and suffixes follow
TENSOR = np.dtype([("data", np.int64), ("size", np.int64), ("rank", np.int64), ("shape", np.int64, (MAX_RANK,))])
INT64 = np.dtype(np.int64)


@cache
def call_dtype(geometry):
    """The dtype of the record of a call of an operator with this geometry."""
    tensors = TENSOR, (MAX_INPUTS + MAX_OUTPUTS,)
    numbers = [(name, np.int64) for name in ("input_count", "attributes", "phase", "shared")]
    return np.dtype([("tensors", *tensors), *numbers, ("geometry", geometry)])


CALL = call_dtype(np.dtype([]))  # without its geometry
ATTRIBUTES, PHASE, SHARED = (CALL.fields[name][1] for name in ("attributes", "phase", "shared"))  # offsets in a call
GEOMETRY = CALL.itemsize  # the same of the geometry
WORK = {"loop": "tiles", "workspace": "workspace", "shared": "shared"}  # functions of a Rule: fields of the geometry


@dataclass(frozen=True)
class Address:
    """A place in memory: base + offset + further, in bytes.

    base     an address: the position of the parameter that has it, or where it is Held
    further  where another number of bytes is Held, or None
    """

    base: "int | Held"
    offset: int = 0
    further: "Held | None" = None


@dataclass(frozen=True)
class Held:
    """A number that is held in memory, at an Address."""

    at: Address
    dtype: np.dtype = INT64


@dataclass(frozen=True)
class Number:
    """A number that is passed as a parameter."""

    parameter: int


@dataclass(frozen=True)
class RecordView:
    """A record at an Address."""

    dtype: np.dtype
    at: Address


@dataclass(frozen=True)
class ArrayView:
    """An array at an Address, with an axis for each number of the shape, which is Held unless it is constant.

    ruled     if not None, the number of axes is known only when the rule is compiled
    is_input  whether the array is read-only
    """

    dtype: np.dtype
    at: Address
    shape: "tuple[Held | int, ...]"
    ruled: "Ruled | None" = None
    is_input: bool = False


@dataclass(frozen=True)
class Shapes:
    """The records of `count` tensors, from an Address on, for a result that is one shape, or a tuple of several."""

    at: Address
    count: int


@dataclass(frozen=True)
class Numbers:
    """`count` numbers, `pitch` bytes apart from an Address on, for a result that is one for all, or a tuple of them."""

    at: Address
    count: int
    pitch: int
    what: str


@dataclass(frozen=True)
class Named:
    """A named tuple of views."""

    kind: type
    views: tuple


@dataclass(frozen=True)
class Ruled:
    """The number of axes of the shape that a step, a rule, returns for the tensor at this position."""

    step: "Step"
    position: int


@dataclass(frozen=True)
class Step:
    """A Python function that is compiled, with its arguments.

    arguments  views as above, None, or tuples of them
    result     where that which it returns is written, Shapes or Numbers; None if it returns nothing
    role       what the function is for its operator, in errors
    """

    function: Callable = field(repr=False)
    arguments: tuple
    result: "Shapes | Numbers | None" = None
    role: str = "kernel"

    @property
    def dtypes(self):
        """The dtypes of the tensors that the function gets as arrays."""
        return [a.dtype for a in self.arguments if isinstance(a, ArrayView) and isinstance(a.at.base, Held)]

    @property
    def place(self):
        """The file and line of the function, and for a kernel the types of its tensors."""
        code = self.function.__code__
        place = f"{code.co_filename.replace(chr(92), '/').rpartition('/')[2]}, line {code.co_firstlineno}"
        types = [d.names[0] if d.names else d.name for d in self.dtypes]
        return f"{place} for {', '.join(types)}" if self.role == "kernel" else place


@dataclass(frozen=True)
class Entry:
    """A compiled function: its steps, its number of parameters, and the record into which refusals are written.

    phase  where the position of the one step is Held that a call runs; None: it runs all of them in turn
    """

    steps: tuple[Step, ...]
    parameters: int
    refusal: Address
    phase: Held | None = None

    @property
    def functions(self):
        """The functions of its steps, and of the rules on which these depend."""
        views = [a for step in self.steps for a in step.arguments if isinstance(a, ArrayView) and a.ruled]
        return tuple(dict.fromkeys(each.function for each in (*self.steps, *(view.ruled.step for view in views))))

    @property
    def name(self):
        """The first part of the names of its file and of the compiled function; a digest follows."""
        step = next(step for step in reversed(self.steps) if step.role not in WORK)
        function = step.function
        parts = [function.__name__, *(d.names[0] if d.names else d.name for d in step.dtypes)]
        name = "-".join([function.__module__.rpartition(".")[2], *parts])
        return re.sub(r"[^\w-]", "_", name, flags=re.ASCII)[:LONGEST]  # not every linker takes other letters


def _tensor(k, field):
    """The offset of a field of tensor k in a call."""
    return k * TENSOR.itemsize + TENSOR.fields[field][1]


def _of_outputs(operator, base, field, what):
    """A number in the record of each of an operator's outputs, in the call at a base."""
    return Numbers(Address(base, _tensor(OUTPUT, field)), len(operator.outputs), TENSOR.itemsize, what)


def infer_entry(operator):
    """The Entry of a plan as far as sizes are known before the first call."""
    return Entry((_shape_step(operator),), 2, Address(1, GEOMETRY))


def plan_entry(operator, position=0):
    """The Entry of an operator's plan for the combination of ranks of the kernel at a position."""
    plan, geometry = operator.plan, operator.geometry_dtype
    if isinstance(plan, Rule):
        first = _rule_step(operator, operator.combination(position))
        rest = []
        for role, field in WORK.items():
            if function := getattr(plan, role):
                count = operator.phase_count if role == "loop" else 1
                place = Address(1, GEOMETRY + geometry.fields[field][1])
                rest.append(Step(function, first.arguments, Numbers(place, count, 8, "number of steps or bytes"), role))
    else:
        first = _shape_step(operator)
        rest = [Step(plan.plan, (*first.arguments, RecordView(geometry, Address(1, GEOMETRY))), role="plan")]
    return Entry((first, *rest), 2, Address(1, GEOMETRY))


def _shape_step(operator):
    """The Step that states the outputs' sizes by a Plan."""
    kind = named_tuple(tuple(a.name for a in operator.attributes))
    inputs = tuple(_sizes(k, Held(Address(1, _tensor(k, "rank")))) for k in range(len(operator.inputs)))
    outputs = tuple(_sizes(OUTPUT + k, MAX_RANK) for k in range(len(operator.outputs)))
    arguments = Named(kind, _attributes(operator, 0)), inputs, outputs
    return Step(operator.plan.shape, arguments, _of_outputs(operator, 1, "rank", "outputs' ranks"), "shape")


def _rule_step(operator, ranks):
    """The Step that states the outputs' shapes by a Rule, for these ranks of the inputs."""
    shapes = []
    for k, (i, rank) in enumerate(zip(operator.inputs, ranks, strict=True)):
        at = _tensor(k, "shape")
        if i.values and rank != ABSENT:
            shapes.append(_sizes(k, Held(Address(1, _tensor(k, "rank")))))
        else:
            shapes.append(None if rank == ABSENT else tuple(Held(Address(1, at + 8 * a)) for a in range(rank)))
    arguments = *shapes, *_attributes(operator, 0)
    result = Shapes(Address(1, _tensor(OUTPUT, "data")), len(operator.outputs))
    return Step(operator.plan.function, arguments, result, "rule")


def kernel_entry(operator, position, signature):
    """The Entry of the kernel at a position for these types."""
    kernel, plan, result = operator.kernel(position), operator.plan, None
    read, storage = operator.read_by(kernel), operator.storage(kernel, signature)
    geometry = RecordView(operator.geometry_dtype, Address(0, GEOMETRY))
    tiles, workspace, shared = (GEOMETRY + geometry.dtype.fields[name][1] for name in WORK.values())
    room = [_bytes(Address(2), workspace), _bytes(Address(Held(Address(0, SHARED))), shared)]
    if kernel.has_axes:
        rule = _rule_step(operator, operator.combination(position))
        inputs = [
            None if rank == ABSENT else _flat(k, dtype, True) if i.values else _array(k, dtype, rank, is_input=True)
            for k, i, rank, dtype in zip(read, operator.inputs, operator.combination(position), storage, strict=False)
        ]
        outputs = [
            _array(OUTPUT + k, dtype, MAX_RANK, ruled=Ruled(rule, k)) for k, dtype in enumerate(storage[len(read) :])
        ]
        inputs += _attributes(operator, Held(Address(0, ATTRIBUTES)))
        room = [room[0] if plan.workspace else None, room[1] if plan.shared else None]
        if plan.is_bound:
            result = _of_outputs(operator, 0, "shape", "length of the outputs' first axes")
    else:
        inputs = [*(_flat(k, dtype) for k, dtype in zip(read, storage, strict=False)), geometry]
        outputs = [_flat(OUTPUT + k, dtype) for k, dtype in enumerate(storage[len(read) :])]
    if operator.phase_count == 1:
        del room[1]
    steps = []
    for phase, function in enumerate(kernel.phases):
        tile = [Number(1), Held(Address(0, tiles + 8 * phase))] if kernel.has_axes else [Number(1)]
        steps.append(Step(function, (*inputs, *tile, *room, *outputs), result))
    return Entry(tuple(steps), 3, Address(0, GEOMETRY), Held(Address(0, PHASE)) if len(steps) > 1 else None)


def _bytes(place, size):
    """A view of memory whose size is at an offset in the call."""
    return ArrayView(np.dtype(np.uint8), place, (Held(Address(0, size)),))


def _attributes(operator, base):
    """Views of the values of an operator's attributes, whose block is at a base."""
    views = []
    for k, attribute in enumerate(operator.attributes):
        dtype = np.dtype(np.float64 if attribute.kind.startswith("float") else np.int64)
        count, offset = (8 + k * VECTOR.itemsize + VECTOR.fields[field][1] for field in ("count", "offset"))
        place = Address(base, 0, Held(Address(base, offset)))
        views.append(
            ArrayView(dtype, place, (Held(Address(base, count)),)) if attribute.is_list else Held(place, dtype)
        )
    return tuple(views)


def _sizes(k, count):
    """A view of the sizes, or the values, of tensor k, as so many numbers."""
    return ArrayView(INT64, Address(1, _tensor(k, "shape")), (count,))


def _flat(k, dtype, is_input=False):
    """A view of tensor k as an array with one axis."""
    return ArrayView(dtype, _data(k), (Held(Address(0, _tensor(k, "size"))),), is_input=is_input)


def _array(k, dtype, axes, **more):
    """A view of tensor k as an array with so many axes."""
    at = _tensor(k, "shape")
    return ArrayView(dtype, _data(k), tuple(Held(Address(0, at + 8 * a)) for a in range(axes)), **more)


def _data(k):
    """The Address of tensor k's elements."""
    return Address(Held(Address(0, _tensor(k, "data"))))
