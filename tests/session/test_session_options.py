"""Options of one session for another: that of `get_session_options`, shared ones, and copies."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from support.backends import IN_SESSIONS, quiet
from support.cases import parsed
from support.selection import in_turn, needs_extensions, some_of

import onnx_ops

NODE = 'z = GridSample <mode = "nearest"> (x, grid)'
MODEL = parsed(
    f"(float[a, 1, 4, 4] x, float[b, 2, 2, 2] grid) => (float[c, d, e, f] z) {{ {NODE} }}", 20
)
CONTENT = MODEL.SerializeToString()
FEEDS = {"x": np.ones((1, 1, 4, 4), np.float32), "grid": np.zeros((1, 2, 2, 2), np.float32)}
WRONG = {**FEEDS, "grid": np.zeros((3, 2, 2, 2), np.float32)}


def is_ours(session: ort.InferenceSession) -> bool:
    """Whether the session runs this package's operator, as the text of its refusal shows."""
    assert session.run(None, FEEDS)[0].ravel().tolist() == [1] * 4
    with pytest.raises(Exception, match=r"(?i)grid") as refusal:
        session.run(None, WRONG)
    return "GridSample: shape of grid = [3, 2, 2, 2]: axis 0 must be the batch size" in str(
        refusal.value
    )


def ours(options: ort.SessionOptions, **settings: Any) -> ort.InferenceSession:
    return onnx_ops.InferenceSession(CONTENT, options, **settings)


def plain(options: ort.SessionOptions) -> ort.InferenceSession:
    return ort.InferenceSession(CONTENT, options)


def registered(options: ort.SessionOptions) -> ort.InferenceSession:
    return plain(onnx_ops.register(options, MODEL))


def by_path(options: ort.SessionOptions) -> ort.InferenceSession:
    options.register_custom_ops_library(onnx_ops.get_library_path())
    return plain(options)


USERS = {"ours": ours, "plain": plain, "registered": registered, "by path": by_path}
REGISTERING = [ours, registered, by_path]
by_each_user = pytest.mark.parametrize("use", USERS.values(), ids=USERS)


@pytest.mark.parametrize(
    ("given", "optimize", "use"), some_of([False, True], [False, True], USERS.values())
)
def test_options_of_our_session(
    given: bool, optimize: bool, use: Callable[[ort.SessionOptions], ort.InferenceSession]
) -> None:
    first = onnx_ops.InferenceSession(CONTENT, quiet() if given else None, optimize=optimize)
    options = first.get_session_options()
    options.log_severity_level = 4
    assert options is first.get_session_options()
    for _ in range(2):
        assert is_ours(use(options))
    first.set_providers(["CPUExecutionProvider"])
    assert is_ours(first)


@by_each_user
def test_options_of_a_session_of_such_options(
    use: Callable[[ort.SessionOptions], ort.InferenceSession],
) -> None:
    """Each session is made with the options of the one before, and the others end."""
    options = quiet()
    for _ in range(4):
        options = ours(options).get_session_options()
    assert is_ours(use(options))


@pytest.mark.parametrize(("first", "use"), in_turn(REGISTERING, [*REGISTERING[1:], ours]))
def test_copies_that_onnx_runtime_makes(
    first: Callable[[ort.SessionOptions], ort.InferenceSession],
    use: Callable[[ort.SessionOptions], ort.InferenceSession],
) -> None:
    """`get_session_options` of a plain session returns a copy with the library's entries and
    without its operators.
    """
    options = quiet()
    first(options)
    copied = plain(options).get_session_options()
    assert not is_ours(plain(copied))
    for _ in range(3):
        assert is_ours(use(copied))
        assert is_ours(use(options))
        copied = use(copied).get_session_options()
        if use is not ours:
            assert not is_ours(plain(copied))


def one(x: np.ndarray, grid: np.ndarray) -> np.ndarray:
    return np.full((*x.shape[:2], *grid.shape[1:3]), 5, np.float32)


def test_copies_get_all_operators_of_a_domain() -> None:
    """A custom operator that was registered on the original, too, in place of this package's."""
    own = onnx_ops.operator(
        "::GridSample", inputs="x: float32, grid: float32", outputs="z: float32", version=16
    )(one)
    session = plain(onnx_ops.register(quiet(), MODEL, operators=[own]))
    for use in REGISTERING:
        copied = ort.InferenceSession(CONTENT, session.get_session_options()).get_session_options()
        assert use(copied).run(None, FEEDS)[0].ravel().tolist() == [5] * 4


@pytest.mark.parametrize("backend", IN_SESSIONS)
def test_options_for_several_sessions(backend: str) -> None:
    options = quiet()
    sessions = [ours(options, backend=backend) for _ in range(2)]
    sessions.append(ours(sessions[0].get_session_options(), backend=backend))
    assert all(map(is_ours, sessions))


@needs_extensions
def test_copies_of_options_of_the_extensions_backend() -> None:
    """Such a copy has no library of onnxruntime-extensions."""
    lowered = onnx_ops.lower(MODEL).SerializeToString()
    session = ort.InferenceSession(lowered, onnx_ops.register(quiet(), backend="extensions"))
    copied = session.get_session_options()
    with pytest.raises(Exception, match="is not a registered function"):
        ort.InferenceSession(lowered, copied)
    assert is_ours(ours(copied, backend="extensions"))


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps])
def test_options_are_neither_copied_nor_pickled(way: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match="pickle"):
        way(onnx_ops.register(quiet(), MODEL))


@pytest.mark.parametrize(
    "source", [memoryview(CONTENT), bytearray(CONTENT), 5], ids=["memoryview", "bytearray", "5"]
)
def test_models_are_paths_or_bytes(source: Any) -> None:
    """Others are refused in the words of ONNX Runtime."""
    with pytest.raises(TypeError) as expected:
        ort.InferenceSession(source)
    ways = {
        "a session": lambda: onnx_ops.InferenceSession(source),
        "optimize": lambda: onnx_ops.optimize(source),
        "a session that optimizes": lambda: onnx_ops.InferenceSession(source, optimize=True),
        "lower": lambda: onnx_ops.lower(source),
        "options": lambda: onnx_ops.register(quiet(), source),
    }
    for way in ways.values():
        with pytest.raises(TypeError) as refusal:
            way()
        assert str(refusal.value) == str(expected.value)
