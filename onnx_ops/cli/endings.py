"""How a command ends that was interrupted, or whose output can't be written."""

import os
import sys
import traceback
from contextlib import contextmanager, suppress

import click

FAILED, INTERRUPTED, CLOSED_PIPE = 3, 130, 141  # the last two as in a shell: 128 + SIGINT, 128 + SIGPIPE
WRITERS = "click", "rich"  # packages through which all output goes, and nothing else


class Failure(click.ClickException):
    exit_code = FAILED


@contextmanager
def endings():
    """Let Ctrl-C, and output that nobody reads or that has no room, end the process with an exit code of their own."""
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
    """Whether an OSError comes from writing to stdout or stderr, rather than from a file or another process."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_globals["__name__"].partition(".")[0] in WRITERS


def discard_rest(stream):
    """Let go of what a stream can't write: Python would try again at exit, and fail."""
    try:
        stream.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
