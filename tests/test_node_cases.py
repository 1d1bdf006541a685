"""Sessions pass the node tests that the onnx package ships, some of which models/ has, too."""

import functools
from importlib import import_module

import numpy as np
import onnx
import pytest
from spec_examples import COL2IM, DEFORM_CONV, GRID_SAMPLE
from support.backends import quiet, run_session
from support.cases import operator

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


OTHER_NAMES = {
    "deform_conv": "basic_deform_conv_without_padding",
    "deform_conv_pads": "basic_deform_conv_with_padding",
    "deform_conv_mask_bias": "deform_conv_with_mask_bias",
    "deform_conv_offset_groups": "deform_conv_with_multiple_offset_groups",
}


@pytest.mark.parametrize("example", [*COL2IM, *GRID_SAMPLE, *DEFORM_CONV], ids=lambda e: e.name)
def test_examples_are_those_of_onnx(example):
    """But for names of modes, which the domain com.microsoft has older ones for."""
    case = node_cases()[f"test_{OTHER_NAMES.get(example.name, example.name)}"]
    proto = as_com_microsoft(case.model) if example.domain else case.model
    ((inputs, outputs),) = case.data_sets
    for got, expected in zip((*example.inputs.values(), *example.outputs.values()), (*inputs, *outputs), strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=5e-5, strict=True)  # some are printed with four decimals
    theirs = {a.name: onnx.helper.get_attribute_value(a) for a in proto.graph.node[0].attribute}
    theirs = {name: value.decode() if isinstance(value, bytes) else value for name, value in theirs.items()}
    declared = operator(example.domain, example.op_type)
    assert declared.values(example.attributes).by_name == declared.values(theirs).by_name
