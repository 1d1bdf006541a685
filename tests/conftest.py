import signal

import backends
import pytest
from hypothesis import settings
from selection import has_representative_types

from onnx_ops import dtypes
from onnx_ops.operators import OPERATORS
from onnx_ops.runtime import native, warmup

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
    if processes and not hasattr(session.config, "workerinput"):
        everything = "long" not in session.config.option.markexpr
        combinations = warmup.combinations({o.name for o in OPERATORS}, dtypes.TABLE)
        wanted = warmup.distinct(c for c in combinations if everything or has_representative_types(c[2]))
        warmup.compile_variants(wanted, processes, lambda *now: None)


@pytest.fixture(params=backends.BACKENDS)
def backend(request):
    """Each way to run an operator in turn."""
    return backends.BACKENDS[request.param]


@pytest.fixture
def kernels_made(monkeypatch):
    """The operators for whose nodes ONNX Runtime has had this package make a kernel, in order.

    A node has one kernel, so a node that is counted here does not run the built-in one.
    """
    made, compiled = [], native.compiled

    def counting(operator, *args):
        made.append(operator.title)
        return compiled(operator, *args)

    monkeypatch.setattr(native, "compiled", counting)
    return made
