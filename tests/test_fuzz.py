"""A fixed number of the calls that `python scripts/fuzz.py` draws without end."""

import os
import subprocess
import sys
from pathlib import Path

import fuzz
import numpy as np
import pytest
from support import fuzzing

SCRIPT = Path(fuzz.__file__)


@pytest.mark.parametrize(
    ("count", "grids"), [(100, ["float32"]), pytest.param(700, fuzzing.FEW_GRIDS, marks=pytest.mark.long)]
)
def test_a_fixed_slice(count, grids):
    done = fuzz.examples(0, count, fuzzing.calls(fuzzing.FEW_TYPES, grids))
    assert done >= 2.8 * count, "cases: each is one call on one backend"


@pytest.mark.long
def test_with_checked_indices():
    """The fuzzer with checked indices; it draws few calls, since it compiles everything again."""
    environment = {**os.environ, "ONNX_OPS_BOUNDSCHECK": "1"}
    script = "import fuzz; from support import fuzzing; fuzz.examples(1, 40, fuzzing.calls(['float32'], ['float32']));"
    script += "from onnx_ops.compiler.bounds import checks; print('checks', checks())"
    here = os.pathsep.join([str(SCRIPT.parent), str(Path(__file__).parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", script], env={**environment, "PYTHONPATH": here}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert int(done.stdout.split("checks")[1]) > 10_000


@pytest.mark.long
@pytest.mark.parametrize("mistake", ["value", "shape", "bits"])
def test_a_wrong_result_is_found(mistake, monkeypatch):
    """The fuzzer must detect a backend that is off by a little, in one element, for one kind of call."""
    call_function = fuzzing.functions.call

    def call_with_mistake(operator, *inputs, **attributes):
        y = call_function(operator, *inputs, **attributes)
        if operator.name == "Col2Im" and y.dtype == np.float32 and y.size > 3 and "strides" in attributes:
            y = y[..., None] if mistake == "shape" else y
            y.flat[0] += {"value": 1e-2 * abs(y).max() + 1e-2, "shape": 0, "bits": 2**-22 * y.flat[0]}[mistake]
        return y

    monkeypatch.setattr(fuzzing.functions, "call", call_with_mistake)
    with pytest.raises(AssertionError):
        fuzz.examples(0, 300, fuzzing.calls(["float32"], draws=[fuzzing.col2im]))
