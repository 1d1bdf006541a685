"""Sessions with this package's operators, and `register`, which prepares the options of an ordinary one."""

from __future__ import annotations

import functools
import math
import os
import re
import warnings
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

import onnxruntime as ort

from ..declaration.errors import OpError
from ..declaration.operator import Input
from ..model.files import imports_and_nodes, is_ort_format
from ..model.sessions import OrtSession, other_providers
from ..native import library
from ..registry import DOMAINS, KEYS, available, built_in
from ..system.locks import OPTIONS
from . import registration, reports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
    from types import ModuleType
    from typing import Any, TypeAlias

    from ..declaration.operator import Operator
    from ..model.types import File, Source
    from ..registry import Available, Declared, Key
    from ..rewriting.finding import Finding
    from .types import AnyBackend


Backend: TypeAlias = Literal["native", "extensions"]
BACKENDS = get_args(Backend)
EXTERNAL_DATA = "session.model_external_initializers_file_folder_path"
DOMAINS_UNKNOWN = (
    "onnx_ops: the package's operators are not registered, since the domains of a model in ONNX Runtime's own format "
    "are unknown; state them, as by onnx_ops.register(options, domains=['', 'com.microsoft']), or use the .onnx file"
)
LEFT_OUT = (
    "onnx_ops: com.microsoft is left out, since its registration breaks models that don't import it: its GridSample "
    "nodes run ONNX Runtime's built-in kernel; call onnx_ops.register(options, model), or state all domains, as by "
    "onnx_ops.register(options, domains=['', 'com.microsoft'])"
)
FEW = 2**28  # bytes of external data that are read here, if need be


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
    prepare(None if backend == "extensions" else model, options, backend, operators, domains=domains)
    if model is None and domains is None and backend == "native":
        warn_once(LEFT_OUT)
    return options


@functools.cache
def warn_once(text: str) -> None:
    """Issue a warning that names the line that calls the caller, the first time only."""
    warnings.warn(text, stacklevel=3)


@dataclass
class Prepared:
    """A model as ONNX Runtime gets it.

    model      its path or bytes
    is_ort     whether it is in ONNX Runtime's own format
    options    of the session, with the model's operators registered
    is_shared  whether other sessions may be made with these options, too
    threads    that the options state
    operators  what `registry.available` returns
    imports    the domains that the model imports; None if unknown
    nodes      (domain, op_type) of the model's nodes, see `imports_and_nodes`; None if unknown
    run_input  the name of the additional input of a lowered model, see lowering.py; None for others
    folder     of the external data of a model that has been rewritten, if the options must state one
    findings   what `optimize` has found in the model
    """

    model: Source | None
    is_ort: bool
    options: ort.SessionOptions
    is_shared: bool
    threads: int
    operators: Available
    imports: set[str] | None = None
    nodes: set[Key] | None = None
    run_input: str | None = None
    folder: str | None = None
    findings: Sequence[Finding] = ()

    def share(self) -> ort.SessionOptions:
        """Return the options for other sessions, which must not read from the folder."""
        if self.folder and not self.is_shared:
            self.options.add_session_config_entry(EXTERNAL_DATA, "")
        self.is_shared = True
        return self.options

    @contextmanager
    def with_external_data(self) -> Iterator[None]:
        """Return a context in which a session that is made with the options reads external data from the folder."""
        with OPTIONS if self.is_shared else nullcontext():
            before = registration.config_entry(self.options, EXTERNAL_DATA) or ""
            folder = self.folder or before
            if folder != before:
                self.options.add_session_config_entry(EXTERNAL_DATA, folder)
            try:
                yield
            finally:  # other sessions must not read from there
                if folder != before and self.is_shared:  # ONNX Runtime logs a warning
                    self.options.add_session_config_entry(EXTERNAL_DATA, before)


def prepare(
    model: Source | None,
    options: ort.SessionOptions | None,
    backend: AnyBackend,
    operators: Iterable[Declared],
    *,
    domains: Set[str] | None = None,
    optimize: bool = False,
    add_more: Callable[[Prepared], None] | None = None,
) -> Prepared:
    """Prepare a caller's model and options for ONNX Runtime; return the Prepared.

    Every model takes this path, to a session of any kind or to `register`. Warnings name the line that calls the
    caller of this function.

    model     path or bytes; for `register` also a ModelProto, or None, which stays as it is
    options   None for new ones
    domains   whose operators are registered; None: those that the model's nodes need
    add_more  registers more on the options: a function of the Prepared. Then backend may be "builtin"
    """
    # The caller's arguments.
    is_builtin = add_more and backend == "builtin"
    if backend not in BACKENDS and not is_builtin:
        raise OpError("backend", repr(backend), f"must be one of {', '.join(BACKENDS)}", "onnx_ops")
    every = available(operators)
    is_shared = options is not None
    custom = list(every.custom.values())
    model = os.fspath(model) if isinstance(model, os.PathLike) else model
    options = options or ort.SessionOptions()
    ready = Prepared(model, is_ort_format(model), options, is_shared, options.intra_op_num_threads, every)

    # The model is rewritten on request.
    if not is_builtin and (optimize or backend == "extensions"):
        rewrite(ready, optimize, backend)

    # The options get operators by the imports and nodes of the model.
    if ready.model is not None and not ready.is_ort:
        ready.imports, ready.nodes = imports_and_nodes(ready.model)
    if backend == "extensions":
        extensions().add_library(options, custom)
        return ready
    if add_more:
        add_more(ready)
    if not is_builtin:
        add_operators(ready, custom, domains)
    return ready


def rewrite(ready: Prepared, optimize: bool, backend: AnyBackend) -> None:
    """Rewrite a Prepared's model as `optimize` and `backend` ask for, unless nothing would change.

    External data stay where they are, unless they are few.
    """
    if ready.model is None:
        return
    if ready.is_ort:
        argument: tuple[str, object] = ("optimize", True) if optimize else ("backend", "'extensions'")
        rule = "can't rewrite a model in ONNX Runtime's own format; use the .onnx file that it was made from"
        raise OpError(*argument, rule, "onnx_ops")
    # A session of a model that runs as it is doesn't load these, nor onnx.
    from ..model.attributes import warn_of_unknown_attributes
    from ..model.external_data import opened, put_in_reach
    from ..rewriting import rewritten
    from .lowering import lower_for_session

    with OPTIONS:  # while another thread makes a session with them, they may state its folder
        # The folder from which ONNX Runtime reads external data.
        stated = registration.config_entry(ready.options, EXTERNAL_DATA)
    model, path = opened(ready.model)
    origin = stated or path
    if optimize:
        warn_of_unknown_attributes(model, ready.operators)
        model, ready.findings = rewritten(model, origin, ready.operators, in_place=True)
    if backend == "extensions":
        model, ready.run_input = lower_for_session(model, ready.operators, origin)
    elif not any(finding.operator for finding in ready.findings):
        return
    # ONNX Runtime 1.20 finds no external data of a model that is passed as bytes. Newer ones log a warning when a
    # folder is taken out of the options again, which is worth a copy of few data.
    is_oldest = ort.__version__.startswith("1.20.")
    if path and (is_oldest or not stated):
        most = math.inf if is_oldest else FEW if ready.is_shared else 0
        ready.folder = put_in_reach(model, stated or path, most)
    ready.model = model.SerializeToString()


def add_operators(ready: Prepared, custom: list[Operator], domains: Set[str] | None) -> None:
    """Register operators on the options of a Prepared: of the domains that are stated or, if None, that nodes need.

    Options for other sessions, too, get all operators of these domains, others those of the model's nodes. Custom
    operators replace those of their names.
    """
    ours = KEYS.keys() - ready.operators.custom.keys()
    used = ours if ready.nodes is None else ours & ready.nodes
    if domains is None:
        if ready.is_ort:
            domains = registration.registered_domains(ready.options)  # in case that these are a copy without operators
            if not domains:
                warnings.warn(DOMAINS_UNKNOWN, stacklevel=4)
        elif ready.imports is None:
            domains = registration.default_domains()
        else:
            custom = [operator for operator in custom if operator.domain not in DOMAINS - ready.imports]
            domains = ready.imports & {domain for domain, _ in used}
    wanted = ours if ready.is_shared else used
    declared = [built_in(key) for key in KEYS if key in wanted and key[0] in domains] + custom
    if declared:
        registration.add_operators(ready.options, declared)


def extensions() -> ModuleType:
    """Return the module `extensions`, which imports onnxruntime_extensions. Raises OpError."""
    if obstacle := library.extensions_obstacle():
        raise OpError("backend", "'extensions'", obstacle, "onnx_ops")
    from . import extensions

    return extensions


def explained(error: Exception, ready: Prepared) -> OpError | None:
    """Return the OpError that explains why ONNX Runtime makes no session of a Prepared, or None."""
    if refusal := reports.refusal_of(error) or refused_grid(error, ready):
        return refusal
    has_none = re.search(r"com\.microsoft:\w+\(-1\) is not a reg", str(error))
    if has_none and "com.microsoft" not in (ready.imports or ()):
        rule = "com.microsoft was registered on them for another model, which breaks this one; use new ones"
        return OpError("sess_options", "used before", rule, "onnx_ops")
    if "Domain already set" in str(error):
        domains = registration.registered_domains(ready.options) | {domain for domain, _ in ready.operators.custom}
        rule = (
            "have operators of another library, such as @onnx_op functions, in "
            f"{' or '.join(sorted(domain or 'ai.onnx' for domain in domains))}, as onnx_ops has; use new options with "
            "backend='extensions', declare those operators by onnx_ops.operator, or give them another domain"
        )
        return OpError("sess_options", "given", rule, "onnx_ops")
    if "Conflicting with a registered kernel" in str(error):
        return OpError("sess_options", "given", "have the same library twice; register it once", "onnx_ops")
    if ready.is_ort or not ready.operators.keys() & (ready.nodes or ()):
        return None
    from .refused_types import refused_types  # sessions that work don't load onnx

    return refused_types(ready.model, ready.operators)


def refused_grid(error: BaseException, ready: Prepared) -> OpError | None:
    """Return the OpError that explains an exception by an AffineGrid of 16-bit floats, or None.

    ONNX Runtime replaces it by other nodes. In bfloat16, it has no kernels for them; in float16, a Split of AffineGrid
    of opset 20 fails.
    """
    fault = re.search(r"HandleNegativeAxis|implementation for A(dd|ffineGrid)\(", str(error))
    if not fault:
        return None
    from .refused_types import refused_types

    floats = ("float32", "float64", "float16")[: 3 if fault[1] else 2]
    operator = replace(
        ready.operators["", "GridSample"],
        name="AffineGrid",
        inputs=(Input("theta", "T1"), Input("size", "T2")),
        types={"T1": floats, "T2": ("int64",)},
    )
    return refused_types(ready.model, {operator.key: operator})


class InferenceSession(OrtSession):  # type: ignore[misc]  # ONNX Runtime has no types
    """An onnxruntime.InferenceSession that runs the operators of this package.

    It has the same methods. Operators are registered on `sess_options`, if
    given.

    A model in ONNX Runtime's own format can't be optimized or lowered. Register
    its domains on `sess_options` first, by `onnx_ops.register`.

    Parameters
    ----------
    path_or_bytes : path or bytes
        The model.
    sess_options : onnxruntime.SessionOptions, optional
        Options, which are changed. Default: new ones.
    providers : sequence of str or tuple, optional
        Execution providers, as for ONNX Runtime. The operators of this package
        run on the CPU, whichever providers are listed.
    provider_options : sequence of dict, optional
        Options of the providers, as for ONNX Runtime.
    backend : {"native", "extensions"}, default "native"
        "native" runs the model as it is. "extensions" lowers it first, as
        `onnx_ops.lower` does.
    optimize : bool, default False
        Run the model as `onnx_ops.optimize` rewrites it. A model without a
        match runs as it is. Attributes that an operator doesn't have cause a
        warning in the log "onnx_ops".
    operators : iterable of custom operators
        Custom operators of the model, made by `onnx_ops.operator`.
    **kwargs
        Further arguments of ONNX Runtime's class.

    Raises
    ------
    OpError
        An operator refuses an attribute, a shape or a tensor: when the session
        is made, if the model shows it, else at the run. ONNX Runtime's
        exceptions are raised for everything else.

    See Also
    --------
    register : The same for the options of an ordinary session.
    Runner : A model as a function on dicts of arrays, which can be sent to other processes.

    Examples
    --------
    >>> session = onnx_ops.InferenceSession("model.onnx")
    >>> [each.name for each in session.get_inputs()]
    ['image']
    >>> (y,) = session.run(None, {"image": np.zeros((1, 3, 144, 192), np.float32)})
    >>> y.shape
    (1, 3, 144, 192)
    """

    def __init__(
        self,
        path_or_bytes: File,
        sess_options: ort.SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[dict[Any, Any]] | None = None,
        *,
        backend: Backend = "native",
        optimize: bool = False,
        operators: Iterable[Declared] = (),
        **kwargs: Any,
    ) -> None:
        ready = prepare(path_or_bytes, sess_options, backend, operators, optimize=optimize)
        self._onnx_ops_open(ready, providers, provider_options, **kwargs)

    def _onnx_ops_open(
        self,
        ready: Prepared,
        providers: Sequence[Any] | None,
        provider_options: Sequence[dict[Any, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        """Make the session of a Prepared."""
        self._onnx_ops_ready = ready
        self._onnx_ops_run = _Run(ready)
        reports.forget()
        try:
            with ready.with_external_data():
                super().__init__(ready.model, ready.options, providers, provider_options, **kwargs)
        except Exception as error:
            if refusal := explained(error, ready):
                raise refusal from error
            raise
        if others := other_providers(super().get_providers()):
            warnings.warn(
                f"onnx_ops: the operators run on the CPU, the other nodes may run on {', '.join(others)}", stacklevel=3
            )

    def set_providers(
        self, providers: Sequence[Any] | None = None, provider_options: Sequence[dict[Any, Any]] | None = None
    ) -> None:
        with self._onnx_ops_ready.with_external_data():
            super().set_providers(providers, provider_options)

    def get_session_options(self) -> ort.SessionOptions:
        """Return the options that the session was made with, with its operators.

        ONNX Runtime's copy of them would have no custom operators.
        """
        return self._onnx_ops_ready.share()

    def get_inputs(self) -> list[Any]:
        return [i for i in super().get_inputs() if i.name != self._onnx_ops_ready.run_input]

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: ort.RunOptions | None = None,
    ) -> list[Any]:
        if self._onnx_ops_ready.run_input:
            with self._run_context() as more:
                return super().run(output_names, {**input_feed, **more}, run_options)
        if reports.recent:  # these lines make a small call slower by 0.3 us; a context, by 1 us
            reports.forget()
        try:
            return OrtSession.run(self, output_names, input_feed, run_options)
        except Exception as error:
            self._onnx_ops_run.__exit__(type(error), error, None)
            raise

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, Any],
        run_options: ort.RunOptions | None = None,
    ) -> Any:
        with self._run_context() as more:
            more = {name: ort.OrtValue.ortvalue_from_numpy(value) for name, value in more.items()}
            return super().run_with_ort_values(output_names, {**input_dict_ort_values, **more}, run_options)

    def run_with_iobinding(self, iobinding: Any, run_options: ort.RunOptions | None = None) -> None:
        if self._onnx_ops_ready.run_input:
            with self._run_context() as more:
                for name, value in more.items():
                    iobinding.bind_cpu_input(name, value)
                return super().run_with_iobinding(iobinding, run_options)
        if reports.recent:  # as in `run`
            reports.forget()
        try:
            OrtSession.run_with_iobinding(self, iobinding, run_options)
        except Exception as error:
            self._onnx_ops_run.__exit__(type(error), error, None)
            raise

    def run_with_ortvaluevector(self, *args: Any) -> None:
        """Run as an onnxruntime.InferenceSession.

        Raises
        ------
        OpError
            The model was lowered: it needs one more input.
        """
        if self._onnx_ops_ready.run_input:
            rule = 'is for backend="native"; use run, run_with_ort_values or run_with_iobinding'
            raise OpError("run_with_ortvaluevector", "called", rule, "onnx_ops")
        with self._onnx_ops_run:
            super().run_with_ortvaluevector(*args)

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[Any, Any, str], object],
        user_data: Any,
        run_options: ort.RunOptions | None = None,
    ) -> None:
        context = self._run_context()

        def finish(results: Any, data: Any, message: str) -> None:
            error = context.end()
            callback(results, data, str(error) if error else message)

        more = context.begin()
        try:
            super().run_async(output_names, {**input_feed, **more}, finish, user_data, run_options)
        except BaseException as error:
            context.__exit__(type(error), error, None)
            raise

    def _run_context(self) -> _Run:
        """Return the context of a run; one of the native backend has no state."""
        return _Run(self._onnx_ops_ready) if self._onnx_ops_ready.run_input else self._onnx_ops_run


class _Run:
    """The context of a run of a Prepared: yields {additional input: array}, and raises an operator's error as OpError.

    The additional input is that of a lowered model. Without it, the context has no state.
    """

    def __init__(self, ready: Prepared) -> None:
        self.ready = ready
        self.is_parallel = ready.options.execution_mode == ort.ExecutionMode.ORT_PARALLEL

    def begin(self) -> dict[str, Any]:
        reports.forget()
        if self.ready.run_input is None:
            return {}
        self.run = extensions().begin(self.ready.threads)
        return {self.ready.run_input: self.run}

    def end(self) -> OpError | None:
        return extensions().end(self.run) if self.ready.run_input else None

    __enter__ = begin

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: Any) -> None:
        if error is None and self.ready.run_input is None:  # the usual case, in which each call would count
            return
        refusal = self.end() or (
            error and (reports.refusal_of(error, self.is_parallel) or refused_grid(error, self.ready))
        )
        if refusal and (error is None or isinstance(error, Exception)):
            raise refusal from error
