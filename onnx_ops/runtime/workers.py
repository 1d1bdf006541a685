"""Processes that work side by side. Each is sent a function, then one task after the other, and answers each.

What they are sent and answer are pickles, on pipes.
"""

import logging
import os
import pickle
import signal
import subprocess
import sys
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import count
from queue import SimpleQueue
from subprocess import PIPE

from ..errors import OpError
from ..operators import own_operators
from ..own.files import places, use_place

PROGRAM = "from onnx_ops.runtime import workers; workers.serve(*{!r})"


def share_out(function, tasks, jobs, progress, *, level=None, own=()):
    """[function(*arguments) for each (name, arguments) of the tasks], by so many processes.

    progress  called before each task with (its name, its index, how many there are)
    level     what the processes compile for (kernels/target.py), if not for this machine
    own       where they find operators of one's own (own/files.py), beside those that this process uses

    Raises the first OpError.
    """
    numbers, results = count(), [None] * len(tasks)

    def begun(index):
        progress(tasks[index][0], next(numbers), len(tasks))

    for index, result, has_ended in answers(function, [a for _, a in tasks], jobs, begun=begun, level=level, own=own):
        if has_ended:
            raise OpError(None, None, f"a process that compiles {tasks[index][0]} has ended", "onnx_ops")
        results[index] = result
    return results


def answers(function, tasks, jobs, *, begun=lambda index: None, level=None, own=(), patience=None):
    """Yield (index of a task, function(*task), False) as they are done, by so many processes.

    Of a task whose process has ended over it, (index, None, True); another process goes on with the next one. Raises
    the first OpError. Whatever ends this, the processes end with it.

    patience  seconds that processes then have, twice, before they are killed; None: as long as it takes them to leave
              neither locks nor halves of files
    """
    left, alive, found = deque(enumerate(tasks)), set(), SimpleQueue()
    jobs = max(min(jobs, len(left)), 1)
    own = [*dict.fromkeys([*places(own_operators()), *own])]

    def work_off():
        """The tasks of one process, and of those that come after it where it ends."""
        try:
            while left:
                with _worker(function, level, own, alive) as ask:
                    while left and (taken := _pop(left)):
                        begun(taken[0])
                        try:
                            found.put((taken[0], ask(taken[1]), False))
                        except _EndedError:
                            found.put((taken[0], None, True))
                            break
        except BaseException as error:
            found.put(error)

    with ThreadPoolExecutor(jobs) as threads:
        try:
            for _ in range(jobs):
                threads.submit(work_off)
            for _ in tasks:
                answer = found.get()
                if isinstance(answer, BaseException):
                    raise answer
                yield answer
        except BaseException:
            left.clear()
            _end(alive, patience)
            raise


def _pop(left):
    with suppress(IndexError):  # another thread has taken the last one
        return left.popleft()


class _EndedError(Exception):
    """A process is no more."""


@contextmanager
def _worker(function, level, own, alive):
    """A function that asks a new process, which is among those `alive` until this block ends.

    Ctrl-C in a terminal doesn't reach the process.
    """
    command, path = [sys.executable, "-c", PROGRAM.format((level, own))], os.pathsep.join(filter(None, sys.path))
    settings = {"env": {**os.environ, "PYTHONPATH": path}, "start_new_session": True}
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, **settings) as process:
        alive.add(process)

        def ask(message):
            try:
                pickle.dump(message, process.stdin)
                process.stdin.flush()
            except BrokenPipeError:
                with suppress(BrokenPipeError):  # or else at the end of this block, in place of what ends it
                    process.stdin.close()
            try:
                result, refusal = pickle.load(process.stdout)
            except (EOFError, pickle.UnpicklingError):  # the latter: in the middle of an answer
                raise _EndedError from None
            if refusal:
                raise OpError(*refusal)
            return result

        try:
            ask(function)
            yield ask
        except _EndedError:
            raise OpError(None, None, "a process that was to help has ended before it began", "onnx_ops") from None
        finally:
            alive.discard(process)


def _end(processes, patience):
    """Have processes end: after the task that they are at, or if that takes long as soon as they can, or else now.

    With all the patience in the world, as soon as they can.
    """
    every = [lambda process: process.stdin.close(), subprocess.Popen.terminate, subprocess.Popen.kill]
    left = list(processes)
    for stop in every[1:2] if patience is None else every:
        for process in left:
            with suppress(OSError):
                stop(process)
        end = patience and time.monotonic() + patience
        for process in left:
            with suppress(subprocess.TimeoutExpired):
                process.wait(end and max(end - time.monotonic(), 0))
        left = [process for process in left if process.returncode is None]


def serve(level, own):
    """Answer what comes in: first a function, with nothing, then tasks. `own`: where operators of one's own are."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # which leaves no half-written file
    logging.getLogger("onnx_ops").setLevel(logging.ERROR)  # what isn't kept is answered
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not come between the answers
    if level:
        from ..kernels import target

        target.choose(target.level(level))
    for place in own:
        use_place(place)
    function = None
    with suppress(BrokenPipeError):  # nobody waits for the answer
        for message in _messages():
            result = refusal = None
            if function is None:
                function = message
            else:
                try:
                    result = function(*message)
                except OpError as error:
                    refusal = error.args
            pickle.dump((result, refusal), output)
            output.flush()


def _messages():
    with suppress(EOFError):
        while True:
            yield pickle.load(sys.stdin.buffer)
