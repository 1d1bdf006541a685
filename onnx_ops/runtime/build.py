"""Building a shared library of the operators, for ONNX Runtime in any process, with or without Python."""

import ctypes as C
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..errors import OpError
from ..files import staged_file
from ..kernels.jit import numba_obstacle
from ..operators import OPERATORS
from ..own.files import places
from . import table, variants
from .execute import cpus as cpus_of_process
from .workers import share_out

SOURCES = Path(__file__).parent.parent / "native"
FLAGS = ["-std=c11", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-DONNX_OPS_AHEAD"]
if sys.platform == "linux":  # ONNX Runtime unloads it with its last session, but not what it has allocated for ever
    FLAGS += ["-Wl,-z,nodelete", "-Wl,--no-undefined"]
UNDEFINED = re.compile(r"undefined reference to [`'](\w+)")  # as linkers complain
CROSS = {"aarch64": "aarch64-linux-gnu-gcc", "x86_64": "x86_64-linux-gnu-gcc"}  # where cc is for another architecture


def build(
    output: "str | os.PathLike[str]",
    *,
    operators: Iterable[Any] | None = None,
    dtypes: Iterable[str] | None = None,
    cpus: Iterable[str] | None = None,
    jobs: int | None = None,
    progress: Callable[[str, int, int], object] | None = None,
) -> None:
    """Write a library with these operators, for `register_custom_ops_library` of any ONNX Runtime.

    output     where to; what is there stays until the new library is complete
    operators  names as in models, such as "GridSample", or what `onnx_ops.operator` has made, with a kernel. Default:
               all of this package
    dtypes     element types of the operators' tensors, such as "float32": all combinations of these. Default: all
    cpus       "x86-64-v2", "x86-64-v3", "x86-64-v4", or "armv8-a": the library has code for each of these, and runs the
               last one that it finds it can. Default: all of this machine's architecture
    jobs       processes that compile side by side; default: as many as there are CPUs
    progress   called before each kernel with (its name, its index, how many there are)

    What has been compiled before is only linked. Raises OpError, also where there is no Numba or no C compiler.
    """
    if lack := numba_obstacle():
        raise OpError(None, None, lack, "onnx_ops")
    if jobs is not None and jobs < 1:
        raise OpError("jobs", jobs, "must be at least 1", "onnx_ops")
    from ..kernels import target

    cpus = list(cpus or [name for name, (kind, *_) in target.LEVELS.items() if kind == target.architecture()])
    cpus.sort(key=lambda cpu: list(target.LEVELS).index(cpu) if cpu in target.LEVELS else -1)
    kinds = {target.level(cpu).triple.partition("-")[0] for cpu in cpus}
    if len(kinds) != 1:
        raise OpError("cpu", ", ".join(cpus), "must be of one architecture", "onnx_ops")
    compiler = c_compiler(kinds.pop())
    meant = variants.chosen(operators) if operators is not None else list(OPERATORS)
    wanted = variants.asked_for(meant, dtypes, variants.TYPES, variants.TYPES, operators is None)
    own = places(operator for operator in meant if operator.is_function)
    tasks, found = variants.tasks(wanted), {}
    for k, cpu in enumerate(cpus):

        def of_all(name, index, total, k=k, cpu=cpu):
            if progress:
                progress(f"{cpu}: {name}", k * total + index, len(cpus) * total)

        answers = share_out(objects, tasks, jobs or len(cpus_of_process()), of_all, level=cpu, own=own)
        found[cpu] = dict(zip(wanted, answers, strict=True))
    try:
        with TemporaryDirectory() as folder:
            link(compiler, found, meant, wanted, Path(folder), Path(output))
    except OSError as error:
        raise OpError(
            "output", repr(str(output)), f"can't be written: {error.strerror or error}", "onnx_ops"
        ) from error


def objects(*variant):
    """What a worker makes of one variant (variants.py): [symbol, file] of each of its functions."""
    return [[code.symbol, str(code.kept.path)] for code in variants.codes(*variant)]


def c_compiler(architecture):
    """The command of a C compiler for an architecture, as words. Raises OpError."""
    from ..kernels import target

    given = shlex.split(os.environ.get("CC", ""))
    commands = [given] if given else [["cc"], ["gcc"], ["clang"]]
    if architecture != target.architecture() and not given:
        commands = [[CROSS[architecture]]]
    for command in commands:
        if shutil.which(command[0]):
            return command
    names = " or ".join(command[0] for command in commands)
    rule = f"there is no C compiler called {names}; install one, or name another in the variable CC"
    raise OpError(None, None, rule, "onnx_ops")


def link(compiler, found, operators, wanted, folder, output):
    """Make the library of what the workers have `found` of the variants that were `wanted` of these operators, for each
    CPU.
    """
    from ..kernels.cache import object_in

    files, text = [], Text()
    for cpu, objects_of in found.items():
        for symbol, path in {tuple(each) for made in objects_of.values() for each in made}:
            files.append(folder / f"{symbol}.o")
            files[-1].write_bytes(object_in(path))
        text.level(cpu, operators, wanted, objects_of)
    (folder / "levels.c").write_text(text.finished())
    command = [*compiler, *FLAGS, f"-I{SOURCES}", *sorted(SOURCES.glob("*.c")), folder / "levels.c", *files, "-lm"]
    with staged_file(output) as place:
        done = subprocess.run([*map(str, command), "-o", str(place)], capture_output=True, text=True)
        if done.returncode or not place.exists():
            if lacking := sorted(set(UNDEFINED.findall(done.stderr))):
                rule = f"a kernel calls {', '.join(lacking)}, which can't be linked; write it otherwise"
                raise OpError(None, None, rule, "onnx_ops")
            lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()[-1:]
            said = " ".join(lines[:3]) or f"it ends with exit code {done.returncode} and says nothing"
            raise OpError(None, None, f"{shlex.join(compiler)} can't build the library: {said}", "onnx_ops")


class Text:
    """C code of one table for each CPU, from the structures of table.py: their pointers become arrays of their own."""

    def __init__(self):
        self.lines, self.levels, self.names = ['#include "library.h"\n'], [], 0

    def level(self, cpu, operators, wanted, objects_of):
        """Add the table of what was compiled of these operators for a CPU."""
        symbols = [None]  # a function pointer is a position among these
        rows = []

        def pointer(symbol, kind):
            if symbol not in symbols:
                symbols.append(symbol)
                self.lines.append(f"extern {kind}_function {symbol};")
            return symbols.index(symbol)

        by_kernel = {variants.kernel_key(*variant): objects_of[name] for name, variant in wanted.items()}
        for operator in operators:
            made, signatures = {}, []  # made: what was compiled beside the kernel, by its position
            for signature in operator.signatures():
                kernels = {}
                for k in range(variants.kernel_count(operator)):
                    each = by_kernel.get(variants.kernel_key(operator, k, signature))
                    if each and variants.takes(operator, k, signature):
                        *others, (kernels[k], _) = each
                        made[k] = [symbol for symbol, _ in others]
                if kernels or ("string" in signature.values() and not operator.is_function):
                    signatures.append((signature, kernels))
            if made:
                row = table.operator(operator, [signature for signature, _ in signatures], len(rows))
                for k, (*others, plan) in made.items():
                    row.plans[k if operator.is_function else 0] = pointer(plan, "shapes")
                    if others:
                        row.resolve, row.infer = pointer(others[0], "resolve"), pointer(others[1], "shapes")
                for overload, (_, kernels) in enumerate(signatures):
                    for k, symbol in kernels.items():
                        row.overloads[overload].kernels[k] = pointer(symbol, "kernel")
                rows.append(row)
        made = table.Table(table.array(table.Operator, rows), len(rows))
        self.levels.append(f'{{"{cpu}", {self.initializer(made, symbols)}}}')

    def finished(self):
        """The C file: the best level is the first."""
        levels = ",\n".join([*reversed(self.levels), "{0}"])
        levels = f"const struct level onnx_ops_levels[] = {{\n{levels}}};\n"
        return "\n".join([*self.lines, levels])

    def initializer(self, value, symbols):
        if isinstance(value, C.Structure):
            fields = []
            for name, kind in value._fields_:
                member = getattr(value, name)
                if isinstance(member, C._Pointer):
                    count = getattr(value, f"{name[:-1]}_count") * (2 if name == "terms" else 1)
                    fields.append(self.array(kind._type_, name, [member[k] for k in range(count)], symbols))
                elif kind is table.POINTER:
                    fields.append(symbols[member or 0] or "0")
                else:
                    fields.append(self.initializer(member, symbols))
            return f"{{{', '.join(fields)}}}"
        if isinstance(value, C.Array):
            if value._type_ is table.POINTER:
                return f"{{{', '.join(symbols[member or 0] or '0' for member in value)}}}"
            return f"{{{', '.join(self.initializer(member, symbols) for member in value)}}}"
        if value is None:
            return "0"
        if isinstance(value, bytes):
            return json.dumps(value.decode("ascii"))
        return f"{value}LL" if value > -(2**63) else "INT64_MIN"

    def array(self, kind, field, items, symbols):
        """The name of a new array of the items, which is that of a field."""
        if not items:
            return "0"
        self.names += 1
        name = f"array_{self.names}"
        if kind is table.POINTER:  # of functions
            content, declared = ", ".join(symbols[item or 0] or "0" for item in items), FUNCTIONS[field]
        else:
            content = ", ".join(self.initializer(item, symbols) for item in items)
            declared = SCALARS.get(kind) or f"struct {STRUCTURES[kind]} "
        self.lines.append(f"static {declared}{name}[] = {{{content}}};")
        return name


STRUCTURES = {
    table.Attribute: "attribute", table.Input: "input", table.Overload: "overload", table.Operator: "op",
}  # fmt: skip
SCALARS = {table.TEXT: "const char *const ", table.NUMBER: "const int64_t "}
FUNCTIONS = {"kernels": "kernel_function *", "plans": "shapes_function *"}
