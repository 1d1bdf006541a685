"""Tasks on the machines of a Ray cluster. Ray restarts processes, and repeats tasks, where something fails there."""

import os
import re
import socket
import sys
import sysconfig
from contextlib import ExitStack, contextmanager, redirect_stdout

import onnxruntime as ort

from .. import __version__
from ..errors import OpError

AHEAD = 2  # tasks that an actor has at a time, so that it doesn't wait for the next one
RETRIES = 2  # how often a task whose process or machine has ended is repeated
PATIENCE = 5  # seconds that a connection may take


class Worker:
    """An actor that applies `work` to tasks.

    Each call passes `shared`, a list of the one reference to `work`, as Ray may restart the actor in between.
    """

    work = None

    def prepare(self, shared):
        import ray

        (self.work,) = ray.get(shared)
        self.work.prepare()

    def do(self, shared, task):
        if self.work is None:
            self.prepare(shared)
        return self.work(task)


def prepare(work):
    """Compile on a node what its tasks need; returns the node's versions."""
    work.prepare()
    return versions()


def versions():
    """{package: version} of what must be alike on all machines."""
    return {"onnx_ops": __version__, "onnxruntime": ort.__version__}


def answers(work, tasks, address, threads, *, alone=False):
    """Yield (index of a task, task, work(task), False) as they are done, by actors of `threads` CPUs on a cluster.

    Yields (index, task, None, True) for a task whose actor ended each time that Ray tried it.

    work   has a method `prepare`; each node gets it once
    tasks  an iterable; only the tasks that actors have are in memory
    alone  give an actor no task before it has answered the last one, so that it ends by no other task than its own

    Raises OpError.
    """
    with connection(address) as ray:
        shared = ray.put(work)
        prepare_nodes(ray, shared)
        count = int(ray.cluster_resources().get("CPU", 0)) // threads
        if not count:
            raise OpError("threads", threads, f"no machine of the cluster {address} has so many CPUs", "onnx_ops")
        settings = {"num_cpus": threads, "max_restarts": -1, "max_task_retries": RETRIES}
        actor = ray.remote(Worker).options(scheduling_strategy="SPREAD", **settings)
        # An actor becomes ready only when the cluster, which others use, too, has room for it.
        awaited = {each.prepare.remote([shared]): (each, None) for each in [actor.remote() for _ in range(count)]}
        remaining, pending, is_end = enumerate(tasks), {}, False
        while pending or not is_end:
            (reference,), _ = ray.wait(list(awaited))
            actor, finished = awaited.pop(reference)
            for _ in range(AHEAD if finished is None and not alone else 1):
                index, task = next(remaining, (None, None))
                is_end = index is None
                if not is_end:
                    pending[index] = task
                    awaited[actor.do.remote([shared], task)] = actor, index
            try:
                result, has_ended = ray.get(reference), False
            except (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError):
                result, has_ended = None, True
            if finished is not None:
                yield finished, pending.pop(finished), result, has_ended


def prepare_nodes(ray, shared):
    """Make a session on each node, and check that the nodes have this machine's versions."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
    strategies = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in nodes]
    results = [ray.remote(prepare).options(num_cpus=0, scheduling_strategy=s).remote(shared) for s in strategies]
    for node, result in zip(nodes, results, strict=True):
        if (node_versions := ray.get(result)) != versions():
            argument = f"versions on {node['NodeManagerAddress']}"
            rule = f"must be those of the machine that sends it work, {versions()}"
            raise OpError(argument, node_versions, rule, "onnx_ops")


@contextmanager
def inside(folder):
    """A context with another current folder."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextmanager
def connection(address):
    """A context in which Ray is connected to a cluster; yields Ray's module. Raises OpError for failures of both."""
    try:
        import ray
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        rule = 'needs Ray: pip install "onnx-ops[ray]", on every machine of the cluster'
        raise OpError("cluster", repr(address), rule, "onnx_ops") from error
    with ExitStack() as stack:
        stack.enter_context(redirect_stdout(sys.stderr))  # Ray's messages about processes that end
        stack.callback(ray.shutdown)
        try:
            if place := re.search(r"([^/]+):(\d+)$", address):  # Ray by itself would try for two minutes
                socket.create_connection((place[1], int(place[2])), PATIENCE).close()
            with inside(sysconfig.get_path("stdlib")):  # Ray's processes import from the current folder of this one
                ray.init(address=address, logging_level="error", log_to_driver=False)
        except (OSError, RuntimeError, ValueError) as error:
            raise OpError("cluster", repr(address), f"can't be reached: {error}", "onnx_ops") from error
        try:
            yield ray
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, OpError):
                raise error.cause from error
            raise OpError("cluster", repr(address), f"a task has failed there: {error.cause}", "onnx_ops") from error
        except ray.exceptions.RayError as error:
            raise OpError("cluster", repr(address), f"has failed: {error}", "onnx_ops") from error
