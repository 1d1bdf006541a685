"""The items of a run over many files: which ones there are, and what is done with each, in whichever process."""

import glob
import hashlib
import io
import itertools
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import click
import numpy as np

from .. import OpError
from ..files import write
from ..runtime.runner import Runner
from . import data
from .common import reason


@dataclass(frozen=True)
class Item:
    """What one run of the model is for.

    name   of its output: a path below the folder of the outputs, without suffix
    files  (input, None for those that a .npz names; path)
    """

    name: str
    files: tuple[tuple[str | None, Path], ...]


@dataclass(frozen=True)
class Content:
    """What is in the files of an item, as (input, path, bytes)."""

    files: tuple[tuple[str | None, Path, bytes], ...]

    @cached_property
    def digest(self):
        """Of the bytes, and of what they are taken for: the input, and by its suffix the kind of file."""
        return digest(repr([(name, path.suffix, digest(content)) for name, path, content in self.files]).encode())


@dataclass(frozen=True)
class Problem:
    """Why an item has no output."""

    reason: str


def is_pattern(text):
    """Whether an --input states the files of many items, rather than a file or numbers."""
    value = text.partition("=")[2] or text
    return glob.has_magic(value) and not Path(value).exists() and data.as_numbers(value, "string") is None


def find(patterns, output):
    """[Item] of the files that match [(input, pattern)]: those of one name below their patterns' folders are one item.

    Files in `output` are no inputs where that is a folder in which a pattern looks: they are the results of a run.
    """
    found = [(name, pattern, matches(pattern, output)) for name, pattern in patterns]
    every = {name: path for *_, paths in found for name, path in paths.items()}
    for name, path in every.items():
        if lacking := [pattern for _, pattern, paths in found if name not in paths]:
            raise click.UsageError(f"{path} has no counterpart called {name} that matches {lacking[0]}.")
    return [Item(name, tuple((i, paths[name]) for i, _, paths in found)) for name in sorted(every)]


def matches(pattern, output):
    """{path below the part of the pattern that has no wildcards, without suffix: path}"""
    root = Path(*itertools.takewhile(lambda part: not glob.has_magic(part), Path(pattern).parts))
    if root.resolve() == output.resolve():
        raise click.UsageError(f"--output {output}: is the folder of {pattern}, whose files it would replace.")
    results = output.resolve() if root.resolve() in output.resolve().parents else None
    found: dict[str, Path] = {}
    for path in map(Path, sorted(glob.iglob(pattern, recursive=True))):
        if not path.is_file() or (results and results in path.resolve().parents):
            continue
        name = path.relative_to(root).with_suffix("").as_posix()
        if name in found:
            raise click.UsageError(f"{found[name]} and {path} would have one output, {name}.")
        found[name] = path
    if not found:
        raise click.UsageError(f"no file matches {pattern}.")
    return found


def load(item):
    """The Content of an item, or a Problem."""
    try:
        return Content(tuple((name, path, path.read_bytes()) for name, path in item.files))
    except OSError as error:
        return Problem(f"{error.filename} can't be read: {error.strerror}")


@dataclass(frozen=True)
class Work:
    """What is done with items in every process: from the bytes of their inputs to the bytes of their outputs.

    shared  {input: array} of those inputs that are the same for all
    batch   how many items one run of the model takes, along the first axis of what is not shared; None: one, as it is
    """

    runner: Runner
    shared: dict[str, np.ndarray]
    batch: int | None = None

    def prepare(self):
        """Make the session."""
        return self.runner.session

    def __call__(self, contents):
        """(suffix, bytes) of each item's output file, or the Problem with it."""
        feeds = [self.feeds(c) if isinstance(c, Content) else c for c in contents]
        results = [f if isinstance(f, Problem) else None for f in feeds]
        alike = lambda k: [(name, array.dtype.str, array.shape) for name, array in sorted(feeds[k].items())]
        left = sorted((k for k, r in enumerate(results) if r is None), key=alike)
        for _, group in itertools.groupby(left, alike):
            positions = list(group)
            for k, outputs in zip(positions, self.run([feeds[k] for k in positions]), strict=True):
                results[k] = outputs if isinstance(outputs, Problem) else encode(outputs)
        return results

    def feeds(self, content):
        """{input: array} of what isn't shared, or a Problem."""
        inputs, every = self.runner.inputs, self.shared
        try:
            for name, path, file in content.files:
                every = data.join(every, data.arrays(name, path, io.BytesIO(file), inputs), path)
            data.check_types(every, inputs)
            data.check_complete(every, inputs)
        except click.UsageError as error:
            return Problem(reason(error))
        return {name: array for name, array in every.items() if name not in self.shared}

    def run(self, items):
        """{output: array} of each of some items of equal shapes, or the Problem with it."""
        together = items
        if self.batch and any(fixed_size(self.runner.inputs[name][1]) for name in items[0]):
            together = items + items[-1:] * (self.batch - len(items))  # the model takes no fewer
        try:
            feeds = stack(together) if self.batch else items[0]
            outputs = self.runner(self.shared | feeds)
        except Exception as error:  # one of them may be the cause
            return [Problem(reason(error))] if len(items) == 1 else [self.run([item])[0] for item in items]
        return split(outputs, together)[: len(items)] if self.batch else [outputs]


def fixed_size(dims):
    """What a model wants along the first axis, None where it leaves that open."""
    return dims[0] if dims and isinstance(dims[0], int) else None


def stack(items):
    """One array for each input of some items."""
    return {name: np.concatenate([item[name] for item in items]) for name in items[0]}


def split(outputs, items):
    """The outputs of each of the items that were stacked. Raises OpError where they have no axis for them."""
    size = len(next(iter(items[0].values())))
    for name, array in outputs.items():
        if array.ndim == 0 or len(array) != size * len(items):
            rule = f"axis 0 must be {size * len(items)} after a run on {len(items)} items; leave out --batch"
            raise OpError(f"shape of {name}", list(array.shape), rule, "onnx_ops")
    return [{n: a[k * size : (k + 1) * size] for n, a in outputs.items()} for k in range(len(items))]


def encode(outputs):
    """(suffix, bytes) of a file: .npy of one output, .npz of several by name."""
    file = io.BytesIO()
    if len(outputs) == 1:
        np.save(file, *outputs.values())
        return ".npy", file.getvalue()
    with zipfile.ZipFile(file, "w") as archive:  # np.savez has no place for some names, such as "file"
        for name, array in outputs.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.save(member, array)
    return ".npz", file.getvalue()


def store(folder, items, contents, results):
    """Write the outputs; returns a record of each (see Manifest), or its Problem."""
    return [
        result if isinstance(result, Problem) else write_output(folder, item, content.digest, *result)
        for item, content, result in zip(items, contents, results, strict=True)
    ]


def write_output(folder, item, source, suffix, content):
    path = folder / f"{item.name}{suffix}"
    with writing(path):
        write(path, content)
    return {"item": item.name, "input": source, "file": f"{item.name}{suffix}", "output": digest(content)}


@contextmanager
def writing(path):
    """What goes wrong inside is due to the disk, and so concerns the whole run."""
    try:
        yield
    except OSError as error:
        raise OpError(None, None, f"{path} can't be written: {error.strerror}", "onnx_ops") from error


@dataclass(frozen=True)
class LocalWork:
    """The same from files to files, where `folder` is at hand."""

    work: Work
    folder: Path

    def __call__(self, *items):
        contents = list(map(load, items))
        return store(self.folder, items, contents, self.work(contents))


def digest(content):
    return hashlib.sha256(content).hexdigest()
