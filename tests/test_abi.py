"""The compiled part of the native backend against an ONNX Runtime that is none: its C functions are these."""

# ruff: noqa: N802  the names are ONNX Runtime's

import ctypes as C
from types import SimpleNamespace

import numpy as np
import pytest
from cases import COL2IM

from onnx_ops.operator import Record
from onnx_ops.runtime import abi, native
from onnx_ops.runtime.compute import compute
from onnx_ops.runtime.execute import compiled
from onnx_ops.runtime.state import API, STATE

CASE = COL2IM[3]
FAILED, SLOW = 0xBAD, 0x510  # what stands for an OrtStatus*, of ONNX Runtime's and of our own
P = C.POINTER(C.c_void_p)
SIZES = C.POINTER(C.c_size_t)
PARAMETERS = {  # of each function, after which it returns a status
    "KernelContext_GetInput": (C.c_void_p, C.c_size_t, P),
    "KernelContext_GetOutput": (C.c_void_p, C.c_size_t, C.POINTER(C.c_int64), C.c_size_t, P),
    "GetTensorTypeAndShape": (C.c_void_p, P),
    "GetDimensionsCount": (C.c_void_p, SIZES),
    "GetDimensions": (C.c_void_p, C.POINTER(C.c_int64), C.c_size_t),
    "ReleaseTensorTypeAndShapeInfo": (C.c_void_p,),
    "GetTensorElementTypeAndShapeDataReference": (C.c_void_p, C.POINTER(C.c_int), P, SIZES),
    "GetTensorMutableData": (C.c_void_p, P),
    "KernelContext_ParallelFor": (C.c_void_p, C.c_void_p, C.c_size_t, C.c_size_t, C.c_void_p),
}


class Runtime:
    """An OrtKernelContext with arrays for inputs and output. An OrtValue is an array's position plus one.

    fails  the function that returns a failing status, if any
    old    whether it is one that lacks GetTensorElementTypeAndShapeDataReference
    """

    def __init__(self, inputs, output, fails=None, old=False):
        self.arrays, self.fails, self.old = [*inputs, output], fails, old
        self.shapes = [np.array(a.shape, np.int64) for a in self.arrays]
        self.infos, self.memory, self.failures = 0, {}, 0
        self.functions = {name: C.CFUNCTYPE(C.c_void_p, *PARAMETERS[name])(self.function(name)) for name in API}
        self.slow = C.CFUNCTYPE(C.c_void_p, *[C.c_void_p] * 3)(lambda *args: SLOW)
        self.malloc = C.CFUNCTYPE(C.c_void_p, C.c_size_t)(self.allocate)
        self.free = C.CFUNCTYPE(None, C.c_void_p)(lambda place: self.memory.pop(place or 0, None) and None)

    def allocate(self, size):
        made = C.create_string_buffer(max(size, 1))
        self.memory[C.addressof(made)] = made
        return C.addressof(made)

    def function(self, name):
        def call(*args):
            if name == self.fails:
                self.failures += 1
                return FAILED
            getattr(self, name)(*args)
            return None

        return call

    def KernelContext_GetInput(self, context, index, out):
        out[0] = index + 1

    def KernelContext_GetOutput(self, context, index, dims, rank, out):
        assert dims[:rank] == list(self.arrays[-1].shape)
        out[0] = len(self.arrays)

    def GetTensorTypeAndShape(self, value, out):
        self.infos += 1
        out[0] = value

    def ReleaseTensorTypeAndShapeInfo(self, info):
        self.infos -= 1

    def GetDimensionsCount(self, info, out):
        out[0] = len(self.shapes[info - 1])

    def GetDimensions(self, info, out, count):
        for a in range(count):
            out[a] = self.shapes[info - 1][a]

    def GetTensorElementTypeAndShapeDataReference(self, value, kind, shape, rank):
        shape[0], rank[0] = self.shapes[value - 1].ctypes.data, len(self.shapes[value - 1])

    def GetTensorMutableData(self, value, out):
        out[0] = self.arrays[value - 1].ctypes.data

    def KernelContext_ParallelFor(self, context, tile, total, batches, argument):
        for index in range(total):
            C.CFUNCTYPE(None, C.c_void_p, C.c_size_t)(tile)(argument, index)

    def run(self):
        """What compute returns for one run of CASE."""
        parameters = CASE.operator.resolved(CASE.attributes)
        plan, tile = compiled(CASE.operator, parameters, {"T": "float32", "I": "int64"})
        state = np.zeros(1, STATE)
        for name in API:
            lacks = self.old and name in abi.NEWER
            state[name] = 0 if lacks else C.cast(self.functions[name], C.c_void_p).value
        for name in ("malloc", "free", "slow"):
            state[name] = C.cast(getattr(self, name), C.c_void_p).value
        state["plan"], state["tile"], state["parameters"] = plan.address, tile.address, parameters.ctypes.data
        state["inputs"], state["values"] = 3, [[0, 8, 8, 0]]
        return compute().ctypes(state.ctypes.data, 1)


def large():
    """Inputs of CASE for many tiles, and room for the output."""
    x, image, block = CASE.inputs("float32")
    x = np.concatenate([x] * 300)
    return [x, image, block], np.full((600, 3, 12, 20), np.nan, np.float32)


@pytest.mark.parametrize("old", [False, True], ids=["new", "old"])
def test_it_runs(old):
    inputs, y = large()
    runtime = Runtime(inputs, y, old=old)
    assert not runtime.run()
    parameters = Record(CASE.operator.resolved(CASE.attributes)[0])
    np.testing.assert_allclose(y, CASE.operator.reference(parameters, *inputs), rtol=1e-6)
    assert (runtime.infos, runtime.memory) == (0, {})


NEW = ["KernelContext_GetInput", "KernelContext_GetOutput", "GetTensorElementTypeAndShapeDataReference",
       "GetTensorMutableData", "KernelContext_ParallelFor"]  # fmt: skip
OLD = [name for name in API if name not in (*abi.NEWER, "ReleaseTensorTypeAndShapeInfo")]


@pytest.mark.parametrize(("fails", "old"), [(n, False) for n in NEW] + [(n, True) for n in OLD])
def test_no_status_is_dropped(fails, old):
    """The run fails with that very status, once, and keeps nothing."""
    runtime = Runtime(*large(), fails, old)
    assert runtime.run() == FAILED
    assert runtime.failures == 1
    assert (runtime.infos, runtime.memory) == (0, {})


@pytest.mark.parametrize(
    ("release", "asked_for"), [("1.31.1", 24), ("1.24.0", 24), ("1.23.2", 23), ("1.20.0", 20), ("1.16.3", 16)]
)
def test_the_version_of_the_table_that_is_asked_for(release, asked_for):
    """The newest that has what is read; never one that ONNX Runtime doesn't know, of which it would complain."""
    asked, table = [], (C.c_void_p * 1000)(*range(1, 1001))
    get_api = C.CFUNCTYPE(C.c_void_p, C.c_uint32)(lambda version: asked.append(version) or C.addressof(table))
    text = C.create_string_buffer(release.encode())
    get_version = C.CFUNCTYPE(C.c_void_p)(lambda: C.addressof(text))
    base = (C.c_void_p * 2)(C.cast(get_api, C.c_void_p), C.cast(get_version, C.c_void_p))
    if asked_for < abi.API_VERSION:
        with pytest.raises(abi.Error, match=r"needs ONNX Runtime 1\.17 or newer"):
            abi.Api(C.addressof(base))
    else:
        api = abi.Api(C.addressof(base))
        newest = api.address("GetTensorElementTypeAndShapeDataReference")
        assert bool(newest) == (asked_for >= 24)
        assert api.address("GetDimensions") == abi.OFFSETS["GetDimensions"] // 8 + 1
    assert asked == [asked_for]


def test_what_python_took_is_given_back(monkeypatch):
    """Descriptions of types are released, also where reading them fails."""
    released = []

    def fail(info):
        raise abi.Error("no dimensions")

    api = SimpleNamespace(
        get=lambda name, *args, **kwargs: 7, dimensions=fail, raw=lambda name, info: released.append((name, info))
    )
    monkeypatch.setattr(native, "_api", api)
    with pytest.raises(abi.Error, match="no dimensions"):
        native.tensor(3)
    with pytest.raises(abi.Error, match="no dimensions"):
        native.known_input(CASE.operator.inputs[0], 3, 0)
    assert released == [("ReleaseTensorTypeAndShapeInfo", 7), ("ReleaseTypeInfo", 7)]


def test_a_domain_that_cannot_be_filled_is_given_back(monkeypatch):
    """And the next attempt fills a new one."""
    released, made = [], []

    def fail(operator, signature):
        raise abi.Error("no room")

    api = SimpleNamespace(
        CreateCustomOpDomain=lambda name, out: made.append(name),
        CustomOpDomain_Add=lambda domain, op: None,
        raw=lambda name, domain: released.append(name),
    )
    monkeypatch.setattr(native, "_api", api)
    monkeypatch.setattr(native, "custom_op", fail)
    monkeypatch.setattr(native, "_domains", {})
    for _ in range(2):
        with pytest.raises(abi.Error, match="no room"):
            native._domain("")
    assert (made, released, native._domains) == ([b""] * 2, ["ReleaseCustomOpDomain"] * 2, {})
