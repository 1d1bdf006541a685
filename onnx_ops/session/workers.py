"""Compile variants, here or in other processes.

Threads of concurrent.futures give each process one variant after the other.

Messages and answers are pickles, on pipes. docs/internals.md compares pools of processes ("Worker
processes").
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from itertools import count
from subprocess import PIPE
from typing import TYPE_CHECKING, NamedTuple

from .. import system
from ..declaration.errors import OpError
from ..model.operator_files import operators_at, sources_of
from ..registry import custom_operators, use

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import IO, Any

    from .types import Compiled, Level, Reached
    from .variants import Variant


PROGRAM = "from onnx_ops.session import workers; workers.serve()"
INTERRUPTED = "onnx_ops: interrupted; this ends in some seconds, when %d processes have ended"
_is_worker = False  # whether this process compiles for another one
log = logging.getLogger("onnx_ops")


def compile_variants(
    by_name: dict[str, Variant],
    jobs: int | None,
    progress: Callable[[str, int, int], object] | None = None,
    level: Level | None = None,
) -> dict[str, Compiled]:
    """Compile {name: variant}; return {name: its functions}.

    jobs      number of other processes that compile in parallel; 1: compile in this process; None:
              the CPUs that this process may use
    progress  called before each variant with (its name, its index, the number of variants), by one
              thread at a time and in the order of the indices
    level     the CPU and the system to compile for (`level` of compiler/target.py); default: these
              here

    Raises the first OpError.
    """
    numbers = count()
    lock = threading.Lock()

    def begin(name: str) -> None:
        if progress:
            with lock:
                progress(name, next(numbers), len(by_name))

    jobs = min(jobs or len(system.available_cpus()), len(by_name))
    if by_name and (jobs > 1 or level):
        return compile_in_processes(by_name, jobs, begin, level)
    results = {}
    for name, variant in by_name.items():
        begin(name)
        results[name] = variant.compile()
    return results


class Worker:
    """A process that compiles.

    Ctrl-C in a terminal doesn't reach it; it ends when its standard input ends.
    """

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            system.python(PROGRAM), stdin=PIPE, stdout=PIPE, **system.apart()
        )
        assert self.process.stdin
        assert self.process.stdout
        self.requests = self.process.stdin
        self.answers = self.process.stdout

    def ask(self, message: Any) -> Any:
        """Return the answer to a message. Raises OpError, and EOFError if the process has ended."""
        try:
            send(message, self.requests)
            result, refusal = pickle.load(self.answers)
        except pickle.UnpicklingError as error:  # it has ended in the middle of an answer
            raise EOFError from error
        if refusal:
            raise OpError(*refusal)
        return result


class Workers(NamedTuple):
    """The processes that compile for the threads of a pool, one for each thread.

    first_message  that each process gets, see `_results`
    started        the processes
    of_thread      has this thread's process as its attribute `worker`
    """

    first_message: Any
    started: list[Worker]
    of_thread: threading.local

    def compile(self, name: str, task: tuple[Variant, Reached | None]) -> Compiled:
        """Compile a variant in this thread's process. Raises OpError."""
        try:
            if not hasattr(self.of_thread, "worker"):
                self.of_thread.worker = Worker()
                self.started.append(self.of_thread.worker)
                self.of_thread.worker.ask(self.first_message)
            return self.of_thread.worker.ask(task)
        except EOFError as error:
            rule = f"a process that compiles {name} has ended"
            raise OpError(None, None, rule, "onnx_ops") from error

    def close(self) -> None:
        """Have all processes end, and wait for it."""
        for worker in self.started:
            worker.requests.close()
        for worker in self.started:
            worker.process.wait()
            worker.answers.close()


class Remaining:
    """Names of variants that no process has begun to compile.

    A process compiles a function that several kernels call only once, so it gets variants of the
    same operator.
    """

    def __init__(self, variants: Mapping[str, Variant]) -> None:
        self.operators = {name: variant.operator.name for name, variant in variants.items()}
        self.begun: set[str] = set()
        self.lock = threading.Lock()

    def take(self, of_thread: threading.local) -> str:
        """Return a name for a thread: of its operator, else of one that no thread has, else any."""
        last = getattr(of_thread, "operator", None)

        def rank(name: str) -> tuple[bool, bool]:  # the least comes first
            return self.operators[name] != last, self.operators[name] in self.begun

        with self.lock:
            name = min(self.operators, key=rank)
            of_thread.operator = self.operators.pop(name)
            self.begun.add(of_thread.operator)
        return name


def compile_in_processes(
    variants: Mapping[str, Variant],
    jobs: int,
    begin: Callable[[str], None],
    level: Level | None,
) -> dict[str, Compiled]:
    """Compile {name: variant} in processes; return {name: result of `Variant.compile`}.

    jobs   number of processes, at most
    begin  called with each name before its variant is compiled
    level  as for `compile_variants`

    Raises the first OpError. The processes have ended when this returns or raises.
    """
    if _is_worker:  # its workers would import the file that calls this, and so on
        rule = 'write what compiles, in a file of operators, under `if __name__ == "__main__":`'
        raise OpError(None, None, rule, "onnx_ops")
    custom = sources_of([*custom_operators(), *(variant.operator for variant in variants.values())])
    tasks = {name: (variant, variant.reached()) for name, variant in variants.items()}
    workers = Workers((level, custom), [], threading.local())
    remaining = Remaining(variants)
    has_failed = threading.Event()

    def compile_one() -> tuple[str, Compiled]:
        name = remaining.take(workers.of_thread)
        if has_failed.is_set():
            return name, []
        begin(name)
        try:
            return name, workers.compile(name, tasks[name])
        except OpError:
            has_failed.set()
            raise

    try:
        with ThreadPoolExecutor(jobs) as threads:
            try:
                futures = [threads.submit(compile_one) for _ in variants]
                return dict(future.result() for future in as_completed(futures))
            except BaseException as error:
                threads.shutdown(wait=False, cancel_futures=True)
                if workers.started and isinstance(error, KeyboardInterrupt):
                    log.warning(INTERRUPTED, len(workers.started))
                for worker in workers.started:
                    worker.process.terminate()
                raise
    finally:
        workers.close()


def send(message: Any, pipe: IO[bytes]) -> None:
    """Send a message. Close the pipe if its reader has closed it, and raise EOFError."""
    try:
        pickle.dump(message, pipe)
        pipe.flush()
    except OSError as error:
        if not system.is_closed_pipe(error):
            raise
        # Else Python would write the rest when it frees the pipe, and raise the error again.
        with suppress(OSError):
            pipe.close()
        raise EOFError from error


# The other process


def serve() -> None:
    """Answer each message with (result, None), or with (None, arguments of an OpError).

    The process ends after an error.
    """
    global _is_worker
    _is_worker = True
    signal.signal(signal.SIGTERM, _exit)
    # No warnings: an answer reports code that isn't kept.
    logging.getLogger("onnx_ops").setLevel(logging.ERROR)
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # so that nothing that a library prints gets between the answers
    with suppress(EOFError):
        try:
            for result in _results():
                send((result, None), output)
        except OpError as error:
            send((None, error.args), output)


def _exit(*_: Any) -> None:
    """Exit by an exception, which leaves no half-written file.

    If the signal arrives where a C callback begins, Python can only report the exit, and SIGINT is
    simulated after C. If it arrives during the import of a C++ module, an ImportError ends the
    process.
    """
    sys.excepthook = lambda *_: None
    sys.unraisablehook = lambda _: None
    signal.signal(signal.SIGINT, lambda *_: sys.exit())
    sys.exit()


def _results() -> Iterator[Any]:
    """Yield the results for messages.

    The first message is (level, result of `sources_of`), with the result None. Each other one is a
    variant, with what it compiles to.
    """
    level, custom = pickle.load(sys.stdin.buffer)
    if level:
        from ..compiler import target

        target.choose(target.level(*level))
    for source in custom:
        use(operators_at(source))  # before variants are unpickled, which need these operators
    yield None
    while True:
        variant, reached = pickle.load(sys.stdin.buffer)
        yield variant.compile(reached)
