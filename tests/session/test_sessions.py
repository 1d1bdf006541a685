"""Sessions: registration, graphs, threads, and which kernel runs."""

import threading
import time

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from support.backends import (
    HAVE_EXTENSIONS,
    IN_SESSIONS,
    ORT_VERSION,
    quiet,
    run_session,
    with_extensions,
)
from support.cases import (
    DEFORM_CONV,
    VOLUMES,
    assert_close,
    case_named,
    expected_of,
    model,
    parsed,
)
from support.processes import python
from support.selection import needs_extensions, on_demand, some_of
from support.written import conv_relu_col2im_sigmoid

import onnx_ops
from onnx_ops.native import library
from onnx_ops.registry import use

OVERLAPPING, BILINEAR = case_named("overlapping"), case_named("bilinear_zeros_edges")


def registered(proto, options):
    return ort.InferenceSession(proto.SerializeToString(), onnx_ops.register(options, proto))


def registered_for_all(proto, options):
    options.register_custom_ops_library(onnx_ops.get_library_path())
    return ort.InferenceSession(proto.SerializeToString(), options)


def ours(proto, options):
    return onnx_ops.InferenceSession(proto.SerializeToString(), options)


@pytest.mark.parametrize(
    "constants", [["image_shape"], ["block_shape"], ["image_shape", "block_shape"]], ids="+".join
)
def test_shapes_as_initializers(constants, kernels_made):
    inputs = OVERLAPPING.inputs("float32")
    proto = model(
        "", "Col2Im", inputs, OVERLAPPING.attributes, constants=constants, dims="symbolic"
    )
    given = [
        v
        for i, v in zip(OVERLAPPING.operator.inputs, inputs, strict=True)
        if i.name not in constants
    ]
    assert_close(
        run_session(ours(proto, quiet()), given), expected_of(OVERLAPPING, inputs), "float32"
    )
    assert kernels_made == ["Col2Im"]


@pytest.mark.parametrize("session", [ours, registered, registered_for_all])
def test_graph_that_does_not_import_com_microsoft(session, kernels_made):
    proto, inputs = conv_relu_col2im_sigmoid()
    builtin = run_session(ort.InferenceSession(proto.SerializeToString(), quiet()), inputs)
    np.testing.assert_allclose(
        run_session(session(proto, quiet()), inputs), builtin, rtol=1e-5, atol=1e-6
    )
    assert kernels_made == ["Col2Im"]


def test_graph_that_imports_com_microsoft(kernels_made):
    proto, inputs = conv_relu_col2im_sigmoid(sampled=True)
    builtin = run_session(ort.InferenceSession(proto.SerializeToString(), quiet()), inputs)
    np.testing.assert_allclose(
        run_session(ours(proto, quiet()), inputs), builtin, rtol=1e-5, atol=1e-6
    )
    assert kernels_made == ["Col2Im", "com.microsoft.GridSample"]


OLDEST = 7  # of ai.onnx, of which ONNX Runtime supports all operators
EARLIER = {
    "Col2Im": (OVERLAPPING, 17),
    "GridSample": (BILINEAR, 15),
    "GridSample of volumes": (VOLUMES[0], 15),
    "DeformConv": (DEFORM_CONV[0], 18),
}


@pytest.mark.parametrize(
    ("operator", "opset", "backend"),
    some_of(EARLIER, [OLDEST, 11, 13, "the last"], IN_SESSIONS),
    ids=str,
)
def test_versions_that_have_no_such_operator(operator, opset, backend):
    """Exporters of before 2022 write operators of newer versions for other runtimes."""
    case, last = EARLIER[operator]
    opset, inputs = last if opset == "the last" else opset, case.inputs("float32")
    for constants in (), [i.name for i in case.operator.inputs[1:]]:
        proto = model(
            case.domain, case.op_type, inputs, case.attributes, opset=opset, constants=constants
        )
        session = onnx_ops.InferenceSession(proto.SerializeToString(), quiet(), backend=backend)
        expected = expected_of(case, inputs)
        assert_close(run_session(session, inputs[:1] if constants else inputs), expected, "float32")
        # Col2Im's shape depends on values, which ONNX Runtime hides. Version 1.20 is told none with
        # optional inputs.
        hidden = case.op_type == "Col2Im" or (
            case.op_type == "DeformConv" and ORT_VERSION < (1, 21)
        )
        if backend == "native" and not hidden:
            assert session.get_outputs()[0].shape == list(expected.shape)


@needs_extensions
@pytest.mark.parametrize("case", [OVERLAPPING, BILINEAR, DEFORM_CONV[0]], ids=str)
def test_lower_a_version_that_has_no_such_operator(case):
    inputs = case.inputs("float32")
    lowered = onnx_ops.lower(model(case.domain, case.op_type, inputs, case.attributes, opset=11))
    session = ort.InferenceSession(lowered.SerializeToString(), with_extensions(quiet()))
    assert_close(run_session(session, inputs), expected_of(case, inputs), "float32")


@pytest.mark.parametrize("backend", IN_SESSIONS)
@pytest.mark.parametrize("opset", [11, 15, 16])
def test_a_function_that_has_the_name_of_an_operator(opset, backend):
    """ONNX Runtime runs the registered operator, in every version."""
    proto = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : {opset}]>
        g (float[1, 1, 4, 4] x, float[1, 2, 2, 2] places) => (float[a, b, c, d] z) {{
            y = GridSample (x, places)
            z = Neg (y)
        }}
        <opset_import: ["" : {opset}], domain: ""> GridSample (x, places)
            => (y) {{ y = Add (x, x) }}""")
    session = onnx_ops.InferenceSession(proto.SerializeToString(), quiet(), backend=backend)
    inputs = [np.ones((1, 1, 4, 4), np.float32), np.zeros((1, 2, 2, 2), np.float32)]
    assert run_session(session, inputs).tolist() == [[[[-1, -1], [-1, -1]]]]


def keep(x):
    return x


@pytest.mark.parametrize("session", [ours, registered])
@pytest.mark.parametrize("domain", ["", "com.microsoft"])
@pytest.mark.parametrize("has_custom_operator", [False, True])
def test_domains_that_only_a_function_imports(domain, session, has_custom_operator):
    """ONNX Runtime runs its own operators there, as in models that onnxscript makes of such
    functions.
    """
    if has_custom_operator:
        use(
            [
                onnx_ops.operator(
                    f"{domain}::Keep", inputs="x: T", outputs="y: T", types={"T": ["float32"]}
                )(keep)
            ]
        )
    proto = parsed(f"""(float[2, 3] x) => (float[2, 3] y) {{ y = local.F (x) }}
        <opset_import: ["{domain}" : {1 if domain else 20}], domain: "local"> F (x) => (y) {{
            y = {f"{domain}.Gelu".removeprefix(".")} (x)
        }}""", 20, "local")  # fmt: skip
    if not domain:
        del proto.opset_import[0]
    inputs = [np.ones((2, 3), np.float32)]
    builtin = run_session(ort.InferenceSession(proto.SerializeToString(), quiet()), inputs)
    np.testing.assert_array_equal(run_session(session(proto, quiet()), inputs), builtin)


@pytest.mark.filterwarnings("ignore:onnx_ops. com.microsoft is left out")
def test_registering_again_changes_nothing(kernels_made):
    inputs = BILINEAR.inputs("float32")
    proto = model("com.microsoft", "GridSample", inputs, BILINEAR.attributes)
    options = quiet()
    assert onnx_ops.register(options) is options
    onnx_ops.register(options)
    onnx_ops.register(options, proto)
    options.register_custom_ops_library(onnx_ops.get_library_path())
    onnx_ops.register(options, domains=["", "com.microsoft"])
    y = run_session(ort.InferenceSession(proto.SerializeToString(), options), inputs)
    assert_close(y, expected_of(BILINEAR, inputs), "float32")
    assert kernels_made == ["com.microsoft.GridSample"]


def test_options_that_have_the_operators_are_not_registered_again():
    """ONNX Runtime keeps a record of each registration as long as the options, so a server would
    take more and more.
    """
    registrations = []

    class Options(ort.SessionOptions):
        def register_custom_ops_library(self, path):
            registrations.append(path)
            super().register_custom_ops_library(path)

    triple = onnx_ops.operator(
        "own::Triple", inputs="x: T", outputs="y: T", types={"T": ["float32"]}
    )(lambda x: 3 * x)
    own = parsed(
        "(float[2] x) => (float[2] y) { y = own.Triple (x) }", 18, "own"
    ).SerializeToString()
    cases = {"": OVERLAPPING, "com.microsoft": BILINEAR}
    protos = [
        model(d, case.op_type, case.inputs("float32"), case.attributes) for d, case in cases.items()
    ]
    options = Options()
    for proto, count in zip(
        [protos[0], protos[0], protos[1], protos[1], protos[0]], [1, 1, 2, 2, 2], strict=True
    ):
        ours(proto, options)
        assert len(registrations) == count
    for count in (3, 3):
        session = onnx_ops.InferenceSession(own, options, operators=[triple])
        assert session.run(None, {"x": np.array([1, 2], np.float32)})[0].tolist() == [3, 6]
        assert len(registrations) == count
    for case, proto in zip(cases.values(), protos, strict=True):
        inputs = case.inputs("float32")
        assert_close(
            run_session(ours(proto, options), inputs), expected_of(case, inputs), "float32"
        )
    for count in range(4, 9):
        ours(protos[0], Options())  # others, maybe at the same address
        assert len(registrations) == count


@pytest.mark.filterwarnings("ignore:onnx_ops. com.microsoft is left out")
def test_domains_decide_what_is_replaced(kernels_made, tmp_path):
    inputs = BILINEAR.inputs("float32")
    proto = model("com.microsoft", "GridSample", inputs, BILINEAR.attributes)
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    for options in (onnx_ops.register(quiet(), domains=["ai.onnx"]), onnx_ops.register(quiet())):
        run_session(ort.InferenceSession(path, options), inputs)
    assert kernels_made == []
    for source in (path, str(path), path.read_bytes(), proto):
        run_session(ort.InferenceSession(path, onnx_ops.register(quiet(), source)), inputs)
    run_session(onnx_ops.InferenceSession(path, quiet()), inputs)
    assert kernels_made == ["com.microsoft.GridSample"] * 5


def test_a_process_is_warned_once_that_com_microsoft_is_left_out(tmp_path):
    script = """
        import sys, warnings
        import onnx_ops
        from onnxruntime import SessionOptions
        warnings.simplefilter("always")
        for _ in range(2):
            onnx_ops.register(SessionOptions())
        onnx_ops.register(SessionOptions(), domains=[""])
    """
    text = python(script).stderr
    assert text.count("com.microsoft is left out") == 1
    assert "onnx_ops.register(options, model)" in text
    assert "onnx_ops.register(options, domains=['', 'com.microsoft'])" in text


def test_options_shared_by_models_that_do_not_agree():
    """com.microsoft can't be removed from options; if that breaks a model, the error says so."""
    options = quiet()
    ours(
        model("com.microsoft", "GridSample", BILINEAR.inputs("float32"), BILINEAR.attributes),
        options,
    )
    proto, _ = conv_relu_col2im_sigmoid()
    with pytest.raises(
        onnx_ops.OpError, match=r"sess_options = used before: com.microsoft was registered on them"
    ):
        ours(proto, options)


@pytest.mark.parametrize("backend", IN_SESSIONS)
def test_an_operator_that_com_microsoft_lacks(backend):
    """The model imports com.microsoft, so the options are not to blame."""
    proto = parsed(
        "(float[1, 1, 2, 6] x, float[1, 4, 2, 2] g) => (float[N] z) {"
        # Fmt: skip.
        " y = GridSample(x, g) z = com.microsoft.NoSuchOperator(y) }",
        20,
        "com.microsoft",
    )
    with pytest.raises(Exception, match=r"com\.microsoft:NoSuchOperator\(-1\) is not a registered"):
        onnx_ops.InferenceSession(proto.SerializeToString(), quiet(), backend=backend)


FORGED_ENTRIES = """
import onnx_ops
from onnxruntime import SessionOptions
onnx_ops.register(SessionOptions(), domains=["ai.onnx", "com.microsoft"])
for entry in sys.argv[1:]:
    options = SessionOptions()
    options.add_session_config_entry("onnx_ops.registered.ai.onnx", entry)
    try:
        onnx_ops.register(options)
    except Exception as error:
        print(error)
"""


def test_entries_of_the_options_from_outside():
    """None is an address, or the number of a domain that the library hasn't made or that has
    another name.
    """
    entries = ["0x4141414141", "4141", "0x0", "", "1", "-1", "9" * 31, "0 ", "z'"]
    lines = python("import sys\n" + FORGED_ENTRIES, *entries).stdout.splitlines()
    rule = "is an entry that only the library may write"
    assert lines == [
        f"[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : onnx_ops.registered.ai.onnx = '{entry}': "
        f"{rule}"
        for entry in (each.replace("'", r"\x27") for each in entries)
    ]


def test_wrong_arguments_of_register():
    with pytest.raises(onnx_ops.OpError, match=r"domains = .'nowhere'.*must be among"):
        onnx_ops.register(quiet(), domains=["nowhere"])
    with pytest.raises(onnx_ops.OpError, match=r"backend = 'gpu'.*must be one of"):
        onnx_ops.register(quiet(), backend="gpu")


@pytest.mark.parametrize("is_clone", [False, True])
def test_without_the_library(is_clone, tmp_path, monkeypatch):
    """In a clone's folder Python imports the clone, which has no library, instead of what was
    installed from it.
    """
    monkeypatch.setattr(library, "PLACE", tmp_path / "onnx_ops" / "native" / "library.so")
    if is_clone:
        (tmp_path / "setup.py").touch()
    rule = (
        f"not in the clone {tmp_path}, .* in another folder"
        if is_clone
        else "not built when onnx_ops was installed"
    )
    remains = ', or use backend="extensions"' if HAVE_EXTENSIONS else ""
    with pytest.raises(
        onnx_ops.OpError, match=rf"C library (was|is) {rule}.*(again|-e \.){remains}$"
    ):
        onnx_ops.register(quiet())


@pytest.mark.long  # the short run has a row of test_troubleshooting.py
@on_demand
@pytest.mark.parametrize("imported", ["", "import onnx_ops"])
def test_the_library_in_a_process_that_has_not_asked_for_it(imported):
    """Else no operator would be registered, as they come from Python, and ONNX Runtime's built-in
    kernels would run.
    """
    script = f"import sys, onnxruntime\n{imported}\n"
    script += "onnxruntime.SessionOptions().register_custom_ops_library(sys.argv[1])"
    done = python(script, onnx_ops.get_library_path(), check=False)
    rule = (
        "must be imported in this process, and its get_library_path() called, before the "
        "library is registered"
    )
    assert (done.returncode, f"onnx_ops {rule}" in done.stderr) == (1, True)


def test_a_model_that_is_none_is_left_to_onnx_runtime():
    with pytest.raises(Exception, match=r"(?i)protobuf|model"):
        onnx_ops.InferenceSession(b"no model at all", quiet())
    with pytest.raises(FileNotFoundError):
        onnx_ops.InferenceSession("no_such_file.onnx", quiet())


@pytest.mark.parametrize("at_once", [1, 4])
def test_shapes_that_change(at_once):
    """A node keeps the plan of its last call: each call gets one for its own shapes, and values, on
    several threads.
    """
    sizes = [(2, 4, 6), (2, 4, 8), (3, 4, 6), (2, 6, 4)] * 25
    proto = model("", "Col2Im", inputs_of_size(*sizes[0]), {"strides": [2, 2]}, dims="symbolic")
    session = ours(proto, quiet(intra_op_num_threads=1))
    wrong = []

    def run(first):
        for size in sizes[first:] + sizes[:first]:
            inputs = inputs_of_size(*size)
            y = run_session(session, inputs)
            blocks = inputs[0].reshape(size[0], 2, 2, 2, size[1] // 2, size[2] // 2)
            if not np.array_equal(
                y, blocks.transpose(0, 1, 4, 2, 5, 3).reshape(size[0], 2, *size[1:])
            ):
                wrong.append(size)

    threads = [threading.Thread(target=run, args=[first]) for first in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    with pytest.raises(Exception, match="number of blocks"):
        run_session(session, [inputs_of_size(2, 4, 6)[0], np.array([4, 8]), np.array([2, 2])])
    run(0)
    assert not wrong


def inputs_of_size(batch, height, width):
    """Blocks of 2x2 that tile two channels of such images."""
    x = np.arange(batch * 8 * (height // 2) * (width // 2), dtype=np.float32).reshape(batch, 8, -1)
    return [x, np.array([height, width]), np.array([2, 2])]


def test_python_goes_on_while_a_kernel_computes():
    """The kernel holds no GIL: another thread's Python keeps running during one long run."""
    x = np.ones((1, 64 * 9, 128 * 128), np.float32)
    inputs = [x, np.array([128, 128]), np.array([3, 3])]
    session = ours(model("", "Col2Im", inputs, {"pads": [1] * 4}), quiet(intra_op_num_threads=1))
    run_session(session, inputs)
    assert any(goes_on(session, inputs) for _ in range(100)), (
        "in no run, so a busy machine is not the cause"
    )


def goes_on(session, inputs):
    """Return whether no pause of Python, during one run, lasts half as long as the run."""
    running, seconds = threading.Event(), []

    def work():
        running.set()
        began = time.perf_counter()
        run_session(session, inputs)
        seconds.append(time.perf_counter() - began)

    thread = threading.Thread(target=work)
    thread.start()
    running.wait()
    longest = 0
    while thread.is_alive():
        before = time.perf_counter()
        sum(range(100))
        longest = max(longest, time.perf_counter() - before)
    return longest < seconds[0] / 2
