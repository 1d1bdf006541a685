"""The ways to run a model, behind one interface: arrays in by name, arrays out by name."""

import ctypes
import math

import numpy as np
import onnx
import onnxruntime as ort

import onnx_ops

from .. import OpError, dtypes
from ..runtime.lowering import DOMAIN
from ..runtime.model import imported_domains
from ..schemas import dimensions
from .values import ELEMENT_TYPES

ROUTES = ("native", "extensions", "builtin", "reference")
QUIET = 4  # what ONNX Runtime would log of an error is in the exception, too
_TYPES = {"float": "float32", "double": "float64"}  # where ONNX Runtime's names are not ours


class Route:
    """A model, given as path or bytes, opened by one of ROUTES.

    optimize  as of onnx_ops.InferenceSession, for its backends
    profile   the start of a file's path: that of ONNX Runtime's profile
    inputs    {name: (element type or None if it is no tensor, dimensions: ints, names or None)}
    run       ({input: array}) -> {output: array}
    """

    def __init__(self, model, route="native", threads=None, *, optimize=False, profile=None):
        if route == "reference":
            self._open_reference(model)
        else:
            self._open_session(model, route, threads, optimize, profile)

    def _open_session(self, model, route, threads, optimize, profile):
        options = ort.SessionOptions()
        options.log_severity_level = QUIET
        options.intra_op_num_threads = threads or 0
        if profile:
            options.enable_profiling, options.profile_file_prefix = True, str(profile)
        model = model if isinstance(model, bytes) else str(model)
        if route != "extensions" and DOMAIN in (imported_domains(model) or ()):
            raise OpError("", None, f"the model imports {DOMAIN}, as lowered ones do: only backend extensions runs it")
        # There is nothing to fall back to, and ONNX Runtime would print that it does.
        settings = {"providers": ["CPUExecutionProvider"], "enable_fallback": False}
        if route == "builtin":
            self.session = ort.InferenceSession(model, options, **settings)
        else:
            self.session = onnx_ops.InferenceSession(model, options, backend=route, optimize=optimize, **settings)
        self.inputs = {i.name: (_element_type(i.type), i.shape) for i in self.session.get_inputs()}
        self.outputs = [o.name for o in self.session.get_outputs()]
        self.run = self._run_session

    def _run_session(self, feeds):
        if any(v.type == "tensor(bfloat16)" for v in (*self.session.get_inputs(), *self.session.get_outputs())):
            values = self.session.run_with_ort_values(self.outputs, {n: _ort_value(a) for n, a in feeds.items()})
            return {name: _array(value) for name, value in zip(self.outputs, values, strict=True)}
        return dict(zip(self.outputs, self.session.run(None, feeds), strict=True))

    def _open_reference(self, model):
        from onnx.reference import ReferenceEvaluator

        proto = onnx.ModelProto.FromString(model) if isinstance(model, bytes) else onnx.load(model)
        evaluator = ReferenceEvaluator(proto, new_ops=onnx_ops.reference_ops())
        self.outputs = [o.name for o in proto.graph.output]
        constants = {t.name for t in proto.graph.initializer}
        self.inputs = {
            i.name: (ELEMENT_TYPES.get(i.type.tensor_type.elem_type), dimensions(i.type) or [])
            for i in proto.graph.input
            if i.name not in constants
        }
        self.run = lambda feeds: dict(zip(self.outputs, evaluator.run(None, feeds), strict=True))


def _element_type(described):
    """float32 for "tensor(float)"."""
    if not described.startswith("tensor("):
        return None
    name = described[len("tensor(") : -1]
    return _TYPES.get(name, name)


def _ort_value(array):
    array = np.ascontiguousarray(array)
    if array.dtype.name == "bfloat16":
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), onnx.TensorProto.BFLOAT16)
    return ort.OrtValue.ortvalue_from_numpy(array)


def _array(value):
    """An OrtValue as an array; ONNX Runtime has none for bfloat16."""
    if value.data_type() != "tensor(bfloat16)":
        return value.numpy()
    count = math.prod(value.shape())
    bits = (ctypes.c_uint16 * count).from_address(value.data_ptr()) if count else []
    return np.array(bits, np.uint16).view(dtypes.TABLE["bfloat16"].numpy).reshape(value.shape())
