"""The locks of this package. A fork waits until they are free: a child has none of the threads that would release them.

They are listed in the order in which a thread that holds one may take others.
"""

import logging  # noqa: F401  first: what is registered for forks last runs first, and its lock is taken within ours
import os
import threading
from _thread import interrupt_main, start_new_thread

REGISTRATION = threading.RLock()  # ONNX Runtime's table, and what has been handed to it
COMPILATION = threading.RLock()  # what has been compiled
RUNS = threading.RLock()  # of the extensions backend: those under way
POOL = threading.RLock()  # the threads that help functions
EXPORT = threading.RLock()  # PyTorch's table for exports with dynamo=False
_ALL = EXPORT, REGISTRATION, COMPILATION, RUNS, POOL


def _take():
    """Wait for all of them; an interrupt meanwhile comes again after the fork, which nothing can prevent here."""
    for lock in _ALL:
        taken = False
        while not taken:
            try:
                taken = lock.acquire()
            except BaseException:
                _interrupted.append(True)


def _release():
    for lock in reversed(_ALL):
        lock.release()


def _release_in_parent():
    _release()
    if _interrupted:
        _interrupted.clear()
        start_new_thread(interrupt_main, ())  # after this hook, whose exceptions are lost


_interrupted: list = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_take, after_in_parent=_release_in_parent, after_in_child=_release)
