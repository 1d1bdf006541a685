"""How long calls take, side by side, so that the machine's moods hit all alike."""

import time
from statistics import median

SHORT = 3e-2  # seconds: what takes less is timed several times at once, as threads and clocks wake up slowly
PAUSE = 0.06  # seconds until the threads of a runtime have stopped spinning


def interleave(calls, repeats, pause=PAUSE):
    """{name: [seconds of a call, in each turn]} of functions without arguments, which take turns.

    pause  seconds before each, for a runtime whose threads go on spinning after a call
    """
    taken = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            time.sleep(pause)
            taken[name].append(seconds(call))
    return taken


def seconds(call):
    """Of one call, right after one that wakes the runtime's threads."""
    began = time.perf_counter()
    call()
    count = max(1, int(SHORT / max(time.perf_counter() - began, 1e-7)))
    began = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - began) / count


def ratio(numerator, denominator):
    """The median of the ratios within a turn."""
    return median(n / d for n, d in zip(numerator, denominator, strict=True))
