"""The C library (onnx_ops/native): of C alone, or with ONNX_OPS_AHEAD set with every kernel compiled ahead.

It uses nothing of Python's, so one wheel serves every version. Without a C compiler the rest still installs.
"""

import os
import shutil
import sys
from pathlib import Path
from runpy import run_path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext

PACKAGE = Path("onnx_ops")
THIS = run_path(str(PACKAGE / "system.py"))
TARGETS = run_path(str(PACKAGE / "compiler" / "cpu_levels.py"))
AHEAD = os.environ.get("ONNX_OPS_AHEAD", "")  # CPUs, as in onnx_ops.build, or "all"
SYSTEM = os.environ.get("ONNX_OPS_SYSTEM", "")  # with CPUs: another system than this one


class Build(build):
    def run(self):
        # A wheel has what lies there, which may be from an earlier build: another system's library, or old modules.
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
            return
        sys.path.insert(0, str(Path(__file__).parent))
        from onnx_ops.runtime import build as building

        path = Path(self.get_ext_fullpath(extension.name))
        path.parent.mkdir(parents=True, exist_ok=True)
        cpus = None if AHEAD == "all" else AHEAD.split()
        building.build(path, cpus=cpus, system=SYSTEM or None, progress=lambda *now: print(*now, flush=True))


class Wheel(bdist_wheel):
    def get_tag(self):
        if SYSTEM:
            return "py3", "none", TARGETS["PLATFORMS"][SYSTEM, TARGETS["LEVELS"][AHEAD.split()[0]][0]]
        return "py3", "none", super().get_tag()[2]


library = Extension(
    "onnx_ops.runtime.libonnx_ops",
    sorted(map(str, PACKAGE.glob("native/*.c"))),
    depends=sorted(map(str, PACKAGE.glob("native/*.h"))),
    define_macros=[("ONNX_OPS_SOURCES", str(THIS["digest_of_sources"](PACKAGE / "native")))],
    extra_compile_args=["-std=c11", "-fvisibility=hidden"],
    optional=not AHEAD,
)
needed = ["ml-dtypes>=0.5", "numba>=0.60,<0.69", "numpy>=1.26", "onnxruntime>=1.20", "onnx>=1.19", "platformdirs>=3"]
setup(
    ext_modules=[library],
    cmdclass={"build": Build, "build_ext": BuildLibrary, "bdist_wheel": Wheel},
    setup_requires=needed if AHEAD else [],
)
