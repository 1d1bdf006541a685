"""Compiled code outlives its process; a change of what it is made from, and no other, invalidates
it.
"""

import compileall
import enum
import importlib.metadata
import io
import shutil
from collections import namedtuple
from contextlib import redirect_stdout, suppress
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import llvmlite.binding as llvm
import numba
import numpy as np
import pytest
from support.cases import CASES, model
from support.malformed import col2im
from support.processes import python
from support.selection import on_demand

import onnx_ops
from onnx_ops.compiler import code, compilation, key, numba_internals
from onnx_ops.compiler.records import Entry, Step
from onnx_ops.declaration import dtypes, jit
from onnx_ops.fold.col2im import plan as plan_of_col2im
from onnx_ops.kernels.shares import pieces
from onnx_ops.registry import OPERATORS
from onnx_ops.sampling.grid_sample import plan as plan_of_grid_sample
from onnx_ops.session import variants

pytestmark = pytest.mark.compiler

PACKAGE = Path(onnx_ops.__file__).parent
SCRIPT = """
import sys
import numpy as np
import onnx_ops
assert onnx_ops.__file__.startswith(sys.argv[1]), onnx_ops.__file__
session = onnx_ops.InferenceSession(sys.argv[2])
feeds = {"input": np.zeros((1, 9, 9), np.float32), "image_shape": np.array([5, 5]),
    "block_shape": np.array([3, 3])}
session.run(None, feeds)
"""


@pytest.fixture
def home(tmp_path):
    """A copy of the package and an empty cache."""
    shutil.copytree(PACKAGE, tmp_path / "onnx_ops", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "cache").mkdir()
    return tmp_path


def cached_after_a_run(home):
    path = home / "model.onnx"
    path.write_bytes(model("", "Col2Im", col2im("", "").inputs, {}).SerializeToString())
    python(SCRIPT, home, path, folders=[home], cwd=home, NUMBA_CACHE_DIR=str(home / "cache"))
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
    """A second process compiles nothing; after an edit, a third one only what the edited code is
    part of.
    """
    first = cached_after_a_run(home)
    assert names(first) == ["col2im-col2im-float32-float32", "col2im-plan", "col2im-shape"]
    assert cached_after_a_run(home) == first
    append(home / "onnx_ops" / "fold" / "col2im_kernels.py", "\n# changed\nUNUSED = 1\n")
    for path in (
        "cli/app.py",
        "session/native_backend.py",
        "sampling/grid_sample.py",
        "sampling/grid_sample_kernels.py",
    ):
        append(
            home / "onnx_ops" / path,
            "\nraise SystemExit('imported')\n" if "cli" in path else "\nUNUSED = 1\n",
        )
    assert cached_after_a_run(home) == first
    kernels = home / "onnx_ops" / "fold" / "col2im_kernels.py"
    append(kernels, "\nPIECE += 1\n")  # of the plan alone
    second = cached_after_a_run(home)
    assert names(second.keys() - first.keys()) == ["col2im-plan"]
    code = kernels.read_text()
    kernels.write_text(code.replace("range(columns % stride)", "range(columns % stride + 0)"))
    assert kernels.read_text() != code
    assert names(cached_after_a_run(home).keys() - second.keys()) == [
        "col2im-col2im-float32-float32"
    ]


COMPILER_IMPORTS = """
import sys
import onnx_ops
before = {*sys.modules} - {"onnx_ops.declaration.errors"}
import onnx_ops.compiler.bounds, onnx_ops.compiler.compilation
packages = {"onnx_ops.compiler", "onnx_ops.kernels"}
print(*sorted(name for name in {*sys.modules} - before - packages if name.startswith("onnx_ops")))
"""


@pytest.mark.long
def test_the_compilers_files():
    """All files whose code may run while a function is compiled are part of a key."""
    imported = python(COMPILER_IMPORTS).stdout.split()
    assert imported == sorted(jit.COMPILER)
    vectors = {
        f"onnx_ops.compiler.{file.stem}" for file in Path(jit.__file__).parent.glob("simd*.py")
    }
    assert vectors <= set(imported)  # or compiled code would get the loops without vectors


def test_details_of_a_key():
    """A key depends on all that the compiler is given besides functions, and on their order."""
    functions = plan_of_col2im, plan_of_grid_sample
    plain = key.digest(functions, "name", 1)
    assert key.digest(functions, "name", 1) == plain
    other_keys = (functions, "name", 2), (functions[:1], "name", 1), (functions[::-1], "name", 1)
    assert len({plain, *(key.digest(*other_key) for other_key in other_keys)}) == 4


def test_a_function_that_is_several_steps():
    """A rule that is also the loop's function, or the workspace's, has code of its own in each of
    these roles.
    """

    def length(x):
        return x

    def one(x):
        return (1,)

    def kernel(x, index, count, workspace, y):
        for k in range(len(x)):
            y[k] = len(workspace)

    for work, size in (
        ({"loop": length, "workspace": one}, 1),
        ({"loop": one, "workspace": length}, 3),
    ):
        operator = onnx_ops.operator("my.domain::Sizes", inputs="x: int64", outputs="y: int64")(
            lambda x: x
        )
        operator.shape(length).kernel(kernel, **work)
        np.testing.assert_array_equal(operator(np.arange(3)), [size] * 3)


# {what a function reads: (a module with two values for V, the expression that reads it)}; only
# `pick` tells which one.
READ = {
    "a number": ("V = pick(1, 2)", "V"),
    "a number's type": ("V = pick(1, 1.0)", "V"),
    "a zero's sign": ("V = pick(0.0, -0.0)", "V"),
    "a text": ("V = pick('one', 'two')", "len(V)"),
    "a number of NumPy": ("V = np.float32(pick(1, 2))", "V"),
    "its type": ("V = pick(np.float32, np.float64)(1)", "V"),
    "an array's element": ("V = np.zeros(10_000)\nV[5_000] = pick(1, 2)", "V[0]"),
    "an array's shape": ("V = np.zeros(pick((2, 3), (3, 2)))", "V[0, 0]"),
    "a record's fields": (
        "V = np.zeros((), [(pick('a', 'b'), int), (pick('b', 'a'), int)])[()]",
        "V.a",
    ),
    "a tuple": ("V = (1, (2.0, np.int8(pick(3, 4))))", "V[0]"),
    "a named tuple": ("V = namedtuple('V', pick('a b', 'b a'))(1, 2)", "V.a"),
    "a class of named tuples": ("V = namedtuple('V', pick('a b', 'b a'))", "V(1, 2).a"),
    "an enumeration": ("V = enum.IntEnum('V', {'A': pick(1, 2)})", "V.A.value"),
    "an alias in one": (
        "V = enum.IntEnum('V', [('A', 1), ('B', 2), ('C', pick(1, 2))])",
        "V.C.value",
    ),
    "a member of one": ("V = enum.Enum('V', 'A B')[pick('A', 'B')]", "V.value"),
    "a type": ("V = pick(np.float32, np.float64)", "V(1)"),
    "a type of Numba": ("V = pick(numba.float32, numba.float64)", "V(1)"),
    "a function of Python": ("V = pick(min, max)", "V(1, 2)"),
    "a function of NumPy": ("V = pick(np.sin, np.cos)", "V(1.0)"),
    "which helper": ("a = jitable(lambda: 1)\nb = jitable(lambda: 2)\nV = pick(a, b)", "V()"),
    "what a helper reads": ("W = pick(1, 2)\n@jitable\ndef V():\n    return W", "V()"),
    "what a helper's helper reads": (
        "W = pick(1, 2)\nh = jitable(lambda: W)\nV = jitable(lambda: h())",
        "V()",
    ),
    "a default": ("@jitable\ndef V(x=pick(1, 2)):\n    return x", "V()"),
    "a keyword's default": ("@jitable\ndef V(*, x=pick(1, 2)):\n    return x", "V()"),
    "flags of a helper": (
        "@jitable(**pick({}, {'fastmath': {'nnan', 'ninf'}}))\ndef V():\n    return 1",
        "V()",
    ),
    "a helper that calls itself": (
        "W = pick(1, 2)\n@jitable\ndef V(n):\n    return V(n - W) if n else 0",
        "V(2)",
    ),
    "helpers that call each other": (
        "W = pick(1, 2)\nV = jitable(lambda: U())\nU = jitable(lambda: V() + W)",
        "V()",
    ),
    "around a helper": ("def make(n):\n    return jitable(lambda: n)\nV = make(pick(1, 2))", "V()"),
    "in a function in a helper": ("W = pick(1, 2)\nV = jitable(lambda: (lambda: W)())", "V()"),
    "a function of Numba": ("W = pick(1, 2)\nV = numba.njit(lambda: W)", "V()"),
    "its options": ("V = numba.njit(fastmath=pick(False, True))(lambda: 1.0)", "V()"),
    "its types": ("V = numba.njit(pick('f4(f4)', 'f8(f8)'))(lambda x: x)", "V(1.0)"),
    "in a module": ("V = ModuleType('V')\nV.W = pick(1, 2)", "V.W"),
    "in a module's module": (
        "V = ModuleType('V')\nV.U = ModuleType('U')\nV.U.W = pick(1, 2)",
        "V.U.W",
    ),
    "a helper in a module": (
        "V = ModuleType('V')\nV.h = jitable(pick(lambda: 1, lambda: 2))",
        "V.h()",
    ),
}


def made(text, choice):
    """The function `f` of a module with this text, in which `pick` takes this one of its
    arguments.
    """
    space = {
        "pick": lambda *values: values[choice], "jitable": onnx_ops.jitable, "np": np,
        "numba": numba, "enum": enum,
        "namedtuple": namedtuple, "ModuleType": ModuleType, "__name__": __name__,
    }  # fmt: skip
    exec(text, space)
    return space["f"]


@pytest.mark.parametrize("what", READ)
def test_what_a_function_can_reach(what):
    """Its key tells one value from another, wherever the function finds it, and is the same for
    equal ones.
    """
    definitions, expression = READ[what]
    for body in (
        f"def f(x):\n    return {expression}",
        f"def g(V):\n    return lambda x: {expression}\nf = g(V)",
    ):
        functions = [made(f"{definitions}\n{body}", choice) for choice in (0, 1, 0)]
        first, second, first_again = [key.digest([function]) for function in functions]
        assert (first == first_again, first == second) == (True, False), body


def test_what_a_function_does_not_read():
    """Comments, lines, names of locals aside, what is around a function doesn't change its key."""
    text = (
        "import logging\nlog = logging.getLogger()\n{}\ndef f(x):\n{}    return np.log(x) + x.other"
    )
    variants_of_text = [
        ("", ""),
        ("V = 1\n\n", ""),
        ("other = print", ""),
        ("", "    # a comment\n"),
    ]
    assert len({key.digest([made(text.format(*names), 0)]) for names in variants_of_text}) == 1


UNKNOWN = {
    "a plain function": (
        "V = lambda x: x",
        "V(x)",
        "a function, which no key can describe; mark it by onnx_ops.jit",
    ),
    "a C function": (
        "import ctypes\nV = ctypes.CFUNCTYPE(None)(lambda: 1)",
        "V()",
        ".*CFunctionType, which no key",
    ),
    "an object": ("V = object()", "V", "a object, which no key can describe"),
    "in a tuple": ("V = (1, object())", "V", "a tuple, which no key can describe"),
    "in an array": ("V = np.array([object()])", "V", "a ndarray, which no key can describe"),
    "a module that is passed on": (
        "V = ModuleType('V')",
        "(V, 1)",
        "a module, which no key can describe",
    ),
}


@pytest.mark.parametrize("what", UNKNOWN)
def test_what_no_key_can_describe(what):
    definitions, expression, message = UNKNOWN[what]
    with pytest.raises(OSError, match=f"f reads V, {message}"):
        key.digest([made(f"{definitions}\ndef f(x):\n    return {expression}", 0)])


def test_a_helper_that_reads_another_value_now(monkeypatch):
    """Numba compiles a helper once: its new callers have the old value."""
    function = made("W = 1\nV = jitable(lambda: W)\ndef f(x):\n    return V() + W", 0)
    plain = key.digest([function])
    monkeypatch.setitem(function.__globals__, "W", 2)
    with pytest.raises(OSError, match="what <lambda> reads has changed since it was first used"):
        key.digest([function])
    monkeypatch.setitem(function.__globals__, "W", 1)
    assert key.digest([function]) == plain


def test_a_value_that_changes_while_code_is_compiled(monkeypatch, tmp_path):
    """What is compiled then isn't kept, as its key tells of the value before."""
    function = made("V = 1\ndef f(x):\n    return V", 0)

    def object_code(entry, symbol):
        function.__globals__["V"] = 2
        return b"code"

    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compilation, "object_code", object_code)
    compiled = code.code(Entry((Step(function, ()),)))
    assert compiled.kept.missing() == "values that it reads changed during the compilation"
    assert not list(tmp_path.rglob("*.code"))


def test_another_compiler_finds_nothing(monkeypatch, tmp_path):
    settings_file = tmp_path / ".numba_config.yaml"
    settings_file.write_text('opt: "1"\n')
    plain = key.digest([pieces])
    for change in (
        lambda patched: patched.setattr(importlib.metadata, "version", lambda name: "9.9"),
        lambda patched: patched.setenv("NUMBA_OPT", "1"),
        lambda patched: patched.setenv("NUMBA_BOUNDSCHECK", "1"),
        lambda patched: patched.setenv("NUMBA_DEBUGINFO", "1"),
        *(
            [lambda patched: patched.chdir(settings_file.parent)] if find_spec("yaml") else []
        ),  # which reads it
        lambda patched: patched.setenv("NUMBA_CPU_NAME", "generic"),
        lambda patched: patched.setattr(key, "BOUNDSCHECK", True),
        lambda patched: patched.setitem(
            jit.COMPILER, "onnx_ops.declaration.errors", jit.COMPILER["onnx_ops.declaration.dtypes"]
        ),
    ):
        with monkeypatch.context() as patched:
            change(patched)
            key.versions.cache_clear()
            patched.setattr(key, "stamps_at_import", jit.stamps())
            assert key.digest([pieces]) != plain
    key.versions.cache_clear()
    assert key.digest([pieces]) == plain


KEYS = """
import hashlib
from onnx_ops.declaration import dtypes
from onnx_ops import registry
from onnx_ops.compiler import key
from onnx_ops.registry import OPERATORS
from onnx_ops.session import variants
entries = {e: None for v in variants.combinations(OPERATORS, ["float32"]) for e in v.entries()}
print(hashlib.sha256(repr([key.digest(e.functions, e.name, e)
    for e in entries]).encode()).hexdigest())
"""


def keys(home, place, **settings):
    """A digest of the keys that another process computes for the package in this folder or
    archive.
    """
    done = python(KEYS, folders=[place], cwd=home / "cache", check=False, **settings)
    return done.stdout or done.stderr


@pytest.mark.long
def test_keys_are_the_same_in_every_process(home):
    """Also where hashes differ, in another place, and from a zip file."""
    archive = shutil.make_archive(str(home / "archive"), "zip", home, "onnx_ops")
    here = io.StringIO()
    with redirect_stdout(here):
        exec(KEYS, {})
    assert keys(home, archive, PYTHONHASHSEED="2") == here.getvalue()


def test_without_sources_there_is_no_key(home):
    compileall.compile_dir(home / "onnx_ops", quiet=1, legacy=True)
    for path in (home / "onnx_ops").rglob("*.py"):
        path.unlink()
    assert "OSError: onnx_ops has no source files" in keys(home, home)


def test_a_package_that_is_edited_while_the_process_runs(monkeypatch):
    """The compiler that this process will import may be another one than the one that its functions
    were made for.
    """
    monkeypatch.setattr(key, "stamps_at_import", [(0, 0), *jit.stamps_at_import[1:]])
    with pytest.raises(OSError, match="onnx_ops has been edited since it was imported"):
        key.digest([pieces])


ADDRESSES = """
import llvmlite.binding as llvm
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


@pytest.mark.long
@pytest.mark.parametrize("processes", [1, 2])
def test_code_with_addresses_of_another_process(processes, tmp_path):
    """Global arrays are in the code, of any size and layout.

    Code that has an address all the same isn't kept.
    """
    (tmp_path / "addresses.py").write_text(ADDRESSES)
    for _ in range(processes):
        done = python(
            "import addresses",
            folders=[tmp_path],
            cwd=tmp_path,
            NUMBA_CACHE_DIR=str(tmp_path / "cache"),
        )
        assert done.stdout == f"{[[299991.0, 299994.0, 299997.0], [0.0, 1.0, 2.0]]}\n"
        assert "it holds addresses, which are of this process alone" in done.stderr
    kernels = [
        path.name for path in (tmp_path / "cache" / "onnx_ops").iterdir() if "float32" in path.name
    ]
    assert [name.partition("-f")[0] for name in kernels] == ["addresses-table"]


CACHED_BY_NUMBA = """
import llvmlite.binding as llvm
import numba
import numpy as np
import onnx_ops
import values
@numba.njit(cache=True)
def gain():
    return values.GAIN
def compiled(types):
    declared = onnx_ops.operator("my::Gain", inputs="x: T", outputs="y: T",
        types={"T": types})(lambda x: x)
    @declared.shape(lambda x: x).kernel
    def _(x, index, count, workspace, y):
        for i in range(x.size):
            y[i] = x[i] * gain()
    return declared(np.ones(2, types[0])).tolist()
"""


@pytest.mark.long
def test_functions_in_numbas_own_cache(tmp_path):
    """Numba sees no change outside of their file, so kernels have them compiled anew, for these
    kernels alone.
    """
    (tmp_path / "cached.py").write_text(CACHED_BY_NUMBA)
    kernels = "print(*(cached.compiled([name]) for name in ('float32', 'float64')))"
    for value, script in (
        (2.0, kernels),
        (3.0, kernels),
        (4.0, "print(cached.gain())"),
        (5.0, kernels),
    ):
        (tmp_path / "values.py").write_text(f"GAIN = {value}")
        arguments = {
            "folders": [tmp_path],
            "cwd": tmp_path,
            "NUMBA_CACHE_DIR": str(tmp_path / "cache"),
        }
        done = python(f"import cached; {script}", PYTHONDONTWRITEBYTECODE="1", **arguments)
        assert done.stdout == (
            f"{[value, value]} {[value, value]}\n" if script == kernels else f"{value}\n"
        )


UNLOADABLE = """
import hashlib
from onnx_ops.compiler import code, compilation
from onnx_ops.compiler.records import Entry, Step
entry = Entry((Step(lambda: None, ()),))
compiled = code.code(entry)
content, path = compiled.content, compiled.kept.path
def compile_again(entry, symbol):
    compiled_again.append(symbol)
    return content
compilation.object_code = compile_again
# Of a header of ELF; elsewhere this makes no format that there is.
machine = bytes([content[18] ^ 0x80])
for name, other in {
    "whole": content, "nothing": b"", "a text": b"no code at all" * 1000,
        "the header": content[:64],
    "half": content[:len(content) // 2], "cut short": content[:-1],
    "for another machine": content[:18] + machine + content[19:],
    "another function": content.replace(compiled.symbol.encode(), compiled.symbol[::-1].encode()),
}.items():
    compiled_again = []
    path.write_bytes(hashlib.sha256(other).digest() + other)
    code._outcome.cache_clear()
    assert code.code(entry).call(0) == 0
    assert path.read_bytes() == hashlib.sha256(content).digest() + content
    print(name, len(compiled_again), sep=": ")
"""


@pytest.mark.long
@on_demand
def test_files_with_a_right_checksum_that_cannot_be_loaded(tmp_path):
    """LLVM would end the process, or find no function. They are compiled again."""
    done = python(UNLOADABLE, NUMBA_CACHE_DIR=str(tmp_path))
    whole_file, *lines = done.stdout.splitlines()
    assert whole_file == "whole: 0"
    assert len(lines) == 7
    assert all(line.endswith(": 1") for line in lines), lines


def test_an_object_file_that_lacks_its_function():
    """Its address would be 0, where a call ends the process."""
    empty = code._machine().emit_object(llvm.parse_assembly(""))
    assert not code.has_function(empty, "f")
    with pytest.raises(
        onnx_ops.OpError, match="kernel = f: can't be loaded: its object file doesn't define it"
    ):
        code.loaded(empty, "f")


@pytest.mark.parametrize("domain", dict.fromkeys(o.domain for o in OPERATORS))
def test_warmup_knows_every_kernel(domain):
    """Warmup compiles every kernel that a case of the tests needs."""
    kernels_by_plan = {}
    for operator, position, signature in variants.combinations(OPERATORS, dtypes.TABLE):
        kernel = operator.kernel(position)
        kernels_by_plan.setdefault(operator.plan, set()).add(
            (kernel.function, operator.storage(kernel, signature))
        )
    cases = [c for c in CASES if c.domain == domain]
    assert cases
    for case in cases:
        kernel = case.operator.kernels[case.operator.choice(case.operator.values(case.attributes))]
        for signature in case.operator.signatures():
            with suppress(onnx_ops.OpError):
                case.operator.check_types(kernel, signature)
                storage = case.operator.storage(kernel, signature)
                assert (kernel.function, storage) in kernels_by_plan[case.operator.plan]


def test_numba_that_must_not_compile(monkeypatch):
    monkeypatch.setattr(numba_internals.config, "DISABLE_JIT", 1)
    rule = (
        "can't be compiled: NUMBA_DISABLE_JIT is set, with which Numba compiles nothing; unset it"
    )
    with pytest.raises(onnx_ops.OpError, match=rule):
        numba_internals.check_numba()


def test_the_colours_of_numbas_messages():
    """They are there if the package colorama is installed."""
    lines = (
        "Failed in nopython mode",
        "\x1b[1m\x1b[1mno such\x1b[0m",
        "\x1b[1mDuring: typing of x at f.py (3)\x1b[0m",
    )
    assert compilation.cause(ValueError("\n".join(lines))) == "no such (f.py, line 3)"


class Clock:
    """A clock that advances by `sleep` alone, with the timers that it has."""

    def __init__(self):
        self.now, self.timers = 0.0, []

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        for timer in [timer for timer in self.timers if timer.end <= self.now]:
            self.timers.remove(timer)
            timer.function()

    def timer(self, seconds, function):
        """Return what `threading.Timer` would return."""
        timer = SimpleNamespace(end=self.now + seconds, function=function)
        timer.start = lambda: self.timers.append(timer)
        timer.cancel = lambda: self.timers.remove(timer) if timer in self.timers else None
        return timer


def test_slow_compilation_is_told(monkeypatch, caplog):
    """One message is for all functions of an operator, unless they were asked for."""
    clock = Clock()
    monkeypatch.setattr(code, "time", clock)
    monkeypatch.setattr(code.threading, "Timer", clock.timer)
    monkeypatch.setattr(code, "_announced", set())
    monkeypatch.setattr(code, "key_of", lambda entry: ("key", OSError("a test")))
    monkeypatch.setattr(
        compilation, "object_code", lambda entry, symbol: clock.sleep(entry.seconds)
    )
    monkeypatch.setattr(code, "loaded", lambda content, symbol: 1)

    def compile_one(title, seconds):
        entry = Entry((Step(pieces, ()),))
        object.__setattr__(entry, "seconds", seconds)
        code._outcome.cache_clear()
        code.code(entry, title)

    token = code.is_silent.set(True)
    compile_one("silent", 5)
    code.is_silent.reset(token)
    caplog.set_level("INFO", "onnx_ops")
    titles = "Fast", "First", "Second", "Fast", "First"
    for title, seconds in zip(titles, (0.9, 5, 5, 0.9, 5), strict=True):
        compile_one(title, seconds)
    code._outcome.cache_clear()
    records = [record for record in caplog.records if hasattr(record, "compiling")]
    warnings = [record.getMessage() for record in records if record.levelname == "WARNING"]
    assert warnings == [
        f"onnx_ops: compiling {title} (a few seconds)" for title in ("First", "Second")
    ]
    steps = [record.compiling for record in records if record.levelname == "INFO"]
    assert steps == [step for title in titles for step in (title, None)]
