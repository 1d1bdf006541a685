"""Packages that are too old are refused with a message, before they are used."""

import re
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.processes import python

import onnx_ops
from onnx_ops import requirements
from onnx_ops.compiler.jit import NUMBA


@pytest.mark.parametrize("name", ["onnxruntime", "onnxruntime-extensions", "onnx", "numpy"])
def test_too_old(name, monkeypatch):
    module = pytest.importorskip(name.replace("-", "_"))
    monkeypatch.setattr(module, "__version__", "0.9.1rc1")
    monkeypatch.delitem(vars(onnx_ops), "register", raising=False)  # versions are checked when a name is first used
    with pytest.raises(onnx_ops.OpError, match=rf"^onnx_ops: {name} = 0\.9\.1rc1: must be at least \d"):
        onnx_ops.register  # noqa: B018
    monkeypatch.setattr(module, "__version__", requirements.LEAST[name])
    monkeypatch.delitem(vars(onnx_ops), "register", raising=False)
    onnx_ops.register  # noqa: B018


def test_too_old_to_be_imported(tmp_path):
    """The error is about the version, not about what the package lacks."""
    (tmp_path / "onnxruntime.py").write_text("__version__ = '1.9.0'")
    script = """
        import onnx_ops
        try:
            onnx_ops.register
        except onnx_ops.OpError as error:
            print(error)
    """
    expected = "onnx_ops: onnxruntime = 1.9.0: must be at least 1.20"
    assert python(script, folders=[tmp_path]).stdout.startswith(expected)


def test_the_minima_are_those_that_are_installed_with():
    required = "".join(f"{line}\n" for line in metadata.requires("onnx-ops") if "extra ==" not in line)
    assert dict(re.findall(r"^([\w-]+)[^;\n]*?>=([\d.]+)", required, re.MULTILINE)) == requirements.LEAST


def test_the_minima_are_those_that_wheels_are_made_with():
    (needed,) = re.findall(r"^needed = .*$", (Path(__file__).parent.parent / "setup.py").read_text(), re.MULTILINE)
    least = dict(re.findall(r'"([\w-]+)>=([\d.]+)', needed))
    assert least.pop("numba") == ".".join(map(str, NUMBA[0]))
    assert f"<{NUMBA[1][0]}.{NUMBA[1][1] + 1}" in needed
    assert least == {name: version for name, version in requirements.LEAST.items() if "extensions" not in name}


def test_without_a_version_nothing_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "platformdirs", None)
    requirements.check_versions()
    monkeypatch.setitem(sys.modules, "platformdirs", SimpleNamespace(__version__="unknown"))
    requirements.check_versions()


def test_versions_are_numbers():
    assert requirements._numbers("1.9.0") < requirements._numbers("1.20")
    assert requirements._numbers("2.0.0.dev3+cpu") == (2, 0, 0)


def test_imports_are_light():
    """Neither the package's own import, nor the check, nor its submodules import what takes time."""
    script = """
        import sys, onnx_ops
        heavy = {"PIL", "click", "numba", "numpy", "onnx", "onnxruntime", "rich", "onnx_ops.export"}
        assert not heavy & {*sys.modules}, heavy & {*sys.modules}
        onnx_ops.requirements.check_versions()
        assert onnx_ops.export.export.__module__ == "onnx_ops.export"
        assert not {"numba", "torch"} & {*sys.modules}
    """
    python(script)


@pytest.mark.parametrize("how", ["absent", "failing"])
def test_without_extensions(how, tmp_path):
    """The extensions backend is refused, as on Python 3.14; all else works, including lower().

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
        assert onnx_ops.lower(proto).graph.node[-1].domain == "ai.onnx.contrib"
        from onnx_ops.cli.list import backends
        assert backends()["extensions"].startswith("onnxruntime-extensions can't be imported"), backends()
        try:
            onnx_ops.register(quiet(), backend="extensions")
        except onnx_ops.OpError as error:
            print(error)
    """
    message = "onnx_ops: backend = 'extensions': needs onnxruntime-extensions, which can't be imported: "
    assert python(script, how, folders=[tmp_path]).stdout.startswith(message)
