"""The C library in ONNX Runtime's sessions, where any of its calls and allocations may fail.

It is built with a shim, which counts allocations, fills them with garbage, and hands the library
another table of functions: each counts, fails if it is told to, and else calls ONNX Runtime's. A
library knows only one table, so each Library has a copy of the file.
"""

import ctypes as C
import gc
import itertools
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from support.backends import ORT_VERSION, quiet
from support.cases import (
    COL2IM,
    assert_close,
    case_named,
    finished,
    operator,
    reference_of,
    type_of,
)
from support.custom_functions import FUNCTIONS
from support.malformed import AT_CREATION, AT_RUN, BY_ELEMENTS, BY_TYPE
from support.selection import long_unless

import onnx_ops
from onnx_ops import system
from onnx_ops.compiler import records
from onnx_ops.declaration import calls, dtypes
from onnx_ops.declaration.errors import OpError, errors_of
from onnx_ops.declaration.limits import LINE, MAX_TILES
from onnx_ops.native import library, table
from onnx_ops.registry import OPERATORS, is_default
from onnx_ops.session import bodies, native_backend

COMPILER = shutil.which("cc") or shutil.which("gcc")
# Environment variable: flags of the compiler, to test another build of the library.
FLAGS = "ONNX_OPS_TEST_FLAGS"
SOURCES = Path(onnx_ops.__file__).parent / "native"
COPIES = itertools.count()
pytestmark = [
    pytest.mark.compiler,
    pytest.mark.skipif(sys.platform == "win32", reason="its compilers take other flags"),
    pytest.mark.skipif(COMPILER is None, reason="there is no C compiler"),
    pytest.mark.skipif(
        ORT_VERSION < (1, 24), reason="a proxy for each function needs an ONNX Runtime that has all"
    ),
]
# This build counts the library's allocations and fills them with garbage.
COUNTED_H = """
#include <stdlib.h>
void *counted_malloc(size_t), *counted_calloc(size_t, size_t);
void *counted_realloc(void *, size_t), counted_free(void *);
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
/* in use, asked for so far, the first and the last that fail */
__attribute__((visibility("default"))) long counted[4];
static int fails(void) {
    return counted[1]++, counted[2] <= counted[1] && counted[1] <= counted[3];
}
static void *count(void *made, size_t size, int byte) {
    if (fails() || !made) return free(made), NULL;
    counted[0]++;
    return memset(made, byte, size);
}
void *counted_malloc(size_t size) { return count(malloc(size), size, 0xA5); }
void *counted_calloc(size_t number, size_t size) {
    return count(malloc(number * size), number * size, 0);
}
void *counted_realloc(void *made, size_t size) {
    return !made ? counted_malloc(size) : fails() ? NULL : realloc(made, size);
}
void counted_free(void *made) { counted[0] -= made != NULL, free(made); }
"""
HANDLE = C.c_void_p
ORT_H = (SOURCES / "ort.h").read_text()
OFFSETS = {
    name: int(offset)
    for name, offset in re.findall(r"#define (\w+)\s+(?:\\\s+)?API(?:_OF\(\w+, |\()(\d+),", ORT_H)
}
SPARES = int(
    re.search(r"SPARES = (\d+)", (SOURCES / "ort.c").read_text())[1]
)  # statuses that the library keeps
CANNOT_FAIL = {
    "CreateStatus",
    "GetErrorCode",
    *(name for name in OFFSETS if name.startswith("Release")),
}
# What must be released, like every status that ONNX Runtime doesn't get, or handed over.
OWNED = {"CreateStatus", "KernelInfo_GetInputTypeInfo", "KernelInfoGetAttribute_tensor",
    "CreateTensorTypeAndShapeInfo",
         "GetTensorTypeAndShape", "CreateCustomOpDomain"}  # fmt: skip
FAILURE = "failed as it was told to"
FIRST = (
    "ShapeInferContext_GetInputCount",
    "KernelInfo_GetNodeName",
)  # calls of an inference, and of a creation
SHIM = """
#undef RegisterCustomOps
#include "ort.h"
#include <string.h>
#define VISIBLE __attribute__((visibility("default")))
VISIBLE int call_count, failing_call, handles, version_asked_for;
VISIBLE short calls[1 << 16]; /* the positions of called functions that can fail */
VISIBLE long in_use[1 << 16]; /* the number of allocations at each of these calls */
extern long counted[4];
VISIBLE char release[32];     /* that of another ONNX Runtime, perhaps */
status registered(void *options, const struct api_base *base);
static const struct api_base *base;
static void *const *real, *proxy[600];
#define PROXY(k, can_fail, owned)                                                     \\
    static void *proxy_##k(void *a, void *b, void *c, void *d, void *e, void *f) {    \\
        int n = can_fail ? __atomic_add_fetch(&call_count, 1, __ATOMIC_SEQ_CST) : 0;  \\
        if (n) calls[n & 0xffff] = k, in_use[n & 0xffff] = counted[0];                \\
        if (n && n == failing_call) return CreateStatus(1, FAILURE);                  \\
        void *(*call)(void *, void *, void *, void *, void *, void *) = real[k];      \\
        void *done = call(a, b, c, d, e, f);                                          \\
        __atomic_add_fetch(&handles, can_fail && done ? 1 : owned, __ATOMIC_SEQ_CST); \\
        return done;                                                                  \\
    }
PROXIES
static void *const *get_api(uint32_t version) {
    version_asked_for = (int)version;
    real = base->get_api(version);
    FILLED
    return proxy;
}
static const char *get_version(void) { return *release ? release : base->get_version(); }
VISIBLE status RegisterCustomOps(void *options, const struct api_base *ours) {
    static const struct api_base fake = {get_api, get_version};
    base = ours;
    return registered(options, &fake);
}
"""


def shim():
    """The shim's text: a proxy for each function of the table that the library calls."""
    sign = {
        name: (name in OWNED) - (name.startswith("Release") or name == "AddCustomOpDomain")
        for name in OFFSETS
    }
    positions = {name: offset // 8 for name, offset in OFFSETS.items()}
    proxies = "\n".join(
        f"PROXY({k}, {int(n not in CANNOT_FAIL)}, {sign[n]})" for n, k in positions.items()
    )
    filled = " ".join(f"proxy[{k}] = proxy_{k};" for k in positions.values())
    return (
        SHIM.replace("PROXIES", proxies)
        .replace("FILLED", filled)
        .replace("FAILURE", f'"{FAILURE}"')
        + COUNTED_C
    )


@dataclass
class Node:
    """A node of a model.

    inputs        arrays; None for an optional input that is absent
    constants     positions of the inputs that are constant
    known_shapes  the shapes that the model states for inputs; dimensions may be names or None;
                  default: the real shapes
    """

    operator: object
    inputs: list
    attributes: dict
    name: str = "the_node"
    constants: tuple = ()
    known_shapes: tuple | None = None

    def expected(self):
        """The expected outputs."""
        if self.operator.is_wide:
            return [reference_of(self.operator, self.attributes, self.inputs)]
        return calls.compute_reference(
            self.operator, self.operator.values(self.attributes), self.inputs
        )

    def model(self):
        """The model of this node, as bytes, and its inputs."""
        names = ["" if value is None else f"input_{k}" for k, value in enumerate(self.inputs)]
        outputs = [f"output_{k}" for k in range(len(self.operator.outputs))]
        attributes = {n: numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v
                      for n, v in self.attributes.items()}  # fmt: skip
        domain, infos, constants = self.operator.domain, [], []
        # Which protobuf's Python can't set.
        name = "?" * len(self.name) if isinstance(self.name, bytes) else self.name
        node = helper.make_node(
            self.operator.name, names, outputs, name, domain=domain, **attributes
        )
        feeds = {}
        for k, (label, value) in enumerate(zip(names, self.inputs, strict=True)):
            if value is not None and k in self.constants:
                constants.append(numpy_helper.from_array(value, label))
            elif value is not None:
                # None: not even a rank.
                shape = value.shape if self.known_shapes is None else self.known_shapes[k]
                infos.append(helper.make_tensor_value_info(label, type_of(value.dtype), shape))
                feeds[label] = value
        results = [helper.make_empty_tensor_value_info(name) for name in outputs]
        proto = finished(helper.make_graph([node], "graph", infos, results, constants), 21, domain)
        content = proto.SerializeToString()
        if isinstance(self.name, bytes) and self.name:
            before, _, after = content.rpartition(
                name.encode()
            )  # the byte before may be a "?", too: the length 63
            content = before + self.name + after
        return content, feeds


class Library:
    """A copy of the library, which believes that ONNX Runtime is of this release, if that is
    stated.

    declared  the operators of its table
    custom    custom operators, which each registration adds
    """

    def __init__(self, path, release="", operators=OPERATORS, custom=FUNCTIONS):
        self.path = path.with_name(f"copy_{next(COPIES)}.so")
        shutil.copy(path, self.path)
        self.library = C.CDLL(str(self.path))
        library.declare_types(self.library)
        self.counted = (C.c_long * 4).in_dll(self.library, "counted")
        (C.c_char * 32).in_dll(self.library, "release").value = release.encode()
        rows = [library.row_of(replace(operator)) for operator in operators]
        for row, original in zip(rows, operators, strict=True):  # those of copies would be custom
            row.is_default, row.is_custom = is_default(original.domain, True), False
        self.table = table.table_of(rows)
        filled = table.Table.in_dll(self.library, "onnx_ops_table")
        filled.operators, filled.operator_count = self.table.operators, self.table.operator_count
        self.python = table.Python.in_dll(self.library, "onnx_ops_python")
        self.python.compile, self.python.plan = native_backend.compile_function, native_backend.plan
        self.python.run, self.python.refuse = native_backend.run_body, native_backend.refuse
        self.declared, self.rows, self.kept, self.spares = operators, [], [], SPARES
        self.add(*custom)

    def add(self, *operators):
        """Add custom operators, which this copy of the library alone knows."""
        self.rows += [library.row_of(replace(operator)) for operator in operators]
        self.custom = table.array(HANDLE, list(map(C.addressof, self.rows)))

    def load(self):
        return self.library

    def number(self, name):
        return C.c_int.in_dll(self.library, name)

    def in_use(self):
        """The numbers of the library's allocations at the calls."""
        count = self.number("call_count").value
        return [*(C.c_long * 2**16).in_dll(self.library, "in_use")][1 : count + 1]

    def infers(self, n):
        """Whether call number n is one of an inference: if it fails, ONNX Runtime infers nothing
        and goes on.
        """
        return bool(n) and FIRST[0] in self.calls[:n] and FIRST[1] not in self.calls[:n]

    @property
    def calls(self):
        """The names of called functions that can fail."""
        count, positions = (
            self.number("call_count").value,
            (C.c_short * 2**16).in_dll(self.library, "calls"),
        )
        return [NAMES[positions[k]] for k in range(1, count + 1)]

    def begin(self, fails=0, lacks=0, more=0):
        """Begin a step in which call number `fails` fails, or the allocations from `lacks` to
        `lacks + more` do.
        """
        self.number("call_count").value, self.number("failing_call").value = 0, fails
        self.number("handles").value = 0
        self.counted[1:] = [0, lacks, lacks and lacks + more]

    def attempt(self, step, *args, **limits):
        """Return (what a step returns, None), or (None, the text of its error)."""
        self.begin(**limits)
        with mock.patch.object(library, "load", self.load):
            try:
                return step(*args), None
            except Exception as error:
                return None, str(error)
            finally:
                self.number("failing_call").value = self.counted[2] = self.counted[3] = 0

    def options(self, domains=None, **settings):
        options = quiet(**{"intra_op_num_threads": 4, **settings})
        every = {o.domain for o in self.declared} if domains is None else domains
        for domain in every:
            options.add_session_config_entry(registering(domain), "1")
        return options

    def register(self, options):
        self.number("handles").value -= self.spares  # which the first registration makes
        self.spares = 0
        self.library.onnx_ops_add(self.custom, C.c_size_t(len(self.rows)))
        options.register_custom_ops_library(str(self.path))
        return options

    def row_of(self, operator):
        return self.table.operators[self.declared.index(operator)].contents


NAMES = {offset // 8: name for name, offset in OFFSETS.items()}


def registering(domain):
    """Return the entry of options that asks for a domain."""
    return f"onnx_ops.register.{domain or 'ai.onnx'}"


def node(case, *dtypes, **settings):
    return Node(case.operator, case.inputs(*(dtypes or ["float32"])), case.attributes, **settings)


RELEASES = {"new": "1.31.1", "old": "1.23.2"}
STRIDED = case_named("strided")
MANY_TILES = node(replace(STRIDED, shapes=((2400, 36, 15), *STRIDED.shapes[1:])))  # MAX_TILES
BLOCKS = node(case_named("everything"), known_shapes=(None,) * 3)
GRID = node(case_named("volume_linear_zeros_edges"))
CONSTANT = node(COL2IM[0], constants=(0, 1, 2))
INFERENCE = node(  # in a type whose kernel other tests need, too
    case_named("bilinear_zeros_edges"), "float16", "float32",
    known_shapes=(("N", 3, None, None), ("M", None, "W", 2)),
)  # fmt: skip
BLEND, POSITIVE, FILL, JOIN = FUNCTIONS
NUMBERS = np.arange(-10_000, 10_000, dtype=np.float32) / 2
MANY = Node(
    BLEND, [NUMBERS, np.array([0.5], np.float32)], {"weights": [0.5, 1.0], "mode": "subtract"}
)
HALVES = Node(
    BLEND,
    [np.arange(100, dtype=np.float16), None],
    {"weights": [2.0], "factor": 0.5, "shifts": [1]},
)
LONG = replace(MANY, attributes={"weights": [0.25] * 200, "shifts": [1] * 1000})
FILLED = Node(FILL, [NUMBERS[:7], np.array([3, 4])], {}, constants=(1,))
JOINED = Node(JOIN, [np.array(texts, object) for texts in (["a", "bc"], ["", "d"], ["\xe9", "f"])],
    {
    "order": np.array([2, 0, 1]), "between": ", "
})  # fmt: skip
JOINED_AGAIN = replace(JOINED, attributes={"order": np.array([2, 0, 1] * 100)})
NO_NAME, NO_ATTRIBUTES = "onnx_ops: no room for a node's name", "onnx_ops: no room for attributes"
NO_ATTRIBUTE, NO_STATE = (
    "onnx_ops: no room for an attribute",
    "onnx_ops: no room for a kernel's state",
)
NO_STRINGS = "onnx_ops: no room for the strings of an input"
NO_COPIES = "onnx_ops: no room for copies of what a kernel is given"
NO_WORKSPACE, NONE_OF_BLEND = (
    f"{o}: workspace = N bytes: can't be allocated" for o in ("Col2Im", "test.own.Blend")
)
CREATION = [NO_NAME, NO_ATTRIBUTES, NO_STATE]
SCENARIOS = {
    # A node, the step that is tried, before which others succeed, and the messages if each of its
    # allocations in turn fails; empty if it was for a result that can be computed later.
    "creation with lists": (BLOCKS, "create", CREATION),
    "creation with a list that is required": (
        node(case_named("unfold_everything"), known_shapes=(None,)), "create", CREATION),
    "creation with strings and a number": (GRID, "create", CREATION),
    "creation for constants": (CONSTANT, "create", [NO_NAME, NO_ATTRIBUTES, "", ""]),
    "creation for tensors of strings": (node(COL2IM[0], "string"), "create", CREATION),
    "inference": (INFERENCE, "create", CREATION),
    "run": (MANY_TILES, "run", [NO_WORKSPACE]),
    "run without a workspace": (node(case_named("unfold_everything")), "run", []),
    "run with constants": (node(COL2IM[0], constants=(1, 2)), "run", [NO_WORKSPACE]),
    "run with a constant result": (CONSTANT, "run", []),
    "run with tensors of strings": (node(COL2IM[0], "string"), "run", [NO_STRINGS]),
    "creation of a function": (MANY, "create", CREATION),
    "creation of a function that lacks an input": (HALVES, "create", CREATION),
    "creation of a function with long lists": (
        LONG, "create", [NO_NAME, NO_ATTRIBUTES, NO_ATTRIBUTE, NO_ATTRIBUTE, NO_STATE]),
    "creation of a function with a rule in Python": (FILLED, "create", CREATION),
    "creation of a function in Python": (JOINED, "create", CREATION),
    "creation of a function in Python with a large tensor": (
        JOINED_AGAIN, "create", [NO_NAME, NO_ATTRIBUTES, NO_ATTRIBUTE, NO_STATE]),
    "run of a function": (MANY, "run", [NONE_OF_BLEND]),
    "run of a function on halves": (HALVES, "run", [NO_COPIES, NONE_OF_BLEND]),
    "run of a function without its last input": (
        replace(HALVES, inputs=HALVES.inputs[:1]), "run", [NO_COPIES, NONE_OF_BLEND]),
    "run of a function with a bound": (Node(POSITIVE, [NUMBERS], {}), "run", [NO_COPIES]),
    "run of a function in Python": (FILLED, "run", []),
    "run of a function in Python on strings": (JOINED, "run", [NO_STRINGS] * 3),
}  # fmt: skip
RUNS = [name for name, (_, step, _) in SCENARIOS.items() if step == "run"]
# Its size, in a call.
AT_WORKSPACE = records.GEOMETRY + MANY_TILES.operator.geometry_dtype.fields["workspace"][1]
FEW = [o for o in OPERATORS if o.title in ("onnx_ops.Im2Col", "org.openvinotoolkit.Col2Im")]


def build(directory, *flags):
    path = directory / "library.so"
    command = [
        COMPILER,
        "-std=gnu11",
        "-fPIC",
        "-shared",
        "-fvisibility=hidden",
        "-o",
        path,
        *flags,
    ]
    sources = f"-DONNX_OPS_SOURCES={system.digest_of_sources(SOURCES)}", *SOURCES.glob("*.c")
    subprocess.run([*command, *sources], check=True)
    return path


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    """A function that makes a Library."""
    directory = tmp_path_factory.mktemp("library")
    (directory / "counted.h").write_text(COUNTED_H)
    (directory / "shim.c").write_text(shim())
    flags = [
        "-DRegisterCustomOps=registered",
        f"-I{SOURCES}",
        "-include",
        directory / "counted.h",
        directory / "shim.c",
    ]
    return partial(Library, build(directory, *flags, *os.environ.get(FLAGS, "").split()))


@pytest.fixture(scope="module", params=RELEASES)
def runtime(request, make):
    runtime_of_release = make(RELEASES[request.param])
    runtime_of_release.shared = runtime_of_release.register(runtime_of_release.options())
    return runtime_of_release


@pytest.fixture(scope="module")
def new(make):
    runtime_of_version = make()
    runtime_of_version.shared = runtime_of_version.register(runtime_of_version.options())
    return runtime_of_version


def session(runtime, node):
    """A session of a node's model, and its inputs."""
    proto, feeds = node.model()
    return ort.InferenceSession(proto, runtime.shared, ["CPUExecutionProvider"]), feeds


@contextmanager
def prepared(runtime, node, step, inferred=0):
    """Yield a function that makes a session of the node, or runs it, and returns (result, text of
    an error).

    All that must be left are statuses that ONNX Runtime gets: of an error, and of so many
    inferences.
    """
    in_use, session_of_node = runtime.counted[0], None
    threads = runtime.shared.intra_op_num_threads
    if step == "create":
        runtime.shared.intra_op_num_threads = 1  # to start more takes as long as all else
    if step == "run":
        session_of_node, error = runtime.attempt(session, runtime, node)
        assert error is None

    def attempt(**limits):
        result, error = runtime.attempt(
            *(
                (session_of_node[0].run, None, session_of_node[1])
                if session_of_node
                else (session, runtime, node)
            ),
            **limits,
        )
        left = inferred + runtime.infers(limits.get("fails")) + (error is not None)
        assert runtime.number("handles").value in (left, left - runtime.infers(limits.get("fails")))
        return result, error

    yield attempt
    runtime.shared.intra_op_num_threads = threads
    session_of_node = None  # which ends the session
    if runtime.counted[0] != in_use:
        gc.collect()
    assert runtime.counted[0] == in_use


def assert_outputs(outputs, node):
    """Assert that outputs are the expected ones; floats may differ by their tolerance."""
    for got, array in zip(outputs, node.expected(), strict=True):
        assert_close(
            got, array, dtypes.name_of(array if not node.operator.is_wide else node.inputs[0])
        )


# test_every_function_is_called has runs in old releases in the short run.
in_old_releases_too = pytest.mark.parametrize(
    "runtime", ["new", pytest.param("old", marks=pytest.mark.long)], indirect=True
)


@in_old_releases_too
@pytest.mark.parametrize("name", RUNS)
def test_runs(runtime, name):
    node, step, _ = SCENARIOS[name]
    with prepared(runtime, node, step) as attempt:
        for _ in range(2):
            outputs, error = attempt()
            assert error is None
            assert_outputs(outputs, node)
    if name in ("run", "run of a function"):
        assert "KernelContext_ParallelFor" in runtime.calls
        is_old = runtime.number("version_asked_for").value == 23
        assert ("GetTensorTypeAndShape" in runtime.calls) == is_old
    if node is CONSTANT:
        assert runtime.calls == ["KernelContext_GetOutput", "GetTensorMutableData"]


def stated(node, runtime):
    """What a session states of the outputs of a node's model."""
    (session_of_node, _), error = runtime.attempt(session, runtime, node)
    assert error is None
    return [(output.type, output.shape) for output in session_of_node.get_outputs()]


def test_inference(new):
    """An unknown dimension gets a name that is used nowhere else."""
    (type_of_output, first), (_, again) = (stated(INFERENCE, new)[0] for _ in range(2))
    assert type_of_output == HALF  # the type of X, not of the grid
    assert re.fullmatch(r"N 3 onnx_ops_[0-9a-f]+_\d+ W", " ".join(map(str, first)))
    assert again[2] != first[2]


FLOAT, HALF, LONG_INT = "tensor(float)", "tensor(float16)", "tensor(int64)"
INFERRED = {  # a node, and the types and shapes that are inferred for its outputs
    "all is known": (MANY, [(FLOAT, [20_000]), (LONG_INT, [1])]),
    "an input is absent": (HALVES, [(HALF, [100]), (LONG_INT, [1])]),
    "the last input is not there": (
        replace(HALVES, inputs=HALVES.inputs[:1]),
        [(HALF, [100]), (LONG_INT, [1])],
    ),
    "a dimension has a name": (
        replace(MANY, known_shapes=(("N",), (1,))),
        [(FLOAT, []), (LONG_INT, [])],
    ),
    "a dimension is unknown": (
        replace(MANY, known_shapes=((None,), (1,))),
        [(FLOAT, []), (LONG_INT, [])],
    ),
    "the rule gets values": (FILLED, [(FLOAT, [])]),
    "the rule states a bound": (Node(POSITIVE, [NUMBERS], {}), [(FLOAT, []), (LONG_INT, [])]),
    "there is no rule": (JOINED, [("tensor(string)", [])]),
}


@pytest.mark.parametrize("name", INFERRED)
def test_inference_of_functions(new, name):
    """The shapes of all outputs are inferred or none."""
    node, expected = INFERRED[name]
    assert stated(node, new) == expected


@pytest.mark.parametrize("key", RELEASES)
def test_every_function_is_called(make, key):
    """The scenarios call every function, so that tests of all their calls cover all functions."""
    runtime = make(RELEASES[key])
    runtime.shared, _ = runtime.attempt(lambda: runtime.register(runtime.options()))
    called = {*runtime.calls, "GetSessionConfigEntry"}  # of options that were registered before
    for node, step, _ in SCENARIOS.values():
        with prepared(runtime, node, step) as attempt:
            assert attempt()[1] is None
            called.update(runtime.calls)
        runtime.attempt(session, runtime, node)
        called.update(runtime.calls)
    functions_by_age = {
        "new": "GetTensorTypeAndShape",
        "old": "GetTensorElementTypeAndShapeDataReference",
    }
    assert called == OFFSETS.keys() - CANNOT_FAIL - {functions_by_age[key]}


UNREADABLE = re.compile(
    r".*: \w+ = (None: must be given|(\[?\d.*\]? )?\(not of kind \w+\): must be an? .*)", re.DOTALL
)

LIKE_ANOTHER = (
    "lacks an input",
    "long lists",
    "large tensor",
)  # scenarios with the calls of others, or more of them
CREATIONS = (
    "creation with strings and a number",
    "creation for constants",
    "inference",
    "creation of a function with a rule in Python",
    "creation of a function in Python",
)  # which have all calls of a creation


@in_old_releases_too
@pytest.mark.parametrize(
    "name",
    [
        long_unless((name in CREATIONS or name in RUNS) and not name.endswith(LIKE_ANOTHER), name)
        for name in SCENARIOS
    ],
)
def test_no_status_is_dropped(runtime, name):
    """Whichever call fails, its status is returned at once. For an attribute, failure means that it
    is absent, or that nothing is inferred.
    """
    with prepared(runtime, *SCENARIOS[name][:2]) as attempt:
        assert attempt()[1] is None
        calls = runtime.calls
        for n, called in enumerate(calls, 1):
            _, error = attempt(fails=n)
            handles = runtime.number("handles").value
            if called.startswith("KernelInfoGetAttribute"):
                assert error is None or UNREADABLE.search(error)
            elif called in ("ShapeInferContext_GetAttribute", "ReadOpAttr"):
                assert (error, handles) == (None, 0)
            elif runtime.infers(n):
                assert (error, handles, runtime.calls[n]) == (None, 1, FIRST[1])
            else:
                assert FAILURE in error
                assert runtime.calls == calls[:n]
        assert attempt()[1] is None


NO_ROOM_FOR_DOMAINS = ["onnx_ops: no room for a domain", "onnx_ops: no room for an operator"]


@pytest.mark.parametrize("limit", ["fails", "lacks"])
def test_a_registration_that_fails(make, limit):
    """New options get all domains then.

    What is left are records and lists, which later registrations use.
    """
    make = partial(make, operators=FEW, custom=FUNCTIONS[:2])
    all_operators, declared = make(), [*FEW, *FUNCTIONS[:2]]
    register = lambda runtime: runtime.register(runtime.options())
    assert all_operators.attempt(register, all_operators)[1] is None
    calls, in_use, left = all_operators.calls, all_operators.in_use(), []
    assert calls.count("CustomOpDomain_Add") == sum(len(list(o.signatures())) for o in declared)
    for n in range(1, 1 + (len(calls) if limit == "fails" else all_operators.counted[1])):
        runtime = make()
        _, error = runtime.attempt(register, runtime, **{limit: n})
        left.append(runtime.counted[0])
        if limit == "fails":
            assert FAILURE in error
            assert runtime.calls == calls[:n]
        else:
            assert any(message in error for message in NO_ROOM_FOR_DOMAINS)
        # The domain, which the options name.
        is_kept = runtime.calls[-1] == "AddCustomOpDomain" and limit == "fails"
        assert runtime.number("handles").value == 1 + is_kept  # the status
        assert runtime.attempt(register, runtime)[1] is None
        assert runtime.calls.count("CustomOpDomain_Add") == calls.count("CustomOpDomain_Add")
    if limit == "lacks":
        assert left == [
            0,
            1,
            2,
            3,
            4,
            4,
            5,
            6,
            7,
            7,
            8,
            9,
            10,
            10,
        ]  # lists that lack room to grow stay
    else:
        freed = [called in ("CreateCustomOpDomain", "AddSessionConfigEntry") for called in calls]
        assert left == [used - free for used, free in zip(in_use, freed, strict=True)]


@pytest.mark.parametrize("limit", ["fails", "lacks"])
def test_a_registration_on_copied_options_that_fails(make: Callable[..., Any], limit: str) -> None:
    """ONNX Runtime's copy of options has their entries, and no domain.

    The next attempt adds all operators to it.
    """
    content, feeds = MANY.model()

    def copied(runtime: Any) -> Any:
        return ort.InferenceSession(
            content, runtime.register(runtime.options([]))
        ).get_session_options()

    def add_one(runtime: Any, options: Any) -> None:
        runtime.library.onnx_ops_add(runtime.custom, C.c_size_t(1))
        options.register_custom_ops_library(str(runtime.path))

    make = partial(make, operators=FEW, custom=[POSITIVE, BLEND])
    all_operators = make()
    assert all_operators.attempt(add_one, all_operators, copied(all_operators))[1] is None
    last = len(all_operators.calls) if limit == "fails" else all_operators.counted[1]
    assert all_operators.calls.count("CustomOpDomain_Add") == sum(
        len(list(o.signatures())) for o in (POSITIVE, BLEND)
    )
    for n in range(1, 1 + last):
        runtime = make()
        options = copied(runtime)
        assert runtime.attempt(add_one, runtime, options, **{limit: n})[1]
        assert runtime.attempt(add_one, runtime, options)[1] is None
        with mock.patch.object(library, "load", runtime.load):
            got, _ = ort.InferenceSession(content, options).run(None, feeds)
        np.testing.assert_array_equal(got, MANY.expected()[0])


def test_domains_of_options(make):
    """Options get each domain once, and com.microsoft only if they ask for it."""
    runtime, default, every = (
        make(custom=()),
        sorted(native_backend.default_domains()),
        sorted({o.domain for o in OPERATORS}),
    )
    none, for_onnx = runtime.options([]), runtime.options([""])
    for options, added, new in (
        (none, [], default), (none, [], []), (runtime.options(every), [], every),
        (for_onnx, [], [""]), (for_onnx, ["com.microsoft"], ["com.microsoft"]),
    ):  # fmt: skip
        for domain in added:
            options.add_session_config_entry(registering(domain), "1")
        assert runtime.attempt(runtime.register, options)[1] is None
        count = sum(len(list(o.signatures())) for o in OPERATORS if o.domain in new)
        assert (
            runtime.calls.count("AddCustomOpDomain"),
            runtime.calls.count("CustomOpDomain_Add"),
        ) == (
            len(new),
            count,
        )
        assert runtime.number("handles").value == 0


@pytest.mark.parametrize(
    ("release", "asked_for"),
    [
        ("1.31.1", 24),
        ("1.24.0", 24),
        ("1.24.0-dev", 24),
        ("1.23.2", 23),
        ("1.20.0", 20),
        ("1.17.0", 17),
    ],
)
def test_the_version_of_the_table_that_is_asked_for(make, release, asked_for):
    """The library asks for the newest version that it reads, but for none that ONNX Runtime doesn't
    know.
    """
    if asked_for > int(ort.__version__.split(".")[1]):
        pytest.skip("this ONNX Runtime lacks that table")
    runtime = make(release)
    for _ in range(2):
        assert runtime.attempt(runtime.register, runtime.options())[1] is None
        assert runtime.number("version_asked_for").value == asked_for


@pytest.mark.parametrize("release", ["1.16.3", "1.9.0", "1", "0"])
def test_releases_that_are_too_old(make, release):
    """The library asks for version 1 of the table, which all releases have, to make a status."""
    runtime = make(release)
    _, error = runtime.attempt(runtime.register, runtime.options())
    assert "onnx_ops needs ONNX Runtime 1.17 or newer" in error
    assert (runtime.number("version_asked_for").value, runtime.calls) == (1, [])


def replace_kernel(runtime, kernel):
    """Replace the kernel of MANY_TILES by a function of (address of the call, tile, address of its
    workspace).
    """
    kernel_pointer = C.CFUNCTYPE(C.c_int64, HANDLE, C.c_int64, HANDLE)(kernel)
    row = runtime.row_of(MANY_TILES.operator)
    for overload in row.overloads[: row.overload_count]:
        overload.kernels[0] = C.cast(kernel_pointer, HANDLE)
    runtime.kept.append(kernel_pointer)


@pytest.mark.parametrize("threads", [4, long_unless(False, MAX_TILES)])
def test_tiles_side_by_side_have_workspaces_of_their_own(make, threads):
    """There are as many workspaces as threads, each as large as the plan states, and in lines of
    its own.
    """
    runtime, calls, together = make(), [], threading.Barrier(threads, timeout=600)

    def kernel(call, tile, workspace):
        size = C.c_int64.from_address(call + AT_WORKSPACE).value
        calls.append((tile, workspace, size))
        C.memset(workspace, 0x77, size)
        together.wait()
        return 0

    replace_kernel(runtime, kernel)
    runtime.shared = runtime.register(runtime.options(intra_op_num_threads=threads))
    with prepared(runtime, MANY_TILES, "run") as attempt:
        assert attempt()[1] is None
    tiles, workspaces, (size, *_) = zip(*calls, strict=True)
    assert sorted(tiles) == list(range(MAX_TILES))
    assert {*workspaces} == set(range(min(workspaces), max(workspaces) + 1, size + -size % LINE))
    assert len({*workspaces}) == threads
    assert not any(place % LINE for place in workspaces)


def test_a_tile_that_fails(make):
    """A constant result is then computed by the runs."""
    runtime = make()
    replace_kernel(runtime, lambda call, tile, workspace: 7 if tile == 0 else 0)
    runtime.shared = runtime.register(runtime.options())
    for node in (MANY_TILES, replace(MANY_TILES, constants=(0, 1, 2))):
        with prepared(runtime, node, "run") as attempt:
            assert attempt()[1].endswith("Col2Im: compiled code has failed")


def without_room(runtime, node, step):
    """Return the messages if each allocation in turn fails, but for those of the inference, which
    fail silently.
    """
    with prepared(runtime, node, step) as attempt:
        attempt()
        turns = range(1, runtime.counted[1] + 1)
        for n in turns:  # and all that follow
            attempt(lacks=n, more=1000)
        first, *errors = (
            re.sub(r"(?s)^.*(Status Message|initialization): ", "", attempt(lacks=n)[1] or "")
            for n in (0, *turns)
        )
    inferred = errors.index(NO_NAME) if step == "create" else 0
    assert errors[:inferred] == [first] * inferred
    return [re.sub(r"\d+ bytes", "N bytes", error) for error in errors[inferred:]]


@in_old_releases_too
@pytest.mark.parametrize(
    "name", [long_unless(not name.endswith(LIKE_ANOTHER[:2]), name) for name in SCENARIOS]
)
def test_no_room(runtime, name):
    node, step, messages = SCENARIOS[name]
    assert without_room(runtime, node, step) == messages


def test_no_room_is_needed_for_messages(new):
    assert without_room(new, replace(GRID, attributes={"mode": "area"}), "create") == [
        NO_NAME,
        NO_ATTRIBUTES,
    ]
    x, *sizes = BLOCKS.inputs
    assert without_room(new, replace(BLOCKS, inputs=[x[0], *sizes]), "run") == []


@pytest.mark.parametrize("lacking", ["the result", "workspace", "both"])
def test_a_constant_result_that_cannot_be_kept(new, lacking):
    """The result is then computed at every run."""
    row = new.row_of(CONSTANT.operator)
    with prepared(new, CONSTANT, "create") as attempt:
        before = row.results_made
        assert attempt()[1] is None
        last, kept = new.counted[1], row.results_made
        assert kept == before + 1
        result, error = attempt(lacks=last - (lacking != "workspace"), more=lacking == "both")
        assert NO_STATE in error if lacking == "both" else error is None
        for _ in range(0 if lacking == "both" else 2):
            outputs, error = new.attempt(result[0].run, None, result[1])
            assert error is None
            assert_outputs(outputs, CONSTANT)
        assert row.results_made == kept
        result = None


def malformed(bad, **settings):
    return Node(operator(bad.domain, bad.op_type), list(bad.inputs), bad.attributes, **settings)


@pytest.mark.parametrize("bad", AT_CREATION + BY_TYPE, ids=str)
def test_malformed_attributes(new, bad):
    with prepared(new, malformed(bad), "create") as attempt:
        assert re.search(rf"{bad.title} \(node 'the_node'\): {bad.message}", attempt()[1])


# The short run has all in sessions: test_same_parts_of_an_error.
@pytest.mark.parametrize(
    "bad", [long_unless(k % 4 == 0, bad) for k, bad in enumerate(AT_RUN)], ids=str
)
def test_malformed_inputs(new, bad):
    """Inputs are refused in a run and, unless a kernel does it, as constants."""
    with prepared(new, malformed(bad, known_shapes=(None,) * len(bad.inputs)), "run") as attempt:
        assert re.search(f"{bad.title}: {bad.message}", attempt()[1])
    with prepared(new, malformed(bad, constants=range(len(bad.inputs))), "create") as attempt:
        refused = attempt()[1]
        if any(bad is bad_case for bad_case in BY_ELEMENTS):
            assert refused is None
        else:
            rules = rf"({bad.message}|.* attributes are for image axes)"
            assert re.search(rf"{bad.title} \(node 'the_node'\): {rules}", refused)


# Long texts are cut after 200 characters and before the last 100.
SPECIAL = (
    "'\"\\\n\r\t\x01\x1f\x7f\xa0\xada\xe9\u4e2d\u061c\u200b\u200f"
    "\u2028\u202e\u2060\u206f\ud7ff\ue000\uf8ff"
)
SPECIAL += "\ufeff\ufff0\ufffb\ufffd\U0001f600\U000dffff\U000e0000\U0010ffff"
EACH_ESCAPE = "'\n\x01a\xe9\u202e\U0001f600"  # a character for each way to show one, or length
CHARACTERS = st.sampled_from(SPECIAL) | st.characters(codec="utf-8", exclude_characters="\0")
PIECES = st.text(CHARACTERS, max_size=9) | st.builds(str.__mul__, CHARACTERS, st.integers(0, 210))
BROKEN = [
    b"\xff",
    b"\xc3",
    b"\xc0\xaf",
    b"\xe2\x82",
    b"\xed\xa0\x80",
    b"\xf0\x9f\x98",
    b"\xf4\x90\x80\x80",
    b"\x80",
]


def assert_same_message(runtime, node):
    """Assert that a session says of the node's one attribute what Python says."""
    ((name, value),) = node.attributes.items()
    attribute, expected = next(a for a in node.operator.attributes if a.name == name), None
    try:
        with errors_of(node.operator, node.name):
            attribute.vector(value)
    except OpError as error:
        expected = str(error)
    with prepared(runtime, node, "create") as attempt:
        error = attempt()[1]
        assert error is None if expected is None else error.endswith(expected)


examples = settings(max_examples=20) if FLAGS in os.environ else settings()  # sanitizers take long


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
    """Bytes that belong to no character are shown as U+FFFD."""
    assert_same_message(new, replace(GRID, name=name, attributes={"mode": "area"}))


@pytest.mark.parametrize(
    ("special", "quote"),
    [long_unless(s in (EACH_ESCAPE if q == "'" else "'"), s, q) for s in SPECIAL for q in "'\""],
    ids=ascii,
)
def test_escapes_where_texts_are_cut(new, special, quote):
    for n in range(12):
        mode = quote + "a" * (189 + n) + special * 3 + "b" * 200 + special * 3 + "c" * (89 + n)
        assert_same_message(new, replace(GRID, attributes={"mode": mode}))


@pytest.mark.parametrize("text", ["nearest\0", "\0", "a\0b"], ids=ascii)
def test_a_zero_is_a_character(new, text):
    assert_same_message(new, replace(GRID, attributes={"mode": text}))
    assert_same_message(new, replace(GRID, name=text, attributes={"mode": "area"}))


@examples
@given(
    strides=st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(1, 9), min_size=1, max_size=100)
)
@example([1] * 10_000)
@example([-(2**63)] * 1000)
def test_lists_are_shown_alike(new, strides):
    assert_same_message(new, replace(BLOCKS, attributes={"strides": strides}))


def answering(runtime, outcome, strings=None):
    """Let Python answer all questions with this outcome, and these strings; return the list of
    questions.
    """
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
        "plan": C.CFUNCTYPE(None, C.c_int64, HANDLE, HANDLE, pointer)(partial(answer, "plan")),
        "run": C.CFUNCTYPE(None, C.c_int64, C.c_int64, HANDLE, pointer)(partial(answer, "run")),
        "refuse": C.CFUNCTYPE(None, C.c_int64, *[HANDLE] * 3, pointer)(partial(answer, "refuse")),
        "interrupt": C.CFUNCTYPE(None)(lambda: questions.append("interrupt")),
    }
    for name, function in functions.items():
        runtime.kept.append(function)
        setattr(runtime.python, name, C.cast(function, HANDLE))
    return questions


PYTHONS_MESSAGE, NOT_TO_RUN = "what Python says", "onnx_ops: its session was not made to run"
ANSWERS = {  # the messages when a kernel is made, when it runs, and when one of strings runs
    native_backend.UNFINISHED: ("", NOT_TO_RUN, "onnx_ops: interrupted"),
    native_backend.LEFT_OUT: ("", NOT_TO_RUN, "onnx_ops: interrupted"),
    native_backend.FAILED: (PYTHONS_MESSAGE, NOT_TO_RUN, PYTHONS_MESSAGE),
    native_backend.REFUSED: (PYTHONS_MESSAGE, NOT_TO_RUN, PYTHONS_MESSAGE),
}


@pytest.mark.parametrize("outcome", ANSWERS)
def test_what_python_answers(make, outcome):
    runtime, interrupts = make(), outcome == native_backend.UNFINISHED
    runtime.shared = runtime.register(runtime.options())
    created, ran, ran_on_strings = ANSWERS[outcome]
    with prepared(runtime, *SCENARIOS["run with tensors of strings"][:2]) as attempt:
        questions = answering(runtime, outcome)
        assert attempt()[1].endswith(ran_on_strings)
        assert questions == ["run", *["interrupt"] * interrupts]
    runtime = make()
    runtime.shared = runtime.register(runtime.options())
    questions = answering(runtime, outcome)
    with prepared(runtime, GRID, "create", inferred=bool(created)) as attempt:
        answer, error = attempt()
        assert error.endswith(created) if created else error is None
        assert questions == ["compile", *["interrupt"] * interrupts] * 2  # for an inference, too
        if answer:
            assert runtime.attempt(answer[0].run, None, answer[1])[1].endswith(ran)
        answer = None


def test_python_is_not_called_while_an_interrupt_waits(make):
    runtime = make()
    runtime.shared = runtime.register(runtime.options())
    questions = answering(runtime, native_backend.DONE)
    with prepared(runtime, GRID, "create") as attempt:
        runtime.library.onnx_ops_wait_for_interrupt(1)
        assert attempt()[1] is None
        runtime.library.onnx_ops_wait_for_interrupt(0)
    assert "compile" not in questions


@pytest.mark.parametrize(
    "outcome", [native_backend.UNFINISHED, native_backend.FAILED, native_backend.REFUSED]
)
@pytest.mark.parametrize("waits", [False, True])
def test_refusals_that_python_answers(make, outcome, waits):
    """After an interrupt, and while one waits, the message is plain text."""
    runtime = make()
    runtime.shared = runtime.register(runtime.options())
    plain = (
        "GridSample (node 'the_node'): mode = 'area': must be one of nearest, bilinear, "
        "bicubic, linear, cubic"
    )
    with prepared(runtime, replace(GRID, attributes={"mode": "area"}), "create") as attempt:
        attempt()  # compiles what infers shapes
        questions = answering(runtime, outcome)
        runtime.library.onnx_ops_wait_for_interrupt(int(waits))
        error = attempt()[1]
        runtime.library.onnx_ops_wait_for_interrupt(0)
    is_interrupted = outcome == native_backend.UNFINISHED
    assert questions == ([] if waits else ["refuse", *["interrupt"] * is_interrupted])
    assert error.endswith(plain if waits or is_interrupted else PYTHONS_MESSAGE)


def test_without_python(make):
    """No operators on strings exist, others can't be compiled; without a table only custom
    operators exist.
    """
    runtime = make()
    runtime.python.compile = runtime.python.plan = runtime.python.run = runtime.python.refuse = None
    runtime.shared = runtime.register(runtime.options())
    with prepared(runtime, GRID, "create", inferred=1) as attempt:
        message = "onnx_ops: its operators are compiled by Python, where it has not been imported"
        assert attempt()[1].endswith(message)
    assert (
        "onnx_ops" not in runtime.attempt(session, runtime, node(COL2IM[0], "string"))[1]
    )  # ONNX Runtime refuses it
    runtime = make(operators=(), custom=())
    _, error = runtime.attempt(runtime.register, runtime.options([]))
    assert "onnx_ops must be imported in this process" in error
    runtime.add(*FUNCTIONS)
    assert runtime.attempt(runtime.register, runtime.options(["test.own"]))[1] is None
    assert runtime.calls.count("AddCustomOpDomain") == 1


@pytest.mark.parametrize("level", ["-O0", long_unless(False, "-O2")])
def test_it_compiles_without_warnings(tmp_path, level):
    build(tmp_path, "-Wall", "-Wextra", "-Werror", level)


SANITIZERS = "-g -fsanitize=address,undefined -fno-sanitize-recover=all"


@pytest.mark.long
@pytest.mark.skipif(FLAGS in os.environ, reason="this is the build that it makes")
def test_with_sanitizers(tmp_path):
    """Run the other tests with a build that ends the process at an access out of bounds, an
    overflow and the like.
    """
    # The sanitizer looks for C++'s functions when it is loaded, and ends the process if libraries
    # bring them later.
    asan, runtime = (
        subprocess.run(
            [COMPILER, f"-print-file-name={name}"], capture_output=True, text=True
        ).stdout.strip()
        for name in ("libasan.so", "libstdc++.so.6")
    )
    settings = {
        **os.environ,
        "LD_PRELOAD": f"{asan} {runtime}",
        "ASAN_OPTIONS": "detect_leaks=0",
        FLAGS: SANITIZERS,
    }
    trial = subprocess.run([sys.executable, "-c", ""], env=settings, capture_output=True)
    if not os.path.isabs(asan) or trial.returncode or trial.stderr:
        pytest.skip("the compiler has no sanitizers")
    # Pytest must not capture what sanitizers write to stderr.
    options = "-q --capture=sys -p no:cacheprovider".split()
    command = [sys.executable, "-m", "pytest", *options, "-k", "not warnings", __file__]
    done = subprocess.run(command, env=settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
