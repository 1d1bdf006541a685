"""The operators as Python ops of onnxruntime-extensions (`@onnx_op`), in the domain ai.onnx.contrib.

That library hands over copies of the inputs and takes the output as a list. It has no channel for errors: an exception
in an op's body ends the process. So a body catches everything, logs it, keeps it for the session whose run it was, and
returns an empty tensor of the right rank, never plausible data. `onnx_ops.InferenceSession` raises what was kept.
"""

import functools
import itertools
import logging
import math
import threading

import numpy as np
import onnxruntime as ort
import onnxruntime_extensions as extensions
from onnx import TensorProto, helper

from .. import dtypes
from ..errors import OpError, named
from ..locks import RUNS
from ..operators import OPERATORS
from . import execute
from .lowering import DOMAIN, VERSION, op_type

PROBE = "onnx_ops_probe"
log = logging.getLogger("onnx_ops")
_memory = threading.local()
_numbers = itertools.count(1)
_errors: dict = {}  # number of a run that is under way -> the first error in one of its ops, or None


class Output:
    """An array in the form in which onnxruntime-extensions takes results, which must not become a list on the way.

    It calls `.shape` and `.flatten().tolist()`, and copies from the buffer of whatever that is; strings, which have no
    buffer, it takes from a list.
    """

    def __init__(self, array):
        self.array, self.shape = array, array.shape

    def flatten(self):
        return self

    def tolist(self):
        return self.array.ravel().tolist() if self.array.dtype.hasobject else self.array


def register(options):
    """Put the library's ops, ours among them, on a session's options; nothing happens where they are already."""
    key = "onnx_ops.registered.extensions"
    try:
        options.get_session_config_entry(key)
    except RuntimeError:  # there is none
        options.add_session_config_entry(key, "1")
        if not _registered(options):
            options.register_custom_ops_library(extensions.get_library_path())


def _registered(options):
    """Whether the options have the library already: they don't tell, and twice makes every session fail."""
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node(PROBE, ["x"], ["y"], domain=DOMAIN)],
            "probe",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
        ),
        opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, VERSION)],
        ir_version=8,
    )
    profiling, options.enable_profiling = options.enable_profiling, False
    try:
        ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
        return True
    except Exception as error:
        if PROBE in str(error):
            return False
        raise
    finally:
        options.enable_profiling = profiling


def _declare(operator, signature):
    kinds = extensions.PyCustomOpDef

    def kind(variable):
        return getattr(kinds, "dt_" + {"float32": "float", "float64": "double"}.get(variable, variable))

    lists = [a for a in operator.attributes if a.kind == "ints"]
    scalars = {
        a.name: kinds.dt_int64 if a.kind == "int" else kinds.dt_string for a in operator.attributes if a.kind != "ints"
    }
    extensions.onnx_op(
        op_type=op_type(operator),
        inputs=[*(kind(signature[i.type]) for i in operator.inputs), *[kinds.dt_int64] * (len(lists) + 1)],
        outputs=[kind(signature[operator.output])],
        attrs=scalars,
    )(functools.partial(body, operator, dtypes.TABLE[signature[operator.output]].numpy))


def body(operator, dtype, *inputs, **attributes):
    """What an op does; never raises."""
    run, rank = 0, 1
    try:
        count = len(operator.inputs)
        *lists, (run, threads) = inputs[count:]
        names = [a.name for a in operator.attributes if a.kind == "ints"]
        attributes.update((n, tuple(v.tolist()) or None) for n, v in zip(names, lists, strict=True))
        arrays = inputs[:count]
        rank = execute.output_rank(operator, arrays) or rank
        parameters = _parameters(operator, tuple(attributes.items()))
        return Output(execute.run(operator, parameters, arrays, int(threads), recycled))
    except BaseException as error:
        _keep(int(run), operator, error)
        return Output(np.empty([0] * rank, dtype))


def recycled(shape, dtype):
    """np.empty in this thread's last such memory if it is large enough.

    The library copies a result before the thread's next one is made, and fresh pages cost more than that copy.
    """
    size = math.prod(shape) * dtype.itemsize
    if not hasattr(_memory, "bytes") or _memory.bytes.size < size:
        _memory.bytes = np.empty(size, np.uint8)
    return _memory.bytes[:size].view(dtype).reshape(shape)


@functools.lru_cache(maxsize=1024)
def _parameters(operator, attributes):
    with named(operator):
        return operator.resolved(dict(attributes))


def _keep(run, operator, error):
    if isinstance(error, OpError):
        log.error("%s", error)
    else:
        log.error("%s", operator.title, exc_info=error)
        error = OpError(None, None, f"{type(error).__name__}: {error}", operator.title)
    with RUNS:
        if run in _errors and _errors[run] is None:
            _errors[run] = error


def begin(threads):
    """A run is about to start: what its graph input RUN must be."""
    with RUNS:
        number = next(_numbers)
        _errors[number] = None
    return np.array([number, threads], np.int64)


def end(run):
    """The run has ended: the OpError that one of its ops met, or None."""
    with RUNS:
        return _errors.pop(int(run[0]))


# Once, and all of them: the library keeps its ops in a vector that sessions hold pointers into.
extensions.onnx_op(op_type=PROBE, inputs=[extensions.PyCustomOpDef.dt_float])(Output)
for operator in OPERATORS:
    for signature in operator.signatures():
        # The library has no arrays of 16-bit floats; lowering casts them.
        if not {"float16", "bfloat16"} & set(signature.values()):
            _declare(operator, signature)
