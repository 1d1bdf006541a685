"""Only code that this user or root has written is loaded from the cache, and want of memory is
never remembered.
"""

import errno
import logging
import os
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.processes import python
from support.selection import on_demand

import onnx_ops
from onnx_ops import system
from onnx_ops.compiler import cache, code, compilation
from onnx_ops.compiler.records import Entry, Step
from onnx_ops.declaration import jit
from onnx_ops.kernels.shares import pieces

pytestmark = pytest.mark.compiler

posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows has access lists")
root = pytest.mark.skipif(
    sys.platform == "win32" or os.geteuid() != 0, reason="only root may give files away"
)
ANOTHER = 12345  # a user


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the cache, which isn't there yet."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "parent"))
    cache.not_kept.cache_clear()
    return tmp_path / "parent" / "onnx_ops"


@pytest.fixture
def umask() -> Iterator[Callable[[int], int]]:
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


def saved(name: str = "probe") -> cache.Kept:
    kept = cache.Kept(name, "0")
    kept.check()
    kept.save(b"content")
    return kept


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@posix
@pytest.mark.parametrize("mask", [0, 0o002, 0o022, 0o077])
def test_nobody_else_may_write(mask: int, folder: Path, umask: Callable[[int], int]) -> None:
    umask(mask)
    kept = saved()
    assert [mode(path) for path in (folder.parent, folder)] == [0o700, 0o700]
    assert mode(kept.path) == 0o644 & ~mask
    assert kept.load() == b"content"


@posix
@pytest.mark.parametrize("permissions", [0o777, 0o775, 0o1777, 0o702])
@pytest.mark.parametrize("is_link", [False, True])
def test_a_folder_that_others_may_write_to(
    is_link: bool, permissions: int, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its code may be of others and isn't loaded. The permission is removed once."""
    path = saved().path
    if is_link:
        folder.rename(tmp_path / "elsewhere")
        folder.symlink_to(tmp_path / "elsewhere")
    folder.chmod(permissions)
    assert cache.Kept("probe", "0").load() is None
    assert mode(folder) == permissions & ~0o022
    assert not path.exists()
    assert saved().load() == b"content"
    assert warnings_in(caplog) == [
        f"onnx_ops: removed the permission of others to write to {folder}, and the code in it"
    ]


@posix
@pytest.mark.parametrize("permissions", [0o666, 0o664, 0o646])
def test_a_file_that_others_may_write_to(permissions: int, folder: Path) -> None:
    """It is replaced by one that they may not."""
    path = saved().path
    path.chmod(permissions)
    assert cache.Kept("probe", "0").load() is None
    assert saved().load() == b"content"
    assert mode(path) == 0o644


@root
def test_a_file_of_another_user(folder: Path) -> None:
    path = saved().path
    os.chown(path, ANOTHER, -1)
    assert cache.Kept("probe", "0").load() is None
    assert saved().load() == b"content"
    assert path.stat().st_uid == 0


@root
@pytest.mark.parametrize("permissions", [0o700, 0o755, 0o777])
def test_a_folder_of_another_user(
    permissions: int, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing in it is read, changed or made, also through links there, and one message says so."""
    path = saved().path
    folder.chmod(permissions)
    os.chown(folder, ANOTHER, -1)
    victim = folder.parent / "victim"
    victim.write_text("precious")
    (folder / "other-0.lock").symlink_to(victim)
    before = sorted(os.listdir(folder))
    for name in "probe", "other":
        kept = cache.Kept(name, "0")
        assert kept.load() is None
        kept.check()
        with kept.exclusive():
            assert kept.load() is None
        kept.save(b"new")
        assert kept.missing() == "it belongs to another user, or others may write to it"
    assert (sorted(os.listdir(folder)), mode(folder)) == (before, permissions)
    assert victim.read_text() == "precious"
    assert path.read_bytes().endswith(b"content")
    assert warnings_in(caplog) == [
        f"onnx_ops: compiled code is not kept in {folder} for the next process: "
        "it belongs to another user, or others may write to it"
    ]


def as_another(function: Callable[[], Any]) -> str:
    """Return the text of function() in a child process of another user."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        with suppress(BaseException):
            os.setgroups([])
            os.setgid(ANOTHER)
            os.setuid(ANOTHER)
            try:
                text = repr(function())
            except BaseException as error:
                text = repr(error)
            os.write(writer, text.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        text = file.read()
    os.waitpid(child, 0)
    return text


@root
@pytest.mark.parametrize(
    ("folder_mode", "file_mode", "expected"),
    [(0o755, 0o644, b"content"), (0o555, 0o444, b"content"), (0o775, 0o644, None),
        (0o1777, 0o644, None),
     (0o755, 0o666, None), (0o700, 0o644, None)],
)  # fmt: skip
def test_code_of_root(
    folder_mode: int, file_mode: int, expected: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root's code is loaded by all users, as in an image, unless others than root could have
    written it.
    """
    with tempfile.TemporaryDirectory() as parent:
        os.chmod(parent, 0o755)
        monkeypatch.setenv("NUMBA_CACHE_DIR", parent)
        path = saved().path
        path.chmod(file_mode)
        path.parent.chmod(folder_mode)
        kept = cache.Kept("probe", "0")
        assert as_another(kept.load) == repr(expected)
        assert (mode(path), mode(path.parent)) == (file_mode, folder_mode)


@root
def test_a_user_in_a_folder_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a sticky folder, each user's cache is its own: the first user's isn't used by the second
    one.
    """
    with tempfile.TemporaryDirectory() as parent:
        os.chmod(parent, 0o1777)
        monkeypatch.setenv("NUMBA_CACHE_DIR", parent)
        assert as_another(lambda: saved().load()) == repr(b"content")
        assert cache.Kept("probe", "0").load() is None
        assert as_another(lambda: cache.Kept("probe", "0").load()) == repr(b"content")


@posix
def test_a_folder_whose_permissions_stay(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As on file systems without permissions: nothing is loaded, removed or kept."""
    path = saved().path
    folder.chmod(0o777)
    monkeypatch.setattr(Path, "chmod", lambda *_: None)
    assert cache.Kept("probe", "0").load() is None
    assert path.exists()
    assert len(warnings_in(caplog)) == 1


def test_a_lock_of_a_stopped_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After some time, a process compiles without it."""
    kept = saved("other")
    entered: list[bool] = []
    monkeypatch.setattr(system, "LONGEST_WAIT", 0.05)
    lock = kept.path.with_name("probe-0.lock")
    with system.locked(lock), cache.Kept("probe", "0").exclusive():
        entered.append(True)
    assert entered == [True]


# Want of memory


def entry(number: int) -> Entry:
    return Entry((Step(pieces, (None,) * number),))


WANTS: dict[str, Callable[[], BaseException]] = {
    "memory": MemoryError,
    "a disk": lambda: OSError(errno.ENOSPC, "No space left on device"),
    "files": lambda: OSError(errno.EMFILE, "Too many open files"),
}


def failing(error: BaseException, is_wrapped: bool) -> Callable[..., bytes]:
    """Return a function that fails when it is called for the first time."""
    calls: list[Any] = []

    def object_code(*arguments: Any) -> bytes:
        calls.append(arguments)
        if len(calls) > 1:
            return b"code"
        if not is_wrapped:
            raise error
        try:
            raise ValueError("Numba's own") from error
        except ValueError as numbas:
            raise onnx_ops.OpError("kernel", "f", "can't be compiled") from numbas

    return object_code


@pytest.mark.parametrize("is_wrapped", [False, True])
@pytest.mark.parametrize("what", WANTS)
def test_want_is_not_remembered(
    what: str, is_wrapped: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code._outcome.cache_clear()
    monkeypatch.setattr(compilation, "object_code", failing(WANTS[what](), is_wrapped))
    with pytest.raises(onnx_ops.OpError, match=r"can't be compiled: (MemoryError|OSError)"):
        code.code(entry(1))
    assert code.code(entry(1)).content == b"code"
    code._outcome.cache_clear()


def test_a_mistake_is_remembered(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numba explains it in full only once."""
    code._outcome.cache_clear()
    monkeypatch.setattr(compilation, "object_code", failing(TypeError("wrong"), True))
    for _ in range(3):
        with pytest.raises(onnx_ops.OpError, match="can't be compiled"):
            code.code(entry(2))
    code._outcome.cache_clear()


def test_no_room_for_threads(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    code._outcome.cache_clear()
    monkeypatch.setattr(compilation, "object_code", lambda *_: b"code")
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        with pytest.raises(
            onnx_ops.OpError, match="can't be compiled: RuntimeError: can't start new thread"
        ):
            code.code(entry(3))
    assert code.code(entry(3)).content == b"code"
    code._outcome.cache_clear()


def test_a_helper_that_numba_does_not_get_to_know_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    compilation.tell_numba()
    known: list[Any] = []
    count: list[int] = []

    def register_jitable(**flags: Any) -> Callable[[Any], Any]:
        count.append(1)
        if len(count) == 2:
            raise MemoryError
        return known.append

    first, second = onnx_ops.jitable(lambda: 1), onnx_ops.jitable(lambda: 2)
    monkeypatch.setattr(compilation, "register_jitable", register_jitable)
    with pytest.raises(MemoryError):
        compilation.tell_numba()
    assert jit.marked == [first, second]
    compilation.tell_numba()
    assert known == [first, first, second]
    assert jit.marked == []


AGAIN = """
import numpy as np
import onnx_ops
from onnx_ops.compiler import compilation
from onnx_ops.compiler.numba_internals import cpu_target

@onnx_ops.jitable
def twice(x):
    return 2 * x

@onnx_ops.operator("my::Twice", inputs="x: float32", outputs="y: float32")
def doubled(x):
    return x

@doubled.shape
def same(x):
    return x

@doubled.kernel
def kernel(x, index, count, workspace, y):
    for k in range(len(x)):
        y[k] = twice(x[k])

context = cpu_target.typing_context
insert = context.insert_global

def without_memory(*arguments):
    raise MemoryError

context.insert_global = without_memory
try:
    doubled(np.ones(3, np.float32))
except onnx_ops.OpError as error:
    kept = error  # with what its frames hold
    print(error.rule)
context.insert_global = insert
print(doubled(np.ones(3, np.float32)))
"""


@pytest.mark.long
@on_demand
def test_what_numba_has_not_loaded_is_loaded_again(tmp_path: Path) -> None:
    """A helper is registered again, because Numba takes for loaded what it hasn't loaded."""
    assert python(AGAIN, NUMBA_CACHE_DIR=str(tmp_path)).stdout.splitlines() == [
        "can't be compiled: MemoryError",
        "[2. 2. 2.]",
    ]
