"""lower() rewrites the nodes that it should and leaves the rest alone."""

from contextlib import nullcontext

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from support.backends import quiet, run_session, with_extensions
from support.cases import assert_close, case_named, expected_of, model, parsed
from support.selection import long_unless, needs_extensions

import onnx_ops
from onnx_ops.model.nodes import all_nodes, model_nodes
from onnx_ops.registry import available
from onnx_ops.session.lowering import lower_for_session

pytestmark = pytest.mark.any_library

EVERYTHING, BILINEAR = case_named("everything"), case_named("bilinear_border_edges")


def test_the_model_given_is_not_modified():
    proto = model("", "Col2Im", EVERYTHING.inputs("float32"), EVERYTHING.attributes)
    before = proto.SerializeToString()
    lowered = onnx_ops.lower(proto)
    assert proto.SerializeToString() == before
    assert [n.op_type for n in lowered.graph.node if n.domain] == ["ai_onnx_Col2Im"]
    assert lowered.graph.input == proto.graph.input
    assert lowered.graph.output == proto.graph.output


@needs_extensions
def test_a_model_without_our_operators_comes_back_equal():
    proto = parsed("(float[2] x) => (float[2] y) { y = Relu (x) }")
    assert onnx_ops.lower(proto) == proto
    assert onnx_ops.lower(proto) is not proto
    session = onnx_ops.InferenceSession(proto.SerializeToString(), quiet(), backend="extensions")
    np.testing.assert_array_equal(run_session(session, [np.array([-1, 1], np.float32)]), [0, 1])


@needs_extensions
def test_lowering_twice_is_lowering_once():
    lowered = onnx_ops.lower(
        model("", "Col2Im", EVERYTHING.inputs("float32"), EVERYTHING.attributes)
    )
    assert onnx_ops.lower(lowered) == lowered
    inputs = EVERYTHING.inputs("float32")
    session = onnx_ops.InferenceSession(lowered.SerializeToString(), quiet(), backend="extensions")
    assert_close(run_session(session, inputs), expected_of(EVERYTHING, inputs), "float32")


@needs_extensions
def test_a_model_that_is_lowered_in_part():
    """Nodes that were lowered before and nodes that were added since run together."""
    case = case_named("strided")
    inputs = case.inputs("float32")
    lowered = onnx_ops.lower(model("", "Col2Im", inputs, case.attributes))
    (node,) = model("", "Col2Im", inputs, case.attributes).graph.node
    node.name, node.output[0] = "another_node", "again"
    lowered.graph.node.extend([node, helper.make_node("Add", ["y", "again"], ["sum"])])
    lowered.graph.output[0].name = "sum"
    session = ort.InferenceSession(
        onnx_ops.lower(lowered).SerializeToString(), with_extensions(quiet())
    )
    assert_close(run_session(session, inputs), 2 * expected_of(case, inputs), "float32")


def test_unknown_attributes_are_named():
    proto = model("", "Col2Im", EVERYTHING.inputs("float32"), {"stride": [2, 2]})
    with pytest.raises(
        onnx_ops.OpError,
        match=r"Col2Im \(node 'the_node'\): stride = .*: no such attribute; there are",
    ):
        onnx_ops.lower(proto)


def all_sessions(proto):
    """Return a plain session on the lowered model, and ours on the model itself with both
    backends.
    """
    return [
        ort.InferenceSession(onnx_ops.lower(proto).SerializeToString(), with_extensions(quiet())),
        *(
            onnx_ops.InferenceSession(proto.SerializeToString(), quiet(), backend=b)
            for b in ("native", "extensions")
        ),
    ]


PLACES = {  # where a model may have a node, as texts
    "a branch": """({inputs}, bool condition) => (float[] y) {{
        y = If (condition) <then_branch = then () => (float[] then_y) {{ then_y = {node} }},
                            else_branch = else ()
                                => (float[] else_y) {{ else_y = ReduceSum ({first}) }}>
    }}""",
    "a loop": """({inputs})
        => (float[] y) <int64 once = {{1}}, bool yes = {{1}}, int64[1] axis = {{0}}> {{
        all = Loop (once, yes) <body = body (int64 k, bool go) => (bool going, float[] z) {{
            going = Identity (go)
            z = {node}
        }}>
        y = Squeeze (all, axis)
    }}""",
    "a function in a function": """({inputs}) => (float[] y) {{ y = local.Outer ({names}) }}
    <opset_import: ["" : 18, "local" : 1], domain: "local"> Outer ({names})
        => (y) {{ y = local.Inner ({names}) }}
    <opset_import: ["" : 18, "com.microsoft" : 1], domain: "local"> Inner <{attributes}> ({names})
        => (y) {{
        y = {node}
    }}""",
}


def placed(case, location):
    """Return a model with the case's node at one of PLACES, whose attributes a function gets from
    its caller; inputs.

    An input `condition` chooses the branch.
    """
    inputs, names = case.inputs("float32"), [i.name for i in case.operator.inputs]
    described = ", ".join(
        f"{'float' if v.dtype == np.float32 else 'int64'}[] {n}"
        for n, v in zip(names, inputs, strict=True)
    )
    node = f"{f'{case.domain}.{case.op_type}'.lstrip('.')} ({', '.join(names)})"
    text = PLACES[location].format(inputs=described, names=", ".join(names), first=names[0],
                                   node=node, attributes=", ".join(case.attributes))  # fmt: skip
    proto = parsed(text, 18, *{case.domain, "local"} - {""})
    (outer, inner) = (
        [n for n in model_nodes(proto) if n.op_type == op_type]
        for op_type in ("Inner", case.op_type)
    )
    for name, value in case.attributes.items():
        attribute = helper.make_attribute(name, value)
        (*outer, *inner)[0].attribute.append(attribute)
        if outer:
            inner[0].attribute.add(name=name, type=attribute.type, ref_attr_name=name)
    condition = [np.array(True)] if location == "a branch" else []
    return proto, [*inputs, *condition]


@needs_extensions
@pytest.mark.parametrize("location", PLACES)
@pytest.mark.parametrize("case", [EVERYTHING, BILINEAR], ids=str)
def test_nodes_are_lowered_wherever_they_are(case, location):
    proto, inputs = placed(case, location)
    sessions = all_sessions(proto)
    for session in sessions:
        assert_close(
            run_session(session, inputs), expected_of(case, inputs[: len(case.shapes)]), "float32"
        )
    with pytest.raises(onnx_ops.OpError, match="shape of"):
        run_session(sessions[-1], [inputs[0][:, 0], *inputs[1:]])


@needs_extensions
def test_a_refusal_in_a_branch_whose_shape_is_stated():
    """ONNX Runtime would allocate that shape in advance, and end the process when it gets the empty
    tensor.
    """
    proto, inputs = placed(BILINEAR, "a branch")
    expected = expected_of(BILINEAR, inputs[:2])
    for attribute in proto.graph.node[0].attribute:
        dims = [None] * expected.ndim if attribute.name == "else_branch" else expected.shape
        attribute.g.output[0].CopyFrom(
            helper.make_tensor_value_info(attribute.g.output[0].name, TensorProto.FLOAT, dims)
        )
    session = all_sessions(proto)[-1]
    assert_close(run_session(session, inputs), expected, "float32")
    with pytest.raises(onnx_ops.OpError, match="axis 0 must be the batch size"):
        run_session(session, [inputs[0][:1], *inputs[1:]])


@needs_extensions
@pytest.mark.parametrize("types", [("float[1,2,4,5]", "float[1,3,3,2]"), ("", "")], ids=str)
def test_a_scan_whose_result_has_no_stated_shape(types):
    """ONNX Runtime must know its rank. What onnxscript writes states no types of inputs, either."""
    image, grid = types
    proto = parsed(f"""(float[k,1,2,4,5] images, float[k,1,3,3,2] grids) => (y) {{
        y = Scan <num_scan_inputs = 2, body = body ({image} x, {grid} grid) => (z) {{
            z = GridSample (x, grid)
        }}> (images, grids)
    }}""", 20)  # fmt: skip
    rng = np.random.default_rng(0)
    inputs = [
        rng.uniform(-1, 1, (3, 1, *sizes)).astype(np.float32) for sizes in ((2, 4, 5), (3, 3, 2))
    ]
    plain, native, extensions = (run_session(session, inputs) for session in all_sessions(proto))
    np.testing.assert_array_equal(plain, native)
    np.testing.assert_array_equal(extensions, native)


REUSED = """(float[1,3,l] columns, bool condition) => (float[a,b,c,d] z)
    <int64[2] image = {2, 6}, int64[2] block = {1, 3}, int64[3] sizes = {1, 3, 2},
        int64[4] shape = {1, 1, 2, 6},
     float one = {1.0}> {
        y = Col2Im <strides = [2, 2]> (columns, image, block)
        ones = Expand (one, sizes)
        divisor = Col2Im <strides = [2, 2]> (ones, image, block)
        dividend = If (condition) <then_branch = then () => (then_y) { then_y = Identity (y) },
                                   else_branch = else ()
                                       => (else_y) { else_y = Expand (one, shape) }>
        quotient = Div (dividend, divisor)
        z = Transpose <perm = [2, 0, 3, 1]> (quotient)
    }"""


@needs_extensions
def test_a_refusal_where_another_value_had_memory():
    """ONNX Runtime re-uses memory of a size that it knows, and would end the process when it gets
    the empty tensor.
    """
    session = onnx_ops.InferenceSession(
        parsed(REUSED, 19).SerializeToString(), quiet(), backend="extensions"
    )
    for blocks in (2, 0, 0):
        feeds = {"columns": np.ones((1, 3, blocks), np.float32), "condition": np.array(False)}
        with (
            nullcontext()
            if blocks == 2
            else pytest.raises(onnx_ops.OpError, match="the last axis must be")
        ):
            session.run(None, feeds)


@needs_extensions
def test_a_refusal_where_the_caller_has_memory():
    """So it would for the memory that an output is bound to, if a result doesn't fit it."""
    sizes = {"image_shape": np.array([2, 6]), "block_shape": np.array([1, 3])}
    for blocks, pixels, error in (8, 6, None), (5, 6, onnx_ops.OpError), (8, 5, RuntimeError):
        x, y = np.ones((1, 3, blocks), np.float32), np.zeros((1, 1, 2, pixels), np.float32)
        proto = model("", "Col2Im", [x, *sizes.values()], {}, constants=sizes)
        session = onnx_ops.InferenceSession(
            proto.SerializeToString(), quiet(), backend="extensions"
        )
        binding = session.io_binding()
        binding.bind_cpu_input("input", x)
        binding.bind_output("y", "cpu", 0, y.dtype, y.shape, y.ctypes.data)
        with pytest.raises(error) if error else nullcontext():
            session.run_with_iobinding(binding)
        assert error or y.sum() == x.size


def in_branches(case, narrowed, then_type, else_type):
    """Return a model of an If with the case's node in both branches, in an element type each; and
    its inputs.

    Values have the same names in both branches.

    narrowed: the names of the inputs of these types
    """
    inputs, names = case.inputs("float32"), [i.name for i in case.operator.inputs]
    tensors = [i.name for i in case.operator.inputs if not i.values]
    described = ", ".join(f"{'float' if n in tensors else 'int64'}[] {n}" for n in names)
    taken = ", ".join(f"narrow_{n}" if n in narrowed else n for n in names)
    branches = [
        f"{name} = g () => (float[] {name}_y) {{ "
        f"{' '.join(f'narrow_{n} = Cast <to = {dtype}> ({n})' for n in narrowed)} "
        f"narrow_y = {f'{case.domain}.{case.op_type}'.lstrip('.')} ({taken}) "
        f"{name}_y = Cast <to = 1> (narrow_y) }}"
        for name, dtype in (("then_branch", then_type), ("else_branch", else_type))
    ]
    text = (
        f"({described}, bool condition) => (float[] y) {{ y = If (condition) "
        f"<{', '.join(branches)}> }}"
    )
    proto = parsed(text, 18, *[case.domain] * bool(case.domain))
    for node in model_nodes(proto):
        if node.op_type == case.op_type:
            node.attribute.extend(helper.make_attribute(*pair) for pair in case.attributes.items())
    return proto, inputs


def rounded(array, dtype):
    """Round float32 to an element type of 16 bits, as ONNX Runtime does."""
    text = f"(float[] a) => (float[] c) {{ b = Cast <to = {dtype}> (a) c = Cast <to = 1> (b) }}"
    return run_session(ort.InferenceSession(parsed(text).SerializeToString()), [array])


FLOAT, HALF, BFLOAT = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16


@needs_extensions
@pytest.mark.parametrize(
    "types",
    [(HALF, FLOAT), *(long_unless(False, each) for each in ((FLOAT, HALF), (BFLOAT, HALF)))],
    ids=str,
)
@pytest.mark.parametrize(
    ("case", "narrowed"),
    [
        (BILINEAR, ["X"]),  # whose kernel other tests need, too
        *(
            long_unless(False, *each)
            for each in ((BILINEAR, ["X", "Grid"]), (EVERYTHING, ["input"]))
        ),
    ],
    ids=str,
)
def test_16_bit_floats_are_cast_around(case, narrowed, types):
    """Results are computed in float32 and rounded once.

    Names may have another type in another branch.
    """
    proto, inputs = in_branches(case, narrowed, *types)
    names = [i.name for i in case.operator.inputs]
    for branch, dtype in zip((True, False), types, strict=True):
        narrow = [
            rounded(v, dtype) if n in narrowed else v for n, v in zip(names, inputs, strict=True)
        ]
        float32 = model(case.domain, case.op_type, narrow, case.attributes).SerializeToString()
        expected = rounded(run_session(onnx_ops.InferenceSession(float32, quiet()), narrow), dtype)
        for session in all_sessions(proto):
            np.testing.assert_array_equal(
                run_session(session, [*inputs, np.array(branch)]), expected
            )


@needs_extensions
def test_branches_know_the_types_around_them():
    """A branch uses a 16-bit value from outside, whose name is another value's in the other
    branch.
    """
    proto, inputs = in_branches(BILINEAR, ["X"], FLOAT, HALF)
    branches = {a.name: a.g for a in proto.graph.node[0].attribute}
    proto.graph.node.insert(0, branches["else_branch"].node[0])
    del branches["else_branch"].node[0]
    for node in branches["then_branch"].node:
        for names in (node.input, node.output):
            names[:] = ["wide" if name == "narrow_X" else name for name in names]
    lowered = onnx_ops.lower(proto)
    casts = {
        a.name: [n.op_type for n in a.g.node].count("Cast")
        for n in lowered.graph.node
        for a in n.attribute
        if a.g.node
    }
    assert casts == {"then_branch": 2, "else_branch": 3}
    native, plain = (
        run_session(all_sessions(proto)[k], [*inputs, np.array(False)]) for k in (1, 0)
    )
    np.testing.assert_array_equal(plain, native)


# Nodes that make x of a, whose rank isn't known, or of a sequence or optional value with it.
PARTLY_KNOWN = {
    "a slice": "x = Slice (a, first, last, first)",
    "some rows": "k = Identity (first)  x = Gather (a, k)",
    "enlarged": "x = Resize (a, , scales)",
    "repeated": "x = Tile (a, ones)",
    "of an operator of ONNX Runtime": "b = com.microsoft.GatherND (a, row)  x = Reshape (b, "
    "around)",
    "parts": "q = SplitToSequence (a)  x = SequenceAt (q, zero)",
    "parts together": "q = SplitToSequence (a)  x = ConcatFromSequence <axis = 0> (q)",
    "changed": "q = SequenceConstruct (a, a)  r = SequenceErase (q)  x = SequenceAt (r, zero)",
    "an optional value": "q = Optional (a)  x = OptionalGetElement (q)",
    "from a loop": f"""yes = Cast <to = {TensorProto.BOOL}> (two)
        q = SequenceEmpty <dtype = {HALF}> ()
        r = Loop (two, yes, q) <body = g (int64 k, bool i, seq(float16) some)
            => (bool o, seq(float16) more) {{
            o = Identity (i)  more = SequenceInsert (some, a) }}>
        x = SequenceAt (r, zero)""",
    "in a body that states no type": f"""yes = Cast <to = {TensorProto.BOOL}> (two)
        x, sums = Loop (two, yes, a) <body = g (int64 k, bool i, b) => (o, c, d) {{
            o = Identity (i)  c = Identity (b)  d = GridSample (b, grid) }}>""",
}


@needs_extensions
@pytest.mark.parametrize("name", PARTLY_KNOWN)
def test_16_bit_floats_of_which_little_else_is_known_are_cast_around(name):
    ones = {"ones": [1, 1, 1, 1], "scales": np.ones(4, np.float32)}
    grid = np.linspace(-1, 1, 8, dtype=np.float32).reshape(1, 2, 2, 2)
    proto = parsed(f"""(float[] wide) => (float[] y) {{
        a = Cast <to = {HALF}> (wide)  {PARTLY_KNOWN[name]}
        narrow = GridSample (x, grid)  y = Cast <to = 1> (narrow)
    }}""", 18, "com.microsoft", grid=grid, zero=0, two=2, first=[0], last=[1], row=[[0]],
       around=[1, 1, 9, 4], **ones)  # fmt: skip
    x = np.random.default_rng(0).integers(-8, 8, (1, 1, 9, 4)).astype(np.float32)
    first, *other_results = (run_session(session, [x]) for session in all_sessions(proto))
    assert all(np.array_equal(first, result) for result in other_results)


@needs_extensions
def test_names_that_lowering_makes_are_new():
    """The model runs with its own inputs and initializers, whatever their names are."""
    proto, inputs = placed(EVERYTHING, "a branch")
    proto.graph.input.append(helper.make_tensor_value_info("onnx_ops_run", TensorProto.FLOAT, [1]))
    for graph, name in (
        (proto.graph, "onnx_ops_0"),
        (proto.graph.node[0].attribute[0].g, "onnx_ops_3"),
    ):
        graph.initializer.append(onnx.numpy_helper.from_array(np.ones(1, np.float32), name))
    names = {name for node in all_nodes(onnx_ops.lower(proto).graph) for name in node.output}
    assert not names & {"onnx_ops_run", "onnx_ops_0", "onnx_ops_3"}
    assert lower_for_session(proto, available())[1] != "onnx_ops_run"
    for session in all_sessions(proto):
        y = run_session(session, [*inputs, np.ones(1, np.float32)])
        assert_close(y, expected_of(EVERYTHING, inputs[:3]), "float32")


@needs_extensions
def test_a_model_that_calls_an_input_of_its_own_like_ours():
    """Without an operator to lower, runs get no additional input and hide none."""
    proto = parsed("(int64[2] onnx_ops_run) => (int64[2] y) { y = Neg (onnx_ops_run) }")
    session = onnx_ops.InferenceSession(proto.SerializeToString(), quiet(), backend="extensions")
    np.testing.assert_array_equal(run_session(session, [np.array([3, 4])]), [-3, -4])


@needs_extensions
def test_a_model_that_onnxruntime_has_optimized():
    """ONNX Runtime makes one node of two unnamed Reshapes, whose shape it calls _new_shape, the
    second time, too.
    """
    proto = parsed("""(float[1, 1, 2, 6] x, float[1, 4, 2, 2] grid) => (float[4, 2] y)
        <int64[4] _new_shape = {1, 1, 3, 4}, int64[3] wide = {1, 8, 1}, int64[2] tall = {4, 2}>
        { image = Reshape(x, _new_shape) sampled = GridSample(image, grid)
            z = Reshape(sampled, wide)
          y = Reshape(z, tall) }""")
    inputs = [
        np.arange(12, dtype=np.float32).reshape(1, 1, 2, 6),
        np.zeros((1, 4, 2, 2), np.float32),
    ]
    session = onnx_ops.InferenceSession(proto.SerializeToString(), quiet(), backend="extensions")
    np.testing.assert_array_equal(run_session(session, inputs), np.full((4, 2), 5.5))


@needs_extensions
@pytest.mark.parametrize(
    "follows", ["Reshape(sampled, [8])", "Squeeze(sampled, [0, 1])", "Unsqueeze(sampled, [0])"]
)
def test_nodes_that_state_shapes_anew(follows):
    """ONNX Runtime fuses them with a Reshape before them; 1.25 to 1.30 fail if a node computes the
    latter's shape.
    """
    op_type, numbers = follows.split("(sampled, ")
    proto = parsed(f"""(float[1, 1, 3, 4] x, float[1, 4, 2, 2] grid) => (float[N] y)
        {{ sampled = GridSample(x, grid) axes = Constant<value_ints: ints = {numbers[:-1]}>()
          z = {op_type}(sampled, axes) all = Constant<value_ints: ints = [-1]>()
              y = Reshape(z, all) }}""")
    inputs = [
        np.arange(12, dtype=np.float32).reshape(1, 1, 3, 4),
        np.zeros((1, 4, 2, 2), np.float32),
    ]
    session = onnx_ops.InferenceSession(proto.SerializeToString(), quiet(), backend="extensions")
    np.testing.assert_array_equal(run_session(session, inputs), np.full(8, 5.5))
