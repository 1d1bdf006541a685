"""Time all runtimes in turns on the same inputs, after their results have been compared.

A ratio is the median of the ratios within a turn. There is a pause between two runtimes, because
the threads of the first one spin for a while after its last call; calls that are not timed then
wake the threads of the second one.
"""

import functools
import time
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from statistics import median

import numpy as np
from support import peers
from support.backends import ort_value, output_shape, quiet
from support.cases import model

import onnx_ops

from .limit import limit
from .reads import has_reads, reads

PAUSE, LONGEST_REST = (
    0.01,
    1.0,
)  # seconds in which no thread may have spun; the longest wait for that
# Seconds until threads run on cores of their own, and tensors are in the caches that hold them.
WAKE = 0.03
SHORT, LONG = (
    2e-3,
    0.05,
)  # seconds: shorter calls are timed several at once, longer ones without waking threads
SPEED_UP = 5e-4  # seconds: calls that take longer are also timed on one thread
CUSTOM, LIMIT, READS, ALONE = "onnx_ops", "limit", "reads", ", 1 thread"
# The largest difference from a peer's result in most elements; it is due to coordinates in float32
# and sums in 16 bits.
TOLERANCE = {"float16": 0.03, "bfloat16": 0.25, "float32": 4e-3, "float64": 1e-9}
FEW = 1e-3  # the share of elements that may differ more: places on the edge between two pixels


@functools.cache
def cache_size(level):
    """The size of a cache in bytes; 0 where the system does not state it."""
    for cache in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        if (cache / "level").read_text().strip() == str(level):
            return int((cache / "size").read_text().strip().removesuffix("K")) * 1024
    return 0


@dataclass
class Row:
    """The measurements of one case. seconds: {column: one number per turn}."""

    case: object
    group: str
    threads: int
    bytes: int  # of all tensors that the kernel reads and writes
    elements: int  # of the largest tensor
    calls: dict = field(default_factory=dict)  # runtime -> {column: function}
    differ: list = field(default_factory=list)  # peers with another result
    seconds: dict = field(default_factory=dict)

    @property
    def within(self):
        """The smallest memory of this machine that holds all of the data: L2 (one per thread), L3
        or memory.
        """
        l2, l3 = map(cache_size, (2, 3))
        return "L2" if self.bytes <= l2 * self.threads else "L3" if self.bytes <= l3 else "memory"

    def time(self, column=CUSTOM):
        return median(self.seconds[column]) if column in self.seconds else None

    def ratio(self, column, to=CUSTOM, of=None):
        """The median of (time of `column` of the row `of`) / (time of `to`), turn by turn; None if
        one is missing.
        """
        above, below = (of or self).seconds.get(column), self.seconds.get(to)
        return median(a / b for a, b in zip(above, below, strict=True)) if above and below else None

    def over(self, column):
        """The median of our time minus that of `column`, in seconds; None if that is missing."""
        seconds_of_peer = self.seconds.get(column)
        return (
            median(a - b for a, b in zip(self.seconds[CUSTOM], seconds_of_peer, strict=True))
            if seconds_of_peer
            else None
        )

    @property
    def to_fastest(self):
        """The factor by which the operator is faster than the fastest peer."""
        return min(filter(None, map(self.ratio, peers.PEERS)), default=None)

    @property
    def of_limit(self):
        return self.ratio(LIMIT)

    @property
    def of_reads(self):
        return self.ratio(READS)

    @property
    def speed_up(self):
        """The factor by which all threads are faster than one."""
        return self.ratio(CUSTOM + ALONE)


def aligned(array):
    """Return a copy that begins where ONNX Runtime's tensors do: at a multiple of 64 bytes, as
    large arrays do not.
    """
    memory = np.empty(array.nbytes + 64, np.uint8)
    first = -memory.ctypes.data % 64
    copy = memory[first : first + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def bound(session, inputs, y):
    """Return a call that writes `y`, without any conversion between NumPy and ONNX Runtime."""
    binding, values = session.io_binding(), [ort_value(v) for v in (*inputs, y)]
    for i, value in zip(session.get_inputs(), values[:-1], strict=True):
        binding.bind_ortvalue_input(i.name, value)
    binding.bind_ortvalue_output("y", values[-1])

    def call():
        session.run_with_iobinding(binding)
        return y

    call.values = values  # the binding only points to them
    return call


def both_ways(name, session, inputs, y):
    """Return calls through an I/O binding and, where NumPy has the element type, through `run`."""
    calls = {name: bound(session, inputs, y)}
    if y.dtype.name != "bfloat16":
        feeds = dict(zip((i.name for i in session.get_inputs()), inputs, strict=True))
        calls[f"{name} run"] = lambda: session.run(None, feeds)[0]
    return calls


def ours(case, inputs, threads, backend="native"):
    proto = model(case.domain, case.op_type, inputs, case.attributes).SerializeToString()
    return onnx_ops.InferenceSession(proto, quiet(intra_op_num_threads=threads), backend=backend)


def prepare(case, group, threads, runtimes):
    """Return the row of a case, with all calls that are to be timed."""
    threads = case.threads or threads
    inputs = [aligned(v) for v in case.inputs()]
    y = aligned(np.empty(output_shape(case, inputs), inputs[0].dtype))
    tensors = [v for i, v in zip(case.operator.inputs, inputs, strict=False) if not i.values]
    row = Row(
        case,
        group,
        threads,
        sum(t.nbytes for t in (*tensors, y)),
        max(t.size for t in (*tensors, y)),
    )
    row.calls[CUSTOM] = both_ways(CUSTOM, ours(case, inputs, threads), inputs, y)
    add_others(row, inputs, y, runtimes if case.peers else ())

    def plain_pass(threads):
        return bound(*limit(tensors, y, quiet(intra_op_num_threads=threads)))

    if threads > 1 and is_long(alone := bound(ours(case, inputs, 1), inputs, y)):
        row.calls[CUSTOM + ALONE] = {CUSTOM + ALONE: alone}
        if LIMIT in runtimes:
            row.calls[LIMIT + ALONE] = {LIMIT + ALONE: plain_pass(1)}
    if LIMIT in runtimes:
        row.calls[LIMIT] = {LIMIT: plain_pass(threads)}
    if READS in runtimes and has_reads(case):
        row.calls[READS] = {
            READS: bound(*reads(case.attributes, *inputs, y, quiet(intra_op_num_threads=threads)))
        }
    return row


def add_others(row, inputs, y, runtimes):
    """Add the calls of our other backend, and of the peers that can do the case with the same
    result.
    """
    case, threads, expected = row.case, row.threads, row.calls[CUSTOM][CUSTOM]().copy()
    if "extensions" in runtimes and find_spec("onnxruntime_extensions"):
        session = ours(case, inputs, threads, "extensions")
        row.calls["extensions"] = both_ways("extensions", session, inputs, np.empty_like(y))
        assert is_same_result(row.calls["extensions"]["extensions"](), expected, case.dtype)
    for name in (n for n in peers.PEERS if n in runtimes):
        try:
            if name == "ONNX Runtime":
                session = peers.builtin_session(case, inputs, threads)
                calls = both_ways(name, session, inputs, np.empty_like(y))
            else:
                calls = {name: peers.PEERS[name](case, inputs, threads)}
            if is_same_result(calls[name](), expected, case.dtype):
                row.calls[name] = calls
            else:
                row.differ.append(name)
        except Exception:  # each peer raises its own exceptions for what it can't do
            continue


def is_long(call):
    call()
    began = time.perf_counter()
    call()
    return time.perf_counter() - began > SPEED_UP


def is_same_result(got, expected, dtype):
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return False
    if dtype not in TOLERANCE:
        return np.array_equal(got, expected)
    wide = np.float64 if dtype == "float64" else np.float32
    return np.mean(abs(got.astype(wide) - expected.astype(wide)) > TOLERANCE[dtype]) < FEW


def wait_for_idle_threads():
    """Sleep until the threads of the last runtime no longer spin."""
    until = time.perf_counter() + LONGEST_REST
    spun = PAUSE
    while spun > PAUSE / 10 and time.perf_counter() < until:
        before = time.process_time()
        time.sleep(PAUSE)
        spun = time.process_time() - before


def seconds(call):
    """Time one call, right after others that have woken the runtime's threads."""
    count, began = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < WAKE:
        call()
        count += 1
    if elapsed > LONG * count:
        return elapsed
    count = max(1, round(count * SHORT / elapsed))
    began = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - began) / count


def measure(cases, group, threads, runtimes, turns, budget):
    """Time the cases in `turns[0]` turns, and up to `turns[1]` within the budget; return a row for
    each case.
    """
    rows = [prepare(case, group, threads, runtimes) for case in cases]
    began = time.perf_counter()
    for turn in range(turns[1]):
        if turn >= turns[0] and time.perf_counter() - began > budget * len(rows):
            break
        for row in rows:
            for calls in row.calls.values():
                wait_for_idle_threads()
                for column, call in calls.items():
                    row.seconds.setdefault(column, []).append(seconds(call))
    for row in rows:
        row.calls.clear()
    return rows


def series(cases):
    """Yield lists of cases that are timed in turns with each other."""
    for _, together in groupby(enumerate(cases), lambda pair: pair[1].series or pair[0]):
        yield [case for _, case in together]
