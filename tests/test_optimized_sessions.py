"""InferenceSession(..., optimize=True) runs the optimized model, wherever the model's data are."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from support.backends import quiet
from support.written import affine_grid, feeds, unfold
from test_ort_format import written as written_in_ort_format

import onnx_ops

MODELS = {"Im2Col": unfold(), "AffineGrid": affine_grid(size=(20, 30))}


def results(session, proto):
    return session.run(None, feeds(proto))


def weighed_down():
    """A model with a base grid, which is replaced, and a weight, which stays; both are large."""
    weight = np.random.default_rng(0).standard_normal((2, 20, 30, 2))
    return affine_grid(size=(20, 30), after=lambda w: w.add("Add", "grid", w.constant(weight, "float32"), name="y"))


@pytest.mark.parametrize("how", ["path", "bytes"])
@pytest.mark.parametrize("backend", ["native", "extensions"])
@pytest.mark.parametrize("name", MODELS)
def test_the_same_results_by_our_nodes(name, backend, how, tmp_path, kernels_made):
    proto = MODELS[name]
    onnx.save(proto, tmp_path / "model.onnx")
    model = tmp_path / "model.onnx" if how == "path" else proto.SerializeToString()
    expected = results(onnx_ops.InferenceSession(model, quiet(), backend=backend), proto)
    assert kernels_made == []
    session = onnx_ops.InferenceSession(model, quiet(), backend=backend, optimize=True)
    assert kernels_made == ([f"onnx_ops.{name}"] if backend == "native" else [])
    assert [i.name for i in session.get_inputs()] == [i.name for i in proto.graph.input]
    np.testing.assert_array_equal(results(session, proto)[0], expected[0])


@pytest.mark.parametrize("release", ["1.20.1", ort.__version__])
@pytest.mark.parametrize("backend", ["native", "extensions"])
def test_external_data_stay_where_they_are(backend, release, tmp_path, monkeypatch):
    """They are copied for ONNX Runtime 1.20 only, which doesn't find them; the model is in another folder."""
    proto = weighed_down()
    folder = tmp_path / "folder"
    folder.mkdir()
    onnx.save(proto, folder / "model.onnx", save_as_external_data=True, location="data", size_threshold=100)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ort, "__version__", release)
    session = onnx_ops.InferenceSession("folder/model.onnx", quiet(), backend=backend, optimize=True)
    assert (len(session._model_bytes) > 2 * 20 * 30 * 2 * 4) == release.startswith("1.20.")
    expected = results(ort.InferenceSession("folder/model.onnx", quiet()), proto)
    np.testing.assert_array_equal(results(session, proto)[0], expected[0])


@pytest.mark.skipif(ort.__version__.startswith("1.20."), reason="it does not find the folder itself")
def test_external_data_of_a_model_in_memory(tmp_path):
    """The options state the folder of the data."""
    proto = weighed_down()
    onnx.save(proto, tmp_path / "model.onnx", save_as_external_data=True, location="data", size_threshold=100)
    options = quiet()
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(tmp_path))
    session = onnx_ops.InferenceSession((tmp_path / "model.onnx").read_bytes(), options, optimize=True)
    expected = results(ort.InferenceSession(tmp_path / "model.onnx", quiet()), proto)
    np.testing.assert_array_equal(results(session, proto)[0], expected[0])


@pytest.mark.parametrize("proto", [unfold(mode="reflect"), affine_grid(product="Max")], ids=["near miss", "nothing"])
def test_a_model_in_which_nothing_is_replaced_is_handed_over_unchanged(proto, tmp_path):
    onnx.save(proto, tmp_path / "model.onnx")
    assert onnx_ops.InferenceSession(tmp_path / "model.onnx", quiet(), optimize=True)._model_path == str(
        tmp_path / "model.onnx"
    )
    content = proto.SerializeToString()
    assert onnx_ops.InferenceSession(content, quiet(), optimize=True)._model_bytes is content
    session = onnx_ops.InferenceSession(content, quiet(), optimize=True, backend="extensions")
    np.testing.assert_array_equal(results(session, proto)[0], results(ort.InferenceSession(content, quiet()), proto)[0])


@pytest.mark.parametrize("backend", ["native", "extensions"])
def test_the_format_of_onnx_runtime_is_refused(backend, tmp_path):
    path = written_in_ort_format(MODELS["Im2Col"], tmp_path / "model.ort")
    for model in (path, path.read_bytes()):
        with pytest.raises(onnx_ops.OpError, match=r"^onnx_ops: optimize = True: is for models in the format of ONNX"):
            onnx_ops.InferenceSession(model, quiet(), backend=backend, optimize=True)
