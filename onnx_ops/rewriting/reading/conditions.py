"""What conditions of guards say of their variables."""

from collections.abc import Sequence

from .affine import Position, Variable, along, is_at_least, number
from .forms import Condition


def never_holds(condition: Condition) -> bool:
    is_negative = is_at_least(number(-1) - condition.position)
    return is_negative or (condition.relation == "==" and is_at_least(condition.position, 1))


def always_holds(condition: Condition) -> bool:
    is_zero_at_most = condition.relation == ">=" or is_at_least(number(0) - condition.position)
    return is_at_least(condition.position) and is_zero_at_most


def digit_apart(
    condition: Condition, over: Sequence[Variable]
) -> tuple[Variable, list[Variable], Position] | None:
    """Return a summed variable of which a condition limits a digit, variables for its digits, and
    itself over these.
    """
    for variable, inner, size, _ in (
        condition.position.terms if len(condition.position.terms) == 1 else ()
    ):
        length = variable.size
        if variable not in over or size == length:
            continue
        if not (isinstance(inner, int) and isinstance(size, int) and isinstance(length, int)):
            continue
        lengths = {"high": length // (inner * size), "digit": size, "low": inner}
        digits = [Variable(f"{variable.name} {name}", length) for name, length in lengths.items()]
        high, digit, low = map(along, digits)
        return variable, digits, (high.times(size) + digit).times(inner) + low
    return None


def limit_of(
    conditions: frozenset[Condition], variable: Variable, sign: int
) -> tuple[int, Condition] | None:
    """Return the number from which (sign 1) or up to which (-1) a condition on a variable alone
    holds, and that.
    """
    for condition in sorted(conditions, key=repr):
        position = condition.position
        if (
            condition.relation == ">="
            and len(position.terms) == 1
            and isinstance(position.start, int)
        ):
            (term,) = position.terms
            if term.variable == variable and term.is_whole and term.step == sign:
                return -position.start * sign, condition
    return None
