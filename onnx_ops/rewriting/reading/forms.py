"""Forms: what an element of a tensor is, as one small typed expression.

A position counts along variables. These are free (the axes of what is asked), summed (bound by a
Sum), image axes (bound by a Sample) or picked (bound to a form: an index that data state). An
Element is 0 outside of its root, so padding needs no form of its own. Forms are made by `Forms`
(constructors.py), each once: equal forms are one object.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from onnx import TensorProto

from ...declaration.dtypes import TABLE
from .affine import Array, Dimension, Index, Position, Variable, number


class Exhausted(Exception):  # noqa: N818  it is no error
    """Reading takes too long."""


@dataclass
class Budget:
    """What reading may still take.

    steps  elements that are read
    forms  forms that are made or looked at: a step may look at many
    """

    steps: int
    forms: int

    def step(self, cost: int = 1) -> None:
        """Count a step, or what costs as much as some. Raises Exhausted."""
        self.steps -= cost
        if self.steps < 0:
            raise Exhausted("it takes too long to read")

    def form(self) -> None:
        """Count a form. Raises Exhausted."""
        self.forms -= 1
        if self.forms < 0:
            raise Exhausted("it takes too long to read")


class Condition(NamedTuple):
    """at >= 0, or at == 0."""

    relation: Literal[">=", "=="]
    position: Position


@dataclass(frozen=True, eq=False)
class Number:
    value: float


@dataclass(frozen=True, eq=False)
class Whole:
    """A whole number, of any data type."""

    position: Position


@dataclass(frozen=True, eq=False)
class Element:
    """The element of a root at an index; 0 outside of it.

    A root is a value of the graph, or a table made here.
    """

    root: str
    index: Index


@dataclass(frozen=True, eq=False)
class Op:
    """An elementwise operation, one of FORMULAS."""

    op: str
    operands: "tuple[Form, ...]"


@dataclass(frozen=True, eq=False)
class Sum:
    """The sum of the body over all numbers of variables."""

    over: tuple[Variable, ...]
    body: "Form"


@dataclass(frozen=True, eq=False)
class Guard:
    """The body where all conditions hold, else 0."""

    conditions: frozenset[Condition]
    body: "Form"


@dataclass(frozen=True, eq=False)
class Sample:
    """What GridSample makes of an image at a place.

    over      the variables of the image's axes, rows first
    body      the image's element at these
    coordinates  in [-1, 1], rows first
    settings  mode, padding_mode, align_corners
    """

    over: tuple[Variable, ...]
    body: "Form"
    coordinates: "tuple[Form, ...]"
    settings: tuple[str, ...]


Form = Number | Whole | Element | Op | Sum | Guard | Sample


def _where(condition: Array, a: Array, b: Array) -> Array:
    return np.where(condition != 0, a, b)


def _rounded(a: Array, dtype: str) -> Array:
    return np.asarray(a, np.float64).astype(TABLE[dtype].numpy).astype(np.float64)


FORMULAS: dict[str, Callable[..., Array]] = {
    "Abs": np.abs,
    "Add": np.add,
    "And": np.multiply,
    "Bool": lambda a: (a != 0) * 1.0,
    "CastBFloat16": lambda a: _rounded(a, "bfloat16"),
    "CastFloat16": lambda a: _rounded(a, "float16"),
    "Ceil": np.ceil,
    "Clip": lambda a, low, high: np.minimum(np.maximum(a, low), high),
    "Cos": np.cos,
    "Div": np.divide,
    "Equal": np.equal,
    "Exp": np.exp,
    "Floor": np.floor,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Max": np.maximum,
    "Min": np.minimum,
    "Mul": np.multiply,
    "Neg": np.negative,
    "Not": lambda a: 1 - a,
    "Or": np.maximum,
    "Pow": np.power,
    "Reciprocal": np.reciprocal,
    "Relu": lambda a: np.maximum(a, 0),
    "Round": np.rint,
    "Sign": np.sign,
    "Sin": np.sin,
    "Sqrt": np.sqrt,
    "Sub": np.subtract,
    "Trunc": np.trunc,
    "Where": _where,
    "Xor": np.not_equal,
}
CASTS: dict[int, str] = {TensorProto.FLOAT16: "CastFloat16", TensorProto.BFLOAT16: "CastBFloat16"}
ROUNDINGS = "Floor", "Round", "Ceil", "Trunc"


def value_of(form: Form) -> float | None:
    """Return the number that a form is; None if it is none."""
    match form:
        case Number(value):
            return value
        case Whole(position) if not position.terms and isinstance(position.start, int):
            return float(position.start)
    return None


def is_number(form: Form, value: float) -> bool:
    """Return whether a form is this number."""
    return value_of(form) == value


def inside(index: Sequence[Position], dimensions: Sequence[Dimension]) -> Iterator[Condition]:
    """Yield the conditions that an index lies inside of a shape."""
    for position, size in zip(index, dimensions, strict=True):
        yield Condition(">=", position)
        yield Condition(">=", number(size - 1) - position)


def children(form: Form) -> tuple[Form, ...]:
    """Return the forms that a form consists of, without those that are picked."""
    match form:
        case Op(_, operands):
            return operands
        case Sum(_, body) | Guard(_, body):
            return (body,)
        case Sample(_, body, coordinates, _):
            return body, *coordinates
    return ()


def positions_in(form: Form) -> Iterator[Position]:
    """Yield the positions of a form itself."""
    match form:
        case Whole(position):
            yield position
        case Element(_, index):
            yield from index
        case Guard(conditions, _):
            yield from (condition.position for condition in conditions)
