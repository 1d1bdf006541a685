"""`register`: prepare the options of an ordinary session."""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING

from ..declaration.errors import OpError
from ..registry import DOMAINS
from .prepare import prepare

if TYPE_CHECKING:
    from collections.abc import Iterable

    import onnxruntime as ort

    from ..model.types import Source
    from ..registry import Declared
    from .types import Backend

LEFT_OUT = (
    "onnx_ops: com.microsoft is left out, since its registration breaks models that don't import "
    "it: its GridSample "
    "nodes run ONNX Runtime's built-in kernel; call onnx_ops.register(options, model), or state "
    "all domains, as by "
    "onnx_ops.register(options, domains=['', 'com.microsoft'])"
)


def register(
    options: ort.SessionOptions,
    model: Source | None = None,
    *,
    domains: Iterable[str] | None = None,
    backend: Backend = "native",
    operators: Iterable[Declared] = (),
) -> ort.SessionOptions:
    """Register the operators of this package on the options of a session.

    Pass `model` to register the domains that its nodes need. Without `model` and
    `domains`, all domains are registered except two. com.microsoft is left out
    because registering it breaks models that don't import it; the first such
    call of a process warns of it. custom is left out because other libraries
    use that name. Operators may be registered on
    the same options several times, for example for several models: each time
    adds what is missing.

    Parameters
    ----------
    options : onnxruntime.SessionOptions
        The options, which are changed.
    model : path, bytes or onnx.ModelProto, optional
        The model. A domain is registered if a node needs an operator of
        `onnx_ops` there, so other libraries can register the other domains. If
        the model is in ONNX Runtime's own format, its domains are unknown,
        which causes a warning.
    domains : iterable of str, optional
        Register exactly these domains, whatever the model needs, for example
        to serve other models. "" is ai.onnx.
    backend : {"native", "extensions"}, default "native"
        "extensions" is for models that `onnx_ops.lower` has made.
    operators : iterable of custom operators
        Custom operators, made by `onnx_ops.operator`. All of them are
        registered, except those in ai.onnx or another domain of `onnx_ops`
        that the model doesn't import. They replace operators of `onnx_ops` with
        the same name.

    Returns
    -------
    onnxruntime.SessionOptions
        The argument `options`.

    Raises
    ------
    OpError
        The backend doesn't work here, a domain is unknown, or two operators
        have the same name.

    See Also
    --------
    InferenceSession : A session that does this itself.
    get_library_path : The library's path, for hosts that accept nothing else.

    Examples
    --------
    >>> import onnxruntime as ort
    >>> options = onnx_ops.register(ort.SessionOptions(), "model.onnx")
    >>> session = ort.InferenceSession("model.onnx", options)
    """
    if domains is not None:
        domains = {"" if d == "ai.onnx" else d for d in domains}
        if unknown := sorted(domains - DOMAINS):
            raise OpError("domains", unknown, f"must be among {sorted(DOMAINS)}", "onnx_ops")
    prepare(
        None if backend == "extensions" else model, options, backend, operators, domains=domains
    )
    if model is None and domains is None and backend == "native":
        warn_once(LEFT_OUT)
    return options


@functools.cache
def warn_once(text: str) -> None:
    """Issue a warning that names the line that calls the caller, the first time only."""
    warnings.warn(text, stacklevel=3)
