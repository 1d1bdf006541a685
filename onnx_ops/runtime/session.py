"""Sessions with this package's operators, and `register`, which prepares the options of an ordinary one."""

import functools
import os
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import onnxruntime as ort

from ..errors import OpError
from ..operators import OPERATORS, known
from ..requirements import check_versions
from . import native, ort_format
from .attributes import warn_of_unknown
from .model import imported_domains

if TYPE_CHECKING:
    import onnx

Model: TypeAlias = "str | os.PathLike[str] | bytes | onnx.ModelProto"
Backend: TypeAlias = Literal["native", "extensions"]
BACKENDS = get_args(Backend)
EXTERNAL_DATA = "session.model_external_initializers_file_folder_path"
_QUOTED = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
# A value ends at the first ": " that no quotes surround. What has quotes is taken whole, or as single characters where
# they don't match: looking ahead and repeating what was seen keeps the search from trying both.
_VALUE = rf"(?:(?=(?P<part>{_QUOTED}|[\s\S]))(?P=part))*?"
_AFTER_TITLE = rf"(?: \(node (?:{_QUOTED})\))?): (?P<argument>[^=\n]*?) = (?P<value>{_VALUE}): (?P<rule>.*)"


def register(
    options: ort.SessionOptions,
    model: "Model | None" = None,
    *,
    domains: Iterable[str] | None = None,
    backend: Backend = "native",
    operators: Iterable[Any] = (),
) -> ort.SessionOptions:
    """Make the sessions that are created with `options` run this package's operators; returns `options`.

    options    an onnxruntime.SessionOptions
    model      path, bytes or onnx.ModelProto: the domains that it imports are registered, or of one in ONNX Runtime's
               own format, those that it was written with
    domains    instead of a model: exactly these, "" being ai.onnx
    backend    "native", or "extensions" for models that `onnx_ops.lower` has made
    operators  of one's own, which `onnx_ops.operator` has made: all of them, in addition

    With neither model nor domains: all but com.microsoft, since as a custom domain that one breaks models that don't
    import it. Registering the same options again adds what is missing. Attributes of the model that its operators don't
    have are a warning in the log ("onnx_ops"). Raises OpError.
    """
    if backend not in BACKENDS:
        raise OpError("backend", repr(backend), f"must be one of {', '.join(BACKENDS)}", "onnx_ops")
    every, ours = known(operators), {operator.domain for operator in OPERATORS}
    if domains is not None:
        domains = {"" if d == "ai.onnx" else d for d in domains}
        if domains - ours:
            raise OpError("domains", sorted(domains - ours), f"must be among {sorted(ours)}", "onnx_ops")
    own = [operator for operator in every.values() if operator not in OPERATORS]
    if backend == "extensions":
        extensions().add_library(options, own)
        return options
    if domains is None and model is not None:
        is_ort = ort_format.is_ort_format(model)
        imported = ort_format.domains(model, every) if is_ort else imported_domains(model)
        domains = None if imported is None else ours & imported
    if domains is None or domains or own:
        native.add_operators(options, native.default_domains() if domains is None else domains, own)
        if model is not None:
            warn_of_unknown(model, every)
    return options


def extensions():
    """The module, which imports onnxruntime_extensions."""
    try:
        import onnxruntime_extensions  # noqa: F401  first, as users do: it imports the module, see on_import.py

        from . import extensions
    except ImportError as error:
        rule = f"needs onnxruntime-extensions, which can't be imported: {error}"
        raise OpError("backend", "'extensions'", rule, "onnx_ops") from error
    finally:
        check_versions()
    return extensions


def _config_entry(options, key):
    try:
        return options.get_session_config_entry(key)
    except RuntimeError:
        return None


@functools.lru_cache
def _op_error_in(titles):
    """The pattern of what an OpError of one of these operators says."""
    longest_first = sorted(map(re.escape, titles), key=len, reverse=True)
    return re.compile(rf"(?P<operator>(?:{'|'.join(longest_first)}){_AFTER_TITLE}")


def op_error(error, operators):
    """The OpError whose text an exception of ONNX Runtime carries, or None.

    operators  what `operators.known` returns
    """
    # ONNX Runtime puts the node's name, which may look like anything, before the message.
    titles, text = (
        tuple(operator.title for operator in operators.values()),
        str(error).rpartition("Status Message: ")[2],
    )
    if found := _op_error_in(titles).search(text):
        return OpError(*found.group("argument", "value", "rule", "operator"))
    for operator in operators.values():  # what a body has raised has no argument
        if operator.is_function and text.startswith(f"{operator.title}: "):
            return OpError(None, None, text.removeprefix(f"{operator.title}: "), operator.title)
    return None


class InferenceSession(ort.InferenceSession):
    """An onnxruntime.InferenceSession in which this package's operators run; the same arguments.

    backend="native" runs the model as it is; backend="extensions" lowers it first (see `onnx_ops.lower`). Operators get
    registered on `sess_options`, if given. What an operator refuses is raised as OpError, of attributes that it doesn't
    have the native backend warns in the log ("onnx_ops").

    operators are those of one's own that the model has, see `onnx_ops.operator`.

    optimize=True runs what `onnx_ops.optimize` makes of the model, in which PyTorch's `unfold` and `affine_grid` are
    one node each, and a GridSample one with what makes its grid. The results may differ by rounding: those of an
    `affine_grid` in 16-bit floats do, in float32 and float64 they were the same wherever this was tried, and an
    `unfold` copies. A model in which there is nothing to replace is opened as it is; one in ONNX Runtime's own format
    can't be optimized.
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
        self._run_input, self._threads = None, options.intra_op_num_threads  # the former: see lowering.py
        operators = list(operators)
        self._operators = known(operators)
        self._native_run = _NativeRun(self._operators)
        if optimize or backend == "extensions":
            path_or_bytes = self._rewritten(path_or_bytes, options, optimize, backend)
        register(options, path_or_bytes if backend == "native" else None, backend=backend, operators=operators)
        try:
            super().__init__(path_or_bytes, options, providers, provider_options, **kwargs)
        except Exception as error:
            if found := op_error(error, self._operators):
                raise found from error
            imported = imported_domains(path_or_bytes) or ()
            if "com.microsoft" not in imported and re.search(r"com\.microsoft:\w+\(-1\) is not a reg", str(error)):
                rule = "com.microsoft was registered on them for another model, which breaks this one; use new ones"
                raise OpError("sess_options", "used before", rule, "onnx_ops") from error
            raise
        others = [name for name in self.get_providers() if name != "CPUExecutionProvider"]
        if others:
            warnings.warn(
                f"onnx_ops: the operators run on the CPU, the other nodes may run on {', '.join(others)}", stacklevel=2
            )

    def _rewritten(self, path_or_bytes, options, optimize, backend):
        """The bytes of the model that is opened instead; of one in which nothing changes, what was given.

        External data stay where they are.
        """
        if ort_format.is_ort_format(path_or_bytes):
            argument, value, otherwise = ("backend", "'extensions'", 'take backend="native"')
            if optimize:
                argument, value, otherwise = "optimize", True, "optimize the one that it was made from"
            rule = f"is for models in the format of ONNX, not in ONNX Runtime's own; {otherwise}"
            raise OpError(argument, value, rule, "onnx_ops")
        import onnx

        check_versions()
        from ..rewriting import rewritten
        from .external_data import refer, with_sizes
        from .lowering import lower_for_session

        if isinstance(path_or_bytes, bytes):
            model, folder = onnx.ModelProto.FromString(path_or_bytes), _config_entry(options, EXTERNAL_DATA)
        else:
            model, folder = with_sizes(path_or_bytes), os.path.dirname(os.path.abspath(path_or_bytes))
        if optimize:
            model, findings = rewritten(model, folder=folder)
            if backend == "native" and not any(finding.operator for finding in findings):
                return path_or_bytes
        if backend == "extensions":
            model, self._run_input = lower_for_session(model, self._operators)
        refer(model)
        if not isinstance(path_or_bytes, bytes):
            if ort.__version__.startswith("1.20."):  # doesn't find the external data of a model that it gets as bytes
                onnx.load_external_data_for_model(model, folder)
            if _config_entry(options, EXTERNAL_DATA) != folder:
                options.add_session_config_entry(EXTERNAL_DATA, folder)
        return model.SerializeToString()

    def get_inputs(self):
        return [i for i in super().get_inputs() if i.name != self._run_input]

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: ort.RunOptions | None = None,
    ) -> list[Any]:
        with self._watched() as more:
            return super().run(output_names, {**input_feed, **more} if more else input_feed, run_options)

    def run_with_ort_values(self, output_names, input_dict_ort_values, run_options=None):
        with self._watched() as more:
            more = {name: ort.OrtValue.ortvalue_from_numpy(value) for name, value in more.items()}
            return super().run_with_ort_values(output_names, {**input_dict_ort_values, **more}, run_options)

    def run_with_iobinding(self, iobinding, run_options=None):
        if not self._run_input:  # without the context, which small calls would feel
            try:
                return super().run_with_iobinding(iobinding, run_options)
            except Exception as error:
                self._native_run.__exit__(type(error), error, None)
                raise
        with self._watched() as more:
            for name, value in more.items():
                iobinding.bind_cpu_input(name, value)
            super().run_with_iobinding(iobinding, run_options)

    def run_with_ortvaluevector(self, *args):
        """As in an onnxruntime.InferenceSession; OpError for a lowered model, one of whose inputs it can't be given."""
        if self._run_input:
            rule = 'is for backend="native"; use run, run_with_ort_values or run_with_iobinding'
            raise OpError("run_with_ortvaluevector", "called", rule, "onnx_ops")
        with self._native_run:
            super().run_with_ortvaluevector(*args)

    def run_async(self, output_names, input_feed, callback, user_data, run_options=None):
        watched = self._watched()

        def done(results, data, message):
            error = watched.end()
            callback(results, data, str(error) if error else message)

        more = watched.begin()
        try:
            super().run_async(output_names, {**input_feed, **more}, done, user_data, run_options)
        except BaseException as error:
            watched.__exit__(type(error), error, None)
            raise

    def _watched(self):
        return _LoweredRun(self._run_input, self._threads) if self._run_input else self._native_run


class _NativeRun:
    """The context of a run: adds no inputs, raises the OpError that an exception stands for."""

    def __init__(self, operators):
        self.operators = operators

    def begin(self):
        return {}

    def end(self):
        return None

    __enter__ = begin

    def __exit__(self, kind, error, traceback):
        if error is not None and (found := op_error(error, self.operators)):
            raise found from error


class _LoweredRun:
    """The same of a lowered model: raises what an op has met, whatever else that led to."""

    def __init__(self, name, threads):
        self.name, self.threads = name, threads

    def begin(self):
        self.run = extensions().begin(self.threads)
        return {self.name: self.run}

    def end(self):
        return extensions().end(self.run)

    __enter__ = begin

    def __exit__(self, kind, error, traceback):
        if (found := self.end()) and (error is None or isinstance(error, Exception)):
            raise found from error
