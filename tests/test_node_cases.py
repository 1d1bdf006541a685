"""Sessions pass the node tests that the onnx package ships, some of which models/ has, too."""

import functools
from importlib import import_module

import numpy as np
import onnx
import pytest
from support.backends import quiet, run_session

import onnx_ops

if np.__version__.startswith("1."):
    pytest.skip("onnx's own cases need NumPy 2", allow_module_level=True)


@functools.cache
def node_cases():
    from onnx.backend.test.case import node

    # Importing a module computes its cases; `node.collect_testcases` does that for all operators, which takes seconds.
    for module in ("col2im", "deformconv", "gridsample", "roialign"):
        import_module(f"{node.__name__}.{module}")
    names = ("col2im", "deform_conv", "gridsample", "roialign")
    return {c.name: c for c in node._NodeTestCases if any(name in c.name for name in names)}


def as_com_microsoft(proto):
    """Move a model's node to com.microsoft, which has older names for the modes."""
    proto = onnx.ModelProto.FromString(proto.SerializeToString())
    proto.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    (node,) = proto.graph.node
    node.domain = "com.microsoft"
    for attribute in node.attribute:
        if attribute.name == "mode":
            attribute.s = {b"linear": b"bilinear", b"cubic": b"bicubic"}.get(attribute.s, attribute.s)
    return proto


@pytest.mark.parametrize("name", node_cases())
def test_unmodified(name, kernels_made):
    assert_passes(node_cases()[name], node_cases()[name].model, kernels_made)


@pytest.mark.parametrize("name", [n for n in node_cases() if "gridsample" in n and "volumetric" not in n])
def test_as_com_microsoft(name, kernels_made):
    assert_passes(node_cases()[name], as_com_microsoft(node_cases()[name].model), kernels_made)


def assert_passes(case, proto, kernels_made):
    session = onnx_ops.InferenceSession(proto.SerializeToString(), quiet())
    assert len(kernels_made) == 1
    for inputs, (expected,) in case.data_sets:
        np.testing.assert_allclose(run_session(session, inputs), expected, rtol=case.rtol, atol=case.atol)
