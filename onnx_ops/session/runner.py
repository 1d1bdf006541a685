"""Models as functions from {input: array} to {output: array}, which can be pickled."""

from __future__ import annotations

import ctypes
import functools
import math
import os
import uuid
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime as ort

from ..declaration import dtypes
from ..declaration.errors import OpError
from ..model.files import EXTENSIONS, is_lowered
from ..model.operator_files import operators_at, python_ops, sources_of
from ..model.sessions import BuiltinSession
from ..native import library
from ..native.threads import check_count
from ..registry import as_list, declaration_of
from .prepare import extensions, prepare
from .session import InferenceSession

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Mapping
    from typing import Any

    from ..model.sessions import OrtSession
    from ..model.types import Array, File, OperatorSource, PathLike
    from ..registry import Declared, Operators
    from .prepare import Prepared
    from .types import AnyBackend, Described


QUIET = 4  # a severity: errors are not logged, since exceptions have the same text
# Attributes of a Runner that its pickles don't have.
_UNPICKLED = {"operators", "session", "inputs", "outputs"}
_TYPES = {"float": "float32", "double": "float64"}  # {ONNX Runtime's name: ours} where they differ


class Runner:
    """A model as a function on dicts of arrays, which can be pickled.

    It is made for `map_batches` of Ray Data and the map of any other engine.
    Called with {input: array}, it returns {output: array}. Other keys, such as
    names of files, come back unchanged, unless an output has the same name.

    A Runner makes its session at its first call. Pickles contain no session.
    Copies that one process unpickles are one object, so an engine that sends a
    copy with each task has one session in each process. A process keeps the
    last four.

    Parameters
    ----------
    model : path or bytes
        The model. A path must lead to it in every process that calls the
        Runner.
    threads : int or None, default 1
        Number of threads of each session. None: the number of cores. The
        default, 1, suits one process for each core.
    backend : {"native", "extensions", "builtin"}, default "native"
        As for `onnx_ops.InferenceSession`, or "builtin": ONNX Runtime's
        built-in kernels alone.
    optimize : bool, default False
        As for `onnx_ops.InferenceSession`.
    operators : iterable of custom operators
        As for `onnx_ops.InferenceSession`. Their modules must be present in
        every process, and the same.

    Raises
    ------
    OpError
        `threads` is wrong. A call raises it where an input is missing, and what
        `onnx_ops.InferenceSession` raises.

    Examples
    --------
    >>> runner = onnx_ops.Runner("model.onnx")
    >>> runner.inputs
    {'image': ('float32', ['batch', 3, 144, 192])}
    >>> outputs = runner({"image": np.zeros((1, 3, 144, 192), np.float32), "file": "a.png"})
    >>> outputs["file"]
    'a.png'
    """

    def __init__(
        self,
        model: File,
        *,
        threads: int | None = 1,
        backend: AnyBackend = "native",
        optimize: bool = False,
        operators: Iterable[Declared] = (),
    ) -> None:
        check_count("threads", threads)
        # A path becomes a string, as a pickled Path can't be read on other systems.
        self.model = model if isinstance(model, bytes) else os.fspath(model)
        self.threads = threads
        self.backend = backend
        self.optimize = optimize
        self.operators = as_list(operators)
        self._key = uuid.uuid4().hex

    def __reduce__(self) -> tuple[Any, ...]:
        declarations = [*map(declaration_of, self.operators)]
        titles = tuple(declaration.title for declaration in declarations)
        attributes = {name: value for name, value in vars(self).items() if name not in _UNPICKLED}
        # What a session is made of: if it changes, another process makes another session.
        key = self._key, self.model, self.threads, self.backend, self.optimize
        return _copy, (type(self), key, titles, tuple(sources_of(declarations))), attributes

    @functools.cached_property
    def session(self) -> InferenceSession:
        """Return the session, which is made when this is first read."""
        return open_session(
            self.model,
            self.backend,
            threads=self.threads,
            optimize=self.optimize,
            operators=self.operators,
        )

    @functools.cached_property
    def inputs(self) -> Described:
        """Return {name: (element type, dimensions)} of the inputs.

        The type is None if the input is no tensor. Each dimension is an int, a
        name or None.
        """
        return _types_and_dimensions(self.session.get_inputs())

    @functools.cached_property
    def outputs(self) -> Described:
        """Return the outputs, as `inputs`."""
        return _types_and_dimensions(self.session.get_outputs())

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        if missing := self.inputs.keys() - batch.keys():
            rule = f"must have all inputs of the model; it lacks {', '.join(sorted(missing))}"
            raise OpError("batch", sorted(batch), rule, "onnx_ops")
        other_columns = {name: value for name, value in batch.items() if name not in self.inputs}
        return other_columns | run_session(
            self.session, {name: batch[name] for name in self.inputs}
        )


@functools.lru_cache(maxsize=4)
def _copy(
    runner_class: type[Runner],
    key: Hashable,
    titles: tuple[str, ...],
    sources: tuple[OperatorSource, ...],
) -> Runner:
    """Return this process' copy of the Runner with a key, which gets its attributes after that.

    key      of the Runner and its settings

    titles   of its operators
    sources  modules and files that declare them, see `sources_of`
    """
    declared = [operator for source in sources for operator in operators_at(source)]
    copy = runner_class.__new__(runner_class)
    copy.operators = [o for o in declared if declaration_of(o).title in titles]
    return copy


def open_session(
    model: File,
    backend: AnyBackend = "native",
    *,
    threads: int | None = None,
    optimize: bool = False,
    profile: PathLike | None = None,
    operators: Iterable[Declared] = (),
) -> OrtSession:
    """Open a session of a model (path or bytes) that runs on the CPU and logs nothing.

    It has the library of onnxruntime-extensions if the model or Python operators in use need it.

    backend   as for onnx_ops.InferenceSession, or "builtin" for ONNX Runtime's built-in kernels
    profile   the first part of the path at which ONNX Runtime writes its profile
    optimize, operators   as for onnx_ops.InferenceSession
    """
    options = ort.SessionOptions()
    options.log_severity_level = QUIET
    options.intra_op_num_threads = threads or 0
    if profile:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile)
    ready = prepare(model, options, backend, operators, optimize=optimize, add_more=add_python_ops)
    # With fallback enabled, ONNX Runtime would print a message about it, though there is nothing to
    # fall back to.
    settings: dict[str, Any] = {"providers": ["CPUExecutionProvider"], "enable_fallback": False}
    if backend == "builtin":
        return BuiltinSession(ready.model, options, **settings)
    session = InferenceSession.__new__(InferenceSession)
    session._onnx_ops_open(ready, **settings)
    return session


def add_python_ops(ready: Prepared) -> None:
    """Register onnxruntime-extensions on the options of a Prepared if its model needs it.

    Raises OpError.
    """
    imported = ready.imports or ()
    if EXTENSIONS in imported and ready.model and is_lowered(ready.model):
        raise OpError(
            "",
            None,
            "the model has nodes that onnx_ops.lower made: only backend extensions runs it",
        )
    if needs_extensions(imported, ready.operators):
        if obstacle := library.extensions_obstacle():
            raise OpError("", None, f"the model imports {EXTENSIONS}, which {obstacle}")
        extensions().add_library(ready.options)


def needs_extensions(imported: Collection[str], operators: Operators) -> bool:
    """Return whether a model that imports these domains needs onnxruntime-extensions.

    operators  the result of `registry.available`
    """
    return bool(python_ops()) or (
        EXTENSIONS in imported and all(domain != EXTENSIONS for domain, _ in operators)
    )


def _types_and_dimensions(values: Iterable[ort.NodeArg]) -> Described:
    return {value.name: (_element_type(value.type), value.shape) for value in values}


def run_session(session: OrtSession, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Run a session on {input: array}; return {output: array}."""
    names = [o.name for o in session.get_outputs()]
    feeds = {name: _native(value) for name, value in feeds.items()}
    if any(v.type == "tensor(bfloat16)" for v in (*session.get_inputs(), *session.get_outputs())):
        values = session.run_with_ort_values(names, {n: _ort_value(a) for n, a in feeds.items()})
        return {name: _array(value) for name, value in zip(names, values, strict=True)}
    return dict(zip(names, session.run(None, feeds), strict=True))


def _element_type(ort_type: str) -> str | None:
    """Return the data type of a tensor type: "float32" for "tensor(float)"; else None."""
    if not ort_type.startswith("tensor("):
        return None
    name = ort_type[len("tensor(") : -1]
    return _TYPES.get(name, name)


def _native(value: Any) -> Any:
    """Return an array in native byte order, which ONNX Runtime requires; other values unchanged."""
    return dtypes.contiguous(value) if isinstance(value, np.ndarray) else value


def _ort_value(array: Array) -> ort.OrtValue:
    array = dtypes.contiguous(array)
    if array.dtype.name == "bfloat16":
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(
            array.view(np.uint16), dtypes.TABLE["bfloat16"].onnx
        )
    return ort.OrtValue.ortvalue_from_numpy(array)


def _array(value: ort.OrtValue) -> Array:
    """Return an OrtValue as an array, also of bfloat16, which ONNX Runtime doesn't convert."""
    if value.data_type() != "tensor(bfloat16)":
        return value.numpy()
    count = math.prod(value.shape())
    bits = (ctypes.c_uint16 * count).from_address(value.data_ptr()) if count else []
    return np.array(bits, np.uint16).view(dtypes.TABLE["bfloat16"].numpy).reshape(value.shape())
