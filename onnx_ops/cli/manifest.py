"""What a run over many files has finished, kept beside its outputs."""

import hashlib
import json
from contextlib import suppress

import onnxruntime as ort

from .. import __version__
from ..runtime.external_data import files
from .items import Content, digest, encode, load, writing

NAME = "manifest.jsonl"


class Manifest:
    """Lines of JSON, one for each output that was written: of the item, and of what it was made from and by.

    A line is written once its output is, and at once: what ends a run takes at most the lines of what it is at.
    settings  all but the item on which an output depends; `run` in each line is the digest of it
    """

    def __init__(self, folder, settings):
        self.folder, self.records = folder, {}
        text = json.dumps(settings, sort_keys=True)
        self.run = digest(text.encode())
        self.path = folder / NAME
        with writing(self.path):
            folder.mkdir(parents=True, exist_ok=True)
            self.file = open(self.path, "a+b", buffering=0)  # noqa: SIM115  closed by __exit__
            self.file.seek(0)
            lines = self.file.read().split(b"\n")
            if lines[-1]:  # it was cut off
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
        """Whether its output was made from what its input is now, and is still what was written."""
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
    """All on which the outputs of a run depend, beside the items."""
    return {
        "model": [digest_of_file(path) for path in files(model)],
        "inputs": {name: digest(encode({name: array})[1]) for name, array in shared.items()},
        "versions": {"onnx_ops": __version__, "onnxruntime": ort.__version__},
        **others,
    }


def digest_of_file(path):
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(2**20):
            found.update(part)
    return found.hexdigest()
