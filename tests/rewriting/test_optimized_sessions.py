"""InferenceSession(..., optimize=True) runs the optimized model, wherever the model's data are."""

import os
import re
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper
from support.backends import IN_SESSIONS, ORT_VERSION, quiet, written_in_ort_format
from support.by_hand import sampler
from support.commands import call
from support.selection import long_unless, some_of
from support.written import Writer, affine_grid, feeds, unfold, windows

import onnx_ops
from onnx_ops import OpError
from onnx_ops.model import external_data
from onnx_ops.rewriting import rewritten

pytestmark = pytest.mark.any_library

MODELS = {
    "Im2Col": unfold(),
    "ComputedGridSample": affine_grid(size=(20, 30), opset=20, sample="linear"),
}


def results(session, proto):
    return session.run(None, feeds(proto))


def assert_close(got, expected):
    """Assert that results are those of other kernels for GridSample, or of a grid that is rounded
    otherwise.
    """
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)


def weighed_down():
    """A model with a base grid, which is replaced, and a weight, which stays; both are large."""
    weight = np.random.default_rng(0).standard_normal((2, 3, 20, 30))
    after = lambda w: w.add("Add", "sampled", w.constant(weight, "float32"), name="y")
    return affine_grid(size=(20, 30), opset=20, sample="linear", after=after)


@pytest.mark.parametrize(
    ("name", "backend", "how"), some_of(MODELS, ["native", "extensions"], ["path", "bytes"])
)
def test_the_same_results_by_our_nodes(name, backend, how, tmp_path, kernels_made):
    proto = MODELS[name]
    onnx.save(proto, tmp_path / "model.onnx")
    model = tmp_path / "model.onnx" if how == "path" else proto.SerializeToString()
    expected = results(onnx_ops.InferenceSession(model, quiet(), backend=backend), proto)
    kernels_made.clear()
    session = onnx_ops.InferenceSession(model, quiet(), backend=backend, optimize=True)
    assert kernels_made == ([f"onnx_ops.{name}"] if backend == "native" else [])
    assert [i.name for i in session.get_inputs()] == [i.name for i in proto.graph.input]
    assert_close(results(session, proto)[0], expected[0])


def test_a_program_whose_class_of_sessions_is_replaced(monkeypatch):
    """Nodes that are tried out run in ONNX Runtime's class, and not in the one that optimizes."""
    proto = sampler()
    monkeypatch.setattr(ort, "InferenceSession", partial(onnx_ops.InferenceSession, optimize=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session = ort.InferenceSession(proto.SerializeToString(), quiet())
    assert {op_type for _, op_type in session._onnx_ops_ready.nodes} == {"GridSample"}


@pytest.mark.parametrize("release", ["1.20.1", ort.__version__])
@pytest.mark.parametrize("backend", ["native", "extensions"])
def test_external_data_stay_where_they_are(backend, release, tmp_path, monkeypatch):
    """They are copied for ONNX Runtime 1.20, which doesn't find them, and if they are few; the
    model is elsewhere.
    """
    monkeypatch.setattr("onnx_ops.session.prepare.FEW", 0)
    proto = weighed_down()
    folder = tmp_path / "folder"
    folder.mkdir()
    onnx.save(
        proto,
        folder / "model.onnx",
        save_as_external_data=True,
        location="data",
        size_threshold=100,
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ort, "__version__", release)
    session = onnx_ops.InferenceSession(
        "folder/model.onnx", quiet(), backend=backend, optimize=True
    )
    assert (len(session._model_bytes) > 2 * 20 * 30 * 2 * 4) == release.startswith("1.20.")
    expected = results(ort.InferenceSession("folder/model.onnx", quiet()), proto)
    assert_close(results(session, proto)[0], expected[0])


finds_folders = pytest.mark.skipif(
    ORT_VERSION < (1, 21), reason="it does not find the folder itself"
)


@finds_folders
def test_external_data_of_a_model_in_memory(tmp_path):
    """The options state the folder of the data."""
    proto = weighed_down()
    onnx.save(
        proto,
        tmp_path / "model.onnx",
        save_as_external_data=True,
        location="data",
        size_threshold=100,
    )
    options = quiet()
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(tmp_path)
    )
    session = onnx_ops.InferenceSession(
        (tmp_path / "model.onnx").read_bytes(), options, optimize=True
    )
    expected = results(ort.InferenceSession(tmp_path / "model.onnx", quiet()), proto)
    assert_close(results(session, proto)[0], expected[0])


@finds_folders
@pytest.mark.parametrize("of_session", [long_unless(False, False), True])
def test_the_callers_options_stay_as_they_are(of_session: bool, tmp_path: Path) -> None:
    """Two models have weights in files of one name; the second one is opened with the options of
    the first.
    """
    options, folders = quiet(), [tmp_path / "a", tmp_path / "b"]
    for k, folder in enumerate(folders):
        folder.mkdir()
        proto = weighed_down()
        weights = max(proto.graph.initializer, key=lambda t: t.ByteSize())
        weights.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weights) + k, weights.name))
        onnx.save(
            proto,
            folder / "model.onnx",
            save_as_external_data=True,
            location="data",
            size_threshold=100,
        )
    if of_session:
        options = onnx_ops.InferenceSession(
            folders[0] / "model.onnx", optimize=True
        ).get_session_options()
    for optimize in (True, False, True):
        for folder in folders:
            session = onnx_ops.InferenceSession(folder / "model.onnx", options, optimize=optimize)
            expected = results(ort.InferenceSession(folder / "model.onnx", quiet()), proto)
            assert_close(results(session, proto)[0], expected[0])
            session.set_providers(["CPUExecutionProvider"])
            assert_close(results(session, proto)[0], expected[0])
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(folders[1])
    )
    onnx_ops.InferenceSession(folders[0] / "model.onnx", options, optimize=True)
    content = (folders[1] / "model.onnx").read_bytes()
    assert_close(results(ort.InferenceSession(content, options), proto)[0], expected[0])


def scaled_in(folder, scale, location="data"):
    """Save a model whose small constants, by which its grid is scaled, are external data; return
    its path.
    """
    w = Writer()
    grid = w.add("Mul", "places", w.constant(scale, "float32"))
    y = w.add("GridSample", "x", grid)
    inputs = {"x": ("float32", [1, 2, 6, 7]), "places": ("float32", [1, 4, 5, 2])}
    proto = w.model(inputs, (y, "float32", [1, 2, 4, 5]), 20)
    folder.mkdir(exist_ok=True)
    onnx.save(
        proto,
        folder / "model.onnx",
        save_as_external_data=True,
        location=location,
        size_threshold=0,
    )
    return folder / "model.onnx"


HOW = pytest.mark.parametrize("how", [{"optimize": True}, {"backend": "extensions"}], ids=str)


@finds_folders
@HOW
def test_options_that_state_the_folder_of_a_files_data(how, tmp_path):
    """ONNX Runtime reads them from there, and not from beside the model."""
    path, other = (
        scaled_in(tmp_path / name, [scale, 1]) for name, scale in (("a", 0.5), ("b", 0.1))
    )
    options = quiet()
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(other.parent)
    )
    proto = onnx.load(other)
    expected, beside = (
        results(onnx_ops.InferenceSession(path, o), proto)[0] for o in (options, quiet())
    )
    assert (expected != beside).any()
    got = results(onnx_ops.InferenceSession(path, options, **how), proto)[0]
    np.testing.assert_array_equal(got, expected)


def in_a_cache(folder):
    """Save a model as Hugging Face's cache keeps it: model and data are links into another
    folder.
    """
    blobs, snapshot = folder / "blobs", folder / "snapshots" / "revision"
    blobs.mkdir(), snapshot.mkdir(parents=True)
    onnx.save(
        weighed_down(),
        blobs / "1",
        save_as_external_data=True,
        location="model.onnx_data",
        size_threshold=100,
    )
    (blobs / "model.onnx_data").rename(blobs / "2")
    for name, target in (("model.onnx", "1"), ("model.onnx_data", "2")):
        (snapshot / name).symlink_to(f"../../blobs/{target}")
    return snapshot / "model.onnx"


@pytest.mark.parametrize(
    "how", [{"optimize": True}, {"backend": "extensions"}, {"optimize": True, "operators": []}]
)
def test_links_to_external_data(how, tmp_path):
    path = in_a_cache(tmp_path)
    expected = results(ort.InferenceSession(path, quiet()), weighed_down())
    assert_close(
        results(onnx_ops.InferenceSession(path, quiet(), **how), weighed_down())[0], expected[0]
    )


@pytest.mark.parametrize(
    "target", ["snapshots/revision/optimized.onnx", long_unless(False, "optimized.onnx")]
)
def test_files_written_beside_links_to_external_data(target, tmp_path):
    path = in_a_cache(tmp_path)
    target = tmp_path / target
    text = call("optimize", path, target)
    assert "1 grid_sample" in text
    expected = results(ort.InferenceSession(path, quiet()), weighed_down())
    assert_close(
        results(onnx_ops.InferenceSession(target, quiet()), weighed_down())[0], expected[0]
    )
    assert (
        target.parent / "optimized.onnx.data"
    ).stat().st_size == 4 * 2 * 3 * 20 * 30  # the weight alone
    for command in ("inspect", "bench"):
        call(command, path, *(["--repeats", "1"] if command == "bench" else []))


@pytest.mark.parametrize(("command", "backend"), [("optimize", "native"), ("lower", "extensions")])
def test_a_link_to_a_model_is_rewritten_where_it_leads(command, backend, tmp_path):
    """Its data stay where they are found from the link's folder."""
    path = in_a_cache(tmp_path)
    expected, files = (
        results(ort.InferenceSession(path, quiet()), weighed_down()),
        sorted(tmp_path.rglob("*")),
    )
    text = call(command, path, path)
    assert f"\n{path}: " in f"\n{text}"
    session = onnx_ops.InferenceSession(path, quiet(), backend=backend)
    assert_close(results(session, weighed_down())[0], expected[0])
    assert sorted(tmp_path.rglob("*")) == files


def test_external_data_without_a_length(tmp_path):
    """A small tensor is read, and other data follow its own in the file."""
    onnx.save(
        weighed_down(),
        tmp_path / "model.onnx",
        save_as_external_data=True,
        location="data",
        size_threshold=0,
    )
    proto = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    expected = onnx.load(tmp_path / "model.onnx").graph.initializer
    for tensor, whole in zip(proto.graph.initializer, expected, strict=True):
        kept = [entry for entry in tensor.external_data if entry.key != "length"]
        del tensor.external_data[:]
        tensor.external_data.extend(kept)
        external_data.read_data(tensor, tmp_path / "model.onnx")
        np.testing.assert_array_equal(numpy_helper.to_array(tensor), numpy_helper.to_array(whole))


@pytest.mark.parametrize("command", ["optimize", "lower"])
def test_a_file_of_external_data_that_was_cut_off(command, tmp_path):
    """It is refused where its data are copied, and no model is written that nothing could open."""
    path, target = tmp_path / "model.onnx", tmp_path / "out" / "model.onnx"
    onnx.save(weighed_down(), path, save_as_external_data=True, location="data", size_threshold=100)
    os.truncate(tmp_path / "data", (tmp_path / "data").stat().st_size - 1)
    text = call(command, path, target, exit_code=3)
    assert re.search(
        r"data = .data.: must have \d+ bytes of \w+ from \d+ on; the file ends before", text
    )
    assert not target.parent.exists()


@pytest.mark.parametrize("location", ["../data", "{}/data", "link"])
def test_external_data_from_outside_is_refused(location, tmp_path):
    """They stay unread, whatever the model says."""
    (tmp_path / "folder").mkdir()
    path = tmp_path / "folder" / "model.onnx"
    onnx.save(weighed_down(), path, save_as_external_data=True, location="data", size_threshold=100)
    (tmp_path / "folder" / "data").rename(tmp_path / "data")
    (tmp_path / "folder" / "link").symlink_to("../data")
    proto = onnx.load(path, load_external_data=False)
    for tensor in proto.graph.initializer:
        for entry in tensor.external_data:
            entry.value = location.format(tmp_path) if entry.key == "location" else entry.value
    path.write_bytes(proto.SerializeToString())
    optimized, _ = rewritten(external_data.load(path), folder=path)
    stated = {tensor.name: tensor for tensor in proto.graph.initializer}
    assert all(
        tensor == stated[tensor.name]
        for tensor in optimized.graph.initializer
        if tensor.name in stated
    )
    assert any(tensor.external_data for tensor in optimized.graph.initializer)
    with pytest.raises(OpError, match=r"external data = '.*': must lie in the folder of the model"):
        onnx_ops.InferenceSession(path, quiet(), backend="extensions").run(None, {})
    text = call("lower", path, tmp_path / "lowered.onnx", exit_code=3)
    assert "must lie in the folder of the model" in text
    assert not (tmp_path / "lowered.onnx").exists()


IRREGULAR = windows(blocks=lambda starts: [0, 1, 3, 4])


@pytest.mark.parametrize("proto", [IRREGULAR, affine_grid()], ids=["near miss", "nothing"])
def test_a_model_in_which_nothing_is_replaced_is_handed_over_unchanged(proto, tmp_path):
    onnx.save(proto, tmp_path / "model.onnx")
    assert onnx_ops.InferenceSession(
        tmp_path / "model.onnx", quiet(), optimize=True
    )._model_path == str(tmp_path / "model.onnx")
    content = proto.SerializeToString()
    assert onnx_ops.InferenceSession(content, quiet(), optimize=True)._model_bytes is content
    expected = results(ort.InferenceSession(content, quiet()), proto)
    for backend in IN_SESSIONS:
        session = onnx_ops.InferenceSession(content, quiet(), optimize=True, backend=backend)
        np.testing.assert_array_equal(results(session, proto)[0], expected[0])


@pytest.mark.parametrize("backend", ["native", "extensions"])
def test_the_format_of_onnx_runtime_is_refused(backend, tmp_path):
    path = written_in_ort_format(MODELS["Im2Col"], tmp_path / "model.ort")
    for model in (path, path.read_bytes()):
        with pytest.raises(
            onnx_ops.OpError,
            match=r"^onnx_ops: optimize = True: can't rewrite a model in ONNX Runtime's",
        ):
            onnx_ops.InferenceSession(model, quiet(), backend=backend, optimize=True)
