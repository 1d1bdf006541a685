"""Sessions pass the node tests that the onnx package ships, some of which models/ has, too."""

import functools
from importlib import import_module

import numpy as np
import pytest
from support.backends import quiet, run_session

import onnx_ops

if np.__version__.startswith("1."):
    pytest.skip("onnx's own cases need NumPy 2", allow_module_level=True)


@functools.cache
def node_cases():
    from onnx.backend.test.case import node

    # Importing a module computes its cases; `node.collect_testcases` does that for all operators,
    # which takes seconds.
    for module in ("col2im", "deformconv", "gridsample", "roialign"):
        import_module(f"{node.__name__}.{module}")
    names = ("col2im", "deform_conv", "gridsample", "roialign")
    return {c.name: c for c in node._NodeTestCases if any(name in c.name for name in names)}


@pytest.mark.parametrize("name", node_cases())
def test_unmodified(name, kernels_made):
    assert_passes(node_cases()[name], node_cases()[name].model, kernels_made)


def assert_passes(case, proto, kernels_made):
    session = onnx_ops.InferenceSession(proto.SerializeToString(), quiet())
    assert len(kernels_made) == 1
    for inputs, (expected,) in case.data_sets:
        np.testing.assert_allclose(
            run_session(session, inputs), expected, rtol=case.rtol, atol=case.atol
        )
