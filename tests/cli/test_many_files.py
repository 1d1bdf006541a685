"""`onnx-ops run` on many files gives one result for each, the same with every engine, whatever goes wrong."""

import importlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from subprocess import DEVNULL, PIPE

import numpy as np
import onnx
import psutil
import pytest
from support.cases import parsed
from support.processes import TESTS, environment, on_disk, python
from support.selection import long_unless
from support.worker import FATAL, deadly, sleep
from test_cli import call, call_json, saved, sentences
from test_files import contents

import onnx_ops
from onnx_ops.arrays import comparison as compare
from onnx_ops.cli import items
from onnx_ops.cli import run as many
from onnx_ops.processes import workers

SIZES = ["-i", "image_shape=[4,4]", "-i", "block_shape=[2,2]"]
ENGINES = {"one process": [], "two workers": ["--workers", 2]}
PATIENCE = 120  # seconds
CLUSTER = [pytest.mark.ray, pytest.mark.skipif(not find_spec("ray"), reason="Ray is not installed")]
HERE = TESTS


@contextmanager
def new_cluster():
    """Yield a Ray cluster of two nodes, as (process, address)."""
    settings = environment(RAY_USAGE_STATS_ENABLED="0")
    command = [sys.executable, HERE / "support/cluster.py"]
    with subprocess.Popen(command, text=True, env=settings, stdin=PIPE, stdout=PIPE, stderr=DEVNULL) as process:
        address = next(line.strip() for line in process.stdout if line[:1].isdigit())
        yield process, address
        process.stdin.close()
        process.wait(PATIENCE)


@pytest.fixture(scope="module")
def cluster():
    with new_cluster() as found:
        yield found


@pytest.fixture(params=[*ENGINES, pytest.param("a cluster", marks=CLUSTER)])
def engine(request):
    """The options for each engine."""
    if request.param in ENGINES:
        return ENGINES[request.param]
    return ["--cluster", request.getfixturevalue("cluster")[1]]


FOLD = """(float[SIZE, 4, 9] x, int64[2] image_shape, int64[2] block_shape) => (float[SIZE, 1, 4, 4] y) {
    y = Col2Im (x, image_shape, block_shape)
}"""
SAMPLE = """(float[N, 1, H, W] X, float[N, 3, 3, 2] Grid) => (float[N, 1, 3, 3] Y, float[N, 1, 3, 3] minus) {
    Y = GridSample <mode = "linear"> (X, Grid)
    minus = Neg (Y)
}"""


def fold(directory, size="N", name="model.onnx"):
    onnx.save(parsed(FOLD.replace("SIZE", str(size))), directory / name)
    return directory / name


def slow_fold(directory):
    """Save a variant of `fold` that takes tens of milliseconds per item: it adds the mean of products of matrices."""
    weights = np.random.default_rng(0).random((600, 600), np.float32) / 300
    return saved(parsed("""(float[N, 4, 9] x, int64[2] image_shape, int64[2] block_shape) => (float[N, 1, 4, 4] y) {
        mean = ReduceMean <keepdims = 0> (x)
        first = Mul (weights, mean)
        second = MatMul (first, weights)
        third = MatMul (second, weights)
        fourth = MatMul (third, weights)
        little = ReduceMean <keepdims = 0> (fourth)
        folded = Col2Im (x, image_shape, block_shape)
        y = Add (folded, little)
    }""", weights=weights), directory)  # fmt: skip


def inputs(count, directory, size=1):
    """Write arrays as frames/NAME.npy, half of them to a folder below; return {name: array}."""
    rng = np.random.default_rng(0)
    arrays = {f"{'more/' if k % 2 else ''}{k:04}": rng.random((size, 4, 9), np.float32) for k in range(count)}
    for name, array in arrays.items():
        path = directory / "frames" / f"{name}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, array)
    return arrays


def run_arguments(model, directory, output="out", *more):
    return ["run", model, "-i", f"x={directory}/frames/**/*.npy", *SIZES, "--output", directory / output, *more]


def results(directory, output="out"):
    """Return {name: array} of the files that a run has written; there are no others beside the manifest.

    A process that is killed while it writes a file leaves the part that is written.
    """
    files = {name: data for name, data in contents(directory / output).items() if not name.startswith(".onnx_ops-")}
    assert files.pop(items.MANIFEST)
    assert {Path(name).suffix for name in files} <= {".npy"}
    return {name.removesuffix(".npy"): np.load(directory / output / name) for name in files}


def folded(array):
    return onnx_ops.col2im(array, (4, 4), (2, 2))


def assert_complete(arrays, directory, output="out"):
    written = results(directory, output)
    assert written.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(written[name], folded(array))


def lines(directory, output="out"):
    return [json.loads(line) for line in (directory / output / items.MANIFEST).read_text().splitlines()]


# Outputs


def test_a_file_for_each_item(engine, tmp_path):
    arrays, model = inputs(7, tmp_path), fold(tmp_path)
    report = call_json(*run_arguments(model, tmp_path, "out", *engine))
    assert (report["items"], report["run"], report["finished_before"], report["failed"]) == (7, 7, 0, [])
    assert_complete(arrays, tmp_path)
    assert sorted(line["item"] for line in lines(tmp_path)) == sorted(arrays)
    call(*run_arguments(model, tmp_path, "alone"))
    one, other = contents(tmp_path / "alone"), contents(tmp_path / "out")
    assert sorted(one.pop(items.MANIFEST).splitlines()) == sorted(other.pop(items.MANIFEST).splitlines())
    assert one == other


def sampled(directory):
    """Save SAMPLE; return its path, and the inputs of two items."""
    rng, model = np.random.default_rng(0), saved(parsed(SAMPLE), directory)
    places = rng.random((2, 1, 3, 3, 2), np.float32) * 2 - 1
    return model, [{"X": rng.random((1, 1, 4, 4), np.float32), "Grid": grid} for grid in places]


def assert_sampled(feeds, directory):
    for k, feed in enumerate(feeds):
        with np.load(directory / f"{k}.npz") as outputs:
            y = onnx_ops.grid_sample(feed["X"], feed["Grid"], mode="linear")
            assert outputs.keys() == {"Y", "minus"}
            np.testing.assert_array_equal(outputs["Y"], y)
            np.testing.assert_array_equal(outputs["minus"], -y)


def test_npz_of_all_inputs_and_of_all_outputs(tmp_path):
    """In a folder whose name is no input's, though it has a "="."""
    (model, feeds), folder = sampled(tmp_path), tmp_path / "day=1"
    folder.mkdir()
    for k, feed in enumerate(feeds):
        np.savez(folder / f"{k}.npz", **feed)
    call("run", model, "-i", folder / "*.npz", "--output", tmp_path / "out")
    assert_sampled(feeds, tmp_path / "out")
    call("run", model, "-i", folder / "0.npz")


def test_patterns_of_several_inputs_are_paired_by_name(tmp_path):
    model, feeds = sampled(tmp_path)
    for name in ("X", "Grid"):
        (tmp_path / name).mkdir()
        for k, feed in enumerate(feeds):
            np.save(tmp_path / name / f"{k}.npy", feed[name])
    command = ["run", model, "-i", f"X={tmp_path}/X/*", "-i", f"Grid={tmp_path}/Grid/*", "--output", tmp_path / "out"]
    call(*command)
    assert_sampled(feeds, tmp_path / "out")
    (tmp_path / "Grid" / "1.npy").unlink()
    assert "1.npy has no counterpart called 1 that matches" in " ".join(call(*command, exit_code=2).split())


def test_any_name_of_an_output():
    outputs = {"file": np.zeros(2), "a/b": np.ones(3)}
    suffix, content = items.suffix(outputs), items.encode(outputs)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert (suffix, archive.namelist()) == (".npz", ["file.npy", "a/b.npy"])


# Items that fail


def damaged(directory):
    """Write inputs, some of which are damaged or do not fit the model; return {their names: messages} and the rest."""
    arrays = inputs(8, directory)
    messages = {
        "0000": "can't be read: ",
        "more/0001": "input x is float64, the model requires float32",
        "0002": "Got invalid dimensions for input: x",
        "more/0003": "can't be read: it holds something else than arrays",
    }
    folder = directory / "frames"
    (folder / "0000.npy").write_bytes((folder / "0000.npy").read_bytes()[:-5])
    np.save(folder / "more" / "0001.npy", np.zeros((1, 4, 9)))
    np.save(folder / "0002.npy", np.zeros((1, 5, 9), np.float32))
    with open(folder / "more" / "0003.npy", "wb") as file:
        np.savez(file, x=np.zeros((1, 4, 9), np.float32))
    return messages, {name: array for name, array in arrays.items() if name not in messages}


def test_a_bad_file_costs_its_own_result(engine, tmp_path):
    messages, others = damaged(tmp_path)
    batch = ["--batch", 3] if engine else []
    command = run_arguments(fold(tmp_path), tmp_path, "out", *engine, *batch)
    report = call_json(*command, exit_code=1)
    problems = {each["item"]: each["problem"] for each in report["failed"]}
    assert problems.keys() == messages.keys()
    for name, text in messages.items():
        assert text in problems[name]
    assert_complete(others, tmp_path)
    text = call(*command, exit_code=1)
    assert "8 items in" in text
    assert "0 run, 4 finished before, 4 failed" in text
    assert "0000 has failed: " in text


def test_a_link_to_a_file_that_is_not_there_is_an_item(tmp_path):
    """It fails: tools that fetch data as they are needed leave such links, which must not look like a finished run."""
    others = inputs(2, tmp_path)
    (tmp_path / "frames" / "gone.npy").symlink_to("nowhere.npy")
    (tmp_path / "frames" / "folder.npy").mkdir()
    (failed,) = call_json(*run_arguments(fold(tmp_path), tmp_path, "out"), exit_code=1)["failed"]
    assert failed["item"] == "gone"
    assert "gone.npy can't be read: No such file" in failed["problem"]
    assert_complete(others, tmp_path)


def test_an_item_that_lacks_an_input(tmp_path):
    model, feeds = sampled(tmp_path)
    np.savez(tmp_path / "0.npz", **feeds[0])
    np.savez(tmp_path / "1.npz", X=feeds[1]["X"])
    np.savez(tmp_path / "2.npz", **feeds[1], other=np.zeros(3))
    command = ["run", model, "-i", tmp_path / "*.npz", "--output", tmp_path / "out"]
    report = call_json(*command, exit_code=1)
    first, second = (each["problem"] for each in report["failed"])
    assert "no --input for Grid (float32 [N, 3, 3, 2])" in first
    assert "the model has no input other, but X, Grid" in second
    assert_sampled(feeds[:1], tmp_path / "out")
    np.save(tmp_path / "grid.npy", feeds[0]["Grid"])
    report = call_json(*command, "-i", f"Grid={tmp_path}/grid.npy", exit_code=1)
    assert [each["item"] for each in report["failed"]] == ["0", "2"]
    assert "0.npz: Grid is given already" in report["failed"][0]["problem"]


WRONG = {
    "nothing matches": (["-i", "x={folder}/none/*.npy", *SIZES], "no file matches"),
    "no output": (["-i", "x={folder}/frames/*.npy", *SIZES], "many files need --output"),
    "compare": (["-i", "x={folder}/frames/*.npy", "--compare", "builtin"], "leave no place for --compare"),
    "an input is missing": (["-i", "x={folder}/frames/*.npy"], "no --input for image_shape (int64 [2]), block_shape"),
    "both engines": (["-i", "x={folder}/frames/*.npy", "--workers", "2", "--cluster", "auto"], "state one of them"),
    "one file": (["-i", "x={folder}/frames/0000.npy", *SIZES, "--workers", "2"], "are for many files"),
    "twice": (["-i", "x={folder}/frames/*.npy", "-i", "x={folder}/frames/0000.npy", *SIZES], "gives x twice"),
    "two patterns": (["-i", "x={folder}/frames/*.npy"] * 2, "are for the same input"),
    "into the inputs": (["-i", "x={folder}/frames/*.npy", *SIZES, "--output", "{folder}/frames"], "be in the folder"),
    "one name": (["-i", "x={folder}/frames/0000.*", *SIZES], "would have one output, 0000"),
    "no such input": (["-i", "z={folder}/frames/*.npy", *SIZES], "the model has no input z, but x"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_with_the_command_line(case, tmp_path):
    arguments, message = WRONG[case]
    inputs(1, tmp_path)
    (tmp_path / "frames" / "0000.png").touch()
    arguments = [argument.format(folder=tmp_path) for argument in arguments]
    output = [] if "--output" in arguments or case in ("no output", "one file") else ["--output", tmp_path / "out"]
    assert message in sentences("run", fold(tmp_path), *arguments, *output)
    assert not (tmp_path / "out").exists()


def test_an_output_that_cannot_be_written_ends_the_run(engine, tmp_path):
    """The error is not the item's, and every other item would meet it, too."""
    inputs(4, tmp_path)
    (tmp_path / "out" / "0000.npy").mkdir(parents=True)
    text = call(*run_arguments(fold(tmp_path), tmp_path, "out", *engine), exit_code=3)
    assert "out/0000.npy can't be written: output file must be an ordinary file" in text


def test_a_full_disk(tmp_path, monkeypatch):
    arrays, write_bytes, paths = inputs(4, tmp_path), Path.write_bytes, []

    def write_half(path, content):
        paths.append(path)
        write_bytes(path, content[: -10 * (len(paths) == 2) or None])
        if len(paths) == 2:
            raise OSError(28, "No space left on device")

    command = run_arguments(fold(tmp_path), tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", write_half)
        assert "out/0002.npy can't be written: No space left on device" in call(*command, exit_code=3)
    assert results(tmp_path).keys() == {"0000"}
    assert call_json(*command)["finished_before"] == 1
    assert_complete(arrays, tmp_path)


# Starting again


def cut(path, count):
    path.write_bytes(path.read_bytes()[:-count])


def change_model(path):
    proto = onnx.load(path)
    proto.doc_string = "another one"
    onnx.save(proto, path)


CHANGES = {  # what is changed before a run is started again, how, and how many items are run again
    "nothing": (lambda folder: None, [], 0),
    "threads": (lambda folder: None, ["--threads", 1], 0),
    "workers": (lambda folder: None, ["--workers", 2], 0),
    "optimize": (lambda folder: None, ["--optimize"], 4),
    "batch": (lambda folder: None, ["--batch", 2], 4),
    "extensions": (lambda folder: None, ["--backend", "extensions"], 4),
    "sizes": (lambda folder: None, [], 4),
    "input": (lambda folder: np.save(folder / "frames" / "0000.npy", np.ones((1, 4, 9), np.float32)), [], 1),
    "output": (lambda folder: np.save(folder / "out" / "0000.npy", np.zeros(3)), [], 1),
    "half an output": (lambda folder: cut(folder / "out" / "0000.npy", 1), [], 1),
    "no output": (lambda folder: (folder / "out" / "0000.npy").unlink(), [], 1),
    "manifest": (lambda folder: cut(folder / "out" / items.MANIFEST, 20), [], 1),
    "model": (lambda folder: change_model(folder / "model.onnx"), [], 4),
}


@pytest.mark.parametrize("name", CHANGES)
def test_only_what_is_not_finished_is_run_again(name, tmp_path):
    change, more, again = CHANGES[name]
    inputs(4, tmp_path)
    command = run_arguments(fold(tmp_path), tmp_path)
    call(*command)
    change(tmp_path)
    if name == "sizes":
        command[command.index("image_shape=[4,4]")] = "image_shape=[2,10]"
    report = call_json(*command, *more)
    assert (report["run"], report["finished_before"]) == (again, 4 - again)
    sizes = (2, 10) if name == "sizes" else (4, 4)
    now = {p.stem: np.load(p) for p in (tmp_path / "frames").rglob("*.npy")}
    for item, array in results(tmp_path).items():
        np.testing.assert_allclose(array, onnx_ops.col2im(now[Path(item).name], sizes, (2, 2)), rtol=1e-6)
    assert call_json(*command, *more)["run"] == 0


def test_the_data_of_a_model_count(tmp_path):
    folder, (_, array) = tmp_path / "models", *inputs(1, tmp_path).items()
    folder.mkdir()
    text = FOLD.replace("SIZE", "N").replace("y = Col2Im", "z = Col2Im").replace("\n}", "\n y = Mul (z, factor) }")
    for factor in (2, 3):
        proto = parsed(text, factor=np.full((1, 1, 4, 4), factor, np.float32))
        (folder / "weights").unlink(missing_ok=True)  # onnx would append to it, and the model would tell where
        onnx.save(proto, folder / "model.onnx", save_as_external_data=True, location="weights", size_threshold=0)
        assert call_json(*run_arguments(folder / "model.onnx", tmp_path))["run"] == 1
        np.testing.assert_array_equal(results(tmp_path)["0000"], factor * folded(array))


def test_the_sources_of_the_package_count(tmp_path):
    """They change between releases, too."""
    shutil.copytree(Path(onnx_ops.__file__).parent, tmp_path / "onnx_ops")
    inputs(1, tmp_path)
    command = run_arguments(fold(tmp_path), tmp_path)
    for before, comment in (0, ""), (1, ""), (0, "# another one"):
        with open(tmp_path / "onnx_ops" / "kernels" / "__init__.py", "a") as file:
            file.write(comment)
        done = python("from onnx_ops.cli import main; main()", *command, folders=[tmp_path], cwd=tmp_path)
        assert f"{before} finished before" in done.stdout


def test_results_are_no_inputs(tmp_path):
    inputs(2, tmp_path)
    model = fold(tmp_path)
    command = ["run", model, "-i", f"x={tmp_path}/**/*.npy", *SIZES, "--output", tmp_path / "out"]
    assert call_json(*command)["items"] == 2
    assert call_json(*command)["finished_before"] == 2


# Batches


@pytest.mark.parametrize(("size", "engine"), [("N", "one process"), (3, "one process"), (3, "two workers")])
def test_batches_give_the_same_files(size, engine, tmp_path):
    """The last batch is short; it is filled up for a model that takes whole batches only."""
    arrays = inputs(8, tmp_path)
    call(*run_arguments(fold(tmp_path, size), tmp_path, "out", "--batch", 3, *ENGINES[engine]))
    assert_complete(arrays, tmp_path)


def test_a_batch_is_one_run(tmp_path, monkeypatch):
    shapes = []

    def run(runner, feeds):
        shapes.append(feeds["x"].shape)
        return {"y": folded(feeds["x"])}

    monkeypatch.setattr(onnx_ops.Runner, "__call__", run)
    arrays = inputs(5, tmp_path) | {"odd": np.ones((2, 4, 9), np.float32)}
    np.save(tmp_path / "frames" / "odd.npy", arrays["odd"])
    call(*run_arguments(fold(tmp_path), tmp_path, "out", "--batch", 4))
    others = (1, 4, 9), (1, 4, 9), (4, 4, 9)  # the first batch is tried in another order, its first and last one alone
    assert sorted(shapes) == sorted([(1, 4, 9), (2, 4, 9), (4, 4, 9), *others])
    assert_complete(arrays, tmp_path)


def test_a_batch_that_the_model_does_not_take(tmp_path):
    inputs(4, tmp_path)
    text = sentences(*run_arguments(fold(tmp_path, 1), tmp_path, "out", "--batch", 4))
    assert "--batch 4: the model requires 1 along the first axis of x." in text


def test_outputs_that_have_no_axis_for_a_batch(tmp_path):
    path = saved(parsed("(float[N, 4, 9] x) => (float y) { y = ReduceMean <keepdims = 0> (x) }"), tmp_path)
    inputs(4, tmp_path)
    command = ["run", path, "-i", f"{tmp_path}/frames/*.npy", "--output", tmp_path / "out"]
    text = call(*command, "--batch", 2, exit_code=3)
    assert "shape of y = []: axis 0 must be 2 after a run on 2 items; leave out --batch" in text
    call(*command)


LARGEST = "{ y = ReduceMax <keepdims = 0> (x, zero) }"
MEAN, LEAVE_OUT = "{ mean = ReduceMean (x, zero) y = Sub (x, mean) }", "leave out --batch"
ANOTHER = "batch = 2: the model makes another y"
MIXING = {
    "fixed": (f"(float[N, 2] x) => (float[2] y) {LARGEST}", "[2]: axis 0 must be 1 after a run on 1 items"),
    "as many as fixed": (
        f"(float[2, 2] x) => (float[2] y) {LARGEST}",
        f"{ANOTHER} of an item if others are stacked with it; {LEAVE_OUT}",
    ),
    "booleans": (
        "(float[2, 2] x) => (bool[2] y) { b = ReduceMax <keepdims = 0> (x, zero) y = Cast <to = 9> (b) }", ANOTHER
    ),
    "every pair": ("(float[N, M] x) => (float[N, K] y) { t = Transpose (x) y = MatMul (x, t) }", ANOTHER),
    "sums so far": ("(float[N, M] x) => (float[N, M] y) { y = CumSum (x, zero) }", ANOTHER),
    "the mean of as many as fixed": (f"(float[2, 2] x) => (float[2, 2] y) {MEAN}", ANOTHER),
    "the mean": (f"(float[N, M] x) => (float[N, M] y) {MEAN}", ANOTHER),
    "the largest": (
        "(float[N, M] x) => (float[N, M] y) { largest = ReduceMax (x, zero) y = Mul (x, largest) }", ANOTHER
    ),
}  # fmt: skip


def mixing(case, values, directory):
    """Return the command to run a model of MIXING on items of two elements, 0 and one of the values."""
    (directory / "frames").mkdir()
    for k, value in enumerate(values):
        np.save(directory / "frames" / f"{k}.npy", np.array([[0, value]], np.float32))
    model = saved(parsed(MIXING[case][0], 18, zero=np.array([0])), directory)
    return ["run", model, "-i", f"{directory}/frames/*.npy", "--output", directory / "out", "--batch", 2]


@pytest.mark.parametrize(
    ("case", "engine"), [*((case, "one process") for case in MIXING), ("as many as fixed", "two workers")]
)
def test_models_that_mix_the_items_of_a_batch(case, engine, tmp_path):
    text = call(*mixing(case, range(1, 5), tmp_path), *ENGINES[engine], exit_code=3)
    assert MIXING[case][1] in text
    assert not list((tmp_path / "out").rglob("*.npy"))


@pytest.mark.parametrize("values", [(0, 0, 1, 2), (0, 3, 1, 2)], ids=["alike", "one of zeros"])
@pytest.mark.parametrize("case", ["as many as fixed", "the mean", "sums so far", "the largest"])
def test_items_that_tell_nothing_about_a_batch(case, values, tmp_path):
    """Items that are alike, or zeros, may hide that they are mixed."""
    text = call(*mixing(case, values, tmp_path), exit_code=3)
    assert MIXING[case][1] in text


def test_rounding_is_no_mixing():
    expected = np.arange(1000)
    for kind in ("float32", "int32", "bool", "str"):
        other = expected.astype(kind)
        other[:10] = other[::-1][:10]
        assert compare.is_nearly(other, expected.astype(kind))
        other[:20] = other[::-1][:20]
        assert compare.is_nearly(other, expected.astype(kind)) == (kind == "bool")
    assert compare.is_nearly(np.array([1.0, np.nan, np.inf]), np.array([1.001, np.nan, np.inf]))
    assert not compare.is_nearly(np.array([np.inf]), np.array([1.0]))


def test_inputs_that_have_no_axis_for_a_batch(tmp_path):
    for name, shape in (("x", ()), ("z", 1)):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "0.npy", np.zeros(shape, np.float32))
    model = saved(parsed("(float x, float[N] z) => (float[N] y) { y = Add (x, z) }"), tmp_path)
    command = ["run", model, "--output", tmp_path / "out", "-i", f"x={tmp_path}/x/*", "-i", f"z={tmp_path}/z/*"]
    assert "shape of x = []: has no axis to stack items along" in call(*command, "--batch", 2, exit_code=1)
    call(*command)


# Files that are read stay as they are


def test_an_output_among_the_inputs(tmp_path, monkeypatch):
    """What would be written to `data/data` would replace inputs, or become some."""
    monkeypatch.chdir(tmp_path)
    for name in ("data/a.npy", "data/data/b.npy"):
        Path(name).parent.mkdir(exist_ok=True)
        np.save(name, np.zeros((1, 4, 9), np.float32))
    before = contents(tmp_path)
    fold(tmp_path)
    text = call("run", "model.onnx", "-i", "x=data/**/*.npy", *SIZES, "--output", ".", exit_code=2)
    assert "--output .: the output data/b would be in the folder of data/**/*.npy." in " ".join(text.split())
    assert contents(tmp_path) == before | {"model.onnx": Path("model.onnx").read_bytes()}
    text = call("run", "model.onnx", "-i", "x=data/*/../*.npy", *SIZES, "--output", "out", exit_code=2)
    assert "there can't be a .. after a wildcard" in text


def test_a_folder_with_inputs_is_none_for_outputs(tmp_path):
    inputs(2, tmp_path)
    before = contents(tmp_path / "frames")
    text = call(*run_arguments(fold(tmp_path), tmp_path, "frames/more"), exit_code=2)
    assert "0001.npy, which matches" in " ".join(text.split())
    assert contents(tmp_path / "frames") == before


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
@pytest.mark.parametrize("source", ["frames/0000.npy", "model.onnx", "image.npy"])
@pytest.mark.parametrize("name", ["0000.npy", items.MANIFEST])
def test_an_output_that_is_a_link_to_an_input(name, source, tmp_path):
    inputs(1, tmp_path)
    np.save(tmp_path / "image.npy", np.array([4, 4]))
    command = run_arguments(fold(tmp_path), tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).symlink_to(tmp_path / source)
    before = contents(tmp_path)
    command[command.index("image_shape=[4,4]")] = f"image_shape={tmp_path}/image.npy"
    text = "".join(call(*command, exit_code=2).split())
    assert f"{tmp_path}/out/{name}wouldreplace{tmp_path}/{source},whichisread" in text
    assert contents(tmp_path) == before


def test_a_manifest_of_something_else(tmp_path):
    inputs(1, tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / items.MANIFEST).write_text('{"audio": "a.wav"}\n')
    text = call(*run_arguments(fold(tmp_path), tmp_path), exit_code=3)
    assert "manifest.jsonl is no manifest of a run; write into another folder" in text
    assert contents(tmp_path / "out") == {items.MANIFEST: b'{"audio": "a.wav"}\n'}


# Processes that end


def started(model, directory, *more):
    command = [sys.executable, "-m", "onnx_ops", *run_arguments(model, directory, "out", "--threads", 1, *more)]
    return subprocess.Popen([*map(str, command)], text=True, start_new_session=True, stdout=PIPE, stderr=PIPE)


def wait_for(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def wait_for_lines(count, directory):
    path = directory / "out" / items.MANIFEST
    wait_for(lambda: path.exists() and path.read_text().count("\n") >= count)


needs_signals = pytest.mark.skipif(os.name == "nt", reason="there is no SIGKILL there")


def at_work(process, engine, request):
    """The processes that run items for a command: its children, or those of the cluster."""
    if "--cluster" not in engine:
        return psutil.Process(process.pid).children()
    children = psutil.Process(request.getfixturevalue("cluster")[0].pid).children(recursive=True)
    return [child for child in children if "ray::do" in " ".join(child.cmdline())]


@needs_signals
def test_processes_that_are_killed_lose_nothing(engine, tmp_path, request):
    if not engine:
        pytest.skip("there is one only")
    arrays, model = inputs(60, tmp_path), slow_fold(tmp_path)
    process = started(model, tmp_path, *engine)
    wait_for_lines(5, tmp_path)
    wait_for(lambda: len(at_work(process, engine, request)) == 2)  # Ray gives them other titles between two tasks
    for child in at_work(process, engine, request):
        child.kill()
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, "60 run, 0 finished before, 0 failed" in out) == (0, True), err
    assert "--cluster" in engine or not err
    assert results(tmp_path).keys() == arrays.keys()
    call(*run_arguments(model, tmp_path, "alone", "--threads", 1))
    alone = contents(tmp_path / "alone")
    alone.pop(items.MANIFEST)
    assert {name: data for name, data in contents(tmp_path / "out").items() if name in alone} == alone


@needs_signals
def test_the_rest_after_the_program_was_killed(engine, tmp_path):
    arrays, model = inputs(60, tmp_path), slow_fold(tmp_path)
    process = started(model, tmp_path, *engine)
    wait_for_lines(10, tmp_path)
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children()]
    process.kill()
    _, err = process.communicate(timeout=PATIENCE)  # workers have stderr open, and end by themselves
    assert "--cluster" in engine or not err
    assert not psutil.wait_procs(family, PATIENCE)[1]
    finished = {line["item"] for line in lines(tmp_path)}
    written = {name: (tmp_path / "out" / f"{name}.npy").stat().st_mtime_ns for name in finished}
    assert 10 <= len(finished) < 60
    report = call_json(*run_arguments(model, tmp_path, "out", "--threads", 1, *engine))
    assert (report["finished_before"], report["run"]) == (len(finished), 60 - len(finished))
    assert sorted(line["item"] for line in lines(tmp_path)) == sorted(arrays)
    assert {name: (tmp_path / "out" / f"{name}.npy").stat().st_mtime_ns for name in finished} == written


@needs_signals
def test_ctrl_c(engine, tmp_path):
    arrays, model = inputs(100, tmp_path), slow_fold(tmp_path)
    process = started(model, tmp_path, *engine)
    wait_for_lines(5, tmp_path)
    family = [] if "--cluster" in engine else psutil.Process(process.pid).children()
    began = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    assert process.communicate(timeout=PATIENCE) == ("", "")
    assert (process.returncode, time.monotonic() - began < 3) == (130, True)
    assert not psutil.wait_procs(family, 0.1)[1]
    assert 5 <= len(results(tmp_path)) < len(arrays)  # which are whole
    assert "--cluster" in engine or not list((tmp_path / "out").rglob(".onnx_ops-*"))


@needs_signals
@pytest.mark.parametrize("delay", [0, long_unless(False, 0.1), 0.3])
def test_ctrl_c_while_workers_begin(delay, tmp_path):
    inputs(2, tmp_path)
    process = started(fold(tmp_path), tmp_path, "--workers", 2)
    wait_for(psutil.Process(process.pid).children)
    time.sleep(delay)
    family = psutil.Process(process.pid).children()
    os.killpg(process.pid, signal.SIGINT)
    assert (process.communicate(timeout=PATIENCE), process.returncode) == (("", ""), 130)
    assert not psutil.wait_procs(family, 0.1)[1]


PROGRAM = """
print("main", flush=True)
from onnx_ops.processes import workers
from support.worker import sleep
for _ in workers.answers(sleep, [(0.1,)] * {count}, 2):
    print("answer", flush=True)
"""  # has no `if __name__ == "__main__"`


@needs_signals
@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL"])
def test_a_program_that_is_killed_leaves_no_process(name, tmp_path):
    """The program's main module is not imported again."""
    (tmp_path / "program.py").write_text(PROGRAM.format(count=10_000))
    command = [sys.executable, tmp_path / "program.py"]
    with subprocess.Popen(command, text=True, env=environment(), stdout=PIPE, stderr=PIPE) as process:
        assert [process.stdout.readline() for _ in range(3)] == ["main\n", "answer\n", "answer\n"]
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.Signals[name])
        rest, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, len(family), err) == (-signal.Signals[name], 2, "")
    assert "main" not in rest
    assert not psutil.wait_procs(family, 30)[1]


@pytest.mark.parametrize("option", ["size=4k", "ro"])
def test_workers_need_no_shared_memory(option, tmp_path):
    """Semaphores and queues of other pools are files in /dev/shm, which may be small, full or read-only."""
    (tmp_path / "program.py").write_text(PROGRAM.format(count=4))
    done = on_disk(option, "/dev/shm", sys.executable, tmp_path / "program.py")
    assert (done.stdout.split(), done.stderr, done.returncode) == (["main"] + ["answer"] * 4, "", 0)


def test_items_that_end_their_process_cost_themselves():
    """The other items of their batches are run again, each by itself."""
    names = ["a", "b", *FATAL, "c", "d", "e", "f"]
    outcomes = dict(many.outcomes(lambda tasks: workers.answers(deadly, tasks, 2), names, 3))
    assert [outcomes.pop(name) for name in FATAL] == [many.ENDED] * 3
    assert outcomes == {name: name.upper() for name in names if name not in FATAL}


@needs_signals
def test_a_process_that_is_killed_before_it_begins_is_replaced(tmp_path, monkeypatch):
    once = f"import os; from pathlib import Path; began = Path({str(tmp_path / 'began')!r}); "
    once += "began.exists() or (began.touch(), os.kill(os.getpid(), 9)); "
    monkeypatch.setattr(workers, "PROGRAM", once + workers.PROGRAM)
    assert list(workers.answers(sleep, [(0,)], 1)) == [(0, 0, False)]


def test_a_process_imports_from_where_this_one_does(tmp_path, monkeypatch):
    """The current folder is no such place, even before a program's first statement."""
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    for name in (*sys.stdlib_module_names, "numpy", "onnx_ops"):
        (here / f"{name}.py").write_text("import os; os._exit(1)")
    (there / "größe.py").write_text("import sys\ndef path():\n    return sys.path")
    monkeypatch.chdir(here)
    monkeypatch.syspath_prepend(str(there))
    path = importlib.import_module("größe").path
    assert list(workers.answers(path, [()], 1)) == [(0, sys.path, False)]


def test_a_process_that_is_kept_busy_ends_too():
    before = psutil.Process().children()  # a cluster, perhaps
    answers = workers.answers(sleep, [(0,), (PATIENCE,)], 2, patience=0.2)
    assert next(answers) == (0, 0, False)
    began = time.monotonic()
    answers.close()
    assert time.monotonic() - began < 2
    assert psutil.Process().children() == before


def test_without_ray_one_line_says_what_to_install(tmp_path, monkeypatch):
    inputs(1, tmp_path)
    monkeypatch.setitem(sys.modules, "ray", None)
    rule = 'needs Ray: pip install "ray>=2.40", on every machine of the cluster\n'
    text = call(*run_arguments(fold(tmp_path), tmp_path, "out", "--cluster", "auto"), exit_code=3)
    assert text == f"Error: onnx_ops: cluster = 'auto': {rule}"


# A cluster


def in_a_cluster(test):
    for mark in CLUSTER:
        test = mark(test)
    return test


DEADLY = """
import sys
from onnx_ops.cli import run as many
from onnx_ops.processes import cluster
from support.worker import Deadly
def engine(batches):
    for index, _, results, has_ended in cluster.answers(Deadly(), batches, sys.argv[1], 1):
        yield index, results, has_ended
outcomes = dict(many.outcomes(engine, ["a", "b", "exit", "c", "d", "e", "f"], 3))
for name in sorted(outcomes):
    print(name, outcomes[name] is many.ENDED or outcomes[name])
"""


@in_a_cluster
def test_an_item_of_a_cluster_that_ends_its_process_costs_itself(cluster):
    expected = ["a A", "b B", "c C", "d D", "e E", "exit True", "f F"]
    assert python(DEADLY, cluster[1]).stdout.splitlines() == expected


RAY_ENDS = """
import sys, psutil, ray
from onnx_ops import OpError
from onnx_ops.processes import cluster
from support.worker import sleep
try:
    for count, _ in enumerate(cluster.answers(sleep, [0.1] * 10_000, sys.argv[1], 1)):
        if count == 5:
            this = ray.get_runtime_context().get_node_id()
            (place,) = (node["RayletSocketName"] for node in ray.nodes() if node["NodeID"] == this)
            for process in psutil.process_iter():
                if process.name() == "raylet" and place in " ".join(process.cmdline()):
                    process.kill()
except OpError as error:
    print(error)
"""


@in_a_cluster
def test_ray_ends_on_the_machine_of_the_command():
    """Ray by itself ends the program some seconds later, by C's exit and without a reason."""
    with new_cluster() as (_, address):
        done = python(RAY_ENDS, address, check=False)
    rule = "Ray's process on this machine (raylet) has ended; start Ray and the command again"
    assert (done.returncode, done.stdout) == (0, f"onnx_ops: cluster = '{address}': {rule}\n")


OTHER_VERSION = """
import sys
from onnx_ops.cli import main
from onnx_ops.processes import cluster
cluster.versions = lambda: {"onnx_ops": "0.0"}
sys.argv[0] = "onnx-ops"
main()
"""


@in_a_cluster
def test_machines_of_other_versions(cluster, tmp_path):
    inputs(1, tmp_path)
    command = run_arguments(fold(tmp_path), tmp_path, "out", "--cluster", cluster[1])
    done = python(OTHER_VERSION, *command, check=False)
    assert done.returncode == 3
    assert "must be those of the machine that sends it work, {'onnx_ops': '0.0'}" in done.stderr
    assert not list((tmp_path / "out").rglob("*.npy"))


CLUSTERS = {  # an address, options, and the error
    "that is not there": ("127.0.0.1:9", [], "Error: onnx_ops: cluster = '127.0.0.1:9': can't be reached: "),
    "of too few cores": (None, ["--threads", 9], "threads = 9: no machine of the cluster"),
}


@in_a_cluster
@pytest.mark.parametrize("name", CLUSTERS)
def test_clusters_that_are_refused(name, cluster, tmp_path):
    address, more, error = CLUSTERS[name]
    inputs(1, tmp_path)
    command = run_arguments(fold(tmp_path), tmp_path, "out", "--cluster", address or cluster[1], *more)
    done = subprocess.run([sys.executable, "-m", "onnx_ops", *map(str, command)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (3, "")
    assert error in done.stderr
    assert address is None or done.stderr.count("\n") == 1
