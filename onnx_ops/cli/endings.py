"""Exit codes of commands that were interrupted, or whose output can't be written."""

import os
import sys
import traceback
from contextlib import contextmanager, suppress

import click

FAILED, INTERRUPTED, CLOSED_PIPE = 3, 130, 141  # the last two as in a shell: 128 + signal
WRITERS = "click", "rich"  # packages that write all of the output, and no other files


class Failure(click.ClickException):
    exit_code = FAILED


@contextmanager
def endings():
    """End the process with an exit code of its own after Ctrl-C, a closed pipe, or output that can't be written."""
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except OSError as error:
        if not is_of_output(error):
            raise
        is_closed = isinstance(error, BrokenPipeError)
        with suppress(OSError):
            if not is_closed:
                click.echo(f"Error: the output can't be written: {error.strerror}", err=True)
        for stream in sys.stdout, sys.stderr:
            discard_rest(stream)
        sys.exit(CLOSED_PIPE if is_closed else FAILED)


def is_of_output(error):
    """Return whether an OSError comes from writing to stdout or stderr, rather than from a file or another process."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_globals["__name__"].partition(".")[0] in WRITERS


def discard_rest(stream):
    """Discard what a stream couldn't write: Python would try again at exit, and fail."""
    try:
        stream.flush()
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
