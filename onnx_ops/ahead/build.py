"""Build a shared library of the operators, for ONNX Runtime in any process.

The process may have no Python.
"""

from __future__ import annotations

import ctypes as C
import logging
import os
import re
import shlex
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from ..declaration.errors import OpError
from ..declaration.jit import numba_obstacle
from ..native import table
from ..native.library import SOURCES
from ..native.threads import check_count
from ..session import variants
from ..session.variants import Variant
from ..session.workers import compile_variants
from ..system import NAME as THIS
from ..system import digest_of_sources, is_loaded
from ..system.files import named, staged_file

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from typing import Any

    from ..compiler.records import Entry
    from ..declaration.operator import Operator
    from ..native.table import Row

    # A compiled function's symbol, and the path of its object file.
    Function: TypeAlias = tuple[str, str]
    # Of each variant that was compiled for a CPU.
    Functions: TypeAlias = Mapping[tuple[Entry, ...], Sequence[Function]]

SystemName: TypeAlias = Literal["linux", "windows", "macos"]
FLAGS = [
    "-std=c11",
    "-O2",
    "-shared",
    "-fvisibility=hidden",
    "-DONNX_OPS_AHEAD",
    "-s",
    f"-I{SOURCES}",
]


class System(NamedTuple):
    """A system that a library is linked for.

    flags  linker flags
    zig    ziglang's name
    macro  a macro of its C compilers alone
    """

    flags: Sequence[str]
    zig: str
    macro: str


# ONNX Runtime unloads the library with its last session, which would leak the library's memory:
# nodelete keeps it loaded. On Windows and macOS the library itself does so (native/machine.c). A
# DLL is linked statically with the compiler's libraries: thread-local variables are in libgcc,
# which in some mingw needs a library of threads.
SYSTEMS = {
    "linux": System(
        ["-fPIC", "-Wl,-z,nodelete", "-Wl,--no-undefined"], "{}-linux-gnu.2.28", "__ELF__"
    ),
    "windows": System(["-static", "-Wl,--no-undefined"], "{}-windows-gnu", "_WIN32"),
    "macos": System(["-fPIC", "-Wl,-install_name,@rpath/{name}"], "{}-macos.11.0", "__APPLE__"),
}
log = logging.getLogger("onnx_ops")
LOADED = "onnx_ops: %s is loaded here: at that path, this process keeps the old one"
UNDEFINED = re.compile(r"undefined reference to [`'](\w+)")  # in a linker's errors
# Bytes that are escaped in a C string: "??" may begin a trigraph.
UNSAFE = re.compile(rb"[^ !#-\[\]-~]|\?")


def build(
    output: str | os.PathLike[str],
    *,
    operators: Iterable[Any] | None = None,
    dtypes: Collection[str] | None = None,
    cpus: Iterable[str] | None = None,
    system: SystemName | None = None,
    jobs: int | None = None,
    progress: Callable[[str, int, int], object] | None = None,
) -> list[str]:
    """Write a library with operators, for ONNX Runtime in any language.

    A host loads it by `register_custom_ops_library`. Kernels in the cache are
    linked without being compiled again. For another system or architecture, the
    C compiler is the package ziglang, or a cross compiler.

    Parameters
    ----------
    output : path
        The library's file. An old one stays until the new one is complete.
    operators : iterable of str or custom operators, optional
        Names as in models, such as "GridSample", and custom operators with a
        kernel. Default: all of this package.
    dtypes : collection of str, optional
        Data types of the tensors, such as "float32": all combinations of
        these. Default: all.
    cpus : iterable of str, optional
        "x86-64-v2", "x86-64-v3", "x86-64-v4", "sapphirerapids" or "armv8-a".
        The library has code for each of these, and runs the newest that the CPU
        supports. Default: all of this machine's architecture.
    system : {"linux", "windows", "macos"}, optional
        The system that loads the library. Default: this one.
    jobs : int, optional
        Number of processes that compile side by side. Default: the number of
        CPUs.
    progress : callable, optional
        Called before each kernel with (its name, its index, the number of
        kernels).

    Returns
    -------
    list of str
        The CPUs that the library has code for, the oldest first.

    Raises
    ------
    OpError
        Numba or a C compiler is missing, an operator has no kernel, or the file
        can't be written.

    Examples
    --------
    >>> cpus = onnx_ops.build("libonnx_ops.so", operators=["Im2Col"], dtypes=["float32"])
    >>> import onnxruntime as ort
    >>> ort.SessionOptions().register_custom_ops_library("./libonnx_ops.so")
    """
    check_count("jobs", jobs)
    if obstacle := numba_obstacle():
        raise OpError(None, None, obstacle, "onnx_ops")
    from ..compiler import target
    from ..compiler.cpu_levels import LEVELS

    this = target.architecture()
    cpus = list(
        cpus or [name for name, (architecture, *_) in LEVELS.items() if architecture == this]
    )
    loader: str = system or THIS
    architectures = {target.level(cpu, loader).triple.partition("-")[0] for cpu in cpus}
    cpus.sort(key=list(LEVELS).index)
    if len(architectures) != 1:
        raise OpError("cpu", ", ".join(cpus), "must be of one architecture", "onnx_ops")
    (architecture,) = architectures
    compiler = c_compiler(loader, architecture)
    matches = variants.asked_for(operators, dtypes, variants.TYPES)
    requested = variants.distinct(matches)
    declarations = list(dict.fromkeys(variant.operator for variant in matches))
    objects = compile_levels(requested, cpus, loader, jobs, progress)
    if is_loaded(output):
        log.warning(LOADED, output)
    try:
        with TemporaryDirectory() as folder, named(folder):
            link(compiler, loader, architecture, objects, declarations, Path(folder), Path(output))
    except OSError as error:
        rule = f"can't be written: {error.strerror}: {error.filename}"
        raise OpError("output", repr(str(output)), rule, "onnx_ops") from error
    return cpus


def compile_levels(
    requested: dict[str, Variant],
    cpus: Sequence[str],
    system: str,
    jobs: int | None,
    progress: Callable[[str, int, int], object] | None,
) -> Mapping[str, Functions]:
    """Compile {name: variant} for each CPU; return {cpu: its functions}."""
    objects = {}
    for k, cpu in enumerate(cpus):

        def report(name: str, index: int, total: int, k: int = k, cpu: str = cpu) -> None:
            if progress:
                progress(f"{cpu}: {name}", k * total + index, len(cpus) * total)

        by_name = compile_variants(requested, jobs, report, (cpu, system))
        objects[cpu] = {requested[name].key: functions for name, functions in by_name.items()}
    return objects


def c_compiler(system: str, architecture: str) -> list[str]:
    """Return the command of a C compiler for a system and architecture, as a list. Raises OpError.

    It is the command in the variable CC, a compiler of this machine, or the package ziglang, which
    has all targets.
    """
    from ..compiler import target

    if cc := shlex.split(os.environ.get("CC", "")):
        names = cc[:1]
    elif (system, architecture) == (THIS, target.architecture()):
        names = ["cc", "gcc", "clang"]
    else:
        target_name = {"linux": "linux-gnu", "windows": "w64-mingw32"}.get(system)
        names = [f"{architecture}-{target_name}-gcc"] if target_name else []
    for name in names:
        if shutil.which(name):
            return [name, *cc[1:]]
    if not cc and find_spec("ziglang"):
        return ziglang(system, architecture)
    called = f"there is no C compiler called {' or '.join(names)}; " if names else ""
    rule = f"{called}install one, or the package ziglang, or name another in the variable CC"
    raise OpError(None, None, f"for {system} on {architecture}: {rule}", "onnx_ops")


def ziglang(system: str, architecture: str) -> list[str]:
    """Return the command of ziglang's C compiler for a system and architecture, as a list.

    It names the package's program, because `python -m ziglang` searches the current folder first.
    """
    spec: Any = find_spec("ziglang")
    zig = Path(spec.origin).with_name("zig")
    return [str(zig), "cc", "-target", SYSTEMS[system].zig.format(architecture)]


def link(
    compiler: Sequence[str],
    system: str,
    architecture: str,
    objects: Mapping[str, Functions],
    operators: Iterable[Operator],
    folder: Path,
    output: Path,
) -> None:
    """Write the library.

    It has the C sources, the operators' table for each CPU, and the compiled functions.

    compiler   the C compiler's command
    objects    {cpu: {key of a variant: the result of `Variant.compile`}}
    folder     for intermediate files
    """
    # Linkers accept objects of other systems, and would write a library that nothing can load.
    condition = f"#if !defined {SYSTEMS[system].macro} || !defined __{architecture}__"
    check = f'{condition}\n#error "the C compiler is for another system or architecture"\n#endif\n'
    files = write_levels(objects, operators, folder, check)
    library = folder / output.name  # linkers may write further files beside it
    flags = [flag.replace("{name}", output.name) for flag in SYSTEMS[system].flags]
    digest = f"-DONNX_OPS_SOURCES={digest_of_sources(SOURCES)}"
    sources = [*sorted(SOURCES.glob("*.c")), *files]
    # In this order, as ziglang makes an archive of -static after -shared.
    command = [*compiler, *flags, *FLAGS, digest, *sources, "-lm", "-o", library]
    with staged_file(output) as target:
        process = subprocess.run(
            list(map(str, command)), capture_output=True, text=True, errors="replace"
        )
        if process.returncode or not library.exists():
            action = f"for {system} on {architecture}: {shlex.join(compiler)} can't build"
            raise OpError(None, None, linker_error(process, action), "onnx_ops")
        shutil.move(library, target)


def linker_error(process: subprocess.CompletedProcess[str], action: str) -> str:
    """Return the text on a linker that has failed. action: a text on what it can't do."""
    if undefined := sorted(set(UNDEFINED.findall(process.stderr))):
        return f"a kernel calls {', '.join(undefined)}, which can't be linked; replace these calls"
    lines = [line for line in process.stderr.splitlines() if "ld returned" not in line]
    lines = [line for line in lines if "error:" in line] or lines
    cause = " ".join(lines[:3]) or f"it ends with exit code {process.returncode} and no output"
    return f"{action} the library: {cause}"


def write_levels(
    objects: Mapping[str, Functions], operators: Iterable[Operator], folder: Path, check: str = ""
) -> list[Path]:
    """Write the operators' table for each CPU, and object files; return their paths.

    The table is a C file. The object files have its functions.

    objects  as for `link`
    check    C code to begin with
    """
    from ..compiler.cache import object_in

    files = [folder / "levels.c"]
    tables = TableWriter()
    for cpu, by_key in objects.items():
        for symbol, path in sorted(
            {function for functions in by_key.values() for function in functions}
        ):
            files.append(folder / f"{symbol}.o")
            content: Any = object_in(path)
            files[-1].write_bytes(content)
        tables.add_level(cpu, operators, by_key)
    files[0].write_text(check + tables.source(), encoding="utf-8")
    return files


class TableWriter:
    """Writer of C code with a table for each CPU, from the structures of table.py.

    Pointers become named arrays.
    """

    def __init__(self) -> None:
        self.lines = ['#include "library.h"\n']
        self.levels: list[str] = []

    def add_level(self, cpu: str, operators: Iterable[Operator], by_key: Functions) -> None:
        """Add the table of these operators for a CPU.

        by_key  the functions that were compiled for it, see `link`
        """
        # In the structures, a function pointer is its symbol's position in this list.
        symbols = ["0"]
        rows: list[Row] = []

        def pointer(symbol: str, function_type: str) -> int:
            if symbol not in symbols:
                symbols.append(symbol)
                self.lines.append(f"extern {function_type}_function {symbol};")
            return symbols.index(symbol)

        for operator in operators:
            plans = {}  # {combination of ranks: symbol of the plan}
            infer = None
            signatures = []
            for signature in operator.signatures():
                kernels = {}
                for position in operator.positions:
                    variant = Variant(operator, position, signature)
                    if variant.is_possible and (functions := by_key.get(variant.key)):
                        *earlier, (plan, _), (kernels[position], _) = functions
                        plans[position // len(operator.kernels)] = plan
                        infer = earlier[0][0] if earlier else None
                if kernels or ("string" in signature.values() and not operator.has_ranks):
                    signatures.append((signature, kernels))
            if plans:
                row = table.operator_row(
                    operator, [signature for signature, _ in signatures], len(rows)
                )
                row.infer = pointer(infer, "shapes") if infer else 0
                for k, plan in plans.items():
                    row.plans[k] = pointer(plan, "shapes")
                for overload, (_, kernels) in enumerate(signatures):
                    for k, symbol in kernels.items():
                        row.overloads[overload].kernels[k] = pointer(symbol, "kernel")
                rows.append(row)
        self.levels.append(f'{{"{cpu}", {self.initializer(table.table_of(rows), None, symbols)}}}')

    def source(self) -> str:
        """Return the content of the C file, with the newest CPU first."""
        levels = ",\n".join([*reversed(self.levels), "{0}"])
        levels = f"const struct level onnx_ops_levels[] = {{\n{levels}}};\n"
        return "\n".join([*self.lines, levels])

    def initializer(self, value: Any, ctype: Any, symbols: Sequence[str]) -> str:
        """Return the C initializer of a structure, an array, or a value of this type of ctypes."""
        if ctype is table.POINTER:  # to a function
            return symbols[value or 0]
        if isinstance(value, C._Pointer):  # to a row
            return self.array(table.Operator, None, [value.contents], symbols)
        if isinstance(value, C.Structure):
            fields = []
            for name, ctype, *_ in value._fields_:
                member = getattr(value, name)
                if isinstance(member, C._Pointer):
                    count = getattr(value, f"{name[:-1]}_count") * (2 if name == "terms" else 1)
                    fields.append(
                        self.array(ctype._type_, name, [member[k] for k in range(count)], symbols)
                    )
                else:
                    fields.append(self.initializer(member, ctype, symbols))
            return f"{{{', '.join(fields)}}}"
        if isinstance(value, C.Array):
            members = (self.initializer(member, value._type_, symbols) for member in value)
            return f"{{{', '.join(members)}}}"
        if value is None:
            return "0"
        if isinstance(value, bytes):
            text = UNSAFE.sub(lambda byte: b"\\%03o" % byte[0][0], value)
            return f'"{text.decode()}"'
        return f"{value}LL" if value > -(2**63) else "INT64_MIN"

    def array(self, ctype: Any, field: Any, items: Sequence[Any], symbols: Sequence[str]) -> str:
        """Define a C array of the items of a structure's field; return the array's name."""
        if not items:
            return "0"
        content = ", ".join(self.initializer(item, ctype, symbols) for item in items)
        name = f"array_{len(self.lines)}"
        self.lines.append(
            f"static {DECLARED.get(ctype) or DECLARED[field]}{name}[] = {{{content}}};"
        )
        return name


# C's types of the elements of arrays, by the type of ctypes or, for pointers, by the field
DECLARED = {
    table.Attribute: "struct attribute ", table.Input: "struct input ",
    table.Overload: "struct overload ",
    table.Operator: "struct op ", table.TEXT: "const char *const ", table.NUMBER: "const int64_t ",
    "kernels": "kernel_function *", "plans": "shapes_function *", "operators": "struct op *const ",
}  # fmt: skip
