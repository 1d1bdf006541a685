"""Arithmetic of whole numbers that are positions: what an operation makes of them, where that is certain."""

from collections.abc import Sequence

from .affine import Position, is_at_least, number
from .forms import ROUNDINGS

COMPARISONS = "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"


def of_wholes(op: str, operands: Sequence[Position]) -> Position | None:
    """Return the position that an operation of positions is; None if that isn't certain."""
    first = operands[0]
    if op in ROUNDINGS:
        return first
    if op == "Neg":
        return first.times(-1)
    if op == "Clip":
        limited = _extreme("Max", *operands[:2])
        return None if limited is None else _extreme("Min", limited, operands[2])
    if len(operands) != 2:
        return None
    second = operands[1]
    if op == "Add":
        return first + second
    if op == "Sub":
        return first - second
    if op == "Mul":
        return _product(first, second)
    if op in COMPARISONS:
        return _compared(op, first - second)
    return _extreme(op, first, second) if op in ("Max", "Min") else None


def _product(first: Position, second: Position) -> Position | None:
    if not second.terms:
        return first.times(second.start)
    return None if first.terms else second.times(first.start)


def _extreme(op: str, first: Position, second: Position) -> Position | None:
    """Return the operand that is certain to be the result of Max or Min."""
    for at, other in ((first, second), (second, first)):
        if is_at_least(at - other if op == "Max" else other - at):
            return at
    return None


def _compared(op: str, difference: Position) -> Position | None:
    """Return the truth of a comparison of a difference with 0, as 0 or 1."""
    negated = number(0) - difference
    is_zero = difference == number(0)
    is_positive = is_at_least(difference, 1)
    is_negative = is_at_least(negated, 1)
    is_least = is_zero or is_positive or is_at_least(difference)
    is_most = is_zero or is_negative or is_at_least(negated)
    holds, fails = {
        "Equal": (is_zero, is_positive or is_negative),
        "Greater": (is_positive, is_most),
        "GreaterOrEqual": (is_least, is_negative),
        "Less": (is_negative, is_least),
        "LessOrEqual": (is_most, is_positive),
    }[op]
    return number(int(holds)) if holds != fails else None
