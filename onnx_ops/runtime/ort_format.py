"""Models in ONNX Runtime's own format, as far as to tell whose kernels run their nodes: that is settled in the file.

    InferenceSession{..., kernel_type_str_resolver: {op_kernel_type_str_args: [{op_id, kernel_type_str_args}, ...]}}

For each operator of the model (`op_id`, such as "com.microsoft:GridSample:1") there are the names of the types that a
kernel for it has. Those of custom operators are called Input0, Input1 and so on, those of ONNX Runtime's own as in the
operator's specification.

The format is a flatbuffer: https://flatbuffers.dev/internals. Its tables and fields: ONNX Runtime, ort.fbs.
"""

import mmap
import os
import struct

from ..errors import OpError

IDENTIFIER = slice(4, 8), b"ORTM"
RESOLVER, OPERATORS_OF_RESOLVER, OP_ID, TYPES, TYPE_NAME = 3, 0, 0, 1, 0  # numbers of fields
CUSTOM = "Input0"


def is_ort_format(model):
    """Whether a model (path, bytes or ModelProto) is one."""
    place, identifier = IDENTIFIER
    if isinstance(model, str | os.PathLike):
        with open(model, "rb") as file:
            return file.read(place.stop)[place] == identifier
    return isinstance(model, bytes) and model[place] == identifier


def domains(model, operators):
    """The domains whose operators in the model are run by onnx_ops. Raises OpError if ONNX Runtime runs any of them.

    operators  what `operators.known` returns
    """
    ours = set()
    for domain, name, types in _operators(model):
        if operator := operators.get((domain, name)):
            if CUSTOM not in types:
                shown = "(bytes)" if isinstance(model, bytes) else repr(os.fspath(model))
                rule = f"was written without onnx_ops, for ONNX Runtime's own {operator.title}"
                raise OpError("model", shown, rule, "onnx_ops")
            ours.add(domain)
    return ours


def _operators(model):
    """[(domain, name, names of its types), ...]; empty where the file is damaged, of which ONNX Runtime complains."""
    if isinstance(model, bytes):
        return _read(model)
    with open(model, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return _read(content)


def _read(content):
    found = []
    try:
        for entry in _Table(content, 0).table(RESOLVER).tables(OPERATORS_OF_RESOLVER):
            domain, name, _ = entry.text(OP_ID).rsplit(":", 2)
            found.append((domain, name, [types.text(TYPE_NAME) for types in entry.tables(TYPES)]))
    except (struct.error, ValueError):
        return []
    return found


class _Table:
    """A flatbuffer's table: the place that the offset at `at` leads to."""

    def __init__(self, content, at):
        self.content = content
        self.at = at + self._number("I", at)
        self.fields = self.at - self._number("i", self.at)

    def _number(self, kind, at):
        return struct.unpack_from(f"<{kind}", self.content, at)[0]

    def _field(self, number):
        """The place of a field's value. Raises ValueError where it has none."""
        size, entry = self._number("H", self.fields), 4 + 2 * number
        offset = self._number("H", self.fields + entry) if entry < size else 0
        if not offset:
            raise ValueError("no such field")
        return self.at + offset

    def _vector(self, number):
        """The place of the first element of a vector or string, and how many there are."""
        at = self._field(number)
        at += self._number("I", at)
        return at + 4, self._number("I", at)

    def table(self, number):
        return _Table(self.content, self._field(number))

    def tables(self, number):
        start, count = self._vector(number)
        return [_Table(self.content, start + 4 * k) for k in range(count)]

    def text(self, number):
        start, count = self._vector(number)
        return self.content[start : start + count].decode()
