"""Read a model's imports and nodes from its file, field by field, because models can be large.

A session needs the domains that the model imports, and its nodes of some types. All other fields, especially tensors,
are skipped. Sources: Protocol Buffers encoding for the wire format; onnx.proto for the field numbers.
"""

import functools
import itertools
import logging
import mmap
import os
import re
from contextlib import contextmanager, suppress
from typing import NamedTuple

from ..declaration.errors import as_text, errors_of, shortened
from ..registry import available
from .nodes import declared, model_nodes

MODEL_IMPORT, FUNCTION_IMPORT, IMPORT_DOMAIN, MODEL_FUNCTIONS = 8, 9, 1, 25
NODE_NAME, NODE_OP_TYPE, NODE_ATTRIBUTE, NODE_DOMAIN, ATTRIBUTE_NAME = 3, 4, 5, 7, 1
LEADS_TO = {  # {message: {number of a field: the message in it}}, for messages that may contain nodes
    "model": {7: "graph", MODEL_FUNCTIONS: "function"},
    "graph": {1: "node"},
    "function": {7: "node", 11: "attribute"},
    "node": {NODE_ATTRIBUTE: "attribute"},
    "attribute": {6: "graph", 11: "graph"},
}
OF_MODEL, OF_FUNCTION = frozenset([MODEL_IMPORT, MODEL_FUNCTIONS]), frozenset([FUNCTION_IMPORT])
OF_NODE = frozenset([NODE_NAME, NODE_OP_TYPE, NODE_ATTRIBUTE, NODE_DOMAIN])
BUILTIN = "", "ai.onnx", "com.microsoft"  # domains that ONNX Runtime has operators in, too
EXTENSIONS = "ai.onnx.contrib"  # the domain of onnxruntime-extensions' Python ops
USE_ONNX = "is in ONNX Runtime's own format; use the .onnx file that it was made from"
VARINT, BYTES = 0, 2
FIXED_SIZES = {1: 8, 5: 4}  # {wire type: bytes}
SHORT = 16  # bytes
SMALLEST = 8  # bytes: a smaller message has no node of an operator in it, nor an import of a domain in a function
SMALL = 2**16  # bytes: a node of at most this size is searched for names first; a larger one holds tensors or graphs
WARNING = "onnx_ops: %s: %s"  # the operator with its node, and a text of `unknown_attributes`
MOST_WARNINGS = 20  # for a model
LONGEST_NAME = 100  # of an attribute with similar names
log = logging.getLogger("onnx_ops")


class Node(NamedTuple):
    """The parts of a node that are read. attributes: the attributes' names."""

    domain: str
    op_type: str
    name: str
    attributes: tuple[str, ...]


def imported_domains(model):
    """Return the domains that a model (path, bytes or ModelProto) and its functions import; "" is ai.onnx.

    A BUILTIN domain counts only if the model itself imports it. In functions, ONNX Runtime uses its own version of such
    a domain, and finds none of its operators once it is a custom domain, too.

    Returns None for other formats than the ONNX protobuf. ONNX Runtime reports invalid models.
    """
    if hasattr(model, "opset_import"):
        imports = [(owner is model, i.domain) for owner in (model, *model.functions) for i in owner.opset_import]
    else:
        try:
            with content_of(model) as content:
                imports = list(_imports(content))
        except (ValueError, IndexError):
            return None
    counted = {domain for is_models, domain in imports if is_models or domain not in BUILTIN}
    return {"" if domain == "ai.onnx" else domain for domain in counted}


def imports_and_nodes(model, op_types):
    """Return `imported_domains` and `nodes` of a model."""
    return imported_domains(model), nodes(model, op_types)


def is_ort_format(model):
    """Return whether a model (path, bytes, ModelProto or None) is in ONNX Runtime's format, from its first bytes."""
    if isinstance(model, str | os.PathLike):
        with open(model, "rb") as file:
            model = file.read(8)
    return isinstance(model, bytes) and model[4:8] == b"ORTM"  # the place of the format's identifier in a flatbuffer


def is_lowered(model):
    """Return whether a model (path, bytes or ModelProto) has nodes that lowering.py makes."""
    return any(n.domain == EXTENSIONS for n in nodes(model, {lowered_name(*key) for key in available()}) or ())


def lowered_name(domain, name):
    """Return an operator's name in the domain of onnxruntime-extensions."""
    return f"{(domain or 'ai.onnx').replace('.', '_')}_{name}"


def nodes(model, op_types):
    """Return the Nodes of these types anywhere in a model (path, bytes or ModelProto).

    Returns None if it is no model, which ONNX Runtime reports.
    """
    if hasattr(model, "opset_import"):
        return [Node(n.domain, n.op_type, n.name, tuple(a.name for a in n.attribute))
                for n in model_nodes(model) if n.op_type in op_types]  # fmt: skip
    names = re.compile(b"|".join(re.escape(name.encode()) for name in op_types))
    try:
        with content_of(model) as content:
            return list(_nodes(content, "model", 0, len(content), op_types, names))
    except (ValueError, IndexError, RecursionError):  # protobuf refuses messages that are nested more than 100 deep
        return None


def warn_of_unknown_attributes(found, operators):
    """Log a warning for each attribute of the Nodes that the node's operator doesn't have.

    A kernel can't report them: it can only query ONNX Runtime for attributes by name.

    operators  the result of `operators.available`

    Raises nothing. ONNX Runtime reports all other errors in the model.
    """
    with suppress(Exception):
        left = MOST_WARNINGS
        for node in found:
            operator = declared(node, operators) if node.attributes else None
            for sentence in itertools.islice(unknown_attributes(operator, node.attributes), left) if operator else ():
                left -= 1
                log.warning(WARNING, errors_of(operator, node.name).title, sentence)
            if not left:
                log.warning("onnx_ops: the model may have more unknown attributes; onnx-ops inspect lists all")
                return


def unknown_attributes(operator, names):
    """Yield an error message for each of these attribute names that the operator doesn't have."""
    import difflib

    declared_names = [name for a in operator.attributes for name in a.names]
    for name in sorted(set(map(as_text, names)) - set(declared_names)):
        matches = difflib.get_close_matches(name, declared_names, 1) if len(name) <= LONGEST_NAME else []
        name = shortened(name)
        hint = f"did you mean {matches[0]}?" if matches else f"there are {', '.join(declared_names) or 'none'}"
        yield f"attribute {name} is unknown and will be ignored; {hint}"


@contextmanager
def content_of(model):
    """Return a context with the content of a model (path or bytes), which is read on access."""
    if not isinstance(model, str | os.PathLike):
        yield model
        return
    with open(model, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        yield content


def _imports(content):
    """Yield (whether the model itself imports it, a domain)."""
    texts = {}  # of small messages

    def domain(begin, end):
        if end - begin > SHORT:
            return _text(content, begin, end, IMPORT_DOMAIN)
        message = content[begin:end]
        if message not in texts:
            texts[message] = _text(message, 0, len(message), IMPORT_DOMAIN)
        return texts[message]

    for number, begin, end in _fields(content, 0, len(content), OF_MODEL):
        if number == MODEL_IMPORT:
            yield True, domain(begin, end)
        elif end - begin >= SMALLEST:
            for _, *inner in _fields(content, begin, end, OF_FUNCTION):
                yield False, domain(*inner)


def _nodes(content, message, begin, end, op_types, names):
    """Yield the Nodes of these types in the message in content[begin:end]. names: the pattern of these types."""
    leads_to = LEADS_TO[message]
    if message == "node":
        if end - begin <= SMALL and not names.search(content, begin, end):
            return
        texts, attributes = {NODE_DOMAIN: "", NODE_OP_TYPE: "", NODE_NAME: ""}, []
        for number, a, b in _fields(content, begin, end, OF_NODE):
            if number in texts:
                texts[number] = content[a:b].decode(errors="replace")
            else:
                attributes.append((number, a, b))
        if texts[NODE_OP_TYPE] in op_types:
            yield Node(*texts.values(), tuple(_text(content, a, b, ATTRIBUTE_NAME) for _, a, b in attributes))
        fields = iter(attributes)
    else:
        fields = _fields(content, begin, end, frozenset(leads_to))
    for number, a, b in fields:
        if b - a >= SMALLEST:
            yield from _nodes(content, leads_to[number], a, b, op_types, names)


def _text(content, begin, end, number):
    """Return the text in a message's last field with this number, as protobuf does; "" if there is none."""
    text = b""
    for _, a, b in _fields(content, begin, end, frozenset([number])):
        text = content[a:b]
    return text.decode(errors="replace")


def _fields(content, begin, end, wanted):
    """Yield (number, begin, end) for each field of bytes with a wanted number, of the message in content[begin:end]."""
    at, others, is_other = begin, None, False
    while at < end:
        if is_other:  # more of them may follow
            others = others or _others(wanted)
            if run := others.match(content, at, end):
                at = run.end()
                continue
        tag = content[at]
        tag, at = (tag, at + 1) if tag < 0x80 else _varint(content, at)
        number, kind = tag >> 3, tag & 7
        is_other = kind != BYTES or number not in wanted
        if kind == VARINT:
            _, at = _varint(content, at)
        elif kind == BYTES:
            size = content[at]
            size, at = (size, at + 1) if size < 0x80 else _varint(content, at)
            if at + size > end:
                raise ValueError("a field ends past its message's end")
            if not is_other:
                yield number, at, at + size
            at += size
        elif kind in FIXED_SIZES:
            at += FIXED_SIZES[kind]
        else:
            raise ValueError(f"no such wire type: {kind}")


@functools.cache
def _others(wanted):
    """Return the pattern of a run of short unwanted fields; a model may have millions of them."""

    def tag(kind, numbers=range(16), is_long=True):
        short = b"".join(re.escape(bytes([number << 3 | kind])) for number in numbers)
        long = b"".join(re.escape(bytes([0x80 | number << 3 | kind])) for number in range(16))
        return rb"(?:[%b]%b)" % (short, rb"|[%b][\x80-\xff]{0,8}[\x00-\x7f]" % long if is_long else b"")

    sized = b"|".join(re.escape(bytes([size])) + b".{%d}" % size for size in range(SHORT))
    others = tag(BYTES, [number for number in range(16) if number not in wanted], is_long=False)
    kinds = [tag(VARINT) + rb"[\x80-\xff]{0,9}[\x00-\x7f]", others + b"(?:%b)" % sized]
    kinds += [tag(kind) + b".{%d}" % size for kind, size in FIXED_SIZES.items()]
    return re.compile(b"(?s)(?:%b){1,500}" % b"|".join(kinds))  # re keeps a state for each of them meanwhile


def _varint(content, at):
    """Return (the varint at a position, the position after it)."""
    value = 0
    for shift in range(0, 70, 7):
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("not a varint")
