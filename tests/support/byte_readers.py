"""What reads bytes from outside in Python: functions of bytes that raise BrokenPromiseError where a
promise breaks.

No other errors leave a reader than those that it names. It makes at most as many calls as are
linear in the bytes, and writes in the folder that it is given alone. scripts/fuzzing/fuzz_bytes.py
draws the bytes; test_byte_readers.py has the seeds and some more.
"""

import io
import logging
import os
import random
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import llvmlite.binding as llvm
import numpy as np
import onnx
import onnxruntime as ort
from google.protobuf.message import DecodeError

from onnx_ops import OpError, rewriting
from onnx_ops.cli import data, items, reading
from onnx_ops.compiler import cache
from onnx_ops.compiler import code as compiled
from onnx_ops.declaration.errors import as_text
from onnx_ops.model import external_data, schemas
from onnx_ops.model import files as model_files
from onnx_ops.model.nodes import domain_of
from onnx_ops.registry import OPERATORS
from onnx_ops.session import lowering, native_backend

from . import cases, written
from .backends import quiet
from .processes import TESTS

CALLS, PER_BYTE = 1_000_000, 100  # of functions, in Python and in C, that a reader may need
CALLED = "call", "c_call"  # events of `sys.setprofile`
OP_TYPES = {operator.name for operator in OPERATORS}
SECRET = b"a secret in a file beside the model's folder"
SYMBOL = "a_function"
UNFINISHED = "was not optimized, for"  # in the warning that a pattern has failed
PACKAGE = os.path.dirname(external_data.__file__)
LOADABLE = 2**14  # bytes of models of which sessions are made


class BrokenPromiseError(AssertionError):
    """A promise that a reader breaks."""


def parsed(content):
    """Return the model in bytes, or None."""
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(content)
    except DecodeError:
        return None
    return proto


def fields(content: bytes, folder: Path) -> None:
    """Our own reader of protobufs finds what onnx finds, or that there is no model."""
    imports, nodes = model_files.imports_and_nodes(content)
    proto = parsed(content)
    if proto is not None and imports is not None:
        check_equal("imports", imports, cases.imported_domains(proto))
        proto.ClearField("training_info")  # which no session reads
        in_proto = [message for message in messages(proto) if isinstance(message, onnx.NodeProto)]
        expected = {(as_text(domain_of(node)), as_text(node.op_type)) for node in in_proto}
        check_equal("nodes", with_names(nodes), with_names(expected))
        check_equal("other nodes", nodes - expected, set())


def with_names(nodes: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the nodes that the reader must find all of: those with names of operators, and of
    extensions.
    """
    return {node for node in nodes if node[1] in OP_TYPES or node[0] == model_files.EXTENSIONS}


def check_equal(subject, first, second):
    if first != second:
        raise BrokenPromiseError(f"{subject}: {first} instead of {second}")


def optimize(content, folder):
    """A model that onnx and ONNX Runtime accept is one afterwards."""
    if (proto := parsed(content)) is None:
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimized, _ = rewriting.rewritten(proto, folder)
    failures = [
        str(warning.message).partition(UNFINISHED)[2]
        for warning in caught
        if UNFINISHED in str(warning.message)
    ]
    if (failures or optimized is not proto) and len(content) <= LOADABLE and loads(proto):
        if failures:
            raise BrokenPromiseError(failures[0])
        try:
            session(optimized)
        except Exception as error:
            raise BrokenPromiseError(
                f"the model loads, but not what optimize makes of it: {str(error)[:300]}"
            ) from error


def loads(proto):
    try:
        onnx.checker.check_model(proto)
        session(proto)
    except Exception:
        return False
    return True


def session(proto):
    """Make a session for which no kernel is compiled, but maybe a plan, whose calls don't count."""
    with counted(None):
        return _session(proto)


@contextmanager
def counted(function: Callable[..., None] | None) -> Iterator[None]:
    """A context in which a function gets this thread's calls of functions, or none does."""
    before = sys.getprofile()
    sys.setprofile(function)
    try:
        yield
    finally:
        sys.setprofile(before)


@contextmanager
def at_most(count: int) -> Iterator[None]:
    """A context that raises BrokenPromiseError at the call after so many, and at its end where that
    was caught.
    """
    left, message = iter(range(count)), f"more than {count} calls"

    def called(frame: object, event: str, argument: object) -> None:
        if event in CALLED and next(left, None) is None:
            raise BrokenPromiseError(message)

    with counted(called):
        yield
    if next(left, None) is None:
        raise BrokenPromiseError(message)


def _session(proto):
    options = quiet(
        graph_optimization_level=ort.GraphOptimizationLevel.ORT_DISABLE_ALL, intra_op_num_threads=1
    )
    imported = {i.domain for i in proto.opset_import}
    native_backend.register_operators(options, [o for o in OPERATORS if o.domain in imported])
    with native_backend.survey():
        return ort.InferenceSession(proto.SerializeToString(), options)


def lower(content, folder):
    if (proto := parsed(content)) is not None:
        lowering.lower(proto)


def infer(content, folder):
    """Our schemas, in onnx's shape inference, which reports whatever they raise as its own
    error.
    """
    if (proto := parsed(content)) is not None:
        schemas.register_schemas()
        try:
            onnx.shape_inference.infer_shapes(proto, strict_mode=True, data_prop=True)
        except Exception as error:
            if any(
                PACKAGE in frame.filename for frame in traceback.extract_tb(error.__traceback__)
            ):
                raise  # else onnx itself refuses the model


def inspect(content, folder):
    """A model's file with external data: none is read but in its folder."""
    path = Path(folder, "model.onnx")
    path.write_bytes(content)
    Path(folder, "data").write_bytes(bytes(range(256)))
    proto = external_data.model_in(path)
    for tensor in external_data.external(proto):
        external_data.read_data(tensor, path)
    if SECRET in proto.SerializeToString() and SECRET not in content:
        raise BrokenPromiseError("a file outside of the model's folder was read")
    report = reading.examine(path)
    assert all(node.operator for node in report.nodes)


def code(content, folder):
    """Files of the cache: content without its checksum isn't loaded, and with it only what is an
    object file.
    """
    path = Path(folder, "a.code")
    path.write_bytes(content)
    if (kept := cache.object_in(path)) is not None:
        compiled.has_function(kept, SYMBOL)


INPUTS = {
    f"x{k}": (name, (1, 3, 4, 4))
    for k, name in enumerate(["float32", "uint8", "bfloat16", "string", "bool", None])
}
SUFFIXES = ".npy", ".npz", ".pb", ".png"


def arrays(content, folder):
    """Files of inputs on the command line, and numbers. The first byte says of which kind."""
    first_byte, content = content[0] if content else 0, content[1:]
    name = list(INPUTS)[first_byte // 8 % len(INPUTS)]
    if first_byte % 5 == len(SUFFIXES):
        if (value := data.as_json(content.decode(errors="replace"))) is not None:
            data.numbers(value, INPUTS[name][0], "--input")
        return
    path = Path(folder, f"input{SUFFIXES[first_byte % 5]}")
    path.write_bytes(content)
    data.read_file(None if path.suffix == ".npz" else name, path, INPUTS)


def settings(content, folder):
    """The settings of a run on many files."""
    path = Path(folder, items.SETTINGS)
    path.write_bytes(content)
    assert isinstance(items.read_settings(path), dict)


# {name: (function of bytes and a folder, errors that may leave it)}
READERS = {
    "fields": (fields, ()),
    "optimize": (optimize, (OpError,)),
    "lower": (lower, (OpError,)),
    "infer": (infer, ()),
    "inspect": (inspect, (OpError, OSError, DecodeError)),
    "code": (code, ()),
    "arrays": (arrays, (click.UsageError,)),
    "settings": (settings, ()),
}
OF_MODELS = "fields", "optimize", "lower", "infer", "inspect"


def read(name, content, folder):
    """Give bytes to a reader. Raises BrokenPromiseError."""
    function, allowed = READERS[name]
    _Written.paths[:] = []
    with warnings.catch_warnings(), at_most(CALLS + PER_BYTE * len(content)):
        warnings.simplefilter("ignore")
        try:
            function(content, folder)
        except allowed:
            pass
        except BrokenPromiseError:
            raise
        except Exception as error:
            raise BrokenPromiseError(f"{type(error).__name__}: {error}") from error
    allowed = [
        Path(folder),
        Path(os.path.realpath(cache.directory())),
    ]  # sessions keep plans in the latter
    paths = [Path(os.path.realpath(path)) for path in _Written.paths]
    outside = [str(path) for path in paths if not any(map(path.is_relative_to, allowed))]
    if outside:
        raise BrokenPromiseError(f"wrote {outside}")


class _Written:
    """The files that this process opens for writing, once `watch` was called."""

    paths: list = []  # noqa: RUF012
    watched = False

    @classmethod
    def watch(cls):
        def note(event, arguments):
            if (
                event == "open"
                and isinstance(arguments[0], str | bytes)
                and (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR)
            ):
                cls.paths.append(os.fsdecode(arguments[0]))

        if not cls.watched:
            sys.addaudithook(note)
            cls.watched = True


def prepare(parent):
    """Make the folder for readers, beside a file that they must not read; returns its path."""
    _Written.watch()
    logging.getLogger("onnx_ops").addHandler(logging.NullHandler())
    ort.set_default_logger_severity(4)
    folder = Path(os.path.realpath(parent), "folder")
    folder.mkdir()
    (folder.parent / "secret").write_bytes(SECRET)
    return folder


def seeds(name):
    """Return bytes from which those for a reader are drawn."""
    if name in OF_MODELS:
        return [proto.SerializeToString() for proto in models()]
    if name == "code":
        return [
            b"".join([cache.hashlib.sha256(each).digest(), each])
            for each in (object_file(), b"", b"\x7fELF")
        ]
    if name == "settings":
        return [
            b'{"command": {"optimize": true}, "model": ["0"]}',
            b"[]",
            b'[["model", 1]]',
            b"null",
            b"5",
        ]
    return [
        bytes([8 * k + SUFFIXES.index(suffix)]) + content
        for k in range(3)
        for suffix, content in files()
    ] + [
        bytes([8 * k + len(SUFFIXES)]) + text
        for k in range(6)
        for text in (b"[1, 2.5, [3]]", b'["a", true, null]', b"1e400")
    ]


def models():
    """Yield models: one of each operator, those that `optimize` rewrites, subgraphs, functions,
    external data.
    """
    for path in sorted((TESTS.parent / "models").rglob("*.onnx")):
        if path.is_file() and path.stat().st_size < LOADABLE:
            yield onnx.load(path)
    makers = (
        written.unfold,
        written.affine_grid,
        written.attention,
        written.warp,
        written.unfold_product,
        written.windows,
    )
    yield from (make() for make in makers)
    for move in written.in_a_branch, written.in_a_function:
        proto = written.unfold()
        move(proto)
        yield proto
    proto = cases.model(
        "",
        "Col2Im",
        cases.case_named("overlapping").inputs("float32"),
        {},
        constants=("image_shape", "block_shape"),
    )
    for tensor in proto.graph.initializer:
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in {"location": "data", "offset": "0", "length": "16"}.items():
            tensor.external_data.add(key=key, value=value)
    yield proto


def files():
    """Yield (suffix, content) of files of inputs."""
    array = np.arange(48, dtype=np.float32).reshape(1, 3, 4, 4)
    npy, npz, png = io.BytesIO(), io.BytesIO(), io.BytesIO()
    np.save(npy, array)
    np.savez(npz, x0=array)
    data.Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(png, "PNG")
    tensor = onnx.numpy_helper.from_array(array).SerializeToString()
    yield from zip(SUFFIXES, (npy.getvalue(), npz.getvalue(), tensor, png.getvalue()), strict=True)


def object_file():
    return compiled._machine().emit_object(
        llvm.parse_assembly(f"define i64 @{SYMBOL}() {{ ret i64 0 }}")
    )


NUMBERS = [0, 1, -1, 2, 3, 7, 8, 16, 17, 64, 255, 2**15, 2**31 - 1, -(2**31)]
LARGE_NUMBERS = [2**31, 2**32, 2**58, 2**63 - 1, -(2**63)]
TEXTS = ["", "x", "y", "Col2Im", "GridSample", "Shape", "Reshape", "Identity", "Loop", "If",
    "../secret", "/etc/passwd",
         "data", "ai.onnx", "com.microsoft", "onnx_ops", "a\0b", "\u00e9"]  # fmt: skip


def changed(name, content, other_contents, seed):
    """Return bytes drawn from some of a reader's, and from others: fields of models and single
    bytes change.
    """
    rng = random.Random(seed)
    proto = parsed(content) if name in OF_MODELS and rng.random() < 0.8 else None
    if proto is None:
        return with_other_bytes(content, other_contents, rng)
    sources = messages(parsed(rng.choice(other_contents)) or proto)
    for _ in range(rng.choice([1, 1, 2, 4])):
        change_field(rng.choice(messages(proto)), sources, rng)
    return proto.SerializeToString()


def with_other_bytes(content, other_contents, rng):
    content = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 8])):
        begin, end = sorted(rng.randrange(len(content) + 1) for _ in range(2))
        end = min(end, begin + rng.choice([1, 1, 4, 64, len(content)]))
        source = rng.choice(other_contents)
        at = rng.randrange(len(source) + 1)
        content[begin:end] = rng.choice([
            b"", bytes([rng.randrange(256)]), rng.randbytes(end - begin), content[begin:end] * 2,
            source[at : at + end - begin],
            rng.choice([b"\x00", b"\xff" * 4, b"\xff" * 9 + b"\x01", b"9" * 20, b"[" * 50, b"null",
                    b"-1", b"1e400"]),
        ])  # fmt: skip
    return bytes(content)


def messages(message):
    """Return a message and all messages in it."""
    submessages = [message]
    for field, value in message.ListFields():
        if field.message_type:
            for submessage in value if hasattr(value, "add") else [value]:
                submessages += messages(submessage)
    return submessages


def change_field(message, sources, rng):
    """Clear a field, set it to a value that others have or that is often wrong, or repeat some of
    it.
    """
    field = rng.choice(message.DESCRIPTOR.fields)
    sources_of_type = [source for source in sources if source.DESCRIPTOR is message.DESCRIPTOR]
    value = getattr(message, field.name)
    is_repeated = hasattr(value, "append")
    if rng.random() < 0.2:
        message.ClearField(field.name)
    elif sources_of_type and rng.random() < 0.5:
        other = rng.choice(sources_of_type)
        if is_repeated:
            value.extend(list(getattr(other, field.name)))
        elif field.message_type:
            value.CopyFrom(getattr(other, field.name))
        else:
            setattr(message, field.name, getattr(other, field.name))
    elif is_repeated and len(value) and rng.random() < 0.4:
        del value[rng.randrange(len(value))]
    elif field.message_type:
        value.add() if is_repeated else value.SetInParent()
    else:
        drawn = scalar(field, rng)
        if is_repeated and len(value) and rng.random() < 0.6:
            value[rng.randrange(len(value))] = drawn
        elif is_repeated:
            value.extend([drawn] * rng.choice([1, 1, 2, 40]))
        else:
            setattr(message, field.name, drawn)


def scalar(field, rng):
    if field.cpp_type == field.CPPTYPE_STRING:
        text = rng.choice(TEXTS)
        return text.encode() if field.type == field.TYPE_BYTES else text
    if field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return rng.choice([0.0, 1.0, -1.5, float("inf"), float("nan"), 3e38])
    if field.cpp_type == field.CPPTYPE_ENUM:
        return rng.choice([value.number for value in field.enum_type.values])
    if field.cpp_type == field.CPPTYPE_UINT64:
        return abs(rng.choice(NUMBERS))
    return rng.choice(NUMBERS if field.cpp_type == field.CPPTYPE_INT32 else NUMBERS + LARGE_NUMBERS)
