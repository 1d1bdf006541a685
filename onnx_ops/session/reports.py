"""OpErrors on their way from a callback of the C library to the session that raises them.

ONNX Runtime passes on only the text of an error, with names of nodes and clients before it, and no
text at all where Python can't decode such a name. So the text is never parsed. It only has to end
with the message of the report:

* A run is on the thread of its caller, as is the making of a session. There, the latest report
  counts, if it came after the begin of the run. A body in Python may run other sessions: their
  reports end with the body.
* With ORT_PARALLEL, nodes run on ONNX Runtime's own threads. There, one of all recent reports
  counts. If the text ends with several messages, the longest one counts, since a message may quote
  another one.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from ..declaration.errors import OpError
from ..native import table

if TYPE_CHECKING:
    from .types import Report

LONGEST = table.Answer.message.size - 1  # bytes of a message
# ONNX Runtime's texts about a failed node.
FAILED, STATUS = "Non-zero status code", "Status Message: "
BOUND = "Error in execution: "  # before them, with I/O binding


class Here(threading.local):
    """The latest report on a thread."""

    report: Report | None = None


_here = Here()
# Of all threads, more than fail at once; empty until something fails.
recent: deque[Report] = deque(maxlen=64)


def forget() -> None:
    """Forget what was reported on this thread."""
    _here.report = None


def add(message: str, error: OpError) -> None:
    """Report an OpError, with the message that ONNX Runtime gets."""
    arguments = error.argument, error.value, error.rule[:LONGEST], error.operator
    _here.report = message, arguments
    recent.append(_here.report)


def refusal_of(error: BaseException, is_parallel: bool = False) -> OpError | None:
    """Return the OpError that has become this exception of ONNX Runtime, or None.

    is_parallel  whether nodes run on other threads than this one
    """
    report, _here.report = _here.report, None
    # A name that isn't UTF-8 makes it this exception; in Python 3.11.2 it has no text.
    text = (
        error.object.decode(errors="replace")
        if isinstance(error, UnicodeDecodeError)
        else str(error)
    )
    if is_parallel:
        # The report is of a node, not of an input name that a client has sent.
        is_of_node = text.split(" : ", 3)[-1].removeprefix(BOUND).startswith(FAILED)
        reports = [r for r in list(recent) if is_of_node and text.endswith(STATUS + r[0])]
        report = max(reversed(reports), key=lambda r: len(r[0]), default=None)
    # ONNX Runtime has dropped the report, as in the inference of shapes.
    elif report and text and not text.endswith(report[0]):
        report = None
    return report and OpError(*report[1])
