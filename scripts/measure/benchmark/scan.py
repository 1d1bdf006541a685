"""Time cases drawn at random, whole models with and without onnx_ops: on one thread and on all.

On one thread the figure is the least CPU time of the calling thread, which other programs hardly
change. On several it is the median of ratios within a turn. OpenVINO computes on threads of its
own, so it takes part on several only.
"""

import functools
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib.util import find_spec
from statistics import geometric_mean, median
from typing import Any

import numpy as np
import onnxruntime as ort
from support.backends import quiet

import onnx_ops

from .drawn import Array, Drawn
from .limit import limit
from .measure import aligned, bound, is_same_result, seconds, wait_for_idle_threads
from .reads import reads

OURS, BUILT_IN, PYTORCH, OPENVINO = "onnx_ops", "ONNX Runtime", "PyTorch", "OpenVINO"
COPY, READS = LIMITS = "copy", "reads"  # what every kernel must do: limit.py, reads.py
FEWEST_TURNS = 7
TURNS = 5  # on several threads
COPY_SPEED = 0.85  # a case at this share of a copy's speed counts as fast as any peer
# Seconds: PyTorch's functions count from here on, as a session's call costs some microseconds.
CALL = 50e-6
NOISE = 0.97, 0.5e-6  # the ratio and the seconds from which a case counts as slower
Call = Callable[[], object]


@dataclass
class Outcome:
    """What was measured of a case: seconds of onnx_ops, and the others' time divided by it."""

    case: Drawn
    threads: int
    bytes: int  # of all inputs and outputs
    seconds: float
    ratios: dict[str, float]  # of each peer, and of LIMITS
    differ: list[str] = field(default_factory=list)  # peers whose result is another

    @property
    def peers(self) -> dict[str, float]:
        return {name: ratio for name, ratio in self.ratios.items() if name not in LIMITS}

    @property
    def to_fastest(self) -> float:
        """The fastest peer's time divided by that of onnx_ops."""
        return min(self.peers.values(), default=math.nan)

    @property
    def of_copy(self) -> float:
        """The time to read all inputs and write the output once, divided by that of onnx_ops."""
        return self.ratios[COPY]

    @property
    def of_limit(self) -> float:
        """The longer time of LIMITS, divided by that of onnx_ops."""
        return max(self.ratios[name] for name in LIMITS if name in self.ratios)

    @property
    def is_slower(self) -> bool:
        """Whether a peer is faster, by more than noise, although a copy is much faster."""
        if self.of_copy >= COPY_SPEED:
            return False
        least, seconds = NOISE
        return self.to_fastest < least and self.seconds * (1 - self.to_fastest) > seconds


def by_pytorch(case: Drawn, inputs: dict[str, Array], threads: int) -> Call:
    import torch

    if case.by_torch is None:
        raise NotImplementedError
    tensors = [torch.from_numpy(array) for array in inputs.values() if array.dtype == np.float32]
    compute = case.by_torch

    def call() -> object:
        if torch.get_num_threads() != threads:  # the number holds for the whole process
            torch.set_num_threads(threads)
        with torch.inference_mode():
            return compute(*tensors).numpy()

    return call


def by_openvino(case: Drawn, inputs: dict[str, Array], threads: int) -> Call:
    import openvino

    model = openvino.Core().read_model(case.model.SerializeToString())
    model.reshape(
        {name: array.shape for name, array in inputs.items() if array.dtype == np.float32}
    )
    hints = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32",
    }
    request = openvino.compile_model(model, "CPU", hints).create_infer_request()
    return lambda: request.infer(inputs, share_inputs=True, share_outputs=True)[0]


def calls_of(case: Drawn, threads: int) -> tuple[dict[str, Call], list[str], int]:
    """Return a call for onnx_ops, each peer and each of LIMITS; the peers whose result differs; and
    the bytes of all tensors.
    """
    inputs = {name: aligned(array) for name, array in case.inputs.items()}
    content = case.model.SerializeToString()
    options = functools.partial(quiet, intra_op_num_threads=threads)
    before = sum(onnx_ops.node_counts().values())
    session = onnx_ops.InferenceSession(content, options(), optimize=True)
    assert sum(onnx_ops.node_counts().values()) > before, f"onnx_ops has nothing of {case.name}"
    (expected,) = session.run(None, inputs)
    output = aligned(expected)
    calls: dict[str, Call] = {OURS: bound(session, inputs.values(), output)}
    calls[COPY] = bound(*limit([*inputs.values()], output, options()))
    if case.operator.startswith("GridSample"):
        (node,) = case.model.graph.node
        attributes = {a.name: a.s.decode() if a.s else a.i for a in node.attribute}
        calls[READS] = bound(*reads(attributes, *inputs.values(), output.copy(), options()))
    differ = []

    def builtin(case: Drawn, inputs: dict[str, Array], threads: int) -> Call:
        plain = ort.InferenceSession(content, options(), providers=["CPUExecutionProvider"])
        return bound(plain, inputs.values(), np.empty_like(output))

    peers = {BUILT_IN: builtin}
    if find_spec("torch"):
        peers[PYTORCH] = by_pytorch
    if find_spec("openvino") and threads > 1:
        peers[OPENVINO] = by_openvino
    for name, peer in peers.items():
        try:
            call = peer(case, inputs, threads)
            if is_same_result(np.asarray(call()), expected, "float32"):
                calls[name] = call
            else:
                differ.append(name)
        except Exception:  # each peer raises its own exceptions for what it can't do
            continue
    return calls, differ, sum(array.nbytes for array in (*inputs.values(), output))


def on_one_thread(case: Drawn, budget: float) -> Outcome:
    """Compare the least CPU time of the calling thread, over turns that take `budget` seconds
    together.
    """
    calls, differ, size = calls_of(case, 1)
    least = dict.fromkeys(calls, math.inf)
    for call in calls.values():
        call()
    turns, end = 0, time.perf_counter() + budget
    while turns < FEWEST_TURNS or time.perf_counter() < end:
        turns += 1
        for name, call in calls.items():
            begun = time.thread_time()
            call()
            least[name] = min(least[name], time.thread_time() - begun)
    ours = least.pop(OURS)
    if ours < CALL:
        least.pop(PYTORCH, None)
    return Outcome(
        case, 1, size, ours, {name: seconds / ours for name, seconds in least.items()}, differ
    )


def on_threads(case: Drawn, threads: int) -> Outcome:
    """Compare times of a run on several threads, as medians of the ratios within a turn."""
    calls, differ, size = calls_of(case, threads)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(TURNS):
        for name, call in calls.items():
            wait_for_idle_threads()
            times[name].append(seconds(call))
    ours = times.pop(OURS)
    if median(ours) < CALL:
        times.pop(PYTORCH, None)
    ratios = {
        name: median(a / b for a, b in zip(times_of_peer, ours, strict=True))
        for name, times_of_peer in times.items()
    }
    return Outcome(case, threads, size, median(ours), ratios, differ)


def measured(case: Drawn, threads: int, budget: float) -> Outcome:
    """Measure a case, thrice if it is slower than a peer; the best counts, since other programs
    share the caches.
    """
    outcomes: list[Outcome] = []
    while len(outcomes) < 3 and (not outcomes or outcomes[-1].is_slower):
        outcomes.append(on_one_thread(case, budget) if threads == 1 else on_threads(case, threads))
    return max(outcomes, key=lambda outcome: outcome.to_fastest)


# What is said of them


def share(outcomes: list[Outcome], ratio: float) -> float:
    """Return the share of cases at least `ratio` times as fast as the fastest peer."""
    return sum(outcome.to_fastest >= ratio for outcome in outcomes) / len(outcomes)


def by_operator(outcomes: Iterable[Outcome]) -> dict[tuple[str, int], list[Outcome]]:
    """Return {(operator, threads): outcomes} of the cases that a peer can do, in the order of their
    first cases.
    """
    groups: dict[tuple[str, int], list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.peers:
            groups.setdefault((outcome.case.operator, outcome.threads), []).append(outcome)
    return groups


def summary(outcomes: Iterable[Outcome]) -> list[str]:
    """Return the lines of a table in Markdown: a row for each operator and number of threads."""
    header = (
        "| operator | threads | cases | at least as fast | 1.5 x | 2 x | 4 x | geometric "
        "mean | at the limit | lowest |"
    )
    lines = [header, "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"]
    for (operator, threads), group in by_operator(outcomes).items():
        fast = sum(not outcome.is_slower for outcome in group) / len(group)
        shares = " | ".join(
            f"{100 * fraction:.0f} %"
            for fraction in (fast, *(share(group, r) for r in (1.5, 2, 4)))
        )
        ratios = [outcome.to_fastest for outcome in group]
        at_limit = geometric_mean(outcome.to_fastest / outcome.of_limit for outcome in group)
        figures = f"{geometric_mean(ratios):.2f} x | {at_limit:.2f} x | {min(ratios):.2f} x"
        lines.append(f"| {operator} | {threads} | {len(group)} | {shares} | {figures} |")
    return lines


def slowest(outcomes: Iterable[Outcome]) -> list[str]:
    """Return the lines of a table in Markdown: the cases that are slower than a peer, with the
    limits.
    """
    lines = [
        "| case | threads | onnx_ops, us | a copy, us | the reads, us | fastest peer / onnx_ops |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    slow = [outcome for outcome in outcomes if outcome.peers and outcome.is_slower]
    for outcome in sorted(slow, key=lambda outcome: outcome.to_fastest):
        name, microseconds = (
            min(outcome.peers, key=outcome.peers.__getitem__),
            outcome.seconds * 1e6,
        )
        limits = [
            f"{microseconds * outcome.ratios[of]:.1f}" if of in outcome.ratios else ""
            for of in LIMITS
        ]
        figures = f"{microseconds:.1f} | {' | '.join(limits)} | {outcome.to_fastest:.2f}, {name}"
        lines.append(
            f"| {outcome.case.operator}: {outcome.case.name} | {outcome.threads} | {figures} |"
        )
    return lines


def data(outcome: Outcome) -> dict[str, Any]:
    """Return the data of an outcome, for JSON."""
    return {
        "operator": outcome.case.operator, "kind": outcome.case.kind, "case": outcome.case.name,
        "threads": outcome.threads, "bytes": outcome.bytes, "microseconds": outcome.seconds * 1e6,
        "ratios": outcome.ratios, "differ": outcome.differ, "is_slower": outcome.is_slower,
    }  # fmt: skip
