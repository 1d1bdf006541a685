"""The locks of this package. A fork waits until they are free, because a child has no other thread
to release them.

A thread that holds one of them may take only locks that come later in `_ALL`.
"""

# Its fork hook must be registered before ours, to run after it and take its lock within ours.
import logging  # noqa: F401
import threading
from _thread import interrupt_main, start_new_thread

from .. import system

REGISTRATION = threading.RLock()  # guards the tables of operators that are handed to ONNX Runtime
COMPILATION = threading.RLock()  # guards the functions that have been compiled
RUNS = threading.RLock()  # guards the errors of runs under way in the extensions backend
# Guards the pool of threads that calls of functions use, and the size of stacks.
POOL = threading.RLock()
EXPORT = threading.RLock()  # guards PyTorch's tables of operators
OPTIONS = threading.RLock()  # guards a caller's options while a session is made with them
_ALL = OPTIONS, EXPORT, REGISTRATION, COMPILATION, RUNS, POOL


def _take() -> None:
    """Take all locks before a fork.

    An interrupt can't stop the fork, and is raised again after it.
    """
    for lock in _ALL:
        taken = False
        while not taken:
            try:
                taken = lock.acquire()
            except BaseException:
                _interrupted.append(True)


def _release() -> None:
    for lock in reversed(_ALL):
        lock.release()


def _release_in_parent() -> None:
    _release()
    if _interrupted:
        _interrupted.clear()
        # In a thread, so after this hook, whose exceptions would be lost.
        start_new_thread(interrupt_main, ())


_interrupted: list[bool] = []
system.at_fork(before=_take, after_in_parent=_release_in_parent, after_in_child=_release)
