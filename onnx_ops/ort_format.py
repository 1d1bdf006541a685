"""Models in ONNX Runtime's own format. This module reads from the file whether custom operators run the nodes.

    InferenceSession{..., kernel_type_str_resolver: {op_kernel_type_str_args: [{op_id, kernel_type_str_args}, ...]}}

For each operator of the model (`op_id`, such as "com.microsoft:GridSample:1") the file lists the names of its kernel's
types. A custom operator's types are called Input0, Input1 and so on; those of ONNX Runtime's own operators have the
names in the operator's specification.

The format is a flatbuffer: https://flatbuffers.dev/internals. Its tables and fields: ONNX Runtime, ort.fbs.
"""

import os
import struct

from .errors import OpError
from .model_files import content_of

IDENTIFIER = slice(4, 8), b"ORTM"
RESOLVER, OPERATORS_OF_RESOLVER, OP_ID, TYPES, TYPE_NAME = 3, 0, 0, 1, 0  # numbers of fields
CUSTOM = "Input0"


def is_ort_format(model):
    """Whether a model (path, bytes or ModelProto) is in ONNX Runtime's own format."""
    place, identifier = IDENTIFIER
    if isinstance(model, str | os.PathLike):
        with open(model, "rb") as file:
            return file.read(place.stop)[place] == identifier
    return isinstance(model, bytes) and model[place] == identifier


def domains(model, operators):
    """The domains whose operators in the model onnx_ops runs.

    operators  what `operators.available` returns

    Raises OpError if ONNX Runtime's own kernels run any of these operators.
    """
    names = set()
    for domain, name, types in _operators(model):
        if operator := operators.get((domain, name)):
            if CUSTOM not in types:
                shown = "(bytes)" if isinstance(model, bytes) else repr(os.fspath(model))
                rule = f"was written without onnx_ops, for ONNX Runtime's own {operator.title}"
                raise OpError("model", shown, rule, "onnx_ops")
            names.add(domain)
    return names


def _operators(model):
    """[(domain, name, names of its types), ...]; empty if the file is damaged, which ONNX Runtime will report."""
    entries = []
    try:
        with content_of(model) as content:
            for entry in _Table(content, 0).table(RESOLVER).tables(OPERATORS_OF_RESOLVER):
                domain, name, _ = entry.text(OP_ID).rsplit(":", 2)
                entries.append((domain, name, [types.text(TYPE_NAME) for types in entry.tables(TYPES)]))
    except (struct.error, ValueError):
        return []
    return entries


class _Table:
    """A table of a flatbuffer, at the position that the offset at `at` leads to."""

    def __init__(self, content, at):
        self.content = content
        self.at = at + self._number("I", at)
        self.fields = self.at - self._number("i", self.at)

    def _number(self, kind, at):
        return struct.unpack_from(f"<{kind}", self.content, at)[0]

    def _field(self, number):
        """The position of a field's value. Raises ValueError if the field has none."""
        size, entry = self._number("H", self.fields), 4 + 2 * number
        offset = self._number("H", self.fields + entry) if entry < size else 0
        if not offset:
            raise ValueError("no such field")
        return self.at + offset

    def _vector(self, number):
        """The position of the first element of a vector or string, and the number of elements."""
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
