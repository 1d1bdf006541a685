"""Positions: whole numbers that are sums of digits of variables, with sizes that may be open
(sizes.py).

A position is in normal form: each digit of a variable occurs once, in order, and digits that follow
each other are one digit. So positions that are equal for all numbers of their variables are equal,
unless digits of a variable overlap.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ..sizes import Dimension, never_negative, quotient

Array = np.ndarray


class Unknown(ValueError):  # noqa: N818  it is no error
    """What is asked isn't known for certain."""


class Variable(NamedTuple):
    """A number v that runs from 0 to size - 1."""

    name: str
    size: Dimension


class Digit(NamedTuple):
    """v // inner % size: all of a variable v, or one of the digits that a Reshape makes of it."""

    variable: Variable
    inner: Dimension
    size: Dimension


class Term(NamedTuple):
    """step * (v // inner % size)."""

    variable: Variable
    inner: Dimension
    size: Dimension
    step: Dimension

    @property
    def digit(self) -> Digit:
        return Digit(self.variable, self.inner, self.size)

    @property
    def is_whole(self) -> bool:
        """Whether the digit is all of its variable."""
        return self.inner == 1 and self.size == self.variable.size


@dataclass(frozen=True)
class Position:
    """The sum of a number and of terms."""

    start: Dimension = 0
    terms: tuple[Term, ...] = ()

    def __add__(self, other: "Position") -> "Position":
        if not other.terms:
            return replace(self, start=self.start + other.start)
        return normal_position(self.start + other.start, (*self.terms, *other.terms))

    def __sub__(self, other: "Position") -> "Position":
        return self + other.times(-1)

    def times(self, factor: Dimension) -> "Position":
        """Return the product with a number."""
        terms = [term._replace(step=term.step * factor) for term in self.terms]
        return normal_position(self.start * factor, terms)


Index = tuple[Position, ...]


def number(value: Dimension) -> Position:
    """Return the position that is one number."""
    return Position(value)


def as_int(size: Dimension | None) -> int:
    """Return a size that is a number. Raises Unknown if it is open, or not known."""
    if not isinstance(size, int):
        raise Unknown(f"the size {size}")
    return size


def along(variable: Variable) -> Position:
    """Return the position that is a variable."""
    return normal_position(0, [Term(variable, 1, variable.size, 1)])


def normal_position(start: Dimension, terms: Iterable[Term]) -> Position:
    """Return the position that is a sum, in normal form."""
    steps: dict[Digit, Dimension] = {}
    for term in terms:
        if term.size != 1:
            steps[term.digit] = steps.get(term.digit, 0) + term.step
    kept = sorted((Term(*digit, step) for digit, step in steps.items() if step != 0), key=_order)
    for k, low in enumerate(kept):
        for high in kept[k + 1 :]:
            if _follows(high, low):
                rest = [term for term in kept if term is not low and term is not high]
                return normal_position(start, [*rest, low._replace(size=low.size * high.size)])
    return Position(start, tuple(kept))


def _follows(high: Term, low: Term) -> bool:
    """Return whether two digits are one digit of their variable, with the same step."""
    return (
        high.variable == low.variable
        and high.inner == low.inner * low.size
        and high.step == low.step * low.size
    )


def _order(term: Term) -> tuple[str, bool, int, str]:
    if isinstance(term.inner, int):
        return term.variable.name, False, term.inner, ""
    return term.variable.name, True, 0, repr(term.inner)


def variables_of(index: Iterable[Position]) -> set[Variable]:
    """Return the variables of positions."""
    return {term.variable for position in index for term in position.terms}


def digits_of(index: Iterable[Position]) -> list[Digit]:
    """Return the digits of positions, in order."""
    return [term.digit for position in index for term in position.terms]


def bounds(position: Position) -> tuple[Dimension, Dimension]:
    """Return the smallest and the largest number that a position may be. Raises Unknown."""
    low = high = position.start
    for term in position.terms:
        reach = term.step * (term.size - 1)
        if never_negative(term.step):
            high = high + reach
        elif never_negative(-term.step):
            low = low + reach
        else:
            raise Unknown("the sign of a step")
    return low, high


def is_at_least(position: Position, least: Dimension = 0) -> bool:
    """Return whether a position is certain to be at least a number."""
    try:
        return never_negative(bounds(position)[0] - least)
    except Unknown:
        return False


def is_within(position: Position, size: Dimension) -> bool:
    """Return whether a position is certain to lie on an axis of this size."""
    return is_at_least(position) and is_at_least(number(size - 1) - position)


def divided(position: Position, by: Dimension) -> tuple[Position, Position]:
    """Return (at // by, at % by), rounded down.

    Raises Unknown unless the digits of a position can be shared out.
    """
    if not position.terms and isinstance(by, int) and by > 0 and never_negative(position.start):
        result = position.start // by
        return number(result), number(position.start - result * by)
    high: list[Term] = []
    low: list[Term] = []
    for term in position.terms:
        step = quotient(term.step, by)
        count = quotient(by, term.step)
        outer_size = (
            quotient(term.size, count) if count is not None and never_negative(count) else None
        )
        if step is not None:
            high.append(term._replace(step=step))
        elif count is not None and outer_size is not None and outer_size != 1:
            # A digit that runs past `by`.
            high.append(term._replace(inner=term.inner * count, size=outer_size, step=1))
            low.append(term._replace(size=count))
        else:
            low.append(term)
    high_start, low_start = _shared_out(position.start, by)
    remainder = normal_position(low_start, low)
    if remainder != number(0) and not is_within(remainder, by):
        raise Unknown(f"how {position} is divided by {by}")
    return normal_position(high_start, high), remainder


def _shared_out(start: Dimension, by: Dimension) -> tuple[Dimension, Dimension]:
    """Return the parts of a number that belong to a quotient and to a remainder."""
    result = quotient(start, by)
    if result is not None:
        return result, 0
    if isinstance(start, int) and isinstance(by, int):
        return start // by, start % by
    return 0, start


def reshaped(index: Index, sizes: Sequence[Dimension], target: Sequence[Dimension]) -> Index:
    """Return the index into the same elements with the shape `target`.

    Axes are taken in groups with equal products. The first axis of a group isn't divided.
    """
    source = [(position, size) for position, size in zip(index, sizes, strict=True) if size != 1]
    wanted = [(axis, size) for axis, size in enumerate(target) if size != 1]
    result = [number(0)] * len(target)
    while source or wanted:
        group, axes = _next_group(source, wanted)
        flat = number(0)
        for position, size in group:
            flat = flat.times(size) + position
        for axis, size in reversed(axes[1:]):
            flat, result[axis] = divided(flat, size)
        if group and axes and flat == group[0][0]:  # one axis, with two names of its size
            flat = _renamed(flat, group[0][1], axes[0][1])
        if axes:
            result[axes[0][0]] = flat
    return tuple(result)


def _renamed(position: Position, size: Dimension, target: Dimension) -> Position:
    """Return a position along all of an axis, with another name of its size."""
    if size == target or len(position.terms) != 1:
        return position
    variable = position.terms[0].variable
    is_all = variable.size == size and position == along(variable)
    return along(variable._replace(size=target)) if is_all else position


def _next_group(
    source: list[tuple[Position, Dimension]], wanted: list[tuple[int, Dimension]]
) -> tuple[list[tuple[Position, Dimension]], list[tuple[int, Dimension]]]:
    """Take the fewest axes off the front of two lists whose sizes have equal products.

    All of them if that isn't known: what is reshaped keeps its number of elements.
    """
    group: list[tuple[Position, Dimension]] = []
    axes: list[tuple[int, Dimension]] = []
    total: Dimension = 1
    product: Dimension = 1
    while total != product or not group or not axes:
        is_behind = product != 1 and quotient(product, total) is not None
        if source and (total == 1 or not wanted or is_behind):
            takes_source = True
        elif wanted and (product == 1 or not source or quotient(total, product) is not None):
            takes_source = False
        elif source and wanted:
            takes_source = True
        else:
            break
        if takes_source:
            group.append(source.pop(0))
            total = total * group[-1][1]
        else:
            axes.append(wanted.pop(0))
            product = product * axes[-1][1]
    return group, axes


def substituted(position: Position, by: Mapping[Variable, Position]) -> Position:
    """Return a position with positions in place of variables. Raises Unknown."""
    total = number(position.start)
    for term in position.terms:
        if term.variable in by:
            digit = _digit_of(by[term.variable], term)
            total = total + digit.times(term.step)
        else:
            total = total + normal_position(0, [term])
    return total


def _digit_of(position: Position, term: Term) -> Position:
    """Return the digit of a position that stands for the variable of a term."""
    if term.is_whole:
        return position
    if term.inner != 1:
        position, _ = divided(position, term.inner)
    is_last = term.size == quotient(term.variable.size, term.inner)
    return position if is_last else divided(position, term.size)[1]


def fitted(values: Array, variables: Sequence[Variable]) -> Position | None:
    """Return the position that integers are over variables, one for each axis; None if there is
    none.
    """
    values = values.astype(np.int64)
    first = int(values.flat[0])
    terms: list[Term] = []
    total = np.asarray(first)
    for axis, variable in enumerate(variables):
        line = np.moveaxis(values, axis, -1).reshape(-1, values.shape[axis])[0] - first
        line_terms = _fitted_line(line, variable)
        if line_terms is None:
            return None
        terms += line_terms
        total = total[..., None] + line
    return normal_position(first, terms) if np.array_equal(total, values) else None


def _fitted_line(line: Array, variable: Variable) -> list[Term] | None:
    """Return the terms whose sum integers are, of which the first one is 0."""
    terms: list[Term] = []
    numbers = np.arange(len(line))
    total = np.zeros_like(line)
    inner = 1
    while inner < len(line):
        step = int(line[inner])
        outer = line[::inner]
        differs = np.flatnonzero(outer != step * np.arange(len(outer)))
        count = int(differs[0]) if len(differs) else len(outer)
        if len(line) % (inner * count):
            return None
        terms.append(Term(variable, inner, count, step))
        total += numbers // inner % count * step
        inner *= count
    return terms if np.array_equal(total, line) else None


def from_the_start(position: Position, size: Dimension) -> Position:
    """Return a position along an axis that may be counted from its end. Raises Unknown."""
    if is_at_least(number(-1) - position):
        return position + number(size)
    if not is_at_least(position):
        raise Unknown("the sign of an index")
    return position


def solve(position: Position, variable: Variable) -> Position | None:
    """Return the position of a variable where `position` is 0: a number or one whole digit."""
    own = [term for term in position.terms if term.variable == variable]
    if len(own) != 1 or not own[0].is_whole or own[0].step not in (1, -1):
        return None
    rest = normal_position(
        position.start, [term for term in position.terms if term.variable != variable]
    )
    solution = rest.times(-own[0].step)
    has_steps = any(term.step != 1 for term in solution.terms)
    return None if has_steps or len(solution.terms) > 1 else solution
