"""Deformable convolution against convolution and ONNX Runtime; its edges; how mmdeploy writes
it.
"""

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from support.backends import BACKENDS, IN_SESSIONS, ORT_VERSION, quiet, run_session
from support.cases import (
    DEFORM_CONV,
    TOLERANCE,
    assert_close,
    deform_conv,
    expected_of,
    finished,
    mmcv_deform_conv,
    model,
    operator,
    parsed,
)
from support.selection import each_dtype, each_in_turn, in_turn, long_unless
from support.written import node_in_a_function

import onnx_ops
from onnx_ops.arrays import functions
from onnx_ops.declaration import plain
from onnx_ops.session import native_backend

NAN, INF = np.nan, np.inf
NOT_EMPTY = [
    c
    for c in DEFORM_CONV
    if c.op_type == "DeformConv" and all(0 not in shape for shape in c.shapes)
]
OF_TWO_AXES = [c for c in NOT_EMPTY if len(c.shapes[0]) == 4]  # what ONNX Runtime's kernel takes


@each_in_turn(NOT_EMPTY)
def test_without_offsets_it_is_convolution(run, case):
    """ONNX Runtime's own Conv, in which a mask of one half is half the weights."""
    inputs = case.inputs("float32")
    x, w, offset, *rest = inputs
    offset[:] = 0
    if len(rest) > 1:
        rest[1][:] = 0.5
    conv = [x, w * np.float32(0.5 if len(rest) > 1 else 1), *rest[:1]]
    attributes = {n: v for n, v in case.attributes.items() if n != "offset_group"}
    node = onnx.helper.make_node("Conv", ["x", "w", "b"][: len(conv)], ["y"], **attributes)
    infos = [
        onnx.helper.make_tensor_value_info(n, 1, v.shape) for n, v in zip("xwb", conv, strict=False)
    ]
    graph = onnx.helper.make_graph(
        [node], "g", infos, [onnx.helper.make_tensor_value_info("y", 1, None)]
    )
    expected = run_session(
        ort.InferenceSession(finished(graph, 11).SerializeToString(), quiet()), conv
    )
    assert_close(run(case, inputs), expected.astype(np.float64), "float32")


@pytest.mark.skipif(
    ORT_VERSION < (1, 26), reason="no DeformConv before 1.25; in 1.25 a NaN offset ends the process"
)
@pytest.mark.parametrize("case", OF_TWO_AXES, ids=str)
@each_dtype("float32", "float64")
def test_onnxruntime_agrees(case, dtype):
    inputs = case.inputs(dtype)
    inputs[2].flat[:3] = NAN, INF, -INF
    proto = model("", "DeformConv", inputs, case.attributes).SerializeToString()
    expected = run_session(ort.InferenceSession(proto, quiet()), inputs)
    assert_close(BACKENDS["native"](case, inputs), expected.astype(np.float64), dtype)


def f32(values, shape):
    return np.array(values, np.float32).reshape(shape)


def test_groups_of_channels_and_of_offsets_are_both_of_all_channels(run):
    """mmcv's and mmdeploy's kernels for ONNX Runtime began again with the offsets in each group of
    channels.
    """
    x, weight = f32(range(1, 9), (1, 4, 1, 2)), np.ones((2, 2, 1, 1), np.float32)
    offset = f32([[0, 0], [0.5, -0.5], [0, 0], [1, -1]], (1, 4, 1, 2))
    case = mmcv_deform_conv("both_groups", x.shape, weight.shape, D=2, groups=2)
    inputs = [x, offset, np.ones((1, 2, 1, 2), np.float32), weight]
    assert run(case, inputs).ravel().tolist() == [5, 5, 14, 12]


OUTSIDE = [
    (NAN, 0),
    (0, NAN),
    (INF, 0),
    (0, -INF),
    (-1, 0),
    (0, 3),
    (2, 1e30),
    (-3e38, 3e38),
    (NAN, INF),
]


@each_dtype("float32", "float64", "bfloat16")
def test_nothing_is_read_outside(dtype):
    """The pixels are infinite or NaN, so that to read one with a weight of 0 would show."""
    case = deform_conv("outside", (1, 4, 2, 3), (2, 4, 1, 1), strides=[2, 3])
    x, w, offset = case.inputs(dtype)
    x[:], x[:, ::2] = INF, NAN
    for place in OUTSIDE:
        offset[0, :, 0, 0] = place
        for name in ("function", *IN_SESSIONS):
            assert (BACKENDS[name](case, [x, w, offset]) == 0).all(), place


@each_dtype("float32", "float64")
@each_in_turn([(6, 7), (1, 7), (7, 1), (4, 5, 6), (4, 1, 5), (9,)], "image")
def test_pixels_are_infinite_only_where_they_are_read(run, image, dtype):
    axes = len(image)
    case = deform_conv("infinite", (1, 4, *image), (2, 4, *[1] * axes), mask=True, extent=1.2)
    inputs = case.inputs(dtype)
    inputs[0][0, 1][(0,) * axes], inputs[0][0, 2][(-1,) * axes] = INF, NAN
    expected = expected_of(case, inputs)
    assert not np.isfinite(expected).all()
    got = run(case, inputs)
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(expected))
    there = np.isfinite(expected)
    assert_close(got[there], expected[there], dtype)


@pytest.mark.parametrize("backend", ["native", "extensions"])
def test_a_mask_without_a_bias(backend):
    case = deform_conv("mask_only", (2, 4, 6, 7), (3, 4, 3, 3), mask=True)
    x, w, offset, _, mask = case.inputs("float32")
    proto = parsed(
        "(float[n, c, h, w] x, float[m, c, i, j] W, float[n, p, k, l] offset, float[n, q, k, l] "
        "mask) => (float[] y) {"
        ' y = DeformConv (x, W, offset, "", mask) }',
        19,
    )
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    session = onnx_ops.InferenceSession(proto.SerializeToString(), quiet(), backend=backend)
    expected = onnx_ops.deform_conv(x, w, offset, None, mask)
    np.testing.assert_array_equal(run_session(session, [x, w, offset, mask]), expected)
    assert_close(
        expected, expected_of(case, [x, w, offset, np.zeros(3, np.float32), mask]), "float32"
    )


def test_output_channels_do_not_depend_on_each_other():
    """More of them than a unit of work has, and more pixels than a block."""
    case = deform_conv("many", (1, 3, 11, 13), (700, 3, 2, 2), mask=True)
    x, w, offset, b, mask = case.inputs("float32")
    y = onnx_ops.deform_conv(x, w, offset, b, mask)
    for m in (0, 7, 8, 511, 512, 699):
        alone = onnx_ops.deform_conv(x, w[m : m + 1], offset, b[m : m + 1], mask)
        np.testing.assert_allclose(y[:, m : m + 1], alone, rtol=TOLERANCE["float32"], atol=1e-6)


@pytest.mark.parametrize("rounds", [500, long_unless(False, 2000)])
def test_the_workspace_is_bounded(rounds):
    """Whatever sizes the model states, a tile gets at most a megabyte, and there are at most 64
    tiles. Some get a quarter of that, so large plans are among them.
    """
    rng, most, ours = np.random.default_rng(0), 0, operator("", "DeformConv")
    for _ in range(rounds):
        axes, batch = rng.integers(1, 4), 2 ** rng.integers(0, 20)
        kernel, image = 2 ** rng.integers(0, 6, axes), 2 ** rng.integers(0, 16, axes)
        group, offset_group = 2 ** rng.integers(0, 8, 2)
        channels, outputs = (
            2 ** rng.integers(0, 12) * group * offset_group,
            2 ** rng.integers(0, 12) * group,
        )
        pads = [int(size) for size in kernel] * 2
        counts = image + 2 * kernel - (kernel - 1)  # padded by a kernel on either side
        places = offset_group * np.prod(kernel)
        shapes = [
            (batch, channels, *image), (outputs, channels // group, *kernel),
            (batch, places * axes, *counts), (),
            (batch, places, *counts),
        ]  # fmt: skip
        values = ours.values({"pads": pads, "group": int(group), "offset_group": int(offset_group)})
        try:
            g = plain.plan(ours, values, [np.array(s, np.int64) for s in shapes])[1][0]
        except onnx_ops.OpError:  # a product is too large
            continue
        assert 1 <= g["tiles"] <= 64
        most = max(most, g["workspace"])
    assert 2**18 < most < 2**20


USUAL = mmcv_deform_conv(
    "usual", (1, 4, 9, 8), (3, 4, 3, 3), D=2, modulated=False, stride=[2, 2], padding=[1, 1]
)
FORMS = {  # {form: attributes in place of those of USUAL, which mean the same}
    "numbers": {"stride": 2, "padding": 1, "dilation": 1},
    "each twice": {"padding": [1, 1, 1, 1]},
    "other name": {"deformable_groups": 2},  # without deform_groups
    "both names": {"deform_groups": 2, "deformable_groups": 4},  # the first one counts
    "im2col_step": {"im2col_step": 7, "bias": 0},  # both change nothing
}


def usual_in(form):
    attributes = USUAL.attributes | FORMS[form]
    if form == "other name":
        del attributes["deform_groups"]
    return replace(USUAL, attributes=attributes)


@pytest.mark.parametrize(("backend", "form"), in_turn([*BACKENDS], [*FORMS]))
def test_forms_of_attributes(backend, form):
    """Each gives the same bits as the attributes of USUAL."""
    inputs = USUAL.inputs("float32")
    run = BACKENDS[backend]
    np.testing.assert_array_equal(run(usual_in(form), inputs), run(USUAL, inputs))


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_attributes_in_a_function(form):
    """A node in a model's local function, which gets its attributes from the caller."""
    inputs = USUAL.inputs("float32")
    case = usual_in(form)
    proto = node_in_a_function(
        model(case.domain, case.op_type, inputs, case.attributes), "by the caller"
    )
    got = run_session(onnx_ops.InferenceSession(proto.SerializeToString(), quiet()), inputs)
    np.testing.assert_array_equal(got, BACKENDS["native"](USUAL, inputs))


def test_the_default_of_another_name_is_no_value():
    """Neither name: the attribute is required.

    The first name that is there counts, even if it is wrong.
    """
    case = mmcv_deform_conv("usual", (1, 4, 9, 8), (3, 4, 3, 3), modulated=False)
    inputs, attributes = case.inputs("float32"), case.attributes
    for wrong, message in (
        ({"deform_groups": None}, "deform_groups = None: must be given"),
        ({"deform_groups": 0, "deformable_groups": 1}, "deform_groups = 0: must lie in"),
    ):
        given = {n: v for n, v in (attributes | wrong).items() if v is not None}
        with pytest.raises(onnx_ops.OpError, match=message):
            functions.call(case.operator, *inputs, **given)
        proto = model(case.domain, case.op_type, inputs, given).SerializeToString()
        for backend in IN_SESSIONS:
            with pytest.raises(onnx_ops.OpError, match=message):
                onnx_ops.InferenceSession(proto, quiet(), backend=backend)


def test_inference_reads_all_forms():
    """The output's shape is known before the first run, to ONNX Runtime and to onnx."""
    onnx_ops.register_schemas()
    for attributes in (
        FORMS["numbers"] | {"deform_groups": 2},
        FORMS["each twice"] | FORMS["other name"],
    ):
        case = mmcv_deform_conv(
            "shaped", (1, 4, 9, 8), (3, 4, 3, 3), D=2, modulated=False, **attributes
        )
        proto = model(case.domain, case.op_type, case.inputs("float32"), case.attributes)
        proto.graph.input[1].type.tensor_type.ClearField("shape")  # it would tell the output's
        session = ort.InferenceSession(proto.SerializeToString(), onnx_ops.register(quiet(), proto))
        shape = BACKENDS["function"](case, case.inputs("float32")).shape
        assert tuple(session.get_outputs()[0].shape) == shape


DCN = {"stride": 2, "padding": 1, "dilation": 1}  # as single numbers


@pytest.mark.parametrize("backend", IN_SESSIONS)
@pytest.mark.parametrize(
    ("domain", "op_type", "attributes"),
    [
        ("", "_DCNv2", {"deformable_groups": 2}),
        ("", "DCNv2", {"groups": 2, "deformable_group": 2}),
        ("custom", "DCNv2", {"deformable_groups": 2, "kernel_size": [3, 3], "info": "{}"}),
        (
            "custom",
            "DeformConv2d",
            {"deformable_groups": 2, "activation_type": -1, "alpha": 0.0, "beta": 0.0},
        ),
    ],
)
def test_nodes_of_other_exporters(domain, op_type, attributes, backend):
    """They are in models of old versions."""
    rng, groups = np.random.default_rng(1), attributes.get("groups", 1)
    shapes = (2, 4, 7, 8), (2, 36, 4, 4), (2, 18, 4, 4), (6, 4 // groups, 3, 3), (6,)
    x, offset, mask, w, b = (rng.uniform(-1, 1, shape).astype(np.float32) for shape in shapes)
    expected = onnx_ops.deform_conv(
        x, w, offset, b, mask, strides=[2, 2], pads=[1] * 4, group=groups, offset_group=2
    )
    proto = model(domain, op_type, [x, offset, mask, w, b], {**DCN, **attributes}, opset=11)
    session = onnx_ops.InferenceSession(proto.SerializeToString(), quiet(), backend=backend)
    np.testing.assert_array_equal(run_session(session, [x, offset, mask, w, b]), expected)


def test_an_activation_is_refused():
    case = next(c for c in DEFORM_CONV if c.name == "dcn_of_torchvision")
    proto = model(
        case.domain, case.op_type, case.inputs("float32"), {**case.attributes, "activation_type": 0}
    )
    with pytest.raises(onnx_ops.OpError, match="activation_type = 0: must be -1"):
        onnx_ops.InferenceSession(proto.SerializeToString(), quiet())


def test_a_domain_of_other_libraries_is_registered_where_it_is_needed():
    """ONNX Runtime takes the operators of the domain custom from one library."""
    of_others = parsed("(float[2] x) => (float[2] y) { y = custom.OfNobody (x) }", 21, "custom")
    case = next(c for c in DEFORM_CONV if c.name == "dcn_of_a_plugin")
    ours = model(case.domain, case.op_type, case.inputs("float32"), case.attributes)
    for proto, domains in ((of_others, set()), (ours, {"custom"})):
        assert native_backend.registered_domains(onnx_ops.register(quiet(), proto)) == domains
    options = quiet()
    options.register_custom_ops_library(onnx_ops.get_library_path())
    assert "custom" not in native_backend.registered_domains(options)
    assert native_backend.registered_domains(onnx_ops.register(quiet(), domains=["custom"])) == {
        "custom"
    }
