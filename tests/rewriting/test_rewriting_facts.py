"""What `optimize` knows and states of a model is what ONNX Runtime computes, whatever the model's
form.
"""

from contextlib import suppress

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper, parser
from support.arithmetic import filled
from support.backends import NEWEST_OPSET, ORT_VERSION, quiet
from support.processes import python
from support.rewriting_cases import INTEGERS
from support.selection import in_turn
from support.written import Writer, feeds, warp, windows

import onnx_ops
from onnx_ops import OpError
from onnx_ops.model.nodes import graphs_in, inlined
from onnx_ops.rewriting import rewritten
from onnx_ops.rewriting.graph import graphs_of
from onnx_ops.rewriting.models import Model
from onnx_ops.rewriting.patterns import grid_sample
from onnx_ops.rewriting.reading.integers import integer_list
from onnx_ops.rewriting.sizes import named, origins

pytestmark = pytest.mark.any_library

SIZES = {"n": 2, "h": 4, "w": 5}


def run(proto, inputs, **how):
    return onnx_ops.InferenceSession(proto.SerializeToString(), quiet(), **how).run(None, inputs)


def assert_same(proto, inputs, tolerance=0, **how):
    """Assert that a session gives the same results if it optimizes, or does what `how` says."""
    for expected, got in zip(
        run(proto, inputs), run(proto, inputs, **how or {"optimize": True}), strict=True
    ):
        assert np.shape(got) == np.shape(expected)
        np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


def compare(proto, sizes=(), found=True):
    """Assert that a model gives the same results optimized; return the optimized model."""
    optimized, findings = rewritten(proto)
    assert any(f.operator for f in findings) == found
    assert_same(proto, feeds(proto, {**SIZES, **dict(sizes)}))
    return optimized


@pytest.mark.parametrize("layout", ["first", "last"])
def test_sizes_of_a_flow_that_other_nodes_read(layout):
    """ONNX Runtime replaces a Shape by the sizes that the operator states."""
    proto = warp(
        [("Mul", 2), ("Sub", 1)],
        layout=layout,
        size=(4, 5),
        # Fmt: skip.
        after=lambda w: w.add("Add", "y", w.add("Cast", w.add("Shape", "y", start=3), to=1)),
    )
    assert compare(proto).graph.node[0].op_type == "ComputedGridSample"


def in_functions(text):
    return parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 20, "local" : 1, "onnx_ops" : 1]> {text}'
    )


def test_sizes_that_hold_no_longer():
    """The model states the sizes of one batch; then that of its inputs was opened."""
    proto = warp([("Mul", 2), ("Sub", 1)], batch=1)
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "n"
    compare(proto, {"n": 3})


FLOWS = "main (float[2, 3, 6, 7] x, float[2, 4, 5, 2] p) => (float[N, C, H, W] y)"
SAMPLE = (
    '<opset_import: ["" : 20], domain: "local"> Sample <mode: string = "nearest"> (x, g) => (y) '
)
SAMPLE += "{ y = GridSample <mode: string = @mode> (x, g) }"
PASSED_ON = f"""{FLOWS} {{ y = local.Outer CALLED (x, p) }}
<opset_import: ["" : 20, "local" : 1], domain: "local"> Outer <mode> (x, p) => (y) {{
    two = Constant <value_float = 2.0> ()
    g = Mul (p, two)
    y = local.Sample <mode: string = @mode> (x, g)
}}
{SAMPLE}"""


def inlined_beside(domain, call, declared, body, double=""):
    """A model with a call of a function that makes f of p, and a grid that is optimized, for which
    it is inlined.
    """
    doubled, output = (
        f"e = local.{double} (d)" if double else "",
        ", double[A, B, C, D] e" if double else "",
    )
    return f"""main (float[2, 3, 6, 7] x, float[2, 4, 5, 2] p, double[2, 4, 5, 2] d) => (
        float[N, C, H, W] y, float[A, B] z {output}) {{
        f = {call}
        z = Flatten <axis = 0> (f)
        grid = Sub (p, p)
        y = GridSample (x, grid)
        {doubled}
    }}
    <opset_import: ["" : 20], domain: "{domain}"> {declared} => (f) {{ {body} }}"""


# A model, and what its first function states of its values, which holds for one of its calls.
IN_FUNCTIONS = {
    **{f"attributes that a caller passes: {called} for {declared}": (f"""
        main (float[2, 3, 6, 7] x, float[2, 2, 3] theta)
            => (float[N, C, H, W] y) {{ y = local.F {called} (x, theta) }}
        <opset_import: ["" : 20], domain: "local"> F <{declared}> (x, theta) => (y) {{
            size = Constant <value_ints = [2, 3, 4, 5]> ()
            grid = AffineGrid <align_corners: int = @align_corners> (theta, size)
            y = GridSample (x, grid)
        }}""", {"x": [2, 3, 6, 7], "theta": [2, 2, 3], "grid": [2, 4, 5, 2]})
        for called, declared in (("<align_corners = 1>", "align_corners"),
            ("", "align_corners: int = 1"),
                                 ("<align_corners = 0>", "align_corners: int = 1"))},
    # onnx's inliner forgets defaults. A second function makes `optimize` inline: its grid is made
    # in the first one.
    **{f"default attributes, called with {called}": (f"""{FLOWS} {{
            g = local.Grid (p)
            y = local.Sample {called} (x, g)
        }}
        <opset_import: ["" : 20], domain: "local"> Grid (p) => (g) {{
            two = Constant <value_float = 2.0> ()
            one = Constant <value_float = 1.0> ()
            doubled = Mul (p, two)
            g = Sub (doubled, one)
        }}
        {SAMPLE}""", {}) for called in ("", '<mode = "linear">', '<mode = "cubic">')},
    "an attribute that is passed on": (PASSED_ON.replace("CALLED", '<mode = "cubic">'), {}),
    "sizes of one call": ("""
        main (float[1, 3, 6, 7] x, float[1, 4, 5, 2] p, float[3, 3, 6, 7] x3,
            float[3, 4, 5, 2] p3) => (
            float[A, B, C, D] y, float[E, F, G, H] y3) {
            y = local.Sample (x, p)
            y3 = local.Sample (x3, p3)
        }
        <opset_import: ["" : 20], domain: "local"> Sample (x, p) => (y) {
            two = Constant <value_float = 2.0> ()
            g = Mul (p, two)
            y = GridSample (x, g)
        }""", {"x": [1, 3, 6, 7], "p": [1, 4, 5, 2], "g": [1, 4, 5, 2]}),
    # ONNX Runtime takes all nodes for those of the version that the model imports; Softmax was
    # another one before 13.
    "that imports an older version of ai.onnx": ("""
        main (float[2, 3, 6, 7] x) => (float[2, 3, 42] y) { y = local.F (x) }
        <opset_import: ["" : 12, "onnx_ops" : 1], domain: "local"> F (x) => (y) {
            s = Softmax <axis = 1> (x)
            y = onnx_ops.Im2Col <kernel_shape = [1, 1]> (s)
        }""", {}),
    # ONNX Runtime runs an operator rather than a function of that name, and asks a Loop for ranks.
    "by the name of an operator of ONNX Runtime": (inlined_beside("", "Mul (p, p)", "Mul (p, q)",
            "f = Neg (p)"), {}),
    "by this name in ai.onnx": (inlined_beside("ai.onnx", "Mul (p, p)", "Mul (p, q)",
            "f = Neg (p)"), {}),
    "by the name of an operator of this package": (inlined_beside(
        "onnx_ops", "onnx_ops.Im2Col <kernel_shape = [1, 1]> (p)", "Im2Col <kernel_shape> (p)",
        "f = Neg (p)"), {}),
    "for several types": (inlined_beside(
        "local", "local.F (p)", "F (p)", "stated = Neg (p) f = Neg (stated)", double="F"),
        {"stated": [2, 4, 5, 2]}),
    **{f"with a loop, its numbers as {kind}": (inlined_beside("local", "local.F (p)", "F (p)", f"""
        turns = Constant <{value}> ()
        go = Cast <to: int = 9> (turns)
        f = Loop (turns, go, p) <body = turn (int64{size} k, bool{size} i, float[2, 4, 5, 2] v) => (
            bool{size} o, float[2, 4, 5, 2] w) {{
            o = Identity (i)
            w = Neg (v)
        }}>"""), {})
       for kind, value, size in (("scalars", "value_int = 2", ""),
           ("vectors", "value_ints = [2]", "[1]"))},
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "how"), in_turn(IN_FUNCTIONS, [{"optimize": True}, {"backend": "extensions"}]), ids=str
)
def test_functions(name, how):
    text, stated = IN_FUNCTIONS[name]
    proto = in_functions(text)
    for value, dims in stated.items():
        proto.functions[0].value_info.append(
            helper.make_tensor_value_info(value, TensorProto.FLOAT, dims)
        )
    assert_same(proto, feeds(proto), 1e-5 if "AffineGrid" in text else 0, **how)
    if name.startswith("default"):
        assert [n.op_type for n in rewritten(proto)[0].graph.node] == ["ComputedGridSample"]


def test_a_default_where_the_caller_passes_nothing_on():
    proto = in_functions(PASSED_ON.replace("CALLED", ""))
    assert_same(proto, feeds(proto))
    with pytest.raises(OpError, match="can't inline"):
        run(proto, feeds(proto), backend="extensions")


FLAG = "b = Cast <to: int = 9> (s) f = Cast <to: int = 7> (b) r = ConstantOfShape (f)"
MISREAD = {
    "a cast to booleans": FLAG,
    "a cast in a branch": f"r = If (yes) <then_branch = g () => (r1) {{ "
    f"{FLAG.replace('r =', 'r1 =')} }}, "
    "else_branch = g () => (r2) { r2 = ConstantOfShape (s) }>",
    "a sum of int32": "a = Add (large, large) b = Cast <to: int = 7> (a) m = Add (b, four) r = "
    "ConstantOfShape (m)",
    "a row of a table": "a = Identity (zero) t = Unsqueeze (s, a) v = Gather (t, first) r = "
    "ConstantOfShape (v)",
    "a slice from an unknown start": "a = Identity (one) v = Slice (s, a, two) r = "
    "ConstantOfShape (v)",
    "names in two branches": "r = If (no) <then_branch = g () => (r1) <int64[1] c = {2}> "
    "{ d = Concat <axis = 0> (c, one) r1 = ConstantOfShape (d) }, else_branch = g () => (r2) "
    "<int64[1] c = {3}> "
    "{ d = Concat <axis = 0> (c, two) r2 = ConstantOfShape (d) }>",
}


@pytest.mark.parametrize("name", MISREAD)
def test_values_that_onnx_misreads(name):
    """onnx's inference takes values for others that ONNX Runtime computes, and infers other shapes
    from them.
    """
    constants = (
        "int64[1] zero = {0}, int64 first = {0}, int64[1] one = {1}, int64[1] two = {2}, "
        "int64[1] four = {4}"
    )
    constants += f", int32[2] large = {{{2**31 - 1}, 1}}, bool yes = {{1}}, bool no = {{0}}"
    proto = parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 18]> g (float[2, 3] x) => (float r) <{constants}> '
        f"{{ s = Shape (x) {MISREAD[name]} }}"
    )
    for graph in graphs_in(proto.graph):
        for output in graph.output:
            output.type.tensor_type.elem_type = TensorProto.FLOAT
            output.type.tensor_type.ClearField("shape")
    session = ort.InferenceSession(proto.SerializeToString(), quiet())
    (real,) = session.run(None, {"x": np.zeros((2, 3), np.float32)})
    known = next(graphs_of(Model(proto))).type("r").shape
    assert known is None or len(known) == real.ndim
    assert all(
        size in (real.shape[k], None) for k, size in enumerate(known or ()) if isinstance(size, int)
    )


def test_names_of_dimensions_in_functions():
    """Both functions call their sizes N; inlined, these names would say that the sizes are
    equal.
    """
    proto = in_functions("""
main (float[1, 2, 8, 9] x, float[5] a) => (int64[K] s, float[K] y) {
    s = local.Length (x)
    y = local.Length2 (a)
}
<opset_import: ["" : 20], domain: "local"> Length (x) => (s) { t = Shape (x) s = Identity (t) }
<opset_import: ["" : 20], domain: "local"> Length2 (a) => (y) { y = Identity (a) }""")
    for function, name in zip(proto.functions, ("t", "a"), strict=True):
        function.value_info.append(helper.make_tensor_value_info(name, TensorProto.INT64, ["N"]))
    flat = inlined(proto)
    assert not [v for v in flat.graph.value_info if v.type.tensor_type.HasField("shape")]
    assert proto.functions[0].value_info[0].type.tensor_type.shape.dim[0].dim_param == "N"


@pytest.mark.parametrize("size", [0, 1, 7])
@pytest.mark.parametrize("name", INTEGERS)
def test_integers(name, size):
    """What is known of an integer is what ONNX Runtime computes, or nothing."""
    if ORT_VERSION < (1, 21) and any(kind in name for kind in ("int8", "int16")):
        pytest.skip("ONNX Runtime has no such arithmetic")
    w = Writer()
    value = w.add("Cast", INTEGERS[name](w), to=TensorProto.INT64, name="value")
    proto = w.model({"x": ("float32", ["h"])}, (value, "int64", None))
    session = ort.InferenceSession(proto.SerializeToString(), quiet())
    (expected,) = session.run(None, {"x": np.zeros(size, np.float32)})
    known = integer_list(next(graphs_of(Model(proto))), "value")
    if known is not None:
        assert known == expected.ravel().tolist()
    else:
        assert name in (
            "a size in uint8",
            "a size past int32",
            "a size past int64",
            "half of an empty axis",
        )


# Nodes that end the process, unless ONNX Runtime refuses them by what it knows of their inputs.
DEADLY = {
    "a value of one axis": "y = ReverseSequence <batch_axis = 0, time_axis = 1> (x, n)",
    "an operand that is left out": "y = Sum (x, , x)",
}


def test_constants_that_no_node_can_make():
    text = (
        '<ir_version: 9, opset_import: ["" : 18]> g () => (float[N] y) <float[2] x = {1, 2}, '
        "int64[1] n = {-5}>"
    )
    script = """
        import sys
        from onnx import parser
        from onnx_ops.rewriting.graph import graphs_of
        from onnx_ops.rewriting.models import Model

        for text in sys.argv[1:]:
            assert next(graphs_of(Model(parser.parse_model(text)))).folded("y") is None, text
    """
    python(script, *(f"{text} {{ {nodes} }}" for nodes in DEADLY.values()))


def at(w, op_type, *inputs, **attributes):
    """Add a SplitToSequence and a SequenceAt of its first part, or what another node makes at first
    of these.
    """
    if op_type != "SplitToSequence":
        return w.add(op_type, *inputs, **attributes)
    return w.add("SequenceAt", w.add(op_type, *inputs, **attributes), w.constant(0))


# Nodes of a value x [n, 1, 5, 1], the version of ai.onnx, and what is known of the shape.
SHAPES = {
    "a rank that is unknown": (18, lambda w: w.add(
        "Reshape", w.add("Reshape", "x", "sizes"), w.constant([0, 0, -1])), (None, None, None)),
    "axes out of order": (11, lambda w: w.add("Squeeze", "x", axes=[3, 1]), ("n", 5)),
    "all axes of 1": (18, lambda w: w.add("Squeeze", w.add("Gather", "x", w.constant(0))), (5,)),
    "an empty list of axes": (18, lambda w: w.add("Squeeze", "x", w.constant(np.zeros(0))), None),
    "a pool that is rounded up": (18, lambda w: w.add(
        "MaxPool", w.add("Expand", "x", w.constant([1, 1, 1, 4])), kernel_shape=[1, 2],
        strides=[1, 2], ceil_mode=1),
        ("n", 1, 5, 2)),
    "a pool that is rounded up, with a window behind the image": (18, lambda w: w.add(
        "MaxPool", w.add("Expand", "x", w.constant([1, 1, 1, 4])), kernel_shape=[1, 1],
        strides=[1, 2], ceil_mode=1),
        ("n", 1, 5, None)),
    "a pool": (18, lambda w: w.add("MaxPool", "x", kernel_shape=[2, 1]), ("n", 1, 4, 1)),
    "a transposed convolution that pads its output": (18, lambda w: w.add(
        "ConvTranspose", "x", w.constant(np.ones((1, 1, 3, 1)), np.float32), strides=[3, 1],
        output_padding=[1, 0],
        auto_pad="SAME_UPPER"), ("n", 1, 15, 1)),
    "a product that is broadcast": (18, lambda w: w.add(
        "Einsum", "x", w.constant(np.ones((3, 5, 1)), np.float32), equation="ncij,cij->nci"),
        (None, None, None)),
    "a product that is not": (18, lambda w: w.add(
        "Einsum", "x", w.constant(np.ones((1, 5, 1)), np.float32), equation="ncij, cij -> nci"),
        ("n", 1, 5)),
    "a slope that is larger": (18, lambda w: w.add("PRelu", "x",
        w.constant(np.ones((4, 1, 3)), np.float32)),
                               ("n", 4, 5, 3)),
    "a size that float32 rounds up": (18, lambda w: w.add(
        "Resize", "x", "", w.constant([1, 1, 1.4, 2], np.float32)), ("n", 1, None, 2)),
    "a size that float32 rounds up in version 8": (8, lambda w: w.add(
        "Upsample", "x", scales=[1.0, 1.0, 1.4, 2.0]), ("n", 1, None, 2)),
    "a size that float32 doesn't round": (18, lambda w: w.add(
        "Resize", "x", "", w.constant([1, 1, 1.5, 2], np.float32)), ("n", 1, 7, 2)),
    "an empty operand": (18, lambda w: w.add(
        "Concat", w.add("Reshape", w.constant([], np.float32), w.constant([0, 1, 5, 1]),
            allowzero=1), "x", axis=1),
        (None, 2, 5, 1)),
    "where a scalar isn't 0": (18, lambda w: w.add("NonZero", w.constant(3)), (1, None)),
    "parts without an axis": (18, lambda w: at(w, "SplitToSequence", "x", w.constant(1), axis=1,
        keepdims=0), None),
    "parts": (18, lambda w: at(w, "SplitToSequence", "x", w.constant(2), axis=2, keepdims=1),
        ("n", 1, 2, 1)),
    "an Expand to a size that isn't known": (18, lambda w: w.add("Expand", "x", w.add(
        "Concat", w.add("Gather", "sizes", w.constant([1])), w.constant([7, 1, 3]), axis=0)),
        (None, 7, 5, 3)),
    "a range to a number that a Cast has wrapped": (18, lambda w: w.add(
        "Range", *(w.add("Cast", w.constant(v), to=TensorProto.INT16) for v in (0, 2**16 + 3, 1))),
        (3,)),
    "a range to a boolean": (18, lambda w: w.add("Range", w.constant(0), w.add("Cast", w.add(
        "Cast", w.constant(3), to=TensorProto.BOOL), to=TensorProto.INT64), w.constant(1)), (1,)),
    "a range to an open size": (18, lambda w: w.add("Range",
        *(w.add("Cast", v, to=TensorProto.FLOAT) for v in (
        w.constant(0), w.add("Squeeze", w.add("Shape", "x", end=1)), w.constant(1)))), ("n",)),
    "a range to an open size in few bits": (18, lambda w: w.add("Range", *(w.add("Cast", w.add(
        "Cast", v, to=TensorProto.INT8), to=TensorProto.INT64) for v in (
            w.constant(0), w.add("Squeeze", w.add("Shape", "x", end=1)), w.constant(1)))), (None,)),
    "frequencies": (17, lambda w: w.add("STFT", w.add("Squeeze", "x", w.constant([1])),
        w.constant(2), "",
                                        w.constant(4), onesided=1), (None, 1, 3, 2)),
    "frequencies of which half may be left out": (17, lambda w: w.add(
        "STFT", w.add("Squeeze", "x", w.constant([1])), w.constant(2), "", w.constant(4)),
        (None, 1, None, 2)),
}  # fmt: skip
if NEWEST_OPSET >= 23:
    SHAPES |= {
        "attention of heads in an axis of their own": (23, lambda w: w.add("Attention", *"xxx"),
            ("n", 1, 5, 1)),
        "attention of heads in one axis": (23, lambda w: w.add(
            "Attention", *[w.add("Squeeze", "x", w.constant([1]))] * 3, q_num_heads=1,
            kv_num_heads=1), ("n", 5, None)),
    }  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name):
    """What is known of a shape is what ONNX Runtime makes, which states other shapes itself of some
    of these nodes.
    """
    opset, add, expected = SHAPES[name]
    w = Writer()
    value = add(w)
    proto = w.model(
        {"x": ("float32", ["n", 1, 5, 1]), "sizes": ("int64", ["k"])},
        (value, "float32", None),
        opset,
    )
    del proto.graph.value_info[:]
    graph = next(graphs_of(Model(proto)))
    known = graph.type(value).shape
    assert expected == (known and tuple(
        d if isinstance(d, int) else "n" if d == named("n") else None for d in known))  # fmt: skip
    proto.graph.output[0].type.tensor_type.elem_type = (
        graph.type(value).elements or TensorProto.FLOAT
    )
    session = ort.InferenceSession(proto.SerializeToString(), quiet())
    n = 300 if "few bits" in name else 4
    result = session.run(
        None, {"x": np.ones((n, 1, 5, 1), np.float32), "sizes": np.array([n, 1, 5])}
    )[0]
    assert all(
        d in (size, None, "n")
        for d, size in zip(expected or result.shape, result.shape, strict=True)
    )
    assert all(size == n for d, size in zip(expected or (), result.shape, strict=False) if d == "n")


def of_image(op_type, *inputs, **attributes):
    return lambda w: w.add(op_type, "x", *inputs, **attributes)


def convolved(op_type="Conv", shape=(2, 4, 3, 3), domain=None, **attributes):
    def add(w):
        name = w.add(op_type, "x", w.constant(np.ones(shape), np.float32), **attributes)
        w.nodes[-1].domain = domain or ""
        return name

    return add


def quantized(op_type, is_last=False, weights=(), **attributes):
    """Add a node of 8-bit values, whose channels may be last."""

    def add(w):
        byte = lambda value: w.constant(value, np.uint8)
        x = w.add(
            "Cast",
            w.add("Transpose", "x", perm=[0, 2, 3, 1]) if is_last else "x",
            to=TensorProto.UINT8,
        )
        steps = w.constant(0.5, np.float32), byte(0)
        if op_type == "ConvInteger":
            return w.add(op_type, x, byte(np.ones(weights)), **attributes)
        more = (
            [*steps, byte(np.ones(weights)), *steps, *steps]
            if weights
            else []
            if op_type == "NhwcMaxPool"
            else steps * 2
        )
        name = w.add(
            op_type, x, *more, **attributes, **({"channels_last": 1} if is_last and more else {})
        )
        w.nodes[-1].domain = "com.microsoft" if is_last or not weights else ""
        return name

    return add


def sizes_of(w, *names):
    """Return a vector of sizes of x, by their names, and numbers."""
    return w.add(
        "Concat",
        *(
            w.constant([n])
            if isinstance(n, int)
            else w.add(
                # Fmt: skip.
                "Shape",
                "x",
                start="nchw".index(n),
                end="nchw".index(n) + 1,
            )
            for n in names
        ),
        axis=0,
    )


def spaced(**all_settings):
    """Yield attributes of windows, all of which fit into ONNX Runtime's rules for some sizes."""
    for kernel, pads, strides, dilations in (
        ((3, 3), (1, 1, 1, 1), (1, 1), (1, 1)), ((3, 3), (1, 1, 1, 1), (2, 2), (1, 1)),
        ((3, 2), (0, 0, 0, 0), (2, 2), (1, 1)), ((2, 3), (0, 2, 1, 0), (3, 2), (2, 1)),
        ((5, 1), (2, 0, 1, 0), (3, 2), (1, 1)),
    ):  # fmt: skip
        yield {
            "kernel_shape": kernel,
            "pads": pads,
            "strides": strides,
            "dilations": dilations,
            **all_settings,
        }


POOLS = "MaxPool", "AveragePool", "LpPool"
CEIL, SAME = {"ceil_mode": 1}, ("SAME_UPPER", "SAME_LOWER")
IN_WINDOWS = [
    *(convolved(shape=(2, 4, *a["kernel_shape"]), **a) for a in spaced()),
    *(of_image(pool, **a) for pool in POOLS for a in (*spaced(), *spaced(**CEIL))),
    *(convolved(strides=[2, 3], auto_pad=auto) for auto in (*SAME, "VALID")),
    *(of_image(pool, kernel_shape=[3, 2], strides=[2, 3], auto_pad=auto, **how)
      for pool in POOLS for auto in (*SAME, "VALID") for how in ({}, CEIL)),
    convolved(shape=(4, 1, 1, 1), group=4, strides=[2, 1]),
    *(of_image(f"Global{pool}") for pool in POOLS),
    *(convolved("ConvTranspose", (4, 3, 4, 2), pads=[1, 0, 1, 1], strides=[2, 3], **more)
      for more in ({}, {"output_padding": [1, 2]}, {"dilations": [2, 1]},
          {"output_shape": [7, 9]})),
    *(convolved("ConvTranspose", (4, 3, 3, 2), strides=[2, 3], auto_pad=auto, **more)
      for auto in (*SAME, "VALID") for more in ({}, {"output_padding": [1, 0]})),
    convolved("ConvTranspose", (4, 3, 2, 2), group=2, strides=[2, 2]),
    convolved("FusedConv", domain="com.microsoft", activation="Relu", pads=[1] * 4, strides=[2, 1]),
    quantized("ConvInteger", weights=(2, 4, 3, 3), strides=[2, 1]),
    quantized("QLinearConv", weights=(2, 4, 3, 3), strides=[2, 1], pads=[1, 0, 0, 1]),
    quantized("QLinearConv", True, weights=(2, 4, 3, 3), strides=[2, 1], pads=[1, 0, 0, 1]),
    *(quantized("QLinearAveragePool", is_last, kernel_shape=[3, 2], strides=[2, 2], **how)
      for is_last in (False, True) for how in ({}, CEIL)),
    *(quantized("QLinearGlobalAveragePool", is_last) for is_last in (False, True)),
    quantized("NhwcMaxPool", True, kernel_shape=[3, 2], strides=[2, 2]),
]  # fmt: skip


def of_runtime(op_type, *inputs, domain="com.microsoft", **attributes):
    """Add a node of ONNX Runtime's own. inputs: names, or functions that add them."""

    def add(w):
        name = w.add(
            op_type, *(each(w) if callable(each) else each for each in inputs), **attributes
        )
        w.nodes[-1].domain = domain
        return name

    return add


def turned(*perm, rows=None):
    """Add a Transpose of x; rows: how many of its axes become the rows of a matrix."""
    return lambda w: w.add("Transpose", "x", perm=perm) if rows is None else w.add(
        "Flatten", w.add("Transpose", "x", perm=perm), axis=rows)  # fmt: skip


def ones(*shape):
    return lambda w: w.constant(np.ones(shape), np.float32)


NCHWC = "com.microsoft.nchwc"
IN_BLOCKS, IN_BLOCKS_TOO = (
    of_runtime("ReorderInput", *each, domain=NCHWC, **more)
    for each, more in ((["x"], {}), ([turned(0, 2, 3, 1)], {"channels_last": 1}))
)
OF_RUNTIME = [
    of_runtime("FusedMatMul", "x", turned(0, 1, 3, 2), alpha=2.0),
    of_runtime("FusedMatMul", "x", "x", transA=1),
    of_runtime("FusedMatMul", "x", "x", transB=1),
    of_runtime("FusedMatMul", turned(2, 0, 1, 3), turned(0, 1, 3, 2), transBatchA=1),
    of_runtime("FusedMatMul", "x", turned(3, 0, 1, 2), transBatchB=1),
    of_runtime("FusedGemm", turned(0, 2, 3, 1, rows=3), ones(4, 3), ones(3), activation="Relu"),
    of_runtime("FusedGemm", turned(1, 0, 2, 3, rows=1), ones(3, 4), activation="Relu", transA=1,
        transB=1),
    of_runtime("BiasGelu", turned(0, 2, 3, 1), ones(4)),
    of_runtime("FastGelu", "x"),
    of_runtime("QuickGelu", "x"),
    of_runtime("SkipLayerNormalization", *[lambda w: w.add("Reshape", turned(0, 2, 3, 1)(w), w.add(
        "Concat", sizes_of(w, "n"), w.constant([-1, 4]), axis=0))] * 2, ones(4)),
    IN_BLOCKS,
    IN_BLOCKS_TOO,
    *(of_runtime("ReorderOutput", each, domain=NCHWC, channels=4, **more)
      for each in (IN_BLOCKS, IN_BLOCKS_TOO) for more in ({}, {"channels_last": 1})),
    of_runtime("Upsample", IN_BLOCKS, domain=NCHWC, scales=[1, 1, 2, 3]),
]  # fmt: skip
SCALES = (1, 1, 0.5, 2), (1, 1, 1.5, 0.75), (1, 2, 0.25, 3)
OF_SIZES = [
    *(lambda w, scales=scales: w.add("Resize", "x", "", w.constant(scales, np.float32))
        for scales in SCALES),
    lambda w: w.add("Resize", "x", "", w.constant([2, 0.5], np.float32), axes=[3, -2]),
    lambda w: w.add("Resize", "x", "", "", sizes_of(w, "n", "c", "w", 5), mode="linear"),
    lambda w: w.add("Resize", "x", "", "", sizes_of(w, 5, "h"), axes=[2, 3]),
    lambda w: w.add("Resize", w.add("MaxPool", "x", kernel_shape=[2, 2], strides=[2, 2]), "", "",
        w.add("Shape", "x")),
    lambda w: w.add("DepthToSpace", "x", blocksize=2),
    lambda w: w.add("SpaceToDepth", "x", blocksize=2),
    lambda w: w.add("Pad", "x", w.constant([0, 0, 1, 2, 0, 0, -1, 0])),
    lambda w: w.add("Pad", "x", w.constant([1, -1, 2, 0]), "", w.constant([3, -2])),
    lambda w: w.add("Pad", "x",
        w.add("Mul", w.add("Concat", w.constant([0] * 4), sizes_of(w, 0, 0, "h", "w"), axis=0),
                                      w.constant(2)), mode="constant"),
    lambda w: w.add("Col2Im",
        w.add("Reshape", w.add("Concat", *["x"] * 9, axis=1), w.constant([0, 36, -1])),
                    sizes_of(w, "h", "w"), w.constant([3, 3]), pads=[1] * 4),
    lambda w: w.add("GridSample", "x",
        w.add("Expand", w.constant(np.zeros((1, 1, 1, 2)), np.float32),
                                             sizes_of(w, "n", "w", "h", 2))),
    lambda w: w.add("RoiAlign", "x",
        w.add("Expand", w.constant(np.zeros((1, 4)), np.float32), sizes_of(w, "h", 4)),
                    w.add("Expand", w.constant([0]), sizes_of(w, "h")), output_height=3,
                    output_width=2),
    lambda w: w.add("DeformConv", "x", w.constant(np.ones((2, 4, 3, 3)), np.float32), w.add(
        "Conv", "x", w.constant(np.zeros((18, 4, 3, 3)), np.float32), pads=[1] * 4, strides=[2, 1]),
        pads=[1] * 4, strides=[2, 1]),
    lambda w: w.add("Concat", "x",
        w.add("Resize", w.add("MaxPool", "x", kernel_shape=[2, 2], strides=[2, 2]), "",
                                         w.constant([1, 1, 2, 2], np.float32)), axis=1),
    lambda w: w.add("Add", "x",
        w.add("Resize", w.add("MaxPool", "x", kernel_shape=[3, 3], strides=[2, 2]), "",
                                      w.constant([1, 1, 2, 2], np.float32))),
    lambda w: w.add("Sum", "x", w.add("MaxPool", "x", kernel_shape=[1, 1], strides=[3, 3]),
                    w.add("MaxPool", "x", kernel_shape=[2, 2], strides=[2, 2])),
]  # fmt: skip


@pytest.mark.parametrize("k", range(len(IN_WINDOWS) + len(OF_SIZES) + len(OF_RUNTIME)))
def test_open_sizes(k):
    """The sizes that are known of an output are those that ONNX Runtime computes, for any image."""
    w = Writer()
    add = [*IN_WINDOWS, *OF_SIZES, *OF_RUNTIME][k]
    value = add(w)
    proto = w.model({"x": ("float32", ["n", 4, "h", "w"])}, (value, "float32", None), 19)
    del proto.graph.value_info[:], proto.graph.output[0]
    graph = next(graphs_of(Model(proto)))
    known = graph.type(value)
    proto.graph.output.append(helper.make_tensor_value_info(value, known.elements, None))
    if ORT_VERSION < (1, 21) and k == len(IN_WINDOWS) + 3:
        pytest.skip("ONNX Runtime mixes up scales along axes that count from the last one")
    session, sizes_that_run = onnx_ops.InferenceSession(proto.SerializeToString(), quiet()), 0
    for h, width in (
        (1, 1),
        (1, 7),
        (2, 2),
        (2, 5),
        (3, 2),
        (4, 9),
        (5, 3),
        (6, 6),
        (7, 4),
        (8, 8),
        (9, 1),
        (12, 11),
    ):
        if (
            ORT_VERSION < (1, 21) and min(h, width) < 3
        ):  # it makes no window of an image that is smaller
            continue
        expected = {}
        for axis, size in enumerate(known.shape):
            with suppress(NameError):  # of a size that has nothing but a name
                expected[axis] = filled(size, {"n": 2, "h": h, "w": width})
        if (
            k < len(IN_WINDOWS) and min(expected.values()) < 1
        ):  # a pool without windows ends the process
            continue
        try:
            (result,) = session.run(None, {"x": np.ones((2, 4, h, width), np.float32)})
        except (
            Exception
        ):  # ONNX Runtime has one for each kind of refusal: of an image smaller than a window, say
            continue
        sizes_that_run += 1
        assert expected == {axis: result.shape[axis] for axis in expected}
        assert len(expected) > 1
    assert sizes_that_run > 1 or ORT_VERSION < (1, 21)


@pytest.mark.parametrize("scale", [1 / 3, 1.1, 2.7])
def test_a_scale_that_float32_rounds(scale):
    w = Writer()
    w.add("Resize", "x", "", w.constant([1, 1, scale, 1], np.float32), name="y")
    proto = w.model({"x": ("float32", ["n", 4, "h", "w"])}, ("y", "float32", None))
    assert [*origins(next(graphs_of(Model(proto))).type("y").shape[2])] == [("y", 2)]


def test_one_of_very_many_parts():
    """A model states such sizes by mistake. Looking at it takes no memory."""
    w = Writer()
    part = at(
        w, "SplitToSequence", w.add("Expand", "x", w.constant([1, 2**50])), w.constant(3), axis=1
    )
    proto = w.model({"x": ("float32", [1, 1])}, (part, "float32", None))
    assert next(graphs_of(Model(proto))).type(part).shape == (1, 3)


@pytest.mark.long  # test_constants_that_no_node_can_make has others, in another process
def test_a_division_that_ends_the_process(tmp_path):
    """It is ONNX Runtime's, of the least integer by -1.

    A session that optimizes nothing may never run it.
    """
    proto = in_functions("""main (float[1, 1, 6, 7] x, float[1, 4, 5, 2] p)
        => (float[N, C, H, W] y) {
        least = Constant <value_ints = [-9223372036854775808]> ()
        negative = Constant <value_ints = [-1]> ()
        quotient = Div (least, negative)
        factor = Cast <to: int = 1> (quotient)
        grid = Mul (p, factor)
        y = GridSample (x, grid)
    }""")
    onnx.save(proto, tmp_path / "model.onnx")
    script = (
        "import sys, onnx, onnx_ops; "
        "print(onnx_ops.optimize(onnx.load(sys.argv[1])).graph.node[-1].op_type)"
    )
    assert python(script, tmp_path / "model.onnx").stdout.strip() == "ComputedGridSample"


def test_constants_that_are_compared_in_another_type():
    """In float32, the type of the grid, they are equal: the constant that the program reads is
    compared in float64.
    """
    proto = in_functions("""main (float[1, 1, 6, 7] x, float[1, 4, 5, 2] p)
        => (float[N, C, H, W] y) {
        is_small = Less (ramp, middle)
        doubled = Mul (p, two)
        grid = Where (is_small, p, doubled)
        y = GridSample (x, grid)
    }""")
    ramp = np.linspace(0.1, 0.1 + 3e-9, 20).reshape(1, 4, 5, 1)
    for name, value in {"ramp": ramp, "middle": ramp.mean(), "two": np.float32(2)}.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    assert [node.op_type for node in compare(proto).graph.node] == ["ComputedGridSample"]


def test_a_pattern_that_fails_leaves_the_model_as_it_is(monkeypatch):
    def match(reader, name, form):
        if name != "y":
            return None
        reader.graph.add_constant("something", np.zeros(3))
        raise IndexError("planted")

    monkeypatch.setattr(grid_sample, "match", match)
    proto = warp()
    with pytest.warns(
        UserWarning,
        match=r"onnx_ops: grid_sample at node_y of main was not optimized, .*Error: planted",
    ):
        assert rewritten(proto) == (proto, [])


def test_nodes_of_one_name():
    """A node has the name that optimize would give to another one, without an output of that
    name.
    """
    proto = windows(after=lambda w, y: w.add("Abs", y))
    proto.graph.node[-1].name = f"{proto.graph.node[-1].input[0]}_Im2Col"
    names = [node.name for node in compare(proto).graph.node]
    assert len({*names}) == len(names) == 3


GATHERED = """
    rows = Gather <axis = 2> (v, positions)
    blocks = Gather <axis = 4> (rows, positions)
    turned = Transpose <perm = [0, 1, 2, 4, 3, 5]> (blocks)
    y = Reshape (turned, target)
"""
DEFAULT = {"v": np.zeros((1, 1, 6, 6), np.float32)}
IS_FIRST = {"sizes": [1, 1, 8, 8], "is_first": True}
# Graphs with an unfold of v for 6x6 pixels, constants, inputs, and sizes of images: may be others.
NOT_AS_STATED = {
    "a default of another size": ("(float[1, 1, h, w] v) => (float[] y) { GATHERED }", DEFAULT, {},
        {"v": (8, 8)}),
    "a default without a stated shape": ("(float[] v) => (float[] y) { GATHERED }", DEFAULT, {},
        {"v": (8, 8)}),
    # v is stated as onnx.shape_inference leaves it of a model without the other Slice.
    "a name that onnx has given to another size": (
        """(float[1, 1, h, w] x, int64[2] end, int64[2] other_end)
            => (float[] y) <float[1, 1, unk__0, unk__0] v> {
            other = Slice (x, starts, other_end, axes)
            v = Slice (x, starts, end, axes)
            height = Shape <start = 2, end = 3> (other)
            count = Sub (height, two)
            scalar = Squeeze (count)
            blocks_of_other = Range (zero, scalar, one)
            row = Unsqueeze (blocks_of_other, zeros)
            positions = Add (steps, row)
            GATHERED
        }""",
        {"starts": [0, 0], "axes": [2, 3], "two": [2], "zero": 0, "one": 1, "zeros": [0],
            "steps": [[0], [1], [2]]},
        {"end": [9, 9], "other_end": [6, 6]}, {"x": (12, 12)},
    ),
    "an end past all elements, backwards": (
        """(float[1, 1, 6, 6] v) => (float[] y) {
            lead = Slice (ones, from, to, from, back)
            target = Concat <axis = 0> (lead, rest)
            GATHERED
        }""",
        {"ones": [1], "from": [0], "to": [2**63 - 1], "back": [-1], "rest": [1, 9, 16]}, {},
        {"v": (6, 6)},
    ),
    "the inputs of a body, of which TorchScript states those of the first turn": (
        """(float[1, 1, h, w] x, int64 turns, bool go) => (float[n, 1, 9, l] all) {
            last, all = Loop <body = turn (int64 k, bool i, float[1, 1, 6, 6] v)
                => (bool o, float[] again, float[] y) {
                o = Identity (i)
                again = Identity (v)
                GATHERED
            }> (turns, go, x)
        }""", {}, {"turns": 2, "go": True}, {"x": (8, 8)},
    ),
    **{f"what {made} makes, stated {where}": (
        f"""(float[1, 1, h, w] x, int64[k] sizes, bool is_first) => (float[] y {output}) {stated} {{
            {node}
            GATHERED
        }}""", {}, IS_FIRST, {"x": (8, 8)})
       for where, output, stated in (("of an output", ", float[1, 1, 6, 6] v", ""),
                                     ("in between", "", "<float[1, 1, 6, 6] v>"))
       for made, node in (("a list of open length", "v = Reshape (x, sizes)"),
           ("a branch", """v = If (is_first) <
            then_branch = same () => (float[a, b, c, d] one) { one = Identity (x) },
            else_branch = other () => (float[a, b, c, d] two) { two = Neg (x) }>"""))},
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_AS_STATED)
def test_sizes_that_are_not_what_is_stated(name):
    text, constants, fed, images = NOT_AS_STATED[name]
    proto = in_functions(f"main {text.replace('GATHERED', GATHERED)}")
    constants = {
        "positions": np.arange(3)[:, None] + np.arange(4),
        "target": [1, 9, -1],
        **constants,
    }
    made = {output for node in proto.graph.node for output in node.output}
    tensors = (
        numpy_helper.from_array(np.array(value), name)
        for name, value in constants.items()
        if name not in made
    )
    proto.graph.initializer.extend(tensors)
    rng = np.random.default_rng(0)
    fed = {n: np.array(v) for n, v in fed.items()} | {
        n: rng.random((1, 1, *s), np.float32) for n, s in images.items()
    }
    assert_same(proto, fed)


def test_many_branches_that_read_the_one_before():
    """Types are worked out for what branches read before that for their node."""
    w = Writer()
    y = w.add("GridSample", "x", w.add("Neg", "grid"))
    for _ in range(400):
        branches = [
            helper.make_graph(
                [helper.make_node(op_type, [y], [f"{op_type}_{y}"])],
                "branch",
                [],
                [helper.make_tensor_value_info(f"{op_type}_{y}", TensorProto.FLOAT, None)],
            )
            for op_type in ("Abs", "Neg")
        ]
        y = w.add("If", "condition", then_branch=branches[0], else_branch=branches[1])
    inputs = {
        "x": ("float32", [1, 1, 4, 5]),
        "grid": ("float32", [1, 2, 3, 2]),
        "condition": ("bool", []),
    }
    (main,) = (g for g in graphs_of(Model(w.model(inputs, (y, "float32", None)))) if not g.outer)
    assert main.type(y).elements == TensorProto.FLOAT


def test_sizes_beyond_those_of_tensors():
    """Products of them would have twice the digits with each node."""
    w = Writer()
    y = "x"
    for _ in range(9):
        columns = w.add("Unsqueeze", y, w.constant([1]))
        y = w.add("Reshape", w.add("Mul", columns, y), w.constant([-1]))
    (main,) = graphs_of(Model(w.model({"x": ("float32", [32])}, (y, "float32", None))))
    sizes = [main.type(node.output[0]).sizes for node in w.nodes if node.op_type == "Reshape"]
    assert sizes[:3] == [(2**10,), (2**20,), (2**40,)]
    assert not any(isinstance(size, int) for (size,) in sizes[3:])
