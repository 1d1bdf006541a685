"""What wheels are made with, what importing this package imports, and what works without onnxruntime-extensions."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from support.processes import python

from onnx_ops.compiler.jit import NUMBA

ROOT = Path(__file__).parent.parent


def test_the_minima_are_those_that_wheels_are_made_with():
    conditions = "extra ==", "sys_platform =="
    lines = [line for line in metadata.requires("onnx-ops") if not any(each in line for each in conditions)]
    required = "".join(f"{line}\n" for line in lines)
    minima = dict(re.findall(r"^([\w-]+)[^;\n]*?>=([\d.]+)", required, re.MULTILINE))
    (needed,) = re.findall(r"^needed = .*$", (ROOT / "setup.py").read_text(), re.MULTILINE)
    least = dict(re.findall(r'"([\w-]+)>=([\d.]+)', needed))
    assert least.pop("numba") == ".".join(map(str, NUMBA[0]))
    assert f"<{NUMBA[1][0]}.{NUMBA[1][1] + 1}" in needed
    assert least == {name: version for name, version in minima.items() if "extensions" not in name}


def test_every_folder_of_sources_is_a_package():
    """setuptools warns of folders that are in a wheel, but not in this list."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    sources = [path for kind in ("py", "[ch]") for path in (ROOT / "onnx_ops").rglob(f"*.{kind}")]
    assert {*settings["packages"]} == {".".join(path.parent.relative_to(ROOT).parts) for path in sources}


def test_imports_are_light():
    """Neither the package's own import nor its submodules import what takes time."""
    script = """
        import sys, onnx_ops
        heavy = {"PIL", "click", "numba", "numpy", "onnx", "onnxruntime", "rich", "onnx_ops.export"}
        assert not heavy & {*sys.modules}, heavy & {*sys.modules}
        assert onnx_ops.export.export.__module__ == "onnx_ops.export"
        assert not {"numba", "torch"} & {*sys.modules}
    """
    python(script)


@pytest.mark.parametrize("how", ["absent", "failing"])
def test_without_extensions(how, tmp_path):
    """The extensions backend is refused, as on Python 3.14, and no message advises it; all else works, as lower() does.

    Version 0.14.0 can't be imported, as it imports transformers, which it does not require.
    """
    if how == "failing":
        (tmp_path / "onnxruntime_extensions.py").write_text("import something_that_is_missing")
    script = """
        import sys
        if sys.argv[1] == "absent":
            sys.modules["onnxruntime_extensions"] = None
        from support.backends import function, native, quiet
        from support.cases import COL2IM, assert_close, model, reference
        import onnxruntime, onnx_ops
        case = COL2IM[1]
        inputs = case.inputs("float32")
        for run in (native, function):
            assert_close(run(case, inputs), reference(case, inputs), "float32")
        proto = model("", "Col2Im", inputs, case.attributes)
        assert "ai.onnx.contrib" in [node.domain for node in onnx_ops.lower(proto).graph.node]
        from onnx_ops.cli.list import backends
        print("list:", backends()["extensions"])
        from onnx_ops.runtime import library
        for backend, obstacle in (("extensions", None), ("native", "of no use")):
            library.obstacle = lambda: obstacle
            try:
                onnx_ops.register(quiet(), backend=backend)
            except onnx_ops.OpError as error:
                print(error)
    """
    listed, refused, native = python(script, how, folders=[tmp_path]).stdout.splitlines()
    needed = "needs onnxruntime-extensions, which can't be imported: "
    assert listed.startswith(f"list: {needed}")
    assert refused.startswith(f"onnx_ops: backend = 'extensions': {needed}")
    assert native == "onnx_ops: backend = 'native': of no use"
