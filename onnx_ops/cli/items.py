"""The items of a run on many files: how they are found, what a process does with each, and what is finished."""

import glob
import hashlib
import io
import itertools
import json
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from .. import OpError
from ..files import write
from ..runtime.runner import Runner
from . import data
from .console import one_line

MANIFEST = "manifest.jsonl"  # among the outputs
BEGIN = b'{"run": '  # of each of its lines


@dataclass(frozen=True)
class Item:
    """The files of one run of the model.

    name   the output's path below the folder of the outputs, without suffix
    files  (input, path); the input is None for a .npz, which names its own
    """

    name: str
    files: tuple[tuple[str | None, Path], ...]

    def load(self):
        """Return the content of the files, as (input, path, bytes) of each."""
        try:
            return [(name, path, path.read_bytes()) for name, path in self.files]
        except OSError as error:
            raise click.UsageError(f"{error.filename} can't be read: {error.strerror}") from error


@dataclass(frozen=True)
class Problem:
    """The reason why an item has no output."""

    reason: str


def find(patterns, output):
    """Return [Item] for [(input, pattern)]. Files that have the same name below their patterns' folders are one item.

    Files in the folder `output` are no inputs, even if a pattern matches them: they are the results of a run.
    """
    searches = [(name, pattern, matches(pattern, output)) for name, pattern in patterns]
    every = {name: path for *_, paths in searches for name, path in paths.items()}
    for name, path in every.items():
        if unmatched := [pattern for _, pattern, paths in searches if name not in paths]:
            raise click.UsageError(f"{path} has no counterpart called {name} that matches {unmatched[0]}.")
    return [Item(name, tuple((i, paths[name]) for i, _, paths in searches)) for name in sorted(every)]


def matches(pattern, output):
    """Return {name: path} of the files that match. A name is the path below the part without wildcards, less suffix."""
    root = Path(*itertools.takewhile(lambda part: not glob.has_magic(part), Path(pattern).parts))
    if ".." in Path(pattern).relative_to(root).parts:
        raise click.UsageError(f"{pattern}: there can't be a .. after a wildcard.")
    folder, results = root.resolve(), output.resolve()
    is_inside = folder in results.parents
    paths: dict[str, Path] = {}
    for path in filter(Path.is_file, map(Path, sorted(glob.iglob(pattern, recursive=True)))):
        if is_inside and results in path.resolve().parents:
            if not (results / MANIFEST).exists():
                rule = f"has {path}, which matches {pattern}, but no manifest of a run whose result it may be"
                raise click.UsageError(f"--output {output}: {rule}; choose another folder.")
            continue
        name = path.relative_to(root).with_suffix("").as_posix()
        if not is_inside and folder in (results / name).parents:
            raise click.UsageError(f"--output {output}: the output {name} would be in the folder of {pattern}.")
        if name in paths:
            raise click.UsageError(f"{paths[name]} and {path} would have one output, {name}.")
        paths[name] = path
    if not paths:
        raise click.UsageError(f"no file matches {pattern}.")
    return paths


# What a process does


@dataclass(frozen=True)
class Work:
    """What a process does with an item; pickled, it is the same in every process.

    output  the folder of the outputs
    suffix  of their files
    shared  {input: array} of the inputs that all items share
    """

    runner: Runner
    output: Path
    suffix: str
    shared: dict[str, np.ndarray]

    def __call__(self, item):
        """Run the model on an item, from its input files to its output file; returns its record or its Problem."""
        try:
            content = item.load()
            result = encode(self.runner(self.feeds(content)))
        except Exception as error:
            return Problem(one_line(error))
        with data.writing(path := self.path(item)):
            write(path, result)
        digests = {"input": digest_of(content), "output": digest(result)}
        return {"item": item.name, "file": item.name + self.suffix, **digests}

    def path(self, item):
        return self.output / f"{item.name}{self.suffix}"

    def feeds(self, content):
        """Return {input: array} of all inputs, from what `Item.load` has returned."""
        inputs, arrays = self.runner.inputs, self.shared
        for name, path, file in content:
            arrays = data.join(arrays, data.read(name, path, io.BytesIO(file), inputs), path)
        data.check_types(arrays, inputs)
        data.check_complete(arrays, inputs)
        return arrays


# Output files


def suffix(outputs):
    """Return the suffix of a file: .npy for one output, .npz with their names for several."""
    return ".npy" if len(outputs) == 1 else ".npz"


def encode(outputs):
    """Return the bytes of a file."""
    file = io.BytesIO()
    if suffix(outputs) == ".npy":
        data.save(file, *outputs.values())
        return file.getvalue()
    with zipfile.ZipFile(file, "w") as archive:  # np.savez can't take some names, such as "file"
        for name, array in outputs.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                data.save(member, array)
    return file.getvalue()


class Manifest:
    """A file with a line of JSON for each output: its item, and digests of its input, of itself and of the settings.

    A line is written at once after its output, so that an interrupted run loses at most the lines of its last items.
    settings  everything except the item that an output depends on; `run` in each line is its digest
    """

    def __init__(self, folder, settings):
        self.folder, self.records = folder, {}
        self.run = digest(json.dumps(settings, sort_keys=True).encode())
        self.path = folder / MANIFEST
        with data.writing(self.path):
            folder.mkdir(parents=True, exist_ok=True)
            self.file = open(self.path, "a+b", buffering=0)  # noqa: SIM115  closed by `close`
            self.file.seek(0)
            lines = self.file.read().split(b"\n")
            if lines[0] and not lines[0].startswith(BEGIN):
                self.file.close()
                raise OpError(None, None, f"{self.path} is no manifest of a run; write into another folder", "onnx_ops")
            if lines[-1]:  # the last line was cut off
                self.file.write(b"\n")
        for line in lines:
            with suppress(ValueError, TypeError, KeyError):
                record = json.loads(line)
                if record["run"] == self.run:
                    self.records[record["item"]] = record["input"], record["file"], record["output"]

    def close(self):
        self.file.close()

    def has(self, item):
        """Return whether an item's output is as it was written, and was made from what the item's input is now."""
        if item.name not in self.records:
            return False
        source, file, output = self.records[item.name]
        with suppress(OSError, click.UsageError):
            return digest_of_file(self.folder / file) == output and digest_of(item.load()) == source
        return False

    def add(self, record):
        with data.writing(self.path):
            self.file.write(json.dumps({"run": self.run, **record}).encode() + b"\n")


def digest(content):
    return hashlib.sha256(content).hexdigest()


def digest_of(content):
    """The digest of an item's bytes, of the inputs' names, and of the suffixes, which state the kinds of the files."""
    return digest(repr([(name, path.suffix, digest(file)) for name, path, file in content]).encode())


def digest_of_file(path):
    sha256 = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(2**20):
            sha256.update(part)
    return sha256.hexdigest()
