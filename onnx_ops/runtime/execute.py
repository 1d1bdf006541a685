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
from ..declaration import REFUSAL_FIELDS
from ..errors import OpError, errors_of, require
from ..limits import ABSENT, LINE, MAX_RANK, MAX_TILES, MAX_WORKSPACE, TILE_ELEMENTS, UNKNOWN
from ..locks import COMPILATION
from . import library
from .threads import available_cpus, run_tiles

PLAN = C.CFUNCTYPE(C.c_int64, C.c_int64, C.c_int64)
KERNEL = C.CFUNCTYPE(C.c_int64, C.c_int64, C.c_int64, C.c_int64)


def plan_input(input, array):
    """Return what a plan sees of one input, its shape or its values, as an int64 array. Raises OpError."""
    if array is None:
        return np.empty(0, np.int64)
    if array.ndim > MAX_RANK:
        raise OpError(f"rank of {input.name}", array.ndim, f"must be at most {MAX_RANK}")
    if input.values and array.ndim != 1:
        raise OpError(f"shape of {input.name}", list(array.shape), "must have rank 1")
    if input.values and array.size > MAX_RANK:
        raise OpError(f"length of {input.name}", array.size, f"must be at most {MAX_RANK}")
    return np.array(array if input.values else array.shape, np.int64)


def sizes(operator, arrays):
    """Return what the operator's plan sees of its inputs, see `plan_input`. Raises OpError."""
    with errors_of(operator):
        return [plan_input(i, array) for i, array in zip(operator.each_input(len(arrays)), arrays, strict=True)]


def functions(operator, position, signature):
    """The compiled plan and kernel as C functions for ctypes: from the library if they were compiled ahead.

    position  of the kernel among those of the operator

    Returns None if the types have no kernel, or if nothing can compile it.
    """
    if operator.storage(operator.kernel(position), signature) is None:
        return None
    if addresses := library.functions(operator, position, signature):
        return PLAN(addresses[0]), KERNEL(addresses[1])
    if not library.have_numba():
        return None
    return functions_on_demand(operator, position, tuple(signature.items()))


@functools.cache
def functions_on_demand(operator, position, signature):
    """Compile what `functions` returns, or load it from the cache. Raises OpError."""
    with COMPILATION:  # else a child, forked during this import, might wait for the module's lock for ever
        from ..compiler.code import code

    plan = records.plan_entry(operator, position)
    return code(plan).call, code(records.kernel_entry(operator, position, dict(signature))).call


def refusal(operator, record):
    """The OpError for the refusal that compiled code has written into the `record`."""
    numbers = record["refusal"].tolist()[: len(REFUSAL_FIELDS)]
    argument, rule, values_address, count, has_expected, expected, doubles = numbers
    values = ((C.c_double if doubles & 1 else C.c_int64) * abs(count)).from_address(values_address)
    expected = C.c_double.from_buffer(C.c_int64(expected)).value if doubles & 2 else expected
    argument, rule = (C.string_at(text).decode() for text in (argument, rule))
    try:
        with errors_of(operator):
            require(False, argument, values[0] if count < 0 else list(values), rule, expected if has_expected else None)
    except OpError as error:
        return error


def output_ranks(operator, arrays):
    """The ranks of the outputs for these inputs, even if the plan would refuse them; None if they aren't known."""
    values = [a.tolist() if i.values and a.ndim == 1 else None for i, a in zip(operator.inputs, arrays, strict=True)]
    return plain.output_ranks(operator, [list(a.shape) for a in arrays], values)


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
    signature = signature_of(operator, values, arrays)
    sizes(operator, arrays)  # refuses what no plan gets
    return plain.compute(operator, values, [as_input(a) for a in arrays], operator.numpy_types(signature))


def compute(operator, values, arrays, threads=None, empty=np.empty, tiles=None):
    """Compute the operator's outputs, a list.

    values  AttributeValues
    arrays  the inputs: C-contiguous arrays of declared element types; None stands for an absent input
    empty   allocates the outputs and the kernel's workspace
    tiles   a limit on the number of tiles of a rule's loop; default: one for each TILE_ELEMENTS elements
    """
    arrays = operator.padded(arrays)
    signature = signature_of(operator, values, arrays)
    with errors_of(operator):
        position = operator.position(values, [ABSENT if a is None else a.ndim for a in arrays])
        compiled = None if position is None else functions(operator, position, signature)
    if compiled is None:
        return compute_reference(operator, values, arrays)
    call = Call(operator, position, values, arrays, signature)
    call.plan(compiled[0])
    return call.run(compiled[1], threads, empty, tiles)


class Call:
    """A call of compiled code, with its record (records.py)."""

    def __init__(self, operator, position, values, arrays, signature):
        self.operator, self.position, self.values, self.signature = operator, position, values, signature
        self.record = np.zeros(1, records.call_dtype(operator.geometry_dtype))
        self.tensors, self.geometry = self.record["tensors"][0], self.record["geometry"][0]
        self.record["attributes"], self.record["input_count"] = values.block.ctypes.data, len(arrays)
        for k, vector in enumerate(sizes(operator, arrays)):
            self.tensors["rank"][k], self.tensors["shape"][k, : len(vector)] = len(vector), vector
        self.arrays, self.explain = arrays, None

    def plan(self, plan):
        self.tensors["rank"][records.OUTPUT :] = UNKNOWN
        if returned := plan(self.values.block.ctypes.data, self.record.ctypes.data):
            raise self.error(returned)

    def error(self, returned):
        """The OpError for a value other than 0 that compiled code has returned."""
        if returned == 1:
            return refusal(self.operator, self.geometry)
        outcome = f"raised {(self.explain and self.explain()) or 'an exception'}" if returned == 2 else "failed"
        return OpError(None, None, f"compiled code has {outcome}", self.operator.title)

    def run(self, kernel, threads, empty, most_tiles):
        """Run all tiles of the plan; returns the outputs."""
        operator, tensors = self.operator, self.tensors[records.OUTPUT :]
        pairs = zip(tensors["rank"].tolist(), tensors["shape"].tolist(), operator.outputs, strict=False)
        shapes = [tuple(shape[:rank]) if rank >= 0 else (-1,) for rank, shape, _ in pairs]
        with errors_of(operator):
            plain.check_shapes(operator, shapes)
            workspace, shared = int(self.geometry["workspace"]), int(self.geometry["shared"])
            rule = "must be a number of bytes in [0, 2**40]"
            require(0 <= workspace <= MAX_WORKSPACE, "workspace", workspace, rule)
            require(0 <= shared <= MAX_WORKSPACE, "shared", shared, rule)
        types = operator.numpy_types(self.signature)
        inputs = [None if array is None else self.staged(array) for array in self.arrays]
        outputs = [empty(shape, self.staged_type(dtype)) for shape, dtype in zip(shapes, types, strict=True)]
        tiles = self.cut(inputs, shapes, most_tiles)
        for k, array in (*enumerate(inputs), *enumerate(outputs, records.OUTPUT)):
            if array is not None:
                self.tensors["data"][k], self.tensors["size"][k] = array.ctypes.data, array.size
        if BOUNDSCHECK and operator.has_axes:  # then time doesn't matter
            self.explain = lambda: plain.explain(
                operator, self.position, self.values, inputs, tiles, workspace, shared, outputs
            )
        self.run_phases(kernel, tiles, workspace, shared, threads, empty, (inputs, outputs))
        if operator.plan.is_bound:
            lengths = tensors["shape"][:, 0].tolist()
            outputs = [cut(operator, array, n) for array, n in zip(outputs, lengths, strict=False)]
        return [array.astype(dtype, copy=False) for array, dtype in zip(outputs, types, strict=True)]

    def staged_type(self, dtype):
        """The type in which the kernel sees elements of a type."""
        return np.dtype(np.float32) if self.operator.has_axes and dtype.name in dtypes.HALVES else dtype

    def staged(self, array):
        return array.astype(self.staged_type(array.dtype), copy=False)

    def cut(self, inputs, shapes, most):
        """The numbers of the phases' tiles: for the steps of a loop, one for each TILE_ELEMENTS elements."""
        tiles = self.geometry["tiles"].tolist()
        tiles = tiles if isinstance(tiles, list) else [tiles]
        if self.operator.plan.counts_steps:
            elements = sum(map(math.prod, shapes)) + sum(array.size for array in inputs if array is not None)
            most = min(most or elements // TILE_ELEMENTS + 1, MAX_TILES)
            tiles = [max(min(count, most), 1) for count in tiles]
            self.geometry["tiles"] = tiles if len(tiles) > 1 else tiles[0]
        return tiles

    def run_phases(self, kernel, tiles, workspace, shared, threads, empty, memory):
        """Run the tiles of each phase on threads, each with its part of the workspace."""
        parts = min(max(tiles), MAX_TILES)
        pitch, shared = (math.ceil(size / LINE) * LINE for size in (workspace, shared))
        room = empty(shared + parts * pitch + LINE, np.dtype(np.uint8))
        begin, address = (room.ctypes.data // LINE + 1) * LINE, self.record.ctypes.data
        free = deque(begin + shared + k * pitch for k in range(parts))
        self.record["shared"] = begin

        def run_tile(index, memory=(self, room, memory)):  # the default keeps them alive while tiles run
            part = free.pop()
            returned = kernel(address, index, part)
            free.append(part)
            if returned:
                raise self.error(returned)

        for phase, count in enumerate(tiles):
            self.record["phase"] = phase
            run_tiles(run_tile, count, threads or len(available_cpus()))


def cut(operator, array, length):
    """Cut an output to the length that the kernel returns, where the rule gives only a bound."""
    with errors_of(operator):
        rule = "is what the kernel returns; the rule's bound is"
        require(0 <= length <= len(array), "length of an output", length, rule, len(array))
    return array[:length]


def signature_of(operator, values, arrays):
    """{type variable: element type} for these inputs. Raises OpError."""
    signature = {o.type: operator.types[o.type][0] for o in operator.outputs if len(operator.types[o.type]) == 1}
    for i, array in zip(operator.each_input(len(arrays)), arrays, strict=True):
        if array is None:
            continue
        name = dtypes.name_of(array)
        if name not in operator.types[i.type]:
            rule = f"must be one of {', '.join(operator.types[i.type])}"
            raise OpError(f"dtype of {i.name}", name, rule, operator.title)
        if name == "string" and array.dtype.hasobject and not all(isinstance(v, str) for v in array.flat):
            raise OpError(f"dtype of {i.name}", "object", "must be of strings only", operator.title)
        if signature.setdefault(i.type, name) != name:
            raise OpError(f"dtype of {i.name}", name, f"must be {signature[i.type]} as before", operator.title)
    for i in operator.inputs:  # an absent input may have any of its types
        signature.setdefault(i.type, operator.types[i.type][0])
    if operator.kernels:
        with errors_of(operator):
            operator.check_types(operator.kernels[operator.choice(values)], signature)
    return signature
