"""The C library under a mock of ONNX Runtime (tests/native): building the program, and describing
nodes for it.
"""

import os
import platform
import shutil
import struct
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, numpy_helper

from onnx_ops.ahead.build import TableWriter, write_levels
from onnx_ops.compiler.cpu_levels import LEVELS
from onnx_ops.declaration import dtypes
from onnx_ops.declaration.operator import Operator
from onnx_ops.native import table
from onnx_ops.native.library import MADE, SOURCES
from onnx_ops.session.variants import combinations, distinct
from onnx_ops.session.workers import compile_variants

from .processes import TESTS

HARNESS = TESTS / "native"
SANITIZED = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
FLAGS = [
    "-std=gnu11",
    "-g",
    "-O1",
    "-fno-omit-frame-pointer",
    "-fno-pie",
    "-DONNX_OPS_AHEAD",
    "-DONNX_OPS_SOURCES=0",
]
WRAPPED = [f"--wrap={function}" for function in ("malloc", "calloc", "realloc", "free")]
KINDS = "int ints string float floats text tensor".split()  # as enum kind of table.h
IS_ABSENT, IS_CONSTANT = 1, 2


def build(
    folder: Path,
    types: Mapping[Operator, Sequence[str]],
    custom: Iterable[Operator] = (),
    *,
    compiler: str = "gcc",
    sanitizers: list[str] = SANITIZED,
    links: Iterable[str] = (),
    main: str = "harness",
    cpu: str | None = None,
    level: Any = None,
) -> Path:
    """Build the harness with kernels of operators; returns its path, FOLDER/MAIN.

    types       {operator: the names of the element types of its kernels}
    custom      operators that are registered as custom ones, without kernels
    sanitizers  the compiler's options, left out if it lacks them
    links       more options of the linker
    main        the file with the main function, or with libFuzzer's
    cpu         the one that the kernels are said to be for. Default: the oldest of this
                architecture
    level       what the kernels are compiled for (`level` of compiler/target.py). Default: this
                machine
    """
    wanted = distinct(
        each for operator, names in types.items() for each in combinations([operator], names)
    )
    by_name = compile_variants(wanted, 1, level=level)
    objects = {wanted[name].key: functions for name, functions in by_name.items()}
    cpu = cpu or next(
        name for name, (machine, *_) in LEVELS.items() if machine == platform.machine()
    )
    levels, *kernels = write_levels({cpu: objects}, types, folder)
    sanitizers = sanitizers if accepts(compiler, sanitizers) else []
    sources = [
        *SOURCES.glob("*.c"),
        *(HARNESS / f"{name}.c" for name in ("mock", "nodes", "stand_in", main)),
    ]
    sources += [levels, write_custom(custom, folder)]
    inform = partial(subprocess.run, check=True, cwd=folder)
    inform([compiler, *FLAGS, *sanitizers, f"-I{SOURCES}", f"-I{HARNESS}", "-c", *sources])
    made = [*kernels, *(Path(folder) / f"{source.stem}.o" for source in sources)]
    inform(
        ["ld", "-r", *WRAPPED, *made, "-o", f"{main}.whole.o"]
    )  # else a sanitizer's own calls would be counted
    inform(
        [
            compiler,
            *sanitizers,
            "-no-pie",
            f"{main}.whole.o",
            *links,
            "-lm",
            "-lpthread",
            "-o",
            main,
        ]
    )
    return Path(folder) / main


def accepts(compiler: str, options: Iterable[str] = ()) -> bool:
    """Whether there is a compiler, and it can make a program with these options."""
    if not shutil.which(compiler):
        return False
    probe = [compiler, *options, "-x", "c", "-", "-o", os.devnull]
    return (
        subprocess.run(probe, input=b"int main(void) { return 0; }", capture_output=True).returncode
        == 0
    )


def write_custom(operators: Iterable[Operator], folder: Path) -> Path:
    """Write a C file with the rows of operators, as Python makes them for custom operators; returns
    its path.
    """
    writer = TableWriter()
    rows = [
        table.operator_row(operator, list(operator.signatures()), MADE + k)
        for k, operator in enumerate(operators)
    ]
    for row in rows:
        row.combination_count = 0  # all in Python, as where there is no Numba
    content = writer.initializer(table.table_of(rows), None, ["0"])
    path = Path(folder) / "own.c"
    path.write_text(
        "\n".join([*writer.lines, f"struct table custom_table = {content};\n"]), encoding="utf-8"
    )
    return path


def run(harness: Path, *words: Path | str) -> tuple[int, list[str]]:
    """Run a command of the harness; returns (its exit status, the lines of its output)."""
    settings = {"UBSAN_OPTIONS": "print_stacktrace=1"}
    done = subprocess.run(
        [harness, *words],
        env={**os.environ, **settings}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace",
    )  # fmt: skip
    return done.returncode, done.stdout.splitlines()


def described(
    operator: Operator,
    inputs: Sequence[np.ndarray | None],
    attributes: Mapping[str, Any],
    name: str = "the_node",
    constants: Sequence[int] = (),
    others: Sequence[np.ndarray | None] | None = None,
) -> bytes:
    """The description of a node (harness.c).

    inputs      arrays, or None for absent ones
    attributes  {name: value}, a value being of any type that a model can have
    constants   positions of inputs
    others      arrays of the same types for a second run
    """
    content = text(operator.domain) + text(operator.name) + text(name) + bytes([len(attributes)])
    for attribute, value in attributes.items():
        content += text(attribute) + attribute_content(value)
    content += bytes([len(inputs)])
    for k, array in enumerate(inputs):
        content += bytes([IS_ABSENT * (array is None) | IS_CONSTANT * (k in constants)])
        content += b"" if array is None else tensor(array)
    content += bytes([others is not None])
    for array in others or ():
        content += b"" if array is None else tensor(array)[1:]
    return content


def as_tensor(array: np.ndarray) -> TensorProto:
    """A tensor as the value of an attribute."""
    return numpy_helper.from_array(array)


def text(value: bytes | str) -> bytes:
    content = value if isinstance(value, bytes) else value.encode()
    return bytes([len(content)]) + content


def tensor(array: np.ndarray) -> bytes:
    number = dtypes.TABLE[dtypes.type_name(array.dtype)].onnx
    content = b"".join(map(text, array.flat)) if array.dtype.hasobject else array.tobytes()
    header = struct.pack(f"<BB{array.ndim}qI", number, array.ndim, *array.shape, len(content))
    return header + content


def attribute_content(value: Any) -> bytes:
    if isinstance(value, TensorProto):
        return bytes([KINDS.index("tensor")]) + tensor(numpy_helper.to_array(value))
    if isinstance(value, str | bytes):
        content = value if isinstance(value, bytes) else value.encode()
        return struct.pack("<BH", KINDS.index("string"), len(content)) + content
    kind = "float" if np.asarray(value).dtype.kind == "f" else "int"
    values = np.atleast_1d(np.asarray(value, "<f4" if kind == "float" else "<i8"))
    return (
        struct.pack("<BH", KINDS.index(kind) + (np.ndim(value) > 0) * 1, len(values))
        + values.tobytes()
    )


def write(folder: Path, described_nodes: Mapping[str, bytes]) -> list[Path]:
    """Write descriptions, {name: content}, as files; returns their paths."""
    paths = [Path(folder) / f"{name}.node" for name in described_nodes]
    for path, content in zip(paths, described_nodes.values(), strict=True):
        path.write_bytes(content)
    return paths
