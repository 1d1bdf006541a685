"""Compare arrays with expected arrays, within tolerances."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..declaration import dtypes

# For whole models, relative to the largest expected value. Other types must be equal.
TOLERANCES = {
    "float16": 2**-9, "bfloat16": 2**-6, "float32": 1e-4, "float64": 1e-7, "complex64": 1e-4,
    "complex128": 1e-7,
}  # fmt: skip


@dataclass(frozen=True)
class Difference:
    """The result of a comparison.

    largest   the largest difference, in the unit of the values; for strings and booleans, the
              number of different ones
    allowed   the largest allowed difference
    problem   the reason why the arrays can't be compared by numbers, or ""
    wrong     a mask of elements that differ by more than allowed, including misplaced infinities
              and NaNs
    index     of the wrong element with the largest difference; None if there is none
    value     the element there
    expected  the expected element there
    """

    largest: float
    allowed: float
    problem: str = ""
    wrong: np.ndarray = field(default_factory=lambda: np.array(True), compare=False)
    index: tuple[int, ...] | None = None
    value: Any = None
    expected: Any = None

    @property
    def ok(self) -> bool:
        return not self.wrong.any()


def difference(
    actual: np.ndarray, expected: np.ndarray, tolerances: Mapping[str, float] = TOLERANCES
) -> Difference:
    """Compare two arrays.

    tolerances  {data type: allowed difference relative to the largest expected value}; other types
                must be equal
    """
    if actual.shape != expected.shape:
        return Difference(
            np.inf, 0, f"shape {list(actual.shape)} instead of {list(expected.shape)}"
        )
    name = dtypes.name_of(expected)
    if dtypes.name_of(actual) != name:
        return Difference(np.inf, 0, f"{dtypes.name_of(actual)} instead of {name}")
    differs = np.asarray(actual != expected)
    if expected.dtype.kind in "OUSb":
        return Difference(
            int(np.count_nonzero(differs)), 0, "", differs, *_first(differs, actual, expected)
        )
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    values, exact = actual.astype(wide), expected.astype(wide)
    differs &= ~(np.isnan(values) & np.isnan(exact))
    with np.errstate(all="ignore"):
        distance = np.where(differs, np.abs(values - exact), 0)
    distance[np.isnan(distance)] = np.inf
    if name in dtypes.INTEGERS:
        distance[differs] = np.maximum(distance[differs], 1)  # large ones are rounded here
    scale = float(np.abs(exact[np.isfinite(exact)]).max(initial=0))
    allowed = tolerances[name] * scale if name in tolerances else 0
    largest = float(distance.max(initial=0))
    problem = "infinities or NaNs in other places" if np.isinf(largest) else ""
    largest = int(largest) if name in dtypes.INTEGERS else largest
    wrong = (distance > allowed) | np.isinf(distance)  # also with an infinite tolerance
    return Difference(
        largest, allowed, problem, wrong, *_first(np.where(wrong, distance, 0), actual, expected)
    )


def shown(value: Any) -> str:
    """Return the text of an element, with NaN as documents write it."""
    return str(value).replace("nan", "NaN") if value != value else str(value)


def _first(differences: np.ndarray, actual: np.ndarray, expected: np.ndarray) -> tuple[Any, ...]:
    """Return (index, value, expected value) at the largest of the differences, or ()."""
    if not differences.any():
        return ()
    index = np.unravel_index(differences.argmax(), differences.shape)
    return tuple(map(int, index)), actual[index], expected[index]
