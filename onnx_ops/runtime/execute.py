"""One call of one operator on memory: plan, allocate the output, run the tiles.

This is the function adapter's engine, and whatever else has arrays rather than ONNX Runtime's own kernel context.
It runs the very machine code that sessions run, which is what makes their results equal bit for bit.
"""

import ctypes as C
import functools
import math
import os
from _thread import start_new_thread
from collections import deque
from queue import SimpleQueue

import numpy as np

from .. import dtypes
from ..declaration import ABSENT, ELEMENTS, MAX_RANK, MAX_TILES, TILE_ELEMENTS, Record
from ..errors import OpError, named, require
from ..kernels import records
from ..locks import COMPILATION, POOL
from . import library

PLAN = C.CFUNCTYPE(C.c_int64, C.c_int64, C.c_int64)
KERNEL = C.CFUNCTYPE(C.c_int64, C.c_int64, C.c_int64, C.c_int64)


def seen(input, array):
    """What a plan sees of one input, as an int64 array; raises OpError."""
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
    """What the operator's plan sees of its inputs; raises OpError."""
    return [seen(i, array) for i, array in zip(operator.each_input(len(arrays)), arrays, strict=True)]


def check_shapes(operator, parameters, arrays):
    """Raise OpError if the plan refuses these inputs."""
    with named(operator):
        geometry = np.zeros(1, operator.geometry_dtype)
        operator.plan(Record(parameters[0]), shapes(operator, arrays), Record(geometry[0]))


def functions(operator, position, signature):
    """The compiled plan and kernel as C functions for ctypes; None where there is nothing that can compile them.

    They come from the library, if they were compiled ahead.

    position  of the kernel or, of a function, of the combination of ranks
    """
    if operator.storage(position if operator.is_function else operator.kernels[position], signature) is None:
        return None
    if addresses := library.functions(operator, position, signature):
        return PLAN(addresses[0]), KERNEL(addresses[1])
    if not library.have_numba():
        return None
    return compiled_now(operator, position, tuple(signature.items()))


@functools.cache
def compiled_now(operator, position, signature):
    """`functions` of what isn't in the library. Raises OpError."""
    with COMPILATION:  # or a fork might leave to nobody the lock of a module that is being imported
        from ..kernels.code import code

    plan = records.plan_entry(operator, position if operator.is_function else 0)
    return code(plan).call, code(records.kernel_entry(operator, position, dict(signature))).call


def refusal(operator, record):
    """The OpError for what compiled code has refused, as it says in the `record`."""
    argument, rule, at, count, has_expected, expected = record["refusal"].tolist()[:6]
    values = (C.c_int64 * abs(count)).from_address(at)
    argument, rule = (C.string_at(text).decode() for text in (argument, rule))
    try:
        with named(operator):
            require(False, argument, values[0] if count < 0 else list(values), rule, expected if has_expected else None)
    except OpError as error:
        return error


def output_ranks(operator, arrays):
    """The ranks that the outputs have, or would have; None if that can't be told."""
    values = [a.tolist() if i.values and a.ndim == 1 else None for i, a in zip(operator.inputs, arrays, strict=True)]
    shapes = operator.output_shapes(None, [list(a.shape) for a in arrays], values)
    return None if shapes is None else list(map(len, shapes))


def as_input(array):
    """A view that can't be written to, as a session's inputs can't."""
    if array is None or array.dtype.hasobject:
        return array
    view = array.view()
    view.flags.writeable = False
    return view


def compute_reference(operator, parameters, arrays):
    """`compute` in plain NumPy: slow."""
    arrays = operator.padded(arrays)
    signature = signature_of(operator, parameters, arrays)
    if operator.is_function:
        arrays = [as_input(a) for a in arrays]
        return operator.computed(arrays, operator.attributes_in(parameters.tobytes()), operator.kinds(signature))
    dtype = dtypes.TABLE[signature[operator.outputs[0].type]].numpy
    check_shapes(operator, parameters, arrays)
    with np.errstate(over="ignore", invalid="ignore"):
        return [operator.reference(Record(parameters[0]), *arrays).astype(dtype, order="C")]


def compute(operator, parameters, arrays, threads=None, empty=np.empty):
    """The operator's outputs, a list, for C-contiguous arrays of declared element types; None is an absent one.

    `empty` allocates the outputs and the kernel's workspace.
    """
    arrays = operator.padded(arrays)
    signature = signature_of(operator, parameters, arrays)
    with named(operator):
        if operator.is_function:
            position = operator.position([ABSENT if a is None else a.ndim for a in arrays])
        else:
            position = int(parameters["kernel"][0])
        compiled = None if position is None else functions(operator, position, signature)
        if compiled is None:
            return compute_reference(operator, parameters, arrays)
        call = Call(operator, parameters, arrays)
    plan, kernel = compiled
    call.plan(plan)
    kinds = [dtypes.TABLE[signature[o.type]].numpy for o in operator.outputs]
    if operator.is_function:
        return call.run_function(kernel, arrays, kinds, operator.storage(position, signature), threads, empty)
    outputs = [empty(call.shape_of(call.geometry), kinds[0])]
    call.run(kernel, {k: arrays[k] for k in operator.tensors}, outputs, threads, empty)
    return outputs


class Call:
    """One call of compiled code: its record (records.py)."""

    def __init__(self, operator, parameters, arrays):
        self.operator, self.parameters = operator, parameters
        self.record = np.zeros(1, records.call_dtype(operator.geometry_dtype))
        self.tensors, self.geometry = self.record["tensors"][0], self.record["geometry"][0]
        self.record["parameters"], self.record["input_count"] = parameters.ctypes.data, len(arrays)
        for k, values in enumerate(shapes(operator, arrays)):
            self.tensors["rank"][k], self.tensors["shape"][k, : len(values)] = len(values), values

    @staticmethod
    def shape_of(described):
        return described["shape"].tolist()[: described["rank"]]

    def plan(self, plan):
        if returned := plan(self.parameters.ctypes.data, self.record.ctypes.data):
            raise self.error(returned)

    def error(self, returned):
        """The OpError for what compiled code has returned other than 0."""
        if returned == 1:
            return refusal(self.operator, self.geometry)
        what = "raised an exception" if returned == 2 else "failed"
        return OpError(None, None, f"compiled code has {what}", self.operator.title)

    def run(self, kernel, inputs, outputs, threads, empty):
        """Run all tiles of the plan on {position: array} and the outputs."""
        tiles, size = (self.geometry[name].tolist() for name in ("tiles", "workspace"))
        workspace = empty(min(tiles, MAX_TILES) * size, np.dtype(np.uint8))
        for k, array in (*inputs.items(), *enumerate(outputs, records.OUTPUT)):
            self.tensors["data"][k], self.tensors["size"][k] = array.ctypes.data, array.size
        at, free = (
            self.record.ctypes.data,
            deque(workspace.ctypes.data + k * size for k in range(min(tiles, MAX_TILES))),
        )

        def run_tile(index, memory=(self, inputs, workspace, outputs)):  # which must live for as long as a tile may run
            place = free.pop()
            returned = kernel(at, index, place)
            free.append(place)
            if returned:
                raise self.error(returned)

        spread(run_tile, tiles, threads or len(cpus()))

    def run_function(self, kernel, arrays, kinds, storage, threads, empty):
        """The outputs, of these kinds, of a function's kernel, which sees the arrays as `storage` says."""
        function, tensors = self.operator, self.tensors[records.OUTPUT :]
        wanted = [self.shape_of(tensor) for tensor, _ in zip(tensors, kinds, strict=False)]
        check_outputs(function, wanted, int(self.geometry["workspace"]))
        pairs = enumerate(zip(arrays, storage, strict=False))
        inputs = {k: array.astype(kind, copy=False) for k, (array, kind) in pairs if array is not None}
        elements = sum(map(math.prod, wanted)) + sum(array.size for array in inputs.values())
        self.geometry["tiles"] = function_tiles(self.geometry["tiles"], elements) if function.has_loop else 1
        outputs = [empty(shape, kind) for shape, kind in zip(wanted, storage[len(arrays) :], strict=True)]
        self.run(kernel, inputs, outputs, threads, empty)
        if function.is_bound:
            lengths = tensors["shape"][:, 0].tolist()
            outputs = [cut(function, array, n) for array, n in zip(outputs, lengths, strict=False)]
        return [array.astype(kind, copy=False) for array, kind in zip(outputs, kinds, strict=True)]


def check_outputs(function, shapes, workspace):
    """Raise OpError for what the rule of a function says but is no shape, and for what is no size of a workspace."""
    with named(function):
        require(workspace >= 0, "workspace", workspace, "must be a number of bytes, from 0 on")
        rule = "is what the rule says, but no shape of at most 2**58 elements"
        for shape in shapes:
            require(min(shape, default=0) >= 0 and math.prod(shape) <= ELEMENTS, "shape of an output", shape, rule)


def cut(function, array, length):
    """The beginning of an output of which the rule has said a bound only."""
    with named(function):
        rule = "is what the kernel returns; the rule's bound is"
        require(0 <= length <= len(array), "length of an output", length, rule, len(array))
    return array[:length]


def function_tiles(steps, elements):
    """Into how many tiles a function's loop of so many steps is cut; native/function.c does the same."""
    return max(min(int(steps), MAX_TILES, elements // TILE_ELEMENTS + 1), 1)


def signature_of(operator, parameters, arrays):
    """{type variable: element type} of these inputs; raises OpError."""
    found = {o.type: operator.types[o.type][0] for o in operator.outputs if len(operator.types[o.type]) == 1}
    for i, array in zip(operator.each_input(len(arrays)), arrays, strict=True):
        if array is None:
            continue
        name = dtypes.name_of(array)
        if name not in operator.types[i.type]:
            rule = f"must be one of {', '.join(operator.types[i.type])}"
            raise OpError(f"dtype of {i.name}", name, rule, operator.title)
        if name == "string" and array.dtype.hasobject and not all(isinstance(v, str) for v in array.flat):
            raise OpError(f"dtype of {i.name}", "object", "must be of strings only", operator.title)
        if found.setdefault(i.type, name) != name:
            raise OpError(f"dtype of {i.name}", name, f"must be {found[i.type]} as before", operator.title)
    for i in operator.inputs:  # of an absent one, whose type nobody asks for
        found.setdefault(i.type, operator.types[i.type][0])
    if not operator.is_function:
        with named(operator):
            operator.check_types(operator.kernel(Record(parameters[0])), found)
    return found


def cpus():
    """The CPUs that this process may use."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)


def spread(tile, tiles, threads):
    """tile(0), ..., tile(tiles - 1), on up to `threads` threads, this one among them.

    Whatever ends the call, such as an interrupt, tiles that have begun are waited for and no other one begins.
    """
    # With the function, so that a helper that comes too late holds on to nothing of the call. All methods of these
    # queues are atomic, without the GIL too, and no interrupt leaves them locked.
    left, active, ended, errors = deque((tile, index) for index in range(tiles)), deque(), SimpleQueue(), deque()

    def work():
        while left:
            try:
                call, index = left.popleft()
            except IndexError:  # another thread had it
                return
            call(index)

    def help_out():
        active.append(None)  # before it looks for a tile, and whoever waits looks here after it has removed them
        try:
            work()
        except BaseException as error:
            errors.append(error)
        finally:
            active.pop()
            ended.put(None)

    try:
        for _ in range(min(threads, tiles) - 1):
            ask_for_help(help_out)
        work()
    finally:
        settle(left, active, ended)
    if errors:
        raise errors[0]


def settle(left, active, ended):
    """Wait until nobody is active, with nothing left to begin; interrupts wait, too."""
    interrupt = None
    while left or active:
        try:
            left.clear()
            while active:
                ended.get()
        except BaseException as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt


# concurrent.futures doesn't fit: an interrupt in `submit` can leave its locks locked.
_requests: SimpleQueue = SimpleQueue()
_helpers = 0


def ask_for_help(function):
    """Have one of the threads that help callers, as many as there are CPUs, call a function that raises nothing."""
    global _helpers
    with POOL:
        while _helpers < len(cpus()):
            start_new_thread(_help, (_requests,))
            _helpers += 1
    _requests.put(function)


def _help(requests):
    while True:
        requests.get()()


def _forget_helpers():
    global _requests, _helpers
    _requests, _helpers = SimpleQueue(), 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_helpers)  # a child has none of its parent's threads
