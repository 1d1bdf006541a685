"""Reading what a session asks about a model takes time linear in its size, as ONNX Runtime's own reading of it does."""

import time
from contextlib import suppress

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper
from support.backends import quiet
from support.cases import COL2IM, model

import onnx_ops
from onnx_ops.model.files import MOST_WARNINGS, Node, imported_domains, nodes

CASE = COL2IM[1]
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MODEL_GRAPH, MODEL_IMPORT, MODEL_FUNCTIONS, GRAPH_NODE, NODE_ATTRIBUTE, ATTRIBUTE_GRAPH, UNKNOWN = 7, 8, 25, 1, 5, 6, 15


def varint(number):
    octets = []
    while number > 0x7F:
        octets.append(0x80 | number & 0x7F)
        number >>= 7
    return bytes([*octets, number])


def field(number, content):
    return varint(number << 3 | BYTES) + varint(len(content)) + content


def message(proto, name, number, content, more=b""):
    """The bytes of a message, in which a field has this content in place of its own, and then `more`."""
    rest = type(proto)()
    rest.CopyFrom(proto)
    rest.ClearField(name)
    return rest.SerializeToString() + field(number, content) + more


def col2im(name=""):
    proto = model(CASE.domain, CASE.op_type, CASE.inputs("float32"), CASE.attributes)
    proto.graph.node[0].name = name
    return proto


def content(of_model=b"", of_graph=b"", of_node=b"", proto=None):
    """The bytes of a model, of its graph and of its node, each with more bytes at the end."""
    proto = proto or col2im()
    node = proto.graph.node[0].SerializeToString() + of_node
    return message(proto, "graph", MODEL_GRAPH, message(proto.graph, "node", GRAPH_NODE, node, of_graph), of_model)


COUNT = 500_000
MANY = {
    "numbers": {"of_model": varint(UNKNOWN << 3 | VARINT) + b"\0"},
    "empty bytes": {"of_model": field(UNKNOWN, b"")},
    "short bytes": {"of_model": field(UNKNOWN, b"123")},
    "imports": {"of_model": field(MODEL_IMPORT, b"")},
    "functions": {"of_model": field(MODEL_FUNCTIONS, b"")},
    "numbers in the graph": {"of_graph": varint(UNKNOWN << 3 | VARINT) + b"\0"},
    "nodes": {"of_graph": field(GRAPH_NODE, b"")},
    "numbers in the node": {"of_node": varint(UNKNOWN << 3 | VARINT) + b"\0"},
    "attributes": {"of_node": field(NODE_ATTRIBUTE, b"")},
    "floats in the node": {"of_node": varint(UNKNOWN << 3 | FIXED32) + b"1234"},
}


def cpu_time(call):
    begin = time.process_time()
    call()
    return time.process_time() - begin


@pytest.mark.parametrize("name", MANY)
def test_many_fields(name):
    proto = content(**{where: each * COUNT for where, each in MANY[name].items()})

    def plain():
        with suppress(Exception):  # some of these models are invalid
            ort.InferenceSession(proto, quiet())

    assert cpu_time(lambda: onnx_ops.register(quiet(), proto)) < 10 * cpu_time(plain) + 0.1


@pytest.mark.parametrize("length", [5, 20_000])
def test_many_unknown_attributes(length, caplog):
    proto, count = col2im("n" * length), 10**6 // (length + 10)
    proto.graph.node[0].attribute.extend(helper.make_attribute(f"{k:0{length}}", 1) for k in range(count))
    proto = proto.SerializeToString()
    assert cpu_time(lambda: onnx_ops.register(quiet(), proto)) < 0.5
    *said, last = [record.getMessage() for record in caplog.records]
    assert len(said) == MOST_WARNINGS
    assert all("is unknown and will be ignored; there are" in each and len(each) < 2_000 for each in said)
    assert last == "onnx_ops: the model may have more unknown attributes; onnx-ops inspect lists all"


def others(rng, number):
    """Unknown fields of all types, of lengths and numbers with one byte or more."""
    fields = []
    for _ in range(rng.integers(0, 40)):
        kind, any_number = int(rng.choice([VARINT, FIXED64, BYTES, FIXED32])), int(rng.choice([number, 1000, 2**28]))
        if kind == BYTES:
            fields.append(field(any_number, rng.bytes(int(rng.choice([0, 1, 7, 15, 16, 17, 200])))))
        else:
            sizes = {VARINT: varint(int(rng.integers(0, 2**63))), FIXED64: rng.bytes(8), FIXED32: rng.bytes(4)}
            fields.append(varint(any_number << 3 | kind) + sizes[kind])
    return b"".join(fields)


def test_unknown_fields_anywhere():
    """onnx's own reading is the oracle."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        mixed = [others(rng, number) for number in (9, 9, 12)]  # which onnx has not in these messages
        mixed[0] += field(MODEL_IMPORT, helper.make_opsetid("mmcv", 1).SerializeToString()) + others(rng, 9)
        node = field(GRAPH_NODE, helper.make_node("Col2Im", ["x"], ["y"], "more", stride=[1]).SerializeToString())
        proto = content(mixed[0], mixed[1] + node + others(rng, 9), mixed[2])
        parsed = onnx.ModelProto.FromString(proto)
        assert imported_domains(proto) == imported_domains(parsed) == {"", "mmcv"}
        assert nodes(proto, {"Col2Im"}) == nodes(parsed, {"Col2Im"})
        assert nodes(proto, {"Col2Im"})[1] == Node("", "Col2Im", "more", ("stride",))


def test_names_that_are_not_utf8(caplog):
    """They are shown as the C library shows them, and hide nothing else."""
    proto = model("com.microsoft", "GridSample", [np.zeros((1, 1, 2, 2), np.float32), np.zeros((1, 2, 2, 2), "f4")], {})
    proto.opset_import.append(helper.make_opsetid("MARK", 1))
    proto.graph.node[0].name = "MARK"
    proto.graph.node[0].attribute.append(helper.make_attribute("MARK", 1))
    damaged = proto.SerializeToString().replace(b"MARK", b"n\xff'a")
    assert imported_domains(damaged) >= {"", "com.microsoft"}
    for source in (damaged, onnx.ModelProto.FromString(damaged)):
        caplog.clear()
        onnx_ops.register(quiet(), source)
        (said,) = [record.getMessage() for record in caplog.records]
        assert said.startswith(
            "onnx_ops: com.microsoft.GridSample (node \"n\ufffd'a\"): attribute n\ufffd'a is unknown"
        )


def test_messages_nested_too_deep():
    """ONNX Runtime refuses them: protobuf reads no more than 100 messages in each other."""
    node = col2im().graph.node[0].SerializeToString()
    for _ in range(2000):
        node = field(NODE_ATTRIBUTE, field(ATTRIBUTE_GRAPH, field(GRAPH_NODE, node)))
    hostile = field(MODEL_GRAPH, field(GRAPH_NODE, node))
    for make in (onnx_ops.InferenceSession, ort.InferenceSession):
        with pytest.raises(ort.capi.onnxruntime_pybind11_state.InvalidProtobuf):
            make(hostile)
    assert onnx_ops.register(quiet(), hostile)
