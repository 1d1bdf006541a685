"""The commands, as a shell calls them."""

import ast
import io
import json
import logging
import os
import re
import shlex
import struct
import subprocess
import sys
import warnings
import zlib
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from unittest import mock

import click
import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
import rich.console
from click.testing import CliRunner
from onnx import helper
from onnx.external_data_helper import set_external_data
from PIL import Image
from support import written
from support.backends import ORT_VERSION, quiet, written_in_ort_format
from support.cases import COL2IM, GRID_SAMPLE, case_named, drawn, model, parsed
from support.commands import call, call_json, invoke, saved, sentences
from support.files import contents
from support.processes import TESTS, environment, on_disk, python
from support.selection import by_type, each_dtype, long_unless, needs_extensions, on_demand

import onnx_ops
from onnx_ops.arrays.comparison import Difference, difference
from onnx_ops.cli import attempts, data, demo, reading
from onnx_ops.cli.app import app, shown_warnings
from onnx_ops.cli.bench import by_operator, show_operators
from onnx_ops.cli.console import dimensions, print_json, progress, steps
from onnx_ops.declaration import dtypes
from onnx_ops.model.node_tests import read_pb
from onnx_ops.model.nodes import declared_nodes
from onnx_ops.rewriting.graph import graphs_of
from onnx_ops.rewriting.models import Model
from onnx_ops.session import native_backend, runner

OVERLAPPING = case_named("overlapping")
BILINEAR = case_named("bilinear_zeros_edges")

MODELS = TESTS.parent / "models"
PATCH_FOLD = MODELS / "exported" / "patch_fold"


def external(tensor, directory, file="weights"):
    """Move a tensor's data to the end of a file, and return the tensor."""
    data, path = tensor.raw_data, directory / file
    with open(path, "ab") as weights:
        set_external_data(tensor, file, weights.tell(), len(data))
        weights.write(data)
    tensor.ClearField("raw_data")
    return tensor


def no_space(*args, **kwargs):
    raise OSError("No space left on device")


def of_case(case, directory, dtype="float32", **settings):
    inputs = case.inputs(dtype)
    return saved(
        model(case.domain, case.op_type, inputs, case.attributes, **settings), directory
    ), inputs


def test_a_progress_bar_leaves_nothing(monkeypatch):
    text = io.StringIO()
    terminal = rich.console.Console(file=text, force_terminal=True, width=60)
    monkeypatch.setattr("onnx_ops.cli.console.console", lambda stderr: terminal)
    with progress() as bar:
        bar.update(bar.add_task("some work", total=1), advance=1)
    assert "some work" in text.getvalue()
    assert text.getvalue().endswith("\x1b[1A\x1b[2K")  # one line up, which is erased


@pytest.mark.parametrize("command", [[], *[[name] for name in app.commands]], ids=str)
def test_help_has_examples(command):
    text = call(*command, "--help")
    assert "onnx-ops" in text.partition("Example" if command else "Start")[2]


def test_without_the_extra_one_line_says_what_to_do():
    code = """
        import sys
        from onnx_ops.cli import main
        for package in "click", "rich", "PIL":
            sys.modules[package] = None
            try:
                main()
            except SystemExit as end:
                print(end)
            for name in [name for name in sys.modules
                if name == package or name.startswith("onnx_ops.cli.")]:
                del sys.modules[name]
    """
    install = 'pip install "click>=8.1" "pillow>=10.1" "rich>=13"'
    hints = [f"needs {package}: {install}" for package in ("click", "rich", "PIL")]
    assert python(code).stdout.splitlines() == [f"Error: the command line {hint}" for hint in hints]


@needs_extensions
@on_demand
def test_list(monkeypatch):
    listed = call_json("list")
    assert [o["name"] for o in listed["operators"]] == [o["name"] for o in onnx_ops.operators()]
    before = warnings.showwarning
    assert "com.microsoft" in call("list")
    assert warnings.showwarning is before


def test_types_are_listed_in_order():
    """By kind, then by width, whatever the order in which an operator declares them."""
    wanted = (
        "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 "
        "float64 string"
    ).split()
    every = [names for o in call_json("list")["operators"] for names in o["dtypes"].values()]
    assert wanted in every
    assert all(names == [name for name in wanted if name in names] for names in every)
    (of_arrays,) = (o["array_dtypes"]["T"] for o in onnx_ops.operators() if o["name"] == "Im2Col")
    assert of_arrays == (*wanted[:-1], "complex64", "complex128", "string")


@pytest.mark.parametrize("width", [80, 120])
def test_a_list_is_not_cut(width, monkeypatch):
    """On a narrow terminal, and in a pipe: each name, domain and data type is there as one word."""
    monkeypatch.setattr("onnx_ops.cli.console.WIDTH", width)
    text = call("list")
    assert max(map(len, text.splitlines())) <= width
    for o in onnx_ops.operators():
        assert {o["name"], o["domain"] or "ai.onnx"} <= set(text.split())
    (block,) = re.findall(r" GridSample  .*\n ai\.onnx  .*\n(?: {20}.*\n)*", text)
    types = {o["domain"]: o["dtypes"] for o in onnx_ops.operators() if o["name"] == "GridSample"}[
        ""
    ]
    words = [word for v, names in types.items() for word in (f"{v}:", *names)]
    shown = [
        word
        for line in block.splitlines()
        for word in line[30:].split()
        if word in (*dtypes.TABLE, "T1:", "T2:")
    ]
    assert shown == words


@pytest.mark.parametrize("option", ["--operators", "--traceback"])
def test_options_that_go_before_the_command(option):
    where = f"Error: {option} goes before the command: onnx-ops {option} ... inspect"
    assert call("inspect", "m.onnx", option, "f.py", exit_code=2).splitlines()[-1] == where
    assert "No such option" in call("inspect", "m.onnx", "--nothing", exit_code=2)


def completed(words):
    """What click's script for bash gets for the last of these words."""
    variables = {
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
        "_ONNX_OPS_COMPLETE": "bash_complete",
    }
    return CliRunner().invoke(app, [], prog_name="onnx-ops", env=variables).output.split()


def test_shells_complete_commands_and_operators():
    page = (TESTS.parent / "docs" / "command-line.md").read_text()
    for shell, begin in (
        ("bash", "_onnx_ops_completion"),
        ("zsh", "#compdef onnx-ops"),
        ("fish", "function _onnx_ops"),
    ):
        assert f"`{shell}" in page or f"| {shell}" in page
        (name, value) = re.search(rf"(_ONNX_OPS_COMPLETE)=({shell}_source) onnx-ops", page).groups()
        script = CliRunner().invoke(app, [], prog_name="onnx-ops", env={name: value})
        assert (script.exit_code, begin in script.output) == (0, True)
    assert completed("onnx-ops opt") == ["plain,optimize"]
    assert completed("onnx-ops warmup --operator GridS") == ["plain,GridSample"]


@needs_extensions
@on_demand
def test_versions(monkeypatch, tmp_path):
    """A report of a mistake needs what decides which code runs: versions, CPU, providers,
    variables, backends.
    """
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    versions = call_json("versions")
    assert versions["onnx-ops"] == onnx_ops.__version__
    assert versions["onnx"] == onnx.__version__
    assert versions["Python"] == sys.version
    assert versions["CPU"]
    assert versions["CPUs"] >= 1
    assert "CPUExecutionProvider" in versions["providers"]
    assert versions["NUMBA_CACHE_DIR"] == str(tmp_path)
    assert versions["cache"].startswith(str(tmp_path))
    assert [versions[f"backend {name}"] for name in ("native", "extensions", "functions")] == [
        "works"
    ] * 3
    printed = call("versions")
    assert all(name in printed for name in versions)
    monkeypatch.setitem(sys.modules, "onnxruntime_extensions", None)
    monkeypatch.setattr("onnx_ops.native.library.numba_obstacle", lambda: "Numba can't be imported")
    versions = call_json("versions")
    assert "Numba can't be imported" in versions["backend native"]
    assert "onnxruntime-extensions, which can't be imported" in versions["backend extensions"]


# inspect


def node(path, exit_code=0):
    (inspected,) = call_json("inspect", path, exit_code=exit_code)["nodes"]
    return inspected


@pytest.mark.parametrize(
    ("case", "types", "dims", "builtin"),
    by_type(
        [
            (OVERLAPPING, "float32", "fixed", "has a kernel"),
            (OVERLAPPING, "float16", "fixed", "has a kernel"),
            (OVERLAPPING, "float64", "fixed", "has no kernel for float64 input"),
            (OVERLAPPING, "float64", "none", "has no kernel for float64 input"),
            (GRID_SAMPLE[0], "float32", "symbolic", "has a kernel"),
            (GRID_SAMPLE[0], "float32", "none", "has a kernel"),
            (GRID_SAMPLE[0], "float32 float64", "fixed", "has no kernel for float64 Grid"),
            (GRID_SAMPLE[0], "float64 float32", "fixed", "has no kernel for float64 X"),
            (
                GRID_SAMPLE[0],
                "int32 float64",
                "fixed",
                "has no kernel for int32 X and float64 Grid",
            ),
        ]
    ),
    ids=str,
)
def test_inspect_reports_built_in_kernels(case, types, dims, builtin, tmp_path):
    """It reads ONNX Runtime's list of kernels, and sessions agree with it."""
    first, *other_types = types.split()
    inputs = case.inputs("float32") if other_types else case.inputs(first)
    inputs = (
        [value.astype(dtype) for value, dtype in zip(inputs, types.split(), strict=True)]
        if other_types
        else inputs
    )
    constants = [i.name for i in case.operator.inputs if i.values]
    attributes = {"mode": "nearest"} if other_types else case.attributes
    path = saved(
        model("", case.op_type, inputs, attributes, dims=dims, constants=constants), tmp_path
    )
    inspected = node(path)
    assert inspected["operator"] == case.op_type
    assert inspected["builtin"] == builtin
    assert inspected["problems"] == []
    text = call("inspect", path)
    assert "onnx_ops runs 1 of 1" in text
    assert f"ONNX Runtime has kernels for {int(builtin == 'has a kernel')}" in text
    cells = (
        f"{builtin} {inspected['inputs'][0]['type']} "
        f"{dimensions(inspected['inputs'][0]['shape'] or ['...'])}"
    )
    assert all(word in text for word in cells.split())  # a cell may have several lines
    with (
        nullcontext()
        if builtin == "has a kernel"
        else pytest.raises(Exception, match="implementation")
    ):
        runner.open_session(path, "builtin")


@pytest.mark.parametrize(
    "modules", [long_unless(False, "all"), ("momentum", "quantizelinear", "shape")], ids=str
)
def test_models_without_a_kernel_make_no_session(modules):
    """On onnx's node tests.

    Which of ONNX Runtime's operators are functions, and more reasons, aren't listed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # emitted by tests of some operators
        from onnx.backend.test.case import node

        if modules == "all":
            node.collect_testcases(None)
        else:  # an import computes a module's cases
            for module in modules:
                import_module(f"{node.__name__}.{module}")
    claimed = 0
    for proto in [case.model for case in node._NodeTestCases if case.model]:
        report = reading.ModelReport()
        reading.find_missing(report, graphs_of(Model(proto, runs_nodes=False)))
        if report.unknown or report.no_kernel:
            claimed += 1
            with pytest.raises(Exception, match=r"."):
                ort.InferenceSession(proto.SerializeToString(), quiet())
    assert claimed


NO_SESSION = """
    import sys
    import onnx
    import onnxruntime
    from pathlib import Path
    from onnxruntime.capi import onnxruntime_inference_collection as collection
    from support.commands import invoke

    class Session:
        def __init__(self, *args, **kwargs):
            raise AssertionError("a session is made")

    collection.C.InferenceSession = collection.InferenceSession.__init__ = Session.__init__
    folder, *paths = sys.argv[1:]
    for path in paths:
        done = invoke("inspect", path, "--json")
        assert done.exit_code == 0, (path, done.output)
    evaluator = sys.modules.get("onnx.reference")
    assert evaluator is None or "onnx.reference.ops._op_list" not in sys.modules
    assert not {"numba", "llvmlite"} & sys.modules.keys()
    assert not list(Path(folder).rglob("*"))
    path = next(path for path in paths if path.endswith("model.onnx"))
    done = invoke("run", path, "--random")
    assert "a session is made" in done.output, done.output
"""


@pytest.mark.parametrize("every", [10, long_unless(False, 1)])
def test_inspect_makes_no_session_and_compiles_nothing(every, tmp_path):
    """Of no model in models/. `run` in the same process is refused."""
    models = sorted(path for path in MODELS.rglob("*.onnx") if path.is_file())
    assert len(models) > 100
    models = [*models[::every], MODELS / "ai.onnx" / "col2im" / "model.onnx"]
    python(NO_SESSION, tmp_path, *models, NUMBA_CACHE_DIR=str(tmp_path))


def test_inspect_shows_all_of_a_node(tmp_path):
    """Names are as PyTorch writes them, and contain the tree of modules."""
    names = [f"/backbone/stages.{k}/blocks.0/attention/sampler/GridSample" for k in range(3)]
    proto = parsed("""(float[X_batch_dimension, 3, 8, 8] X,
        float[Grid_batch_dimension, 8, 8, 2] Grid) =>
        (float[N, C, H, W] y) {
        a = GridSample <mode = "linear"> (X, Grid)
        b = GridSample <mode = "linear"> (a, Grid)
        y = GridSample <mode = "linear"> (b, Grid)
    }""")
    for node, name in zip(proto.graph.node, names, strict=True):
        node.name = name
    path = saved(proto, tmp_path)
    text = call("inspect", path)
    assert max(len(line) for line in text.splitlines() if not line.startswith("next: ")) <= 120
    assert all(f"/backbone/stages.{k}/" in text for k in range(3))
    assert text.count("float32 [X_batch_dimension, 3, 8, 8]") == 3
    assert "mode = linear" not in text
    nodes = call_json("inspect", path)["nodes"]
    assert [node["node"] for node in nodes] == names
    assert all(node["attributes"]["mode"] == "linear" for node in nodes)
    assert nodes[1]["inputs"][0] == {
        "name": "a",
        "type": "float32",
        "shape": ["X_batch_dimension", 3, 8, 8],
    }


def sampling(op_type="GridSample", domain="", imported=True, opset=21):
    """A model whose only node has the inputs of a GridSample."""
    proto = model("", "GridSample", GRID_SAMPLE[0].inputs("float32"), {}, opset=opset)
    proto.graph.node[0].op_type, proto.graph.node[0].domain = op_type, domain
    if domain and imported:
        proto.opset_import.append(helper.make_opsetid(domain, 1))
    return proto


def folding(attributes, first=0):
    x, *sizes = OVERLAPPING.inputs("float32")
    return model(
        "",
        "Col2Im",
        [x[:, :, first:], *sizes],
        attributes,
        constants=("image_shape", "block_shape"),
    )


PROBLEMS = {
    "attribute": (
        folding(OVERLAPPING.attributes | {"stride": [2, 2]}),
        "did you mean strides?",
    ),
    "no such attribute": (
        folding(OVERLAPPING.attributes | {"zoom": 1}),
        "there are dilations, pads",
    ),
    "value": (folding({"strides": [0, 1]}), "strides = [0, 1]: must be 1 to 14"),
    "shape": (folding({"pads": [1] * 4}, 1), "the last axis must be the number of blocks"),
    "no import": (
        sampling(domain="com.microsoft", imported=False),
        "doesn't import the domain com.microsoft",
    ),
    "domain": (
        sampling(domain="com.microsof"),
        "in the domains ai.onnx, com.microsoft; did you mean com.microsoft?",
    ),
    "far domain": (
        sampling(domain="far.away"),
        "not run by onnx_ops, which has GridSample in the domains ai.onnx",
    ),
    "name": (sampling("GridSampel"), "not run by onnx_ops; did you mean GridSample?"),
    "name elsewhere": (
        sampling("grid_sample", "mmdeploy"),
        "not run by onnx_ops; did you mean grid_sampler?",
    ),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_inspect_tells_once_what_is_wrong_with_a_node(name, tmp_path):
    proto, hint = PROBLEMS[name]
    path = saved(proto, tmp_path)
    report = call_json("inspect", path, exit_code=1)
    (problem,) = report["nodes"][0]["problems"]
    assert hint in problem
    text = call("inspect", path, exit_code=1)
    assert text.count(hint) == 1
    assert "registered" not in text


def broken(path, rng):
    """Return (a model with a misspelt attribute of one node, the node's name, the attribute)."""
    proto = onnx.load(path)
    nodes = [node for node, _ in declared_nodes(proto) if node.attribute]
    if not nodes:
        return None
    chosen = nodes[rng.integers(len(nodes))]
    chosen.name = chosen.name or "the node"
    attribute = chosen.attribute[rng.integers(len(chosen.attribute))]
    name, attribute.name = attribute.name, f"{attribute.name}x"
    return proto, chosen.name, name


def test_inspect_finds_an_attribute_that_is_broken(tmp_path):
    """In models of models/ that are drawn, with functions and subgraphs left out."""
    rng = np.random.default_rng(5)
    models = sorted(path for path in MODELS.rglob("model.onnx") if not onnx.load(path).functions)
    broken_count = 0
    for path in rng.permutation(models)[:25]:
        if drawn_model := broken(path, rng):
            proto, name, attribute = drawn_model
            report = call_json("inspect", saved(proto, tmp_path), exit_code=1)
            problems = {n["node"]: " ".join(n["problems"]) for n in report["nodes"]}
            assert f"attribute {attribute}x is unknown" in problems.pop(name), path
            assert not any(problems.values())
            broken_count += 1
    assert broken_count >= 10


def test_inspect_a_version_that_has_no_such_operator(tmp_path):
    report = call_json("inspect", saved(sampling(opset=13), tmp_path))
    (found,) = report["nodes"]
    assert found["builtin"] == "has it from version 16 on, the model imports 13"
    assert found["problems"] == []
    assert "--compare reference" in report["next"]


def test_inspect_a_custom_operator_of_a_later_version(tmp_path):
    file = tmp_path / "later.py"
    file.write_text(
        "import onnx_ops\n\n\n"
        "@onnx_ops.operator('::Later', inputs='x: T', outputs='y: T', types={'T': ['float32']}, "
        "version=30)\n"
        "def later(x):\n    return x\n"
    )
    path = saved(written_by_others("", "Later", {"x": uniform(2, 3)}, {}), tmp_path)
    text = call("--operators", file, "inspect", path, exit_code=1)
    assert "ai.onnx has it from version 29 on, the model imports 13" in text


def written_by_others(domain, op_type, inputs, attributes):
    """A model of a node with inputs {name: array}."""
    described = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
                 for n, a in inputs.items()]  # fmt: skip
    node = helper.make_node(op_type, list(inputs), ["result"], domain=domain, **attributes)
    result = helper.make_tensor_value_info("result", onnx.TensorProto.FLOAT, None)
    imports = [
        helper.make_opsetid(d, v) for d, v in {"": 13, domain: 13 if not domain else 1}.items()
    ]
    graph = helper.make_graph([node], "g", described, [result])
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def uniform(*shape):
    return (
        np.random.default_rng(len(shape) + shape[-1]).uniform(-0.9, 0.9, shape).astype(np.float32)
    )


X, OFFSET, MASK, WEIGHT, BIAS = (
    uniform(1, 4, 7, 6),
    uniform(1, 36, 7, 3),
    uniform(1, 18, 7, 3),
    uniform(6, 2, 3, 3),
    uniform(6),
)
CONVOLVED = onnx_ops.deform_conv(
    X, WEIGHT, OFFSET, BIAS, MASK, strides=[1, 2], pads=[1, 1, 1, 1], group=2, offset_group=2
)
CONVOLVED_PLAINLY = onnx_ops.deform_conv(
    X, WEIGHT, OFFSET, strides=[1, 2], pads=[1, 1, 1, 1], group=2, offset_group=2
)
IN_ORDER = {"a": X, "b": OFFSET, "c": MASK, "d": WEIGHT, "e": BIAS}
GRID = uniform(1, 5, 3, 2)
VALUE, SHAPES, LOCATIONS, ATTENDED = (
    uniform(1, 20, 2, 4), np.array([[4, 4], [2, 2]]), (uniform(1, 5, 2, 2, 3, 2) + 1) / 2,
    uniform(1, 5, 2, 2, 3),
)  # fmt: skip
SUGGESTED = {  # (domain, name, {input: array}, attributes, the right values)
    "DCNv2 with pairs": (
        "dcn", "DCNv2_2", IN_ORDER, {"stride": [1, 2], "padding": [1, 1], "dilation": [1, 1]},
        CONVOLVED,
    ),
    "torchvision's order": (
        "my.torchvision", "deform_conv2d", {"a": X, "b": WEIGHT, "c": OFFSET, "d": MASK, "e": BIAS},
        {"stride_h": 1, "stride_w": 2, "pad_h": 1, "pad_w": 1, "dil_h": 1, "dil_w": 1,
            "use_mask": 1}, CONVOLVED,
    ),
    "without mask and bias": (
        "npu", "DeformableConv2D", {"a": X, "b": OFFSET, "c": WEIGHT},
        {"strides": [1, 2], "pads": 1, "dilations": 1, "data_format": "NCHW"}, CONVOLVED_PLAINLY,
    ),
    "attention": (
        "mmdeploy", "MMCVMultiScaleDeformableAttention",
        {"v": VALUE, "s": SHAPES, "l": np.array([0, 16]), "p": LOCATIONS, "w": ATTENDED},
        {"im2col_step": 64},
        onnx_ops.deformable_attention(VALUE, SHAPES, LOCATIONS, ATTENDED),
    ),
    "grid_sampler without a domain": (
        "", "grid_sampler", {"a": X, "b": GRID},
        {"interpolation_mode": 1, "padding_mode": 2, "align_corners": 1},
        onnx_ops.grid_sample(X, GRID, mode="nearest", padding_mode="reflection",
            align_corners=True),
    ),
    "texts": (
        "far.away", "GridSampler", {"a": X, "b": GRID},
        {"mode": "bicubic", "padding_mode": "border"},
        onnx_ops.grid_sample(X, GRID, mode="bicubic", padding_mode="border"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SUGGESTED)
def test_inspect_prints_custom_operators_that_run(name, tmp_path):
    domain, op_type, inputs, attributes, expected = SUGGESTED[name]
    path = saved(written_by_others(domain, op_type, inputs, attributes), tmp_path)
    report, text = call_json("inspect", path, exit_code=1), call("inspect", path, exit_code=1)
    assert report["operators"] in text
    assert "--operators my_operators.py" in report["next"]
    file = tmp_path / f"printed_{list(SUGGESTED).index(name)}.py"
    file.write_text(report["operators"])
    np.savez(tmp_path / "feeds.npz", **inputs)
    call(
        "--operators",
        file,
        "run",
        path,
        "--input",
        tmp_path / "feeds.npz",
        "--output",
        tmp_path / "out",
    )
    np.testing.assert_allclose(
        np.load(tmp_path / "out" / "result.npy"), expected, rtol=1e-5, atol=1e-6
    )


HOSTILE = 'd" if f() else "e', "d'+f()+'", "d\\", "d\\'", 'd\n") or f(', "{f()}", "\u202e", "d\0"


@pytest.mark.parametrize("domain", HOSTILE, ids=ascii)
def test_inspect_prints_domains_as_literals(domain, tmp_path):
    path = saved(written_by_others(domain, "grid_sampler", {"a": X, "b": GRID}, {}), tmp_path)
    source = call_json("inspect", path, exit_code=1)["operators"]
    (call_of_operator,) = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and len(node.args) == 1
    ]
    assert ast.literal_eval(call_of_operator.args[0]) == f"{domain}::grid_sampler"
    assert source.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes"),
    [
        (
            "TRTDCNv3",
            {"a": uniform(1, 8, 8, 16), "b": uniform(1, 8, 8, 36), "c": uniform(1, 8, 8, 18)},
            {},
        ),  # channels last
        (
            "_DCNv2_fused",
            {"a": X, "b": uniform(1, 36, 7, 3), "c": WEIGHT, "d": BIAS},
            {},
        ),  # offsets and mask in one
        ("DCNv2_2", IN_ORDER, {"stride_h": "1", "stride_w": "2"}),
        ("DCNv2_2", IN_ORDER, {"padding": [1, 1, 0, 0]}),
        ("DCNv2_2", IN_ORDER, {"weight": 1}),
        ("GridSampleLike", {"a": X, "b": GRID, "c": GRID}, {}),
        ("NoSuchThing", {"a": X}, {}),
        ("grid_sampler", {"a": X, "b": GRID}, {"a b": 1}),
        ("grid_sampler", {"a": X, "b": GRID}, {"lambda": 1}),
        ("grid_sampler", {"a": X, "b": GRID}, {"__debug__": 1}),
        ("grid_sampler", {"a": X, "b": GRID}, {"\uff58": 1}),  # which Python reads as x
        ("grid_sampler(): f", {"a": X, "b": GRID}, {}),
    ],
)
def test_inspect_prints_no_custom_operator_that_it_would_guess(
    op_type, inputs, attributes, tmp_path
):
    path = saved(written_by_others("my.domain", op_type, inputs, attributes), tmp_path)
    assert call_json("inspect", path, exit_code=1)["operators"] is None


@pytest.mark.parametrize("op_type", ["GridSample", "Col2Im", "RoiAlign"])
def test_inspect_nodes_without_inputs(op_type, tmp_path):
    proto = written_by_others("", op_type, {"x": X}, {})
    proto.opset_import[0].version = 22
    del proto.graph.node[0].input[:]
    (node,) = call_json("inspect", saved(proto, tmp_path), exit_code=1)["nodes"]
    assert node["problems"]


FORGED = "\x1b[2J\x9b\n\rforged\u2028\u202e\x7f"


def named_by_a_stranger(tmp_path):
    """Paths of models: one that ONNX Runtime refuses, with problems, and one that runs."""
    proto = model("", "GridSample", GRID_SAMPLE[0].inputs("float32"), {"mode": "no" + FORGED})
    node = proto.graph.node[0]
    node.name, other = "node" + FORGED, proto.graph.node.add()
    other.CopyFrom(node)
    other.op_type, other.domain, other.output[0] = (
        "Op" + FORGED,
        "domain" + FORGED,
        "other" + FORGED,
    )
    node.attribute.add(name="attribute" + FORGED, i=1, type=onnx.AttributeProto.INT)
    proto.opset_import.append(helper.make_opsetid("domain" + FORGED, 1))
    (tmp_path / "run").mkdir()
    names = "in" + FORGED, "out" + FORGED
    types = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["N"]) for name in names]
    graph = helper.make_graph(
        [helper.make_node("Identity", names[:1], names[1:])], "g", types[:1], types[1:]
    )
    runs = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    return saved(proto, tmp_path), saved(runs, tmp_path / "run")


@pytest.mark.parametrize(
    "command",
    ["inspect MODEL", "inspect MODEL --json", long_unless(False, "inspect MODEL --try"),
     "--traceback run MODEL --random", "bench MODEL",
     "lower MODEL out.onnx", "optimize MODEL out.onnx", "inspect RUNS", "run RUNS",
     "run RUNS --random",
     "run RUNS --random --json", "run RUNS --random --compare other.npz", "run RUNS --random "
                                                                          "--output out"],
)  # fmt: skip
def test_names_in_models_are_printed_as_escapes(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused, runs = named_by_a_stranger(tmp_path)
    np.savez("other.npz", **{"another" + FORGED: np.zeros(1)})
    words = command.replace("MODEL", str(refused)).replace("RUNS", str(runs)).split()
    lines = invoke(*words).output.split("\n")
    assert lines
    assert [line for line in lines if not line.isprintable() or line.startswith("forged")] == []


def test_warnings_and_progress_show_names_as_escapes(tmp_path, capsys):
    with shown_warnings(False):
        warnings.showwarning(UserWarning(FORGED), UserWarning, __file__, 1)
        logging.getLogger("onnx_ops").warning("onnx_ops: %s", FORGED)
    assert len(capsys.readouterr().err.splitlines()) == 1
    described = []
    with mock.patch(
        "rich.progress.Progress.update", lambda *_, description: described.append(description)
    ):
        list(steps([FORGED], str))
    assert described[0].isprintable()


def test_inspect_names_operators_of_pytorch(tmp_path):
    proto = written_by_others(
        "org.pytorch.aten", "ATen", {"a": X, "b": GRID}, {"operator": "grid_sampler"}
    )
    report = call_json("inspect", saved(proto, tmp_path), exit_code=1)
    assert report["unknown"] == {"org.pytorch.aten.ATen(grid_sampler)": 1}


# Models of a Col2Im that runs, though something about it looks as if it couldn't.
NOT_WHAT_IT_SEEMS = {
    "a wrapping Cast": """(float[1, 4, 9] x) => (float[a, b, c, d] y)
        <int64[2] wide = {260, 260}, int64[2] block = {2, 2}>
        { low = Cast <to = 2> (wide) size = Cast <to = 7> (low) y = Col2Im (x, size, block) }""",
    "a stale shape": """(float[1, 36] flat) => (float[a, b, c, d] y)
        <float[1, 4, 5] x, int64[2] size = {4, 4}, int64[2] block = {2, 2}>
        { columns = Constant <value_ints = [1, 4, 9]> () x = Reshape (flat, columns)
            y = Col2Im (x, size, block) }""",
    "a default that a caller may replace": """(float[1, 4, 9] x, int64[2] size = {9, 9})
        => (float[a, b, c, d] y)
        <int64[2] block = {2, 2}> { y = Col2Im (x, size, block) }""",
}


@pytest.mark.parametrize("name", NOT_WHAT_IT_SEEMS)
def test_inspect_believes_no_more_than_holds(name, tmp_path):
    assert (
        call_json("inspect", saved(parsed(NOT_WHAT_IT_SEEMS[name], 18), tmp_path))["nodes"][0][
            "problems"
        ]
        == []
    )


def test_inspect_a_node_without_an_optional_input(tmp_path):
    """DeformConv has a mask, and no bias before it."""
    path = saved(parsed("""(float[1, 2, 6, 7] x, float[3, 2, 3, 3] w, float[1, 18, 4, 5] o,
        float[1, 9, 4, 5] m)
        => (float[N, C, H, W] y) { y = DeformConv (x, w, o, , m) }""", 19), tmp_path)  # fmt: skip
    has_one = ORT_VERSION >= (1, 25)
    assert call_json("inspect", path)["nodes"][0][
        "builtin"
    ] == f"has {'a' if has_one else 'no'} kernel" + ("" if has_one else " for version 19")
    assert "?" not in call("inspect", path)


def test_inspect_looks_into_subgraphs_and_functions(tmp_path):
    proto = parsed("""(bool c, float[1, 9, 9] x)
        => (float[N, C, H, W] y) <int64[2] i = {5, 5}, int64[2] b = {3, 3}> {
    y = If (c) <then_branch = then_branch () => (float[N, C, H, W] z) { z = Col2Im (x, i, b) },
                else_branch = else_branch () => (float[N, C, H, W] z) { z = own.Other (x) }>
}
<opset_import: ["" : 21], domain: "own"> Other (a) => (d) {
    i = Constant <value_ints = [5, 5]> ()
    b = Constant <value_ints = [3, 3]> ()
    d = Col2Im (a, i, b)
}""", 21, "own")  # fmt: skip
    proto.graph.node[0].name = "choose"
    path = saved(proto, tmp_path)
    nodes = call_json("inspect", path)["nodes"]
    assert {n["graph"] for n in nodes} == {
        "main / choose / then_branch",
        "main / choose / else_branch",
    }
    assert [n["builtin"] for n in nodes] == ["has a kernel"] * 2
    refusal = onnx.checker.ValidationError(
        "too many"
    )  # as onnx since 1.22 says of 10,001 functions
    with mock.patch("onnx.inliner.inline_local_functions", side_effect=refusal):
        assert "not shown, as these can't be inlined: too many" in sentences(
            "inspect", path, exit_code=0
        )


@pytest.mark.parametrize(
    "operators", [["Relu"], ["my.domain.Foo"], ["my.domain.Unfold", "Relu"], ["Foo", "my.domain.B"]]
)
def test_inspect_a_model_without_these_operators(operators, tmp_path):
    """All operators that nobody has are named, also without a domain.

    An operator that onnx knows is not taken for a misspelt one of ours, however similar its name.
    """
    nodes = " ".join(f"y{k + 1} = {name} (y{k})" for k, name in enumerate(operators))
    text = f"(float[1] y0) => (float[1] y{len(operators)}) {{ {nodes} }}"
    path = saved(parsed(text, 21, "my.domain"), tmp_path)
    unknown = {name: 1 for name in operators if name != "Relu"}
    report = call_json("inspect", path, exit_code=1 if unknown else 0)
    assert report["nodes"] == []
    assert report["unknown"] == unknown
    assert report["domains"] == []
    text = call("inspect", path, exit_code=1 if unknown else 0)
    assert "none of its nodes are for onnx_ops" in text
    named = ", ".join(f"{name} (1 node)" for name in unknown)
    assert (f"neither ONNX Runtime nor onnx_ops has {named}\n" in text) == bool(unknown)


def test_inspect_names_operators_of_other_versions(tmp_path):
    text = (
        "(float[1] x) => (float[1] y) { a = Gelu (x) b = Gelu (a) c = Upsample (b, x) y = "
        "Relu (c) }"
    )
    report = call_json("inspect", saved(parsed(text, 13), tmp_path), exit_code=1)
    assert report["unknown"] == {"Gelu in version 13": 2, "Upsample in version 13": 1}


@pytest.mark.parametrize(
    ("domain", "left_out"),
    [("", False), ("com.microsoft", True), ("custom", True), ("mmdeploy", False)],
)
def test_inspect_reports_how_operators_are_registered(domain, left_out, tmp_path):
    """register(options) and the library's path serve some domains, without the model."""
    name = {"custom": "DCNv2", "mmdeploy": "grid_sampler"}.get(domain, "GridSample")
    proto = sampling(name, domain)
    if domain == "custom":
        proto = written_by_others(
            "custom", "DCNv2", IN_ORDER, {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1]}
        )
    path = saved(proto, tmp_path)
    report = json.loads(invoke("inspect", path, "--json").stdout)
    assert report["domains"] == [domain or "ai.onnx"]
    assert (
        f"by the library's path, {domain} is left out" in " ".join(report["register"])
    ) == left_out
    assert ("get_library_path()" in " ".join(report["register"])) != left_out
    options = quiet()
    options.register_custom_ops_library(onnx_ops.get_library_path())
    domains = native_backend.registered_domains(options)
    assert (domain in domains) != left_out


BFLOAT16 = """(bfloat16[1, 3, 8, 8] x, bfloat16[1, 8, 8, 2] flow) => (bfloat16[1, 3, 8, 8] y%s)
    <bfloat16[1] two = {2}> { moved = Mul (flow, two)
        y = GridSample <align_corners = 1> (x, moved) }"""


# Only the comparison is of bfloat16, so the kernel is that of float32, which other tests need, too.
LESS = """(float[1, 3, 8, 8] x, float[1, 8, 8, 2] flow, bfloat16[1, 8, 8, 1] other)
    => (float[1, 3, 8, 8] y)
    <bfloat16 quarter = {16000}> {
        is_less = Less (other, quarter)
        opposite = Neg (flow)
        moved = Where (is_less, flow, opposite)
        y = GridSample <align_corners = 1> (x, moved)
    }"""


@pytest.mark.parametrize("is_replaced", [True, False])
def test_inspect_reports_what_only_runs_optimized(is_replaced, tmp_path):
    """ONNX Runtime has no Mul for bfloat16. `optimize` replaces it, unless it is also an output."""
    path = saved(
        parsed(BFLOAT16 % ("" if is_replaced else ", bfloat16[1, 8, 8, 2] moved"), 20), tmp_path
    )
    exit_code = 0 if is_replaced else 1
    report, text = (
        call_json("inspect", path, exit_code=exit_code),
        call("inspect", path, exit_code=exit_code),
    )
    assert report["no_kernel"] == {"Mul-14 of bfloat16": 1}
    assert report["needs_optimize"] == is_replaced
    assert ("only optimize=True makes the model run" in text) == is_replaced
    assert ("--optimize" if is_replaced else "--try") in report["next"]
    for optimize in (False, True):
        is_made = is_replaced and optimize
        with (
            native_backend.survey(),
            nullcontext() if is_made else pytest.raises(Exception, match=r"Mul\(14\)"),
        ):
            onnx_ops.InferenceSession(path, quiet(), optimize=optimize)  # which compiles nothing


TRIED = {  # {kind of session: whether it is made}
    "ONNX Runtime alone": False,
    "onnx_ops": False,
    "onnx_ops, optimize=True": True,
}


@pytest.mark.parametrize("kinds", [[*TRIED][::2], long_unless(False, [*TRIED])], ids=len)
def test_inspect_tries_sessions(kinds, tmp_path, monkeypatch):
    ways = {kind: attempts.WAYS[kind] for kind in (*kinds, "onnx_ops, backend extensions")}
    monkeypatch.setattr(attempts, "WAYS", ways)
    report = call_json("inspect", saved(parsed(LESS, 20), tmp_path), "--try")
    made = {s["session"]: s["error"] is None for s in report["sessions"]}
    assert made == {kind: TRIED[kind] for kind in kinds}


@pytest.mark.long
def test_inspect_tries_sessions_that_name_a_node(tmp_path):
    proto = parsed(
        "(float[1] x) => (float[1] y) { z = Relu (x) y = my.domain.Foo (z) }", 21, "my.domain"
    )
    assert (
        call("inspect", saved(proto, tmp_path), "--try", exit_code=1).count("refused at y: ") == 3
    )
    proto = folding(OVERLAPPING.attributes)
    proto.graph.node[0].name = "the node"
    proto.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 5
    refused = call_json("inspect", saved(proto, tmp_path), "--try", exit_code=1)["sessions"][1]
    assert refused["node"] == "the node"
    assert "block_shape" in refused["error"]


@pytest.mark.long
def test_inspect_survives_what_ends_its_processes(tmp_path):
    """The file of operators ends the process that makes sessions."""
    file = tmp_path / "ending.py"
    file.write_text(
        "import os\nimport signal\nimport sys\nimport onnx_ops\n\n\n"
        "@onnx_ops.operator('my.ending::Same', inputs='x: T', outputs='y: T', types={'T': "
        "['float32']})\n"
        "def same(x):\n    return x\n\n\n"
        "print('printed')\n"
        "if 'onnx_ops.cli.attempts' in sys.modules and sys.argv[0] == '-c':\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    path = saved(
        parsed("(float[1] x) => (float[1] y) { y = my.ending.Same (x) }", 21, "my.ending"), tmp_path
    )
    done = subprocess.run(
        [sys.executable, "-m", "onnx_ops", "--operators", str(file), "inspect", str(path), "--try",
            "--json"],
        env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    report = json.loads(done.stdout.removeprefix("printed\n"))
    assert done.returncode == 1
    assert len(report["sessions"]) == 3
    assert all("was ended by signal 9" in session["error"] for session in report["sessions"])


@pytest.mark.long
def test_inspect_tries_sessions_with_custom_operators(tmp_path):
    """Whatever their file prints, and not the file in the current folder that has the name of a
    module.
    """
    file = tmp_path / "doubled.py"
    file.write_text(
        "import onnx_ops\n\nprint('[1, 2')\n\n\n"
        "@onnx_ops.operator('my.doubled::Double', inputs='x: T', outputs='y: T', types={'T': "
        "['float32']})\n"
        "def double(x):\n    return 2 * x\n"
    )
    (tmp_path / "json.py").write_text("raise SystemExit('imported from the current folder')\n")
    path = saved(
        parsed("(float[1] x) => (float[1] y) { y = my.doubled.Double (x) }", 21, "my.doubled"),
        tmp_path,
    )
    code = "import sys; from onnx_ops.cli import main; sys.argv[1:] = sys.argv[1:]; main()"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, "--operators", str(file), "inspect", str(path), "--try"],
        env=environment(), cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" made") == 2
    assert "refused at" in done.stdout


@pytest.mark.parametrize("there", [True, False])
def test_inspect_constants_with_data_beside_the_model(there, tmp_path):
    proto = folding(OVERLAPPING.attributes)
    nodes = [
        helper.make_node("Constant", [], [t.name], value=external(t, tmp_path))
        for t in proto.graph.initializer
    ]
    nodes += proto.graph.node
    del proto.graph.initializer[:], proto.graph.node[:]
    proto.graph.node.extend(nodes)
    path = saved(proto, tmp_path)
    if there:
        assert node(path)["builtin"] == "has a kernel"
    else:
        (tmp_path / "weights").unlink()
        assert "weights" in call_json("inspect", path, exit_code=1)["data"]
        assert "the weights can't be read" in call("inspect", path, exit_code=1)


# run


def test_run_writes_what_the_session_gives(tmp_path):
    image = PATCH_FOLD / "test_data_set_0" / "input_0.pb"
    report = call_json(
        "run",
        PATCH_FOLD / "model.onnx",
        "-i",
        image,
        "--output",
        tmp_path,
        "--compare",
        "reference",
    )
    expected = read_pb(PATCH_FOLD / "test_data_set_0" / "output_0.pb")
    np.testing.assert_allclose(np.load(tmp_path / "output.npy"), expected, rtol=1e-4, atol=1e-5)
    assert np.asarray(Image.open(tmp_path / "output.png")).shape == (144, 192, 3)
    assert report["compare"]["outputs"][0]["ok"]
    assert report["outputs"][0]["max"] == pytest.approx(expected.max())


INPUTS = ("input", "image_shape", "block_shape")  # of COL2IM
FOLD = ["-i", "image_shape=[9,11]", "-i", "block_shape=[3,3]"]  # of the case "overlapping"


def test_run_writes_all_outputs_or_none(tmp_path, monkeypatch):
    path, _ = of_case(OVERLAPPING, tmp_path)
    arguments = ["run", path, "--random", *FOLD, "--output", tmp_path / "o"]
    call(*arguments)
    (tmp_path / "o" / "y.npy").write_text("old")
    before = contents(tmp_path / "o")
    assert before.keys() == {"y.npy", "y.png"}
    monkeypatch.setattr(data, "write_image", no_space)
    assert "No space" in call(*arguments, exit_code=3)
    assert contents(tmp_path / "o") == before


def test_outputs_of_similar_names_have_files_of_their_own(tmp_path):
    names = [
        "a/b",
        "a_b",
        "A_B",
        "a_b_2",
        "a:b",
        "../a",
        "CON",
        "nul.x",
        "C:\\a",
        "-a",
        "",
        "a\n\x1b\u202e",
        "b" * 300,
    ]
    outputs = {n: np.full(2, k) for k, n in enumerate(names)}
    paths = data.write(tmp_path, outputs)
    assert [np.load(path)[0] for path in paths] == list(range(len(names)))
    assert len({path.name.lower() for path in paths}) == len(os.listdir(tmp_path)) == len(names)
    assert paths[1].name == "a_b.npy"
    assert all(re.fullmatch(r"(?a)(?!con|nul)\w[-.\w]*", path.name) for path in paths)


def identity(dtype, directory):
    """Save a model that returns its input x, of one axis, as y."""
    return saved(
        parsed(f"({dtype}[N] x) => ({dtype}[N] y) {{ y = Identity (x) }}", ir_version=10), directory
    )


@pytest.mark.parametrize(
    ("input_type", "array"),
    [
        ("string", np.array(["", "a\nb", "größer 🐈"], object)),
        ("bfloat16", np.array([1, -0.5], ml_dtypes.bfloat16)),
    ],
)
def test_outputs_without_a_type_in_npy_can_be_read_again(input_type, array, tmp_path):
    """NumPy reads them without pickles; a run reads them as what they were."""
    path = identity(input_type, tmp_path)
    onnx.save_tensor(onnx.numpy_helper.from_array(array, "x"), tmp_path / "x.pb")
    call("run", path, "-i", tmp_path / "x.pb", "--output", tmp_path / "one")
    call("run", path, "-i", tmp_path / "*.pb", "--output", tmp_path / "many")
    written = [tmp_path / "one" / "y.npy", tmp_path / "many" / "x.npy"]
    np.savez(tmp_path / "all.npz", x=np.load(written[0]))
    for k, file in enumerate([*written, tmp_path / "all.npz"]):
        (read,) = data.read_input(str(file), {"x": (input_type, ["N"])}).values()
        np.testing.assert_array_equal(read, array, strict=True)
        call("run", path, "-i", file, "--output", tmp_path / f"again_{k}")
        assert contents(tmp_path / f"again_{k}") == contents(tmp_path / "one")
    if input_type == "string":
        assert np.load(written[0]).tolist() == array.tolist()


@pytest.mark.parametrize(
    "text",
    [
        "(float[N] x) => (seq(float[N]) y) { y = SequenceConstruct (x) }",
        "(float[N] x) => (float8e4m3fn[N] y) { y = Cast <to = 17> (x) }",
    ],
)
def test_outputs_that_cannot_be_written(text, tmp_path):
    path = saved(parsed(text, ir_version=10), tmp_path)
    np.save(tmp_path / "x.npy", np.zeros(2, np.float32))
    for command in (
        ["run", "-i", "x=[1,2]"],
        ["bench"],
        ["run", "-i", tmp_path / "*.npy", "--output", tmp_path / "o"],
    ):
        assert "the output y is no tensor of a known type" in sentences(
            command[0], path, *command[1:]
        )
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("input_type", "text", "values"),
    [
        ("int64", "[1e2,true,-3]", [100, 1, -3]),
        ("uint8", "[0,255]", [0, 255]),
        ("bool", "[true,0]", [True, False]),
        ("string", '["a","1"]', ["a", "1"]),
        ("float16", "[0.1,NaN,-Infinity]", [0.1, np.nan, -np.inf]),
        ("int64", "[9007199254740993,1.0]", [9007199254740993, 1]),
        ("uint64", "[18446744073709551615,1]", [18446744073709551615, 1]),
        ("int64", "[]", []),
        ("int64", f"[{','.join(map(str, range(200)))}]", range(200)),
    ],
)
def test_numbers_as_inputs(input_type, text, values):
    (array,) = data.read_input(f"x={text}", {"x": (input_type, ["N"])}).values()
    expected = np.array(values, object if input_type == "string" else input_type)
    np.testing.assert_array_equal(array, expected, strict=True)


@pytest.mark.parametrize(
    ("input_type", "text"),
    [("int64", t) for t in ("[1.5]", '["3"]', "[NaN]", "[1e30]")]
    + [
        ("uint8", "[256]"),
        ("uint8", "[-1]"),
        ("bool", "[2]"),
        ("bool", '["false"]'),
        ("string", "[1]"),
    ]
    + [
        ("string", '[["a"],"b"]'),
        ("float32", "[1e39]"),
        ("float16", "[70000]"),
        ("float32", "[null]"),
    ],
)
@pytest.mark.filterwarnings("ignore:NumPy will stop allowing conversion")  # NumPy 1
def test_numbers_that_the_type_cannot_hold(input_type, text):
    with pytest.raises(
        click.UsageError,
        match=re.escape(f"--input x={text}: the model requires {input_type}, which can't"),
    ):
        data.read_input(f"x={text}", {"x": (input_type, ["N"])})


@pytest.mark.parametrize("name", ["y.npy", "y.png"])
def test_run_replaces_no_file_that_it_reads(name, tmp_path):
    path, out = identity("uint8", tmp_path), tmp_path / "out=1"  # also a name for a folder
    out.mkdir()
    np.save(out / "x.npy", np.zeros(3, np.uint8))
    (out / name).symlink_to(out / "x.npy")
    before = contents(out)
    text = "".join(call("run", path, "-i", out / "x.npy", "--output", out, exit_code=2).split())
    assert f"{out}/{name}wouldreplace{out}/x.npy,whichisread" in text
    assert contents(out) == before


@pytest.mark.parametrize("backend", ["native", "extensions"])
@each_dtype("float32", "bfloat16", "float16", "int8", "bool", "string")
def test_run_files_of_every_type(dtype, backend, tmp_path):
    path, inputs = of_case(OVERLAPPING, tmp_path, dtype)
    files = {
        name: data_of(name, value, tmp_path) for name, value in zip(INPUTS, inputs, strict=True)
    }
    options = [argument for name, file in files.items() for argument in ("-i", f"{name}={file}")]
    (output,) = call_json("run", path, *options, "--backend", backend)["outputs"]
    assert output["type"] == dtype
    assert output["shape"] == [2, 3, 9, 11]


def data_of(name, value, directory):
    onnx.save_tensor(onnx.numpy_helper.from_array(value, name), directory / f"{name}.pb")
    return directory / f"{name}.pb"


@pytest.mark.parametrize(
    ("input_type", "dims", "mode", "shape"),
    [
        ("float32", [1, 3, "h", "w"], "RGB", [1, 3, 4, 5]),
        ("float16", [1, 1, "h", "w"], "RGB", [1, 1, 4, 5]),
        ("uint8", [1, 3, "h", "w"], "L", [1, 3, 4, 5]),
        ("uint8", [1, "h", "w", 4], "RGBA", [1, 4, 5, 4]),
    ],
)
def test_images_become_what_the_model_wants(input_type, dims, mode, shape, tmp_path):
    path = tmp_path / "white.png"
    Image.new(mode, (5, 4), "white").save(path)
    array = data.read_file("x", path, {"x": (input_type, dims)})["x"]
    assert list(array.shape) == shape
    assert array.dtype == input_type
    assert (array == (255 if input_type == "uint8" else 1)).all()


def read_image(path: Path, dtype: str = "float32", mode: str = "RGB") -> np.ndarray:
    return data.read_file("x", path, {"x": (dtype, [1, len(mode), "h", "w"])})["x"]


def png_of_16_bits(path: Path, colour: int, channels: int) -> None:
    """Write a PNG of one pixel of white, as Pillow itself can't."""
    header = struct.pack(">IIBBBBB", 1, 1, 16, colour, 0, 0, 0)
    pixel = zlib.compress(b"\0" + b"\xff\xff" * channels)
    chunks = [(b"IHDR", header), (b"IDAT", pixel), (b"IEND", b"")]
    lengths = [struct.pack(">I", len(content)) for _, content in chunks]
    sums = [struct.pack(">I", zlib.crc32(chunk_type + content)) for chunk_type, content in chunks]
    chunks_with_sums = zip(lengths, chunks, sums, strict=True)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + b"".join(n + chunk_type + content + s for n, (chunk_type, content), s in chunks_with_sums)
    )


GREY = np.array([[0, 1, 255, 256], [1000, 40000, 65534, 65535]], np.uint16)
DEEP = {  # {file: (its image, how the message begins)}
    "16.png": (Image.fromarray(GREY), r"it has the mode I(;16)? \(stored as I;16B\)"),
    "16_little.tif": (
        Image.fromarray(GREY.astype("<u2")),
        r"it has the mode I;16 \(stored as I;16\)",
    ),
    "16_big.tif": (
        Image.fromarray(GREY.astype(">u2")),
        r"it has the mode I;16B \(stored as I;16B\)",
    ),
    "float.tif": (
        Image.fromarray(GREY / np.float32(65535)),
        r"it has the mode F \(stored as F;32F\)",
    ),
    "32.tif": (Image.fromarray(GREY.astype(np.int32)), r"it has the mode I \(stored as I;32S\)"),
}
OF_8_BITS = (
    ", but only unsigned integers of 8 bits are read; save it with 8 bits, or as an array in a .npy"
)


def check_refusal(path: Path, reason: str, dtype: str = "float32") -> None:
    with pytest.raises(click.UsageError, match=rf"{path.name} can't be read: {reason}"):
        read_image(path, dtype, "RGBA")


@pytest.mark.parametrize("input_type", ["float32", "uint8"])
@pytest.mark.parametrize("name", DEEP)
def test_grey_images_of_more_than_8_bits_are_refused(
    name: str, input_type: str, tmp_path: Path
) -> None:
    image, begin = DEEP[name]
    image.save(tmp_path / name)
    check_refusal(tmp_path / name, begin + OF_8_BITS, input_type)


@pytest.mark.parametrize(
    ("colour", "name", "channels"), [(2, "RGB", 3), (4, "LA", 2), (6, "RGBA", 4)]
)
def test_colour_images_of_16_bits_are_refused(
    colour: int, name: str, channels: int, tmp_path: Path
) -> None:
    """Pillow would read 8 of the bits."""
    png_of_16_bits(tmp_path / "16.png", colour, channels)
    check_refusal(tmp_path / "16.png", rf"it has the mode \w+ \(stored as {name};16B\){OF_8_BITS}")


def test_images_of_signed_integers_are_refused(tmp_path: Path) -> None:
    """Pillow would read them as unsigned ones."""
    Image.new("L", (5, 4)).save(tmp_path / "signed.tif", tiffinfo={339: 2})
    check_refusal(tmp_path / "signed.tif", rf"it has the mode L \(stored as L\){OF_8_BITS}")


def with_size(path: Path, kind: str, size: int) -> None:
    """Write an image whose header alone is large."""
    image = Image.new("RGB", (16, 17))
    image.save(path, kind, **({"lossless": True} if kind == "WEBP" else {}))
    content, narrow = path.read_bytes(), size - 1
    match kind:
        case "PNG":
            header = b"IHDR" + struct.pack(">II", size, size) + content[24:29]
            content = content[:12] + header + struct.pack(">I", zlib.crc32(header)) + content[33:]
        case "JPEG":
            content = content.replace(struct.pack(">HH", 17, 16), struct.pack(">HH", size, size))
        case "WEBP":  # 14 bits for each size
            bits = struct.unpack("<I", content[21:25])[0] >> 28 << 28
            content = content[:21] + struct.pack("<I", bits | narrow << 14 | narrow) + content[25:]
        case "BMP":
            content = content[:18] + struct.pack("<II", size, size) + content[26:]
        case "TIFF":
            for tag, before in ((256, 16), (257, 17)):
                field = struct.pack("<HHI", tag, 4, 1)
                content = content.replace(
                    field + struct.pack("<I", before), field + struct.pack("<I", size)
                )
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("ending", "kind", "size"),
    [("png", "PNG", 60_000), ("jpg", "JPEG", 60_000), ("webp", "WEBP", 16_000),
        ("bmp", "BMP", 60_000),
     ("tif", "TIFF", 60_000)],
)  # fmt: skip
def test_large_images_are_refused_by_their_headers(
    ending: str, kind: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(image: Image.Image) -> None:
        raise AssertionError("the image is unpacked")

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", load)
    path = tmp_path / f"large.{ending}"
    with_size(path, kind, size)
    check_refusal(
        path,
        f"it takes {size * size * 16 / 1e6:.0f} MB of memory; onnx-ops --unpacked MB COMMAND "
        "raises",
    )


def test_an_option_raises_the_limit_of_inputs(tmp_path: Path) -> None:
    model = saved(
        parsed("(float[1, 1, H, W] x) => (float[1, 1, H, W] y) { y = Identity (x) }"), tmp_path
    )
    Image.new("L", (500, 500)).save(tmp_path / "x.png")  # 4 MB of memory
    np.savez_compressed(tmp_path / "x.npz", x=np.zeros((1, 1, 1000, 1000), np.float32))  # 4 MB
    for path, most in ((tmp_path / "x.png", 4), (tmp_path / "x.npz", 5)):
        call("--unpacked", most, "run", model, "-i", path)
        text = sentences("--unpacked", 3, "run", model, "-i", path)
        assert (
            f"{path.name} can't be read: it takes 4 MB of memory; onnx-ops --unpacked MB COMMAND "
            "raises" in text
        )
    np.savez(tmp_path / "x.npz", x=np.zeros((1, 1, 1000, 1000), np.float32))  # not packed
    call("--unpacked", 1, "run", model, "-i", tmp_path / "x.npz")
    np.savez_compressed(tmp_path / "y.npz", y=np.zeros((1, 1, 1000, 1000), np.float32))
    compare = ["run", model, "-i", tmp_path / "x.npz", "--compare", tmp_path / "y.npz"]
    call(*compare)
    assert "y.npz can't be read: it takes 4 MB" in sentences("--unpacked", 3, *compare)


def test_elements_without_bytes_are_refused(tmp_path: Path) -> None:
    """A file of 128 bytes would become an array of as many objects as it states."""
    with open(tmp_path / "x.npy", "wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": "<U0", "fortran_order": False, "shape": (10**8,)}
        )
    with pytest.raises(click.UsageError, match=r"x.npy can't be read: its elements have no bytes"):
        data.read_file("x", tmp_path / "x.npy", {"x": ("string", ["N"])})
    np.save(tmp_path / "y.npy", np.array(["", ""]))
    assert data.read_file("x", tmp_path / "y.npy", {"x": ("string", ["N"])})["x"].tolist() == [
        "",
        "",
    ]


def test_images_of_several_frames_are_refused(tmp_path: Path) -> None:
    """A JPEG with a preview or a depth map is one of them."""
    white = Image.new("RGB", (5, 4), "white")
    names = {"frames.tif": "TIFF", "frames.png": "PNG", "frames.webp": "WEBP", "preview.jpg": "MPO"}
    for name, its_format in names.items():
        path = tmp_path / name
        white.save(path, its_format, save_all=True, append_images=[Image.new("RGB", (5, 4))])
        check_refusal(path, "it has 2 frames; save one of them as a file")


def test_images_for_which_pillow_would_run_a_program_are_refused(tmp_path: Path) -> None:
    Image.new("RGB", (5, 4), "white").save(tmp_path / "program.png", "EPS")
    check_refusal(tmp_path / "program.png", "cannot identify image file")


def test_images_of_every_mode(tmp_path: Path) -> None:
    """Transparent pixels keep their colour, also in photographs by cameras that lay on their
    side.
    """
    white = Image.new("RGB", (5, 4), "white")
    for mode in ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "LAB"):
        white.convert("RGBA" if mode == "PA" else "RGB").convert(mode).save(
            tmp_path / f"{mode}.tif"
        )
    palette = white.convert("P")
    palette.save(tmp_path / "palette.png", transparency=bytes(256))
    on_its_side = Image.Exif()
    on_its_side[0x0112] = 6
    white.save(tmp_path / "camera.jpg", exif=on_its_side)
    for path in tmp_path.iterdir():
        for mode in data.MODES.values():
            array = read_image(path, mode=mode)
            assert array.shape == (1, len(mode), 4, 5), path
            assert (array[:, :3] > 0.99).all(), path
            if mode == "RGBA":
                assert (array[:, 3] == (path.name != "palette.png")).all(), path


def test_tensors_of_other_files_are_refused(tmp_path, monkeypatch):
    """Their data would be looked for in the current folder."""
    monkeypatch.chdir(tmp_path)
    tensor = onnx.numpy_helper.from_array(np.zeros(3, np.float32))
    onnx.save_tensor(external(tensor, tmp_path), tmp_path / "x.pb")
    with pytest.raises(
        click.UsageError, match=r"x\.pb can't be read: its data are in another file"
    ):
        data.read_input("x.pb", {"x": ("float32", [3])})


def test_run_compare_tells_differences(tmp_path):
    (case,) = (c for c in COL2IM if c.name == "1d_dilated")
    path, inputs = of_case(case, tmp_path)
    np.savez(tmp_path / "all.npz", **dict(zip(INPUTS, inputs, strict=True)))
    arguments = ["run", path, "-i", tmp_path / "all.npz", "--compare", "builtin"]
    text = call(*arguments, exit_code=1)
    assert re.search(
        r"y against builtin: \[.*\] is .*, expected .*, tolerance .*, "
        r"exceeded by [1-9]\d* of \d+ elements\n",
        text,
    )
    assert "evaluator" not in text
    call(*arguments, "--tolerance", "100")
    assert "nan is not a number of at least 0" in call(
        *arguments, "--tolerance", "nan", exit_code=2
    )


DILATED = "Col2Im <dilations = [2]>"  # on one axis, which ONNX Runtime gets wrong
DIFFERING = """(float[1, 4, 4] x, bool c) => (float[N, C, L] y, float[N, D, M] z)
    <int64[1] five = {5}, int64[1] two = {2}, int64[1] six = {6}, int64[1] eight = {8}> {
        z = Col2Im (x, five, two)
        %s
    }
"""
IN_A_BRANCH = f"""y = If (c) <
    then_branch = then_branch () => (float[N, C, L] d) {{ d = {DILATED} (x, six, two) }},
    else_branch = else_branch () => (float[N, C, L] e) {{ e = Identity (x) }}>"""
IN_A_ROW = f"a = {DILATED} (x, six, two) b = Concat <axis = 1> (a, a) y = {DILATED} (b, eight, two)"
# {nodes after a Col2Im that doesn't differ: name, operator and the node around it}.
FIRST_THAT_DIFFERS = {
    IN_A_ROW: "a (Col2Im)",
    IN_A_BRANCH: "y (Col2Im inside of If)",
    f"negative = Neg (x) y = {DILATED} (negative, six, two)": "y (Col2Im)",
}


@pytest.mark.parametrize("optimize", [False, True])
@pytest.mark.parametrize("nodes", FIRST_THAT_DIFFERS)
def test_run_compare_names_the_first_node_that_differs(nodes, optimize, tmp_path):
    path = saved(parsed(DIFFERING % nodes, 21), tmp_path)
    np.savez(tmp_path / "all.npz", x=uniform(1, 4, 4), c=np.array(True))
    arguments = [
        "run",
        path,
        "-i",
        tmp_path / "all.npz",
        "--compare",
        "builtin",
        *["--optimize"] * optimize,
    ]
    text = call(*arguments, exit_code=1)
    beginning = re.escape(f"the first node that differs is {FIRST_THAT_DIFFERS[nodes]}: [")
    assert re.search(rf"{beginning}\d+, \d+, \d+\] is \S+, expected \S+, tolerance ", text)
    first_node = call_json(*arguments, exit_code=1)["compare"]["node"]
    assert first_node["largest"] > first_node["allowed"]
    assert not first_node["ok"]


def test_run_compare_where_built_in_kernels_refuse_a_node(tmp_path):
    x, grid = GRID_SAMPLE[0].inputs("float32")
    proto = model("", "GridSample", [x.astype(np.uint8), grid], {"mode": "nearest"})
    proto.graph.node[0].name = "the node"
    text = sentences("run", saved(proto, tmp_path), "--random", "--compare", "builtin", exit_code=3)
    assert (
        "--compare = builtin: can't run the model: Could not find an implementation for GridSample"
        in text
    )
    assert "'the node'" in text


def test_run_compare_where_no_node_of_ours_differs(tmp_path, monkeypatch):
    """Another kernel is at fault, or the optimized model."""
    path = saved(written.unfold(), tmp_path)
    monkeypatch.setattr(
        "onnx_ops.cli.comparison.open_model", lambda *args: lambda feeds: {"y": np.float32([[1]])}
    )
    text = call("run", path, "--random", "--compare", "builtin", exit_code=1)
    assert "no node of onnx_ops' operators differs where its inputs agree" in text
    monkeypatch.setattr("onnx_ops.cli.comparison.load", lambda *args, **kwargs: 1 / 0)
    text = call("run", path, "--random", "--compare", "builtin", exit_code=1)
    assert "the node that differs is unknown: division by zero" in text


def test_run_compare_with_an_evaluator_that_is_wrong(tmp_path, monkeypatch):
    """It runs all nodes, so the ones that differ need not be those of onnx_ops."""
    path = saved(parsed("(float[3] x) => (float[3] y) { y = Relu (x) }"), tmp_path)
    arguments = ["run", path, "-i", "x=[1,2,3]", "--compare", "reference"]
    assert "any node may differ" not in call(*arguments)
    monkeypatch.setattr(
        "onnx.reference.ReferenceEvaluator.run", lambda *_: [np.array([1, 2, 4], np.float32)]
    )
    text = call(*arguments, exit_code=1)
    assert "exceeded by 1 of 3 elements" in text
    assert "any node may differ" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            [],
            "no --input for input (float32 [2, 27, 99]), image_shape (int64 [2]), block_shape "
            "(int64 [2])",
        ),
        (["-i", "a.npy"], "which one? The model has the inputs input, image_shape, block_shape."),
        (["-i", "a=b.npy"], "the model has no input a, but input"),
        (["-i", "input=b.npy"], "no such file: b.npy"),
        (
            ["-i", f"input={'[' * 5000}{']' * 5000}"],
            "--input: the numbers are in too many brackets",
        ),
        (["-i", f"input={__file__}"], "must be .npy, .npz, .pb or one of .png"),
        (["-i", "a.npz"], "no such file: a.npz"),
        (
            ["-i", "input={folder}/double.npy"],
            "input input is float64, the model requires float32.",
        ),
        (["-i", "input={folder}/text.npy"], "text.npy can't be read: it is no file of NumPy's"),
        (["-i", "input={folder}/text.pb"], "text.pb can't be read: "),
        (["-i", "input={folder}/text.png"], "text.png: images are for inputs of rank 4"),
        (["-i", "{folder}/text.npz"], "text.npz can't be read: it is no file of NumPy's"),
        (["-i", "input={folder}/sequence.pb"], "sequence.pb can't be read: it holds no tensor"),
        (
            ["--random", "--shape", "input=3,a"],
            "--shape input=3,a: must be like input=1,3,224,224.",
        ),
        (
            ["--random", "--shape", "inpt=3"],
            "the model has no input inpt, but input, image_shape, block_shape.",
        ),
        (
            ["-i", "block_shape=[3,3]"] * 2,
            "--input block_shape=[3,3]: block_shape is given already.",
        ),
        (
            ["-i", "block_shape=[3,3]", "--random", "--shape", "block_shape=2"],
            "--input gives block_shape.",
        ),
        (["-i", "input={folder}"], "must be an ordinary file"),
        (["-i", "input={folder}/double.npz"], "a .npz has its own names; leave out input=."),
    ],
)
def test_run_says_what_is_wrong_with_the_command_line(arguments, message, tmp_path):
    path, _ = of_case(OVERLAPPING, tmp_path)
    np.save(tmp_path / "double.npy", np.zeros(3))
    np.savez(tmp_path / "double.npz", np.zeros(3))
    for ending in ("npy", "npz", "pb", "png"):
        (tmp_path / f"text.{ending}").write_text("no data")
    sequence = onnx.numpy_helper.from_list([np.zeros(3)])
    (tmp_path / "sequence.pb").write_bytes(sequence.SerializeToString())
    assert message in sentences(
        "run", path, *[argument.format(folder=tmp_path) for argument in arguments]
    )


def test_errors_are_one_line_and_a_traceback_only_on_request(tmp_path):
    path, _ = of_case(OVERLAPPING, tmp_path)
    arguments = ["run", path, "--random", "-i", "image_shape=[9,11]", "-i", "block_shape=[3,4]"]
    rule = "the second to last axis must be divisible by the product of block_shape, 12"
    assert call(*arguments, exit_code=3) == f"Error: Col2Im: shape of input = [2, 27, 99]: {rule}\n"
    text = call("--traceback", *arguments, exit_code=3)
    assert text.startswith("Traceback (most recent call last):")
    assert text.endswith(f"\nError: Col2Im: shape of input = [2, 27, 99]: {rule}\n")


def lookup(directory):
    """Save a model whose input `index` must lie within a table of 3 rows; return its path."""
    text = "(int64[4] index) => (float[4, 2] y) { y = Gather (table, index) }"
    return saved(parsed(text, table=np.zeros((3, 2), np.float32)), directory)


@pytest.mark.parametrize("command", [["bench"], ["run", "--random"]], ids=lambda c: c[0])
def test_a_failure_on_made_up_inputs_says_so(command, tmp_path):
    text = call(*command, lookup(tmp_path), exit_code=3)
    assert "out of data bounds" in text
    assert (
        "the integers of index were made up, from 0 to 9: give others with --input NAME=[5,5] or "
        "NAME=FILE" in text
    )
    call("run", lookup(tmp_path), "-i", "index=[0,1,2,0]")


@pytest.mark.parametrize("content", ["", "nonsense"])
@pytest.mark.parametrize(
    "arguments", ["inspect", "run", "bench", "lower a.onnx", "optimize a.onnx"]
)
def test_what_is_no_model(arguments, content, tmp_path):
    (tmp_path / "it.onnx").write_text(content)
    command, *options = arguments.split()
    assert "it.onnx is no ONNX model" in sentences(command, tmp_path / "it.onnx", *options)


def test_names_are_shown_as_they_are(tmp_path, monkeypatch):
    """Neither as an emoji nor as markup."""
    path = saved(parsed("(float[2] x) => (float[2] y) { y = Relu(x) }", 20), tmp_path)
    monkeypatch.chdir(tmp_path)
    folder = Path("[red]") / ":x:"
    assert f"written: {folder / 'y.npy'}" in call("run", path, "--random", "--output", folder)


@pytest.mark.long
def test_random_inputs_fit_the_model(tmp_path):
    text = "(double[N, C, D, H, W] X, double[N, d, h, w, 3] Grid) => (double[N, C, d, h, w] y)"
    path = saved(parsed(f"{text} {{ y = GridSample (X, Grid) }}", 20), tmp_path)
    (output,) = call_json(
        "run", path, "--random", "--shape", "X=1,1,4,4,4", "--compare", "reference"
    )["outputs"]
    assert output["shape"] == [1, 1, 1, 1, 1]


# validate


def test_validate_the_committed_models():
    report = call_json("validate", MODELS / "exported")
    assert report["passed"] == len(list(MODELS.glob("exported/*/model.onnx"))) > 1
    assert report["failed"] == 0


@pytest.mark.long
def test_validate_the_node_tests_of_onnx():
    report = call_json("validate", "--onnx")
    assert report["failed"] == 0
    assert {"Col2Im", "GridSample"} <= {name for t in report["tests"] for name in t["operators"]}


def test_validate_fails(tmp_path):
    for name in ("wrong_value", "wrong_type", "refused"):
        folder = tmp_path / name
        (folder / "test_data_set_0").mkdir(parents=True)
        _, inputs = of_case(OVERLAPPING, folder)
        if name == "refused":
            inputs[2] = inputs[2] * 0
        arrays = {f"input_{k}": v for k, v in enumerate(inputs)}
        zeros = np.zeros((2, 3, 9, 11), np.float64 if name == "wrong_type" else np.float32)
        for file, array in (arrays | {"output_0": zeros}).items():
            onnx.save_tensor(
                onnx.numpy_helper.from_array(array), folder / "test_data_set_0" / f"{file}.pb"
            )
    report = call_json("validate", tmp_path, exit_code=1)
    problems = [t["problem"] for t in report["tests"]]
    for problem, message in zip(
        problems, ("Col2Im", "float32 instead of float64", "y: [1, 1, 6, 8] is "), strict=True
    ):
        assert message in problem
    assert "0 of 3 passed" in call("validate", tmp_path, exit_code=1)
    call("validate", exit_code=2)
    empty = tmp_path / "refused" / "test_data_set_0"
    text = " ".join(call("validate", PATCH_FOLD, empty, exit_code=2).split())
    assert f"no model.onnx next to a test_data_set_0 below {empty}" in text


def test_validate_searches_all_folders(tmp_path):
    (tmp_path / "tests" / "more").mkdir(parents=True)
    for link, target in ("patch", PATCH_FOLD), ("more/up", tmp_path / "tests"):
        (tmp_path / "tests" / link).symlink_to(target)
    assert [t["test"] for t in call_json("validate", tmp_path / "tests")["tests"]] == ["patch"]


# the others


def test_bench(tmp_path):
    path, _ = of_case(BILINEAR, tmp_path)
    report = call_json("bench", path, "--repeats", 3, "--threads", 1)
    assert set(report["seconds"]) == set(report["operators"]) == {"onnx_ops", "builtin"}
    assert report["inputs"][0]["type"] == "float32"
    assert report["compared_with"] == "builtin"
    assert report["largest_difference"]["onnx_ops"] < 1e-5
    assert report["speedup"]["onnx_ops"] > 0
    for listed in report["operators"].values():
        assert [o["operator"] for o in listed] == ["GridSample"]
        assert listed[0]["seconds"] > 0
        assert listed[0]["share"] == 1


def test_bench_says_what_it_made_of_open_dimensions(tmp_path):
    path = saved(parsed("(float[N, 3] x) => (float[N, 3] y) { y = Relu (x) }"), tmp_path)
    assert "open dimensions of x were made 1: state them with --shape" in call(
        "bench", path, "--repeats", 1
    )
    assert "were made 1" not in call("bench", path, "--repeats", 1, "--shape", "x=2,3")


def test_bench_of_a_model_that_onnxruntime_refuses(tmp_path):
    path, _ = of_case(case_named("volume_cubic_zeros_edges"), tmp_path)
    text = call("bench", path, "--repeats", 1)
    assert "ONNX Runtime alone refuses the model" in text
    assert re.search(r"GridSample +[\d.]+ +100 % *\n", text)


def test_bench_of_what_optimize_replaces(tmp_path):
    path = saved(written.affine_grid(sample="linear", opset=20), tmp_path)
    report = call_json("bench", path, "--repeats", 1)
    assert (
        list(report["seconds"]) == list(report["operators"]) == ["builtin", "onnx_ops", "optimized"]
    )
    assert (
        list(report["speedup"]) == list(report["largest_difference"]) == ["onnx_ops", "optimized"]
    )
    operators = {n: {o["operator"] for o in listed} for n, listed in report["operators"].items()}
    assert "ReduceSum" in operators["builtin"] & operators["onnx_ops"]
    assert operators["optimized"] == {"ComputedGridSample"}
    assert report["largest_difference"]["optimized"] < 1e-4


def kernel_time(op_type, begin, duration, thread=1):
    """An event as ONNX Runtime's profiler writes it."""
    return {
        "name": "n_kernel_time",
        "ts": begin,
        "dur": duration,
        "tid": thread,
        "args": {"op_name": op_type},
    }


def test_bench_adds_up_what_runs_in_each_run():
    """Of three runs the second is taken, in the body of whose If a Loop runs; the time of a body is
    not that of its node.
    """
    nodes = [
        kernel_time("If", 100, 100), kernel_time("Loop", 110, 80), kernel_time("Add", 110, 30),
        kernel_time("Add", 140, 50), kernel_time("Mul", 110, 80, thread=2),
        kernel_time("Mul", 200, 7),
    ]  # fmt: skip
    runs = [{"name": "model_run", "ts": 1000 * k, "dur": 900} for k in range(3)]
    first, second, third = ([{**n, "ts": n["ts"] + run["ts"]} for n in nodes] for run in runs)
    assert by_operator(runs) == []
    listed = by_operator([*first[:2], *second, *third, kernel_time("Add", 2300, 500), *runs])
    assert {o["operator"]: round(o["seconds"] * 1e6) for o in listed} == {
        "Mul": 87,
        "Add": 80,
        "If": 20,
        "Loop": 0,
    }
    assert [o["operator"] for o in listed] == ["Mul", "Add", "If", "Loop"]
    assert sum(o["share"] for o in listed) == pytest.approx(1)


def test_bench_shows_what_optimize_made(capsys):
    before = [{"operator": f"Old{k}", "seconds": 1e-3, "share": 0.1} for k in range(10)]
    after = [*before[1:], {"operator": "Made", "seconds": 1e-6, "share": 0.001}]
    show_operators({"builtin": before, "optimized": after})
    rows = [line.split()[0] for line in capsys.readouterr().out.splitlines() if "%" in line]
    assert rows == [*(f"Old{k}" for k in range(8)), "Made", "2"]


def test_bench_blames_onnxruntime_for_nothing_else(tmp_path, monkeypatch):
    path, _ = of_case(BILINEAR, tmp_path)
    monkeypatch.setattr("onnx_ops.cli.bench.difference", no_space)
    assert "No space" in call("bench", path, "--repeats", 1, exit_code=3)


@needs_extensions
def test_lower(tmp_path):
    call("lower", PATCH_FOLD / "model.onnx", tmp_path / "lowered.onnx")
    assert onnx.load(tmp_path / "lowered.onnx") == onnx.load(PATCH_FOLD / "lowered.onnx")
    call("run", tmp_path / "lowered.onnx", "--random", "--backend", "extensions")
    for command in ("run", "bench"):
        assert "only backend extensions runs it" in call(
            command, tmp_path / "lowered.onnx", exit_code=3
        )
    assert "run with backend extensions" in call("inspect", tmp_path / "lowered.onnx")


WEIGHED_DOWN = """({kind}[1, 432, 4] x, bool c) => ({kind}[N, C, H, W] y) {{
    p = Add (x, w0)
    s = Add (p, w2)
    d = If (c) <then_branch = add () => ({kind}[A, B, C] b) {{ b = Add (s, w1) }},
                else_branch = keep () => ({kind}[A, B, C] b) {{ b = Identity (s) }}>
    e = Col2Im {strides} (d, image, block)
    shape = Constant <value_ints = [1, 192, 4]> ()
    r = Reshape (e, shape)
    y = Col2Im (r, small_image, small_block)
}}"""


def weighed_down(directory, refused=False, dtype="float32"):
    """Save a model whose data, in an initializer, a subgraph and a Constant, are all in another
    file; return its path.

    The sizes are in that file, too: without them onnx can't infer the type of the second Col2Im's
    input.
    """
    directory.mkdir(exist_ok=True)
    from_array, type_name = (
        onnx.numpy_helper.from_array,
        {"float32": "float", "float16": "float16"}[dtype],
    )
    proto = parsed(
        WEIGHED_DOWN.format(kind=type_name, strides="<strides = [0, 1]>" if refused else "")
    )
    weights = [(np.arange(1, 1729) % 7).reshape(1, 432, 4).astype(dtype) * k for k in (1, 2, 3)]
    first, inner, constant = (
        external(from_array(w, f"w{k}"), directory) for k, w in enumerate(weights)
    )
    sizes = {"image": [4, 4], "block": [3, 3], "small_image": [3, 3], "small_block": [2, 2]}
    sizes = [external(from_array(np.array(v), n), directory) for n, v in sizes.items()]
    proto.graph.initializer.extend([first, *sizes])
    proto.graph.node[2].attribute[0].g.initializer.append(inner)
    proto.graph.node.insert(0, helper.make_node("Constant", [], ["w2"], value=constant))
    return saved(proto, directory)


def result(path, dtype, **settings):
    session = onnx_ops.InferenceSession(path, quiet(), **settings)
    return session.run(None, {"x": np.ones((1, 432, 4), dtype), "c": np.array(True)})[0]


PLACES = "in/model.onnx", "in/new.onnx", "out/new.onnx"  # of what is made of in/model.onnx
rewrites = pytest.mark.parametrize(
    ("command", "backend"), [("lower", "extensions"), ("optimize", "native")]
)


@pytest.mark.parametrize(
    ("command", "refused"), [("lower", True), ("lower", False), ("optimize", False)]
)
@pytest.mark.parametrize("target", PLACES)
def test_a_rewrite_that_fails_touches_nothing(target, command, refused, tmp_path, monkeypatch):
    source, target = weighed_down(tmp_path / "in", refused), tmp_path / target
    if not refused:
        call(command, source, target)
        monkeypatch.setattr(onnx, "save", no_space)
    target.parent.mkdir(exist_ok=True)
    target.with_name(f"{target.name}.data").write_text("of something else")
    before = contents(tmp_path)
    assert ("strides = [0, 1]" if refused else "No space") in call(
        command, source, target, exit_code=3
    )
    assert contents(tmp_path) == before


FULL_DISKS = {  # options of a disk, what is run there, and the file that doesn't fit
    "optimize": ("size=8k", "optimize {0}/whole.onnx out.onnx", "out.onnx"),
    "lower": ("size=8k", "lower {0}/whole.onnx out.onnx", "out.onnx"),
    "external data": ("size=8k", "optimize {0}/in/model.onnx out.onnx", "out.onnx.data"),
    "a model beside its data": ("size=24k", "optimize {0}/in/model.onnx out.onnx", "out.onnx"),
    "no more folders": ("nr_inodes=1", "optimize {0}/whole.onnx out.onnx", "out.onnx"),
    "no more files": ("nr_inodes=2", "optimize {0}/whole.onnx out.onnx", "out.onnx"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", FULL_DISKS)
def test_a_full_disk(name, tmp_path):
    """The error names the file that is to be written, rather than its folder, a temporary file or
    none.
    """
    options, command, file = FULL_DISKS[name]
    onnx.save(onnx.load(weighed_down(tmp_path / "in")), tmp_path / "whole.onnx")
    (tmp_path / "disk").mkdir()
    done = on_disk(
        options,
        tmp_path / "disk",
        sys.executable,
        "-m",
        "onnx_ops",
        *command.format(tmp_path).split(),
    )
    *_, message = done.stderr.splitlines()
    assert (done.returncode, "No space left on device" in message) == (3, True), done.stderr
    assert re.search(rf"[ '/]{file}(?![.\w])", message), message
    assert ".onnx_ops-" not in message


FULL = """
from pathlib import Path
from onnx_ops.cli.demo import write_pictures
from onnx_ops.system.files import staged_file
def write_through_link():
    with staged_file("{0}/link") as path:
        path.write_bytes(bytes(100_000))
for write in (lambda: write_pictures(Path("folder")), write_through_link):
    try:
        write()
    except OSError as error:
        print(error)
"""


def deform_conv_without_bias(attributes=""):
    inputs = "float[1, 1, 3, 3] x, float[1, 1, 2, 2] w, float[1, 8, 2, 2] o"
    return parsed(
        f"({inputs}) => (float[N, M, H, W] y) {{ [d] y = DeformConv {attributes} (x, w, o) }}", 19
    )


REFUSED = {
    "a kernel_shape": ("<kernel_shape = [5, 5]>", "kernel_shape = [5, 5]"),
    "groups of offsets": ("<offset_group = 7>", "offset_group = 7"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_shapes_that_do_not_fit_without_optional_inputs(name, tmp_path):
    text, refused = REFUSED[name]
    report = call_json("inspect", saved(deform_conv_without_bias(text), tmp_path), exit_code=1)
    (node,) = report["nodes"]
    assert any(refused in problem for problem in node["problems"]), node["problems"]
    assert (
        call_json("inspect", saved(deform_conv_without_bias(), tmp_path))["nodes"][0]["problems"]
        == []
    )


def test_sizes_that_are_a_single_number(tmp_path):
    proto = parsed(
        "(float[1, 4, 4] x, int64[2] k) => (float[N, C, H, W] y) { [c] y = Col2Im (x, s, k) }",
        18,
        s=5,
    )
    (node,) = call_json("inspect", saved(proto, tmp_path), exit_code=1)["nodes"]
    assert node["problems"] == ["shape of image_shape = []: must have rank 1"]


def test_an_operator_in_a_version_that_nobody_has(tmp_path):
    proto = parsed("(float[1, 1, 3, 3] x, float[1, 4] r, int64[1] b) => (float[N, C, H, W] y) "
                   "{ y = RoiAlign (x, r, b) }", 7)  # fmt: skip
    assert call_json("inspect", saved(proto, tmp_path), exit_code=1)["unknown"] == {
        "RoiAlign in version 7": 1
    }


@pytest.mark.filterwarnings("ignore:onnx_ops. .* was not optimized")
def test_names_that_are_not_utf_8(tmp_path):
    proto = parsed("(float[1, 4, 4] x, int64[2] s, int64[2] k) => (float[N, C, H, W] nine) "
                   "{ nine = Col2Im <attr = 1> (x, s, k) }", 18)  # fmt: skip
    path = saved(proto, tmp_path)
    path.write_bytes(path.read_bytes().replace(b"nine", b"n\xffne").replace(b"attr", b"a\xfftr"))
    (node,) = call_json("inspect", path, exit_code=1)["nodes"]
    assert node["node"] == "n\ufffdne"
    assert "a\ufffdtr" in node["attributes"]


ERRORS = {  # an error, and the node that it is about
    "Could not find an implementation for Add(14) node with name 'second'": "second",
    "Could not find an implementation for Add(14) node with name ''": None,  # there are two
    "GridSample (node 'sampler'): mode = 'first': must be": "sampler",
    "GridSample: mode = 'first': must be": None,
    "operator (GridSample) has failed": "sampler",
    "Type 'tensor(bfloat16)' of input parameter (b) of operator (Add) in node "
    "(second) is invalid": "second",
}


@pytest.mark.parametrize("error", ERRORS)
def test_the_node_that_an_error_names(error, tmp_path):
    proto = parsed("(float[1, 1, 4, 4] x, float[1, 2, 2, 2] g) => (float[1, 1, 2, 2] y) { [first] "
                   "a = Add (x, x) "
                   "[second] b = Add (a, a) [sampler] y = GridSample (b, g) }", 16)  # fmt: skip
    assert attempts.refused_node(saved(proto, tmp_path), error) == ERRORS[error]


@pytest.mark.long
def test_a_full_disk_of_a_folder_and_of_a_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "file")
    done = on_disk("size=8k", tmp_path / "disk", sys.executable, "-c", FULL.format(tmp_path))
    folder, link = done.stdout.splitlines()
    assert folder == "[Errno 28] No space left on device: 'folder/photograph.png'", done.stderr
    assert link == f"[Errno 28] No space left on device: '{tmp_path}/disk/file'"


@rewrites
@each_dtype("float32", "float16")
@pytest.mark.parametrize("target", PLACES)
def test_a_rewrite_changes_no_weights(target, dtype, command, backend, tmp_path, monkeypatch):
    source = weighed_down(tmp_path / "in", dtype=dtype)
    before, expected, target = contents(tmp_path), result(source, dtype), tmp_path / target
    rewritten_whole = getattr(onnx_ops, command)(onnx.load(source))
    for _ in range(2):  # the second time from within the folder, where the data's name is taken
        call(command, source, target)
        monkeypatch.chdir(target.parent)
        assert onnx.load(target) == rewritten_whole
        np.testing.assert_array_equal(result(target, dtype, backend=backend), expected)
    after = contents(tmp_path)
    new = {"out/new.onnx", "out/new.onnx.data"} if "out" in target.parts else {f"in/{target.name}"}
    assert after.keys() == before.keys() | new
    assert {n for n in before if after[n] != before[n]} <= new
    assert max(len(after[n]) for n in new if n.endswith(".onnx")) < 3000


IN_A_FUNCTION = """<ir_version: 9, opset_import: ["" : 18, "f" : 1]>
g (float[100] x, bool c) => (float[100] y) { y = f.Add (x, c) }
<domain: "f", opset_import: ["" : 18]> Add (x, c) => (y) {
    w = If (c) <then_branch = one () => (float[100] a) { a = Identity (w) }, else_branch = two ()
        => (float[100] b)
        { b = Identity (x) }>
    y = Add (x, w)
}"""
SPARSE = """<ir_version: 9, opset_import: ["" : 18]> g (float[100] x, bool c)
    => (float[100] y) { y = Add (x, w) }"""


@pytest.mark.parametrize("text", [SPARSE, IN_A_FUNCTION], ids=["sparse", "in a function"])
def test_weights_that_onnx_does_not_save(text, tmp_path):
    if text == SPARSE and ORT_VERSION < (1, 21):
        pytest.skip("ONNX Runtime does not look for their positions in files")
    (tmp_path / "in").mkdir()
    proto, rng = onnx.parser.parse_model(text), np.random.default_rng(0)
    weights = external(
        onnx.numpy_helper.from_array(rng.random(100, np.float32), "w"), tmp_path / "in"
    )
    if text == SPARSE:
        positions = external(
            onnx.numpy_helper.from_array(np.arange(100), "positions"), tmp_path / "in"
        )
        proto.graph.sparse_initializer.append(helper.make_sparse_tensor(weights, positions, [100]))
    else:
        proto.functions[0].node[0].attribute[0].g.initializer.append(weights)
    source, feeds = (
        saved(proto, tmp_path / "in"),
        {"x": np.zeros(100, np.float32), "c": np.array(True)},
    )
    call("optimize", source, tmp_path / "out" / "model.onnx")
    expected, actual = (
        onnx_ops.Runner(path)(feeds)["y"] for path in (source, tmp_path / "out" / "model.onnx")
    )
    np.testing.assert_array_equal(actual, expected)
    assert np.all(expected)


@pytest.mark.parametrize("command", ["lower", "optimize"])
@pytest.mark.parametrize("target", ["weights", "sub/model.onnx"])
def test_no_data_of_the_model_are_replaced(target, command, tmp_path):
    """Neither by the new model, nor by its data: the weights of `model.onnx` are
    `sub/model.onnx.data`.
    """
    after = lambda w: w.add("Add", "sampled", w.constant(np.ones((1,)), "float32"), name="y")
    proto = written.affine_grid(opset=20, sample="linear", after=after)
    (tmp_path / "sub").mkdir()
    location = "weights" if target == "weights" else f"{target}.data"
    onnx.save(
        proto,
        tmp_path / "model.onnx",
        save_as_external_data=True,
        location=location,
        size_threshold=0,
    )
    before = contents(tmp_path)
    text = "".join(call(command, tmp_path / "model.onnx", tmp_path / target, exit_code=2).split())
    assert f"{tmp_path}/{location}wouldreplace{tmp_path}/{location},whichisread" in text
    assert contents(tmp_path) == before


@rewrites
def test_no_data_of_other_models_are_replaced(command, backend, tmp_path):
    """What was made of a model beside it has its weights in that model's data."""
    source, model_of_others = weighed_down(tmp_path / "in"), tmp_path / "out" / "other.onnx"
    model = tmp_path / "out" / "model.onnx"
    call(command, source, model)
    call("lower", model, model)  # no other one has weights there yet
    call("lower", model, model_of_others)
    (tmp_path / "out" / "damaged.onnx").write_text("nonsense")
    before = contents(tmp_path)
    text = "".join(call(command, source, model, exit_code=2).split())
    assert f"{model}.datawouldbereplaced,inwhich{model_of_others}hasweights" in text
    assert contents(tmp_path) == before
    model_of_others.unlink()
    call(command, source, model)
    np.testing.assert_array_equal(
        result(model, "float32", backend=backend), result(source, "float32")
    )


@pytest.mark.parametrize("is_written_there", [True, False])
def test_no_file_of_operators_is_replaced(is_written_there, tmp_path):
    path = tmp_path / f"replaced_{is_written_there}.py"
    text = (TESTS / "support" / "custom_operators.py").read_text()
    path.write_text(text if is_written_there else "from support.custom_operators import topk")
    source = saved(written.unfold(), tmp_path)
    before = contents(tmp_path)
    for command in (["build", "--output", path], ["optimize", source, path]):
        text = "".join(call("--operators", path, *command, exit_code=2).split())
        assert f"{path}wouldreplace{path},whichisread" in text
    assert contents(tmp_path) == before


@needs_extensions
@each_dtype("float32", "float16")
def test_extensions_session_of_a_model_whose_sizes_are_in_other_files(dtype, tmp_path):
    """Without the sizes onnx can't infer which values have 16 bits and must be cast."""
    source = weighed_down(tmp_path, dtype=dtype)
    np.testing.assert_array_equal(
        result(source, dtype, backend="extensions"), result(source, dtype)
    )


@pytest.mark.parametrize("name", ["model.ort", "other.onnx"])
@pytest.mark.parametrize(
    "command", ["inspect", "bench", "run --random", "warmup", "lower", "optimize", "run --compare"]
)
def test_the_format_of_onnxruntime_is_refused(command, name, tmp_path):
    model = PATCH_FOLD / "model.onnx"
    path = written_in_ort_format(onnx.load(model), tmp_path / name)
    files = [
        path,
        *[model] * (command == "run --compare"),
        *[tmp_path / "out.onnx"] * (command in ("lower", "optimize")),
    ]
    text = call(*command.split(), *files, exit_code=2)
    assert f"{path}isinONNXRuntime'sownformat;usethe.onnxfile" in "".join(text.split())
    assert os.listdir(tmp_path) == [name]


# optimize


IRREGULAR = written.windows(
    blocks=lambda starts: [0, 1, 3, 4]
)  # Tensor.unfold with blocks at such places


def test_optimize(tmp_path):
    source, target = saved(IRREGULAR, tmp_path), tmp_path / "out" / "optimized.onnx"
    text = call("optimize", source, target)
    reason = "along an axis it moves by more than a position in the kernel and a block"
    assert re.search(rf"unfold +node_concat_25 +main +stays: {reason}", text)
    assert f"{target}: a copy of {source}, since optimize can fuse nothing in it" in text
    assert onnx.load(target) == onnx.load(source)
    source = saved(written.affine_grid(opset=20, sample="linear"), tmp_path)
    text = call("optimize", source, target)
    assert re.search(r"grid_sample +node_sampled +main +ComputedGridSample", text)
    assert f"{target}: 1 grid_sample replaced" in text
    assert (
        "so does plain ONNX Runtime with what onnx-ops build --operator ComputedGridSample makes"
        in text
    )
    assert onnx.load(target) == onnx_ops.optimize(onnx.load(source))
    call("optimize", source, source)
    assert onnx.load(source) == onnx.load(target)
    assert (
        call("optimize", source, source)
        == f"{source}: unchanged, since optimize can fuse nothing in it\n"
    )


def test_optimize_json_and_run_optimized(tmp_path, kernels_made):
    path, target = saved(written.unfold(), tmp_path), tmp_path / "optimized.onnx"
    for optimize in (False, True):
        kernels_made.clear()
        report = call_json(
            "run", path, "--random", *(["--optimize"] if optimize else []), "--compare", "builtin"
        )
        assert report["optimize"] == optimize
        assert kernels_made == (["onnx_ops.Im2Col"] if optimize else [])
        assert report["compare"]["outputs"][0]["largest"] == 0
    report = call_json("optimize", path, target)
    assert report["written"] == str(target)
    finding = {"pattern": "unfold", "graph": "main", "node": "node_y", "operator": "Im2Col",
        "reason": None,
               "untried": None}  # fmt: skip
    assert report["findings"] == [finding]
    assert (
        call_json("run", target, "--random", "--compare", path)["compare"]["outputs"][0]["largest"]
        == 0
    )
    proto = onnx.load(path)
    proto.graph.output[0].name = "padded"
    text = call("run", target, "--random", "--compare", saved(proto, tmp_path), exit_code=2)
    assert "that model has no output y" in " ".join(text.split())


def test_what_optimize_made_of_a_model_that_only_onnx_ops_runs(tmp_path, monkeypatch):
    """The command that `optimize` names compares the two."""
    proto = written.unfold()
    proto.graph.node.append(
        helper.make_node("cummax", ["y"], ["z", "indices"], domain="mmcv", dim=1)
    )
    proto.graph.output[0].name = "z"
    proto.opset_import.append(helper.make_opsetid("mmcv", 1))
    source, target, file = (
        saved(proto, tmp_path),
        tmp_path / "optimized.onnx",
        tmp_path / "my_ops.py",
    )
    file.touch()
    monkeypatch.setattr(
        "onnx_ops.cli.app.use_file", lambda path: None
    )  # this process would know its operators
    text = call("--operators", file, "optimize", source, target)
    command = text.splitlines()[-1].removeprefix("onnx-ops ").removesuffix(" checks it").split()
    assert command[:3] == ["--operators", str(file), "run"]
    assert f"z against {source}: largest difference 0," in call(*command)


@pytest.mark.parametrize(
    ("proto", "advice"),
    [
        (written.unfold(), "would run, and perhaps replace, 1 unfold\n"),
        (IRREGULAR, "would keep 1 unfold: along an axis it moves by more than a position"),
        (written.affine_grid(), None),
    ],
    ids=["found", "near miss", "neither"],
)
def test_inspect_says_what_optimize_would_do(proto, advice, tmp_path):
    path = saved(proto, tmp_path)
    findings = call_json("inspect", path)["optimize"]
    tried = call_json("optimize", path, tmp_path / "optimized.onnx")["findings"]
    assert [{**f, "untried": None} for f in findings] == tried
    text = call("inspect", path)
    if advice:
        assert f"onnx-ops optimize {advice}" in text
    else:
        assert "optimize" not in text


@pytest.mark.parametrize(
    ("proto", "exit_code", "step"),
    [
        (
            written.unfold(),
            0,
            "--random --optimize --compare builtin; onnx-ops bench ",
        ),
        (
            sampling(),
            0,
            "--random --compare builtin; onnx-ops bench ",
        ),
        (folding({"strides": [0, 1]}), 1, "fix the problems above"),
        (
            sampling("GridSampl"),
            1,
            "save the operators above as my_operators.py, then onnx-ops --operators "
            "my_operators.py ",
        ),
        (parsed("(float[1] x) => (float[1] y) { y = Relu (x) }"), 0, "nothing: "),
        (
            parsed("(float[1] x) => (float[1] y) { y = my.domain.Foo (x) }", 21, "my.domain"),
            1,
            "declare these operators",
        ),
        pytest.param(
            onnx_ops.lower(sampling()),
            0,
            "--random --backend extensions",
            marks=needs_extensions,
        ),
    ],
    ids=["optimize", "session", "problem", "suggested", "nothing", "own operator", "extensions"],
)
def test_inspect_ends_with_what_to_do_next(proto, exit_code, step, tmp_path):
    path = saved(proto, tmp_path)
    text, report = (
        call("inspect", path, exit_code=exit_code),
        call_json("inspect", path, exit_code=exit_code),
    )
    assert text.splitlines()[-1] == f"next: {report['next']}"
    assert step in report["next"]
    for arguments in re.findall("onnx-ops (run [^;]*)", report["next"]):
        call(*shlex.split(arguments))


def test_inspect_ends_with_commands_that_have_the_operators(tmp_path):
    file = tmp_path / "halved.py"
    file.write_text(
        "import onnx_ops\n\n\n"
        "@onnx_ops.operator('my.halved::Halve', inputs='x: T', outputs='y: T', types={'T': "
        "['float32']})\n"
        "def halve(x):\n    return x / 2\n"
    )
    path = saved(
        parsed("(float[1] x) => (float[1] y) { y = my.halved.Halve (x) }", 21, "my.halved"),
        tmp_path,
    )
    step = call_json("--operators", file, "inspect", path)["next"]
    run, bench = step.split("; ")
    assert bench == f"onnx-ops --operators {file} bench {path}"
    assert run.startswith(f"onnx-ops --operators {file} run {path} ")
    call(*run.split()[1:])
    assert "onnx_ops.InferenceSession(path, operators=[...])" in call(
        "--operators", file, "inspect", path
    )


@on_demand
def test_warmup(monkeypatch):
    calls = []

    def warmup(operators=None, dtypes=None, *, models=None, jobs=1, progress=None):
        calls.append((operators, dtypes, models, jobs))
        for index in range(100):
            progress("a kernel", index, 100)
        return 2

    monkeypatch.setattr(onnx_ops, "warmup", warmup, raising=False)
    text = call("warmup")
    assert "2 kernels are in the cache" in text
    compiling = [f"compiling {index + 1} of 100: a kernel" for index in range(0, 100, 5)]
    assert [line for line in text.splitlines() if "compiling" in line] == compiling
    call("warmup", "--operator", "Col2Im", "--dtype", "float32", "--dtype", "float16")
    call("warmup", PATCH_FOLD / "model.onnx", "--jobs", 2)
    assert calls == [
        (None, None, None, None),
        (("Col2Im",), ("float32", "float16"), None, None),
        (None, None, [PATCH_FOLD / "model.onnx"], 2),
    ]


@pytest.mark.long
def test_demo(tmp_path):
    report = call_json("demo", "--output", tmp_path)
    assert all(row["error"]["onnx_ops"] < 1e-4 for row in report["models"])
    wrong = {row["model"]: row["wrong"] for row in report["models"] if row["wrong"]}
    assert wrong == {"Col2Im, 1-D, dilated": ["builtin"]}
    assert "GridSample, nearest, int32" in {
        row["model"] for row in report["models"] if row["refused"]
    }
    assert all(
        "optimized" in row["seconds"] for row in report["models"] if "network" in row["model"]
    )
    for picture in report["pictures"]:
        assert np.asarray(Image.open(picture), np.float32).std() > 30
    # The models and grids of the pictures can be run again.
    inputs = ["-i", f"X={tmp_path / 'photograph.png'}", "-i", f"Grid={tmp_path / 'lens.npy'}"]
    for path in tmp_path.glob("grid_sample_*.onnx"):
        call("run", path, *inputs, "--compare", "builtin")


def test_demo_writes_all_pictures_or_none(tmp_path, monkeypatch):
    (tmp_path / "photograph.png").write_text("old")
    monkeypatch.setattr(demo.np, "save", no_space)
    monkeypatch.setattr("onnx_ops.cli.demo.examples", list)
    assert "No space" in call("demo", "--output", tmp_path, exit_code=3)
    assert contents(tmp_path) == {"photograph.png": b"old"}


def test_demo_says_no_where_we_are_wrong(tmp_path, monkeypatch):
    numbers = {"error": {"onnx_ops": 1.0}, "seconds": {"onnx_ops": 1.0}, "speedup": {}}
    row = {"model": "m", "refused": None, "wrong": ["onnx_ops"], **numbers}
    monkeypatch.setattr("onnx_ops.cli.demo.examples", lambda: [("m", None, None)])
    monkeypatch.setattr(demo, "compile_kernels", lambda models: None)
    monkeypatch.setattr("onnx_ops.cli.demo.measure", lambda *example: row)
    monkeypatch.setattr(demo, "write_pictures", lambda directory: [])
    assert "1.0e+00, wrong" in call("demo", "--output", tmp_path, exit_code=1)


@each_dtype("float32", "float16", "int64", "uint64", "bool", "string", "complex64")
def test_difference(dtype):
    value = drawn(np.random.default_rng(0), (3, 4), dtype)
    assert difference(value, value) == Difference(0, difference(value, value).allowed)
    assert not difference(np.roll(value, 1), value).ok
    assert difference(value[:2], value).problem == "shape [2, 4] instead of [3, 4]"


def test_difference_of_large_integers_and_of_what_is_not_finite():
    large = np.array([2**62, 2**62])
    assert np.array_equal(difference(large + np.arange(2), large).wrong, [False, True])
    value = np.array([1, np.nan, np.inf, -np.inf], np.float32)
    assert difference(value, value).ok
    assert "NaNs" in difference(value[::-1], value).problem


def test_json_of_numbers_that_it_lacks(capsys):
    print_json({"problem": "shape", "largest": np.inf, "all": [1.0, float("nan")]})
    assert json.loads(capsys.readouterr().out) == {
        "problem": "shape",
        "largest": None,
        "all": [1.0, None],
    }


@pytest.mark.parametrize("element_type", ["float32", "int64", "string"])
@pytest.mark.parametrize("size", [2**62, 10**30])
def test_a_shape_that_no_memory_holds(size, element_type):
    rule = rf"input x can't be made up in the shape \[{size}, 3\]: "
    with pytest.raises(click.UsageError, match=rule):
        data.feeds({"x": (element_type, [None, 3])}, [], [f"x={size},3"], random=True)
