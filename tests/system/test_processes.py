"""Threads, workers, exits and caches: no deadlock, no crash, the same results.

Each script runs in its own process.
"""

import os
import re
import shutil
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from support.backends import IN_SESSIONS
from support.processes import BARE_SETUP, PATIENCE, SETUP, TESTS, together
from support.selection import long_unless, needs_extensions, on_demand

import onnx_ops
from onnx_ops.arrays import functions
from onnx_ops.declaration.attributes import Attribute

PACKAGE = Path(onnx_ops.__file__).parent


def started(script, setup=SETUP, **environment):
    environment = {**os.environ, "TESTS": str(TESTS), **environment}
    return subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-c", setup + script], cwd=TESTS, env=environment,
        text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def finished(process):
    """Assert that a process ends with status 0 and no errors; return its output."""
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, f"exit status {process.returncode}: {err[-3000:]}"
    assert not err.strip(), err[-3000:]
    return out


@on_demand
def test_threads_that_connect_the_library_at_once():
    """They share one table: with two, one lacked what was compiled for the other, and sessions
    crashed.
    """
    script = """
import time
from onnx_ops.native import table
rows, operator = [], table.operator_row
def slowly(*arguments):
    rows.append(arguments[0].title)
    time.sleep(0.001)
    return operator(*arguments)
table.operator_row = slowly
together([onnx_ops.get_library_path] * 2)
print(len(rows) == len({*rows}) > 0)
"""
    assert finished(started(script, BARE_SETUP)) == "True\n"


def test_threads_that_use_the_same_attributes_first(monkeypatch):
    """They share one block of values: with two, compiled code read one that had been freed."""
    meeting, content = threading.Barrier(2), Attribute.content

    def content_at_once(*arguments):
        with suppress(threading.BrokenBarrierError):  # where a lock lets only one thread get here
            meeting.wait(1)
        return content(*arguments)

    monkeypatch.setattr(Attribute, "content", content_at_once)
    values = functions.COL2IM.values({"strides": [2, 3], "pads": [1, 1, 0, 0]})
    assert together(lambda _: values.address, 2) == [values.block.ctypes.data] * 2


@pytest.mark.long
def test_threads_that_make_sessions_at_once(tmp_path):
    """Threads make and run sessions of both backends; the cache is empty, so that all of them
    compile.
    """
    script = """
together([lambda b=b, c=c: [np.testing.assert_array_equal(make(c, b)(), make(c, b)())
    for _ in range(3)]
          for b in IN_SESSIONS for c in CASES])
together([assert_cases] * 4)
print("done")
"""
    assert finished(started(script, NUMBA_CACHE_DIR=str(tmp_path))) == "done\n"


@pytest.mark.parametrize("turns", [30, long_unless(False, 250)])
def test_threads_on_sessions_of_both_backends(turns):
    """8 threads run six sessions so many times, while others call functions; each session gives
    one result.
    """
    script = f"""
sessions = [(make(c, b), expected_of(c, c.inputs("float32"))) for c in CASES for b in IN_SESSIONS]
expected = [call() for call, _ in sessions]
for y, (_, e) in zip(expected, sessions):
    assert_close(y, e, "float32")
def work():
    for turn in range({turns}):
        k = turn % len(sessions)
        np.testing.assert_array_equal(sessions[k][0](), expected[k])
together([work] * 8 + [functions] * 2)
print("done")
"""
    assert finished(started(script)) == "done\n"


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("before", ["assert_cases(); functions()", "pass"])
def test_fork(before):
    """A child makes and runs sessions and starts threads for the functions, while the parent does
    so, too.

    It exits by os._exit, since a normal exit may wait for threads of ONNX Runtime that only the
    parent has.
    """
    script = f"""
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads around
{before}
children = []
for _ in range(3):
    child = os.fork()
    if not child:
        status = 1
        try:
            functions()
            assert_cases(("native",), intra_op_num_threads=2)
            status = 0
        finally:
            os._exit(status)
    children.append(child)
assert_cases()
functions()
print([os.waitpid(child, 0)[1] for child in children])
"""
    assert finished(started(script)) == "[0, 0, 0]\n"


ENDINGS = (
    "",
    "sys.exit(0)",
    "import atexit; atexit.register(kept[0])",
    "del onnx_ops, sys.modules['onnx_ops']",
)


# Processes of other tests end with live sessions in the short run.
@pytest.mark.long
@pytest.mark.parametrize("backends", [IN_SESSIONS, *([each] for each in IN_SESSIONS)], ids=" ".join)
@pytest.mark.parametrize("ending", ENDINGS)
def test_exit_with_live_sessions(backends, ending):
    """The interpreter's exit destroys sessions that modules, cycles and threads' stacks refer
    to.
    """
    script = f"""
kept = [make(case, backend) for backend in {backends} for case in CASES]
[call() for call in kept]
functions()
cycle = [kept]
cycle.append(cycle)
sys.modules["os"].kept_for_ever = make(CASES[0], {backends[-1]!r})
print("done", flush=True)
{ending}
"""
    assert finished(started(script)) == "done\n"


SMALL_STACK = """
SIZE = 2**16
threading.stack_size(SIZE)
thread = threading.Thread(target=one_kernel)
thread.start()
thread.join()
print(threading.stack_size(SIZE) == SIZE)
"""


@on_demand
@pytest.mark.long
def test_threads_with_small_stacks(tmp_path: Path) -> None:
    """Compilation has a stack of its own, as LLVM needs more than servers give to their threads."""
    assert finished(started(SMALL_STACK, BARE_SETUP, NUMBA_CACHE_DIR=str(tmp_path))) == "True\n"


NO_MEMORY = """
import resource
import onnx_ops.compiler.compilation  # while there is memory
MEGABYTES = 2**20
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
_, most = resource.getrlimit(resource.RLIMIT_AS)
for left in (50, 150, 300):
    resource.setrlimit(resource.RLIMIT_AS, (used + left * MEGABYTES, most))
    try:
        one_kernel()
    except onnx_ops.OpError as error:
        print(left, error.rule)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
one_kernel()
"""


@on_demand
@pytest.mark.long
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")
def test_compilation_without_memory(tmp_path):
    """It is an OpError that isn't kept: LLVM would end the process."""
    lines = finished(started(NO_MEMORY, NUMBA_CACHE_DIR=str(tmp_path))).splitlines()
    rule = "can't be compiled: OSError: [Errno 12] Cannot allocate memory"
    assert lines == [f"{left} {rule}" for left in (50, 150, 300)]


def contents(cache):
    return {f: f.stat().st_mtime_ns for f in cache.rglob("*") if f.is_file()}


@on_demand
@pytest.mark.long
def test_two_processes_compile_into_one_cache(tmp_path):
    cache = {"NUMBA_CACHE_DIR": str(tmp_path)}
    script = "one_kernel(); print('done')"
    for process in [started(script, **cache) for _ in range(3)]:
        assert finished(process) == "done\n"
    files = contents(tmp_path)
    assert {f.suffix for f in files} == {".code"}
    assert finished(started(script, **cache)) == "done\n"
    assert contents(tmp_path) == files, "compiled again"


NOT_KEPT = """
class Lines(logging.Handler):
    def emit(self, record):
        lines.append(record.getMessage())
lines = []
logging.getLogger("onnx_ops").addHandler(Lines())
logging.getLogger("onnx_ops").setLevel(logging.WARNING)
logging.getLogger("onnx_ops").propagate = False
from onnx_ops.compiler import code
code.PATIENCE = 0.01
one_kernel()
print(*lines, sep="\\n")
"""  # prints all messages


@pytest.fixture(scope="module")
def first_process(tmp_path_factory):
    """A cache, and what the process says that compiles a kernel into it."""
    cache = tmp_path_factory.mktemp("cache")
    return cache, finished(started(NOT_KEPT, BARE_SETUP, NUMBA_CACHE_DIR=str(cache)))


@pytest.fixture
def one_kernels_cache(first_process):
    return first_process[0]


@on_demand
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc and capset are Linux's")
@pytest.mark.parametrize(
    "place",
    [
        "read-only",
        *(
            long_unless(False, each)
            for each in ("a file", "not to be entered", "relative", "no home")
        ),  # without a home it is relative, too
    ],
)
def test_a_cache_that_cannot_be_written(place, tmp_path, monkeypatch):
    """Compiled code then lasts as long as its process, one message says so, and nothing is written
    elsewhere.
    """
    (tmp_path / "file").touch()
    (tmp_path / "closed").mkdir(0)
    places = {
        "a file": tmp_path / "file" / "cache", "read-only": Path("/proc/onnx_ops"),
        "not to be entered": tmp_path / "closed", "relative": "here", "no home": "~/.cache",
    }  # fmt: skip
    before, script, cache = contents(PACKAGE), "as_anybody()" + NOT_KEPT, str(places[place])
    if place == "no home":
        for name in "HOME", "XDG_CACHE_HOME":
            monkeypatch.delenv(name, raising=False)
        script, cache = "import pwd; pwd.getpwuid = {}.__getitem__\n" + script, ""
    message, compiling = sorted(
        finished(started(script, BARE_SETUP, NUMBA_CACHE_DIR=cache)).splitlines()
    )
    assert message.startswith(
        f"onnx_ops: compiled code is not kept in {places[place]}/onnx_ops for the next process: "
    )
    assert re.fullmatch(r"onnx_ops: compiling [\w-]+ \(a few seconds\)", compiling)
    assert contents(PACKAGE) == before
    assert contents(tmp_path).keys() == {tmp_path / "file"}


@on_demand
def test_a_message_names_the_cache(first_process):
    cache, message = first_process
    assert (
        message == "onnx_ops: compiling shares-pieces (once, a few seconds; cached in "
        f"{cache / 'onnx_ops'})\n"
    )


@on_demand
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc and capset are Linux's")
def test_a_cache_that_can_only_be_read(one_kernels_cache, tmp_path):
    """It is used without a message."""
    script = """
as_anybody()
assert not os.access(os.environ["NUMBA_CACHE_DIR"], os.W_OK)
from onnx_ops.compiler import cache, code
def fail(*args):
    raise AssertionError("written or compiled")
cache.write = code.Code.compile = fail
one_kernel()
print("done")
"""
    cache = shutil.copytree(one_kernels_cache, tmp_path / "cache")
    for path in (cache, *cache.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    assert finished(started(script, BARE_SETUP, NUMBA_CACHE_DIR=str(cache))) == "done\n"


GARBLED = {
    "empty": lambda content: b"",
    "cut short": lambda content: content[:-1],
    "a byte changed": lambda content: content[:500] + bytes([content[500] ^ 1]) + content[501:],
    "something else": lambda content: b"no code at all" * 1000,
}
WRITTEN_ONCE = """
one_kernel()
from onnx_ops.compiler import cache, code
def fail(*args):
    raise AssertionError("written or compiled again")
cache.write = code.Code.compile = fail
code._outcome.cache_clear()  # as in the next process
one_kernel()
"""


@on_demand
@pytest.mark.parametrize(
    "damage", [long_unless(k == 0, damage) for k, damage in enumerate(GARBLED)]
)
def test_a_damaged_cache(damage, one_kernels_cache, tmp_path):
    """Files that a full disk, a crash or a bad disk has damaged are written again, once."""
    cache = shutil.copytree(one_kernels_cache, tmp_path / "cache")
    whole = {file: file.read_bytes() for file in contents(cache)}
    damaged = min(whole)
    damaged.write_bytes(GARBLED[damage](whole[damaged]))
    finished(started(WRITTEN_ONCE, BARE_SETUP, NUMBA_CACHE_DIR=str(cache)))
    assert contents(cache).keys() == whole.keys()
    assert damaged.stat().st_size == pytest.approx(len(whole[damaged]), rel=0.01), (
        "not written again"
    )


@on_demand
@pytest.mark.long
def test_a_full_disk(tmp_path):
    """Writing to the cache fails halfway, and no partial file is left."""
    script = """
import errno, pathlib
def full(self, data):
    with open(self, "wb") as file:
        file.write(data[:100])
    raise OSError(errno.ENOSPC, "No space left on device")
pathlib.Path.write_bytes = full
"""
    message = finished(started(script + NOT_KEPT, BARE_SETUP, NUMBA_CACHE_DIR=str(tmp_path)))
    assert "No space left on device" in message
    assert not contents(tmp_path)


FORK = """
import signal, time, warnings
from onnx_ops.compiler import compilation
from onnx_ops.session import native_backend
warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads around
# A fork during ONNX Runtime's own first session could leave its locks held for ever.
with native_backend.survey():
    make(CASES[0])
compile_now, compiling = compilation.object_code, threading.Event()
def compile_slowly(*args):
    compiling.set()
    time.sleep(1)
    return compile_now(*args)
compilation.object_code = compile_slowly
{holder}
assert compiling.wait(60)
child = os.fork()
if not child:
    status = 1
    try:
        signal.alarm({patience} // 2)
        {child}
        status = 0
    finally:
        os._exit(status)
print(os.waitpid(child, 0)[1])
"""
THREAD = "thread = threading.Thread(target={work}); thread.start()"


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("work", ["one_kernel", "make(CASES[0])"])
def test_fork_while_another_thread_compiles(work, tmp_path):
    """The child must not wait for a lock that no thread there will release."""
    holder = THREAD.format(work=work if work == "one_kernel" else f"lambda: {work}")
    script = FORK.format(holder=holder, patience=PATIENCE, child="one_kernel(); make(CASES[0])()")
    process = started(script, NUMBA_CACHE_DIR=str(tmp_path))
    out, err = process.communicate(timeout=PATIENCE)
    assert out == "0\n", err[-3000:]


@pytest.mark.long
def test_code_that_several_processes_have_compiled(tmp_path):
    """Numba may give the code for two types one name, in processes that have compiled the same
    before.
    """
    for dtype in ("float16", "bfloat16"):
        environment = {"NUMBA_CACHE_DIR": str(tmp_path / dtype)}
        assert (
            finished(started(f"onnx_ops.warmup(['Im2ColProduct'], ['{dtype}'])", **environment))
            == ""
        )
    shutil.copytree(tmp_path / "float16", tmp_path / "bfloat16", dirs_exist_ok=True)
    script = """
import ml_dtypes
from onnx_ops.arrays import functions
from onnx_ops.registry import available
product = available()["onnx_ops", "Im2ColProduct"]
settings = {"kernel_shape": [3], "sum_over": "channels"}
for kind in (np.float16, ml_dtypes.bfloat16):
    x, factors = (np.array([numbers]).astype(kind)
        for numbers in ([[1, 2, 3], [10, 20, 30]], [[1], [0.25]]))
    print(*functions.call(product, x, factors, **settings).ravel().tolist())
"""
    assert finished(started(script, **environment)) == "3.5 7.0 10.5\n" * 2


@pytest.mark.long
@needs_extensions
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_fork_while_another_thread_begins_a_run():
    """The lock of the extensions backend for the errors of runs is free in the child."""
    script = """
import signal, warnings
from onnx_ops.session import extensions
warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads around
going = True
def work():
    while going:
        extensions.end(extensions.begin(1))
threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads:
    thread.start()
for _ in range(300):
    child = os.fork()
    if not child:
        signal.alarm(60)
        extensions.end(extensions.begin(1))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
going = False
print("done")
"""
    assert finished(started(script)) == "done\n"
