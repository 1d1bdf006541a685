"""The service of docs/service.md in a process of its own, and its clients: requests good and
bad.
"""

import io
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

import onnx_ops

from .pages import examples
from .processes import TESTS
from .processes import environment as of_processes

PAGE = TESTS.parent / "docs" / "service.md"
SOURCE = "".join(examples(PAGE, "python"))
START, STOP = (
    1800,
    600,
)  # seconds that a start and a stop may take on a machine that has much else to do


def environment(**variables: str) -> dict[str, str]:
    return of_processes(Path(onnx_ops.__file__).parent.parent, *sys.path, **variables)


def get(url: str, data: bytes | None = None) -> tuple[int, bytes] | None:
    """Return (status, content), or None if nobody answers."""
    try:
        with urllib.request.urlopen(url, data, timeout=STOP) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()
    except urllib.error.URLError:
        return None


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def replaced(text: Any, old: Any, new: Any) -> Any:
    """Return a text with its only occurrence of `old` replaced."""
    assert text.count(old) == 1, f"{text.count(old)} x {old!r}"
    return text.replace(old, new)


@contextmanager
def served(
    app: Path, patience: float | None = None, **variables: str
) -> Iterator[tuple[int, subprocess.Popen[bytes], Path]]:
    """A context in which the service runs; yields (port, its process, the file of its log). SIGTERM
    ends it.

    app       the folder with service.py and what it needs; its kernels lie in kernels/
    patience  replaces the page's, to save time
    variables of its environment
    """
    port = free_port()
    service, log = app / f"service-{port}.py", app / f"log-{port}"
    text = (app / "service.py").read_text()
    service.write_text(
        replaced(text, "PATIENCE = 5 ", f"PATIENCE = {patience} ") if patience else text
    )
    settings = environment(PORT=str(port), NUMBA_CACHE_DIR=str(app / "kernels"), **variables)
    command = [sys.executable, service.name]
    with (
        log.open("w") as file,
        subprocess.Popen(command, cwd=app, env=settings, stderr=file) as process,
    ):
        try:
            deadline = time.monotonic() + START
            while not (ready := get(f"http://127.0.0.1:{port}/")) and time.monotonic() < deadline:
                assert process.poll() is None, log.read_text()
                time.sleep(0.05)
            assert ready == (200, b"ready\n")
            yield port, process, log
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


def saved(array: Any) -> bytes:
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


def connect(port: int, timeout: float = STOP) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout)


def exchange(connection: socket.socket, *parts: bytes, pause: float = 0.0) -> tuple[bytes, float]:
    """Send parts of a request; return (all that comes back, the seconds that it took)."""
    start = time.monotonic()
    with connection:
        with suppress(ConnectionError):  # the service may have answered before
            for k, part in enumerate(parts):
                time.sleep(pause if k else 0)
                connection.sendall(part)
        answer = b""
        with suppress(ConnectionError):
            while part := connection.recv(2**16):
                answer += part
    return answer, time.monotonic() - start


def vanish(connection: socket.socket, *parts: bytes, pause: float = 0.0) -> None:
    """Send parts of a request, and reset the connection after a pause without reading an answer."""
    with connection:
        for part in parts:
            connection.sendall(part)
        time.sleep(pause)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def post(*headers: str, path: str = "/") -> bytes:
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: service", *headers, "", ""]).encode()


def request(content: bytes, path: str = "/") -> list[bytes]:
    """Return the parts of a right request with this body."""
    return [post(f"Content-Length: {len(content)}", path=path), content]


def empty_elements(dtype: str, count: int = 10**6) -> bytes:
    """An array in NumPy's format whose elements have no bytes.

    ONNX Runtime would make a string of each.
    """
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": dtype, "fortran_order": False, "shape": (count,)}
    )
    return header.getvalue()


IMAGE = np.random.default_rng(0).random((2, 3, 144, 192), np.float32)
BODY = saved(IMAGE)
LENGTH = f"Content-Length: {len(BODY)}"
SHAPE = replaced(BODY, b"(2, 3, 144, 192), }      ", b"(99999999999, 144, 192), }")


WAITING = (
    "no body",
    "body too short",
)  # lies with fewer bytes than promised, for which the service waits


def lies(path: str = "/") -> dict[str, tuple[list[bytes], int]]:
    """Return {name: (parts of a request, the status that it gets)}."""

    def start(*headers: str) -> bytes:
        return post(*headers, path=path)

    return {
        "no length": ([start(), BODY], 411),
        "negative length": ([start("Content-Length: -1")], 411),
        "empty length": ([start("Content-Length:")], 411),
        "length in words": ([start("Content-Length: many"), BODY], 411),
        "length in other digits": (
            [start("Content-Length: \u0665".encode().decode("latin-1")), BODY],
            411,
        ),
        "length with a sign": ([start("Content-Length: +5"), b"12345"], 411),
        "fractional length": ([start("Content-Length: 1e3")], 411),
        "chunks": ([start("Transfer-Encoding: chunked"), b"5\r\n12345\r\n0\r\n\r\n"], 411),
        "chunks and a length": (
            [start("Transfer-Encoding: chunked", "Content-Length: 5"), b"12345"],
            411,
        ),
        "huge length": ([start(f"Content-Length: {10**18 - 1}")], 413),
        "length of 5000 digits": ([start(f"Content-Length: {'9' * 5000}")], 413),
        "a byte more than allowed": ([start(f"Content-Length: {2**24 + 1}")], 413),
        "body too short": ([start(f"Content-Length: {2**24}"), BODY], 400),
        "no body": ([start(LENGTH)], 400),
        "empty body": ([start("Content-Length: 0")], 400),
        "array too short": (request(BODY[:200], path), 400),
        "array of a huge shape": ([start(LENGTH), SHAPE], 400),
        "archive": (request(b"PK\3\4", path), 400),
        "other shape": (request(saved(IMAGE[0]), path), 400),
        "many headers": ([start(*["a: b"] * 1000)], 431),
    }


def wrong_arrays(path: str = "/") -> dict[str, tuple[list[bytes], int]]:
    """Return {name: (parts of a request with an array that no model takes, the status that it
    gets)}.
    """
    arrays = {
        **{
            name: saved(IMAGE[:1].astype(name))
            for name in ("float16", "float64", "int32", "bool", ">f4", "complex64")
        },
        **{f"empty elements of {dtype}": empty_elements(dtype) for dtype in ("|V0", "|S0", "<U0")},
        "objects": saved(np.array([{}, None], object)),
        "records": saved(np.zeros(3, [("a", np.float32), ("b", np.int64)])),
        "no axis": saved(np.float32(1)),
        "a fifth axis": saved(IMAGE[None]),
        "a fourth channel": saved(np.zeros((1, 4, 144, 192), np.float32)),
        "no channel": saved(np.zeros((1, 0, 144, 192), np.float32)),
        "a wider image": saved(np.zeros((1, 3, 144, 193), np.float32)),
    }
    return {name: (request(content, path), 400) for name, content in arrays.items()}
