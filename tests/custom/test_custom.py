"""Custom operators, run in every way."""

import functools
import importlib
import pickle
import re
import sys
import textwrap
import types
import typing

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper, parser
from support import custom_operators as custom
from support.backends import quiet
from support.processes import python, together
from support.selection import each_dtype, long_unless, needs_extensions

import onnx_ops
from onnx_ops import OpError
from onnx_ops.custom import check
from onnx_ops.declaration.jit import numba_obstacle
from onnx_ops.model import operator_files as files
from onnx_ops.native.execute import EXCEPTION
from onnx_ops.session import variants

need_numba = pytest.mark.skipif(numba_obstacle() is not None, reason="there is no Numba")
X = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
BIAS = np.arange(5, dtype=np.float32)


def model(operator, inputs, *, names=None, shapes=None, **attributes):
    """A model of one node, as bytes. names: those of the inputs, "" for an absent one."""
    declared = operator.declaration
    names = names or [f"input_{k}" for k in range(len(inputs))]
    node = helper.make_node(
        declared.name,
        names,
        [o.name for o in declared.outputs],
        "the_node",
        domain=declared.domain,
        **attributes,
    )
    there = [name for name in names if name]
    described = [
        helper.make_tensor_value_info(
            name, type_of(array), array.shape if shapes is None else shapes
        )
        for name, array in zip(there, inputs, strict=True)
    ]
    outputs = [onnx.ValueInfoProto(name=o.name) for o in declared.outputs]
    graph = helper.make_graph([node], "graph", described, outputs)
    imports = [helper.make_opsetid("", 18)]
    imports += (
        [helper.make_opsetid(declared.domain, declared.versions[0])] if declared.domain else []
    )
    return helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString()


def type_of(array):
    return (
        TensorProto.STRING
        if array.dtype.hasobject
        else helper.np_dtype_to_tensor_dtype(array.dtype)
    )


def run_operator(
    operator, inputs, *, backend="native", names=None, shapes=None, threads=2, **attributes
):
    options = quiet(intra_op_num_threads=threads)
    content = model(operator, inputs, names=names, shapes=shapes, **attributes)
    session = onnx_ops.InferenceSession(content, options, operators=[operator], backend=backend)
    return session.run(
        None, {i.name: array for i, array in zip(session.get_inputs(), inputs, strict=True)}
    )


def numbers(*values, dtype=np.float32):
    return np.array(values, dtype)


CASES = {
    custom.topk: [
        (X, [2]),
        (X, [5], BIAS, {"scale": -0.5}),
        (X[:0], [2]),
        (X, [6]),
        (X, [2], {"axes": [0]}),
    ],
    custom.above: [
        (numbers(1, -2, 3, 0),),
        (numbers(),),
        (numbers(5, 7), {"limit": 6.0}),
    ],
    custom.combine: [
        (BIAS, BIAS + 1, {"mode": "product"}),
        (BIAS, BIAS + 1, {"mode": "quotient", "flags": [0.25], "swap": False}),
        (BIAS + 1, BIAS + 2, {"mode": "quotient", "swap": True}),
        (BIAS, BIAS, {"mode": "quotient"}),
        (BIAS, BIAS[:2], {"mode": "product"}),
    ],
    custom.window: [
        (BIAS,),
        (BIAS, [3]),
        (BIAS, [3], 2),
        (BIAS, None, 1),
        (BIAS, [9]),
    ],
    custom.join: [
        (np.array(["a", "é"], object), np.array(["", "bc"], object)),
        (np.array(["a"], object), {"between": "ß", "table": np.array([7.0]), "least": 2}),
        (np.array([], object),),
    ],
}  # fmt: skip
OF_RANK_3 = [(np.random.default_rng(1).standard_normal((4, 30, 70)), [3], {"axes": [2]})]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy warns of overflows and infinities
@pytest.mark.parametrize(
    ("operator", "cases"),
    [
        # The kernels of `window` are also in tests/native/test_native.py.
        *(
            long_unless(o is not custom.window, o, cases, id=o.__name__)
            for o, cases in CASES.items()
        ),
        long_unless(False, custom.topk, OF_RANK_3, id="TopK of rank 3"),  # has kernels of its own
    ],
)
def test_every_way_against_the_body(operator, cases):
    compared = onnx_ops.check(operator, cases, extremes=operator is custom.above)
    assert compared > 4 * len(cases)


def test_extremes_end_with_empty_inputs():
    *_, (arrays, are_extreme) = check.variations(custom.above.declaration, [X[0]], True)
    assert (arrays[0].shape, are_extreme) == ((0,), True)


@each_dtype("float32", "float16", "int8")
@pytest.mark.parametrize("size", [1, 2, 11])
def test_extremes_leave_half_of_the_elements(size, dtype):
    assert np.count_nonzero(check.extreme(np.full(size, 5, dtype)) != 5) == max(size // 2, 1)


@need_numba
@pytest.mark.parametrize("wrong_way", ["function", "native session", "onnx's evaluator", "PyTorch"])
def test_check_finds_what_is_wrong(wrong_way, monkeypatch):
    """`check` detects one way whose numbers are off, and names it."""
    if wrong_way == "PyTorch":
        pytest.importorskip("torch")
    real = check.implementations

    def ways(*args):
        for name, function in real(*args):
            yield (
                name,
                (lambda function=function: [v + v.dtype.type(0.1) for v in function()])
                if name.startswith(wrong_way)
                else function,
            )

    monkeypatch.setattr(check, "implementations", ways)
    message = (
        rf"my\.domain\.Combine, {wrong_way}.*: y at \[\d\] is .*, "
        r"but of the function in NumPy .*; 5 of 5 differ"
    )
    with pytest.raises(AssertionError, match=message):
        onnx_ops.check(custom.combine, [CASES[custom.combine][0]], extremes=False)


@pytest.mark.long
@needs_extensions
def test_extensions_sessions_against_the_body():
    """The first session of that backend must know these operators, hence the new process."""
    code = """
        import onnx_ops, test_custom
        from test_custom import custom
        names = []
        real = test_custom.check.implementations
        test_custom.check.has_torch = lambda operator: False  # its import takes long
        test_custom.check.implementations = lambda *args: ((names.append(name), (name, way))[1]
            for name, way in real(*args))
        for operator in (custom.topk, custom.combine):
            test_custom.check.has_extensions(operator.declaration)
        for operator in (custom.topk, custom.combine):
            onnx_ops.check(operator, test_custom.CASES[operator][1::3], extremes=False)
        print(names.count("extensions session"))
    """
    done = run_script(code)
    assert int(done.stdout) == (3 * (2 + 2) if numba_obstacle() is None else 0)
    assert (
        "must not be" not in done.stderr
    )  # that backend logs what cases of `combine` are refused for


BROKEN = [
    ({}, r"mode = None: must be given"),
    ({"mode": "sum"}, r"mode = 'sum': must be one of product, quotient"),
    ({"mode": 1}, r"mode = \(not of kind STRING\): must be a string"),
    ({"mode": [1]}, r"mode = \[1\] \(not of kind STRING\): must be a string"),
    (
        {"mode": "product", "flags": [1, 2]},
        r"flags = \[1, 2\] \(not of kind FLOATS\): must be a list of numbers",
    ),
    ({"mode": "product", "swap": 2}, r"swap = 2: must be 0 or 1"),
    ({"mode": "product", "swap": 1.0}, r"swap = \(not of kind INT\): must be an integer"),
]


@pytest.mark.parametrize(("attributes", "message"), BROKEN)
def test_malformed_attributes(attributes, message):
    with pytest.raises(OpError, match=rf"my\.domain\.Combine \(node 'the_node'\): {message}"):
        run_operator(custom.combine, [BIAS, BIAS], **attributes)


def test_an_integer_where_a_float_is_declared():
    with pytest.raises(OpError, match=r"scale = 2 \(not of kind FLOAT\): must be a number"):
        run_operator(custom.topk, [X, np.array([2])], scale=2)


def test_a_rule_is_heard_when_the_session_is_made():
    constant = model(custom.topk, [X, np.array([2])])
    proto = onnx.ModelProto.FromString(constant)
    proto.graph.initializer.append(numpy_helper.from_array(np.array([9]), "input_1"))
    del proto.graph.input[1]
    rule = r"TopK \(node 'the_node'\): k = \[9\]: must lie in \[1, size of the last axis\]"
    with pytest.raises(OpError, match=rule):
        onnx_ops.InferenceSession(proto.SerializeToString(), quiet(), operators=[custom.topk])


def test_too_many_inputs():
    texts = [np.array(["a"], object)] * 17
    assert run_operator(custom.join, texts[:16])[1] == 16 + 2 * 15
    with pytest.raises(OpError, match=r"Join \(node 'the_node'\): inputs = 17: must be at most 16"):
        run_operator(custom.join, texts)


def mistaken(body, **more):
    return onnx_ops.operator(
        "my.domain::Mistake", inputs="x: T", outputs="y: T", types={"T": ("float32",)}, **more
    )(body)


def keep_and_fail(x):
    kept.append(x)
    raise ValueError("no")


class UnspeakableError(Exception):
    def __str__(self):
        raise RuntimeError


def fail_unspeakably(x):
    raise UnspeakableError


kept: list = []
KEPT = r"x = kept: is a view of memory that ends with the"
MISTAKES = {
    "another type": (lambda x: x.astype(np.float64), r"dtype of y = float64: must be float32"),
    "nothing": (lambda x: None, r"outputs = None: must be returned"),
    "a number of another type": (lambda x: np.float64(1), r"dtype of y = float64: must be float32"),
    "no array": (lambda x: {1}, r"dtype of y = object: must be float32"),
    "two outputs": (lambda x: (x, x), r"outputs = 2: must be 1, as declared"),
    "a view that is kept": (lambda x: kept.append(x[1:]) or x.copy(), KEPT),
    "the memory below": (lambda x: kept.append(memoryview(x.base)[1:]) or x.copy(), KEPT),
    "a view that is kept where it fails": (keep_and_fail, KEPT),
    "an exception without a text": (fail_unspeakably, r"UnspeakableError: its text is unavailable"),
    "too many axes": (lambda x: x.reshape([5] + [1] * 16), r"rank of y = 17: must be at most 16"),
    "writing": (lambda x: x.__setitem__(0, 1), r"ValueError: assignment destination is read-only"),
    "an exception": (lambda x: {}[x.size], r"KeyError: 5 \(test_custom\.py, line \d+\)"),
}


# kept_views in test_troubleshooting.py has a view that is kept in the short run.
@pytest.mark.parametrize(
    "name", [long_unless(row[1] is not KEPT, name) for name, row in MISTAKES.items()]
)
def test_mistakes_of_a_body(name):
    body, message = MISTAKES[name]
    with pytest.raises(Exception, match=rf"my\.domain\.Mistake: {message}"):
        run_operator(mistaken(body), [BIAS])
    kept.clear()
    if message != KEPT:  # functions get the caller's own arrays
        with pytest.raises(OpError, match=rf"my\.domain\.Mistake: {message}"):
            mistaken(body)(BIAS)


@pytest.mark.parametrize(
    ("python_type", "value", "is_taken"),
    [
        ("int64", 3, True), ("int64", 2.5, False), ("int64", float("nan"), False),
        ("uint8", -1, False),
        ("uint8", 2**80, False), ("float32", 3, True), ("bool", True, True), ("bool", 2, False),
        ("int8", True, True),
    ],
)  # fmt: skip
def test_numbers_of_python_as_outputs(python_type, value, is_taken):
    """Numbers are accepted if they are exact, or if the output is of floats."""
    function = onnx_ops.operator(
        "my.domain::Number", inputs="x: float32", outputs=f"y: {python_type}"
    )(lambda x: value)
    if is_taken:
        assert run_operator(function, [BIAS])[0] == value
    else:
        with pytest.raises(OpError, match=r"my\.domain\.Number: dtype of y = "):
            run_operator(function, [BIAS])


@pytest.mark.parametrize(
    "text", ["b\0c", "", "\0", "é" * 1000, b"\xff".decode(errors="surrogateescape")]
)
def test_strings(text):
    """Strings may have any characters; other objects are refused."""
    identity = onnx_ops.operator("my.domain::Same", inputs="x: string", outputs="y: string")
    x = np.array([text, "a"], object)
    texts = np.array([text.encode(errors="surrogateescape").decode(errors="replace"), "a"], object)
    if text.isprintable() or "\0" in text:
        assert run_operator(identity(lambda x: x), [texts])[0].tolist() == x.tolist()
    for wrong in (None, 5, b"a", "\ud800"):
        with pytest.raises(
            OpError, match=r"my\.domain\.Same: y = .*must be a string that has a UTF-8"
        ):
            run_operator(identity(constant(np.array([wrong], object))), [texts])


def constant(value):
    return lambda x: value


def test_a_body_that_calls_itself():
    """It leaves a cycle that holds the view."""

    def body(x):
        def item(i):
            return x[i] if i == 0 else item(i - 1)

        return x * item(3)

    assert np.array_equal(run_operator(mistaken(body), [BIAS + 2])[0], (BIAS + 2) * 2)


def test_a_body_cannot_write_to_a_tensor():
    """Which may be the default of later calls, or the caller's own."""
    ones = np.ones(5, np.float32)
    plus = onnx_ops.operator("my.domain::Plus", inputs="x: float32", outputs="y: float32")

    @plus
    def function(x, *, a: np.ndarray = ones):
        a += x
        return a

    for call in (function, lambda x: function(x, a=ones), lambda x: run_operator(function, [x])[0]):
        with pytest.raises(
            OpError, match=r"my\.domain\.Plus: ValueError: output array is read-only"
        ):
            call(BIAS)
    ones[0] = 2  # its owner can


RULES = {
    "another shape": (
        lambda x: (4,),
        r"shape of y = \[5\]: must be the result of the shape function: \[4\]",
    ),
    "no shape": (
        lambda x: 5,
        r"rule = a function that returns 5: must return a tuple of integers(?!,)",
    ),
    "no numbers": (
        lambda x: ("a",),
        r"rule = a function that returns \('a',\): must return a tuple of integers",
    ),
    "below 0": (
        lambda x: (-1,),
        r"shape of an output = \[-1\]: is the result of the shape function, but no shape",
    ),
    "an exception": (lambda x: (x[7],), r"IndexError: tuple index out of range"),
}


@pytest.mark.parametrize("name", RULES)
def test_mistakes_of_a_rule(name):
    rule, message = RULES[name]
    function = mistaken(lambda x: x)
    function.shape(rule)
    with pytest.raises(Exception, match=rf"my\.domain\.Mistake( \(node 'the_node'\))?: {message}"):
        run_operator(function, [BIAS])


def test_a_mistake_of_a_rule_for_two_outputs():
    @onnx_ops.operator("my.domain::Both", inputs="x: float32", outputs="y: float32, z: float32")
    def function(x):
        return x, x

    function.shape(lambda x: (x, x, x))
    with pytest.raises(OpError, match=r"must return a tuple of integers, for each of the outputs"):
        function(BIAS)


def test_strings_that_are_left_out():
    @onnx_ops.operator("my.domain::Both", inputs="x: string, more: string?", outputs="y: string")
    def function(x, more=None):
        return x if more is None else x + more

    texts = np.array(["a", "", "\u2013"], object)
    assert run_operator(function, [texts, texts])[0].tolist() == ["aa", "", "\u2013\u2013"]
    for names in (["x"], ["x", ""]):
        assert run_operator(function, [texts], names=names)[0].tolist() == texts.tolist()


def test_a_tensor_among_the_attributes():
    """Inference can't read it. Elements of 8-bit floats are none that an operator has."""

    @onnx_ops.operator("my.domain::Plus", inputs="x: float32", outputs="y: float32")
    def function(x, *, a: np.ndarray):
        return x + a

    function.shape(lambda x, *, a: x)
    tensor = onnx.numpy_helper.from_array(BIAS)
    assert np.array_equal(run_operator(function, [BIAS], a=tensor)[0], BIAS + BIAS)
    of_8_bits = helper.make_tensor(
        "a", onnx.TensorProto.FLOAT8E4M3FN, BIAS.shape, bytes(BIAS.size), raw=True
    )
    with pytest.raises(
        Exception, match=r"Plus \(node 'the_node'\): a = \(not of kind TENSOR\): must be a tensor"
    ):
        run_operator(function, [BIAS], a=of_8_bits)


def declare(body=lambda x: x, **changes):
    settings = {"inputs": "x: T", "outputs": "y: T", "types": {"T": ("float32",)}} | changes
    return onnx_ops.operator(settings.pop("name", "my.domain::Name"), **settings)(body)


def annotated(hint, *default):
    def body(x, *, a):
        return x

    body.__annotations__["a"] = hint
    body.__kwdefaults__ = {"a": default[0]} if default else None
    return body


TWO = {"T": ("float32",), "U": ("int8", "int16")}


DECLARATIONS = {
    "no domain": ({"name": "Name"}, r"name = 'Name': must be like 'my\.domain::Name'"),
    "no type": ({"inputs": "x"}, r"inputs = 'x': must be like \"x: T\""),
    "no text": ({"inputs": ["x"]}, r"inputs = \['x'\]: must be a text like"),
    "no function": (
        {"body": functools.partial(lambda x: x)},
        r"body = functools.*: must be a function",
    ),
    "an attribute of calls": (
        {"body": lambda threads: 0, "inputs": "threads: T"},
        r"names = threads: is the argument of calls",
    ),
    "a choice with a NUL": (
        {"body": annotated(typing.Literal["a\0b"])},
        r"annotation of a = .*: must be one of int",
    ),
    "an unknown type": (
        {"inputs": "x: U"},
        r"type of x = 'U': must be a type variable of `types` or a data type",
    ),
    "an unknown element type": (
        {"types": {"T": ("float33",)}},
        r"type T = 'float33': must be among float32",
    ),
    "complex numbers": ({"types": {"T": ("complex64",)}}, r"type T = 'complex64': must be among"),
    "an output's own variable": (
        {"outputs": "y: U", "types": TWO},
        r"type of y = U: must be a data type, or the",
    ),
    "an optional output": ({"outputs": "y: T?"}, r"outputs = 'y: T\?': must always be present"),
    "ranks of nothing": ({"ranks": {"z": (1,)}}, r"ranks = 'z': must be those of x"),
    "other parameters": ({"body": lambda y: y}, r"parameters = \(y\): must be the inputs: \(x\)"),
    "an optional input without default": (
        {"inputs": "x: T?"},
        r"x = x: must have the default None",
    ),
    "a default for none": (
        {"body": lambda x=None: x},
        r"x = x=None: must have the default None if and only if",
    ),
    "variadic in the middle": (
        {"inputs": "x: T*, z: T", "body": lambda *x, z: x},
        r"x = \*: must be the last input",
    ),
    "no annotation": ({"body": lambda x, *, a: x}, r"a = without annotation: must have one"),
    "an annotation of nothing": (
        {"body": annotated(dict)},
        r"annotation of a = dict: must be one of int, float, bool",
    ),
    "lists of strings": (
        {"body": annotated(tuple[str, ...])},
        r"annotation of a = .*: ONNX Runtime passes",
    ),
    "no such annotation": (
        {"body": annotated("Nowhere")},
        r"annotations = of body: can't be read: NameError",
    ),
    "a name that is there twice": (
        {"outputs": "x: T"},
        r"names = x: must be that of one input, output or attribute",
    ),
    "a version that is none": ({"version": 0}, r"version = 0: must be an integer from 1 on"),
    "ranks that are none": (
        {"ranks": {"x": 2}},
        r"ranks of x = 2: must be a tuple of numbers from 0 to 16",
    ),
    "a default of another type": ({"body": annotated(int, "b")}, r"a = 'b': must be an integer"),
    "keywords of any name": (
        {"body": lambda x, **a: x},
        r"parameters = \*\*a: must be inputs or attributes",
    ),
}


@pytest.mark.parametrize("name", DECLARATIONS)
def test_declarations_that_are_refused(name):
    changes, message = DECLARATIONS[name]
    with pytest.raises(OpError, match=message):
        declare(**changes)


ANNOTATED = """
{future}
def body(x: {annotation}): return x
def rule(x: {annotation}): return x
def kernel(x: {annotation}, index, count, workspace, y: {annotation}):
    for k in range(len(y)): y[k] = x[k]
def gradient(grad_y: {annotation}): return grad_y
"""
NOW = pytest.mark.skipif(
    sys.version_info < (3, 14), reason="Python evaluates annotations with the def"
)


def functions_annotated(annotation, future=""):
    namespace = {"__name__": "annotated"}
    exec(ANNOTATED.format(annotation=annotation, future=future), namespace)
    return types.SimpleNamespace(**namespace)


@pytest.mark.parametrize(
    "future", ["from __future__ import annotations", pytest.param("", marks=NOW)]
)
def test_annotations_that_only_a_type_checker_knows(future):
    """An operator's function is refused; rules, kernels and gradients work, as nothing needs their
    annotations.
    """
    of = functions_annotated("Nowhere", future)
    with pytest.raises(
        OpError,
        match=r"^my\.domain\.Name: annotations = of body: can't be read: NameError: .*Nowhere",
    ):
        declare(of.body)
    operator = declare(ranks={"x": (1,)}).shape(of.rule).kernel(of.kernel).gradient(of.gradient)
    np.testing.assert_array_equal(run_operator(operator, [BIAS]), [BIAS])


@NOW
def test_annotations_that_fail_when_they_are_read():
    of = functions_annotated("1 / 0")
    refused = r"annotations = of {}: can't be read: ZeroDivisionError"
    with pytest.raises(OpError, match=rf"^my\.domain\.Name: {refused.format('body')}"):
        declare(of.body)
    with pytest.raises(OpError, match=rf"^my\.domain\.Name: {refused.format('rule')}"):
        declare().shape(of.rule)


def writes_nothing(x, index, count, workspace, y):
    return 0


ATTACHMENTS = {  # what is attached to a declaration, and why it is refused
    "another rule": (
        lambda f: f.shape(lambda z: z),
        r"parameters of the rule = \(z\): must be \(x\)",
    ),
    "a kernel without a rule": (
        lambda f: f.kernel(writes_nothing),
        "kernel = given: requires a shape function",
    ),
    "values of nothing": (
        lambda f: f.shape(lambda x: x, values=["z"]),
        "values = 'z': must be among x",
    ),
    "values of floats": (
        lambda f: f.shape(lambda x: x, values=["x"]),
        "type of x = float32: must be int32 or int64",
    ),
    "another kernel": (
        lambda f: f.shape(lambda x: x).kernel(lambda x, y: 0),
        r"parameters of the kernel = \(x, y\): must be \(x, index, count, workspace, y\)",
    ),
    "no function": (
        lambda f: f.shape(functools.partial(lambda x: x)),
        "rule = functools.*: must be a function, made by",
    ),
    "no loop": (
        lambda f: f.shape(lambda x: x).kernel(writes_nothing, loop=4),
        "loop = 4: must be a function",
    ),
    "a loop and a bound": (
        lambda f: f.shape(lambda x: x, bound=True).kernel(writes_nothing, loop=lambda x: x[0]),
        "loop = given: can't be combined with bound=True",
    ),
}


@pytest.mark.parametrize("name", ATTACHMENTS)
def test_attachments_that_are_refused(name):
    attach, message = ATTACHMENTS[name]
    with pytest.raises(OpError, match=message):
        attach(declare())


def shortened(x, *, mode: typing.Literal["plus", "minus"] = "plus"):
    return x[mode == "minus" :]


@onnx_ops.jitable
def sign(mode):
    return -1 if mode in ("minus", "other") else 1


def compared(text):
    return lambda x, mode, index, count, workspace, y: 1 if mode == text else 2


def of_kernel(kernel, **more):
    return lambda f: f.shape(lambda x, mode: x).kernel(kernel, **more)


MINUS, NAMES = "minus", types.ModuleType("names")
NAMES.MINUS = MINUS
# Parts of an operator that compare a Literal, which is a position there, with a string.
COMPARISONS = {
    "a rule": lambda f: f.shape(lambda x, *, mode: x if mode == "minus" else (1,)),
    "several in a rule": lambda f: f.shape(
        lambda x, *, mode: x if mode in ("minus", "other") else (1,)
    ),
    "a kernel": of_kernel(lambda x, mode, index, count, workspace, y: 1 if mode == "minus" else 2),
    "what a kernel calls": of_kernel(lambda x, mode, index, count, workspace, y: sign(mode)),
    "a kernel and a variable": of_kernel(
        lambda x, mode, index, count, workspace, y: 1 if mode == MINUS else 2
    ),
    "a kernel and a module's": of_kernel(
        lambda x, mode, index, count, workspace, y: 1 if mode == NAMES.MINUS else 2
    ),
    "a kernel and one around it": of_kernel(compared("minus")),
    "a loop": of_kernel(
        lambda x, mode, index, count, workspace, y: 0,
        loop=lambda x, *, mode: x[0] if mode == "minus" else 1,
    ),
}


@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons_with_a_string(name):
    rule = r" = test_custom.py, line \d+: compares with a string, .*: write mode == 1 for 'minus'"
    with pytest.raises(OpError, match=rule):
        COMPARISONS[name](declare(shortened))


def test_a_literal_is_a_position_in_a_rule():
    function = declare(shortened).shape(lambda x, *, mode: (x[0] - mode,))
    x = np.arange(4, dtype=np.float32)
    assert function(x, mode="minus").tolist() == [1, 2, 3]
    torch = pytest.importorskip("torch")
    assert function.torch(torch.from_numpy(x), mode="minus").tolist() == [1, 2, 3]

    class Shortened(torch.nn.Module):
        def forward(self, x):
            return function.torch(x, mode="minus")

    sizes = ({0: torch.export.Dim("n", min=3)},)
    exported = torch.export.export(Shortened(), (torch.rand(5),), dynamic_shapes=sizes)
    assert exported.module()(torch.rand(9)).shape == (8,)
    (node,) = (
        n for n in exported.graph.nodes if n.op == "call_function" and "my_domain" in str(n.target)
    )
    assert str(node.meta["val"].shape[0]).replace(" ", "").endswith("-1")


def test_attachments_that_names_and_types_forbid():
    function = declare(lambda index: index, inputs="index: T").shape(lambda index: index)
    with pytest.raises(OpError, match=r"name = index: is a parameter of every kernel"):
        function.kernel(lambda index, count, workspace, y: 0)
    with pytest.raises(OpError, match=r"a = declared: can't be passed to a kernel"):
        declare(annotated(str)).shape(lambda x, *, a: x).kernel(
            lambda x, a, index, count, workspace, y: 0
        )


@need_numba
def test_a_mistake_in_a_kernel_names_its_line():
    function = declare()
    function.shape(lambda x: x)

    @function.kernel
    def _(x, index, count, workspace, y):
        y[0] = x.nothing()

    line = _.declaration.kernels[0].function.__code__.co_firstlineno + 2
    with pytest.raises(
        OpError, match=rf"can't be compiled: .*nothing.*\({re.escape(__file__)}, line {line}\)"
    ):
        function(BIAS)


@need_numba
def test_kernels_that_are_refused():
    import numba

    @numba.njit
    def calling_itself(n):
        return 1 if n < 2 else n * calling_itself(n - 1)

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

    def spreading(x, index, count, workspace, y):
        y[:] = x * 2

    def without_workspace(x, index, count, workspace, y):
        workspace[0] = 1

    def speaking(x, index, count, workspace, y):
        onnx_ops.require(x[0] < 0, "x", x[0], f"must be below {len(x)}")

    def repeating(x, index, count, workspace, y):
        y[0] = calling_itself(x[0])

    messages = {
        spreading: r"kernel = test_custom\.py, line \d+ for float32, float32: can't be compiled: "
        r"it allocates memory",
        without_workspace: "can't be compiled: .*none",
        speaking: "can't be compiled: it allocates memory",
        kernel: "can't be compiled: it calls Python, as `print` does",
        writer: "can't be compiled: .*[Rr]eadonly|Cannot modify",
        caller: "must be marked by onnx_ops.jitable",
        allocating: "can't be compiled: it allocates memory",
        raising: "compiled code has raised an exception; a call on arrays with "
        "ONNX_OPS_BOUNDSCHECK=1 names it$",
        repeating: "can't be compiled: a function calls itself with other types, or through "
        "another one",
    }
    for each, message in messages.items():
        function = declare()
        function.shape(lambda x: x).kernel(each)
        with pytest.raises(OpError, match=message):
            function(BIAS)
        with pytest.raises(OpError, match=message):
            run_operator(function, [BIAS])


def numbers_of_nobody(x):
    return x[0]


@pytest.mark.parametrize(("actual", "reference"), [("NaN", "1.0"), ("1.0", "NaN")])
def test_check_shows_nan(actual, reference):
    arrays = [np.array([value], np.float32) for value in (float(actual), float(reference))]
    problem = check.problem_of(*arrays, {})
    assert problem == f"at [0] is {actual}, but of the function in NumPy {reference}; 1 of 1 differ"
    words = check.problem_of(np.array(["banana"], object), np.array(["nan"], object), {})
    assert words == "at [0] is banana, but of the function in NumPy nan; 1 of 1 differ"


@need_numba
def test_a_mistake_in_a_rule_is_told_as_such():
    function = declare()
    function.shape(lambda x: (x[5],)).kernel(lambda x, index, count, workspace, y: None)
    with pytest.raises(OpError, match=r"rule = test_custom\.py, line \d+: can't be compiled: "):
        run_operator(function, [BIAS])


@need_numba
@pytest.mark.parametrize(("work", "message"), [("loop", "steps"), ("workspace", "bytes")])
def test_work_that_is_no_number(work, message):
    function = declare()
    function.shape(lambda x: x).kernel(writes_nothing, **{work: lambda x: (x[0], 1)})
    with pytest.raises(
        OpError, match=rf"{work} = a function that returns .*: must return the number of {message}"
    ):
        function(BIAS)


COMPILED_RULES = {
    "no tuple": (
        lambda x: x[0],
        1,
        "a function that returns int64: must return a tuple of integers",
    ),
    "floats": (
        lambda x: (x[0] * 0.5,),
        1,
        r"a function that returns .*float64.*: must return a tuple of integers",
    ),
    "one of two": (lambda x: x, 2, r"a function that returns .*: must return 2 tuples of integers"),
    "a number of two": (
        lambda x: (x, 1),
        2,
        r"a function that returns .*: must return 2 tuples of integers",
    ),
}


@need_numba
@pytest.mark.parametrize("name", COMPILED_RULES)
def test_mistakes_of_a_rule_that_is_compiled(name):
    rule, count, message = COMPILED_RULES[name]
    outputs = [f"y{k}" for k in range(count)]
    space = {"__name__": __name__}
    exec(f"def kernel(x, index, count, workspace, {', '.join(outputs)}): return None", space)
    described = ", ".join(f"{y}: float32" for y in outputs)
    function = onnx_ops.operator("my.domain::Mistake", inputs="x: float32", outputs=described)(
        lambda x: x
    )
    function.shape(rule).kernel(space["kernel"])
    with pytest.raises(OpError, match=rf"my\.domain\.Mistake: rule = {message}"):
        function(BIAS)


@need_numba
@pytest.mark.parametrize("work", ["loop", "workspace"])
def test_a_mistake_in_what_states_the_work(work):
    function = declare()
    function.shape(lambda x: x).kernel(writes_nothing, **{work: lambda x: x.nothing})
    with pytest.raises(
        OpError,
        match=rf"my\.domain\.Name: {work} = test_custom\.py, line \d+: "
        r"can't be compiled: .*nothing",
    ):
        function(BIAS)


def repeat(x, index, count, workspace, y):
    flat = y.reshape(-1)
    for k in range(len(flat)):
        flat[k] = x[k % len(x)] + count


OF_RANKS = {
    0: lambda x: (),
    1: lambda x: (x[0] + 1,),
    16: lambda x: (x[0], 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2),
}


@need_numba
@pytest.mark.parametrize("rank", [long_unless(rank != 1, rank) for rank in OF_RANKS])
def test_outputs_of_any_rank(rank):
    """A kernel gets outputs with the axes that the rule states.

    Without steps it is called once all the same.
    """
    shape = OF_RANKS[rank](BIAS.shape)
    function = declare(lambda x: np.resize(x, shape) + np.float32(1))
    function.shape(OF_RANKS[rank]).kernel(repeat, loop=lambda x: 0)
    expected = function.declaration.reference(BIAS)
    for got in (function(BIAS), *run_operator(function, [BIAS])):
        assert got.shape == shape
        assert (got == expected).all()


@need_numba
def test_a_rule_that_replaces_another():
    """The operator keeps its kernel, which gets outputs of the new shape."""
    function = declare(lambda x: x + np.float32(1))
    function.shape(lambda x: (x[0], x[0])).kernel(repeat)
    function.shape(lambda x: x)
    assert function.declaration.kernels
    assert (function(BIAS) == BIAS + 1).all()


TOO_MUCH = {
    "workspace": (
        1,
        2**58,
        1,
        r"workspace = 288230376151711744: must be a number of bytes in \[0, 2\*\*40\]",
    ),
    "workspace below 0": (1, -1, 1, r"workspace = -1: must be a number of bytes in \[0, 2\*\*40\]"),
    "staged outputs": (8, 0, 2**58, r"no room for copies of what a kernel is given"),
    "no first axis": (
        1,
        0,
        None,
        r"shape of an output = \[\]: is the result of the shape function, but no shape",
    ),
}


@need_numba
@pytest.mark.parametrize(
    "name", [long_unless(name != "workspace below 0", name) for name in TOO_MUCH]
)
def test_more_memory_than_there_is(name):
    count, bytes_of_workspace, size, message = TOO_MUCH[name]
    outputs = [f"y{k}" for k in range(count)]
    described = ", ".join(f"{name}: int64" for name in outputs)
    declared = onnx_ops.operator("my.domain::Large", inputs="x: int64", outputs=described)
    function = declared(lambda x: (x,) * count)
    shape = () if size is None else (size,)
    shapes = shape if count == 1 else (shape,) * count
    is_bound = not name.startswith("workspace")
    function.shape(lambda x: shapes, bound=is_bound)
    space = {"__name__": __name__}
    exec(f"def kernel(x, index, count, workspace, {', '.join(outputs)}): return 1", space)
    settings = (
        {} if is_bound else {"workspace": lambda x: bytes_of_workspace, "loop": lambda x: x[0]}
    )
    function.kernel(space["kernel"], **settings)
    with pytest.raises(Exception, match=message):
        run_operator(function, [np.zeros(150_000, np.int64)])
    if name != "staged outputs":  # NumPy refuses these with its own message
        with pytest.raises(OpError, match=message):
            function(np.zeros(150_000, np.int64))


def returns_the_first(x, index, count, workspace, y):
    return x[0]


@need_numba
@pytest.mark.parametrize("length", [-1, 4, 2**40])
def test_a_length_beyond_the_bound(length):
    function = onnx_ops.operator("my.domain::Cut", inputs="x: int64", outputs="y: int64")(
        lambda x: x[: x[0]]
    )
    function.shape(lambda x: x, bound=True)
    function.kernel(returns_the_first)
    x = np.array([length, 5, 6])
    message = (
        rf"length of an output = {length}: is the kernel's result; "
        r"the bound of the shape function is 3$"
    )
    for run in (lambda: run_operator(function, [x]), lambda: function(x)):
        with pytest.raises(Exception, match=message):
            run()
    assert [len(run_operator(function, [np.array([n, 5, 6])])[0]) for n in (0, 3)] == [0, 3]


@need_numba
def test_floats_that_are_refused():
    """Refusals by a rule, a kernel and a body show floats alike in sessions and functions, to the
    last digit.
    """
    declared = onnx_ops.operator(
        "my.domain::Show", inputs="x: T", outputs="y: T", types={"T": ("float32", "float64")}
    )

    @declared
    def show(x, *, scale: tuple[float, ...], refusal: int):
        onnx_ops.require(refusal != 2, "x", x[0], "in the body", x[0] * 2)
        return x

    @show.shape
    def _(x, *, scale, refusal):
        a = scale[0] * 1.1
        onnx_ops.require(refusal != 0, "scale", a, "in the rule", a * a)
        onnx_ops.require(refusal != 1, "scale", scale, "in the rule", len(scale))
        onnx_ops.require(refusal != 3, "scale", (1, a), "in the rule")
        return x

    compiled = mistaken(lambda x: x)
    compiled.shape(lambda x: x)
    compiled.kernel(refuse_first)
    rng = np.random.default_rng(0)
    floats = [
        0.0,
        -0.0,
        -1.5,
        1e15,
        1e16,
        123456789012345680.0,
        1e-4,
        1e-5,
        0.1,
        np.inf,
        -np.inf,
        np.nan,
        5e-324,
    ]
    for value in [*floats, *(rng.standard_normal(2) * 10.0 ** rng.integers(-30, 30, 2))]:
        # Only the body shows an element of x.
        for refusal, dtype in (*((k, "float32") for k in range(4)), (2, "float64")):
            with np.errstate(all="ignore"):
                x, settings = np.array([value], dtype), {"scale": [value, 0.1], "refusal": refusal}
                called, of_session = (
                    refused(show, x, **settings),
                    refused(run_operator, show, [x], threads=1, **settings),
                )
            assert called == of_session.replace(" (node 'the_node')", "")
        x = np.array([value, value], np.float32)
        expected = f"my.domain.Mistake: x = {float(x[0])}: must be {float(x[0]) * 2}"
        assert refused(compiled, x) == refused(run_operator, compiled, [x], threads=1) == expected


def refuse_first(x, index, count, workspace, y):
    onnx_ops.require(len(x) < 0, "x", x[0], "must be", np.float64(x[0]) * 2)


def refused(function, *args, **more):
    with pytest.raises(OpError) as caught:
        function(*args, **more)
    return str(caught.value)


FAULTS = {
    "a body that fails": (lambda x: {}[0], None, "the function in NumPy fails: KeyError"),
    "nothing but refusals": (
        lambda x: onnx_ops.require(False, "x", 0, "is refused"),
        None,
        "nothing was compared",
    ),
    "a kernel of other ranks": (
        lambda x: x,
        "for i in range(x.size): y[i] = 17",
        "no case has the ranks that the kernel",
    ),
    "tiles that overlap": (
        lambda x: x,
        "for i in range(index, len(x), count + (count > 1)): y[i] = x[i]",
        "differ",
    ),
    "another infinity": (
        lambda x: x * np.float32(np.inf),
        "for i in range(len(x)): y[i] = -np.inf",
        "differ",
    ),
    "no thought of empty inputs": (
        lambda x: x,
        "y[:1] = x[len(x) - 1]\n    for i in range(len(x)): y[i] = x[i]",
        None,
    ),
}


@need_numba
@pytest.mark.parametrize("name", FAULTS)
def test_check_finds_faults(name):
    body, line, message = FAULTS[name]
    function = mistaken(body)
    if line:
        space = {"np": np, "__name__": __name__}
        exec(f"def kernel(x, index, count, workspace, y):\n    {line}", space)
        function.shape(lambda x: x).kernel(space["kernel"], loop=lambda x: x[0])
    cases = [(BIAS + 1 if name != "a kernel of other ranks" else np.ones((2, 2)),)]
    if message:
        with pytest.raises(AssertionError, match=message):
            onnx_ops.check(function, cases, extremes=False)
    else:
        assert onnx_ops.check(function, cases)


def test_check_wants_tuples():
    with pytest.raises(
        TypeError, match=r"cases: each must be a tuple of inputs, such as \(x, k\), not ndarray"
    ):
        onnx_ops.check(mistaken(lambda x: x), [BIAS])


@pytest.mark.long
@need_numba
def test_warmup(tmp_path):
    """Warmup for models with open sizes compiles all that their sessions may need."""
    code = """
        import onnx_ops
        from test_custom import BIAS, X, model, np, custom
        topk = model(custom.topk, [X, np.array([2])], shapes=[None, None])
        combine = model(custom.combine, [BIAS, BIAS], mode="product")
        print(onnx_ops.warmup(models=topk, operators=custom.topk))
        print(onnx_ops.warmup(models=[combine], operators=[custom.combine]))
        print(onnx_ops.warmup([custom.combine], ["float32", "float64"]))
    """
    counts = run_script(code, NUMBA_CACHE_DIR=str(tmp_path)).stdout.split()
    assert list(map(int, counts)) == [len(custom.topk.declaration.combinations), 1, 2]


def test_an_operator_alone_is_taken_for_a_list():
    assert onnx_ops.InferenceSession(
        model(custom.topk, [X, np.array([2])]), quiet(), operators=custom.topk
    )
    assert onnx_ops.Runner(
        model(custom.topk, [X, np.array([2])]), operators=custom.topk
    ).operators == [custom.topk]


def test_a_body_in_place_of_a_kernel_is_told_of(caplog):
    function = mistaken(lambda x: x + 0)
    function.shape(lambda x: x).kernel(lambda x, index, count, workspace, y: None)
    for _ in range(2):
        assert (run_operator(function, [BIAS.reshape(1, 5)])[0] == BIAS).all()
    (text,) = [record.getMessage() for record in caplog.records]
    reason = "its kernel is compiled only for rank 1 of x" if numba_obstacle() is None else "numba"
    assert text.startswith(f"my.domain.Mistake: its body in NumPy runs, since {reason}")


FILES = {
    "ops.txt": "must be the name of a module and .py",
    "my.ops.py": "must be the name of a module and .py",
    "empty_of_mine.py": "has no operators",
    "failing_of_mine.py": "can't be imported: ZeroDivisionError: division by zero",
    "ending_of_mine.py": "can't be imported: SystemExit: 0",
}


@pytest.mark.parametrize("name", FILES)
def test_files_that_have_none(name, tmp_path):
    texts = {"failing_of_mine.py": "1 / 0", "ending_of_mine.py": "raise SystemExit(0)"}
    (tmp_path / name).write_text(texts.get(name, ""))
    with pytest.raises(OpError, match=re.escape(FILES[name])):
        files.use_file(tmp_path / name)


def test_a_link_to_a_file_of_any_name(tmp_path):
    """As in Hugging Face's cache.

    Other processes find the file by the link, whose name is the module's.
    """
    (tmp_path / "0a1b2c").write_text(FILE.format(factor=2, summand=1))
    (tmp_path / "linked_of_mine.py").symlink_to("0a1b2c")
    operators = files.operators_in(files.module_of(tmp_path / "linked_of_mine.py"))
    (source,) = files.sources_of([operators[0].declaration])
    assert files.operators_at(source) == operators
    assert source[0] == str(tmp_path / "linked_of_mine.py")


def test_inputs_have_no_names():
    with pytest.raises(
        OpError, match=r"[xk] = given by name: is an input, which is given by its position"
    ):
        custom.topk(x=X, k=[2])


@need_numba
def test_kernels_of_one_name():
    """Each has its own code, although the module knows only one by that name."""
    functions = []
    for line in ("y[0] = 1", "y[0] = 2"):
        space = {"onnx_ops": onnx_ops, "__name__": __name__}
        exec(f"def kernel(x, index, count, workspace, y):\n    {line}", space)
        functions.append(declare())
        functions[-1].shape(lambda x: x).kernel(space["kernel"])
    assert [function(numbers(0))[0] for function in functions] == [1, 2]


@need_numba
def test_compiling_while_a_module_is_imported(tmp_path, monkeypatch):
    text = (
        FILE.format(factor=2, summand=1)
        + "\n\nimport numpy\nresult = scale(numpy.ones(1, numpy.float32))"
    )
    (tmp_path / "compiling_of_mine.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert importlib.import_module("compiling_of_mine").result == [3]
    assert list(tmp_path.rglob("*.code"))


@need_numba
def test_a_kernel_for_one_of_the_types():
    """The function computes the others: both outputs of it are the same everywhere."""

    @onnx_ops.operator(
        "my.domain::Halves", inputs="x: T", outputs="low: T, high: T", types={"T": onnx_ops.FLOATS}
    )
    def halves(x):
        return np.minimum(x, 0), np.maximum(x, 0)

    @halves.shape
    def _(x):
        return x, x

    @halves.kernel(types={"T": ("float32",)})
    def _(x, index, count, workspace, low, high):
        for i in range(len(x)):
            low[i], high[i] = min(x[i], np.float32(0)), max(x[i], np.float32(0))

    declared = halves.declaration
    assert [v.signature["T"] for v in variants.combinations([declared], variants.TYPES)] == [
        "float32"
    ]
    assert onnx_ops.check(halves, [(np.linspace(-1, 1, 7),)], extremes=False) > 8
    with pytest.raises(
        OpError,
        match="dtypes = 'float64': no kernel of Halves takes it; sessions in Python compute",
    ):
        variants.asked_for([halves], ["float32", "float64"], ())
    assert variants.leaves_out(declared, "float64")
    assert not variants.leaves_out(declared, "float32")
    with pytest.raises(
        OpError, match=r"my\.domain\.Halves: type T = int8: must be among float16, "
    ):
        halves.kernel(lambda x, index, count, workspace, low, high: None, types={"T": ("int8",)})


def test_many_threads():
    """Threads share sessions, one with a body and one with a kernel."""
    texts = [np.array(["a"], object), np.array(["b"], object)]
    many = (custom.join, texts, [["a, b"], [4]]), (custom.above, [BIAS], [[1, 2, 3, 4]] * 2)
    sessions = [
        onnx_ops.InferenceSession(model(o, inputs), quiet(), operators=[o]) for o, inputs, _ in many
    ]

    def work(_):
        for _ in range(200):
            for session, (_, inputs, expected) in zip(sessions, many, strict=True):
                got = session.run(None, {f"input_{k}": array for k, array in enumerate(inputs)})
                assert [array.tolist() for array in got] == expected

    together(work, 8)


def shifted(amount, name="my.domain::Shift", module=None):
    def body(x):
        return x + np.float32(amount)

    body.__module__ = module or __name__
    return declare(body, name=name)


def test_declared_again():
    """New sessions run the new operator, old ones the old one; one session can't have both."""
    first, second, other = shifted(1), shifted(2), shifted(3, module="elsewhere")
    content, options = model(first, [BIAS]), quiet()
    old = onnx_ops.InferenceSession(content, options, operators=[first])
    new = onnx_ops.InferenceSession(content, quiet(), operators=[second])
    for session, amount in ((old, 1), (new, 2), (old, 1)):
        assert session.run(None, {"input_0": BIAS})[0].tolist() == (BIAS + amount).tolist()
    with pytest.raises(
        Exception,
        match=r"my\.domain\.Shift: the session's options have another operator of this name",
    ):
        onnx_ops.register(options, domains=[], operators=[second])
    for again, where in (
        (second, "test_custom; one session can't have both"),
        (other, "elsewhere and test_custom"),
    ):
        with pytest.raises(OpError, match=rf"my\.domain\.Shift: is declared twice, in {where}"):
            onnx_ops.register(quiet(), domains=[], operators=[first, again])


def test_registering_more():
    """Options get another operator in a domain that they have, after sessions were made."""
    first, second = shifted(1), shifted(2, "my.domain::Other")
    options = onnx_ops.register(quiet(), domains=[], operators=[first])
    ort.InferenceSession(model(first, [BIAS]), options)
    onnx_ops.register(options, domains=[], operators=[second, first])
    session = ort.InferenceSession(model(second, [BIAS]), options)
    assert session.run(None, {"input_0": BIAS})[0].tolist() == (BIAS + 2).tolist()


def test_in_place_of_an_operator_of_onnx_runtime():
    """It may compute something else: optimize doesn't take it for that operator."""

    @onnx_ops.operator("::Abs", inputs="x: T", outputs="y: T", types={"T": onnx_ops.FLOATS})
    def square(x):
        return x * x

    proto = parser.parse_model("""<ir_version: 9, opset_import: ["" : 20]>
        main (float[1, 1, 2, 9] image, float[1, 2, 3, 2] places) => (float[1, 1, 2, 3] y) {
            squares = Abs (places)
            grid = Neg (squares)
            y = GridSample (image, grid)
        }""")
    image = np.arange(18, dtype=np.float32).reshape(1, 1, 2, 9)
    inputs = {"image": image, "places": np.full((1, 2, 3, 2), 0.5, np.float32)}
    plain, optimized = (
        onnx_ops.InferenceSession(
            proto.SerializeToString(), quiet(), operators=[square], optimize=optimize
        )
        for optimize in (False, True)
    )
    (expected,), (got,) = plain.run(None, inputs), optimized.run(None, inputs)
    np.testing.assert_array_equal(got, expected)
    assert (expected == onnx_ops.grid_sample(image, -(inputs["places"] ** 2))).all()


def test_what_operators_must_be():
    with pytest.raises(
        OpError, match=r"operators = <function .*: must be a result of onnx_ops\.operator"
    ):
        onnx_ops.register(quiet(), domains=[], operators=[test_what_operators_must_be])
    assert repr(declare()) == "<operator my.domain.Name of test_custom>"


@needs_extensions
def test_extensions_know_operators_from_the_first_session_on():
    code = """
        import sys
        sys.modules["torch"] = None  # which onnxruntime-extensions would import
        from test_custom import *
        arrays = BIAS, BIAS + 1
        (y,) = run_operator(custom.combine, arrays, backend="extensions", mode="product")
        np.testing.assert_allclose(y, custom.combine(*arrays, mode="product"))
        combine = declare(name="my_domain::Combine")
        for operator, inputs in ((shifted(1), [BIAS]), (custom.join, [np.array(["a"], object)]),
            (combine, [BIAS])):
            try:
                run_operator(operator, inputs, backend="extensions")
            except OpError as error:
                print(error)
    """
    first, second, third = run_script(code).stdout.splitlines()
    assert first.startswith(
        "my.domain.Shift: backend = 'extensions': must have been there when the first session was"
    )
    assert re.match(r"my\.domain\.Join.*: backend = 'extensions': has no variadic inputs", second)
    assert third.endswith("would have the same name there as my.domain.Combine; rename one of them")


@pytest.mark.long
def test_an_interrupt_in_a_body():
    """The interrupt is raised when the run returns."""
    code = """
        import signal, threading, time, numpy as np, onnx_ops, test_custom

        def body(x):
            threading.Timer(0.2, signal.pthread_kill,
                [threading.main_thread().ident, signal.SIGINT]).start()
            time.sleep(100)
            print("goes on")
            return x

        try:
            test_custom.run_operator(test_custom.declare(body), [np.ones(1, np.float32)])
        except KeyboardInterrupt:
            print("interrupted")
    """
    assert run_script(code).stdout.split() == ["interrupted"]


def run_script(code, folder=None, **environment):
    return python(code, folders=[folder] if folder else [], cwd=folder, **environment)


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


# test_an_index_that_leaves_its_array has the checking mode in the short run.
@pytest.mark.long
@need_numba
@pytest.mark.parametrize("function", ["shape", "loop", "kernel"])
def test_an_exception_in_compiled_code_is_named_on_request(function, tmp_path, monkeypatch):
    """The error message says how: by a call in the checking mode, which names its class and
    line.
    """
    text = FILE.format(factor=2, summand=1).replace("@scale.kernel", "@scale.kernel(loop=steps)")
    text = text.replace("@scale.shape", "def steps(x):\n    return x[0]\n\n\n@scale.shape")
    line = {
        "shape": "    return x\n\n\n@scale.k",
        "loop": "    return x[0]",
        "kernel": "    for k in",
    }[function]
    raising = "    if x[0] > 0:\n        raise KeyError('no such key')\n"
    assert text.count(line) == 1
    text = text.replace(line, raising + line)
    name = f"raising_of_mine_{function}"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    message = refused(importlib.import_module(name).scale, np.ones(5, np.float32))
    assert message == f"my.domain.Scale: compiled code has raised {EXCEPTION}"
    code = f"""
        import numpy as np, {name}
        try:
            {name}.scale(np.ones(5, np.float32))
        except Exception as error:
            print(error)
    """
    (variable,) = re.findall(r"\w+=\w+", message)
    done = run_script(code, tmp_path, **dict([variable.split("=")]))
    where = f"{name}.py, line {1 + text[: text.index('raise KeyError')].count(chr(10))}"
    assert (
        done.stdout
        == f"my.domain.Scale: compiled code has raised KeyError: 'no such key' ({where})\n"
    )


@need_numba
def test_an_index_that_leaves_its_array(tmp_path):
    """In the checking mode a session fails, and a call says which index of which line it was."""
    text = FILE.format(factor=2, summand=1).replace("y[k] = ", "y[k + 1] = ")
    (tmp_path / "operators_of_mine.py").write_text(text)
    line = 1 + text.splitlines().index("        y[k + 1] = scaled(x[k])")
    (tmp_path / "model.onnx").write_bytes(model(declare(name="my.domain::Scale"), [BIAS]))
    code = """
        import numpy as np, onnx_ops, operators_of_mine
        run = lambda x: onnx_ops.InferenceSession("model.onnx",
            operators=[operators_of_mine.scale]).run(None, {"input_0": x})
        for call in (operators_of_mine.scale, run):
            try:
                call(np.ones(5, np.float32))
            except Exception as error:
                print(error)
    """
    done = run_script(code, tmp_path, NUMBA_CACHE_DIR=str(tmp_path), ONNX_OPS_BOUNDSCHECK="1")
    called, of_session = done.stdout.splitlines()
    index = "IndexError: index 5 is out of bounds for axis 0 with size 5"
    assert (
        called
        == f"my.domain.Scale: compiled code has raised {index} (operators_of_mine.py, line {line})"
    )
    assert of_session.endswith(f"my.domain.Scale: compiled code has raised {EXCEPTION}")


@pytest.mark.long
@need_numba
def test_a_file_that_builds_when_it_is_imported(tmp_path):
    """Its workers import the file, and don't build in turn."""
    text = FILE.format(factor=2, summand=1) + 'onnx_ops.build("lib.so", operators=[scale], jobs=1)'
    (tmp_path / "builds.py").write_text(text)
    done = run_script(
        "import runpy; runpy.run_path('builds.py', run_name='__main__')", tmp_path, check=False
    )
    rule = (
        'onnx_ops: write what compiles, in a file of operators, under `if __name__ == "__main__":`'
    )
    assert done.stderr.splitlines()[-1].endswith(rule)
    assert "builds.py" in done.stderr


@need_numba
def test_other_processes_work_with_the_same_operator(tmp_path):
    """They import its module anew.

    What they would find in another state there, or not at all, is refused.
    """
    (tmp_path / "operators_of_mine.py").write_text(FILE.format(factor=2, summand=1))
    code = """
        import importlib, pickle, onnx_ops, operators_of_mine
        declared_before = operators_of_mine.scale
        importlib.reload(operators_of_mine)
        build = lambda operator: onnx_ops.build("lib.so", operators=[operator], cpus=["x86-64-v2"])
        copied = lambda operator: pickle.dumps(onnx_ops.Runner("model.onnx", operators=[operator]))
        operators_of_mine.FACTOR = 3
        for work, operator in (
            (build, declared_before), (copied, declared_before), (build, operators_of_mine.scale),
        ):
            try:
                work(operator)
            except onnx_ops.OpError as error:
                print(error)
        importlib.reload(operators_of_mine)
        with open(operators_of_mine.__file__) as file:
            edited = file.read().replace("types=", "ranks={'x': (2,)}, types=")
        with open(operators_of_mine.__file__, "w") as file:
            file.write(edited)
        try:
            build(operators_of_mine.scale)
        except onnx_ops.OpError as error:
            print(error)
    """
    lost, lost_too, changed, edited = run_script(
        code, tmp_path, NUMBA_CACHE_DIR=str(tmp_path)
    ).stdout.splitlines()
    rule = "is in no variable of operators_of_mine, where other processes could find it"
    assert lost == lost_too == f"onnx_ops: operators = my.domain.Scale: {rule}"
    assert changed.startswith(
        "onnx_ops: kernel = my.domain.Scale float32: has read other values here than in a proc"
    )
    assert edited == changed


def test_copies_of_a_runner_have_its_operators(tmp_path, monkeypatch):
    """Only those, whose module may be a package; sessions without them stay as they are."""
    package, text = tmp_path / "package_of_mine", FILE.format(factor="FACTOR", summand=1)
    package.mkdir()
    (package / "factors.py").write_text("FACTOR = 2")
    another = (
        text.replace("::Scale", "::Other").replace("scale(", "other(").replace("@scale", "@other")
    )
    (package / "__init__.py").write_text(f"from .factors import FACTOR\n{text}\n{another}")
    monkeypatch.syspath_prepend(tmp_path)
    name = "package_of_mine"
    runner = onnx_ops.Runner("model.onnx", operators=[importlib.import_module(name).scale])
    (tmp_path / "runner").write_bytes(pickle.dumps(runner))
    code = """
        import pickle, onnx_ops
        print(*pickle.load(open("runner", "rb")).operators, onnx_ops.registry.custom_operators())
    """
    assert run_script(code, tmp_path).stdout == "<operator my.domain.Scale of package_of_mine> []\n"
    (package / "__init__.py").write_text(f"FACTOR = 3\n{text}\n{another}")  # as on another machine
    done = run_script(code, tmp_path, check=False)
    assert (
        "__init__.py': is not the file that the other process has; copy it, or start again"
        in done.stderr
    )


@pytest.mark.long
def test_a_process_that_has_the_module_of_before_an_edit(tmp_path):
    """It runs no Runner that has the module of after the edit, unless it loads that again."""
    (tmp_path / "operators_of_mine.py").write_text(FILE.format(factor=2, summand=1))
    code = """
        import importlib, operators_of_mine, onnx_ops, pickle, subprocess, sys
        from onnx_ops import Runner
        imports = "import operators_of_mine, pickle, sys; from onnx_ops import Runner"
        made = "Runner('model.onnx', operators=[operators_of_mine.scale])"
        code = f"{imports}; pickle.dump({made}, sys.stdout.buffer)"
        elsewhere = lambda: subprocess.run([sys.executable, "-c", code], check=True,
            stdout=subprocess.PIPE).stdout
        pickle.loads(elsewhere())
        with open("operators_of_mine.py", "a") as file:
            file.write("FACTOR = 3")
        after = elsewhere()
        try:
            pickle.loads(after)
        except onnx_ops.OpError as error:
            print(error.rule)
        importlib.reload(operators_of_mine)
        print(pickle.loads(after).operators == [operators_of_mine.scale])
    """
    lines = run_script(code, tmp_path).stdout.splitlines()
    assert lines == ["is not the file that the other process has; copy it, or start again", "True"]


@pytest.mark.long
@need_numba
@pytest.mark.parametrize(
    "edits",
    [
        [(2, 1, "3.0", "2"), (2, 1, "3.0", "0")],
        [(2, 1, "3.0", "2"), (3, 1, "4.0", "1"), (3, 0.5, "3.5", "1")],
    ],
    ids=["unchanged", "edited"],
)
def test_the_cache_knows_the_users_module(edits, tmp_path):
    """Code is compiled once for an unchanged file, and again after each edit: the kernel, not the
    rule.
    """
    code = """
        import logging, numpy as np, operators_of_mine
        from onnx_ops.compiler.code import Code
        compiled = []
        real = Code.compile
        Code.compile = lambda self: compiled.append(self.entry.name) or real(self)
        print(operators_of_mine.scale(np.ones(1, np.float32))[0], len(compiled))
    """
    settings = {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    for factor, summand, *expected in edits:  # the result and the number of compilations
        (tmp_path / "operators_of_mine.py").write_text(FILE.format(factor=factor, summand=summand))
        assert run_script(code, tmp_path, **settings).stdout.split() == expected


@pytest.mark.long
def test_bodies_need_no_numba(tmp_path):
    (tmp_path / "operators_of_mine.py").write_text(FILE.format(factor=2, summand=1))
    code = """
        import sys
        sys.modules["numba"] = None
        import importlib.util
        real = importlib.util.find_spec
        importlib.util.find_spec = lambda name, *args: (
            None if name == "numba" else real(name, *args))
        import numpy as np, test_custom, operators_of_mine
        assert test_custom.numba_obstacle()
        print(test_custom.run_operator(operators_of_mine.scale,
            [np.ones(2, np.float32)])[0].tolist())
    """
    assert run_script(code, tmp_path).stdout.split() == ["[3.0,", "3.0]"]


@pytest.mark.long
@need_numba
def test_a_library_of_ones_own(tmp_path):
    """Its operators are written in Python and run in a process without this package and Numba."""
    half, operators = BIAS.astype(np.float16), [custom.topk, custom.above, custom.combine]
    onnx_ops.build(
        tmp_path / "libmine.so",
        operators=operators,
        dtypes=["float32", "float16"],
        cpus=["x86-64-v2"],
    )
    models = {
        "topk": (custom.topk, [X, np.array([2]), BIAS], {"scale": 2.0}),
        "above": (custom.above, [BIAS - 2], {}),
        "combine": (custom.combine, [half, half + 1], {"mode": "quotient"}),
        "refused": (custom.combine, [half, half], {"mode": "quotient"}),
        "rank": (custom.topk, [X.reshape(1, 1, 3, 5), np.array([2])], {}),
    }
    for name, (operator, inputs, attributes) in models.items():
        (tmp_path / f"{name}.onnx").write_bytes(model(operator, inputs, **attributes))
        np.savez(tmp_path / f"{name}.npz", *inputs)
    code = """
        import sys, numpy as np, onnxruntime as ort
        for name in sys.argv[1:]:
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
    refusal, of_rank = python(code, *models, cwd=tmp_path).stdout.splitlines()
    assert refusal == "my.domain.Combine: b = 0: must not be 0 where it divides"
    rule = "its kernel takes other types or ranks than 4, 1, for which it runs in Python only"
    assert f"my.domain.TopK: {rule}" in of_rank
    for name, (operator, inputs, attributes) in list(models.items())[:3]:
        got, expected = (
            np.load(tmp_path / f"{name}_out.npz"),
            operator.declaration.reference(*inputs, **attributes),
        )
        for a, b in zip(
            got.values(), expected if isinstance(expected, tuple) else [expected], strict=True
        ):
            np.testing.assert_allclose(a, b, rtol=1e-3 if name == "combine" else 1e-6)


@pytest.mark.long
def test_the_command_line(tmp_path):
    (tmp_path / "mine.py").write_text(FILE.format(factor=2, summand=1))
    declared = types.SimpleNamespace(declaration=declare(name="my.domain::Scale").declaration)
    (tmp_path / "scale.onnx").write_bytes(model(declared, [BIAS]))
    np.save(tmp_path / "x.npy", BIAS)
    code = "import sys; sys.argv[0] = 'onnx-ops'; from onnx_ops.cli import main; main()"
    use, run = ("--operators", "mine.py"), ("run", "scale.onnx", "--input")
    assert (
        "runs 1 of 1 without problems"
        in python(code, *use, "inspect", "scale.onnx", cwd=tmp_path).stdout
    )
    python(code, *use, *run, "x.npy", "--compare", "reference", cwd=tmp_path)
    without = python(code, *run, "x.npy", cwd=tmp_path, check=False)
    assert without.returncode == 3
    assert "custom operators: onnx-ops --operators FILE" in without.stderr
    declaration = FILE.partition("\n@scale")[0].format(factor="factor", summand=1)
    body = textwrap.indent(f"{declaration}\nreturn scale\n", "    ")
    (tmp_path / "theirs.py").write_text(f"def made(factor):\n{body}")
    texts = [FILE.format(factor=factor, summand=1) for factor in (2, 2, 3)]
    texts += [f"from theirs import made\n\nscale = made({factor})" for factor in (2, 3)]
    outputs = ("*.npy", "--output", "out", "--json")
    for text, count in zip(
        texts, (1, 0, 1, 1, 1), strict=True
    ):  # what an older file has computed is computed again
        (tmp_path / "mine.py").write_text(text)
        done = python(code, *use, *run, *outputs, cwd=tmp_path, check=False)
        if done.returncode == 2:
            assert "other settings (operators)" in done.stderr
            done = python(code, *use, *run, *outputs, "--overwrite", cwd=tmp_path)
        assert f'"run": {count}' in done.stdout
