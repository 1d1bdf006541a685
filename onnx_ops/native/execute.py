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
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def outputs_of(
    operator: Operator, arrays: Arrays, attributes: Mapping[str, Any], threads: int | None
) -> list[np.ndarray]:
    """Return the outputs for arrays as returned by `as_array`."""
    check_count("threads", threads, operator.title)
    with errors_of(operator):
        values = operator.values(attributes)
    return compute(operator, values, arrays, threads)


def as_array(value: Any) -> np.ndarray | None:
    """Return a value as a contiguous array in native byte order, as kernels require; None for an
    absent input.
    """
    if value is None:
        return None
    array = np.asarray(value)
    return np.asarray(array, array.dtype.newbyteorder("="), order="C")


class Way:
    """The common parts of calls of an operator with inputs of the same types and ranks.

    position   of the kernel; None if none is compiled for these ranks
    signature  {type variable: element type}
    types      NumPy's types of the outputs
    """

    def __init__(
        self, operator: Operator, choice: int, kinds: Sequence[np.dtype | None], ranks: Ranks
    ) -> None:
        names = [None if kind is None else dtypes.type_name(kind) for kind in kinds]
        self.operator = operator
        self.signature = calls.signature_of(operator, choice, names)
        self.position = operator.position(choice, ranks)
        self.types = operator.numpy_types(self.signature)
        self.widens_halves = operator.has_ranks and any(
            name in dtypes.HALVES for name in self.signature.values()
        )
        self._functions: tuple[Plan, Kernel] | None = None

    def functions(self) -> tuple[Plan, Kernel] | None:
        """Return the compiled plan and kernel as C functions for ctypes: from the library if they
        were compiled ahead.

        Returns None if the types or ranks have no kernel, or if it can't be compiled here. Raises
        OpError.
        """
        if self._functions or self.position is None:
            return self._functions
        operator = self.operator
        each = self.operator, self.position, self.signature
        if operator.storage(operator.kernel(self.position), self.signature) is None:
            return None
        with errors_of(operator):
            if addresses := library.functions(*each):
                self._functions = PLAN(addresses[0]), KERNEL(addresses[1])
            elif library.have_numba():
                # Else a child forked during this import might wait for the module's lock for ever.
                with COMPILATION:
                    from ..compiler.code import code
                plan, kernel = (
                    records.plan_entry(operator, self.position),
                    records.kernel_entry(*each),
                )
                self._functions = code(plan, operator.title).call, code(kernel, operator.title).call
        return self._functions


cached_way = functools.lru_cache(maxsize=1024)(Way)


def way_of(operator: Operator, values: AttributeValues, arrays: Arrays) -> Way:
    """Return the Way of a call. Raises OpError for types that the operator doesn't support."""
    kinds = tuple([None if a is None else a.dtype for a in arrays])
    ranks = tuple([ABSENT if a is None else a.ndim for a in arrays])
    way = cached_way(operator, operator.choice(values), kinds, ranks)
    calls.check_strings(operator, way.signature, arrays)
    return way


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
    way = way_of(operator, values, arrays)
    if (functions := way.functions()) is None:
        return calls.compute_reference(operator, values, arrays, way.types)
    plan, kernel = functions
    call = Call(way, values, arrays)
    call.plan(plan)
    return call.run(kernel, threads, empty, tiles)


class Call:
    """A call of compiled code, with its record (records.py)."""

    def __init__(self, way: Way, values: AttributeValues, arrays: Arrays) -> None:
        self.way = way
        self.operator = way.operator
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
        """Run the plan, which states the outputs' shapes, the number of tiles and the bytes of
        workspace.
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
        operator, record, way = self.operator, self.record, self.way
        outputs = range(records.OUTPUT, records.OUTPUT + len(operator.outputs))
        shapes = [(-1,) if shape is None else shape for _, _, shape in map(record.tensor, outputs)]
        workspace, tiles = record[WORKSPACE], record[TILES]
        with errors_of(operator):
            plain.check_shapes(operator, shapes)
            rule = "must be a number of bytes in [0, 2**40]"
            require(0 <= workspace <= MAX_WORKSPACE, "workspace", workspace, rule)
        inputs = self.arrays
        types: Sequence[np.dtype] = way.types
        if way.widens_halves:
            inputs = [None if a is None else a.astype(widened(a.dtype), copy=False) for a in inputs]
            types = list(map(widened, types))
        results = list(map(empty, shapes, types))
        for k, array in (*enumerate(inputs), *zip(outputs, results, strict=True)):
            if array is not None:
                record.put_array(k, array)
        # One tile for each TILE_ELEMENTS elements, of the steps that the plan states.
        if operator.has_ranks:
            elements = sum([a.size for a in (*inputs, *results) if a is not None])
            most = min(most_tiles or elements // TILE_ELEMENTS + 1, MAX_TILES)
            record[TILES] = tiles = max(min(tiles, most), 1)
            if BOUNDSCHECK:  # then time doesn't matter
                geometry = Record(
                    np.frombuffer(record, operator.geometry_dtype, 1, records.GEOMETRY)[0]
                )
                position: Any = way.position
                self.explain = lambda: explain_kernel(
                    operator, position, self.values, inputs, geometry, results
                )
        self.run_tiles(kernel, tiles, workspace, threads, empty, (inputs, results))
        if operator.plan.is_bound:
            lengths = [record.tensor(k)[2][0] for k in outputs]
            results = [cut(operator, array, n) for array, n in zip(results, lengths, strict=True)]
        if way.widens_halves:
            results = [
                array.astype(dtype, copy=False)
                for array, dtype in zip(results, way.types, strict=True)
            ]
        return results

    def run_tiles(
        self,
        kernel: Callable[[int, int, int], int],
        tiles: int,
        workspace: int,
        threads: int | None,
        empty: Callable[..., Any],
        memory: object,
    ) -> None:
        """Run the tiles on threads, each with its part of the workspace."""
        parts = min(tiles, MAX_TILES)
        pitch = math.ceil(workspace / LINE) * LINE
        room = empty(parts * pitch + LINE, BYTE)
        begin = (room.ctypes.data // LINE + 1) * LINE
        free = deque(begin + k * pitch for k in range(parts))

        # The default of `memory` keeps them alive while tiles run.
        def run_tile(index: int, memory: object = (self, room, memory)) -> None:
            part = free.pop()
            returned = kernel(self.address, index, part)
            free.append(part)
            if returned:
                self.fail(returned)

        on_threads(run_tile, tiles, threads)


# The positions of the plan's results in a record.
WORKSPACE, TILES = records.WORKSPACE_SIZE // 8, records.TILES // 8
BYTE = np.dtype(np.uint8)


def widened(dtype: np.dtype) -> np.dtype:
    """Return the type in which a kernel for stated ranks sees elements of a type."""
    return np.dtype(np.float32) if dtype.name in dtypes.HALVES else dtype


def cut(operator: Operator, array: np.ndarray, length: int) -> np.ndarray:
    """Cut an output to the length that the kernel returns, where the plan states only a bound."""
    with errors_of(operator):
        rule = "is the kernel's result; the bound of the shape function is"
        require(0 <= length <= len(array), "length of an output", length, rule, len(array))
    return array[:length]


# The exception in compiled code


def explain_kernel(
    operator: Operator,
    position: int,
    values: AttributeValues,
    inputs: Arrays,
    geometry: Record,
    outputs: Sequence[np.ndarray],
) -> str | None:
    """Run a kernel for stated ranks as plain Python; return the text of its exception with the
    line, or None.
    """
    sizes = plain.sizes_of(operator, inputs)
    room = np.empty(geometry.workspace, np.uint8)
    flat = [y.reshape(-1) for y in outputs]
    function = operator.kernel(position).function

    def run() -> None:
        for tile in range(geometry.tiles):
            function(values.compiled, tuple(sizes), *inputs, geometry, tile, room, *flat)

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
