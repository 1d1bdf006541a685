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

from .. import dtypes
from ..compiler import records
from ..compiler.jit import BOUNDSCHECK
from ..declaration import ABSENT, ELEMENTS, LINE, MAX_RANK, MAX_TILES, TILE_ELEMENTS, Record
from ..errors import OpError, errors_of, require
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


def shapes(operator, arrays):
    """Return what the operator's plan sees of its inputs, see `plan_input`. Raises OpError."""
    return [plan_input(i, array) for i, array in zip(operator.each_input(len(arrays)), arrays, strict=True)]


def check_shapes(operator, parameters, arrays):
    """Raise OpError if the plan refuses these inputs."""
    with errors_of(operator):
        geometry = np.zeros(1, operator.geometry_dtype)
        operator.plan(Record(parameters[0]), shapes(operator, arrays), Record(geometry[0]))


def functions(operator, position, signature):
    """The compiled plan and kernel as C functions for ctypes: from the library if they were compiled ahead.

    position  of the kernel among the operator's; if it is a function, of the combination of ranks

    Returns None if the types have no kernel, or if nothing can compile it.
    """
    if operator.storage(position if operator.is_function else operator.kernels[position], signature) is None:
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

    plan = records.plan_entry(operator, position if operator.is_function else 0)
    return code(plan).call, code(records.kernel_entry(operator, position, dict(signature))).call


def refusal(operator, record):
    """The OpError for the refusal that compiled code has written into the `record`."""
    argument, rule, values_address, count, has_expected, expected, doubles = record["refusal"].tolist()[:7]
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
    parameters = None if operator.is_function else np.zeros(1, operator.parameters_dtype)  # no rank depends on them
    shapes = operator.output_shapes(parameters, [list(a.shape) for a in arrays], values)
    return None if shapes is None else list(map(len, shapes))


def as_input(array):
    """A read-only view of an array, as sessions pass their inputs."""
    if array is None or array.dtype.hasobject:
        return array
    view = array.view()
    view.flags.writeable = False
    return view


def compute_reference(operator, parameters, arrays):
    """Compute the outputs as `compute` does, but in plain NumPy: slow."""
    arrays = operator.padded(arrays)
    signature = signature_of(operator, parameters, arrays)
    if operator.is_function:
        arrays = [as_input(a) for a in arrays]
        return operator.computed(arrays, operator.attributes_in(parameters.tobytes()), operator.kinds(signature))
    dtype = dtypes.TABLE[signature[operator.outputs[0].type]].numpy
    check_shapes(operator, parameters, arrays)
    with np.errstate(over="ignore", invalid="ignore"):
        return [operator.reference(Record(parameters[0]), *arrays).astype(dtype, order="C")]


def compute(operator, parameters, arrays, threads=None, empty=np.empty, tiles=None):
    """Compute the operator's outputs, a list.

    arrays  the inputs: C-contiguous arrays of declared element types; None stands for an absent input
    empty   allocates the outputs and the kernel's workspace
    tiles   a limit on the number of tiles of a function's loop; default: one for each TILE_ELEMENTS elements
    """
    arrays = operator.padded(arrays)
    signature = signature_of(operator, parameters, arrays)
    with errors_of(operator):
        if operator.is_function:
            position = operator.position([ABSENT if a is None else a.ndim for a in arrays])
        else:
            position = int(parameters["kernel_index"][0])
        compiled = None if position is None else functions(operator, position, signature)
        if compiled is None:
            return compute_reference(operator, parameters, arrays)
        call = Call(operator, parameters, arrays)
    plan, kernel = compiled
    call.plan(plan)
    output_types = [dtypes.TABLE[signature[o.type]].numpy for o in operator.outputs]
    if operator.is_function:
        storage = operator.storage(position, signature)
        return call.run_function(kernel, arrays, output_types, storage, threads, empty, tiles)
    outputs = [empty(call.shape_of(call.geometry), output_types[0])]
    call.run(kernel, {k: arrays[k] for k in operator.tensors}, outputs, threads, empty)
    return outputs


class Call:
    """A call of compiled code, with its record (records.py)."""

    def __init__(self, operator, parameters, arrays):
        self.operator, self.parameters = operator, parameters
        self.record = np.zeros(1, records.call_dtype(operator.geometry_dtype))
        self.tensors, self.geometry = self.record["tensors"][0], self.record["geometry"][0]
        self.record["parameters"], self.record["input_count"] = parameters.ctypes.data, len(arrays)
        for k, values in enumerate(shapes(operator, arrays)):
            self.tensors["rank"][k], self.tensors["shape"][k, : len(values)] = len(values), values

    def explain(self):
        """Return which exception compiled code has raised, or None if that is not known."""
        return None

    @staticmethod
    def shape_of(record):
        """The shape in a record that has the fields `rank` and `shape`: a tensor's, or a geometry."""
        return record["shape"].tolist()[: record["rank"]]

    def plan(self, plan):
        if returned := plan(self.parameters.ctypes.data, self.record.ctypes.data):
            raise self.error(returned)

    def error(self, returned):
        """The OpError for a value other than 0 that compiled code has returned."""
        if returned == 1:
            return refusal(self.operator, self.geometry)
        outcome = f"raised {self.explain() or 'an exception'}" if returned == 2 else "failed"
        return OpError(None, None, f"compiled code has {outcome}", self.operator.title)

    def run(self, kernel, inputs, outputs, threads, empty):
        """Run all tiles of the plan on the inputs, {position: array}, and the outputs."""
        tiles, size = (self.geometry[name].tolist() for name in ("tiles", "workspace"))
        parts, pitch = min(tiles, MAX_TILES), math.ceil(size / LINE) * LINE
        workspace = empty(parts * pitch + LINE, np.dtype(np.uint8))
        begin = (workspace.ctypes.data // LINE + 1) * LINE
        for k, array in (*inputs.items(), *enumerate(outputs, records.OUTPUT)):
            self.tensors["data"][k], self.tensors["size"][k] = array.ctypes.data, array.size
        address = self.record.ctypes.data
        free = deque(begin + k * pitch for k in range(parts))

        def run_tile(index, memory=(self, inputs, workspace, outputs)):  # the default keeps them alive while tiles run
            part = free.pop()
            returned = kernel(address, index, part)
            free.append(part)
            if returned:
                raise self.error(returned)

        run_tiles(run_tile, tiles, threads or len(available_cpus()))

    def run_function(self, kernel, arrays, output_types, storage, threads, empty, tiles):
        """Run a function's kernel; returns the outputs, of these types.

        storage  the element types in which the kernel sees the inputs and the outputs
        """
        function, tensors = self.operator, self.tensors[records.OUTPUT :]
        shapes = [self.shape_of(tensor) for tensor, _ in zip(tensors, output_types, strict=False)]
        check_outputs(function, shapes, int(self.geometry["workspace"]))
        pairs = enumerate(zip(arrays, storage, strict=False))
        inputs = {k: array.astype(dtype, copy=False) for k, (array, dtype) in pairs if array is not None}
        elements = sum(map(math.prod, shapes)) + sum(array.size for array in inputs.values())
        most = tiles or elements // TILE_ELEMENTS + 1
        self.geometry["tiles"] = max(min(int(self.geometry["tiles"]), MAX_TILES, most), 1) if function.has_loop else 1
        outputs = [empty(shape, dtype) for shape, dtype in zip(shapes, storage[len(arrays) :], strict=True)]
        if BOUNDSCHECK:  # then time doesn't matter
            in_order = [inputs.get(k) for k in range(len(arrays))]
            tiles, workspace = (self.geometry[name].tolist() for name in ("tiles", "workspace"))
            self.explain = lambda: function.explain(self.parameters, in_order, tiles, workspace, outputs)
        self.run(kernel, inputs, outputs, threads, empty)
        if function.is_bound:
            lengths = tensors["shape"][:, 0].tolist()
            outputs = [cut(function, array, n) for array, n in zip(outputs, lengths, strict=False)]
        return [array.astype(dtype, copy=False) for array, dtype in zip(outputs, output_types, strict=True)]


def check_outputs(function, shapes, workspace):
    """Raise OpError where a function's rule returns no possible shape, or its workspace no possible number of bytes."""
    with errors_of(function):
        rule = "is what the rule says, but no shape of at most 2**58 elements"
        for shape in shapes:
            fits = function.is_bound <= len(shape) and min(shape, default=0) >= 0 and math.prod(shape) <= ELEMENTS
            require(fits, "shape of an output", shape, rule)
        require(0 <= workspace <= 2**40, "workspace", workspace, "must be a number of bytes in [0, 2**40]")


def cut(function, array, length):
    """Cut an output to the length that the kernel returns, where the function's rule gives only a bound."""
    with errors_of(function):
        rule = "is what the kernel returns; the rule's bound is"
        require(0 <= length <= len(array), "length of an output", length, rule, len(array))
    return array[:length]


def signature_of(operator, parameters, arrays):
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
    if not operator.is_function:
        with errors_of(operator):
            operator.check_types(operator.selected_kernel(Record(parameters[0])), signature)
    return signature
