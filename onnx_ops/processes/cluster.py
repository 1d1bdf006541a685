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

AHEAD = 2  # tasks that are sent for each that can run at a time, so that no process waits for the next one
PATIENCE = 5  # seconds that a connection may take
INTERVAL = 1  # seconds between two looks at Ray's process of this machine


@functools.lru_cache(maxsize=1)
def fetched(reference):
    """What a reference of Ray's stands for, which each process fetches once."""
    import ray

    return ray.get(reference)


def do(shared, task):
    """Apply the work to a task. shared: a list of the reference to the work, which Ray then doesn't follow itself."""
    work, expected = fetched(*shared)
    if versions() != expected:
        rule = f"must be those of the machine that sends it work, {expected}"
        raise OpError(f"versions on {socket.gethostname()}", versions(), rule, "onnx_ops")
    return work(task)


@functools.cache
def versions():
    """{package: version} of what results depend on. That of onnx_ops has a digest: sources change between releases."""
    files = sorted(Path(__file__).parents[1].rglob("*"))
    sources = b"".join(file.read_bytes() for file in files if file.suffix in (".py", ".c", ".h"))
    package = sys.modules[__name__.partition(".")[0]]
    return {"onnx_ops": f"{package.__version__}+{zlib.crc32(sources):08x}", "onnxruntime": ort.__version__}


def answers(work, tasks, address, threads):
    """Yield (index of a task, task, work(task), False) as they are done, each by `threads` CPUs of a cluster.

    Yields (index, task, None, True) for a task whose process or machine has ended. A process has one task at a time.

    work   a function, which each node gets once
    tasks  an iterable; only the tasks that are sent are in memory

    Raises OpError.
    """
    with connection(address) as ray:
        shared = [ray.put((work, versions()))]
        count = sum(int(node["Resources"].get("CPU", 0)) // threads for node in ray.nodes() if node["Alive"])
        if not count:
            raise OpError("threads", threads, f"no machine of the cluster {address} has so many CPUs", "onnx_ops")
        # Without retries, which Ray would make for ever where there is not enough memory.
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

    Ray ends the process that is connected to it some seconds later, by C's exit and without a message.
    """
    if address.startswith("ray://"):  # then this process is connected to another one
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
    """A context in which Ray is connected to a cluster; yields Ray's module. Raises OpError for failures of both."""
    try:
        import ray
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        rule = 'needs Ray: pip install "onnx-ops[ray]", on every machine of the cluster'
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
