"""Functions that spawned workers run; they are in a module of their own because workers import it."""

import os
import time


def deadly(name):
    """Return a name in capital letters; the name "deadly" ends the process."""
    if name == "deadly":
        os._exit(9)
    print("not an answer")
    return name.upper()


def sleep(seconds):
    time.sleep(seconds)
    return seconds
