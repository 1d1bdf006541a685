"""The ways to run an operator, behind one interface: (case, inputs) -> output."""

import numpy as np
import onnxruntime as ort
from cases import model

import onnx_ops
from onnx_ops import functions


def function(case, inputs):
    return functions.call(case.operator, *inputs, **case.attributes)


def native(case, inputs):
    proto = model(case.domain, case.op_type, inputs, case.attributes)
    return run(onnx_ops.InferenceSession(proto.SerializeToString(), quiet()), inputs)


BACKENDS = {"function": function, "native": native}


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
