"""docs/service.md, deployment.md and cache.md are right: the service starts without compiling, its
settings fit other CPUs.
"""

import io
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
from support.processes import TESTS, python, together
from support.service import (
    BODY,
    IMAGE,
    LENGTH,
    PAGE,
    SOURCE,
    STOP,
    WAITING,
    connect,
    empty_elements,
    environment,
    exchange,
    free_port,
    get,
    lies,
    post,
    saved,
    served,
    vanish,
    wrong_arrays,
)  # fmt: skip

import onnx_ops
from onnx_ops.compiler import cache

pytestmark = pytest.mark.compiler

unix = pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGTERM there")
MODEL = TESTS.parent / "models" / "exported" / "spatial_transformer" / "model.onnx"
CONTAINER = PAGE.with_name("deployment.md").read_text()
SETTINGS = dict(re.findall(r"^ENV (NUMBA_\w+)=(.*)$", CONTAINER, re.MULTILINE))


@pytest.fixture
def app(tmp_path):
    """The folder of the page's image: model, service, and kernels that an earlier process has
    compiled.
    """
    (tmp_path / "service.py").write_text(SOURCE)
    shutil.copy(MODEL, tmp_path)
    onnx_ops.InferenceSession(MODEL)
    kernels = tmp_path / "kernels" / "onnx_ops"
    kernels.mkdir(parents=True)
    for name in ("shape", "plan*", "linear-float32-float32-float32"):
        for file in cache.directory().glob(f"grid_sample-{name}-*.code"):
            shutil.copy(file, kernels)
    return tmp_path


@unix
def test_the_service_compiles_nothing(app):
    """The service answers its first request, refuses a bad one, and ends upon SIGTERM."""
    kernels = app / "kernels"
    files = [kernels, *kernels.rglob("*")]
    before = {path: path.stat().st_mtime_ns for path in files}
    assert any(path.suffix == ".code" for path in files)
    for path in files:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        with served(app) as (port, process, log):
            url = f"http://127.0.0.1:{port}/"
            status, answer = get(url, saved(IMAGE))
            refused, message = get(url, b"nonsense")
    finally:
        for path in files:
            path.chmod(0o755)
    assert (status, process.returncode, refused) == (200, 0, 400)
    assert message
    expected = onnx_ops.InferenceSession(MODEL).run(None, {"image": IMAGE})[0]
    np.testing.assert_array_equal(np.load(io.BytesIO(answer)), expected)
    assert "onnx_ops" not in log.read_text()
    assert {path: path.stat().st_mtime_ns for path in [kernels, *kernels.rglob("*")]} == before


PATIENCE, ENDLESS = 1, 10**6  # seconds
LIES = lies() | wrong_arrays()
SHORT = {name: LIES.pop(name) for name in WAITING}


def check_answers(port, requests):
    """Send {name: (parts of a request, status)}, eight at a time, and compare the status of each
    answer.
    """
    with ThreadPoolExecutor(8) as threads:
        answers = threads.map(
            lambda request: exchange(connect(port), *request[0])[0], requests.values()
        )
        for (name, (_, status)), answer in zip(requests.items(), answers, strict=True):
            assert answer.startswith(f"HTTP/1.0 {status} ".encode()), (name, answer[:200])


@unix
def test_lying_requests(app):
    """Each gets its status, without a wait for more bytes, and none takes the service's memory or
    the session.

    Elements without bytes are refused before ONNX Runtime makes a string of each.
    """
    with served(app, ENDLESS) as (port, process, log):

        def resident():
            return psutil.Process(process.pid).memory_info().rss

        before = resident()
        check_answers(port, LIES)
        for dtype in ("|V0", "|S0", "<U0"):
            status, message = get(f"http://127.0.0.1:{port}/", empty_elements(dtype))
            assert (status, message.split(b",")[0]) == (400, b"the array must be of float32")
        assert resident() - before < 2**27
        assert get(f"http://127.0.0.1:{port}/", BODY)[0] == 200
    assert process.returncode == 0
    assert "Traceback" not in log.read_text()


@unix
@pytest.mark.long
def test_clients_that_reset_their_connection(app):
    """The service drops them without a traceback, whatever it reads or writes at that moment.

    Those that stay, and send fewer bytes than they promise, get an answer.
    """
    head = post(LENGTH)
    with served(app, PATIENCE) as (port, process, log):
        check_answers(port, SHORT)
        begun = (), (head[:5],), (head[:40],), (head,), (head, BODY[:1000]), (head, BODY)
        for pause in (0, 0.2):
            together(lambda k, p=pause: vanish(connect(port), *begun[k], pause=p), len(begun))
    assert process.returncode == 0
    assert "Traceback" not in log.read_text()


BYTES = 10_000  # of BODY, in a quarter of an hour


def drip(connection, is_enough):
    """Send up to BYTES one by one, until the service closes the connection; return how many were
    sent.
    """
    sent = 0
    with connection, suppress(OSError):
        while sent < BYTES and not is_enough():
            connection.sendall(BODY[sent : sent + 1])
            sent += 1
            time.sleep(0.1)
    return sent


@unix
@pytest.mark.long
def test_slow_and_vanishing_clients(app):
    """A client that sends a byte now and then, or goes away, keeps no thread; the service stops
    meanwhile.
    """
    head = post(LENGTH)
    with served(app, PATIENCE) as (port, process, log):
        for begin in (b"POST / HTTP/1.1\r\nLate: ", head):
            connection = connect(port)
            connection.sendall(begin)
            assert drip(connection, lambda: False) < BYTES
        with ThreadPoolExecutor(3) as threads:
            drips = (
                [bytes([byte]) for byte in head[:40]],
                [head, *(bytes([byte]) for byte in BODY[:40])],
            )
            for answer, _ in threads.map(
                lambda parts: exchange(connect(port), *parts, pause=0.1), drips
            ):
                assert not answer or b" 400" in answer
        for content in (b"", head, head + BODY[:1000], head + BODY):
            with connect(port) as connection:
                connection.sendall(content)
        idle = connect(port)
        slow = connect(port)
        slow.sendall(head)
        process.send_signal(signal.SIGTERM)
        assert drip(slow, lambda: process.poll() is not None) < BYTES
        process.wait(STOP)
        idle.close()
    assert process.returncode == 0
    assert "Traceback" not in log.read_text()


@unix
def test_a_stop_drops_no_request(app):
    """Upon SIGTERM the service finishes what it has begun to read, answers who has connected, then
    refuses others.
    """
    head, half = post(LENGTH), len(BODY) // 2
    with served(app) as (port, process, log):
        begun = [connect(port) for _ in range(6)]
        for connection in begun[:3]:
            connection.sendall(head + BODY[:half])
        time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        waiting = connect(port)  # whether or not the signal came first
        time.sleep(0.2)
        for connection in begun[:3]:
            connection.sendall(BODY[half:])
        for connection in (*begun[3:], waiting):
            connection.sendall(head + BODY)
        for connection in (*begun, waiting):
            with connection, connection.makefile("rb") as answer:
                assert answer.readline().startswith(b"HTTP/1.0 200 ")
        process.wait(STOP)
        with pytest.raises(ConnectionRefusedError):
            connect(port)
    assert process.returncode == 0
    assert "Traceback" not in log.read_text()


@unix
@pytest.mark.long
@pytest.mark.parametrize("trial", range(5))
def test_a_stop_under_load(app, trial):
    """Clients that connect all the time: whoever has connected before SIGTERM gets an answer."""
    answers, signalled = [], threading.Event()

    def work(k):
        request = [post(LENGTH), BODY] if k < 2 else [b"GET / HTTP/1.1\r\n\r\n"]
        while not signalled.is_set():
            try:
                connection = connect(port)
            except ConnectionError:
                assert signalled.is_set()
                return
            is_before = not signalled.is_set()
            answer, _ = exchange(connection, *request)
            if is_before:
                answers.append(answer.partition(b"\r")[0])

    with served(app) as (port, process, log), ThreadPoolExecutor(16) as threads:
        clients = threads.map(work, range(16))
        time.sleep(0.5 + 0.13 * trial)
        signalled.set()
        process.send_signal(signal.SIGTERM)
        process.wait(STOP)
        list(clients)
    assert set(answers) == {b"HTTP/1.0 200 OK"}
    assert len(answers) > 3
    assert process.returncode == 0
    assert "Traceback" not in log.read_text()


@unix
def test_a_stop_while_the_session_is_made(app):
    slow = (
        "import onnxruntime, time\nmake = onnxruntime.SessionOptions\n"
        "onnxruntime.SessionOptions = lambda: print('making', flush=True) or [time.sleep(0.01) "
        "for _ in range(10**6)]\n"
    )
    script = slow + "import runpy\nrunpy.run_path('service.py', run_name='__main__')"
    command = [sys.executable, "-c", script]
    with subprocess.Popen(
        command, cwd=app, env=environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "making\n"
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(STOP) == 0
        finally:
            process.kill()


@unix
@pytest.mark.long
def test_a_stop_while_sources_are_compiled(app):
    """Python's compiler drops exceptions of signal handlers, but KeyboardInterrupt, when it
    computes a power.
    """
    text = (app / "service.py").read_text()
    slow = (
        "import subprocess\n\n\ndef make_session():\n"
        "    subprocess.Popen(['sh', '-c', f'sleep 0.2; kill {os.getpid()}'], "
        "stderr=subprocess.DEVNULL)\n"
        "    for _ in range(1000):\n"
        "        compile('x = 2**62\\n' * 100_000, 'slow', 'exec')\n"
        "    print('made', flush=True)\n"
    )
    (app / "service.py").write_text(
        text.replace("\n\nclass Handler", f"\n\n{slow}\n\nclass Handler", 1)
    )
    settings = environment(PORT=str(free_port()))
    command = [sys.executable, "service.py"]
    with subprocess.Popen(
        command, cwd=app, env=settings, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.wait(STOP) == 0
            assert process.stdout.read() == ""
        finally:
            process.kill()


KEY = """
from onnx_ops.compiler import key
from onnx_ops.fold.col2im import plan
print(key.digest([plan]))
"""
OTHER_CPU = """
import llvmlite.binding as llvm
llvm.get_host_cpu_name = lambda: {name!r}
features = llvm.get_host_cpu_features
llvm.get_host_cpu_features = lambda: llvm.FeatureMap({{**features(), "avx2": {avx2},
    "sse4.2": {avx2}}})
"""


def digests(**settings):
    """Return the digests, which name the files of kernels, on two CPUs."""
    unset = (
        f"import os\nfor name in {[*SETTINGS]}:\n    os.environ.pop(name, "
        f"None)\nos.environ.update({settings})\n"
    )
    return [
        python(
            unset + OTHER_CPU.format(name=name, avx2=avx2) + KEY,
            folders=[Path(onnx_ops.__file__).parent.parent, *sys.path],
        ).stdout
        for name, avx2 in (("znver4", True), ("nehalem", False))
    ]


@pytest.mark.long
@pytest.mark.parametrize(
    ("names", "portable"),
    [(("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"), True), (("NUMBA_CPU_NAME",), False), ((), False)],
    ids=["both", "name only", "none"],
)
def test_settings_for_other_cpus(names, portable):
    first, second = digests(**{name: SETTINGS[name] for name in names})
    assert (first == second) == portable


def test_the_cache_is_where_the_page_says(monkeypatch):
    assert SETTINGS.keys() == {"NUMBA_CACHE_DIR", "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"}
    monkeypatch.setenv("NUMBA_CACHE_DIR", SETTINGS["NUMBA_CACHE_DIR"])
    assert cache.directory() == Path(SETTINGS["NUMBA_CACHE_DIR"], "onnx_ops")
    assert f"{cache.directory()} for the next process: " in PAGE.with_name("cache.md").read_text()
