"""Ctrl-C, and other exceptions that end a program, while a C callback runs Python.

No exception may cross such a callback. As an error of ONNX Runtime, it would be caught by programs
that continue after errors. So the exception waits until C has returned to Python: the handler of
the next SIGINT raises it, and `INTERRUPT` simulates that SIGINT.
"""

import ctypes as C
import signal
import threading

# As if SIGINT had just arrived.
INTERRUPT = C.cast(C.pythonapi.PyErr_SetInterrupt, C.c_void_p).value
_new_capsule = C.PYFUNCTYPE(C.py_object, C.c_void_p, C.c_char_p, C.c_void_p)(
    ("PyCapsule_New", C.pythonapi)
)
# Functions that get True when an exception begins to wait on this thread, and False at its end.
listeners: list = []


def postpone(error: BaseException) -> bool:
    """Make the next SIGINT raise `error`.

    Returns False on other threads than the main one, which get no signals.
    """
    before = signal.getsignal(signal.SIGINT)
    # None: the handler isn't Python's
    if threading.current_thread() is not threading.main_thread() or before is None:
        return False
    # A traceback's frames would keep alive what the callbacks return.
    error = error.with_traceback(None)

    def deliver(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, before)
        tell(False)
        raise error

    signal.signal(signal.SIGINT, deliver)
    tell(True)
    return True


def tell(waits: bool) -> None:
    """Call the listeners with whether an exception waits."""
    for function in listeners:
        function(waits)


def interrupt_at_end() -> object:
    """Return an object that simulates SIGINT when it is freed.

    That is after the callback, if the callback returns it to C.
    """
    return _new_capsule(1, None, INTERRUPT)
