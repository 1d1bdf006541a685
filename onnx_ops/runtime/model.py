"""Reads the domains that a model imports, and some of its nodes, from its file field by field: models can be large.

All other fields, tensors above all, are skipped. Sources: Protocol Buffers encoding for the wire format; onnx.proto for
the field numbers of the messages that the constants name.
"""

import io
import os
from dataclasses import dataclass

from ..nodes import model_nodes

MODEL_IMPORT, MODEL_FUNCTIONS, FUNCTION_IMPORT, IMPORT_DOMAIN = 8, 25, 9, 1
NODE_NAME, NODE_OP_TYPE, NODE_ATTRIBUTE, NODE_DOMAIN, ATTRIBUTE_NAME = 3, 4, 5, 7, 1
LEADS_TO = {  # {message: {number of a field: the message in it}}, for messages that may contain nodes
    "model": {7: "graph", MODEL_FUNCTIONS: "function"},
    "graph": {1: "node"},
    "function": {7: "node"},
    "node": {NODE_ATTRIBUTE: "attribute"},
    "attribute": {6: "graph", 11: "graph"},
}
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
SMALL = 2**16  # bytes: a node of at most this size is read at once; a larger one holds tensors or graphs


def imported_domains(model):
    """The domains that a model (path, bytes or ModelProto) and its local functions import, "" being ai.onnx.

    Returns None for other formats than the ONNX protobuf; whether they are valid is for ONNX Runtime to tell.
    """
    if hasattr(model, "opset_import"):
        domains = {i.domain for owner in (model, *model.functions) for i in owner.opset_import}
    else:
        try:
            with _opened(model) as file:
                domains = set(_domains(file))
        except ValueError:
            return None
    return {"" if domain == "ai.onnx" else domain for domain in domains}


@dataclass(frozen=True)
class Node:
    """A node, as far as it is read. attributes: the attributes' names."""

    domain: str
    op_type: str
    name: str
    attributes: tuple[str, ...]


def nodes(model, op_types):
    """The Nodes of these types anywhere in a model (path, bytes or ModelProto). Raises ValueError if it is no model."""
    if hasattr(model, "opset_import"):
        return [
            Node(n.domain, n.op_type, n.name, tuple(a.name for a in n.attribute))
            for n in model_nodes(model)
            if n.op_type in op_types
        ]
    with _opened(model) as file:
        return list(_nodes(file, "model", _size(file), set(op_types)))


def _opened(model):
    return open(model, "rb") if isinstance(model, str | os.PathLike) else io.BytesIO(model)


def _size(file):
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    return size


def _domains(file):
    for number, length in _fields(file, _size(file)):
        if number == MODEL_IMPORT:
            yield _text(file, length, IMPORT_DOMAIN)
        elif number == MODEL_FUNCTIONS:
            for field, size in _fields(file, length):
                if field == FUNCTION_IMPORT:
                    yield _text(file, size, IMPORT_DOMAIN)


def _nodes(file, message, length, op_types):
    """Yield the Nodes of these types in a message of `length` bytes, at whose first byte the file is."""
    if message == "node":
        if length <= SMALL:
            content = file.read(length)
            if not any(name.encode() in content for name in op_types):
                return
            file = io.BytesIO(content)
        begin = file.tell()
        node = _node(file, length)
        if node.op_type in op_types:
            yield node
        file.seek(begin)
    for number, size in _fields(file, length):
        if number in LEADS_TO[message]:
            yield from _nodes(file, LEADS_TO[message][number], size, op_types)


def _node(file, length):
    texts, attributes = dict.fromkeys((NODE_DOMAIN, NODE_OP_TYPE, NODE_NAME), ""), []
    for number, size in _fields(file, length):
        if number in texts:
            texts[number] = file.read(size).decode()
        elif number == NODE_ATTRIBUTE:
            attributes.append(_text(file, size, ATTRIBUTE_NAME))
    return Node(*texts.values(), tuple(attributes))


def _text(file, length, number):
    """The text in a message's first field of this number; "" if there is none."""
    return next((file.read(size).decode() for field, size in _fields(file, length) if field == number), "")


def _fields(file, length):
    """Yield (number, length) for each field of a message that consists of bytes, with the file at its first byte.

    The message has `length` bytes and begins where the file is. The caller may move the file between fields.
    """
    end = file.tell() + length
    while file.tell() < end:
        tag = _varint(file)
        number, kind = tag >> 3, tag & 7
        if kind == VARINT:
            _varint(file)
        elif kind == BYTES:
            size = _varint(file)
            after = file.tell() + size
            if after > end:
                raise ValueError("a field ends past its message's end")
            yield number, size
            file.seek(after)
        elif kind in (FIXED64, FIXED32):
            file.seek(8 if kind == FIXED64 else 4, io.SEEK_CUR)
        else:
            raise ValueError(f"no such wire type: {kind}")


def _varint(file):
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            break
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    raise ValueError("not a varint")
