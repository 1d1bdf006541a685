"""Files that a model names: of any kind and size, with any statements on external data, and cut
while they are read.
"""

import os
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper, numpy_helper
from support.commands import call

import onnx_ops
from onnx_ops.cli import data, items
from onnx_ops.model import external_data, files, node_tests
from onnx_ops.model.files import AHEAD, SMALL, imports_and_nodes
from onnx_ops.rewriting import graph

pytestmark = [
    pytest.mark.any_library,
    pytest.mark.skipif(sys.platform == "win32", reason="pipes and links are others there"),
]


def socket_at(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the path of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(here)


NO_FILES: dict[str, Callable[[Path], Any]] = {
    "a pipe": os.mkfifo,
    "a device without an end": lambda path: path.symlink_to("/dev/zero"),
    "an empty device": lambda path: path.symlink_to("/dev/null"),
    "a folder": os.mkdir,
    "a socket": socket_at,
}
READERS: dict[str, Callable[[Path], Any]] = {
    "register": lambda path: onnx_ops.register(ort.SessionOptions(), path),
    "a session": onnx_ops.InferenceSession,
    "an optimized session": lambda path: onnx_ops.InferenceSession(path, optimize=True),
    "a lowered session": lambda path: onnx_ops.InferenceSession(path, backend="extensions"),
    "load": external_data.load,
    "read_pb": node_tests.read_pb,
    "digest": items.file_digest,
}


@pytest.mark.parametrize("name", NO_FILES)
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file_is_refused_by_name(reader: str, name: str, tmp_path: Path) -> None:
    NO_FILES[name](tmp_path / "model.onnx")
    with pytest.raises(onnx_ops.OpError, match=r"= .*model\.onnx: must be an ordinary file"):
        READERS[reader](tmp_path / "model.onnx")


@pytest.mark.parametrize("what", NO_FILES)
def test_inputs_that_are_no_files(what: str, tmp_path: Path) -> None:
    for name in "y.npy", "y.npz":
        NO_FILES[what](tmp_path / name)
        with pytest.raises(click.UsageError, match="must be an ordinary file"):
            data.read_outputs(tmp_path / name, {"y": ("float32", [1])})


@pytest.mark.parametrize("name", NO_FILES)
def test_settings_that_are_no_file(name: str, tmp_path: Path) -> None:
    """As those of another program's folder: there are none."""
    NO_FILES[name](tmp_path / "run.json")
    assert items.read_settings(tmp_path / "run.json") == {}


def test_a_missing_file_is_missing(tmp_path: Path) -> None:
    for read in READERS.values():
        with pytest.raises(FileNotFoundError):
            read(tmp_path / "model.onnx")


def sized(tensor_bytes: int, node_bytes: int, domain_bytes: int) -> bytes:
    """Return a model with a tensor, an attribute and a domain of these sizes between nodes of this
    package.
    """
    nodes = [
        helper.make_node("GridSample", ["x", "g"], ["y"]),
        helper.make_node("Unknown", [], ["z"], domain="d" * domain_bytes, text="t" * node_bytes),
        helper.make_node("Col2Im", ["a", "b", "c"], ["d"], doc_string="t" * node_bytes),
    ]
    tensors = [numpy_helper.from_array(np.zeros(tensor_bytes, np.uint8), f"w{k}") for k in range(3)]
    proto = onnx.ModelProto(
        ir_version=9, graph=helper.make_graph(nodes[:1], "g", [], [], tensors[:2])
    )
    rest = onnx.ModelProto(graph=helper.make_graph(nodes[1:], "g", [], [], tensors[2:]))
    rest.opset_import.append(helper.make_opsetid("d" * domain_bytes, 1))
    return proto.SerializeToString() + rest.SerializeToString()


SIZES = (
    0,
    1,
    AHEAD - 1,
    AHEAD,
    SMALL - 100,
    SMALL - 1,
    SMALL,
    SMALL + 1,
    3 * SMALL,
    5 * SMALL - AHEAD,
)


@pytest.mark.parametrize("size", SIZES)
def test_parts_of_a_file_show_what_the_whole_does(size: int, tmp_path: Path) -> None:
    for sizes in (
        (size, 3, 1),
        (3, size, 1),
        (3, 3, size),
        (size, size, size),
        (2 * SMALL, size, SMALL + 7),
    ):
        content = sized(*sizes)
        (tmp_path / "m.onnx").write_bytes(content)
        expected = imports_and_nodes(content)
        assert imports_and_nodes(tmp_path / "m.onnx") == expected
        assert {op_type for _, op_type in expected[1] or ()} >= {"GridSample", "Col2Im"}
        assert "d" * sizes[2] in (expected[0] or ())


def numbers_in_a_row(count: int) -> bytes:
    """Return a model with an attribute of so many fields that are numbers, the longest there
    are.
    """
    attribute = (b"\xb8\x80\x80\x80\x00" + b"\xff" * 9 + b"\x7f") * count
    node = helper.make_node("GridSample", ["x", "g"], ["y"], a=1).SerializeToString() + attribute
    graph = b"\x0a" + varint(len(node)) + node
    return onnx.ModelProto(ir_version=9).SerializeToString() + b"\x3a" + varint(len(graph)) + graph


def varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


@pytest.mark.parametrize("count", [1, 499, 500, 501, 5000, 20_000])
def test_runs_of_numbers(count: int, tmp_path: Path) -> None:
    """A run is read ahead as far as one match reaches."""
    content = numbers_in_a_row(count)
    (tmp_path / "m.onnx").write_bytes(content)
    assert (
        imports_and_nodes(tmp_path / "m.onnx")
        == imports_and_nodes(content)
        == (set(), {("", "GridSample")})
    )


def test_tensors_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = Counter[str]()

    class Counted:
        def __init__(self, file: Any) -> None:
            self.file, self.seek = file, file.seek

        def read(self, size: int) -> bytes:
            count["bytes"] += size
            return bytes(self.file.read(size))

    @contextmanager
    def counted(path: Path, **more: Any) -> Iterator[tuple[Counted, int]]:
        with ordinary_file(path, **more) as (file, size):
            yield Counted(file), size

    ordinary_file = files.ordinary_file
    monkeypatch.setattr(files, "ordinary_file", counted)
    content = sized(2**24, 3, 1)
    (tmp_path / "m.onnx").write_bytes(content)
    assert imports_and_nodes(tmp_path / "m.onnx")[1]
    assert SMALL <= count["bytes"] <= 8 * SMALL < len(content) // 90


@pytest.mark.parametrize("left", [0, 1, 100, SMALL, 2 * SMALL])
def test_a_file_that_is_cut_while_it_is_read(left: int, tmp_path: Path) -> None:
    """Pages that are gone would end the process by SIGBUS, if they were mapped."""
    path = tmp_path / "m.onnx"
    path.write_bytes(sized(4 * SMALL, 2 * SMALL, 1))
    files_of_model = files._entries(path)
    assert next(files_of_model)
    os.truncate(path, left)
    with pytest.raises((ValueError, IndexError)):
        list(files_of_model)
    assert imports_and_nodes(path) in [(None, None), (set(), set()), (set(), {("", "GridSample")})]


def test_a_protobuf_beyond_all_limits(tmp_path: Path) -> None:
    """A sparse file costs who makes it nothing; it isn't read."""
    path = tmp_path / "m.onnx"
    path.touch()
    os.truncate(path, 2**42)
    assert imports_and_nodes(path) == (None, None)
    for read in (external_data.load, node_tests.read_pb):
        with pytest.raises(onnx_ops.OpError, match="less than 2 GiB if it is a protobuf"):
            read(path)
    os.truncate(path, 0)
    assert imports_and_nodes(path) == (None, None)


# External data


def tensor(dims: list[int], element_type: int = TensorProto.INT64, **entries: Any) -> TensorProto:
    proto = TensorProto(
        name="s", data_type=element_type, dims=dims, data_location=TensorProto.EXTERNAL
    )
    for key, value in {"location": "data", **entries}.items():
        proto.external_data.add(key=key, value=str(value))
    return proto


REFUSED = {  # {statement: (tensor, message)}
    "a negative size": (tensor([-1]), "numbers from 0 on"),
    "two negative sizes": (tensor([-2, -2]), "numbers from 0 on"),
    "a negative size and length": (tensor([-4], length=-32), "numbers from 0 on"),
    "a negative offset": (tensor([4], offset=-1), "numbers from 0 on"),
    "a longer length": (tensor([4], length=33), r"length of \[4\] elements"),
    "a shorter length": (tensor([4], length=31), r"length of \[4\] elements"),
    "a length without elements": (tensor([0], length=8), r"length of \[0\] elements"),
    "a negative length": (tensor([4], length=-32), r"length of \[4\] elements"),
    "a huge length": (tensor([4], length=10**40), r"length of \[4\] elements"),
    "a number with too many digits": (tensor([4], length="1" * 5000), "numbers from 0 on"),
    "an offset past the end": (
        tensor([4], offset=33),
        "must have 32 bytes of s from 33 on; the file ends before",
    ),
    "a huge offset": (tensor([4], offset=2**70), "the file ends before"),
    "sizes past 64 bits": (tensor([2**62, 2**62]), "the file ends before"),
    "packed elements past the end": (tensor([129], TensorProto.INT4), "must have 65 bytes"),
}


@pytest.mark.parametrize("statement", REFUSED)
def test_statements_on_external_data_are_compared_with_the_file(
    statement: str, tmp_path: Path
) -> None:
    proto, message = REFUSED[statement]
    (tmp_path / "data").write_bytes(bytes(64))
    with pytest.raises(onnx_ops.OpError, match=message):
        external_data.read_data(proto, tmp_path / "m.onnx")


@pytest.mark.parametrize(
    "entries", [{}, {"offset": 8}, {"offset": 32, "length": 32}, {"length": 0}]
)
def test_statements_that_are_right(entries: dict[str, int], tmp_path: Path) -> None:
    content = np.arange(8)
    (tmp_path / "data").write_bytes(content.tobytes())
    proto = tensor([4], **entries)
    external_data.read_data(proto, tmp_path / "m.onnx")
    first = entries.get("offset", 0) // 8
    np.testing.assert_array_equal(numpy_helper.to_array(proto), content[first : first + 4])


@pytest.mark.parametrize("name", NO_FILES)
@pytest.mark.parametrize("dims", [[0], [4], [2**20]])
def test_external_data_that_are_no_file(dims: list[int], name: str, tmp_path: Path) -> None:
    NO_FILES[name](tmp_path / "data")
    with pytest.raises(
        onnx_ops.OpError, match=r"external data = .*: must (be an ordinary file|lie in the folder)"
    ):
        external_data.read_data(tensor(dims), tmp_path / "m.onnx")


def test_links_to_external_data(tmp_path: Path) -> None:
    """As in Hugging Face's cache: links that stay in the folder, or in that of the model's link,
    are followed.
    """
    inside, outside, linked = (tmp_path / name for name in ("inside", "outside", "linked"))
    for folder in inside, outside, linked:
        folder.mkdir()
        (folder / "blob").write_bytes(np.arange(4).tobytes())
        (folder / "m.onnx").touch()
    (linked / "link.onnx").symlink_to(inside / "m.onnx")
    os.link(outside / "blob", inside / "hard")
    (inside / "to_inside").symlink_to("blob")
    (inside / "to_outside").symlink_to(outside / "blob")
    (linked / "to_inside").symlink_to(inside / "blob")
    for model, location in (
        (inside / "m.onnx", "hard"), (inside / "m.onnx", "to_inside"),
        (linked / "link.onnx", "to_inside"),
    ):  # fmt: skip
        proto = tensor([4], location=location)
        external_data.read_data(proto, model)
        assert numpy_helper.to_array(proto).tolist() == [0, 1, 2, 3]
    for location in (
        "to_outside",
        "../outside/blob",
        str(outside / "blob"),
        "../inside/to_outside",
        ".",
    ):
        with pytest.raises(
            onnx_ops.OpError, match=r"must (lie in the folder of the model|be an ordinary file)"
        ):
            external_data.read_data(tensor([4], location=location), inside / "m.onnx")


def reshaped(tensors: list[TensorProto]) -> onnx.ModelProto:
    """Return a model that samples at grids reshaped to these sizes."""
    nodes = [
        helper.make_node("Reshape", ["g", t.name], [f"grid{k}"]) for k, t in enumerate(tensors)
    ]
    nodes += [
        helper.make_node("GridSample", ["x", f"grid{k}"], [f"y{k}"]) for k in range(len(tensors))
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 4, 4])
    g = helper.make_tensor_value_info("g", TensorProto.FLOAT, [1, 4, 4, 2])
    y = helper.make_tensor_value_info("y0", TensorProto.FLOAT, None)
    inner = helper.make_graph(nodes, "g", [x, g], [y], tensors)
    return helper.make_model(inner, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count how often `optimize` reads each tensor's external data."""
    counts, original = Counter[str](), graph.external_data.read_data

    def counted(proto: TensorProto, origin: Any) -> None:
        counts[proto.name] += 1
        original(proto, origin)

    monkeypatch.setattr(graph.external_data, "read_data", counted)
    return counts


def named(name: str, proto: TensorProto) -> TensorProto:
    proto.name = name
    return proto


def test_optimize_reads_a_tensor_once(tmp_path: Path, read: Counter[str]) -> None:
    (tmp_path / "data").write_bytes(np.array([1, 4, 4, 2] * 3).tobytes())
    proto = reshaped([named(f"s{k}", tensor([4], offset=32 * k)) for k in range(3)])
    onnx_ops.optimize(proto, tmp_path)
    assert read == {"s0": 1, "s1": 1, "s2": 1}


def test_optimize_reads_no_more_than_the_file(tmp_path: Path, read: Counter[str]) -> None:
    """Many tensors may state the same bytes, or bytes that overlap: what is read for all isn't a
    multiple of them.
    """
    (tmp_path / "data").write_bytes(np.array([1, 4, 4, 2] * 4).tobytes())
    for step in 0, 1:
        read.clear()
        proto = reshaped([named(f"s{k}", tensor([4], offset=step * k)) for k in range(50)])
        onnx_ops.optimize(proto, tmp_path)
        assert sum(read.values()) == 4


def test_weights_are_copied_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies of overlapping tensors are on the disk, but never in memory at once."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "data").write_bytes(np.array([1, 4, 4, 2] * 20).tobytes())
    onnx.save(
        reshaped([named(f"s{k}", tensor([80], offset=0)) for k in range(9)]),
        tmp_path / "in" / "m.onnx",
    )
    inside = []
    original = external_data.set_external_data

    def counted(proto: TensorProto, *arguments: Any) -> None:
        inside.append(sum(len(t.raw_data) for t in tensors))
        original(proto, *arguments)

    tensors = external_data.external(external_data.model_in(tmp_path / "in" / "m.onnx"))
    monkeypatch.setattr(external_data, "set_external_data", counted)
    external_data.copy_data(tensors, tmp_path / "in" / "m.onnx", tmp_path / "copy")
    assert inside == [640] * 9
    assert (tmp_path / "copy").stat().st_size == 9 * 640


def test_commands_refuse_them(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    onnx.save(reshaped([tensor([4])]), tmp_path / "m.onnx")
    os.mkfifo(tmp_path / "data")
    assert "must be an ordinary file" in call("inspect", tmp_path / "m.onnx", exit_code=1)
    text = call("optimize", tmp_path / "m.onnx", tmp_path / "out" / "m.onnx", exit_code=3)
    assert "must be an ordinary file" in text
    assert os.listdir(tmp_path / "out") == []


def test_bytes_are_no_path() -> None:
    with pytest.raises(DecodeError):
        external_data.model_in(b"/dev/zero")
