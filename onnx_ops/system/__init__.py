"""Differences between operating systems. The rest of the package names no system.

Branches are on `sys.platform` itself, which type checkers follow.
"""

import ctypes
import errno
import os
import platform
import re
import subprocess
import sys
import time
import zlib
from contextlib import contextmanager, suppress
from typing import NoReturn

# {system: its file of the C library}
LIBRARIES = {"linux": "libonnx_ops.so", "windows": "onnx_ops.dll", "macos": "libonnx_ops.dylib"}
NAME = {"win32": "windows", "darwin": "macos"}.get(sys.platform, "linux")  # BSD's files and calls are those of Linux
PATIENCE = 1.0  # seconds to wait for a file that another process has open on Windows


def digest_of_sources(folder):
    """Return a digest of the C sources in a folder, which libraries contain; 0 without sources."""
    return zlib.crc32(b"".join(path.read_bytes() for path in sorted(folder.glob("*.[ch]"))))


def available_cpus():
    """Return the CPUs that this process may use."""
    if sys.platform == "linux":
        return os.sched_getaffinity(0)
    return range(os.cpu_count() or 1)


def cpu_name():
    """Return the name of the CPU from the system, or ""."""
    if sys.platform == "linux":
        with suppress(OSError), open("/proc/cpuinfo") as file:
            if name := re.search(r"model name\s*: (.*)", file.read()):
                return name[1]
    return platform.processor()


def at_fork(**functions):
    """Register functions for forks, as `os.register_at_fork`, on systems with forks."""
    if sys.platform != "win32":
        os.register_at_fork(**functions)


def replace(source, place):
    """Rename a file, replacing the file at the new path. Windows can't replace a file that another process has open."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            os.replace(source, place)
            return
        except PermissionError:
            if sys.platform != "win32" or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


@contextmanager
def locked(path):
    """Return a context that one process at a time enters for a path, with a lock file there. Raises OSError."""
    try:
        with open(path, "w") as file:
            _lock(file)
            yield
    finally:
        with suppress(OSError):  # another process has it open, on Windows, or has removed it
            os.unlink(path)


def _lock(file):
    if sys.platform != "win32":
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX)
        return
    import msvcrt

    while True:
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
            return
        except OSError as error:
            if error.errno != errno.EDEADLK:  # which it raises after ten seconds
                raise


def python(statement: str) -> list[str]:
    """Return the command of a process that runs a statement, and imports from where this process does.

    With `-c` alone, Python searches the current folder first, 3.13 even before the first statement; -P prevents it.
    """
    path = [entry for entry in sys.path if isinstance(entry, str)]  # Python ignores other entries
    return [sys.executable, "-P", "-c", f"import sys; sys.path[:] = {path!a}; {statement}"]


def become(command: list[str], environment: dict[str, str]) -> NoReturn:
    """Run a command with these environment variables in place of this process."""
    sys.stdout.flush()
    if sys.platform != "win32":
        os.execve(command[0], command, environment)
    raise SystemExit(subprocess.run(command, env=environment).returncode)  # Windows would not wait for the command


def apart():
    """Return arguments for `subprocess.Popen` that keep Ctrl-C in this terminal from the new process."""
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"start_new_session": True}


def is_loaded(library):
    """Return whether this process has loaded the library at a path, which it keeps when the file is replaced."""
    if sys.platform == "win32":  # where such a file can't be replaced
        return False
    try:
        ctypes.CDLL(os.path.abspath(library), os.RTLD_NOLOAD)
    except OSError:
        return False
    return True


def is_closed_pipe(error):
    """Return whether an OSError means that the reader of a pipe has closed it."""
    return isinstance(error, BrokenPipeError) or (sys.platform == "win32" and error.errno == errno.EINVAL)
