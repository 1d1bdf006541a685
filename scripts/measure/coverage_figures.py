"""Measure which lines and branches of the package its tests run, in Python and in C, by folder.

python scripts/measure/coverage_figures.py FOLDER
    run the whole suite, print the table
python scripts/measure/coverage_figures.py FOLDER --pytest "-m long tests/native/test_native.py"
    run other tests
python scripts/measure/coverage_figures.py FOLDER --report --missing
    run nothing, list what no test has run so far
python scripts/measure/coverage_figures.py FOLDER --report --write
    write the table of docs/robustness.md
python scripts/measure/coverage_figures.py FOLDER --with OTHER/python.json ...
    add the lines of Python run elsewhere

FOLDER gets a clone of what is committed, and the figures of all runs add up there. This needs gcc
and the package coverage. A gcc and cc of its own, first on the PATH, compile the library and the
harness with counters and without optimization. Processes that tests start are measured; those that
a signal ends are not. Kernels count as run where a test runs them uncompiled (test_uncompiled.py),
and what compiles them where it does: unless NUMBA_CACHE_DIR names a cache of kernels, FOLDER gets
one, which is empty at first.
"""

import argparse
import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import add_tests_to_path  # noqa: F401
import clones
from support import pages

PAGE = "docs/robustness.md"
GCC = """#!/bin/sh
for each do shift; case $each in -fsanitize=* | -O?) ;; *) set -- "$@" "$each" ;; esac; done
exec {} --coverage -DONNX_OPS_COUNTED -O0 "$@"
"""
SETTINGS = """
[run]
branch = true
source = {clone}/onnx_ops
data_file = {folder}/data/python
parallel = true
patch = subprocess, _exit, fork
disable_warnings = no-data-collected, module-not-imported, module-not-measured, couldnt-parse,
    already-imported
[report]
exclude_also =
    if TYPE_CHECKING:
    ^@overload$
"""
COLUMNS = "lines", "branches"
IN_C = "onnx_ops/native/*.[ch]"


class Room:
    """The parts of a folder that can be run, and those that were: {"lines": (run, all), "branches":
    (run, all)}.

    missing  {file: texts}
    """

    def __init__(self):
        self.run, self.all, self.missing = Counter(), Counter(), {}

    def add(self, file, missing, **counts):
        for column, (run, every) in counts.items():
            self.run[column] += run
            self.all[column] += every
        if missing:
            self.missing[file] = missing

    def cells(self):
        for column in COLUMNS:
            run, every = self.run[column], self.all[column]
            yield f"{every:,}" if every else ""
            yield f"{100 * run / every:.1f} %" if every else ""


def prepare(folder):
    """Clone what is committed, and build the library there by the gcc that counts; returns the
    clone's environment.
    """
    clone, settings = folder / "clone", folder / "coverage.ini"
    variables = {
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "NUMBA_CACHE_DIR": os.environ.get("NUMBA_CACHE_DIR", folder / "kernels"),
        "COVERAGE_PROCESS_START": settings, "COVERAGE_CORE": "ctrace",
    }  # fmt: skip
    environment = clones.environment(clone, **variables)
    if clone.exists():
        return environment
    for subfolder in ("bin", "data", "temporary"):
        (folder / subfolder).mkdir(parents=True, exist_ok=True)
    clones.clone(clone)
    for name in ("gcc", "cc"):
        compiler = folder / "bin" / name
        compiler.write_text(GCC.format(shutil.which("gcc")))
        compiler.chmod(0o755)
    settings.write_text(SETTINGS.format(clone=clone, folder=folder))
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    subprocess.run(
        command, cwd=clone, env={**environment, "COVERAGE_PROCESS_START": ""}, check=True
    )
    return environment


def run_tests(folder, arguments):
    environment = prepare(folder)
    temporary = folder / "temporary" / str(len(os.listdir(folder / "temporary")))
    command = [sys.executable, "-m", "pytest", "-q", f"--basetemp={temporary}", *arguments]
    status = subprocess.run(command, cwd=folder / "clone", env=environment).returncode
    if status:
        print(f"pytest has ended with status {status}: lines that failing tests ran are counted")


def compiled_alone(path):
    """Return the lines of a module that exist in compiled code alone: loops of vectors, which
    decorators give to Numba.

    These are functions marked `inner`, and in simd_*.py functions in functions, except in those
    that emit LLVM's instructions. test_vectors.py compares each loop with the plain one of
    kernels/vectors.py.
    """
    tree = ast.parse(path.read_text("utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    loops = [
        node
        for node in functions
        if any(ast.unparse(name) == "inner" for name in node.decorator_list)
    ]
    for outer in tree.body if path.match("compiler/simd_*.py") else ():
        if outer in functions and not any(
            ast.unparse(name).startswith("operation(") for name in outer.decorator_list
        ):
            loops += [node for node in ast.walk(outer) if node in functions and node is not outer]
    lines = (
        (min([loop.lineno, *(name.lineno for name in loop.decorator_list)]), loop.end_lineno)
        for loop in loops
    )
    return {n for first, last in lines for n in range(first, last + 1)}


def parts(coverage_of_file, state):
    """Return the lines (n,) and the branches (a, b) of a file that were "executed", or are
    "missing".
    """
    return {(n,) for n in coverage_of_file[f"{state}_lines"]} | {
        tuple(branch) for branch in coverage_of_file[f"{state}_branches"]
    }


def of_python(folder, rooms, reports_of_others):
    """Add what coverage has measured to {folder of the package: Room}, with other machines' reports
    on the commit.
    """
    import coverage

    measured = coverage.Coverage(
        data_file=str(folder / "data" / "python"), config_file=str(folder / "coverage.ini")
    )
    measured.combine(keep=True)
    measured.save()
    report = folder / "python.json"
    measured.json_report(outfile=str(report), pretty_print=False)
    elsewhere = defaultdict(set)
    for path in reports_of_others:
        for name, coverage_of_file in json.loads(path.read_text())["files"].items():
            elsewhere[name.rpartition("/clone/")[2]] |= parts(coverage_of_file, "executed")
    for path, coverage_of_file in json.loads(report.read_text())["files"].items():
        file = Path(
            os.path.relpath(
                folder / "clone" / path if not os.path.isabs(path) else path, folder / "clone"
            )
        )
        left_out, missing = (
            compiled_alone(folder / "clone" / file),
            parts(coverage_of_file, "missing"),
        )
        every = {
            line_or_branch
            for line_or_branch in parts(coverage_of_file, "executed") | missing
            if line_or_branch[0] not in left_out
        }
        missing = (missing & every) - elsewhere[file.as_posix()]
        run = every - missing
        rooms[file.parent.as_posix()].add(
            file.as_posix(),
            [
                "->".join(map(str, line_or_branch))
                for line_or_branch in sorted(
                    missing, key=lambda line_or_branch: (len(line_or_branch), line_or_branch)
                )
            ],
            lines=(
                sum(len(line_or_branch) == 1 for line_or_branch in run),
                sum(len(line_or_branch) == 1 for line_or_branch in every),
            ),
            branches=(
                sum(len(line_or_branch) == 2 for line_or_branch in run),
                sum(len(line_or_branch) == 2 for line_or_branch in every),
            ),
        )


def gcov(path):
    """Return what gcov prints about the counters of a program's part."""
    command = ["gcov", "--json-format", "--stdout", "--branch-probabilities", str(path)]
    return subprocess.run(command, cwd=path.parent, capture_output=True, text=True).stdout


def of_c(folder, rooms):
    """Add what gcov has counted, over all programs that were built of the sources, to {folder:
    Room}.
    """
    lines, branches = defaultdict(Counter), defaultdict(dict)
    with ThreadPoolExecutor() as threads:
        printed = list(threads.map(gcov, folder.rglob("*.gcda")))
    for text in printed:
        for coverage_of_file in (
            coverage_of_file
            for line in text.splitlines()
            for coverage_of_file in json.loads(line)["files"]
        ):
            file = re.search(r"onnx_ops/native/\w+\.[ch]$", coverage_of_file["file"])
            for line in coverage_of_file["lines"] if file else ():
                number, jumps = line["line_number"], line["branches"]
                lines[file[0]][number] += line["count"]
                # A line of a macro has others where it is compiled with other definitions.
                counts = branches[file[0], number].setdefault(len(jumps), Counter())
                counts.update({k: jump["count"] for k, jump in enumerate(jumps)})
    for file, counts in lines.items():
        missing, run, every = [str(n) for n in sorted(counts) if not counts[n]], 0, 0
        for number in sorted(counts):
            of_line = branches[file, number]
            entered = {size: sum(1 for k in range(size) if of_line[size][k]) for size in of_line}
            size = max(entered, key=lambda size: (entered[size] / size if size else 0, size))
            run, every = run + entered[size], every + size
            if entered[size] < size and counts[number]:
                missing.append(f"{number}: {entered[size]} of {size} branches")
        rooms[IN_C].add(
            file,
            missing,
            lines=(len(counts) - sum(not c for c in counts.values()), len(counts)),
            branches=(run, every),
        )


def table(rooms):
    """Return the rooms as a table."""
    total = Room()
    for name, coverage_of_folder in rooms.items():
        if name != IN_C:
            total.run += coverage_of_folder.run
            total.all += coverage_of_folder.all
    named = {name: f"`{name}`" for name in sorted(rooms)} | {
        "onnx_ops": "`onnx_ops`, modules beside the folders"
    }
    rows = [*((text, rooms[name]) for name, text in named.items()), ("all of Python", total)]
    header = "| folder | lines | run | branches | run |\n|---|---:|---:|---:|---:|"
    return "\n".join(
        [
            header,
            *(
                f"| {name} | {' | '.join(coverage_of_folder.cells())} |"
                for name, coverage_of_folder in rows
            ),
        ]
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=lambda text: Path(text).resolve())
    parser.add_argument("--report", action="store_true", help="run nothing")
    parser.add_argument("--missing", action="store_true", help="print what no test has run")
    parser.add_argument("--write", action="store_true", help=f"write the table into {PAGE}")
    parser.add_argument(
        "--with", dest="others", type=Path, action="append", default=[], metavar="PYTHON.JSON"
    )
    parser.add_argument(
        "--pytest", metavar="ARGUMENTS", default="-n logical -m 'not huge and not ray and not soak'"
    )
    options = parser.parse_args()
    if not options.report:
        run_tests(options.folder, shlex.split(options.pytest))
    rooms = defaultdict(Room)
    of_python(options.folder, rooms, options.others)
    of_c(options.folder, rooms)
    if options.missing:
        for coverage_of_folder in rooms.values():
            for file, missing in coverage_of_folder.missing.items():
                print(f"{file}: {', '.join(missing)}")
    print(table(rooms))
    if options.write:
        pages.put("coverage", table(rooms), PAGE)


if __name__ == "__main__":
    main()
