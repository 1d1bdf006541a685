"""Select the parameters that every run of the tests has, and those of the long run only (the marker
`long`).

A test states this in its parameters: by `long_unless`, `of_names`, `in_turn` or `on_backends`, and
for element types by `each_dtype`, `of_cases` or `by_type`. The short run has no type that another
one represents (`is_representative`).

`in_turn` with 2 x 4 options, the short run's marked by *:

           b0  b1  b2  b3
    a0     *       *
    a1         *       *
"""

import itertools
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from onnx_ops.native import library

from .backends import ABSENT, ALL_BACKENDS, HAVE_EXTENSIONS

# Each type represents those whose kernels are written alike: one width of floats or integers
# represents all. Only the long run has bool, of which Col2Im alone has kernels of its own.
REPRESENTATIVE = ("float32", "uint8", "string")
# {words in the text of a parameter: the type that it is about}, for types that others represent
NAMED_TYPES = {"float16": "float16", "16 bits": "float16", "float64": "float64"}


def is_representative(
    op_type: str | None, dtype: str, grid_dtype: str | None = "float32", mode: str | None = None
) -> bool:
    """Whether an operator's kernels for these types represent others, which differ from them in
    widths only.

    float16 differs from float32, and bfloat16 from float16, by conversions alone, which
    tests/compiler/test_elements.py compares for every value: a linear GridSample represents all
    operators that do. mode: of sampling, if there is only one
    """
    if library.is_complete():  # then nothing is compiled, and every run has all types
        return True
    in_16_bits = (
        dtype == "float16" and op_type == "GridSample" and mode in (None, "bilinear", "linear")
    )
    # Im2Col moves elements, of any width alike.
    known = ("float32", "string") if op_type == "Im2Col" else REPRESENTATIVE
    is_known = dtype in known or in_16_bits
    return is_known and grid_dtype in (None, "float32")


def has_representative_types(
    op_type: str, signature: Mapping[str, str], mode: str | None = None
) -> bool:
    """Return `is_representative` for an operator and {type variable: element type}."""
    # An operator may have one type only.
    dtype = signature.get("T") or signature.get("T1") or "float32"
    return is_representative(op_type, dtype, signature.get("T2"), mode)


def long_unless(representative: bool, *values: Any, id: str | None = None) -> Any:
    """A parameter set for `pytest.mark.parametrize`, which only the long run has unless it is
    representative.
    """
    return pytest.param(*values, marks=() if representative else pytest.mark.long, id=id)


def each_dtype(*dtypes: str) -> pytest.MarkDecorator:
    """A mark for a test of the parameter `dtype`; the short run has the representative types."""
    sets = [long_unless(is_representative(None, dtype), dtype) for dtype in dtypes]
    return pytest.mark.parametrize("dtype", sets)


def of_cases(pairs: Iterable[tuple[Any, str]]) -> list[Any]:
    """Parameter sets (case, dtype); the short run has those that are representative for the case's
    operator and mode.
    """
    return [
        long_unless(
            is_representative(case.op_type, dtype, mode=case.attributes.get("mode")), case, dtype
        )
        for case, dtype in pairs
    ]


def by_type(rows: Iterable[Any]) -> list[Any]:
    """Parameter sets; the short run lacks those with a text that names a type that another one
    represents (NAMED_TYPES).

    rows: values, tuples of values, or parameter sets
    """
    return [in_long_run_by_type(as_parameter_set(row)) for row in rows]


def as_parameter_set(row: Any) -> Any:
    if hasattr(row, "marks"):
        return row
    return pytest.param(*(row if isinstance(row, tuple) else (row,)))


def in_long_run_by_type(row: Any) -> Any:
    text = " ".join(names_in(row))
    dtypes = [dtype for words, dtype in NAMED_TYPES.items() if words in text]
    return row if all(is_representative(None, dtype) for dtype in dtypes) else in_long_run(row)


def names_in(row: Any) -> list[str]:
    return [value for value in row.values if isinstance(value, str)]


def in_long_run(row: Any) -> Any:
    return pytest.param(*row.values, marks=[*row.marks, pytest.mark.long], id=row.id)


def of_names(rows: Iterable[Any], names: Iterable[str]) -> list[Any]:
    """Parameter sets; the short run has those with one of the names among their values.

    rows: as for `by_type`
    """
    sets, wanted = list(map(as_parameter_set, rows)), {*names}
    unknown = wanted.difference(*map(names_in, sets))
    assert not unknown, f"no row has {unknown}"
    return [row if wanted & {*names_in(row)} else in_long_run(row) for row in sets]


def but_names(rows: Iterable[Any], names: Iterable[str]) -> list[Any]:
    """Parameter sets of one name each; the short run lacks those of these names."""
    sets, others = list(map(as_parameter_set, rows)), {*names}
    present = {name for row in sets for name in names_in(row)}
    assert others <= present, f"no row has {others - present}"
    return of_names(sets, present - others)


def few(cases: Mapping[Any, Mapping[Any, Any]], together: int = 2) -> list[Any]:
    """Return names of {name: {axis: option}}, so that each pair of options that a case has is in
    one of theirs.

    together  the number of options: 1 for each option, 2 for each pair
    """
    sets = {
        name: {*itertools.combinations(sorted(map(repr, case.items())), together)}
        for name, case in cases.items()
    }
    left, chosen = set().union(*sets.values()), []
    mixed = sorted(
        sets, key=lambda name: zlib.crc32(repr(name).encode())
    )  # else most would have the first options
    for least in range(max(map(len, sets.values())), 0, -1):  # as many new ones as possible first
        for name in mixed:
            if len(sets[name] & left) >= least:
                chosen.append(name)
                left -= sets[name]
    return chosen


def some_of(*axes: Iterable[Any], together: int = 1) -> list[Any]:
    """Parameter sets of a product; the short run has few of them, with each option of each axis.

    together  as for `few`
    """
    rows = {
        tuple(k for k, _ in row): [v for _, v in row]
        for row in itertools.product(*map(enumerate, axes))
    }
    chosen = few({places: dict(enumerate(places)) for places in rows}, together)
    return [long_unless(places in chosen, *values) for places, values in rows.items()]


def in_turn(first: Any, second: Any, every: int | None = None) -> list[Any]:
    """Parameter sets of a product; the short run has each option of the longer axis with one of the
    other, in turn.

    every: have one in so many instead
    """
    every, rows = (
        every or min(len(first), len(second)),
        itertools.product(enumerate(first), enumerate(second)),
    )
    return [long_unless((k - j) % every == 0, a, b) for (k, a), (j, b) in rows]


def on_backends(cases: Sequence[Any]) -> list[Any]:
    """Parameter sets of the fixture `run` and of cases; the short run has the function and one
    other backend for each case.

    test_every_backend_equals_the_reference compares the backends, also in the short run.
    """
    first, *others = ALL_BACKENDS
    return [*(long_unless(True, first, case) for case in cases), *in_turn(others, cases)]


def each_on_backends(cases: Sequence[Any]) -> pytest.MarkDecorator:
    """A mark with `on_backends` for a test of `run` and `case`."""
    return pytest.mark.parametrize(("run", "case"), on_backends(cases), indirect=["run"], ids=str)


def each_in_turn(cases: Sequence[Any], name: str = "case") -> pytest.MarkDecorator:
    """A mark for a test of `run` and `name`; the short run has each case on one backend."""
    rows = in_turn(ALL_BACKENDS, cases)
    return pytest.mark.parametrize(("run", name), rows, indirect=["run"], ids=str)


def each_mode() -> pytest.MarkDecorator:
    """A mark for a test of `run`, `mode` and `align_corners` of GridSample; the short run has each
    option once.
    """
    rows = some_of(ALL_BACKENDS, ["nearest", "bilinear", "bicubic"], [0, 1])
    return pytest.mark.parametrize(("run", "mode", "align_corners"), rows, indirect=["run"])


def names_absent_backend(parameters: Iterable[Any]) -> bool:
    """Return whether one of a test's parameters, or what it contains, is a backend that can't run
    here.
    """
    values = [
        v.values() if isinstance(v, dict) else v if isinstance(v, tuple | list) else [v]
        for v in parameters
    ]
    return any(isinstance(v, str) and v in ABSENT for each in values for v in each)


needs_extensions = pytest.mark.skipif(not HAVE_EXTENSIONS, reason="needs onnxruntime-extensions")
# Marks tests of compilation on demand, which does not happen where the library has every kernel.
on_demand = pytest.mark.skipif(library.is_complete(), reason="the library has every kernel")
