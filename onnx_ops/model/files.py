"""Read from a model's file what a session must know: the domains that it imports, and the types of its nodes.

Models can be large, so tensors are skipped, and onnx isn't loaded. Sources: Protocol Buffers encoding for the wire
format; onnx.proto for the field numbers.
"""

import mmap
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from ..declaration.errors import as_text
from ..registry import KEYS, available

if TYPE_CHECKING:
    import onnx

File: TypeAlias = "str | os.PathLike[str] | bytes"  # a path, or the content
Part: TypeAlias = "tuple[str, str | bytes, str | bytes]"

BUILTIN = {"", "com.microsoft"}  # domains that ONNX Runtime has operators in, too
EXTENSIONS = "ai.onnx.contrib"  # the domain of onnxruntime-extensions' Python ops
REPLACING = "_custom"  # ends the names there of custom operators that replace operators of this package
USE_ONNX = "is in ONNX Runtime's own format; use the .onnx file that it was made from"

FIELDS = {  # {message: {number of a field: the message in it, or the text}}
    "model": {7: "graph", 8: "import", 25: "function"},
    "graph": {1: "node"},
    "function": {7: "node", 9: "import of a function", 11: "attribute"},
    "node": {4: "op_type", 5: "attribute", 7: "domain"},
    "attribute": {6: "graph", 11: "graph"},
    "import": {1: "domain"},
    "import of a function": {1: "domain"},
}
NAMED = {"node", "import", "import of a function"}  # messages with a domain
BYTES = 2  # the wire type of texts and messages
DEEPEST = 100  # messages in one another that protobuf reads
SMALL = 2**16  # bytes: a node of at most this size is searched for names first; a larger one holds tensors or graphs
_NAMES = re.compile(b"|".join(re.escape(text.encode()) for text in sorted({EXTENSIONS, *(name for _, name in KEYS)})))


def imports_and_nodes(model: "File | onnx.ModelProto") -> tuple[set[str], set[tuple[str, str]]] | tuple[None, None]:
    """Return the domains that a model imports, and the (domain, op_type) of its nodes; "" is ai.onnx.

    Nodes are those of subgraphs and functions, too. Those with other operators than this package's may be missing,
    except in the domain EXTENSIONS.

    The imports of functions count, except those of a BUILTIN domain. In functions, ONNX Runtime uses its own version of
    such a domain, and finds none of its operators once it is a custom domain, too.

    Returns (None, None) for other formats than the ONNX protobuf. ONNX Runtime reports invalid models.
    """
    try:
        parts = set(_parts_of_proto(model) if hasattr(model, "opset_import") else _parts(model))
    except (ValueError, IndexError):
        return None, None
    imports, nodes = set(), set()
    for message, domain, op_type in parts:
        domain = as_text(domain)
        domain = "" if domain == "ai.onnx" else domain
        if message == "node":
            nodes.add((domain, as_text(op_type)))
        elif message == "import" or domain not in BUILTIN:
            imports.add(domain)
    return imports, nodes


def imported_domains(model: "File | onnx.ModelProto") -> set[str] | None:
    """Return the domains of `imports_and_nodes`."""
    return imports_and_nodes(model)[0]


def is_ort_format(model: Any) -> bool:
    """Return whether a model (path, bytes, ModelProto or None) is in ONNX Runtime's format, from its first bytes.

    Raises TypeError for other objects, as ONNX Runtime does.
    """
    if isinstance(model, str | os.PathLike):
        with open(model, "rb") as file:
            model = file.read(8)
    elif not (model is None or isinstance(model, bytes) or hasattr(model, "opset_import")):
        raise TypeError(f"Unable to load from type '{type(model)}'")
    return isinstance(model, bytes) and model[4:8] == b"ORTM"  # the place of the format's identifier in a flatbuffer


def is_lowered(model: File) -> bool:
    """Return whether a model has nodes that lowering.py makes."""
    return bool(lowered() & (imports_and_nodes(model)[1] or set()))


def lowered() -> set[tuple[str, str]]:
    """Return (domain, name) of the operators that `onnx_ops.lower` writes."""
    return {(EXTENSIONS, lowered_name(*key) + ending) for key in available() for ending in ("", REPLACING)}


def lowered_name(domain: str, name: str) -> str:
    """Return an operator's name in the domain of onnxruntime-extensions."""
    return f"{(domain or 'ai.onnx').replace('.', '_')}_{name}"


def _parts_of_proto(model: Any) -> Iterator[Part]:
    """Yield what `_parts` yields, for a ModelProto."""
    from .nodes import model_nodes  # only for models that onnx has read

    for i in model.opset_import:
        yield "import", i.domain, ""
    for i in (i for function in model.functions for i in function.opset_import):
        yield "import of a function", i.domain, ""
    for node in model_nodes(model):
        yield "node", node.domain, node.op_type


def _parts(model: File) -> Iterator[Part]:
    """Yield (message, domain, op_type) for each import and node. Raises ValueError and IndexError."""
    with _content(model) as content:
        left = [("model", 0, len(content), 0)]  # messages to be read, each with its begin, end and depth
        while left:
            message, first, last, depth = left.pop()
            if depth > DEEPEST:
                raise ValueError("messages are nested too deep")
            domain = op_type = b""
            for part, begin, end in _fields(content, first, last, FIELDS[message]):
                if part == "domain":
                    domain = content[begin:end]
                elif part == "op_type":
                    op_type = content[begin:end]
                elif part != "node" or end - begin > SMALL or _NAMES.search(content, begin, end):
                    left.append((part, begin, end, depth + 1))
            if message in NAMED:
                yield message, domain, op_type


@contextmanager
def _content(model: File) -> Iterator[Any]:
    """Return a context with the content of a model, which is read from a file on access."""
    if not isinstance(model, str | os.PathLike):
        yield model
        return
    with open(model, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        yield content


def _fields(content: Any, at: int, last: int, wanted: dict[int, str]) -> Iterator[tuple[str, int, int]]:
    """Yield (name, begin, end) for each wanted field in content[at:last]. Fields that are numbers are not wanted."""
    while at < last:
        tag = content[at]
        if tag & 7 != BYTES:
            numbers = _NUMBERS.match(content, at, last)
            if not numbers:
                raise ValueError("there is no field")
            at = numbers.end()
            continue
        tag, begin = (tag, at + 1) if tag < 0x80 else _varint(content, at)
        size = content[begin]
        size, begin = (size, begin + 1) if size < 0x80 else _varint(content, begin)
        at = begin + size
        if at > last:
            raise ValueError("a field ends past its message's end")
        if tag >> 3 in wanted:
            yield wanted[tag >> 3], begin, at


def _varint(content: Any, at: int) -> tuple[int, int]:
    """Return (the varint at a position, the position after it)."""
    value = 0
    for shift in range(0, 70, 7):
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("not a varint")


def _run_of_numbers() -> re.Pattern[bytes]:
    """Return the pattern of a run of fields that are numbers; an attribute may have millions of them."""

    def tag(wire_type: int) -> bytes:
        alone, first = (re.escape(bytes(range(begin + wire_type, begin + 128, 8))) for begin in (0, 128))
        return rb"(?:[%b]|[%b][\x80-\xff]{0,3}[\x00-\x7f])" % (alone, first)

    varint = tag(0) + rb"[\x80-\xff]{0,9}[\x00-\x7f]"
    # re keeps a state for each of them meanwhile.
    return re.compile(b"(?s)(?:%b|%b.{8}|%b.{4}){1,500}" % (varint, tag(1), tag(5)))


_NUMBERS = _run_of_numbers()
