"""Errors of ONNX Runtime become OpErrors only if an operator has reported them, and in time linear
in their length.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper
from support.backends import ORT_VERSION, quiet
from support.cases import COL2IM, model
from support.growth import assert_linear
from support.selection import by_type, in_turn, long_unless, some_of

import onnx_ops
from onnx_ops.cli.console import one_line
from onnx_ops.native.execute import Specialization
from onnx_ops.registry import available
from onnx_ops.session import reports

pytestmark = pytest.mark.any_library

CASE = COL2IM[0]
FORGED = "Col2Im: a = 1: b"
WRONG_SIZE = np.array([4, 77])  # an image_shape that the case's input doesn't fit


def col2im(name="", size=None):
    """(a session of a Col2Im node of this name, its input_feed)"""
    inputs = CASE.inputs("float32")
    proto = model(CASE.domain, CASE.op_type, inputs, CASE.attributes, dims="none")
    proto.graph.node[0].name = name
    names = [value.name for value in proto.graph.input]
    feeds = dict(zip(names, inputs, strict=True))
    feeds["image_shape"] = feeds["image_shape"] if size is None else size
    return onnx_ops.InferenceSession(proto.SerializeToString(), quiet()), feeds


def reshape(name):
    """A model without operators of ours, whose node of this name fails if x hasn't 4 elements."""
    value = helper.make_tensor_value_info
    node = helper.make_node("Reshape", ["x", "shape"], ["y"], name)
    graph = helper.make_graph(
        [node], "g", [value("x", 1, None), value("shape", 7, [1])], [value("y", 1, [4])]
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10
    ).SerializeToString()


def failure(call, *args):
    with pytest.raises(Exception) as caught:  # noqa: PT011  ONNX Runtime has many types
        call(*args)
    return caught.value


@pytest.mark.parametrize("count", [1, 40_000])
def test_names_of_inputs_make_no_refusal(count):
    session, feeds = col2im()
    for name in (FORGED * count, "Col2Im: " * count, f"Status Message: {FORGED}" * count):
        error = failure(session.run, None, {**feeds, name: WRONG_SIZE})
        assert isinstance(error, ort.capi.onnxruntime_pybind11_state.InvalidArgument)
        assert str(error).startswith("[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Invalid")


@pytest.mark.long  # the time of a refusal behind a name stands for it in the short run
def test_time_of_a_refused_name_grows_with_its_length():
    session, feeds = col2im()
    assert_linear(
        lambda count: lambda: failure(session.run, None, {**feeds, FORGED * count: WRONG_SIZE}),
        40_000,
    )


NAMES = {
    "refusals": lambda n: FORGED * n,
    "status messages": lambda n: f"' Status Message: {FORGED}" * n,
    "titles": lambda n: "Col2Im: " * n,
    "nodes": lambda n: "Col2Im (node '" * n,
    "quotes": lambda n: "\\'\"" * n,
    "failures": lambda n: "Non-zero status code returned while running " * n,
}


@pytest.mark.parametrize(("name", "count"), in_turn(NAMES, [1, 8_000]))
def test_names_of_nodes_make_no_refusal(name, count):
    """Also of ONNX Runtime's own nodes, and in the messages of commands."""
    name = NAMES[name](count)
    session = onnx_ops.InferenceSession(reshape(name), quiet())
    feeds = {"x": np.zeros(5, np.float32), "shape": np.array([4])}
    error = failure(session.run, None, feeds)
    assert not isinstance(error, onnx_ops.OpError)
    assert name in str(error)
    assert len(one_line(error)) <= len(str(error))


@pytest.mark.parametrize(("name", "count"), in_turn(NAMES, [1, 8_000]))
def test_a_refusal_is_found_behind_any_name(name, count):
    session, feeds = col2im(NAMES[name](count), WRONG_SIZE)
    error = failure(session.run, None, feeds)
    assert isinstance(error, onnx_ops.OpError)
    assert (error.operator, error.argument) == ("Col2Im", "shape of input")


@pytest.mark.parametrize("name", [long_unless(name == "status messages", name) for name in NAMES])
def test_time_of_a_refusal_grows_with_the_name_of_the_node(name):
    def prepare(count):
        session, feeds = col2im(NAMES[name](count), WRONG_SIZE)
        return lambda: one_line(failure(session.run, None, feeds))

    assert_linear(prepare, 10_000)


@pytest.mark.parametrize("name", NAMES)
def test_a_refusal_of_a_named_node_when_a_session_is_made(name):
    """Its message quotes the name."""
    proto = model(
        CASE.domain, CASE.op_type, CASE.inputs("float32"), {"pads": [-1] * 4}, dims="none"
    )
    proto.graph.node[0].name = NAMES[name](2)
    error = failure(onnx_ops.InferenceSession, proto.SerializeToString(), quiet())
    assert isinstance(error, onnx_ops.OpError)
    assert (error.argument, error.value) == ("pads", "[-1, -1, -1, -1]")
    assert error.operator.startswith("Col2Im (node ")


@pytest.mark.parametrize(("name", "count"), in_turn(NAMES, [1, 8_000]))
def test_names_of_nodes_of_invalid_models(name, count):
    """ONNX Runtime's message has the name twice."""
    proto = onnx.ModelProto.FromString(reshape(NAMES[name](count)))
    proto.graph.node[0].op_type = "Reshap"
    content = proto.SerializeToString()
    for make in (ort.InferenceSession, onnx_ops.InferenceSession):
        assert not isinstance(failure(make, content, quiet()), onnx_ops.OpError)


@pytest.mark.long
def test_time_of_an_invalid_model_grows_with_the_name_of_a_node():
    def prepare(count):
        content = reshape(FORGED * count).replace(b"Reshape", b"Reshap_")
        return lambda: failure(onnx_ops.InferenceSession, content, quiet())

    assert_linear(prepare, 10_000)


@pytest.mark.parametrize(
    "path", [FORGED, f"Exception during initialization: {FORGED}", f"Status Message: {FORGED}"]
)
def test_paths_make_no_refusal(path, tmp_path):
    error = failure(onnx_ops.InferenceSession, str(tmp_path / path))
    assert not isinstance(error, onnx_ops.OpError)


@onnx_ops.operator("my::Failing", inputs="x: float32", outputs="y: float32")
def failing(x, *, text: str):
    raise OSError(text)


@onnx_ops.operator("my::Failing", inputs="x: float32", outputs="y: float32")
def failing_inside(x, *, text: str):
    def inner():
        raise OSError(f"{text}{x.size}"[:-1])

    return sum(x if k else inner() for k in range(2))


def of_another_session():
    """The message of a session that the operator's body has run."""
    session = onnx_ops.InferenceSession(reshape("inner"), quiet())
    return str(failure(session.run, None, {"x": np.zeros(5, np.float32), "shape": np.array([4])}))


TEXTS = [
    "no such file",
    f"Status Message: {FORGED}",
    "Status Message: ",
    "a = 1: b",
    "a: b = 'c': d",
    of_another_session(),
]


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
@pytest.mark.parametrize("operator", [failing, failing_inside])
def test_what_a_body_raises_is_its_operators_failure(text, operator):
    """Also where a function or a generator in it raises it, whose frame has views of the inputs."""
    value = helper.make_tensor_value_info
    node = helper.make_node("Failing", ["x"], ["y"], domain="my", text=text)
    graph = helper.make_graph([node], "g", [value("x", 1, [1])], [value("y", 1, [1])])
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("my", 1)]
    content = helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()
    session = onnx_ops.InferenceSession(content, quiet(), operators=[operator])
    error = failure(session.run, None, {"x": np.zeros(1, np.float32)})
    assert isinstance(error, onnx_ops.OpError)
    assert (error.operator, error.argument, error.value) == ("my.Failing", None, None)
    assert text in error.rule


PARALLEL = {"execution_mode": ort.ExecutionMode.ORT_PARALLEL, "inter_op_num_threads": 4}
MODES = {"sequential": {}, "parallel": PARALLEL}
THREADS, REPEATS = 8, 10


def col2im_content(count: int = 1) -> bytes:
    """Return a model of Col2Im nodes side by side, of the same inputs."""
    proto = model(CASE.domain, CASE.op_type, CASE.inputs("float32"), CASE.attributes, dims="none")
    for k in range(1, count):
        node = proto.graph.node.add()
        node.CopyFrom(proto.graph.node[0])
        node.name, node.output[0] = f"node_{k}", f"y_{k}"
        proto.graph.output.add(name=node.output[0])
    return proto.SerializeToString()


def wrong_feeds(k: int) -> tuple[dict[str, np.ndarray], onnx_ops.OpError]:
    """Return an input_feed that Col2Im refuses, another one for each k, and the function's
    error.
    """
    x, _, block = CASE.inputs("float32")
    feeds = {"input": x, "image_shape": np.array([4, 50 + k]), "block_shape": block}
    error = failure(lambda: onnx_ops.col2im(*feeds.values(), **CASE.attributes))
    assert isinstance(error, onnx_ops.OpError)
    return feeds, error


def bound(session: ort.InferenceSession, feeds: dict[str, np.ndarray]) -> ort.IOBinding:
    binding = session.io_binding()
    for name, value in feeds.items():
        binding.bind_cpu_input(name, value)
    for output in session.get_outputs():
        binding.bind_output(output.name)
    return binding


def as_values(feeds: dict[str, np.ndarray]) -> dict[str, ort.OrtValue]:
    return {name: ort.OrtValue.ortvalue_from_numpy(value) for name, value in feeds.items()}


RUNS: dict[str, Callable] = {
    "run": lambda session, feeds: session.run(None, feeds),
    "run_with_ort_values": lambda session, feeds: session.run_with_ort_values(
        None, as_values(feeds)
    ),
    "run_with_iobinding": lambda session, feeds: session.run_with_iobinding(bound(session, feeds)),
}


@pytest.mark.parametrize(("mode", "run", "nodes"), some_of(MODES, RUNS, [1, 3]))
def test_each_of_many_threads_gets_its_own_error(mode, run, nodes):
    session = onnx_ops.InferenceSession(col2im_content(nodes), quiet(**MODES[mode]))
    together = threading.Barrier(THREADS)

    def fail_again_and_again(k: int) -> list[tuple[str, ...]]:
        feeds, _ = wrong_feeds(k)
        together.wait()
        return [failure(RUNS[run], session, feeds).args for _ in range(REPEATS)]

    with ThreadPoolExecutor(THREADS) as pool:
        outcomes = list(pool.map(fail_again_and_again, range(THREADS)))
    expected = [wrong_feeds(k)[1].args for k in range(THREADS)]
    assert len(set(expected)) == THREADS
    assert outcomes == [[args] * REPEATS for args in expected]


@pytest.mark.parametrize("mode", MODES)
def test_run_async_passes_the_message_on(mode):
    session = onnx_ops.InferenceSession(
        col2im_content(), quiet(intra_op_num_threads=4, **MODES[mode])
    )
    messages: dict[int, str] = {}
    ended = threading.Semaphore(0)

    def finish(results: object, k: int, message: str) -> None:
        messages[k] = message
        ended.release()

    for k in range(THREADS):
        session.run_async(None, wrong_feeds(k)[0], finish, k)
    for _ in range(THREADS):
        assert ended.acquire(timeout=600)
    for k in range(THREADS):
        assert messages[k].endswith(f"Status Message: {wrong_feeds(k)[1]}")
    session_error = failure(session.run, None, wrong_feeds(3)[0])
    assert session_error.args == wrong_feeds(3)[1].args


def plain_session(**settings: object) -> ort.InferenceSession:
    """Return a session of ONNX Runtime's own class."""
    content = col2im_content()
    return ort.InferenceSession(content, onnx_ops.register(quiet(**settings), content))


@pytest.mark.parametrize("mode", MODES)
def test_a_plain_session_raises_onnx_runtimes_exception(mode):
    """Its text ends with the message of the function."""
    feeds, expected = wrong_feeds(0)
    error = failure(plain_session(**MODES[mode]).run, None, feeds)
    assert isinstance(error, ort.capi.onnxruntime_pybind11_state.InvalidArgument)
    assert str(error).endswith(f"Status Message: {expected}")


def run_ours() -> None:
    onnx_ops.InferenceSession(col2im_content(), quiet()).run(None, wrong_feeds(0)[0])


def run_plainly() -> None:
    plain_session().run(None, wrong_feeds(0)[0])


def make_ours() -> None:
    model_of_bad_pads = onnx.ModelProto.FromString(col2im_content())
    model_of_bad_pads.graph.node[0].attribute.add(
        name="pads", type=onnx.AttributeProto.INTS, ints=[-1] * 4
    )
    onnx_ops.InferenceSession(model_of_bad_pads.SerializeToString(), quiet())


REFUSED: dict[str, Callable[[], None]] = {
    "run": run_ours,
    "plain run": run_plainly,
    "making": make_ours,
}


@onnx_ops.operator("my::Catching", inputs="x: float32", outputs="y: float32")
def catching(x, *, which: str):
    """Return x after a refusal in another session."""
    failure(REFUSED[which])
    return x


@pytest.mark.parametrize(
    ("where", "which", "has_text"), some_of(["before", "in a body"], REFUSED, [True, False])
)
def test_an_error_of_onnx_runtime_after_another_refusal(which, where, has_text, monkeypatch):
    """It stays ONNX Runtime's, even if a node's name in it is the message of that refusal, or it
    has no text.
    """
    name = str(failure(REFUSED[which])).rpartition("Status Message: ")[2]
    proto = onnx.ModelProto.FromString(reshape(name))
    if where == "in a body":
        proto.graph.node[0].input[0] = "z"
        proto.graph.node.insert(
            0, helper.make_node("Catching", ["x"], ["z"], domain="my", which=which)
        )
        proto.opset_import.append(helper.make_opsetid("my", 1))
    session = onnx_ops.InferenceSession(proto.SerializeToString(), quiet(), operators=[catching])
    if not has_text:
        monkeypatch.setattr(ort.InferenceSession, "run", without_text(ort.InferenceSession.run))
    if where == "before":
        failure(REFUSED[which])
    error = failure(session.run, None, {"x": np.zeros(5, np.float32), "shape": np.array([4])})
    assert not isinstance(error, onnx_ops.OpError)
    assert not has_text or name in str(error)


@onnx_ops.operator("my::Ruled", inputs="x: float32", outputs="y: float32")
def ruled(x):
    return x


@ruled.shape
def _(x):
    onnx_ops.require(x[0] != 5, "length of x", x[0], "must not be", 5)
    return x


@pytest.mark.parametrize("name", ["", "my.Ruled: length of x = 5: must not be 5"])
def test_an_error_of_onnx_runtime_after_a_refusal_in_inference(name):
    """Shapes are inferred before ONNX Runtime looks at the next node, and errors in it are
    dropped.
    """
    value = helper.make_tensor_value_info
    ruled_node = helper.make_node("Ruled", ["x"], ["z"], domain="my")
    other_node = helper.make_node("Not", ["z"], ["y"], name)
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("my", 1)]
    for nodes, output in ([ruled_node, other_node], "y"), ([ruled_node], "z"):
        outputs = [helper.make_empty_tensor_value_info(output)]
        graph = helper.make_graph(nodes, "g", [value("x", 1, [5])], outputs)
        content = helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()
        error = failure(
            lambda model=content: onnx_ops.InferenceSession(model, quiet(), operators=[ruled])
        )
        assert isinstance(error, onnx_ops.OpError) == (len(nodes) == 1)


def without_text(run: Callable) -> Callable:
    """Return a method that raises exceptions without a text, as in Python 3.11.2 if a name is not
    UTF-8.
    """

    def run_then(*args: object) -> object:
        try:
            return run(*args)
        except Exception as error:
            raise type(error) from None

    return run_then


def test_a_refusal_without_a_text(monkeypatch):
    monkeypatch.setattr(ort.InferenceSession, "run", without_text(ort.InferenceSession.run))
    session = onnx_ops.InferenceSession(col2im_content(), quiet())
    for k in range(3):
        feeds, expected = wrong_feeds(k)
        assert failure(session.run, None, feeds).args == expected.args
        error = failure(session.run, None, {"no such input": WRONG_SIZE})
        assert not isinstance(error, onnx_ops.OpError)


@pytest.mark.parametrize("mode", MODES)
def test_a_client_cannot_repeat_a_refusal(mode):
    """Neither as an input's name nor with what ONNX Runtime writes before the message."""
    session = onnx_ops.InferenceSession(col2im_content(), quiet(**MODES[mode]))
    feeds, expected = wrong_feeds(0)
    assert failure(session.run, None, feeds).args == expected.args
    for name in (
        str(expected),
        f"Status Message: {expected}",
        f"Non-zero status code : Status Message: {expected}",
    ):
        error = failure(session.run, None, {**feeds, name: WRONG_SIZE})
        assert not isinstance(error, onnx_ops.OpError)
        assert name in str(error)


def test_a_message_that_quotes_another_one_on_other_threads():
    """The longest one is the error's."""
    inner, outer = (
        onnx_ops.OpError(None, None, rule, "my.Op")
        for rule in ("r", "again Status Message: my.Op: r")
    )
    text = (
        "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Non-zero status code returned while "
        "running Op node. Name:''"
    )
    for order in ([inner, outer], [outer, inner]):
        for error in order:
            reports.add(str(error), error)
        for error in order:
            found = reports.refusal_of(
                RuntimeError(f"{text} Status Message: {error}"), is_parallel=True
            )
            assert str(found) == str(error)
    assert (
        reports.refusal_of(RuntimeError(f"{text} Status Message: another"), is_parallel=True)
        is None
    )


@onnx_ops.operator("my::Talking", inputs="x: float32", outputs="y: float32")
def talking(x, *, length: int):
    raise OSError("a" + "\u20ac" * length)


@pytest.mark.parametrize(("length", "mode"), in_turn([1, 1300, 1400, 10**6], MODES))
def test_a_long_message_of_a_body(mode, length):
    """ONNX Runtime gets its beginning, in whole characters."""
    value = helper.make_tensor_value_info
    node = helper.make_node("Talking", ["x"], ["y"], domain="my", length=length)
    graph = helper.make_graph([node], "g", [value("x", 1, [1])], [value("y", 1, [1])])
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("my", 1)]
    content = helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()
    session = onnx_ops.InferenceSession(content, quiet(**MODES[mode]), operators=[talking])
    error = failure(session.run, None, {"x": np.zeros(1, np.float32)})
    assert isinstance(error, onnx_ops.OpError)
    assert error.operator == "my.Talking"
    assert error.rule.startswith("OSError: a" + "\u20ac" * min(length, 1300))
    assert len(error.rule) <= reports.LONGEST
    assert "\ufffd" not in str(error.__cause__)


IMPORTS = '["" : 22, "com.microsoft" : 1, "mmdeploy" : 1]'
TWO_TYPES = {  # {a node: (its inputs, the argument that is refused, its type, the rule)}
    "DeformConv (a, b, c)": (
        "double[1,1,3,3] a, float[1,1,1,1] b, float[1,2,3,3] c", "W", "float32",
        "float64, that of X"),
    "DeformConv (b, b, a)": ("double[1,2,3,3] a, float[1,1,1,1] b", "offset", "float64",
        "float32, that of X"),
    "DeformConv (a, a, a)": ("int8[1,1,3,3] a", "X", "int8", "one of float16, bfloat16, float32, "
                                                             "float64"),
    "RoiAlign (a, b, c)": ("float[1,1,3,3] a, double[1,4] b, int64[1] c", "rois", "float64",
        "float32, that of X"),
    "RoiAlign (a, a, a)": ("float[1,1,3,3] a", "batch_indices", "float32", "one of int64"),
    "mmdeploy.MMCVRoiAlign <output_height = 1, output_width = 1> (a, b)": (
        "double[1,1,3,3] a, float[1,5] b", "rois", "float32", "float64, that of input"),
    "mmdeploy.MMCVDeformConv2d (a, b, c)": (
        "float[1,1,3,3] a, float[1,2,3,3] b, double[1,1,1,1] c", "weight", "float64",
        "float32, that of x"),
    "com.microsoft.GridSample (a, b)": (
        "int8[1,1,3,3] a, float[1,1,1,2] b", "X", "int8", "one of float16, bfloat16, float32, "
                                                          "float64"),
}  # fmt: skip


def with_types(node: str, inputs: str, more: str = "") -> onnx.ModelProto:
    graph = f"g ({inputs}) => (y) {{ {more} y = {node} }}"
    return onnx.parser.parse_model(f"<ir_version: 10, opset_import: {IMPORTS}> {graph}")


@pytest.mark.parametrize("node", TWO_TYPES)
def test_types_that_an_operator_refuses(node: str) -> None:
    """ONNX Runtime refuses the model in words of its own; functions on arrays refuse them in the
    same words.
    """
    inputs, *refused, rule = TWO_TYPES[node]
    proto = with_types(node, inputs)
    proto.graph.node[0].name = "the node"
    error = failure(onnx_ops.InferenceSession, proto.SerializeToString(), quiet())
    assert isinstance(error, onnx_ops.OpError)
    assert [error.argument, error.value, error.rule] == [
        f"dtype of {refused[0]}",
        refused[1],
        f"must be {rule}",
    ]
    declared = available()[proto.graph.node[0].domain, proto.graph.node[0].op_type]
    assert error.operator == f"{declared.title} (node 'the node')"
    assert not isinstance(error.__cause__, onnx_ops.OpError)
    names = {value.name: value.type.tensor_type.elem_type for value in proto.graph.input}
    kinds = [helper.tensor_dtype_to_np_dtype(names[name]) for name in proto.graph.node[0].input]
    of_call = failure(Specialization, declared, 0, kinds, [4] * len(kinds))
    assert (of_call.argument, of_call.value, of_call.rule) == (
        error.argument,
        error.value,
        error.rule,
    )


OF_ROIS = "dtype of rois = float64: must be float32, that of X"
ROI = "RoiAlign (a, b, c)"


def test_types_of_values_in_between_are_known() -> None:
    proto = with_types(ROI, "float[1,1,3,3] a, float[1,4] f, int64[1] c", "b = Cast <to = 11> (f)")
    assert str(failure(onnx_ops.InferenceSession, proto.SerializeToString(), quiet())).endswith(
        OF_ROIS
    )
    proto = with_types(ROI, TWO_TYPES[ROI][0])
    del proto.graph.input[1:]
    proto.graph.initializer.append(helper.make_tensor("b", 11, [1, 4], [0.0] * 4))
    proto.graph.initializer.append(helper.make_tensor("c", 7, [1], [0]))
    assert str(failure(onnx_ops.InferenceSession, proto.SerializeToString(), quiet())).endswith(
        OF_ROIS
    )


def test_types_in_a_subgraph_are_refused() -> None:
    branches = {"then_branch = t": f"u = {ROI}", "else_branch = e": "u = Identity (a)"}
    inner = ", ".join(
        f"{name} () => (float[1,1,1,1] u) {{ {node} }}" for name, node in branches.items()
    )
    proto = with_types(
        f"If <{inner}> (condition)", f"{TWO_TYPES[ROI][0]}, bool condition".replace("3,3", "1,1")
    )
    assert str(failure(onnx_ops.InferenceSession, proto.SerializeToString(), quiet())).endswith(
        OF_ROIS
    )


@pytest.mark.skipif(ORT_VERSION < (1, 32), reason="ONNX Runtime's exceptions are others")
@pytest.mark.parametrize(
    ("dtype", "opset"), by_type([("float16", 20), ("bfloat16", 20), ("bfloat16", 21)])
)
@pytest.mark.parametrize("name", ["", "the node"])
def test_affine_grids_in_16_bits(dtype: str, opset: int, name: str) -> None:
    """ONNX Runtime's exceptions are about the nodes that it puts there, when the session is made or
    runs.
    """
    imports = f'<ir_version: 10, opset_import: ["" : {opset}]>'
    sizes = "<int64[4] size = {1, 1, 2, 2}>"
    proto = onnx.parser.parse_model(
        f"{imports} g ({dtype}[1,2,3] theta) => (y) {sizes} {{ y = AffineGrid (theta, size) }}"
    )
    proto.graph.node[0].name = name
    theta = np.zeros((1, 2, 3), np.float16)
    error = failure(
        lambda: onnx_ops.InferenceSession(proto.SerializeToString(), quiet()).run(
            None, {"theta": theta}
        )
    )
    assert isinstance(error, onnx_ops.OpError)
    assert (error.argument, error.value) == ("dtype of theta", dtype)
    floats = "float32, float64" + ", float16" * (
        dtype == "bfloat16"
    )  # which some versions and ranks support
    assert error.rule == f"must be one of {floats}"
    assert error.operator == "AffineGrid" + " (node 'the node')" * bool(name)


@pytest.mark.skipif(ORT_VERSION < (1, 32), reason="ONNX Runtime's exceptions are others")
@pytest.mark.parametrize("node", ["Add (theta, theta)", "AffineGrid (theta, size)"])
def test_no_affine_grid_explains_another_fault(node: str) -> None:
    """An Add in bfloat16 has no kernel, and an AffineGrid in float32 refuses another size."""
    inputs = (
        f"{'bfloat16' if 'Add' in node else 'float'}[1,2,3] theta, int64[3] size, "
        "float16[1,2,3] other, int64[4] of"
    )
    text = f"""<ir_version: 10, opset_import: ["" : 21]> g ({inputs}) => (y, z)
        {{ y = {node} z = AffineGrid (other, of) }}"""
    proto = onnx.parser.parse_model(text)
    feeds = {"theta": np.zeros((1, 2, 3), np.float32), "size": np.ones(3, np.int64)}
    feeds |= {"other": np.zeros((1, 2, 3), np.float16), "of": np.ones(4, np.int64)}
    error = failure(
        lambda: onnx_ops.InferenceSession(proto.SerializeToString(), quiet()).run(None, feeds)
    )
    assert not isinstance(error, onnx_ops.OpError)


def test_onnxruntimes_exception_stands_where_nothing_is_found() -> None:
    """In a local function, and where another node is at fault."""
    value = helper.make_tensor_value_info
    imports = [helper.make_opsetid("", 22), helper.make_opsetid("local", 1)]
    node = helper.make_node("RoiAlign", ["a", "b", "c"], ["y"])
    function = helper.make_function("local", "F", ["a", "b", "c"], ["y"], [node], imports[:1])
    caller = helper.make_node("F", ["a", "b", "c"], ["y"], domain="local")
    inputs = [value("a", 1, [1, 1, 3, 3]), value("b", 11, [1, 4]), value("c", 7, [1])]
    graph = helper.make_graph([caller], "g", inputs, [value("y", 1, None)])
    in_function = helper.make_model(
        graph, opset_imports=imports, ir_version=10, functions=[function]
    )
    another = with_types(
        "RoiAlign (a, b, c)", "float[1,1,3,3] a, float[1,4] b, int64[1] c", "z = NoSuchNode (a)"
    )
    for proto in (in_function, another):
        error = failure(onnx_ops.InferenceSession, proto.SerializeToString(), quiet())
        assert type(error).__module__.startswith("onnxruntime")
