"""Time what each loop written with vectors gains over the plain loop that it replaces.

Compiled code has a loop of kernels/vectors.py twice: as it is written there, and with vectors, from
compiler/simd_*.py. This runs cases drawn at random in two processes that take turns, of which one
compiles the plain loop. The gain is the plain loop's least CPU time divided by that of the vectors.
A loop is worth its code if it gains 1.15 on the cases that it is for, with AVX2 or with AVX-512.

python scripts/measure/side_paths.py [LOOP ...] [--seed N] [--cases N]
NUMBA_CPU_NAME=x86-64-v3 python scripts/measure/side_paths.py         # AVX2
"""

import argparse
import math
import os
import subprocess
import sys
import tempfile
import time
from statistics import geometric_mean

import add_tests_to_path  # noqa: F401
import numpy as np

import onnx_ops
from onnx_ops.compiler import simd

# The operators that run a loop, and a word that the names of its cases contain.
LOOPS = {
    "take": (("GridSample", "nearest"),),
    "blend": (("GridSample", "linear"), ("GridSample", "cubic"), ("DeformConv", "")),
    "add_points": (("MultiScaleDeformableAttention", ""),),
    "add_product": (("DeformConv", ""),),
    "fetch": (("Col2Im", ""),),
    "sum_runs": (("Col2Im", "overlap"),),
    "add_planes": (("Col2Im", ""),),
    "interleave": (("Col2Im", ""),),
    "copy_box": (("Im2Col", ""),),
}
TURNS = 4
SECONDS = 0.03  # of a case in a turn
USES = 0.03  # a case is one that the loop is for if its time changes by more than this
WORTH = 1.15


def keep_plain(loop):
    """Have compiled code keep a plain loop, where no module has replaced it yet."""
    replace = simd.vectorized

    def vectorized(function):
        return (lambda make: make) if function.__name__ == loop else replace(function)

    assert "onnx_ops.compiler.simd_points" not in sys.modules
    simd.vectorized = vectorized


def drawn(operator, word, seed, count):
    """Yield (name, model, inputs) of an operator's cases."""
    from benchmark.cases import GROUPS
    from benchmark.drawn import DRAWS
    from support.cases import model

    if operator not in DRAWS:  # cases of its group
        for case in GROUPS["attention"]():
            inputs = case.inputs()
            if inputs[0].dtype != "bfloat16":
                proto = model(case.domain, case.op_type, inputs, case.attributes)
                yield f"{case.op_type}, {case.name}, {case.dtype}", proto, inputs
        return
    rng = np.random.default_rng(seed)
    while count:
        case = DRAWS[operator](rng)
        name = f"{case.operator}, {case.kind}, {case.name}"
        if word in name:
            count -= 1
            yield name, case.model, [*case.inputs.values()]


def serve(loop, kept, seed, count):
    """Run the case whose number is read, and print its name and its least CPU time.

    `kept` is "plain" if compiled code shall keep the plain loop.
    """
    if kept == "plain":
        keep_plain(loop)
    from benchmark.measure import aligned, bound
    from support.backends import quiet

    cases = [case for part in LOOPS[loop] for case in drawn(*part, seed, count)]
    print(len(cases), flush=True)
    current = None
    for line in sys.stdin:
        name, proto, inputs = cases[int(line)]
        if current != line:
            current = line
            options = quiet(intra_op_num_threads=1)
            session = onnx_ops.InferenceSession(proto.SerializeToString(), options, optimize=True)
            inputs = [aligned(array) for array in inputs]
            names = [value.name for value in session.get_inputs()]
            (y,) = session.run(None, dict(zip(names, inputs, strict=True)))
            call = bound(session, inputs, aligned(y))
            call()
        least, end = math.inf, time.perf_counter() + SECONDS
        while least == math.inf or time.perf_counter() < end:
            begun = time.thread_time()
            call()
            least = min(least, time.thread_time() - begun)
        print(f"{least}\t{name}", flush=True)


class Server:
    """A process that runs `serve`."""

    def __init__(self, loop, kept, given, cache):
        numbers = "--seed", str(given.seed), "--cases", str(given.cases)
        self.process = subprocess.Popen(
            [sys.executable, __file__, loop, *numbers, "--serve", kept],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # The cache doesn't know which loop is replaced.
            env={**os.environ, "XDG_CACHE_HOME": os.path.join(cache, kept)},
        )
        self.count = int(self.process.stdout.readline())

    def run(self, case):
        """Return (seconds, the case's name)."""
        self.process.stdin.write(f"{case}\n")
        self.process.stdin.flush()
        seconds, name = self.process.stdout.readline().rstrip().split("\t")
        return float(seconds), name

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def gains(loop, given, cache):
    """Return (the plain loop's time divided by that of the vectors, name) of each case."""
    plain, vectors = (Server(loop, kept, given, cache) for kept in ("plain", "vectors"))
    for case in range(vectors.count):
        turns = [(plain.run(case), vectors.run(case)) for _ in range(TURNS)]
        slow, fast = (min(turn[side][0] for turn in turns) for side in (0, 1))
        yield slow / fast, turns[0][0][1]
    for server in (plain, vectors):
        server.end()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("loops", nargs="*", metavar="LOOP", default=list(LOOPS), help=str(LOOPS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=12, help="of each operator and kind")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.loops[0], given.serve, given.seed, given.cases)
        return
    print(
        "loop: cases it is for of all, their mean gain, how many gain 1.15; least and largest gain"
    )
    for loop in given.loops:
        with tempfile.TemporaryDirectory() as cache:
            found = list(gains(loop, given, cache))
        used = [gain for gain, _ in found if abs(gain - 1) > USES]
        worth = sum(gain >= WORTH for gain in used)
        mean = geometric_mean(used) if used else 1
        (low, low_name), (high, high_name) = min(found), max(found)
        print(f"{loop}: {len(used)} of {len(found)}, {mean:.2f}, {worth} worth it", flush=True)
        print(f"    {low:.2f} {low_name}\n    {high:.2f} {high_name}", flush=True)


if __name__ == "__main__":
    main()
