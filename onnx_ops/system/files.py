"""Write files beside their place and rename them.

An old file stays whole until the new one is complete.
"""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from .. import system

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import TypeAlias

    PathLike: TypeAlias = str | os.PathLike[str]

PREFIX = ".onnx_ops-"  # of temporary files and folders


@contextmanager
def staged(directory: PathLike, name: str = "") -> Iterator[Path]:
    """Yield a temporary folder, whose files replace those in `directory` at the end.

    They replace those of the same names.

    `directory` is made if it is missing. If the block raises, no file is replaced. Models come
    last, so that none refers to data that aren't there yet. Raises OSError if a file would replace
    something that isn't a file.

    name  of the file that errors name, if there is one; default: they name the directory
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    with named(directory / name), ExitStack() as stack:
        folder = stack.enter_context(_temporary_folder(directory))
        yield folder
        moves = []
        for file in sorted(folder.iterdir(), key=lambda file: file.suffix == ".onnx"):
            target = replaceable(directory / file.name)
            # A link leads to another folder, maybe on another disk.
            if target.parent != directory.resolve():
                with named(target):
                    file = shutil.copyfile(
                        file, stack.enter_context(_temporary_folder(target.parent)) / target.name
                    )
            moves.append((file, target))
        _permit(folder, moves)
        for file, target in moves:
            system.replace(file, target)


@contextmanager
def staged_file(path: PathLike) -> Iterator[Path]:
    """Yield a path for the content that replaces a file at the end.

    Files that are written beside it replace others, too.
    """
    path = Path(path)
    replaceable(path)  # raises OSError now rather than after the work
    with staged(path.parent, path.name) as folder:
        yield folder / path.name


def write(path: PathLike, content: bytes, permissions: int = 0) -> None:
    """Write the bytes of one file as `staged_file` does, but without a folder.

    A folder may take milliseconds.

    permissions  those that the umask may reduce, also if a file is replaced; default: as
                 `staged_file`
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    target = replaceable(path)
    temporary = target.with_name(f"{PREFIX}{uuid.uuid4().hex}")
    try:
        with named(path):
            temporary.touch(permissions or 0o666)
            temporary.write_bytes(content)
            if target.exists() and not permissions:
                shutil.copymode(target, temporary)
            system.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def replaceable(path: PathLike) -> Path:
    """Return the file at the end of a path's links. Raises OSError for a folder or a device."""
    path = Path(path)
    if path.exists() and not (path.is_file() and os.access(path, os.W_OK)):
        rule = "must be an ordinary file that may be written, or not there yet"
        raise OSError(errno.EACCES, f"output file {rule}", str(path))
    return Path(os.path.realpath(path))


@contextmanager
def named(path: PathLike) -> Iterator[None]:
    """Have an OSError name the file to be written, not a temporary one or none.

    A full disk, for example, raises it.
    """
    try:
        yield
    except OSError as error:
        names = [
            os.fsdecode(name) for name in (error.filename, error.filename2) if name is not None
        ]
        if names and not any(
            component.startswith(PREFIX) for name in names for component in Path(name).parts
        ):
            raise
        # NumPy's have no number.
        raise OSError(
            error.errno or errno.EIO, error.strerror or str(error), os.fspath(path)
        ) from error


@contextmanager
def _temporary_folder(beside: Path) -> Iterator[Path]:
    with TemporaryDirectory(prefix=PREFIX, dir=beside) as folder:
        yield Path(folder)


def _permit(folder: Path, moves: Iterable[tuple[Path, Path]]) -> None:
    """Give files the permissions of those that they replace, or of a new file.

    Some writers grant too few.
    """
    new = folder / ".new"
    new.touch()
    for file, target in moves:
        shutil.copymode(target if target.exists() else new, file)
