"""`install` and `onnx-ops exec`: give the operators to a program's ordinary sessions.

`install` replaces the constructor of onnxruntime.InferenceSession. The class itself stays, so it
does not matter when or by which name a program has imported it. Child processes read the settings
from the environment: Python imports system/start/sitecustomize.py when it starts, which imports
this module before the first session.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import onnxruntime as ort

from .. import system
from ..declaration.errors import OpError, escaped, reason
from ..model.operator_files import use_file
from ..model.sessions import BuiltinSession, OrtSession, other_providers
from ..registry import as_list, declaration_of
from . import native_backend
from .session import InferenceSession

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from ..declaration.operator import Operator
    from ..model.types import File
    from ..registry import Declared
    from .prepare import Prepared
    from .types import Provider, Settings


VARIABLE = "ONNX_OPS_INSTALL"  # the settings for child processes, as JSON
START = Path(system.__file__).with_name("start")  # the folder with sitecustomize.py
log = logging.getLogger("onnx_ops")
# See sitecustomize.py.
_make_ort_session = getattr(OrtSession.__init__, "make_ort_session", OrtSession.__init__)
# Settings, operators; the last one applies.
_installations: dict[ExitStack, tuple[Settings, list[Operator]]] = {}


def install(*, optimize: bool = False, operators: Iterable[Declared] = ()) -> ExitStack:
    """Turn every onnxruntime.InferenceSession of a program into one of onnx_ops.

    Sessions made from now on are `onnx_ops.InferenceSession`, in this process
    and in Python processes that it starts. It does not matter how the program
    imports the class. Two kinds of sessions stay those of ONNX Runtime: those
    with execution providers other than the CPU's, and those that onnx_ops
    can't make although ONNX Runtime alone can. The latter cause a warning. The
    log "onnx_ops" says for each session, at level INFO, which operators it
    runs or why it gains nothing.

    Parameters
    ----------
    optimize : bool, default False
        Optimize each model, as for `onnx_ops.InferenceSession`.
    operators : iterable of custom operators
        Custom operators, made by `onnx_ops.operator`, for sessions of this
        process.

    Returns
    -------
    contextlib.ExitStack
        A context that ends the effect at its end. Its method `close` does so,
        too. Sessions that exist stay as they are.

    Raises
    ------
    OpError
        An operator is none.

    See Also
    --------
    InferenceSession : For programs that can be changed.

    Examples
    --------
    >>> import onnxruntime
    >>> with onnx_ops.install(optimize=True):
    ...     session = onnxruntime.InferenceSession("model.onnx")
    >>> isinstance(session, onnx_ops.InferenceSession)
    True
    """
    return _install(settings_of(optimize), operators)


def _install(settings: Settings, operators: Iterable[Declared] = ()) -> ExitStack:
    effect = ExitStack()
    _installations[effect] = settings, [*map(declaration_of, as_list(operators))]
    _apply_last()
    effect.callback(_undo, effect)
    return effect


def _undo(effect: ExitStack) -> None:
    del _installations[effect]
    _apply_last()


def _apply_last() -> None:
    """Let the last installation apply, or none if all are undone."""
    settings, _ = next(reversed(_installations.values()), (None, ()))
    OrtSession.__init__ = make_session if settings else _make_ort_session
    variables = environment(os.environ, settings)
    for name in ("PYTHONPATH", VARIABLE):
        if name in variables:
            os.environ[name] = variables[name]
        else:
            os.environ.pop(name, None)


def settings_of(optimize: bool, verbose: bool = False, files: Iterable[str] = ()) -> Settings:
    """Return settings for processes.

    optimize  whether to optimize models
    verbose   whether to print the log
    files     files with custom operators
    """
    return {"optimize": bool(optimize), "verbose": verbose, "files": list(files)}


def environment(variables: Mapping[str, str], settings: Settings | None) -> dict[str, str]:
    """Return environment variables by which Python processes install these settings.

    settings  None: install nothing
    """
    result = dict(variables)
    # An empty one names no folder, an empty part the current folder.
    before = result.pop("PYTHONPATH", "")
    paths = [path for path in before.split(os.pathsep) if path != str(START)] if before else []
    result.pop(VARIABLE, None)
    if settings:
        paths.insert(0, str(START))
        result[VARIABLE] = json.dumps(settings)
    if paths:
        result["PYTHONPATH"] = os.pathsep.join(paths)
    return result


def install_from_environment() -> None:
    """Install the settings in the environment. Raises OpError for a file with custom operators."""
    settings = json.loads(os.environ[VARIABLE])
    for path in settings["files"]:
        use_file(path)
    if settings["verbose"]:
        log.addHandler(logging.StreamHandler())
        log.setLevel(logging.INFO)
    _install(settings)


@functools.wraps(_make_ort_session)
def make_session(
    self: OrtSession,
    path_or_bytes: File,
    sess_options: ort.SessionOptions | None = None,
    providers: Sequence[Provider] | None = None,
    provider_options: Sequence[dict[str, Any]] | None = None,
    **kwargs: Any,
) -> None:
    """Make a session as one of onnx_ops, if its class is ONNX Runtime's or derived from it."""
    arguments: tuple[Any, ...] = (path_or_bytes, sess_options, providers, provider_options)
    # None: another thread has undone the last one.
    installed = next(reversed(_installations.values()), None)
    if installed is None or isinstance(self, InferenceSession | BuiltinSession):
        _make_ort_session(self, *arguments, **kwargs)
        return
    stated = {
        provider if isinstance(provider, str) else provider[0] for provider in providers or ()
    }
    accelerators = other_providers(stated & {*ort.get_available_providers()})
    if accelerators:
        _make_ort_session(self, *arguments, **kwargs)
        accelerators = other_providers(OrtSession.get_providers(self))
        if not accelerators:  # ONNX Runtime has fallen back to the CPU
            arguments = path_or_bytes, sess_options, ["CPUExecutionProvider"], None
        problem: str | None = f"it runs on {', '.join(accelerators)}"
    if not accelerators:
        problem = make_ours(self, installed, *arguments, **kwargs)
        if problem:
            with native_backend.leaving_out():
                _make_ort_session(self, *arguments, **kwargs)
    report(self, path_or_bytes, problem)


def report(session: OrtSession, model: File, problem: str | None) -> None:
    """Log what a session gains or, for a problem, why ONNX Runtime alone runs the model.

    A problem on the CPU causes a warning.
    """
    title = f"a model of {len(model)} bytes" if isinstance(model, bytes) else str(model)
    if problem is None:
        log.info("onnx_ops: session of %s: %s", title, gain(session._onnx_ops_ready))
        return
    log.info("onnx_ops: session of %s: unchanged, since %s", title, problem)
    if not other_providers(OrtSession.get_providers(session)):
        warnings.warn(
            f"onnx_ops: session of {title}: ONNX Runtime alone runs it, since {problem}",
            stacklevel=3,
        )


def make_ours(
    session: OrtSession, installed: tuple[Settings, list[Operator]], *arguments: Any, **kwargs: Any
) -> str | None:
    """Make a session as one of this package. Else leave it as it is, and return the reason.

    installed  the settings and custom operators that apply
    """
    settings, operators = installed
    original: type = type(session)
    attributes = dict(vars(session))  # those that a program's subclass has set so far
    try:
        session.__class__ = class_with_operators(original)
        # With fallback enabled, ONNX Runtime would print a message and try once more on the CPU.
        options = {
            "enable_fallback": False,
            **kwargs,
            "optimize": settings["optimize"],
            "operators": operators,
        }
        InferenceSession.__init__(session, *arguments, **options)
        accelerators = other_providers(OrtSession.get_providers(session))  # of the options
        problem = f"it runs on {', '.join(accelerators)}" if accelerators else None
    except Exception as error:
        problem = str(error) if isinstance(error, OpError) else escaped(reason(error))
    if problem:
        vars(session).clear()
        vars(session).update(attributes)
        session.__class__ = original
    return problem


@functools.cache
def class_with_operators(original: type) -> type:
    """Return the class that takes the place of ONNX Runtime's class, or of a subclass."""
    if original is OrtSession:
        return InferenceSession
    return type(
        original.__name__, (original, InferenceSession), {"__module__": original.__module__}
    )


def gain(ready: Prepared) -> str:
    """Return a text that states what a session gains, or why it gains nothing."""
    if ready.is_ort:
        return "its gain is unknown, since the model is in ONNX Runtime's own format"
    names = sorted(name for domain, name in ready.operators.keys() & (ready.nodes or set()))
    patterns = sorted({finding.pattern for finding in ready.findings if finding.operator})
    gains = [f"onnx_ops runs {', '.join(names)}"] if names else []
    gains += [f"has fused {', '.join(patterns)}"] if patterns else []
    return (
        " and ".join(gains)
        or "gains nothing, since it has no node of these operators, and nothing was fused"
    )


if VARIABLE in os.environ:
    install_from_environment()
