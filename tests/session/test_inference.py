"""The shapes of outputs that ONNX Runtime and onnx infer before there are inputs."""

import re

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from support.backends import ORT_VERSION, quiet
from support.cases import (
    ATTENTION,
    CASES,
    OPENVINO,
    OTHERS,
    ROI_ALIGN,
    VOLUMES,
    case_named,
    model,
)
from support.processes import python
from support.selection import long_unless, some_of
from support.written import node_in_a_function

import onnx_ops
from onnx_ops.arrays import functions
from onnx_ops.registry import OPERATORS

OVERLAPPING = case_named("overlapping")

pytestmark = pytest.mark.any_library


def output_shape(proto, options=None):
    options = onnx_ops.register(options or quiet(), proto)
    return ort.InferenceSession(proto.SerializeToString(), options).get_outputs()[0].shape


def stated_shapes(proto):
    """The output's shapes that a session and onnx state."""
    onnx_ops.register_schemas()
    by_onnx = onnx.shape_inference.infer_shapes(proto).graph.output[0].type.tensor_type
    dimensions = [
        d.dim_value if d.HasField("dim_value") else d.dim_param for d in by_onnx.shape.dim
    ]
    return [output_shape(proto), dimensions]


MODELS = some_of(
    [o for o in OPERATORS if o not in OTHERS],
    ["fixed", "symbolic", "none"],
    ["", "by the caller", "by default"],
)
MODELS = [
    *(pytest.param(*row.values, 7, marks=row.marks) for row in MODELS),
    *(long_unless(False, *row.values, 1) for row in MODELS if "" in row.values),
]


@pytest.mark.parametrize(
    ("operator", "dims", "how", "every"),
    MODELS,
    ids=lambda each: getattr(each, "title", str(each)) if not isinstance(each, str) else each,
)
def test_stated_shapes_are_real(operator, dims, how, every):
    """What is stated before the run is what comes out: sizes are equal, and names stand for the
    inputs' sizes.
    """
    cases = [c for c in CASES if c.operator is operator and not np.isinf(c.extent)]
    assert cases
    for case in cases[::every]:
        inputs = case.inputs("float32")
        names = [i.name + "_in" * (i.name == "y") for i in operator.inputs]
        sizes = {
            f"{n}_{a}": size
            for n, v in zip(names, inputs, strict=False)
            for a, size in enumerate(v.shape)
        }
        real = functions.call(operator, *inputs, **case.attributes).shape
        for constants in ((), [i.name for i in operator.inputs if i.values]):
            proto = model(
                case.domain, case.op_type, inputs, case.attributes, dims=dims, constants=constants
            )
            for shape in stated_shapes(node_in_a_function(proto, how) if how else proto):
                assert len(shape) in (0, len(real)), case
                known = [(d, e) for d, e in zip(shape, real, strict=False) if d is not None]
                assert all(
                    sizes.get(d, e) == e if isinstance(d, str) else d == e for d, e in known
                ), case


def named(name):
    return next(case for case in CASES if case.name == name)


# What is known of a case's output for sizes of inputs that are fixed, named and unknown; "?": by a
# name of its own.
KNOWN = [
    (case_named("bilinear_zeros_edges"), [2, 3, 12, 13], ["X_0", "X_1", "Grid_1", "Grid_2"], []),
    (VOLUMES[0], [2, 3, 4, 5, 6], ["X_0", "X_1", "Grid_1", "Grid_2", "Grid_3"], []),
    (OVERLAPPING, [2, "?", "?", "?"], [], []),
    (named("3d"), [2, "?", "?", "?", "?"], [], []),
    (OPENVINO[0], [2, "?", "?", "?"], [], []),
    (case_named("unfold_everything"), [2, 36, 154], ["x_0", "?", "?"], ["?", "?", "?"]),
    (named("unfold_3d"), [2, 36, 140], ["x_0", "?", "?"], ["?", "?", "?"]),
    (case_named("deform_everything"), [2, 8, 5, 11], ["X_0", "W_0", "offset_2", "offset_3"], []),
    (named("modulated"), [2, 4, 4, 11], ["x_0", "weight_0", "offset_2", "offset_3"], []),
    (ATTENTION[0], [2, 5, 12], ["value_0", "sampling_locations_1", "?"], ["?", "?", "?"]),
    (ROI_ALIGN[0], [12, 3, 4, 5], ["rois_0", "X_1", 4, 5], ["?", "?", 4, 5]),
]


@pytest.mark.parametrize(("case", "fixed", "symbolic", "none"), KNOWN, ids=str)
def test_what_is_known_of_an_output(case, fixed, symbolic, none):
    """Each unknown dimension has a name that is used nowhere else, or it would be a literal -1."""
    if ORT_VERSION < (1, 21) and any(i.presence == "optional" for i in case.operator.inputs):
        pytest.skip("ONNX Runtime would crash if one was absent, so it isn't told any shape")
    for dims, expected in (("fixed", fixed), ("symbolic", symbolic), ("none", none)):
        proto = model(case.domain, case.op_type, case.inputs("float32"), case.attributes, dims=dims)
        shape = output_shape(proto)
        assert ["?" if isinstance(d, str) and "onnx_ops" in d else d for d in shape] == expected
        assert len({d for d in shape if isinstance(d, str)}) == sum(
            isinstance(d, str) for d in expected
        )


@pytest.mark.long
def test_names_of_sizes_differ_by_process(tmp_path):
    """A model may have them from another process, by way of `get_outputs`.

    One name must not stand for two sizes.
    """
    (tmp_path / "model.onnx").write_bytes(
        model("", "Col2Im", OVERLAPPING.inputs("float32"), OVERLAPPING.attributes)
        .SerializeToString()
    )  # fmt: skip
    script = """
        import sys, onnx_ops
        print(onnx_ops.InferenceSession(sys.argv[1]).get_outputs()[0].shape[1])
    """
    session = onnx_ops.InferenceSession(tmp_path / "model.onnx")
    prefixes = [
        re.fullmatch(r"(onnx_ops_[0-9a-f]+)_\d+\s*", name)[1]
        for name in (
            session.get_outputs()[0].shape[1],
            python(script, tmp_path / "model.onnx").stdout,
        )
    ]
    assert prefixes[0] != prefixes[1]


def test_shape_of_an_output_is_true_when_it_runs():
    """A Shape node on an output with unknown dimensions must not have been folded into something
    else.
    """
    case = OVERLAPPING
    inputs = case.inputs("float32")
    proto = model(case.domain, case.op_type, inputs, case.attributes, dims="symbolic")
    proto.graph.node.append(helper.make_node("Shape", ["y"], ["shape"]))
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("shape", TensorProto.INT64, None))
    session = onnx_ops.InferenceSession(proto.SerializeToString(), quiet())
    feeds = dict(zip((i.name for i in session.get_inputs()), inputs, strict=True))
    assert session.run(None, feeds)[0].tolist() == [2, 3, 9, 11]
