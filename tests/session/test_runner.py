"""Runner, the class for the map functions of other engines."""

import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import ml_dtypes
import numpy as np
import onnx
import pytest
from support.cases import GRID_SAMPLE, model

import onnx_ops
from onnx_ops.session import runner

CASE = GRID_SAMPLE[0]


def proto(dtype="float32"):
    return model(
        CASE.domain, CASE.op_type, CASE.inputs(dtype), CASE.attributes, dims="symbolic"
    ).SerializeToString()


def batch():
    return dict(zip(("X", "Grid"), CASE.inputs("float32"), strict=True))


def expected():
    return onnx_ops.grid_sample(*CASE.inputs("float32"), **CASE.attributes)


def test_columns_that_are_no_inputs_come_back():
    names = np.array(["a", "b"])
    columns = onnx_ops.Runner(proto())({**batch(), "name": names})
    assert columns.keys() == {"y", "name"}
    assert columns["name"] is names
    np.testing.assert_array_equal(columns["y"], expected())


@pytest.mark.parametrize(
    "settings", [{"backend": "extensions"}, {"optimize": True}, {"threads": None}], ids=str
)
def test_settings(settings):
    np.testing.assert_array_equal(onnx_ops.Runner(proto(), **settings)(batch())["y"], expected())


def test_threads(tmp_path):
    (tmp_path / "model.onnx").write_bytes(proto())
    for threads in (1, 3):
        options = onnx_ops.Runner(
            tmp_path / "model.onnx", threads=threads
        ).session.get_session_options()
        assert options.intra_op_num_threads == threads


def test_what_is_missing_is_named():
    with pytest.raises(
        onnx_ops.OpError, match=r"batch = \['X', 'name'\]: must have all inputs .*; it lacks Grid$"
    ):
        onnx_ops.Runner(proto())({"X": batch()["X"], "name": ["a"]})


def test_what_an_operator_refuses():
    with pytest.raises(onnx_ops.OpError, match="GridSample: shape of Grid"):
        onnx_ops.Runner(proto())({"X": batch()["X"], "Grid": batch()["Grid"][:, :0, :, :1]})


def test_byte_order():
    """ONNX Runtime takes the bytes as they are."""
    swapped = {name: array.astype(array.dtype.newbyteorder()) for name, array in batch().items()}
    np.testing.assert_array_equal(onnx_ops.Runner(proto())(swapped)["y"], expected())


def test_a_number_beside_bfloat16_gets_no_axis():
    text = (
        "g (float x, bfloat16[1] z) => (float y, bfloat16[1] w) { y = Identity (x) w = "
        "Identity (z) }"
    )
    proto = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]> {text}')
    outputs = onnx_ops.Runner(proto.SerializeToString())(
        {"x": np.array(2, np.float32), "z": np.ones(1, ml_dtypes.bfloat16)}
    )
    assert [array.shape for array in outputs.values()] == [(), (1,)]


def test_a_session_is_made_when_it_is_needed(monkeypatch):
    """One session serves all copies that a process gets; pickles do not contain it."""
    opened, open_session = [], runner.open_session

    def counted(*args, **kwargs):
        opened.append(args)
        return open_session(*args, **kwargs)

    monkeypatch.setattr(runner, "open_session", counted)
    original = onnx_ops.Runner(proto())
    pickled = pickle.dumps(original)
    assert not opened
    np.testing.assert_array_equal(original(batch())["y"], expected())
    assert len(opened) == 1
    assert len(pickle.dumps(original)) == len(pickled) < len(proto()) + 500
    for _ in range(3):
        np.testing.assert_array_equal(
            pickle.loads(pickle.dumps(original))(batch())["y"], expected()
        )
    assert len(opened) == 2
    pickle.loads(pickle.dumps(onnx_ops.Runner(proto())))(batch())
    assert len(opened) == 3
    original.optimize = True  # other settings than those of the copies so far
    pickle.loads(pickle.dumps(original))(batch())
    assert len(opened) == 4


class Scaled(onnx_ops.Runner):
    """A Runner that does more."""

    def __init__(self, model, factor):
        super().__init__(model)
        self.factor = factor

    def __call__(self, batch):
        return {"y": super().__call__(batch)["y"] * self.factor}


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "arguments", "factor"), [(onnx_ops.Runner, [], 1), (Scaled, [2], 2)]
)
def test_the_map_of_an_engine(kind, arguments, factor, tmp_path):
    (tmp_path / "model.onnx").write_bytes(proto())
    with ProcessPoolExecutor(1, get_context("spawn")) as workers:
        for columns in workers.map(kind(tmp_path / "model.onnx", *arguments), [batch()] * 3):
            np.testing.assert_array_equal(columns["y"], expected() * factor)
