"""Compare two arrays within a tolerance."""

from dataclasses import dataclass

import numpy as np

from .. import dtypes

# For whole models, relative to the largest expected value. Other types must be equal.
TOLERANCE = {
    "float16": 2**-9, "bfloat16": 2**-6, "float32": 1e-4, "float64": 1e-7, "complex64": 1e-4, "complex128": 1e-7,
}  # fmt: skip


@dataclass(frozen=True)
class Difference:
    """The result of a comparison.

    largest  the largest difference, in the unit of the values; for strings and booleans, how many differ
    problem  why the arrays cannot be compared by numbers, or ""
    """

    largest: float
    allowed: float
    problem: str = ""

    @property
    def ok(self):
        return not self.problem and self.largest <= self.allowed


def difference(actual, reference, tolerance=None):
    """Compare two arrays. `tolerance` is relative to the largest |reference|, by default TOLERANCE of the type."""
    if actual.shape != reference.shape:
        return Difference(np.inf, 0, f"shape {list(actual.shape)} instead of {list(reference.shape)}")
    name = dtypes.name_of(reference)
    if dtypes.name_of(actual) != name:
        return Difference(np.inf, 0, f"{dtypes.name_of(actual)} instead of {name}")
    if reference.dtype.kind in "OUSb":
        return Difference(int((actual != reference).sum()), 0)
    if name not in TOLERANCE:
        differences = [abs(int(a) - int(b)) for a, b in zip(actual.flat, reference.flat, strict=True) if a != b]
        return Difference(max(differences, default=0), 0)
    wide = np.complex128 if name.startswith("complex") else np.float64
    actual, reference = actual.astype(wide), reference.astype(wide)
    same = (actual == reference) | (np.isnan(actual) & np.isnan(reference))
    if not np.isfinite(actual[~same]).all() or not np.isfinite(reference[~same]).all():
        return Difference(np.inf, 0, "infinities or NaNs in other places")
    scale = np.abs(reference[np.isfinite(reference)]).max(initial=0)
    largest = np.abs(actual[~same] - reference[~same]).max(initial=0)
    return Difference(float(largest), float((TOLERANCE[name] if tolerance is None else tolerance) * scale))


def nearly(actual, expected):
    """Return whether arrays differ by rounding only, which may change integers and booleans, too.

    At most 1 % of the elements may be further off than 1 % of the largest one.
    """
    if actual.shape != expected.shape:
        return False
    if expected.dtype.kind in "OUSb":
        return np.mean(actual != expected) <= 0.01 if expected.size else True
    actual, expected = actual.astype(np.float64), expected.astype(np.float64)
    allowed = 0.01 * np.abs(expected[np.isfinite(expected)]).max(initial=0)
    return np.count_nonzero(~np.isclose(actual, expected, 0, allowed, equal_nan=True)) <= 0.01 * expected.size
