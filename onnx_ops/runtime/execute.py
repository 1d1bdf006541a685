"""Calls of operators on NumPy arrays: plan, allocate the outputs, run the tiles.

Functions on arrays and the extensions backend use this; in sessions of the native backend the C library does the same.
Both run the same machine code on the same tiles, so results are equal bit for bit, except for the bits of a NaN. That
does not hold where the machine code differs (another CPU or version of Numba, code compiled ahead instead of on
demand), nor without machine code: `compute_reference` sums in float64.
"""

import ctypes as C
import functools
import math
from collections import deque

import numpy as np

from .. import dtypes, plain
from ..compiler import records
from ..compiler.jit import BOUNDSCHECK
from ..declaration import REFUSAL_FIELDS, Record
from ..errors import OpError, errors_of, require
from ..limits import ABSENT, LINE, MAX_RANK, MAX_TILES, MAX_WORKSPACE, TILE_ELEMENTS
from ..locks import COMPILATION
from . import library, table
from .threads import on_threads

PLAN = C.CFUNCTYPE(C.c_int64, C.c_int64)
KERNEL = C.CFUNCTYPE(C.c_int64, C.c_int64, C.c_int64, C.c_int64)


def plan_input(input, array):
    """Return what a plan sees of one input: its shape or its values, a sequence of numbers. Raises OpError."""
    if array is None:
        return ()
    if array.ndim > MAX_RANK:
        raise OpError(f"rank of {input.name}", array.ndim, f"must be at most {MAX_RANK}")
    if not input.values:
        return array.shape
    if array.ndim != 1:
        raise OpError(f"shape of {input.name}", list(array.shape), "must have rank 1")
    if array.size > MAX_RANK:
        raise OpError(f"length of {input.name}", array.size, f"must be at most {MAX_RANK}")
    return array.tolist()


def plan_inputs(operator, arrays):
    """Return what the operator's plan sees of its inputs, see `plan_input`. Raises OpError."""
    pairs = list(zip(operator.each_input(len(arrays)), arrays, strict=True))
    with errors_of(operator):
        for i, array in () if operator.has_ranks else pairs:  # to the plan, it would be absent
            if i.presence == "optional" and array is not None and array.ndim == 0:
                raise OpError(f"shape of {i.name}", [], "must have an axis")
        return [plan_input(i, array) for i, array in pairs]


class Way:
    """What the calls of an operator with inputs of the same types and ranks share.

    position   of the kernel; None if none is compiled for these ranks
    signature  {type variable: element type}
    types      NumPy's types of the outputs
    """

    def __init__(self, operator, choice, kinds, ranks):
        names = [None if kind is None else dtypes.type_name(kind) for kind in kinds]
        self.operator, self.signature = operator, signature_of(operator, choice, names)
        self.position, self.types = operator.position(choice, ranks), operator.numpy_types(self.signature)
        self.widens_halves = operator.has_ranks and any(name in dtypes.HALVES for name in self.signature.values())
        self._functions = None

    def functions(self):
        """The compiled plan and kernel as C functions for ctypes: from the library if they were compiled ahead.

        Returns None if the types or ranks have no kernel, or if nothing can compile it. Raises OpError.
        """
        if self._functions or self.position is None:
            return self._functions
        operator, each = self.operator, (self.operator, self.position, self.signature)
        if operator.storage(operator.kernel(self.position), self.signature) is None:
            return None
        with errors_of(operator):
            if addresses := library.functions(*each):
                self._functions = PLAN(addresses[0]), KERNEL(addresses[1])
            elif library.have_numba():
                with COMPILATION:  # else a child, forked during this import, might wait for the module's lock for ever
                    from ..compiler.code import code
                plan, kernel = records.plan_entry(operator, self.position), records.kernel_entry(*each)
                self._functions = code(plan, operator.title).call, code(kernel, operator.title).call
        return self._functions


cached_way = functools.lru_cache(maxsize=1024)(Way)


def way_of(operator, values, arrays):
    """The Way of a call. Raises OpError where inputs have types that the operator doesn't take."""
    kinds = tuple([None if a is None else a.dtype for a in arrays])
    ranks = tuple([ABSENT if a is None else a.ndim for a in arrays])
    way = cached_way(operator, operator.choice(values), kinds, ranks)
    if "string" in way.signature.values():
        for i, array in zip(operator.each_input(len(arrays)), arrays, strict=True):
            if array is not None and array.dtype.hasobject and not all(isinstance(v, str) for v in array.flat):
                raise OpError(f"dtype of {i.name}", "object", "must be of strings only", operator.title)
    return way


def signature_of(operator, choice, names):
    """{type variable: element type} for inputs of these element types, None for absent or unknown ones.

    Raises OpError where the operator, with the kernel that the attributes choose, doesn't take them.
    """
    signature = {o.type: operator.types[o.type][0] for o in operator.outputs if len(operator.types[o.type]) == 1}
    for i, name in zip(operator.each_input(len(names)), names, strict=True):
        if name is None:
            continue
        if name not in operator.types[i.type]:
            rule = f"must be one of {', '.join(operator.types[i.type])}"
            raise OpError(f"dtype of {i.name}", name, rule, operator.title)
        if signature.setdefault(i.type, name) != name:
            raise OpError(f"dtype of {i.name}", name, f"must be {signature[i.type]} as before", operator.title)
    if operator.kernels and signature.keys() == operator.types.keys():
        with errors_of(operator):
            operator.check_types(operator.kernels[choice], signature)
    return {v: each[0] for v, each in operator.types.items()} | signature  # an absent one may have any of its types


def refusal(operator, numbers):
    """The OpError for a refusal that compiled code has written: the numbers of the REFUSAL_FIELDS."""
    argument, rule, values_address, count, has_expected, expected, doubles = numbers[: len(REFUSAL_FIELDS)]
    values = ((C.c_double if doubles & 1 else C.c_int64) * abs(count)).from_address(values_address)
    expected = C.c_double.from_buffer(C.c_int64(expected)).value if doubles & 2 else expected
    argument, rule = (C.string_at(text).decode() for text in (argument, rule))
    try:
        with errors_of(operator):
            require(False, argument, values[0] if count < 0 else list(values), rule, expected if has_expected else None)
    except OpError as error:
        return error


def as_input(array):
    """A read-only view of an array, as sessions pass their inputs."""
    if array is None or array.dtype.hasobject:
        return array
    view = array.view()
    view.flags.writeable = False
    return view


def compute_reference(operator, values, arrays):
    """Compute the outputs as `compute` does, but in plain NumPy: slow."""
    arrays = operator.padded(arrays)
    way = way_of(operator, values, arrays)
    plan_inputs(operator, arrays)  # refuses what no plan gets
    return plain.compute(operator, values, [as_input(a) for a in arrays], way.types)


def compute(operator, values, arrays, threads=None, empty=np.empty, tiles=None):
    """Compute the operator's outputs, a list.

    values  AttributeValues
    arrays  the inputs: C-contiguous arrays of declared element types; None stands for an absent input
    empty   allocates the outputs and the kernel's workspace
    tiles   a limit on the number of tiles that a plan's steps share; default: one for each TILE_ELEMENTS elements
    """
    arrays = operator.padded(arrays)
    way = way_of(operator, values, arrays)
    if (functions := way.functions()) is None:
        return compute_reference(operator, values, arrays)
    plan, kernel = functions
    call = Call(way, values, arrays)
    call.plan(plan)
    return call.run(kernel, threads, empty, tiles)


class Call:
    """A call of compiled code, with its record (records.py)."""

    def __init__(self, way, values, arrays):
        self.way, self.operator, self.values, self.arrays, self.explain = way, way.operator, values, arrays, None
        self.record = table.Call()
        self.address = C.addressof(self.record)
        self.record[self.record.ATTRIBUTES], self.record[self.record.COUNT] = values.address, len(arrays)
        for k, sizes in enumerate(plan_inputs(self.operator, arrays)):
            self.record.put_shape(k, sizes)

    def plan(self, plan):
        """Have the plan state the outputs' shapes, the number of tiles and the bytes of workspace."""
        if returned := plan(self.address):
            raise self.error(returned)

    def error(self, returned):
        """The OpError for a value other than 0 that compiled code has returned."""
        if returned == 1:
            return refusal(self.operator, self.record[self.record.GEOMETRY :])
        outcome = f"raised {(self.explain and self.explain()) or 'an exception'}" if returned == 2 else "failed"
        return OpError(None, None, f"compiled code has {outcome}", self.operator.title)

    def run(self, kernel, threads, empty, most_tiles):
        """Run all tiles of the plan; returns the outputs."""
        operator, record, way = self.operator, self.record, self.way
        outputs = range(records.OUTPUT, records.OUTPUT + len(operator.outputs))
        shapes = [(-1,) if shape is None else shape for _, _, shape in map(record.tensor, outputs)]
        workspace, tiles = record[WORKSPACE], record[TILES]
        with errors_of(operator):
            plain.check_shapes(operator, shapes)
            rule = "must be a number of bytes in [0, 2**40]"
            require(0 <= workspace <= MAX_WORKSPACE, "workspace", workspace, rule)
        inputs, types = self.arrays, way.types
        if way.widens_halves:
            inputs = [None if a is None else a.astype(widened(a.dtype), copy=False) for a in inputs]
            types = list(map(widened, types))
        results = list(map(empty, shapes, types))
        for k, array in (*enumerate(inputs), *zip(outputs, results, strict=True)):
            if array is not None:
                record.put_array(k, array)
        if operator.has_ranks:  # one tile for each TILE_ELEMENTS elements, of the steps that the plan states
            elements = sum([a.size for a in (*inputs, *results) if a is not None])
            most = min(most_tiles or elements // TILE_ELEMENTS + 1, MAX_TILES)
            record[TILES] = tiles = max(min(tiles, most), 1)
            if BOUNDSCHECK:  # then time doesn't matter
                geometry = Record(np.frombuffer(record, operator.geometry_dtype, 1, records.GEOMETRY)[0])
                self.explain = lambda: plain.explain(operator, way.position, self.values, inputs, geometry, results)
        self.run_tiles(kernel, tiles, workspace, threads, empty, (inputs, results))
        if operator.plan.is_bound:
            lengths = [record.tensor(k)[2][0] for k in outputs]
            results = [cut(operator, array, n) for array, n in zip(results, lengths, strict=True)]
        if way.widens_halves:
            results = [array.astype(dtype, copy=False) for array, dtype in zip(results, way.types, strict=True)]
        return results

    def run_tiles(self, kernel, tiles, workspace, threads, empty, memory):
        """Run the tiles on threads, each with its part of the workspace."""
        parts, pitch = min(tiles, MAX_TILES), math.ceil(workspace / LINE) * LINE
        room = empty(parts * pitch + LINE, BYTE)
        begin = (room.ctypes.data // LINE + 1) * LINE
        free = deque(begin + k * pitch for k in range(parts))

        def run_tile(index, memory=(self, room, memory)):  # the default keeps them alive while tiles run
            part = free.pop()
            returned = kernel(self.address, index, part)
            free.append(part)
            if returned:
                raise self.error(returned)

        on_threads(run_tile, tiles, threads)


# The positions in a record of what a plan states.
WORKSPACE, TILES = records.WORKSPACE_SIZE // 8, records.TILES // 8
BYTE = np.dtype(np.uint8)


def widened(dtype):
    """The type in which a kernel for stated ranks sees elements of a type."""
    return np.dtype(np.float32) if dtype.name in dtypes.HALVES else dtype


def cut(operator, array, length):
    """Cut an output to the length that the kernel returns, where the plan states only a bound."""
    with errors_of(operator):
        rule = "is what the kernel returns; the rule's bound is"
        require(0 <= length <= len(array), "length of an output", length, rule, len(array))
    return array[:length]
