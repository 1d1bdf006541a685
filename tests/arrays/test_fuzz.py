"""A fixed number of the calls that `python scripts/fuzzing/fuzz.py` draws without end."""

import numpy as np
import pytest
from support import fuzzing
from support.processes import python
from support.selection import each_dtype, long_unless

from onnx_ops.declaration import dtypes
from onnx_ops.registry import OPERATORS


@pytest.mark.parametrize(
    ("count", "types", "grids"),
    [
        (10, ["float32", "string"], ["float32"]),
        long_unless(False, 700, fuzzing.FEW_TYPES, fuzzing.FEW_GRIDS),
    ],
    ids=["10", "700"],
)
def test_a_fixed_slice(count, types, grids):
    done = fuzzing.verify_calls(0, count, fuzzing.calls([*types], grids))
    assert done >= 2.8 * count, "cases: each is one call on one backend"


@each_dtype(*dtypes.FLOATS)
def test_nan_is_the_same_in_every_type(dtype):
    """A reference that only moves elements returns them in their own type, in which NumPy may not
    know NaN.
    """
    y = np.array([np.nan, 1], dtypes.TABLE[dtype].numpy)
    fuzzing.assert_result(None, dtype, y, y, None)
    with pytest.raises(AssertionError):
        fuzzing.assert_result(None, dtype, y, y[::-1], None)


@pytest.mark.long
def test_with_checked_indices():
    """The fuzzer with checked indices; it draws few calls, since it compiles everything again."""
    script = (
        "from support import fuzzing; fuzzing.verify_calls(1, 40, "
        "fuzzing.calls(['float32'], ['float32']));"
    )
    script += "from onnx_ops.compiler.bounds import checks; print('checks', checks())"
    done = python(script, ONNX_OPS_BOUNDSCHECK="1")
    assert int(done.stdout.split("checks")[1]) > 10_000


def changed(y, mistake):
    """An array with a mistake: in its shape, in its last row, or a little one in one element."""
    if mistake in ("shape", "row"):
        return y[..., None] if mistake == "shape" else y[:-1]
    y.flat[0] += 1e-2 * abs(y).max() + 1e-2 if mistake == "value" else 2**-22 * y.flat[0]
    return y


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "mistake"),
    [
        ("Col2Im", "value"),
        ("Col2Im", "shape"),
        ("Col2Im", "bits"),
        ("RoiAlign", "value"),
        ("NMSRotated", "row"),
    ],
)
def test_a_wrong_result_is_found(name, mistake, monkeypatch):
    """The fuzzer must detect a mistake of one way to run an operator, for one kind of call."""
    call_function, declared = fuzzing.functions.call, next(o for o in OPERATORS if o.name == name)

    def call_with_mistake(operator, *inputs, **attributes):
        y = call_function(operator, *inputs, **attributes)
        return changed(y, mistake) if y.size > 3 and len(attributes) > 1 else y

    monkeypatch.setattr(fuzzing.functions, "call", call_with_mistake)
    with pytest.raises(AssertionError):
        fuzzing.verify_calls(0, 300, fuzzing.calls(["float32"], ["float32"], [declared]))
