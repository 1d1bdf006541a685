"""The manifest of a run over many files: what it has finished, kept beside its outputs."""

import hashlib
import json
from contextlib import suppress

import onnxruntime as ort

from .. import OpError, __version__
from ..external_data import files
from .common import own_files
from .items import MANIFEST, Content, digest, encode, load, writing

BEGIN = b'{"run": '  # of each line


class Manifest:
    """A file with a line of JSON for each output: its item, and digests of its input, of itself and of the settings.

    A line is written at once after its output, so that an interrupted run loses at most the lines of its last items.
    settings  everything except the item that an output depends on; `run` in each line is its digest
    """

    def __init__(self, folder, settings):
        self.folder, self.records = folder, {}
        text = json.dumps(settings, sort_keys=True)
        self.run = digest(text.encode())
        self.path = folder / MANIFEST
        with writing(self.path):
            folder.mkdir(parents=True, exist_ok=True)
            self.file = open(self.path, "a+b", buffering=0)  # noqa: SIM115  closed by __exit__
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

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def has(self, item):
        """Return whether an item's output is as it was written, and was made from what the item's input is now."""
        source, file, output = self.records.get(item.name, (None, None, None))
        with suppress(OSError):
            if source and digest_of_file(self.folder / file) == output:
                content = load(item)
                return isinstance(content, Content) and content.digest == source
        return False

    def add(self, record):
        with writing(self.path):
            self.file.write(json.dumps({"run": self.run, **record}).encode() + b"\n")


def settings(model, shared, **others):
    """Return everything except the items that the outputs of a run depend on."""
    return {
        "model": [digest_of_file(path) for path in files(model)],
        "inputs": {name: digest(encode({name: array})[1]) for name, array in shared.items()},
        "operators": sorted(map(digest_of_file, own_files())),
        "versions": {"onnx_ops": __version__, "onnxruntime": ort.__version__},
        **others,
    }


def digest_of_file(path):
    sha256 = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(2**20):
            sha256.update(part)
    return sha256.hexdigest()
