"""Sessions with this package's operators, and `register`, which prepares the options of an ordinary one."""

import os
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import onnxruntime as ort

from ..errors import OpError
from ..locks import OPTIONS
from ..model_files import imported_domains, is_ort_format, nodes, warn_of_unknown_attributes
from ..operators import OPERATORS, SHARED, as_list, available
from . import library, native

if TYPE_CHECKING:
    import onnx


Model: TypeAlias = "str | os.PathLike[str] | bytes | onnx.ModelProto"
Backend: TypeAlias = Literal["native", "extensions"]
BACKENDS = get_args(Backend)
EXTERNAL_DATA = "session.model_external_initializers_file_folder_path"
DOMAINS_UNKNOWN = (
    "onnx_ops: the package's operators are not registered, since the domains of a model in ONNX Runtime's own format "
    "are unknown; state them, as by onnx_ops.register(options, domains=['', 'com.microsoft']), or use the .onnx file"
)
FEW = 2**28  # bytes of external data that are read here, if need be
LONGEST = 4095  # bytes of a message that an operator reports, see native/text.h
# How ONNX Runtime's message begins if a run, or the making of a kernel, has failed.
_FAILED = re.compile(
    r"(?:\[ONNXRuntimeError\] : \d+ : \w+ : |Error in execution: )?"
    r"(?:(?P<run>Non-zero status code returned while running )|Exception during initialization: )"
)
_NODE = re.compile(r"""(?: \(node (?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")\))?: """)  # the rest of a message's title
_IN_VALUE = re.compile(r"""\\.|['"]|: """)


def register(
    options: ort.SessionOptions,
    model: "Model | None" = None,
    *,
    domains: Iterable[str] | None = None,
    backend: Backend = "native",
    operators: Iterable[Any] = (),
) -> ort.SessionOptions:
    """Register the operators of this package on the options of a session.

    Without `model` and `domains`, it registers all domains but com.microsoft
    and custom: as a custom domain, the former breaks models that don't import
    it, and other libraries use the latter, too, which is registered for a model
    with such a node. Registering the same options again adds what is missing.

    Parameters
    ----------
    options : onnxruntime.SessionOptions
        The options, which are changed.
    model : path, bytes or onnx.ModelProto, optional
        The model: the domains that it imports are registered. If it is in ONNX
        Runtime's own format, its domains are unknown, which causes a warning.
        Attributes that its operators don't have cause a warning in the log
        "onnx_ops".
    domains : iterable of str, optional
        Register exactly these domains, whatever the model imports. "" is
        ai.onnx.
    backend : {"native", "extensions"}, default "native"
        "extensions" is for models that `onnx_ops.lower` has made.
    operators : iterable of custom operators
        Custom operators, made by `onnx_ops.operator`. All of them are
        registered, except those in ai.onnx or another domain of `onnx_ops`
        that the model doesn't import.

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
    return _register(options, model, domains, backend, operators)


def _register(options, model, domains, backend, operators):
    """Do what `register` does. Warnings name the line that calls this module's function."""
    if backend not in BACKENDS:
        raise OpError("backend", repr(backend), f"must be one of {', '.join(BACKENDS)}", "onnx_ops")
    every, all_domains = available(operators), {operator.domain for operator in OPERATORS}
    if domains is not None:
        domains = {"" if d == "ai.onnx" else d for d in domains}
        if unknown := sorted(domains - all_domains):
            raise OpError("domains", unknown, f"must be among {sorted(all_domains)}", "onnx_ops")
    own = [operator for operator in every.values() if operator not in OPERATORS]
    if backend == "extensions":
        extensions().add_library(options, own)
        return options
    is_ort = is_ort_format(model)
    if domains is None and is_ort:
        domains = set()
        if not native.registered_domains(options):
            warnings.warn(DOMAINS_UNKNOWN, stacklevel=3)
    elif domains is None and model is not None and (imported := imported_domains(model)) is not None:
        own = [operator for operator in own if operator.domain not in all_domains - imported]
        domains = all_domains & imported
        if SHARED in domains:
            names = {name for domain, name in every if domain == SHARED}
            if all(node.domain != SHARED for node in nodes(model, names)):
                domains.remove(SHARED)
    if domains is None or domains or own:
        native.add_operators(options, native.default_domains() if domains is None else domains, own)
        if model is not None and not is_ort:
            warn_of_unknown_attributes(model, every)
    return options


def extensions():
    """The module `extensions`, which imports onnxruntime_extensions. Raises OpError."""
    if obstacle := library.extensions_obstacle():
        raise OpError("backend", "'extensions'", obstacle, "onnx_ops")
    from . import extensions

    return extensions


@contextmanager
def _external_data_in(folder, options, is_shared):
    """A context in which a session that is made with these options reads external data from a folder.

    folder     None for no change
    is_shared  whether other sessions may be made with these options, too, which must not read from there
    """
    with OPTIONS if is_shared else nullcontext():
        before = native.config_entry(options, EXTERNAL_DATA) or ""
        if folder and folder != before:
            options.add_session_config_entry(EXTERNAL_DATA, folder)
        try:
            yield
        finally:
            if folder and folder != before and is_shared:  # ONNX Runtime logs a warning
                options.add_session_config_entry(EXTERNAL_DATA, before)


def op_error(error, operators):
    """The OpError whose text an exception of ONNX Runtime carries, or None.

    operators  what `operators.available` returns
    """
    # A name that isn't UTF-8 makes it another exception, which has the message.
    text = error.object.decode(errors="replace") if isinstance(error, UnicodeDecodeError) else str(error)
    message = _reported(text)
    titles = {operator.title for operator in operators.values()}
    for title in sorted(filter(message.startswith, titles), key=len, reverse=True):
        if not (node := _NODE.match(message, len(title))):
            continue
        operator, text = message[: node.end() - 2], message[node.end() :]
        argument, equals, value = text.partition(" = ")
        end = _end_of_value(value)
        if equals and end >= 0 and not {"=", "\n", ":"} & set(argument):
            return OpError(argument, value[:end], value[end + 2 :].partition("\n")[0], operator)
        return OpError(None, None, text, operator)  # the message of an exception in a body names no argument
    return None


def _reported(message):
    """What a kernel has reported, according to a message of ONNX Runtime; "" if it is about something else."""
    begin = _FAILED.match(message)
    text = message[begin.end() :] if begin else ""
    if begin and begin["run"]:  # names of nodes, which may be any text, come before the last one
        text = text.rpartition(native.STATUS)[2]
    return text if len(text) <= LONGEST else ""


def _end_of_value(text):
    """The position of the ": " after the value that a text begins with, outside of quotes; -1 if there is none."""
    quote, quoted = None, -1  # the quote that is open, and the first ": " after it, which counts if it is never closed
    for part in _IN_VALUE.finditer(text):
        if part[0] == ": ":
            if quote is None:
                return part.start()
            quoted = part.start() if quoted < 0 else quoted
        elif part[0] == quote:
            quote, quoted = None, -1
        elif quote is None and part[0] in ("'", '"'):
            quote = part[0]
    return quoted


class InferenceSession(ort.InferenceSession):  # type: ignore[misc]  # ONNX Runtime has no types
    """An onnxruntime.InferenceSession that runs the operators of this package.

    It has the same methods. Operators are registered on `sess_options`, if
    given. With the native backend, attributes that an operator doesn't have
    cause a warning in the log "onnx_ops".

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
        run on the CPU, whatever they are.
    provider_options : sequence of dict, optional
        Options of the providers, as for ONNX Runtime.
    backend : {"native", "extensions"}, default "native"
        "native" runs the model as it is. "extensions" lowers it first, as
        `onnx_ops.lower` does.
    optimize : bool, default False
        Run the model as `onnx_ops.optimize` rewrites it. A model without a
        match runs as it is.
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
        path_or_bytes: str | os.PathLike[str] | bytes,
        sess_options: ort.SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[dict[Any, Any]] | None = None,
        *,
        backend: Backend = "native",
        optimize: bool = False,
        operators: Iterable[Any] = (),
        **kwargs: Any,
    ) -> None:
        options = sess_options or ort.SessionOptions()
        path_or_bytes = os.fspath(path_or_bytes) if isinstance(path_or_bytes, os.PathLike) else path_or_bytes
        self._options, self._threads = options, options.intra_op_num_threads
        self._is_shared = sess_options is not None
        self._run_input: str | None = None  # see lowering.py
        self._folder: str | None = None  # of the external data of a model that has been rewritten
        operators = as_list(operators)
        self._operators = available(operators)
        self._native_run = _Run(self._operators)
        if optimize or backend == "extensions":
            path_or_bytes = self._rewritten(path_or_bytes, options, optimize, backend)
        _register(options, path_or_bytes if backend == "native" else None, None, backend, operators)
        try:
            with _external_data_in(self._folder, options, self._is_shared):
                super().__init__(path_or_bytes, options, providers, provider_options, **kwargs)
        except Exception as error:
            if refusal := op_error(error, self._operators):
                raise refusal from error
            imported = imported_domains(path_or_bytes) or ()
            if "com.microsoft" not in imported and re.search(r"com\.microsoft:\w+\(-1\) is not a reg", str(error)):
                rule = "com.microsoft was registered on them for another model, which breaks this one; use new ones"
                raise OpError("sess_options", "used before", rule, "onnx_ops") from error
            if "Domain already set" in str(error):
                rule = (
                    "have operators of another library, such as @onnx_op functions, in a domain of onnx_ops' operators"
                )
                raise OpError("sess_options", "given", f"{rule}; name another domain there", "onnx_ops") from error
            raise
        others = [name for name in self.get_providers() if name != "CPUExecutionProvider"]
        if others:
            warnings.warn(
                f"onnx_ops: the operators run on the CPU, the other nodes may run on {', '.join(others)}", stacklevel=2
            )

    def _rewritten(self, path_or_bytes, options, optimize, backend):
        """Rewrite the model as `optimize` and `backend` ask for; returns its bytes, or the argument if nothing changes.

        External data stay where they are, unless they are few.
        """
        if is_ort_format(path_or_bytes):
            argument = ("optimize", True) if optimize else ("backend", "'extensions'")
            rule = "can't rewrite a model in ONNX Runtime's own format; use the .onnx file that it was made from"
            raise OpError(*argument, rule, "onnx_ops")
        import onnx

        from .. import external_data
        from ..rewriting import rewritten
        from .lowering import lower_for_session

        with OPTIONS:  # while another thread makes a session with them, they may state its folder
            folder = native.config_entry(options, EXTERNAL_DATA) or None  # from which ONNX Runtime reads them
        if isinstance(path_or_bytes, bytes):
            model, path = onnx.ModelProto.FromString(path_or_bytes), None
        else:
            model, path = external_data.model_in(path_or_bytes), path_or_bytes
        origin = folder or path
        if optimize:
            model, findings = rewritten(model, folder=origin, operators=self._operators, in_place=True)
            if backend == "native" and not any(finding.operator for finding in findings):
                return path_or_bytes
        if backend == "extensions":
            model, self._run_input = lower_for_session(model, self._operators, origin)
        if path and (tensors := external_data.external(model)):
            # ONNX Runtime 1.20 finds no external data of a model that is passed as bytes. Newer ones log a warning when
            # a folder is taken out of the options again, which is worth a copy of few data.
            are_few = self._is_shared and not folder and external_data.stated_size(tensors, origin) <= FEW
            if are_few or ort.__version__.startswith("1.20."):
                for tensor in tensors:
                    external_data.read(tensor, origin)
            elif not folder:
                self._folder = external_data.relocate(model, path)
        return model.SerializeToString()

    def set_providers(
        self, providers: Sequence[Any] | None = None, provider_options: Sequence[dict[Any, Any]] | None = None
    ) -> None:
        with _external_data_in(self._folder, self._options, self._is_shared):
            super().set_providers(providers, provider_options)

    def get_inputs(self) -> list[Any]:
        return [i for i in super().get_inputs() if i.name != self._run_input]

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: ort.RunOptions | None = None,
    ) -> list[Any]:
        with self._run_context() as more:
            feeds = {**input_feed, **more} if more else input_feed
            return super().run(output_names, feeds, run_options)

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
        if not self._run_input:  # without the context, which takes time that small calls would feel
            try:
                super().run_with_iobinding(iobinding, run_options)
            except Exception as error:
                self._native_run.__exit__(type(error), error, None)
                raise
            return
        with self._run_context() as more:
            for name, value in more.items():
                iobinding.bind_cpu_input(name, value)
            super().run_with_iobinding(iobinding, run_options)

    def run_with_ortvaluevector(self, *args: Any) -> None:
        """Run as an onnxruntime.InferenceSession.

        Raises
        ------
        OpError
            The model was lowered: it needs one more input.
        """
        if self._run_input:
            rule = 'is for backend="native"; use run, run_with_ort_values or run_with_iobinding'
            raise OpError("run_with_ortvaluevector", "called", rule, "onnx_ops")
        with self._native_run:
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

        def finish(results, data, message):
            error = context.end()
            callback(results, data, str(error) if error else message)

        more = context.begin()
        try:
            super().run_async(output_names, {**input_feed, **more}, finish, user_data, run_options)
        except BaseException as error:
            context.__exit__(type(error), error, None)
            raise

    def _run_context(self):
        """The context of a run; one of the native backend has no state."""
        return _Run(self._operators, self._run_input, self._threads) if self._run_input else self._native_run


class _Run:
    """The context of a run: yields {additional input: array}, and raises an operator's error as OpError.

    name, threads  of the additional input of a lowered model, and for it; None for the native backend
    """

    def __init__(self, operators, name=None, threads=None):
        self.operators, self.name, self.threads = operators, name, threads

    def begin(self):
        if self.name is None:
            return {}
        self.run = extensions().begin(self.threads)
        return {self.name: self.run}

    def end(self):
        return extensions().end(self.run) if self.name else None

    __enter__ = begin

    def __exit__(self, kind, error, traceback):
        refusal = self.end() or (error and op_error(error, self.operators))
        if refusal and (error is None or isinstance(error, Exception)):
            raise refusal from error
