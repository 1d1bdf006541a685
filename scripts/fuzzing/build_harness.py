"""Build the C library with the harness of tests/native, and write the nodes that it runs.

python scripts/fuzzing/build_harness.py FOLDER [NAME...]

FOLDER gets a folder `nodes` and a program of each NAME: gcc-address, gcc-thread, clang-address and
clang-thread (harness.c, under AddressSanitizer and UndefinedBehaviorSanitizer, or under
ThreadSanitizer), and fuzz (fuzz.c, for libFuzzer). Programs are left out, with a message, if the
compiler or the sanitizer is lacking. On x86-64 they run on every x86-64-v3 CPU and need only the C
library of this system. The variable CLANG names another clang than clang or clang-14.
"""

import argparse
import os
import platform
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import add_tests_to_path  # noqa: F401
from support import native, nodes

CLANG = os.environ.get("CLANG") or next(filter(shutil.which, ("clang", "clang-14")), "clang")
THREAD = ["-fsanitize=thread"]
FUZZER = ["-fsanitize=fuzzer-no-link,address,undefined", "-fno-sanitize-recover=all"]
PROGRAMS = {  # {name: (compiler, sanitizers, options of the linker)}
    "gcc-address": ("gcc", native.SANITIZED, ["-static-libasan", "-static-libubsan"]),
    "gcc-thread": ("gcc", THREAD, ["-static-libtsan"]),
    "clang-address": (CLANG, native.SANITIZED, ["-static-libgcc"]),
    "clang-thread": (CLANG, THREAD, ["-static-libgcc"]),
    "fuzz": (CLANG, FUZZER, ["-fsanitize=fuzzer", "-static-libgcc", "-static-libstdc++"]),
}


def build(name, folder):
    """Build a program, unless its compiler can't."""
    compiler, sanitizers, links = PROGRAMS[name]
    main = "fuzz" if name == "fuzz" else "harness"
    if not native.accepts(compiler, sanitizers):
        print(
            f"{name} is left out: there is no {compiler} that accepts {' '.join(sanitizers)}",
            file=sys.stderr,
        )
        return
    types = {
        o: t
        for o, t in nodes.TYPES.items()
        if main == "harness" or o not in nodes.WITH_KERNELS or o in nodes.SAFE
    }
    level = (
        {"cpu": "x86-64-v3", "level": ("x86-64-v3", "linux")}
        if platform.machine() == "x86_64"
        else {}
    )
    with TemporaryDirectory() as folder_of_objects:
        made_at = native.build(
            Path(folder_of_objects),
            types,
            nodes.IN_PYTHON,
            compiler=compiler,
            sanitizers=sanitizers,
            links=links,
            main=main,
            **level,
        )
        shutil.move(made_at, folder / name)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(PROGRAMS):
        parser.error(f"there is no program {', '.join(unknown)}")
    (arguments.folder / "nodes").mkdir(parents=True, exist_ok=True)
    native.write(arguments.folder / "nodes", nodes.descriptions())
    for name in arguments.names or PROGRAMS:
        build(name, arguments.folder)


if __name__ == "__main__":
    main()
