"""Functions that spawned workers run; they are in a module of their own because workers import it."""

import os
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


class Deadly:
    """The work of `deadly` as a cluster gets it."""

    def __call__(self, names):
        return deadly(*names)
