"""Read what a session must know from a model's file.

This is which domains it imports, and the types of its nodes.

Models can be large, so tensors are skipped, and onnx isn't loaded. Sources: Protocol Buffers
encoding for the wire format; onnx.proto for the field numbers.
"""

from __future__ import annotations

import math
import mmap
import os
import re
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .. import system
from ..declaration.errors import OpError, as_text
from ..registry import KEYS, available

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from io import BufferedReader
    from typing import Any, TypeAlias

    from ..registry import Key
    from .types import File, PathLike, Source

    Entry: TypeAlias = tuple[str, str | bytes, str | bytes]  # (message, domain, op_type)
    Content: TypeAlias = bytes | mmap.mmap


BUILTIN = {"", "com.microsoft"}  # domains that ONNX Runtime has operators in, too
EXTENSIONS = "ai.onnx.contrib"  # the domain of onnxruntime-extensions' Python ops
# Ends the names there of custom operators that replace operators of this package.
REPLACING = "_custom"
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
LARGEST = 2**31  # bytes that a protobuf may have
# Bytes that `_fields` looks at for a field's tag and size, or for a run of fields that are numbers.
AHEAD = 2**13
# Bytes: a node outside of subgraphs of at most this size is searched for names first; a larger one
# holds tensors or graphs. Searching subgraphs, too, would read the innermost one again for each
# around it.
SMALL = 2**16
_NAMES = re.compile(
    b"|".join(
        re.escape(text.encode()) for text in sorted({EXTENSIONS, *(name for _, name in KEYS)})
    )
)


def imports_and_nodes(model: Source) -> tuple[set[str], set[Key]] | tuple[None, None]:
    """Return the domains that a model imports, and the (domain, op_type) of its nodes.

    The domain "" is ai.onnx.

    Nodes are those of subgraphs and functions, too. Those with other operators than this package's
    may be missing, except in the domain EXTENSIONS.

    The imports of functions count, except those of a BUILTIN domain. In functions, ONNX Runtime
    uses its own version of such a domain, and finds none of its operators once it is a custom
    domain, too.

    Returns (None, None) for other formats than the ONNX protobuf. ONNX Runtime reports invalid
    models.
    """
    try:
        entries = set(
            _entries_of_proto(model) if hasattr(model, "opset_import") else _entries(model)
        )
    except (ValueError, IndexError):
        return None, None
    imports: set[str] = set()
    nodes: set[Key] = set()
    for message, domain, op_type in entries:
        domain = as_text(domain)
        domain = "" if domain == "ai.onnx" else domain
        if message == "node":
            nodes.add((domain, as_text(op_type)))
        elif message == "import" or domain not in BUILTIN:
            imports.add(domain)
    return imports, nodes


@contextmanager
def ordinary_file(
    path: PathLike, argument: str = "model", most: float = math.inf
) -> Iterator[tuple[BufferedReader, int]]:
    """Return a context with an ordinary file, opened to be read, and its size.

    most  the largest size in bytes

    Raises OSError, and OpError for a folder, a device or a pipe: these may have no end, or wait for
    a writer.
    """
    if stat.S_ISREG(os.stat(path).st_mode):
        with open(path, "rb", opener=system.without_waiting) as file:
            status = os.fstat(file.fileno())  # another process may have replaced the file
            if stat.S_ISREG(status.st_mode) and status.st_size <= most:
                yield file, status.st_size
                return
    raise OpError(
        argument,
        path,
        "must be an ordinary file, or less than 2 GiB if it is a protobuf",
        "onnx_ops",
    )


def content_of(path: PathLike, argument: str = "model") -> bytes:
    """Return the content of a file that is a protobuf. Raises OSError and OpError."""
    with ordinary_file(path, argument, LARGEST - 1) as (file, size):
        return file.read(size)


def is_ort_format(model: Any) -> bool:
    """Return whether a model is in ONNX Runtime's format, from its first bytes.

    model  path, bytes, ModelProto or None

    Raises TypeError for other objects, as ONNX Runtime does.
    """
    if isinstance(model, str | os.PathLike):
        with ordinary_file(model) as (file, _):
            model = file.read(8)
    elif not (model is None or isinstance(model, bytes) or hasattr(model, "opset_import")):
        raise TypeError(f"Unable to load from type '{type(model)}'")
    # The place of the format's identifier in a flatbuffer.
    return isinstance(model, bytes) and model[4:8] == b"ORTM"


def is_lowered(model: File) -> bool:
    """Return whether a model has nodes that lowering.py makes."""
    return bool(lowered() & (imports_and_nodes(model)[1] or set()))


def lowered() -> set[Key]:
    """Return (domain, name) of the operators that `onnx_ops.lower` writes."""
    return {
        (EXTENSIONS, lowered_name(*key) + ending)
        for key in available()
        for ending in ("", REPLACING)
    }


def lowered_name(domain: str, name: str) -> str:
    """Return an operator's name in the domain of onnxruntime-extensions."""
    return f"{(domain or 'ai.onnx').replace('.', '_')}_{name}"


def _entries_of_proto(model: Any) -> Iterator[Entry]:
    """Yield what `_entries` yields, for a ModelProto."""
    from .nodes import model_nodes  # only for models that onnx has read

    for i in model.opset_import:
        yield "import", i.domain, ""
    for i in (i for function in model.functions for i in function.opset_import):
        yield "import of a function", i.domain, ""
    for node in model_nodes(model):
        yield "node", node.domain, node.op_type


def _entries(model: File) -> Iterator[Entry]:
    """Yield (message, domain, op_type) for each import and node.

    Raises ValueError and IndexError.
    """
    with _content(model) as (content, fill):
        # Messages to be read, each with its begin, end and depth.
        pending = [("model", 0, len(content), 0)]
        while pending:
            message, first, last, depth = pending.pop()
            if depth > DEEPEST:
                raise ValueError("messages are nested too deep")
            domain = op_type = b""
            for field, begin, end in _fields(content, fill, first, last, FIELDS[message]):
                if field == "domain":
                    domain = content[begin:end]
                elif field == "op_type":
                    op_type = content[begin:end]
                elif (
                    field != "node"
                    or depth > 1
                    or end - begin > SMALL
                    or _NAMES.search(content, begin, end)
                ):
                    pending.append((field, begin, end, depth + 1))
            if message in NAMED:
                yield message, domain, op_type


@contextmanager
def _content(model: File) -> Iterator[tuple[Content, Callable[[int, int], None]]]:
    """Return a context with a model's content, and a function that fills in a part of it.

    The function reads the part from the file.

    The file isn't mapped: if another process cuts it, the next access to a map, even to a private
    one, is a SIGBUS. Only parts are read: a file of 500 MB with 100 tensors takes 7 MB of memory
    and 6 ms of processor time by parts, 477 MB and 0.21 s as a whole, 200 MB and 0.6 ms as a
    private map.
    """
    if not isinstance(model, str | os.PathLike):
        yield model, lambda begin, end: None
        return
    with (
        ordinary_file(model, most=LARGEST - 1) as (file, size),
        mmap.mmap(-1, size or 1) as content,
    ):

        def fill(begin: int, end: int) -> None:
            file.seek(begin)
            content[begin:end] = file.read(end - begin)  # IndexError if the file has been cut

        fill(0, min(size, SMALL))
        yield content, fill


def _fields(
    content: Content,
    fill: Callable[[int, int], None],
    position: int,
    last: int,
    wanted: dict[int, str],
) -> Iterator[tuple[str, int, int]]:
    """Yield (name, begin, end) for each wanted field in content[position:last].

    Fields that are numbers are not wanted.

    Wanted fields are filled in, except for large messages, whose own fields are when they are read.
    """
    filled = last if last - position <= SMALL else position
    while position < last:
        if filled < last and filled < position + AHEAD:
            filled = min(position + SMALL, last)
            fill(position, filled)
        tag = content[position]
        if tag & 7 != BYTES:
            numbers = _NUMBERS.match(content, position, last)
            if not numbers:
                raise ValueError("there is no field")
            position = numbers.end()
            continue
        tag, begin = (tag, position + 1) if tag < 0x80 else _varint(content, position)
        size = content[begin]
        size, begin = (size, begin + 1) if size < 0x80 else _varint(content, begin)
        position = begin + size
        if position > last:
            raise ValueError("a field ends past its message's end")
        if name := wanted.get(tag >> 3):
            if position > filled and (position - begin <= SMALL or name not in FIELDS):
                fill(begin, position)
            yield name, begin, position


def _varint(content: Content, position: int) -> tuple[int, int]:
    """Return (the varint at a position, the position after it)."""
    value = 0
    for shift in range(0, 70, 7):
        byte = content[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("not a varint")


def _run_of_numbers() -> re.Pattern[bytes]:
    """Return the pattern of a run of fields that are numbers.

    An attribute may have millions of them.
    """

    def tag(wire_type: int) -> bytes:
        alone, first = (
            re.escape(bytes(range(begin + wire_type, begin + 128, 8))) for begin in (0, 128)
        )
        return rb"(?:[%b]|[%b][\x80-\xff]{0,3}[\x00-\x7f])" % (alone, first)

    varint = tag(0) + rb"[\x80-\xff]{0,9}[\x00-\x7f]"
    # re keeps a state for each of them meanwhile.
    return re.compile(b"(?s)(?:%b|%b.{8}|%b.{4}){1,500}" % (varint, tag(1), tag(5)))


_NUMBERS = _run_of_numbers()
