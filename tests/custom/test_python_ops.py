"""Models with Python operators of onnxruntime-extensions (`@onnx_op`), on the command line.

Commands that declare some run in new processes: that library's list of operators is final once a
session has been made with it.
"""

import json

import numpy as np
import onnx
import pytest
from support.cases import parsed
from support.commands import call_json, invoke, saved
from support.processes import python
from support.selection import long_unless, needs_extensions

FILE = '''
import numpy as np
import onnx_ops
from onnxruntime_extensions import PyCustomOpDef as Types, onnx_op


@onnx_op(
    op_type="{domain}Largest",
    inputs=[Types.dt_float, Types.dt_float],
    outputs=[Types.dt_float, Types.dt_int32],
    attrs={{"topk": Types.dt_int64, "factor": Types.dt_float, "order": Types.dt_string}},
)
def largest(boxes, scores, topk, factor, order):
    """The boxes with the largest scores, multiplied, and their number."""
    places = np.argsort(-scores[0], kind="stable")[:topk]
    chosen = boxes[0, places[::-1] if order == "up" else places]
    return chosen * np.float32(factor), np.array([topk], np.int32)


@onnx_op(op_type="GridSample", inputs=[Types.dt_float], outputs=[Types.dt_float])
def add_one(x):
    return x + 1
'''
BOTH = """
@onnx_ops.operator("my.domain::Halve", inputs="x: T", outputs="y: T", types={"T": ["float32"]})
def halve(x):
    return x / 2
"""
NODE = "{domain}Largest <topk: int = 2, factor: float = 0.5, order: string = {order}>"
COMMANDS = """
import json, sys
sys.modules["torch"] = None  # which onnxruntime-extensions would import
from support.commands import invoke
runs = [invoke(*command, apart=True) for command in json.loads(sys.argv[1])]
print(json.dumps([(run.exit_code, run.stdout, run.stderr) for run in runs]))
"""


def outcomes(*commands, **settings):
    """Run commands in one new process; return (exit code, stdout, stderr) of each."""
    listed = json.dumps([list(map(str, command)) for command in commands])
    return json.loads(python(COMMANDS, listed, **settings).stdout.splitlines()[-1])


def model_with_python_ops(directory, domain="", order='"up"', more=""):
    """Write a model and the file with its operators; return (path of the model, of the file,
    inputs, right outputs).
    """
    boxes, scores = (
        np.arange(24, dtype=np.float32).reshape(1, 6, 4),
        np.array([[3, 1, 5, 0, 4, 2]], np.float32),
    )
    name = NODE.format(
        domain=domain.replace("::", ".") if domain else "ai.onnx.contrib.", order=order
    )
    text = f"""(float[B, 6, 4] boxes, float[B, 6] scores) => (float[A, 4] chosen, int32[C] count) {{
        more = ai.onnx.contrib.GridSample (boxes)
        up, count = {name} (more, scores)
        {more or "chosen = Identity (up)"}
    }}"""
    path = directory / "model.onnx"
    onnx.save(
        parsed(
            text, 18, *dict.fromkeys(["ai.onnx.contrib", "my.domain", *filter(None, [domain[:-2]])])
        ),
        path,
    )
    (directory / "python_ops.py").write_text(FILE.format(domain=domain) + (BOTH if more else ""))
    chosen = boxes[0, [4, 2] if order == '"up"' else [2, 4]] / 2 + 0.5
    right = {"chosen": chosen / 2 if more else chosen, "count": np.array([2], np.int32)}
    return path, directory / "python_ops.py", {"boxes": boxes, "scores": scores}, right


@needs_extensions
@pytest.mark.parametrize(
    ("domain", "more", "tried"),
    [
        long_unless(False, "", "", ["--try"]),
        ("", "chosen = my.domain.Halve (up)", []),
        long_unless(False, "", "chosen = my.domain.Halve (up)", ["--try"]),
        long_unless(False, "their.domain::", "", ["--try"]),
    ],
    ids=["extensions' domain", "with a custom operator", "which is tried", "domain of its own"],
)
def test_commands_that_open_a_model(domain, more, tried, tmp_path):
    model, file, feeds, right = model_with_python_ops(tmp_path, domain, more=more)
    np.savez(tmp_path / "feeds.npz", **feeds)
    folder = tmp_path / "test" / "test_data_set_0"
    folder.mkdir(parents=True)
    (folder.parent / "model.onnx").write_bytes(model.read_bytes())
    for role, arrays in ("input", feeds), ("output", right):
        for k, (name, array) in enumerate(arrays.items()):
            onnx.save_tensor(onnx.numpy_helper.from_array(array, name), folder / f"{role}_{k}.pb")
    settings = [
        ["--backend", "extensions"],
        [],
        ["--optimize"],
    ]  # the first session ends the library's list of operators
    run = ["run", model, "--input", tmp_path / "feeds.npz"]
    runs = [
        [*run, *options, "--output", tmp_path / f"out{k}"] for k, options in enumerate(settings)
    ]
    commands = [
        *runs,
        ["inspect", model, *tried, "--json"],
        [*run, "--compare", "reference"],
        *([] if more else [[*run, "--compare", "builtin"]]),
        ["validate", folder.parent],
        *([] if more else [["validate", folder.parent, "--backend", "builtin"]]),
        ["validate", folder.parent, "--backend", "reference"],
        ["bench", model, "--input", tmp_path / "feeds.npz", "--repeats", 1],
        ["optimize", model, tmp_path / "optimized.onnx"],
        ["lower", model, tmp_path / "lowered.onnx"],
    ]
    done = outcomes(*[["--operators", file, *command] for command in commands])
    for command, (code, _, errors) in zip(commands, done, strict=True):
        assert (code, errors) == (0, ""), command
    report = json.loads(done[len(runs)][1])
    assert (report["unknown"], report["extensions"]) == ({}, {})
    made = [session["error"] is None for session in report["sessions"] or ()]
    assert made[1:] == [True] * 2 * len(tried)
    assert [n["operator"] for n in report["nodes"]] == (["my.domain.Halve"] if more else [])
    for k in range(len(settings)):
        for name, array in right.items():
            np.testing.assert_array_equal(np.load(tmp_path / f"out{k}" / f"{name}.npy"), array)


@pytest.mark.long
@needs_extensions
def test_a_run_on_many_files(tmp_path):
    model, file, feeds, right = model_with_python_ops(tmp_path, order='"down"')
    (tmp_path / "in").mkdir()
    for k in range(3):
        np.savez(tmp_path / "in" / f"{k}.npz", **feeds | {"boxes": feeds["boxes"] + k})
    run = [
        "run",
        model,
        "--input",
        tmp_path / "in" / "*.npz",
        "--output",
        tmp_path / "out",
        "--json",
    ]
    ((code, text, errors),) = outcomes(["--operators", file, *run])
    assert (code, errors) == (0, "")
    assert json.loads(text)["run"] == 3
    for k in range(3):
        np.testing.assert_array_equal(
            np.load(tmp_path / "out" / f"{k}.npz")["chosen"], right["chosen"] + k / 2
        )


@needs_extensions
def test_operators_that_are_not_given(tmp_path):
    model, *_ = model_with_python_ops(tmp_path)
    report = call_json("inspect", model, exit_code=1)
    run = invoke("run", model, "--random", apart=True)
    assert run.exit_code == 3
    assert report["extensions"] == {"ai.onnx.contrib.Largest": 1}
    assert [r["operator"] for r in report["nodes"]] == ["ai.onnx.contrib.GridSample"]
    assert "onnx-ops --operators FILE" in run.stderr


@needs_extensions
def test_operators_of_the_library_itself(tmp_path):
    """Not all operators of its domain are Python's.

    It doesn't list them.
    """
    path = model_of_the_library(tmp_path)
    report = call_json("inspect", path)
    assert report["extensions"] == {
        "ai.onnx.contrib.StringOfNobody": 1,
        "ai.onnx.contrib.StringUpper": 1,
    }
    assert report["next"] == f"onnx-ops inspect {path} --try"


@pytest.mark.long
@needs_extensions
def test_a_session_shows_which_operators_the_library_has(tmp_path):
    tried = call_json("inspect", model_of_the_library(tmp_path), "--try", exit_code=1)
    assert [session["node"] for session in tried["sessions"][1:]] == ["z"] * 2
    assert "@onnx_op" in tried["next"]


def model_of_the_library(directory):
    """Write a model with an operator that the library has, and one that it lacks; return its
    path.
    """
    text = """(string[N] x) => (string[N] y, string[N] z) {
        y = ai.onnx.contrib.StringUpper (x)
        z = ai.onnx.contrib.StringOfNobody (x)
    }"""
    return saved(parsed(text, 18, "ai.onnx.contrib"), directory)


@needs_extensions
def test_a_built_in_kernel_beside_other_operators(tmp_path):
    """It is reported, whatever else the model has."""
    text = """(float[1, 3, 6, 6] x, float[1, 4, 4, 2] grid) => (float[1, 3, 4, 4] y) {
        z = GridSample <align_corners = 1> (x, grid)
        y = ai.onnx.contrib.OfNobody (z)
    }"""
    report = call_json("inspect", saved(parsed(text, 20, "ai.onnx.contrib"), tmp_path))
    assert [r["builtin"] for r in report["nodes"]] == ["has a kernel"]


@needs_extensions
def test_python_operators_of_ai_onnx(tmp_path):
    """The model has no node of this package, so ONNX Runtime gets the operators of ai.onnx from one
    library.

    A library that is built has no Python operators.
    """
    model, file, *_ = model_with_python_ops(tmp_path, "::")
    commands = ["run", model, "--random"], ["build", "--output", tmp_path / "lib.so"]
    (code, _, errors), (refused, _, message) = outcomes(
        *(["--operators", file, *command] for command in commands)
    )
    assert (code, errors) == (0, "")
    assert refused == 2
    assert "onnx_ops.operator" in message


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        (
            "importing",
            "import no_such_module_of_mine",
            "No module named 'no_such_module_of_mine'",
        ),
        ("none", "x = 1", "has no operators"),
        pytest.param(
            "declaring",
            "from onnxruntime_extensions import onnx_op\nonnx_op(op_type='A', attrs={'a': "
            "'b'})(abs)",
            "can't be imported",
            marks=needs_extensions,
        ),
    ],
)  # fmt: skip
def test_a_file_that_declares_nothing(name, text, words, tmp_path):
    file = tmp_path / f"broken_{name}.py"  # a process imports one module of a name
    file.write_text(text)
    done = invoke("--operators", file, "list", apart=True)
    assert done.exit_code == 3
    assert words in done.stderr


def test_where_onnxruntime_extensions_is_absent(tmp_path):
    """Some versions of Python have no release of it: no message advises its installation."""
    model, file, *_ = model_with_python_ops(tmp_path)
    (tmp_path / "onnxruntime_extensions.py").write_text("raise ModuleNotFoundError('not here')")
    commands = (
        ["--operators", file, "run", model, "--random"],
        ["run", model, "--random"],
        ["inspect", model, "--json"],
    )
    by_option, run, inspected = outcomes(*commands, folders=[tmp_path])
    assert by_option[0] == run[0] == 3
    assert "can't be imported: ModuleNotFoundError: not here" in by_option[2]
    assert "onnxruntime-extensions, which can't be imported: not here" in run[2]
    assert "install" not in by_option[2] + run[2]
    report = json.loads(inspected[1])
    assert report["extensions"] == {"ai.onnx.contrib.Largest": 1}
    assert "@onnx_op" not in report["next"]


@needs_extensions
def test_a_custom_operator_in_the_domain_of_the_library(tmp_path):
    """It runs without onnxruntime-extensions."""
    (tmp_path / "declared_there.py").write_text(
        "import onnx_ops\n\n"
        '@onnx_ops.operator("ai.onnx.contrib::Twice", inputs="x: T", outputs="y: T", types={"T": '
        '["float32"]})\n'
        "def twice(x):\n    return 2 * x\n"
    )
    text = "(float[2] x) => (float[2] y) { y = ai.onnx.contrib.Twice (x) }"
    model = saved(parsed(text, 18, "ai.onnx.contrib"), tmp_path)
    report = call_json("--operators", tmp_path / "declared_there.py", "run", model, "--random")
    assert report["outputs"][0]["shape"] == [2]


@pytest.mark.long
@needs_extensions
def test_one_session_with_both_libraries(tmp_path):
    """As docs/backends.md shows: the default backend beside the library, on the same options."""
    model, _, feeds, right = model_with_python_ops(tmp_path)
    np.savez(tmp_path / "feeds.npz", **feeds)
    done = python(
        """
        import sys
        import numpy as np
        import onnx_ops
        import onnxruntime as ort
        import onnxruntime_extensions
        import python_ops
        options = ort.SessionOptions()
        options.register_custom_ops_library(onnxruntime_extensions.get_library_path())
        session = onnx_ops.InferenceSession(sys.argv[1], options)
        print(session.run(None, dict(np.load(sys.argv[2])))[0].tolist())
        """,
        model, tmp_path / "feeds.npz", folders=[tmp_path],
    )  # fmt: skip
    assert json.loads(done.stdout) == right["chosen"].tolist()


BESIDE = """
import json, sys
sys.modules["torch"] = None  # which onnxruntime-extensions would import
import numpy as np
import onnx_ops
import onnxruntime as ort
from onnxruntime_extensions import PyCustomOpDef, get_library_path, onnx_op
from support.backends import quiet, with_extensions
from support.cases import parsed

DOMAINS = "com.microsoft", "mmdeploy", "mmcv", "org.openvinotoolkit", "onnx_ops", "custom"
for domain in DOMAINS:
    @onnx_op(op_type=f"{domain}::Halve", inputs=[PyCustomOpDef.dt_float],
        outputs=[PyCustomOpDef.dt_float])
    def halve(x):
        return x / 2

def after_ours(content):
    return ort.InferenceSession(content, with_extensions(onnx_ops.register(quiet(), content)))

def before_ours(content):
    return ort.InferenceSession(content, onnx_ops.register(with_extensions(quiet()), content))

WAYS = {
    "session": lambda content: onnx_ops.InferenceSession(content, with_extensions(quiet())),
    "optimized": lambda content: onnx_ops.InferenceSession(content, with_extensions(quiet()),
        optimize=True),
    "extensions": lambda content: onnx_ops.InferenceSession(content, with_extensions(quiet()),
        backend="extensions"),
    "after ours": after_ours,
    "before ours": before_ours,
}
FEEDS = {"x": np.full((1, 1, 4, 4), 3, np.float32), "grid": np.zeros((1, 2, 2, 2), np.float32)}

def outcome(make, text, domain):
    header = "(float[1, 1, 4, 4] x, float[1, 2, 2, 2] grid) => (float[a, b, c, d] y) "
    content = parsed(header + text, 20, domain)
    try:
        return make(content.SerializeToString()).run(None, FEEDS)[0].ravel().tolist()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
"""
EACH_WAY = """
results = {}
for domain in DOMAINS:
    text = f"{{ z = GridSample (x, grid) y = {domain}.Halve (z) }}"
    results[domain] = {way: outcome(make, text, domain) for way, make in WAYS.items()}
before = onnx_ops.node_counts().get("GridSample", 0)
print(json.dumps([results, before]))
"""
NEEDED = """
text = "{ z = com.microsoft.GridSample (x, grid) y = com.microsoft.Halve (z) }"
results = {way: outcome(make, text, "com.microsoft") for way, make in WAYS.items()}
print(json.dumps(results))
"""
DECLARED = """
operator = onnx_ops.operator("com.microsoft::Halve", inputs="x: float32",
    outputs="y: float32")(lambda x: x / 2)
make = lambda content: onnx_ops.InferenceSession(content, quiet(), operators=[operator])
before = onnx_ops.node_counts()
result = outcome(make, text, "com.microsoft")
counts = {name: n - before.get(name, 0) for name, n in onnx_ops.node_counts().items()}
print(json.dumps([result, {name: n for name, n in counts.items() if n}]))
"""
TWICE = """
text = "{ z = GridSample (x, grid) y = com.microsoft.Halve (z) }"
twice = lambda: with_extensions(with_extensions(quiet()))
ways = [
    lambda content: onnx_ops.InferenceSession(content, twice()),
    lambda content: onnx_ops.InferenceSession(content, twice(), backend="extensions"),
]
print(json.dumps([outcome(make, text, "com.microsoft") for make in ways]))
"""
BOTH_IN_ONE = (
    "OpError: onnx_ops: sess_options = given: have operators of another library, such as @onnx_op "
    "functions, in "
    "com.microsoft, as onnx_ops has; use new options with backend='extensions', declare those "
    "operators by "
    "onnx_ops.operator, or give them another domain"
)
SAME_TWICE = (
    "OpError: onnx_ops: sess_options = given: have the same library twice; register it once"
)


@needs_extensions
def test_python_operators_in_domains_of_ours():
    """A domain is registered only if a node needs an operator of this package in it.

    ONNX Runtime takes the operators of a domain from one library. The message says what to do, such
    as to declare the operator. If options have the library twice, ONNX Runtime would name any
    operator of it, such as one that this package has added.
    """
    done = python(BESIDE + EACH_WAY + NEEDED + DECLARED + TWICE)
    (each_way, count), needed, (result, counts), twice = map(json.loads, done.stdout.splitlines())
    assert each_way == {
        domain: {session_type: [1.5] * 4 for session_type in outcomes_by_type}
        for domain, outcomes_by_type in each_way.items()
    }
    assert count == len(each_way) * 4  # in all ways but one
    assert needed.pop("extensions") == [1.5] * 4
    assert [needed.pop(session_type) for session_type in ("session", "optimized")] == [
        BOTH_IN_ONE
    ] * 2
    assert all("Domain already set" in text for text in needed.values())
    assert result == [1.5] * 4
    assert counts == {"com.microsoft.GridSample": 1, "com.microsoft.Halve": 1}
    assert twice == [SAME_TWICE] * 2
