"""Rolling: one form over a variable, of forms that are built alike, one for each of its numbers.

Slices that are stacked, writes in place, and channels that are computed one by one become what a
loop over them says. Nothing is guessed: every form is compared with what the rolled one is at its
number.
"""

from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from .affine import (
    Dimension,
    Index,
    Position,
    Unknown,
    Variable,
    along,
    fitted,
    normal_position,
    number,
    substituted,
)
from .constructors import Forms
from .forms import Condition, Element, Form, Guard, Op, Sample, Sum, Whole, value_of

# {operation: the second operand with which it is left out}.
NEUTRAL = {
    "Add": 0,
    "Mul": 1,
    "Sub": 0,
}


def rolled(forms: Forms, addends: Sequence[Form], variable: Variable) -> Form:
    """Return one form over a variable that is each of the parts at its numbers.

    Raises Unknown if there is none.
    """
    first = addends[0]
    if all(addend is first for addend in addends):
        return first
    key = "rolled", *addends, variable
    if key in forms.known:  # forms share parts: as trees they may be without bounds
        return forms.known[key]
    result = forms.known[key] = _rolled(forms, addends, variable)
    for value in forms.occurrences[first]:
        if all(value in forms.occurrences[addend] for addend in addends):
            indices = [forms.occurrences[addend][value] for addend in addends]
            with suppress(Unknown):
                index = rolled_index(forms, indices, variable)
                forms.occurrences[result][value] = index
    return result


def _rolled(forms: Forms, addends: Sequence[Form], variable: Variable) -> Form:
    first = addends[0]
    numbers = [value_of(addend) for addend in addends]
    if None not in numbers and _fitted_wholes(addends, variable) is None:
        return forms.table(np.array(numbers), (along(variable),))
    if len({(type(addend), addend.op if isinstance(addend, Op) else "") for addend in addends}) > 1:
        return _rolled_with_neutral(forms, addends, variable)
    match first:
        case Whole():
            ats = [addend.position for addend in addends if isinstance(addend, Whole)]
            return forms.whole(_rolled_position(forms, ats, variable))
        case Element(root, _):
            elements = [addend for addend in addends if isinstance(addend, Element)]
            if all(element.root == root for element in elements):
                indices = [element.index for element in elements]
                return forms.element(root, rolled_index(forms, indices, variable))
        case Op(op, operands):
            columns = [addend.operands for addend in addends if isinstance(addend, Op)]
            if all(len(column) == len(operands) for column in columns):
                return forms.op(op, *_rolled_columns(forms, columns, variable))
        case Sum(over, _):
            sums = [addend for addend in addends if isinstance(addend, Sum)]
            if all(inner_form.over == over for inner_form in sums):
                return forms.total(
                    over, rolled(forms, [inner_form.body for inner_form in sums], variable)
                )
        case Guard():
            guards = [addend for addend in addends if isinstance(addend, Guard)]
            return _rolled_guard(forms, guards, variable)
        case Sample(over, _, _, settings):
            samples = [addend for addend in addends if isinstance(addend, Sample)]
            if all(
                (inner_form.over, inner_form.settings) == (over, settings) for inner_form in samples
            ):
                coordinates = _rolled_columns(
                    forms, [inner_form.coordinates for inner_form in samples], variable
                )
                body = rolled(forms, [inner_form.body for inner_form in samples], variable)
                return forms.sample(over, body, coordinates, settings)
    raise Unknown("they are of different values or forms")


def _rolled_columns(
    forms: Forms, rows: Sequence[tuple[Form, ...]], variable: Variable
) -> tuple[Form, ...]:
    return tuple(rolled(forms, column, variable) for column in zip(*rows, strict=True))


def rolled_index(forms: Forms, indices: Sequence[Index], variable: Variable) -> Index:
    """Return the index over a variable that is each of these at its numbers.

    Raises Unknown if there is none.
    """
    columns = zip(*indices, strict=True)
    return tuple(_rolled_position(forms, column, variable) for column in columns)


def _rolled_with_neutral(forms: Forms, addends: Sequence[Form], variable: Variable) -> Form:
    """Roll parts of which some are an operation that others lack, since x + 0 and x * 1 have been
    simplified.
    """
    operations = [addend for addend in addends if isinstance(addend, Op)]
    model = next((o for o in operations if o.op in NEUTRAL and len(o.operands) == 2), None)
    if model is None:
        raise Unknown("they are of different forms")
    neutral = forms.number(NEUTRAL[model.op])
    rows = [
        addend.operands if isinstance(addend, Op) and addend.op == model.op else (addend, neutral)
        for addend in addends
    ]
    return forms.op(model.op, *_rolled_columns(forms, rows, variable))


def _rolled_guard(forms: Forms, guards: Sequence[Guard], variable: Variable) -> Form:
    if len({len(guard.conditions) for guard in guards}) > 1:
        raise Unknown("they are of different conditions")
    rows = [sorted(guard.conditions, key=repr) for guard in guards]
    conditions = []
    for column in zip(*rows, strict=True):
        relation = column[0].relation
        if any(condition.relation != relation for condition in column):
            raise Unknown("they are of different conditions")
        position = _rolled_position(forms, [condition.position for condition in column], variable)
        conditions.append(Condition(relation, position))
    return forms.guard(conditions, rolled(forms, [guard.body for guard in guards], variable))


def _rolled_position(forms: Forms, ats: Sequence[Position], variable: Variable) -> Position:
    """Return the position over a variable that is each of these at its numbers.

    Picked variables are rolled, too.
    """
    first = ats[0]
    by: dict[Variable, Position] = {}
    picks = [[t.variable for t in position.terms if t.variable in forms.picks] for position in ats]
    for column in zip(*picks, strict=False):
        if len({*column}) > 1:
            form = rolled(forms, [forms.picks[picked] for picked in column], variable)
            by[column[0]] = forms.picked(form, column[0].size)
    if len({tuple(_outline(forms, position)) for position in ats}) > 1:
        raise Unknown("their indices are no sums of digits")
    start = _fitted([position.start for position in ats], variable)
    if start is None:
        raise Unknown("their indices are no sums of digits")
    moved = normal_position(0, first.terms)
    return start + (substituted(moved, by) if by else moved)


def _outline(forms: Forms, position: Position) -> list[tuple[object, ...]]:
    """Return the terms of a position without the names of picked variables."""
    return [
        (None if t.variable in forms.picks else t.variable, t.inner, t.size, t.step)
        for t in position.terms
    ]


def _fitted_wholes(addends: Sequence[Form], variable: Variable) -> Position | None:
    ats = [addend.position for addend in addends if isinstance(addend, Whole)]
    return (
        _fitted([position.start for position in ats], variable)
        if len(ats) == len(addends)
        else None
    )


def _fitted(starts: Sequence[Dimension], variable: Variable) -> Position | None:
    """Return the position over a variable that numbers are; None if there is none."""
    step = starts[1] - starts[0] if len(starts) > 1 else 0
    if all(start == starts[0] + step * k for k, start in enumerate(starts)):
        return number(starts[0]) + along(variable).times(step)
    numbers = [start for start in starts if isinstance(start, int)]
    return fitted(np.array(numbers), [variable]) if len(numbers) == len(starts) else None
