"""Integers that depend on open sizes agree with computations in which these sizes have values."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.arithmetic import VALUES, filled
from support.growth import assert_steps_linear

from onnx_ops.rewriting.reading.integers import sliced
from onnx_ops.rewriting.sizes import named, never_negative, origins, quotient, size_of

pytestmark = pytest.mark.any_library


def parse(text):
    """The size that a formula states."""
    return eval(text, {}, {name: named(name) for name in VALUES})


formulas = st.recursive(
    st.sampled_from(["h", "w", "n", "1", "3", "0"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.tuples(inner, st.sampled_from([1, 2, 5])).map(lambda t: f"({t[0]} // {t[1]})"),
        inner.map(lambda t: f"(-{t})"),
    ),
    max_leaves=8,
)


@given(formulas)
def test_formulas(text):
    assert filled(parse(text)) == eval(text, {}, dict(VALUES))


@given(formulas, formulas)
def test_equal_sizes_are_equal_numbers(one, other):
    a, b = parse(one), parse(other)
    if a == b:
        for sizes in (VALUES, {"h": 1, "w": 2, "n": 5}, {"h": 20, "w": 3, "n": 1}):
            assert filled(a, sizes) == filled(b, sizes)
    assert (a == b) == (repr(a) == repr(b))


@given(formulas, formulas)
def test_quotients(one, other):
    a, b = parse(one), parse(other)
    assert b == 0 or quotient(a * b, b) in (a, None)
    result = quotient(a, b)
    for sizes in (VALUES, {"h": 1, "w": 2, "n": 5}, {"h": 20, "w": 3, "n": 1}):
        assert result is None or filled(result, sizes) * filled(b, sizes) == filled(a, sizes)


def test_quotients_that_are_certain():
    assert quotient(parse("6*n*h*h + 4*h"), parse("2*h")) == parse("3*n*h + 2")
    assert quotient(parse("n*(h + 1)"), parse("n")) == parse("h + 1")
    assert (quotient(parse("n + 1"), parse("n + 1")), quotient(0, 4), quotient(12, 4)) == (1, 0, 3)


def test_quotients_that_are_none():
    for one, other in (
        ("n", "2"),
        ("n", "h"),
        ("2*n", "n*h"),
        ("n + h", "n"),
        ("6", "4"),
        ("n", "0"),
    ):
        assert quotient(parse(one), parse(other)) is None


@given(formulas)
@example("(h - 2) // 2")
@example("h * ((h - 2) // 2) + h")
def test_what_is_never_negative(text):
    if never_negative(parse(text)):
        for sizes in ({"h": 1, "w": 1, "n": 1}, {"h": 9, "w": 1, "n": 1}, {"h": 1, "w": 1, "n": 9}):
            assert filled(parse(text), sizes) >= 0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("(h - 1) // 2 + 1", "(h + 1) // 2"),
        ("(2*h + 4) // 2", "h + 2"),
        ("h*(w + 1) - h", "w*h"),
        ("((h + 2) - 2 - 1) // 2 + 1", "(h + 2 - 1*(3 - 1) - 1) // 2 + 1"),
        ("((h + 1) // 2 + 1) // 2", "(h + 3) // 4"),
        ("(4*n + (h*w - 1) // 3 + 2*w) // 5", "(h*w + 12*n + 6*w - 1) // 15"),
        ("((h + w) // 2 + h // 3) // 4", "(h // 3 + (h + w) // 2) // 4"),
    ],
)
def test_sizes_that_are_the_same(one, other):
    assert parse(one) == parse(other)


FAR = 2**31 - 1


@given(
    st.sampled_from([-FAR - 1, -FAR, -5, -2, -1, 0, 1, 3, 9, FAR]),
    st.sampled_from([-(2**63), -FAR, -6, -2, -1, 0, 2, 8, FAR, 2**63 - 1]),
    st.sampled_from([-3, -2, -1, 1, 2, 3]),
    st.sampled_from(["h", "h + 2", "2*h", "h + 9", "7"]),
)
def test_a_slice_of_an_open_size(start, end, step, text):
    """What is known of it holds for each value of the size, for which test_rewriting_facts.py asks
    ONNX Runtime.
    """
    try:
        first, count = sliced(parse(text), start, end, step)
    except ValueError:
        return
    for h in (0, 1, 2, 3, 7, 12):
        its_first, its_count = sliced(eval(text, {}, {"h": h}), start, end, step)
        assert filled(count, {"h": h}) == its_count
        assert its_count == 0 or filled(first, {"h": h}) == its_first


@pytest.mark.parametrize(
    ("start", "end", "step", "expected"),
    [
        (-1, -(2**63) + 1, -1, ("h - 1", "h")),
        (0, 2**63 - 1, 2, ("0", "(h + 1) // 2")),
        (-1, -FAR, -2, ("h - 1", "(h + 1) // 2")),
        (0, -1, 1, None),
        (1, FAR, 1, None),
        (-2, -(2**63), -1, None),
        (-1, FAR, -1, None),
    ],
)
def test_slices_of_an_open_size_that_are_known(start, end, step, expected):
    if expected is None:  # of a size of 0 or 1 it would be another one
        with pytest.raises(ValueError, match=r"outside|the first element"):
            sliced(parse("h"), start, end, step)
    else:
        assert sliced(parse("h"), start, end, step) == tuple(map(parse, expected))


def test_what_a_size_depends_on_twice_is_looked_at_once():
    def squares(count):
        def work():
            size = size_of("x", 0)
            for _ in range(count):
                size = size * size
            assert {*origins(size)} == {("x", 0)}

        return work

    assert_steps_linear(squares, 5)
