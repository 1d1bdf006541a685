"""All backends give the same bits and the same errors, and none of them ends the process."""

import re
import threading
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from support.backends import HAVE_EXTENSIONS, IN_SESSIONS, quiet, run_session, with_extensions
from support.cases import (
    ATTENTION,
    COL2IM,
    DEFORM_CONV,
    FUSED,
    IM2COL,
    OPENVINO,
    ROI_ALIGN,
    assert_close,
    case_named,
    expected_of,
    model,
    operator,
    parsed,
)
from support.malformed import (
    AT_RUN,
    BY_TYPE,
    EVERYTHING,
    argument_value_rule,
    grid_sample,
    unshaped,
)
from support.processes import python, together
from support.selection import in_turn, long_unless, needs_extensions, on_demand

import onnx_ops
from onnx_ops.arrays import functions

OVERLAPPING, BILINEAR = case_named("overlapping"), case_named("bilinear_zeros_edges")


def in_session(backend, bad):
    return onnx_ops.InferenceSession(unshaped(bad), quiet(), backend=backend)


def refusal(call):
    with pytest.raises(onnx_ops.OpError) as caught:
        call()
    return caught.value


WITH_DEFAULTS = [
    replace(c, attributes={})
    for c in (
        COL2IM[0],
        BILINEAR,
        OPENVINO[0],
        case_named("volume_linear_zeros_edges"),
        ATTENTION[0],
        ROI_ALIGN[0],
    )
]
GOOD = {
    (c.domain, c.op_type): c for c in (*WITH_DEFAULTS, IM2COL[0], *FUSED[::-1], *DEFORM_CONV[::-1])
}


@pytest.mark.parametrize(
    ("backend", "bad"),
    [
        *(("native", bad) for bad in EVERYTHING),
        *(
            long_unless(k % 18 == 0, "extensions", bad) for k, bad in enumerate(EVERYTHING)
        ),  # by the function's code
    ],
    ids=str,
)
def test_same_parts_of_an_error(backend, bad):
    """The function and both backends state the same argument, value and rule, sessions as early as
    they can.

    After a run that fails, the session goes on.
    """
    by_function = refusal(
        lambda: functions.call(operator(bad.domain, bad.op_type), *bad.inputs, **bad.attributes)
    )
    assert re.match(f"{bad.title}: {bad.message}", str(by_function))
    good = GOOD.get((bad.domain, bad.op_type))
    # Lowering does not know the types of all inputs.
    if any(bad is each for each in (AT_RUN if backend == "native" else AT_RUN + BY_TYPE)):
        session, node = in_session(backend, bad), ""
        error = refusal(lambda: run_session(session, bad.inputs))
        if good and bad.attributes == good.attributes and bad.inputs[0].dtype == np.float32:
            inputs = good.inputs("float32")
            assert_close(run_session(session, inputs), expected_of(good, inputs), "float32")
    else:
        error, node = refusal(lambda: in_session(backend, bad)), r" \(node 'the_node'\)"
    assert re.match(f"{bad.title}{node}: {bad.message}", str(error))
    argument, value, rule = argument_value_rule(by_function)
    assert isinstance(value, str)
    shown = argument_value_rule(error)[1]
    # A kernel can read only integers where an attribute is of another kind than the kernel asks
    # for.
    is_of_other_kind = rule.startswith("must be a") and re.search(r"\(not of kind \w+\)$", shown)
    assert argument_value_rule(error) == (
        argument,
        shown if is_of_other_kind and backend == "native" else value,
        rule,
    )


@needs_extensions
@pytest.mark.parametrize("bad", [*AT_RUN[::9], *BY_TYPE], ids=str)
def test_a_lowered_model_in_a_plain_session(bad):
    """It can't raise our error: the output is empty, and the log says why."""
    proto = onnx_ops.lower(onnx.ModelProto.FromString(unshaped(bad)))
    session = ort.InferenceSession(proto.SerializeToString(), with_extensions(quiet()))
    assert run_session(session, bad.inputs).size == 0


TEXTS = [
    "a = b: c",
    "it's: 'so'",
    """it's "a: b": c""",
    "a\n: b\r\n",
    "\\" * 1000,
    """'": """ * 300,
    "\u00e9: \x7f" * 99,
]


@pytest.mark.parametrize(
    ("text", "name"),
    in_turn(TEXTS, ["the_node", "a'): mode = b: c", """Col2Im: it's "so": x = 1: y"""]),
    ids=lambda text: ascii(text[:9]),
)
def test_values_and_names_that_look_like_messages(text, name):
    """A session raises the same error as the function, whatever is in the message."""
    bad = grid_sample("of_many_colons", "", mode=text)
    function = refusal(
        lambda: functions.call(operator(bad.domain, bad.op_type), *bad.inputs, mode=text)
    )
    proto = onnx.ModelProto.FromString(unshaped(bad))
    proto.graph.node[0].name = name
    for backend in IN_SESSIONS:
        error = refusal(
            lambda b=backend: onnx_ops.InferenceSession(
                proto.SerializeToString(), quiet(), backend=b
            )
        )
        assert argument_value_rule(error) == argument_value_rule(function)
        assert error.operator == f"com.microsoft.GridSample (node {name!r})"


@needs_extensions
def test_whatever_a_body_does_the_process_lives(monkeypatch, caplog):
    from onnx_ops.native import execute

    inputs = OVERLAPPING.inputs("float32")
    session = onnx_ops.InferenceSession(
        model("", "Col2Im", inputs, OVERLAPPING.attributes).SerializeToString(),
        quiet(),
        backend="extensions",
    )
    for error in (
        MemoryError("no room"),
        KeyboardInterrupt(),
        SystemExit(3),
        ZeroDivisionError("by zero"),
    ):

        def fail(*args, error=error):
            raise error

        with monkeypatch.context() as patched:
            patched.setattr(execute, "compute", fail)
            failure = isinstance(error, Exception)
            message = f"^Col2Im: {type(error).__name__}" if failure else None
            with pytest.raises(onnx_ops.OpError if failure else type(error), match=message):
                run_session(session, inputs)
    assert "Col2Im" in caplog.text
    assert_close(run_session(session, inputs), expected_of(OVERLAPPING, inputs), "float32")


def many_branches(count):
    """`count` Col2Im nodes side by side, each with a block_shape of its own, concatenated."""
    blocks, outputs = (
        ", ".join(f"{kind}{k}" for k in range(count)) for kind in ("int64[2] b", "y")
    )
    nodes = " ".join(f"y{k} = Col2Im (x, image, b{k})" for k in range(count))
    inputs = f"float[N, C, L] x, int64[2] image, {blocks}"
    return parsed(
        f"({inputs}) => (float[N, D, H, W] y) {{ {nodes} y = Concat <axis = 1> ({outputs}) }}"
    )


@pytest.mark.parametrize(
    ("backend", "mode"), in_turn(["native", "extensions"], ["ORT_SEQUENTIAL", "ORT_PARALLEL"])
)
def test_concurrent_runs_keep_their_errors_apart(backend, mode):
    options = quiet(execution_mode=getattr(ort.ExecutionMode, mode), inter_op_num_threads=2)
    session = onnx_ops.InferenceSession(
        many_branches(4).SerializeToString(), options, backend=backend
    )
    x = np.ones((1, 9, 9), np.float32)
    good = [np.array([5, 5]), *[np.array([3, 3])] * 4]
    expected = run_session(session, [x, *good])
    assert expected.shape == (1, 4, 5, 5)
    mistakes = []

    def work(thread_index):
        for turn in range(30):
            if (thread_index + turn) % 2:
                image = np.array([5, 100 * thread_index + turn + 7])
                try:
                    run_session(session, [x, image, *good[1:]])
                    mistakes.append("no error")
                except onnx_ops.OpError as error:
                    rule = f"the last axis must be the number of blocks, {3 * (int(image[1]) - 2)}"
                    if str(error) != f"Col2Im: shape of input = [1, 9, 9]: {rule}":
                        mistakes.append(str(error))
            elif not np.array_equal(run_session(session, [x, *good]), expected):
                mistakes.append("another result")

    together(work, 4)
    assert mistakes == []
    if backend == "extensions":
        from onnx_ops.session import extensions

        assert not extensions._errors, "a run's error was kept for nobody"


@needs_extensions
def test_registering_the_library_twice(kernels_made):
    """We register it once, even if the user did so before; ONNX Runtime refuses a registration
    after ours.
    """
    inputs = OVERLAPPING.inputs("float32")
    proto = onnx_ops.lower(model("", "Col2Im", inputs, OVERLAPPING.attributes)).SerializeToString()
    expected = expected_of(OVERLAPPING, inputs)
    twice = onnx_ops.register(
        onnx_ops.register(quiet(), backend="extensions"), backend="extensions"
    )
    after_user = onnx_ops.register(with_extensions(quiet()), backend="extensions")
    beside_native = onnx_ops.register(
        onnx_ops.register(quiet(), domains=[""]), backend="extensions"
    )
    for options in (twice, after_user, beside_native):
        assert_close(run_session(ort.InferenceSession(proto, options), inputs), expected, "float32")
    with pytest.raises(Exception, match=r"(?i)conflict|already"):
        ort.InferenceSession(proto, with_extensions(twice))
    assert kernels_made == []


def a_lowered_model():
    return onnx_ops.lower(
        model("", "Col2Im", OVERLAPPING.inputs("float32"), OVERLAPPING.attributes)
    ).SerializeToString()


@needs_extensions
@pytest.mark.parametrize("by_user", [True, False])
def test_registering_writes_nothing(by_user, tmp_path):
    """It writes neither an optimized model nor a profile, and leaves these options as they are."""
    options = quiet(
        optimized_model_filepath=str(tmp_path / "optimized.onnx"), enable_profiling=True
    )
    options.profile_file_prefix = str(tmp_path / "profile")
    onnx_ops.register(with_extensions(options) if by_user else options, backend="extensions")
    assert list(tmp_path.iterdir()) == []
    assert options.enable_profiling
    ort.InferenceSession(a_lowered_model(), options).end_profiling()
    assert {path.suffix for path in tmp_path.iterdir()} == {".onnx", ".json"}


def test_async_runs_and_bindings():
    inputs = OVERLAPPING.inputs("float32")
    names = ["input", "image_shape", "block_shape"]
    proto = model("", "Col2Im", inputs, OVERLAPPING.attributes, dims="none").SerializeToString()
    expected = expected_of(OVERLAPPING, inputs)
    for backend in IN_SESSIONS:
        session = onnx_ops.InferenceSession(proto, quiet(intra_op_num_threads=2), backend=backend)
        assert [i.name for i in session.get_inputs()] == names
        binding = session.io_binding()
        for name, value in zip(names, inputs, strict=True):
            binding.bind_cpu_input(name, value)
        binding.bind_output("y")
        for _ in range(2):
            session.run_with_iobinding(binding)
        assert_close(binding.copy_outputs_to_cpu()[0], expected, "float32")
        values = {
            n: ort.OrtValue.ortvalue_from_numpy(v) for n, v in zip(names, inputs, strict=True)
        }
        assert_close(session.run_with_ort_values(["y"], values)[0].numpy(), expected, "float32")
        for feeds, message in (
            (inputs, ""),
            ([inputs[0][:, :5], *inputs[1:]], "the second to last axis must be divisible"),
        ):
            ended, answers = threading.Event(), []

            def callback(results, data, error, answers=answers, ended=ended):
                answers.append((results, data, error))
                ended.set()

            session.run_async(["y"], dict(zip(names, feeds, strict=True)), callback, "data")
            assert ended.wait(600)
            assert message in answers[0][2]
            assert answers[0][1] == "data"
            if not message:
                assert_close(answers[0][0][0], expected, "float32")


@on_demand
def test_without_numba():
    """Functions and backend="extensions" run the references; the native backend says what is
    missing.
    """
    script = """
        import sys
        sys.modules["numba"] = None
        import onnx_ops
        from support.backends import BACKENDS, IN_SESSIONS, quiet
        from support.cases import assert_close, case_named, expected_of
        for case in (case_named("overlapping"), case_named("bilinear_zeros_edges")):
            inputs = case.inputs("float32")
            for name in ("function", *IN_SESSIONS[1:]):
                got = BACKENDS[name](case, inputs)
                assert_close(got, expected_of(case, inputs), "float32", name)
        try:
            onnx_ops.register(quiet())
        except onnx_ops.OpError as error:
            print(error)
    """
    message = python(script).stdout
    assert "Numba can't be imported" in message
    assert ('backend="extensions"' in message) == HAVE_EXTENSIONS
