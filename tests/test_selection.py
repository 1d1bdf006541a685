"""The short run has every option, and every pair of options where it is to have pairs."""

import itertools

import pytest
from support.backends import ALL_BACKENDS
from support.cases import case_named
from support.selection import (
    but_names,
    by_type,
    each_dtype,
    few,
    in_turn,
    long_unless,
    of_cases,
    of_names,
    on_backends,
    on_demand,
    some_of,
)

A, B, C = ("a", "b", "c", "d"), (0, 1, None), ("x", "y")


def in_short_run(parameter_sets):
    return [each.values for each in parameter_sets if not each.marks]


@on_demand
def test_types_that_represent_others():
    sets = each_dtype("float32", "float64", "uint8", "int8").args[1]
    assert [each.values for each in sets] == [("float32",), ("float64",), ("uint8",), ("int8",)]
    assert in_short_run(sets) == [("float32",), ("uint8",)]


@on_demand
def test_types_of_cases():
    """float16 has representative cases only: those of linear sampling."""
    linear, nearest = case_named("bilinear_zeros_edges"), case_named("nearest_zeros_edges")
    sets = of_cases(itertools.product((linear, nearest), ("float32", "float16")))
    assert in_short_run(sets) == [(linear, "float32"), (linear, "float16"), (nearest, "float32")]


@on_demand
def test_types_in_texts():
    rows = ["flow", "flow, float16", (2, "in 16 bits"), (2, "two"), long_unless(False, "slow")]
    sets = by_type(rows)
    assert [each.values for each in sets] == [
        ("flow",), ("flow, float16",), (2, "in 16 bits"), (2, "two"), ("slow",)
    ]  # fmt: skip
    assert in_short_run(sets) == [("flow",), (2, "two")]


def test_rows_of_names():
    rows = ["flow", (2, "warp"), ("warp", "flow"), long_unless(False, "slow", id="late")]
    sets = of_names(rows, ["warp", "slow"])
    assert [each.values for each in sets] == [("flow",), (2, "warp"), ("warp", "flow"), ("slow",)]
    assert in_short_run(sets) == [(2, "warp"), ("warp", "flow")]
    assert sets[-1].id == "late"
    assert in_short_run(but_names({"flow": 1, "warp": 2}, ["flow"])) == [("warp",)]
    for select in (of_names, but_names):
        with pytest.raises(AssertionError, match=r"no row has \{'wrap'\}"):
            select(["flow", "warp"], ["warp", "wrap"])


def test_options_of_a_product():
    sets = some_of(A, B, C)
    assert [each.values for each in sets] == list(itertools.product(A, B, C))
    chosen = in_short_run(sets)
    assert [*map(set, zip(*chosen, strict=True))] == [set(A), set(B), set(C)]
    assert len(chosen) <= 5  # of 24; 4 at least


def test_pairs_of_a_product():
    sets = some_of(A, B, C, together=2)
    assert [each.values for each in sets] == list(itertools.product(A, B, C))
    chosen = in_short_run(sets)
    for k, m in itertools.combinations(range(3), 2):
        assert {(row[k], row[m]) for row in chosen} == set(
            itertools.product((A, B, C)[k], (A, B, C)[m])
        )
    assert len(chosen) <= 15  # of 24; 12 at least


def test_pairs_of_what_there_is():
    """A pair that no case has is in none that is chosen, and what is part of another case isn't
    chosen.
    """
    cases = {
        "part": {"p": 1, "q": 2},
        "whole": {"p": 1, "q": 2, "r": [3]},
        "other": {"p": 2, "r": [3]},
    }
    assert sorted(few(cases)) == ["other", "whole"]


@pytest.mark.parametrize(
    ("first", "second", "expected"), [(A, B, 4), (B, A, 4), (A, A, 4), (C, A, 4), (A, (), 0)]
)
def test_options_in_turn(first, second, expected):
    sets = in_turn(first, second)
    assert [each.values for each in sets] == list(itertools.product(first, second))
    chosen = in_short_run(sets)
    assert len(chosen) == expected
    assert not chosen or [*map(set, zip(*chosen, strict=True))] == [set(first), set(second)]


def test_more_options_in_turn():
    assert len(in_short_run(in_turn(range(6), A, every=3))) == 8


def test_each_case_on_two_backends():
    cases = range(9)
    sets = on_backends(cases)
    assert sorted(each.values for each in sets) == sorted(itertools.product(ALL_BACKENDS, cases))
    chosen = in_short_run(sets)
    assert {backend for backend, _ in chosen} == set(ALL_BACKENDS)
    for case in cases:
        assert [backend == "function" for backend, k in chosen if k == case] == [True, False]
