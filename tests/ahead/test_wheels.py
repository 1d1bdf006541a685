"""A wheel without kernels; those that scripts/release/release.py has built, in the folder that
ONNX_OPS_WHEELS names.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from support.libraries import check_library
from support.processes import TESTS

import onnx_ops
from onnx_ops import system
from onnx_ops.compiler.cpu_levels import LEVELS

WHEELS = sorted(Path(os.environ.get("ONNX_OPS_WHEELS") or "/nowhere").glob("*.whl"))
ROOT = TESTS.parent
TARGETS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["onnx_ops"]["platforms"]
PYTHON = "3.12"
MARKERS = {  # what Python says of itself there
    "manylinux_2_28_x86_64": {"sys_platform": "linux", "platform_machine": "x86_64"},
    "manylinux_2_28_aarch64": {"sys_platform": "linux", "platform_machine": "aarch64"},
    "win_amd64": {"sys_platform": "win32", "platform_machine": "AMD64"},
    "win_arm64": {"sys_platform": "win32", "platform_machine": "ARM64"},
    "macosx_11_0_x86_64": {"sys_platform": "darwin", "platform_machine": "x86_64"},
    "macosx_11_0_arm64": {"sys_platform": "darwin", "platform_machine": "arm64"},
}


def check_materials(files):
    """Check what a wheel lists of its making against its files; return its ({tool: component},
    {part: component}).

    files  {name: content}
    """
    (content,) = [
        content
        for name, content in files.items()
        if name.endswith(".dist-info/sboms/onnx-ops.cdx.json")
    ]
    listed = json.loads(content)
    if find_spec("cyclonedx"):  # in the workflow
        schema, validation = (
            import_module("cyclonedx.schema"),
            import_module("cyclonedx.validation.json"),
        )
        validator = validation.JsonStrictValidator(
            schema.SchemaVersion.from_version(listed["specVersion"])
        )
        assert validator.validate_str(content.decode()) is None
    component, tools = listed["metadata"]["component"], listed["metadata"]["tools"]["components"]
    assert (component["name"], component["version"]) == ("onnx-ops", onnx_ops.__version__)
    materials = {material["name"]: material for material in listed["components"]}
    sums = lambda content: [{"alg": "SHA-256", "content": hashlib.sha256(content).hexdigest()}]
    sources = sorted(
        name
        for name in files
        if name.startswith("onnx_ops/") and name.endswith((".py", ".c", ".h"))
    )
    lines = [f"{hashlib.sha256(files[name]).hexdigest()}  {name}\n" for name in sources]
    assert materials["sources"]["hashes"] == sums("".join(lines).encode())
    (library,) = [name for name in files if name.endswith((".so", ".dll", ".dylib"))]
    assert materials[Path(library).name]["hashes"] == sums(files[library])
    assert all(tool["version"] for tool in tools)
    return {tool["name"]: tool for tool in tools}, materials


def check_description(files):
    """Check that links in what a wheel says of itself also work outside of the clone.

    files  {name: content}
    """
    (metadata,) = [content for name, content in files.items() if name.endswith("METADATA")]
    description = Parser().parsestr(metadata.decode()).get_payload()
    links = re.findall(r"\]\(([^)]+)\)", description)
    repository = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"][
        "Repository"
    ]
    assert f"{repository}/blob/v{onnx_ops.__version__}/docs/platforms.md" in links
    assert f"{repository}/raw/v{onnx_ops.__version__}/docs/images/networks.png" in links
    assert [link for link in links if not link.startswith(("https://", "#"))] == []


@pytest.mark.long
@pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="there is no C compiler"
)
def test_the_same_sources_give_the_same_wheel(tmp_path):
    """Its bytes depend neither on the folder, nor on when it is built; and it lists what it was
    built from.
    """
    # Else pip gets what builds it.
    how = ["--no-build-isolation"] if find_spec("setuptools_scm") else []
    wheels = []
    for folder in (tmp_path / "one", tmp_path / "another"):
        for name in ("onnx_ops", "setup.py", "pyproject.toml", "README.md", "LICENSE", "NOTICE"):
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            folder.mkdir(exist_ok=True)
            copy(ROOT / name, folder / name)
        command = [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-deps",
            *how,
            "--wheel-dir",
            folder,
            folder,
        ]
        subprocess.run(command, env=os.environ | {"SOURCE_DATE_EPOCH": "1700000000"}, check=True)
        wheels.append(next(folder.glob("*.whl")).read_bytes())
    assert wheels[0] == wheels[1]
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    check_description(files)
    tools, _ = check_materials(files)
    assert tools.keys() == {"Python", "setuptools", "C compiler"}


@pytest.mark.skipif(
    not WHEELS, reason="there are no wheels in ONNX_OPS_WHEELS: run scripts/release/release.py"
)
@pytest.mark.parametrize("wheel", WHEELS or [None], ids=lambda wheel: wheel and wheel.stem)
def test_wheel(wheel, tmp_path):
    _, _, python, abi, platform = wheel.stem.split("-")
    name, architecture = TARGETS[platform]
    assert (python, abi) == ("py3", "none")
    with zipfile.ZipFile(wheel) as archive:
        files = {file: archive.read(file) for file in archive.namelist()}
    (tags,) = [content for file, content in files.items() if file.endswith(".dist-info/WHEEL")]
    assert f"Tag: py3-none-{platform}\n" in tags.decode()
    libraries = [file for file in files if file.endswith((".so", ".dll", ".dylib", ".pyd", ".o"))]
    assert libraries == [f"onnx_ops/native/{system.LIBRARIES[name]}"]
    check_library(files[libraries[0]], name, architecture, system.LIBRARIES[name])
    sources = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("onnx_ops/**/*.py")}
    assert sources <= set(files)
    check_description(files)
    tools, materials = check_materials(files)
    assert {"C compiler", "LLVM", "llvmlite", "numpy"} <= {*tools}
    assert {"numba", "zig"} <= {*materials}
    cpus = [
        cpu_property["value"] for cpu_property in materials[Path(libraries[0]).name]["properties"]
    ]
    assert {LEVELS[cpu][0] for cpu in cpus} == {architecture}
    licences = {Path(file).name for file in files if "/licenses/" in file}
    assert licences == {"LICENSE", "NOTICE"}  # of the machine code of others, too
    (metadata,) = [
        content for file, content in files.items() if file.endswith(".dist-info/METADATA")
    ]
    # With --platform, pip still evaluates the markers of requirements for the machine that it runs
    # on.
    variables = {**MARKERS[platform], "python_version": PYTHON, "extra": ""}
    requirements = map(Requirement, Parser().parsestr(metadata.decode()).get_all("Requires-Dist"))
    words = [
        f"{r.name}{r.specifier}"
        for r in requirements
        if not r.marker or r.marker.evaluate(variables)
    ]
    newer = platform.replace(
        "macosx_11_0", "macosx_15_0"
    )  # ONNX Runtime needs newer ones than this package
    options = (
        f"--dry-run --quiet --ignore-installed --only-binary=:all: --platform {newer} "
        f"--python-version {PYTHON}"
    )
    install = [sys.executable, "-m", "pip", "install", "--target", tmp_path, *options.split()]
    for requirement in (["--no-deps", wheel], words):
        subprocess.run(list(map(str, [*install, *requirement])), check=True)
