"""What Python computes for the C library: shapes by a function's rule, outputs by a function's body or, of tensors of
strings, by an operator's reference.

Inputs are views of ONNX Runtime's memory, outputs are copied into it once.
"""

import ctypes as C
import functools
import gc
import itertools
import weakref

import numpy as np

from .. import dtypes
from ..declaration import ABSENT, MAX_RANK, Record
from ..errors import OpError
from ..kernels import records
from ..own.function import PARAMETERS as HEADER
from . import library, table


def _position(record, field):
    """That of a field in a record, as a vector of 64-bit numbers."""
    return record.fields[field][1] // 8


DATA, SIZE, RANK, SHAPE = (_position(records.TENSOR, field) for field in ("data", "size", "rank", "shape"))
WORDS = records.TENSOR.itemsize // 8
COUNT, PARAMETERS = (_position(records.CALL, field) for field in ("input_count", "parameters"))
SIZE_OF_PARAMETERS = _position(HEADER, "kernel")  # functions have no other use for that place


def plan(number, address):
    """Find the shapes of the outputs of function `number` for the call at an address."""
    operator, call = library.declared(library.row(number)), _numbers(address)
    inputs = [_tensor(call, k) for k in range(call[COUNT])]
    seen = operator.padded([shape for _, _, shape in inputs])
    for k, shape in enumerate(operator.shapes(seen, _attributes(operator, call[PARAMETERS]))):
        _put_shape(call, k, shape)


def run(number, overload, run):
    """Hand over the outputs of operator `number`."""
    operator, kinds, of_outputs = _described(number, overload)
    call = _numbers(run.contents.call)
    count, owners, arrays = call[COUNT], [], []
    for k in range(count):
        i = operator.inputs[min(k, len(operator.inputs) - 1)]
        arrays.append(_input(_tensor(call, k), i.values, kinds[i.type], owners))
    if operator.is_function:
        arrays = operator.padded(arrays)
        outputs = operator.computed(arrays, _attributes(operator, call[PARAMETERS]), of_outputs)
    else:
        parameters = borrowed(call[PARAMETERS], 1, operator.parameters_dtype)
        outputs = [operator.reference(Record(parameters[0]), *arrays)]
    for k, array in enumerate(outputs):
        _put_shape(call, k, array.shape)
        _hand_over(run, k, array)
    arrays = array = outputs = None
    _check_unused(operator, owners)


@functools.cache
def _described(number, overload):
    """An operator, and for one of its overloads NumPy's types: {type variable: that}, and those of the outputs."""
    row = library.row(number)
    operator = library.declared(row)
    signature = library.signature(operator, row.overloads[overload])
    kinds = {variable: dtypes.TABLE[name].numpy for variable, name in signature.items()}
    return operator, kinds, operator.is_function and operator.kinds(signature)


CALL = table.NUMBER * (records.CALL.itemsize // 8)


def _numbers(address):
    return CALL.from_address(address)


def _tensor(call, k):
    """(address, number of elements, shape or, of an absent input, None) of a tensor of a call."""
    at = WORDS * k
    rank = call[at + RANK]
    shape = None if rank == ABSENT else tuple(call[at + SHAPE : at + SHAPE + rank])
    return call[at + DATA], call[at + SIZE], shape


def _put_shape(call, k, shape):
    """Note the shape of output k."""
    at = WORDS * (records.OUTPUT + k)
    call[at + RANK] = len(shape)
    for a, size in enumerate(shape[:MAX_RANK], at + SHAPE):
        call[a] = size


def _attributes(function, address):
    """{attribute: its value} of the parameters at an address."""
    size = _numbers(address)[SIZE_OF_PARAMETERS]
    return dict(_known_attributes(function, C.string_at(address, size)))


@functools.lru_cache(maxsize=1024)
def _known_attributes(function, content):
    return function.attributes_in(content)


class Owner:
    """What views of an input's memory belong to, which tells whether there still are any."""

    __slots__ = ("__array_interface__", "__weakref__")

    def __init__(self, address, shape, kind):
        self.__array_interface__ = {"version": 3, "data": (address, True), "shape": shape, "typestr": kind}


def _input(tensor, is_values, dtype, owners):
    """An input as an array, which can't be written to, of ONNX Runtime's memory; `owners` gets whose that is."""
    address, size, shape = tensor
    if shape is None:
        owners.append(None)
        return None
    if dtype.hasobject:
        owners.append(None)
        return strings_at(address, size).reshape(shape)
    if is_values:
        shape = (size,)
    if not size:
        owners.append(None)
        return np.empty(shape, dtype)
    is_known = dtype.kind != "V"  # NumPy has a letter for it
    owner = Owner(address, shape, dtype.str if is_known else f"<u{dtype.itemsize}")
    owners.append(weakref.ref(owner))
    return np.asarray(owner) if is_known else np.asarray(owner).view(dtype)


def _hand_over(run, k, array):
    """Write an output, whose shape is noted."""
    address = library.load().onnx_ops_output(run, k)
    if run.contents.status:
        pass  # C tells why there is no output
    elif array.dtype.hasobject:
        content = table.array(C.c_char_p, [text.encode(errors="surrogateescape") for text in array.flat])
        library.load().onnx_ops_fill_strings(run, k, content, array.size)
    elif array.size:
        array = np.ascontiguousarray(array)
        C.memmove(address, array.__array_interface__["data"][0], array.nbytes)
    if run.contents.status:
        raise OpError(None, None, "ONNX Runtime takes no output", "onnx_ops")


def _check_unused(operator, owners):
    """Raise OpError if anybody still has a view of an input, whose memory ends with the call."""
    if any(owner and owner() is not None for owner in owners):
        gc.collect()  # there may be a cycle, such as an exception that was caught
        for i, owner in zip(operator.each_input(len(owners)), owners, strict=True):
            if owner and owner() is not None:
                rule = "is a view of memory that ends with the call, and was kept; keep a copy"
                raise OpError(i.name, "kept", rule, operator.title)


def borrowed(address, count, dtype):
    """A flat array over memory that outlives it."""
    if not count:
        return np.empty(0, dtype)
    return np.frombuffer((C.c_char * (count * dtype.itemsize)).from_address(address), dtype)


def strings_at(address, count):
    """The strings of a tensor as native/python.c lays them out: count + 1 offsets, then the bytes."""
    offsets = borrowed(address, count + 1, np.dtype(np.uintp)).tolist()
    content, found = C.string_at(address + 8 * (count + 1), offsets[count]), np.empty(count, object)
    found[:] = [content[a:b].decode(errors="surrogateescape") for a, b in itertools.pairwise(offsets)]
    return found
