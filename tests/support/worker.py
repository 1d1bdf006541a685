"""Functions that spawned workers run; they are in a module of their own because workers import it."""

import os
import signal
import time

FATAL = {
    "exit": lambda: os._exit(9),
    "segmentation fault": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "out of memory": lambda: os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM)),
}


def deadly(*names):
    """Return names in capital letters; those in FATAL end the process."""
    for name in names:
        FATAL.get(name, lambda: None)()
    print("not an answer")
    return [name.upper() for name in names]


def sleep(seconds):
    time.sleep(seconds)
    return seconds


class Deadly:
    """The work of `deadly` as a cluster gets it."""

    def __call__(self, names):
        return deadly(*names)
