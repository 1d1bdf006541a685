"""What wheels are made with, what importing this package imports, and what works without
onnxruntime-extensions.
"""

import ast
import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version
from support import compatibility
from support.processes import python
from support.selection import long_unless

import onnx_ops
from onnx_ops.declaration import jit
from onnx_ops.declaration.jit import NUMBA

ROOT = Path(__file__).parent.parent


def test_the_minima_are_those_that_wheels_are_made_with():
    conditions = "extra ==", "sys_platform =="
    lines = [
        line
        for line in metadata.requires("onnx-ops")
        if not any(each in line for each in conditions)
    ]
    required = "".join(f"{line}\n" for line in lines)
    minima = dict(re.findall(r"^([\w-]+)[^;\n]*?>=([\d.]+)", required, re.MULTILINE))
    (needed,) = re.findall(r"^needed = \[[^]]*]$", (ROOT / "setup.py").read_text(), re.MULTILINE)
    least = dict(re.findall(r'"([\w-]+)>=([\d.]+)', needed))
    assert least.pop("numba") == ".".join(map(str, NUMBA[0]))
    assert f"<{NUMBA[1][0]}.{NUMBA[1][1] + 1}" in needed
    assert least == {name: version for name, version in minima.items() if "extensions" not in name}


def test_messages_advise_the_requirements(monkeypatch):
    """The advice to install what an extra has names the packages, with their bounds."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert jit.numba_obstacle.__wrapped__().endswith(f"pip install '{extras['jit'][0]}'")
    sources = {
        "cli": ROOT / "onnx_ops" / "cli" / "__init__.py",
        "ray": ROOT / "onnx_ops" / "cli" / "cluster.py",
    }
    for extra, path in sources.items():
        advice = "pip install " + " ".join(f'"{package}"' for package in extras[extra])
        nodes = ast.walk(ast.parse(path.read_text()))
        texts = [node.value for node in nodes if isinstance(node, ast.Constant)]
        assert any(advice in text for text in texts if isinstance(text, str))


def is_first(version, bound):
    """Return whether a version is the first with the numbers of a lower bound: 3.0.2 for 3, 2.40.0
    for 2.40.
    """
    release, least = Version(version).release, Version(bound).release
    return release[: len(least)] == least and release[len(least) :][:1] in ((), (0,))


def test_the_oldest_versions_are_tested():
    """tests/support/compatibility.py pins each lower bound in pyproject.toml, those of extras and
    of what builds wheels, too.
    """
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = settings["project"]
    lines = [*settings["build-system"]["requires"], *project["dependencies"]]
    lines += [line for extra in project["optional-dependencies"].values() for line in extra]
    linux = {"sys_platform": "linux", "platform_machine": "x86_64", "python_version": "3.11"}
    required = [r for r in map(Requirement, lines) if not r.marker or r.marker.evaluate(linux)]
    bounds = {(r.name, s.version) for r in required for s in r.specifier if s.operator == ">="}
    oldest, extras = (
        next(row for row in compatibility.ROWS if row.name == name)
        for name in ("oldest", "oldest extras")
    )
    pins = dict(pin.split("==") for pin in {*oldest.pins, *extras.pins} if "==" in pin)
    assert {name for name, _ in bounds} == {*pins}
    assert [bound for bound in bounds if not is_first(pins[bound[0]], bound[1])] == []
    assert {f">={oldest.python}", f">={extras.python}"} == {project["requires-python"]}
    (matrix,) = re.findall(
        r'versions: "(.+)"', (ROOT / ".github" / "workflows" / "tests.yml").read_text()
    )
    in_workflow = dict(pin.removesuffix(".*").split("==") for pin in matrix.split())
    assert [
        name for name, version in in_workflow.items() if not pins[name].startswith(version)
    ] == []


def test_workflows_run_known_code():
    """Actions are pinned by the digest of a commit, and may only read."""
    workflows = [path.read_text() for path in (ROOT / ".github" / "workflows").glob("*.yml")]
    actions = [line for text in workflows for line in re.findall(r"uses: (.*)", text)]
    assert actions
    assert [
        line for line in actions if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)
    ] == []
    assert [re.findall(r"permissions:\n +(.*)", text) for text in workflows] == [
        ["contents: read"]
    ] * len(workflows)


@pytest.mark.parametrize(
    ("version", "bound", "first"),
    [
        ("3.0.2", "3", True),
        ("2.40.0", "2.40", True),
        ("3.9", "3", False),
        ("2.41.0", "2.40", False),
        ("8", "8.1", False),
    ],
)
def test_what_counts_as_the_first_version(version, bound, first):
    assert is_first(version, bound) == first


def test_every_folder_of_sources_is_a_package():
    """setuptools warns of folders that are in a wheel, but not in this list."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    sources = [path for kind in ("py", "[ch]") for path in (ROOT / "onnx_ops").rglob(f"*.{kind}")]
    assert {*settings["packages"]} == {
        ".".join(path.parent.relative_to(ROOT).parts) for path in sources
    }


def test_names_of_the_package():
    assert dir(onnx_ops) == sorted(onnx_ops.__all__)
    with pytest.raises(AttributeError, match="module 'onnx_ops' has no attribute 'absent'"):
        onnx_ops.absent  # noqa: B018


def test_imports_are_light():
    """Neither the package's own import nor its submodules import what takes time."""
    script = """
        import sys, onnx_ops
        heavy = {"PIL", "click", "numba", "numpy", "onnx", "onnxruntime", "rich", "subprocess"}
        heavy |= {"onnx_ops.export"}
        assert not heavy & {*sys.modules}, heavy & {*sys.modules}
        assert onnx_ops.export.export.__module__ == "onnx_ops.export"
        assert not {"numba", "torch"} & {*sys.modules}
    """
    python(script)


@pytest.mark.parametrize("how", ["absent", long_unless(False, "failing")])
def test_without_extensions(how, tmp_path):
    """The extensions backend is refused, as on Python 3.14, and no message advises it; all else
    works, as lower() does.

    Version 0.14.0 can't be imported, as it imports transformers, which it does not require.
    """
    if how == "failing":
        (tmp_path / "onnxruntime_extensions.py").write_text("import something_that_is_missing")
    script = """
        import sys
        if sys.argv[1] == "absent":
            sys.modules["onnxruntime_extensions"] = None
        from support.backends import function, native, quiet
        from support.cases import assert_close, case_named, expected_of, model
        import onnxruntime, onnx_ops
        case = case_named("overlapping")
        inputs = case.inputs("float32")
        for run in (native, function):
            assert_close(run(case, inputs), expected_of(case, inputs), "float32")
        proto = model("", "Col2Im", inputs, case.attributes)
        assert "ai.onnx.contrib" in [node.domain for node in onnx_ops.lower(proto).graph.node]
        from onnx_ops.cli.list import backends
        print("list:", backends()["extensions"])
        from onnx_ops.native import library
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


SCRIPTS = [
    path
    for path in (ROOT / "scripts").rglob("*.py")
    if "import add_tests_to_path" in path.read_text()
]


@pytest.mark.long
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_scripts_find_what_they_share_with_the_tests(script):
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, script, "--help"], env=alone, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
