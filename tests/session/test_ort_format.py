"""Models in ONNX Runtime's own format run with the domains that are stated; nothing is read of
them.
"""

import os
import struct
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from support.backends import quiet, run_session, written_in_ort_format
from support.cases import (
    ATTENTION,
    OPENVINO,
    VOLUMES,
    assert_close,
    case_named,
    expected_of,
    imported_domains,
    model,
)
from support.selection import each_dtype
from support.written import conv_relu_col2im_sigmoid

import onnx_ops
from onnx_ops.model.files import is_ort_format

OVERLAPPING = case_named("overlapping")

pytestmark = pytest.mark.any_library

CASES = [
    OVERLAPPING,
    VOLUMES[0],
    case_named("bilinear_zeros_edges"),
    OPENVINO[0],
    ATTENTION[0],
]
unknown = pytest.warns(
    UserWarning, match=r"operators are not registered, .* state them, .*domains=\[.* or use the"
)


def one_node(case, dtype="float32"):
    inputs = case.inputs(dtype)
    return model(case.domain, case.op_type, inputs, case.attributes), inputs


@each_dtype("float32", "float64")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_model_whose_domains_are_stated(case, dtype, tmp_path, kernels_made):
    proto, inputs = one_node(case, dtype)
    path = written_in_ort_format(proto, tmp_path / "model.ort")
    kernels_made.clear()
    domains = [case.domain]
    sessions = [
        onnx_ops.InferenceSession(path, onnx_ops.register(quiet(), domains=domains)),
        onnx_ops.InferenceSession(path.read_bytes(), onnx_ops.register(quiet(), domains=domains)),
        ort.InferenceSession(path, onnx_ops.register(quiet(), domains=domains)),
        ort.InferenceSession(path, onnx_ops.register(quiet(), path, domains=domains)),
        ort.InferenceSession(path, onnx_ops.register(quiet(), path.read_bytes(), domains=domains)),
    ]
    assert kernels_made == [case.operator.title] * len(sessions)
    for session in sessions:
        assert_close(run_session(session, inputs), expected_of(case, inputs), dtype)


@pytest.mark.parametrize("case", CASES[:3], ids=str)
def test_copies_of_options_that_state_domains(case: Any, tmp_path: Path, kernels_made: Any) -> None:
    """ONNX Runtime's copy of the options has no operators, until it is used here."""
    proto, inputs = one_node(case)
    path = written_in_ort_format(proto, tmp_path / "model.ort")
    session = ort.InferenceSession(path, onnx_ops.register(quiet(), domains=[case.domain]))
    copied = session.get_session_options()
    with pytest.raises(
        Exception, match=r"Could not find an implementation|Failed to find (op_id|args)"
    ):
        ort.InferenceSession(path, copied)
    kernels_made.clear()
    assert_close(
        run_session(onnx_ops.InferenceSession(path, copied), inputs),
        expected_of(case, inputs),
        "float32",
    )
    assert_close(
        run_session(ort.InferenceSession(path, copied), inputs),
        expected_of(case, inputs),
        "float32",
    )
    assert kernels_made == [case.operator.title] * 2


@pytest.mark.parametrize("case", CASES[:3], ids=str)
def test_a_model_whose_domains_are_not_stated(case, tmp_path, kernels_made):
    """It runs with built-in kernels, if it was written for these; there is one warning."""
    proto, inputs = one_node(case)
    path = written_in_ort_format(proto, tmp_path / "model.ort", with_onnx_ops=False)
    content = path.read_bytes()
    (tmp_path / "other.onnx").write_bytes(content)  # the name does not matter
    for source in (path, str(path), content):
        with unknown as caught:
            session = onnx_ops.InferenceSession(source, quiet())
        assert [os.path.basename(warning.filename) for warning in caught] == ["test_ort_format.py"]
        assert_close(run_session(session, inputs), expected_of(case, inputs), "float32")
    for source in (path, str(path), content, tmp_path / "other.onnx"):
        with unknown as caught:
            options = onnx_ops.register(quiet(), source)
        assert [os.path.basename(warning.filename) for warning in caught] == ["test_ort_format.py"]
        assert_close(
            run_session(ort.InferenceSession(path, options), inputs),
            expected_of(case, inputs),
            "float32",
        )
    ort.InferenceSession(path, onnx_ops.register(quiet(), path, domains=[]))  # none: no warning
    assert kernels_made == []
    with (
        unknown,
        pytest.raises(
            Exception, match=r"Could not find an implementation|Failed to find (op_id|args)"
        ),
    ):
        onnx_ops.InferenceSession(written_in_ort_format(proto, tmp_path / "ours.ort"), quiet())


def test_options_that_were_registered_by_the_path_of_the_library(tmp_path, kernels_made):
    """As programs do that know nothing else of onnx_ops. There is no warning."""
    proto, inputs = one_node(OVERLAPPING)
    path = written_in_ort_format(proto, tmp_path / "model.ort")
    kernels_made.clear()
    for domain in (None, "ai.onnx"):
        options = quiet()
        if domain:
            options.add_session_config_entry(f"onnx_ops.register.{domain}", "1")
        options.register_custom_ops_library(onnx_ops.get_library_path())
        session = onnx_ops.InferenceSession(path, options)
        assert_close(run_session(session, inputs), expected_of(OVERLAPPING, inputs), "float32")
    assert kernels_made == ["Col2Im"] * 2


def test_a_warning_is_shown_once(tmp_path):
    path = written_in_ort_format(one_node(CASES[0])[0], tmp_path / "model.ort", with_onnx_ops=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            onnx_ops.InferenceSession(path, quiet())
    assert len(caught) == 1


@pytest.mark.parametrize("sampled", [False, True])
def test_a_network_with_fused_nodes_of_com_microsoft(sampled, tmp_path, kernels_made):
    proto, inputs = conv_relu_col2im_sigmoid(sampled)
    expected = run_session(ort.InferenceSession(proto.SerializeToString(), quiet()), inputs)
    path = written_in_ort_format(proto, tmp_path / "model.ort")
    kernels_made.clear()
    options = onnx_ops.register(quiet(), domains=["", *["com.microsoft"] * sampled])
    got = run_session(onnx_ops.InferenceSession(path, options), inputs)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    assert kernels_made == ["Col2Im", *["com.microsoft.GridSample"] * sampled]


def test_the_extensions_backend_refuses_it(tmp_path):
    path = written_in_ort_format(one_node(CASES[0])[0], tmp_path / "model.ort")
    rule = (
        "can't rewrite a model in ONNX Runtime's own format; use the .onnx file that it was "
        "made from$"
    )
    for source in (path, path.read_bytes()):
        with pytest.raises(onnx_ops.OpError, match=rf"^onnx_ops: backend = 'extensions': {rule}"):
            onnx_ops.InferenceSession(source, quiet(), backend="extensions")


def with_many_references(count, length):
    """A flatbuffer with `count` references to one table, which has as many references to one text
    of a length.

    The tables stand where the format keeps the names of the types of each operator's kernel.
    """
    content = bytearray(b"\0\0\0\0ORTM")

    def put(form, *values):
        content.extend(b"\0" * (-len(content) % 4) + struct.pack(f"<{form}", *values))
        return len(content) - struct.calcsize(f"<{form}")

    def refer(position, to):
        struct.pack_into("<I", content, position, to - position)

    def table(count):
        offsets = put(f"{2 + count}H", 4 + 2 * count, 4 + 4 * count, *range(4, 4 + 4 * count, 4))
        position = put(f"i{count}I", 0, *[0] * count)
        struct.pack_into("<i", content, position, position - offsets)
        return position

    def references(position):
        """Put a vector of references, to which the one at a position leads; return where each of
        them is.
        """
        vector = put(f"{1 + count}I", count, *[0] * count)
        refer(position, vector)
        return [vector + 4 * k for k in range(1, count + 1)]

    root = table(4)
    refer(0, root)
    resolver = table(1)
    refer(root + 16, resolver)
    entries, entry = references(resolver + 4), table(2)
    refer(entry + 4, put("I8s", 5, b"::x:1"))
    types, operand = references(entry + 8), table(1)
    refer(operand + 4, put(f"I{length}s", length, b"T" * length))
    for k in range(count):
        refer(entries[k], entry)
        refer(types[k], operand)
    return bytes(content)


def test_a_file_of_many_references(tmp_path):
    """Nobody follows them: it would take the square of the file's size."""
    content = with_many_references(300, 500)
    (tmp_path / "model.ort").write_bytes(content)
    assert len(content) < 4000
    tracemalloc.start()
    with unknown:
        onnx_ops.register(quiet(), content)
    with unknown, pytest.raises(Exception, match=r"(?i)invalid|verif|fail"):
        onnx_ops.InferenceSession(content, quiet())
    with pytest.raises(
        onnx_ops.OpError,
        match=r"^onnx_ops: models = '.*model.ort': is in ONNX Runtime's own format",
    ):
        onnx_ops.warmup(models=tmp_path / "model.ort")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**24  # or some 50 MB


def test_what_tells_the_formats_apart(tmp_path):
    proto, _ = one_node(CASES[0])
    (tmp_path / "model.ort").write_bytes(proto.SerializeToString())  # the name does not matter
    for source in (proto, proto.SerializeToString(), tmp_path / "model.ort"):
        assert not is_ort_format(source)
        assert imported_domains(source) == {""}
    path = written_in_ort_format(proto, tmp_path / "model.onnx")
    assert is_ort_format(path)
    assert is_ort_format(str(path))
    for content in (b"", b"\0" * 4, b"\0\0\0\0ORT"):
        (tmp_path / "short").write_bytes(content)
        assert not is_ort_format(tmp_path / "short")
        assert not is_ort_format(content)
