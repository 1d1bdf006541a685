"""Functions that spawned workers run; they are in a module of their own because workers import it."""

import ctypes
import os
import signal
import time


def deadly(*names):
    """Return names in capital letters; the name "deadly" ends the process."""
    if "deadly" in names:
        os._exit(9)
    print("not an answer")
    return [name.upper() for name in names]


def sleep(seconds):
    time.sleep(seconds)
    return seconds


def terminate_in_a_callback():
    """SIGTERM arrives before the callback can catch anything; SIGINT follows, as from the library in C."""
    ctypes.CFUNCTYPE(None)(lambda: signal.raise_signal(signal.SIGTERM))()
    signal.raise_signal(signal.SIGINT)
    print("goes on")


def terminate_in_an_import():
    """SIGTERM arrives while a module in C++ begins, which makes an ImportError of the exit, as pybind11's do."""
    try:
        signal.raise_signal(signal.SIGTERM)
    except SystemExit as error:
        raise ImportError("initialization failed") from error


class Deadly:
    """The work of `deadly` as a cluster gets it."""

    def __call__(self, names):
        return deadly(*names)
