"""What C, compiled code and Python write down of shared memory, and of ONNX Runtime's interface, agrees."""

import ctypes as C
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import onnx_ops
from onnx_ops import limits
from onnx_ops.attributes import VECTOR
from onnx_ops.compiler import records
from onnx_ops.declaration import REFUSAL, REFUSAL_FIELDS, WORK, record_dtype
from onnx_ops.runtime import build, table

NATIVE = Path(onnx_ops.__file__).parent / "native"
CC = shutil.which("cc") or shutil.which("gcc")
CALL = records.call_dtype(record_dtype({**REFUSAL, **WORK}))
# {struct: {field: its offset}}, as Python has it.
EXPECTED = {
    **{name: {f: getattr(kind, f).offset for f, _ in kind._fields_} for kind, name in build.STRUCTURES.items()},
    "tensor": {name: offset for name, (_, offset) in records.TENSOR.fields.items()},
    "vector": {name: offset for name, (_, offset) in VECTOR.fields.items()},
    "call": {name: offset for name, (_, offset) in CALL.fields.items()},
    "geometry": {name: offset for name, (_, offset) in CALL.fields["geometry"][0].fields.items()},
    "block": {"size": 0, "vectors": 8},
    "refusal": {name: 8 * k for k, name in enumerate((*REFUSAL_FIELDS, "shown"))},
}
SIZES = {"tensor": records.TENSOR.itemsize, "vector": VECTOR.itemsize, "refusal": 8 * REFUSAL["refusal"]}
SIZES |= {name: C.sizeof(kind) for kind, name in build.STRUCTURES.items()} | {"call": C.sizeof(table.Call)}
CONSTANTS = set(vars(limits)) & set(re.findall(r"\b([A-Z_]+)(?: = | \(\(int64_t\))", (NATIVE / "table.h").read_text()))
PROGRAM = '#include "table.h"\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {\n%s}\n'


@pytest.mark.skipif(CC is None, reason="there is no C compiler")
def test_the_c_compiler_agrees(tmp_path):
    """Each offset, size and limit is what the C compiler says."""
    expected = {f"offsetof(struct {s}, {f})": at for s, fields in EXPECTED.items() for f, at in fields.items()}
    expected |= {f"sizeof(struct {name})": size for name, size in SIZES.items()}
    expected |= {name: getattr(limits, name) for name in CONSTANTS}
    assert len(CONSTANTS) >= 12
    lines = [f'    printf("%lld\\n", (long long)({each}));\n' for each in expected]
    (tmp_path / "layout.c").write_text(PROGRAM % "".join(lines))
    program = tmp_path / "layout"
    subprocess.run([CC, "-std=c11", f"-I{NATIVE}", "-o", program, tmp_path / "layout.c"], check=True)
    printed = subprocess.run([program], capture_output=True, text=True, check=True).stdout.split()
    assert dict(zip(expected, map(int, printed), strict=True)) == expected


def test_geometry_fits():
    """The library keeps MAX_GEOMETRY bytes for any operator's geometry, which begins at the same place."""
    assert C.sizeof(table.Call) == records.call_dtype(np.dtype((np.void, limits.MAX_GEOMETRY))).itemsize


def listed(struct):
    """The functions of a struct of ONNX Runtime, in the order of its public header."""
    text = (Path(__file__).parent / "support" / "onnxruntime_c_api.txt").read_text()
    return next(part.split()[1:] for part in text.split("\n\n") if part.startswith(f"{struct}\n"))


def test_onnx_runtimes_functions_are_where_its_header_has_them():
    functions = re.findall(r"#define (\w+)\s+(?:\\\s+)?API(?:_OF\(\w+, |\()(\d+),", (NATIVE / "ort.h").read_text())
    names = listed("OrtApi")
    assert len(functions) > 40
    assert [(name, names[int(offset) // 8]) for name, offset in functions] == [(name, name) for name, _ in functions]


def test_the_functions_of_custom_operators():
    """The enum in library.c numbers them as the header does."""
    enum = re.search(r"enum \{\n    GetName = 1,.*?\}", (NATIVE / "library.c").read_text(), re.DOTALL)[0]
    names, position = listed("OrtCustomOp"), 0
    for name, number in re.findall(r"(\w+)(?: = (\d+))?,", enum):
        position = int(number) if number else position + 1
        assert names[position] == name
