"""Malicious models: each is refused with a message or runs as defined, and the next session
works.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper
from support.backends import IN_SESSIONS, quiet, run_session
from support.cases import Case, assert_close, case_named, expected_of, model
from support.growth import assert_linear, assert_steps_linear
from support.processes import python
from support.selection import long_unless

import onnx_ops

pytestmark = pytest.mark.any_library

OVERLAPPING, BILINEAR = case_named("overlapping"), case_named("bilinear_zeros_edges")
ONNX_RUNTIMES = r"^\[ONNXRuntimeError\] "  # the rest of its messages differs between versions


@dataclass(frozen=True)
class Hostile:
    """A changed model of one node, and the errors of both backends or of each; None: it runs as if
    unchanged.
    """

    name: str
    case: Case
    change: Any
    native: str | None = ONNX_RUNTIMES
    extensions: str | None = ""

    def message(self, backend):
        return self.native if backend == "native" or self.extensions == "" else self.extensions

    def model(self):
        inputs = self.case.inputs("float32")
        proto = model(
            self.case.domain, self.case.op_type, inputs, self.case.attributes, dims="none"
        )
        self.change(proto)
        return proto.SerializeToString()

    def __str__(self):
        return self.name


def attribute(name, kind, **content):
    """A change of an attribute, whose stated kind may be wrong."""
    replacement = AttributeProto(name=name, type=kind)
    for field, value in content.items():
        if isinstance(value, list):
            getattr(replacement, field).extend(value)
        elif hasattr(value, "SerializeToString"):
            getattr(replacement, field).CopyFrom(value)
        else:
            setattr(replacement, field, value)

    def change(proto):
        kept = [a for a in proto.graph.node[0].attribute if a.name != name]
        del proto.graph.node[0].attribute[:]
        proto.graph.node[0].attribute.extend([*kept, replacement])

    return change


def node(**fields):
    """A change of fields of the node."""

    def change(proto):
        for field, value in fields.items():
            if isinstance(value, list):
                proto.graph.node[0].ClearField(field)
                getattr(proto.graph.node[0], field).extend(value)
            else:
                setattr(proto.graph.node[0], field, value)

    return change


def typed(position, element_type):
    """A change of the element type that the graph declares for an input."""
    return lambda proto: setattr(
        proto.graph.input[position].type.tensor_type, "elem_type", element_type
    )


def opset(domain, version):
    """A change of the imported version of a domain."""

    def change(proto):
        for imported in proto.opset_import:
            if imported.domain == domain:
                imported.version = version

    return change


def constant(position, **content):
    """A change that replaces an input by an initializer, whose dims may be wrong."""

    def change(proto):
        name = proto.graph.input.pop(position).name
        proto.graph.initializer.append(TensorProto(name=name, **content))

    return change


def annotated(where, dims):
    """A change of the shape that the graph states for a value."""

    def change(proto):
        (value,) = (v for v in (*proto.graph.input, *proto.graph.output) if v.name == where)
        value.CopyFrom(helper.make_tensor_value_info(where, TensorProto.FLOAT, dims))

    return change


A, INT64, SIZE = AttributeProto, TensorProto.INT64, np.array([9, 11]).tobytes()
A_TENSOR = helper.make_tensor("t", INT64, [4], [1] * 4)
PASSWORDS = onnx.StringStringEntryProto(key="location", value="../../../etc/passwd")
PADS = r"(?s)^Col2Im \(node 'the_node'\): pads = .*: must be a list of integers"
MODE = r"(?s)^com\.microsoft\.GridSample \(node 'the_node'\): mode = .*: must be "
NO_SUCH = r".*: no such attribute; there are "
HOSTILE = [
    Hostile("no_inputs", OVERLAPPING, node(input=[]), extensions=" inputs = 0: must be 3"),
    Hostile("an_input_too_few", OVERLAPPING, node(input=["input", "image_shape"]),
        extensions=" inputs = 2: must be 3"),
    Hostile("no_grid", BILINEAR, node(input=["X"]), extensions=" inputs = 1: must be 2"),
    Hostile("first_input_left_out", OVERLAPPING, node(input=["", "image_shape", "block_shape"])),
    Hostile(
        "an_input_too_many", OVERLAPPING,
        node(input=["input", "image_shape", "block_shape", "block_shape"]),
        extensions=" inputs = 4: must be at most 3",
    ),
    Hostile("its_own_output", OVERLAPPING, node(input=["y", "image_shape", "block_shape"])),
    Hostile("no_outputs", OVERLAPPING, node(output=[])),
    Hostile("unnamed_output", OVERLAPPING, node(output=[""])),
    Hostile("pads_a_tensor", OVERLAPPING, attribute("pads", A.TENSOR, t=A_TENSOR), PADS),
    Hostile("pads_of_no_kind", OVERLAPPING, attribute("pads", A.UNDEFINED, ints=[1] * 4),
        extensions=" pads = "),
    Hostile("pads_that_are_not_there", OVERLAPPING, attribute("pads", A.INTS, floats=[1.0] * 4),
        extensions=" pads = "),
    Hostile("pads_that_are_ints", OVERLAPPING, attribute("pads", A.FLOATS, ints=[1] * 4),
        extensions=" pads = "),
    Hostile(
        "pads_of_a_caller", OVERLAPPING, attribute("pads", A.INTS, ref_attr_name="p"), PADS,
        r"pads = \(what a caller passes as p\): must be a value, outside of functions",
    ),
    Hostile("unknown_attribute", OVERLAPPING, attribute("stride", A.INTS, ints=[2, 2]), None,
        "stride" + NO_SUCH),
    Hostile("unnamed_attribute", OVERLAPPING, attribute("", A.INTS, ints=[2, 2]),
        extensions=NO_SUCH[3:]),
    Hostile("mode_an_integer", BILINEAR, attribute("mode", A.INT, i=1), MODE),
    Hostile("mode_that_is_not_there", BILINEAR, attribute("mode", A.STRING), MODE),
    Hostile("mode_with_a_nul", BILINEAR, attribute("mode", A.STRING, s=b"bilinear\0x"), MODE),
    Hostile("align_corners_a_tensor", BILINEAR, attribute("align_corners", A.TENSOR, t=A_TENSOR),
        "must be an integer"),
    Hostile(
        "image_shape_of_int32", OVERLAPPING, typed(1, TensorProto.INT32),
        r"^Col2Im \(node 'the_node'\): dtype of image_shape = int32: must be one of int64",
        r"^\[ONNXRuntimeError\] ",
    ),
    Hostile("image_of_type_999", BILINEAR, typed(0, 999)),
    Hostile("blocks_of_4_bits", OVERLAPPING, typed(0, TensorProto.INT4)),
    Hostile("opset_0", BILINEAR, opset("com.microsoft", 0), extensions=None),
    Hostile("opset_past_32_bits", BILINEAR, opset("com.microsoft", 2**63 - 1), extensions=None),
    Hostile("opset_of_onnx_negative", OVERLAPPING, opset("", -1), extensions="No Op registered "
                                                                             "for Shape"),
    Hostile("no_opsets", OVERLAPPING, lambda proto: proto.ClearField("opset_import"),
        extensions=None),
    Hostile("constant_cut_short", OVERLAPPING,
        constant(1, data_type=INT64, dims=[2], raw_data=SIZE[:7])),
    Hostile("constant_of_2**80", OVERLAPPING,
        constant(1, data_type=INT64, dims=[2**40] * 2, raw_data=SIZE)),
    Hostile("constant_without_data", OVERLAPPING, constant(1, data_type=INT64, dims=[2])),
    Hostile(
        "constant_from_outside", OVERLAPPING,
        constant(1, data_type=INT64, dims=[2], data_location=TensorProto.EXTERNAL,
            external_data=[PASSWORDS]),
    ),
    Hostile("output_annotated_smaller", OVERLAPPING, annotated("y", [1, 2, 3]), None),
    Hostile("output_annotated_larger", OVERLAPPING, annotated("y", [2, 3, 900, 1100]), None),
    Hostile("output_annotated_negative", BILINEAR, annotated("y", [2, 3, -5, 1]), None),
    Hostile("input_annotated_negative", OVERLAPPING, annotated("input", [-2, 27, 99]), None),
    Hostile("input_annotated_otherwise", OVERLAPPING, annotated("input", [2, 27, 98])),
    Hostile("image_annotated_past_2**63", BILINEAR, annotated("X", [2**62] * 3 + [3])),
]  # fmt: skip


@pytest.fixture(scope="module")
def before():
    """A model, its inputs, and a session that exists before the tests."""
    inputs = OVERLAPPING.inputs("float32")
    proto = model("", "Col2Im", inputs, OVERLAPPING.attributes).SerializeToString()
    return proto, inputs, onnx_ops.InferenceSession(proto, quiet())


@pytest.fixture
def good(before):
    """The session from before must work after the test, and so must a new one."""
    yield
    proto, inputs, old = before
    for session in (old, onnx_ops.InferenceSession(proto, quiet())):
        assert_close(run_session(session, inputs), expected_of(OVERLAPPING, inputs), "float32")


def output(hostile, backend):
    """Run a hostile model on those inputs that it still has, and return its output."""
    session = onnx_ops.InferenceSession(hostile.model(), quiet(), backend=backend)
    inputs = dict(
        zip(
            (i.name for i in hostile.case.operator.inputs),
            hostile.case.inputs("float32"),
            strict=True,
        )
    )
    (y,) = session.run(None, {i.name: inputs[i.name] for i in session.get_inputs()})
    return y


# The short run has both backends for what they do differently.
@pytest.mark.parametrize(
    ("hostile", "backend"),
    [
        long_unless(backend == "native" or hostile.extensions != "", hostile, backend)
        for hostile in HOSTILE
        for backend in ("native", "extensions")
    ],
    ids=str,
)
def test_hostile_model(hostile, backend, good):
    message = hostile.message(backend)
    if message is None:
        assert_close(
            output(hostile, backend),
            expected_of(hostile.case, hostile.case.inputs("float32")),
            "float32",
        )
    else:
        with pytest.raises(Exception, match=message):
            output(hostile, backend)


@pytest.mark.long
def test_cut_and_garbled_files():
    """Files cut at every third byte and files with changed bytes run or fail, and the process ends
    normally.
    """
    script = """
        import numpy as np, onnx_ops
        from support.backends import IN_SESSIONS, quiet, run_session
        from support.cases import OPENVINO, assert_close, case_named, expected_of, model
        rng, done = np.random.default_rng(0), 0
        for case in (case_named("overlapping"), case_named("bilinear_zeros_edges"), OPENVINO[0]):
            inputs = case.inputs("float32")
            whole = model(case.domain, case.op_type, inputs, case.attributes).SerializeToString()
            cut = [whole[:k] for k in range(0, len(whole), 3)]
            for _ in range(60):
                at = rng.integers(0, len(whole), 2)
                cut.append(bytes(rng.integers(256) if k in at else byte
                    for k, byte in enumerate(whole)))
            for content in [*cut, whole]:
                for backend in IN_SESSIONS:
                    done += 1
                    try:
                        y = run_session(onnx_ops.InferenceSession(content, quiet(),
                            backend=backend), inputs)
                    except Exception:
                        assert content != whole
            assert_close(y, expected_of(case, inputs), "float32")
        print("\\nattempts", done)
    """
    assert int(python(script).stdout.split("attempts")[1]) > 300 * len(IN_SESSIONS)


def chain(length):
    """A model of a Col2Im, and of functions that call one another."""
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    nodes = [helper.make_node("Relu", ["a"], ["b"])]
    nodes += [helper.make_node(f"F{k}", ["a"], ["b"], domain="own") for k in range(length - 1)]
    functions = [
        helper.make_function("own", f"F{k}", ["a"], ["b"], [each], imports)
        for k, each in enumerate(nodes)
    ]
    proto = model("", "Col2Im", OVERLAPPING.inputs("float32"), OVERLAPPING.attributes)
    proto.graph.node.append(
        helper.make_node(f"F{length - 1}", [proto.graph.node[0].output[0]], ["z"], domain="own")
    )
    proto.opset_import.append(imports[1])
    proto.functions.extend(functions)
    return proto


def recursion():
    proto = chain(3)
    proto.functions[0].node[0].CopyFrom(proto.graph.node[-1])
    return proto


@pytest.mark.parametrize("make", [lambda: chain(101), lambda: chain(800), recursion])
def test_a_long_chain_of_functions(make):
    """More than 100 are not inlined: onnx before 1.22 would overflow the stack."""
    proto = make()
    assert [node.op_type for node in onnx_ops.lower(chain(100)).graph.node][-1] == "Relu"
    with pytest.raises(
        onnx_ops.OpError, match="functions are recursive, or call one another more than 100 deep"
    ):
        onnx_ops.lower(proto)
    assert onnx_ops.optimize(proto) == proto


def calling(depth, calls=2, body=()):
    """A model of a Col2Im, and of functions that each call the one before so many times."""
    proto = chain(depth)
    for function in proto.functions[1:]:
        (call,) = function.node
        function.node.extend(
            helper.make_node(call.op_type, ["a"], [f"b{k}"], domain=call.domain)
            for k in range(calls - 1)
        )
    proto.functions[0].node.extend(body)
    return proto


LARGE = helper.make_node(
    "Constant", [], ["c"], value=onnx.numpy_helper.from_array(np.zeros(10_000), "c")
)


def copying_an_attribute(count, default):
    """A function of nodes that all get one of its attributes, from a call or by default."""
    proto = chain(1)
    (function,) = proto.functions
    value = helper.make_attribute("p", list(range(count)))
    if default:
        function.attribute_proto.append(value)
    else:
        function.attribute.append("p")
        proto.graph.node[-1].attribute.append(value)
    for k in range(count):
        node = helper.make_node("Constant", [], [f"c{k}"])
        node.attribute.add(name="value_ints", ref_attr_name="p", type=value.type)
        function.node.append(node)
    return proto


MANY_COPIES = {
    "two calls, 16 deep": lambda: calling(16),
    "two calls, 100 deep": lambda: calling(100),
    "20 calls, 5 deep": lambda: calling(5, 20),
    "a large constant": lambda: calling(8, body=[LARGE]),
    "a large attribute": lambda: copying_an_attribute(2_000, False),
    "a large default": lambda: copying_an_attribute(2_000, True),
}


@pytest.mark.parametrize("name", MANY_COPIES)
def test_functions_with_many_copies_stay(name, monkeypatch):
    def inline(model):
        raise AssertionError("copies are made")

    proto = MANY_COPIES[name]()
    monkeypatch.setattr("onnx.inliner.inline_local_functions", inline)
    with pytest.raises(
        onnx_ops.OpError,
        match="inlined, the functions are more than 16 times as large as the model",
    ):
        onnx_ops.lower(proto)
    assert onnx_ops.optimize(proto) == proto


def test_a_few_copies_of_an_attribute_are_made():
    flat = onnx_ops.lower(copying_an_attribute(50, False))
    assert [node.op_type for node in flat.graph.node].count("Constant") >= 50


def test_functions_of_equal_layers_are_inlined():
    """As exporters write them: a layer that is called often, of functions that are called several
    times.
    """
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    linear = [
        helper.make_node("Relu", [f"v{k}" if k else "a"], [f"v{k + 1}" if k < 19 else "b"])
        for k in range(20)
    ]
    layer = [helper.make_node("Linear", [f"v{k}" if k else "a"], [f"v{k + 1}" if k < 5 else "b"],
            domain="own")
             for k in range(6)]  # fmt: skip
    proto = chain(1)
    proto.graph.node.pop()
    del proto.functions[:]
    proto.functions.append(helper.make_function("own", "Linear", ["a"], ["b"], linear, imports))
    proto.functions.append(helper.make_function("own", "Layer", ["a"], ["b"], layer, imports))
    value = proto.graph.node[0].output[0]
    proto.graph.node.extend(
        helper.make_node("Layer", [value], [f"z{k}"], domain="own") for k in range(48)
    )
    assert sum(node.op_type == "Relu" for node in onnx_ops.lower(proto).graph.node) == 48 * 6 * 20


def branching(depth):
    """A model of a Col2Im, and of functions with an If that calls the function before."""
    proto = chain(depth)
    for function in proto.functions[1:]:
        call = function.node.pop()
        value = helper.make_tensor_value_info("b", TensorProto.FLOAT, None)
        other = helper.make_node("Relu", ["a"], ["b"])
        branches = [helper.make_graph([node], "branch", [], [value]) for node in (call, other)]
        condition = helper.make_node("Cast", ["a"], ["c"], to=TensorProto.BOOL)
        choice = helper.make_node(
            "If", ["c"], ["b"], then_branch=branches[0], else_branch=branches[1]
        )
        function.node.extend([condition, choice])
    return proto


def test_subgraphs_that_get_too_deep_by_inlining():
    """protobuf reads 100 messages in one another, three for each If."""
    assert "ai_onnx_Col2Im" in {node.op_type for node in onnx_ops.lower(branching(30)).graph.node}
    for depth in (40, 100):
        proto = branching(depth)
        with pytest.raises(onnx_ops.OpError, match="can't inline the model's functions"):
            onnx_ops.lower(proto)
        assert onnx_ops.optimize(proto) == proto


def passed_on(count, length=50):
    """Functions that pass 20 attributes on to the one before, in chains that the graph calls."""
    proto, names = chain(count), [f"a{k}" for k in range(20)]
    value = proto.graph.node.pop().input[0]
    proto.graph.node.extend(
        helper.make_node(f"F{min(k + length, count) - 1}", [value], [f"z{k}"], domain="own")
        for k in range(0, count, length)
    )
    for k, function in enumerate(proto.functions):
        function.attribute.extend(names)
        if k % length == 0:
            function.node[0].CopyFrom(proto.functions[0].node[0])
            continue
        function.node[0].attribute.extend(
            onnx.AttributeProto(name=name, type=AttributeProto.INT, ref_attr_name=name)
            for name in names
        )
    return proto


def wide(count):
    """As many calls of a function as it has attributes."""
    proto = chain(1)
    proto.functions[0].attribute.extend(f"a{k}" for k in range(count))
    call = proto.graph.node.pop()
    proto.graph.node.extend(
        helper.make_node(call.op_type, call.input, [f"z{k}"], domain="own") for k in range(count)
    )
    return proto


def never_called(count):
    """`wide`, in a function that nothing calls."""
    proto = wide(count)
    function = proto.functions.add()
    function.CopyFrom(proto.functions[0])
    function.name = "Uncalled"
    del function.node[:]
    function.node.extend(proto.graph.node[1:])
    for node in function.node:
        node.input[0] = "a"
    del proto.graph.node[2:]
    return proto


def replaced(count):
    """Functions with the name of an operator that sessions have, behind others."""
    proto = chain(count)
    for k in range(count):
        function = proto.functions.add()
        function.CopyFrom(proto.functions[0])
        function.domain, function.name, function.overload = "", "Relu", str(k)
    return proto


GROWING = {
    "chains that pass attributes on": passed_on,
    "one chain that passes attributes on": lambda count: passed_on(count, count),
    "as many calls as attributes": wide,
    "as many calls as attributes, never called": never_called,
    "functions that sessions replace": replaced,
    "two calls of each, deep": calling,
    "many calls of each": lambda count: calling(8, count),
}


LIKE_OTHERS = ("one chain that passes attributes on", "many calls of each")


@pytest.mark.parametrize(
    "make", [long_unless(name not in LIKE_OTHERS, make, id=name) for name, make in GROWING.items()]
)
def test_steps_of_functions_grow_with_the_model(make):
    def prepare(count):
        proto = make(count)
        return lambda: onnx_ops.optimize(proto)

    assert_steps_linear(prepare, 100)


def test_a_type_with_a_number_beyond_32_bits():
    """ONNX Runtime alone reports it."""
    proto = model("", "GridSample", BILINEAR.inputs("float32"), BILINEAR.attributes)
    nodes = [
        helper.make_node("SequenceEmpty", [], ["s"], dtype=2**63 - 1),
        helper.make_node("Cast", ["s"], ["t"], to=1),
    ]
    proto.graph.node[0].input[1] = "t"
    proto.graph.node.extend([*nodes, proto.graph.node.pop(0)])
    assert "ai_onnx_GridSample" in {node.op_type for node in onnx_ops.lower(proto).graph.node}


@pytest.mark.long  # test_steps_of_functions_grow_with_the_model has chains, too
def test_time_of_a_long_chain_of_functions_grows_with_its_length():
    def prepare(length):
        proto = chain(length)
        return lambda: onnx_ops.optimize(proto)

    assert_linear(prepare, 400)
