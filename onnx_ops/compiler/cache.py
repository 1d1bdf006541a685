"""Compiled code on disk, so that only the first process compiles it.

A file's name ends with its code's key (key.py).
"""

import errno
import functools
import hashlib
import logging
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile

import platformdirs

from .. import system
from ..declaration.jit import ADDRESS
from ..system.files import write

ROOT = __name__.split(".", 1)[0]
CHECKSUM = hashlib.sha256().digest_size
log = logging.getLogger("onnx_ops")


def directory() -> Path:
    """Return the directory of the files: in the user's cache directory, unless NUMBA_CACHE_DIR
    names another.

    Numba keeps its files beside the sources, where they would stay when the package is uninstalled.
    """
    if parent := os.environ.get("NUMBA_CACHE_DIR"):
        return Path(parent, ROOT)
    try:
        return Path(platformdirs.user_cache_dir(ROOT, appauthor=False))
    except RuntimeError:  # there is no home directory
        return Path("~", ".cache", ROOT)


class Kept:
    """The file of a compiled function: a checksum, and its object code.

    obstacle  reason why the file can't be written, or None; an error if it is known before
              compilation
    """

    def __init__(self, name: str, key: str, obstacle: OSError | None = None) -> None:
        self.key = key
        self.path = directory() / f"{name}-{key}.code"
        if not obstacle and not self.path.is_absolute():  # as where there is no home directory
            obstacle = OSError(f"{self.path.parent} is no absolute path")
        self.obstacle = obstacle and reason(obstacle)

    def check(self) -> None:
        """Give up before the compilation if the folder can't be written to: its message must not
        say that it keeps.
        """
        if not self.obstacle:
            try:
                for folder in [*self.path.parents][::-1]:
                    folder.mkdir(0o700, exist_ok=True)
                TemporaryFile(dir=self.path.parent).close()
            except OSError as error:
                self.give_up(error)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Return a context in which other processes wait before they compile the same, if the
        folder permits locks.
        """
        with ExitStack() as stack:
            if not self.obstacle and not os.path.exists(self.path):
                with suppress(OSError):
                    stack.enter_context(system.locked(self.path.with_suffix(".lock")))
            yield

    def load(self) -> bytes | None:
        """Read the object code; return None if the file is missing, damaged or written by
        others.
        """
        if self.obstacle:
            return None
        try:
            keep_others_out(self.path.parent)
            return object_in(self.path)
        except FileNotFoundError:
            return None
        except OSError as error:
            self.give_up(error)
            return None

    def save(self, content: bytes) -> None:
        if not self.obstacle and ADDRESS.encode() in content:
            self.obstacle = "it holds addresses, which are of this process alone"
        if self.obstacle:
            not_kept(self.obstacle)
            return
        try:
            write(self.path, hashlib.sha256(content).digest() + content, 0o644)
        except OSError as error:
            self.give_up(error)

    def give_up(self, error: OSError) -> None:
        self.obstacle = reason(error)
        not_kept(self.obstacle)

    def missing(self) -> str | None:
        """Return the reason why the next process won't find the compiled function, or None."""
        return self.obstacle or (None if os.path.exists(self.path) else f"{self.path.name} is gone")


def keep_others_out(folder: Path) -> None:
    """Take the permission to write to a folder of this user from others, with the files that they
    may have left.

    The folders above aren't checked: who can replace this one can't make one that belongs to this
    user. Raises OSError.
    """
    status = folder.stat()
    if system.is_private(status):
        return
    if system.is_private(status, 0):
        with suppress(PermissionError):  # it is root's
            folder.chmod(stat.S_IMODE(status.st_mode) & ~system.OTHERS_WRITE)
    if not system.is_private(folder.stat()):
        raise PermissionError(errno.EPERM, "it belongs to another user, or others may write to it")
    for file in folder.glob("*.code"):
        file.unlink()
    log.warning(
        "onnx_ops: removed the permission of others to write to %s, and the code in it", folder
    )


def object_in(path: str | Path) -> bytes | None:
    """Read the object code in a file; return None if the file is damaged, or others may have
    written it.
    """
    with open(path, "rb") as file:
        content = file.read() if system.is_private(os.fstat(file.fileno())) else b""
    checksum, content = content[:CHECKSUM], content[CHECKSUM:]
    return content if hashlib.sha256(content).digest() == checksum else None


def reason(error: OSError) -> str:
    """Return the text of an error without the file's name, so that it is the same for all
    functions.
    """
    return error.strerror or str(error)


@functools.cache
def not_kept(reason: str) -> None:
    """Log that code isn't kept, once for each reason: the next process will compile it again."""
    log.warning(
        "onnx_ops: compiled code is not kept in %s for the next process: %s", directory(), reason
    )
