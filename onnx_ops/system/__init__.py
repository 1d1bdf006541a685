"""Differences between operating systems. The rest of the package names no system.

Branches are on `sys.platform` itself, which type checkers follow.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
import sys
import time
import zlib
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path
    from typing import Any, NoReturn, TextIO

# {system: its file of the C library}
LIBRARIES = {"linux": "libonnx_ops.so", "windows": "onnx_ops.dll", "macos": "libonnx_ops.dylib"}
# BSD's files and calls are those of Linux.
NAME = {"win32": "windows", "darwin": "macos"}.get(sys.platform, "linux")
PATIENCE = 1.0  # seconds to wait for a file that another process has open on Windows
LONGEST_WAIT = 15.0  # seconds to wait for a lock
OTHERS_WRITE = 0o022  # permissions of a file's group and of everybody


def digest_of_sources(folder: Path) -> int:
    """Return a digest of the C sources in a folder, which libraries contain; 0 without sources."""
    return zlib.crc32(b"".join(path.read_bytes() for path in sorted(folder.glob("*.[ch]"))))


def available_cpus() -> Collection[int]:
    """Return the CPUs that this process may use."""
    if sys.platform == "linux":
        return os.sched_getaffinity(0)
    return range(os.cpu_count() or 1)


def cpu_name() -> str:
    """Return the name of the CPU from the system, or ""."""
    if sys.platform == "linux":
        with suppress(OSError), open("/proc/cpuinfo") as file:
            if name := re.search(r"model name\s*: (.*)", file.read()):
                return name[1]
    return platform.processor()


def at_fork(**functions: Callable[[], object]) -> None:
    """Register functions for forks, as `os.register_at_fork`, on systems with forks."""
    if sys.platform != "win32":
        os.register_at_fork(**functions)


def replace(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Rename a file, replacing the file at the new path.

    Windows can't replace a file that another process has open.
    """
    _repeat(lambda: os.replace(source, target), PATIENCE if sys.platform == "win32" else 0)


def _repeat(function: Callable[[], Any], seconds: float) -> None:
    """Call a function again while another process has a file, for at most some seconds.

    The function raises an error meanwhile.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            function()
            return
        except (BlockingIOError, PermissionError):
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.01)


def without_waiting(path: str, flags: int) -> int:
    """Open a file as `os.open`, but don't wait for the writer of a pipe.

    Windows has no pipes in folders.
    """
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def is_private(status: os.stat_result, forbidden: int = OTHERS_WRITE) -> bool:
    """Return whether a file or folder is of this user or root, without some permissions.

    forbidden  permissions that nobody may have

    Always true on Windows, where os.stat shows neither.
    """
    return sys.platform == "win32" or (
        status.st_uid in (0, os.geteuid()) and not status.st_mode & forbidden
    )


@contextmanager
def locked(path: str | os.PathLike[str]) -> Iterator[None]:
    """Return a context that one process at a time enters for a path, with a lock file there.

    Raises OSError, also if another process, which may have been stopped, is in it for longer than
    LONGEST_WAIT.
    """
    try:
        with open(path, "w") as file:
            _repeat(lambda: _lock(file), LONGEST_WAIT)
            yield
    finally:
        with suppress(OSError):  # another process has it open, on Windows, or has removed it
            os.unlink(path)


def _lock(file: TextIO) -> None:
    """Lock a file.

    Raises BlockingIOError, or PermissionError on Windows, if another process has locked it.
    """
    if sys.platform != "win32":
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    else:
        import msvcrt

        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)


def python(statement: str) -> list[str]:
    """Return the command of a Python process that runs a statement.

    It imports from where this process does.

    With `-c` alone, Python searches the current folder first, 3.13 even before the first statement;
    -P prevents it.
    """
    path = [entry for entry in sys.path if isinstance(entry, str)]  # Python ignores other entries
    return [sys.executable, "-P", "-c", f"import sys; sys.path[:] = {path!a}; {statement}"]


def become(command: list[str], environment: dict[str, str]) -> NoReturn:
    """Run a command with these environment variables in place of this process."""
    sys.stdout.flush()
    if sys.platform != "win32":
        os.execve(command[0], command, environment)
    import subprocess

    # Windows would not wait for the command.
    raise SystemExit(subprocess.run(command, env=environment).returncode)


def apart() -> dict[str, Any]:
    """Return arguments of `subprocess.Popen` that keep Ctrl-C from the new process.

    Each system ignores the other's.
    """
    import subprocess

    return {
        "start_new_session": True,
        "creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
    }


def is_loaded(library: str | os.PathLike[str]) -> bool:
    """Return whether this process has loaded the library at a path.

    It keeps the library when the file is replaced.
    """
    if sys.platform == "win32":  # where such a file can't be replaced
        return False
    try:
        ctypes.CDLL(os.path.abspath(library), os.RTLD_NOLOAD)
    except OSError:
        return False
    return True


def is_closed_pipe(error: OSError) -> bool:
    """Return whether an OSError means that the reader of a pipe has closed it."""
    return isinstance(error, BrokenPipeError) or (
        sys.platform == "win32" and error.errno == errno.EINVAL
    )
