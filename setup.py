"""The C library (onnx_ops/native): of C alone, or with ONNX_OPS_AHEAD set with every kernel
compiled ahead.

It uses nothing of Python's, so one wheel serves every version. Without a C compiler the rest still
installs.

A wheel lists what it was built from in its .dist-info/sboms/onnx-ops.cdx.json (PEP 770), in the
format CycloneDX.
"""

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from runpy import run_path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext

PACKAGE = Path("onnx_ops")
THIS = run_path(str(PACKAGE / "system" / "__init__.py"))
TARGETS = run_path(str(PACKAGE / "compiler" / "cpu_levels.py"))
AHEAD = os.environ.get("ONNX_OPS_AHEAD", "")  # CPUs, as in onnx_ops.build, or "all"
SETTINGS = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
SYSTEM = os.environ.get("ONNX_OPS_SYSTEM", "")  # with CPUs: another system than this one


class Build(build):
    def run(self):
        # A wheel has what lies there, which may be from an earlier build: another system's library,
        # or old modules.
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


class BuildLibrary(build_ext):
    def finalize_options(self):
        super().finalize_options()
        self.force = True  # what is in build/ may be of the other kind

    def get_ext_filename(self, name):
        return str(Path(*name.split(".")).with_name(THIS["LIBRARIES"][SYSTEM or THIS["NAME"]]))

    def get_export_symbols(self, extension):
        return []

    def build_extension(self, extension):
        if not AHEAD:
            super().build_extension(extension)
            self.used = getattr(self.compiler, "compiler_so", None) or [self.compiler.compiler_type]
            return
        sys.path.insert(0, str(Path(__file__).parent))
        from onnx_ops.ahead import build as building

        path = Path(self.get_ext_fullpath(extension.name))
        path.parent.mkdir(parents=True, exist_ok=True)
        cpus = None if AHEAD == "all" else AHEAD.split()
        self.cpus = building.build(
            path, cpus=cpus, system=SYSTEM or None, progress=lambda *now: print(*now, flush=True)
        )
        self.used = building.c_compiler(SYSTEM or THIS["NAME"], TARGETS["LEVELS"][self.cpus[0]][0])


class Wheel(bdist_wheel):
    def write_wheelfile(self, folder, *arguments):
        super().write_wheelfile(folder, *arguments)
        if self.distribution.have_run.get("build"):  # an editable installation changes
            place = Path(folder, "sboms", "onnx-ops.cdx.json")
            place.parent.mkdir()
            place.write_text(json.dumps(materials(self), indent=1) + "\n", encoding="utf-8")

    def get_tag(self):
        if SYSTEM:
            target = [SYSTEM, TARGETS["LEVELS"][AHEAD.split()[0]][0]]
            platforms = SETTINGS["tool"]["onnx_ops"]["platforms"]
            return "py3", "none", next(name for name in platforms if platforms[name] == target)
        return "py3", "none", super().get_tag()[2]


def materials(wheel):
    """Return what a wheel was built from.

    It has no date and no random number: the same build has the same list.
    """
    library = wheel.get_finalized_command("build_ext")
    files = sorted(
        path.as_posix() for kind in ("py", "[ch]") for path in PACKAGE.rglob(f"*.{kind}")
    )
    lines = [f"{hashlib.sha256(Path(file).read_bytes()).hexdigest()}  {file}\n" for file in files]
    parts = [
        component("file", "sources", sha256="".join(lines).encode())
    ]  # as sha256sum prints them, in this order
    tools = [component("application", "Python", platform.python_version()), package("setuptools")]
    if used := getattr(library, "used", None):  # there is a C compiler
        built = Path(wheel.bdist_dir, library.get_ext_filename("onnx_ops.native.libonnx_ops"))
        parts.append(
            component(
                "file", built.name, sha256=built.read_bytes(), cpu=getattr(library, "cpus", [])
            )
        )
        tools.append(component("application", "C compiler", first_line(*used, "--version")))
        if Path(used[0]).stem == "zig":
            linked = {
                "description": "its run-time library and, for Windows, mingw-w64's start of a DLL"
            }
            parts.append(component("library", "zig", first_line(used[0], "version")) | linked)
    if AHEAD:
        import llvmlite.binding

        parts.append(package("numba", "library"))
        of_llvm = ".".join(map(str, llvmlite.binding.llvm_version_info))
        tools += [package("llvmlite"), component("application", "LLVM", of_llvm), package("numpy")]
    whole = package("onnx-ops", "library", wheel.distribution.get_version())
    metadata = {
        "tools": {"components": tools},
        "component": whole | {"licenses": [{"license": {"id": "MIT"}}]},
    }
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": metadata,
        "components": parts,
    }


def component(kind, name, version=None, *, sha256=None, cpu=()):
    """Return a component of CycloneDX, with the SHA-256 of bytes and the CPUs that it has code for,
    if given.
    """
    described = {"type": kind, "name": name}
    if version:
        described["version"] = version
    if sha256 is not None:
        described["hashes"] = [{"alg": "SHA-256", "content": hashlib.sha256(sha256).hexdigest()}]
    if cpu:
        described["properties"] = [{"name": "onnx_ops:cpu", "value": name} for name in cpu]
    return described


def package(name, kind="application", of=None):
    """Return a component for a package of Python: of its installed version, or of one that is
    given.
    """
    of = of or version(name)
    return component(kind, name, of) | {"purl": f"pkg:pypi/{name}@{of}"}


def first_line(*command):
    """Return the first line that a command prints; its name, if there is none."""
    try:
        printed = subprocess.run(command, capture_output=True, text=True).stdout
    except OSError:
        printed = ""
    return printed.partition("\n")[0] or Path(command[0]).name


def description():
    """Return README.md with absolute links, for PyPI."""
    repository = SETTINGS["project"]["urls"]["Repository"]
    tag = "v" + re.search(r'__version__ = "(.+)"', (PACKAGE / "__init__.py").read_text())[1]
    for_links, for_images = (f"{repository}/{view}/{tag}/" for view in ("blob", "raw"))
    return re.sub(
        r"(!?)(\[[^]]*\]\()(?!https?:|#)",
        lambda found: found[1] + found[2] + (for_images if found[1] else for_links),
        Path("README.md").read_text(encoding="utf-8"),
    )


library = Extension(
    "onnx_ops.native.libonnx_ops",
    sorted(map(str, PACKAGE.glob("native/*.c"))),
    depends=sorted(map(str, PACKAGE.glob("native/*.h"))),
    define_macros=[("ONNX_OPS_SOURCES", str(THIS["digest_of_sources"](PACKAGE / "native")))],
    extra_compile_args=["-std=c11", "-g0", "-fvisibility=hidden"],
    optional=not AHEAD,
)
needed = [
    "ml-dtypes>=0.5",
    "numba>=0.60,<0.69",
    "numpy>=1.26",
    "onnxruntime>=1.20",
    "onnx>=1.19",
    "platformdirs>=3",
]
setup(
    long_description=description(),
    long_description_content_type="text/markdown",
    ext_modules=[library],
    cmdclass={"build": Build, "build_ext": BuildLibrary, "bdist_wheel": Wheel},
    setup_requires=needed if AHEAD else [],
)
