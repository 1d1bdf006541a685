"""Kernels of several phases: each sees what all tiles of those before have written into the shared memory."""

import itertools
import shutil
from dataclasses import replace

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from support.backends import quiet
from support.phases import PHASES, PLANNED, sort
from support.processes import python
from support.selection import on_demand

import onnx_ops
from onnx_ops import OpError, functions
from onnx_ops.limits import MAX_PHASES

OPERATORS = {"with axes": sort.declaration, "with a plan": PLANNED}
SIZES = (0, 1, 300, 5000, 300_000)
pytestmark = on_demand


def bytes_of(size):
    return np.random.default_rng(size).integers(0, 256, size).astype(np.uint8)


def model(operator):
    infos = [helper.make_tensor_value_info("x", TensorProto.UINT8, ["N"])]
    kinds = {"y": TensorProto.UINT8, "order": TensorProto.INT64}
    outputs = [helper.make_tensor_value_info(name, kind, ["N"]) for name, kind in kinds.items()]
    node = helper.make_node(operator.name, ["x"], list(kinds), domain=operator.domain)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(operator.domain, 1)]
    graph = helper.make_graph([node], "g", infos, outputs)
    return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()


def check_sorted(x, outputs):
    order = np.argsort(x, kind="stable")
    for found, expected in zip(outputs, (x[order], order), strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


def options(threads):
    settings = quiet()
    settings.intra_op_num_threads = threads
    return settings


@pytest.mark.parametrize("backend", ["native", "extensions"])
def test_sessions(backend):
    """In a process of its own, since the first session of the extensions backend must know these operators."""
    python(f"import test_phases; test_phases.check_sessions({backend!r})")


def check_sessions(backend):
    operators = [*OPERATORS.values()]
    for operator, threads in itertools.product(operators, (1, 2)):
        session = onnx_ops.InferenceSession(model(operator), options(threads), backend=backend, operators=operators)
        for size in SIZES * 3:
            check_sorted(bytes_of(size), session.run(None, {"x": bytes_of(size)}))


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
def test_functions(operator):
    for size in SIZES * 3:
        for threads in (1, 2, 5):
            check_sorted(bytes_of(size), functions.call(operator, bytes_of(size), threads=threads))


@pytest.mark.long
@pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="there is no C compiler")
def test_a_library_built_ahead(tmp_path):
    path = tmp_path / "library"
    onnx_ops.build(path, operators=[*OPERATORS.values()], jobs=1)
    for operator in OPERATORS.values():
        settings = options(2)
        settings.add_session_config_entry(f"onnx_ops.register.{operator.domain}", "1")
        settings.register_custom_ops_library(str(path))
        session = ort.InferenceSession(model(operator), settings, ["CPUExecutionProvider"])
        for size in SIZES:
            check_sorted(bytes_of(size), session.run(None, {"x": bytes_of(size)}))


def changed(phases=PHASES, **more):
    """The operator with axes, with other phases, or another function of its work."""
    declared = sort.declaration
    kernels = (replace(declared.kernels[0], function=phases),)
    return replace(declared, kernels=kernels, plan=replace(declared.plan, **more))


def begin(x, index, count, workspace, shared, y):
    for k in range(len(x)):
        y[k] = x[k]


def add(x, index, count, workspace, shared, y):
    for k in range(len(x)):
        y[k] += 1


def double(x, index, count, workspace, shared, y):
    for k in range(len(x)):
        y[k] *= 2


ORDERS = {"AddAddDouble": (begin, add, add, double, double), "AddDoubleAdd": (begin, add, double, add, double)}


def test_a_function_that_is_several_phases():
    """Each order of the same phases has code of its own, also where the first and the last ones are alike."""
    for name, phases in ORDERS.items():
        operator = onnx_ops.operator(f"my.domain::{name}", inputs="x: int64", outputs="y: int64")(lambda x: x)
        operator.shape(lambda x: x)
        operator.kernel(phases)
        expected = np.arange(3)
        for phase in phases[1:]:
            expected = expected + 1 if phase is add else expected * 2
        np.testing.assert_array_equal(operator(np.arange(3)), expected)


TOO_MUCH = {
    2**40 + 1: r"shared = 1099511627777: must be a number of bytes in \[0, 2\*\*40\]",
    -1: r"shared = -1: must be a number of bytes in \[0, 2\*\*40\]",
}


@pytest.mark.parametrize("size", TOO_MUCH)
def test_too_much_shared_memory(size):
    operator = changed(shared=lambda x: size)
    session = onnx_ops.InferenceSession(model(operator), quiet(), operators=[operator])
    for run in (lambda x: session.run(None, {"x": x}), lambda x: functions.call(operator, x)):
        with pytest.raises(Exception, match=TOO_MUCH[size]):
            run(bytes_of(3))


def refuse(x, index, count, workspace, shared, y, order):
    onnx_ops.require(x[0] > 300, "first", x[0], "must be large")


def fail(x, index, count, workspace, shared, y, order):
    raise ValueError


def test_a_refusal_ends_the_call():
    """The phase after that, which would end with another message, doesn't run."""
    operator = changed((PHASES[0], refuse, fail))
    session = onnx_ops.InferenceSession(model(operator), quiet(), operators=[operator])
    for run in (lambda x: session.run(None, {"x": x}), lambda x: functions.call(operator, x)):
        with pytest.raises(Exception, match=r"first = 77: must be large"):
            run(np.full(5000, 77, np.uint8))


def test_declarations_that_are_refused():
    declared = sort.declaration
    with pytest.raises(OpError, match=r"my.domain.Sort: phases = 9: must be at most 8"):
        changed(PHASES * 3)
    assert MAX_PHASES == 8
    with pytest.raises(OpError, match=r"phases = 2: must be 3, as before"):
        replace(declared, kernels=(*declared.kernels, replace(declared.kernels[0], function=PHASES[:2])))
    with pytest.raises(OpError, match=r"loop = .*: can't be compiled.*|loop = a function.*: must return"):
        functions.call(changed(loop=lambda x: (x[0], 1)), bytes_of(3))

    @onnx_ops.operator("my.domain::Bound", inputs="x: uint8", outputs="y: uint8")
    def bound(x):
        return x

    def kernel(x, index, count, workspace, y):
        return len(x)

    def phase(x, index, count, workspace, shared, y):
        return len(x)

    bound.shape(lambda x: x, bound=True)
    with pytest.raises(OpError, match=r"phases = 2: can't be given for a rule with bound=True"):
        bound.kernel((phase, phase))
    bound.shape(lambda x: x)
    with pytest.raises(OpError, match=r"shared = given: is of kernels with several phases"):
        bound.kernel(kernel, shared=lambda x: 1)
    with pytest.raises(OpError, match=r"must be \(x, index, count, workspace, shared, y\)"):
        bound.kernel((kernel, kernel))
