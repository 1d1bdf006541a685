"""Work that grows with its size: no test compares a time with a constant, which differs by machine.

`assert_linear` compares times, also of compiled code. `assert_steps_linear` counts what Python
runs, on any machine.
"""

import math
import statistics
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

TRIALS = 5
SHORTEST = 0.02  # seconds of processor time in a trial; shorter work is repeated
MOST_STEPS = 2.5  # times the steps for twice the size
# Times the processor time for twice the size: more than 2 for the sake of busy machines, less than
# 4.
MOST = 3


def cpu_time(call: Callable[[], object], repetitions: int = 1) -> float:
    """Return the processor time of this thread for calls.

    Threads of ONNX Runtime wait by spinning, and don't count.
    """
    begin = time.thread_time()
    for _ in range(repetitions):
        call()
    return time.thread_time() - begin


def assert_linear(prepare: Callable[[int], Callable[[], object]], size: int) -> None:
    """Assert that work of twice a size takes at most MOST times the processor time, in the median
    of several trials.

    prepare  makes the work of a size; only calls of its result are timed, which may be repeated
    """
    single, double = prepare(size), prepare(2 * size)
    repetitions = math.ceil(SHORTEST / max(cpu_time(single), 1e-4))
    ratios: list[float] = []
    for _ in range(TRIALS):  # in turn, since other processes come and go
        time_of_single = cpu_time(single, repetitions)
        ratios.append(cpu_time(double, repetitions) / time_of_single)
    assert statistics.median(ratios) <= MOST, ratios


def steps(call: Callable[[], object]) -> int:
    """Return the number of instructions of Python that a call runs."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def assert_steps_linear(prepare: Callable[[int], Callable[[], object]], size: int) -> None:
    """Assert that work of twice a size takes at most MOST_STEPS times the steps, and of four times
    that again.

    prepare  makes the work of a size; only calls of its result are counted
    """
    prepare(1)()  # imports
    counts = [steps(prepare(factor * size)) for factor in (1, 2, 4)]
    assert counts[1] <= MOST_STEPS * counts[0], counts
    assert counts[2] <= MOST_STEPS * counts[1], counts
