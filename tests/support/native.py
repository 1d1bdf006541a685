"""The C library under a mock of ONNX Runtime (tests/native): building the program, and describing nodes for it."""

import os
import platform
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
from onnx import TensorProto, numpy_helper

from onnx_ops import dtypes
from onnx_ops.compiler.cpu_levels import LEVELS
from onnx_ops.runtime.build import write_levels
from onnx_ops.runtime.library import SOURCES
from onnx_ops.runtime.variants import combinations, distinct

from .processes import TESTS

HARNESS = TESTS / "native"
SANITIZED = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
FLAGS = ["-std=gnu11", "-g", "-O1", "-fno-omit-frame-pointer", "-no-pie", "-DONNX_OPS_AHEAD", "-DONNX_OPS_SOURCES=0"]
WRAPPED = [f"-Wl,--wrap={function}" for function in ("malloc", "calloc", "realloc", "free")]
KINDS = "int ints string float floats text tensor".split()  # as enum kind of table.h
IS_ABSENT, IS_CONSTANT = 1, 2


def compiler():
    """The path of gcc, or None."""
    return shutil.which("gcc")


def build(folder, operators, types, sanitizers=SANITIZED, cpu=None):
    """Build the harness with the kernels of these operators for these element types; returns its path.

    sanitizers  gcc's options, left out if it lacks them
    cpu         the one that the kernels are said to be for. Default: the oldest of this architecture
    """
    variants = distinct(combinations(operators, types))
    objects = {variant.key: variant.compile() for variant in variants.values()}
    cpu = cpu or next(name for name, (machine, *_) in LEVELS.items() if machine == platform.machine())
    files = write_levels({cpu: objects}, operators, folder)
    path = folder / "harness"
    sources = [*sorted(SOURCES.glob("*.c")), HARNESS / "mock.c", HARNESS / "harness.c"]
    command = [compiler(), *FLAGS, *WRAPPED, f"-I{SOURCES}", f"-I{HARNESS}", *sources, *files, "-lm", "-o", path]
    probe = [compiler(), *sanitizers, "-x", "c", "-", "-o", os.devnull]
    if subprocess.run(probe, input=b"int main(void) { return 0; }", capture_output=True).returncode == 0:
        command[1:1] = sanitizers
    subprocess.run(list(map(str, command)), check=True)
    return path


def run(harness, command, *descriptions):
    """Run a command of the harness; returns (its exit status, the lines of its output). The mock counts what leaks."""
    settings = {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
    done = subprocess.run(
        [harness, command, *descriptions],
        env={**os.environ, **settings}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
    )  # fmt: skip
    return done.returncode, done.stdout.splitlines()


def described(operator, inputs, attributes, name="the_node", constants=()):
    """The description of a node (harness.c).

    inputs      arrays, or None for absent ones
    attributes  {name: value}, a value being of any type that a model can have
    constants   positions of inputs
    """
    content = text(operator.domain) + text(operator.name) + text(name) + bytes([len(attributes)])
    for attribute, value in attributes.items():
        content += text(attribute) + attribute_content(value)
    content += bytes([len(inputs)])
    for k, array in enumerate(inputs):
        content += bytes([IS_ABSENT * (array is None) | IS_CONSTANT * (k in constants)])
        content += b"" if array is None else tensor(array)
    return content


def text(value):
    content = value if isinstance(value, bytes) else value.encode()
    return bytes([len(content)]) + content


def tensor(array):
    number = dtypes.TABLE[str(array.dtype)].onnx
    content = array.tobytes()
    header = struct.pack(f"<BB{array.ndim}qI", number, array.ndim, *array.shape, len(content))
    return header + content


def attribute_content(value):
    if isinstance(value, TensorProto):
        return bytes([KINDS.index("tensor")]) + tensor(numpy_helper.to_array(value))
    if isinstance(value, str | bytes):
        content = value if isinstance(value, bytes) else value.encode()
        return struct.pack("<BH", KINDS.index("string"), len(content)) + content
    kind = "float" if np.asarray(value).dtype.kind == "f" else "int"
    values = np.atleast_1d(np.asarray(value, "<f4" if kind == "float" else "<i8"))
    return struct.pack("<BH", KINDS.index(kind) + (np.ndim(value) > 0) * 1, len(values)) + values.tobytes()


def write(folder, described_nodes):
    """Write descriptions, {name: content}, as files; returns their paths."""
    paths = [Path(folder) / f"{name}.node" for name in described_nodes]
    for path, content in zip(paths, described_nodes.values(), strict=True):
        path.write_bytes(content)
    return paths
