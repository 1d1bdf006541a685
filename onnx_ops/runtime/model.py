"""Which domains a model imports, read from the outermost fields of its file: models can be large.

Wire format and field numbers: Protocol Buffers encoding; onnx.proto, ModelProto and FunctionProto.
"""

import io
import os

MODEL_IMPORT, MODEL_FUNCTIONS, FUNCTION_IMPORT, IMPORT_DOMAIN = 8, 25, 9, 1
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


def imported_domains(model):
    """The domains that a model (path, bytes or ModelProto) and its local functions import, "" being ai.onnx.

    None if this isn't an ONNX protobuf, which is not ours to complain about (ONNX Runtime has a format of its own).
    """
    if hasattr(model, "opset_import"):
        found = {i.domain for owner in (model, *model.functions) for i in owner.opset_import}
    else:
        try:
            with open(model, "rb") if isinstance(model, str | os.PathLike) else io.BytesIO(model) as file:
                found = set(_domains(file))
        except (ValueError, UnicodeDecodeError):
            return None
    return {"" if domain == "ai.onnx" else domain for domain in found}


def _domains(file):
    for number, length in _fields(file):
        if number == MODEL_IMPORT:
            yield _domain(file.read(length))
        elif number == MODEL_FUNCTIONS:
            function = io.BytesIO(file.read(length))
            yield from (_domain(function.read(n)) for field, n in _fields(function) if field == FUNCTION_IMPORT)


def _domain(opset_import):
    file = io.BytesIO(opset_import)
    return next((file.read(n).decode() for number, n in _fields(file) if number == IMPORT_DOMAIN), "")


def _fields(file):
    """(number, length) of each field that consists of bytes, with the file at its first byte."""
    end = file.seek(0, io.SEEK_END)
    file.seek(0)
    while file.tell() < end:
        tag = _varint(file)
        number, kind = tag >> 3, tag & 7
        if kind == VARINT:
            _varint(file)
        elif kind == BYTES:
            length = _varint(file)
            after = file.tell() + length
            if after > end:
                raise ValueError("a field ends past the file's end")
            yield number, length
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
