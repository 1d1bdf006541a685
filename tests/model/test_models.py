"""Every model under models/ runs unchanged in sessions, and equals what its script makes."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from support.backends import BACKENDS, quiet, run_session, with_extensions
from support.cases import Case
from support.processes import TESTS
from support.selection import long_unless, needs_extensions
from support.spec_examples import (
    DEFORM_CONV,
    EXAMPLES,
    OPENVINO_MISPRINTED,
    build_model,
    write_model,
)

import onnx_ops
from onnx_ops.registry import OPERATORS

ROOT = TESTS.parent / "models"
MODELS = sorted(path.parent for path in ROOT.glob("*/*/model.onnx"))
# The specification prints the first result to four decimals; the others are sums of tenths, or
# turned places.
PRINTED = {
    "gridsample_bicubic": {"rtol": 0, "atol": 5.1e-5},
    "roi_align_rotated": {"rtol": 1e-6, "atol": 0},
}
OF_INTEGERS = "openvino"  # part of the domains or names of examples in int32 and uint32
PRINTED |= {example.name: {"rtol": 1e-6, "atol": 0} for example in DEFORM_CONV}


def tolerance_of(directory):
    exact = directory.parent.name in ("ai.onnx", "mmdeploy", "onnx_ops", "org.openvinotoolkit")
    return PRINTED.get(
        directory.name, {"rtol": 0, "atol": 0} if exact else {"rtol": 1e-4, "atol": 1e-5}
    )


def name_of(directory):
    return "/".join(directory.parts[-2:])


DIRECTORIES = [long_unless(OF_INTEGERS not in name_of(d), d) for d in MODELS]


def tensors(directory, kind):
    """The arrays of the test data, in order."""
    files = sorted(
        directory.glob(f"test_data_set_0/{kind}_*.pb"), key=lambda f: int(f.stem.partition("_")[2])
    )
    return [onnx.numpy_helper.to_array(onnx.load_tensor(file)) for file in files]


def assert_outputs(session, directory):
    """Assert that a session of a model returns what its test data say."""
    inputs, expected = tensors(directory, "input"), tensors(directory, "output")
    outputs = session.run(
        None, {i.name: v for i, v in zip(session.get_inputs(), inputs, strict=True)}
    )
    for got, each in zip(outputs, expected, strict=True):
        assert got.dtype == each.dtype
        np.testing.assert_allclose(got, each, **tolerance_of(directory))


def through_options(path):
    return ort.InferenceSession(path, onnx_ops.register(quiet(), path))


def through_our_session(path):
    return onnx_ops.InferenceSession(path, quiet())


def through_extensions(path):
    return onnx_ops.InferenceSession(path, quiet(), backend="extensions")


ROUTES = {through_our_session: (), through_options: (), through_extensions: [needs_extensions]}


def of_routes():
    """Models by routes; the short run has our session for all, and the others for every fourth."""
    for k, directory in enumerate(DIRECTORIES):
        for route, marks in ROUTES.items():
            of_all = route is through_our_session or k % 4 == 0
            later = [*directory.marks, *(() if of_all else [pytest.mark.long])]
            yield pytest.param(*directory.values, route, marks=[*marks, *later])


@pytest.mark.parametrize(
    ("directory", "route"), [*of_routes()], ids=lambda v: v.__name__ if callable(v) else name_of(v)
)
def test_model(directory, route, kernels_made):
    assert_outputs(route(directory / "model.onnx"), directory)
    assert len(kernels_made) == (route is not through_extensions)


# One of each operator, whose other examples test_model has in sessions.
FIRST = {
    (e.domain, e.op_type): e for e in reversed(EXAMPLES) if OF_INTEGERS not in e.domain + e.name
}.values()


@pytest.mark.parametrize(
    "example",
    [long_unless(any(e is each for each in FIRST), e) for e in EXAMPLES],
    ids=lambda e: e.name,
)
def test_every_backend_gives_what_the_specification_prints(example):
    case = Case(example.name, example.domain, example.op_type, (), example.attributes)
    tolerance = PRINTED.get(example.name, {"rtol": 1e-4, "atol": 1e-5})
    for name, run in BACKENDS.items():
        got = run(case, list(example.inputs.values()))
        np.testing.assert_allclose(got, example.output, **tolerance, err_msg=name)


NAMES_OF_FIRST = {f"{e.domain or 'ai.onnx'}/{e.name}" for e in FIRST}


@needs_extensions
@pytest.mark.parametrize(
    "directory",
    [
        long_unless(not d.marks and name_of(*d.values) in NAMES_OF_FIRST, *d.values)
        for d in DIRECTORIES
    ],
    ids=name_of,
)
def test_lowered_twin(directory, caplog):
    """Lowered models need only `import onnx_ops` and the documented registration of
    onnxruntime-extensions.
    """
    proto = onnx.load(directory / "lowered.onnx")
    assert proto == onnx_ops.lower(onnx.load(directory / "model.onnx"))
    # A node of this domain has no other implementation than our Python op, and none of the
    # original's is left.
    (ours,) = (n.op_type for n in proto.graph.node if n.domain == "ai.onnx.contrib")
    assert ours in {f"{o.domain or 'ai.onnx'}_{o.name}".replace(".", "_") for o in OPERATORS}
    assert not {o.name for o in OPERATORS} & {n.op_type for n in proto.graph.node}
    session = ort.InferenceSession(directory / "lowered.onnx", with_extensions(quiet()))
    assert_outputs(session, directory)
    assert not caplog.text


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.name)
def test_committed_model_is_what_the_script_builds(example, tmp_path):
    built = write_model(example, tmp_path)
    committed = ROOT / built.relative_to(tmp_path)
    assert onnx.load(committed / "model.onnx") == onnx.load(built / "model.onnx")
    onnx.checker.check_model(str(built / "model.onnx"))
    for kind in ("input", "output"):
        for a, b in zip(tensors(committed, kind), tensors(built, kind), strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)


def test_every_model_is_tested():
    examples = {("ai.onnx" if e.domain == "" else e.domain) + "/" + e.name for e in EXAMPLES}
    assert examples <= set(map(name_of, MODELS))
    assert {"exported/patch_fold", "exported/spatial_transformer"} <= set(map(name_of, MODELS))
    assert sum(f.stat().st_size for f in ROOT.rglob("*") if f.is_file()) < 5_000_000


def test_operators_of_the_domain_keep_their_meaning():
    """Of each one, in each version, there is a model with the results that it must have."""
    protos = [onnx.load(path) for path in ROOT.glob("onnx_ops/*/model.onnx")]
    stored = {
        (node.op_type, imported_domain.version)
        for proto in protos
        for node in proto.graph.node
        for imported_domain in proto.opset_import
        if imported_domain.domain == node.domain
    }
    assert stored == {
        (o.name, version) for o in OPERATORS if o.domain == "onnx_ops" for version in o.versions
    }


def test_written_models_state_the_version_of_the_domain():
    optimized = onnx_ops.optimize(ROOT / "exported" / "spatial_transformer" / "model.onnx")
    assert [n.op_type for n in optimized.graph.node if n.domain] == ["ComputedGridSample"]
    lowered = onnx_ops.lower(optimized)
    for proto, others in ((optimized, {}), (lowered, {"ai.onnx.contrib": 1})):
        versions = {i.domain: i.version for i in proto.opset_import}
        assert versions == {"": 18, "onnx_ops": 1, **others}


@pytest.mark.parametrize("name", OPENVINO_MISPRINTED)
def test_block_counts_that_a_specification_misprints_are_refused(name):
    example = OPENVINO_MISPRINTED[name]
    session = onnx_ops.InferenceSession(build_model(example).SerializeToString(), quiet())
    with pytest.raises(
        Exception, match=r"Col2Im: shape of input = .*: the last axis must be the number of blocks"
    ):
        run_session(session, list(example.inputs.values()))
