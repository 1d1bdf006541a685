"""Reading what a session asks about a model takes time linear in its size, as ONNX Runtime's own
reading of it does.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from google.protobuf.message import DecodeError
from onnx import helper
from support.backends import quiet
from support.cases import case_named, model
from support.growth import assert_linear
from support.selection import long_unless

import onnx_ops
from onnx_ops.model import files
from onnx_ops.model.attributes import MOST, warn_of_unknown_attributes
from onnx_ops.model.files import imports_and_nodes
from onnx_ops.registry import available

pytestmark = pytest.mark.any_library

CASE = case_named("overlapping")
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MODEL_GRAPH, MODEL_IMPORT, MODEL_FUNCTIONS, GRAPH_NODE, NODE_ATTRIBUTE, ATTRIBUTE_GRAPH, UNKNOWN = (
    7,
    8,
    25,
    1,
    5,
    6,
    15,
)


def varint(number):
    octets = []
    while number > 0x7F:
        octets.append(0x80 | number & 0x7F)
        number >>= 7
    return bytes([*octets, number])


def field(number, content):
    return varint(number << 3 | BYTES) + varint(len(content)) + content


def message(proto, name, number, content, more=b""):
    """The bytes of a message, in which a field has this content in place of its own, and then
    `more`.
    """
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
    return message(
        proto,
        "graph",
        MODEL_GRAPH,
        message(proto.graph, "node", GRAPH_NODE, node, of_graph),
        of_model,
    )


COUNT = 10_000
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


# The short run has fields that are read and fields that are not.
@pytest.mark.parametrize(
    "name",
    [long_unless(name in ("functions", "numbers in the node"), name) for name in MANY],
)
def test_time_grows_with_the_number_of_fields(name):
    def prepare(count):
        proto = content(**{where: each * count for where, each in MANY[name].items()})
        return lambda: onnx_ops.register(quiet(), proto)

    assert_linear(prepare, COUNT)


@pytest.mark.parametrize("length", [5, 20_000])
def test_many_unknown_attributes(
    length: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few are shown, and only these are compared with the operator's attributes."""
    proto, count = col2im("n" * length), 10**6 // (length + 10)
    proto.graph.node[0].attribute.extend(
        helper.make_attribute(f"{k:0{length}}", 1) for k in range(count)
    )
    compared = []
    monkeypatch.setattr(
        "difflib.get_close_matches", lambda *arguments: compared.append(arguments) or []
    )
    warn_of_unknown_attributes(proto, available())
    *said, last = [record.getMessage() for record in caplog.records]
    assert len(said) == MOST
    assert len(compared) <= MOST + 1
    assert all(
        "is unknown and will be ignored; there are" in each and len(each) < 2_000 for each in said
    )
    assert last == "onnx_ops: the model has more unknown attributes; onnx-ops inspect lists all"


def test_unknown_attributes_are_escaped_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    proto = col2im("node\x1b[2J\n")
    proto.graph.node[0].attribute.append(helper.make_attribute("attribute\n\x9b\u202e", 1))
    warn_of_unknown_attributes(proto, available())
    (text,) = [record.getMessage() for record in caplog.records]
    assert r"attribute attribute\n\x9b\u202e is unknown" in text
    assert text.isprintable()


def others(rng, number):
    """Unknown fields of all types, of lengths and numbers with one byte or more."""
    fields = []
    for _ in range(rng.integers(0, 40)):
        kind, any_number = (
            int(rng.choice([VARINT, FIXED64, BYTES, FIXED32])),
            int(rng.choice([number, 1000, 2**28])),
        )
        if kind == BYTES:
            fields.append(field(any_number, rng.bytes(int(rng.choice([0, 1, 7, 15, 16, 17, 200])))))
        else:
            sizes = {
                VARINT: varint(int(rng.integers(0, 2**63))),
                FIXED64: rng.bytes(8),
                FIXED32: rng.bytes(4),
            }
            fields.append(varint(any_number << 3 | kind) + sizes[kind])
    return b"".join(fields)


@pytest.mark.parametrize("seed", [long_unless(seed == 0, seed) for seed in range(5)])
def test_unknown_fields_anywhere(seed: int) -> None:
    """onnx's own reading is the oracle."""
    rng = np.random.default_rng(seed)
    for _ in range(60):
        mixed = [
            others(rng, number) for number in (9, 9, 12)
        ]  # which onnx has not in these messages
        mixed[0] += field(
            MODEL_IMPORT, helper.make_opsetid("mmcv", 1).SerializeToString()
        ) + others(rng, 9)
        more = helper.make_node("MMCVRoiAlign", ["x"], ["y"], "more", domain="mmcv", stride=[1])
        node = field(GRAPH_NODE, more.SerializeToString())
        proto = content(mixed[0], mixed[1] + node + others(rng, 9), mixed[2])
        expected = {"", "mmcv"}, {("", "Col2Im"), ("mmcv", "MMCVRoiAlign")}
        assert (
            imports_and_nodes(proto)
            == imports_and_nodes(onnx.ModelProto.FromString(proto))
            == expected
        )


def test_names_that_are_not_utf8(caplog: pytest.LogCaptureFixture) -> None:
    """They are shown as the C library shows them, and hide nothing else."""
    proto = model(
        "com.microsoft",
        "GridSample",
        [np.zeros((1, 1, 2, 2), np.float32), np.zeros((1, 2, 2, 2), "f4")],
        {},
    )
    proto.opset_import.append(helper.make_opsetid("MARK", 1))
    proto.graph.node.append(helper.make_node("MARK", ["y"], ["z"], domain="ai.onnx.contrib"))
    proto.graph.node[0].name = "MARK"
    proto.graph.node[0].attribute.append(helper.make_attribute("MARK", 1))
    damaged = proto.SerializeToString().replace(b"MARK", b"n\xff'a")
    expected = (
        {"", "com.microsoft", "n\ufffd'a"},
        {("com.microsoft", "GridSample"), ("ai.onnx.contrib", "n\ufffd'a")},
    )
    parsed = onnx.ModelProto.FromString(damaged)
    for source in (damaged, parsed):
        imports, nodes = imports_and_nodes(source)
        assert (imports, nodes) == expected
    warn_of_unknown_attributes(parsed, available())
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith(
        "onnx_ops: com.microsoft.GridSample (node \"n\ufffd'a\"): attribute n\ufffd'a is unknown"
    )


class Counted(bytes):
    """Bytes that count how many of them are read."""

    count: int

    def __getitem__(self, key: Any) -> Any:
        part = super().__getitem__(key)
        self.count += len(part) if isinstance(key, slice) else 1
        return part


def test_tensors_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model with large tensors, no more bytes are read than of one with small tensors."""

    def search(content: Counted, begin: int, end: int) -> Any:
        content.count += end - begin
        return names.search(content, begin, end)

    names, counts = files._NAMES, []
    monkeypatch.setattr(files, "_NAMES", SimpleNamespace(search=search))
    for size in (2 * files.SMALL, 100 * files.SMALL):
        tensor = onnx.numpy_helper.from_array(np.zeros(size, np.uint8), "w")
        proto = col2im()
        proto.graph.initializer.append(tensor)
        proto.graph.node.append(helper.make_node("Constant", [], ["c"], value=tensor))
        counted = Counted(proto.SerializeToString())
        counted.count = 0
        assert imports_and_nodes(counted) == ({""}, {("", "Col2Im"), ("", "Constant")})
        counts.append(counted.count)
    assert max(counts) - min(counts) < 20  # more bytes of sizes
    assert max(counts) < 1000


@pytest.mark.parametrize("depth", [1, 15, 30])
def test_nested_messages_are_searched_once(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    searched = []

    def search(content: bytes, begin: int, end: int) -> Any:
        searched.append(end - begin)
        return names.search(content, begin, end)

    names = files._NAMES
    monkeypatch.setattr(files, "_NAMES", SimpleNamespace(search=search))
    node = col2im().graph.node[0].SerializeToString() + field(6, b"z" * (files.SMALL // 2))
    for _ in range(depth):
        node = field(NODE_ATTRIBUTE, field(ATTRIBUTE_GRAPH, field(GRAPH_NODE, node)))
    proto = field(MODEL_IMPORT, b"") + field(MODEL_GRAPH, field(GRAPH_NODE, node) * 3)
    assert imports_and_nodes(proto)[1] == {("", ""), ("", "Col2Im")}
    assert sum(searched) <= len(proto)


WRONG = {
    "a text past its message's end": field(
        MODEL_IMPORT, varint(1 << 3 | BYTES) + varint(4) + b"mmc"
    )
    + field(UNKNOWN, b""),
    "a message past the end": varint(MODEL_IMPORT << 3 | BYTES) + varint(3) + b"ab",
    "a number without an end": varint(UNKNOWN << 3 | VARINT) + b"\xff",
    "a size without an end": varint(UNKNOWN << 3 | BYTES) + b"\xff" * 11 + b"\0" * 99,
    "4 bytes that are fewer": varint(UNKNOWN << 3 | FIXED32) + b"123",
    "8 bytes that are fewer": varint(UNKNOWN << 3 | FIXED64) + b"1234567",
    "an unknown wire type": varint(UNKNOWN << 3 | 7) + b"1",
    "a text": b"no model at all",
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_model(name: str) -> None:
    """onnx refuses it, too."""
    with pytest.raises(DecodeError):
        onnx.ModelProto.FromString(WRONG[name])
    assert imports_and_nodes(WRONG[name]) == (None, None)


def test_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").touch()
    assert imports_and_nodes(tmp_path / "model.onnx") == (None, None)


def test_messages_nested_too_deep():
    """ONNX Runtime refuses them: protobuf reads no more than 100 messages in each other."""
    node = col2im().graph.node[0].SerializeToString()
    for _ in range(2000):
        node = field(NODE_ATTRIBUTE, field(ATTRIBUTE_GRAPH, field(GRAPH_NODE, node)))
    hostile = field(MODEL_GRAPH, field(GRAPH_NODE, node))
    for make in (onnx_ops.InferenceSession, ort.InferenceSession):
        with pytest.raises(ort.capi.onnxruntime_pybind11_state.InvalidProtobuf):
            make(hostile)
    assert imports_and_nodes(hostile) == (None, None)
    assert onnx_ops.register(quiet(), hostile)
