"""Operators of one's own, through every door."""

import os
import re
import subprocess
import sys
import textwrap
import threading
import types

import numpy as np
import onnx
import onnxruntime as ort
import own_operators as own
import pytest
from backends import quiet
from onnx import TensorProto, helper, numpy_helper

import onnx_ops
from onnx_ops import OpError
from onnx_ops.kernels.jit import numba_obstacle
from onnx_ops.own import check

need_numba = pytest.mark.skipif(numba_obstacle() is not None, reason="there is no Numba")
X = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
BIAS = np.arange(5, dtype=np.float32)


def model(operator, inputs, *, names=None, shapes=None, **attributes):
    """A model of one node, as bytes. names: of its inputs, "" for one that isn't there."""
    declared = operator.declaration
    names = names or [f"input_{k}" for k in range(len(inputs))]
    node = helper.make_node(
        declared.name, names, [o.name for o in declared.outputs], "the_node", domain=declared.domain, **attributes
    )
    there = [name for name in names if name]
    described = [
        helper.make_tensor_value_info(name, type_of(array), array.shape if shapes is None else shapes)
        for name, array in zip(there, inputs, strict=True)
    ]
    outputs = [onnx.ValueInfoProto(name=o.name) for o in declared.outputs]
    graph = helper.make_graph([node], "graph", described, outputs)
    imports = [helper.make_opsetid("", 18)]
    imports += [helper.make_opsetid(declared.domain, declared.versions[0])] if declared.domain else []
    return helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString()


def type_of(array):
    return TensorProto.STRING if array.dtype.hasobject else helper.np_dtype_to_tensor_dtype(array.dtype)


def run(operator, inputs, *, backend="native", names=None, shapes=None, threads=2, **attributes):
    options = quiet(intra_op_num_threads=threads)
    content = model(operator, inputs, names=names, shapes=shapes, **attributes)
    session = onnx_ops.InferenceSession(content, options, operators=[operator], backend=backend)
    return session.run(None, {i.name: array for i, array in zip(session.get_inputs(), inputs, strict=True)})


def numbers(*values, dtype=np.float32):
    return np.array(values, dtype)


CASES = {
    own.topk: [
        (X, [2]),
        (X, [5], BIAS, {"scale": -0.5}),
        (X[0], [1]),
        (np.random.default_rng(1).standard_normal((4, 30, 70)), [3], {"axes": [2]}),
        (X[:0], [2]),
        (X, [6]),
        (X, [0]),
        (X, [2], {"axes": [0]}),
    ],
    own.above: [
        (numbers(1, -2, 3, 0),),
        (numbers(1, 2),),
        (numbers(-1),),
        (numbers(),),
        (numbers(5, 7), {"limit": 6.0}),
    ],
    own.combine: [
        (BIAS, BIAS + 1, {"mode": "product"}),
        (BIAS, BIAS + 1, {"mode": "quotient", "flags": [0.25], "swap": False}),
        (BIAS + 1, BIAS + 2, {"mode": "quotient", "swap": True}),
        (BIAS, BIAS, {"mode": "quotient"}),
        (BIAS, BIAS[:2], {"mode": "product"}),
    ],
    own.window: [
        (BIAS,),
        (BIAS, [3]),
        (BIAS, [3], 2),
        (BIAS, [3], [4]),
        (BIAS, None, 1),
        (BIAS, [9]),
    ],
    own.join: [
        (np.array(["a", "é"], object), np.array(["", "bc"], object)),
        (np.array(["a"], object), {"between": "ß", "table": np.array([7.0]), "least": 2}),
        (np.array([], object),),
    ],
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy's, about overflows and infinities
@pytest.mark.parametrize("operator", CASES, ids=lambda o: o.__name__)
def test_every_door_against_the_body(operator):
    assert onnx_ops.check(operator, CASES[operator], extremes=operator is own.above) > 4 * len(CASES[operator])


@need_numba
@pytest.mark.parametrize("door", ["function", "native session", "onnx's evaluator"])
def test_check_finds_what_is_wrong(door, monkeypatch):
    """A way that is off in one number, and only that."""
    real = check.ways

    def ways(*args):
        for name, way in real(*args):
            yield name, (lambda way=way: [v + v.dtype.type(0.1) for v in way()]) if name.startswith(door) else way

    monkeypatch.setattr(check, "ways", ways)
    with pytest.raises(AssertionError, match=rf"my\.domain\.Combine, {door}.*: y is off by 0\.1"):
        onnx_ops.check(own.combine, [CASES[own.combine][0]], extremes=False)


def test_the_door_of_extensions():
    """In a process of its own, where the first session of that backend knows these operators."""
    pytest.importorskip("onnxruntime_extensions")
    code = """
        import onnx_ops, test_own
        from test_own import own
        names = []
        real = test_own.check.ways
        test_own.check.ways = lambda *args: ((names.append(name), (name, way))[1] for name, way in real(*args))
        for operator in (own.topk, own.combine):
            test_own.check.has_extensions(operator.declaration)
        for operator in (own.topk, own.combine):
            onnx_ops.check(operator, test_own.CASES[operator], extremes=False)
        print(names.count("extensions session"))
    """
    assert int(script(code).stdout) == (3 * (8 + 5) if numba_obstacle() is None else 0)


def test_attributes():
    texts = [np.array(["a"], object), np.array(["b"], object)]
    assert run(own.join, texts)[0].tolist() == ["a, b"]
    given = {"between": "é-", "table": numpy_helper.from_array(np.array([[2.0]])), "least": 9}
    made, length = run(own.join, texts, **given)
    assert (made.tolist(), length.tolist()) == (["aé-b"], [[9]])


BROKEN = [
    (own.combine, {}, r"mode = None: must be given"),
    (own.combine, {"mode": "sum"}, r"mode = 'sum': must be one of product, quotient"),
    (own.combine, {"mode": 1}, r"mode = \(of another kind\): must be a string"),
    (own.combine, {"mode": "product", "flags": [1, 2]}, r"flags = \(of another kind\): must be a list of numbers"),
    (own.combine, {"mode": "product", "swap": 2}, r"swap = 2: must be 0 or 1"),
    (own.combine, {"mode": "product", "swap": 1.0}, r"swap = \(of another kind\): must be an integer"),
]


@pytest.mark.parametrize(("operator", "attributes", "message"), BROKEN)
def test_malformed_attributes(operator, attributes, message):
    with pytest.raises(OpError, match=rf"my\.domain\.Combine \(node 'the_node'\): {message}"):
        run(operator, [BIAS, BIAS], **attributes)


def test_a_rule_is_heard_when_the_session_is_made():
    constant = model(own.topk, [X, np.array([2])])
    proto = onnx.ModelProto.FromString(constant)
    proto.graph.initializer.append(numpy_helper.from_array(np.array([9]), "input_1"))
    del proto.graph.input[1]
    rule = r"TopK \(node 'the_node'\): k = \[9\]: must lie in \[1, size of the last axis\]"
    with pytest.raises(OpError, match=rule):
        onnx_ops.InferenceSession(proto.SerializeToString(), quiet(), operators=[own.topk])


def test_shapes_that_a_rule_tells():
    session = onnx_ops.InferenceSession(
        model(own.combine, [BIAS, BIAS], mode="product"), quiet(), operators=[own.combine]
    )
    assert [o.shape for o in session.get_outputs()] == [[5]]


@pytest.mark.parametrize("names", [["x"], ["x", "k"], ["x", "k", "bias"]])
def test_optional_inputs(names):
    optional = onnx_ops.operator(
        "my.domain::Optional", inputs="x: T, k: T?, bias: T?", outputs="y: T", types={"T": ("float32",)}
    )

    @optional
    def function(x, k=None, bias=None):
        return x + (0 if k is None else k) * 10 + (0 if bias is None else bias) * 100

    ones = [numbers(1)] * len(names)
    assert run(function, ones)[0] == [1, 11, 111][len(names) - 1]
    if len(names) == 3:
        assert run(function, ones[:2], names=["x", "", "bias"])[0] == 101
        assert function(numbers(1), None, numbers(1)) == 101


def test_too_many_inputs():
    texts = [np.array(["a"], object)] * 17
    assert run(own.join, texts[:16])[1] == 16 + 2 * 15
    with pytest.raises(OpError, match=r"Join \(node 'the_node'\): inputs = 17: must be at most 16"):
        run(own.join, texts)


def mistaken(body, **more):
    return onnx_ops.operator("my.domain::Mistake", inputs="x: T", outputs="y: T", types={"T": ("float32",)}, **more)(
        body
    )


kept: list = []
MISTAKES = {
    "another type": (lambda x: x.astype(np.float64), r"dtype of y = float64: must be float32"),
    "nothing": (lambda x: None, r"dtype of y = object: must be float32"),
    "two outputs": (lambda x: (x, x), r"outputs = 2: must be 1, as declared"),
    "a view that is kept": (
        lambda x: kept.append(x[1:]) or x.copy(),
        r"x = kept: is a view of memory that ends with the",
    ),
    "too many axes": (lambda x: x.reshape([5] + [1] * 16), r"rank of y = 17: must be at most 16"),
    "writing": (lambda x: x.__setitem__(0, 1), r"ValueError: assignment destination is read-only"),
    "an exception": (lambda x: {}[x.size], r"KeyError: 5"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_of_a_body(name):
    body, message = MISTAKES[name]
    with pytest.raises(Exception, match=rf"my\.domain\.Mistake: {message}"):
        run(mistaken(body), [BIAS])
    kept.clear()
    if name != "a view that is kept":  # functions get the caller's own arrays
        with pytest.raises(OpError, match=rf"my\.domain\.Mistake: {message}"):
            mistaken(body)(BIAS)


RULES = {
    "another shape": (lambda x: (4,), r"shape of y = \[5\]: must be what the rule says: \[4\]"),
    "no shape": (lambda x: 5, r"rule = a function that returns 5: must return a tuple of integers"),
    "no numbers": (lambda x: ("a",), r"rule = a function that returns \('a',\): must return a tuple of integers"),
    "below 0": (lambda x: (-1,), r"shape of an output = \[-1\]: is what the rule says, but no shape"),
    "an exception": (lambda x: (x[7],), r"IndexError: tuple index out of range"),
}


@pytest.mark.parametrize("name", RULES)
def test_mistakes_of_a_rule(name):
    rule, message = RULES[name]
    function = mistaken(lambda x: x)
    function.shape(rule)
    with pytest.raises(Exception, match=rf"my\.domain\.Mistake( \(node 'the_node'\))?: {message}"):
        run(function, [BIAS])


def declare(body=lambda x: x, **changes):
    settings = {"inputs": "x: T", "outputs": "y: T", "types": {"T": ("float32",)}} | changes
    return onnx_ops.operator(settings.pop("name", "my.domain::Name"), **settings)(body)


def annotated(hint, *default):
    def body(x, *, a):
        return x

    body.__annotations__["a"] = hint
    body.__kwdefaults__ = {"a": default[0]} if default else None
    return body


DECLARATIONS = {
    "no domain": ({"name": "Name"}, r"name = 'Name': must be like 'my\.domain::Name'"),
    "no type": ({"inputs": "x"}, r"inputs = 'x': must be like \"x: T\""),
    "an unknown type": ({"inputs": "x: U"}, r"type of x = 'U': must be one of T"),
    "an unknown element type": ({"types": {"T": ("float33",)}}, r"type T = 'float33': must be among float32"),
    "complex numbers": ({"types": {"T": ("complex64",)}}, r"type T = 'complex64': must be among"),
    "an output's own variable": (
        {"outputs": "y: U", "types": {"T": ("float32",), "U": ("int8", "int16")}},
        r"type of y = U: must be an element type, or the type of an input",
    ),
    "an optional output": ({"outputs": "y: T?"}, r"outputs = 'y: T\?': must be there"),
    "ranks of nothing": ({"ranks": {"z": (1,)}}, r"ranks = 'z': must be those of x"),
    "other parameters": ({"body": lambda y: y}, r"parameters = \(y\): must be the inputs: \(x\)"),
    "an optional input without default": ({"inputs": "x: T?"}, r"x = x: must have the default None"),
    "a default for none": ({"body": lambda x=None: x}, r"x = x=None: must have the default None if and only if"),
    "variadic in the middle": ({"inputs": "x: T*, z: T", "body": lambda *x, z: x}, r"x = \*: must be the last input"),
    "no annotation": ({"body": lambda x, *, a: x}, r"a = without annotation: must have one"),
    "an annotation of nothing": ({"body": annotated(dict)}, r"annotation of a = dict: must be one of int, float, bool"),
    "lists of strings": (
        {"body": annotated(tuple[str, ...])},
        r"annotation of a = tuple\[str, \.\.\.\]: ONNX Runtime hands",
    ),
    "an annotation that isn't there": (
        {"body": annotated("Nowhere")},
        r"annotations = of body: can't be read: NameError",
    ),
    "a name that is there twice": ({"outputs": "x: T"}, r"names = x: must be that of one input, output or attribute"),
    "a version that is none": ({"version": 0}, r"version = 0: must be an integer from 1 on"),
    "ranks that are none": ({"ranks": {"x": 2}}, r"ranks of x = 2: must be a tuple of numbers from 0 to 16"),
    "a default of another type": ({"body": annotated(int, "b")}, r"a = 'b': must be an integer"),
    "keywords of any name": ({"body": lambda x, **a: x}, r"parameters = \*\*a: must be inputs or attributes"),
}


@pytest.mark.parametrize("name", DECLARATIONS)
def test_declarations_that_are_refused(name):
    changes, message = DECLARATIONS[name]
    with pytest.raises(OpError, match=message):
        declare(**changes)


def test_attachments_that_are_refused():
    with pytest.raises(OpError, match=r"parameters of the rule = \(z\): must be \(x\)"):
        declare().shape(lambda z: z)
    with pytest.raises(OpError, match=r"kernel = given: needs a rule"):
        declare().kernel(lambda x, index, count, workspace, y: 0)
    with pytest.raises(OpError, match=r"values = 'z': must be among x"):
        declare().shape(lambda x: x, values=["z"])
    with pytest.raises(OpError, match=r"type of x = float32: must be int32 or int64"):
        declare().shape(lambda x: x, values=["x"])
    with pytest.raises(
        OpError, match=r"parameters of the kernel = \(x, y\): must be \(x, index, count, workspace, y\)"
    ):
        declare().shape(lambda x: x).kernel(lambda x, y: 0)
    with pytest.raises(OpError, match=r"a = declared: can't be handed to a kernel"):
        declare(annotated(str)).shape(lambda x, *, a: x).kernel(lambda x, a, index, count, workspace, y: 0)


@need_numba
def test_a_mistake_in_a_kernel_names_its_line():
    function = declare()
    function.shape(lambda x: x)

    @function.kernel
    def _(x, index, count, workspace, y):
        y[0] = x.nothing()

    line = _.declaration.kernel.__code__.co_firstlineno + 2
    with pytest.raises(OpError, match=rf"can't be compiled: .*nothing.*\({re.escape(__file__)}, line {line}\)"):
        function(BIAS)


@need_numba
def test_kernels_that_are_refused():
    def kernel(x, index, count, workspace, y):
        print(x[0])

    def writer(x, index, count, workspace, y):
        x[0] = 1

    def caller(x, index, count, workspace, y):
        y[0] = numbers_of_nobody(x)

    def allocating(x, index, count, workspace, y):
        y[:] = np.zeros(len(x), np.float32)

    def raising(x, index, count, workspace, y):
        raise ValueError("no")

    messages = {
        kernel: "can't be compiled: it calls Python, as `print` does",
        writer: "can't be compiled: .*[Rr]eadonly|Cannot modify",
        caller: "must be marked by onnx_ops.jitable",
        allocating: "can't be compiled: it allocates an array",
        raising: "compiled code has raised an exception",
    }
    for each, message in messages.items():
        function = declare()
        function.shape(lambda x: x).kernel(each)
        with pytest.raises(OpError, match=message):
            function(BIAS)
        with pytest.raises(OpError, match=message):
            run(function, [BIAS])


def numbers_of_nobody(x):
    return x[0]


@need_numba
def test_kernels_of_one_name():
    """Each has its own code, whichever of them the module knows by that name."""
    functions = []
    for line in ("y[0] = 1", "y[0] = 2"):
        space = {"onnx_ops": onnx_ops, "__name__": __name__}
        exec(f"def kernel(x, index, count, workspace, y):\n    {line}", space)
        functions.append(declare())
        functions[-1].shape(lambda x: x).kernel(space["kernel"])
    assert [function(numbers(0))[0] for function in functions] == [1, 2]


@need_numba
def test_compiling_while_a_module_is_imported(tmp_path):
    text = FILE.format(factor=2, summand=1) + "\n\nimport numpy\nprint(scale(numpy.ones(1, numpy.float32)))"
    (tmp_path / "operators_of_mine.py").write_text(text)
    assert script("import operators_of_mine", tmp_path, NUMBA_CACHE_DIR=str(tmp_path)).stdout == "[3.]\n"


@need_numba
@pytest.mark.parametrize("dtype", onnx_ops.FLOATS[:1] + onnx_ops.FLOATS[2:])
def test_what_a_kernel_refuses(dtype):
    a = np.arange(4).astype(dtype)
    with pytest.raises(OpError, match=r"^my\.domain\.Combine: b = 0: must not be 0 where it divides$"):
        run(own.combine, [a, a], mode="quotient")
    assert np.array_equal(run(own.combine, [a, a + 1], mode="product")[0], (a * (a + 1) * 1.5).astype(dtype))


@need_numba
def test_ranks_that_are_not_compiled_run_the_body():
    x = np.random.default_rng(0).standard_normal((2, 2, 2, 6)).astype(np.float32)
    assert own.topk.declaration.position([4, 1, -1]) is None
    for got in (run(own.topk, [x, np.array([2])]), own.topk(x, [2])):
        for a, b in zip(got, own.topk.declaration.body(x, np.array([2])), strict=True):
            np.testing.assert_array_equal(a, b)


def test_many_threads():
    """Of one session, with bodies of both kinds."""
    texts = [np.array(["a"], object), np.array(["b"], object)]
    sessions = [
        (onnx_ops.InferenceSession(model(own.join, texts), quiet(), operators=[own.join]), texts, [["a, b"], [4]]),
        (
            onnx_ops.InferenceSession(model(own.above, [BIAS]), quiet(), operators=[own.above]),
            [BIAS],
            [[1, 2, 3, 4]] * 2,
        ),
    ]
    wrong = []

    def work():
        for _ in range(200):
            for session, inputs, expected in sessions:
                got = session.run(None, {f"input_{k}": array for k, array in enumerate(inputs)})
                if [array.tolist() for array in got] != expected:
                    wrong.append(got)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def shifted(amount, name="my.domain::Shift", module=None):
    def body(x):
        return x + np.float32(amount)

    body.__module__ = module or __name__
    return declare(body, name=name)


def test_declared_again():
    """New sessions have the new one, old ones the old one; one session can't have both."""
    first, second = shifted(1), shifted(2)
    content = model(first, [BIAS])
    options = quiet()
    old = onnx_ops.InferenceSession(content, options, operators=[first])
    new = onnx_ops.InferenceSession(content, quiet(), operators=[second])
    for session, amount in ((old, 1), (new, 2), (old, 1)):
        assert session.run(None, {"input_0": BIAS})[0].tolist() == (BIAS + amount).tolist()
    with pytest.raises(Exception, match=r"my\.domain\.Shift: the session's options have another operator of this name"):
        onnx_ops.register(options, operators=[second])
    with pytest.raises(
        OpError, match=r"my\.domain\.Shift: is declared twice, in test_own; one session can't have both"
    ):
        onnx_ops.register(quiet(), operators=[first, second])
    other = shifted(3, module="elsewhere")
    with pytest.raises(OpError, match=r"is declared twice, in elsewhere and test_own"):
        onnx_ops.register(quiet(), operators=[first, other])


def test_registering_more():
    """To a domain that the options have already, after sessions exist."""
    first, second = shifted(1), shifted(2, "my.domain::Other")
    options = onnx_ops.register(quiet(), operators=[first])
    ort.InferenceSession(model(first, [BIAS]), options)
    onnx_ops.register(options, operators=[second, first])
    session = ort.InferenceSession(model(second, [BIAS]), options)
    assert session.run(None, {"input_0": BIAS})[0].tolist() == (BIAS + 2).tolist()


def test_beside_those_of_this_package():
    """In ai.onnx, whose domain has some of both."""
    function = shifted(1, "::Shift")
    node = helper.make_node("Shift", ["y"], ["z"])
    proto = onnx.ModelProto.FromString(model(shifted(1), [np.zeros((1, 9, 9), np.float32)]))
    sizes = [numpy_helper.from_array(np.array(v), name) for name, v in (("image", [5, 5]), ("block", [3, 3]))]
    proto.graph.node[0].CopyFrom(helper.make_node("Col2Im", ["input_0", "image", "block"], ["y"]))
    proto.graph.node.append(node)
    proto.graph.initializer.extend(sizes)
    proto.graph.output[0].name = "z"
    session = onnx_ops.InferenceSession(proto.SerializeToString(), quiet(), operators=[function])
    assert session.run(None, {"input_0": np.zeros((1, 9, 9), np.float32)})[0].max() == 1


def test_what_operators_must_be():
    with pytest.raises(OpError, match=r"operators = <function .*: must be what onnx_ops\.operator has made"):
        onnx_ops.register(quiet(), operators=[test_what_operators_must_be])
    assert repr(declare()) == "<operator my.domain.Name of test_own>"


def test_extensions_know_operators_from_the_first_session_on():
    pytest.importorskip("onnxruntime_extensions")
    code = """
        from test_own import *
        run(own.combine, [BIAS, BIAS], backend="extensions", mode="product")
        for operator, inputs in ((shifted(1), [BIAS]), (own.join, [np.array(["a"], object)])):
            try:
                run(operator, inputs, backend="extensions")
            except OpError as error:
                print(error)
    """
    first, second = script(code).stdout.splitlines()
    assert first.startswith("my.domain.Shift: backend = 'extensions': must have been there when the first session was")
    assert re.match(r"my\.domain\.Join.*: backend = 'extensions': has no variadic inputs", second)


def test_an_interrupt_in_a_body():
    """It is raised where the run returns."""
    code = """
        import signal, threading, time, numpy as np, onnx_ops, test_own

        def body(x):
            threading.Timer(0.2, signal.pthread_kill, [threading.main_thread().ident, signal.SIGINT]).start()
            time.sleep(20)
            return x

        begin = time.monotonic()
        try:
            test_own.run(test_own.declare(body), [np.ones(1, np.float32)])
        except KeyboardInterrupt:
            print("interrupted", time.monotonic() - begin < 10)
    """
    assert script(code).stdout.split() == ["interrupted", "True"]


def script(code, folder=None, check=True, **environment):
    here = os.path.dirname(__file__)
    paths = os.pathsep.join(filter(None, [folder and str(folder), here, os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True, text=True, cwd=folder, env={**os.environ, "PYTHONPATH": paths, **environment},
    )  # fmt: skip
    assert not check or done.returncode == 0, done.stderr
    return done


FILE = """
import onnx_ops

FACTOR = {factor}


@onnx_ops.jitable
def scaled(x):
    return x * FACTOR + {summand}


@onnx_ops.operator("my.domain::Scale", inputs="x: T", outputs="y: T", types={{"T": ("float32",)}})
def scale(x):
    return (x * FACTOR + {summand}).astype(x.dtype)


@scale.shape
def _(x):
    return x


@scale.kernel
def _(x, index, count, workspace, y):
    for k in range(len(x)):
        y[k] = scaled(x[k])
"""


@need_numba
def test_the_cache_knows_the_users_module(tmp_path):
    """Code is compiled once for an unchanged file, and anew after each edit."""
    code = """
        import logging, numpy as np, operators_of_mine
        from onnx_ops.kernels.code import Code
        compiled = []
        real = Code.compile
        Code.compile = lambda self: compiled.append(self.entry.name) or real(self)
        print(operators_of_mine.scale(np.ones(1, np.float32))[0], len(compiled))
    """
    file, found = tmp_path / "operators_of_mine.py", []
    for factor, summand in ((2, 1), (2, 1), (3, 1), (3, 0.5)):
        file.write_text(FILE.format(factor=factor, summand=summand))
        found.append(
            script(code, tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "cache"), PYTHONDONTWRITEBYTECODE="1").stdout.split()
        )
    assert found == [["3.0", "2"], ["3.0", "0"], ["4.0", "2"], ["3.5", "2"]]


def test_bodies_need_no_numba(tmp_path):
    (tmp_path / "operators_of_mine.py").write_text(FILE.format(factor=2, summand=1))
    code = """
        import sys
        sys.modules["numba"] = None
        import importlib.util
        real = importlib.util.find_spec
        importlib.util.find_spec = lambda name, *args: None if name == "numba" else real(name, *args)
        import numpy as np, test_own, operators_of_mine
        assert test_own.numba_obstacle()
        print(test_own.run(operators_of_mine.scale, [np.ones(2, np.float32)])[0].tolist())
    """
    assert script(code, tmp_path).stdout.split() == ["[3.0,", "3.0]"]


@need_numba
def test_a_library_of_ones_own(tmp_path):
    """Written in Python, run by an onnxruntime that knows neither this package nor Numba."""
    library, models = tmp_path / "libmine.so", {}
    onnx_ops.build(
        library, operators=[own.topk, own.above, own.combine], dtypes=["float32", "float16"], cpus=["x86-64-v2"]
    )
    half = BIAS.astype(np.float16)
    for name, operator, inputs, attributes in (
        ("topk", own.topk, [X, np.array([2]), BIAS], {"scale": 2.0}),
        ("above", own.above, [BIAS - 2], {}),
        ("combine", own.combine, [half, half + 1], {"mode": "quotient"}),
        ("refused", own.combine, [half, half], {"mode": "quotient"}),
        ("rank", own.topk, [X.reshape(1, 1, 3, 5), np.array([2])], {}),
    ):
        (tmp_path / f"{name}.onnx").write_bytes(model(operator, inputs, **attributes))
        models[name] = inputs
        np.savez(tmp_path / f"{name}.npz", *inputs)
    code = """
        import sys, numpy as np, onnxruntime as ort
        for name in sys.argv[1:] or "topk above combine refused rank".split():
            options = ort.SessionOptions()
            options.log_severity_level = 4
            options.register_custom_ops_library("./libmine.so")
            inputs = list(np.load(name + ".npz").values())
            try:
                session = ort.InferenceSession(name + ".onnx", options)
                outputs = session.run(None, {f"input_{k}": array for k, array in enumerate(inputs)})
                np.savez(name + "_out.npz", *outputs)
            except Exception as error:
                print(str(error).rpartition("Message: ")[2] or error)
        assert not {"onnx_ops", "numba"} & sys.modules.keys()
    """
    said = script(code, tmp_path).stdout.splitlines()
    assert said[0] == "my.domain.Combine: b = 0: must not be 0 where it divides"
    assert re.search(
        r"my\.domain\.TopK: its body is compiled for other ranks than 4, 1, and runs in Python only", said[1]
    )
    for name, attributes in (("topk", {"scale": 2.0}), ("above", {}), ("combine", {"mode": "quotient"})):
        got = np.load(tmp_path / f"{name}_out.npz").values()
        expected = getattr(own, name).declaration.body(*models[name], **attributes)
        for a, b in zip(got, expected if isinstance(expected, tuple) else [expected], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3 if name == "combine" else 1e-6)


def test_the_command_line(tmp_path):
    (tmp_path / "mine.py").write_text(FILE.format(factor=2, summand=1))
    (tmp_path / "scale.onnx").write_bytes(
        model(types.SimpleNamespace(declaration=declare(name="my.domain::Scale").declaration), [BIAS])
    )
    np.save(tmp_path / "x.npy", BIAS)
    code = "import sys; sys.argv[0] = 'onnx-ops'; from onnx_ops.cli import main; main()"

    def command(*words):
        here = {**os.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        done = subprocess.run(
            [sys.executable, "-c", code, *words], capture_output=True, text=True, cwd=tmp_path, env=here
        )
        return done.returncode, done.stdout + done.stderr

    assert "Scale" in command("--operators", "mine.py", "list")[1]
    assert command("--operators", "mine.py", "run", "scale.onnx", "--input", "x.npy", "--compare", "reference")[0] == 0
    assert "runs 1 of 1 without problems" in command("--operators", "mine.py", "inspect", "scale.onnx")[1]
    assert command("run", "scale.onnx", "--input", "x.npy")[0] == 3
    (tmp_path / "none.py").write_text("x = 1")
    (tmp_path / "broken.py").write_text("1 / 0")
    assert "has no operators" in command("--operators", "none.py", "list")[1]
    assert "can't be imported: ZeroDivisionError" in command("--operators", "broken.py", "list")[1]
