"""The same work by the machines of a Ray cluster, which sees to what fails there: processes, machines, connections."""

import re
import socket
import sys
from contextlib import ExitStack, contextmanager, redirect_stdout

import onnxruntime as ort

from .. import __version__
from ..errors import OpError

AHEAD = 2  # tasks that an actor is given at a time, so that it doesn't wait for the next one
RETRIES = 2  # of a task whose process or machine has ended
PATIENCE = 5  # seconds for a connection


class Worker:
    """An actor. shared: a list of the one reference of what does the work, with each call: Ray may restart an actor."""

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
    """Have a node ready for its first task, as its kernels are compiled then; returns the versions that it has."""
    work.prepare()
    return versions()


def versions():
    return {"onnx_ops": __version__, "onnxruntime": ort.__version__}


def answers(work, tasks, address, threads):
    """Yield (index of a task, task, work(task), False) as they are done, by actors of `threads` CPUs on a cluster.

    Of a task whose actor has ended over it as often as Ray tries: (index, task, None, True).
    work   has a method `prepare`; each node gets it once
    tasks  an iterable, of which only what the actors are at is in memory

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
        # Actors for which there is no room, as others use the cluster, too, are not ready before there is.
        awaited = {each.prepare.remote([shared]): (each, None) for each in [actor.remote() for _ in range(count)]}
        left, given, is_end = enumerate(tasks), {}, False
        while given or not is_end:
            (reference,), _ = ray.wait(list(awaited))
            actor, done = awaited.pop(reference)
            for _ in range(AHEAD if done is None else 1):
                index, task = next(left, (None, None))
                is_end = index is None
                if not is_end:
                    given[index] = task
                    awaited[actor.do.remote([shared], task)] = actor, index
            try:
                result, has_ended = ray.get(reference), False
            except (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError):
                result, has_ended = None, True
            if done is not None:
                yield done, given.pop(done), result, has_ended


def prepare_nodes(ray, shared):
    """Make a session on each node, and see that they have this one's versions."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
    there = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in nodes]
    found = [ray.remote(prepare).options(num_cpus=0, scheduling_strategy=n).remote(shared) for n in there]
    for node, reference in zip(nodes, found, strict=True):
        if (its := ray.get(reference)) != versions():
            where = f"versions on {node['NodeManagerAddress']}"
            raise OpError(where, its, f"must be those of the machine that sends it work, {versions()}", "onnx_ops")


@contextmanager
def connection(address):
    """Yield Ray's module while it is connected to a cluster. Raises OpError for what is met there."""
    try:
        import ray
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        rule = 'needs Ray: pip install "onnx-ops[ray]", on every machine of the cluster'
        raise OpError("cluster", repr(address), rule, "onnx_ops") from error
    with ExitStack() as stack:
        stack.enter_context(redirect_stdout(sys.stderr))  # where Ray shall say what it does about processes that end
        stack.callback(ray.shutdown)
        try:
            if place := re.search(r"([^/]+):(\d+)$", address):  # Ray would try for two minutes
                socket.create_connection((place[1], int(place[2])), PATIENCE).close()
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
