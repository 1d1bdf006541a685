"""One call of one operator on memory: plan, allocate the output, run the tiles.

This is the function adapter's engine, and whatever else has arrays rather than ONNX Runtime's own kernel context.
It runs the very machine code that sessions run, which is what makes their results equal bit for bit.
"""

import functools
import os
from _thread import start_new_thread
from collections import deque
from queue import SimpleQueue

import numpy as np

from .. import dtypes
from ..errors import OpError, named
from ..locks import POOL
from ..operator import MAX_RANK, Record


def seen(input, array):
    """What a plan sees of one input, as an int64 array; raises OpError."""
    if input.values and array.ndim != 1:
        raise OpError(f"shape of {input.name}", list(array.shape), "must have rank 1")
    values = array.tolist() if input.values else array.shape
    if len(values) > MAX_RANK:
        what = "length" if input.values else "rank"
        raise OpError(f"{what} of {input.name}", len(values), f"must be at most {MAX_RANK}")
    return np.array(values, np.int64)


def shapes(operator, arrays):
    """What the operator's plan sees of its inputs; raises OpError."""
    return [seen(i, array) for i, array in zip(operator.inputs, arrays, strict=True)]


def check(operator, parameters, arrays):
    """Raise OpError if the plan refuses these inputs."""
    with named(operator):
        geometry = np.zeros(1, operator.geometry)
        operator.plan(Record(parameters[0]), shapes(operator, arrays), Record(geometry[0]))


def explain(operator, parameters, arrays):
    """Raise the OpError that tells why the compiled plan refuses these inputs."""
    check(operator, parameters, arrays)
    raise AssertionError(f"{operator.title}: the compiled plan refuses what the plan in Python accepts")


def compiled(operator, parameters, signature):
    """The compiled plan and tile for these parameters and element types; no tile for types that kernels can't see."""
    from ..kernels import entry

    storage = operator.storage(Record(parameters[0]), signature)
    plan = entry.plan(operator.plan, tuple(range(len(operator.inputs))), operator.parameters, operator.geometry)
    kernel = operator.kernel(Record(parameters[0]))
    return plan, storage and entry.tile(kernel, storage, operator.tensors, operator.geometry)


def output_rank(operator, arrays):
    """The rank that the output has, or would have; None if that can't be told."""
    values = [a.tolist() if i.values and a.ndim == 1 else None for i, a in zip(operator.inputs, arrays, strict=True)]
    shape = operator.infer(None, [list(a.shape) for a in arrays], values)
    return None if shape is None else len(shape)


@functools.cache
def have_numba():
    try:
        import numba  # noqa: F401
    except ImportError:
        return False
    return True


def run_reference(operator, parameters, arrays):
    """`run` in plain NumPy: slow."""
    dtype = dtypes.TABLE[signature_of(operator, parameters, arrays)[operator.output]].numpy
    check(operator, parameters, arrays)
    with np.errstate(over="ignore", invalid="ignore"):
        return operator.reference(Record(parameters[0]), *arrays).astype(dtype, order="C")


def run(operator, parameters, arrays, threads=None, empty=np.empty):
    """The operator's output for C-contiguous arrays of declared element types.

    `empty` allocates the output and the kernel's workspace.
    """
    if not have_numba():
        return run_reference(operator, parameters, arrays)
    from ..kernels.call import OUTPUT, call_dtype, workspace_bytes

    signature = signature_of(operator, parameters, arrays)
    with named(operator):
        plan, tile = compiled(operator, parameters, signature)
        if tile is None:
            return run_reference(operator, parameters, arrays)
        call = np.zeros(1, call_dtype(operator.geometry))
        for k, values in enumerate(shapes(operator, arrays)):
            call["rank"][0, k], call["shape"][0, k, : len(values)] = len(values), values
    at = call.ctypes.data
    if plan.ctypes(parameters.ctypes.data, at):
        explain(operator, parameters, arrays)
    geometry = call["geometry"][0]
    shape = geometry["shape"][: geometry["rank"]].tolist()
    out = empty(shape, dtypes.TABLE[signature[operator.output]].numpy)
    workspace = empty(int(workspace_bytes(geometry)), np.dtype(np.uint8))
    for k, array in (*((k, arrays[k]) for k in operator.tensors), (OUTPUT, out)):
        call["data"][0, k], call["size"][0, k] = array.ctypes.data, array.size
    call["workspace"] = workspace.ctypes.data

    def run_tile(index, memory=(call, arrays, workspace, out)):  # which must live for as long as a tile may run
        tile.ctypes(at, index)

    spread(run_tile, int(geometry["tiles"]), threads or len(cpus()))
    return out


def signature_of(operator, parameters, arrays):
    """{type variable: element type} of these inputs; raises OpError."""
    found = {}
    for i, array in zip(operator.inputs, arrays, strict=True):
        name = dtypes.name_of(array)
        if name not in operator.types[i.type]:
            rule = f"must be one of {', '.join(operator.types[i.type])}"
            raise OpError(f"dtype of {i.name}", name, rule, operator.title)
        if name == "string" and array.dtype.hasobject and not all(isinstance(v, str) for v in array.flat):
            raise OpError(f"dtype of {i.name}", "object", "must be of strings only", operator.title)
        if found.setdefault(i.type, name) != name:
            raise OpError(f"dtype of {i.name}", name, f"must be {found[i.type]} as before", operator.title)
    with named(operator):
        operator.allows(Record(parameters[0]), found)
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
