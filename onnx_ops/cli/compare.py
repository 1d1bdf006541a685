"""How far one array is from another, and whether that is near enough."""

from dataclasses import dataclass

import numpy as np

from .. import dtypes

# Of the largest expected value, for whole models; that of other types is 0.
TOLERANCE = {
    "float16": 2**-9, "bfloat16": 2**-6, "float32": 1e-4, "float64": 1e-7, "complex64": 1e-4, "complex128": 1e-7,
}  # fmt: skip


@dataclass(frozen=True)
class Difference:
    """largest: in the unit of the values; of strings and booleans, how many differ. problem: why there is no number."""

    largest: float
    allowed: float
    problem: str = ""

    @property
    def ok(self):
        return not self.problem and self.largest <= self.allowed


def difference(got, expected, tolerance=None):
    """Of two arrays; `tolerance` in units of the largest |expected|, by default TOLERANCE of the type."""
    if got.shape != expected.shape:
        return Difference(np.inf, 0, f"shape {list(got.shape)} instead of {list(expected.shape)}")
    name = dtypes.name_of(expected)
    if dtypes.name_of(got) != name:
        return Difference(np.inf, 0, f"{dtypes.name_of(got)} instead of {name}")
    if expected.dtype.kind in "OUSb":
        return Difference(int((got != expected).sum()), 0)
    if name not in TOLERANCE:
        apart = [abs(int(a) - int(b)) for a, b in zip(got.flat, expected.flat, strict=True) if a != b]
        return Difference(max(apart, default=0), 0)
    wide = np.complex128 if name.startswith("complex") else np.float64
    got, expected = got.astype(wide), expected.astype(wide)
    same = (got == expected) | (np.isnan(got) & np.isnan(expected))
    if not np.isfinite(got[~same]).all() or not np.isfinite(expected[~same]).all():
        return Difference(np.inf, 0, "infinities or NaNs in other places")
    scale = np.abs(expected[np.isfinite(expected)]).max(initial=0)
    largest = np.abs(got[~same] - expected[~same]).max(initial=0)
    return Difference(float(largest), float((TOLERANCE[name] if tolerance is None else tolerance) * scale))
