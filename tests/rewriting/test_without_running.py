"""The mode of `optimize` in which no nodes run, for `onnx-ops inspect`."""

from collections.abc import Callable
from dataclasses import replace

import onnx
import pytest
from onnx import helper
from support.by_hand import deform_conv, sampler
from support.cases import case_named, model
from support.rewriting_cases import ATTENTIONS, UNFOLDS, folds_of_ones
from support.selection import by_type, long_unless
from support.written import affine_grid, attention, frames, unfold, windows

from onnx_ops.rewriting import NOT_RUN, folding, rewritten, trial
from onnx_ops.rewriting.finding import Finding


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*args: object) -> None:
        raise AssertionError("nodes run")

    for module in (folding, trial):
        monkeypatch.setattr(module, "run_onnx_runtime", run)
        monkeypatch.setattr(module, "run_reference", run)


def found(proto: onnx.ModelProto) -> list[Finding]:
    _, findings = rewritten(proto, runs_nodes=False)
    return findings


def constant() -> onnx.ModelProto:
    case = case_named("overlapping")
    names = [i.name for i in case.operator.inputs]
    return model("", "Col2Im", case.inputs("float32"), case.attributes, constants=names)


FOUND_ALIKE: dict[str, Callable[[], onnx.ModelProto]] = {
    **{
        f"unfold, {name}": lambda settings=settings: unfold(**settings)
        for name, settings in UNFOLDS.items()
    },
    "unfold, near miss": lambda: windows(blocks=lambda starts: [0, 1, 3, 4]),
    "affine grid": lambda: affine_grid(opset=20, sample="linear"),
    "attention": lambda: attention(**ATTENTIONS["two levels"]),
    "frames": frames,
}


@pytest.mark.parametrize("name", by_type(FOUND_ALIKE))
def test_patterns_are_found_alike(name: str, nothing_runs: None) -> None:
    """The model stays as it is."""
    proto = FOUND_ALIKE[name]()
    before = proto.SerializeToString()
    findings = found(proto)
    assert findings
    tried = rewritten(proto)[1]
    assert [replace(f, untried=None) for f in findings] == [replace(f, untried=None) for f in tried]
    assert {f.untried for f in findings} <= {NOT_RUN, None}
    assert proto.SerializeToString() == before


@pytest.mark.parametrize(
    ("make", "operator"),
    [
        long_unless(False, deform_conv, "DeformConv", id="deform_conv"),
        long_unless(True, sampler, "GridSample", id="sampler"),
        long_unless(True, constant, "Constant", id="constant"),
    ],
)
def test_what_optimize_runs_is_reported(
    make: Callable[[], onnx.ModelProto],
    operator: str,
    nothing_runs: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (finding,) = found(make())
    assert (finding.operator, finding.untried) == (operator, NOT_RUN)
    monkeypatch.undo()
    (decided,) = rewritten(make())[1]
    assert (decided.operator, decided.node, decided.untried) == (operator, finding.node, None)


def test_values_that_follow_from_constants(nothing_runs: None) -> None:
    """They are unknown, as the constants are; nothing else follows from that."""
    findings = found(folds_of_ones(2, 3))
    assert [(finding.pattern, finding.operator, finding.untried) for finding in findings] == [
        ("constant", "Constant", NOT_RUN)
    ] * 2


def test_a_pattern_that_depends_on_what_nodes_compute(
    nothing_runs: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason names the constant."""
    proto = attention(**ATTENTIONS["two levels"])
    doubled = next(node for node in proto.graph.node if node.op_type == "Mul")
    two = helper.make_node("ReduceMax", [doubled.input[1]], ["two"], keepdims=0)
    doubled.input[1] = "two"
    proto.graph.node.insert(0, two)
    reasons = [
        finding.reason for finding in found(proto) if finding.pattern == "deformable_attention"
    ]
    assert len(reasons) == 1
    assert "; optimize first computes " in reasons[0]
    monkeypatch.undo()
    assert [finding.reason for finding in rewritten(proto)[1]] == [None]
