"""Run the tests against the oldest supported and the newest versions of what onnx_ops works with,
and some in between.

Each row gets a fresh environment, into which a wheel of this checkout is installed beside exactly
these versions. The oldest and the newest versions run the whole suite. Those in between run
"short", which has every operator, element type, backend and error. "extras" runs what the optional
dependencies and the lower bounds for building are for. "functions" calls operators on arrays, where
ONNX Runtime has no wheels. "sessions" runs the tests of sessions and of the C library on the Python
of Debian 12, with which ONNX Runtime's exceptions may lack a text. With a Numba that is too old,
the import must fail with a message. The interpreters are those called python3.X on the PATH, and
Debian's; scripts/pythons.sh gets new ones.

python scripts/compat.py [--only ROW ...] [--tests PATH ...] [--write]
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pages

ROOT = Path(__file__).parent.parent
# The working directory: from here `import onnx_ops` finds the installed package only.
TESTS = ROOT / "tests"
PACKAGES = (
    "onnxruntime",
    "onnxruntime-extensions",
    "onnx",
    "numpy",
    "numba",
    "ml-dtypes",
    "platformdirs",
)
NEWEST, NONE = "newest", "none"
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


@dataclass(frozen=True)
class Row:
    """One environment.

    python    the version of the interpreter
    versions     of PACKAGES, in that order; or NEWEST, or NONE where it has no wheels
    tests        one of SELECTIONS
    others       versions of other packages; default: the newest of those that the extra `test`
                 requires
    interpreter  default: the one called pythonVERSION on the PATH
    """

    name: str
    python: str
    versions: str
    tests: str
    others: str = ""
    interpreter: str = ""

    @property
    def pins(self):
        versions = zip(PACKAGES, self.versions.split(), strict=True)
        return [
            p if v == NEWEST else f"{p}=={v}" for p, v in versions if v != NONE
        ] + self.others.split()


# The lower bounds in pyproject.toml. Extras that few need, and what builds wheels, have a row that
# runs their tests.
OLDEST = "1.20.0 0.13.0 1.19.0 1.26.0 0.60.0 0.5.0 3.0.0"
OLDEST_TOOLS = (
    "click==8.1.0 hypothesis==6.100.0 mypy==1.10.0 pillow==10.1.0 pytest==8.0.0 "
    "pytest-xdist==3.0.2 rich==13.0.0"
)
OLDEST_EXTRAS = (
    "ray==2.40.0 setuptools==77.0.1 setuptools-scm==8.0.1 torch==2.6.0 onnxscript ziglang==0.13.0 "
    "furo==2025.7.19 myst-parser==5.0.0 sphinx==8.2.3"  # which build the site
)
ROWS = [
    Row("oldest", "3.11", OLDEST, "whole suite", OLDEST_TOOLS),
    Row("oldest extras", "3.11", OLDEST, "extras", f"{OLDEST_TOOLS} {OLDEST_EXTRAS}"),
    Row("2024", "3.11", "1.20.1 0.13.0 1.19.0 2.0.2 0.61.2 0.5.1 4.3.6", "short"),
    Row("2025, spring", "3.12", "1.22.1 0.13.0 1.19.1 2.2.6 0.61.2 0.5.1 4.3.8", "short"),
    Row("2025, autumn", "3.13", "1.23.2 0.15.0 1.20.1 2.3.5 0.62.1 0.5.4 4.5.0", "short"),
    Row("2026", "3.12", "1.27.0 0.15.2 1.22.0 2.4.0 0.65.1 0.5.4 4.5.0", "short"),
    Row("newest", "3.13", "newest newest newest newest newest newest newest", "whole suite"),
    Row("newest Python", "3.14", "newest none newest newest newest newest newest", "whole suite"),
    Row(
        "Debian 12",
        "3.11.2",
        " ".join([NEWEST] * len(PACKAGES)),
        "sessions",
        interpreter="/usr/bin/python3.11",
    ),
    Row("next Python", "3.15", "none none newest newest newest newest newest", "functions"),
    Row("numba too old", "3.11", OLDEST.replace("0.60.0", "0.59.1"), "import"),
]


def test_requirements():
    """Return what the extra `test` requires, apart from this package's own requirements."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    return [
        each
        for extra in ("cli", "jit", "test")
        for each in extras[extra]
        if not each.startswith("onnx-ops")
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
            each["name"].replace("_", "-"): each["version"]
            for each in json.loads(self.pip("list", "--format=json"))
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
        "Versions that this was tested with (`python scripts/compat.py --write`, which "
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
