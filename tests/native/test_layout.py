"""What C, compiled code and Python write down of shared memory, and of ONNX Runtime's interface,
agrees.

The files of the C library are layers, each of which uses only those below it.
"""

import ctypes as C
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from support.processes import TESTS

import onnx_ops
from onnx_ops.ahead import build
from onnx_ops.compiler import records
from onnx_ops.declaration import limits
from onnx_ops.declaration.attributes import VECTOR
from onnx_ops.declaration.operator import HEAD, REFUSAL_FIELDS, REFUSAL_SIZE
from onnx_ops.native import table

pytestmark = pytest.mark.any_library

NATIVE = Path(onnx_ops.__file__).parent / "native"
SOURCES = {path.name: path.read_text() for path in sorted(NATIVE.glob("*.[ch]"))}
# Files without suffix, from the top layer to the lowest one.
LAYERS = [
    "library", "node", "run", "plan", "python", "attributes", "call", "refusal", "ort", "text",
    "halves", "table",
    "machine",
]  # fmt: skip
CC = shutil.which("cc") or shutil.which("gcc")
CALL = records.call_dtype(HEAD)
# {structure of ctypes: name of the struct}
STRUCTURES = {
    group: text.split()[1]
    for group, text in build.DECLARED.items()
    if isinstance(group, type(C.Structure))
}
# {struct: {field: its offset}}, as Python has it.
EXPECTED = {
    **{
        name: {f: getattr(structure, f).offset for f, _ in structure._fields_}
        for structure, name in STRUCTURES.items()
    },
    "tensor": {name: offset for name, (_, offset) in records.TENSOR.fields.items()},
    "vector": {name: offset for name, (_, offset) in VECTOR.fields.items()},
    "call": {name: offset for name, (_, offset) in CALL.fields.items()},
    "geometry": {name: offset for name, (_, offset) in CALL.fields["geometry"][0].fields.items()},
    "block": {"size": 0, "vectors": 8},
    "refusal": {name: 8 * k for k, name in enumerate((*REFUSAL_FIELDS, "shown"))},
}
SIZES = {"tensor": records.TENSOR.itemsize, "vector": VECTOR.itemsize, "refusal": 8 * REFUSAL_SIZE}
SIZES |= {name: C.sizeof(structure) for structure, name in STRUCTURES.items()} | {
    "call": C.sizeof(table.Call)
}
CONSTANTS = set(vars(limits)) & set(
    re.findall(r"\b([A-Z_]+)(?: = | \(\(int64_t\))", (NATIVE / "table.h").read_text())
)
PROGRAM = '#include "table.h"\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {\n%s}\n'


@pytest.mark.skipif(CC is None, reason="there is no C compiler")
def test_the_c_compiler_agrees(tmp_path):
    """Each offset, size and limit is what the C compiler says."""
    expected = {
        f"offsetof(struct {s}, {f})": offset
        for s, fields in EXPECTED.items()
        for f, offset in fields.items()
    }
    expected |= {f"sizeof(struct {name})": size for name, size in SIZES.items()}
    expected |= {name: getattr(limits, name) for name in CONSTANTS}
    assert len(CONSTANTS) >= 12
    lines = [f'    printf("%lld\\n", (long long)({expression}));\n' for expression in expected]
    (tmp_path / "layout.c").write_text(PROGRAM % "".join(lines))
    program = tmp_path / "layout"
    subprocess.run(
        [CC, "-std=c11", f"-I{NATIVE}", "-o", program, tmp_path / "layout.c"], check=True
    )
    printed = subprocess.run([program], capture_output=True, text=True, check=True).stdout.split()
    assert dict(zip(expected, map(int, printed), strict=True)) == expected


def test_geometry_fits():
    """The library keeps MAX_GEOMETRY bytes for any operator's geometry, which begins at the same
    place.
    """
    assert (
        C.sizeof(table.Call)
        == records.call_dtype(np.dtype((np.void, limits.MAX_GEOMETRY))).itemsize
    )


def listed(struct):
    """The functions of a struct of ONNX Runtime, in the order of its public header."""
    text = (TESTS / "support" / "onnxruntime_c_api.txt").read_text()
    return next(
        section.split()[1:] for section in text.split("\n\n") if section.startswith(f"{struct}\n")
    )


def test_onnx_runtimes_functions_are_where_its_header_has_them():
    functions = re.findall(
        r"#define (\w+)\s+(?:\\\s+)?API(?:_OF\(\w+, |\()(\d+),", (NATIVE / "ort.h").read_text()
    )
    names = listed("OrtApi")
    assert len(functions) > 40
    assert [(name, names[int(offset) // 8]) for name, offset in functions] == [
        (name, name) for name, _ in functions
    ]


def test_the_functions_of_custom_operators():
    """The enum in library.c numbers them as the header does."""
    enum = re.search(
        r"enum \{\n    GetName = 1,.*?\}", (NATIVE / "library.c").read_text(), re.DOTALL
    )[0]
    names, position = listed("OrtCustomOp"), 0
    for name, number in re.findall(r"(\w+)(?: = (\d+))?,", enum):
        position = int(number) if number else position + 1
        assert names[position] == name


def code(text):
    """C without comments, strings and the bodies of structures, whose members may have the names of
    functions.
    """
    text = re.sub(r'#include "(\w+).h"', r"include_\1", text)
    text = re.sub(r'/\*.*?\*/|"(?:\\.|[^"\\\n])*"', "", text, flags=re.DOTALL)
    return re.sub(r"^struct \w+ \{.*?^\}", "", text, flags=re.DOTALL | re.MULTILINE)


def names_before(following, text):
    """Names of functions and variables that aren't static, in statements at the beginning of a
    line.
    """
    beginning = r"^(?!static\b|typedef\b|struct \w+;)\w[\w *]*?"
    return set(re.findall(rf"{beginning}\b(\w+)(?={following})", code(text), re.MULTILINE))


def defined_in(text):
    return names_before(r"\([^;{}]*\) \{|\[|;| =", text)


def upward_uses(sources):
    """[(file, what it includes, declares or uses of a layer above it)]."""
    layer_of = {
        name: layer for layer in LAYERS for name in defined_in(sources.get(f"{layer}.c", ""))
    }
    layer_of |= {f"include_{layer}": layer for layer in LAYERS}
    findings = []
    for file, text in sources.items():
        above = LAYERS[: LAYERS.index(file[:-2])]
        for name in sorted(set(re.findall(r"(?<!\.)(?<!->)\b\w+", code(text)))):
            if layer_of.get(name) in above:
                findings.append((file, name))
    return findings


def jumping_macros(sources):
    """Macros that leave the function or the loop in which they stand."""
    macros = [
        macro
        for text in sources.values()
        for macro in re.findall(r"#define (\w+.*(?:(?<=\\)\n.*)*)", text)
    ]
    assert len(macros) > 50
    return [macro for macro in macros if re.search(r"\b(return|goto|break|continue)\b", macro)]


def test_each_layer_uses_only_those_below_it():
    assert {file[:-2] for file in SOURCES} == set(LAYERS)
    assert upward_uses(SOURCES) == []


def test_headers_declare_what_their_file_defines():
    """What no other file uses is static, but for what Python, ONNX Runtime and compiled code look
    up by name.
    """
    looked_up = {"RegisterCustomOps", "numba_attempt_nocopy_reshape"}
    for layer in LAYERS:
        if f"{layer}.c" in SOURCES:
            header, defined = SOURCES[f"{layer}.h"], defined_in(SOURCES[f"{layer}.c"])
            assert names_before(r"\(", header) <= defined
            undeclared = defined - looked_up - set(re.findall(r"\w+", code(header)))
            assert {name for name in undeclared if not name.startswith("onnx_ops_")} == set()


@pytest.mark.parametrize(
    ("file", "line", "name"),
    [
        ("text.c", '#include "ort.h"', "include_ort"),
        ("call.h", '#include "attributes.h"', "include_attributes"),
        ("plan.c", "status compute(struct state *state, void *context);", "compute"),
        ("python.c", "static void *const callbacks[] = {create_kernel};", "create_kernel"),
        ("table.h", "static int is_old(void) { return api_version < 20; }", "api_version"),
    ],
)
def test_an_upward_use_is_seen(file, line, name):
    assert upward_uses({**SOURCES, file: f"{SOURCES[file]}{line}\n"}) == [(file, name)]


def test_no_macro_hides_a_return():
    assert jumping_macros(SOURCES) == []
    hidden = "#define NEED(function) \\\n    if (!(function)) \\\n        return 0\n"
    assert jumping_macros({**SOURCES, "run.c": hidden + SOURCES["run.c"]}) == [
        hidden.partition(" ")[2].strip()
    ]


def test_the_layers_are_documented():
    page = (TESTS.parent / "docs" / "internals.md").read_text(encoding="utf-8")
    section = page.partition("\n## The C library\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == LAYERS
