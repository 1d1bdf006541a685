"""Axes as digits of variables: taken apart, joined, and with the same digits in several indices."""

import itertools
import math
from collections.abc import Iterable, Iterator

from ..sizes import exact, quotient
from .affine import Digit, Dimension, Index, Position, Term, Unknown, normal_position, number


def single(digit: Digit) -> Position:
    """Return the position that is a digit."""
    return normal_position(0, [Term(*digit, 1)])


def joined(parts: Iterable[tuple[Position, Dimension]]) -> Position:
    """Return the position of an axis that consists of parts with sizes, the most significant one
    first.
    """
    total = number(0)
    for position, size in parts:
        total = total.times(size) + position
    return total


def joined_digits(digits: Iterable[Digit]) -> Position:
    """Return the position of an axis that consists of digits, the most significant one first."""
    return joined((single(digit), digit.size) for digit in digits)


def digits_along(position: Position) -> list[Digit]:
    """Return the digits that a position consists of, the most significant one first.

    Raises Unknown unless they follow each other, as along an axis.
    """
    digits: list[Digit] = []
    remaining = [*position.terms]
    step: Dimension = 1
    while remaining:
        term = next((term for term in remaining if term.step == step), None)
        if term is None:
            raise Unknown("its elements are in an order that no axes have")
        remaining.remove(term)
        digits.insert(0, term.digit)
        step = step * term.size
    return digits


def digits_in(index: Index) -> list[Digit]:
    """Return the digits along axes, the most significant ones of each axis first.

    Raises Unknown.
    """
    return [digit for position in index for digit in digits_along(position)]


def size_along(position: Position) -> Dimension:
    """Return the number of elements along the digits that a position consists of.

    Raises Unknown.
    """
    return math.prod(digit.size for digit in digits_along(position))


def is_plain(position: Position) -> bool:
    """Return whether a position runs along digits that follow each other, from 0 on: all of an
    axis.
    """
    try:
        digits_along(position)
    except Unknown:
        return False
    return position.start == 0


def is_all(position: Position, size: Dimension) -> bool:
    """Return whether a position runs along all of an axis of this size."""
    return is_plain(position) and math.prod(term.size for term in position.terms) == size


def refined(*indices: Index) -> list[Index]:
    """Return indices in which digits of one variable that overlap are taken apart into the same
    digits.
    """
    digits = {term.digit for index in indices for position in index for term in position.terms}
    for _ in range(4 * len(digits)):  # each turn makes digits shorter
        cuts = {}
        for digit, other_digit in itertools.permutations(digits, 2):
            count = _cut(digit, other_digit)
            if count is not None:
                inner = digit.inner * count
                low = digit._replace(size=count)
                cuts[digit] = low, Digit(digit.variable, inner, exact(digit.size, count))
        if not cuts:
            break
        digits = {piece for digit in digits for piece in cuts.get(digit, (digit,))}
    return [tuple(_apart(position, digits) for position in index) for index in indices]


def _cut(digit: Digit, other_digit: Digit) -> Dimension | None:
    """Return the size of the lower part of a digit where another one begins or ends in it; None if
    it doesn't.
    """
    if digit.variable != other_digit.variable:
        return None
    below = quotient(other_digit.inner, digit.inner)
    count = other_digit.size if below == 1 else below
    above = None if count in (None, 1) else quotient(digit.size, count)
    return None if above in (None, 1) else count


def _apart(position: Position, digits: set[Digit]) -> Position:
    """Return a position of these digits, which aren't joined."""
    terms = (piece for term in position.terms for piece in _parts(term, digits))
    return Position(position.start, tuple(terms))


def _parts(term: Term, digits: set[Digit]) -> Iterator[Term]:
    inner = term.inner
    remaining = term.size
    while remaining != 1:
        sizes = [
            digit.size
            for digit in digits
            if (digit.variable, digit.inner) == (term.variable, inner)
            and quotient(remaining, digit.size) is not None
        ]
        numbers = [size for size in sizes if isinstance(size, int)]
        size = min(numbers) if numbers else (sizes or [remaining])[0]
        yield Term(term.variable, inner, size, term.step * exact(inner, term.inner))
        inner = inner * size
        remaining = exact(remaining, size)
