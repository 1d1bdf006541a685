"""Time calls in turns, so that a change of the machine's speed meets all of them alike."""

import time
from statistics import median

SHORT = 3e-2  # seconds: a call that takes less is repeated and timed as a whole, as threads and clocks wake up slowly
PAUSE = 0.06  # seconds until the threads of a runtime have stopped spinning


def interleave(calls, repeats, pause=PAUSE):
    """Time functions without arguments, which take turns; returns {name: [seconds of a call in each turn]}.

    pause  seconds to wait before each call, since a runtime's threads go on spinning for a while after the last one
    """
    times = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            time.sleep(pause)
            times[name].append(seconds(call))
    return times


def seconds(call):
    """Return how many seconds one call takes, once a first call has woken the runtime's threads."""
    start = time.perf_counter()
    call()
    count = max(1, int(SHORT / max(time.perf_counter() - start, 1e-7)))
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def ratio(numerator, denominator):
    """Return the median, over the turns, of the ratio of two times from the same turn."""
    return median(n / d for n, d in zip(numerator, denominator, strict=True))
