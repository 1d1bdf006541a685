"""Custom operators with the names of this package's operators, which they replace in the sessions
that get them.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from support.backends import quiet
from support.cases import parsed
from support.processes import python
from support.selection import needs_extensions

import onnx_ops
from onnx_ops import registry
from onnx_ops.native import library

NAMES = "::_DCNv2", "custom::DeformConv2d", "::GridSample", "mmcv::grid_sampler", "onnx_ops::Im2Col"
X = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
GRID = np.zeros((1, 2, 2, 2), np.float32)


def plus(amount: int) -> Callable[[np.ndarray], np.ndarray]:
    def body(x: np.ndarray) -> np.ndarray:
        return x + np.float32(amount)

    return body


def declared(name: str, amount: int = 1, version: int = 1) -> Any:
    body = plus(amount)
    return onnx_ops.operator(name, inputs="x: float32", outputs="y: float32", version=version)(body)


def typed(name: str) -> str:
    """The type of a node in the text of a model."""
    return name.replace("::", ".").removeprefix(".")


def model_of(name: str, opset: int = 20, where: str = "the graph") -> bytes:
    """A model with a node of this name."""
    node, domain = f"{typed(name)} (x)", name.partition("::")[0]
    texts = {
        "the graph": f"{{ y = {node} }}",
        "a branch": f"""<bool yes = {{1}}> {{
            y = If (yes) <then_branch: graph = a () => (float[a, b, c, d] p) {{ p = {node} }},
                          else_branch: graph = b ()
                              => (float[a, b, c, d] q) {{ q = {node} }}> }}""",
        "a function": f"""{{ y = local.F (x) }}
            <opset_import: ["" : {opset}, "{domain or "local"}" : {opset if not domain else 1}],
                domain: "local">
            F (x) => (y) {{ y = {node} }}""",
    }
    text = f"(float[1, 1, 4, 4] x) => (float[e, f, g, h] y) {texts[where]}"
    if not domain and where == "a function":
        text = text.replace(f', "local" : {opset}]', "]")
    return parsed(text, opset, *{domain, "local"} - {""}).SerializeToString()


def by_library_path(content: bytes, operator: Any) -> ort.InferenceSession:
    options = onnx_ops.register(quiet(), content, operators=[operator])
    options.register_custom_ops_library(onnx_ops.get_library_path())
    return ort.InferenceSession(content, options)


def by_options_for_ours(content: bytes, operator: Any) -> ort.InferenceSession:
    options = onnx_ops.register(quiet(), content, operators=[operator])
    return onnx_ops.InferenceSession(content, onnx_ops.register(options, domains=registry.DOMAINS))


WAYS: dict[str, Callable[[bytes, Any], ort.InferenceSession]] = {
    "session": lambda content, o: onnx_ops.InferenceSession(content, operators=[o]),
    "with options": lambda content, o: onnx_ops.InferenceSession(content, quiet(), operators=[o]),
    "optimized": lambda content, o: onnx_ops.InferenceSession(
        content, quiet(), operators=[o], optimize=True
    ),
    "Runner": lambda content, o: onnx_ops.Runner(content, operators=[o]).session,
    "register": lambda content, o: ort.InferenceSession(
        content, onnx_ops.register(quiet(), content, operators=[o])
    ),
    "domains": lambda content, o: ort.InferenceSession(
        content, onnx_ops.register(quiet(), content, domains=registry.DOMAINS, operators=[o])
    ),
    "then the library's path": by_library_path,
    "then ours": by_options_for_ours,
}


def result(session: ort.InferenceSession) -> list[float]:
    return session.run(None, {"x": X})[0].ravel().tolist()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_every_way_to_a_session(
    way: Callable[[bytes, Any], ort.InferenceSession], name: str
) -> None:
    assert result(way(model_of(name), declared(name))) == (X.ravel() + 1).tolist()


@pytest.mark.parametrize("optimize", [False, True])
@pytest.mark.parametrize(
    ("name", "where"),
    [
        *((name, "a branch") for name in NAMES),
        *(
            (name, "a function") for name in NAMES if name != "::GridSample"
        ),  # where it needs ONNX's two inputs
    ],
)
def test_nodes_inside(optimize: bool, name: str, where: str) -> None:
    content = model_of(name, where=where)
    session = onnx_ops.InferenceSession(
        content, quiet(), operators=[declared(name)], optimize=optimize
    )
    assert result(session) == (X.ravel() + 1).tolist()


@pytest.mark.parametrize(("opset", "version"), [(11, 1), (16, 16), (20, 16), (22, 22)])
def test_versions_of_ai_onnx(opset: int, version: int) -> None:
    operator = declared("::GridSample", version=version)
    session = onnx_ops.InferenceSession(
        model_of("::GridSample", opset), quiet(), operators=[operator]
    )
    assert result(session) == (X.ravel() + 1).tolist()


def test_nodes_of_older_versions() -> None:
    """They run ONNX Runtime's kernel: options can't have both this operator and that of the
    package.
    """
    proto, feeds = (
        parsed(SAMPLING, 16),
        {"x": X, "grid": GRID, "theta": np.zeros((1, 2, 3), np.float32)},
    )
    session = onnx_ops.InferenceSession(
        proto.SerializeToString(), quiet(), operators=[sampler(version=20)]
    )
    np.testing.assert_array_equal(session.run(None, feeds)[0], onnx_ops.grid_sample(X, GRID))


SAMPLING = """(float[1, 1, 4, 4] x, float[1, 2, 3] theta, float[1, 2, 2, 2] grid)
    => (float[a, b, c, d] y) {
    z = GridSample (x, grid)
    y = Identity (z)
}"""


def sample(x: np.ndarray, grid: np.ndarray) -> np.ndarray:
    return np.full((*x.shape[:2], *grid.shape[1:3]), 5, np.float32)


def sampler(version: int = 16) -> Any:
    types = {"T": ["float32"]}
    return onnx_ops.operator(
        "::GridSample", inputs="x: T, grid: T", outputs="y: T", types=types, version=version
    )(sample)


def test_other_sessions_of_the_process_keep_ours(kernels_made: Any) -> None:
    content, operator = parsed(SAMPLING, 20).SerializeToString(), sampler()
    feeds = {"x": X, "grid": GRID, "theta": np.zeros((1, 2, 3), np.float32)}
    for _ in range(2):
        (own,) = onnx_ops.InferenceSession(content, quiet(), operators=[operator]).run(None, feeds)
        assert own.ravel().tolist() == [5] * 4
        assert kernels_made == []
        (got,) = onnx_ops.InferenceSession(content, quiet()).run(None, feeds)
        np.testing.assert_array_equal(got, onnx_ops.grid_sample(X, GRID))
        assert kernels_made == ["GridSample"]
        kernels_made.clear()


AFFINE = """(float[1, 1, 4, 4] x, float[1, 2, 3] theta)
    => (float[a, b, c, d] y) <int64[4] size = {1, 1, 2, 2}> {
    grid = AffineGrid (theta, size)
    y = GridSample (x, grid)
}"""


def test_optimize_leaves_its_nodes() -> None:
    proto, operator = parsed(AFFINE, 20), sampler()
    feeds = {"x": X, "theta": np.zeros((1, 2, 3), np.float32)}
    session = onnx_ops.InferenceSession(
        proto.SerializeToString(), quiet(), operators=[operator], optimize=True
    )
    assert session.run(None, feeds)[0].ravel().tolist() == [5] * 4
    assert [node.op_type for node in onnx_ops.optimize(proto).graph.node] == ["ComputedGridSample"]


def test_optimize_writes_no_node_of_its_name() -> None:
    """What a pattern would write is another operator in this session."""
    proto = parsed(AFFINE, 20)
    own = onnx_ops.operator(
        "onnx_ops::ComputedGridSample", inputs="x: float32", outputs="y: float32"
    )(plus(1))
    feeds = {"x": X, "theta": np.zeros((1, 2, 3), np.float32)}
    session = onnx_ops.InferenceSession(
        proto.SerializeToString(), quiet(), operators=[own], optimize=True
    )
    expected = onnx_ops.InferenceSession(proto.SerializeToString(), quiet()).run(None, feeds)[0]
    np.testing.assert_array_equal(session.run(None, feeds)[0], expected)
    (finding,) = session._onnx_ops_ready.findings
    assert finding.operator is None
    assert finding.reason == "ComputedGridSample is another operator in this session"


@pytest.mark.parametrize("name", NAMES)
def test_options_that_have_ours(name: str) -> None:
    """ONNX Runtime can't remove an operator from options."""
    content = model_of(name)
    options = onnx_ops.register(quiet(), domains=registry.DOMAINS)
    with pytest.raises(
        Exception, match="the session's options have another operator of this name; use new options"
    ):
        onnx_ops.InferenceSession(content, options, operators=[declared(name)])


def test_two_custom_operators_of_a_name() -> None:
    for name in NAMES:
        with pytest.raises(onnx_ops.OpError, match="is declared twice"):
            onnx_ops.register(quiet(), operators=[declared(name, 1), declared(name, 2)], domains=[])


def test_schemas_that_onnx_has_itself() -> None:
    onnx_ops.register_schemas([sampler()])
    onnx_ops.register_schemas()
    onnx_ops.register_schemas([sampler()])
    assert onnx.defs.has("GridSample")
    assert onnx.defs.get_schema("GridSample", 16).inputs[0].name == "X"


IN_A_PROCESS = """
import json, sys
import numpy as np
import onnxruntime as ort
import onnx_ops
from support.backends import quiet, with_extensions
from test_replacing import NAMES, X, declared, model_of, result
operators = [declared(name, k) for k, name in enumerate(NAMES)]
onnx_ops.register(quiet(), backend="extensions", operators=operators)
results = []
for name, operator in zip(NAMES, operators):
    content = model_of(name)
    lowered = onnx_ops.lower(content, operators=[operator]).SerializeToString()
    results += [
        result(onnx_ops.InferenceSession(content, quiet(), operators=[operator],
            backend="extensions")),
        result(ort.InferenceSession(lowered, with_extensions(quiet()))),
    ]
grid = np.zeros((1, 2, 2, 2), np.float32)
from test_replacing import SAMPLING, parsed
session = onnx_ops.InferenceSession(parsed(SAMPLING, 20).SerializeToString(), quiet(),
    backend="extensions")
ours = session.run(None, {"x": X, "grid": grid, "theta": np.zeros((1, 2, 3), np.float32)})[0]
assert (ours == onnx_ops.grid_sample(X, grid)).all()
print(json.dumps(results))
"""


@pytest.mark.long
@needs_extensions
def test_with_the_extensions_backend() -> None:
    """In a new process, since the library's list of operators is final with its first session."""
    results: Sequence[list[float]] = json.loads(python(IN_A_PROCESS).stdout)
    assert results == [(X.ravel() + k).tolist() for k in range(len(NAMES)) for _ in range(2)]


def test_a_library_registers_it_by_default() -> None:
    """Of the domain custom, only this package's operators must be asked for."""
    ours = registry.built_in(("custom", "DeformConv2d"))
    rows = [library.row_of(each) for each in (ours, declared("custom::DeformConv2d").declaration)]
    assert [row.is_default for row in rows] == [0, 1]
