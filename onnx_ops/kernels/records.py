"""The two records that compiled code gets, and how it sees them. All numbers have 64 bits.

    attributes   for each attribute of the operator:
                     count   of its values, 0 where there is none
                     values
    call         for each input and, at position OUTPUT, for the output:
                     data    address of the elements
                     size    number of elements
                     rank
                     shape   or, of an input whose values the plan wants, these, and `rank` is how many
                 geometry    what the plan finds, see operator.py

The C library's side of them is in native/table.h.
Compiled code consists of functions of up to three parameters, each an address or a number, that return 0 for success:

    resolve(attributes, parameters), infer(parameters, call), plan(parameters, call), kernel(call, tile, workspace)

The Python function in it gets views of what lies there: an entry's `arguments` say which.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np

from ..operator import MAX_ATTRIBUTES, MAX_INPUTS, MAX_RANK, MAX_VALUES

OUTPUT = MAX_INPUTS
ATTRIBUTES = np.dtype(([("count", np.int64), ("values", np.int64, (MAX_VALUES,))], (MAX_ATTRIBUTES,)))
TENSOR = np.dtype([("data", np.int64), ("size", np.int64), ("rank", np.int64), ("shape", np.int64, (MAX_RANK,))])


@cache
def call_dtype(geometry):
    """The dtype of one call of an operator with this geometry."""
    return np.dtype([("tensors", TENSOR, (MAX_INPUTS + 1,)), ("geometry", geometry)])


GEOMETRY = call_dtype(np.dtype([])).itemsize  # where in a call it begins


@dataclass(frozen=True)
class Place:
    """An address: that in a parameter, and so many bytes on."""

    parameter: int
    offset: int = 0


@dataclass(frozen=True)
class Held:
    """The number at a place."""

    place: Place


@dataclass(frozen=True)
class Number:
    """A parameter that is a number."""

    parameter: int


@dataclass(frozen=True)
class RecordView:
    dtype: np.dtype
    at: Place


@dataclass(frozen=True)
class ArrayView:
    """A flat array at a place, or at an address that is held there."""

    dtype: np.dtype
    at: Place | Held
    size: Held


@dataclass(frozen=True)
class Entry:
    """A Python function as it is compiled: what it gets, and how many parameters the compiled one has.

    An argument is one of the views above, or a tuple of them.
    """

    function: object
    arguments: tuple
    parameters: int

    @property
    def name(self):
        kinds = [a.dtype for a in self.arguments if isinstance(a, ArrayView) and isinstance(a.at, Held)]
        parts = [self.function.__name__, *(d.names[0] if d.names else d.name for d in kinds)]
        return "-".join([self.function.__module__.rpartition(".")[2], *parts])


def _tensor(k, field):
    return k * TENSOR.itemsize + TENSOR.fields[field][1]


def _vectors(parameter, count, size, values, step):
    return tuple(
        ArrayView(np.dtype(np.int64), Place(parameter, values + k * step), Held(Place(parameter, size + k * step)))
        for k in range(count)
    )


def resolve_entry(operator):
    item = ATTRIBUTES.base
    vectors = _vectors(0, len(operator.attributes), 0, item.fields["values"][1], item.itemsize)
    return Entry(operator.resolve, (vectors, RecordView(operator.parameters_dtype, Place(1))), 2)


def _shapes_entry(operator, function):
    shapes = _vectors(1, len(operator.inputs), _tensor(0, "rank"), _tensor(0, "shape"), TENSOR.itemsize)
    geometry = RecordView(operator.geometry_dtype, Place(1, GEOMETRY))
    return Entry(function, (RecordView(operator.parameters_dtype, Place(0)), shapes, geometry), 2)


def plan_entry(operator):
    return _shapes_entry(operator, operator.plan)


def infer_entry(operator):
    return _shapes_entry(operator, operator.infer)


def kernel_entry(operator, kernel, storage):
    """For tensors and an output of the dtypes in `storage`."""
    *tensors, out = (
        ArrayView(dtype, Held(Place(0, _tensor(k, "data"))), Held(Place(0, _tensor(k, "size"))))
        for k, dtype in zip((*operator.tensors, OUTPUT), storage, strict=True)
    )
    geometry = operator.geometry_dtype
    size = Held(Place(0, GEOMETRY + geometry.fields["workspace"][1]))
    workspace = ArrayView(np.dtype(np.uint8), Place(2), size)
    arguments = (*tensors, RecordView(geometry, Place(0, GEOMETRY)), Number(1), workspace, out)
    return Entry(kernel.function, arguments, 3)
