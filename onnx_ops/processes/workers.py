"""Parallel processes. Each gets a function, then one task after the other, and answers each task.

Messages and answers are pickles, on pipes. docs/internals.md compares public pools ("Worker processes").
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
from queue import SimpleQueue
from subprocess import PIPE

from .. import system
from ..declaration.errors import OpError
from ..model.operator_files import operators_at, sources_of
from ..registry import custom_operators, use

PROGRAM = "import sys; sys.path[:] = {!a}; from onnx_ops.processes import workers; workers.serve(*{!a})"
_is_importing = False  # whether this process is a worker that imports the files with custom operators
log = logging.getLogger("onnx_ops")
ATTEMPTS = 3  # to start a process, which may be killed before it begins, for example without memory


def answers(function, tasks, jobs, *, begin=lambda index: None, level=None, custom=(), patience=None):
    """Run tasks in `jobs` processes; yield (index of a task, function(*task), False) as each ends.

    If a process ends during a task, yields (index, None, True), and another process continues with the next task.
    Raises the first OpError. The processes end with this generator.

    begin     called with the index of each task before it begins
    level     CPU and system to compile for (`level` of compiler/target.py); default: those of this process
    custom    additional custom operators; the processes always get those in use in this process
    patience  seconds until processes are killed at the end; None: no limit, so that they leave no locks
    """
    if _is_importing:  # its workers would import the file that calls this, and so on
        rule = 'write what compiles, in a file of operators, under `if __name__ == "__main__":`'
        raise OpError(None, None, rule, "onnx_ops")
    waiting, alive, outcomes = deque(enumerate(tasks)), set(), SimpleQueue()
    jobs = max(min(jobs, len(waiting)), 1)
    custom = sources_of([*custom_operators(), *custom])

    def feed():
        """Give tasks to one process after the other. The next process continues where the last one ended."""
        attempts = ATTEMPTS
        try:
            while waiting and attempts:
                attempts -= 1
                with suppress(_EndedError), _worker(function, level, custom, alive) as ask:
                    attempts = ATTEMPTS
                    while waiting and (task := _pop(waiting)):
                        begin(task[0])
                        try:
                            outcomes.put((task[0], ask(task[1]), False))
                        except _EndedError:
                            outcomes.put((task[0], None, True))
                            break
            if waiting:
                raise OpError(None, None, f"{ATTEMPTS} processes have ended before they began", "onnx_ops")
        except BaseException as error:
            outcomes.put(error)

    with ThreadPoolExecutor(jobs) as threads:
        try:
            for _ in range(jobs):
                threads.submit(feed)
            for _ in tasks:
                outcome = outcomes.get()
                if isinstance(outcome, BaseException):
                    raise outcome
                yield outcome
        except BaseException as error:
            waiting.clear()
            if patience is None and alive and isinstance(error, KeyboardInterrupt):
                log.warning(
                    "onnx_ops: interrupted; this ends in some seconds, when %d processes have ended", len(alive)
                )
            _end(alive, patience)
            raise


def _pop(waiting):
    with suppress(IndexError):  # another thread has taken the last one
        return waiting.popleft()


class _EndedError(Exception):
    """The process has ended."""


def program(level, custom):
    """Return the command of a process that serves, with this process' import path.

    With `-c` alone, Python searches the current folder first, 3.13 even before the first statement; -P prevents it.
    """
    path = [entry for entry in sys.path if isinstance(entry, str)]  # Python ignores other entries
    return [sys.executable, "-P", "-c", PROGRAM.format(path, (level, custom))]


@contextmanager
def _worker(function, level, custom, alive):
    """Return a context with a new process, also in the set `alive`; it yields a function that asks the process.

    Raises _EndedError if the process ends before it has the function. Ctrl-C in a terminal doesn't reach the process.
    """
    with subprocess.Popen(program(level, custom), stdin=PIPE, stdout=PIPE, **system.apart()) as process:
        alive.add(process)

        def ask(message):
            _write(message, process.stdin)
            try:
                result, refusal = pickle.load(process.stdout)
            except (EOFError, pickle.UnpicklingError):  # UnpicklingError: it has ended in the middle of an answer
                raise _EndedError from None
            if refusal:
                raise OpError(*refusal)
            return result

        try:
            ask(function)
            yield ask
        finally:
            alive.discard(process)


def _end(processes, patience):
    """Terminate processes; kill those that haven't ended after `patience` seconds."""
    running = list(processes)
    for process in running:
        process.terminate()
    deadline = patience and time.monotonic() + patience
    for process in running:
        try:
            process.wait(deadline and max(deadline - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            process.kill()


def _write(message, pipe):
    """Send a message. Close the pipe if its reader has closed it."""
    try:
        pickle.dump(message, pipe)
        pipe.flush()
    except OSError as error:
        if not system.is_closed_pipe(error):
            raise
        with suppress(OSError):  # else Python would write the rest when it closes the pipe, and raise the error again
            pipe.close()


def serve(level, custom):
    """Answer each message with (result, None), or with (None, the arguments of an OpError) and end.

    The first message is a function, all others are tasks.

    custom  the result of `sources_of` for the custom operators
    """
    signal.signal(signal.SIGTERM, _exit)
    logging.getLogger("onnx_ops").setLevel(logging.ERROR)  # no warnings: an answer reports code that isn't kept
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # so that nothing that a library prints gets between the answers
    if level:
        from ..compiler import target

        target.choose(target.level(*level))
    try:
        for result in _results(custom):
            _write((result, None), output)
    except OpError as error:
        _write((None, error.args), output)


def _exit(*_):
    """Exit by an exception, which leaves no half-written file.

    If the signal arrives where a C callback begins, Python can only report the exit, and SIGINT is simulated after C.
    If it arrives during the import of a C++ module, an ImportError ends the process.
    """
    sys.unraisablehook = sys.excepthook = lambda *_: None
    signal.signal(signal.SIGINT, lambda *_: sys.exit())
    sys.exit()


def _results(custom):
    """Yield None after importing the custom operators and the function, then the result of each task."""
    global _is_importing
    _is_importing = True
    for source in custom:
        use(operators_at(source))
    _is_importing = False
    messages = _messages()
    function = next(messages, None)  # it may need these operators
    yield None
    for task in messages:
        yield function(*task)


def _messages():
    with suppress(EOFError):
        while True:
            yield pickle.load(sys.stdin.buffer)
