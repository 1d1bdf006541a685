"""Compiled code outlives its process; a change of a source file that it is made from, and no other, invalidates it."""

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from numba import njit
from support.cases import CASES

import onnx_ops
from onnx_ops import dtypes
from onnx_ops.declaration import Record, without_parameters
from onnx_ops.kernels import cache, code, compiler
from onnx_ops.kernels.records import ArrayView, Entry, Held, Number, Place, Step
from onnx_ops.operators import OPERATORS
from onnx_ops.runtime import variants

PACKAGE = Path(onnx_ops.__file__).parent
SCRIPT = """
import sys
import numpy as np
import onnx_ops
assert onnx_ops.__file__.startswith(sys.argv[1]), onnx_ops.__file__
session = onnx_ops.InferenceSession(sys.argv[2])
feeds = {"input": np.zeros((1, 9, 9), np.float32), "image_shape": np.array([5, 5]), "block_shape": np.array([3, 3])}
session.run(None, feeds)
"""


@pytest.fixture
def home(tmp_path):
    """A copy of the package and an empty cache."""
    shutil.copytree(PACKAGE, tmp_path / "onnx_ops", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "cache").mkdir()
    return tmp_path


def cached_after_a_run(home):
    from support.cases import model
    from support.malformed import col2im

    path = home / "model.onnx"
    path.write_bytes(model("", "Col2Im", col2im("", "").inputs, {}).SerializeToString())
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(home / "cache"), "PYTHONPATH": str(home)}
    subprocess.run([sys.executable, "-c", SCRIPT, str(home), str(path)], check=True, env=environment, cwd=home)
    return cached(home)


def cached(home):
    return {f.name: f.stat().st_mtime_ns for f in (home / "cache").rglob("*") if f.is_file()}


def names(files):
    return sorted(name.rpartition("-")[0] for name in files)


def append(path, text):
    with open(path, "a") as file:
        file.write(text)


@pytest.mark.long
def test_what_a_process_compiles_and_the_next_ones_do_not(home):
    """A second process compiles nothing; after an edit, a third one only what the edited file is part of."""
    first = cached_after_a_run(home)
    assert names(first) == ["blocks-resolve", "col2im-col2im-float32-float32", "col2im-infer", "col2im-plan"]
    assert cached_after_a_run(home) == first
    for path in ("cli/app.py", "runtime/native.py", "operators/grid_sample.py", "kernels/grid_sample.py"):
        append(home / "onnx_ops" / path, "\n# changed\n")
    assert cached_after_a_run(home) == first
    append(home / "onnx_ops" / "kernels" / "col2im.py", "\n# changed\n")
    second = cached_after_a_run(home)
    assert names(second.keys() - first.keys()) == ["col2im-col2im-float32-float32", "col2im-infer", "col2im-plan"]


BLOCKS = {"blocks", "kernels.blocks"}
COL2IM = {"operators.col2im", "kernels.col2im"} | BLOCKS
IM2COL = {"operators.im2col", "kernels.im2col"} | BLOCKS
ATTENTION = {"operators.deformable_attention", "kernels.deformable_attention"}
SAMPLING = {"kernels.grid_sample", "kernels.places", "kernels.points", "kernels.coordinates"}
# The sources of the functions around every plan and kernel, and of what these are written in.
SHARED = {
    "declaration", "dtypes", "errors", "kernels.bounds", "kernels.compiler", "kernels.elements",
    "kernels.elements_numba", "kernels.jit", "kernels.levels", "kernels.memory", "kernels.records", "kernels.target",
    "kernels.vectors", "kernels.simd", "kernels.simd_blend", "kernels.simd_boxes", "kernels.simd_points",
    "kernels.simd_rows",
}  # fmt: skip
MADE_FROM = {
    "operators.col2im": COL2IM | SHARED,  # of functions that are defined there: plans
    "kernels.col2im": {"kernels.col2im", "kernels.blocks"} | SHARED,
    "operators.im2col": IM2COL | SHARED,
    "kernels.im2col": {"kernels.im2col", "kernels.blocks"} | SHARED,
    "operators.grid_sample": {"operators.grid_sample"} | SAMPLING | SHARED,
    "kernels.grid_sample": SAMPLING | SHARED,
    "operators.deformable_attention": ATTENTION | SHARED,
    "kernels.deformable_attention": {"kernels.deformable_attention"} | SHARED,
    "blocks": {"blocks"} | SHARED,
}


@pytest.mark.parametrize("module", MADE_FROM)
def test_which_files_a_digest_is_made_from(module, monkeypatch):
    """A digest depends on these files alone: every file of the package is changed in turn."""
    text, changed = cache.source, []
    monkeypatch.setattr(cache, "source", lambda name: text(name) + "# changed" * (name in changed))

    def digest():
        cache.sources.cache_clear()
        return cache.digest(f"onnx_ops.{module}")

    before, sources = digest(), set()
    for path in PACKAGE.rglob("*.py"):
        name = ".".join(("onnx_ops", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
        changed[:] = [name]
        if digest() != before:
            sources.add(name.removeprefix("onnx_ops."))
    changed.clear()
    assert digest() == before
    assert sources == MADE_FROM[module]


def test_details_of_a_digest():
    """A digest depends on all that the compiler is given besides sources."""
    plain = cache.digest("onnx_ops.kernels.col2im", "name", 1)
    assert cache.digest("onnx_ops.kernels.col2im", "name", 1) == plain
    assert cache.digest("onnx_ops.kernels.col2im", "name", 2) != plain
    assert cache.digest("onnx_ops.kernels.grid_sample", "name", 1) != plain


def make_shift(amount):
    def shift(x):
        return x + amount

    return shift


def test_functions_that_use_variables_of_another():
    """Two functions of one factory would share a file."""
    with pytest.raises(OSError, match="shift uses variables of the function around it"):
        cache.digest(make_shift(1))


NUMBER = 1
UNNAMED = {"one": lambda x: x + 1, "other": lambda x: x + 2, "of a number": lambda x: x + NUMBER}  # on one line


def _(x):
    return x + 1


UNNAMED["below"] = _
del _


def test_functions_that_have_no_name_of_their_own(monkeypatch):
    """Each has its own file, and another one if a global number that it uses changes."""
    digests = {name: cache.digest(function) for name, function in UNNAMED.items()}
    assert {name: cache.digest(function) for name, function in UNNAMED.items()} == digests
    assert len(set(digests.values())) == len(UNNAMED)
    monkeypatch.setattr(sys.modules[__name__], "NUMBER", 2)
    changed = {name for name, function in UNNAMED.items() if cache.digest(function) != digests[name]}
    assert changed == {"of a number"}


IMPORTS = {
    "relative": "from . import third",
    "relative name": "from .third import NUMBER",
    "everything": "from .third import *",
    "absolute": "import followed.third",
    "absolute name": "from followed.third import NUMBER",
    "renamed": "from followed import third as other, second",
    "in brackets": "from followed import (  # a bracket )\n    third,\n    second as one,\n)",
    "continued": "from followed \\\n    import third",
    "in a function": "def f():\n    from .third import NUMBER",
    "beside a text": '"""It goes\nfrom here to there:\nimport nothing."""\nimport followed.third',
    "of another package": "from other_package import third",
    "this package": "from onnx_ops.kernels.coordinates import pad_index",
}


@pytest.mark.parametrize("how", IMPORTS)
def test_imports_that_are_followed(how, tmp_path, monkeypatch):
    for package in ("followed", "other_package"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("")
        (tmp_path / package / "third.py").write_text("NUMBER = 1")
        (tmp_path / package / "second.py").write_text("")
    text = "import os, re\nimport numpy as np\nfrom numba import types\n" + IMPORTS[how] + "\n"
    (tmp_path / "followed" / "first.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for cached in (cache.source, cache.imported, cache.sources):
        cached.cache_clear()
    sources = {"of another package": "other_package.third", "this package": "onnx_ops.kernels.coordinates"}
    names = set(cache.sources("followed.first"))
    assert sources.get(how, "followed.third") in names
    assert not {name.partition(".")[0] for name in names} & {"os", "re", "numpy", "numba"}
    for package in ("followed", "other_package"):
        sys.modules.pop(package, None)


def test_another_compiler_finds_nothing(monkeypatch):
    plain = cache.digest("onnx_ops.kernels.col2im")
    for change in (
        lambda patched: patched.setattr(importlib.metadata, "version", lambda name: "9.9"),
        lambda patched: patched.setenv("NUMBA_OPT", "1"),
        lambda patched: patched.setenv("NUMBA_CPU_NAME", "generic"),
        lambda patched: patched.setattr(cache, "BOUNDSCHECK", True),
    ):
        with monkeypatch.context() as patched:
            change(patched)
            cache.compiler.cache_clear()
            assert cache.digest("onnx_ops.kernels.col2im") != plain
    cache.compiler.cache_clear()
    assert cache.digest("onnx_ops.kernels.col2im") == plain


def test_sources_in_a_zip_file(tmp_path, monkeypatch):
    (tmp_path / "zipped").mkdir()
    (tmp_path / "zipped" / "__init__.py").write_text("from .other import (\n    a,  # a comment\n    b as c,\n)\n")
    (tmp_path / "zipped" / "other.py").write_text("from . import third\na = b = 1\n")
    (tmp_path / "zipped" / "third.py").write_text("")
    archive = shutil.make_archive(str(tmp_path / "archive"), "zip", tmp_path, "zipped")
    shutil.rmtree(tmp_path / "zipped")
    monkeypatch.syspath_prepend(archive)
    assert set(cache.sources("zipped")) == {"zipped", "zipped.other", "zipped.third"}


def test_without_sources_nothing_is_kept(monkeypatch, caplog):
    """A digest of nothing would find stale code."""
    spec = importlib.util.spec_from_loader("sourceless", loader=None)
    monkeypatch.setattr(cache.importlib.util, "find_spec", lambda name: spec)
    with pytest.raises(OSError, match="the module sourceless has no source file"):
        cache.sources("sourceless")


def test_a_source_that_is_edited_while_the_process_runs(tmp_path, monkeypatch):
    """The process has imported another source: its code would be kept under the digest of the edited file."""
    path = tmp_path / "edited.py"
    path.write_text("from onnx_ops.kernels.jit import jitable\n\n@jitable\ndef f(x):\n    return x\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("edited")
    assert "edited" in cache.sources("edited")
    append(path, "# changed\n")
    cache.source.cache_clear()
    cache.sources.cache_clear()
    with pytest.raises(OSError, match="the module edited has been edited since it was imported"):
        cache.sources("edited")


def test_packages_that_are_installed_elsewhere():
    """Packages that `pip install --user` or `--target` has installed are not followed either."""
    script = """
import sysconfig
paths = sysconfig.get_paths()
paths.update(purelib="/nowhere", platlib="/nowhere", platstdlib=paths["stdlib"])  # the last is around a venv's
sysconfig.get_paths = lambda: paths
from onnx_ops.kernels import cache
print({name.partition(".")[0] for name in cache.sources(cache.MACHINERY)})
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("{'onnx_ops'}\n", "")


ADDRESSES = """
import numba
import numpy as np
import onnx_ops
LARGE, SPARSE = np.arange(300_000, dtype=np.float32), np.arange(20.0).reshape(10, 2)[:, 1]
@numba.njit
def compiled_before(i):
    return LARGE[i]
compiled_before(0)
def operator(kernel):
    declared = onnx_ops.operator("my::Read", inputs="x: float32", outputs="y: float32")(lambda x: x)
    declared.shape(lambda x: x).kernel(kernel)
    return declared(np.ones(3, np.float32)).tolist()
def table(x, index, count, workspace, y):
    for i in range(x.size):
        y[i] = LARGE[i + 299_990] + SPARSE[i]
def linked(x, index, count, workspace, y):
    for i in range(x.size):
        y[i] = compiled_before(i)
print([operator(each) for each in (table, linked)])
"""


def test_code_with_addresses_of_another_process(tmp_path):
    """Global arrays are in the code, of any size and layout. Code that has an address all the same isn't kept."""
    (tmp_path / "addresses.py").write_text(ADDRESSES)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "addresses.py"], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        values = [[299991.0, 299994.0, 299997.0], [0.0, 1.0, 2.0]]
        assert (done.returncode, done.stdout) == (0, f"{values}\n"), done.stderr
        assert "it holds addresses, which are of this process alone" in done.stderr
    kernels = [path.name for path in (tmp_path / "cache" / "onnx_ops").iterdir() if "float32" in path.name]
    assert [name.partition("-f")[0] for name in kernels] == ["__main__-table"]


WARMUP = """
import sys
import onnx_ops
assert onnx_ops.__file__.startswith(sys.argv[1]), onnx_ops.__file__
reports = []
count = onnx_ops.warmup(["Col2Im"], ["float32"], progress=lambda *report: reports.append(report))
assert [(index, total) for _, index, total in reports] == [(k, count) for k in range(count)], reports
assert {"Col2Im float32", "org.openvinotoolkit.Col2Im float32"} == {name for name, *_ in reports}, reports
"""


@pytest.mark.long
def test_after_warmup_sessions_compile_nothing(home):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(home / "cache"), "PYTHONPATH": str(home)}
    done = subprocess.run(
        [sys.executable, "-c", WARMUP, str(home)], check=True, env=environment, cwd=home, capture_output=True, text=True
    )
    assert done.stderr == ""  # a process that asks for compilation gets no message about it
    files = cached(home)
    assert cached_after_a_run(home) == files


@pytest.mark.parametrize("domain", dict.fromkeys(o.domain for o in OPERATORS))
def test_warmup_knows_every_kernel(domain):
    """Warmup compiles every kernel that a case of the tests needs."""
    kernels_by_plan = {}
    for operator, position, signature in variants.variants(OPERATORS, dtypes.TABLE).values():
        kernel = operator.kernels[position]
        kernels_by_plan.setdefault(operator.plan, set()).add((kernel.function, operator.storage(kernel, signature)))
    cases = [c for c in CASES if c.domain == domain]
    assert cases
    for case in cases:
        parameters = case.operator.resolved(case.attributes)
        for signature in case.operator.signatures():
            if not refused(case.operator, parameters, signature):
                assert kernel_of(case.operator, parameters, signature) in kernels_by_plan[case.operator.plan]


def kernel_of(operator, parameters, signature):
    record = Record(parameters[0])
    kernel = operator.selected_kernel(record)
    return kernel.function, operator.storage(kernel, signature)


def refused(operator, parameters, signature):
    try:
        operator.check_types(operator.selected_kernel(Record(parameters[0])), signature)
    except onnx_ops.OpError:
        return True


def test_slow_compilation_is_told(monkeypatch, caplog):
    """A message appears once compilation takes longer than PATIENCE, unless it was asked for."""
    monkeypatch.setattr(code, "PATIENCE", 0.0)
    monkeypatch.setattr(compiler, "object_code", lambda entry, symbol: time.sleep(0.5))
    monkeypatch.setattr(code, "loaded", lambda content, symbol: 1)
    make = lambda: code.Code(Entry((Step(without_parameters, ()),), 2, Place(0)), cache.NotKept(OSError("a test")))
    make()
    assert [r.getMessage() for r in caplog.records] == [
        "onnx_ops: compiling declaration-without_parameters (once; not kept)"
    ]
    token = code.is_silent.set(True)
    make()
    code.is_silent.reset(token)
    assert len(caplog.records) == 1


def a_users_function():
    def add_up(a, times):
        for _ in range(times):
            for i in range(a.size):
                a[i] = a[i] * 3 + i

    return njit(add_up)


within_a_kernel, alone = a_users_function(), a_users_function()


def kernel(array, times):
    within_a_kernel(array, times)


def test_functions_that_python_calls_are_optimized():
    """They are optimized even if a kernel has them compiled first."""
    array = np.zeros(1000)
    record = np.array([array.ctypes.data, array.size])
    view = ArrayView(array.dtype, Place(Held(Place(0))), (Held(Place(0, 8)),))
    compiled = code.Code(Entry((Step(kernel, (view, Number(1))),), 2, Place(0)), cache.NotKept(OSError("a test")))
    assert compiled.call(record.ctypes.data, 1) == 0
    np.testing.assert_array_equal(array, np.arange(1000.0))
    seconds = {within_a_kernel: [], alone: []}
    for function in [within_a_kernel, alone] * 6:
        start = time.perf_counter()
        function(array, 3000)
        seconds[function].append(time.perf_counter() - start)
    assert min(seconds[within_a_kernel]) < 2.5 * min(seconds[alone])
