import gc
import re
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from support import backends
from support.processes import TESTS
from support.selection import has_representative_types, names_absent_backend

from onnx_ops.declaration import dtypes as element_types
from onnx_ops.native import library
from onnx_ops.registry import OPERATORS
from onnx_ops.session import native_backend, variants, workers

# Marks of files that say nothing of a library with all kernels. They aren't even imported beside
# such a library, as Numba may be absent.
LEFT_OUT = re.compile(r"pytest\.mark\.(compiler|any_library)\b")

FEW = 10  # examples of a test of Hypothesis in the short run; the long one has 100

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # Shells do so for background jobs; the processes that tests start and interrupt would inherit
    # it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session):
    """Set up Hypothesis, and compile in parallel what most tests need before pytest-xdist
    distributes them.
    """
    everything = "not long" not in session.config.option.markexpr
    # Hypothesis draws the same cases in every run; with `--hypothesis-profile=default` it draws new
    # ones.
    settings.register_profile(
        "seeded", derandomize=True, deadline=None, max_examples=100 if everything else FEW
    )
    if not session.config.getoption("hypothesis_profile", None):
        settings.load_profile("seeded")
    processes = getattr(session.config.option, "numprocesses", None)
    if processes and not hasattr(session.config, "workerinput") and not library.is_complete():
        combinations = variants.combinations(OPERATORS, element_types.TABLE)
        needed = variants.distinct(c for c in combinations if everything or is_needed(c))
        workers.compile_variants(needed, processes)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out files by their marks if the library has all kernels; else pytest decides."""
    if not library.is_complete() or collection_path.suffix != ".py":
        return None
    return bool(LEFT_OUT.search(collection_path.read_text())) or None


SKIPPED = "onnx_ops/skipped"  # in pytest's cache


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--skipped",
        action="store_true",
        help="run what the run before skipped, as without a package",
    )


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Skipped(config))


class Skipped:
    """The tests, and the files, that a run skips; --skipped selects them in the next one."""

    def __init__(self, config: pytest.Config) -> None:
        self.config, self.names = config, list[str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self.names.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self.names.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        if not self.config.option.skipped and hasattr(self.config, "cache"):
            self.config.cache.set(SKIPPED, sorted({*self.names}))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select what the run before skipped, if the option says so."""
    if not config.option.skipped:
        return
    assert config.cache, "--skipped needs pytest's cache"
    names = {*config.cache.get(SKIPPED, [])}
    chosen = [
        item for item in items if item.nodeid in names or item.nodeid.partition("::")[0] in names
    ]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


def pytest_collection_finish() -> None:
    """Let garbage collections during the tests leave out the half a million objects that there are
    by then.
    """
    gc.freeze()


def is_needed(variant):
    """Return whether tests of the short run need a variant."""
    modes = variant.operator.kernel(variant.position).choices.get("mode", [None])
    return has_representative_types(variant.operator.name, variant.signature, modes[0])


def pytest_itemcollected(item):
    """Skip a test with the name of a backend that can't be installed among its parameters."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    if names_absent_backend(params.values()):
        item.add_marker(pytest.mark.skip(reason="its backend is not installed"))


@pytest.fixture(autouse=True)
def operators_in_use(monkeypatch):
    """Operators that a test puts into use are unknown to the tests after it."""
    monkeypatch.setattr("onnx_ops.registry._used", {})


@pytest.fixture
def directory(tmp_path, monkeypatch):
    """The folder in which examples run: a model with an input `image`, frames for it, and
    models/.
    """
    models = TESTS.parent / "models"
    shutil.copy(models / "exported" / "spatial_transformer" / "model.onnx", tmp_path)
    (tmp_path / "frames" / "more").mkdir(parents=True)
    for name in ("frame", "frames/1", "frames/more/2"):
        np.save(
            tmp_path / f"{name}.npy", np.random.default_rng(0).random((1, 3, 144, 192), np.float32)
        )
    (tmp_path / "models").symlink_to(models)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def torchvision():
    """The package torchvision, with its compiled operators."""
    pytest.importorskip("torch")
    try:
        import torchvision
    except Exception as error:  # such as a RuntimeError, where it was built for another torch
        pytest.skip(f"torchvision can't be imported: {error}")
    return torchvision


@pytest.fixture(params=backends.ALL_BACKENDS)
def run(request):
    """Each function (case, inputs) -> first output of `support.backends`, in turn.

    Its name is that of the backend.
    """
    return backends.BACKENDS[request.param]


class CountedOperators:
    """The operators that a counter of the library has counted since `clear`, in any order."""

    def __init__(self, counter):
        self.counter = counter
        native_backend.get_library_path()
        self.clear()

    def counts(self):
        return [getattr(library.row_of(operator), self.counter) for operator in OPERATORS]

    def clear(self):
        self.before = self.counts()

    def titles(self):
        counts = zip(OPERATORS, self.counts(), self.before, strict=True)
        return [operator.title for operator, now, before in counts for _ in range(now - before)]

    def __eq__(self, other):
        return self.titles() == sorted(other, key=[o.title for o in OPERATORS].index)

    def __len__(self):
        return len(self.titles())

    def __repr__(self):
        return repr(self.titles())


@pytest.fixture
def kernels_made():
    """The operators for whose nodes the library has made a kernel: these nodes don't run the
    built-in one.
    """
    return CountedOperators("kernels_made")


@pytest.fixture
def results_made():
    """The operators of nodes with a constant result, which was computed when their kernel was
    made.
    """
    return CountedOperators("results_made")
