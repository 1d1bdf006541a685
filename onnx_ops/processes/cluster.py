"""Tasks on the machines of a Ray cluster."""

import functools
import itertools
import os
import re
import socket
import sys
import sysconfig
import time
import zlib
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from pathlib import Path

import onnxruntime as ort

from ..declaration.errors import OpError

AHEAD = 2  # tasks in flight for each one that can run, so that no process waits for the next task
PATIENCE = 5  # seconds for a connection
INTERVAL = 1  # seconds between checks of Ray's process on this machine


@functools.lru_cache(maxsize=1)
def fetched(reference):
    """Return the value of a Ray reference, which each process fetches once."""
    import ray

    return ray.get(reference)


def do(shared, task):
    """Apply the work to a task.

    shared  a list with one Ray reference to the work. Ray doesn't resolve references inside lists.
    """
    work, expected = fetched(*shared)
    if versions() != expected:
        rule = f"must be those of the machine that sends it work, {expected}"
        raise OpError(f"versions on {socket.gethostname()}", versions(), rule, "onnx_ops")
    return work(task)


@functools.cache
def versions():
    """Return {package: version} of the packages that affect results. onnx_ops has a digest of its sources, too."""
    files = sorted(Path(__file__).parents[1].rglob("*"))
    sources = b"".join(file.read_bytes() for file in files if file.suffix in (".py", ".c", ".h"))
    package = sys.modules[__name__.partition(".")[0]]
    return {"onnx_ops": f"{package.__version__}+{zlib.crc32(sources):08x}", "onnxruntime": ort.__version__}


def answers(work, tasks, address, threads):
    """Yield (index of a task, task, work(task), False) as tasks end, each on `threads` CPUs of a cluster.

    Yields (index, task, None, True) if the process or machine of a task has ended. A process has one task at a time.

    work   a function, sent to each node once
    tasks  an iterable; only the tasks in flight are in memory

    Raises OpError.
    """
    with connection(address) as ray:
        shared = [ray.put((work, versions()))]
        count = sum(int(node["Resources"].get("CPU", 0)) // threads for node in ray.nodes() if node["Alive"])
        if not count:
            raise OpError("threads", threads, f"no machine of the cluster {address} has so many CPUs", "onnx_ops")
        # Without retries: Ray would retry for ever if there is not enough memory.
        remote = ray.remote(do).options(num_cpus=threads, max_retries=0, scheduling_strategy="SPREAD")
        errors = ray.exceptions
        ends = (
            errors.WorkerCrashedError, errors.NodeDiedError, errors.LocalRayletDiedError, errors.OutOfMemoryError,
            errors.ObjectLostError,
        )  # fmt: skip
        remaining, pending, watch = enumerate(tasks), {}, watch_of_raylet(ray, address)
        while True:
            for index, task in itertools.islice(remaining, AHEAD * count - len(pending)):
                pending[remote.remote(shared, task)] = index, task
            if not pending:
                return
            ready, _ = ray.wait(list(pending), timeout=INTERVAL)
            watch()
            if not ready:
                continue
            (reference,) = ready
            try:
                result, has_ended = ray.get(reference), False
            except ends:
                result, has_ended = None, True
            yield *pending.pop(reference), result, has_ended


def watch_of_raylet(ray, address):
    """Return a function that raises an OpError if Ray's process on this machine, the raylet, has ended.

    Some seconds later, Ray ends the process that is connected to it, by C's exit and without a message.
    """
    if address.startswith("ray://"):  # this process is connected to another raylet
        return lambda: None
    this = ray.get_runtime_context().get_node_id()
    (place,) = ((n["NodeManagerAddress"], n["NodeManagerPort"]) for n in ray.nodes() if n["NodeID"] == this)
    last = time.monotonic()

    def watch():
        nonlocal last
        if time.monotonic() < last + INTERVAL:
            return
        last = time.monotonic()
        try:
            with suppress(TimeoutError):  # a busy machine
                socket.create_connection(place, PATIENCE).close()
        except ConnectionRefusedError as error:
            rule = "Ray's process on this machine (raylet) has ended; start Ray and the command again"
            raise failure(address, rule) from error

    return watch


def failure(address, rule):
    """Return the OpError for a cluster that this process can't use."""
    return OpError("cluster", repr(address), rule, "onnx_ops")


@contextmanager
def connection(address):
    """Return a context in which Ray is connected to a cluster; it yields Ray's module. Raises OpError."""
    try:
        import ray
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        rule = 'needs Ray: pip install "ray>=2.40", on every machine of the cluster'
        raise failure(address, rule) from error
    with ExitStack() as stack:
        stack.enter_context(redirect_stdout(sys.stderr))  # Ray's messages about processes that end
        stack.callback(ray.shutdown)
        try:
            if place := re.search(r"([^/]+):(\d+)$", address):  # Ray by itself would try for two minutes
                socket.create_connection((place[1], int(place[2])), PATIENCE).close()
            before = os.getcwd()
            os.chdir(sysconfig.get_path("stdlib"))  # Ray's processes import from the current folder of this one
            try:
                ray.init(address=address, logging_level="error", log_to_driver=False)
            finally:
                os.chdir(before)
        except (OSError, RuntimeError, ValueError) as error:
            raise failure(address, f"can't be reached: {error}") from error
        try:
            yield ray
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, OpError):
                raise error.cause from error
            raise failure(address, f"a task has failed there: {error.cause}") from error
        except ray.exceptions.RayError as error:
            raise failure(address, f"has failed: {error}") from error
