"""Arithmetic of whole numbers that are positions: what an operation makes of them, where that is
certain.
"""

from collections.abc import Sequence

from onnx import TensorProto

from ..sizes import Size, factors, truncated
from .affine import Position, Unknown, bounds, divided, is_at_least, number
from .forms import ROUNDINGS

COMPARISONS = "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"
SMALL = range(-(2**31), 2**31)  # what is computed of these is the same in int32 and int64
RANGES: dict[int, range] = {
    TensorProto.BOOL: range(2),
    TensorProto.INT8: range(-(2**7), 2**7),
    TensorProto.INT16: range(-(2**15), 2**15),
    TensorProto.INT32: SMALL,
    TensorProto.INT64: SMALL,
    TensorProto.UINT8: range(2**8),
    TensorProto.UINT16: range(2**16),
    TensorProto.UINT32: range(2**31),
    TensorProto.UINT64: range(2**31),
}

INTEGERS = RANGES.keys()
NARROW = INTEGERS - {TensorProto.BOOL, TensorProto.INT32, TensorProto.INT64}


def fits(position: Position, elements: int) -> bool:
    """Return whether a computed position is certain not to overflow in a data type.

    Open sizes need 64 bits.
    """
    if elements not in RANGES:
        return True
    numbers = [position.start, *(term.step for term in position.terms)]
    if any(isinstance(n, Size) for n in (*numbers, *(term.size for term in position.terms))):
        is_small = all(factor in SMALL for n in numbers for factor in factors(n))
        return elements == TensorProto.INT64 and is_small
    return all(end in RANGES[elements] for end in bounds(position))


def quotient_of(dividend: Position, divisor: Position) -> Position:
    """Return a quotient of integers, which ONNX Runtime rounds to zero. Raises Unknown."""
    by = _divisor(divisor)
    if not dividend.terms and isinstance(by, int) and by > 0:
        return number(truncated(dividend.start, by))
    result, rest = divided(dividend, by)
    if rest != number(0) and not is_at_least(dividend):
        raise Unknown("the sign of a dividend")
    return result


def remainder_of(dividend: Position, divisor: Position, has_sign_of_dividend: bool) -> Position:
    """Return the remainder of a division of integers. Raises Unknown."""
    _, rest = divided(dividend, _divisor(divisor))
    if has_sign_of_dividend and rest != number(0) and not is_at_least(dividend):
        raise Unknown("the sign of a dividend")
    return rest


def _divisor(position: Position) -> int | Size:
    if position.terms:
        raise Unknown("a divisor that varies")
    return position.start


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
    for position, smaller in ((first, second), (second, first)):
        if is_at_least(position - smaller if op == "Max" else smaller - position):
            return position
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
