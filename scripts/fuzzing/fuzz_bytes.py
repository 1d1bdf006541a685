"""Fuzz what reads bytes in Python, guided by coverage: models, their external data, inputs,
compiled code in the cache.

Each input is given to one of the readers of tests/support/byte_readers.py, which states what it
promises. Inputs that break a promise are kept in FOLDER/findings, one of each kind, and printed;
the corpus is kept, too, and grows over runs. This needs the package atheris, on Linux; without it
nothing is run.

python scripts/fuzzing/fuzz_bytes.py FOLDER [--minutes N] [--reader NAME ...]
    N: for all readers together, 60 by default
python scripts/fuzzing/fuzz_bytes.py FOLDER --replay FILE ...
    read inputs again, whose names begin with the reader
"""

import argparse
import hashlib
import importlib.util
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import add_tests_to_path  # noqa: F401

LONGEST = 2**14  # bytes of an input
MEMORY = 4096  # MiB
# What the coverage is of. What Numba compiles must stay as it is.
GUIDED = "cli/data cli/reading cli/items compiler/cache model/ rewriting/ session/lowering"


def fuzz(name, folder, seconds):
    """Fuzz one reader in this process, which ends with it."""
    import atheris

    with atheris.instrument_imports(include=["onnx_ops"], exclude=list(not_guided())):
        from support import byte_readers

    work = byte_readers.prepare(tempfile.mkdtemp(dir=folder))
    corpus, findings, seeds = (
        folder / "corpus" / name,
        folder / "findings",
        byte_readers.seeds(name),
    )
    for folder_of_inputs in corpus, findings:
        folder_of_inputs.mkdir(parents=True, exist_ok=True)
    for content in seeds:
        (corpus / hashlib.sha1(content).hexdigest()).write_bytes(content)
        byte_readers.read(name, content, work)
    names_of_findings = {path.name for path in findings.iterdir()}

    def one_input(content):
        try:
            byte_readers.read(name, content, work)
        except byte_readers.BrokenPromiseError as finding:
            name_of_finding = f"{name}-{hashlib.sha1(origin(finding).encode()).hexdigest()[:10]}"
            if name_of_finding not in names_of_findings:
                names_of_findings.add(name_of_finding)
                (findings / name_of_finding).write_bytes(content)
                print(f"{findings / name_of_finding}: {finding}\n  {origin(finding)}", flush=True)

    def change(content, size, seed):
        if random.Random(seed).random() < 0.5:
            return atheris.Mutate(content, size)
        return byte_readers.changed(name, content, seeds, seed)[:size]

    settings = [
        f"-max_total_time={seconds}",
        f"-max_len={LONGEST}",
        f"-rss_limit_mb={MEMORY}",
        "-timeout=60",
    ]
    settings += ["-verbosity=0", "-print_final_stats=1", f"-artifact_prefix={findings}/{name}-"]
    atheris.Setup([sys.argv[0], *settings, str(corpus)], one_input, custom_mutator=change)
    atheris.Fuzz()


def not_guided():
    """Yield the names of the package's other modules."""
    package = Path(__file__).parents[2] / "onnx_ops"
    for path in package.rglob("*.py"):
        name = path.relative_to(package).with_suffix("").as_posix()
        if not name.startswith(tuple(GUIDED.split())):
            yield f"onnx_ops.{name}".replace("/", ".").removesuffix(".__init__")


def origin(finding):
    """Return where a finding comes from, which those of one kind share."""
    if finding.__cause__ is None:
        return str(finding)[:40]
    frame = traceback.extract_tb(finding.__cause__.__traceback__)[-1]
    return f"{type(finding.__cause__).__name__} at {frame.filename}, line {frame.lineno}"


def replay(folder, paths):
    from support import byte_readers

    work = byte_readers.prepare(tempfile.mkdtemp(dir=folder))
    for path in paths:
        try:
            byte_readers.read(path.name.partition("-")[0], path.read_bytes(), work)
            print(f"{path}: none")
        except byte_readers.BrokenPromiseError as finding:
            traceback.print_exception(finding)


def main():
    from support.byte_readers import READERS

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=lambda text: Path(text).resolve())
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument(
        "--reader", dest="readers", action="append", choices=READERS, help="may be repeated"
    )
    parser.add_argument("--replay", nargs="+", type=Path, metavar="FILE")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.replay:
        replay(options.folder, options.replay)
        return
    if not importlib.util.find_spec("atheris"):
        print("skipped: the package atheris is not installed")
        return
    names = options.readers or list(READERS)
    for name in names:
        end = time.monotonic() + 60 * options.minutes / len(names)
        while (
            seconds := int(end - time.monotonic())
        ) > 0:  # again after an input that ends the process
            command = [sys.executable, __file__, str(options.folder)]
            status = subprocess.run(
                command, env={**os.environ, "FUZZ_ONE": f"{name} {seconds}"}
            ).returncode
            print(f"{name}: ended with status {status}", flush=True)
        for directory in options.folder.glob("tmp*"):
            shutil.rmtree(directory)


if __name__ == "__main__":
    if fuzzed_reader := os.environ.get("FUZZ_ONE"):  # before anything of the package is imported
        fuzz(fuzzed_reader.split()[0], Path(sys.argv[1]), int(fuzzed_reader.split()[1]))
    else:
        main()
