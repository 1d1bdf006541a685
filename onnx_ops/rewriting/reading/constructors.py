"""Makes forms in normal form: what is equal becomes one object, and nothing is rewritten
afterwards.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np

from ..once import once
from .affine import (
    Array,
    Dimension,
    Index,
    Position,
    Unknown,
    Variable,
    along,
    from_the_start,
    number,
    solve,
    substituted,
    variables_of,
)
from .arithmetic import of_wholes
from .conditions import always_holds, digit_apart, limit_of, never_holds
from .forms import (
    CASTS,
    FORMULAS,
    Budget,
    Condition,
    Element,
    Form,
    Guard,
    Number,
    Op,
    Sample,
    Sum,
    Whole,
    children,
    inside,
    is_number,
    positions_in,
    value_of,
)

MOST_PARTS = 8  # of a sum of guards that is taken apart
NEUTRAL = {"Add": 0, "Mul": 1}

T = TypeVar("T")


class Forms:
    """Makes forms.

    shape_of  the shape of a root
    picks     {variable: the form that it is bound to}
    tables    {root: constant array} of those made here
    occurrences  {form: {value: index}}: elements of values that a form is, inside of these
    is_exact  whether operations of floats stay as they are, with each rounding
    """

    def __init__(
        self,
        shape_of: Callable[[str], Sequence[Dimension]],
        budget: Budget,
        is_exact: bool = False,
    ):
        self.shape_of = shape_of
        self.budget = budget
        self.is_exact = is_exact
        self.known: dict[Hashable, Any] = {}  # what was made or worked out, by what it is
        self.picks: dict[Variable, Form] = {}
        self.tables: dict[str, Array] = {}
        self.occurrences: dict[Form, dict[str, Index]] = defaultdict(dict)

    def _once(self, form_class: Callable[..., Form], *fields: Hashable) -> Form:
        self.budget.form()
        key = form_class, *fields
        if key not in self.known:
            self.known[key] = form_class(*fields)
        return self.known[key]

    def number(self, value: float) -> Form:
        is_whole = np.isfinite(value) and value == int(value) and abs(value) < 2**31
        return self.whole(number(int(value))) if is_whole else self._once(Number, float(value))

    def whole(self, position: Position) -> Form:
        return self._once(Whole, position)

    def element(self, root: str, index: Index) -> Form:
        return self._once(Element, root, index)

    def sample(
        self,
        over: tuple[Variable, ...],
        body: Form,
        coordinates: tuple[Form, ...],
        settings: tuple[str, ...],
    ) -> Form:
        return self._once(Sample, over, body, coordinates, settings)

    def table(self, values: Array, index: Index) -> Form:
        """Return the element of a constant array, which becomes a root."""
        key = "table", values.dtype, values.shape, values.tobytes()
        name = self.known.setdefault(key, f"table {len(self.tables)}")
        self.tables[name] = values
        return self.element(name, index)

    def picked(self, form: Form, size: Dimension) -> Position:
        """Return the position along an axis of this size that a form of whole numbers states."""
        if isinstance(form, Whole):
            with suppress(Unknown):
                return from_the_start(form.position, size)
        return along(self._pick(form, size))

    @once
    def _pick(self, form: Form, size: Dimension) -> Variable:
        variable = Variable(f"pick {len(self.picks)}", size)
        self.picks[variable] = form
        return variable

    def walk(self, form: Form, known: Container[Form] = ()) -> Iterator[Form]:
        """Yield a form and those in it, also behind picks, but not what is in known ones.

        Raises Exhausted.
        """
        seen: set[Form] = set()
        pending = [form]
        while pending:
            inner = pending.pop()
            if inner in seen:
                continue
            self.budget.form()
            seen.add(inner)
            yield inner
            if inner not in known:
                pending += children(inner)
                picked = variables_of(positions_in(inner)) & self.picks.keys()
                pending += [
                    self.picks[variable] for variable in sorted(picked, key=lambda v: v.name)
                ]

    def has(self, form: Form, names: Iterable[str]) -> bool:
        """Return whether there are operations with one of these names, or a "Sample", in a form or
        behind picks.
        """

        def names_in(form: Form, inner: Sequence[frozenset[str]]) -> frozenset[str]:
            return frozenset([form.op if isinstance(form, Op) else type(form).__name__]).union(
                *inner
            )

        return not self._bottom_up("names", form, names_in).isdisjoint(names)

    def _bottom_up(self, key: str, form: Form, of: Callable[[Form, list[T]], T]) -> T:
        """Return what `of` makes of a form and of the results for those in it, then of those behind
        its picks.

        The forms are as deep as a chain of nodes, or as the inputs of one, so there is no
        recursion.
        """
        pending = [form]
        while pending:
            outer = pending[-1]
            if (key, outer) in self.known:
                pending.pop()
                continue
            picked = variables_of(positions_in(outer)) & self.picks.keys()
            inner = (*children(outer), *(self.picks[variable] for variable in picked))
            missing = [operand for operand in inner if (key, operand) not in self.known]
            pending += missing
            if not missing:
                self.known[key, outer] = of(outer, [self.known[key, operand] for operand in inner])
        result: T = self.known[key, form]
        return result

    # Variables.

    def free(self, form: Form) -> frozenset[Variable]:
        """Return the variables that a form depends on, also by what is picked."""

        def free(form: Form, inner: list[frozenset[Variable]]) -> frozenset[Variable]:
            if isinstance(form, Sum | Sample):
                inner[0] = inner[0].difference(form.over)
            return frozenset(variables_of(positions_in(form))).union(*inner)

        return self._bottom_up("free", form, free)

    def is_fixed(self, form: Form) -> bool:
        """Return whether a form is made of numbers and sizes alone, so that it is the same for all
        elements.
        """

        def is_fixed(form: Form, inner: list[bool]) -> bool:
            is_leaf = isinstance(form, Element | Sample) or any(
                position.terms for position in positions_in(form)
            )
            return not is_leaf and all(inner)

        return self._bottom_up("fixed", form, is_fixed)

    def variables(self, index: Iterable[Position]) -> frozenset[Variable]:
        """Return the variables that positions depend on, also by what is picked."""
        direct = variables_of(index)
        picked = [self.free(self.picks[variable]) for variable in direct if variable in self.picks]
        return frozenset(direct).union(*picked)

    def unused(self, index: Iterable[Position], *forms: Form) -> Iterator[str]:
        """Yield names of variables that positions and forms don't depend on."""
        variables = self.variables(index).union(*map(self.free, forms))
        used = {variable.name for variable in variables}
        return (name for name in map("sum {}".format, itertools.count()) if name not in used)

    # Operations.

    def op(self, op: str, *operands: Form) -> Form:
        """Return an operation, simplified where its operands are known."""
        number = self._of_wholes(op, operands)
        if number is not None:
            return number
        values = [value_of(operand) for operand in operands]
        if None not in values and not self.is_exact:
            with np.errstate(all="ignore"):
                return self.number(float(FORMULAS[op](*values)))
        first, *others = operands
        if (op == "Sub" and is_number(others[0], 0)) or (op == "Div" and is_number(others[0], 1)):
            return first
        if op in NEUTRAL:
            kept = [operand for operand in operands if not is_number(operand, NEUTRAL[op])]
            if len(kept) < 2:
                return kept[0] if kept else first
            if op == "Mul" and 0 in values and not self.is_exact:
                return self.number(0)
        if op == "Where" and isinstance(first, Whole) and not first.position.terms:
            return others[0] if first.position.start != 0 else others[1]
        if op in CASTS.values() and isinstance(first, Op) and first.op == op:
            return first
        if op in ("Mul", "Neg", "Div"):
            return self._distributed(op, operands)
        return self._once(Op, op, operands)

    def _of_wholes(self, op: str, operands: Sequence[Form]) -> Form | None:
        ats = [operand.position for operand in operands if isinstance(operand, Whole)]
        position = of_wholes(op, ats) if len(ats) == len(operands) else None
        return None if position is None else self.whole(position)

    def _distributed(self, op: str, operands: tuple[Form, ...]) -> Form:
        """Return a Mul, Neg or Div with the guards of its factors outside of it, and sums of these
        part by part.
        """
        movable = 1 if op == "Div" else len(operands)  # operands whose zeros make the result 0
        for k, operand in enumerate(operands[:movable] if op != "Neg" else ()):
            if addends := self._parts(operand):
                total = self.number(0)
                for addend in addends:
                    total = self.op(
                        "Add", total, self.op(op, *operands[:k], addend, *operands[k + 1 :])
                    )
                return total
        conditions: frozenset[Condition] = frozenset()
        bodies: list[Form] = []
        for k, operand in enumerate(operands):
            if isinstance(operand, Guard) and k < movable:
                conditions |= operand.conditions
                bodies.append(operand.body)
            else:
                bodies.append(operand)
        if conditions:
            return self.guard(conditions, self.op(op, *bodies))
        return self._once(Op, op, operands)

    def _parts(self, form: Form) -> list[Form]:
        """Return the Guards that a form is the sum of, if it is one of several, but not of many."""
        addends: list[Form] = []
        pending: list[Form] = [form] if isinstance(form, Op) and form.op == "Add" else []
        while pending and len(addends) + len(pending) <= MOST_PARTS:
            addend = pending.pop(0)
            if isinstance(addend, Op) and addend.op == "Add":
                pending = [*addend.operands, *pending]
            elif isinstance(addend, Guard):
                addends.append(addend)
            else:
                return []
        return [] if pending else addends

    # Guards.

    def guard(self, conditions: Iterable[Condition], body: Form) -> Form:
        """Return a body where conditions hold.

        Those that the body's elements imply are left out.
        """
        conditions = frozenset(conditions)
        if isinstance(body, Guard):
            return self.guard(conditions | body.conditions, body.body)
        self.budget.form()
        kept: set[Condition] = set()
        implied = self.vanishes(body)
        for condition in conditions:
            if never_holds(condition):
                return self.number(0)
            if not always_holds(condition) and condition not in implied:
                kept.add(condition)
        if is_number(body, 0) or not kept:
            return body
        return self._once(Guard, frozenset(kept), body)

    @once
    def vanishes(self, form: Form) -> frozenset[Condition]:
        """Return conditions without which a form is 0."""
        match form:
            case Element(root, index) if root not in self.tables:
                return frozenset(inside(index, self.shape_of(root)))
            case Op("Mul", operands):
                return frozenset().union(*map(self.vanishes, operands))
            case Op("Add" | "Sub", operands):
                return frozenset.intersection(*map(self.vanishes, operands))
            case Op("Div" | "Neg" | "Abs", operands):
                return self.vanishes(operands[0])
            case Guard(conditions, body):
                return conditions | self.vanishes(body)
            case Sum(over, body):
                return frozenset(c for c in self.vanishes(body) if not self._depends(c, over))
        return frozenset()

    # Sums.

    def total(self, over: Sequence[Variable], body: Form) -> Form:
        """Return a sum.

        A condition v == e for a summed variable v puts e in its place, if e is one digit.
        """
        over = tuple(variable for variable in over if variable.size != 1)
        if is_number(body, 0) or not over:
            return body
        if addends := self._parts(body):
            total = self.number(0)
            for addend in addends:
                total = self.op("Add", total, self.total(over, addend))
            return total
        if isinstance(body, Guard):
            return self._guarded_total(over, body)
        return self._once(Sum, over, body)

    def _guarded_total(self, over: tuple[Variable, ...], body: Guard) -> Form:
        conditions = sorted(body.conditions, key=repr)  # in one order in every process
        for condition in conditions:
            digits = digit_apart(condition, over)
            if digits:
                variable, digits_of_variable, position = digits
                kept = [summed for summed in over if summed != variable]
                return self.total(
                    [*kept, *digits_of_variable], self.substituted(body, {variable: position})
                )
        for variable in over:
            if (shorter := self._shortened(over, body, variable)) is not None:
                return shorter
        for condition in conditions:
            for variable in over if condition.relation == "==" else ():
                solution = solve(condition.position, variable)
                if solution is None or variable in self.variables([solution]):
                    continue
                solved = self.guard(body.conditions - {condition}, body.body)
                solved = self.substituted(solved, {variable: solution})
                limits = inside((solution,), (variable.size,))
                kept = [summed for summed in over if summed != variable]
                return self.total(kept, self.guard(limits, solved))
        outer = frozenset(c for c in body.conditions if not self._depends(c, over))
        if outer:
            return self.guard(
                outer, self.total(over, self.guard(body.conditions - outer, body.body))
            )
        return self._once(Sum, over, body)

    def _depends(self, condition: Condition, over: Sequence[Variable]) -> bool:
        return not self.variables([condition.position]).isdisjoint(over)

    def _shortened(self, over: Sequence[Variable], body: Guard, variable: Variable) -> Form | None:
        """Return a sum in which a variable runs over the part of its numbers at which conditions
        hold; or None.
        """
        low = limit_of(body.conditions, variable, 1)
        high = limit_of(body.conditions, variable, -1)
        if not (low or high) or not isinstance(variable.size, int):
            return None
        first = low[0] if low else 0
        last = high[0] if high else variable.size - 1
        if last < first:
            return self.number(0)
        shorter = Variable(f"{variable.name} {first}", last - first + 1)
        limits = {limit[1] for limit in (low, high) if limit}
        rest = self.guard(body.conditions - limits, body.body)
        rest = self.substituted(rest, {variable: number(first) + along(shorter)})
        return self.total([shorter if summed == variable else summed for summed in over], rest)

    # Substitution.

    def substituted(self, form: Form, by: Mapping[Variable, Position]) -> Form:
        """Return a form with positions in place of variables."""
        return _Substitution(self, by).form(form)


class _Substitution:
    """Puts positions in place of variables, in each form once."""

    def __init__(self, forms: Forms, by: Mapping[Variable, Position]):
        self.forms = forms
        self.by = by
        self.memo: dict[Form, Form] = {}
        self.taken = {variable.name for variable in (*by, *forms.variables(by.values()))}

    def form(self, form: Form) -> Form:
        if form not in self.memo:
            self.forms.budget.form()
            if self.forms.free(form).isdisjoint(self.by):
                self.memo[form] = form
                return form
            self.memo[form] = self._form(form)
            for value, index in [*self.forms.occurrences[form].items()]:
                with suppress(Unknown):
                    occurrences = self.forms.occurrences[self.memo[form]]
                    occurrences.setdefault(value, tuple(map(self.position, index)))
        return self.memo[form]

    def position(self, position: Position) -> Position:
        by = dict(self.by)
        for variable in variables_of([position]):
            if variable in self.forms.picks:
                picked = self.form(self.forms.picks[variable])
                by[variable] = self.forms.picked(picked, variable.size)
        return substituted(position, by)

    def _form(self, form: Form) -> Form:
        forms = self.forms
        match form:
            case Whole(position):
                return forms.whole(self.position(position))
            case Element(root, index):
                return forms.element(root, tuple(map(self.position, index)))
            case Op(op, operands):
                return forms.op(op, *map(self.form, operands))
            case Sum(over, body):
                over, body = self.renamed(over, body)
                return forms.total(over, self.form(body))
            case Guard(conditions, body):
                moved = frozenset(
                    Condition(c.relation, self.position(c.position)) for c in conditions
                )
                return forms.guard(moved, self.form(body))
            case Sample(over, body, coordinates, settings):
                over, body = self.renamed(over, body)
                return forms.sample(
                    over, self.form(body), tuple(map(self.form, coordinates)), settings
                )
        return form

    def renamed(self, over: tuple[Variable, ...], body: Form) -> tuple[tuple[Variable, ...], Form]:
        """Return bound variables and a body with other names for those that are put in place, or
        replaced.
        """
        names = (n for n in self.forms.unused(map(along, over), body) if n not in self.taken)
        by = {v: Variable(next(names), v.size) for v in over if v.name in self.taken}
        if not by:
            return over, body
        body = self.forms.substituted(body, {v: along(new) for v, new in by.items()})
        return tuple(by.get(variable, variable) for variable in over), body
