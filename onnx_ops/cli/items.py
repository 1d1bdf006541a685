"""The items of a run on many files: finding them, running the model on them, recording finished ones."""

import glob
import hashlib
import io
import itertools
import json
import zipfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import click
import numpy as np

from .. import OpError
from ..arrays.comparison import is_nearly
from ..session.runner import Runner
from ..system.files import write
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
        """Return (input, path, bytes) of each file, or a Problem."""
        try:
            return [(name, path, path.read_bytes()) for name, path in self.files]
        except OSError as error:
            return Problem(f"{error.filename} can't be read: {error.strerror}")


@dataclass(frozen=True)
class Problem:
    """The reason why an item has no output."""

    reason: str


def find(patterns, output):
    """Return [Item] for [(input, pattern)]. Files with the same name below their patterns' folders are one item.

    Files in the folder `output` are results of a run, and never inputs, even if a pattern matches them.
    """
    searches = [(name, pattern, matches(pattern, output)) for name, pattern in patterns]
    every = {name: path for *_, paths in searches for name, path in paths.items()}
    for name, path in every.items():
        if unmatched := [pattern for _, pattern, paths in searches if name not in paths]:
            raise click.UsageError(f"{path} has no counterpart called {name} that matches {unmatched[0]}.")
    return [Item(name, tuple((i, paths[name]) for i, _, paths in searches)) for name in sorted(every)]


def matches(pattern, output):
    """Return {name: path} of matching files. A name is the path below the part without wildcards, without suffix."""
    root = Path(*itertools.takewhile(lambda part: not glob.has_magic(part), Path(pattern).parts))
    if ".." in Path(pattern).relative_to(root).parts:
        raise click.UsageError(f"{pattern}: there can't be a .. after a wildcard.")
    folder, results, paths = root.resolve(), output.resolve(), {}
    is_inside = folder in results.parents
    for path in map(Path, sorted(glob.iglob(pattern, recursive=True))):
        if path.exists() and not path.is_file():  # a folder; a link to nothing is an item, which fails
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


# The work of a process


@dataclass(frozen=True)
class Work:
    """The work of a process with items, which can be pickled.

    output  the folder of the outputs
    suffix  of their files
    shared  {input: array} of the inputs that all items share
    batch   number of items in one run of the model, stacked along the first axis; None: one, which is not stacked

    To verify that the model doesn't mix items, the first batch also runs in another order, and its first and last items
    among copies of themselves.
    """

    runner: Runner
    output: Path
    suffix: str
    shared: dict[str, np.ndarray]
    batch: int | None = None
    checked: list[bool] = field(default_factory=list, init=False)  # not empty after that

    def run_items(self, *items):
        """Run the model on items, from their input files to their output files; return the result of `store`."""
        contents = [item.load() for item in items]
        return self.store(items, contents, self(contents))

    def store(self, items, contents, results):
        """Write the output files; return each item's record (see Manifest) or Problem."""
        outcomes = []
        for item, content, result in zip(items, contents, results, strict=True):
            if not isinstance(result, Problem):
                with data.writing(path := self.path(item)):
                    write(path, result)
                digests = {"input": digest_of(content), "output": digest(result)}
                result = {"item": item.name, "file": item.name + self.suffix, **digests}
            outcomes.append(result)
        return outcomes

    def path(self, item):
        return self.output / f"{item.name}{self.suffix}"

    def __call__(self, contents):
        """Return the bytes of each item's output file, or its Problem, from the results of `Item.load`."""
        results = [c if isinstance(c, Problem) else self.feeds(c) for c in contents]
        types_and_shapes = lambda k: [(name, a.dtype.str, a.shape) for name, a in sorted(results[k].items())]
        pending = sorted((k for k, r in enumerate(results) if not isinstance(r, Problem)), key=types_and_shapes)
        for group in [list(positions) for _, positions in itertools.groupby(pending, types_and_shapes)]:
            for k, outputs in zip(group, self.run([results[k] for k in group]), strict=True):
                results[k] = outputs if isinstance(outputs, Problem) else attempted(encode, outputs)
        return results

    def feeds(self, content):
        """Return {input: array} of the inputs that aren't shared, or a Problem."""
        inputs, arrays = self.runner.inputs, self.shared
        try:
            for name, path, file in content:
                arrays = data.join(arrays, data.read(name, path, io.BytesIO(file), inputs), path)
            data.check_types(arrays, inputs)
            data.check_complete(arrays, inputs)
        except click.UsageError as error:
            return Problem(one_line(error))
        return {name: array for name, array in arrays.items() if name not in self.shared}

    def run(self, items):
        """Run the model on items of equal shapes; return {output: array} or a Problem for each."""
        if not self.batch:
            return [attempted(self.runner, self.shared | item) for item in items]
        filled = items + items[-1:] * (self.batch - len(items)) if self.takes_whole_batches else items
        orders = [range(len(filled))]  # each a list of positions of items in `filled`
        if not self.checked and len(filled) > 1:
            copies = len(filled) if self.takes_whole_batches else 1
            orders += [[*orders[0][1:], 0], [0] * copies, [len(filled) - 1] * copies]
        stacks = [[filled[k] for k in order] for order in orders]
        try:
            outputs = [self.runner(self.shared | stacked(stack)) for stack in stacks]
        except Exception as error:  # one of the items may be the cause, so each is run by itself
            return [Problem(one_line(error))] if len(items) == 1 else [self.run([item])[0] for item in items]
        results, *others = map(split, outputs, stacks)
        for order, other in zip(orders[1:], others, strict=True):
            for k, result in zip(order, other, strict=True):
                self.check(results[k], result)
        telling = [result for item, result in zip(filled, results, strict=True) if any(map(has_content, item.values()))]
        if others and any(differing(telling[0], each) for each in telling):  # else the comparison shows nothing
            self.checked.append(True)
        return results[: len(items)]

    @property
    def takes_whole_batches(self):
        """Return whether the model fixes the number of items."""
        stacked_dims = [dims for name, (_, dims) in self.runner.inputs.items() if name not in self.shared]
        return any(isinstance(first_size(dims), int) for dims in stacked_dims)

    def check(self, result, other):
        """Raise OpError if an item's result depends on the items stacked with it, or on their order."""
        for name in differing(result, other):
            rule = f"the model makes another {name} of an item if others are stacked with it; leave out --batch"
            raise OpError("batch", self.batch, rule, "onnx_ops")


def has_content(array):
    """Return whether an array has nonzero elements; zeros may hide that items are mixed."""
    return np.any(array != np.zeros((), array.dtype))


def differing(outputs, others):
    """Return the names of the outputs that differ by more than rounding."""
    return [name for name in outputs if not is_nearly(outputs[name], others[name])]


def attempted(function, *arguments):
    """Return a function's result, or a Problem for its exception."""
    try:
        return function(*arguments)
    except Exception as error:
        return Problem(one_line(error))


def first_size(dims):
    """Return the model's size of the first axis: a number, a name, or None."""
    return dims[0] if dims else None


def stacked(items):
    """Concatenate the arrays of items along the first axis, input by input. Raises OpError for a scalar."""
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

    Each line follows its output at once, so that an interrupted run loses at most the lines of its last items.

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
        """Return whether an item's output is unchanged, and was made from the current input."""
        if item.name not in self.records:
            return False
        source, file, output = self.records[item.name]
        with suppress(OSError, TypeError, ValueError):  # of a line that no run has written
            if digest_of_file(self.folder / file) == output:
                content = item.load()
                return not isinstance(content, Problem) and digest_of(content) == source
        return False

    def add(self, record):
        with data.writing(self.path):
            self.file.write(json.dumps({"run": self.run, **record}).encode() + b"\n")


def digest(content):
    return hashlib.sha256(content).hexdigest()


def digest_of(content):
    """Return the digest of an item's bytes, of the inputs' names, and of the suffixes, which state file formats."""
    return digest(repr([(name, path.suffix, digest(file)) for name, path, file in content]).encode())


def digest_of_file(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
