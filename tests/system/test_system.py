"""What the package does on other systems than this one, which is simulated."""

import errno
import os
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from support.processes import python

import onnx_ops.system

SYSTEMS = {"linux": "linux", "freebsd14": "linux", "win32": "windows", "darwin": "macos"}


@pytest.fixture
def module_on(monkeypatch):
    """A function that returns the module `system` as it is on a platform."""

    def load(platform):
        monkeypatch.setattr(sys, "platform", platform)
        spec = spec_from_file_location("system", onnx_ops.system.__file__)
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.mark.parametrize(("platform", "name"), SYSTEMS.items())
def test_names(platform, name, module_on):
    module = module_on(platform)
    assert name == module.NAME
    assert onnx_ops.system.LIBRARIES.keys() == set(SYSTEMS.values())


def test_without_affinities(module_on, monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert len(module_on("darwin").available_cpus()) == 1


def test_without_forks(module_on, monkeypatch):
    monkeypatch.delattr(os, "register_at_fork", raising=False)
    module_on("win32").at_fork(before=lambda: None)
    hooks = []
    monkeypatch.setattr(
        os, "register_at_fork", lambda **functions: hooks.append(functions), raising=False
    )
    module_on("darwin").at_fork(before=print)
    assert hooks == [{"before": print}]


def failing(times, error):
    """A function in place of os.replace, which fails so many times; the list of its calls."""
    calls = []

    def replace(*places):
        calls.append(places)
        if len(calls) <= times:
            raise error

    return replace, calls


def test_a_file_that_is_open_is_replaced_a_little_later(module_on, monkeypatch):
    replace, calls = failing(3, PermissionError(errno.EACCES, "open"))
    monkeypatch.setattr(os, "replace", replace)
    module_on("win32").replace("a", "b")
    assert calls == [("a", "b")] * 4


@pytest.mark.parametrize(
    ("platform", "error"),
    [("win32", OSError(errno.ENOSPC, "full")), ("linux", PermissionError(errno.EACCES, "no"))],
)
def test_other_errors_are_raised_at_once(platform, error, module_on, monkeypatch):
    replace, calls = failing(9, error)
    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(OSError, match=error.strerror):
        module_on(platform).replace("a", "b")
    assert len(calls) == 1


def test_a_file_that_stays_open(module_on, monkeypatch):
    replace, calls = failing(10**6, PermissionError(errno.EACCES, "open"))
    monkeypatch.setattr(os, "replace", replace)
    module = module_on("win32")
    monkeypatch.setattr(module, "PATIENCE", 0.05)
    with pytest.raises(PermissionError, match="open"):
        module.replace("a", "b")
    assert len(calls) > 1


def windows_locks(monkeypatch):
    """Simulate msvcrt by a lock of this process, which it fails to get twice; the fcntl of others
    is missing.
    """
    lock, calls = threading.Lock(), []

    def locking(descriptor, mode, count):
        calls.append((mode, count))
        if len(calls) <= 2:
            raise PermissionError(errno.EACCES, "another process has it")
        lock.acquire()

    monkeypatch.setitem(sys.modules, "msvcrt", types.SimpleNamespace(locking=locking, LK_NBLCK=2))
    monkeypatch.setitem(sys.modules, "fcntl", None)
    return lock, calls


def test_locks_of_windows(module_on, monkeypatch, tmp_path):
    lock, calls = windows_locks(monkeypatch)
    with module_on("win32").locked(tmp_path / "lock"):
        assert lock.locked()
        assert (tmp_path / "lock").exists()
    assert calls == [(2, 1)] * 3
    assert not (tmp_path / "lock").exists()


def test_a_lock_that_windows_cannot_remove_stays(module_on, monkeypatch, tmp_path):
    windows_locks(monkeypatch)
    monkeypatch.setattr(os, "unlink", failing(9, PermissionError(errno.EACCES, "open"))[0])
    with module_on("win32").locked(tmp_path / "lock"):
        pass
    assert (tmp_path / "lock").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="its locks are simulated above")
def test_one_at_a_time(tmp_path):
    entered, order = threading.Event(), []

    def wait():
        with onnx_ops.system.locked(tmp_path / "lock"):
            order.append("second")

    with onnx_ops.system.locked(tmp_path / "lock"):
        thread = threading.Thread(target=wait)
        thread.start()
        assert not entered.wait(0.05)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_a_lock_that_another_process_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped process has it for ever. The next process then finds another lock."""
    monkeypatch.setattr(onnx_ops.system, "LONGEST_WAIT", 0.05)
    with onnx_ops.system.locked(tmp_path / "lock"):
        with (
            pytest.raises((BlockingIOError, PermissionError)),
            onnx_ops.system.locked(tmp_path / "lock"),
        ):
            pytest.fail("two processes are in it")
        with onnx_ops.system.locked(tmp_path / "lock"):
            pass


def test_locks_end_within_half_a_minute() -> None:
    assert onnx_ops.system.LONGEST_WAIT <= 30


@pytest.mark.skipif(sys.platform == "win32", reason="os.geteuid isn't there")
@pytest.mark.parametrize(
    ("owner", "mode", "is_private"),
    [
        ("this user", 0o700, True), ("this user", 0o755, True), ("this user", 0o1755, True),
        ("root", 0o555, True),
        ("this user", 0o720, False), ("this user", 0o702, False), ("this user", 0o1777, False),
        ("root", 0o775, False),
        ("another user", 0o700, False), ("another user", 0o444, False),
    ],
)  # fmt: skip
def test_who_may_write(
    owner: str,
    mode: int,
    is_private: bool,
    module_on: Callable[[str], types.ModuleType],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Windows has access lists, which os.stat doesn't show."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    number = {"this user": 1000, "root": 0, "another user": 1001}[owner]
    status = os.stat_result((mode, 0, 0, 1, number, 1000, 0, 0, 0, 0))
    assert module_on("linux").is_private(status) == is_private
    assert module_on("win32").is_private(status)


def test_new_processes_are_out_of_reach_of_an_interrupt(module_on, monkeypatch):
    """Each system has its own way, and ignores the other's."""
    monkeypatch.delattr(subprocess, "CREATE_NEW_PROCESS_GROUP", raising=False)
    assert module_on("linux").apart() == {"start_new_session": True, "creationflags": 0}
    monkeypatch.setattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0x200, raising=False)
    assert module_on("win32").apart() == {"start_new_session": True, "creationflags": 0x200}


@pytest.mark.parametrize(
    ("platform", "error", "expected"),
    [
        ("win32", OSError(errno.EINVAL, ""), True),
        ("linux", OSError(errno.EINVAL, ""), False),
        ("win32", OSError(errno.ENOSPC, ""), False),
        ("win32", BrokenPipeError(), True),
        ("darwin", BrokenPipeError(), True),
    ],
)
def test_closed_pipes(platform, error, expected, module_on):
    assert module_on(platform).is_closed_pipe(error) is expected


WITHOUT = """
import os, signal, sys, types
import numpy as np, onnx, onnxruntime, numba, platformdirs, click
import subprocess, tempfile, multiprocessing
for name in ("fork", "register_at_fork", "sched_getaffinity", "geteuid", "getuid", "forkpty"):
    if hasattr(os, name):
        delattr(os, name)
del signal.SIGKILL
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
locks = []
sys.modules["msvcrt"] = types.SimpleNamespace(locking=lambda *words: locks.append(words),
    LK_NBLCK=1)
sys.platform = "win32"
import onnx_ops
from onnx_ops.native import library
sys.platform = "linux"  # again, for ctypes
library.PLACE = library.PLACE.with_name("libonnx_ops.so")
sys.platform = "win32"
x = np.ones((1, 4, 1), np.float32)
print(onnx_ops.col2im(x, [2, 2], [2, 2]).tolist(), onnx_ops.system.NAME, len(locks) > 0)
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="it takes from Linux what other systems lack")
def test_the_package_without_what_windows_lacks(tmp_path):
    """Functions compile, are kept in the cache, and run."""
    pytest.importorskip("numba")
    output = python(WITHOUT, NUMBA_CACHE_DIR=str(tmp_path)).stdout
    assert output == "[[[[1.0, 1.0], [1.0, 1.0]]]] windows True\n"
    assert list(tmp_path.glob("onnx_ops/*.code"))
    assert not list(tmp_path.glob("onnx_ops/*.lock"))
