"""Compute shapes and outputs in Python for the C library, where there is no compiled code.

Inputs are views of ONNX Runtime's memory. Outputs are copied into it once.
"""

from __future__ import annotations

import ctypes as C
import functools
import gc
import itertools
import logging
import time
import weakref
from typing import TYPE_CHECKING

import numpy as np

from ..compiler.records import OUTPUT
from ..declaration import dtypes, plain
from ..declaration.attributes import AttributeValues
from ..declaration.errors import OpError, errors_of
from ..declaration.jit import numba_obstacle
from ..native import library, table
from ..native.table import Call

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..declaration.operator import Operator
    from ..model.types import Array, NumpyType
    from .types import InputTypes, Views


def plan(number: int, node: int | None, address: int) -> None:
    """Write the output shapes of operator `number` into the call at this address.

    node  the address of the node's `struct name`
    """
    operator, _ = library.entry(number)
    call = Call.from_address(address)
    shapes = [call.tensor(k)[2] for k in range(max(call[Call.COUNT], len(operator.inputs)))]
    with errors_of(operator, table.name_at(node)):
        stated = plain.shapes_of(operator, _values(operator, call[Call.ATTRIBUTES]), shapes)
    for k, shape in enumerate(stated or ()):
        # C refuses -1 and 2**62.
        call.put_shape(OUTPUT + k, [max(-1, min(size, 1 << 62)) for size in shape])


def run_body(number: int, overload: int, address: int) -> None:
    """Compute the outputs of operator `number`, and pass them to ONNX Runtime.

    address  of the run
    """
    operator, input_types, output_types = _operator_and_types(number, overload)
    run = table.Run.from_address(address)
    call = Call.from_address(run.call)
    views: Views = {}
    # Those beyond the declared ones are of the last, variadic input.
    input_types += input_types[-1:] * (call[Call.COUNT] - len(input_types))
    arrays = [
        _input_view(call, k, is_values, dtype, views)
        for k, (is_values, dtype) in enumerate(input_types)
    ]
    outputs: Sequence[Array] = ()
    try:
        outputs = plain.compute(
            operator, _values(operator, call[Call.ATTRIBUTES]), arrays, output_types
        )
        _hand_over(run, address, call, outputs)
    except BaseException as error:
        _forget_frames(error)
        raise
    finally:
        del arrays, outputs
        _check_unused(operator, views)


@functools.cache
def _operator_and_types(
    number: int, overload: int
) -> tuple[Operator, InputTypes, tuple[NumpyType, ...]]:
    """Return an operator, and the types of inputs and of outputs of one of its overloads."""
    operator, row = library.entry(number)
    signature = library.signature(operator, row.overloads[overload])
    if any(operator.storage(kernel, signature) for kernel in operator.kernels):
        ranks = " and ".join(
            f"rank {' or '.join(map(str, i.ranks))} of {i.name}" for i in operator.inputs
        )
        reason = numba_obstacle() or f"its kernel is compiled only for {ranks}"
        log.warning(
            "%s: its body in NumPy runs, since %s", operator.title, reason[0].lower() + reason[1:]
        )
    input_types = tuple((i.values, dtypes.TABLE[signature[i.type]].numpy) for i in operator.inputs)
    return operator, input_types, operator.numpy_types(signature)


log = logging.getLogger("onnx_ops")


def _memory(address: int, size: int) -> C.Array[C.c_char]:
    """Return `size` bytes at an address, as an object that every view of them keeps alive."""
    return _byte_array(size).from_address(address)


@functools.lru_cache(maxsize=1024)
def _byte_array(size: int) -> type[C.Array[C.c_char]]:
    return C.c_char * size


def _values(operator: Operator, address: int) -> AttributeValues:
    """Return the AttributeValues in the block at this address, which begins with its size."""
    size = C.c_int64.from_address(address).value
    block = C.string_at(address, size)
    return (
        _cached_values(operator, block)
        if size < LARGE
        else AttributeValues.in_block(operator.attributes, block)
    )


@functools.lru_cache(maxsize=1024)
def _cached_values(operator: Operator, block: bytes) -> AttributeValues:
    return AttributeValues.in_block(operator.attributes, block)


# Bytes: attributes of this size, such as tensors, are read for each call rather than cached.
LARGE = 4096


def _input_view(
    call: Call, k: int, is_values: bool, dtype: NumpyType, views: Views
) -> Array | None:
    """Return input k as a read-only view of ONNX Runtime's memory.

    A weak reference to that memory is put into views[k].
    """
    address, size, shape = call.tensor(k)
    if shape is None:
        return None
    if dtype.hasobject:
        return strings_at(address, size).reshape(shape)
    if is_values:
        shape = (size,)
    if not size:
        return np.empty(shape, dtype)
    memory = _memory(address, size * dtype.itemsize)
    views[k] = weakref.ref(memory)
    return np.ndarray(shape, dtype, memoryview(memory).toreadonly())


def _hand_over(run: C.Structure, address: int, call: Call, outputs: Sequence[Array]) -> None:
    """Have ONNX Runtime allocate the outputs, and write them."""
    for k, array in enumerate(outputs):
        call.put_shape(OUTPUT + k, array.shape)
    if library.load().onnx_ops_outputs(address):
        for k, array in enumerate(outputs):
            if array.dtype.hasobject:
                texts = [text.encode(errors="surrogateescape") for text in array.flat]
                ends = table.array(C.c_size_t, [*itertools.accumulate(map(len, texts))])
                library.load().onnx_ops_fill_strings(address, k, b"".join(texts), ends, array.size)
            elif array.size:
                memory = _memory(call.tensor(OUTPUT + k)[0], array.nbytes)
                np.ndarray(array.shape, array.dtype, memoryview(memory))[...] = array
    if run.status:  # C reports run.status in place of this error
        raise OpError(None, None, "ONNX Runtime takes no output", "onnx_ops")


def _forget_frames(error: BaseException | None) -> None:
    """Free all frames that an exception has gone through, with their variables.

    These may be views of inputs.

    Clearing the frames is not enough: the frame of a nested function keeps the variables of the
    function around it.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def _check_unused(operator: Operator, views: Views) -> None:
    """Raise OpError if anything still refers to an input's memory.

    ONNX Runtime frees it after the call.
    """
    for attempt in range(ATTEMPTS):
        kept = [k for k, view in views.items() if view() is not None]
        if not kept:
            return
        # A reference cycle, such as a function that calls itself, may hold it. While another thread
        # collects garbage, this one can't.
        time.sleep(0.001 * 2**attempt if attempt > 2 else 0)
        gc.collect(min(attempt, 2))
    name = operator.inputs[min(kept[0], len(operator.inputs) - 1)].name
    rule = "is a view of memory that ends with the call, and was kept; keep a copy"
    raise OpError(name, "kept", rule, operator.title)


ATTEMPTS = 8  # to collect garbage that holds a view, before it is an error


def strings_at(address: int, count: int) -> Array:
    """Read the strings of a tensor at an address.

    native/python.c lays them out: count + 1 offsets, then the bytes.
    """
    start = 8 * (count + 1)
    offsets = np.frombuffer(memoryview(_memory(address, start)), np.uintp).tolist()
    content = C.string_at(address + start, offsets[count])
    strings = np.empty(count, object)
    strings[:] = [
        content[a:b].decode(errors="surrogateescape") for a, b in itertools.pairwise(offsets)
    ]
    return strings
