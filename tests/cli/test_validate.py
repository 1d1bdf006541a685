"""Node tests: writing them for any operator, and checking the outputs of other runtimes against
them.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from support.backends import quiet
from support.cases import CASES, OTHERS
from support.cases import model as model_of_one_node
from support.selection import long_unless
from test_cli import call, call_json, saved, sentences

from onnx_ops.arrays.comparison import TOLERANCES, Difference, difference
from onnx_ops.cli.comparison import report_of, verdict
from onnx_ops.model.node_tests import data_sets
from onnx_ops.registry import OPERATORS

CUBIC = (
    "--op GridSample --set mode=cubic padding_mode=border --shape X=1,3,8,8 --shape grid=1,5,5,2"
).split()
SUPPRESSION = ["iou_threshold=0.3"]
# {operator with several outputs, or with bounds of its sizes: arguments of make-test}.
OF_OTHERS = {
    "mmcv.cummax": ["--set", "dim=1", "--shape", "input=2,3,4"],
    "mmcv.cummin": ["--set", "dim=1", "--shape", "input=2,3,4"],
    "mmdeploy.NMSRotated": ["--set", *SUPPRESSION, "score_threshold=0", "--shape", "boxes=2,5,5",
        "--shape",
                            "scores=2,3,5"],
    "mmdeploy.NMSMatch": ["--shape", "boxes=2,5,4", "--shape", "scores=2,3,5", "--input",
        "iou_threshold=[0.3]",
                          "--input", "score_threshold=[0.0]"],
    "mmcv.NonMaxSuppression": ["--set", *SUPPRESSION, "offset=0", "--shape", "boxes=5,4", "--shape",
        "scores=5"],
    "mmcv.SoftNonMaxSuppression": ["--set", *SUPPRESSION, "sigma=0.5", "min_score=0", "method=1",
        "offset=0",
                                   "--shape", "boxes=5,4", "--shape", "scores=5"],
}  # fmt: skip


def arguments_of(operator):
    """Return arguments of make-test for an operator: those of its first case in the table of
    cases.
    """
    if operator in OTHERS:
        return ["--op", operator.title, *OF_OTHERS[operator.title]]
    case = next(c for c in CASES if c.operator is operator)
    words = ["--op", operator.title]
    if case.attributes:
        texts = {n: v if isinstance(v, str) else json.dumps(v) for n, v in case.attributes.items()}
        words += ["--set", *(f"{name}={text}" for name, text in texts.items())]
    for i, shape in zip(operator.inputs, case.shapes, strict=False):
        sizes = ",".join(map(str, shape))
        words += (
            ["--input", f"{i.name}=[{sizes}]"] if i.values else ["--shape", f"{i.name}={sizes}"]
        )
    return words


def make_test(folder, *arguments):
    call("make-test", *(arguments or CUBIC), folder)
    return folder


def arrays(folder):
    """Return (inputs, outputs) of a node test."""
    return data_sets(folder)["test_data_set_0"]


def all_arrays(folder):
    inputs, outputs = arrays(folder)
    return [*inputs, *outputs]


def inputs_of(folder):
    names = [i.name for i in onnx.load(folder / "model.onnx").graph.input]
    return dict(zip(names, arrays(folder)[0], strict=True))


# make-test


@pytest.mark.parametrize(
    ("backend", "operator"),
    [("reference", o) for o in OPERATORS]
    + [long_unless(o.title in ("GridSample", "Col2Im"), "native", o) for o in OPERATORS],
    ids=lambda value: value if isinstance(value, str) else value.title,
)
def test_every_operator(operator, backend, tmp_path):
    folder = make_test(tmp_path / "tests" / "one", *arguments_of(operator))
    (report,) = call_json("validate", tmp_path, "--backend", backend)["tests"]
    assert (report["test"], report["operators"]) == ("tests/one", [operator.title])
    onnx.checker.check_model(
        onnx.load(folder / "model.onnx"),
        full_check=not operator.domain and operator.versions > (1,),
    )
    assert all(array.size for each in arrays(folder) for array in each)


def test_the_same_seed_gives_the_same_test(tmp_path):
    first, second, other = (
        make_test(tmp_path / name, *CUBIC, "--seed", seed)
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    for a, b, c in zip(*(all_arrays(folder) for folder in (first, second, other)), strict=True):
        np.testing.assert_array_equal(a, b)
        assert (a != c).any()


def test_the_expected_outputs_are_those_of_other_kernels(tmp_path):
    folder = make_test(tmp_path / "a")
    (y,) = ort.InferenceSession(folder / "model.onnx", quiet()).run(None, inputs_of(folder))
    assert difference(y, arrays(folder)[1][0]).ok


@pytest.mark.parametrize(
    ("words", "version"), [([], 22), (["--opset", 16], 16), (["--opset", 21], 21)]
)
def test_versions(words, version, tmp_path):
    folder = make_test(
        tmp_path / "a",
        "--op",
        "GridSample",
        "--shape",
        "X=1,1,4,4",
        "--shape",
        "GRID=1,2,2,2",
        *words,
    )
    assert [(i.domain, i.version) for i in onnx.load(folder / "model.onnx").opset_import] == [
        ("", version)
    ]


def test_a_test_of_another_domain_also_states_a_version_of_ai_onnx(tmp_path):
    words = "--op com.microsoft.GridSample --shape X=1,1,4,4 --shape Grid=1,2,2,2".split()
    proto = onnx.load(make_test(tmp_path / "a", *words) / "model.onnx")
    assert {i.domain: i.version for i in proto.opset_import} == {"": 18, "com.microsoft": 1}


def test_the_types(tmp_path):
    """The first input has the type that --dtype states, and others if they support it."""
    words = (
        "--op Col2Im --shape input=1,9,4 --input image_shape=[4,4] --input block_shape=[3,3]"
    ).split()
    folder = make_test(tmp_path / "a", *words, "--dtype", "uint8")
    assert [array.dtype for array in all_arrays(folder)] == [np.uint8, np.int64, np.int64, np.uint8]
    folder = make_test(tmp_path / "b", *CUBIC, "--dtype", "bfloat16")
    assert {array.dtype for array in all_arrays(folder)} == {np.dtype(ml_dtypes.bfloat16)}
    words = (
        "--op GridSample --set mode=nearest --shape X=1,3,8,8 --shape grid=1,5,5,2 --dtype int8"
    ).split()
    assert [array.dtype for array in arrays(make_test(tmp_path / "c", *words))[0]] == [
        np.int8,
        np.float32,
    ]


def test_an_input_that_is_left_out_between_others(tmp_path):
    shapes = {"X": "1,2,5,5", "W": "3,2,3,3", "offset": "1,18,3,3", "mask": "1,9,3,3"}
    words = [word for name, shape in shapes.items() for word in ("--shape", f"{name}={shape}")]
    folder = make_test(tmp_path / "a", "--op", "DeformConv", *words)
    (node,) = onnx.load(folder / "model.onnx").graph.node
    assert node.input == ["X", "W", "offset", "", "mask"]
    call("validate", tmp_path)
    assert [len(each) for each in arrays(folder)] == [4, 1]


def test_random_inputs_are_in_range(tmp_path):
    grid = inputs_of(make_test(tmp_path / "grid", *CUBIC[:-1], "grid=1,50,50,2"))["Grid"]
    assert 1 < grid.max() < 1.2 < 1.2 - grid.min() * 0.01
    shapes = ["--shape", "X=3,1,20,10", "--shape", "rois=50,4", "--shape", "batch_indices=50"]
    regions = inputs_of(
        make_test(tmp_path / "rois", "--op", "RoiAlign", "--set", "spatial_scale=0.5", *shapes)
    )
    assert set(regions["batch_indices"]) == {0, 1, 2}
    assert (regions["rois"][:, :2] < regions["rois"][:, 2:]).all()
    assert 10 < regions["rois"].max() < 20
    words = (
        "output_height=1 output_width=1 sampling_ratio=1 aligned=1 spatial_scale=0.5 mode=avg"
    ).split()
    shapes = ["--shape", "input=3,1,20,10", "--shape", "rois=50,5"]
    rois = inputs_of(
        make_test(tmp_path / "mmcv", "--op", "mmcv.MMCVRoiAlign", "--set", *words, *shapes)
    )["rois"]
    assert set(rois[:, 0]) == {0, 1, 2}
    assert (rois[:, 1:3] < rois[:, 3:]).all()


def test_inputs_from_files_and_attributes_in_every_form(tmp_path):
    x = np.arange(36, dtype=np.float32).reshape(1, 1, 6, 6)
    np.save(tmp_path / "x.npy", x)
    words = ["--op", "Im2Col", "--input", f"x={tmp_path / 'x.npy'}"]
    folders = [
        make_test(tmp_path / str(k), *words, "--set", *attributes)
        for k, attributes in enumerate([
            ["kernel_shape=2,2", "strides=[2,2]"],
            ["kernel_shape=[2, 2]", "--set", "strides=2,2"],
        ])
    ]  # fmt: skip
    assert onnx.load(folders[0] / "model.onnx") == onnx.load(folders[1] / "model.onnx")
    assert onnx.helper.get_node_attr_value(
        onnx.load(folders[0] / "model.onnx").graph.node[0], "strides"
    ) == [2, 2]
    np.testing.assert_array_equal(arrays(folders[0])[0][0], x)


OWN = """
import onnx_ops

@onnx_ops.operator("my.domain::Scale", inputs="x: T", outputs="y: T", version=3, types={"T": onnx_ops.FLOATS})
def scale(x, *, factor: float = 2.0):
    return x * x.dtype.type(factor)
"""


def test_a_custom_operator(tmp_path):
    file = tmp_path / "my_ops.py"
    file.write_text(OWN)
    words = "--op my.domain.Scale --set factor=3 --shape x=2,3".split()
    call("--operators", file, "make-test", *words, tmp_path / "tests" / "scale")
    ((x,), (y,)) = arrays(tmp_path / "tests" / "scale")
    np.testing.assert_allclose(y, 3 * x)
    call("--operators", file, "validate", tmp_path / "tests")
    proto = onnx.load(tmp_path / "tests" / "scale" / "model.onnx")
    assert {i.domain: i.version for i in proto.opset_import} == {"": 18, "my.domain": 3}


REFUSED = {
    "--op Foo": "'Foo' must be one of Col2Im, org.openvinotoolkit.Col2Im,",
    "--op MMCVRoiAlign": "'MMCVRoiAlign' must be one of mmcv.MMCVRoiAlign, mmdeploy.MMCVRoiAlign",
    "--op GridSample --set align=1": "GridSample: align = 1: no such attribute; there are mode, "
                                     "padding_mode,",
    "--op GridSample --set mode=cube": "GridSample: mode = 'cube': must be one of nearest, "
                                       "bilinear,",
    "--op GridSample --set align_corners=yes": "align_corners = 'yes': must be an integer",
    "--op Im2Col --set kernel_shape=2": "kernel_shape = 2: must be a list of integers",
    "--op GridSample --set mode": "--set mode: must be like NAME=VALUE",
    "--op GridSample --set mode=cubic border": "--set border: must be like NAME=VALUE",
    "--op GridSample --shape X=1,1,4,4": "no --shape Grid=N,C,... for GridSample, with the inputs "
                                         "X, Grid",
    "--op GridSample --shape X=1,1,4,4 --shape y=2": "no input y, but X, Grid",
    "--op GridSample --shape X=1,1,4,4 --shape Grid=1,2,2,3": "shape of grid = [1, 2, 2, 3]: the "
                                                              "last axis must be",
    "--op GridSample --shape X=1x4": "--shape X=1x4: must be like X=1,3,224,224",
    "--op GridSample --set mode=cubic --set mode=nearest": "--set mode=nearest: mode is given "
                                                           "already",
    "--op GridSample --set align_corners=1 align_corners=1": "--set align_corners=1: "
                                                             "align_corners is given already",
    "--op Col2Im --input image_shape=[4,4] --shape image_shape=2": "and --input gives image_shape.",
    "--op GridSample --opset 11": "--opset 11: GridSample needs at least 16",
    "--op GridSample --opset 999": "--opset 999: the newest one of onnx is "
                                   f"{onnx.defs.onnx_opset_version()}.",
    "--op GridSample --dtype float8": "'float8' is not one of 'float32'",
    "--op GridSample --shape X=1,1,4,4 --shape Grid=1,2,2,2 --dtype uint8": "unless mode is nearest",
    "--op RoiAlign --shape X=1,1,4,4 --shape rois=1,4 --shape batch_indices=1 --dtype int8":
        "dtype of X = int8: must be one of float16,",
    "--op Col2Im --shape input=1,4,4 --shape image_shape=2": "no --input image_shape=[...] for "
                                                             "Col2Im",
}  # fmt: skip


@pytest.mark.parametrize("words", REFUSED)
def test_what_is_refused(words, tmp_path):
    assert REFUSED[words] in sentences("make-test", *words.split(), tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_files_of_another_test_are_not_mixed(tmp_path):
    words = (
        "--op Col2Im --shape input=1,9,4 --input image_shape=[4,4] --input block_shape=[3,3]"
    ).split()
    folder = make_test(tmp_path / "a", *words)
    make_test(folder, *words, "--seed", 1)
    before = arrays(folder)
    assert "input_2.pb of another test" in sentences("make-test", *CUBIC, folder)
    np.testing.assert_array_equal(arrays(folder)[0][0], before[0][0])
    read = folder / "test_data_set_0" / "input_0.pb"
    words = "--op Im2Col --set kernel_shape=[1]".split()
    assert "which is read" in sentences("make-test", *words, "--input", f"x={read}", folder)


def test_a_model_that_cannot_be_written_leaves_the_data(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").mkdir()
    assert "model.onnx" in sentences("make-test", *CUBIC, tmp_path, exit_code=3)
    assert list(tmp_path.iterdir()) == [tmp_path / "model.onnx"]


def test_a_test_without_an_expected_output(tmp_path: Path) -> None:
    folder = make_test(tmp_path / "extremes", "--op", "mmcv.cummax", *OF_OTHERS["mmcv.cummax"])
    (folder / "test_data_set_0" / "output_1.pb").unlink()
    (report,) = call_json("validate", tmp_path, "--backend", "reference", exit_code=1)["tests"]
    assert report["problem"] == "test_data_set_0 has 1 output_*.pb, and the model 2 outputs"


# validate --outputs


def write_npz(other, name, y):
    np.savez(other / f"{name}.npz", output=y)


def write_npy(other, name, y):
    np.save(other / f"{name}.npy", y)


def write_as_tests(file):
    def write(other, name, y):
        path = other / name / "test_data_set_0" / file
        path.parent.mkdir(parents=True)
        if path.suffix == ".npy":
            np.save(path, y)
        else:
            onnx.save_tensor(onnx.numpy_helper.from_array(y), path)

    return write


FORMS = {
    "npz": write_npz,
    "npy": write_npy,
    **{file: write_as_tests(file) for file in ("output_0.npy", "output.npy", "output_0.pb")},
}


@pytest.fixture
def other(tmp_path):
    """A folder for outputs beside the folder `tests` with one test."""
    make_test(tmp_path / "tests" / "cubic")
    (tmp_path / "other").mkdir()
    return tmp_path / "other"


def validate(other, *more, **settings):
    (report,) = call_json(
        "validate", other.parent / "tests", "--outputs", other, *more, **settings
    )["tests"]
    return report


@pytest.mark.parametrize("form", FORMS)
def test_outputs_of_another_runtime(form, other, monkeypatch):
    monkeypatch.setattr("onnx_ops.cli.validate.open_model", lambda *_: pytest.fail("nothing runs"))
    (expected,) = arrays(other.parent / "tests" / "cubic")[1]
    FORMS[form](other, "cubic", expected)
    assert validate(other)["largest_error"] == 0
    shutil.rmtree(other)
    other.mkdir()
    wrong = expected.copy()
    wrong[0, 2, 3, 1] += 0.5
    FORMS[form](other, "cubic", wrong)
    values = (
        f"{wrong[0, 2, 3, 1]!s}, expected {expected[0, 2, 3, 1]!s}, tolerance "
        f"{1e-4 * abs(expected).max():.1e}"
    )
    problem = f"output: [0, 2, 3, 1] is {values}, exceeded by 1 of 75 elements"
    assert validate(other, exit_code=1)["problem"] == problem
    text = sentences("validate", other.parent / "tests", "--outputs", other, exit_code=1)
    assert f"outputs {other}" in text
    assert "0 of 1 passed" in text
    validate(other, "--tolerance", 1)


def test_outputs_beside_the_inputs(other):
    """In the test's folder, the .pb are the expected outputs, which prove nothing."""
    tests = other.parent / "tests"
    data = tests / "cubic" / "test_data_set_0"
    for arguments in ([tests, "--outputs", tests], [tests / "cubic", "--outputs", tests]):
        (report,) = call_json("validate", *arguments, exit_code=1)["tests"]
        assert report["problem"].startswith("output is missing: there is no ")
        assert "output_0.pb" not in report["problem"]
        np.save(data / "output.npy", arrays(tests / "cubic")[1][0])
        assert call_json("validate", *arguments)["passed"] == 1
        (data / "output.npy").unlink()


def test_outputs_belong_to_one_test(other):
    """Neither outputs without a name count, nor those of another test with this name."""
    write_as_tests("output_0.npy")(other, ".", arrays(other.parent / "tests" / "cubic")[1][0])
    assert validate(other, exit_code=1)["problem"].startswith("output is missing")
    make_test(other.parent / "more" / "cubic")
    paths = other.parent / "tests", other.parent / "more"
    assert "several tests are called cubic" in sentences(
        "validate", *paths, "--outputs", other, exit_code=2
    )


def test_outputs_whose_names_are_numbers_of_others(tmp_path):
    folder = make_test(
        tmp_path / "tests" / "extremes", "--op", "mmcv.cummax", *OF_OTHERS["mmcv.cummax"]
    )
    model = onnx.load(folder / "model.onnx")
    for k, name in enumerate(("output_1", "output_0")):
        model.graph.node[0].output[k] = model.graph.output[k].name = name
    onnx.save(model, folder / "model.onnx")
    data = tmp_path / "other" / "extremes" / "test_data_set_0"
    data.mkdir(parents=True)
    for name, array in zip(("output_1", "output_0"), arrays(folder)[1], strict=True):
        np.save(data / f"{name}.npy", array)
    validate(tmp_path / "other")


def test_several_outputs(tmp_path):
    folder = make_test(
        tmp_path / "tests" / "extremes", "--op", "mmcv.cummax", *OF_OTHERS["mmcv.cummax"]
    )
    values, indices = arrays(folder)[1]
    other = tmp_path / "other"
    other.mkdir()
    np.savez(other / "extremes.npz", values=values, indices=indices)
    validate(other)
    np.savez(other / "extremes.npz", values=values, indices=indices + 1)
    assert validate(other, exit_code=1)["problem"].startswith(
        f"indices: [0, 0, 0] is {indices[0, 0, 0] + 1}, expected {indices[0, 0, 0]}, tolerance 0, "
        "exceeded by 24 of 24"
    )
    np.savez(other / "extremes.npz", values=values)
    assert (
        "extremes.npz has no array indices, but values." in validate(other, exit_code=1)["problem"]
    )


PROBLEMS = {
    "shape [1, 3, 25] instead of [1, 3, 5, 5]": lambda y: y.reshape(1, 3, 25),
    "float64 instead of float32": lambda y: y.astype(np.float64),
    "output: [0, 0, 0, 0] is NaN, expected": lambda y: np.full_like(y, np.nan),
    "output: [0, 0, 0, 0] is inf, expected": lambda y: np.full_like(y, np.inf),
    "can't be read: it is no file of NumPy's, or holds Python's objects": lambda y: y.astype(
        object
    ),
}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_outputs_that_fail(problem, other):
    write_npy(other, "cubic", PROBLEMS[problem](arrays(other.parent / "tests" / "cubic")[1][0]))
    assert problem in validate(other, exit_code=1)["problem"]


def test_missing_outputs(other):
    report = validate(other, exit_code=1)
    data = other / "cubic" / "test_data_set_0"
    files = [
        other / "cubic.npz",
        other / "cubic.npy",
        data / "output_0.npy",
        data / "output.npy",
        data / "output_0.pb",
    ]
    assert report["problem"] == f"output is missing: there is no {', '.join(map(str, files))}"
    assert report["largest_error"] is None
    assert "it excludes --onnx" in sentences("validate", "--onnx", "--outputs", other)
    assert "does not exist" in sentences(
        "validate", other.parent / "tests", "--outputs", other / "none"
    )


def test_bfloat16_and_strings_of_another_runtime(tmp_path):
    """NumPy's files have no bfloat16 but two bytes, and strings of a fixed length."""
    (tmp_path / "other").mkdir()
    folder = make_test(tmp_path / "tests" / "halves", *CUBIC, "--dtype", "bfloat16")
    np.save(tmp_path / "other" / "halves.npy", arrays(folder)[1][0])
    words = "--op Im2Col --set kernel_shape=2,2 --shape x=1,1,3,3 --dtype string".split()
    folder = make_test(tmp_path / "tests" / "texts", *words)
    np.save(tmp_path / "other" / "texts.npy", arrays(folder)[1][0].astype(str))
    report = call_json("validate", tmp_path / "tests", "--outputs", tmp_path / "other")
    assert report["passed"] == 2
    assert report["outputs"] == str(tmp_path / "other")


# run --compare FILE


@pytest.fixture
def run(tmp_path):
    """Return the arguments of a run of one node, and its output."""
    x = np.array([[[[1, 2], [3, 4]]]], np.float32)
    path = saved(
        model_of_one_node("", "GridSample", [x, np.zeros((1, 1, 1, 2), np.float32)], {}), tmp_path
    )
    np.savez(tmp_path / "in.npz", X=x, Grid=np.zeros((1, 1, 1, 2), np.float32))
    return ["run", path, "--input", tmp_path / "in.npz", "--compare"], np.full(
        (1, 1, 1, 1), 2.5, np.float32
    )


def test_compare_with_a_file(run, tmp_path):
    arguments, y = run
    np.savez(tmp_path / "y.npz", y=y, another=y + 1)
    np.save(tmp_path / "y.npy", y)
    onnx.save_tensor(onnx.numpy_helper.from_array(y), tmp_path / "y.pb")
    for ending in "npz", "npy", "pb":
        report = call_json(*arguments, tmp_path / f"y.{ending}")["compare"]
        assert (report["with"], report["seconds"]) == (str(tmp_path / f"y.{ending}"), None)
        assert report["outputs"][0]["largest"] == 0
    np.save(tmp_path / "y.npy", y + 1)
    text = call(*arguments, tmp_path / "y.npy", exit_code=1)
    rule = "[0, 0, 0, 0] is 2.5, expected 3.5, tolerance 3.5e-04, exceeded by 1 of 1 elements"
    assert f"y against {tmp_path / 'y.npy'}: {rule}" in text
    (found,) = call_json(*arguments, tmp_path / "y.npy", exit_code=1)["compare"]["outputs"]
    assert (found["index"], found["value"], found["expected"]) == ([0, 0, 0, 0], 2.5, 3.5)


def test_compare_with_files_that_are_refused(run, tmp_path):
    arguments, y = run
    np.savez(tmp_path / "other.npz", z=y)
    assert f"{tmp_path / 'other.npz'} has no array y, but z." in sentences(
        *arguments, tmp_path / "other.npz"
    )
    (tmp_path / "bad.npy").write_bytes(b"bad")
    assert "bad.npy can't be read" in sentences(*arguments, tmp_path / "bad.npy")
    assert "does not exist" in sentences(*arguments, tmp_path / "none.npy")
    with open(tmp_path / "array.npz", "wb") as file:
        np.save(file, y)
    rule = f"{tmp_path / 'array.npz'} can't be read: it is a .npy, not a .npz"
    assert rule in sentences(*arguments, tmp_path / "array.npz")
    assert rule in sentences(*arguments[:2], "--input", tmp_path / "array.npz")
    np.save(tmp_path / "y.npy", y)
    assert "which is read" in sentences(*arguments, tmp_path / "y.npy", "--output", tmp_path)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), y)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
@pytest.mark.parametrize("ending", ["npz", "npy", "pb", "onnx"])
def test_compare_with_a_pipe(ending: str, run: Any, tmp_path: Path) -> None:
    """No program writes into it, so that a read would wait."""
    os.mkfifo(tmp_path / f"pipe.{ending}")
    rule = f"{tmp_path / f'pipe.{ending}'} must be an ordinary file"
    assert rule in sentences(*run[0], tmp_path / f"pipe.{ending}")


def test_compare_with_an_array_where_the_model_has_two_outputs(tmp_path):
    path = saved(onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 18]>
        g (float[2] x) => (float[2] y, float[2] z) { y = Neg (x) z = Abs (x) }"""),
        tmp_path)  # fmt: skip
    np.save(tmp_path / "y.npy", np.zeros(2, np.float32))
    words = "run", path, "--random", "--compare", tmp_path / "y.npy"
    assert f"{tmp_path / 'y.npy'} has no array z, but y." in sentences(*words)


def test_compare_reference_states_what_computes(run):
    arguments, _ = run
    text = call(*arguments, "reference")
    assert (
        "y against this package's operators in float64 and onnx's evaluator for other nodes: "
        "largest" in text
    )


# Differences


@pytest.mark.parametrize(("actual", "expected", "index", "text"), [
    ([1.0, 2.0, 3.0], [1.0, 2.5, 3.25], (1,), "[1] is 2.0, expected 2.5"),
    ([1.0, np.nan, 9.0], [1.0, 2.0, 3.0], (1,), "[1] is NaN, expected 2.0"),
    ([1.0, 2.0], [1.0, -np.inf], (1,), "[1] is 2.0, expected -inf"),
    (np.float32([[0.25], [0.31]]), np.float32([[0.25], [0.435]]), (1, 0), "[1, 0] is 0.31, "
                                                                          "expected 0.435"),
    ([2**62, 2**62], [2**62, 2**62 + 1], (1,), f"[1] is {2**62}, expected {2**62 + 1}"),
    ([True, False], [True, True], (1,), "[1] is False, expected True"),
    (np.array(["a", "b"], object), np.array(["a", "c"], object), (1,), "[1] is 'b', expected 'c'"),
    (np.float32(1), np.float32(2), (), "[] is 1.0, expected 2.0"),
    (np.array([1, 2], ml_dtypes.bfloat16), np.array([1, 3], ml_dtypes.bfloat16), (1,),
        "[1] is 2, expected 3"),
    ([1 + 1j], [1 + 2j], (0,), "[0] is (1+1j), expected (1+2j)"),
])  # fmt: skip
def test_the_largest_difference_has_an_index(actual, expected, index, text):
    found = difference(np.asarray(actual), np.asarray(expected))
    assert found.index == index
    assert verdict(report_of("y", found)).startswith(f"{text}, tolerance ")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_no_tolerance_allows_numbers_that_are_not_finite(value: float) -> None:
    one, infinite = np.ones(2), dict.fromkeys(TOLERANCES, np.inf)
    assert difference(one + 1e300, one, infinite).ok
    found = difference(np.array([1, value]), one, infinite)
    assert not found.ok
    assert found.index == (1,)
    same = np.array([1, value])
    assert difference(same, same, infinite).ok


def test_differences_without_an_index():
    one = np.ones(2)
    assert difference(one, one).index is None
    assert difference(one + 1e-9, one).index is None
    assert difference(one[:1], one) == Difference(np.inf, 0, "shape [1] instead of [2]")
    assert difference(one[:0], one[:0]).index is None
    assert verdict(report_of("y", difference(one[:1], one))) == "shape [1] instead of [2]"
