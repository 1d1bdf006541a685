"""The wheels that scripts/wheels.py has built, in the folder that the variable ONNX_OPS_WHEELS names."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from support.libraries import check_library

from onnx_ops import system
from onnx_ops.compiler.cpu_levels import PLATFORMS

WHEELS = sorted(Path(os.environ.get("ONNX_OPS_WHEELS") or "/nowhere").glob("*.whl"))
TARGETS = {platform: target for target, platform in PLATFORMS.items()}


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
    options = f"--dry-run --quiet --ignore-installed --only-binary=:all: --platform {platform} --python-version 3.12"
    command = [sys.executable, "-m", "pip", "install", *options.split(), "--target", tmp_path, wheel]
    subprocess.run(list(map(str, command)), check=True)
