"""Sessions with this package's operators."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import onnxruntime as ort

from ..declaration.errors import OpError
from ..model.sessions import OrtSession, other_providers
from . import reports
from .failures import explained, refused_grid
from .prepare import extensions, prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import TracebackType
    from typing import Any

    from ..model.types import Array, File
    from ..registry import Declared
    from .prepare import Prepared
    from .types import Backend, Provider


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
        providers: Sequence[Provider] | None = None,
        provider_options: Sequence[dict[str, Any]] | None = None,
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
        providers: Sequence[Provider] | None,
        provider_options: Sequence[dict[str, Any]] | None = None,
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
        if accelerators := other_providers(super().get_providers()):
            warnings.warn(
                "onnx_ops: the operators run on the CPU, the other nodes may run on "
                f"{', '.join(accelerators)}",
                stacklevel=3,
            )

    def set_providers(
        self,
        providers: Sequence[Provider] | None = None,
        provider_options: Sequence[dict[str, Any]] | None = None,
    ) -> None:
        with self._onnx_ops_ready.with_external_data():
            super().set_providers(providers, provider_options)

    def get_session_options(self) -> ort.SessionOptions:
        """Return the options that the session was made with, with its operators.

        ONNX Runtime's copy of them would have no custom operators.
        """
        return self._onnx_ops_ready.share()

    def get_inputs(self) -> list[ort.NodeArg]:
        return [i for i in super().get_inputs() if i.name != self._onnx_ops_ready.run_input]

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: ort.RunOptions | None = None,
    ) -> list[Any]:
        if self._onnx_ops_ready.run_input:
            with self._run_context() as added_inputs:
                return super().run(output_names, {**input_feed, **added_inputs}, run_options)
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
        input_dict_ort_values: Mapping[str, ort.OrtValue],
        run_options: ort.RunOptions | None = None,
    ) -> Any:
        with self._run_context() as added_inputs:
            added_inputs = {
                name: ort.OrtValue.ortvalue_from_numpy(value)
                for name, value in added_inputs.items()
            }
            return super().run_with_ort_values(
                output_names, {**input_dict_ort_values, **added_inputs}, run_options
            )

    def run_with_iobinding(
        self, iobinding: ort.IOBinding, run_options: ort.RunOptions | None = None
    ) -> None:
        if self._onnx_ops_ready.run_input:
            with self._run_context() as added_inputs:
                for name, value in added_inputs.items():
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

        added_inputs = context.begin()
        try:
            super().run_async(
                output_names, {**input_feed, **added_inputs}, finish, user_data, run_options
            )
        except BaseException as error:
            context.__exit__(type(error), error, None)
            raise

    def _run_context(self) -> _Run:
        """Return the context of a run; one of the native backend has no state."""
        return _Run(self._onnx_ops_ready) if self._onnx_ops_ready.run_input else self._onnx_ops_run


class _Run:
    """The context of a run of a Prepared, which raises an operator's error as OpError.

    It yields {additional input: array}.

    The additional input is that of a lowered model. Without it, the context has no state.
    """

    def __init__(self, ready: Prepared) -> None:
        self.ready = ready
        self.is_parallel = ready.options.execution_mode == ort.ExecutionMode.ORT_PARALLEL

    def begin(self) -> dict[str, Array]:
        reports.forget()
        if self.ready.run_input is None:
            return {}
        self.run = extensions().begin(self.ready.threads)
        return {self.ready.run_input: self.run}

    def end(self) -> OpError | None:
        return extensions().end(self.run) if self.ready.run_input else None

    __enter__ = begin

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # In the usual case, the cost of each call would count.
        if error is None and self.ready.run_input is None:
            return
        refusal = self.end() or (
            error
            and (reports.refusal_of(error, self.is_parallel) or refused_grid(error, self.ready))
        )
        if refusal and (error is None or isinstance(error, Exception)):
            raise refusal from error
