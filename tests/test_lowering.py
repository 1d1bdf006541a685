"""lower() rewrites the nodes that it should and leaves the rest alone."""

import time

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from support.backends import quiet, run_session, with_extensions
from support.cases import COL2IM, GRID_SAMPLE, assert_close, finished, model, reference

import onnx_ops
from onnx_ops.nodes import all_nodes
from onnx_ops.operators import available
from onnx_ops.rewriting.graph import Graph, Model
from onnx_ops.runtime.lowering import lower_for_session

EVERYTHING, BILINEAR = next(c for c in COL2IM if c.name == "everything"), GRID_SAMPLE[8]


def test_the_model_given_is_not_modified():
    proto = model("", "Col2Im", EVERYTHING.inputs("float32"), EVERYTHING.attributes)
    before = proto.SerializeToString()
    lowered = onnx_ops.lower(proto)
    assert proto.SerializeToString() == before
    assert [n.op_type for n in lowered.graph.node if n.domain] == ["ai_onnx_Col2Im"]
    assert lowered.graph.input == proto.graph.input
    assert lowered.graph.output == proto.graph.output


def test_a_model_without_our_operators_comes_back_equal():
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    proto = finished(helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "other", [x], [y]))
    assert onnx_ops.lower(proto) == proto
    assert onnx_ops.lower(proto) is not proto
    session = onnx_ops.InferenceSession(proto.SerializeToString(), quiet(), backend="extensions")
    np.testing.assert_array_equal(run_session(session, [np.array([-1, 1], np.float32)]), [0, 1])


def test_lowering_twice_is_lowering_once():
    lowered = onnx_ops.lower(model("", "Col2Im", EVERYTHING.inputs("float32"), EVERYTHING.attributes))
    assert onnx_ops.lower(lowered) == lowered
    inputs = EVERYTHING.inputs("float32")
    session = onnx_ops.InferenceSession(lowered.SerializeToString(), quiet(), backend="extensions")
    assert_close(run_session(session, inputs), reference(EVERYTHING, inputs), "float32")


def test_a_model_that_is_lowered_in_part():
    """Nodes that were lowered before and nodes that were added since run together."""
    case = COL2IM[2]
    inputs = case.inputs("float32")
    lowered = onnx_ops.lower(model("", "Col2Im", inputs, case.attributes))
    (node,) = model("", "Col2Im", inputs, case.attributes).graph.node
    node.name, node.output[0] = "another_node", "again"
    lowered.graph.node.extend([node, helper.make_node("Add", ["y", "again"], ["sum"])])
    lowered.graph.output[0].name = "sum"
    session = ort.InferenceSession(onnx_ops.lower(lowered).SerializeToString(), with_extensions(quiet()))
    assert_close(run_session(session, inputs), 2 * reference(case, inputs), "float32")


def test_unknown_attributes_are_named():
    proto = model("", "Col2Im", EVERYTHING.inputs("float32"), {"stride": [2, 2]})
    with pytest.raises(
        onnx_ops.OpError, match=r"Col2Im \(node 'the_node'\): stride = .*: no such attribute; there are"
    ):
        onnx_ops.lower(proto)


def all_sessions(proto):
    """Return a plain session on the lowered model, and ours on the model itself with both backends."""
    return [
        ort.InferenceSession(onnx_ops.lower(proto).SerializeToString(), with_extensions(quiet())),
        *(onnx_ops.InferenceSession(proto.SerializeToString(), quiet(), backend=b) for b in ("native", "extensions")),
    ]


def in_a_branch(op):
    """A model with the case's node in one branch of an If and the sum of its first input in the other."""
    inputs = op.inputs("float32")
    proto = model(op.domain, op.op_type, inputs, op.attributes, dims="none")
    (node,) = proto.graph.node
    node.output[0] = "then_y"
    branches = {}
    for name, nodes in (("then", [node]), ("else", [helper.make_node("ReduceSum", [node.input[0]], ["else_y"])])):
        y = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, None)
        branches[f"{name}_branch"] = helper.make_graph(nodes, name, [], [y])
    condition = helper.make_tensor_value_info("condition", TensorProto.BOOL, [])
    choice = helper.make_node("If", ["condition"], ["y"], **branches)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([choice], "choice", [*proto.graph.input, condition], [y])
    return finished(graph, 18, op.domain), inputs


def in_a_loop(op):
    """A model with the case's node in the body of a Loop, which runs it once and collects its result."""
    inputs = op.inputs("float32")
    proto = model(op.domain, op.op_type, inputs, op.attributes, dims="none")
    (node,) = proto.graph.node
    go_on = helper.make_node("Identity", ["condition"], ["condition_out"])
    scalars = [
        helper.make_tensor_value_info(n, t, []) for n, t in (("i", TensorProto.INT64), ("condition", TensorProto.BOOL))
    ]
    outputs = [
        helper.make_tensor_value_info("condition_out", TensorProto.BOOL, []),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
    ]
    body = helper.make_graph([go_on, node], "body", scalars, outputs)
    nodes = [
        helper.make_node("Constant", [], ["once"], value=helper.make_tensor("", TensorProto.INT64, [], [1])),
        helper.make_node("Constant", [], ["yes"], value=helper.make_tensor("", TensorProto.BOOL, [], [True])),
        helper.make_node("Loop", ["once", "yes"], ["all"], body=body),
        helper.make_node("Constant", [], ["first"], value=helper.make_tensor("", TensorProto.INT64, [1], [0])),
        helper.make_node("Squeeze", ["all", "first"], ["z"]),
    ]
    z = helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
    return finished(helper.make_graph(nodes, "loop", proto.graph.input, [z]), 18, op.domain), inputs


@pytest.mark.parametrize("case", [EVERYTHING, BILINEAR], ids=str)
def test_loops(case):
    proto, inputs = in_a_loop(case)
    for session in all_sessions(proto):
        assert_close(run_session(session, inputs), reference(case, inputs), "float32")


def in_a_function(op):
    """A model with the case's node in a local function that another one calls; the call passes its attributes."""
    inputs = op.inputs("float32")
    (node,) = model(op.domain, op.op_type, inputs, op.attributes).graph.node
    names = list(node.input)
    given = list(node.attribute)
    del node.attribute[:]
    for attribute in given:
        node.attribute.append(
            onnx.AttributeProto(name=attribute.name, type=attribute.type, ref_attr_name=attribute.name)
        )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
    opsets += [helper.make_opsetid(op.domain, 1)] if op.domain else []
    inner = helper.make_function("local", "Inner", names, ["y"], [node], opsets, [a.name for a in given])
    call = helper.make_node("Inner", names, ["y"], domain="local")
    call.attribute.extend(given)
    outer = helper.make_function("local", "Outer", names, ["y"], [call], opsets)
    values = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), None)
        for n, v in zip(names, inputs, strict=True)
    ]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node("Outer", names, ["y"], domain="local")], "calls", values, [y])
    proto = helper.make_model(graph, opset_imports=opsets, functions=[inner, outer], ir_version=9)
    return proto, inputs


@pytest.mark.parametrize("case", [EVERYTHING, BILINEAR], ids=str)
def test_subgraphs(case):
    proto, inputs = in_a_branch(case)
    sessions = all_sessions(proto)
    for session in sessions:
        assert_close(run_session(session, [*inputs, np.array(True)]), reference(case, inputs), "float32")
    with pytest.raises(onnx_ops.OpError, match="shape of"):
        run_session(sessions[-1], [inputs[0][:, 0], *inputs[1:], np.array(True)])


def test_a_refusal_in_a_branch_whose_shape_is_stated():
    """ONNX Runtime would allocate that shape in advance, and end the process when it gets the empty tensor."""
    proto, inputs = in_a_branch(BILINEAR)
    expected = reference(BILINEAR, inputs)
    for attribute in proto.graph.node[0].attribute:
        dims = [None] * expected.ndim if attribute.name == "else_branch" else expected.shape
        attribute.g.output[0].CopyFrom(
            helper.make_tensor_value_info(attribute.g.output[0].name, TensorProto.FLOAT, dims)
        )
    session = all_sessions(proto)[-1]
    assert_close(run_session(session, [*inputs, np.array(True)]), expected, "float32")
    with pytest.raises(onnx_ops.OpError, match="axis 0 must be the batch size"):
        run_session(session, [inputs[0][:1], *inputs[1:], np.array(True)])


@pytest.mark.parametrize("case", [EVERYTHING, BILINEAR], ids=str)
def test_local_functions(case):
    proto, inputs = in_a_function(case)
    sessions = all_sessions(proto)
    for session in sessions:
        assert_close(run_session(session, inputs), reference(case, inputs), "float32")
    with pytest.raises(onnx_ops.OpError, match="shape of"):
        run_session(sessions[-1], [inputs[0][:, 0], *inputs[1:]])


@pytest.mark.parametrize("element_type", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
@pytest.mark.parametrize("case", [EVERYTHING, BILINEAR], ids=str)
def test_16_bit_floats_are_cast_around(case, element_type):
    """Results are computed in float32 and rounded once, with declared and with inferred types."""
    inputs = case.inputs("float32")
    tensors = [n for n, i in enumerate(case.operator.inputs) if not i.values]
    proto = model(case.domain, case.op_type, inputs, case.attributes)
    (node,) = proto.graph.node
    casts = []
    for n in tensors:
        casts.append(helper.make_node("Cast", [node.input[n]], [f"narrow_{n}"], to=element_type))
        node.input[n] = f"narrow_{n}"
    node.output[0] = "narrow_y"
    proto.graph.node.insert(0, casts[0])
    for cast in casts[1:]:
        proto.graph.node.insert(0, cast)
    proto.graph.node.append(helper.make_node("Cast", ["narrow_y"], ["y"], to=TensorProto.FLOAT))

    def rounded(a):
        cast = helper.make_node("Cast", ["a"], ["b"], to=element_type)
        back = helper.make_node("Cast", ["b"], ["c"], to=TensorProto.FLOAT)
        a_info, c_info = (helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in "ac")
        graph = helper.make_graph([cast, back], "round", [a_info], [c_info])
        return run_session(ort.InferenceSession(finished(graph).SerializeToString()), [a])

    narrow = [rounded(v) if n in tensors else v for n, v in enumerate(inputs)]
    float32 = model(case.domain, case.op_type, narrow, case.attributes).SerializeToString()
    expected = rounded(run_session(onnx_ops.InferenceSession(float32, quiet()), narrow))
    session = onnx_ops.InferenceSession(proto.SerializeToString(), quiet(), backend="extensions")
    np.testing.assert_array_equal(run_session(session, inputs), expected)
    plain = ort.InferenceSession(onnx_ops.lower(proto).SerializeToString(), with_extensions(quiet()))
    np.testing.assert_array_equal(run_session(plain, inputs), expected)


def a_branch(name, element_type, case):
    """A branch with the case's node in `element_type`, between casts to values with the same names in all branches."""
    (node,) = model(case.domain, case.op_type, case.inputs("float32"), case.attributes).graph.node
    tensors = [k for k, i in enumerate(case.operator.inputs) if not i.values]
    casts = [helper.make_node("Cast", [node.input[k]], [f"narrow_{k}"], to=element_type) for k in tensors]
    for k in tensors:
        node.input[k] = f"narrow_{k}"
    node.output[0] = "narrow_y"
    back = helper.make_node("Cast", ["narrow_y"], [f"{name}_y"], to=TensorProto.FLOAT)
    y = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, None)
    return helper.make_graph([*casts, node, back], name, [], [y])


def branches_of_two_types(case, then_type, else_type):
    inputs = case.inputs("float32")
    proto = model(case.domain, case.op_type, inputs, case.attributes)
    condition = helper.make_tensor_value_info("condition", TensorProto.BOOL, [])
    branches = {"then_branch": a_branch("then", then_type, case), "else_branch": a_branch("else", else_type, case)}
    choice = helper.make_node("If", ["condition"], ["y"], **branches)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([choice], "choice", [*proto.graph.input, condition], [y])
    return finished(graph, 18, case.domain), inputs


@pytest.mark.parametrize("case", [EVERYTHING, BILINEAR], ids=str)
def test_names_that_have_another_type_in_another_branch(case):
    """The branch of 16 bits is rounded and that of float32 is not, whichever comes first."""
    for types in ((TensorProto.FLOAT16, TensorProto.FLOAT), (TensorProto.FLOAT, TensorProto.FLOAT16)):
        proto, inputs = branches_of_two_types(case, *types)
        for branch, element_type in zip((True, False), types, strict=True):
            plain, native, extensions = (run_session(s, [*inputs, np.array(branch)]) for s in all_sessions(proto))
            np.testing.assert_array_equal(plain, native)
            np.testing.assert_array_equal(extensions, native)
            rounded = native.astype(np.float16).astype(np.float32)
            assert np.array_equal(native, rounded) == (element_type == TensorProto.FLOAT16)


def test_branches_know_the_types_around_them():
    """A branch uses a 16-bit value from outside, whose name is another value's in the other branch."""
    proto, inputs = branches_of_two_types(EVERYTHING, TensorProto.FLOAT, TensorProto.FLOAT16)
    branches = {a.name: a.g for a in proto.graph.node[0].attribute}
    proto.graph.node.insert(0, branches["else_branch"].node[0])
    del branches["else_branch"].node[0]
    for node in branches["then_branch"].node:
        for names in (node.input, node.output):
            names[:] = ["wide" if name == "narrow_0" else name for name in names]
    lowered = onnx_ops.lower(proto)
    casts = {
        a.name: [n.op_type for n in a.g.node].count("Cast") for n in lowered.graph.node for a in n.attribute if a.g.node
    }
    assert casts == {"then_branch": 2, "else_branch": 3}
    native, plain = (run_session(all_sessions(proto)[k], [*inputs, np.array(False)]) for k in (1, 0))
    np.testing.assert_array_equal(plain, native)


def test_names_inside_hide_those_outside():
    """A value inside whose type is unknown does not get the type of a value outside with the same name."""
    inner = helper.make_graph(
        [helper.make_node("Unknown", [], ["a"]), helper.make_node("Relu", ["b"], ["c"])], "", [], []
    )
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, [2]) for name in "ab"]
    proto = finished(helper.make_graph([], "outer", values, []))
    graph = Graph(Model(proto), inner, "inner", Graph(Model(proto), proto.graph, "main"))
    assert [graph.type(name).elements for name in "abc"] == [
        TensorProto.UNDEFINED,
        TensorProto.FLOAT16,
        TensorProto.FLOAT16,
    ]


def taking(kind, name):
    """A model in which `name` is a value of this kind that our nodes do not use."""
    proto, inputs = in_a_branch(EVERYTHING)
    graph, branch = proto.graph, proto.graph.node[0].attribute[0].g
    one = onnx.numpy_helper.from_array(np.ones(1, np.float32), name)
    value_info = helper.make_tensor_value_info(name, TensorProto.FLOAT, [1])
    if kind == "input":
        graph.input.append(value_info)
    elif kind == "sparse initializer":
        indices = onnx.numpy_helper.from_array(np.zeros(1, np.int64), "indices")
        graph.sparse_initializer.append(helper.make_sparse_tensor(one, indices, [3]))
    elif kind == "output":
        graph.node.append(helper.make_node("Identity", ["condition"], [name]))
        graph.output.append(helper.make_tensor_value_info(name, TensorProto.BOOL, []))
    elif kind == "initializer":
        graph.initializer.append(one)
    elif kind == "initializer of a branch":
        branch.initializer.append(one)
    else:
        branch.value_info.append(value_info)
    return proto, inputs


@pytest.mark.parametrize("name", ["onnx_ops_run", "onnx_ops_0", "onnx_ops_3"])
@pytest.mark.parametrize(
    "kind", ["input", "output", "initializer", "sparse initializer", "initializer of a branch", "description"]
)
def test_names_that_lowering_makes_are_new(kind, name):
    """The model runs with its own inputs, whatever their names are."""
    proto, inputs = taking(kind, name)
    for lowered in (onnx_ops.lower(proto), lower_for_session(proto, available())[0]):
        new_names = [
            n for node in all_nodes(lowered.graph) for n in node.output if node not in list(all_nodes(proto.graph))
        ]
        assert len(new_names) >= 3
        assert name not in new_names
    _, ran_by = lower_for_session(proto, available())
    assert ran_by != name
    for session in all_sessions(proto):
        names = [i.name for i in session.get_inputs()]
        feeds = dict(zip([n for n in names if n not in ("condition", name)], inputs, strict=True))
        feeds |= {"condition": np.array(True)} | ({name: np.ones(1, np.float32)} if kind == "input" else {})
        assert set(names) == set(feeds)
        assert_close(session.run(["y"], feeds)[0], reference(EVERYTHING, inputs), "float32")


def test_a_model_that_calls_an_input_of_its_own_like_ours():
    """Without an operator to lower, runs get no additional input and hide none."""
    x, y = (helper.make_tensor_value_info(n, TensorProto.INT64, [2]) for n in ("onnx_ops_run", "y"))
    proto = finished(helper.make_graph([helper.make_node("Neg", ["onnx_ops_run"], ["y"])], "other", [x], [y]))
    session = onnx_ops.InferenceSession(proto.SerializeToString(), quiet(), backend="extensions")
    np.testing.assert_array_equal(run_session(session, [np.array([3, 4])]), [-3, -4])


def test_functions_that_share_a_name():
    """An operator in one of several overloads of a function is found."""
    proto, _ = in_a_function(EVERYTHING)
    proto.ir_version = 10
    outer = next(f for f in proto.functions if f.name == "Outer")
    outer.overload = proto.graph.node[0].overload = "first"
    other = proto.functions.add()
    other.CopyFrom(outer)
    other.overload = "second"
    del other.node[:]
    other.node.append(helper.make_node("Identity", ["input"], ["y"]))
    lowered, name = lower_for_session(proto, available())
    assert name in next(n for n in all_nodes(lowered.graph) if n.op_type == "ai_onnx_Col2Im").input


def test_types_that_onnx_cannot_tell():
    """Types that depend on an operator unknown to onnx are unknown, all others are inferred."""
    proto = model("com.microsoft", "GridSample", BILINEAR.inputs("float32"), BILINEAR.attributes)
    proto.graph.node[0].input[0] = "unknown"
    proto.graph.node.insert(0, helper.make_node("Foreign", ["X"], ["unknown"], domain="foreign"))
    proto.graph.node.append(helper.make_node("Identity", ["Grid"], ["inferred"]))
    proto.opset_import.append(helper.make_opsetid("foreign", 1))
    onnx_ops.register_schemas()
    inferred = onnx.shape_inference.infer_shapes(proto)
    assert [(v.name, v.type.tensor_type.elem_type) for v in inferred.graph.value_info] == [
        ("inferred", TensorProto.FLOAT)
    ]


def test_long_vectors_take_no_time():
    """onnx would spend 400 bytes per element on values that it computes for inference."""
    proto = model("", "Col2Im", COL2IM[0].inputs("float32"), COL2IM[0].attributes)
    proto.graph.input.append(helper.make_tensor_value_info("long", TensorProto.FLOAT, [2**22]))
    proto.graph.node.append(helper.make_node("Mul", ["long", "long"], ["longer"]))
    proto.graph.node.append(helper.make_node("Add", ["longer", "long"], ["longest"]))
    start = time.perf_counter()
    onnx_ops.lower(proto)
    assert time.perf_counter() - start < 1
