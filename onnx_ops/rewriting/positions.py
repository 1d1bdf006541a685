"""Indices as sums over variables: which element of a tensor is meant, for every element of another one.

An index has a `Position` for each axis of a value. Sizes may be unknown (sizes.py).
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from .sizes import never_negative, quotient


class Variable(NamedTuple):
    """A number v that runs from 0 to size - 1."""

    name: str
    size: object


@dataclass(frozen=True)
class Term:
    """step * (v // inner % size) for a variable v: all of it, or one of the digits that a Reshape makes of it."""

    variable: Variable
    inner: object
    size: object
    step: object


@dataclass(frozen=True)
class Position:
    """The sum of a number and of terms, which are sorted."""

    start: object = 0
    terms: tuple = ()

    def __add__(self, other):
        return position(self.start + other.start, (*self.terms, *other.terms))

    def __sub__(self, other):
        return self + other.times(-1)

    def times(self, factor):
        return position(self.start * factor, [replace(term, step=term.step * factor) for term in self.terms])

    def is_number(self):
        return not self.terms


def position(start, terms):
    """Return a Position, in which digits of one variable that are side by side are one digit."""
    terms = [term for term in terms if term.size != 1 and term.step != 0]
    pairs = [(outer, inner) for outer in terms for inner in terms if is_followed(outer, inner)]
    if pairs:
        (outer, inner), *_ = pairs
        others = [term for term in terms if term is not outer and term is not inner]
        return position(start, [*others, replace(inner, size=outer.size * inner.size)])
    return Position(start, tuple(sorted(terms, key=lambda term: (term.variable.name, repr(term)))))


def is_followed(outer, inner):
    return (outer.variable, outer.inner, outer.step) == (
        inner.variable,
        inner.inner * inner.size,
        inner.step * inner.size,
    )


def variable(name, size):
    """Return the Position that runs along an axis of this size."""
    return position(0, [Term(Variable(name, size), 1, size, 1)])


def variables(dimensions):
    """Return an index of a variable for each axis. Its name is the axis' number."""
    return tuple(variable(str(k), size) for k, size in enumerate(dimensions))


def joined(digits):
    """Return the Position of an axis that consists of digits, [(Position, size)], the most significant one first."""
    total = Position()
    for digit, size in digits:
        total = total.times(size) + digit
    return total


def layout(sizes, *axes, **fixed):
    """Return an index of axes that consist of variables. axes: texts of one-letter names; fixed: numbers for some."""
    digits = {name: Position(fixed[name]) if name in fixed else variable(name, size) for name, size in sizes.items()}
    return tuple(joined([(digits[name], sizes[name]) for name in axis]) for axis in axes)


def digits_of(at, size):
    """Return [(Position, size)] of the digits that an axis of this size consists of: at least itself."""
    remaining, digits, step = list(at.terms), [], 1
    while remaining and at.start == 0:
        term = next((term for term in remaining if term.step == step), None)
        if term is None:
            break
        remaining.remove(term)
        digits.insert(0, (Position(0, (replace(term, step=1),)), term.size))
        step = step * term.size
    return digits if digits and not remaining and step == size else [(at, size)]


def divided(at, by):
    """Return (at // by, at % by) as Positions. Raises ValueError if that is unknown, or may be rounded to zero."""
    if by is None or not never_negative(by) or by == 0:
        raise ValueError("no size")
    exact = quotient(at.start, by) if at.is_number() else None
    if exact is not None:
        return Position(exact), Position()
    if at.is_number() and isinstance(by, int) and never_negative(at.start):
        whole = at.start // by
        return Position(whole), Position(at.start - whole * by)
    (term,) = at.terms
    size = quotient(term.size, by)
    if (at.start, term.step) != (0, 1) or size is None:
        raise ValueError("not a digit")
    outer, inner = replace(term, inner=term.inner * by, size=size), replace(term, size=by)
    return position(0, [outer]), position(0, [inner])


def solved(at, wanted):
    """Return the Position of at's variable, 0 for a number, with which `at` is the wanted one; None if there is none.

    Raises ValueError if it isn't known, or not known to be one for all of the wanted position's variables.
    """
    (term,) = at.terms or [Term(None, 1, 1, 1)]
    found, step = wanted - Position(at.start), term.step
    if at.terms and (term.inner, term.size) != (1, term.variable.size):
        raise ValueError("a part of a variable")
    if step != 1:
        if found.terms:
            raise ValueError("every so many")
        if found.start % step:
            return None
        found = Position(found.start // step)
    highest = lowest = found.start
    for each in found.terms:
        if not never_negative(each.step):
            raise ValueError("it may be negative")
        highest = highest + each.step * (each.size - 1)
    if never_negative(-1 - highest) or never_negative(lowest - term.size):
        return None
    if not never_negative(lowest) or not never_negative(term.size - 1 - highest):
        raise ValueError("it may lie outside")
    return found


def reshaped(index, sizes, target):
    """Return the index into a value of shape `target` for one into the same elements with the shape `sizes`.

    An index is a number with digits, of which each axis has some, and a Reshape shares them out anew, in their order.
    A digit is split where an axis ends within it:

        sizes   [6, 4]          index (a, b)                    digits  a of 6  |  b of 4
        target  [2, 12]         index (a // 3, a % 3 * 4 + b)   digits  a // 3 of 2  |  a % 3 of 3, b of 4

    Raises ValueError or IndexError if there is none for certain.
    """
    index, sizes = _with_the_targets_name(index, sizes, target)
    digits = [d for at, size in zip(index, sizes, strict=True) for d in digits_of(at, size) if d[1] != 1]
    result = tuple([joined(_taken(digits, size)) for size in target])
    if digits:
        raise ValueError("sizes differ")
    return result


def _with_the_targets_name(index, sizes, target):
    """Return index and sizes with the first size as the target has it, if that must be another name of one number.

    It must where the other sizes have equal products, since both shapes have as many elements.
    """
    if not sizes or not target or sizes[0] == target[0] or math.prod(sizes[1:]) != math.prod(target[1:]):
        return index, sizes
    first = index[0]
    if first.terms and first == variable(name := first.terms[0].variable.name, sizes[0]):
        first = variable(name, target[0])
    return (first, *index[1:]), (target[0], *sizes[1:])


def _taken(digits, size):
    """Take the digits of an axis of this size from the front of a list, [(Position, size)], and return them."""
    taken = []
    while size != 1:
        digit, digit_size = digits.pop(0)
        left = quotient(size, digit_size)
        if left is None:  # the axis ends within the digit
            inner = quotient(digit_size, size)
            digit, remaining = divided(digit, inner)
            digits.insert(0, (remaining, inner))
            digit_size, left = size, 1
        taken.append((digit, digit_size))
        size = left
    return taken


def broadcast_index(dimensions, target, index, repeats=False):
    """Return the index into a value that is broadcast to another shape. Raises ValueError if it is uncertain.

    repeats  whether who reads the elements repeats those along an axis that turns out to have one element: then an open
             size may be another one than the target's, and the index runs along the axis as if there were no others
    """
    more = len(index) - len(dimensions)
    if more < 0:
        raise ValueError("ranks differ")
    return tuple(_along(*each, repeats) for each in zip(dimensions, target[more:], index[more:], strict=True))


def _along(size, target, at, repeats):
    if size == 1:
        return Position()
    if isinstance(size, int) or size == target:
        return at
    if repeats and at == variable(at.terms[0].variable.name, target):
        return variable(at.terms[0].variable.name, size)
    raise ValueError("dimensions differ, or are unknown")


def elements(array, index, names):
    """Return the elements of an array at an index over variables with these names, as an array with an axis for each.

    An axis has size 1 where the index doesn't run along it.
    """
    positions = []
    for at in index:
        total = np.full([1] * len(names), at.start)
        for term in at.terms:
            numbers = np.arange(term.variable.size) // term.inner % term.size * term.step
            total = total + numbers.reshape([-1 if name == term.variable.name else 1 for name in names])
        positions.append(total)
    return array[tuple(positions)]
