"""Run the tests against the oldest supported and the newest versions of what onnx_ops works with,
and some in between: the rows of the table in docs/platforms.md.

pip install nox
nox --list
nox -s "versions(newest)" -- --write                 # puts its row into docs/platforms.md
nox -s "versions(newest)" -- cli/test_cli.py         # other tests, from tests/

Each row gets a fresh environment with exactly these versions, and this package. The oldest and the
newest versions run the whole suite. Those in between run "short", which has every operator, data
type, backend and error. "extras" runs what the optional dependencies and the lower bounds for
building are for, "peers" what compares with other packages. "functions" calls operators on arrays,
where ONNX Runtime has no wheels. "sessions" runs the tests of sessions and of the C library on the
Python of Debian 12, with which ONNX Runtime's exceptions may lack a text. With a Numba that is too
old, the import must fail with a message. The interpreters are those called python3.X on the PATH,
and Debian's; scripts/release/pythons.sh gets new ones.
"""

import json
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import nox

ROOT = Path(__file__).parent
# The working directory: from here `import onnx_ops` finds the installed package only.
TESTS = ROOT / "tests"
sys.path[:0] = [str(ROOT), str(TESTS)]

from support import pages  # noqa: E402
from support.compatibility import NONE, PACKAGES, ROWS, Row  # noqa: E402

SELECTIONS = {
    "whole suite": ["."],
    "short": [
        "test_node_cases.py", "test_coverage.py", "test_sessions.py", "test_errors.py",
        "test_inference.py", "test_schemas.py", "test_models.py",
    ],
    "functions": [
        "test_relations.py", "test_operators.py", "test_memory.py",
        "test_deformable_attention.py", "test_scattered_points.py", "test_sizes.py",
        "test_large_images.py", "test_plans.py", "test_elements.py",
    ],
    "extras": [
        "test_cli.py", "test_many_files.py", "test_build.py", "test_wheels.py", "test_torch.py",
        "test_torch_operators.py",
    ],
    "peers": ["test_peers.py", "test_torch.py", "test_torch_operators.py"],
    "sessions": ["session", "native"],
}  # fmt: skip
PAGE = "docs/platforms.md"  # the page with the table
REFUSED = "import"  # instead of a selection: the import must fail
PROBE = """
import onnxruntime, onnx_ops
onnx_ops.lower
onnx_ops.register(onnxruntime.SessionOptions(), backend="extensions")
onnx_ops.register(onnxruntime.SessionOptions())
"""
nox.options.default_venv_backend = "venv"


def test_requirements() -> list[str]:
    """Return what the extra `test` requires, apart from this package's own requirements."""
    extras = nox.project.load_toml(ROOT / "pyproject.toml")["project"]["optional-dependencies"]
    return [
        requirement
        for extra in ("cli", "jit", "test")
        for requirement in extras[extra]
        if not requirement.startswith("onnx-ops")
    ]


def pytest_arguments(row: Row, tests: list[str]) -> list[str]:
    """Return the arguments of pytest, for these tests or those that a row names."""
    marks = "not huge and not soak"
    marks += "" if row.tests == "extras" else " and not ray"
    marks += " and not long" if row.tests == "sessions" else ""
    paths = tests or [
        str(path.relative_to(TESTS))
        for name in SELECTIONS[row.tests]
        for path in ([TESTS] if name == "." else TESTS.rglob(name))
    ]
    # Prints the stacks of a test that takes longer.
    timeout = "faulthandler_timeout=600"
    return ["-v", "-n", "logical", "--color=no", "-m", marks, "-o", timeout, *paths]


@nox.session(default=False)
@nox.parametrize("python,row", [nox.param(r.interpreter or r.python, r, id=r.name) for r in ROWS])
def versions(session: nox.Session, row: Row) -> None:
    """Test with the versions of a row."""
    # Without the package's own requirements, which may contradict the versions.
    session.install(*row.pins, *(test_requirements() if row.tests != REFUSED else []))
    session.install("--no-deps", ".")
    listed = session.run("python", "-m", "pip", "list", "--format=json", silent=True)
    installed = {p["name"].replace("_", "-"): p["version"] for p in json.loads(listed)}
    session.chdir(TESTS)
    session.env["XDG_CACHE_HOME"] = f"{session.virtualenv.location}/cache"
    # The oldest Numba doesn't know new CPUs, and makes code without fused multiplication and
    # addition for them.
    session.env.update(NUMBA_CPU_NAME="x86-64-v3", NUMBA_CPU_FEATURES="")
    tests = [argument for argument in session.posargs if argument != "--write"]
    if row.tests == REFUSED:
        output = session.run("python", "-c", PROBE, silent=True, success_codes=[1])
        result = f"refused: {re.search(r'OpError: (onnx_ops: .*)', output)[1]}"
    else:
        if NONE not in row.versions:
            session.run("python", "-m", "pip", "check")
        result = run_tests(session, pytest_arguments(row, tests))
    peers = [f"{name} {installed[name]}" for name in row.peers.split()]
    title = f"{row.tests}: {', '.join(peers)}" if peers else row.tests
    cells = [installed.get(package, NONE) for package in PACKAGES[:5]]
    line = f"| {' | '.join([row.name, row.python, *cells, title, result])} |"
    session.log(line)
    if "--write" in session.posargs and not tests:
        update_table(row, line)


def run_tests(session: nox.Session, arguments: list[str]) -> str:
    """Run pytest, which must pass; return how many tests have."""
    report = Path(session.virtualenv.location) / "report.xml"
    session.run("pytest", *arguments, f"--junitxml={report}")
    (suite,) = ElementTree.parse(report).getroot()
    tests, skipped = (int(suite.attrib[name]) for name in ("tests", "skipped"))
    return f"{tests - skipped} passed, {skipped} skipped"


def update_table(row: Row, line: str) -> None:
    """Put the line of a row into the table in docs/platforms.md, in the order of ROWS."""
    table = pages.get("support", PAGE)
    lines = {text.split("|")[1].strip(): text for text in table.splitlines() if text[:2] == "| "}
    lines[row.name] = line
    header = f"| versions | Python | {' | '.join(PACKAGES[:5])} | tests | result |\n|{'---|' * 9}"
    rows = "\n".join(lines[r.name] for r in ROWS if r.name in lines)
    intro = "Versions that this was tested with (`nox -s versions -- --write`):"
    pages.put("support", f"{intro}\n\n{header}\n{rows}", PAGE)
