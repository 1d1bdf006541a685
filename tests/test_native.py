"""The C library without ONNX Runtime, under sanitizers: each call and each allocation fails in turn (tests/native)."""

import sys

import numpy as np
import pytest
from support import cases, native, own_operators

from onnx_ops.operators import OPERATORS, declaration_of
from onnx_ops.runtime import library

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux" or not native.compiler(), reason="needs Linux and gcc"),
    pytest.mark.skipif(not library.have_numba(), reason="there is no Numba"),
]
TOPK, ABOVE = (declaration_of(each) for each in (own_operators.topk, own_operators.above))
X = np.random.default_rng(0).standard_normal((2, 5)).astype(np.float32)
OWN = {
    "topk": (TOPK, [X, np.array([2]), None], {}),
    "topk_of_halves": (TOPK, [X.astype(np.float16), np.array([2]), X[0].astype(np.float16)], {"scale": -0.5}),
    "topk_refuses": (TOPK, [X, np.array([6])], {"axes": [-1]}),
    "above": (ABOVE, [X.reshape(-1)], {"limit": 0.5}),
}
GROUPS = [cases.COL2IM, cases.GRID_SAMPLE, cases.IM2COL, cases.ATTENTION, cases.DEFORM_CONV, cases.FUSED]
REFUSED = {  # name: (case, attributes, rule)
    "negative_pads": ("overlapping", {"pads": [-1, 0, 0, 0]}, "pads = [-1, 0, 0, 0]: must be 2 to 28 numbers"),
    "a_float": ("overlapping", {"pads": [0.5] * 4}, "pads = (not of kind INTS): must be a list of integers"),
    "a_text": ("overlapping", {"strides": b"\xff" * 500}, "strides = (not of kind INTS): must be a list of integers"),
    "many_numbers": ("overlapping", {"strides": [2] * 500}, "... 2, 2,"),
    "other_blocks": ("overlapping", {"strides": [2, 3]}, "axis 2 must be the number of blocks, 12"),
    "no_such_mode": ("bilinear_zeros_edges", {"mode": "\0" * 500}, "mode = '"),
    "no_text": ("bilinear_zeros_edges", {"mode": b"\xff"}, "mode = (not of kind STRING)"),
}
RULES = {"topk_refuses": "k = [6]: must lie in", **{name: rule for name, (*_, rule) in REFUSED.items()}}


def described(groups):
    """{name: description} of the cases, of operators of one's own and of nodes that are refused."""
    content = {name: native.described(*parts) for name, parts in OWN.items()}
    for case in (case for group in groups for case in group):
        content[f"{case.op_type}-{case.name}"] = native.described(
            case.operator, case.inputs("float32"), case.attributes
        )
    by_name = {case.name: case for case in cases.COL2IM + cases.GRID_SAMPLE}
    for name, (case, attributes, _) in REFUSED.items():
        content[name] = native.described(by_name[case].operator, by_name[case].inputs("float32"), attributes)
    return {name: each for name, each in content.items() if len(each) < 2**16}


@pytest.fixture(scope="module")
def harness(tmp_path_factory):
    used = {case.operator for group in GROUPS for case in group}
    operators = [each for each in OPERATORS if each in used] + [TOPK, ABOVE]
    return native.build(tmp_path_factory.mktemp("harness"), operators, ["float16", "float32"])


def test_registration(harness):
    """After an error another try makes up for it, with every operator once."""
    status, lines = native.run(harness, "registration")
    assert findings(lines) == []
    assert status == 0, lines[-30:]
    assert int(lines[-1].split()[0]) > 150


def test_a_library_for_other_cpus(tmp_path):
    harness = native.build(tmp_path, [cases.IM2COL[0].operator], ["float32"], sanitizers=[], cpu="a-later-one")
    assert native.run(harness, "run") == (2, ["CPU: can't run this library, which has a-later-one"])


def findings(lines):
    return [line for line in lines if line.startswith("FINDING")]


@pytest.mark.parametrize(
    "groups", [pytest.param([group[1:2] for group in GROUPS], id="some"),
               pytest.param(GROUPS, id="all", marks=pytest.mark.long)],
)  # fmt: skip
def test_faults(harness, tmp_path, groups):
    """An error states its cause, nothing is leaked, no result is wrong, and the next node is made and run as before."""
    nodes = described(groups)
    status, lines = native.run(harness, "faults", *native.write(tmp_path, nodes))
    assert findings(lines) == []
    assert status == 0, lines[-30:]
    assert int(lines[-1].split()[0]) > 200 * len(nodes)


def test_without_faults(harness, tmp_path):
    """What a node is refused for, or that it is computed, whatever is known of its inputs when it is made."""
    paths = native.write(tmp_path, described(GROUPS))
    status, lines = native.run(harness, "run", *paths)
    assert status == 0, lines[-30:]
    assert len(lines) == 4 * len(paths) + 1
    for path in paths:
        outcomes = {line.partition(": ")[2] for line in lines if line.startswith(f"{path}, ")}
        rule = RULES.get(path.stem)
        for outcome in outcomes:
            assert rule in outcome if rule else outcome == "computed", outcome
