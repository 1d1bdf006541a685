"""Models as functions from arrays by name to arrays by name, which can be sent to other processes."""

import ctypes
import functools
import math
import os
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnxruntime as ort

from .. import dtypes
from ..errors import OpError
from ..operators import declaration_of
from ..own.files import places, use_place
from .model import imported_domains
from .session import Backend, InferenceSession

QUIET = 4  # what ONNX Runtime would log of an error is in the exception, too
_TYPES = {"float": "float32", "double": "float64"}  # where ONNX Runtime's names are not ours


class Runner:
    """A model as a function on dicts of arrays, for `map_batches` of Ray Data and the map of any other engine.

    model     path or bytes; a path must lead to the model in every process that calls the Runner
    threads   of each session; None: as many as the machine has cores. The default suits one process for each core
    backend   as of onnx_ops.InferenceSession
    optimize  as of onnx_ops.InferenceSession
    operators of one's own, as of onnx_ops.InferenceSession; their modules must be there in every such process

    Called with {input: array}, a Runner returns {output: array}. Columns that are no inputs of the model, such as the
    names of the items, come back unchanged, unless an output has their name.

    A Runner makes its session when it is first called. It can be pickled at any time; the session stays behind. Copies
    that one process unpickles are one object, so an engine that sends a copy with each task has one session in each
    process, and not one for each task. A process keeps the last four of such copies.

    Raises OpError where an input is missing, and what onnx_ops.InferenceSession raises.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | bytes,
        *,
        threads: int | None = 1,
        backend: Backend = "native",
        optimize: bool = False,
        operators: Iterable[Any] = (),
    ) -> None:
        # As a text: a pickle of a Path is for systems of one kind.
        self.model = model if isinstance(model, bytes) else os.fspath(model)
        self.threads, self.backend, self.optimize = threads, backend, optimize
        self.operators = list(operators)
        self._key = uuid.uuid4().hex

    def __reduce__(self):
        own = tuple(places(map(declaration_of, self.operators)))
        return _copy, (self._key, self.model, self.threads, self.backend, self.optimize, own)

    @functools.cached_property
    def session(self) -> InferenceSession:
        """The session, made when this is first asked for."""
        settings = {"threads": self.threads, "optimize": self.optimize, "operators": self.operators}
        return open_session(self.model, self.backend, **settings)

    @functools.cached_property
    def inputs(self) -> dict[str, Any]:
        """What `inputs` says of the session."""
        return inputs(self.session)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        if missing := self.inputs.keys() - batch.keys():
            rule = f"must have all inputs of the model; it lacks {', '.join(sorted(missing))}"
            raise OpError("batch", sorted(batch), rule, "onnx_ops")
        others = {name: value for name, value in batch.items() if name not in self.inputs}
        return others | run(self.session, {name: batch[name] for name in self.inputs})


@functools.lru_cache(maxsize=4)
def _copy(key, model, threads, backend, optimize, own):
    """The one copy in this process of the Runner whose key that is."""
    operators = [operator for place in own for operator in use_place(place)]
    copy = Runner(model, threads=threads, backend=backend, optimize=optimize, operators=operators)
    copy._key = key
    return copy


def open_session(model, backend="native", *, threads=None, optimize=False, profile=None, operators=()):
    """A session of a model, given as path or bytes, on the CPU, that logs nothing.

    backend   as of onnx_ops.InferenceSession, or "builtin": ONNX Runtime's own kernels alone
    profile   the start of a file's path: that of ONNX Runtime's profile
    operators of one's own, as of onnx_ops.InferenceSession
    """
    from .lowering import DOMAIN

    options = ort.SessionOptions()
    options.log_severity_level = QUIET
    options.intra_op_num_threads = threads or 0
    if profile:
        options.enable_profiling, options.profile_file_prefix = True, str(profile)
    model = model if isinstance(model, bytes) else str(model)
    if backend != "extensions" and DOMAIN in (imported_domains(model) or ()):
        raise OpError("", None, f"the model imports {DOMAIN}, as lowered ones do: only backend extensions runs it")
    # There is nothing to fall back to, and ONNX Runtime would print that it does.
    settings = {"providers": ["CPUExecutionProvider"], "enable_fallback": False}
    if backend == "builtin":
        return ort.InferenceSession(model, options, **settings)
    return InferenceSession(model, options, backend=backend, optimize=optimize, operators=operators, **settings)


def inputs(session):
    """{name: (element type or None if it is no tensor, dimensions: ints, names or None)}"""
    return {i.name: (_element_type(i.type), i.shape) for i in session.get_inputs()}


def run(session, feeds):
    """{output: array} for {input: array}"""
    names = [o.name for o in session.get_outputs()]
    if any(v.type == "tensor(bfloat16)" for v in (*session.get_inputs(), *session.get_outputs())):
        values = session.run_with_ort_values(names, {n: _ort_value(a) for n, a in feeds.items()})
        return {name: _array(value) for name, value in zip(names, values, strict=True)}
    return dict(zip(names, session.run(None, feeds), strict=True))


def _element_type(described):
    """float32 for "tensor(float)"."""
    if not described.startswith("tensor("):
        return None
    name = described[len("tensor(") : -1]
    return _TYPES.get(name, name)


def _ort_value(array):
    array = np.ascontiguousarray(array)
    if array.dtype.name == "bfloat16":
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), dtypes.TABLE["bfloat16"].onnx)
    return ort.OrtValue.ortvalue_from_numpy(array)


def _array(value):
    """An OrtValue as an array; ONNX Runtime has none for bfloat16."""
    if value.data_type() != "tensor(bfloat16)":
        return value.numpy()
    count = math.prod(value.shape())
    bits = (ctypes.c_uint16 * count).from_address(value.data_ptr()) if count else []
    return np.array(bits, np.uint16).view(dtypes.TABLE["bfloat16"].numpy).reshape(value.shape())
