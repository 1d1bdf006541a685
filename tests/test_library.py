"""The C library against a simulated ONNX Runtime, whose functions are written in Python.

Each such runtime has its own copy of the library, because a library knows only one table of functions.
"""

# ruff: noqa: N802  the names are ONNX Runtime's

import codecs
import ctypes as C
import itertools
import os
import re
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.cases import COL2IM, IM2COL, VOLUMES, assert_close, operator, reference_of, type_of
from support.malformed import AT_CREATION, AT_RUN, BY_ELEMENTS, BY_TYPE
from support.own_functions import FUNCTIONS

import onnx_ops
from onnx_ops import dtypes
from onnx_ops.compiler import records
from onnx_ops.errors import OpError, errors_of
from onnx_ops.limits import LINE, MAX_RANK, MAX_TILES
from onnx_ops.operators import OPERATORS
from onnx_ops.runtime import bodies, execute, library, native, table

COMPILER = shutil.which("cc") or shutil.which("gcc")
FLAGS = "ONNX_OPS_TEST_FLAGS"  # environment variable: flags of the compiler, to test another build of the library
SOURCES = Path(onnx_ops.__file__).parent / "native"
COPIES = itertools.count()
pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="its compilers take other flags"),
    pytest.mark.skipif(COMPILER is None, reason="there is no C compiler"),
]
# This build counts the library's allocations and fills them with garbage.
COUNTED_H = """
#include <stdlib.h>
void *counted_malloc(size_t), *counted_calloc(size_t, size_t), *counted_realloc(void *, size_t), counted_free(void *);
#define malloc counted_malloc
#define calloc counted_calloc
#define realloc counted_realloc
#define free counted_free
"""
COUNTED_C = """
#undef malloc
#undef calloc
#undef realloc
#undef free
#include <string.h>
__attribute__((visibility("default"))) long counted[4]; /* in use, asked for so far, the first and the last that fail */
static int fails(void) { return counted[1]++, counted[2] <= counted[1] && counted[1] <= counted[3]; }
static void *count(void *made, size_t size, int byte) {
    if (fails() || !made) return free(made), NULL;
    counted[0]++;
    return memset(made, byte, size);
}
void *counted_malloc(size_t size) { return count(malloc(size), size, 0xA5); }
void *counted_calloc(size_t number, size_t size) { return count(malloc(number * size), number * size, 0); }
void *counted_realloc(void *made, size_t size) {
    return !made ? counted_malloc(size) : fails() ? NULL : realloc(made, size);
}
void counted_free(void *made) { counted[0] -= made != NULL, free(made); }
"""
HANDLE, PLACE, TEXT, TEXTS = C.c_void_p, C.POINTER(C.c_void_p), C.c_char_p, C.POINTER(C.c_char_p)
SIZE, SIZES, NUMBERS, INT, INTS = C.c_size_t, C.POINTER(C.c_size_t), C.POINTER(C.c_int64), C.c_int, C.POINTER(C.c_int)
FLOATS = C.POINTER(C.c_float)
TILE = C.CFUNCTYPE(None, HANDLE, SIZE)
ORT_H = (SOURCES / "ort.h").read_text()
OFFSETS = {name: int(at) for name, at in re.findall(r"#define (\w+)\s+(?:\\\s+)?API\((\d+),", ORT_H)}
CANNOT_FAIL = {"CreateStatus", *(name for name in OFFSETS if name.startswith("Release"))}
CustomOp = table.structure("CustomOp", version=C.c_uint32, functions=HANDLE * 25)
GET_NAME, GET_INPUT_TYPE, GET_INPUT_COUNT, GET_OUTPUT_TYPE, DESTROY = 1, 3, 4, 5, 8  # of its functions
CREATE, COMPUTE, INFER = 16, 17, 18
OPTIONS, INFO, CONTEXT, ALLOCATOR = 0x100, 0x200, 0x300, 0x400
FAILURE = "failed as it was told to"


@dataclass
class Node:
    """A node of a model.

    inputs        arrays; None for an optional input that is absent
    constants     positions of the inputs that are constant
    known_shapes  the shapes that the model states for inputs; dimensions may be names or None; default: the real shapes
    """

    operator: object
    inputs: list
    attributes: dict
    name: bytes = b"the_node"
    constants: tuple = ()
    known_shapes: tuple | None = None

    def expected(self):
        """The expected outputs."""
        if self.operator.is_wide:
            return [reference_of(self.operator, self.attributes, self.inputs)]
        return execute.compute_reference(self.operator, self.operator.values(self.attributes), self.inputs)

    def info(self, k):
        if self.inputs[k] is None:
            return SimpleNamespace(type=0, shape=[])
        shape = self.inputs[k].shape if self.known_shapes is None else self.known_shapes[k]
        return SimpleNamespace(type=type_of(self.inputs[k].dtype), shape=list(shape))


class AbsentError(Exception):
    """Something is absent, for which ONNX Runtime returns a failing status."""


class Runtime:
    """A simulated ONNX Runtime of this release. It hands out handles: numbers, which `things` maps to objects.

    calls     the names of called functions that can fail
    in_use    the number of the library's allocations at each call
    failure   the status of the call that was made to fail
    taken     handles that must be given back
    mistakes  exceptions that wrong calls of the library raise
    threads   the number of threads that run tiles
    domains   {handle: (name, operators)} of all domains
    entries   the entries of the options
    outputs   {position: output of the last run}
    inferred  {position: type and shape that were inferred for an output}
    own       operators of one's own, which each registration adds
    """

    threads = 4

    def __init__(self, path, release="1.31.1", operators=OPERATORS, own=FUNCTIONS):
        copy = path.with_name(f"copy_{next(COPIES)}.so")
        shutil.copy(path, copy)
        self.library = C.CDLL(str(copy))
        if FLAGS not in os.environ:  # sanitizers look there for what they report
            copy.unlink()
        self.library.RegisterCustomOps.restype = HANDLE
        library.describe(self.library)
        self.counted = (C.c_long * 4).in_dll(self.library, "counted")
        rows = [table.operator(each, list(each.signatures()), number) for number, each in enumerate(operators)]
        self.table = table.Table(table.array(table.Operator, rows), len(rows))
        filled = table.Table.in_dll(self.library, "onnx_ops_table")
        filled.operators, filled.operator_count = self.table.operators, self.table.operator_count
        self.python = table.Python.in_dll(self.library, "onnx_ops_python")
        self.python.compile, self.python.plan = native.compile_function, native.plan
        self.python.run = native.run_body
        self.rows = []
        self.add(*own)

        self.api, self.versions_asked_for, self.release = (HANDLE * 500)(), [], C.create_string_buffer(release.encode())
        get_api = C.CFUNCTYPE(HANDLE, C.c_uint32)(
            lambda version: self.versions_asked_for.append(version) or C.addressof(self.api)
        )
        get_version = C.CFUNCTYPE(HANDLE)(lambda: C.addressof(self.release))
        self.base = (HANDLE * 2)(C.cast(get_api, HANDLE), C.cast(get_version, HANDLE))
        self.functions = [get_api, get_version]
        for name, offset in OFFSETS.items():
            types = getattr(self, name).__annotations__.values()
            returned = None if name.startswith("Release") else HANDLE
            self.functions.append(C.CFUNCTYPE(returned, *types)(partial(self.call, name)))
            self.api[offset // 8] = C.cast(self.functions[-1], HANDLE)
        self.handles, self.things, self.alive, self.domains = itertools.count(0x1000, 16), {}, [], {}
        self.taken, self.mistakes, self.kernel = [], [], None

    def call(self, name, *args):
        if name not in CANNOT_FAIL:
            self.calls.append(name)
            self.in_use.append(self.counted[0])
            if len(self.calls) == self.fails:
                self.failure = self.take((1, FAILURE))
                return self.failure
        try:
            return getattr(self, name)(*args)
        except AbsentError:
            return self.take((1, "there is none"))
        except Exception as error:
            self.mistakes.append((name, args, error))
            return self.take((1, "a mistake"))

    def hand(self, thing):
        handle = next(self.handles)
        self.things[handle] = thing
        return handle

    def take(self, thing):
        self.taken.append(self.hand(thing))
        return self.taken[-1]

    def give_back(self, handle: HANDLE):
        self.taken.remove(handle)

    def add(self, *operators):
        """Add operators of one's own, which this copy of the library alone knows."""
        self.rows += [library.own_row(replace(operator)) for operator in operators]
        self.own = table.array(HANDLE, list(map(C.addressof, self.rows)))

    def rows_of_all(self):
        return [*self.table.operators[: self.table.operator_count], *self.rows]

    def message_of(self, status):
        """Release a status and return its message, which is empty for success."""
        if status is None:
            return ""
        self.give_back(status)
        return self.things[status][1]

    def begin(self, fails=0, lacks=0, more=0):
        """Begin a step in which call number `fails` fails, or the allocations from `lacks` to `lacks + more` do."""
        self.calls, self.fails, self.failure, self.outputs, self.inferred = [], fails, None, {}, {}
        self.in_use = []
        self.counted[1:] = [0, lacks, lacks and lacks + more]
        self.things.clear()
        self.alive.clear()

    # The steps of a session. All of these return a status.

    def within(self, function, *args):
        """Call a function of this library, which Python uses meanwhile."""
        with mock.patch.object(library, "load", return_value=self.library):
            return function(*args)

    def register(self, node=None, domains=tuple({o.domain for o in OPERATORS})):
        """Register on new options, which ask for these domains or, if None, on the same options as before."""
        if domains is not None:
            self.entries, self.on_options = {registering(d): "1" for d in domains}, []
        self.library.onnx_ops_add(self.own, SIZE(len(self.rows)))
        return self.within(self.library.RegisterCustomOps, HANDLE(OPTIONS), self.base)

    def create(self, node):
        """Make a kernel with the operator for these types of inputs."""
        self.node, kernel = node, HANDLE()
        self.op = next(op for op in self.operators(node.operator.domain) if takes(op, node))
        make = function(self.op, CREATE, HANDLE, HANDLE, HANDLE, PLACE)
        status = self.within(make, C.byref(self.op), self.api, INFO, kernel)
        self.kernel = kernel.value
        return status

    def run(self, node):
        return self.within(function(self.op, COMPUTE, HANDLE, HANDLE), self.kernel, CONTEXT)

    def infer(self, node):
        return self.within(function(self.op, INFER, HANDLE, HANDLE), C.byref(self.op), CONTEXT)

    def destroy(self):
        function(self.op, DESTROY, None)(self.kernel)
        self.kernel = None

    def registered(self):
        """Return (domain, number of its operators) for the domains of the options."""
        return sorted((name, len(operators)) for name, operators in map(self.domains.get, self.on_options))

    def operators(self, domain):
        """Return the operators of a domain of the options."""
        return next(ops for name, ops in map(self.domains.get, self.on_options) if name == domain)

    # The functions of the table, with the types of their parameters.

    def CreateStatus(self, code: INT, message: TEXT):
        return self.take((code, message.decode()))

    ReleaseStatus = ReleaseValue = ReleaseTypeInfo = ReleaseTensorTypeAndShapeInfo = give_back

    def CreateCustomOpDomain(self, domain: TEXT, out: PLACE):
        out[0] = self.hand(domain)
        self.domains[out[0]] = domain.decode(), []

    def CustomOpDomain_Add(self, domain: HANDLE, op: C.POINTER(CustomOp)):
        self.domains[domain][1].append(op.contents)

    def ReleaseCustomOpDomain(self, domain: HANDLE):
        assert domain not in self.on_options
        del self.domains[domain]

    def AddCustomOpDomain(self, options: HANDLE, domain: HANDLE):
        assert options == OPTIONS
        assert domain in self.domains
        self.on_options.append(domain)

    def HasSessionConfigEntry(self, options: HANDLE, key: TEXT, out: INTS):
        out[0] = key.decode() in self.entries

    def AddSessionConfigEntry(self, options: HANDLE, key: TEXT, value: TEXT):
        self.entries[key.decode()] = value.decode()

    def GetSessionConfigEntry(self, options: HANDLE, key: TEXT, out: HANDLE, size: SIZES):
        self.copied(self.entries[key.decode()].encode(), out, size)

    def GetAllocatorWithDefaultOptions(self, out: PLACE):
        out[0] = ALLOCATOR

    def copied(self, text, out, size):
        if out:
            assert size[0] > len(text)
            C.memmove(out, text + b"\0", len(text) + 1)
        size[0] = len(text) + 1

    def KernelInfo_GetNodeName(self, info: HANDLE, out: HANDLE, size: SIZES):
        self.copied(self.node.name, out, size)

    def KernelInfo_GetInputCount(self, info: HANDLE, out: SIZES):
        out[0] = len(self.node.inputs)

    KernelContext_GetInputCount = ShapeInferContext_GetInputCount = KernelInfo_GetInputCount

    def KernelInfo_GetInputName(self, info: HANDLE, index: SIZE, out: HANDLE, size: SIZES):
        self.copied(b"" if self.node.inputs[index] is None else b"the_input", out, size)

    def attribute(self, name, *kinds):
        value = self.node.attributes.get(name.decode())
        if not isinstance(value, kinds):
            raise AbsentError
        return value

    def KernelInfoGetAttribute_int64(self, info: HANDLE, name: TEXT, out: NUMBERS):
        out[0] = self.attribute(name, int)

    def KernelInfoGetAttribute_float(self, info: HANDLE, name: TEXT, out: FLOATS):
        out[0] = self.attribute(name, float)

    def KernelInfoGetAttribute_tensor(self, info: HANDLE, name: TEXT, allocator: HANDLE, out: PLACE):
        assert allocator == ALLOCATOR
        out[0] = self.take(self.attribute(name, np.ndarray))

    def KernelInfoGetAttribute_string(self, info: HANDLE, name: TEXT, out: HANDLE, size: SIZES):
        text = self.attribute(name, str, bytes)
        self.copied(text.encode() if isinstance(text, str) else text, out, size)

    def listed(self, name, kind, out, size):
        """Write a list to `out`; an attribute of another kind counts as an empty list."""
        values = self.attribute(name, *KINDS)
        values = values if isinstance(values, list) and all(isinstance(v, kind) for v in values) else []
        for k, value in enumerate(values if out else []):
            assert k < size[0]
            out[k] = value
        size[0] = len(values)

    def KernelInfoGetAttributeArray_int64(self, info: HANDLE, name: TEXT, out: NUMBERS, size: SIZES):
        self.listed(name, int, out, size)

    def KernelInfoGetAttributeArray_float(self, info: HANDLE, name: TEXT, out: FLOATS, size: SIZES):
        self.listed(name, float, out, size)

    def KernelInfoGetConstantInput_tensor(self, info: HANDLE, index: SIZE, is_constant: INTS, out: PLACE):
        is_constant[0] = index in self.node.constants
        out[0] = self.hand(self.node.inputs[index]) if is_constant[0] else None

    def KernelInfo_GetInputTypeInfo(self, info: HANDLE, index: SIZE, out: PLACE):
        out[0] = self.take(self.node.info(index))

    def CastTypeInfoToTensorInfo(self, info: HANDLE, out: PLACE):
        out[0] = info

    def ShapeInferContext_GetInputTypeShape(self, context: HANDLE, index: SIZE, out: PLACE):
        out[0] = self.hand(self.node.info(index))

    def ShapeInferContext_GetAttribute(self, context: HANDLE, name: TEXT, out: PLACE):
        out[0] = self.hand(self.attribute(name, *KINDS))

    def ReadOpAttr(self, attribute: HANDLE, kind: INT, out: HANDLE, room: SIZE, size: SIZES):
        """Write an attribute to `out` as bytes; a list of another kind counts as empty."""
        value, (type, *is_list) = self.things[attribute], OP_ATTRIBUTES[kind]
        values = value if isinstance(value, list) else [value]
        if type is not str:
            values = [v for v in values if isinstance(v, type)]
            if not (values or is_list):
                raise AbsentError
        content = value.encode() + b"\0" if type is str else np.array(values, PLAIN[type]).tobytes()
        if len(content) > room:
            raise AbsentError
        C.memmove(out, content, len(content))
        size[0] = len(content)

    def GetTensorElementType(self, info: HANDLE, out: INTS):
        out[0] = self.things[info].type

    def GetDimensionsCount(self, info: HANDLE, out: SIZES):
        out[0] = len(self.things[info].shape)

    def GetDimensions(self, info: HANDLE, out: NUMBERS, count: SIZE):
        assert count <= MAX_RANK
        for a, dimension in zip(range(count), self.things[info].shape, strict=True):
            out[a] = dimension if isinstance(dimension, int) else -1

    def GetSymbolicDimensions(self, info: HANDLE, out: TEXTS, count: SIZE):
        assert count <= MAX_RANK
        for a, dimension in zip(range(count), self.things[info].shape, strict=True):
            self.alive.append(dimension.encode() if isinstance(dimension, str) else b"")
            out[a] = self.alive[-1]

    def CreateTensorTypeAndShapeInfo(self, out: PLACE):
        out[0] = self.take(SimpleNamespace(type=0, shape=[]))

    def SetTensorElementType(self, info: HANDLE, kind: INT):
        self.things[info].type = kind

    def SetDimensions(self, info: HANDLE, dims: NUMBERS, count: SIZE):
        self.things[info].shape = dims[:count]

    def SetSymbolicDimensions(self, info: HANDLE, names: TEXTS, count: SIZE):
        pairs = zip(self.things[info].shape, names[:count], strict=True)
        self.things[info].shape = [name.decode() if size == -1 else size for size, name in pairs]

    def ShapeInferContext_SetOutputTypeShape(self, context: HANDLE, index: SIZE, info: HANDLE):
        self.inferred[index] = self.things[info]

    def KernelContext_GetInput(self, context: HANDLE, index: SIZE, out: PLACE):
        value = self.node.inputs[index]
        out[0] = None if value is None else self.hand(value)

    def KernelContext_GetOutput(self, context: HANDLE, index: SIZE, dims: NUMBERS, rank: SIZE, out: PLACE):
        kind = function(self.op, GET_OUTPUT_TYPE, INT, SIZE)(C.byref(self.op), index)
        self.outputs[index] = np.full(dims[:rank], -77, next(t.numpy for t in dtypes.TABLE.values() if t.onnx == kind))
        out[0] = self.hand(self.outputs[index])

    def GetTensorMutableData(self, value: HANDLE, out: PLACE):
        out[0] = self.things[value].ctypes.data

    def GetTensorTypeAndShape(self, value: HANDLE, out: PLACE):
        array = self.things[value]
        out[0] = self.take(SimpleNamespace(type=type_of(array.dtype), shape=list(array.shape)))

    def GetTensorElementTypeAndShapeDataReference(self, value: HANDLE, kind: INTS, shape: PLACE, rank: SIZES):
        array = self.things[value]
        self.alive.append(np.array(array.shape, np.int64))
        kind[0], shape[0], rank[0] = type_of(array.dtype), self.alive[-1].ctypes.data, array.ndim

    def KernelContext_ParallelFor(self, context: HANDLE, tile: TILE, total: SIZE, batches: SIZE, argument: HANDLE):
        with ThreadPoolExecutor(self.threads) as pool:
            list(pool.map(partial(tile, argument), range(total)))

    def GetStringTensorDataLength(self, value: HANDLE, out: SIZES):
        out[0] = sum(len(text.encode()) for text in self.things[value].flat)

    def GetStringTensorContent(self, value: HANDLE, out: HANDLE, size: SIZE, offsets: SIZES, count: SIZE):
        content = [text.encode() for text in self.things[value].flat]
        assert (size, count) == (len(b"".join(content)), len(content))
        C.memmove(out, b"".join(content), size)
        for k in range(count):
            offsets[k] = len(b"".join(content[:k]))

    def GetResizedStringTensorElementBuffer(self, value: HANDLE, index: SIZE, size: SIZE, out: PLACE):
        text = self.things[value].flat[index] = SimpleNamespace(content=C.create_string_buffer(size + 1), size=size)
        out[0] = C.addressof(text.content)


def function(op, index, returned, *types):
    """Return a function of an operator; its first parameter is the operator or a kernel."""
    return C.CFUNCTYPE(returned, HANDLE, *types)(op.functions[index])


def described(op):
    """Return the name of an operator and the types of its inputs."""
    count, type_at = function(op, GET_INPUT_COUNT, SIZE), function(op, GET_INPUT_TYPE, INT, SIZE)
    types = [type_at(C.byref(op), k) for k in range(count(C.byref(op)))]
    return function(op, GET_NAME, TEXT)(C.byref(op)).decode(), types


def takes(op, node):
    """Return whether an operator runs nodes with these types of inputs."""
    name, types = described(op)
    fits = (v is None or type_of(v.dtype) == t for t, v in zip(types, node.inputs, strict=False))
    return name == node.operator.name and all(fits)


def registering(domain):
    """Return the entry of options that asks for a domain."""
    return f"onnx_ops.register.{domain or 'ai.onnx'}"


def node(case, *dtypes, **settings):
    return Node(case.operator, case.inputs(*(dtypes or ["float32"])), case.attributes, **settings)


KINDS = int, float, str, bytes, list, np.ndarray  # of attributes
# ONNX Runtime's numbers for the kinds of attributes; and the types of numbers in memory.
OP_ATTRIBUTES = {1: (int,), 2: (int, list), 3: (float,), 4: (float, list), 5: (str,)}
PLAIN = {int: np.int64, float: np.float32}
RELEASES = {"new": "1.31.1", "old": "1.23.2"}
MANY_TILES = node(replace(COL2IM[2], shapes=((2400, 36, 15), *COL2IM[2].shapes[1:])))  # MAX_TILES
BLOCKS = node(COL2IM[7], known_shapes=((), (), ()))
GRID = node(VOLUMES[6])
CONSTANT = node(COL2IM[0], constants=(0, 1, 2))
BLEND, POSITIVE, FILL, JOIN, EITHER = FUNCTIONS
NUMBERS_OF_OWN = np.arange(-10_000, 10_000, dtype=np.float32) / 2
MANY = Node(BLEND, [NUMBERS_OF_OWN, np.array([0.5], np.float32)], {"weights": [0.5, 1.0], "mode": "subtract"})
HALVES = Node(BLEND, [np.arange(100, dtype=np.float16), None], {"weights": [2.0], "factor": 0.5, "shifts": [1]})
LONG = replace(MANY, attributes={"weights": [0.25] * 200, "shifts": [1] * 1000})
FILLED = Node(FILL, [NUMBERS_OF_OWN[:7], np.array([3, 4])], {}, constants=(1,))
JOINED = Node(JOIN, [np.array(texts, object) for texts in (["a", "bc"], ["", "d"], ["\xe9", "f"])], {
    "order": np.array([2, 0, 1]), "between": ", "
})  # fmt: skip
JOINED_AGAIN = replace(JOINED, attributes={"order": np.array([2, 0, 1] * 100)})
SCENARIOS = {  # a node, and the step that is tried; the steps before it succeed
    "creation with lists": (BLOCKS, "create"),
    "creation with a list that is required": (node(IM2COL[2], known_shapes=((),)), "create"),
    "creation with strings and a number": (GRID, "create"),
    "creation for constants": (CONSTANT, "create"),
    "creation for tensors of strings": (node(COL2IM[0], "string"), "create"),
    "inference": (
        node(VOLUMES[0], "float64", "float32", known_shapes=(("N", 3, None, None), ("M", None, "W", 2))),
        "infer",
    ),
    "run": (MANY_TILES, "run"),
    "run without a workspace": (node(IM2COL[2]), "run"),
    "run with constants": (node(COL2IM[0], constants=(1, 2)), "run"),
    "run with a constant result": (CONSTANT, "run"),
    "run with tensors of strings": (node(COL2IM[0], "string"), "run"),
    "creation of a function": (MANY, "create"),
    "creation of a function that lacks an input": (HALVES, "create"),
    "creation of a function with long lists": (LONG, "create"),
    "creation of a function with a rule in Python": (FILLED, "create"),
    "creation of a function in Python": (JOINED, "create"),
    "creation of a function in Python with a large tensor": (JOINED_AGAIN, "create"),
    "inference of a function": (MANY, "infer"),
    "run of a function": (MANY, "run"),
    "run of a function on halves": (HALVES, "run"),
    "run of a function without its last input": (replace(HALVES, inputs=HALVES.inputs[:1]), "run"),
    "run of a function with a bound": (Node(POSITIVE, [NUMBERS_OF_OWN], {}), "run"),
    "run of a function in Python": (FILLED, "run"),
    "run of a function in Python on strings": (JOINED, "run"),
}
RUNS = [name for name, (_, step) in SCENARIOS.items() if step == "run"]
AT_WORKSPACE = records.GEOMETRY + MANY_TILES.operator.geometry_dtype.fields["workspace"][1]  # its size, in a call
FEW = [o for o in OPERATORS if o.title in ("onnx_ops.AffineGrid", "org.openvinotoolkit.Col2Im")]


def build(directory, *flags):
    path = directory / "library.so"
    command = [COMPILER, "-std=c11", "-fPIC", "-shared", "-fvisibility=hidden", "-o", path, *flags]
    subprocess.run([*command, *SOURCES.glob("*.c")], check=True)
    return path


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    """A function that makes a Runtime."""
    directory = tmp_path_factory.mktemp("library")
    (directory / "counted.h").write_text(COUNTED_H)
    (directory / "counted.c").write_text(COUNTED_C)
    counted = ["-include", directory / "counted.h", directory / "counted.c"]
    return partial(Runtime, build(directory, *counted, *os.environ.get(FLAGS, "").split()))


@pytest.fixture(scope="module", params=RELEASES)
def runtime(request, make):
    return make(RELEASES[request.param])


@pytest.fixture(scope="module")
def new(make):
    return make()


@contextmanager
def prepared(runtime, node, step):
    """Yield a function that tries this step of the node and returns its status. At the end all must be released."""
    runtime.taken, runtime.mistakes = [], []
    runtime.begin()
    assert runtime.register() is None
    in_use = runtime.counted[0]
    if step != "create":
        assert runtime.create(node) is None

    def attempt(**limits):
        if step == "create" and runtime.kernel:
            runtime.destroy()
        runtime.begin(**limits)
        return getattr(runtime, step)(node)

    yield attempt
    runtime.destroy()
    assert (runtime.mistakes, runtime.taken, runtime.counted[0]) == ([], [], in_use)


def assert_outputs(runtime, node):
    """Assert that the outputs of the last run are the expected ones; floats may differ by their tolerance."""
    expected = node.expected()
    assert sorted(runtime.outputs) == list(range(len(expected)))
    for k, array in enumerate(expected):
        if array.dtype == object:
            texts = [text.content.raw[: text.size].decode() for text in runtime.outputs[k].flat]
            runtime.outputs[k] = np.array(texts, object).reshape(array.shape)
        assert_close(runtime.outputs[k], array, dtypes.name_of(array if not node.operator.is_wide else node.inputs[0]))


@pytest.mark.parametrize("name", RUNS)
def test_runs(runtime, name):
    node, step = SCENARIOS[name]
    with prepared(runtime, node, step) as attempt:
        for _ in range(2):
            assert attempt() is None
            assert_outputs(runtime, node)
    if name in ("run", "run of a function"):
        assert "KernelContext_ParallelFor" in runtime.calls
        assert ("GetTensorTypeAndShape" in runtime.calls) == (runtime.versions_asked_for == [23])
    if node is CONSTANT:
        assert runtime.calls == ["KernelContext_GetOutput", "GetTensorMutableData"]


def test_inference(new):
    """An unknown dimension gets a name that is used nowhere else."""
    node, step = SCENARIOS["inference"]
    with prepared(new, node, step) as attempt:
        assert attempt() is None
        first = new.inferred[0]
        assert first.type == node.info(0).type
        assert re.fullmatch(r"N 3 onnx_ops_[0-9a-f]+_\d+ W", " ".join(map(str, first.shape)))
        assert attempt() is None
        assert new.inferred[0].shape[2] != first.shape[2]


INFERRED = {  # a node, and the (type, shape) that are inferred for its outputs
    "all is known": (MANY, {0: (1, [20_000]), 1: (7, [1])}),
    "an input is absent": (HALVES, {0: (10, [100]), 1: (7, [1])}),
    "the last input is not there": (replace(HALVES, inputs=HALVES.inputs[:1]), {0: (10, [100]), 1: (7, [1])}),
    "nothing tells the type": (Node(EITHER, [np.array([1])], {}), {0: (0, [3])}),
    "a dimension has a name": (replace(MANY, known_shapes=(("N",), (1,))), {}),
    "a dimension is unknown": (replace(MANY, known_shapes=((None,), (1,))), {}),
    "the rule refuses": (replace(MANY, known_shapes=((1,), (1,))), {}),
    "the rule gets values": (FILLED, {}),
    "the rule states a bound": (Node(POSITIVE, [NUMBERS_OF_OWN], {}), {}),
    "there is no rule": (JOINED, {}),
    "an attribute is of another kind": (replace(MANY, attributes={"weights": 1}), {}),
    "an attribute is too long": (replace(MANY, attributes={"weights": [1.0], "shifts": [1] * 1000}), {}),
    "an attribute that is required is not there": (replace(MANY, attributes={}), {}),
}


@pytest.mark.parametrize("name", INFERRED)
def test_inference_of_functions(new, name):
    """All outputs are inferred or none, without an error: a session raises it when it makes the kernel."""
    node, expected = INFERRED[name]
    with prepared(new, {BLEND: MANY, JOIN: JOINED}.get(node.operator, node), "infer") as attempt:
        assert attempt() is None
        new.begin()
        new.node = node
        assert new.infer(node) is None
        assert {k: (info.type, info.shape) for k, info in new.inferred.items()} == expected


@pytest.mark.parametrize("key", RELEASES)
def test_every_function_is_called(make, key):
    """The scenarios call every function, so that tests of all their calls cover all functions."""
    runtime = make(RELEASES[key])
    runtime.begin()
    assert runtime.register() is None
    called = set(runtime.calls)
    for node, step in SCENARIOS.values():
        with prepared(runtime, node, step) as attempt:
            assert attempt() is None
            called.update(runtime.calls)
    others = {"new": "GetTensorTypeAndShape", "old": "GetTensorElementTypeAndShapeDataReference"}
    assert called == OFFSETS.keys() - CANNOT_FAIL - {others[key]}


UNREADABLE = re.compile(r"|.*: \w+ = (None: must be given|\(not of kind \w+\): must be an? .*)")


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_status_is_dropped(runtime, name):
    """Whichever call fails, its status is returned at once. For an attribute, failure means that it is absent, or
    that nothing is inferred.
    """
    with prepared(runtime, *SCENARIOS[name]) as attempt:
        assert attempt() is None
        calls = runtime.calls
        for n, called in enumerate(calls, 1):
            status = attempt(fails=n)
            if called.startswith("KernelInfoGetAttribute"):
                assert runtime.failure not in runtime.taken
                assert UNREADABLE.fullmatch(runtime.message_of(status))
            elif called in ("ShapeInferContext_GetAttribute", "ReadOpAttr"):
                assert (status, runtime.failure in runtime.taken) == (None, False)
            else:
                assert (status, runtime.taken, runtime.calls) == (runtime.failure, [status], calls[:n])
                runtime.message_of(status)
            assert runtime.taken == []
        assert attempt() is None


@pytest.mark.parametrize("limit", ["fails", "lacks"])
def test_a_registration_that_fails(make, limit):
    """A domain that options don't take is released, the others stay; new options get all domains."""
    make = partial(make, operators=FEW, own=FUNCTIONS[:2])
    whole, declared = make(), [*FEW, *FUNCTIONS[:2]]
    whole.begin()
    assert whole.register() is None
    filled = whole.registered()
    assert filled == sorted(
        (domain, sum(len(list(o.signatures())) for o in declared if o.domain == domain))
        for domain in {o.domain for o in declared}
    )
    in_use = whole.counted[0]
    for n in range(1, 1 + (len(whole.calls) if limit == "fails" else whole.counted[1])):
        runtime = make()
        runtime.begin(**{limit: n})
        status = runtime.register()
        if limit == "fails":
            assert (status, runtime.calls) == (runtime.failure, whole.calls[:n])
        assert runtime.message_of(status) in {"fails": [FAILURE], "lacks": NO_ROOM_FOR_DOMAINS}[limit]
        kept, left = set(runtime.on_options), runtime.counted[0]
        assert runtime.domains.keys() == kept
        known_operators = sum(row.customs is not None for row in runtime.rows_of_all())
        runtime.begin()
        assert runtime.register() is None
        assert (runtime.mistakes, runtime.taken) == ([], [])
        assert runtime.domains.keys() == kept | set(runtime.on_options)
        assert runtime.registered() == filled
        # The structure that ONNX Runtime knows an operator by is made once.
        assert runtime.counted[0] == left + in_use - known_operators


def test_what_a_registration_that_fails_leaves(make):
    """It leaves a domain's record and list of operators, and the structures that ONNX Runtime knows operators by."""
    whole = make(operators=FEW, own=FUNCTIONS[:2])
    whole.begin()
    assert whole.register() is None
    left = []
    for n in range(1, 1 + whole.counted[1]):
        runtime = make(operators=FEW, own=FUNCTIONS[:2])
        runtime.begin(lacks=n)
        runtime.message_of(runtime.register())
        left.append(runtime.counted[0])
    assert left == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9]  # the last domain has a second operator, whose list only grows
    left, freed = [], []
    for n, called in enumerate(whole.calls, 1):
        runtime = make(operators=FEW, own=FUNCTIONS[:2])
        runtime.begin(fails=n)
        runtime.message_of(runtime.register())
        left.append(runtime.counted[0])
        freed.append(called in ("CreateCustomOpDomain", "AddCustomOpDomain"))
    assert left == [used - free for used, free in zip(whole.in_use, freed, strict=True)]


def test_domains_of_options(make):
    """Options get each domain once, and com.microsoft only if they ask for it."""
    runtime, default, every = make(own=()), sorted(native.default_domains()), sorted({o.domain for o in OPERATORS})
    for domains, more, expected, new in (
        ((), [], default, default), (None, [], default, []), (every, [], every, every), ([""], [], [""], [""]),
        (None, ["com.microsoft"], ["", "com.microsoft"], ["com.microsoft"]),
    ):  # fmt: skip
        before = len(runtime.domains)
        runtime.begin()
        if more:
            runtime.entries.update({registering(domain): "1" for domain in more})
        assert runtime.register(domains=domains) is None
        assert sorted(runtime.domains[d][0] for d in runtime.on_options) == expected
        assert sorted(name for name, _ in list(runtime.domains.values())[before:]) == new
        count = sum(len(list(o.signatures())) for o in OPERATORS if o.domain in new)
        assert runtime.calls.count("CustomOpDomain_Add") == count
    assert (runtime.mistakes, runtime.taken) == ([], [])


def test_another_operator_of_the_same_name(make):
    """Options keep the operator that they have; another of its name is refused."""
    runtime = make(operators=FEW, own=(BLEND,))
    runtime.begin()
    assert runtime.register() is None
    before = runtime.registered()
    runtime.add(replace(BLEND))
    message = "test.own.Blend: the session's options have another operator of this name; use new options"
    assert runtime.message_of(runtime.register(domains=None)) == message
    assert runtime.registered() == before


@pytest.mark.parametrize(
    ("release", "asked_for"),
    [("1.31.1", 24), ("1.24.0", 24), ("1.24.0-dev", 24), ("1.23.2", 23), ("1.20.0", 20), ("1.17.0", 17)],
)
def test_the_version_of_the_table_that_is_asked_for(make, release, asked_for):
    """The library asks for the newest version that it reads, but for none that ONNX Runtime doesn't know."""
    runtime = make(release)
    for _ in range(2):
        runtime.begin()
        assert runtime.register() is None
    assert runtime.versions_asked_for == [asked_for]


@pytest.mark.parametrize("release", ["1.16.3", "1.9.0", "1", ""])
def test_releases_that_are_too_old(make, release):
    """The library asks for version 1 of the table, which all releases have, to make a status."""
    runtime = make(release)
    runtime.begin()
    assert runtime.message_of(runtime.register()) == "onnx_ops needs ONNX Runtime 1.17 or newer"
    assert (runtime.versions_asked_for, runtime.calls, runtime.taken) == ([1], [], [])


def replace_kernel(runtime, kernel):
    """Replace the kernel of MANY_TILES by a function of (address of the call, tile, address of its workspace)."""
    kernel_pointer = C.CFUNCTYPE(C.c_int64, HANDLE, C.c_int64, HANDLE)(kernel)
    row = runtime.table.operators[OPERATORS.index(MANY_TILES.operator)]
    for overload in row.overloads[: row.overload_count]:
        overload.kernels[0] = C.cast(kernel_pointer, HANDLE)
    runtime.functions.append(kernel_pointer)


@pytest.mark.parametrize("threads", [4, MAX_TILES])
def test_tiles_side_by_side_have_workspaces_of_their_own(make, threads):
    """There are as many workspaces as threads, each as large as the plan states, and in lines of its own."""
    runtime, calls, together = make(), [], threading.Barrier(threads, timeout=60)
    runtime.threads = threads

    def kernel(call, tile, workspace):
        size = C.c_int64.from_address(call + AT_WORKSPACE).value
        calls.append((tile, workspace, size))
        C.memset(workspace, 0x77, size)
        together.wait()
        return 0

    replace_kernel(runtime, kernel)
    with prepared(runtime, MANY_TILES, "run") as attempt:
        assert attempt() is None
    tiles, places, (size, *_) = zip(*calls, strict=True)
    assert sorted(tiles) == list(range(MAX_TILES))
    for k in range(0, MAX_TILES, threads):
        assert sorted(places[k : k + threads]) == list(range(min(places), max(places) + 1, size + -size % LINE))
    assert not any(place % LINE for place in places)


def test_a_tile_that_fails(make):
    """A constant result is then computed by the runs."""
    runtime = make()
    replace_kernel(runtime, lambda call, tile, workspace: 7 if tile == 0 else 0)
    with prepared(runtime, MANY_TILES, "run") as attempt:
        assert runtime.message_of(attempt()) == "Col2Im: compiled code has failed"
    with prepared(runtime, replace(MANY_TILES, constants=(0, 1, 2)), "run") as attempt:
        assert runtime.message_of(attempt()) == "Col2Im: compiled code has failed"


NO_ROOM_FOR_DOMAINS = ["onnx_ops: no room for a domain", "onnx_ops: no room for an operator"]
NO_NAME, NO_ATTRIBUTES = "onnx_ops: no room for a node's name", "onnx_ops: no room for attributes"
NO_ATTRIBUTE, NO_STATE = "onnx_ops: no room for an attribute", "onnx_ops: no room for a kernel's state"
NO_STRINGS = "onnx_ops: no room for the strings of an input"
NO_COPIES = "onnx_ops: no room for copies of what a kernel is given"
NO_WORKSPACE = "{}: workspace = N bytes: can't be allocated"
CREATION = [NO_NAME, "", NO_ATTRIBUTES, NO_STATE]
NO_ROOM = {  # the messages if each allocation in turn fails; empty if it was for a message that is not needed
    "creation with lists": CREATION,
    "creation with a list that is required": CREATION,
    "creation with strings and a number": CREATION,
    "creation for constants": [NO_NAME, "", NO_ATTRIBUTES, "", ""],
    "creation for tensors of strings": CREATION,
    "inference": ["", ""],
    "run": [NO_WORKSPACE.format("Col2Im")],
    "run without a workspace": [],
    "run with constants": [NO_WORKSPACE.format("Col2Im")],
    "run with a constant result": [],
    "run with tensors of strings": [NO_STRINGS],
    "creation of a function": CREATION,
    "creation of a function that lacks an input": CREATION,
    "creation of a function with long lists": [NO_NAME, "", NO_ATTRIBUTES, NO_ATTRIBUTE, NO_ATTRIBUTE, NO_STATE],
    "creation of a function with a rule in Python": CREATION,
    "creation of a function in Python": CREATION,
    "creation of a function in Python with a large tensor": [NO_NAME, "", NO_ATTRIBUTES, NO_ATTRIBUTE, NO_STATE],
    "inference of a function": ["", ""],
    "run of a function": [NO_WORKSPACE.format("test.own.Blend")],
    "run of a function on halves": [NO_COPIES, NO_WORKSPACE.format("test.own.Blend")],
    "run of a function without its last input": [NO_COPIES, NO_WORKSPACE.format("test.own.Blend")],
    "run of a function with a bound": [NO_COPIES],
    "run of a function in Python": [],
    "run of a function in Python on strings": [NO_STRINGS] * 3,
}


def without_room(runtime, node, step):
    """Return the messages if each allocation in turn fails."""
    with prepared(runtime, node, step) as attempt:
        runtime.message_of(attempt())
        turns = range(1, runtime.counted[1] + 1)
        for n in turns:  # and all that follow
            runtime.message_of(attempt(lacks=n, more=1000))
        return [re.sub(r"\d+ bytes", "N bytes", runtime.message_of(attempt(lacks=n))) for n in turns]


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_room(runtime, name):
    assert without_room(runtime, *SCENARIOS[name]) == NO_ROOM[name]


def test_no_room_for_messages(new):
    """The message leaves out a value that can't be shown."""
    bad, rule = replace(GRID, attributes={"mode": "area"}), "must be one of nearest, bilinear, bicubic, linear, cubic"
    assert without_room(new, bad, "create") == [
        NO_NAME, f"GridSample (node (too long)): mode = 'area': {rule}",
        NO_ATTRIBUTES, f"GridSample (node 'the_node'): mode = (too long): {rule}",
    ]  # fmt: skip
    x, *sizes = BLOCKS.inputs
    (message,) = without_room(new, replace(BLOCKS, inputs=[x[0], *sizes]), "run")
    assert message == "Col2Im: shape of input = (too long): must have rank 3: [N, C * prod(block_shape), L]"


@pytest.mark.parametrize("lacking", ["the result", "workspace", "both"])
def test_a_constant_result_that_cannot_be_kept(new, lacking):
    """The result is then computed at every run."""
    row = new.table.operators[OPERATORS.index(CONSTANT.operator)]
    with prepared(new, CONSTANT, "create") as attempt:
        before = row.results_made
        assert attempt() is None
        last, kept = new.counted[1], row.results_made
        assert kept == before + 1
        status = attempt(lacks=last - (lacking != "workspace"), more=lacking == "both")
        assert new.message_of(status) == (NO_STATE if lacking == "both" else "")
        for _ in range(0 if lacking == "both" else 2):
            new.begin()
            assert new.run(CONSTANT) is None
            assert_outputs(new, CONSTANT)
        assert row.results_made == kept


def malformed(bad, **settings):
    return Node(operator(bad.domain, bad.op_type), list(bad.inputs), bad.attributes, **settings)


@pytest.mark.parametrize("bad", AT_CREATION + BY_TYPE, ids=str)
def test_malformed_attributes(new, bad):
    with prepared(new, malformed(bad), "create") as attempt:
        assert re.match(rf"{bad.title} \(node 'the_node'\): {bad.message}", new.message_of(attempt()))


@pytest.mark.parametrize("bad", AT_RUN, ids=str)
def test_malformed_inputs(runtime, bad):
    """Inputs are refused in a run, in shape inference and, unless a kernel does it, as constants."""
    with prepared(runtime, malformed(bad, known_shapes=((),) * len(bad.inputs)), "run") as attempt:
        assert re.match(f"{bad.title}: {bad.message}", runtime.message_of(attempt()))
        runtime.node = malformed(bad)
        assert runtime.infer(runtime.node) is None
    with prepared(runtime, malformed(bad, constants=range(len(bad.inputs))), "create") as attempt:
        refused = runtime.message_of(attempt())
        if any(bad is each for each in BY_ELEMENTS):
            assert refused == ""
        else:
            message = rf"{bad.title} \(node 'the_node'\): ({bad.message}|.* attributes are for image axes)"
            assert re.match(message, refused)


# Long texts are cut after 200 characters and before the last 100.
SPECIAL = "'\"\\\n\r\t\x01\x1f\x7f\xa0\xada\xe9\u4e2d\u061c\u200b\u200f\u2028\u202e\u2060\u206f\ud7ff\ue000\uf8ff"
SPECIAL += "\ufeff\ufff0\ufffb\ufffd\U0001f600\U000dffff\U000e0000\U0010ffff"
CHARACTERS = st.sampled_from(SPECIAL) | st.characters(codec="utf-8", exclude_characters="\0")
PIECES = st.text(CHARACTERS, max_size=9) | st.builds(str.__mul__, CHARACTERS, st.integers(0, 210))
BROKEN = [b"\xff", b"\xc3", b"\xc0\xaf", b"\xe2\x82", b"\xed\xa0\x80", b"\xf0\x9f\x98", b"\xf4\x90\x80\x80", b"\x80"]
codecs.register_error("each byte", lambda error: ("\ufffd", error.start + 1))


def message_of_python(node):
    """Return the message about the node's one attribute."""
    ((name, value),) = node.attributes.items()
    attribute = next(a for a in node.operator.attributes if a.name == name)
    try:
        with errors_of(node.operator, node.name.decode(errors="each byte")):
            attribute.vector(value)
    except OpError as error:
        return str(error)
    return ""


def assert_same_message(runtime, node):
    with prepared(runtime, node, "create") as attempt:
        assert runtime.message_of(attempt()) == message_of_python(node)


examples = settings(max_examples=20 if FLAGS in os.environ else 100)  # sanitizers take long


@examples
@given(mode=st.lists(PIECES, max_size=8).map("".join))
@example("'" * 10_000)
@example("\x01" * 10_000)
@example("\\" * 9_999)
@example("\U0010ffff" * 10_000)
def test_strings_are_shown_alike(new, mode):
    assert_same_message(new, replace(GRID, attributes={"mode": mode}))


@examples
@given(name=st.lists(PIECES.map(str.encode) | st.sampled_from(BROKEN), max_size=8).map(b"".join))
@example(b"\xff" * 10_000)
def test_names_are_shown_alike(new, name):
    """Each byte that belongs to no character is shown as U+FFFD."""
    assert_same_message(new, replace(GRID, name=name, attributes={"mode": "area"}))


@pytest.mark.parametrize("special", SPECIAL, ids=ascii)
@pytest.mark.parametrize("quote", "'\"", ids=ascii)
def test_escapes_where_texts_are_cut(new, special, quote):
    for n in range(12):
        mode = quote + "a" * (189 + n) + special * 3 + "b" * 200 + special * 3 + "c" * (89 + n)
        assert_same_message(new, replace(GRID, attributes={"mode": mode}))


@pytest.mark.parametrize("text", ["nearest\0", "\0", "a\0b"], ids=ascii)
def test_a_zero_is_a_character(new, text):
    assert_same_message(new, replace(GRID, attributes={"mode": text}))
    assert_same_message(new, replace(GRID, name=text.encode(), attributes={"mode": "area"}))


@examples
@given(strides=st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(1, 9), min_size=1, max_size=100))
@example([1] * 10_000)
@example([-(2**63)] * 1000)
def test_lists_are_shown_alike(new, strides):
    assert_same_message(new, replace(BLOCKS, attributes={"strides": strides}))


def answering(runtime, outcome, strings=None):
    """Let Python answer all questions with this outcome, and these strings; return the list of questions."""
    questions = []

    def answer(question, *args):
        questions.append(question)
        if strings is not None:
            run = table.Run.from_address(args[2])
            with suppress(OpError):  # the library must report it
                bodies._hand_over(run, args[2], table.Call.from_address(run.call), [strings])
        args[-1].contents.outcome, args[-1].contents.message = outcome, PYTHONS_MESSAGE.encode()

    pointer = C.POINTER(table.Answer)
    functions = {
        "compile": C.CFUNCTYPE(None, *[C.c_int64] * 4, pointer)(partial(answer, "compile")),
        "plan": C.CFUNCTYPE(None, C.c_int64, HANDLE, pointer)(partial(answer, "plan")),
        "run": C.CFUNCTYPE(None, C.c_int64, C.c_int64, HANDLE, pointer)(partial(answer, "run")),
        "interrupt": C.CFUNCTYPE(None)(lambda: questions.append("interrupt")),
    }
    for name, function in functions.items():
        runtime.functions.append(function)
        setattr(runtime.python, name, C.cast(function, HANDLE))
    return questions


PYTHONS_MESSAGE, NOT_TO_RUN = "what Python says", "onnx_ops: its session was not made to run"
ANSWERS = {  # the messages when a kernel is made, when it runs, and when one of strings runs
    native.UNFINISHED: ("", NOT_TO_RUN, "onnx_ops: interrupted"),
    native.LEFT_OUT: ("", NOT_TO_RUN, "onnx_ops: interrupted"),
    native.FAILED: (PYTHONS_MESSAGE, NOT_TO_RUN, PYTHONS_MESSAGE),
    native.REFUSED: (PYTHONS_MESSAGE, NOT_TO_RUN, PYTHONS_MESSAGE),
}


@pytest.mark.parametrize("outcome", ANSWERS)
def test_what_python_answers(make, outcome):
    runtime, interrupts = make(), outcome == native.UNFINISHED
    with prepared(runtime, *SCENARIOS["run with tensors of strings"]) as attempt:
        questions = answering(runtime, outcome)
        assert runtime.message_of(attempt()) == ANSWERS[outcome][2]
        assert questions == ["run", *["interrupt"] * interrupts]
    runtime = make()
    questions = answering(runtime, outcome)
    with prepared(runtime, GRID, "create") as attempt:
        status = attempt()
        assert status is None or runtime.things[status] == (
            {native.FAILED: 1, native.REFUSED: 2}[outcome],
            PYTHONS_MESSAGE,
        )
        assert runtime.message_of(status) == ANSWERS[outcome][0]
        assert questions == ["compile", *["interrupt"] * interrupts]
        assert runtime.message_of(runtime.run(GRID)) == ANSWERS[outcome][1]


def test_python_fails_after_a_status(make):
    """One of the two errors is reported, the other released."""
    runtime, (strings, step) = make(), SCENARIOS["run with tensors of strings"]
    with prepared(runtime, strings, step) as attempt:
        answering(runtime, native.FAILED, strings.expected()[0])
        assert runtime.message_of(attempt()) == PYTHONS_MESSAGE
        calls = runtime.calls
        for n, called in enumerate(calls, 1):
            if called in ("KernelContext_GetOutput", "GetResizedStringTensorElementBuffer"):
                assert runtime.message_of(attempt(fails=n)) in (PYTHONS_MESSAGE, FAILURE)
                assert runtime.taken == []


def test_python_is_not_called_while_an_interrupt_waits(make):
    runtime = make()
    questions = answering(runtime, native.DONE)
    with prepared(runtime, GRID, "create") as attempt:
        runtime.library.onnx_ops_wait_for_interrupt(1)
        assert attempt() is None
        runtime.library.onnx_ops_wait_for_interrupt(0)
    assert "compile" not in questions


def test_without_python(make):
    """No operators on strings exist, others can't be compiled; without a table only operators of one's own exist."""
    runtime = make()
    runtime.python.compile = runtime.python.plan = runtime.python.run = None
    with prepared(runtime, GRID, "create") as attempt:
        message = "onnx_ops: its operators are compiled by Python, where it has not been imported"
        assert runtime.message_of(attempt()) == message
    types = [kind for _, ops in runtime.domains.values() for op in ops for kind in described(op)[1]]
    assert dtypes.TABLE["string"].onnx not in types
    runtime = make(operators=(), own=())
    runtime.begin()
    assert runtime.message_of(runtime.register()).startswith("onnx_ops must be imported in this process")
    runtime.add(*FUNCTIONS)
    assert runtime.register() is None
    assert [name for name, _ in runtime.registered()] == ["test.own"]


def test_it_compiles_without_warnings(tmp_path):
    for level in ("-O0", "-O2"):
        build(tmp_path, "-Wall", "-Wextra", "-Werror", level)


SANITIZERS = "-g -fsanitize=address,undefined -fno-sanitize-recover=all"


@pytest.mark.skipif(FLAGS in os.environ, reason="this is the build that it makes")
def test_with_sanitizers(tmp_path):
    """Run the other tests with a build that ends the process at an access out of bounds, an overflow and the like."""
    # The sanitizer looks for C++'s functions when it is loaded, and ends the process if libraries bring them later.
    asan, runtime = (
        subprocess.run([COMPILER, f"-print-file-name={name}"], capture_output=True, text=True).stdout.strip()
        for name in ("libasan.so", "libstdc++.so.6")
    )
    settings = {**os.environ, "LD_PRELOAD": f"{asan} {runtime}", "ASAN_OPTIONS": "detect_leaks=0", FLAGS: SANITIZERS}
    trial = subprocess.run([sys.executable, "-c", ""], env=settings, capture_output=True)
    if not os.path.isabs(asan) or trial.returncode or trial.stderr:
        pytest.skip("the compiler has no sanitizers")
    options = "-q --capture=sys -p no:cacheprovider".split()  # pytest must not capture what sanitizers write to stderr
    command = [sys.executable, "-m", "pytest", *options, "-k", "not warnings", __file__]
    done = subprocess.run(command, env=settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
