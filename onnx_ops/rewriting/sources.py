"""How a program reads a value: by an index of numbers and of axes of the output, after a Reshape or
Expand.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .reading.affine import (
    Array,
    Dimension,
    Index,
    Position,
    Variable,
    along,
    is_within,
    variables_of,
)
from .reading.coordinates import AXES
from .reading.digits import digits_along, joined, single
from .sizes import quotient

LARGEST = 2**20  # pixels along an axis of a constant


@dataclass(frozen=True)
class Part:
    """A part of an axis, whose elements are repeated: each of them, and then all of them."""

    around: int
    size: Dimension
    each: int

    @property
    def is_repeated(self) -> bool:
        return (self.around, self.each) != (1, 1)


@dataclass(frozen=True)
class Reading:
    """How elements are read.

    parts  of the value's axes, which are repeated first
    sizes  of the axes that these are then reshaped to
    index  a number or one of AXES for each of them
    """

    parts: tuple[Part, ...]
    sizes: tuple[Dimension, ...]
    index: tuple[int | str, ...]


def reading_of(index: Index, dimensions: Sequence[Dimension]) -> Reading:
    """Return how elements at an index over AXES are read. Raises ValueError if a program can't.

    An index that runs along a digit of one of AXES, as that of an image among those that are
    stacked along it, runs along all of it after the repeats.
    """
    if 0 in dimensions:
        raise ValueError("no elements: any digits could be those of its axes")
    if not {variable.name for variable in variables_of(index)} <= {*AXES}:
        raise ValueError("an index along other axes")
    digits = [
        digit
        for position, size in zip(index, dimensions, strict=True)
        for digit in _digits_of(position, size)
    ]
    try:
        parts = tuple(Part(1, size, 1) for size in dimensions)
        return Reading(parts, *_axes_apart(digits))
    except ValueError:
        parts = tuple(_repeats(position, size) for position, size in digits)
    if len({variable for position, _ in digits for variable in variables_of([position])}) < sum(
        len(position.terms) for position, _ in digits
    ):
        raise ValueError("several digits of one axis")
    whole_axes = [
        (
            along(position.terms[0].variable) if axis_part.is_repeated else position,
            axis_part.around * axis_part.size * axis_part.each,
        )
        for (position, _), axis_part in zip(digits, parts, strict=True)
    ]
    return Reading(parts, *_axes_apart(whole_axes))


def _digits_of(position: Position, size: Dimension) -> list[tuple[Position, Dimension]]:
    """Return the digits that an axis of this size consists of, with their sizes: at least
    itself.
    """
    try:
        digits = digits_along(position) if position.terms and position.start == 0 else []
    except ValueError:
        digits = []
    if digits and math.prod(digit.size for digit in digits) == size:
        return [(single(digit), digit.size) for digit in digits]
    return [(position, size)]


def _axes_apart(
    digits: Sequence[tuple[Position, Dimension]],
) -> tuple[tuple[Dimension, ...], tuple[int | str, ...]]:
    """Return (sizes, index) of axes after those that run along several of AXES are taken apart, and
    joined.

    Raises ValueError if some run in another way than along all of one of AXES.
    """
    sizes: list[Dimension] = []
    index: list[int | str] = []
    axis_digits: list[
        tuple[Position, Dimension]
    ] = []  # what may be one axis together with what follows
    for digit in digits:
        axis_digits.append(digit)
        axis = joined(axis_digits)
        length = math.prod(size for _, size in axis_digits)
        names = [term.variable.name for term in axis.terms]
        if not names and isinstance(axis.start, int) and is_within(axis, length):
            index.append(axis.start)
        elif names and axis == along(Variable(names[0], length)):
            index.append(names[0])
        else:
            continue
        sizes.append(length)
        axis_digits = []
    if axis_digits:
        raise ValueError("a part of an axis")
    return tuple(sizes), tuple(index)


def _repeats(position: Position, size: Dimension) -> Part:
    """Return the part of an axis that a digit is, so that it runs along all of its variable."""
    if (
        len(position.terms) != 1
        or position.start != 0
        or (position.terms[0].step, position.terms[0].size) != (1, size)
    ):
        return Part(1, size, 1)
    (term,) = position.terms
    around = quotient(term.variable.size, term.inner * size)
    if not isinstance(term.inner, int) or not isinstance(around, int):
        raise ValueError("an open number of repeats")
    return Part(around, size, term.inner)


def elements(array: Array, index: Index) -> Array:
    """Return the elements of an array at an index, with an axis for each of AXES, of size 1 where
    none differ.

    Raises ValueError if that is unknown, or some lie outside.
    """
    ats = [*map(numbers, index)]
    for position, size in zip(ats, array.shape, strict=True):
        if position.size == 0 or position.min() < 0 or position.max() >= size:
            raise ValueError("no elements, or outside")
    picked = array[tuple(ats)]
    picked = picked.reshape((1,) * (len(AXES) - picked.ndim) + picked.shape)
    for axis in range(picked.ndim):
        first = picked.take([0], axis) if picked.shape[axis] else picked
        if np.array_equal(picked, np.broadcast_to(first, picked.shape)):
            picked = first
    return picked


def numbers(position: Position) -> Array:
    """Return the numbers that a position is, with an axis for each of AXES. Raises ValueError."""
    total = np.full([1] * len(AXES), _number(position.start))
    for variable, inner, size, step in position.terms:
        line = np.arange(_number(variable.size)) // _number(inner) % _number(size) * _number(step)
        total = total + line.reshape([-1 if name == variable.name else 1 for name in AXES])
    return total


def _number(size: Dimension) -> int:
    if not isinstance(size, int) or size > LARGEST:
        raise ValueError("an open size, or a large one")
    return size
