"""`onnx-ops run` on many files gives one result for each, also on a cluster, whatever goes
wrong.
"""

import io
import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from importlib.util import find_spec
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any

import click
import numpy as np
import onnx
import psutil
import pytest
from support.cases import parsed
from support.commands import call, call_json, saved, sentences
from support.files import contents
from support.growth import assert_steps_linear
from support.processes import TESTS, environment

import onnx_ops
from onnx_ops.cli import data, items

pytestmark = pytest.mark.any_library

PAGE = TESTS.parent / "docs" / "many-files.md"
SIZES = ["-i", "image_shape=[4,4]", "-i", "block_shape=[2,2]"]
PATIENCE = 600  # seconds
CLUSTER = [
    pytest.mark.ray,
    pytest.mark.skipif(not find_spec("ray"), reason="Ray is not installed"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),  # Ray's
]

needs_signals = pytest.mark.skipif(
    os.name == "nt", reason="there are no signals, and links need rights"
)


@contextmanager
def new_cluster() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Yield a Ray cluster of two nodes, as (process, address)."""
    settings = environment(RAY_USAGE_STATS_ENABLED="0")
    command = [sys.executable, TESTS / "support/cluster.py"]
    with subprocess.Popen(
        command, text=True, env=settings, stdin=PIPE, stdout=PIPE, stderr=DEVNULL
    ) as process:
        address = next(line.strip() for line in process.stdout if line[:1].isdigit())
        yield process, address
        process.stdin.close()
        process.wait(PATIENCE)


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[subprocess.Popen[str], str]]:
    with new_cluster() as process_and_address:
        yield process_and_address


@pytest.fixture(params=["this process", pytest.param("a cluster", marks=CLUSTER)])
def where(request: pytest.FixtureRequest) -> list[str]:
    """The options for each place where items run."""
    return (
        []
        if request.param == "this process"
        else ["--cluster", request.getfixturevalue("cluster")[1]]
    )


FOLD = """(float[SIZE, 4, 9] x, int64[2] image_shape, int64[2] block_shape)
    => (float[SIZE, 1, 4, 4] y) {
    y = Col2Im (x, image_shape, block_shape)
}"""
SAMPLE = """(float[N, 1, H, W] X, float[N, 3, 3, 2] Grid)
    => (float[N, 1, 3, 3] Y, float[N, 1, 3, 3] minus) {
    Y = GridSample <mode = "linear"> (X, Grid)
    minus = Neg (Y)
}"""


def fold(directory: Path) -> Path:
    onnx.save(parsed(FOLD.replace("SIZE", "N")), directory / "model.onnx")
    return directory / "model.onnx"


def slow_fold(directory: Path) -> Path:
    """Save a variant of `fold` that takes tens of milliseconds per item: it adds the mean of
    products of matrices.
    """
    weights = np.random.default_rng(0).random((600, 600), np.float32) / 300
    return saved(parsed("""(float[N, 4, 9] x, int64[2] image_shape, int64[2] block_shape)
        => (float[N, 1, 4, 4] y) {
        mean = ReduceMean <keepdims = 0> (x)
        first = Mul (weights, mean)
        second = MatMul (first, weights)
        third = MatMul (second, weights)
        fourth = MatMul (third, weights)
        little = ReduceMean <keepdims = 0> (fourth)
        folded = Col2Im (x, image_shape, block_shape)
        y = Add (folded, little)
    }""", weights=weights), directory)  # fmt: skip


def inputs(count: int, directory: Path) -> dict[str, np.ndarray]:
    """Write arrays as frames/NAME.npy, half of them to a folder below; return {name: array}."""
    rng = np.random.default_rng(0)
    arrays = {
        f"{'more/' if k % 2 else ''}{k:04}": rng.random((1, 4, 9), np.float32) for k in range(count)
    }
    for name, array in arrays.items():
        path = directory / "frames" / f"{name}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, array)
    return arrays


def run_arguments(
    model: Path, directory: Path, output: str = "out", *options: object
) -> list[object]:
    return [
        "run",
        model,
        "-i",
        f"x={directory}/frames/**/*.npy",
        *SIZES,
        "--output",
        directory / output,
        *options,
    ]


def results(directory: Path, output: str = "out") -> dict[str, np.ndarray]:
    """Return {name: array} of the files that a run has written; there are no others beside the
    settings.

    A process that is killed while it writes a file leaves the part that is written.
    """
    files = {
        name: data
        for name, data in contents(directory / output).items()
        if not name.startswith(".onnx_ops-")
    }
    assert files.pop(items.SETTINGS)
    assert {Path(name).suffix for name in files} <= {".npy"}
    return {name.removesuffix(".npy"): np.load(directory / output / name) for name in files}


def folded(array: np.ndarray) -> np.ndarray:
    return onnx_ops.col2im(array, (4, 4), (2, 2))


def assert_complete(arrays: dict[str, np.ndarray], directory: Path, output: str = "out") -> None:
    written = results(directory, output)
    assert written.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(written[name], folded(array))


# Outputs


def test_a_file_for_each_item(where: list[str], tmp_path: Path) -> None:
    arrays, model = inputs(7, tmp_path), fold(tmp_path)
    report = call_json(*run_arguments(model, tmp_path, "out", *where))
    assert (report["items"], report["run"], report["finished_before"], report["failed"]) == (
        7,
        7,
        0,
        [],
    )
    assert_complete(arrays, tmp_path)
    call(*run_arguments(model, tmp_path, "alone"))
    assert contents(tmp_path / "alone") == contents(tmp_path / "out")


def sampled(directory):
    """Save SAMPLE; return its path, and the inputs of two items."""
    rng, model = np.random.default_rng(0), saved(parsed(SAMPLE), directory)
    points = rng.random((2, 1, 3, 3, 2), np.float32) * 2 - 1
    return model, [{"X": rng.random((1, 1, 4, 4), np.float32), "Grid": grid} for grid in points]


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
    command = [
        "run",
        model,
        "-i",
        f"X={tmp_path}/X/*",
        "-i",
        f"Grid={tmp_path}/Grid/*",
        "--output",
        tmp_path / "out",
    ]
    call(*command)
    assert_sampled(feeds, tmp_path / "out")
    (tmp_path / "Grid" / "1.npy").unlink()
    assert "1.npy has no counterpart called 1 that matches" in " ".join(
        call(*command, exit_code=2).split()
    )


def test_any_name_of_an_output():
    outputs = {"file": np.zeros(2), "a/b": np.ones(3)}
    suffix, content = items.suffix(outputs), items.encode(outputs)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert (suffix, archive.namelist()) == (".npz", ["file.npy", "a/b.npy"])


HOSTILE = [
    "../../a", "/b", "..", ".", "", "a/../b", "a//b", "a/", "..\\c", "\\\\server\\d", "C:e", "C:/e",
    "c:", "a/c:/b",
    "CON", "con.x", "a/NUL", "LPT1:", "\x1b[2J", "a\nb", "a\u202eb", "-rf", ".hidden", "a'b", 'a"b',
    "a$(b)", "~",
    "a b", "x" * 300,
]  # fmt: skip
HARMLESS = ["y", "block/layer.1/out:0", "Y_2", "console", "a..b", "größe", "block/con1/nul_1"]


def test_members_of_archives_stay_in_a_folder(tmp_path):
    outputs = {name: np.full(1, k) for k, name in enumerate([*HARMLESS, *HOSTILE, "A", "a", "Y"])}
    with zipfile.ZipFile(io.BytesIO(items.encode(outputs))) as archive:
        members = archive.namelist()
        archive.extractall(tmp_path / "in")
    assert members[: len(HARMLESS)] == [f"{name}.npy" for name in HARMLESS]
    assert len({member.lower() for member in members}) == len(outputs)  # also on Windows
    for member in members:
        names = member.removesuffix(".npy").split("/")
        assert not {"", ".", ".."} & {*names}
        assert not re.search(r"[\\'\"$~ ]|^\w:|/\w:", member)
        assert not any(
            re.fullmatch(r"(?i)(con|nul|lpt1)([.:].*)?", name_of_part) or name_of_part[0] in "-."
            for name_of_part in names
        )
        assert member.isprintable()
        assert len(member) < 255
    assert os.listdir(tmp_path) == ["in"]
    assert [np.load(tmp_path / "in" / member)[0] for member in members] == list(range(len(outputs)))


@pytest.mark.parametrize("name", ["a/b", "same"])
def test_steps_of_many_names_grow_with_their_number(name):
    def prepare(count):
        names = [
            name.replace("/", "/" * (k + 1)) if "/" in name else f"{name}{' ' * k}"
            for k in range(count)
        ]
        return lambda: data.file_names(names)

    assert_steps_linear(prepare, 50)


def test_an_item_keeps_the_limit_in_other_processes(tmp_path):
    (model, _), context = sampled(tmp_path), copy_context()
    context.run(data.unpacked.set, 7)
    work = context.run(items.Work, onnx_ops.Runner(model), {}, tmp_path)
    again = pickle.loads(pickle.dumps(work))
    context = copy_context()
    with pytest.raises(click.UsageError):
        context.run(again.feeds, items.Item("x", ()))
    assert context.run(data.unpacked.get) == 7


# Items that fail


def damaged(directory):
    """Write inputs, some of which are damaged or do not fit the model; return {their names:
    messages} and the rest.
    """
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


def test_a_bad_file_costs_its_own_result(where: list[str], tmp_path: Path) -> None:
    messages, results = damaged(tmp_path)
    command = run_arguments(fold(tmp_path), tmp_path, "out", *where)
    report = call_json(*command, exit_code=1)
    problems = {failure["item"]: failure["problem"] for failure in report["failed"]}
    assert problems.keys() == messages.keys()
    for name, text in messages.items():
        assert text in problems[name]
    assert_complete(results, tmp_path)
    text = call(*command, exit_code=1)
    assert "8 items in" in text
    assert "0 run, 4 finished before, 4 failed" in text
    assert "0000 has failed: " in text


def test_a_link_to_a_file_that_is_not_there_is_an_item(tmp_path):
    """It fails: tools that fetch data as they are needed leave such links, which must not look like
    a finished run.
    """
    other_inputs = inputs(2, tmp_path)
    (tmp_path / "frames" / "gone.npy").symlink_to("nowhere.npy")
    (tmp_path / "frames" / "folder.npy").mkdir()
    (failed,) = call_json(*run_arguments(fold(tmp_path), tmp_path, "out"), exit_code=1)["failed"]
    assert failed["item"] == "gone"
    assert "gone.npy can't be read: [Errno 2] No such file" in failed["problem"]
    assert_complete(other_inputs, tmp_path)


def test_an_item_that_lacks_an_input(tmp_path):
    model, feeds = sampled(tmp_path)
    np.savez(tmp_path / "0.npz", **feeds[0])
    np.savez(tmp_path / "1.npz", X=feeds[1]["X"])
    np.savez(tmp_path / "2.npz", **feeds[1], other=np.zeros(3))
    command = ["run", model, "-i", tmp_path / "*.npz", "--output", tmp_path / "out"]
    report = call_json(*command, exit_code=1)
    first, second = (failure["problem"] for failure in report["failed"])
    assert "no --input for Grid (float32 [N, 3, 3, 2])" in first
    assert "the model has no input other, but X, Grid" in second
    assert_sampled(feeds[:1], tmp_path / "out")
    np.save(tmp_path / "grid.npy", feeds[0]["Grid"])
    report = call_json(*command, "-i", f"Grid={tmp_path}/grid.npy", "--overwrite", exit_code=1)
    assert [failure["item"] for failure in report["failed"]] == ["0", "2"]
    assert "0.npz: Grid is given already" in report["failed"][0]["problem"]


WRONG = {
    "nothing matches": (["-i", "x={folder}/none/*.npy", *SIZES], "no file matches"),
    "no output": (["-i", "x={folder}/frames/*.npy", *SIZES], "needs --output"),
    "compare": (["-i", "x={folder}/frames/*.npy", "--compare", "builtin"], "excludes --compare"),
    "an input is missing": (["-i", "x={folder}/frames/*.npy"], "no --input for image_shape (int64 "
                                                               "[2]), block_shape"),
    "one file": (["-i", "x={folder}/frames/0000.npy", *SIZES, "--overwrite"], "are for many files"),
    "one file on a cluster": (["-i", "x={folder}/frames/0000.npy", *SIZES, "--cluster", "auto"],
        "are for many files"),
    "twice": (["-i", "x={folder}/frames/*.npy", "-i", "x={folder}/frames/0000.npy", *SIZES],
        "gives x twice"),
    "two patterns": (["-i", "x={folder}/frames/*.npy"] * 2, "--input gives x twice"),
    "two patterns of .npz": (["-i", "{folder}/frames/*.npz"] * 2, "--input gives a .npz twice"),
    "into the inputs": (["-i", "x={folder}/frames/*.npy", *SIZES, "--output", "{folder}/frames"],
        "be in the folder"),
    "one name": (["-i", "x={folder}/frames/0000.*", *SIZES], "would have one output, 0000"),
    "no such input": (["-i", "z={folder}/frames/*.npy", *SIZES], "the model has no input z, but x"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_with_the_command_line(case, tmp_path):
    arguments, message = WRONG[case]
    inputs(1, tmp_path)
    (tmp_path / "frames" / "0000.png").touch()
    arguments = [argument.format(folder=tmp_path) for argument in arguments]
    output = (
        []
        if "--output" in arguments or case.startswith(("no output", "one file"))
        else ["--output", tmp_path / "out"]
    )
    assert message in sentences("run", fold(tmp_path), *arguments, *output)
    assert not (tmp_path / "out").exists()


def test_an_output_that_cannot_be_written_ends_the_run(where: list[str], tmp_path: Path) -> None:
    """The error is not the item's, and every other item would meet it, too."""
    inputs(4, tmp_path)
    (tmp_path / "out" / "0000.npy").mkdir(parents=True)
    text = call(*run_arguments(fold(tmp_path), tmp_path, "out", *where), exit_code=3)
    assert "out/0000.npy can't be written: output file must be an ordinary file" in text


def test_a_full_disk(tmp_path, monkeypatch):
    arrays, write_bytes, paths = inputs(4, tmp_path), Path.write_bytes, []

    def write_half(path: Path, content: bytes) -> None:
        paths.append(path)
        write_bytes(
            path, content[: -10 * (len(paths) == 3) or None]
        )  # the first file has the settings
        if len(paths) == 3:
            raise OSError(28, "No space left on device")

    command = run_arguments(fold(tmp_path), tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", write_half)
        assert "out/0002.npy can't be written: No space left on device" in call(
            *command, exit_code=3
        )
    assert results(tmp_path).keys() == {"0000"}
    assert call_json(*command)["finished_before"] == 1
    assert_complete(arrays, tmp_path)


# Starting again


def change_model(path: Path) -> None:
    proto = onnx.load(path)
    proto.doc_string = "another one"
    onnx.save(proto, path)


CHANGES: dict[str, tuple[Callable[[Path], Any], list[object], int]] = {
    # what is changed before a run is started again, how, and how many items are run again
    "nothing": (lambda folder: None, [], 0),
    "threads": (lambda folder: None, ["--threads", 1], 0),
    "input": (
        lambda folder: np.save(folder / "frames" / "0000.npy", np.ones((1, 4, 9), np.float32)),
        [],
        1,
    ),
    "time of an input": (lambda folder: (folder / "frames" / "more" / "0001.npy").touch(), [], 1),
    "no output": (lambda folder: (folder / "out" / "0000.npy").unlink(), [], 1),
    "overwrite": (lambda folder: None, ["--overwrite"], 4),
    "overwrite another model": (
        lambda folder: change_model(folder / "model.onnx"),
        ["--overwrite"],
        4,
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_only_what_is_not_finished_is_run_again(name: str, tmp_path: Path) -> None:
    change, options, again = CHANGES[name]
    inputs(4, tmp_path)
    command = run_arguments(fold(tmp_path), tmp_path)
    call(*command)
    change(tmp_path)
    report = call_json(*command, *options)
    assert (report["run"], report["finished_before"]) == (again, 4 - again)
    assert_complete({p.relative_to(tmp_path / "frames").with_suffix("").as_posix(): np.load(p)
                     for p in (tmp_path / "frames").rglob("*.npy")}, tmp_path)  # fmt: skip
    assert call_json(*command)["run"] == 0


OTHERS: dict[str, tuple[Callable[[Path], Any], list[object], str]] = {
    # what is changed, how, and the settings that differ
    "optimize": (lambda folder: None, ["--optimize"], "optimize"),
    "extensions": (lambda folder: None, ["--backend", "extensions"], "backend"),
    "sizes": (lambda folder: None, [], "shared inputs"),
    "model": (lambda folder: change_model(folder / "model.onnx"), [], "model"),
    "another file": (
        lambda folder: (folder / "out" / items.SETTINGS).write_text('["audio"]'), [],
        "backend, optimize, patterns, model, shared inputs, operators, versions",
    ),
    "a damaged file": (
        lambda folder: (folder / "out" / items.SETTINGS).write_bytes(b"{\xff"), [],
        "backend, optimize, patterns, model, shared inputs, operators, versions",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_outputs_of_other_settings_are_kept(name: str, tmp_path: Path) -> None:
    """Until the user states --overwrite."""
    change, options, differing = OTHERS[name]
    inputs(2, tmp_path)
    command = run_arguments(fold(tmp_path), tmp_path)
    call(*command)
    change(tmp_path)
    before = contents(tmp_path / "out")
    if name == "sizes":
        command[command.index("image_shape=[4,4]")] = "image_shape=[2,10]"
    rule = (
        f"has outputs of a run with other settings ({differing}); choose another folder, or "
        "--overwrite."
    )
    assert rule in sentences(*command, *options)
    assert contents(tmp_path / "out") == before
    assert call_json(*command, *options, "--overwrite")["run"] == 2
    assert call_json(*command, *options)["finished_before"] == 2


@needs_signals
def test_another_file_at_an_inputs_path_is_run(tmp_path: Path) -> None:
    """It may be older than the output: by a link that leads elsewhere now, or moved there."""
    arrays = inputs(2, tmp_path)
    other_paths = {name: tmp_path / f"other{k}.npy" for k, name in enumerate(arrays)}
    for k, path in enumerate(other_paths.values()):
        np.save(path, np.full((1, 4, 9), k, np.float32))
        os.utime(path, (0, 0))
    command = run_arguments(fold(tmp_path), tmp_path)
    call(*command)
    first, second = (tmp_path / "frames" / f"{name}.npy" for name in arrays)
    first.unlink()
    first.symlink_to(other_paths["0000"])
    os.replace(other_paths["more/0001"], second)
    assert call_json(*command)["run"] == 2
    assert_complete(
        {name: np.full((1, 4, 9), k, np.float32) for k, name in enumerate(arrays)}, tmp_path
    )


def test_another_pattern_is_another_run(tmp_path: Path) -> None:
    """Files of two folders may have the same name, and one output."""
    inputs(2, tmp_path)
    model = fold(tmp_path)
    call(*run_arguments(model, tmp_path))
    command = [
        "run",
        model,
        "-i",
        f"x={tmp_path}/frames/*.npy",
        *SIZES,
        "--output",
        tmp_path / "out",
    ]
    assert "of a run with other settings (patterns)" in sentences(*command)


def test_an_interrupted_run_with_overwrite_is_not_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outputs of other settings are older than the file with the new ones."""
    arrays, model = inputs(3, tmp_path), fold(tmp_path)
    command = run_arguments(model, tmp_path)
    call(*command)
    change_model(model)
    with monkeypatch.context() as patch:
        patch.setattr(
            items.Work, "__call__", lambda work, item: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        call(*command, "--overwrite", exit_code=130)
    assert call_json(*command)["run"] == 3
    assert_complete(arrays, tmp_path)


def test_the_data_of_a_model_count(tmp_path: Path) -> None:
    folder, (_, array) = tmp_path / "models", *inputs(1, tmp_path).items()
    folder.mkdir()
    text = (
        FOLD.replace("SIZE", "N")
        .replace("y = Col2Im", "z = Col2Im")
        .replace("\n}", "\n y = Mul (z, factor) }")
    )
    for factor in (2, 3):
        proto = parsed(text, factor=np.full((1, 1, 4, 4), factor, np.float32))
        (folder / "weights").unlink(
            missing_ok=True
        )  # onnx would append to it, and the model would tell where
        onnx.save(
            proto,
            folder / "model.onnx",
            save_as_external_data=True,
            location="weights",
            size_threshold=0,
        )
        command = run_arguments(folder / "model.onnx", tmp_path)
        if factor == 3:
            assert "of a run with other settings (model)" in sentences(*command)
        assert call_json(*command, "--overwrite")["run"] == 1
        np.testing.assert_array_equal(results(tmp_path)["0000"], factor * folded(array))


def test_results_are_no_inputs(tmp_path: Path) -> None:
    inputs(2, tmp_path)
    model = fold(tmp_path)
    command = ["run", model, "-i", f"x={tmp_path}/**/*.npy", *SIZES, "--output", tmp_path / "out"]
    assert call_json(*command)["items"] == 2
    assert call_json(*command)["finished_before"] == 2


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
    assert "--output .: the output data/b would be in the folder of data/**/*.npy." in " ".join(
        text.split()
    )
    assert contents(tmp_path) == before | {"model.onnx": Path("model.onnx").read_bytes()}
    text = call(
        "run", "model.onnx", "-i", "x=data/*/../*.npy", *SIZES, "--output", "out", exit_code=2
    )
    assert "there can't be a .. after a wildcard" in text


def test_a_folder_with_inputs_is_none_for_outputs(tmp_path):
    inputs(2, tmp_path)
    before = contents(tmp_path / "frames")
    text = call(*run_arguments(fold(tmp_path), tmp_path, "frames/more"), exit_code=2)
    assert "0001.npy, which matches" in " ".join(text.split())
    assert contents(tmp_path / "frames") == before


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
@pytest.mark.parametrize("source", ["frames/0000.npy", "model.onnx", "image.npy"])
@pytest.mark.parametrize("name", ["0000.npy", items.SETTINGS])
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


# Processes that end


def started(model: Path, directory: Path, *options: object) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "onnx_ops",
        *run_arguments(model, directory, "out", "--threads", 1, *options),
    ]
    return subprocess.Popen(
        [*map(str, command)], text=True, start_new_session=True, stdout=PIPE, stderr=PIPE
    )


def wait_for(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def wait_for_outputs(count: int, directory: Path) -> None:
    wait_for(lambda: len(list((directory / "out").rglob("*.npy"))) >= count)


@pytest.mark.long
@needs_signals
def test_the_rest_after_the_program_was_killed(where: list[str], tmp_path: Path) -> None:
    arrays, model = inputs(60, tmp_path), slow_fold(tmp_path)
    process = started(model, tmp_path, *where)
    wait_for_outputs(10, tmp_path)
    process.kill()
    _, err = process.communicate(timeout=PATIENCE)
    assert where or not err
    time.sleep(2 if where else 0)  # processes of the cluster finish their item
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.npy")}
    assert 10 <= len(written) < 60
    report = call_json(*run_arguments(model, tmp_path, "out", "--threads", 1, *where))
    assert (report["finished_before"], report["run"]) == (len(written), 60 - len(written))
    assert {path: path.stat().st_mtime_ns for path in written} == written
    assert results(tmp_path).keys() == arrays.keys()


@pytest.mark.long
@needs_signals
def test_ctrl_c(where: list[str], tmp_path: Path) -> None:
    arrays, model = inputs(100, tmp_path), slow_fold(tmp_path)
    process = started(model, tmp_path, *where)
    wait_for_outputs(5, tmp_path)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out, where or err) == (130, "", where or "")
    assert 5 <= len(results(tmp_path)) < len(arrays)  # which are whole
    assert where or not list((tmp_path / "out").rglob(".onnx_ops-*"))


def test_without_ray_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs(1, tmp_path)
    monkeypatch.setitem(sys.modules, "ray", None)
    rule = 'needs Ray Data: pip install "ray[data]>=2.40,<2.64", on every machine of the cluster\n'
    text = call(*run_arguments(fold(tmp_path), tmp_path, "out", "--cluster", "auto"), exit_code=3)
    assert text == f"Error: onnx_ops: cluster = 'auto': {rule}"


# A cluster


def in_a_cluster(test: Callable[..., None]) -> Callable[..., None]:
    for mark in CLUSTER:
        test = mark(test)
    return test


def at_work(cluster: subprocess.Popen[str]) -> list[psutil.Process]:
    """The processes of a cluster that run items."""
    children = psutil.Process(cluster.pid).children(recursive=True)
    return [
        child
        for child in children
        if child.is_running() and "ray::Map" in " ".join(child.cmdline())
    ]


@in_a_cluster
def test_items_of_processes_that_are_killed_are_retried(
    cluster: tuple[subprocess.Popen[str], str], tmp_path: Path
) -> None:
    arrays, model = inputs(60, tmp_path), slow_fold(tmp_path)
    process = started(model, tmp_path, "--cluster", cluster[1])
    wait_for_outputs(5, tmp_path)
    wait_for(lambda: at_work(cluster[0]))
    for child in at_work(cluster[0]):
        child.kill()
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, "60 run, 0 finished before, 0 failed" in out) == (0, True), err
    call(*run_arguments(model, tmp_path, "alone", "--threads", 1))
    assert results(tmp_path).keys() == arrays.keys()
    alone = contents(tmp_path / "alone")
    assert {
        name: data for name, data in contents(tmp_path / "out").items() if name in alone
    } == alone


FATAL = """
import os
import signal
import onnx_ops

@onnx_ops.operator("my.domain::Fatal", inputs="x: T", outputs="y: T", types={"T": ["float32"]})
def fatal(x):
    if x[0] == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return x + 1
"""


@in_a_cluster
def test_an_item_that_ends_its_process_costs_itself(
    cluster: tuple[subprocess.Popen[str], str], tmp_path: Path
) -> None:
    (tmp_path / "fatal.py").write_text(FATAL)
    text = "(float[N] x) => (float[N] y) { y = my.domain.Fatal (x) }"
    model = saved(parsed(text, 18, "my.domain"), tmp_path)
    for k in range(9):
        np.save(tmp_path / f"{k}.npy", np.array([k], np.float32))
    command = [
        "--operators",
        tmp_path / "fatal.py",
        "run",
        model,
        "-i",
        tmp_path / "?.npy",
        "--json",
    ]
    command += ["--output", tmp_path / "out", "--cluster", cluster[1]]
    done = subprocess.run(
        [sys.executable, "-m", "onnx_ops", *map(str, command)], capture_output=True, text=True
    )
    assert done.returncode == 1
    rule = "3 processes that worked on it have ended"
    assert json.loads(done.stdout)["failed"] == [{"item": "7", "problem": rule}]
    assert {name: float(array[0]) for name, array in results(tmp_path).items()} == {
        str(k): k + 1.0 for k in range(9) if k != 7
    }


CLUSTERS = {  # an address, options, and the error
    "that is not there": (
        "127.0.0.1:9",
        [],
        "Error: onnx_ops: cluster = '127.0.0.1:9': can't be used: ",
    ),
    "of too few cores": (None, ["--threads", 9], "threads = 9: no machine of the cluster"),
}


@in_a_cluster
@pytest.mark.parametrize("name", CLUSTERS)
def test_clusters_that_are_refused(
    name: str, cluster: tuple[subprocess.Popen[str], str], tmp_path: Path
) -> None:
    address, options, error = CLUSTERS[name]
    inputs(1, tmp_path)
    command = run_arguments(
        fold(tmp_path), tmp_path, "out", "--cluster", address or cluster[1], *options
    )
    done = subprocess.run(
        [sys.executable, "-m", "onnx_ops", *map(str, command)], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert error in done.stderr
    assert address is None or done.stderr.count("\n") == 1


# The recipes of docs/many-files.md

RECIPES = dict(
    re.findall(r"^```python\n# (\w+)\.py\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
)


def recipe(name: str, count: int, directory: Path, **variables: str) -> subprocess.Popen[str]:
    """Start a recipe in a folder with so many frames."""
    rng = np.random.default_rng(0)
    shutil.copy(TESTS.parent / "models/exported/spatial_transformer/model.onnx", directory)
    (directory / "frames").mkdir()
    for k in range(count):
        np.save(directory / "frames" / f"{k}.npy", rng.random((1, 3, 144, 192), np.float32))
    (directory / "recipe.py").write_text(RECIPES[name])
    settings = environment(RAY_USAGE_STATS_ENABLED="0", **variables)
    command = [sys.executable, "recipe.py"]
    return subprocess.Popen(
        command, cwd=directory, env=settings, text=True, stdout=DEVNULL, stderr=PIPE
    )


def assert_done(process: subprocess.Popen[str], directory: Path) -> None:
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    session = onnx_ops.InferenceSession(directory / "model.onnx")
    frames = {path.name: np.load(path) for path in (directory / "frames").iterdir()}
    assert {path.name for path in (directory / "results").iterdir()} == frames.keys()
    for name, frame in frames.items():
        (expected,) = session.run(None, {"image": frame})
        np.testing.assert_allclose(
            np.load(directory / "results" / name), expected, rtol=1e-5, atol=1e-6
        )


def test_all_recipes_are_run() -> None:
    assert RECIPES.keys() == {"loop", "pool", "ray_data"}


@pytest.mark.long
@pytest.mark.parametrize("name", ["loop", "pool"])
def test_a_recipe(name: str, tmp_path: Path) -> None:
    assert_done(recipe(name, 5, tmp_path), tmp_path)


@in_a_cluster
def test_the_recipe_for_ray_with_a_worker_that_is_killed(
    cluster: tuple[subprocess.Popen[str], str], tmp_path: Path
) -> None:
    process = recipe("ray_data", 200, tmp_path, RAY_ADDRESS=cluster[1])
    workers = []
    while not workers:
        assert process.poll() is None, process.communicate()
        workers = [
            child
            for child in at_work(cluster[0])
            if "MapWorker" in (title := " ".join(child.cmdline())) and "submit" in title
        ]
    workers[0].kill()
    assert_done(process, tmp_path)
    assert not workers[0].is_running()
