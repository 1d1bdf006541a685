"""Change one operator, number, condition or statement of the package at a time, and count which changes no test sees.

    python scripts/mutation_score.py FOLDER [--minutes N] [--each N] [--processes N] [--coverage FOLDER] [--write]

Mutants are drawn by a seed, equally many in each folder of the package, of Python and of C. They are tried in clones
of what is committed, one for each process, in FOLDER. Tests that have run the line come first, if --coverage names the
folder of an earlier `coverage_figures.py`, then the test files of the mutant's folder. A test that fails, or takes too
long, counts if it passes without the mutant. Mutants that survive are printed, to be judged: some are equivalent to the
original. Those with tests still running at the end are not decided; most of them would survive.

Kernels that a mutant changes are compiled again, in a copy of the user's cache of kernels. mutmut and cosmic-ray don't
support C. A mutant of mutmut chooses between functions when it is called, which Numba can't compile.
"""

import argparse
import ast
import copy
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import budget
import clones
import pages

from onnx_ops.compiler import cache

PAGE = "docs/robustness.md"
LONGEST = 240  # seconds of processor time for a process with tests of a mutant
WAITING = 900  # seconds after which such a process waits in vain
TRIES = 2  # of such a process, each of which finds in the cache what the one before has compiled of changed kernels
SURVIVES, UNDECIDED = "SURVIVES", "not decided"
LONG = "not huge and not ray and not soak and not wine"
MOST = 12  # tests that have run a mutant's line, and are tried first
# {room: tests that run what it has}. `uncompiled` runs kernels without Numba.
ROOMS = {
    "onnx_ops": "names requirements imports operators sessions",
    "onnx_ops/ahead": "build warmup",
    "onnx_ops/arrays": "operators uncompiled node_cases custom",
    "onnx_ops/cli": "cli many_files tools bench",
    "onnx_ops/compiler": "cache vectors elements custom",
    "onnx_ops/custom": "custom third_operator",
    "onnx_ops/declaration": "attributes errors uncompiled layout",
    "onnx_ops/detection": "uncompiled roi_align deform_conv deformable_attention exact",
    "onnx_ops/fold": "uncompiled backends errors inference exact",
    "onnx_ops/kernels": "uncompiled vectors elements custom exact operators",
    "onnx_ops/model": "model_files schemas encodings hostile_models names rewriting_facts",
    "onnx_ops/native": "native text machine attributes errors sessions hostile_models constants custom library",
    "onnx_ops/openmmlab": "uncompiled mmdeploy exact",
    "onnx_ops/export": "torch torch_operators",
    "onnx_ops/processes": "processes many_files python_ops",
    "onnx_ops/rewriting": "rewriting rewriting_grids rewriting_products rewriting_facts rewriting_places",
    "onnx_ops/rewriting/patterns": "rewriting rewriting_by_hand rewriting_affine_grids rewriting_places",
    "onnx_ops/sampling": "uncompiled backends errors inference exact rewriting_grids",
    "onnx_ops/session": "sessions lowering runner plans backends",
    "onnx_ops/system": "system files interrupts on_import",
}
COMPARED = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
            ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is}  # fmt: skip
COMPUTED = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
            ast.Mod: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift,
            ast.RShift: ast.LShift}  # fmt: skip
IN_C = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&", "+": "-",
        "++": "--", "+=": "-=", "-=": "+="}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A file of the package with other bytes at one place: content[begin:end] = new."""

    file: str
    line: int
    begin: int
    end: int
    new: str

    @property
    def room(self):
        return str(Path(self.file).parent)

    def described(self, root):
        old = (root / self.file).read_bytes()[self.begin : self.end].decode()
        return f"{self.file}:{self.line}: {shown(old)} -> {shown(self.new)}"


def shown(text):
    text = " ".join(text.split())
    return text if len(text) <= 70 else f"{text[:50]} ... {text[-15:]}"


# What can be changed


def of_python(file, text):
    """Yield the mutants of a module. Its texts stay, and so do annotations and defaults."""
    lines = [0]
    for line in text.splitlines(keepends=True):
        lines.append(lines[-1] + len(line.encode()))

    def mutant(node, new):
        begin, end = lines[node.lineno - 1] + node.col_offset, lines[node.end_lineno - 1] + node.end_col_offset
        return Mutant(file, node.lineno, begin, end, new)

    for node in walk(ast.parse(text)):
        if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARED:
            yield mutant(node, edited(node, ops=[COMPARED[type(node.ops[0])](), *node.ops[1:]]))
        elif (
            isinstance(node, ast.BinOp)
            and type(node.op) in COMPUTED
            and not isinstance(node.left, ast.Constant | ast.JoinedStr)
        ):
            yield mutant(node, edited(node, op=COMPUTED[type(node.op)]()))
        elif isinstance(node, ast.BoolOp):
            yield mutant(node, edited(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And()))
        elif isinstance(node, ast.Constant) and type(node.value) in (int, bool):
            yield mutant(node, str(not node.value if type(node.value) is bool else node.value + 1))
        elif isinstance(node, ast.If | ast.While | ast.IfExp):
            yield mutant(node.test, f"(not ({ast.unparse(node.test)}))")
        elif isinstance(node, ast.Expr | ast.AugAssign | ast.Raise) and not isinstance(
            getattr(node, "value", None), ast.Constant
        ):
            yield mutant(node, "pass")


def walk(node):
    """Yield the nodes below one that can be changed."""
    for name, value in ast.iter_fields(node):
        for each in value if isinstance(value, list) else [value]:
            is_fixed = name in ("annotation", "returns", "args", "decorator_list") and not isinstance(node, ast.Call)
            if isinstance(each, ast.AST) and not is_fixed and not isinstance(each, ast.JoinedStr):
                yield each
                yield from walk(each)


def edited(node, **fields):
    other = copy.copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return f"({ast.unparse(other)})"


def of_c(file, text):
    """Yield the mutants of a file of C: of its functions, in which lines are indented."""
    for match in budget.C.finditer(text):
        line = text[text.rfind("\n", 0, match.start()) + 1 : (text + "\n").index("\n", match.end())]
        if match["comment"] or match["string"] or not line.startswith(" ") or line.lstrip().startswith(("#", "*")):
            continue
        token, number = match[0], text.count("\n", 0, match.start()) + 1
        spaced = text[match.start() - 1] == " " == text[match.end() : match.end() + 1]
        if (
            token in IN_C
            and (spaced or token == "++")
            and not re.search(r"for \(.*\+\+", line if token == "++" else "")
        ):
            yield Mutant(file, number, match.start(), match.end(), IN_C[token])
        elif re.fullmatch(r"\d+", token) and text[match.start() - 1] not in "[.":
            yield Mutant(file, number, match.start(), match.end(), str(int(token) + 1))
        elif token == "if":
            end = closing(text, text.index("(", match.end()))
            yield Mutant(file, number, match.end() + 1, end, f"(!{text[match.end() + 1 : end]})")
        elif (
            re.fullmatch(r" +[\w>.-]+\(.*\);", line)
            and line.strip().startswith(token)
            and not line.strip().startswith("return")
        ):
            begin = match.start()
            yield Mutant(file, number, begin, text.index(";", begin) + 1, ";")


def closing(text, begin):
    """Return the position after the parenthesis that closes the one at a position."""
    depth = 0
    for at in range(begin, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if not depth:
            return at + 1
    raise ValueError("no closing parenthesis")


def drawn(root, each, seed, rooms):
    """Return mutants in turns: one of each room, then the next ones."""
    by_room, rng = defaultdict(list), random.Random(seed)
    for path in sorted((root / "onnx_ops").rglob("*.*")):
        file, make = path.relative_to(root).as_posix(), {".py": of_python, ".c": of_c}.get(path.suffix)
        if make and "__pycache__" not in file:
            text = path.read_text("utf-8" if path.suffix == ".py" else "latin-1")  # positions are those of bytes
            by_room[str(Path(file).parent)] += make(file, text)
    if unknown := by_room.keys() - ROOMS:
        raise SystemExit(f"ROOMS names no tests of {', '.join(unknown)}")
    if lacking := [name for name in " ".join(ROOMS.values()).split() if not clones.tests_named(root, f"test_{name}")]:
        raise SystemExit(f"ROOMS names tests that there aren't: {', '.join(lacking)}")
    for found in by_room.values():
        rng.shuffle(found)
    return [by_room[room][k] for k in range(each) for room in rooms if k < len(by_room[room])]


# Trying them


class UndecidedError(Exception):
    """The time for all mutants has ended, or tests of one take too long with it and without it."""


class Trials:
    """A clone in which mutants are tried, one after the other.

    end       when the time ends, by time.monotonic
    contexts  {file: {line: names of test functions}}, as far as known
    passing   {arguments of pytest: whether these tests pass without a mutant}
    """

    def __init__(self, root, kernels, end, contexts):
        self.root, self.end, self.contexts, self.passing = root, end, contexts, {}
        shutil.rmtree(root, ignore_errors=True)  # an earlier run may have left a mutant
        clones.clone(root)
        self.environment = clones.environment(root, NUMBA_CACHE_DIR=kernels, PYTHONDONTWRITEBYTECODE=1)
        self.build()

    def build(self):
        """Build the C library; returns whether that was possible."""
        command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
        library = next((self.root / "onnx_ops" / "native").glob("*onnx_ops.*"), None)
        if library:
            library.unlink()
        subprocess.run(command, cwd=self.root, env=self.environment, capture_output=True)
        return any((self.root / "onnx_ops" / "native").glob("*onnx_ops.*"))

    def failure(self, arguments):
        """Run tests; returns the first that fails, "too long", or None."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider"]
        process = subprocess.Popen(
            [*command, *arguments],
            cwd=self.root, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", start_new_session=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (LONGEST, LONGEST)),
        )  # fmt: skip
        left = self.end - time.monotonic()
        try:
            output, _ = process.communicate(timeout=max(0, min(left, WAITING)))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            if left < WAITING:
                raise UndecidedError from None
        if process.returncode in (-signal.SIGKILL, -signal.SIGXCPU):
            return "too long"
        if process.returncode == 5 and "-m" not in arguments:  # no tests but those that the long run has
            return self.failure([*arguments, "-m", LONG])
        if process.returncode in (0, 5):
            return None
        found = re.search(r"^(?:FAILED|ERROR) (tests/\S+?(?:\[.*?\])?)(?: - .*)?$", output, re.MULTILINE)
        return found[1] if found else f"status {process.returncode}"

    def killer(self, mutant):
        """Return the test that sees a mutant, or None. Raises UndecidedError if tests take too long without it, too."""
        path = self.root / mutant.file
        original = path.read_bytes()
        selections, left_out, undecided = self.selections(mutant), set(), False
        for selection in selections:
            while True:
                arguments = [*selection, *(f"--deselect={test}" for test in left_out)]
                path.write_bytes(original[: mutant.begin] + mutant.new.encode() + original[mutant.end :])
                try:
                    if path.suffix == ".c" and not self.build():
                        return "the compiler"
                    failed = next((f for _ in range(TRIES) if (f := self.failure(arguments)) != "too long"), "too long")
                finally:
                    path.write_bytes(original)
                if failed is None:
                    break
                if path.suffix == ".c":
                    self.build()
                if self.passes(failed if failed.startswith("tests/") else selection):
                    return failed
                if not failed.startswith("tests/"):
                    undecided = True
                    break
                left_out.add(failed)
        if path.suffix == ".c":
            self.build()
        if undecided:
            raise UndecidedError
        return None

    def passes(self, tests):
        tests = [tests] if isinstance(tests, str) else tests
        if tuple(tests) not in self.passing:
            self.passing[tuple(tests)] = self.failure(tests) is None
        return self.passing[tuple(tests)]

    def selections(self, mutant):
        """Return lists of arguments for pytest: first tests that have run the line, then those of the room."""
        tests = sorted(self.contexts.get(mutant.file, {}).get(mutant.line, ()))
        name = f"test_{Path(mutant.file).stem}."
        random.Random(0).shuffle(tests)
        tests.sort(key=lambda each: not each.startswith(name))
        known = [each for each in map(self.path_of, tests) if each][:MOST]
        files = [path for name in ROOMS[mutant.room].split() for path in clones.tests_named(self.root, f"test_{name}")]
        return [*([known] if known else []), *([file] for file in files)]

    def path_of(self, context):
        """Return the test function of a context of coverage, as an argument for pytest."""
        module, _, function = context.partition(".")
        paths = clones.tests_named(self.root, module)
        return f"{paths[0]}::{function.replace('.', '::')}" if paths else None


def contexts_of(folder):
    """Return {file: {line: names of the test functions that have run it}} from what coverage has measured."""
    import coverage

    data, contexts = coverage.CoverageData(str(folder / "data" / "python")), {}
    data.read()
    for path in data.measured_files():
        by_line = data.contexts_by_lineno(path)
        contexts[path.partition("/clone/")[2]] = {
            n: {c for c in names if c.startswith("test_")} for n, names in by_line.items()
        }
    return contexts


def tried(mutant, free, end):
    """Try a mutant in a clone that is free, print what becomes of it, and return that; None if the time has ended."""
    if time.monotonic() >= end:
        return None
    trials = free.get()
    try:
        text, outcome = mutant.described(trials.root), UNDECIDED
        killer = trials.killer(mutant)
        outcome = f"seen by {killer}" if killer else SURVIVES
    except UndecidedError:
        pass
    finally:
        free.put(trials)
    print(f"{text}\n  {outcome}", flush=True)
    return outcome


def table(counts):
    """Return {room: Counter of "mutants" and "survive"} as a table."""
    total = sum(counts.values(), Counter())
    rows = [*((f"`{room}`", counts[room]) for room in sorted(counts)), ("all", total)]
    lines = [
        f"| {name} | {c['mutants']} | {c['survive']} | {100 * c['survive'] / c['mutants']:.0f} % |" for name, c in rows
    ]
    return "\n".join(["| folder | mutants | survive | share |", "|---|---:|---:|---:|", *lines])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=lambda text: Path(text).resolve())
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--each", type=int, default=20, help="mutants of each folder, if the time allows")
    parser.add_argument("--room", dest="rooms", action="append", choices=ROOMS, help="a folder; may be repeated")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1, help="how many mutants are tried at a time")
    parser.add_argument("--coverage", type=Path)
    parser.add_argument("--write", action="store_true", help=f"write the table into {PAGE}")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    end, kernels = time.monotonic() + 60 * options.minutes, options.folder / "kernels"
    if not kernels.exists():
        shutil.copytree(cache.directory(), kernels / cache.ROOT, copy_function=os.link)
    contexts = contexts_of(options.coverage) if options.coverage else {}
    counts, undecided, free = defaultdict(Counter), 0, SimpleQueue()
    with ThreadPoolExecutor(options.processes) as threads:
        roots = [options.folder / f"clone{k}" for k in range(options.processes)]
        for trials in threads.map(lambda root: Trials(root, kernels, end, contexts), roots):
            free.put(trials)
        mutants = drawn(trials.root, options.each, options.seed, options.rooms or ROOMS)
        outcomes = threads.map(lambda mutant: tried(mutant, free, end), mutants)
        for mutant, outcome in zip(mutants, outcomes, strict=True):
            undecided += outcome == UNDECIDED
            if outcome not in (None, UNDECIDED):
                counts[mutant.room] += Counter(mutants=1, survive=outcome == SURVIVES)
    text = f"{table(counts)}\n\n{undecided} more were not decided, in the time or by tests that take too long."
    print(text)
    if options.write:
        pages.put("mutants", text, PAGE)


if __name__ == "__main__":
    main()
