"""Calls of operators on NumPy arrays: plan, allocate the outputs, run the tiles.

Functions on arrays and the extensions backend use this module. In sessions of the native backend,
the C library does the same. Both run the same machine code on the same tiles, so results are equal
to the last bit, except for the bits of a NaN. Results may differ between machine codes (another CPU
or version of Numba, code compiled ahead instead of just in time). Without machine code,
`calls.compute_reference` sums in float64.
"""

from __future__ import annotations

import ctypes as C
import functools
import math
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ..compiler import records
from ..declaration import calls, dtypes, plain
from ..declaration.errors import OpError, errors_of, reason, require
from ..declaration.jit import BOUNDSCHECK
from ..declaration.limits import ABSENT, LINE, MAX_TILES, MAX_WORKSPACE, TILE_ELEMENTS
from ..declaration.operator import Record
from ..system.locks import COMPILATION
from . import library, refusals, table
from .threads import check_count, on_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, TypeAlias

    from ..declaration.attributes import AttributeValues
    from ..declaration.operator import Operator, Ranks

    Arrays: TypeAlias = Sequence[np.ndarray | None]  # of inputs; None stands for an absent one
    # Called with the address of a Call; returns 0 for success.
    Plan: TypeAlias = Callable[[int], int]
    # Called with the address of a Call, the number of a tile, the address of the workspace.
    Kernel: TypeAlias = Callable[[int, int, int], int]

PLAN = C.CFUNCTYPE(C.c_int64, C.c_int64)
EXCEPTION = "an exception; a call on arrays with ONNX_OPS_BOUNDSCHECK=1 names it"  # as in refusal.c
KERNEL = C.CFUNCTYPE(C.c_int64, C.c_int64, C.c_int64, C.c_int64)


def call(operator: Operator, /, *inputs: Any, threads: int | None = None, **attributes: Any) -> Any:
    """Run an operator on array-like inputs. Attributes that are None have their defaults.

    Returns the output, or a tuple of several.
    """
    outputs = outputs_of(operator, [as_array(a) for a in inputs], attributes, threads)
    return plain.one_or_tuple(outputs)


def outputs_of(
    operator: Operator, arrays: Arrays, attributes: Mapping[str, Any], threads: int | None
) -> list[np.ndarray]:
    """Return the outputs for arrays as returned by `as_array`."""
    check_count("threads", threads, operator.title)
    with errors_of(operator):
        values = operator.values(attributes)
    return compute(operator, values, arrays, threads)


def as_array(value: Any) -> np.ndarray | None:
    """Return a value as a contiguous array in native byte order, as kernels require.

    None, which stands for an absent input, stays.
    """
    return None if value is None else dtypes.contiguous(value)


class Specialization:
    """What calls of an operator with inputs of the same types and ranks have in common.

    position   of the kernel; None if none is compiled for these ranks
    signature  {type variable: element type}
    types      NumPy's types of the outputs
    """

    def __init__(
        self, operator: Operator, choice: int, data_types: Sequence[np.dtype | None], ranks: Ranks
    ) -> None:
        names = [
            None if data_type is None else dtypes.type_name(data_type) for data_type in data_types
        ]
        self.operator = operator
        self.signature = calls.signature_of(operator, choice, names)
        self.position = operator.position(choice, ranks)
        self.types = operator.numpy_types(self.signature)
        self.widens_halves = operator.has_ranks and any(
            name in dtypes.HALVES for name in self.signature.values()
        )
        self._functions: tuple[Plan, Kernel] | None = None

    def functions(self) -> tuple[Plan, Kernel] | None:
        """Return the compiled plan and kernel as C functions for ctypes.

        They are from the library if they were compiled ahead.

        Returns None if the types or ranks have no kernel, or if it can't be compiled here. Raises
        OpError.
        """
        if self._functions or self.position is None:
            return self._functions
        operator = self.operator
        variant = self.operator, self.position, self.signature
        if operator.storage(operator.kernel(self.position), self.signature) is None:
            return None
        with errors_of(operator):
            if addresses := library.functions(*variant):
                self._functions = PLAN(addresses[0]), KERNEL(addresses[1])
            elif library.have_numba():
                # Else a child forked during this import might wait for the module's lock for ever.
                with COMPILATION:
                    from ..compiler.code import code
                plan, kernel = (
                    records.plan_entry(operator, self.position),
                    records.kernel_entry(*variant),
                )
                self._functions = code(plan, operator.title).call, code(kernel, operator.title).call
        return self._functions


cached_specialization = functools.lru_cache(maxsize=1024)(Specialization)


def specialization_of(
    operator: Operator, values: AttributeValues, arrays: Arrays
) -> Specialization:
    """Return the Specialization of a call.

    Raises OpError for types that the operator doesn't support.
    """
    data_types = tuple([None if a is None else a.dtype for a in arrays])
    ranks = tuple([ABSENT if a is None else a.ndim for a in arrays])
    specialization = cached_specialization(operator, operator.choice(values), data_types, ranks)
    calls.check_strings(operator, specialization.signature, arrays)
    return specialization


def compute(
    operator: Operator,
    values: AttributeValues,
    arrays: Arrays,
    threads: int | None = None,
    empty: Callable[..., np.ndarray] = np.empty,
    tiles: int | None = None,
) -> list[np.ndarray]:
    """Compute the operator's outputs, a list.

    values  AttributeValues
    arrays  the inputs: C-contiguous arrays of declared element types; None stands for an absent
            input
    empty   allocates the outputs and the kernel's workspace
    tiles   a limit on the number of tiles that a plan's steps share; default: one for each
            TILE_ELEMENTS elements
    """
    arrays = operator.padded(arrays)
    specialization = specialization_of(operator, values, arrays)
    if (functions := specialization.functions()) is None:
        return calls.compute_reference(operator, values, arrays, specialization.types)
    plan, kernel = functions
    call = Call(specialization, values, arrays)
    call.plan(plan)
    return call.run(kernel, threads, empty, tiles)


class Call:
    """A call of compiled code, with its record (records.py)."""

    def __init__(
        self, specialization: Specialization, values: AttributeValues, arrays: Arrays
    ) -> None:
        self.specialization = specialization
        self.operator = specialization.operator
        self.values = values
        self.arrays = arrays
        self.explain: Callable[[], str | None] | None = None
        self.record = table.Call()
        self.address = C.addressof(self.record)
        self.record[self.record.ATTRIBUTES] = values.address
        self.record[self.record.COUNT] = len(arrays)
        for k, sizes in enumerate(calls.plan_inputs(self.operator, arrays)):
            self.record.put_shape(k, sizes)

    def plan(self, plan: Callable[[int], int]) -> None:
        """Run the plan.

        It states the outputs' shapes, the number of tiles and the bytes of workspace.
        """
        if returned := plan(self.address):
            if BOUNDSCHECK and self.operator.has_ranks:
                self.explain = lambda: explain_plan(self.operator, self.values, self.arrays)
            self.fail(returned)

    def fail(self, returned: int) -> None:
        """Raise the OpError for a nonzero result of compiled code."""
        if returned == 1:
            refusals.refuse(self.operator, self.address + records.GEOMETRY)
        outcome = (
            f"raised {(self.explain and self.explain()) or EXCEPTION}"
            if returned == 2
            else "failed"
        )
        raise OpError(None, None, f"compiled code has {outcome}", self.operator.title)

    def run(
        self,
        kernel: Kernel,
        threads: int | None,
        empty: Callable[..., np.ndarray],
        most_tiles: int | None,
    ) -> list[np.ndarray]:
        """Run all tiles of the plan; returns the outputs."""
        operator = self.operator
        record = self.record
        outputs = range(records.OUTPUT, records.OUTPUT + len(operator.outputs))
        shapes = [(-1,) if shape is None else shape for _, _, shape in map(record.tensor, outputs)]
        with errors_of(operator):
            plain.check_shapes(operator, shapes)
            rule = "must be a number of bytes in [0, 2**40]"
            workspace = record[WORKSPACE]
            require(0 <= workspace <= MAX_WORKSPACE, "workspace", workspace, rule)
        inputs = self.arrays
        types: Sequence[np.dtype] = self.specialization.types
        widens_halves = self.specialization.widens_halves
        if widens_halves:
            inputs = [
                None if a is None else a.astype(kernel_dtype(a.dtype), copy=False) for a in inputs
            ]
            types = list(map(kernel_dtype, types))
        results = list(map(empty, shapes, types))
        for k, array in (*enumerate(inputs), *zip(outputs, results, strict=True)):
            if array is not None:
                record.put_array(k, array)
        if operator.has_ranks:
            self.group_steps(inputs, results, most_tiles)
        self.run_tiles(kernel, threads, empty, (inputs, results))
        if operator.plan.is_bound:
            lengths = [record.tensor(k)[2][0] for k in outputs]
            results = list(map(partial(cut_output, operator), results, lengths))
        if widens_halves:
            types = self.specialization.types
            results = [y.astype(dtype, copy=False) for y, dtype in zip(results, types, strict=True)]
        return results

    def group_steps(
        self, inputs: Arrays, results: Sequence[np.ndarray], most_tiles: int | None
    ) -> None:
        """Group the steps that the plan states into tiles, one for each TILE_ELEMENTS elements."""
        elements = sum([a.size for a in (*inputs, *results) if a is not None])
        most = min(most_tiles or elements // TILE_ELEMENTS + 1, MAX_TILES)
        self.record[TILES] = max(min(self.record[TILES], most), 1)
        if BOUNDSCHECK:  # then time doesn't matter
            dtype = self.operator.geometry_dtype
            geometry = Record(np.frombuffer(self.record, dtype, 1, records.GEOMETRY)[0])
            self.explain = lambda: explain_kernel(self, inputs, geometry, results)

    def run_tiles(
        self,
        kernel: Callable[[int, int, int], int],
        threads: int | None,
        empty: Callable[..., Any],
        memory: object,
    ) -> None:
        """Run the tiles on threads, each with its part of the workspace."""
        tiles = self.record[TILES]
        count = min(tiles, MAX_TILES)
        pitch = math.ceil(self.record[WORKSPACE] / LINE) * LINE
        workspace = empty(count * pitch + LINE, BYTE)
        begin = (workspace.ctypes.data // LINE + 1) * LINE
        free = deque(begin + k * pitch for k in range(count))

        # The default of `memory` keeps them alive while tiles run.
        def run_tile(index: int, memory: object = (self, workspace, memory)) -> None:
            address = free.pop()
            returned = kernel(self.address, index, address)
            free.append(address)
            if returned:
                self.fail(returned)

        on_threads(run_tile, tiles, threads)


# The positions of the plan's results in a record.
WORKSPACE, TILES = records.WORKSPACE_SIZE // 8, records.TILES // 8
BYTE = np.dtype(np.uint8)


def kernel_dtype(dtype: np.dtype) -> np.dtype:
    """Return the type in which a kernel for stated ranks sees elements of a type."""
    return np.dtype(np.float32) if dtype.name in dtypes.HALVES else dtype


def cut_output(operator: Operator, array: np.ndarray, length: int) -> np.ndarray:
    """Cut an output to the length that the kernel returns, where the plan states only a bound."""
    with errors_of(operator):
        rule = "is the kernel's result; the bound of the shape function is"
        require(0 <= length <= len(array), "length of an output", length, rule, len(array))
    return array[:length]


# The exception in compiled code


def explain_kernel(
    call: Call, inputs: Arrays, geometry: Record, outputs: Sequence[np.ndarray]
) -> str | None:
    """Run a kernel for stated ranks as plain Python; return its exception's text, or None.

    The text has the line.
    """
    operator = call.operator
    position: Any = call.specialization.position
    values = call.values.compiled
    sizes = plain.sizes_of(operator, inputs)
    workspace = np.empty(geometry.workspace, np.uint8)
    flat = [y.reshape(-1) for y in outputs]
    function = operator.kernel(position).function

    def run() -> None:
        for tile in range(geometry.tiles):
            function(values, tuple(sizes), *inputs, geometry, tile, workspace, *flat)

    return exception_of(run)


def explain_plan(operator: Operator, values: AttributeValues, inputs: Arrays) -> str | None:
    """Run the functions of a plan for stated ranks as plain Python; return as `explain_kernel`."""
    sizes = plain.sizes_of(operator, inputs)

    def run() -> None:
        plain.shapes_for_ranks(operator, values, sizes)
        for work in filter(None, (operator.plan.loop, operator.plan.workspace)):
            work(*sizes, *values.compiled)

    return exception_of(run)


def exception_of(run: Callable[[], None]) -> str | None:
    """Call a function; return the text of its exception with the line, or None."""
    try:
        run()
    except Exception as error:
        return reason(error) + plain.place_of(error)
    return None
