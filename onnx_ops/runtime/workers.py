"""Processes that compile side by side. Each gets lines of JSON, and answers each with one: [result, refusal]."""

import json
import logging
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from itertools import count
from subprocess import PIPE

from ..errors import OpError
from ..own.files import use_place

PROGRAM = "from onnx_ops.runtime import workers; workers.serve(*{!r})"


def share_out(function, tasks, jobs, progress, *, level=None, own=()):
    """[function(*arguments) for each (name, arguments) of the tasks], by so many processes.

    function  of a module of this package, as in "runtime.warmup:compile_variant"; arguments and results are JSON
    progress  called before each task with (its name, its index, how many there are)
    level     what the processes compile for (kernels/target.py), if not for this machine
    own       where they find operators of one's own (own_files.py)

    Raises the first OpError.
    """
    numbers, shares = count(), [list(enumerate(tasks))[k::jobs] for k in range(min(jobs, len(tasks)))]
    results = [None] * len(tasks)

    def work_off(process, share):
        for position, (name, arguments) in share:
            progress(name, next(numbers), len(tasks))
            with suppress(BrokenPipeError):
                print(json.dumps(arguments), file=process.stdin, flush=True)
            answer = process.stdout.readline()
            if not answer:
                raise OpError(None, None, f"a process that compiles {name} has ended", "onnx_ops")
            results[position], refusal = json.loads(answer)
            if refusal:
                raise OpError(*refusal)

    with ThreadPoolExecutor(max(len(shares), 1)) as threads, ExitStack() as stack:
        processes = [stack.enter_context(_worker(function, level, own)) for _ in shares]
        list(threads.map(work_off, processes, shares))
    return results


@contextmanager
def _worker(function, level, own):
    """A process that serves, and ends if this block is interrupted; Ctrl-C in a terminal doesn't reach it."""
    command, path = (
        [sys.executable, "-c", PROGRAM.format((function, level, [*own]))],
        os.pathsep.join(filter(None, sys.path)),
    )
    settings = {"env": {**os.environ, "PYTHONPATH": path}, "text": True, "start_new_session": True}
    with suppress(BrokenPipeError), subprocess.Popen(command, stdin=PIPE, stdout=PIPE, **settings) as process:
        try:
            yield process
        except BaseException:
            process.terminate()
            raise


def serve(function, level, own):
    """Answer each line of the input; `own` says where operators of one's own are."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # which leaves no half-written file
    logging.getLogger("onnx_ops").setLevel(logging.ERROR)  # what isn't kept is answered
    if level:
        from ..kernels import target

        target.choose(target.level(level))
    for place in own:
        use_place(place)
    module, _, name = function.partition(":")
    work = getattr(import_module(f"onnx_ops.{module}"), name)
    for line in sys.stdin:
        result = refusal = None
        try:
            result = work(*json.loads(line))
        except OpError as error:
            refusal = error.args
        print(json.dumps([result, refusal]), flush=True)
