"""Ctrl-C, and what else ends a program, that comes while a C callback runs Python.

No exception may cross such a callback, and an error of ONNX Runtime's that stood for it would be caught by whoever goes
on after errors. So the exception waits until C has returned to Python: it is what the next SIGINT raises, which
`INTERRUPT` makes arrive then.
"""

import ctypes as C
import signal
import threading

INTERRUPT = C.cast(C.pythonapi.PyErr_SetInterrupt, C.c_void_p).value  # as if SIGINT had just arrived
_new_capsule = C.PYFUNCTYPE(C.py_object, C.c_void_p, C.c_char_p, C.c_void_p)(("PyCapsule_New", C.pythonapi))
listeners: list = []  # functions to call with whether an exception waits on this thread


def postpone(error):
    """Have the next SIGINT raise `error`. False where none can: only the main thread gets signals."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is None:  # None: it isn't Python's
        return False
    error = error.with_traceback(None)  # whose frames would keep alive what callbacks return

    def deliver(number, frame):
        signal.signal(signal.SIGINT, before)
        tell(False)
        raise error

    signal.signal(signal.SIGINT, deliver)
    tell(True)
    return True


def tell(waits):
    """Call the listeners."""
    for function in listeners:
        function(waits)


def interrupt_at_end():
    """An object upon whose end SIGINT arrives: after the callback, if that has handed it to C."""
    return _new_capsule(1, None, INTERRUPT)
