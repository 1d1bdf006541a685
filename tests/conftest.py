import backends
import pytest

from onnx_ops.runtime import native


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
