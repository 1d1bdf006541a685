"""The constructors of forms simplify them, and they stay what they are: at all numbers of their
variables.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from support.selection import long_unless
from support.written import Writer

from onnx_ops.rewriting.graph import graphs_of
from onnx_ops.rewriting.models import Model
from onnx_ops.rewriting.reading import reader_of
from onnx_ops.rewriting.reading.affine import (
    Array,
    Index,
    Position,
    Term,
    Unknown,
    Variable,
    along,
    normal_position,
    number,
)
from onnx_ops.rewriting.reading.evaluation import Evaluation, looked_up
from onnx_ops.rewriting.reading.forms import FORMULAS, Condition, Element, Form, Guard, Sum, Whole
from onnx_ops.rewriting.reading.reader import Reader
from onnx_ops.rewriting.reading.rolling import rolled

pytestmark = pytest.mark.any_library

A, B, C = Variable("a", 6), Variable("b", 4), Variable("sum 0", 5)
VARIABLES = A, B, C
GRID = dict(zip(VARIABLES, np.indices([6, 4, 5]), strict=True))
DATA = {
    "x": np.random.default_rng(0).integers(-4, 5, (5, 6)).astype(float),
    "i": np.random.default_rng(1).integers(0, 5, (6, 4)).astype(float),
}
SEEDS = pytest.mark.parametrize("seed", [long_unless(seed < 4, seed) for seed in range(8)])


@dataclass(frozen=True)
class Known:
    """A form, and the numbers that it must be on GRID."""

    form: Form
    array: Array


def new_reader() -> Reader:
    w = Writer()
    inputs = {name: ("float32", [*array.shape]) for name, array in DATA.items()}
    proto = w.model(inputs, (w.add("Add", "x", "x"), "float32", None))
    return reader_of(next(graphs_of(Model(proto))))


def evaluated(reader: Reader, form: Form) -> Array:
    values = {variable.name: numbers.ravel() for variable, numbers in GRID.items()}
    count = GRID[A].size
    evaluation = Evaluation(
        reader, values, lambda root, index: looked_up(DATA[root], index), len, count
    )
    return np.broadcast_to(evaluation.value(form), count).reshape(GRID[A].shape)


def numbers(position: Position) -> Array:
    assert isinstance(position.start, int)
    total = np.full(GRID[A].shape, position.start)
    for variable, inner, size, step in position.terms:
        total += GRID[variable] // inner % size * step
    return total


def random_position(rng: np.random.Generator, low: int = -2, high: int = 3) -> Position:
    terms = [
        Term(v, 1, v.size, int(rng.choice([-1, 1, 1, 2]))) for v in VARIABLES if rng.random() < 0.4
    ]
    return normal_position(int(rng.integers(low, high)), terms)


class Builder:
    """Makes random forms together with what they must be."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)
        self.reader = new_reader()
        self.forms = self.reader.forms
        self.known = [self.leaf() for _ in range(4)]

    def leaf(self) -> Known:
        if self.rng.random() < 0.3:
            position = random_position(self.rng)
            return Known(self.forms.whole(position), numbers(position).astype(float))
        if self.rng.random() < 0.3:
            return self.picked()
        index = random_position(self.rng), random_position(self.rng)
        array = looked_up(DATA["x"], [*map(numbers, index)])
        return Known(self.forms.element("x", index), array)

    def picked(self) -> Known:
        """An element of x whose row the data state."""
        index = along(A), along(B) if self.rng.random() < 0.5 else number(2)
        rows = looked_up(DATA["i"], [*map(numbers, index)])
        row = self.forms.picked(self.forms.element("i", index), 5)
        column = random_position(self.rng)
        array = looked_up(DATA["x"], [rows.astype(int), numbers(column)])
        return Known(self.forms.element("x", (row, column)), array)

    def some(self) -> Known:
        return self.known[int(self.rng.integers(len(self.known)))]

    def step(self) -> None:
        makers: list[Callable[[], Known]] = [
            self.leaf, *[self.operation] * 3, *[self.guard] * 2, self.total, self.replaced,
        ]  # fmt: skip
        self.known.append(makers[int(self.rng.integers(len(makers)))]())

    def operation(self) -> Known:
        op = str(
            self.rng.choice(["Add", "Sub", "Mul", "Neg", "Max", "Where", "Greater", "Abs", "Div"])
        )
        count = {"Neg": 1, "Abs": 1, "Where": 3}.get(op, 2)
        operands = [self.some() for _ in range(count)]
        if op == "Div":
            operands[1] = Known(self.forms.number(2), np.full(GRID[A].shape, 2.0))
        array = FORMULAS[op](*(operand.array for operand in operands)) * 1.0
        return Known(self.forms.op(op, *(operand.form for operand in operands)), array)

    def guard(self) -> Known:
        body = self.some()
        conditions = [
            Condition(">=" if self.rng.random() < 0.7 else "==", random_position(self.rng))
            for _ in range(int(self.rng.integers(1, 3)))
        ]
        holds = np.ones(GRID[A].shape, bool)
        for relation, condition in conditions:
            holds &= numbers(condition) >= 0 if relation == ">=" else numbers(condition) == 0
        return Known(self.forms.guard(conditions, body.form), np.where(holds, body.array, 0))

    def total(self) -> Known:
        body = self.some()
        variables = [v for v in VARIABLES if self.rng.random() < 0.5] or [C]
        axes = tuple(VARIABLES.index(variable) for variable in variables)
        array = np.broadcast_to(body.array.sum(axes, keepdims=True), GRID[A].shape)
        return Known(self.forms.total(variables, body.form), array)

    def replaced(self) -> Known:
        """A form with positions in place of variables, which may be those that are bound within
        it.
        """
        body = self.some()
        by = {}
        for variable in VARIABLES:
            other = VARIABLES[int(self.rng.integers(3))]
            assert isinstance(variable.size, int)
            assert isinstance(other.size, int)
            if self.rng.random() < 0.5 and other.size <= variable.size:
                is_backwards = self.rng.random() < 0.5
                last = number(other.size - 1)
                by[variable] = last - along(other) if is_backwards else along(other)
        positions = [numbers(by.get(variable, along(variable))) for variable in VARIABLES]
        return Known(self.forms.substituted(body.form, by), body.array[tuple(positions)])


@SEEDS
def test_forms_are_what_they_are_made_of(seed: int) -> None:
    builder = Builder(seed)
    for _ in range(60):
        with np.errstate(all="ignore"):
            builder.step()
        known_form = builder.known[-1]
        if np.abs(known_form.array).max() > 1e9:
            builder.known.pop()
        else:
            np.testing.assert_allclose(
                evaluated(builder.reader, known_form.form), known_form.array, atol=1e-6
            )


@SEEDS
def test_forms_are_rolled(seed: int) -> None:
    """A form at each number of a variable is rolled into one that is these again."""
    builder = Builder(seed)
    rolled_count = 0
    for _ in range(60):
        builder.step()
        known_form = builder.known[-1]
        if np.abs(known_form.array).max() > 1e9:
            builder.known.pop()
            continue
        forms = builder.forms
        elements = [forms.substituted(known_form.form, {B: number(k)}) for k in range(4)]
        try:
            form = rolled(forms, elements, B)
        except Unknown:
            continue
        rolled_count += 1
        np.testing.assert_allclose(evaluated(builder.reader, form), known_form.array, atol=1e-6)
    assert rolled_count > 20


def test_other_forms_are_not_rolled() -> None:
    reader = new_reader()
    forms = reader.forms
    parts = [forms.element(root, (number(0), number(1))) for root in ("x", "x", "i", "x")]
    with pytest.raises(Unknown):
        rolled(forms, parts, B)
    starts = 0, 1, 3, 3
    elements = [forms.element("x", (number(k), number(1))) for k in starts]
    with pytest.raises(Unknown):
        rolled(forms, elements, B)
    numbered = rolled(forms, [forms.number(k + 0.5) for k in starts], B)
    np.testing.assert_array_equal(evaluated(reader, numbered)[0, :, 0], np.array(starts) + 0.5)


def x_at(reader: Reader, *index: Position) -> Form:
    return reader.forms.element("x", index)


def test_equal_forms_are_one_object() -> None:
    reader = new_reader()
    forms = reader.forms
    a, c = along(A), along(C)
    inside = [Condition(">=", a - number(1)), Condition(">=", number(5) - a)]
    shifted = x_at(reader, c, a - number(1))
    assert forms.guard([inside[0]], shifted) is shifted  # an element is 0 outside of its root
    assert forms.guard([Condition(">=", a)], x_at(reader, c, c)) is x_at(reader, c, c)
    assert forms.guard([Condition(">=", number(-1) - a)], shifted) is forms.number(0)
    product = forms.op("Mul", forms.guard(inside[:1], x_at(reader, c, c)), x_at(reader, c, a))
    assert product is forms.guard(
        inside[:1], forms.op("Mul", x_at(reader, c, c), x_at(reader, c, a))
    )
    assert forms.op("Add", forms.number(0), shifted) is shifted
    assert forms.op("Mul", shifted, forms.number(1)) is shifted
    assert forms.op("Add", forms.whole(a), forms.whole(c)) is forms.whole(c + a)


def test_sums_over_one_place() -> None:
    """A summed variable that equals a digit gives way to it, and one with limits is shortened."""
    reader = new_reader()
    forms = reader.forms
    a, b, c = map(along, VARIABLES)
    body = forms.op("Mul", x_at(reader, c, a), x_at(reader, b, c))
    form = forms.total([C], forms.guard([Condition("==", c - b)], body))
    assert form is forms.op("Mul", x_at(reader, b, a), x_at(reader, b, b))
    shorter = forms.total([C], forms.guard([Condition(">=", c - number(2))], body))
    assert isinstance(shorter, Sum)
    assert [variable.size for variable in shorter.over] == [3]
    outer = forms.total([C], forms.guard([Condition(">=", a - b)], body))
    assert isinstance(outer, Guard)


def test_a_condition_by_what_data_state_stays_in_a_sum() -> None:
    """The picked row depends on the summed variable, although it isn't named by it."""
    reader = new_reader()
    forms = reader.forms
    row = forms.picked(forms.element("i", (along(A), number(0))), 5)
    body = forms.guard([Condition(">=", row - number(2))], x_at(reader, along(C), along(B)))
    form = forms.total([A], body)
    assert isinstance(form, Sum)
    assert not isinstance(forms.total([A, C], body), Guard)
    expected = np.where(DATA["i"][:, :1, None] >= 2, looked_up(DATA["x"], [GRID[C], GRID[B]]), 0)
    np.testing.assert_array_equal(evaluated(reader, form)[0], expected.sum(0))


def test_names_of_bound_variables() -> None:
    """A variable that is put into a sum isn't taken for the one that the sum binds."""
    reader = new_reader()
    forms = reader.forms
    inner = forms.total(
        [C], forms.op("Mul", x_at(reader, along(C), along(A)), x_at(reader, along(C), along(B)))
    )
    replaced = forms.substituted(inner, {A: along(C)})
    x = DATA["x"]
    expected = np.einsum("kc,kb->bc", x[:, :5], x[:, :4])
    np.testing.assert_array_equal(evaluated(reader, replaced)[0], expected)
    assert next(forms.unused([along(C)])) == "sum 1"
    assert list(itertools.islice(forms.unused([along(Variable("sum 1", 3))]), 2)) == [
        "sum 0",
        "sum 2",
    ]


def test_an_index_of_both_signs_is_picked() -> None:
    reader = new_reader()
    forms = reader.forms
    assert forms.picked(forms.whole(along(B) - number(4)), 5) == along(B) + number(1)
    mixed: Index = forms.picked(forms.whole(along(B) - number(2)), 5), along(A)
    form = forms.element("x", mixed)
    assert isinstance(form, Element)
    expected = DATA["x"][[-2, -1, 0, 1]]
    np.testing.assert_array_equal(evaluated(reader, form)[:, :, 0].T, expected)
    assert isinstance(forms.picks[mixed[0].terms[0].variable], Whole)
