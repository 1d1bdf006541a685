"""The wheels that scripts/wheels.py has built, in the folder that the variable ONNX_OPS_WHEELS names."""

import os
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from support.libraries import check_library

from onnx_ops import system
from onnx_ops.compiler.cpu_levels import PLATFORMS

WHEELS = sorted(Path(os.environ.get("ONNX_OPS_WHEELS") or "/nowhere").glob("*.whl"))
TARGETS = {platform: target for target, platform in PLATFORMS.items()}
PYTHON = "3.12"
MARKERS = {  # what Python says of itself there
    "manylinux_2_28_x86_64": {"sys_platform": "linux", "platform_machine": "x86_64"},
    "manylinux_2_28_aarch64": {"sys_platform": "linux", "platform_machine": "aarch64"},
    "win_amd64": {"sys_platform": "win32", "platform_machine": "AMD64"},
    "win_arm64": {"sys_platform": "win32", "platform_machine": "ARM64"},
    "macosx_11_0_x86_64": {"sys_platform": "darwin", "platform_machine": "x86_64"},
    "macosx_11_0_arm64": {"sys_platform": "darwin", "platform_machine": "arm64"},
}


@pytest.mark.skipif(not WHEELS, reason="there are no wheels in ONNX_OPS_WHEELS: run scripts/wheels.py")
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
    assert libraries == [f"onnx_ops/runtime/{system.LIBRARIES[name]}"]
    check_library(files[libraries[0]], name, architecture, system.LIBRARIES[name])
    root = Path(__file__).parent.parent
    sources = {path.relative_to(root).as_posix() for path in root.glob("onnx_ops/**/*.py")}
    assert sources <= set(files)
    licences = {Path(file).name for file in files if "/licenses/" in file}
    assert licences == {"LICENSE", "NOTICE"}  # of the machine code of others, too
    (metadata,) = [content for file, content in files.items() if file.endswith(".dist-info/METADATA")]
    # With --platform, pip still evaluates the markers of requirements for the machine that it runs on.
    variables = {**MARKERS[platform], "python_version": PYTHON, "extra": ""}
    requirements = map(Requirement, Parser().parsestr(metadata.decode()).get_all("Requires-Dist"))
    words = [f"{r.name}{r.specifier}" for r in requirements if not r.marker or r.marker.evaluate(variables)]
    newer = platform.replace("macosx_11_0", "macosx_15_0")  # ONNX Runtime needs newer ones than this package
    options = f"--dry-run --quiet --ignore-installed --only-binary=:all: --platform {newer} --python-version {PYTHON}"
    install = [sys.executable, "-m", "pip", "install", "--target", tmp_path, *options.split()]
    for what in (["--no-deps", wheel], words):
        subprocess.run(list(map(str, [*install, *what])), check=True)
