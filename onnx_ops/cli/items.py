"""The items of a run over many files: how they are found, and what a process does with each."""

import glob
import hashlib
import io
import itertools
import os
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import click
import numpy as np

from .. import OpError
from ..files import write
from ..runtime.runner import Runner
from . import data
from .common import reason
from .compare import nearly

MANIFEST = "manifest.jsonl"  # among the outputs; see manifest.py


@dataclass(frozen=True)
class Item:
    """The files of one run of the model.

    name   the output's path below the folder of the outputs, without suffix
    files  (input, path); the input is None for a .npz, which names its own
    """

    name: str
    files: tuple[tuple[str | None, Path], ...]


@dataclass(frozen=True)
class Content:
    """The content of an item's files, as (input, path, bytes)."""

    files: tuple[tuple[str | None, Path, bytes], ...]

    @cached_property
    def digest(self):
        """The digest of the bytes, of the inputs' names, and of the suffixes, which state the kinds of the files."""
        return digest(repr([(name, path.suffix, digest(content)) for name, path, content in self.files]).encode())


@dataclass(frozen=True)
class Problem:
    """The reason why an item has no output."""

    reason: str


def is_pattern(text):
    """Return whether an --input states the files of many items, rather than one file or numbers."""
    value = data.value_of(text)
    return glob.has_magic(value) and not os.path.exists(value) and data.as_json(value) is None


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
    for path in map(Path, sorted(glob.iglob(pattern, recursive=True))):
        if not path.is_file():
            continue
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


def load(item):
    """Read the files of an item; returns its Content, or a Problem."""
    try:
        return Content(tuple((name, path, path.read_bytes()) for name, path in item.files))
    except OSError as error:
        return Problem(f"{error.filename} can't be read: {error.strerror}")


@dataclass(frozen=True)
class Work:
    """A function from the bytes of items' inputs to the bytes of their outputs, the same in every process.

    shared  {input: array} of the inputs that all items share
    batch   how many items one run of the model takes, stacked along the first axis; None: one, which is not stacked

    The first batch is run in another way, too: then the process knows that the model doesn't mix the items.
    """

    runner: Runner
    shared: dict[str, np.ndarray]
    batch: int | None = None
    compared: list[bool] = field(default_factory=list, init=False)  # not empty after that

    def prepare(self):
        """Make the session, which the first call would do otherwise."""
        return self.runner.session

    def __call__(self, contents):
        """Return for each item (suffix, bytes) of its output file, or its Problem."""
        feeds = [self.feeds(c) if isinstance(c, Content) else c for c in contents]
        results = [f if isinstance(f, Problem) else None for f in feeds]
        types_and_shapes = lambda k: [(name, array.dtype.str, array.shape) for name, array in sorted(feeds[k].items())]
        pending = sorted((k for k, r in enumerate(results) if r is None), key=types_and_shapes)
        for _, group in itertools.groupby(pending, types_and_shapes):
            positions = list(group)
            for k, outputs in zip(positions, self.run_batch([feeds[k] for k in positions]), strict=True):
                try:
                    results[k] = outputs if isinstance(outputs, Problem) else encode(outputs)
                except Exception as error:
                    results[k] = Problem(reason(error))
        return results

    def feeds(self, content):
        """Return {input: array} of the inputs that aren't shared, or a Problem."""
        inputs, every = self.runner.inputs, self.shared
        try:
            for name, path, file in content.files:
                every = data.join(every, data.arrays(name, path, io.BytesIO(file), inputs), path)
            data.check_types(every, inputs)
            data.check_complete(every, inputs)
        except click.UsageError as error:
            return Problem(reason(error))
        return {name: array for name, array in every.items() if name not in self.shared}

    def run_batch(self, items):
        """Run the model on items of equal shapes; returns for each {output: array} or its Problem."""
        stacks = [self.filled(items)]
        if len(stacks[0]) > 1 and not self.compared:
            stacks.append(stacks[0][1:] + stacks[0][:1] if self.is_fixed else items[:1])
        try:
            outputs = [self.runner(self.shared | (stack(each) if self.batch else each[0])) for each in stacks]
        except Exception as error:  # one of the items may be the cause, so each is run by itself
            return [Problem(reason(error))] if len(items) == 1 else [self.run_batch([item])[0] for item in items]
        if not self.batch:
            return outputs
        results, *others = map(split, outputs, stacks)
        for other in others:
            self.compare(results, other)
        return results[: len(items)]

    @property
    def is_fixed(self):
        """Whether the model fixes how many items it takes, if they are stacked."""
        stacked = [dims for name, (_, dims) in self.runner.inputs.items() if name not in self.shared]
        return any(isinstance(first_size(dims), int) for dims in stacked)

    def filled(self, items):
        """Return the items, with more of the last one if the model fixes how many it takes."""
        return items + items[-1:] * (self.batch - len(items)) if self.batch and self.is_fixed else items

    def compare(self, results, other):
        """Raise OpError if the results of stacked items depend on each other.

        other  the result of the first item alone; or if the size is fixed, those of all where the first has become last
        """
        for one, another in zip(results[1:] + results[:1] if self.is_fixed else results, other, strict=False):
            for name, array in another.items():
                if not nearly(one[name], array):
                    rule = f"the model makes another {name} of an item if others are stacked with it; leave out --batch"
                    raise OpError("batch", self.batch, rule, "onnx_ops")
        # Where all results are alike, their order tells nothing.
        if not self.is_fixed or not all(nearly(array, results[0][n]) for each in results for n, array in each.items()):
            self.compared.append(True)


def first_size(dims):
    """Return what a model states about the first axis: a number, a name, or None."""
    return dims[0] if dims else None


def stack(items):
    """Concatenate the arrays of some items along the first axis, input by input. Raises OpError where there is none."""
    for name, array in items[0].items():
        if not array.ndim:
            raise OpError(f"shape of {name}", [], "has no axis to stack items along; leave out --batch", "onnx_ops")
    return {name: np.concatenate([item[name] for item in items]) for name in items[0]}


def split(outputs, items):
    """Split the outputs of stacked items. Raises OpError if an output isn't stacked along its first axis."""
    size = len(next(iter(items[0].values())))
    for name, array in outputs.items():
        if array.ndim == 0 or len(array) != size * len(items):
            rule = f"axis 0 must be {size * len(items)} after a run on {len(items)} items; leave out --batch"
            raise OpError(f"shape of {name}", list(array.shape), rule, "onnx_ops")
    return [{n: a[k * size : (k + 1) * size] for n, a in outputs.items()} for k in range(len(items))]


def suffix(outputs):
    """Return the suffix of a file: .npy for one output, .npz with their names for several."""
    return ".npy" if len(outputs) == 1 else ".npz"


def encode(outputs):
    """Return (suffix, bytes) of a file."""
    file = io.BytesIO()
    if suffix(outputs) == ".npy":
        data.save(file, *outputs.values())
        return ".npy", file.getvalue()
    with zipfile.ZipFile(file, "w") as archive:  # np.savez can't take some names, such as "file"
        for name, array in outputs.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                data.save(member, array)
    return ".npz", file.getvalue()


def store(folder, items, contents, results):
    """Write the outputs; returns for each its record (see Manifest) or its Problem."""
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
    """Turn an OSError inside into an OpError, which ends the whole run: the disk is its cause."""
    try:
        yield
    except OSError as error:
        raise OpError(None, None, f"{path} can't be written: {error.strerror}", "onnx_ops") from error


@dataclass(frozen=True)
class LocalWork:
    """A function from the items' input files to their output files in `folder`, by `work`."""

    work: Work
    folder: Path

    def __call__(self, *items):
        contents = list(map(load, items))
        return store(self.folder, items, contents, self.work(contents))


def digest(content):
    return hashlib.sha256(content).hexdigest()
