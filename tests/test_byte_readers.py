"""What reads bytes in Python, on seeds and on changes of them that are the same in every run (support/byte_readers.py).

scripts/fuzz_bytes.py draws others, guided by coverage.
"""

import pytest
from support import byte_readers

CHANGES = 150

# What the fuzzer found: {name: (reader, what it reads)}
FOUND = {}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return byte_readers.prepare(tmp_path_factory.mktemp("readers"))


@pytest.mark.parametrize("name", byte_readers.READERS)
def test_seeds(name, folder):
    for content in byte_readers.seeds(name):
        byte_readers.read(name, content, folder)


@pytest.mark.parametrize("name", byte_readers.READERS)
def test_changed_seeds(name, folder):
    seeds = byte_readers.seeds(name)
    for k in range(CHANGES):
        byte_readers.read(name, byte_readers.changed(name, seeds[k % len(seeds)], seeds, k), folder)


def test_an_oracle_that_sees_mistakes(folder, monkeypatch, tmp_path):
    """A reader that raises another error, takes long, or writes elsewhere breaks its promise."""

    def raises(content, folder):
        raise KeyError

    def writes(content, folder):
        (tmp_path / "elsewhere").write_bytes(content)

    def lasts(content, folder):
        begin = byte_readers.time.process_time()
        while byte_readers.time.process_time() < begin + 0.1:
            pass

    monkeypatch.setattr(byte_readers, "SECONDS", 0.05)
    for reader, words in (raises, "KeyError"), (writes, "elsewhere"), (lasts, "for 1 bytes"):
        monkeypatch.setitem(byte_readers.READERS, "wrong", (reader, ()))
        with pytest.raises(byte_readers.BrokenPromiseError, match=words):
            byte_readers.read("wrong", b"x", folder)
