"""The arithmetic of positions agrees with that of the numbers that they stand for, at all numbers
of variables.
"""

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import pytest
from support.selection import long_unless

from onnx_ops.rewriting.reading.affine import (
    Array,
    Digit,
    Index,
    Position,
    Term,
    Unknown,
    Variable,
    along,
    divided,
    fitted,
    is_at_least,
    is_within,
    normal_position,
    number,
    reshaped,
    substituted,
)
from onnx_ops.rewriting.sizes import Size, evaluated, named

pytestmark = pytest.mark.any_library

VARIABLES = Variable("a", 6), Variable("b", 4), Variable("c", 12)
GRID = dict(zip(VARIABLES, np.indices([6, 4, 12]), strict=True))
SEEDS = pytest.mark.parametrize("seed", [long_unless(seed < 2, seed) for seed in range(5)])
COUNT = 300


def numbers(position: Position, grid: Mapping[Variable, Array] = GRID, n: int = 1) -> Array:
    """Return the numbers that a position stands for. n: the value of open sizes."""

    def of(size: int | Size) -> int:
        return evaluated(size, lambda name: n)

    total = np.full(next(iter(grid.values())).shape, of(position.start))
    for variable, inner, size, step in position.terms:
        total += grid[variable] // of(inner) % of(size) * of(step)
    return total


def divisor(rng: np.random.Generator, size: int) -> int:
    return int(rng.choice([d for d in range(1, size + 1) if size % d == 0]))


def random_digit(rng: np.random.Generator, variable: Variable) -> Digit:
    assert isinstance(variable.size, int)
    inner = divisor(rng, variable.size)
    return Digit(variable, inner, divisor(rng, variable.size // inner))


def random_terms(rng: np.random.Generator) -> list[Term]:
    """Return terms of a digit of some variables each."""
    chosen = [variable for variable in VARIABLES if rng.random() < 0.6]
    return [Term(*random_digit(rng, v), int(rng.integers(-3, 13))) for v in chosen]


def random_position(rng: np.random.Generator) -> Position:
    return normal_position(int(rng.integers(-9, 20)), random_terms(rng))


def known_share(rng: np.random.Generator, attempt: Callable[[np.random.Generator], None]) -> float:
    """Return the share of attempts that don't raise Unknown."""
    known_count = 0
    for _ in range(COUNT):
        try:
            attempt(rng)
            known_count += 1
        except Unknown:
            pass
    return known_count / COUNT


def apart(rng: np.random.Generator, terms: Iterable[Term]) -> list[Term]:
    """Return terms with the same sum: digits taken apart, steps as sums, in another order."""
    terms_apart: list[Term] = []
    for term in terms:
        assert isinstance(term.size, int)
        low = divisor(rng, term.size)
        terms_apart.append(term._replace(size=low))
        terms_apart.append(
            term._replace(inner=term.inner * low, size=term.size // low, step=term.step * low)
        )
    part = terms_apart[int(rng.integers(len(terms_apart)))] if terms_apart else None
    if part is not None:
        terms_apart += [part._replace(step=5), part._replace(step=-5)]
    return [terms_apart[k] for k in rng.permutation(len(terms_apart))]


@SEEDS
def test_equal_sums_are_equal_positions(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(COUNT):
        terms = random_terms(rng)
        total = normal_position(3, terms)
        assert normal_position(3, apart(rng, terms)) == total
        assert total - total == number(0)
        assert hash(total + number(2)) == hash(normal_position(5, apart(rng, terms)))


@SEEDS
def test_sums_and_products(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(COUNT):
        first, second = random_position(rng), random_position(rng)
        np.testing.assert_array_equal(numbers(first + second), numbers(first) + numbers(second))
        np.testing.assert_array_equal(numbers(first - second), numbers(first) - numbers(second))
        np.testing.assert_array_equal(numbers(first.times(-3)), -3 * numbers(first))


@SEEDS
def test_limits(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(COUNT):
        random = random_position(rng)
        least = int(rng.integers(-20, 20))
        assert is_at_least(random, least) == (numbers(random).min() >= least)
        assert is_within(random, 30) == (numbers(random).min() >= 0 and numbers(random).max() < 30)


@SEEDS
def test_divisions(seed: int) -> None:
    def attempt(rng: np.random.Generator) -> None:
        dividend = random_position(rng)
        by = int(rng.integers(1, 13))
        quotient, rest = divided(dividend, by)
        np.testing.assert_array_equal(numbers(quotient), numbers(dividend) // by)
        np.testing.assert_array_equal(numbers(rest), numbers(dividend) % by)

    assert known_share(np.random.default_rng(seed), attempt) > 0.3


@SEEDS
def test_divisions_of_axes(seed: int) -> None:
    """Digits of an axis can be divided wherever one of them ends."""
    rng = np.random.default_rng(seed)
    for _ in range(COUNT):
        order = [VARIABLES[k] for k in rng.permutation(3)]
        dividend, step = number(0), 1
        for variable in order:
            dividend = dividend + along(variable).times(step)
            step *= variable.size
        sizes = [6, 4, 12]
        by = int(np.prod([sizes[VARIABLES.index(v)] for v in order[: int(rng.integers(4))]]))
        by *= divisor(rng, 288 // by) if by < 288 else 1
        try:
            quotient, rest = divided(dividend, by)
        except Unknown:
            assert by not in (order[0].size, order[0].size * order[1].size)
            continue
        np.testing.assert_array_equal(numbers(quotient), numbers(dividend) // by)
        np.testing.assert_array_equal(numbers(rest), numbers(dividend) % by)


def random_shape(rng: np.random.Generator, count: int) -> list[int]:
    """Return a shape of so many elements."""
    sizes: list[int] = []
    while count > 1:
        sizes.append(divisor(rng, count))
        count //= sizes[-1]
    if rng.random() < 0.5:
        sizes.insert(int(rng.integers(len(sizes) + 1)), 1)
    return sizes


def flat(
    index: Index, sizes: list[int], grid: Mapping[Variable, Array] = GRID, n: int = 1
) -> Array:
    total = np.zeros_like(next(iter(grid.values())))
    for axis_position, size in zip(index, sizes, strict=True):
        total = total * size + numbers(axis_position, grid, n)
    return total


@SEEDS
def test_reshapes(seed: int) -> None:
    def attempt(rng: np.random.Generator) -> None:
        sizes = [6, 4, 12]
        index: Index = tuple(map(along, VARIABLES))
        for _ in range(3):
            target = random_shape(rng, 288)
            index = reshaped(index, sizes, target)
            sizes = target
            np.testing.assert_array_equal(
                flat(index, sizes), flat(tuple(map(along, VARIABLES)), [6, 4, 12])
            )

    assert known_share(np.random.default_rng(seed), attempt) > 0.1


N, M = named("n"), named("m")
OPEN: dict[str, tuple[list[int | Size], list[int | Size]]] = {
    "joined": ([N, 4, 6], [N * 4, 6]),
    "apart": ([N * 4, 6], [N, 4, 2, 3]),
    "a batch apart": ([N, 24], [N, 4, 6]),
    "across": ([N, 4, 6], [N * 2, 12]),
    "flat": ([N, 4, M], [N * M * 4]),
    "from flat": ([N * M * 4], [N, 4, M]),
    "several groups": ([2, 3, N, M, 4], [6, N, M * 4]),
    "ones": ([1, N, 1, 4], [N, 2, 1, 2]),
}


@pytest.mark.parametrize("name", OPEN)
def test_reshapes_of_open_sizes(name: str) -> None:
    sizes, target = OPEN[name]
    variables = [Variable(str(k), size) for k, size in enumerate(sizes)]
    index = reshaped(tuple(map(along, variables)), sizes, target)
    for n in (1, 2, 5):
        counted = [evaluated(size, lambda name: n) for size in sizes]  # noqa: B023  called at once
        wanted = [evaluated(size, lambda name: n) for size in target]  # noqa: B023
        grid = dict(zip(variables, np.indices(counted), strict=True))
        expected = np.arange(np.prod(counted)).reshape(counted)
        np.testing.assert_array_equal(flat(index, wanted, grid, n), expected)


def test_reshapes_to_sizes_with_other_names() -> None:
    """What is reshaped keeps its number of elements: here m is 2 * n in every run."""
    variables = Variable("0", N), Variable("1", 24)
    index = reshaped(tuple(map(along, variables)), [N, 24], [M, 12])
    for n in (1, 2, 5):
        grid = dict(zip(variables, np.indices([n, 24]), strict=True))
        expected = np.arange(n * 24).reshape(n, 24)
        np.testing.assert_array_equal(flat(index, [2 * n, 12], grid, n), expected)


def test_reshapes_that_are_unknown() -> None:
    batch, row = along(Variable("0", N)), along(Variable("1", 24))
    with pytest.raises(Unknown):
        reshaped((batch, row), [N, 24], [24, N])


@SEEDS
def test_constants(seed: int) -> None:
    """Integers that are a sum of digits are found to be one, and others are not."""
    rng = np.random.default_rng(seed)
    for _ in range(COUNT):
        original = random_position(rng)
        array = numbers(original)
        fitted_position = fitted(array, VARIABLES)
        assert fitted_position is not None
        np.testing.assert_array_equal(numbers(fitted_position), array)
        changed_array = array.copy()
        changed_array[tuple(rng.integers(1, 3, 3))] += 1
        assert fitted(changed_array, VARIABLES) is None


@SEEDS
def test_substitutions(seed: int) -> None:
    def attempt(rng: np.random.Generator) -> None:
        original = random_position(rng)
        by: dict[Variable, Position] = {}
        for variable in VARIABLES:
            assert isinstance(variable.size, int)
            digit = random_digit(rng, VARIABLES[int(rng.integers(3))])
            assert isinstance(digit.size, int)
            start = int(rng.integers(variable.size))
            step = int(rng.choice([-1, 1, 2]))
            reach = step * (digit.size - 1)
            if 0 <= start + reach < variable.size and rng.random() < 0.7:
                by[variable] = normal_position(start, [Term(*digit, step)])
        grid = GRID | {variable: numbers(new_position) for variable, new_position in by.items()}
        np.testing.assert_array_equal(numbers(substituted(original, by)), numbers(original, grid))

    assert known_share(np.random.default_rng(seed), attempt) > 0.3
