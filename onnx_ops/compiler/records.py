"""The records of compiled code, and the views of them that Python functions get. All numbers have
64 bits.

    block        the values of a node's attributes, see attributes.py
    call         for each input and, from position OUTPUT on, for each output:
                     data    address of the elements
                     size    number of elements
                     rank    number of axes, or ABSENT
                     shape   for an input whose values the plan reads: these values; `rank` is their
                             number
                 input_count  number of the node's inputs, including absent ones
                 attributes   address of their block
                 geometry     a refusal, the bytes of a tile's workspace, the number of tiles, and
                              the Plan's fields

native/table.h has the same records for the C library. A compiled function gets the call's address;
it returns 0 for success, 1 for a refusal, and 2 if the code has raised an exception:

    infer(call), plan(call), kernel(call, tile, workspace)

A compiled function calls Python functions, its steps, with views of these records. An Entry lists
its steps.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from ..declaration.attributes import named_tuple
from ..declaration.limits import ABSENT, MAX_INPUTS, MAX_OUTPUTS, MAX_RANK
from ..declaration.operator import HEAD

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, TypeAlias

    from ..declaration.operator import Operator

OUTPUT = MAX_INPUTS
LONGEST = 200  # characters of an entry's name, before a digest and suffixes: file systems allow 255
TENSOR = np.dtype(
    [("data", np.int64), ("size", np.int64), ("rank", np.int64), ("shape", np.int64, MAX_RANK)]
)


@cache
def call_dtype(geometry: np.dtype) -> np.dtype:
    """Return the dtype of the record of a call of an operator with this geometry."""
    tensors = "tensors", TENSOR, MAX_INPUTS + MAX_OUTPUTS
    return np.dtype(
        [tensors, ("input_count", np.int64), ("attributes", np.int64), ("geometry", geometry)]
    )


CALL = call_dtype(np.dtype([]))  # without its geometry


def offset_of(dtype: np.dtype, name: str) -> int:
    """Return the offset of a field in a record, in bytes."""
    fields: Any = dtype.fields
    return fields[name][1]


# Offsets in a call, in bytes.
ATTRIBUTES = offset_of(CALL, "attributes")
GEOMETRY = CALL.itemsize
WORKSPACE_SIZE, TILES = (GEOMETRY + offset_of(HEAD, name) for name in ("workspace", "tiles"))


def tensor_field(k: int, name: str) -> int:
    """Return the offset of a field of tensor k in a call."""
    return k * TENSOR.itemsize + offset_of(TENSOR, name)


# Arguments of steps, besides None and tuples of these:


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
    """The values of the node's attribute k, an array; or its only value.

    Plans read it by its name.
    """

    k: int
    name: str
    dtype: np.dtype
    is_list: bool


@dataclass(frozen=True)
class Sizes:
    """The vector of tensor k's sizes, or of its values if the plan reads these; of outputs, room
    for MAX_RANK sizes.
    """

    k: int


@dataclass(frozen=True)
class Tensor:
    """The elements of tensor k, in an array. axes: None stands for one axis for all elements."""

    k: int
    dtype: np.dtype
    axes: int | None = None

    @property
    def is_read_only(self) -> bool:
        return self.k < OUTPUT


@dataclass(frozen=True)
class Room:
    """The bytes of a tile's workspace."""


if TYPE_CHECKING:
    Argument: TypeAlias = (
        Number | Tile | Geometry | Values | Sizes | Tensor | Room | tuple[Any, ...] | None
    )


@dataclass(frozen=True)
class Numbers:
    """The place of a step's result: numbers of the call, `pitch` bytes apart from an offset on, or
    a single one.
    """

    offset: int
    meaning: str
    count: int = 1
    pitch: int = 0


@dataclass(frozen=True)
class Step:
    """A Python function that is compiled, with its arguments.

    result  Numbers, which are written into the call, or None if it returns nothing
    role    the function's role for its operator, in error messages
    """

    function: Callable = field(repr=False)
    arguments: tuple[Argument, ...]
    result: Numbers | None = None
    role: str = "kernel"

    @property
    def tensors(self) -> list[Tensor]:
        """Return the tensors that the function gets as arrays."""
        arguments = [b for a in self.arguments for b in (a if isinstance(a, tuple) else (a,))]
        return [argument for argument in arguments if isinstance(argument, Tensor)]

    @property
    def types(self) -> list[str]:
        """Return the names of these tensors' types."""
        return [t.dtype.names[0] if t.dtype.names else t.dtype.name for t in self.tensors]

    @property
    def place(self) -> str:
        """Return the file and line of the function, and for a kernel the types of its tensors."""
        code = self.function.__code__
        line = (
            f"{code.co_filename.replace(chr(92), '/').rpartition('/')[2]}, line "
            f"{code.co_firstlineno}"
        )
        return f"{line} for {', '.join(self.types)}" if self.tensors else line


@dataclass(frozen=True)
class Entry:
    """A compiled function: its steps, and its number of parameters."""

    steps: tuple[Step, ...]
    parameters: int = 1

    @property
    def functions(self) -> tuple[Callable, ...]:
        return tuple(step.function for step in self.steps)

    @property
    def name(self) -> str:
        """Return the name of its file and of the compiled function, before the digest."""
        step = self.steps[-1]
        name = "-".join(
            [
                step.function.__module__.rpartition(".")[2].removesuffix("_kernels"),
                step.function.__name__,
                *step.types,
            ]
        )
        # Some linkers refuse other letters.
        return re.sub(r"[^\w-]", "_", name, flags=re.ASCII)[:LONGEST]


def infer_entry(operator: Operator) -> Entry:
    """Return the Entry of shape inference from partly known sizes."""
    return Entry((_shape_step(operator, *_plan_arguments(operator)),))


def plan_entry(operator: Operator, position: int = 0) -> Entry:
    """Return the Entry of an operator's plan for the combination of ranks of the kernel at a
    position.
    """
    plan, (attributes, inputs) = operator.plan, _plan_arguments(operator, position)
    shape = _shape_step(operator, attributes, inputs)
    steps = [shape]
    if plan.plan:
        steps.append(
            Step(plan.plan, (*shape.arguments, Geometry(operator.geometry_dtype)), role="plan")
        )
    for role, function, result in (
        ("loop", plan.loop, Numbers(TILES, "number of steps")),
        ("workspace", plan.workspace, Numbers(WORKSPACE_SIZE, "number of bytes")),
    ):
        if function:
            steps.append(Step(function, (*inputs, *attributes), result, role))
    return Entry(tuple(steps))


def kernel_entry(operator: Operator, position: int, signature: Mapping[str, str]) -> Entry:
    """Return the Entry of the kernel at a position for these types."""
    kernel = operator.kernel(position)
    # Of the inputs that it reads, then of the outputs.
    types: Any = operator.storage(kernel, signature)
    inputs = _kernel_inputs(operator, position, types)
    outputs = [Tensor(OUTPUT + k, dtype) for k, dtype in enumerate(types[len(inputs) :])]
    arguments = *kernel.grouped(inputs), Geometry(operator.geometry_dtype), Tile(), Room(), *outputs
    if operator.has_ranks:
        arguments = *_plan_arguments(operator, position), *arguments
    lengths = (
        _of_outputs(operator, "shape", "length of the outputs' first axes")
        if operator.plan.is_bound
        else None
    )
    return Entry((Step(kernel.function, arguments, lengths),), parameters=3)


def _plan_arguments(
    operator: Operator, position: int = 0
) -> tuple[tuple[Values, ...], tuple[Argument, ...]]:
    """Return the arguments of a plan's functions for the ranks of the kernel at a position:
    (attributes, inputs).
    """
    values = [
        Values(
            k, a.name, np.dtype(np.float64 if a.kind.startswith("float") else np.int64), a.is_list
        )
        for k, a in enumerate(operator.attributes)
    ]
    attributes = named_tuple(tuple(a.name for a in operator.attributes))(*values)
    inputs: list = []
    for k, (i, rank) in enumerate(
        zip(operator.inputs, operator.combination(position), strict=True)
    ):
        if rank == ABSENT:
            inputs.append(None)
        elif rank is None or i.values:
            inputs.append(Sizes(k))
        else:
            inputs.append(tuple(Number(tensor_field(k, "shape") + 8 * a) for a in range(rank)))
    return attributes, tuple(inputs)


def _shape_step(
    operator: Operator, attributes: tuple[Values, ...], inputs: tuple[Argument, ...]
) -> Step:
    """Return the Step that states the outputs' sizes."""
    function: Any = operator.plan.shape  # not None where there are kernels
    outputs = tuple(Sizes(OUTPUT + k) for k in range(len(operator.outputs)))
    ranks = _of_outputs(operator, "rank", "outputs' ranks")
    return Step(function, (attributes, inputs, outputs), ranks, function.__name__)


def _kernel_inputs(
    operator: Operator, position: int, types: Sequence[np.dtype]
) -> list[Tensor | None]:
    """Return Tensors for the inputs of these types that the kernel at a position reads; None for an
    absent one.

    Inputs with ranks have that many axes. If the plan reads an input's values, the record holds
    these in place of its sizes.
    """
    ranks = operator.combination(position)
    return [
        None
        if ranks[k] == ABSENT
        else Tensor(k, dtype, None if operator.inputs[k].values else ranks[k])
        for k, dtype in zip(operator.inputs_read, types, strict=False)
    ]


def _of_outputs(operator: Operator, name: str, meaning: str) -> Numbers:
    """Return a field of each output's record, as the result of a step."""
    return Numbers(tensor_field(OUTPUT, name), meaning, len(operator.outputs), TENSOR.itemsize)
