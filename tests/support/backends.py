"""The ways to run an operator, behind one interface: (case, inputs) -> first output.

function    the machine code, called on arrays
native      the same code, as a kernel in a session of onnx_ops
extensions  the same code, as a Python operator of onnxruntime-extensions in a session of onnx_ops
lowered     the same, in ONNX Runtime's own session, on the model that `onnx_ops.lower` returns
reference   the NumPy function that `cases.expected_of` calls, run by onnx's ReferenceEvaluator
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import numpy as np
import onnx
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator

import onnx_ops
from onnx_ops.declaration import dtypes, plain
from onnx_ops.declaration.operator import Operator, Record
from onnx_ops.native.execute import call, specialization_of

from .cases import Case, model

with suppress(
    ImportError
):  # functions can be tested on a Python for which ONNX Runtime has no wheels yet
    import onnxruntime as ort

    MAJOR, MINOR = map(int, ort.__version__.split(".")[:2])
    ORT_VERSION = MAJOR, MINOR
    NEWEST = {(1, 20): 21, (1, 21): 22}  # of ai.onnx that the tests let it open
    NEWEST_OPSET = NEWEST.get(ORT_VERSION, 23)


def function(case: Case, inputs: Sequence[np.ndarray]) -> np.ndarray:
    outputs = call(case.operator, *inputs, **case.attributes)
    return outputs[0] if isinstance(outputs, tuple) else outputs


def native(
    case: Case, inputs: Sequence[np.ndarray], backend: Literal["native", "extensions"] = "native"
) -> np.ndarray:
    proto = model(case.domain, case.op_type, inputs, case.attributes)
    session = onnx_ops.InferenceSession(proto.SerializeToString(), quiet(), backend=backend)
    return run_session(session, inputs, output_shape(case, inputs))


def extensions(case: Case, inputs: Sequence[np.ndarray]) -> np.ndarray:
    return native(case, inputs, "extensions")


def lowered(case: Case, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """Replace the node by a Python operator of onnxruntime-extensions, and run the model in ONNX
    Runtime's own session.
    """
    proto = onnx_ops.lower(model(case.domain, case.op_type, inputs, case.attributes))
    return run_session(
        ort.InferenceSession(proto.SerializeToString(), with_extensions(quiet())),
        inputs,
        output_shape(case, inputs),
    )


def reference(case: Case, inputs: Sequence[np.ndarray]) -> np.ndarray:
    proto = model(case.domain, case.op_type, inputs, case.attributes)
    names = [i.name for i in proto.graph.input]
    evaluator = ReferenceEvaluator(proto, new_ops=onnx_ops.reference_ops())
    outputs: Any = evaluator.run(None, dict(zip(names, inputs, strict=True)))
    return outputs[0]


def python_counts() -> Any:
    """A context in which kernels run as plain Python: loops count in Python's integers.

    NumPy 1 makes a float of the sum of one of these and an unsigned integer.
    """
    return mock.patch.object(np, "uintp", int if np.__version__.startswith("1.") else np.uintp)


def uncompiled(case: Case, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """Run a case's kernel as plain Python, for float32 and float64.

    Only compiled code sums 16-bit floats in float32.
    """
    return uncompiled_outputs(case.operator, inputs, case.attributes)[0]


def uncompiled_outputs(
    operator: Operator, inputs: Sequence[np.ndarray | None], attributes: Mapping[str, Any]
) -> list[np.ndarray]:
    """Run the operator's kernel as plain Python, tile after tile, in the memory that its plan asks
    for.
    """
    values, arrays = (
        operator.values(attributes),
        [a if a is None else np.asarray(a) for a in operator.padded(inputs)],
    )
    way, sizes = (
        specialization_of(operator, values, arrays),
        tuple(plain.sizes_of(operator, arrays)),
    )
    position: Any = way.position
    shapes: Any
    if operator.has_ranks:
        shapes, geometry = (
            plain.shapes_of(operator, values, sizes),
            np.zeros(1, operator.geometry_dtype),
        )
        geometry["tiles"] = (
            operator.plan.loop(*sizes, *values.compiled) if operator.plan.loop else 1
        )
        geometry["workspace"] = (
            operator.plan.workspace(*sizes, *values.compiled) if operator.plan.workspace else 0
        )
        kernel, given = operator.kernel(position), [values.compiled, sizes, *arrays]
    else:
        shapes, geometry = plain.plan(
            operator, values, [np.array(() if s is None else s, np.int64) for s in sizes]
        )
        kernel, absent = operator.kernels[operator.choice(values)], np.empty(0, way.types[0])
        flat = [absent if a is None else a.ravel() for a in arrays]
        flat += [absent] * (len(operator.inputs) - len(flat))
        given = kernel.grouped([flat[k] for k in operator.inputs_read])
    outputs, record = list(map(np.empty, shapes, way.types)), Record(geometry[0])
    for tile in range(record.tiles):
        room = np.zeros(record.workspace, np.uint8)
        with python_counts():
            lengths = kernel.function(*given, record, tile, room, *(y.reshape(-1) for y in outputs))
    if not operator.plan.is_bound:
        return outputs
    lengths = lengths if isinstance(lengths, tuple) else (lengths,)
    return [y[:length] for y, length in zip(outputs, lengths, strict=True)]


HAVE_RUNTIME = find_spec("onnxruntime") is not None
# It has no release for Python 3.14.
HAVE_EXTENSIONS = HAVE_RUNTIME and find_spec("onnxruntime_extensions") is not None
ALL_BACKENDS = {
    "function": function,
    "native": native,
    "extensions": extensions,
    "lowered": lowered,
    "reference": reference,
}
NEEDS = {"native": HAVE_RUNTIME, "extensions": HAVE_EXTENSIONS, "lowered": HAVE_EXTENSIONS}
BACKENDS = {name: run for name, run in ALL_BACKENDS.items() if NEEDS.get(name, True)}
ABSENT = ALL_BACKENDS.keys() - BACKENDS.keys()  # tests with a parameter among these are skipped
IN_SESSIONS = tuple(name for name in BACKENDS if name in ("native", "extensions"))  # for `backend=`


def with_extensions(options: ort.SessionOptions) -> ort.SessionOptions:
    """Register the library of onnxruntime-extensions with options, as its users do, and return
    them.
    """
    import onnxruntime_extensions

    options.register_custom_ops_library(onnxruntime_extensions.get_library_path())
    return options


def quiet(**settings: Any) -> ort.SessionOptions:
    """Session options that keep ONNX Runtime from printing the errors that tests provoke."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    for name, value in settings.items():
        setattr(options, name, value)
    return options


def run_session(
    session: ort.InferenceSession, inputs: Sequence[np.ndarray], shape: Sequence[int] | None = None
) -> np.ndarray:
    """Run a session and return its first output; see `outputs_of_session`."""
    return outputs_of_session(session, inputs, shape)[0]


def outputs_of_session(
    session: ort.InferenceSession, inputs: Sequence[np.ndarray], shape: Sequence[int] | None = None
) -> list[np.ndarray]:
    """Run a session and return its outputs.

    A bfloat16 output needs its `shape`, since ONNX Runtime's Python can't allocate it; None will do
    for a call that is to be refused.
    """
    names = [i.name for i in session.get_inputs()]
    if all(v.dtype.name != "bfloat16" for v in inputs):
        return session.run(None, dict(zip(names, inputs, strict=True)))
    binding = session.io_binding()
    ort_values = []
    for name, value in zip(names, inputs, strict=True):
        ort_values.append(ort_value(value))
        binding.bind_ortvalue_input(name, ort_values[-1])
    (output,) = session.get_outputs()
    element_type = {"tensor(bfloat16)": "bfloat16", "tensor(float)": "float32"}.get(
        output.type, inputs[0].dtype.name
    )
    if shape is None:  # ONNX Runtime refuses one that doesn't have the sizes that are known
        shape = [size if isinstance(size, int) else 0 for size in output.shape]
    y = np.empty(shape, dtypes.TABLE[element_type].numpy)
    target = ort_value(y)
    binding.bind_ortvalue_output(output.name, target)
    session.run_with_iobinding(binding)
    return [y]


def ort_value(array: np.ndarray) -> ort.OrtValue:
    if array.dtype.name == "bfloat16":
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(
            array.view(np.uint16), TensorProto.BFLOAT16
        )
    return ort.OrtValue.ortvalue_from_numpy(array)


def output_shape(case: Case, inputs: Sequence[np.ndarray]) -> Sequence[int] | None:
    values = [
        v.tolist() if i.values else None for i, v in zip(case.operator.inputs, inputs, strict=False)
    ]
    shapes = [list(v.shape) for v in inputs]
    return (
        plain.infer(case.operator, case.operator.values(case.attributes), shapes, values) or [None]
    )[0]


def written_in_ort_format(proto: onnx.ModelProto, path: Path, with_onnx_ops: bool = True) -> Path:
    """Write a model in ONNX Runtime's own format and return its path."""
    options = onnx_ops.register(quiet(), proto) if with_onnx_ops else quiet()
    options.optimized_model_filepath = str(path)
    options.add_session_config_entry("session.save_model_format", "ORT")
    ort.InferenceSession(proto.SerializeToString(), options)
    return path
