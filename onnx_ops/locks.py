"""The locks of this package. A fork waits until they are free: a child has none of the threads that would release them.

They are listed in the order in which a thread that holds one may take others.
"""

import os
import threading

REGISTRATION = threading.RLock()  # ONNX Runtime's table, and what has been handed to it
COMPILATION = threading.RLock()  # what has been compiled
RUNS = threading.RLock()  # of the extensions backend: those under way
POOL = threading.RLock()  # the threads that help functions
EXPORT = threading.RLock()  # PyTorch's table for exports with dynamo=False
_ALL = EXPORT, REGISTRATION, COMPILATION, RUNS, POOL


def _take():
    for lock in _ALL:
        lock.acquire()


def _release():
    for lock in reversed(_ALL):
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_take, after_in_parent=_release, after_in_child=_release)
