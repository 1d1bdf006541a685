"""lower(): what it rewrites, and that it leaves the rest alone."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from backends import quiet, run, with_extensions
from cases import COL2IM, GRID_SAMPLE, assert_close, finished, model, reference
from onnx import TensorProto, helper

import onnx_ops

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
    np.testing.assert_array_equal(run(session, [np.array([-1, 1], np.float32)]), [0, 1])


def test_lowering_twice_is_lowering_once():
    lowered = onnx_ops.lower(model("", "Col2Im", EVERYTHING.inputs("float32"), EVERYTHING.attributes))
    assert onnx_ops.lower(lowered) == lowered
    inputs = EVERYTHING.inputs("float32")
    session = onnx_ops.InferenceSession(lowered.SerializeToString(), quiet(), backend="extensions")
    assert_close(run(session, inputs), reference(EVERYTHING, inputs), "float32")


def test_a_model_that_is_lowered_in_part():
    """What was lowered before and what was added since do not get in each other's way."""
    case = COL2IM[2]
    inputs = case.inputs("float32")
    lowered = onnx_ops.lower(model("", "Col2Im", inputs, case.attributes))
    (node,) = model("", "Col2Im", inputs, case.attributes).graph.node
    node.name, node.output[0] = "another_node", "again"
    lowered.graph.node.extend([node, helper.make_node("Add", ["y", "again"], ["sum"])])
    lowered.graph.output[0].name = "sum"
    session = ort.InferenceSession(onnx_ops.lower(lowered).SerializeToString(), with_extensions(quiet()))
    assert_close(run(session, inputs), 2 * reference(case, inputs), "float32")


def test_unknown_attributes_are_named():
    proto = model("", "Col2Im", EVERYTHING.inputs("float32"), {"stride": [2, 2]})
    with pytest.raises(
        onnx_ops.OpError, match=r"Col2Im \(node 'the_node'\): stride = .*: no such attribute; there are"
    ):
        onnx_ops.lower(proto)


def all_sessions(proto):
    """A plain one on the lowered model, and ours on the model itself with both backends."""
    return [
        ort.InferenceSession(onnx_ops.lower(proto).SerializeToString(), with_extensions(quiet())),
        *(onnx_ops.InferenceSession(proto.SerializeToString(), quiet(), backend=b) for b in ("native", "extensions")),
    ]


def in_a_branch(op):
    """The case's node in one branch of an If, a Relu of its first input's sum in the other."""
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
    """The case's node in the body of a Loop that runs it once and collects its result."""
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
        assert_close(run(session, inputs), reference(case, inputs), "float32")


def in_a_function(op):
    """The case's node in a local function that is called by another one; its attributes come from the call."""
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
        assert_close(run(session, [*inputs, np.array(True)]), reference(case, inputs), "float32")
    with pytest.raises(onnx_ops.OpError, match="shape of"):
        run(sessions[-1], [inputs[0][:, 0], *inputs[1:], np.array(True)])


@pytest.mark.parametrize("case", [EVERYTHING, BILINEAR], ids=str)
def test_local_functions(case):
    proto, inputs = in_a_function(case)
    sessions = all_sessions(proto)
    for session in sessions:
        assert_close(run(session, inputs), reference(case, inputs), "float32")
    with pytest.raises(onnx_ops.OpError, match="shape of"):
        run(sessions[-1], [inputs[0][:, 0], *inputs[1:]])


@pytest.mark.parametrize("element_type", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
@pytest.mark.parametrize("case", [EVERYTHING, BILINEAR], ids=str)
def test_16_bit_floats_are_cast_around(case, element_type):
    """Computed in float32 and rounded once; declared types and types that must be inferred alike."""
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
        return run(ort.InferenceSession(finished(graph).SerializeToString()), [a])

    narrow = [rounded(v) if n in tensors else v for n, v in enumerate(inputs)]
    float32 = model(case.domain, case.op_type, narrow, case.attributes).SerializeToString()
    expected = rounded(run(onnx_ops.InferenceSession(float32, quiet()), narrow))
    session = onnx_ops.InferenceSession(proto.SerializeToString(), quiet(), backend="extensions")
    np.testing.assert_array_equal(run(session, inputs), expected)
    plain = ort.InferenceSession(onnx_ops.lower(proto).SerializeToString(), with_extensions(quiet()))
    np.testing.assert_array_equal(run(plain, inputs), expected)
