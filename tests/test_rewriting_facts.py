"""What `optimize` knows and states of a model is what ONNX Runtime computes, whatever the model's form."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper, parser
from support.backends import quiet
from support.processes import python
from support.written import Writer, affine_grid, attention, feeds, perspective, unfold, warp
from test_rewriting import SAMPLERS, near_miss

import onnx_ops
from onnx_ops import OpError
from onnx_ops.nodes import graphs_in, inlined
from onnx_ops.rewriting import grid_sample, rewritten
from onnx_ops.rewriting.graph import Model
from onnx_ops.rewriting.indices import integer_list, integers, shape
from onnx_ops.rewriting.sizes import named

SIZES = {"n": 2, "h": 4, "w": 5}


def run(proto, inputs, **how):
    return onnx_ops.InferenceSession(proto.SerializeToString(), quiet(), **how).run(None, inputs)


def compare(proto, sizes=(), found=True, **how):
    """Assert that a model gives the same results optimized; return the optimized model."""
    inputs = feeds(proto, {**SIZES, **dict(sizes)})
    optimized, findings = rewritten(proto)
    assert any(f.operator for f in findings) == found
    how = how or {"optimize": True}
    for expected, got in zip(run(proto, inputs), run(proto, inputs, **how), strict=True):
        np.testing.assert_array_equal(got, expected)
    return optimized


@pytest.mark.parametrize("layout", ["first", "last"])
def test_sizes_of_a_flow_that_other_nodes_read(layout):
    """ONNX Runtime replaces a Shape by the sizes that the operator states."""
    proto = warp([("Mul", 2), ("Sub", 1)], layout=layout, size=(4, 5),
                 after=lambda w: w.add("Add", "y", w.add("Cast", w.add("Shape", "y", start=3), to=1)))  # fmt: skip
    assert compare(proto).graph.node[0].op_type == "ComputedGridSample"


def in_functions(text):
    return parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20, "local" : 1]> {text}')


AFFINE = """
main (float[2, 3, 6, 7] x, float[2, 2, 3] theta) => (float[N, C, H, W] y) {
    y = local.Sample CALLED (x, theta)
}
<opset_import: ["" : 20], domain: "local"> Sample <DECLARED> (x, theta) => (y) {
    size = Constant <value_ints = [2, 3, 4, 5]> ()
    grid = AffineGrid <align_corners: int = @align_corners> (theta, size)
    y = GridSample (x, grid)
}"""


@pytest.mark.parametrize(
    ("called", "declared"),
    [("<align_corners = 1>", "align_corners"), ("", "align_corners: int = 1"),
     ("<align_corners = 0>", "align_corners: int = 1")],
)  # fmt: skip
@pytest.mark.parametrize("how", [{"optimize": True}, {"backend": "extensions"}], ids=str)
def test_attributes_that_a_caller_passes(called, declared, how):
    proto = in_functions(AFFINE.replace("CALLED", called).replace("DECLARED", declared))
    dims = {"x": [2, 3, 6, 7], "theta": [2, 2, 3], "grid": [2, 4, 5, 2]}
    proto.functions[0].value_info.extend(helper.make_tensor_value_info(name, 1, dims[name]) for name in dims)
    inputs = feeds(proto)
    expected, got = run(proto, inputs)[0], run(proto, inputs, **how)[0]
    np.testing.assert_allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize("how", [{"optimize": True}, {"backend": "extensions"}], ids=str)
@pytest.mark.parametrize("called", ["", '<mode = "linear">', '<mode = "cubic">'])
def test_default_attributes_of_functions(called, how):
    """onnx's inliner forgets them. A second function makes `optimize` inline: its grid is made in the first one."""
    proto = in_functions(f"""
main (float[2, 3, 6, 7] x, float[2, 4, 5, 2] p) => (float[N, C, H, W] y) {{
    g = local.Grid (p)
    y = local.Sample {called} (x, g)
}}
<opset_import: ["" : 20], domain: "local"> Grid (p) => (g) {{
    two = Constant <value_float = 2.0> ()
    one = Constant <value_float = 1.0> ()
    doubled = Mul (p, two)
    g = Sub (doubled, one)
}}
<opset_import: ["" : 20], domain: "local"> Sample <mode: string = "nearest"> (x, g) => (y) {{
    y = GridSample <mode: string = @mode> (x, g)
}}""")
    optimized = compare(proto, **how)
    assert [n.op_type for n in optimized.graph.node] == ["ComputedGridSample"]


def test_sizes_that_hold_no_longer():
    """The model states the sizes of one batch; then that of its inputs was opened."""
    proto = warp([("Mul", 2), ("Sub", 1)], batch=1)
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "n"
    compare(proto, {"n": 3})


def test_sizes_that_a_function_states_of_one_call():
    proto = in_functions("""
main (float[1, 3, 6, 7] x, float[1, 4, 5, 2] p, float[3, 3, 6, 7] x3, float[3, 4, 5, 2] p3) => (
    float[A, B, C, D] y, float[E, F, G, H] y3) {
    y = local.Sample (x, p)
    y3 = local.Sample (x3, p3)
}
<opset_import: ["" : 20], domain: "local"> Sample (x, p) => (y) {
    two = Constant <value_float = 2.0> ()
    g = Mul (p, two)
    y = GridSample (x, g)
}""")
    dims = {"x": [1, 3, 6, 7], "p": [1, 4, 5, 2], "g": [1, 4, 5, 2]}
    proto.functions[0].value_info.extend(helper.make_tensor_value_info(name, 1, dims[name]) for name in dims)
    compare(proto)


IN_FUNCTIONS = {  # the domain of a function, its call, how it is declared, what makes f of p
    "by the name of an operator of ONNX Runtime": ("", "Mul (p, p)", "Mul (p, q)", "f = Neg (p)"),
    "by this name in ai.onnx": ("ai.onnx", "Mul (p, p)", "Mul (p, q)", "f = Neg (p)"),
    "by the name of an operator of this package": (
        "onnx_ops", "onnx_ops.Im2Col <kernel_shape = [1, 1]> (p)", "Im2Col <kernel_shape> (p)", "f = Neg (p)"),
    "for several types": ("local", "local.F (p)", "F (p)", "stated = Neg (p) f = Neg (stated)"),
    **{f"with a loop, its numbers as {kind}": ("local", "local.F (p)", "F (p)", f"""
        turns = Constant <{value}> ()
        go = Cast <to: int = 9> (turns)
        f = Loop (turns, go, p) <body = turn (int64{size} k, bool{size} i, float[2, 4, 5, 2] v) => (
            bool{size} o, float[2, 4, 5, 2] w) {{
            o = Identity (i)
            w = Neg (v)
        }}>""") for kind, value, size in (("scalars", "value_int = 2", ""), ("vectors", "value_ints = [2]", "[1]"))},
}  # fmt: skip


@pytest.mark.parametrize("how", [{"optimize": True}, {"backend": "extensions"}], ids=str)
@pytest.mark.parametrize("name", IN_FUNCTIONS)
def test_functions_that_are_inlined(name, how):
    """ONNX Runtime runs an operator rather than a function of that name, and asks a Loop for ranks."""
    domain, call, declared, body = IN_FUNCTIONS[name]
    proto = parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 20, "local" : 1, "onnx_ops" : 1]>
    main (float[2, 3, 6, 7] x, float[2, 4, 5, 2] p, double[2, 4, 5, 2] d) => (float[N, C, H, W] y, float[A, B] z) {{
        f = {call}
        z = Flatten <axis = 0> (f)
        grid = Sub (p, p)
        y = GridSample (x, grid)
    }}
    <opset_import: ["" : 20], domain: "{domain}"> {declared} => (f) {{ {body} }}""")
    if name == "for several types":
        proto.functions[0].value_info.append(helper.make_tensor_value_info("stated", TensorProto.FLOAT, [2, 4, 5, 2]))
        proto.graph.node.append(helper.make_node("F", ["d"], ["e"], domain="local"))
        proto.graph.output.append(helper.make_tensor_value_info("e", TensorProto.DOUBLE, [2, 4, 5, 2]))
    inputs = feeds(proto)
    for expected, got in zip(run(proto, inputs), run(proto, inputs, **how), strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("called", ["", '<mode = "cubic">'])
@pytest.mark.parametrize("how", [{"optimize": True}, {"backend": "extensions"}], ids=str)
def test_a_default_where_the_caller_passes_nothing_on(how, called):
    proto = in_functions(f"""
main (float[2, 3, 6, 7] x, float[2, 4, 5, 2] p) => (float[N, C, H, W] y) {{ y = local.Outer {called} (x, p) }}
<opset_import: ["" : 20, "local" : 1], domain: "local"> Outer <mode> (x, p) => (y) {{
    two = Constant <value_float = 2.0> ()
    g = Mul (p, two)
    y = local.Inner <mode: string = @mode> (x, g)
}}
<opset_import: ["" : 20], domain: "local"> Inner <mode: string = "nearest"> (x, g) => (y) {{
    y = GridSample <mode: string = @mode> (x, g)
}}""")
    inputs = feeds(proto)
    if "backend" in how and not called:
        with pytest.raises(OpError, match="can't inline"):
            run(proto, inputs, **how)
    else:
        np.testing.assert_array_equal(run(proto, inputs, **how)[0], run(proto, inputs)[0])


FLAG = "b = Cast <to: int = 9> (s) f = Cast <to: int = 7> (b) r = ConstantOfShape (f)"
MISREAD = {
    "a cast to booleans": FLAG,
    "a cast in a branch": f"r = If (yes) <then_branch = g () => (r1) {{ {FLAG.replace('r =', 'r1 =')} }}, "
    "else_branch = g () => (r2) { r2 = ConstantOfShape (s) }>",
    "a sum of int32": "a = Add (large, large) b = Cast <to: int = 7> (a) m = Add (b, four) r = ConstantOfShape (m)",
    "a row of a table": "a = Identity (zero) t = Unsqueeze (s, a) v = Gather (t, first) r = ConstantOfShape (v)",
    "a slice from an unknown start": "a = Identity (one) v = Slice (s, a, two) r = ConstantOfShape (v)",
    "names in two branches": "r = If (no) <then_branch = g () => (r1) <int64[1] c = {2}> "
    "{ d = Concat <axis = 0> (c, one) r1 = ConstantOfShape (d) }, else_branch = g () => (r2) <int64[1] c = {3}> "
    "{ d = Concat <axis = 0> (c, two) r2 = ConstantOfShape (d) }>",
}


@pytest.mark.parametrize("name", MISREAD)
def test_values_that_onnx_misreads(name):
    """onnx's inference takes values for others that ONNX Runtime computes, and infers other shapes from them."""
    constants = "int64[1] zero = {0}, int64 first = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] four = {4}"
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
    known = shape(next(Model(proto).graphs()), "r")
    assert known is None or len(known) == real.ndim
    assert all(size in (real.shape[k], None) for k, size in enumerate(known or ()) if isinstance(size, int))


def test_names_of_dimensions_in_functions():
    """Both functions call their sizes N; inlined, these names would say that the sizes are equal."""
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


INTEGERS = {
    "a slice backwards": lambda w: w.add("Slice", w.constant([[1, 2], [3, 4], [5, 6]]), *map(
        w.constant, ([-1], [-(2**63)], [0], [-1]))),
    "a slice backwards along the second axis": lambda w: w.add("Slice", w.constant([[1, 2, 3, 4, 5]]), *map(
        w.constant, ([4], [-5], [1], [-1]))),
    "a slice backwards from before the first": lambda w: w.add("Slice", w.constant([1, 2, 3]), *map(
        w.constant, ([-9], [-9], [0], [-1]))),
    "a slice to the end": lambda w: w.add("Slice", w.constant([1, 2, 3]), *map(w.constant, ([1], [2**63 - 1]))),
    "a difference of uint8": lambda w: w.add("Sub", *(w.constant(v, np.uint8) for v in (1, 2))),
    "a sum of int8": lambda w: w.add("Add", *(w.constant(v, np.int8) for v in (100, 100))),
    "a product of int32": lambda w: w.add("Mul", *(w.constant(v, np.int32) for v in (2**20, 2**20))),
    "a sum of int64": lambda w: w.add("Add", w.constant(2**63 - 1), w.constant(2)),
    "a range of int16": lambda w: w.add("Mul", w.add("Cast", w.add("Range", *(w.constant(v, np.int16) for v in (
        0, 300, 100))), to=TensorProto.UINT8), w.constant(1, np.uint8)),
    "a part of uint8": lambda w: w.add("Sub", w.add("Gather", w.constant([1, 2], np.uint8), w.constant(0)),
                                       w.constant(2, np.uint8)),
    "a quotient of uint64": lambda w: w.add("Div", *(w.constant(v, np.uint64) for v in (2**63, 2))),
    "a negative quotient": lambda w: w.add("Div", w.constant(-5), w.constant(2)),
    "a negative remainder": lambda w: w.add("Mod", w.constant(-5), w.constant(3), fmod=1),
    "a maximum of int8": lambda w: w.add("Max", w.constant([-5, 3], np.int8), w.constant([0], np.int8)),
    "a mean of integers": lambda w: w.add("ReduceMean", w.constant([-2, -1, 0, 0]), keepdims=0),
    "a cumulated sum": lambda w: w.add("CumSum", w.constant([5, -1, 2]), w.constant(0), exclusive=1),
    "a power": lambda w: w.add("Pow", w.constant([-3, 5]), w.constant([3, 2])),
    "a float past int32": lambda w: w.add("Cast", w.constant(-2.7, np.float32), to=TensorProto.INT32),
    "a number past int32": lambda w: w.add("Cast", w.constant(2**32 + 5), to=TensorProto.INT32),
    "a size in uint8": lambda w: w.add("Cast", w.add("Sub", w.add("Cast", w.add("Shape", "x", end=1), to=2),
                                                     w.constant(9, np.uint8)), to=7),
    "a size past int32": lambda w: w.add("Cast", w.add("Add", w.add("Cast", w.add("Shape", "x", end=1), to=6),
                                                       w.constant(2**31 - 1, np.int32)), to=7),
    "a size past int64": lambda w: w.add("Div", w.add("Mul", w.add("Shape", "x", end=1), w.constant(2**63 - 1)),
                                         w.constant(2**63 - 1)),
    "half of an empty axis": lambda w: w.add("Div", w.add("Sub", w.add("Shape", "x", end=1), w.constant([1])),
                                             w.constant([2])),
}  # fmt: skip


@pytest.mark.parametrize("size", [0, 1, 7])
@pytest.mark.parametrize("name", INTEGERS)
def test_integers(name, size):
    """What is known of an integer is what ONNX Runtime computes, or nothing."""
    w = Writer()
    value = w.add("Cast", INTEGERS[name](w), to=TensorProto.INT64, name="value")
    proto = w.model({"x": ("float32", ["h"])}, (value, "int64", None))
    session = ort.InferenceSession(proto.SerializeToString(), quiet())
    (expected,) = session.run(None, {"x": np.zeros(size, np.float32)})
    known = integer_list(next(Model(proto).graphs()), "value")
    if known is not None:
        assert known == expected.ravel().tolist()
    else:
        assert name in ("a size in uint8", "a size past int32", "a size past int64", "half of an empty axis")


DEADLY = {  # nodes that end the process, unless ONNX Runtime refuses them by what it knows of their inputs
    "a value of one axis": "y = ReverseSequence <batch_axis = 0, time_axis = 1> (x, n)",
    "an operand that is left out": "y = Sum (x, , x)",
}


@pytest.mark.parametrize("name", DEADLY)
def test_constants_that_no_node_can_make(name):
    text = '<ir_version: 9, opset_import: ["" : 18]> g () => (float[N] y) <float[2] x = {1, 2}, int64[1] n = {-5}>'
    script = """
        import sys
        from onnx import parser
        from onnx_ops.rewriting.graph import Model

        assert next(Model(parser.parse_model(sys.argv[1])).graphs()).folded("y") is None
    """
    python(script, f"{text} {{ {DEADLY[name]} }}")


def at(w, op_type, *inputs, **attributes):
    """Add a SplitToSequence and a SequenceAt of its first part, or what another node makes at first of these."""
    if op_type != "SplitToSequence":
        return w.add(op_type, *inputs, **attributes)
    return w.add("SequenceAt", w.add(op_type, *inputs, **attributes), w.constant(0))


SHAPES = {  # nodes of a value x [n, 1, 5, 1], the version of ai.onnx, and what is known of the shape
    "a rank that is unknown": (18, lambda w: w.add(
        "Reshape", w.add("Reshape", "x", "sizes"), w.constant([0, 0, -1])), (None, None, None)),
    "axes out of order": (11, lambda w: w.add("Squeeze", "x", axes=[3, 1]), ("n", 5)),
    "all axes of 1": (18, lambda w: w.add("Squeeze", w.add("Gather", "x", w.constant(0))), (5,)),
    "an empty list of axes": (18, lambda w: w.add("Squeeze", "x", w.constant(np.zeros(0))), None),
    "a pool that is rounded up": (18, lambda w: w.add(
        "MaxPool", w.add("Expand", "x", w.constant([1, 1, 1, 4])), kernel_shape=[1, 1], strides=[1, 2], ceil_mode=1),
        ("n", 1, None, None)),
    "a pool": (18, lambda w: w.add("MaxPool", "x", kernel_shape=[2, 1]), ("n", 1, 4, 1)),
    "a pool of dilated windows that keeps sizes": (20, lambda w: w.add(
        "MaxPool", "x", kernel_shape=[2, 1], dilations=[2, 1], auto_pad="SAME_UPPER"), ("n", 1, None, None)),
    "a transposed convolution that pads its output": (18, lambda w: w.add(
        "ConvTranspose", "x", w.constant(np.ones((1, 1, 3, 1)), np.float32), strides=[3, 1], output_padding=[1, 0],
        auto_pad="SAME_UPPER"), ("n", 1, None, None)),
    "a transposed convolution of a stated size": (18, lambda w: w.add(
        "ConvTranspose", "x", w.constant(np.ones((1, 1, 3, 1)), np.float32), output_shape=[7, 1]),
        ("n", 1, None, None)),
    "attention without an axis of heads": (23, lambda w: w.add(
        "Attention", *[w.add("Squeeze", "x", w.constant([3]))] * 3, q_num_heads=1, kv_num_heads=1), ("n", 1, None)),
    "a product that is broadcast": (18, lambda w: w.add(
        "Einsum", "x", w.constant(np.ones((3, 5, 1)), np.float32), equation="ncij,cij->nci"), (None, None, None)),
    "a product that is not": (18, lambda w: w.add(
        "Einsum", "x", w.constant(np.ones((1, 5, 1)), np.float32), equation="ncij, cij -> nci"), ("n", 1, 5)),
    "a slope that is larger": (18, lambda w: w.add("PRelu", "x", w.constant(np.ones((4, 1, 3)), np.float32)),
                               ("n", 4, 5, 3)),
    "a spectrum": (18, lambda w: w.add("STFT", w.constant(np.ones((1, 64, 1)), np.float32), w.constant(8), w.constant(
        np.ones(16), np.float32)), (1, 7, None, 2)),
    "all of a spectrum": (18, lambda w: w.add("STFT", w.constant(np.ones((1, 64, 1)), np.float32), w.constant(
        8), w.constant(np.ones(16), np.float32), onesided=0), (1, 7, 16, 2)),
    "less than nothing": (18, lambda w: w.add("CenterCropPad", "x", w.constant([-3]), axes=[2]), ("n", 1, None, 1)),
    "a size that float32 rounds up": (18, lambda w: w.add(
        "Resize", "x", "", w.constant([1, 1, 1.4, 2], np.float32)), ("n", 1, None, 2)),
    "a size that float32 rounds up in version 10": (10, lambda w: w.add(
        "Resize", "x", w.constant([1, 1, 1.4, 2], np.float32)), ("n", 1, None, 2)),
    "a size that float32 rounds up in version 9": (9, lambda w: w.add(
        "Upsample", "x", w.constant([1, 1, 1.4, 2], np.float32)), ("n", 1, None, 2)),
    "a size that float32 rounds up in version 8": (8, lambda w: w.add(
        "Upsample", "x", scales=[1.0, 1.0, 1.4, 2.0]), ("n", 1, None, 2)),
    "a size that float32 doesn't round": (18, lambda w: w.add(
        "Resize", "x", "", w.constant([1, 1, 1.5, 2], np.float32)), ("n", 1, 7, 2)),
    "an empty operand": (18, lambda w: w.add(
        "Concat", w.add("Reshape", w.constant([], np.float32), w.constant([0, 1, 5, 1]), allowzero=1), "x", axis=1),
        (None, 2, 5, 1)),
    "where a scalar isn't 0": (18, lambda w: w.add("NonZero", w.constant(3)), (1, None)),
    "parts without an axis": (18, lambda w: at(w, "SplitToSequence", "x", w.constant(1), axis=1, keepdims=0), None),
    "parts": (18, lambda w: at(w, "SplitToSequence", "x", w.constant(2), axis=2, keepdims=1), ("n", 1, 2, 1)),
    "a range to a number that a Cast has wrapped": (18, lambda w: w.add(
        "Range", *(w.add("Cast", w.constant(v), to=TensorProto.INT16) for v in (0, 2**16 + 3, 1))), (3,)),
    "a range to a boolean": (18, lambda w: w.add("Range", w.constant(0), w.add("Cast", w.add(
        "Cast", w.constant(3), to=TensorProto.BOOL), to=TensorProto.INT64), w.constant(1)), (1,)),
    "a range to an open size": (18, lambda w: w.add("Range", *(w.add("Cast", v, to=TensorProto.FLOAT) for v in (
        w.constant(0), w.add("Squeeze", w.add("Shape", "x", end=1)), w.constant(1)))), ("n",)),
    "a range to an open size in few bits": (18, lambda w: w.add("Range", *(w.add("Cast", w.add(
        "Cast", v, to=TensorProto.INT8), to=TensorProto.INT64) for v in (
            w.constant(0), w.add("Squeeze", w.add("Shape", "x", end=1)), w.constant(1)))), (None,)),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name):
    """What is known of a shape is what ONNX Runtime makes, which states other shapes itself of some of these nodes."""
    opset, add, expected = SHAPES[name]
    if opset == 23 and tuple(map(int, ort.__version__.split(".")[:2])) < (1, 23):
        pytest.skip("ONNX Runtime lacks it")
    w = Writer()
    value = add(w)
    proto = w.model({"x": ("float32", ["n", 1, 5, 1]), "sizes": ("int64", ["k"])}, (value, "float32", None), opset)
    del proto.graph.value_info[:]
    graph = next(Model(proto).graphs())
    known = shape(graph, value)
    assert expected == (known and tuple(
        d if isinstance(d, int) else "n" if d == named("n") else None for d in known))  # fmt: skip
    proto.graph.output[0].type.tensor_type.elem_type = graph.type(value).elements or TensorProto.FLOAT
    session = ort.InferenceSession(proto.SerializeToString(), quiet())
    n = 300 if "few bits" in name else 4
    result = session.run(None, {"x": np.ones((n, 1, 5, 1), np.float32), "sizes": np.array([n, 1, 5])})[0]
    assert all(d in (size, None, "n") for d, size in zip(expected or result.shape, result.shape, strict=True))
    assert all(size == n for d, size in zip(expected or (), result.shape, strict=False) if d == "n")


@pytest.mark.parametrize("op_type", ["Slice", "Squeeze", "Unsqueeze"])
def test_axes_that_are_a_range_of_open_size(op_type):
    w = Writer()
    axes = w.add("Range", w.constant(0), w.add("Squeeze", w.add("Shape", "x", end=1)), w.constant(1))
    bounds = [w.constant([0]), w.constant([1])] if op_type == "Slice" else []
    value = w.add(op_type, w.constant([[3, 4]]), *bounds, axes)
    proto = w.model({"x": ("float32", ["h"])}, (value, "int64", None))
    assert integers(next(Model(proto).graphs()), value) is None


def test_names_of_dimensions_that_look_like_formulas():
    w = Writer()
    inputs = {"x": ("float32", ["a", "b", "a-b"]), "y": ("float32", ["2*a", "a*2"])}
    graph = next(Model(w.model(inputs, (w.add("Identity", "x"), "float32", None))).graphs())
    a, b, difference = shape(graph, "x")
    twice, again = shape(graph, "y")
    assert difference != a - b
    assert len({twice, again, a + a}) == 3


def squeeze_what_is_not_there(proto):
    node = next(node for node in proto.graph.node if node.op_type == "Unsqueeze")
    node.op_type = "Squeeze"
    next(t for t in proto.graph.initializer if t.name == node.input[1]).CopyFrom(
        numpy_helper.from_array(np.array([4]), node.input[1])
    )


@pytest.mark.parametrize("pads", [[0, 0, 1, 1], [0, 0, 1, 1, 1]])
def test_pads_of_other_axes(pads):
    proto = unfold(all_pads=pads)
    proto.graph.node[0].input.extend(["", "axes"])
    proto.graph.initializer.append(numpy_helper.from_array(np.array([1, 2, 3]), "axes"))
    assert "blocks instead of" in near_miss(proto, runs=False)[0]


def empty_base(*dims):
    def edit(proto):
        proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.zeros(dims, np.float32), "constant_0"))

    return edit


@pytest.mark.parametrize("edit", [squeeze_what_is_not_there, empty_base(35, 0, 1), empty_base(0, 3, 1)])
@pytest.mark.parametrize("size", [(5, 7), (0, 7), (-5, -7)], ids=str)
def test_affine_grids_that_do_not_run(edit, size):
    proto = affine_grid(target=[2, *size, 2])
    edit(proto)
    near_miss(proto, runs=False)


def test_weights_of_a_part_of_the_batch():
    """The end of the Slice is known, though onnx doesn't infer it."""
    proto = attention(batch=1)
    w = Writer()
    w.initializers.extend(proto.graph.initializer)
    twice, end = w.add("Concat", *["attention_weights"] * 2, axis=0), w.add("Identity", w.constant([1]))
    part = w.add("Slice", twice, w.constant([0]), end, w.constant([0]))
    user = next(node for node in proto.graph.node if "attention_weights" in node.input)
    user.input[[*user.input].index("attention_weights")] = part
    w.nodes.extend(proto.graph.node)
    del proto.graph.node[:], proto.graph.initializer[:], proto.graph.value_info[:]
    proto.graph.node.extend(w.nodes)
    proto.graph.initializer.extend(w.initializers)
    assert "MultiScaleDeformableAttention" in [node.op_type for node in compare(proto, tolerance=1e-4).graph.node]


def test_samples_of_one_level():
    """The first level's sample times the sum of the weights is no attention."""
    proto = attention(points=1)
    (product,) = (node for node in proto.graph.node if node.output[0] == "product")
    for name, value in ("zero", np.array(0)), ("last", np.array([3])):
        proto.graph.initializer.append(numpy_helper.from_array(value, name))
    first = helper.make_node("Gather", [product.input[0], "zero"], ["first"], axis=3)
    again = helper.make_node("Unsqueeze", ["first", "last"], ["again"])
    product.input[0] = "again"
    at = list(proto.graph.node).index(product)
    proto.graph.node.insert(at, again)
    proto.graph.node.insert(at, first)
    assert any("put together" in reason for reason in near_miss(proto, also=SAMPLERS))


def test_a_division_that_ends_the_process(tmp_path):
    """It is ONNX Runtime's, of the least integer by -1. A session that optimizes nothing may never run it."""
    proto = in_functions("""main (float[1, 1, 6, 7] x, float[1, 4, 5, 2] p) => (float[N, C, H, W] y) {
        least = Constant <value_ints = [-9223372036854775808]> ()
        negative = Constant <value_ints = [-1]> ()
        quotient = Div (least, negative)
        factor = Cast <to: int = 1> (quotient)
        grid = Mul (p, factor)
        y = GridSample (x, grid)
    }""")
    onnx.save(proto, tmp_path / "model.onnx")
    script = "import sys, onnx, onnx_ops; print(onnx_ops.optimize(onnx.load(sys.argv[1])).graph.node[-1].op_type)"
    assert python(script, tmp_path / "model.onnx").stdout.strip() == "ComputedGridSample"


def test_constants_that_are_compared_in_another_type():
    """In float32, the type of the grid, they are equal."""
    proto = in_functions("""main (float[1, 1, 6, 7] x, float[1, 4, 5, 2] p) => (float[N, C, H, W] y) {
        is_small = Less (ramp, middle)
        doubled = Mul (p, two)
        grid = Where (is_small, p, doubled)
        y = GridSample (x, grid)
    }""")
    ramp = np.linspace(0.1, 0.1 + 3e-9, 20).reshape(1, 4, 5, 1)
    for name, value in {"ramp": ramp, "middle": ramp.mean(), "two": np.float32(2)}.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    compare(proto, found=False)


WIDENED = {  # how weights of one sample become those of none, or of several
    "none": [("Slice", ["zero", "zero", "last"], "wide")],
    "three": [("Concat", ["one", "one", "one", "three"], "target"), ("Expand", ["target"], "wide")],
    "an open number": [("Shape", [], "size"), ("Concat", ["one", "one", "one", "size"], "target"),
                       ("Expand", ["target"], "wide")],
}  # fmt: skip


@pytest.mark.parametrize("name", WIDENED)
def test_several_products_of_one_sample(name):
    """What is added up isn't the sample times its weight."""
    proto = attention(levels=[(3, 4)], points=1)
    (product,) = (node for node in proto.graph.node if node.output[0] == "product")
    at, source = list(proto.graph.node).index(product), {"Shape": ["k"], "Concat": []}
    del proto.graph.value_info[:]
    proto.graph.input.append(helper.make_tensor_value_info("k", TensorProto.FLOAT, ["k"]))
    for value, number in {"zero": 0, "one": 1, "three": 3, "last": 3}.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.array([number]), value))
    for op_type, operands, output in reversed(WIDENED[name]):
        inputs = [*source.get(op_type, product.input[1:]), *operands]
        more = {"axis": 0} if op_type == "Concat" else {}
        proto.graph.node.insert(at, helper.make_node(op_type, inputs, [output], **more))
    product.input[1] = "wide"
    assert any("over other axes" in reason for reason in near_miss(proto, {"k": 3}, also=SAMPLERS))


@pytest.mark.parametrize("is_constant", [False, True])
def test_one_weight_for_all_samples(is_constant):
    """A constant one would be that of every image of the batch, whose number is open."""
    proto = attention(open_sizes=is_constant)
    (product,) = (node for node in proto.graph.node if node.output[0] == "product")
    product.input[1] = "weight"
    if is_constant:
        proto.graph.initializer.append(numpy_helper.from_array(np.float32(0.5), "weight"))
    else:
        proto.graph.input.append(helper.make_tensor_value_info("weight", TensorProto.FLOAT, []))
    assert any("made of weights" in reason for reason in near_miss(proto, {"n": 2, "q": 3}, also=SAMPLERS))


@pytest.mark.parametrize("opset", [16, 20])
def test_a_grid_that_is_an_initializer(opset):
    """Such a grid is what tools leave that compute constants ahead."""
    proto = parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : {opset}]> g (float[2, 3, 6, 7] x) => (float[2, 3, 4, 5] y) '
        "{ y = GridSample (x, grid) }"
    )
    proto.graph.initializer.append(numpy_helper.from_array(np.zeros((2, 4, 5, 2), np.float32), "grid"))
    assert "constant" in near_miss(proto)[0]


def test_sizes_that_a_caller_may_change():
    """onnx infers the shape of a Slice from a default, which the caller may replace."""
    w = Writer()
    w.add("Slice", "p", *map(w.constant, ([0], [9], [1])), "steps", name="sliced")
    grid = w.add("Transpose", w.add("Mul", "sliced", w.constant(2, np.float32)), perm=[0, 2, 3, 1])
    y = w.add("GridSample", "x", grid)
    w.initializers.append(numpy_helper.from_array(np.array([2]), "steps"))
    inputs = {"x": ("float32", [1, 1, 4, 4]), "p": ("float32", [1, 4, 3, 3]), "steps": ("int64", [1])}
    proto = w.model(inputs, (y, "float32", None))
    del proto.graph.value_info[:]
    assert shape(next(Model(proto).graphs()), "sliced")[1] not in (2, 4)
    assert rewritten(proto)[0] == proto


def test_a_pattern_that_fails_leaves_the_model_as_it_is(monkeypatch):
    def match(graph, node, standard):
        graph.add_constant("something", np.zeros(3))
        raise IndexError("planted")

    monkeypatch.setattr(grid_sample, "match", match)
    proto = warp()
    with pytest.warns(
        UserWarning, match=r"onnx_ops: grid_sample at node_y of main was not optimized, .*Error: planted"
    ):
        assert rewritten(proto) == (proto, [])


@pytest.mark.parametrize("ir_version", [3, 9])
@pytest.mark.parametrize(
    "proto", [perspective(), warp(), affine_grid(opset=20), unfold()], ids=["perspective", "flow", "affine", "unfold"]
)
def test_constants_of_old_and_new_models(proto, ir_version):
    """In version 3 of the format initializers are inputs. No constant is added that nothing uses."""
    proto = onnx.ModelProto.FromString(proto.SerializeToString())
    proto.ir_version = ir_version
    if ir_version == 3:  # nodes, as initializers that are inputs are no constants
        nodes = [helper.make_node("Constant", [], [t.name], value=t) for t in proto.graph.initializer]
        nodes += proto.graph.node
        del proto.graph.initializer[:], proto.graph.node[:]
        proto.graph.node.extend(nodes)
    optimized = compare(proto)
    used = {name for node in optimized.graph.node for name in node.input}
    made = {t.name for t in optimized.graph.initializer}
    made |= {n.output[0] for n in optimized.graph.node if n.op_type == "Constant"}
    assert made <= used
    assert not {t.name for t in optimized.graph.initializer} - used
    assert ir_version > 3 or not optimized.graph.initializer


def test_constants_of_one_name():
    """A branch has a constant with the name of one outside. That one is unused once the grid is."""
    proto = warp([("Mul", 2), ("Sub", 1)])
    w = Writer()
    names = [node.input[1] for node in proto.graph.node if node.op_type in ("Mul", "Sub")]
    w.add("Add", "y", names[0], name="sum")
    w.add("Identity", "y", name="same")
    one, two = (helper.make_graph([node], "branch", [], [onnx.ValueInfoProto(name=node.output[0])]) for node in w.nodes)
    one.initializer.append(numpy_helper.from_array(np.float32(7), names[0]))
    proto.graph.node.append(helper.make_node("If", ["yes"], ["z"], then_branch=one, else_branch=two))
    proto.graph.input.append(helper.make_tensor_value_info("yes", TensorProto.BOOL, []))
    proto.graph.output[0].name = "z"
    optimized = compare(proto)
    assert not {tensor.name for tensor in optimized.graph.initializer} & {*names}


@pytest.mark.parametrize("size", [(4, 5), (3, 4, 5)], ids=str)
def test_sums_of_neighbouring_values(size):
    """ONNX Runtime may add up neighbouring values in another order than one after the other."""
    assert "neighbouring values" in near_miss(affine_grid(size=size, by_rows=True))[0]


@pytest.mark.parametrize(("height", "width"), [(1, 5), (5, 1), (0, 9), (9, 0), (1, 1), (0, 0), (4, 4)])
@pytest.mark.parametrize("pads", [(0, 0, 0, 0), (1, 1, 1, 1), (2, 0, 1, 3)], ids=str)
def test_images_smaller_than_the_kernel(height, width, pads):
    """Where no block fits, plain and optimized models give none."""
    proto = unfold(open_sizes=True, pads=pads)
    inputs = feeds(proto, {"n": 1, "size_0": height, "size_1": width})
    expected, got = run(proto, inputs)[0], run(proto, inputs, optimize=True)[0]
    np.testing.assert_array_equal(got, expected)


GATHERED = """
    rows = Gather <axis = 2> (v, positions)
    blocks = Gather <axis = 4> (rows, positions)
    turned = Transpose <perm = [0, 1, 2, 4, 3, 5]> (blocks)
    y = Reshape (turned, target)
"""
MISTAKEN = {  # what a model states of v or does before an unfold of it for 6x6 pixels, and an input of another size
    "a default of another size": ("(float[1, 1, h, w] v)", "", {"v": [1, 1, 6, 6]}, {"v": (1, 1, 8, 8)}),
    "a default without a stated shape": ("(float[] v)", "", {"v": [1, 1, 6, 6]}, {"v": (1, 1, 8, 8)}),
    "a name that onnx has given to another size": (
        "(float[1, 1, h, w] x, int64[2] end, int64[2] other_end)",
        """other = Slice (x, starts, other_end, axes)
        v = Slice (x, starts, end, axes)
        height = Shape <start = 2, end = 3> (other)
        count = Sub (height, two)
        scalar = Squeeze (count)
        blocks_of_other = Range (zero, scalar, one)
        row = Unsqueeze (blocks_of_other, zeros)
        positions = Add (steps, row)""",
        {"starts": [0, 0], "axes": [2, 3], "two": [2], "zero": 0, "one": 1, "zeros": [0], "steps": [[0], [1], [2]]},
        {"x": (1, 1, 12, 12), "end": [9, 9], "other_end": [6, 6]},
    ),
    "an end past all elements, backwards": (
        "(float[1, 1, 6, 6] v)", "lead = Slice (ones, from, to, from, back)\ntarget = Concat <axis = 0> (lead, rest)",
        {"ones": [1], "from": [0], "to": [2**63 - 1], "back": [-1], "rest": [1, 9, 16]}, {"v": (1, 1, 6, 6)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKEN)
def test_sizes_that_are_not_what_is_stated(name):
    inputs, before, constants, sizes = MISTAKEN[name]
    header = '<ir_version: 9, opset_import: ["" : 20]>'
    proto = parser.parse_model(f"{header} main {inputs} => (float[] y) {{ {before} {GATHERED} }}")
    constants = {name: np.zeros(v, np.float32) if name == "v" else np.array(v) for name, v in constants.items()}
    made = {output for node in proto.graph.node for output in node.output}
    constants |= {"positions": np.arange(3)[:, None] + np.arange(4), "target": np.array([1, 9, -1])}
    proto.graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in constants.items() if n not in made)
    if "other_end" in inputs:  # as onnx.shape_inference leaves it of a model without the other Slice
        (other,) = (v.type for v in onnx.shape_inference.infer_shapes(proto).graph.value_info if v.name == "other")
        other.tensor_type.shape.dim[3].CopyFrom(other.tensor_type.shape.dim[2])
        proto.graph.value_info.append(helper.make_value_info("v", other))
    rng = np.random.default_rng(0)
    fed = {n: rng.random(s, np.float32) if isinstance(s, tuple) else np.array(s) for n, s in sizes.items()}
    expected, got = (np.asarray(run(proto, fed, **how)[0]) for how in ({}, {"optimize": True}))
    np.testing.assert_array_equal(got, expected)


def test_sizes_that_a_body_states_of_its_inputs():
    """A Loop's body may get others: TorchScript states those of the first turn."""
    proto = parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 20]>
    main (float[1, 1, h, w] x, int64 turns, bool go) => (float[n, 1, 9, l] all) {{
        last, all = Loop <body = turn (int64 k, bool i, float[1, 1, 6, 6] v) => (bool o, float[] again, float[] y) {{
            o = Identity (i)
            again = Identity (v)
            {GATHERED}
        }}> (turns, go, x)
    }}""")
    constants = {"positions": np.arange(3)[:, None] + np.arange(4), "target": np.array([1, 9, -1])}
    proto.graph.initializer.extend(numpy_helper.from_array(v, name) for name, v in constants.items())
    fed = {"x": np.random.default_rng(0).random((1, 1, 8, 8), np.float32), "turns": np.array(2), "go": np.array(True)}
    expected, got = (run(proto, fed, **how)[0] for how in ({}, {"optimize": True}))
    np.testing.assert_array_equal(got, expected)


UNKNOWN_SHAPES = {  # how v is made of x, so that only what the model states of v tells its shape
    "a list of open length": "v = Reshape (x, sizes)",
    "a branch": """v = If (is_first) <
            then_branch = same () => (float[a, b, c, d] one) { one = Identity (x) },
            else_branch = other () => (float[a, b, c, d] two) { two = Neg (x) }
        >""",
}


@pytest.mark.parametrize("stated", ["of an output", "in between"])
@pytest.mark.parametrize("made", UNKNOWN_SHAPES)
def test_sizes_that_only_the_model_states(made, stated):
    """They may be of another input than this one."""
    output = ", float[1, 1, 6, 6] v" if stated == "of an output" else ""
    proto = parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 20]>
    main (float[1, 1, h, w] x, int64[k] sizes, bool is_first) => (float[] y {output}) {{
        {UNKNOWN_SHAPES[made]}
        {GATHERED}
    }}""")
    if not output:
        proto.graph.value_info.append(helper.make_tensor_value_info("v", TensorProto.FLOAT, [1, 1, 6, 6]))
    constants = {"positions": np.arange(3)[:, None] + np.arange(4), "target": np.array([1, 9, -1])}
    proto.graph.initializer.extend(numpy_helper.from_array(v, name) for name, v in constants.items())
    fed = {"x": np.random.default_rng(0).random((1, 1, 8, 8), np.float32), "sizes": np.array([1, 1, 8, 8])}
    expected, got = (run(proto, fed | {"is_first": np.array(True)}, **how)[0] for how in ({}, {"optimize": True}))
    np.testing.assert_array_equal(got, expected)
