"""The node tests that the onnx package ships, through a session."""

import functools
import warnings

import numpy as np
import onnx
import pytest
from backends import quiet, run

import onnx_ops


@functools.cache
def node_cases():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of other operators' cases
        from onnx.backend.test.case.node import collect_testcases

        cases = collect_testcases(None)
    return {c.name: c for c in cases if c.name.startswith(("test_col2im", "test_gridsample"))}


def names():
    return [name for name in node_cases() if "volumetric" not in name]


def as_com_microsoft(proto):
    """The same node in com.microsoft, which knows the modes by their older names."""
    proto = onnx.ModelProto.FromString(proto.SerializeToString())
    proto.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    (node,) = proto.graph.node
    node.domain = "com.microsoft"
    for attribute in node.attribute:
        if attribute.name == "mode":
            attribute.s = {b"linear": b"bilinear", b"cubic": b"bicubic"}.get(attribute.s, attribute.s)
    return proto


@pytest.mark.parametrize("name", names())
def test_node_case(name, kernels_made):
    case = node_cases()[name]
    proto = case.model if "col2im" in name else as_com_microsoft(case.model)
    session = onnx_ops.InferenceSession(proto.SerializeToString(), quiet())
    assert len(kernels_made) == 1
    for inputs, (expected,) in case.data_sets:
        np.testing.assert_allclose(run(session, inputs), expected, rtol=case.rtol, atol=case.atol)
