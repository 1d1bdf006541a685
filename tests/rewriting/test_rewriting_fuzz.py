"""A fixed number of the edited models that scripts/fuzzing/fuzz_rewriting.py makes."""

from types import SimpleNamespace

import numpy as np
import pytest
from onnx import numpy_helper
from support import edited_models, model_edits, rewriting_fuzzer
from support.backends import ORT_VERSION

pytestmark = pytest.mark.any_library


def examined(seed, count, without=()):
    """Return the Report on some edited models.

    without  names of seeds that are left out, besides those of PyTorch
    """
    report = rewriting_fuzzer.Report(
        SimpleNamespace(seed=seed, without=[*without, *edited_models.BY_TORCH])
    )
    for case in range(count):
        report.examine(case)
    totals = report.totals
    assert totals.get("left out", 0) <= 0.05 * totals.get("elements", 0)
    assert totals.get("without an oracle", 0) <= count // 50
    return report


# The short run has each seed once.
@pytest.mark.parametrize("count", [19, pytest.param(1500, marks=pytest.mark.long)])
def test_a_fixed_slice(count, monkeypatch):
    if count < 1000:  # only kernels that other tests compile, too
        monkeypatch.setattr(model_edits, "FLOATS", ["float32"])
    # ONNX Runtime's AffineGrid before 1.25 reads outside of a theta that hasn't the batch or axes
    # of its size.
    without = ["affine_grid of ai.onnx"] if ORT_VERSION < (1, 25) else []
    report = examined(0, count, without)
    assert not report.counts
    assert set(report.replaced) == set(edited_models.SEEDS) - {*without, *edited_models.BY_TORCH}
    assert sum(replaced for _, replaced in report.replaced.values()) > count // 4


def change_attribute(proto):
    for node in proto.graph.node:
        if node.op_type == "Im2Col":
            next(a for a in node.attribute if a.name == "dilations").ints[0] += 1


def state_a_wrong_size(proto):
    proto.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 17


def leave_a_constant(proto):
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(1), "unused"))


def fail(proto):
    raise KeyError("x")


MISTAKES = {
    change_attribute: {
        "optimized: values",
        "optimized: shape",
        "optimized: refuses",
        "optimized: doesn't open",
    },
    state_a_wrong_size: {"onnx refuses the optimized model"},
    leave_a_constant: {"unused constants"},
    fail: {"optimize raises"},
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake, monkeypatch):
    def rewritten(proto):
        optimized, findings = original(proto)
        if any(finding.operator for finding in findings):
            mistake(optimized)
        return optimized, findings

    original = rewriting_fuzzer.rewritten
    monkeypatch.setattr(rewriting_fuzzer, "rewritten", rewritten)
    report = examined(0, 2, without=[name for name in edited_models.SEEDS if name != "unfold"])
    assert MISTAKES[mistake] & {check for check, *_ in report.counts}
