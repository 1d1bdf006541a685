"""Names and texts of a model that aren't UTF-8: ONNX Runtime accepts most, so it is run, or refused
with that name.
"""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper
from support.backends import quiet
from support.cases import assert_close, case_named, expected_of, model
from support.selection import needs_extensions

import onnx_ops

pytestmark = pytest.mark.any_library

CASE, MARK, DAMAGED = case_named("overlapping"), "MARKED", b"a\xff\xfe\x80'b"
INPUTS = CASE.inputs("float32")


def rename(value):
    """A change of the name of the value between the two nodes."""

    def change(proto):
        proto.graph.node[0].output[0] = proto.graph.node[1].input[0] = value

    return change


def rename_constant(proto):
    node, before = proto.graph.node[0], proto.graph.initializer[0].name
    proto.graph.initializer[0].name = MARK
    inputs = [MARK if name == before else name for name in node.input]
    del node.input[:]
    node.input.extend(inputs)


def call_function(proto):
    body = [helper.make_node("Identity", ["a"], ["b"])]
    proto.functions.append(
        helper.make_function(MARK, "F", ["a"], ["b"], body, [helper.make_opsetid("", 18)])
    )
    proto.opset_import.append(helper.make_opsetid(MARK, 1))
    proto.graph.node[1].domain, proto.graph.node[1].op_type = MARK, "F"


def put(where, **fields):
    """A change of fields of the part that `where` finds."""

    def change(proto):
        for field, value in fields.items():
            setattr(where(proto), field, value)

    return change


RUN = {  # on both backends
    "name of the node": put(lambda m: m.graph.node[0], name=MARK),
    "text of the node": put(lambda m: m.graph.node[0], doc_string=MARK),
    "name of another node": put(lambda m: m.graph.node[1], name=MARK),
    "text of an attribute": put(lambda m: m.graph.node[0].attribute[0], doc_string=MARK),
    "name of the graph": put(lambda m: m.graph, name=MARK, doc_string=MARK),
    "text of the model": put(lambda m: m, doc_string=MARK, producer_name=MARK),
    "name of a size": put(lambda m: m.graph.input[0].type.tensor_type.shape.dim[0], dim_param=MARK),
    "import": lambda m: m.opset_import.append(helper.make_opsetid(MARK, 1)),
    "metadata": lambda m: m.metadata_props.add(key=MARK, value=MARK),
    "function": call_function,
}
NOT_LOWERED = {"value": rename(MARK), "constant": rename_constant}


def damaged(change):
    """The bytes of a model whose MARK isn't UTF-8."""
    proto = model(
        "",
        "Col2Im",
        INPUTS,
        CASE.attributes,
        dims="symbolic",
        constants=("image_shape", "block_shape"),
    )
    output = proto.graph.node[0].output[0]
    proto.graph.node.append(helper.make_node("Identity", ["between"], [output], "identity"))
    rename("between")(proto)
    change(proto)
    content = proto.SerializeToString()
    assert MARK.encode() in content
    return content.replace(MARK.encode(), DAMAGED)


def run(session):
    return session.run(None, {session.get_inputs()[0].name: INPUTS[0]})[0]


@pytest.mark.parametrize("change", [*RUN.values(), *NOT_LOWERED.values()], ids=[*RUN, *NOT_LOWERED])
@pytest.mark.parametrize("optimize", [False, True])
def test_natively(change, optimize):
    content = damaged(change)
    run(ort.InferenceSession(content, quiet()))
    y = run(onnx_ops.InferenceSession(content, quiet(), optimize=optimize))
    assert_close(y, expected_of(CASE, INPUTS), "float32")


@needs_extensions
@pytest.mark.parametrize("change", RUN.values(), ids=RUN)
def test_lowered(change):
    content = damaged(change)
    y = run(onnx_ops.InferenceSession(content, quiet(), backend="extensions"))
    assert_close(y, expected_of(CASE, INPUTS), "float32")
    lowered = onnx_ops.lower(onnx.ModelProto.FromString(content))
    assert any(node.domain == "ai.onnx.contrib" for node in lowered.graph.node)


@pytest.mark.parametrize("change", NOT_LOWERED.values(), ids=NOT_LOWERED)
def test_not_lowered(change):
    content = damaged(change)
    rule = rf"^onnx_ops: name = {DAMAGED!r}: must be UTF-8 in a model that is lowered$".replace(
        "\\x", r"\\x"
    )
    with pytest.raises(onnx_ops.OpError, match=rule):
        onnx_ops.lower(onnx.ModelProto.FromString(content))
    with pytest.raises(onnx_ops.OpError, match=rule):
        onnx_ops.InferenceSession(content, quiet(), backend="extensions")


@pytest.mark.parametrize(
    "change", [RUN["name of the node"], put(lambda m: m.graph.node[0], name=f"a: {MARK}")]
)
def test_the_name_in_a_refusal(change):
    """Bytes that are no text are shown as U+FFFD.

    Python can't decode ONNX Runtime's message with the name.
    """
    content = damaged(change)
    at_run = onnx_ops.InferenceSession(content, quiet())
    name = at_run.get_inputs()[0].name
    with pytest.raises(onnx_ops.OpError, match=r"^Col2Im: shape of input = ") as caught:
        at_run.run(None, {name: np.zeros((1, 9, 7), np.float32)})
    assert caught.value.operator == "Col2Im"
    proto = onnx.ModelProto.FromString(content)
    proto.graph.node[0].ClearField("attribute")
    proto.graph.node[0].attribute.append(helper.make_attribute("pads", [-1] * 4))
    with pytest.raises(onnx_ops.OpError, match=r"pads = \[-1, -1, -1, -1\]: must be") as caught:
        onnx_ops.InferenceSession(proto.SerializeToString(), quiet())
    assert caught.value.operator.endswith("a\ufffd\ufffd\ufffd'b\")")
    with pytest.raises(onnx_ops.OpError, match=r"pads = \[-1, -1, -1, -1\]: must be") as again:
        onnx_ops.lower(proto)
    assert again.value.operator == caught.value.operator
