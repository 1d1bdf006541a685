import signal

import backends
import pytest
from hypothesis import settings
from selection import has_representative_types

from onnx_ops import dtypes
from onnx_ops.operators import OPERATORS
from onnx_ops.runtime import library, native, variants, warmup

if library.is_complete():  # then nothing is compiled, and there may be no Numba
    collect_ignore = [f"test_{name}.py" for name in ("cache", "deployment", "elements", "library", "vectors", "warmup")]

# Every run draws the same; `--hypothesis-profile=default` draws anew.
settings.register_profile("seeded", derandomize=True, deadline=None)
settings.load_profile("seeded")

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # As shells have it in the background; the processes that tests start and interrupt would ignore it, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session):
    """Before tests are spread over processes: compile side by side what most of them want."""
    processes = getattr(session.config.option, "numprocesses", None)
    if processes and not hasattr(session.config, "workerinput") and not library.is_complete():
        everything = "long" not in session.config.option.markexpr
        combinations = variants.combinations(OPERATORS, dtypes.TABLE)
        wanted = variants.distinct(c for c in combinations if everything or has_representative_types(c[2]))
        warmup.compile_variants(wanted, processes, lambda *now: None)


@pytest.fixture(params=backends.BACKENDS)
def backend(request):
    """Each way to run an operator in turn."""
    return backends.BACKENDS[request.param]


class Made:
    """The operators for whose nodes ONNX Runtime has had the library make a kernel, in any order, since `clear`."""

    def __init__(self, counter):
        self.counter = counter
        native.get_library_path()
        self.clear()

    def counts(self):
        return [getattr(library.table_in_use().operators[k], self.counter) for k in range(len(OPERATORS))]

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
    """A node has one kernel, so a node that is counted here does not run the built-in one."""
    return Made("kernels_made")


@pytest.fixture
def results_made():
    """Those whose result is constant, and was computed then."""
    return Made("results_made")
