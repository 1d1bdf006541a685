"""What a model costs before it runs grows with the model, whatever it is made of.

Instructions of Python are counted. `python scripts/fuzzing/fuzz_growth.py` draws other models.
"""

from pathlib import Path

import numpy as np
import onnx
import pytest
from support.families import (
    DOORS,
    FAMILIES,
    SHAPE,
    STRANGE,
    Door,
    inspect,
    lower,
    model,
    optimize,
    register,
)
from support.growth import assert_steps_linear

from onnx_ops.model.sessions import BuiltinSession


@pytest.mark.long
@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
@pytest.mark.parametrize("name", FAMILIES)
def test_steps_grow_with_a_family(name: str, door: Door, tmp_path: Path) -> None:
    _, count = FAMILIES[name]
    assert_steps_linear(lambda factor: door(model([(name, factor * count)]), tmp_path), 1)


@pytest.mark.parametrize(
    "door",
    [
        register,
        *(pytest.param(door, marks=pytest.mark.long) for door in (lower, optimize, inspect)),
    ],
)
def test_steps_grow_with_all_families(door: Door, tmp_path: Path) -> None:
    assert_steps_linear(lambda count: door(model((name, count) for name in FAMILIES), tmp_path), 3)


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in STRANGE])
def test_families_are_models_that_run(name: str) -> None:
    """Else a door may be left at once."""
    proto = model([(name, 3)])
    onnx.checker.check_model(proto)
    zeros = np.zeros(SHAPE, np.float32)
    feeds = {value.name: zeros for value in proto.graph.input}
    feeds |= {"open": np.zeros((2, 3), np.float32), "flag": np.array(True)}
    (y,) = BuiltinSession(proto.SerializeToString()).run(None, feeds)
    assert y.shape == (1, 1, 8, 8)
