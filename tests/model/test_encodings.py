"""Every command where the terminal's encoding lacks letters of names: consoles of Windows have one
of 256 letters.
"""

import io
import platform
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.cases import finished
from support.selection import long_unless

from onnx_ops import cli
from onnx_ops.cli import demo
from onnx_ops.cli.app import app
from onnx_ops.native import library

ENCODINGS = ["cp1252", "cp437"]  # Western Europe's, and that of the United States' command prompt
NAME, SHOWN = "模型", r"\u6a21\u578b"
INPUT = f"{NAME}=[[[1,2,3,4]]]"


@pytest.fixture
def call(monkeypatch):
    """A function that runs a command as its own process would, and returns its exit code and what
    it writes.
    """

    def run(encoding, *arguments, errors="strict"):
        # Python itself writes to stderr what the encoding has.
        streams = [
            io.TextIOWrapper(io.BytesIO(), encoding, each) for each in (errors, "backslashreplace")
        ]
        monkeypatch.setattr(sys, "argv", ["onnx-ops", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdout", streams[0])
        monkeypatch.setattr(sys, "stderr", streams[1])
        with pytest.raises(SystemExit) as end:
            cli.main()
        for stream in streams:
            stream.flush()
        return end.value.code or 0, *(
            stream.buffer.getvalue().decode(encoding) for stream in streams
        )

    return run


@pytest.fixture
def folder(tmp_path):
    """A folder with letters in its name, and with a node test, of which everything has such a
    name.
    """
    folder = tmp_path / f"größe {NAME}"
    (folder / "test_data_set_0").mkdir(parents=True)
    sizes = [
        numpy_helper.from_array(np.array(size), name)
        for name, size in (("image", [2, 2]), ("block", [1, 1]))
    ]
    node = helper.make_node("Col2Im", [NAME, "image", "block"], ["y→"], name=NAME)
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in ((NAME, [1, 1, 4]), ("y→", [1, 1, 2, 2]))
    ]
    graph = helper.make_graph([node], NAME, values[:1], values[1:], sizes)
    onnx.save(finished(graph, 18), folder / "model.onnx")
    x = np.arange(1, 5, dtype=np.float32)
    for file, name, value in (
        ("input_0", NAME, x.reshape(1, 1, 4)),
        ("output_0", "y→", x.reshape(1, 1, 2, 2)),
    ):
        onnx.save_tensor(
            numpy_helper.from_array(value, name), folder / "test_data_set_0" / f"{file}.pb"
        )
    return folder


# {command: its arguments; {} stands for the folder}
COMMANDS = {
    "demo": ["--output", "{}/out"],
    "list": [],
    "versions": [],
    "inspect": ["{}/model.onnx"],
    "run": ["{}/model.onnx", "--input", INPUT, "--output", "{}/out", "--compare", "reference"],
    "exec": ["{}/program.py"],
    "validate": ["{}"],
    "make-test": "--op Im2Col --set kernel_shape=1,1 --shape x=1,1,2,2 {}/test".split(),
    "bench": ["{}/model.onnx", "--input", INPUT, "--repeats", "2"],
    "build": ["--output", "{}/a.so", "--operator", "Col2Im", "--dtype", "float32", "--cpu", "CPU"],
    "warmup": ["{}/model.onnx"],
    "optimize": ["{}/model.onnx", "{}/new.onnx"],
    "lower": ["{}/model.onnx", "{}/new.onnx"],
}
NAMELESS = {"list", "versions", "warmup"}
NEED_NUMBA = pytest.mark.skipif(not library.have_numba(), reason="there is no Numba")
MARKS = {"build": [NEED_NUMBA, pytest.mark.long], "warmup": [NEED_NUMBA]}
EVERY = [pytest.param(name, marks=MARKS.get(name, [])) for name in app.commands]


@pytest.mark.parametrize(
    "encoding", [long_unless(encoding == "cp437", encoding) for encoding in ENCODINGS]
)
@pytest.mark.parametrize(
    "command", [c for c in EVERY if c.values != ("exec",)]
)  # which becomes another process
def test_commands(command, encoding, folder, call, monkeypatch):
    monkeypatch.setattr("onnx_ops.cli.demo.examples", list)
    monkeypatch.setattr(demo, "write_pictures", lambda directory: [(directory / "1.png", NAME)])
    cpu = "armv8-a" if platform.machine() in ("aarch64", "arm64") else "x86-64-v3"
    arguments = [word.format(folder).replace("CPU", cpu) for word in COMMANDS[command]]
    code, output, errors = call(encoding, command, *arguments)
    assert code == 0, output + errors
    assert command in NAMELESS or SHOWN in output, output


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("command", EVERY)
def test_errors(command, encoding, folder, call):
    """A sentence with the name: the model isn't there, or the folder can't be written to."""
    (folder / "file").write_bytes(b"")
    arguments = [word.replace("{}", "{}/file/none").format(folder) for word in COMMANDS[command]]
    arguments = [word.replace("CPU", "x86-64-v3") for word in arguments] or [NAME]
    code, _, errors = call(encoding, command, *arguments)
    assert code in (2, 3), errors
    assert SHOWN in errors


def test_bytes_of_names_that_are_no_letters(folder, call):
    """In the locale C, Python writes such bytes as they are, whatever the encoding; other letters
    may be lacking.
    """
    code, output, errors = call("ascii", "inspect", folder / "model.onnx", errors="surrogateescape")
    assert code == 0, output + errors
    assert SHOWN in output
