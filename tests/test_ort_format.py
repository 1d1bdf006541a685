"""Models in ONNX Runtime's own format run if they were written with onnx_ops, and are refused otherwise."""

import numpy as np
import onnxruntime as ort
import pytest
from support.backends import quiet, run_session
from support.cases import ATTENTION, COL2IM, GRID_SAMPLE, OPENVINO, VOLUMES, assert_close, model, reference
from test_sessions import conv_relu_col2im_sigmoid

import onnx_ops
from onnx_ops import ort_format
from onnx_ops.model_files import imported_domains
from onnx_ops.operators import available

CASES = [COL2IM[1], VOLUMES[0], GRID_SAMPLE[6], OPENVINO[0], ATTENTION[0]]


def written(proto, path, with_onnx_ops=True):
    """Write a model in ONNX Runtime's own format and return its path."""
    options = onnx_ops.register(quiet(), proto) if with_onnx_ops else quiet()
    options.optimized_model_filepath = str(path)
    options.add_session_config_entry("session.save_model_format", "ORT")
    ort.InferenceSession(proto.SerializeToString(), options)
    return path


def one_node(case, dtype="float32"):
    inputs = case.inputs(dtype)
    return model(case.domain, case.op_type, inputs, case.attributes), inputs


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_model_written_with_onnx_ops(case, dtype, tmp_path, kernels_made):
    proto, inputs = one_node(case, dtype)
    path = written(proto, tmp_path / "model.ort")
    kernels_made.clear()
    sessions = [
        onnx_ops.InferenceSession(path, quiet()),
        onnx_ops.InferenceSession(path.read_bytes(), quiet()),
        ort.InferenceSession(path, onnx_ops.register(quiet(), path)),
        ort.InferenceSession(path, onnx_ops.register(quiet(), path.read_bytes())),
        ort.InferenceSession(path, onnx_ops.register(quiet(), domains=[case.domain])),
    ]
    assert kernels_made == [case.operator.title] * len(sessions)
    for session in sessions:
        assert_close(run_session(session, inputs), reference(case, inputs), dtype)


@pytest.mark.parametrize("case", CASES[:3], ids=str)
def test_a_model_written_without(case, tmp_path):
    """Else ONNX Runtime's own kernel would run, or the session would fail with an error about type strings."""
    proto, inputs = one_node(case)
    path = written(proto, tmp_path / "model.ort", with_onnx_ops=False)
    assert_close(run_session(ort.InferenceSession(path, quiet()), inputs), reference(case, inputs), "float32")
    rule = f"was written without onnx_ops, for ONNX Runtime's own {case.operator.title}$"
    for use in (onnx_ops.InferenceSession, lambda model, options: onnx_ops.register(options, model)):
        with pytest.raises(onnx_ops.OpError, match=rf"^onnx_ops: model = '.*model.ort': {rule}"):
            use(path, quiet())
        with pytest.raises(onnx_ops.OpError, match=rf"^onnx_ops: model = \(bytes\): {rule}"):
            use(path.read_bytes(), quiet())


@pytest.mark.parametrize("sampled", [False, True])
def test_a_network_with_fused_nodes_of_com_microsoft(sampled, tmp_path, kernels_made):
    proto, inputs = conv_relu_col2im_sigmoid(sampled)
    expected = run_session(ort.InferenceSession(proto.SerializeToString(), quiet()), inputs)
    path = written(proto, tmp_path / "model.ort")
    assert ort_format.domains(path, available()) == {"", *["com.microsoft"] * sampled}
    kernels_made.clear()
    got = run_session(onnx_ops.InferenceSession(path, quiet()), inputs)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    assert kernels_made == ["Col2Im", *["com.microsoft.GridSample"] * sampled]


def test_the_extensions_backend_refuses_it(tmp_path):
    path = written(one_node(CASES[0])[0], tmp_path / "model.ort")
    with pytest.raises(onnx_ops.OpError, match=r"backend = 'extensions': is for models in the format of ONNX, not"):
        onnx_ops.InferenceSession(path, quiet(), backend="extensions")


def test_damaged_files(tmp_path):
    """ONNX Runtime refuses them; our reader ends and raises nothing else."""
    content = written(one_node(CASES[0])[0], tmp_path / "model.ort").read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(2000):
        garbled = bytearray(content[: rng.integers(8, len(content))])
        for _ in range(3):
            garbled[rng.integers(8, len(garbled)) if len(garbled) > 8 else 0] = rng.integers(256)
        try:
            assert ort_format.domains(bytes(garbled), available()) <= {""}
        except onnx_ops.OpError as error:
            assert "was written without" in str(error)  # noqa: PT017
    with pytest.raises(Exception, match=r"(?i)ort|verif|model"):
        onnx_ops.InferenceSession(content[:100], quiet())


def test_what_tells_the_formats_apart(tmp_path):
    proto, _ = one_node(CASES[0])
    (tmp_path / "model.ort").write_bytes(proto.SerializeToString())  # the name does not matter
    for given in (proto, proto.SerializeToString(), tmp_path / "model.ort"):
        assert not ort_format.is_ort_format(given)
        assert imported_domains(given) == {""}
    path = written(proto, tmp_path / "model.onnx")
    assert ort_format.is_ort_format(path)
    assert ort_format.is_ort_format(str(path))
