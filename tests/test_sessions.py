"""Sessions: registration, graphs, threads, and which kernel runs."""

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from support.backends import quiet, run_session
from support.cases import COL2IM, GRID_SAMPLE, assert_close, finished, model, reference
from support.selection import on_demand

import onnx_ops
from onnx_ops.runtime import library

OVERLAPPING, BILINEAR = COL2IM[1], GRID_SAMPLE[6]
TITLES = {"Col2Im": "Col2Im", "GridSample": "com.microsoft.GridSample"}


def registered(proto, options):
    return ort.InferenceSession(proto.SerializeToString(), onnx_ops.register(options, proto))


def registered_for_all(proto, options):
    options.register_custom_ops_library(onnx_ops.get_library_path())
    return ort.InferenceSession(proto.SerializeToString(), options)


def ours(proto, options):
    return onnx_ops.InferenceSession(proto.SerializeToString(), options)


@pytest.mark.parametrize("dims", ["fixed", "symbolic"])
@pytest.mark.parametrize("session", [ours, registered])
@pytest.mark.parametrize("case", [OVERLAPPING, BILINEAR], ids=str)
def test_unmodified_model(case, session, dims, kernels_made):
    inputs = case.inputs("float32")
    proto = model(case.domain, case.op_type, inputs, case.attributes, dims=dims)
    assert_close(run_session(session(proto, quiet()), inputs), reference(case, inputs), "float32")
    assert kernels_made == [TITLES[case.op_type]]


@pytest.mark.parametrize("opset", [18, 21, 23])
@pytest.mark.parametrize("constants", [["image_shape"], ["block_shape"], ["image_shape", "block_shape"]], ids="+".join)
def test_shapes_as_initializers(constants, opset, kernels_made):
    inputs = OVERLAPPING.inputs("float32")
    proto = model("", "Col2Im", inputs, OVERLAPPING.attributes, constants=constants, opset=opset, dims="symbolic")
    given = inputs[: 1 + (constants == ["block_shape"])] + inputs[2 : 3 if constants == ["image_shape"] else 2]
    assert_close(run_session(ours(proto, quiet()), given), reference(OVERLAPPING, inputs), "float32")
    assert kernels_made == ["Col2Im"]


def conv_relu_col2im_sigmoid():
    """Return a model of four nodes, of which ONNX Runtime fuses two to one of com.microsoft, and an input."""
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((12, 3, 1)).astype(np.float32)
    constants = {"weight": weight, "image_shape": np.array([8, 9]), "block_shape": np.array([3, 2])}
    nodes = [
        helper.make_node("Conv", ["x", "weight"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Col2Im", ["b", "image_shape", "block_shape"], ["c"]),
        helper.make_node("Sigmoid", ["c"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, "L"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    initializers = [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()]
    return finished(helper.make_graph(nodes, "larger", [x], [y], initializers)), rng.standard_normal((2, 3, 48))


@pytest.mark.parametrize("session", [ours, registered, registered_for_all])
def test_graph_that_does_not_import_com_microsoft(session, kernels_made):
    proto, x = conv_relu_col2im_sigmoid()
    inputs = [x.astype(np.float32)]
    builtin = run_session(ort.InferenceSession(proto.SerializeToString(), quiet()), inputs)
    np.testing.assert_allclose(run_session(session(proto, quiet()), inputs), builtin, rtol=1e-5, atol=1e-6)
    assert kernels_made == ["Col2Im"]


def test_graph_that_imports_com_microsoft(kernels_made):
    proto, x = conv_relu_col2im_sigmoid()
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    proto.graph.node.append(helper.make_node("GridSample", ["y", "grid"], ["z"], domain="com.microsoft"))
    proto.graph.input.append(helper.make_tensor_value_info("grid", TensorProto.FLOAT, [2, "H", "W", 2]))
    proto.graph.output[0].name = "z"
    inputs = [x.astype(np.float32), np.random.default_rng(1).uniform(-1, 1, (2, 5, 6, 2)).astype(np.float32)]
    builtin = run_session(ort.InferenceSession(proto.SerializeToString(), quiet()), inputs)
    np.testing.assert_allclose(run_session(ours(proto, quiet()), inputs), builtin, rtol=1e-5, atol=1e-6)
    assert kernels_made == ["Col2Im", "com.microsoft.GridSample"]


def test_1d_dilations_which_the_builtin_kernel_gets_wrong():
    case = next(c for c in COL2IM if c.name == "1d_dilated")
    inputs = case.inputs("float32")
    proto = model("", "Col2Im", inputs, case.attributes)
    builtin = run_session(ort.InferenceSession(proto.SerializeToString(), quiet()), inputs)
    assert np.abs(builtin - reference(case, inputs)).max() > 0.1, "fixed upstream: say so in the docs"
    assert_close(run_session(ours(proto, quiet()), inputs), reference(case, inputs), "float32")


@pytest.mark.parametrize("case", [*COL2IM[1:3], *GRID_SAMPLE[6:9], GRID_SAMPLE[-7]], ids=str)
def test_thread_count_does_not_change_a_bit(case):
    # Large enough for many tiles.
    large = case.operator.inputs[0].name == "X"
    inputs = case.inputs("float32")
    inputs[0] = (
        np.random.default_rng(5)
        .standard_normal((8, *inputs[0].shape[1:]) if large else (512, *inputs[0].shape[1:]))
        .astype(np.float32)
    )
    if large:
        inputs[1] = np.random.default_rng(6).uniform(-1.2, 1.2, (8, 150, 151, 2)).astype(np.float32)
    proto = model(case.domain, case.op_type, inputs, case.attributes)
    one, two = (run_session(ours(proto, quiet(intra_op_num_threads=n)), inputs) for n in (1, 2))
    np.testing.assert_array_equal(one, two)


def test_registering_again_changes_nothing(kernels_made):
    inputs = BILINEAR.inputs("float32")
    proto = model("com.microsoft", "GridSample", inputs, BILINEAR.attributes)
    options = quiet()
    assert onnx_ops.register(options) is options
    onnx_ops.register(options)
    onnx_ops.register(options, proto)
    options.register_custom_ops_library(onnx_ops.get_library_path())
    onnx_ops.register(options, domains=["", "com.microsoft"])
    assert_close(
        run_session(ort.InferenceSession(proto.SerializeToString(), options), inputs),
        reference(BILINEAR, inputs),
        "float32",
    )
    assert kernels_made == ["com.microsoft.GridSample"]


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


def test_options_shared_by_models_that_do_not_agree():
    """com.microsoft can't be removed from options; if that breaks a model, the error says so."""
    options = quiet()
    ours(model("com.microsoft", "GridSample", BILINEAR.inputs("float32"), BILINEAR.attributes), options)
    proto, _ = conv_relu_col2im_sigmoid()
    with pytest.raises(onnx_ops.OpError, match=r"sess_options = used before: com.microsoft was registered on them"):
        ours(proto, options)


def test_wrong_arguments_of_register():
    with pytest.raises(onnx_ops.OpError, match=r"domains = .'nowhere'.*must be among"):
        onnx_ops.register(quiet(), domains=["nowhere"])
    with pytest.raises(onnx_ops.OpError, match=r"backend = 'gpu'.*must be one of"):
        onnx_ops.register(quiet(), backend="gpu")


def test_without_the_library(monkeypatch):
    monkeypatch.setattr(library, "PLACE", Path("/nowhere"))
    with pytest.raises(onnx_ops.OpError, match=r"C library was not built .* backend=\"extensions\""):
        onnx_ops.register(quiet())


@on_demand
@pytest.mark.parametrize("imported", ["", "import onnx_ops"])
def test_the_library_in_a_process_that_has_not_asked_for_it(imported):
    """Else no operator would be registered, as they come from Python, and ONNX Runtime's own kernels would run."""
    script = f"""
import sys
import onnxruntime
{imported}
onnxruntime.SessionOptions().register_custom_ops_library(sys.argv[1])
"""
    done = subprocess.run([sys.executable, "-c", script, onnx_ops.get_library_path()], capture_output=True, text=True)
    assert done.returncode == 1
    message = (
        "onnx_ops must be imported in this process, and its get_library_path() called, before the library is registered"
    )
    assert message in done.stderr


def test_a_package_in_a_zip_file(tmp_path):
    """A library can't be loaded from there, and the error says so; functions work."""
    script = """
import numpy as np
import onnxruntime
import onnx_ops
from onnx_ops.runtime import library
assert ".zip" in onnx_ops.__file__, onnx_ops.__file__
print(onnx_ops.col2im(np.ones((1, 4, 1)), (2, 2), (2, 2)).sum())
try:
    onnx_ops.register(onnxruntime.SessionOptions())
except onnx_ops.OpError as error:
    print(error)
"""
    package = Path(onnx_ops.__file__).parent
    archive = shutil.make_archive(str(tmp_path / "archive"), "zip", package.parent, package.name)
    environment = {**os.environ, "PYTHONPATH": archive}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    rule = (
        'no C library can be loaded from inside a zip file, where onnx_ops is; unpack it, or use backend="extensions"'
    )
    assert done.stdout == f"4.0\nonnx_ops: backend = 'native': {rule}\n", done.stderr


def test_a_model_that_is_none_is_left_to_onnx_runtime():
    with pytest.raises(Exception, match=r"(?i)protobuf|model"):
        onnx_ops.InferenceSession(b"no model at all", quiet())
    with pytest.raises(FileNotFoundError):
        onnx_ops.InferenceSession("no_such_file.onnx", quiet())


def test_python_goes_on_while_a_kernel_computes():
    """The kernel holds no GIL: another thread's Python keeps running during one long run."""
    x = np.ones((1, 64 * 9, 512 * 512), np.float32)
    inputs = [x, np.array([512, 512]), np.array([3, 3])]
    session = ours(model("", "Col2Im", inputs, {"pads": [1] * 4}), quiet(intra_op_num_threads=1))
    run_session(session, inputs)
    assert any(goes_on(session, inputs) for _ in range(5)), "in none of five runs, so a busy machine is not the cause"


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


def test_output_in_the_callers_buffer():
    """A run writes its output into the caller's buffer."""
    inputs = OVERLAPPING.inputs("float32")
    session = ours(model("", "Col2Im", inputs, OVERLAPPING.attributes), quiet())
    expected = reference(OVERLAPPING, inputs)
    x, y = ort.OrtValue.ortvalue_from_numpy(inputs[0]), np.empty(expected.shape, np.float32)
    target = ort.OrtValue.ortvalue_from_numpy(y)
    binding = session.io_binding()
    binding.bind_ortvalue_input("input", x)
    for name, value in (("image_shape", inputs[1]), ("block_shape", inputs[2])):
        binding.bind_cpu_input(name, value)
    binding.bind_ortvalue_output("y", target)
    session.run_with_iobinding(binding)
    assert_close(target.numpy(), expected, "float32")


def vector_run(backend, inputs):
    from onnxruntime.capi._pybind_state import OrtDevice, OrtValueVector, RunOptions

    proto = model("", "Col2Im", OVERLAPPING.inputs("float32"), OVERLAPPING.attributes, dims="none")
    session = onnx_ops.InferenceSession(proto.SerializeToString(), quiet(), backend=backend)
    feeds, fetches = OrtValueVector(), OrtValueVector()
    kept = [ort.OrtValue.ortvalue_from_numpy(v) for v in inputs]
    for value in kept:
        feeds.push_back(value._ortvalue)
    device = OrtDevice(OrtDevice.cpu(), OrtDevice.default_memory(), 0)
    names = [i.name for i in session.get_inputs()]
    session.run_with_ortvaluevector(RunOptions(), names, feeds, ["y"], fetches, [device])
    return ort.OrtValue(fetches[0]).numpy()


def test_ort_value_vectors():
    inputs = OVERLAPPING.inputs("float32")
    assert_close(vector_run("native", inputs), reference(OVERLAPPING, inputs), "float32")
    with pytest.raises(onnx_ops.OpError, match=r"^Col2Im: shape of input = .* axis 1 must be divisible"):
        vector_run("native", [inputs[0][:, 1:], *inputs[1:]])
    with pytest.raises(onnx_ops.OpError, match=r"run_with_ortvaluevector = called: is for backend=.native"):
        vector_run("extensions", inputs)
