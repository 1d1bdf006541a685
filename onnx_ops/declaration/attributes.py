"""Attributes: their kinds, the values that they accept, and the forms of these values.

Python and compiled code get different forms.
"""

from __future__ import annotations

import functools
import struct
from collections import namedtuple
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING

import numpy as np

from . import dtypes
from .errors import OpError, quoted
from .limits import INT64

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any, TypeAlias

    # An array of numbers, of a text's bytes, or a tensor; None: no value.
    Vector: TypeAlias = np.ndarray | None

MAX_VALUES = 32  # values of an attribute that is a list, unless it is declared otherwise
# Of an attribute in a block, see `AttributeValues`.
VECTOR = np.dtype([("count", np.int64), ("offset", np.int64)])


@dataclass(frozen=True)
class Kind:
    """A kind of attribute values.

    text     its name in error messages
    onnx     its name among the types of onnx.AttributeProto
    is_list  whether a value is a list
    dtype    NumPy's type of the vector for a value
    """

    text: str
    onnx: str
    is_list: bool = False
    dtype: type[np.generic] = np.int64


KINDS = {
    "int": Kind("an integer", "INT"),
    "ints": Kind("a list of integers", "INTS", True),
    "string": Kind("a string", "STRING"),
    "float": Kind("a number", "FLOAT", dtype=np.float64),
    "floats": Kind("a list of numbers", "FLOATS", True, np.float64),
    "text": Kind("a string", "STRING", dtype=np.uint8),
    "tensor": Kind("a tensor", "TENSOR"),
}


@dataclass(frozen=True)
class Attribute:
    """An attribute of an operator.

    Parameters
    ----------
    name : str
        The name, as in a model's node.
    kind : {"int", "ints", "string", "float", "floats", "text", "tensor"}
        A "string" is one of the choices, a "text" is any string.
    default : object, optional
        The value of a node without the attribute. None stands for "depends on
        the inputs".
    required : bool, default False
        If true, a node must have the attribute, and there is no default.
    bounds : tuple of int, optional
        The least and the greatest value of integers. Default: those of int64.
    length_bounds : tuple of int, default (1, 32)
        The least and the greatest length of a list.
    choices : tuple of str, default ()
        The values that a "string" may have.
    other_names : tuple of str, default ()
        Aliases. If a node has several of the names, the first one counts.
    repeats : int, default 0
        Length of the list that a single integer stands for, repeated. 0: a
        single integer is refused.

    Raises
    ------
    OpError
        There is no such kind.
    """

    name: str
    kind: str
    default: object = None
    required: bool = False
    bounds: tuple[int, int] = (INT64.min, INT64.max)
    length_bounds: tuple[int, int] = (1, MAX_VALUES)
    choices: tuple[str, ...] = ()
    other_names: tuple[str, ...] = ()
    repeats: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise OpError(
                f"kind of {self.name}", repr(self.kind), f"must be one of {', '.join(KINDS)}"
            )

    def vector(self, value: Any) -> np.ndarray:
        """Return a value for compiled code: a vector of int64, of float64 or, for a text, of bytes.

        A string becomes its position among the choices. A tensor stays a tensor.
        """
        try:
            numbers = self._numbers(value)
        except (TypeError, ValueError):
            raise OpError(self.name, repr(value), self.kind_rule) from None
        if self.kind in ("text", "tensor"):
            return numbers
        least, most = self.limits
        in_bounds = self.kind.startswith("float") or all(least <= n <= most for n in numbers)
        if not (in_bounds and self.length_bounds[0] <= len(numbers) <= self.length_bounds[1]):
            refused = (
                quoted(_text(value))
                if self.kind == "string"
                else numbers[0]
                if self.kind == "int"
                else list(numbers)
            )
            raise OpError(self.name, refused, self.rule)
        return np.array(numbers, KINDS[self.kind].dtype)

    def _numbers(self, value: Any) -> Any:
        """Return a value's numbers, or an array for a text or a tensor.

        Raises TypeError or ValueError for others.
        """
        if self.kind in ("string", "text"):
            text = _text(value)
            if self.kind == "text":
                return np.frombuffer(text.encode(errors="surrogateescape"), np.uint8)
            return (self.choices.index(text) if text in self.choices else -1,)
        if isinstance(value, bytes):
            raise TypeError  # else its elements would be taken for integers
        if self.kind == "tensor":
            if hasattr(value, "raw_data"):  # an onnx.TensorProto
                from onnx import numpy_helper

                value = numpy_helper.to_array(value)
            array = dtypes.contiguous(value).view()
            array.flags.writeable = False  # as in sessions: it may be a default, or the caller's
            if dtypes.name_of(array) not in dtypes.TABLE or dtypes.name_of(array) == "string":
                raise TypeError
            return array
        if self.repeats and hasattr(value, "__index__"):
            value = (value,) * self.repeats
        values = tuple(value) if self.is_list else (value,)
        if self.kind.startswith("int"):
            return tuple(map(index, values))
        if any(isinstance(v, str | bytes) for v in values):
            raise TypeError
        return np.array(values, np.float32).tolist()  # rounded as in a model

    @property
    def is_list(self) -> bool:
        return KINDS[self.kind].is_list

    def value(self, vector: Vector) -> Any:
        """Return a value for Python functions from its vector; None for None."""
        if vector is None or self.kind == "tensor":
            return vector
        if self.kind == "text":
            return vector.tobytes().decode(errors="surrogateescape")
        if self.is_list:
            return tuple(vector.tolist())
        number = vector[0].item()
        if self.kind == "string":
            return self.choices[number]
        return bool(number) if self.bounds == (0, 1) else number

    def count_of(self, vector: Vector) -> int:
        """Return the number of values that a block states for a vector, or for None."""
        return (0 if self.is_list else -1) if vector is None else vector.size

    def content(self, vector: np.ndarray) -> np.ndarray:
        """Return the int64 numbers of a vector in a block.

        A tensor's elements follow its type, rank and shape.
        """
        header = []
        if self.kind == "tensor":
            header = [dtypes.TABLE[dtypes.name_of(vector)].onnx, vector.ndim, *vector.shape]
        content = np.array(header, np.int64).tobytes() + vector.tobytes()
        return np.frombuffer(content + bytes(-len(content) % 8), np.int64)

    def vector_at(self, block: bytes, offset: int, count: int) -> Vector:
        """Return the vector that a block states by this offset and count."""
        if count < 0 or (self.is_list and count == 0):
            return None
        if self.kind == "tensor":
            type_number, rank = struct.unpack_from("2q", block, offset)
            shape = struct.unpack_from(f"{rank}q", block, offset + 16)
            offset += 16 + 8 * rank
            dtype = dtypes.TABLE[dtypes.NAMES[type_number]].numpy
            return np.frombuffer(block, dtype, count, offset).reshape(shape)
        return np.frombuffer(block, KINDS[self.kind].dtype, count, offset)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the attribute's name and its aliases."""
        return (self.name, *self.other_names)

    @property
    def kind_rule(self) -> str:
        return f"must be {KINDS[self.kind].text}" + (" or an integer" if self.repeats else "")

    @property
    def limits(self) -> tuple[int, int]:
        """Return the bounds of the integers that compiled code gets."""
        return (0, len(self.choices) - 1) if self.kind == "string" else self.bounds

    @property
    def rule(self) -> str:
        """Return the rule for values of the right kind, for error messages."""
        if self.kind == "string":
            return f"must be one of {', '.join(self.choices)}"
        least, most = map(spelled_out, self.bounds)
        if self.is_list:
            count = " to ".join(map(str, dict.fromkeys(self.length_bounds)))
            return f"must be {count} numbers" + (
                f" in [{least}, {most}]" if self.kind == "ints" else ""
            )
        rules = {0: f"must be {least}", 1: f"must be {least} or {most}"}
        return rules.get(self.bounds[1] - self.bounds[0], f"must lie in [{least}, {most}]")


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else str.__str__(value)


def spelled_out(number: int) -> str:
    """Return a number's text, with 2**n and 2**n - 1 as powers from 16 bits on."""
    for power in (number, number + 1):
        if abs(power) >= 2**16 and abs(power) & (abs(power) - 1) == 0:
            return f"{'-' * (power < 0)}2**{abs(power).bit_length() - 1}{' - 1' * (power - number)}"
    return str(number)


class AttributeValues:
    """The values of a node's attributes.

    vectors  the result of `Attribute.vector` for each attribute, or None if it has no value
    """

    def __init__(self, attributes: Sequence[Attribute], vectors: Sequence[Vector]) -> None:
        self.attributes, self.vectors = attributes, vectors

    @property
    def pairs(self) -> Iterator[tuple[Attribute, Vector]]:
        return zip(self.attributes, self.vectors, strict=True)

    @functools.cached_property
    def by_name(self) -> dict[str, Any]:
        """Return {name: value} for Python functions."""
        return {a.name: a.value(v) for a, v in self.pairs}

    @functools.cached_property
    def compiled(self) -> Any:
        """Return the values for compiled code, a named tuple of numbers and, for lists, vectors.

        A string is its position among the choices. The vector of a list without a value is empty.
        """
        numbers = [
            (np.empty(0, np.int64) if v is None else v)
            if a.is_list
            else 0
            if v is None or not v.size
            else v[0].item()
            for a, v in self.pairs
        ]
        return named_tuple(tuple(a.name for a in self.attributes))(*numbers)

    @functools.cached_property
    def block(self) -> np.ndarray:
        """Return the block of the values, an int64 array that compiled code reads. The C library
        writes the same.

        It holds its number of bytes, a VECTOR for each attribute, and the values. A VECTOR holds
        the count of values and the offset in bytes of the first one from the block's beginning.
        Without a value, the count is -1, for a list 0.
        """
        table = np.zeros(len(self.vectors), VECTOR)
        contents = []
        end = 8 + table.nbytes
        for k, (attribute, vector) in enumerate(self.pairs):
            table[k] = attribute.count_of(vector), end
            if vector is not None:
                contents.append(attribute.content(vector))
                end += contents[-1].nbytes
        block = np.concatenate([[end], table.view(np.int64), *contents])
        # Threads that compute it at once all get the first one.
        return vars(self).setdefault("_block", block)

    @functools.cached_property
    def address(self) -> int:
        """Return the address of the block."""
        return self.block.ctypes.data

    @classmethod
    def in_block(cls, attributes: Sequence[Attribute], block: bytes) -> AttributeValues:
        """Return the values in the bytes of a block."""
        vectors = []
        for k, attribute in enumerate(attributes):
            count, offset = struct.unpack_from("2q", block, 8 + k * VECTOR.itemsize)
            vectors.append(attribute.vector_at(block, offset, count))
        return cls(attributes, vectors)


def attribute_values(attributes: Sequence[Attribute], values: Sequence[Any]) -> AttributeValues:
    """Return the AttributeValues for Python values; None stands for no value. Raises OpError."""
    vectors = [None if v is None else a.vector(v) for a, v in zip(attributes, values, strict=True)]
    return AttributeValues(attributes, vectors)


@functools.cache
def named_tuple(names: tuple[str, ...]) -> Any:
    """Return the named tuple type of the values of attributes with these names."""
    return namedtuple("Attributes", names, rename=True)  # a name may begin with an underscore
