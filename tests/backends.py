"""The ways to run an operator, behind one interface: (case, inputs) -> output.

native, extensions and function run the same machine code; reference is plain NumPy.
"""

import numpy as np
import onnxruntime as ort
import onnxruntime_extensions
from cases import model
from onnx.reference import ReferenceEvaluator

import onnx_ops
from onnx_ops import functions


def function(case, inputs):
    return functions.call(case.operator, *inputs, **case.attributes)


def native(case, inputs):
    proto = model(case.domain, case.op_type, inputs, case.attributes)
    return run(onnx_ops.InferenceSession(proto.SerializeToString(), quiet()), inputs)


def extensions(case, inputs):
    proto = model(case.domain, case.op_type, inputs, case.attributes)
    return run(onnx_ops.InferenceSession(proto.SerializeToString(), quiet(), backend="extensions"), inputs)


def lowered(case, inputs):
    """A plain session on the lowered model."""
    proto = onnx_ops.lower(model(case.domain, case.op_type, inputs, case.attributes))
    return run(ort.InferenceSession(proto.SerializeToString(), with_extensions(quiet())), inputs)


def reference(case, inputs):
    proto = model(case.domain, case.op_type, inputs, case.attributes)
    names = [i.name for i in proto.graph.input]
    evaluator = ReferenceEvaluator(proto, new_ops=onnx_ops.reference_ops())
    return evaluator.run(None, dict(zip(names, inputs, strict=True)))[0]


BACKENDS = {
    "function": function,
    "native": native,
    "extensions": extensions,
    "lowered": lowered,
    "reference": reference,
}
SAME_BITS = ("function", "native", "extensions", "lowered")


def with_extensions(options):
    """Options that were given the library of onnxruntime-extensions, as its users do it."""
    options.register_custom_ops_library(onnxruntime_extensions.get_library_path())
    return options


def quiet(**settings):
    """Session options that keep ONNX Runtime from printing the errors that tests provoke."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    for name, value in settings.items():
        setattr(options, name, value)
    return options


def run(session, inputs):
    feeds = {i.name: v for i, v in zip(session.get_inputs(), inputs, strict=True)}
    (y,) = session.run(None, feeds)
    return np.asarray(y)
