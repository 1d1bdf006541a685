"""The items of a run on many files: which there are, and runs of the unfinished ones."""

from __future__ import annotations

import glob
import hashlib
import io
import itertools
import json
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import onnxruntime as ort
from click import UsageError

from .. import __version__
from ..model.external_data import files
from ..model.files import content_of, ordinary_file
from ..system.files import write
from . import data
from .arguments import custom_files
from .console import one_line

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from ..session.runner import Runner
    from .types import Feeds, Settings


SETTINGS = "onnx_ops-run.json"  # the file among the outputs that has their settings


class Item(NamedTuple):
    """The files of one run of the model.

    name   the output's path below the folder of the outputs, without suffix
    files  (input, path); the input is None for a .npz, which names its own
    """

    name: str
    files: tuple[tuple[str | None, Path], ...]


def find(patterns: Iterable[tuple[str | None, str]], output: Path) -> list[Item]:
    """Return the items for [(input, pattern)]. Files with the same name below their patterns'
    folders are one item.

    Files in the folder `output` are results of a run, and never inputs, even if a pattern matches
    them.
    """
    searches = [(name, pattern, matches(pattern, output)) for name, pattern in patterns]
    every = {name: path for *_, paths in searches for name, path in paths.items()}
    for name, path in every.items():
        if unmatched := [pattern for _, pattern, paths in searches if name not in paths]:
            raise UsageError(
                f"{path} has no counterpart called {name} that matches {unmatched[0]}."
            )
    return [
        Item(name, tuple((i, paths[name].absolute()) for i, _, paths in searches))
        for name in sorted(every)
    ]


def matches(pattern: str, output: Path) -> dict[str, Path]:
    """Return {name: path} of matching files.

    A name is the path below the part without wildcards, without suffix.
    """
    root = Path(*itertools.takewhile(lambda name: not glob.has_magic(name), Path(pattern).parts))
    if ".." in Path(pattern).relative_to(root).parts:
        raise UsageError(f"{pattern}: there can't be a .. after a wildcard.")
    folder = root.resolve()
    results = output.resolve()
    is_inside = folder in results.parents
    paths: dict[str, Path] = {}
    for path in map(Path, sorted(glob.iglob(pattern, recursive=True))):
        # A folder; a link to nothing is an item, which fails.
        if path.exists() and not path.is_file():
            continue
        if is_inside and results in path.resolve().parents:
            if not (results / SETTINGS).exists():
                rule = (
                    f"has {path}, which matches {pattern}, but no {SETTINGS} of a run whose "
                    "result it may be"
                )
                raise UsageError(f"--output {output}: {rule}; choose another folder.")
            continue
        name = path.relative_to(root).with_suffix("").as_posix()
        if not is_inside and folder in (results / name).parents:
            raise UsageError(
                f"--output {output}: the output {name} would be in the folder of {pattern}."
            )
        if name in paths:
            raise UsageError(f"{paths[name]} and {path} would have one output, {name}.")
        paths[name] = path
    if not paths:
        raise UsageError(f"no file matches {pattern}.")
    return paths


@dataclass(frozen=True)
class Work:
    """The work on items, which can be pickled.

    shared    {input: array} of the inputs that all items share
    output    the folder of the outputs
    unpacked  the option --unpacked, for processes without it
    """

    runner: Runner
    shared: Feeds
    output: Path
    unpacked: int = field(default_factory=data.unpacked.get)

    def path(self, item: Item) -> Path:
        """Return the path of an item's output."""
        return self.output / f"{item.name}{suffix(self.runner.outputs)}"

    def is_finished(self, item: Item) -> bool:
        """Return whether an item's output is newer than its inputs, and than the settings.

        A file that is moved to an input's path, or a link that is made there, has a new time of
        change (ctime).
        """
        try:
            written = self.path(item).stat().st_mtime_ns
            states = [state for _, path in item.files for state in (path.stat(), path.lstat())]
            newest = max(
                time for state in states for time in (state.st_mtime_ns, state.st_ctime_ns)
            )
            return written > newest and written >= (self.output / SETTINGS).stat().st_mtime_ns
        except OSError:
            return False

    def __call__(self, item: Item) -> str | None:
        """Run the model on an item and write its output; return the reason if the item fails.

        Raises OpError if the output can't be written, since the next one can't be either.
        """
        try:
            content = encode(self.runner(self.shared | self.feeds(item)))
        except Exception as error:
            return one_line(error)
        path = self.path(item)
        with data.writing(path):
            write(path, content)
        return None

    def feeds(self, item: Item) -> Feeds:
        """Return {input: array} from an item's files."""
        data.unpacked.set(self.unpacked)
        inputs = self.runner.inputs
        arrays = self.shared
        for name, path in item.files:
            arrays = data.join(arrays, data.read_file(name, path, inputs), path)
        data.check_types(arrays, inputs)
        data.check_complete(arrays, inputs)
        return arrays


# The files among the outputs


def suffix(outputs: Collection[str]) -> str:
    """Return the suffix of a file: .npy for one output, .npz with their names for several."""
    return ".npy" if len(outputs) == 1 else ".npz"


def encode(outputs: Feeds) -> bytes:
    """Return the bytes of a file."""
    file = io.BytesIO()
    if suffix(outputs) == ".npy":
        data.save(file, *outputs.values())
        return file.getvalue()
    with zipfile.ZipFile(file, "w") as archive:  # np.savez can't take some names, such as "file"
        for name, file_name in data.file_names(outputs, data.IN_ARCHIVE).items():
            with archive.open(f"{file_name}.npy", "w", force_zip64=True) as member:
                data.save(member, outputs[name])
    return file.getvalue()


def begin(work: Work, command: Settings, overwrite: bool) -> None:
    """Write the settings of a run: everything that outputs depend on, except their own inputs.

    command    what the command line states about the outputs
    overwrite  whether all items run again, and replace outputs of other settings

    Raises an error if there are outputs of other settings.
    """
    path = work.output / SETTINGS
    settings = {
        **command,
        "model": list(map(file_digest, files(str(work.runner.model)))),
        "shared inputs": {
            name: hashlib.sha256(encode({name: a})).hexdigest() for name, a in work.shared.items()
        },
        "operators": list(map(file_digest, custom_files())),
        "versions": {"onnx_ops": __version__, "onnxruntime": ort.__version__},
    }
    earlier = read_settings(path)
    differing = [name for name, value in settings.items() if earlier.get(name) != value]
    if differing and path.exists() and not overwrite:
        rule = f"has outputs of a run with other settings ({', '.join(differing)})"
        raise UsageError(f"--output {work.output} {rule}; choose another folder, or --overwrite.")
    if differing or overwrite:
        with data.writing(path):
            write(path, json.dumps(settings, indent=2).encode())


def read_settings(path: Path) -> Settings:
    """Return the settings in a file; empty if there is none, or another program's file."""
    try:
        return dict(json.loads(content_of(path, "file")))
    except (OSError, RecursionError, TypeError, ValueError):
        return {}


def file_digest(path: Path) -> str:
    """Return the digest of a file."""
    with ordinary_file(path, "file") as (file, _):
        return hashlib.file_digest(file, "sha256").hexdigest()
