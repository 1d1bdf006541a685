"""Run the tests against the oldest supported and the newest versions of what onnx_ops works with, and some in between.

Each row gets a fresh environment, into which a wheel of this checkout is installed beside exactly these versions. The
oldest and newest versions run the whole suite. Those in between run SHORT, which has every operator, element type,
backend and error. With a Numba that is too old, onnx_ops must refuse to work, in words. The interpreters are those
called python3.X on the PATH. A row that is only RESOLVED needs none: pip finds the packages that would be installed,
and nothing is run.

python scripts/compat.py [--only ROW ...] [--tests PATH ...] [--write]
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pages

ROOT = Path(__file__).parent.parent
TESTS = ROOT / "tests"  # the working directory: from here `import onnx_ops` finds the installed package only
PACKAGES = ("onnxruntime", "onnxruntime-extensions", "onnx", "numpy", "numba", "ml-dtypes", "platformdirs")
SHORT = ["test_node_cases.py", "test_coverage.py", "test_sessions.py", "test_errors.py", "test_inference.py",
         "test_schemas.py", "test_models.py"]  # fmt: skip
WHOLE = ["."]
RESOLVED = ["no tests"]
PAGE = "docs/platforms.md"  # the page with the table
RUN_TIMEOUT, TEST_TIMEOUT = 7200, 600  # seconds until a run is stopped; until the stacks of a test are printed
PROBE = """
import onnxruntime, onnx_ops
onnx_ops.lower
onnx_ops.register(onnxruntime.SessionOptions(), backend="extensions")
onnx_ops.register(onnxruntime.SessionOptions())
"""


@dataclass(frozen=True)
class Row:
    """One environment.

    versions  of PACKAGES, in that order; "" is the newest
    tests     files to run, RESOLVED, or None where onnx_ops must refuse to work
    """

    name: str
    python: str
    versions: tuple[str, ...]
    tests: tuple[str, ...] | None

    @property
    def pins(self):
        return [f"{p}=={v}" if v else p for p, v in zip(PACKAGES, self.versions, strict=True)]


def row(name, python, versions, tests):
    return Row(name, python, tuple(v.strip("-") for v in versions.split()), tests and tuple(tests))


OLDEST = "1.20.0 0.13.0 1.19.0 1.26.0 0.60.0 0.5.0 3.0.0"
ROWS = [
    row("oldest", "3.10", OLDEST, WHOLE),
    row("2024", "3.11", "1.20.1 0.13.0 1.19.0 2.0.2 0.61.2 0.5.1 4.3.6", SHORT),
    row("2025, spring", "3.12", "1.22.1 0.13.0 1.19.1 2.2.6 0.61.2 0.5.1 4.3.8", SHORT),
    row("2025, autumn", "3.13", "1.23.2 0.15.0 1.20.1 2.3.5 0.62.1 0.5.4 4.5.0", SHORT),
    row("2026", "3.12", "1.27.0 0.15.2 1.22.0 2.4.0 0.65.1 0.5.4 4.5.0", SHORT),
    row("newest", "3.13", "- - - - - - -", WHOLE),
    row("newest Python", "3.14", "- - - - - - -", RESOLVED),
    row("numba too old", "3.10", OLDEST.replace("0.60.0", "0.59.1"), None),
]


class Environment:
    def __init__(self, path, python):
        self.bin, interpreter = path / "bin", shutil.which(f"python{python}")
        if not interpreter:
            raise SystemExit(f"compat: needs python{python} on the PATH")
        shutil.rmtree(path, ignore_errors=True)
        subprocess.run([interpreter, "-m", "venv", path], check=True)

    def install(self, *packages):
        subprocess.run([self.bin / "python", "-m", "pip", "install", "--quiet", *packages], check=True)

    def run(self, *command, environment=None):
        """Return (exit status, or None if it did not end, output) of a command; the file `log` grows with it."""
        log, environment = self.bin.parent / "log", {**os.environ, **(environment or {})}
        with open(log, "w") as file:
            try:
                status = subprocess.run(
                    [self.bin / command[0], *command[1:]], cwd=TESTS, env=environment, stdout=file,
                    stderr=subprocess.STDOUT, timeout=RUN_TIMEOUT,
                ).returncode  # fmt: skip
            except subprocess.TimeoutExpired:
                status = None
        return status, log.read_text()

    def versions(self):
        script = f"from importlib.metadata import version; print(*map(version, {PACKAGES}))"
        return self.run("python", "-c", script)[1].split()


def resolution(row, wheel):
    """Return the versions that pip would install, from wheels alone."""
    options = f"--dry-run --quiet --ignore-installed --only-binary=:all: --python-version {row.python} --report -"
    command = [sys.executable, "-m", "pip", "install", "--target", "nowhere", *options.split(), wheel]
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    versions = {each["metadata"]["name"].lower(): each["metadata"]["version"] for each in report["install"]}
    return [versions.get(package, versions.get(package.replace("-", "_"), "none")) for package in PACKAGES]


def outcome(row, wheel, directory, tests):
    """Return the installed versions, and a summary of the outcome."""
    if row.tests == tuple(RESOLVED):
        return resolution(row, wheel), "can be installed; not run"
    environment = Environment(directory / row.name.replace(" ", "-").replace(",", ""), row.python)
    # The oldest Numba doesn't know new CPUs, and makes code without fused multiplication and addition for them.
    cpu = {"NUMBA_CPU_NAME": "x86-64-v3", "NUMBA_CPU_FEATURES": ""}
    variables = {"XDG_CACHE_HOME": str(environment.bin.parent / "cache"), **cpu}
    # Versions that are too old contradict the wheel's requirements: install them first, and the wheel without any.
    environment.install(*row.pins)
    environment.install("--no-deps", wheel)
    if row.tests is None:
        status, output = environment.run("python", "-c", PROBE, environment=variables)
        refusal = re.search(r"OpError: (onnx_ops: .*)", output)
        return (
            environment.versions(),
            f"refused: {refusal[1]}" if status == 1 and refusal else f"**not refused**: {output}",
        )
    environment.install(*row.pins, f"onnx-ops[test] @ {wheel.as_uri()}")
    options = ("-v", "--color=no", "-m", "not huge and not ray", "-o", f"faulthandler_timeout={TEST_TIMEOUT}")
    status, output = environment.run("pytest", *options, *(tests or row.tests), environment=variables)
    print(output[max(0, output.find("= FAILURES =")) :] if status else output[-2000:], flush=True)
    ending = f"no end in {RUN_TIMEOUT} s" if status is None else output.splitlines()[-1]
    summary = re.sub(r" in [\d.]+s.*|=", "", ending).strip()
    return environment.versions(), summary if status == 0 else f"**{summary}**"


def table_line(row, versions, result):
    labels = {None: "import", tuple(WHOLE): "whole suite", tuple(RESOLVED): "none"}
    tests = labels.get(row.tests, "short")
    return f"| {row.name} | {row.python} | {' | '.join(versions[:5])} | {tests} | {result} |"


def update_table(lines):
    """Update the table in docs/platforms.md: these lines replace those of the same rows, in the order of ROWS."""
    table = pages.get("support", PAGE)
    name_of = lambda text: text.split("|")[1].strip()
    lines_by_name = {name_of(text): text for text in [*table.splitlines(), *lines] if text.startswith("| ")}
    header = f"| versions | Python | {' | '.join(PACKAGES[:5])} | tests | result |\n|{'---|' * 9}"
    rows = "\n".join(lines_by_name[r.name] for r in ROWS if r.name in lines_by_name)
    intro = 'Versions that this was tested with (`python scripts/compat.py --write`, where "short" is explained):'
    pages.put("support", f"{intro}\n\n{header}\n{rows}", PAGE)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[r.name for r in ROWS], help="names of rows")
    parser.add_argument("--tests", nargs="+", help="run these, from tests/, instead of what the row says")
    parser.add_argument("--environments", type=Path, default=ROOT / "build" / "compat", help="where to make them")
    parser.add_argument("--write", action="store_true", help="put the rows into docs/platforms.md")
    options = parser.parse_args()
    wheels = options.environments / "wheel"
    shutil.rmtree(wheels, ignore_errors=True)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", wheels, ROOT], check=True
    )
    (wheel,) = wheels.glob("*.whl")
    lines = []
    for row in ROWS:
        if row.name in options.only:
            lines.append(table_line(row, *outcome(row, wheel.resolve(), options.environments, options.tests)))
            print(lines[-1], flush=True)
            if options.write and not options.tests:
                update_table(lines)
    return any("**" in text for text in lines)


if __name__ == "__main__":
    sys.exit(main())
