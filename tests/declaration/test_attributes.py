"""Attributes that an operator doesn't have are reported where onnx reads the model: by `optimize`
and by commands.
"""

import json
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from support.backends import quiet
from support.cases import ATTENTION, GRID_SAMPLE, ROI_ALIGN, case_named, finished, model
from support.commands import invoke
from support.selection import long_unless

import onnx_ops
from onnx_ops.arrays import functions
from onnx_ops.model.attributes import unknown_attributes, warn_of_unknown_attributes
from onnx_ops.model.files import SMALL, imports_and_nodes
from onnx_ops.registry import KEYS, available

pytestmark = pytest.mark.any_library

MESSAGE = (
    "onnx_ops: GridSample (node 'the_node'): attribute paddingmode is unknown and will be "
    "ignored; did you mean "
)


@pytest.fixture
def misspelt(tmp_path):
    """The path of a model with an attribute that ONNX Runtime alone refuses."""
    proto = model(
        "",
        "GridSample",
        GRID_SAMPLE[0].inputs("float32"),
        {"paddingmode": "border", "align_corners": 1},
    )
    onnx.save(proto, tmp_path / "model.onnx")
    with pytest.raises(Exception, match="Unrecognized attribute: paddingmode"):
        ort.InferenceSession(tmp_path / "model.onnx", quiet(), providers=["CPUExecutionProvider"])
    return tmp_path / "model.onnx"


def said(caplog):
    """What the log has, without the kernels that a session had to compile."""
    return [record for record in caplog.records if "compiling" not in record.msg]


@pytest.mark.parametrize("as_model", [lambda path: path, Path.read_bytes], ids=["path", "bytes"])
def test_an_optimized_session_says_what_it_ignores(
    as_model: Callable[[Path], Any], misspelt: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        onnx_ops.InferenceSession(as_model(misspelt), quiet(), optimize=True)
    assert [(r.name, r.levelno, r.getMessage()) for r in said(caplog)] == [
        ("onnx_ops", logging.WARNING, f"{MESSAGE}padding_mode?")
    ]
    assert not raised


def test_a_plain_session_reads_no_attributes(
    misspelt: Path, caplog: pytest.LogCaptureFixture
) -> None:
    onnx_ops.InferenceSession(misspelt, quiet())
    onnx_ops.register(quiet(), onnx.load(misspelt))
    assert said(caplog) == []


def test_an_operator_without_attributes():
    (sentence,) = unknown_attributes(ATTENTION[0].operator, ["align_corners"])
    assert sentence == "attribute align_corners is unknown and will be ignored; there are none"
    with pytest.raises(
        onnx_ops.OpError, match=r"align_corners = 1: no such attribute; there are none$"
    ):
        functions.call(ATTENTION[0].operator, *ATTENTION[0].inputs("float32"), align_corners=1)


def test_a_session_has_nothing_to_say_of_what_is_right(caplog):
    for case in (case_named("overlapping"), *GRID_SAMPLE[:3]):
        proto = model(case.domain, case.op_type, case.inputs("float32"), case.attributes)
        onnx_ops.InferenceSession(proto.SerializeToString(), quiet(), optimize=True)
    assert said(caplog) == []


def test_run_says_so_once(misspelt: Path) -> None:
    done = invoke("run", misspelt, "--random", "--optimize", "--json", apart=True)
    assert done.exit_code == 0
    assert done.stderr == f"Warning: {MESSAGE.removeprefix('onnx_ops: ')}padding_mode?\n"


def test_validate_says_so(misspelt: Path) -> None:
    """The outputs decide whether the test passes."""
    case, folder = GRID_SAMPLE[0], misspelt.parent / "test_data_set_0"
    inputs = case.inputs("float32")
    folder.mkdir()
    outputs = onnx_ops.InferenceSession(misspelt, quiet()).run(
        None, dict(zip(("X", "Grid"), inputs, strict=True))
    )
    for kind, arrays in ("input", inputs), ("output", outputs):
        for k, array in enumerate(arrays):
            onnx.save_tensor(onnx.numpy_helper.from_array(array), folder / f"{kind}_{k}.pb")
    expected = f"{MESSAGE.removeprefix('onnx_ops: ')}padding_mode?"
    (report,) = json.loads(invoke("validate", misspelt.parent, "--json").output)["tests"]
    assert report["passed"]
    assert report["warnings"] == [expected]
    done = invoke("validate", misspelt.parent)
    assert done.exit_code == 0
    assert f"{misspelt.parent.name}: {expected}" in done.output


def test_nodes_of_versions_that_onnx_runtime_runs(caplog: pytest.LogCaptureFixture) -> None:
    """It refuses unknown attributes itself."""
    proto = model("", "RoiAlign", ROI_ALIGN[0].inputs("float32"), {"ratio": 1}, opset=10)
    warn_of_unknown_attributes(proto, available())
    assert said(caplog) == []
    proto.opset_import[0].version = 16
    warn_of_unknown_attributes(proto, available())
    assert len(said(caplog)) == 1


def test_inspect_says_so_among_the_problems(misspelt):
    done = invoke("inspect", misspelt)
    assert done.exit_code == 1
    assert done.output.count("did you mean padding_mode?") == 1


def nested():
    """A model with a node of ours in a branch of a branch, beside a large tensor, and in a local
    function.
    """
    none = helper.make_empty_tensor_value_info
    heavy = onnx.numpy_helper.from_array(np.zeros(SMALL, np.uint8))
    inner = helper.make_graph(
        [helper.make_node("Col2Im", [], ["a"], name="inner", stride=[2])], "g", [], [none("a")]
    )
    choose = helper.make_node("If", ["c"], ["b"], then_branch=inner, else_branch=inner)
    outer = helper.make_graph(
        [helper.make_node("Constant", [], ["w"], value=heavy), choose], "g", [], [none("b")]
    )
    light = helper.make_graph([helper.make_node("Relu", ["x"], ["b"])], "g", [], [none("b")])
    proto = finished(helper.make_graph(
        [helper.make_node("If", ["c"], ["y"], then_branch=outer, else_branch=light)],
        "g", [helper.make_tensor_value_info("c", TensorProto.BOOL, [])], [none("y")],
    ))  # fmt: skip
    body = [
        helper.make_node("GridSample", ["x", "x"], ["y"], domain="com.microsoft", Mode="nearest")
    ]
    sampled = helper.make_graph(
        [helper.make_node("Im2Col", [], ["a"], domain="onnx_ops")], "g", [], [none("a")]
    )
    proto.graph.node.append(helper.make_node("HasGraphs", [], ["z"], graphs=[light, sampled]))
    proto.functions.append(
        helper.make_function("own", "F", ["x"], ["y"], body, [helper.make_opsetid("", 18)])
    )
    return proto


def test_nodes_are_found_wherever_they_are(tmp_path: Path) -> None:
    proto = nested()
    onnx.save(proto, tmp_path / "model.onnx")
    expected = {("", "Col2Im"), ("com.microsoft", "GridSample"), ("onnx_ops", "Im2Col")}
    for source in (
        proto,
        proto.SerializeToString(),
        tmp_path / "model.onnx",
        str(tmp_path / "model.onnx"),
    ):
        imports, nodes = imports_and_nodes(source)
        assert imports == {""}
        assert nodes & KEYS.keys() == expected


def test_tensors_are_not_read(tmp_path: Path) -> None:
    """The file has initializers of 1.5 GB before its nodes, imports after these, and is sparse."""
    node = helper.make_node(
        "GridSample", ["X", "Grid"], ["y"], name="n", Mode="nearest"
    ).SerializeToString()
    size, path, imported = (
        3 * 2**29,
        tmp_path / "large.onnx",
        helper.make_opsetid("com.microsoft", 1),
    )
    graph = bytes([5 << 3 | 2]) + varint(size), bytes([1 << 3 | 2]) + varint(len(node)) + node
    with open(path, "wb") as file:
        file.write(bytes([7 << 3 | 2]) + varint(sum(map(len, graph)) + size) + graph[0])
        file.seek(size, 1)
        file.write(
            graph[1]
            + bytes([8 << 3 | 2])
            + varint(imported.ByteSize())
            + imported.SerializeToString()
        )
    assert imports_and_nodes(path) == ({"com.microsoft"}, {("", "GridSample")})


def varint(size):
    octets = [size & 0x7F]
    while size := size >> 7:
        octets[-1] |= 0x80
        octets.append(size & 0x7F)
    return bytes(octets)


@pytest.mark.parametrize("lengths", [40, long_unless(False, 300)])
def test_no_node_is_made_up_of_damaged_models(lengths: int) -> None:
    """The errors are ONNX Runtime's own."""
    content = nested().SerializeToString()
    _, expected = imports_and_nodes(content)
    for length in range(0, len(content), 1 + len(content) // lengths):
        _, nodes = imports_and_nodes(content[:length])
        assert (nodes or set()) <= expected
        with pytest.raises(Exception) as caught:  # noqa: PT011
            onnx_ops.InferenceSession(content[:length], quiet())
        assert type(caught.value).__module__.startswith("onnxruntime")
