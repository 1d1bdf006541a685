"""Timing: all runtimes take turns on the same inputs, after their results have been compared.

A ratio is the median of the ratios within a turn. Between two runtimes there is a pause, since the threads of the last
one go on spinning for a while; calls that are not timed wake those of the next one.
"""

import functools
import time
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from statistics import median

import numpy as np
import peers
from backends import ort_value, output_shape, quiet
from cases import model

import onnx_ops

from .limit import limit

PAUSE, PATIENCE = 0.01, 1.0  # seconds in which no thread must have spun; and for which that is waited for at most
WAKE = 5e-3  # seconds until they run, each on its own core: the system moves them at its next tick, 4 ms or sooner
SHORT, LONG = 2e-3, 0.05  # seconds: shorter runs are timed many at once, longer ones are not woken for
SPEED_UP = 5e-4  # seconds from which one thread is measured, too
OWN, LIMIT, READS, ALONE = "onnx_ops", "limit", "reads", ", 1 thread"
# What a peer's result may be off, in most elements: by coordinates in float32, and by sums in 16 bits.
TOLERANCE = {"float16": 0.03, "bfloat16": 0.25, "float32": 4e-3, "float64": 1e-9}
FEW = 1e-3  # of the elements: places on the edge between two pixels


@functools.cache
def cache_size(level):
    """In bytes; 0 where the system doesn't tell."""
    for cache in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        if (cache / "level").read_text().strip() == str(level):
            return int((cache / "size").read_text().strip().removesuffix("K")) * 1024
    return 0


@dataclass
class Row:
    """What was found of one case. `seconds`: column -> one number per turn."""

    case: object
    group: str
    threads: int
    bytes: int  # of the tensors that the kernel reads and writes
    elements: int  # of the largest of them
    calls: dict = field(default_factory=dict)  # runtime -> {column: function}
    differ: list = field(default_factory=list)  # peers with another result
    seconds: dict = field(default_factory=dict)

    @property
    def within(self):
        """Where this machine can keep all of the data: L2 (one per thread), L3 or memory."""
        l2, l3 = map(cache_size, (2, 3))
        return "L2" if self.bytes <= l2 * self.threads else "L3" if self.bytes <= l3 else "memory"

    def time(self, column=OWN):
        return median(self.seconds[column]) if column in self.seconds else None

    def ratio(self, column, to=OWN, of=None):
        """The median of (time of `column` of the row `of`) / (time of `to`), turn by turn; None if one is missing."""
        above, below = (of or self).seconds.get(column), self.seconds.get(to)
        return median(a / b for a, b in zip(above, below, strict=True)) if above and below else None

    def over(self, column):
        """The median of our time minus that of `column`, in seconds; None if it is missing."""
        other = self.seconds.get(column)
        return median(a - b for a, b in zip(self.seconds[OWN], other, strict=True)) if other else None

    @property
    def to_fastest(self):
        """How many times faster than the fastest peer."""
        return min(filter(None, map(self.ratio, peers.PEERS)), default=None)

    @property
    def of_limit(self):
        return self.ratio(LIMIT)

    @property
    def of_reads(self):
        return self.ratio(READS)

    @property
    def speed_up(self):
        """Of all threads over one."""
        return self.ratio(OWN + ALONE)


def bound(session, inputs, y):
    """A call without any conversion between NumPy and ONNX Runtime, which writes `y`."""
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
    """Through an I/O binding and, where NumPy has the element type, through `run`."""
    calls = {name: bound(session, inputs, y)}
    if y.dtype.name != "bfloat16":
        feeds = dict(zip((i.name for i in session.get_inputs()), inputs, strict=True))
        calls[f"{name} run"] = lambda: session.run(None, feeds)[0]
    return calls


def ours(case, inputs, threads, backend="native"):
    proto = model(case.domain, case.op_type, inputs, case.attributes).SerializeToString()
    return onnx_ops.InferenceSession(proto, quiet(intra_op_num_threads=threads), backend=backend)


def prepare(case, group, threads, runtimes):
    """The row of a case, with everything that is to be timed."""
    from .reads import has_reads, reads  # which imports Numba: accuracy is measured without; and before any session

    threads = case.threads or threads
    inputs = case.inputs()
    y = np.empty(output_shape(case, inputs), inputs[0].dtype)
    tensors = [v for i, v in zip(case.operator.inputs, inputs, strict=True) if not i.values]
    row = Row(case, group, threads, sum(t.nbytes for t in (*tensors, y)), max(t.size for t in (*tensors, y)))
    row.calls[OWN] = both_ways(OWN, ours(case, inputs, threads), inputs, y)
    add_others(row, inputs, y, runtimes if case.peers else ())

    def plain_pass(threads):
        return bound(*limit(tensors, y, quiet(intra_op_num_threads=threads)))

    if threads > 1 and alone_is_long(alone := bound(ours(case, inputs, 1), inputs, y)):
        row.calls[OWN + ALONE] = {OWN + ALONE: alone}
        if LIMIT in runtimes:
            row.calls[LIMIT + ALONE] = {LIMIT + ALONE: plain_pass(1)}
    if LIMIT in runtimes:
        row.calls[LIMIT] = {LIMIT: plain_pass(threads)}
    if READS in runtimes and has_reads(case):
        row.calls[READS] = {READS: bound(*reads(case, inputs, y, quiet(intra_op_num_threads=threads)))}
    return row


def add_others(row, inputs, y, runtimes):
    """Those of our other backend and the peers that can do the case, unless their result differs."""
    case, threads, expected = row.case, row.threads, row.calls[OWN][OWN]().copy()
    if "extensions" in runtimes:
        session = ours(case, inputs, threads, "extensions")
        row.calls["extensions"] = both_ways("extensions", session, inputs, np.empty_like(y))
        assert same(row.calls["extensions"]["extensions"](), expected, case.dtype)
    for name in (n for n in peers.PEERS if n in runtimes):
        try:
            if name == "ONNX Runtime":
                session = peers.builtin_session(case, inputs, threads)
                calls = both_ways(name, session, inputs, np.empty_like(y))
            else:
                calls = {name: peers.PEERS[name](case, inputs, threads)}
            if same(calls[name](), expected, case.dtype):
                row.calls[name] = calls
            else:
                row.differ.append(name)
        except Exception:  # each peer has its own for what it can't do
            continue


def alone_is_long(call):
    call()
    began = time.perf_counter()
    call()
    return time.perf_counter() - began > SPEED_UP


def same(got, expected, dtype):
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return False
    if dtype not in TOLERANCE:
        return np.array_equal(got, expected)
    wide = np.float64 if dtype == "float64" else np.float32
    return np.mean(abs(got.astype(wide) - expected.astype(wide)) > TOLERANCE[dtype]) < FEW


def rest():
    """Sleep until the threads of the last runtime have stopped spinning."""
    until = time.perf_counter() + PATIENCE
    spun = PAUSE
    while spun > PAUSE / 10 and time.perf_counter() < until:
        before = time.process_time()
        time.sleep(PAUSE)
        spun = time.process_time() - before


def seconds(call):
    """Of one call, right after some that wake the runtime's threads."""
    count, began = 0, time.perf_counter()
    while (taken := time.perf_counter() - began) < WAKE:
        call()
        count += 1
    if taken > LONG:
        return taken
    count = max(1, round(count * SHORT / taken))
    began = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - began) / count


def measure(cases, group, threads, runtimes, turns, budget):
    """A row for each case: at least `turns[0]` turns, more, up to `turns[1]`, while they take less than the budget."""
    rows = [prepare(case, group, threads, runtimes) for case in cases]
    began = time.perf_counter()
    for turn in range(turns[1]):
        if turn >= turns[0] and time.perf_counter() - began > budget * len(rows):
            break
        for row in rows:
            for calls in row.calls.values():
                rest()
                for column, call in calls.items():
                    row.seconds.setdefault(column, []).append(seconds(call))
    for row in rows:
        row.calls.clear()
    return rows


def series(cases):
    """The cases in lists that take turns with each other."""
    for _, found in groupby(enumerate(cases), lambda pair: pair[1].series or pair[0]):
        yield [case for _, case in found]
