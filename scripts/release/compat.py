"""Run the tests against the oldest supported and the newest versions of what onnx_ops works with,
and some in between.

Each row gets a fresh environment, into which a wheel of this checkout is installed beside exactly
these versions. The oldest and the newest versions run the whole suite. Those in between run
"short", which has every operator, element type, backend and error. "extras" runs what the optional
dependencies and the lower bounds for building are for. "functions" calls operators on arrays, where
ONNX Runtime has no wheels. "sessions" runs the tests of sessions and of the C library on the Python
of Debian 12, with which ONNX Runtime's exceptions may lack a text. With a Numba that is too old,
the import must fail with a message. The interpreters are those called python3.X on the PATH, and
Debian's; scripts/release/pythons.sh gets new ones.

python scripts/release/compat.py [--only ROW ...] [--tests PATH ...] [--write]
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import add_tests_to_path  # noqa: F401
from support import pages
from support.compatibility import NONE, PACKAGES, ROWS

ROOT = Path(__file__).parents[2]
# The working directory: from here `import onnx_ops` finds the installed package only.
TESTS = ROOT / "tests"
SELECTIONS = {
    "whole suite": ["."],
    "short": ["test_node_cases.py", "test_coverage.py", "test_sessions.py", "test_errors.py",
        "test_inference.py",
              "test_schemas.py", "test_models.py"],
    "functions": ["test_relations.py", "test_operators.py", "test_memory.py",
        "test_deformable_attention.py",
                  "test_scattered_points.py", "test_sizes.py", "test_large_images.py",
                  "test_plans.py",
                  "test_elements.py"],
    "extras": ["test_cli.py", "test_many_files.py", "test_build.py", "test_wheels.py",
        "test_torch.py",
               "test_torch_operators.py"],
    "sessions": ["session", "native"],
    "import": [],  # which must fail
}  # fmt: skip
PAGE = "docs/platforms.md"  # the page with the table
RUN_TIMEOUT, TEST_TIMEOUT = (
    7200,
    600,
)  # seconds until a run is stopped; until the stacks of a test are printed
PROBE = """
import onnxruntime, onnx_ops
onnx_ops.lower
onnx_ops.register(onnxruntime.SessionOptions(), backend="extensions")
onnx_ops.register(onnxruntime.SessionOptions())
"""


def paths(names):
    """Return the paths of test files in TESTS, whichever folder they are in; "." stays."""
    return [
        str(path.relative_to(TESTS))
        for name in names
        for path in ([TESTS] if name == "." else TESTS.rglob(name))
    ]


def test_requirements():
    """Return what the extra `test` requires, apart from this package's own requirements."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    return [
        requirement
        for extra in ("cli", "jit", "test")
        for requirement in extras[extra]
        if not requirement.startswith("onnx-ops")
    ]


class Environment:
    def __init__(self, path: Path, python: str) -> None:
        self.bin, interpreter = path / "bin", shutil.which(python)
        if not interpreter:
            raise SystemExit(f"compat: needs {python}")
        shutil.rmtree(path, ignore_errors=True)
        subprocess.run([interpreter, "-m", "venv", path], check=True)

    def pip(self, *arguments):
        """Run pip; returns its output."""
        command = [self.bin / "python", "-m", "pip", *arguments]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout

    def run(self, *command, environment):
        """Return (exit status, or None if it did not end, output) of a command; the file `log`
        grows with it.
        """
        log = self.bin.parent / "log"
        with open(log, "w") as file:
            try:
                status = subprocess.run(
                    [self.bin / command[0], *command[1:]], cwd=TESTS, env=os.environ | environment,
                    stdout=file,
                    stderr=subprocess.STDOUT, timeout=RUN_TIMEOUT,
                ).returncode  # fmt: skip
            except subprocess.TimeoutExpired:
                status = None
        return status, log.read_text()

    def versions(self):
        installed = {
            package["name"].replace("_", "-"): package["version"]
            for package in json.loads(self.pip("list", "--format=json"))
        }
        return [installed.get(package, NONE) for package in PACKAGES]


def outcome(row, wheel, directory, tests):
    """Return the installed versions, and a summary of the outcome."""
    environment = Environment(
        directory / row.name.replace(" ", "-").replace(",", ""),
        row.interpreter or f"python{row.python}",
    )
    # The oldest Numba doesn't know new CPUs, and makes code without fused multiplication and
    # addition for them.
    cpu = {"NUMBA_CPU_NAME": "x86-64-v3", "NUMBA_CPU_FEATURES": ""}
    variables = {"XDG_CACHE_HOME": str(environment.bin.parent / "cache"), **cpu}
    # Without the wheel's own requirements, which may contradict the versions.
    environment.pip(
        "install", "--quiet", *row.pins, *(test_requirements() if row.tests != "import" else [])
    )
    environment.pip("install", "--quiet", "--no-deps", wheel)
    versions = environment.versions()
    if row.tests == "import":
        status, output = environment.run("python", "-c", PROBE, environment=variables)
        refusal = re.search(r"OpError: (onnx_ops: .*)", output)
        return (
            versions,
            f"refused: {refusal[1]}" if status == 1 and refusal else f"**not refused**: {output}",
        )
    if NONE not in versions:
        environment.pip("check")
    timeout = f"faulthandler_timeout={TEST_TIMEOUT}"
    marks = (
        "not huge and not soak" if row.tests == "extras" else "not huge and not ray and not soak"
    )
    if row.tests == "sessions":
        marks += " and not long"
    options = ("-v", "-n", "logical", "--color=no", "-m", marks, "-o", timeout)
    status, output = environment.run(
        "pytest", *options, *(tests or paths(SELECTIONS[row.tests])), environment=variables
    )
    print(output[max(0, output.find("= FAILURES =")) :] if status else output[-2000:], flush=True)
    ending = f"no end in {RUN_TIMEOUT} s" if status is None else output.splitlines()[-1]
    summary = re.sub(r" in [\d.]+s.*|=", "", ending).strip()
    return versions, summary if status == 0 else f"**{summary}**"


def update_table(lines):
    """Update the table in docs/platforms.md: these lines replace those of the same rows, in the
    order of ROWS.
    """
    table = pages.get("support", PAGE)
    name_of = lambda text: text.split("|")[1].strip()
    lines_by_name = {
        name_of(text): text for text in [*table.splitlines(), *lines] if text.startswith("| ")
    }
    header = f"| versions | Python | {' | '.join(PACKAGES[:5])} | tests | result |\n|{'---|' * 9}"
    rows = "\n".join(lines_by_name[r.name] for r in ROWS if r.name in lines_by_name)
    intro = (
        "Versions that this was tested with (`python scripts/release/compat.py --write`, which "
        "explains the tests):"
    )
    pages.put("support", f"{intro}\n\n{header}\n{rows}", PAGE)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=[r.name for r in ROWS],
        choices=[r.name for r in ROWS],
        metavar="ROW",
    )
    parser.add_argument(
        "--tests", nargs="+", help="run these, from tests/, instead of what the row says"
    )
    parser.add_argument(
        "--environments", type=Path, default=ROOT / "build" / "compat", help="where to make them"
    )
    parser.add_argument("--write", action="store_true", help="put the rows into docs/platforms.md")
    options = parser.parse_args()
    wheels = options.environments / "wheel"
    shutil.rmtree(wheels, ignore_errors=True)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", wheels, ROOT],
        check=True,
    )
    (wheel,) = wheels.glob("*.whl")
    lines = []
    for row in ROWS:
        if row.name in options.only:
            versions, result = outcome(row, wheel.resolve(), options.environments, options.tests)
            lines.append(
                f"| {row.name} | {row.python} | {' | '.join(versions[:5])} | {row.tests} | "
                f"{result} |"
            )
            print(lines[-1], flush=True)
            if options.write and not options.tests:
                update_table(lines)
    return any("**" in text for text in lines)


if __name__ == "__main__":
    sys.exit(main())
