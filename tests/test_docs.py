"""The examples in README.md and docs/ work, and their links lead somewhere."""

import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from PIL import Image
from support import pictures
from support.cases import imported_domains
from support.commands import invoke
from support.network_tables import PAGE, SHOWN, recorded
from support.pages import CONTINUED, ROOT, addresses, examples, get, program, repository

import onnx_ops
from onnx_ops.cli import demo
from onnx_ops.cli.app import app
from onnx_ops.model.files import EXTENSIONS
from onnx_ops.model.node_tests import read_pb
from onnx_ops.model.sessions import BuiltinSession, OrtSession
from onnx_ops.native import library
from onnx_ops.registry import OPERATORS

PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
RECIPES = ROOT / "docs/many-files.md"  # tests/cli/test_many_files.py runs them
SERVED = ROOT / "docs/deployment.md"  # tests/session/test_web_service.py runs its files
FILE = re.compile(r"# (\w+\.py)")  # begins examples that are parts of a file
DIFFERENCE = 6  # of pictures, on average, from 0 to 255: fonts and rounding differ


def files(page):
    """{name: content} of the files that a page's examples are, if it says so in their first
    lines, after those of the page that it continues.
    """
    before = CONTINUED.search(page.read_text())
    contents = files(page.parent / before[1]) if before else {}
    for code in examples(page, "python"):
        if name := FILE.match(code):
            contents[name[1]] = contents.get(name[1], "") + code
    return contents


def test_every_operator_is_listed():
    """Each operator of the package has a row in a table, by its domain and name."""
    names = "README", "mmdeploy", "suppression"
    pages = [(ROOT / "docs" / f"{name}.md").read_text() for name in names]
    rows = [line for page in pages for line in page.splitlines() if line.startswith("|")]
    for o in OPERATORS:
        named = rf"\b{o.name}\b.*\b{re.escape(o.domain or 'ai.onnx')}\b"
        assert any(re.search(named, row) for row in rows), (
            f"docs/README.md has no row for {o.name} of {o.domain!r}"
        )


@pytest.fixture
def new_counts(monkeypatch):
    """The nodes that onnx_ops runs, counted from here on, as in a new process."""
    before, counts = Counter(onnx_ops.node_counts()), onnx_ops.node_counts
    monkeypatch.setattr(onnx_ops, "node_counts", lambda: dict(Counter(counts()) - before))


@pytest.fixture
def idle_sessions(monkeypatch, new_counts):
    """The models of sessions so far in which onnx_ops runs no node, although nothing else was asked
    for.
    """
    models, make = [], OrtSession.__init__

    def make_and_count(session, *given, **options):
        before = sum(onnx_ops.node_counts().values())
        make(session, *given, **options)
        is_lowered = EXTENSIONS in (imported_domains(given[0]) or ())  # then Python operators run
        is_idle = sum(onnx_ops.node_counts().values()) == before
        if is_idle and not is_lowered and not isinstance(session, BuiltinSession):
            models.append(
                given[0] if isinstance(given[0], str) else f"a model of {len(given[0])} bytes"
            )

    monkeypatch.setattr(OrtSession, "__init__", make_and_count)
    return models


@pytest.mark.filterwarnings(
    "ignore:.*:DeprecationWarning", "ignore:.*:FutureWarning"
)  # PyTorch's, at export
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page,
            marks=[
                pytest.mark.ray
                if "import ray" in "".join(examples(page, "python"))
                else pytest.mark.long
            ],
            id=page.stem,
        )
        for page in PAGES
        if examples(page, "python") and not files(page)
    ],
)
def test_python_examples(page, directory, capsys, idle_sessions):
    """The examples of a page run one after the other, as a reader would try them, and make what the
    page shows.

    In each session that they make, onnx_ops runs at least one node.
    """
    code = program(page)
    if re.search(r"jitable|\.kernel", code) and not library.have_numba():
        pytest.skip("there is no Numba")
    if "import torch" in code:
        pytest.importorskip("torch")
        pytest.importorskip("onnxscript")
    if "import ray" in code:
        pytest.importorskip("ray.data")
    if "import onnxruntime_extensions" in code:
        pytest.importorskip("onnxruntime_extensions")
    pictures.draw(page)
    assert idle_sessions == []
    if shown := examples(page, "text"):
        assert capsys.readouterr().out == "".join(shown)
    for path in directory.glob("*.jpg"):
        assert f"images/{path.name})" in page.read_text(), f"the page doesn't show {path.name}"
        made, kept = (Image.open(p).convert("RGB") for p in (path, pictures.IMAGES / path.name))
        assert made.size == kept.size
        difference = np.abs(np.subtract(made, kept, dtype=float)).mean()
        assert difference < DIFFERENCE, (
            f"python scripts/generate/pictures.py {page.relative_to(ROOT)} makes another picture"
        )


def test_pages_import_public_modules_only():
    """What a page imports stays: docs/promises.md lists these modules."""
    public = {"onnx_ops", "onnx_ops.export", "onnx_ops.declare"}
    imported = {
        (page.name, module)
        for page in PAGES
        for module in re.findall(r"(?m)^\s*(?:from|import) (onnx_ops[\w.]*)", page.read_text())
    }
    assert {"onnx_ops.declare", "onnx_ops.export"} <= {module for _, module in imported}
    assert [(page, module) for page, module in sorted(imported) if module not in public] == []


def test_quotations():
    """Code that pages quote, marked as `py` and not to be run, stands so in the package."""
    quoted = [code for page in PAGES for code in examples(page, "py")]
    sources = [path.read_text() for path in (ROOT / "onnx_ops").rglob("*.py")]
    assert quoted
    assert [code for code in quoted if not any(code in source for source in sources)] == []


@pytest.mark.long
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if files(page) and page not in (RECIPES, SERVED)],
    ids=lambda p: p.stem,
)
def test_files_and_commands(page, directory):
    """The files of a page, and then its commands, in a folder beside the clone."""
    pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    if not library.have_numba() or not list(
        Path(ort.__file__).parent.glob("capi/libonnxruntime.so.*")
    ):
        pytest.skip("there is no Numba, or onnxruntime has no library of its own")
    (directory / "onnx-ops").symlink_to(ROOT)
    mine = directory / "mine"
    mine.mkdir()
    for name, content in files(page).items():
        (mine / name).write_text(content)
    run_in_shell("\n".join(examples(page, "sh")), mine)


def run_in_shell(code, folder):
    """Run commands, with those of this environment before others; return what they print."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PATH": path}
    done = subprocess.run(
        ["sh", "-e", "-c", code], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_ci_runs_the_commands_of_the_readme():
    """The two lines of the installation, as they stand."""
    text = (ROOT / "README.md").read_text()
    commands = [line for line in text.splitlines() if line.startswith("python3 -m venv .venv && ")]
    assert len(commands) == 2
    run = (ROOT / ".ci/run").read_text().splitlines()
    assert {f"sh -c '{command}'" for command in commands} <= set(run)


def test_figures_of_the_readme():
    """They are those of other pages: of the networks shown, and of single nodes with more than a
    megabyte of data.
    """
    shown = recorded(get("networks"))
    for mark, titles in SHOWN.items():
        measured = recorded(get(mark, PAGE))
        for name, title in titles.items():
            assert measured[name] == shown.pop(title)
    assert shown == {}


def test_claims_of_the_readme():
    """They are those of the scan on one thread: the shares of GridSample's cases, of all modes, and
    of Col2Im's.
    """
    table = get("performance", "docs/performance.md").split("| operator |")[1].split("\n\n")[0]
    rows = [
        [cell.strip() for cell in line.strip("| ").split("|")] for line in table.splitlines()[2:]
    ]
    grids, (folds,) = (
        [
            [float(cell.rstrip(" %x")) for cell in row[2:]]
            for row in rows
            if row[0].startswith(name) and row[1] == "1"
        ]
        for name in ("GridSample", "Col2Im")
    )
    text = " ".join((ROOT / "README.md").read_text().split())
    shares = [
        round(sum(row[0] * row[k] for row in grids) / sum(row[0] for row in grids)) for k in (2, 3)
    ]
    assert (
        f"GridSample is at least 1.5 times as fast as the faster of the two in {shares[0]} % of "
        f"the cases, and at least twice as fast in {shares[1]} %; Col2Im is at least as fast as "
        f"both in {folds[1]:.0f} %"
    ) in text


def birefnet():
    """The measurements of BiRefNet on one thread, as (milliseconds, times as fast, MiB) of the
    original nodes, of DeformConv with built-in kernels, and with onnx_ops.
    """
    text = (ROOT / "docs/networks.md").read_text()
    rows = re.findall(r"^\| (?:GatherND|DeformConv), .*$", text, re.MULTILINE)
    cells = [[cell.strip() for cell in row.strip("| ").split("|")] for row in rows]
    return [(*f"{cell[3]}: 1.0 x".split(": ")[:2], cell[-1]) for cell in cells]


def test_figures_of_birefnet():
    """Pages that name the gain have time and memory of the same measurement."""
    (_, _, most), *others = measured = birefnet()
    assert len(measured) == 3
    text = (ROOT / "docs/existing-programs.md").read_text()
    shown = re.findall(r"^\| the (?:original|optimized) file, .*$", text, re.MULTILINE)
    assert [re.findall(r"[\d.,]+(?= x| ms| MiB)", row) for row in shown] == [
        [ms, *([] if gain == "1.0 x" else [gain.removesuffix(" x")]), mib]
        for ms, gain, mib in measured
    ]
    number = lambda text: float(text.replace(",", ""))
    row = next(
        line for line in (ROOT / "README.md").read_text().splitlines() if "BiRefNet, as" in line
    )
    for _, gain, mib in others:
        share = round(100 * number(mib) / number(most))
        assert f"{gain.removesuffix(' x')} times" in row
        assert f"with {share} %" in row


@pytest.mark.long
def test_validation_of_the_readme(directory):
    """The built-in kernel stands for another runtime between the two commands."""
    make_test, _, validate = examples(ROOT / "README.md", "sh")[0].splitlines()
    run_in_shell(make_test, directory)
    data = [str(directory / f"cases/cubic/test_data_set_0/input_{k}.pb") for k in (0, 1)]
    session = ort.InferenceSession(directory / "cases/cubic/model.onnx")
    feeds = {i.name: read_pb(path) for i, path in zip(session.get_inputs(), data, strict=True)}
    (directory / "outputs").mkdir()
    np.save(directory / "outputs/cubic.npy", session.run(None, feeds)[0])
    assert "1 of 1 passed" in run_in_shell(validate, directory)


def test_pages_name_the_repository():
    pages = [page for page in PAGES if addresses(page.read_text())]
    assert {address for page in pages for address in addresses(page.read_text())} == {repository()}
    assert ROOT / "README.md" in pages


def test_version_and_date_of_the_release():
    """The newest entry of the changelog and the citation have the same ones."""
    heading = re.search(
        r"(?m)^## (.*) - (\d{4}-\d\d-\d\d)$", (ROOT / "docs/changelog.md").read_text()
    )
    assert heading
    version, date = heading.groups()
    assert version == onnx_ops.__version__
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"version: {version}\ndate-released: {date}\n" in citation


def commands():
    """The arguments of each `onnx-ops` line of the page, which depend on those before."""
    text = "\n".join(examples(ROOT / "docs" / "command-line.md", "sh"))
    return [
        shlex.split(line, comments=True)[1:]
        for line in text.splitlines()
        if line.startswith("onnx-ops")
    ]


@pytest.mark.long
def test_command_line_examples(directory):
    assert {arguments[0] for arguments in commands()} == set(app.commands)
    demo.write_pictures(directory / "out")  # as `onnx-ops demo` does
    for arguments in commands():
        can_build = library.have_numba() or arguments[0] != "build"
        if (
            arguments[0] not in ("demo", "exec", "warmup", "validate") and can_build
        ):  # test_cli.py has the others
            done = invoke(*arguments)
            assert done.exit_code == 0, done.output


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_named_files_exist(page):
    named = re.findall(r"`([a-z_\d/]+/[a-z_\d]+\.(?:py|sh|[ch]))`", page.read_text())
    folders = ROOT, ROOT / "onnx_ops", ROOT / "tests"
    assert [name for name in named if not any((folder / name).exists() for folder in folders)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_links(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target
