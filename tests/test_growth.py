"""The growth of time is seen (support/growth.py)."""

import pytest
from support.growth import assert_linear, assert_steps_linear


def steps(count: int) -> None:
    for _ in range(count):
        pass


@pytest.mark.long  # the short run has it in tests that assert it of the package
def test_linear_work() -> None:
    assert_linear(lambda size: lambda: steps(1000 * size), 100)


@pytest.mark.long  # the short run has that of steps
def test_quadratic_work_is_seen() -> None:
    with pytest.raises(AssertionError):
        assert_linear(lambda size: lambda: steps(size * size), 500)


def test_linear_steps() -> None:
    assert_steps_linear(lambda size: lambda: steps(size), 100)


def test_quadratic_steps_are_seen() -> None:
    with pytest.raises(AssertionError):
        assert_steps_linear(
            lambda size: lambda: [None for _ in range(size) for _ in range(size)], 100
        )
