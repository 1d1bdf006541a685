"""Build a release and check it: the source distribution, and a wheel for each platform.

A wheel has every kernel, compiled ahead: users need no compiler. Each file that can be installed on
this machine, which runs Linux, is installed into a new environment, away from the sources. The
wheel works there without a C compiler and without Numba. A test checks the content of all wheels.

pip install ".[cross,test]" build lief twine
python scripts/release/release.py dist
python scripts/release/release.py dist this --cpu x86-64-v3    # one wheel, for one level of CPUs
python scripts/release/release.py dist --check                 # files that are built
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from onnx_ops import __version__, system
from onnx_ops.ahead.build import ziglang
from onnx_ops.compiler import target
from onnx_ops.compiler.cpu_levels import LEVELS

ROOT = Path(__file__).parents[2]
SETTINGS = ROOT / "pyproject.toml"
PYPROJECT = tomllib.loads(SETTINGS.read_text())
PROJECT = PYPROJECT["project"]
SDIST = f"onnx_ops-{__version__}.tar.gz"
TARGETS = PYPROJECT["tool"]["onnx_ops"]["platforms"]  # {platform: [system, architecture]}
[THIS] = [name for name in TARGETS if TARGETS[name] == [system.NAME, target.architecture()]]
COMPILER = re.compile(r"(.+-)?(cc|c\+\+|gcc|g\+\+|clang|clang\+\+|tcc|c89|c99|zig)(-[\d.]+)?")
# Of a program that runs in a wheel's environment.
ALONE = """
import shutil
from importlib.util import find_spec
assert not any(map(shutil.which, ("cc", "gcc", "clang"))) and not find_spec("numba")
"""


class Step(NamedTuple):
    """Commands; the first one that fails ends the step.

    variables  of their environment; "" removes one
    """

    title: str
    commands: Sequence[Sequence[str | Path]]
    folder: Path = ROOT
    variables: Mapping[str, str] = {}


def run(step: Step) -> tuple[bool, str]:
    """Run the commands of a step; return whether all passed, and a line of the summary."""
    variables = {k: v for k, v in {**os.environ, **step.variables}.items() if v}
    started = time.monotonic()
    passed = True
    for command in step.commands:
        print("+", shlex.join(map(str, command)), flush=True)
        passed = not subprocess.run(command, cwd=step.folder, env=variables).returncode
        if not passed:
            break
    seconds = time.monotonic() - started
    return passed, f"{'passed' if passed else 'FAILED'}: {step.title} ({seconds:.0f} s)"


# Building


def git(*arguments: str) -> str:
    """Return what git prints; "" outside of a clone."""
    command = ["git", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()


# The times of the files inside, which would else differ from build to build.
TIME = os.environ.get("SOURCE_DATE_EPOCH") or git("log", "-1", "--format=%ct")
REPRODUCIBLE = {"SOURCE_DATE_EPOCH": TIME}


def wheel_of(platform: str) -> str:
    """Return the name of the wheel for a platform."""
    return f"onnx_ops-{__version__}-py3-none-{platform}.whl"


def building_sdist(folder: Path) -> Step:
    command = [sys.executable, "-m", "build", "--sdist", "--outdir", folder, ROOT]
    return Step(f"build {SDIST}", [command], variables=REPRODUCIBLE)


def building_wheels(folder: Path, platforms: Sequence[str], cpus: Sequence[str]) -> Iterator[Step]:
    """Yield a step for each wheel.

    cpus  of LEVELS; none: all of a platform
    """
    for platform in platforms:
        name, architecture = TARGETS[platform]
        levels = [
            level
            for level, (architecture_of_level, *_) in LEVELS.items()
            if architecture_of_level == architecture and (not cpus or level in cpus)
        ]
        if not levels:
            raise SystemExit(f"{platform}: none of {', '.join(cpus)} is of {architecture}")
        variables = {
            "ONNX_OPS_AHEAD": " ".join(levels),
            "ONNX_OPS_SYSTEM": name,
            # Also for this machine: the tag says with which oldest system the library runs.
            "CC": shlex.join(ziglang(name, architecture)),
            **REPRODUCIBLE,
        }
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
        command = [*pip, "--wheel-dir", folder, ROOT]
        title = f"build {wheel_of(platform)} for {', '.join(levels)}"
        yield Step(title, [command], variables=variables)


# Checking


def supported_pythons() -> list[str]:
    """Return the versions of Python that a wheel supports, such as "3.12"."""
    listed = PROJECT["classifiers"]
    return [name.rpartition(" ")[2] for name in listed if ":: Python :: 3." in name]


def interpreters(names: Sequence[str]) -> dict[str, str]:
    """Return {version, such as "3.12.1": path} of the first interpreter of each supported version.

    names  programs; none: Debian's, and those of the PATH
    """
    supported = supported_pythons()
    code = "import platform, sys; print(platform.python_version(), sys.executable)"
    found: dict[str, tuple[str, str]] = {}
    for name in names or ["/usr/bin/python3", "python3", *(f"python{v}" for v in supported)]:
        if shutil.which(name):
            printed = subprocess.run([name, "-c", code], capture_output=True, text=True).stdout
            version, _, path = printed.strip().partition(" ")
            found.setdefault(version.rpartition(".")[0], (version, path))
    return dict(found[minor] for minor in supported if minor in found)


def link_programs(folder: Path) -> Path:
    """Link the programs of the PATH into a folder, without C compilers; return it."""
    folder.mkdir()
    for directory in map(Path, os.get_exec_path()):
        for program in directory.glob("*"):
            link = folder / program.name
            if not COMPILER.fullmatch(program.name) and not os.path.lexists(link):
                link.symlink_to(program.absolute())
    return folder


def installation(packages: Sequence[str], python: str, folder: Path, path: str) -> Step:
    """Return the step that installs packages in a new environment, and runs the demo there.

    path  the programs beside those of the environment
    """
    commands: list[Sequence[str | Path]] = [
        [python, "-m", "venv", folder],
        ["pip", "install", "--quiet", *packages],
        ["pip", "check"],
        # A new cache: else this user's may have the kernels.
        ["env", f"XDG_CACHE_HOME={folder / 'cache'}", "onnx-ops", "demo"],
    ]
    variables = {"PATH": f"{folder / 'bin'}{os.pathsep}{path}", "PYTHONPATH": "", "CC": ""}
    return Step("", commands, folder.parent, variables)


def checking(
    folder: Path, platforms: Sequence[str], pythons: Mapping[str, str], work: Path
) -> Iterator[Step]:
    """Yield the steps that check the files of a release.

    pythons  {version: path} of the interpreters that the wheel of this platform is installed with
    work     a folder for environments
    """
    files = [folder / name for name in (SDIST, *map(wheel_of, platforms))]
    twine = [sys.executable, "-m", "twine", "check", "--strict", *files]
    yield Step(f"check the metadata of {len(files)} files", [twine])
    content = [sys.executable, "-m", "pytest", "tests/ahead/test_wheels.py"]
    title = f"check content, tags and requirements of {len(platforms)} wheels"
    yield Step(title, [content], variables={"ONNX_OPS_WHEELS": str(folder)})
    sdist = installation(
        [f"{files[0]}[cli,jit]"], sys.executable, work / "sdist", os.environ["PATH"]
    )
    yield sdist._replace(title=f"install {SDIST}, run the demo")
    if THIS not in platforms:
        return
    path = link_programs(work / "programs")
    packages = [f"{folder / wheel_of(THIS)}[cli]", "hypothesis", "psutil", "pytest", "pytest-xdist"]
    for version, python in pythons.items():
        step = installation(packages, python, work / version, str(path))
        tests = ["pytest", "-n", "logical", "-c", SETTINGS, "--rootdir", ROOT, ROOT / "tests"]
        yield step._replace(
            title=f"install {wheel_of(THIS)} in Python {version} without a C compiler, run the "
            "demo and the short tests",
            commands=[*step.commands, ["python", "-c", ALONE], tests],
        )


def remarks(platforms: Sequence[str], pythons: Mapping[str, str]) -> Iterator[str]:
    """Yield lines on the wheels and versions of Python that did not run, and on what an upload
    lacks.
    """
    yield from (
        f"not run: {wheel_of(name)}, for another system" for name in platforms if name != THIS
    )
    checked = {version.rpartition(".")[0] for version in pythons}
    yield from (f"not run: Python {v}" for v in supported_pythons() if v not in checked)
    if "/OWNER/" in (address := PROJECT["urls"]["Repository"]):
        yield f"not for upload: Repository in pyproject.toml is a placeholder, {address}"
    if git("status", "--porcelain"):
        yield "not for upload: the clone has changes that are not committed"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="for the files; new or empty, but for --check")
    parser.add_argument(
        "platforms", nargs="*", choices=[*TARGETS, "this", []], help="of wheels; default: all"
    )
    parser.add_argument(
        "--cpu", action="append", default=[], choices=LEVELS, help="default: all of a platform"
    )
    parser.add_argument(
        "--python", action="append", default=[],
        help="interpreter to install the wheel with; default: all supported ones that are here",
    )  # fmt: skip
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--wheels", action="store_true", help="build wheels, and check nothing")
    only.add_argument("--check", action="store_true", help="check files that are built")
    return parser.parse_args()


def main() -> int:
    """Run the steps, and print a summary; return the exit status."""
    options = arguments()
    folder = options.folder.absolute()
    chosen = [THIS if name == "this" else name for name in options.platforms]
    platforms = [name for name in TARGETS if name in chosen or not chosen]
    if not options.check and folder.exists() and any(folder.iterdir()):
        raise SystemExit(f"{folder}: has files, of which twine would upload old ones, too")
    pythons = interpreters(options.python)
    outcomes = []
    with TemporaryDirectory() as work:
        if not (options.check or options.wheels):
            outcomes.append(run(building_sdist(folder)))
        if not options.check:
            outcomes += map(run, building_wheels(folder, platforms, options.cpu))
        if not options.wheels:
            outcomes += map(run, checking(folder, platforms, pythons, Path(work)))
    print(f"\nonnx_ops {__version__} in {folder}:")
    print(*(line for _, line in outcomes), sep="\n")
    if not options.wheels:
        print(*remarks(platforms, pythons), sep="\n")
    return not all(passed for passed, _ in outcomes)


if __name__ == "__main__":
    sys.exit(main())
