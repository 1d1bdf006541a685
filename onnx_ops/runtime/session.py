"""Sessions with this package's operators, and `register`, which prepares the options of an ordinary one."""

import os
import warnings

import onnxruntime as ort

from ..errors import OpError
from . import native
from .model import imported_domains

BACKENDS = ("native",)


def register(options, model=None, *, domains=None, backend="native"):
    """Make the sessions that are created with `options` run this package's operators; returns `options`.

    options  an onnxruntime.SessionOptions
    model    path, bytes or onnx.ModelProto: the domains that it imports are registered
    domains  instead of a model: exactly these, "" being ai.onnx
    Neither: all but com.microsoft, since as a custom domain that one breaks models that don't import it.

    Registering the same options again adds what is missing. Raises OpError.
    """
    if backend not in BACKENDS:
        raise OpError("backend", repr(backend), f"must be one of {', '.join(BACKENDS)}", "onnx_ops")
    known = {operator.domain for operator in native.OPERATORS}
    if domains is not None:
        domains = {"" if d == "ai.onnx" else d for d in domains}
        if domains - known:
            raise OpError("domains", sorted(domains - known), f"must be among {sorted(known)}", "onnx_ops")
    elif model is not None:
        imported = imported_domains(model)
        domains = native.default_domains() if imported is None else known & imported
    if domains is None or domains:
        native.register(options, domains)
    return options


class InferenceSession(ort.InferenceSession):
    """An onnxruntime.InferenceSession in which this package's operators run; the same arguments.

    `sess_options`, if given, get the operators registered. Models are not changed and not parsed.
    """

    def __init__(self, path_or_bytes, sess_options=None, providers=None, *args, backend="native", **kwargs):
        if isinstance(path_or_bytes, os.PathLike):
            path_or_bytes = os.fspath(path_or_bytes)
        options = register(sess_options or ort.SessionOptions(), path_or_bytes, backend=backend)
        super().__init__(path_or_bytes, options, providers, *args, **kwargs)
        others = [name for name in self.get_providers() if name != "CPUExecutionProvider"]
        if others:
            warnings.warn(
                f"onnx_ops: the operators run on the CPU, the other nodes may run on {', '.join(others)}", stacklevel=2
            )
