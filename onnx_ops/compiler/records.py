"""The records that compiled code gets, and what Python functions see of them. All numbers have 64 bits.

    block        the values of a node's attributes, see attributes.py
    call         for each input and, from position OUTPUT on, for each output:
                     data    address of the elements
                     size    number of elements
                     rank    number of axes, or ABSENT
                     shape   for an input whose values the plan reads: these values; `rank` is their number
                 input_count  number of the node's inputs, including absent ones
                 attributes   address of their block
                 geometry     a refusal, the bytes of a tile's workspace, the number of tiles, and what a Plan adds

native/table.h has the same records for the C library.
A compiled function gets the call's address; it returns 0 for success, 1 for a refusal, and 2 if the code has raised an
exception:

    infer(call), plan(call), kernel(call, tile, workspace)

A compiled function calls Python functions, its steps, with views of these records. An Entry lists its steps.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from ..attributes import named_tuple
from ..declaration import REFUSAL, WORK, Rule, record_dtype
from ..limits import ABSENT, MAX_INPUTS, MAX_OUTPUTS, MAX_RANK

OUTPUT = MAX_INPUTS
LONGEST = 200  # characters of an entry's name: file systems allow 255 for a name, and a digest and suffixes follow
TENSOR = np.dtype([("data", np.int64), ("size", np.int64), ("rank", np.int64), ("shape", np.int64, (MAX_RANK,))])


@cache
def call_dtype(geometry):
    """The dtype of the record of a call of an operator with this geometry."""
    tensors = TENSOR, (MAX_INPUTS + MAX_OUTPUTS,)
    numbers = [("input_count", np.int64), ("attributes", np.int64)]
    return np.dtype([("tensors", *tensors), *numbers, ("geometry", geometry)])


CALL = call_dtype(np.dtype([]))  # without its geometry
# Offsets in a call, in bytes.
ATTRIBUTES, GEOMETRY = CALL.fields["attributes"][1], CALL.itemsize
WORKSPACE_SIZE, TILES = (GEOMETRY + record_dtype({**REFUSAL, **WORK}).fields[name][1] for name in WORK)


def tensor_field(k, name):
    """The offset of a field of tensor k in a call."""
    return k * TENSOR.itemsize + TENSOR.fields[name][1]


# What a step can get as an argument, besides None and tuples of these:


@dataclass(frozen=True)
class Number:
    """A number of the call, at an offset."""

    offset: int


@dataclass(frozen=True)
class Tile:
    """The number of a kernel's tile."""


@dataclass(frozen=True)
class Geometry:
    """The geometry of the call, as a record."""

    dtype: np.dtype


@dataclass(frozen=True)
class Values:
    """The values of the node's attribute k, an array; or its only value. Plans read it by its name."""

    k: int
    name: str
    dtype: np.dtype
    is_list: bool


@dataclass(frozen=True)
class Sizes:
    """The vector of tensor k's sizes, or of its values if the plan reads these; of outputs, room for MAX_RANK sizes."""

    k: int


@dataclass(frozen=True)
class Tensor:
    """The elements of tensor k, in an array.

    axes   None: one axis for all elements
    ruled  a rule, as a step, which returns as many sizes for this output as the array has axes; or None
    """

    k: int
    dtype: np.dtype
    axes: int | None = None
    ruled: "Step | None" = None
    is_input: bool = False


@dataclass(frozen=True)
class Room:
    """The bytes of a tile's workspace."""


# What a step's result can be:


@dataclass(frozen=True)
class Shapes:
    """The shape of the only output, or a tuple of the shapes of so many."""

    count: int


@dataclass(frozen=True)
class Numbers:
    """So many numbers of the call, `pitch` bytes apart from an offset on: a tuple, or one number for all of them."""

    offset: int
    count: int
    pitch: int
    what: str


@dataclass(frozen=True)
class Step:
    """A Python function that is compiled, with its arguments.

    result  Shapes or Numbers, which are written into the call, or None if it returns nothing
    role    what the function is for its operator, in errors
    """

    function: Callable = field(repr=False)
    arguments: tuple
    result: Shapes | Numbers | None = None
    role: str = "kernel"

    @property
    def tensors(self):
        """The tensors that the function gets as arrays."""
        arguments = [each for a in self.arguments for each in (a if isinstance(a, tuple) else (a,))]
        return [argument for argument in arguments if isinstance(argument, Tensor)]

    @property
    def types(self):
        """The names of these tensors' types."""
        return [t.dtype.names[0] if t.dtype.names else t.dtype.name for t in self.tensors]

    @property
    def place(self):
        """The file and line of the function, and for a kernel the types of its tensors."""
        code = self.function.__code__
        place = f"{code.co_filename.replace(chr(92), '/').rpartition('/')[2]}, line {code.co_firstlineno}"
        return f"{place} for {', '.join(self.types)}" if self.role == "kernel" else place


@dataclass(frozen=True)
class Entry:
    """A compiled function: its steps, and its number of parameters."""

    steps: tuple[Step, ...]
    parameters: int = 1

    @property
    def functions(self):
        """The functions of its steps, and of the rules on which these depend."""
        rules = [tensor.ruled for step in self.steps for tensor in step.tensors if tensor.ruled]
        return tuple(dict.fromkeys(step.function for step in (*self.steps, *rules)))

    @property
    def name(self):
        """The first part of the names of its file and of the compiled function; a digest follows."""
        step = next(step for step in reversed(self.steps) if step.role not in FIELDS)
        name = "-".join([step.function.__module__.rpartition(".")[2], step.function.__name__, *step.types])
        return re.sub(r"[^\w-]", "_", name, flags=re.ASCII)[:LONGEST]  # not every linker takes other letters


# {function of a Rule: where its numbers are in a call}
FIELDS = {"loop": TILES, "workspace": WORKSPACE_SIZE}


def infer_entry(operator):
    """The Entry of a plan as far as sizes are known before the first call."""
    return Entry((_shape_step(operator),))


def plan_entry(operator, position=0):
    """The Entry of an operator's plan for the combination of ranks of the kernel at a position."""
    plan = operator.plan
    if not isinstance(plan, Rule):
        shape = _shape_step(operator)
        geometry = Geometry(operator.geometry_dtype)
        return Entry((shape, Step(plan.plan, (*shape.arguments, geometry), role="plan")))
    steps = [_rule_step(operator, operator.combination(position))]
    for role, offset in FIELDS.items():
        if function := getattr(plan, role):
            result = Numbers(offset, 1, 8, "number of steps" if role == "loop" else "number of bytes")
            steps.append(Step(function, steps[0].arguments, result, role))
    return Entry(tuple(steps))


def _shape_step(operator):
    """The Step that states the outputs' sizes by a Plan."""
    attributes = named_tuple(tuple(a.name for a in operator.attributes))(*_attributes(operator))
    inputs = tuple(Sizes(k) for k in range(len(operator.inputs)))
    outputs = tuple(Sizes(OUTPUT + k) for k in range(len(operator.outputs)))
    ranks = _of_outputs(operator, "rank", "outputs' ranks")
    return Step(operator.plan.shape, (attributes, inputs, outputs), ranks, "shape")


def _rule_step(operator, ranks):
    """The Step that states the outputs' shapes by a Rule, for these ranks of the inputs."""
    shapes = []
    for k, (i, rank) in enumerate(zip(operator.inputs, ranks, strict=True)):
        if rank == ABSENT:
            shapes.append(None)
        elif i.values:
            shapes.append(Sizes(k))
        else:
            shapes.append(tuple(Number(tensor_field(k, "shape") + 8 * a) for a in range(rank)))
    return Step(operator.plan.function, (*shapes, *_attributes(operator)), Shapes(len(operator.outputs)), "rule")


def kernel_entry(operator, position, signature):
    """The Entry of the kernel at a position for these types."""
    kernel, plan, result = operator.kernel(position), operator.plan, None
    read, storage = operator.read_by(kernel), operator.storage(kernel, signature)
    of_inputs, of_outputs = storage[: len(read)], storage[len(read) :]
    tile, room = (Tile(),), Room()
    if kernel.has_axes:
        ranks = operator.combination(position)
        rule, inputs = _rule_step(operator, ranks), []
        for k, dtype in zip(read, of_inputs, strict=True):
            axes = None if operator.inputs[k].values else ranks[k]
            inputs.append(None if ranks[k] == ABSENT else Tensor(k, dtype, axes, is_input=True))
        inputs += _attributes(operator)
        outputs = [Tensor(OUTPUT + k, dtype, ruled=rule) for k, dtype in enumerate(of_outputs)]
        tile, room = (Tile(), Number(TILES)), Room() if plan.workspace else None
        if plan.is_bound:
            result = _of_outputs(operator, "shape", "length of the outputs' first axes")
    else:
        inputs = kernel.grouped([Tensor(k, dtype) for k, dtype in zip(read, of_inputs, strict=True)])
        inputs.append(Geometry(operator.geometry_dtype))
        outputs = [Tensor(OUTPUT + k, dtype) for k, dtype in enumerate(of_outputs)]
    return Entry((Step(kernel.function, (*inputs, *tile, room, *outputs), result),), 3)


def _of_outputs(operator, name, what):
    """A field of each output's record, as the result of a step."""
    return Numbers(tensor_field(OUTPUT, name), len(operator.outputs), TENSOR.itemsize, what)


def _attributes(operator):
    """Views of the values of an operator's attributes."""
    return tuple(
        Values(k, a.name, np.dtype(np.float64 if a.kind.startswith("float") else np.int64), a.is_list)
        for k, a in enumerate(operator.attributes)
    )
