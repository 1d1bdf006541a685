"""The C library without ONNX Runtime, also under sanitizers: each call and each allocation fails
in turn (tests/native).
"""

import platform
import re
import sys

import pytest
from support import native, nodes
from support.cases import operator

from onnx_ops.compiler.cpu_levels import LEVELS
from onnx_ops.native import library
from onnx_ops.registry import OPERATORS, is_built_in, is_default

pytestmark = [
    pytest.mark.long,  # the short run has tests/native/test_library.py
    pytest.mark.skipif(
        sys.platform != "linux" or not native.accepts("gcc"), reason="needs Linux and gcc"
    ),
    pytest.mark.skipif(not library.have_numba(), reason="there is no Numba"),
]
NOT_TO_RUN = "onnx_ops: its session was not made to run"  # where kernels were only listed


BUILDS = {"plain": ["-O0"], "sanitized": native.SANITIZED}


@pytest.fixture(scope="module", params=BUILDS)
def harness(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("harness")
    sanitizers = BUILDS[request.param]
    return native.build(folder, nodes.TYPES, nodes.IN_PYTHON, sanitizers=sanitizers)


def test_registration(harness):
    """Each call and allocation fails; after an error another try makes up for it, with every
    operator once.
    """
    status, lines = native.run(harness, "registration", "1")
    assert findings(lines) == []
    assert status == 0, lines[-30:]
    assert int(lines[-1].split()[0]) > 150


def test_wrong_plans(harness):
    assert native.run(harness, "plans") == (
        0,
        ["0 points; of the nodes, 0 were computed and 0 refused"],
    )


def test_reshape(harness):
    assert native.run(harness, "reshape") == (
        0,
        ["0 points; of the nodes, 0 were computed and 0 refused"],
    )


def test_a_library_for_other_cpus(tmp_path, monkeypatch):
    harness = native.build(
        tmp_path, {operator("onnx_ops", "Im2Col"): ["float32"]}, sanitizers=[], cpu="a-later-one"
    )
    for wanted in ("", "a-later-one", "a-cpu-of-" + 100 * "many-"):
        monkeypatch.setenv("ONNX_OPS_CPU", wanted)
        what = f"ONNX_OPS_CPU = {wanted[:40]}: can't be run here by" if wanted else "CPU: can't run"
        assert native.run(harness, "run") == (2, [f"{what} this library, which has a-later-one"])


def test_a_cpu_that_is_asked_for(harness, monkeypatch):
    machine = next(name for name, (machine, *_) in LEVELS.items() if machine == platform.machine())
    monkeypatch.setenv("ONNX_OPS_CPU", machine)
    assert native.run(harness, "operators")[0] == 0
    monkeypatch.setenv("ONNX_OPS_CPU", "another")
    assert native.run(harness, "operators")[0] == 2


def test_versions_of_onnxruntime(harness, monkeypatch):
    """Before ONNX Runtime 1.21, an operator with an optional input has no shape inference, in which
    it would crash.
    """
    have_optional = {
        f"{each.domain}.{each.name}"
        for each in [*OPERATORS, *nodes.WITH_KERNELS, *nodes.IN_PYTHON]
        if any(i.presence == "optional" for i in each.inputs)
    }
    assert have_optional
    for version, are_without in (
        ("1.17.3", have_optional),
        ("1.20.1", have_optional),
        ("1.21.0", set()),
    ):
        monkeypatch.setenv("MOCK_VERSION", version)
        status, lines = native.run(harness, "operators")
        assert status == 0
        assert {
            line.split()[0] for line in lines if line.endswith(" without inference")
        } == are_without
    for version in ("1.16.3", "1", "a version"):
        monkeypatch.setenv("MOCK_VERSION", version)
        assert native.run(harness, "operators") == (
            2,
            ["onnx_ops needs ONNX Runtime 1.17 or newer"],
        )


def test_default_operators(harness):
    """Where nothing is stated, all operators are registered whose domain no model must import."""
    status, lines = native.run(harness, "defaults")
    names = {line.split()[0] for line in lines[:-1]}
    assert (status, names) == (
        0,
        {
            f"{each.domain}.{each.name}"
            for each in nodes.TYPES
            if is_default(each.domain, is_built_in(each))
        },
    )


def test_no_strings_without_python(harness, monkeypatch):
    """Compiled code has no strings: only Python runs these overloads."""
    status, lines = native.run(harness, "operators")
    strings = [line for line in lines if line.endswith(" 8")]
    assert status == 0
    assert ".Col2Im 8" in strings
    monkeypatch.setenv("WITHOUT_PYTHON", "1")
    assert native.run(harness, "operators") == (0, [line for line in lines if line not in strings])


def findings(lines):
    return [line for line in lines if line.startswith("FINDING")]


@pytest.mark.parametrize("harness", ["sanitized"], indirect=True)
def test_faults(harness, tmp_path):
    """An error states its cause, nothing is leaked, no result is wrong, and the next node is made
    and run as before.

    A node of each operator; `scripts/fuzzing/sanitize.sh` has all of them.
    """
    described = nodes.descriptions(1)
    status, lines = native.run(harness, "faults", *native.write(tmp_path, described))
    assert findings(lines) == []
    assert status == 0, lines[-30:]
    assert int(lines[-1].split()[0]) > 200 * len(described)


def test_without_faults(harness, tmp_path):
    """What a node is refused for, or that it is computed, whatever is known of its inputs when it
    is made.
    """
    paths = native.write(tmp_path, nodes.descriptions())
    status, lines = native.run(harness, "run", *paths)
    assert status == 0, lines[-30:]
    assert len(lines) == 7 * len(paths) + 1
    by_path = {str(path): {} for path in paths}
    for line in lines[:-1]:
        name, _, told = line.partition(", ")
        mode, outcome = told.split(": ", 1)
        by_path[name][mode] = outcome
    for path in paths:
        outcomes = by_path[str(path)]
        assert len(outcomes) == 7
        rule = nodes.RULES.get(path.stem)
        for mode, outcome in outcomes.items():
            is_told = re.search(
                rule if path.stem in nodes.MALFORMED else re.escape(rule or ""), outcome
            )
            is_usual = is_told if rule else outcome == "computed"
            is_without = (
                mode == "without Python" and "where onnx_ops has not been imported" in outcome
            )
            assert is_usual or is_without or (mode == "surveyed" and outcome == NOT_TO_RUN), (
                mode,
                outcome,
            )


def test_every_operator_is_run():
    described = nodes.descriptions(1).values()
    for each in [*OPERATORS, *nodes.WITH_KERNELS, *nodes.IN_PYTHON]:
        assert any(
            content.startswith(native.text(each.domain) + native.text(each.name))
            for content in described
        )


@pytest.mark.skipif(
    not native.accepts("gcc", ["-fsanitize=thread"]), reason="gcc lacks ThreadSanitizer"
)
def test_threads(tmp_path):
    """Eleven threads run, make and release nodes, and register operators; see also `run` and `make`
    in harness.c.
    """
    harness = native.build(tmp_path, nodes.TYPES, nodes.IN_PYTHON, sanitizers=["-fsanitize=thread"])
    paths = native.write(tmp_path, nodes.descriptions(1))
    status, lines = native.run(harness, "threads", "3", *paths)
    assert findings(lines) == []
    assert status == 0, lines[:60]
    shared, runs, made, registrations = (int(part.split()[0]) for part in lines[-2].split(", "))
    assert shared > len(paths) / 2
    assert min(runs, made, registrations) > 0
