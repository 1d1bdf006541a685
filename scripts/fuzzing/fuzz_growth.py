"""Draw models of families that grow, at n, 2n and 4n, and count what reading them takes.

Instructions of Python, and the most memory that Python and NumPy hold, may grow by MOST_STEPS from
one to the next. What a small model may take in any case, some 0.5 s and 1 ms a node, and 16 MB,
doesn't count: there, what is read doubles with some nodes, until the budget ends.

python scripts/fuzzing/fuzz_growth.py [--seconds N] [--seed S]
python scripts/fuzzing/fuzz_growth.py --seed S --case K          one model again
"""

import argparse
import itertools
import sys
import tempfile
import time
import tracemalloc
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import add_tests_to_path  # noqa: F401
import numpy as np
from support.families import DOORS, FAMILIES, model
from support.growth import MOST_STEPS, steps

from onnx_ops.model.nodes import model_nodes

# That count as nothing. Python takes some 30 million steps a second.
FREE_STEPS, FREE_BYTES = 15_000_000, 2**24
FREE_PER_NODE = 30_000  # steps
MOST_FAMILIES, DEEPEST = 4, 3


class Drawn(NamedTuple):
    """Families with how many nodes they have at first, and the number of branches around them."""

    families: tuple[tuple[str, int], ...]
    inside: int


def draw(seed: int, case: int) -> Drawn:
    rng = np.random.default_rng([seed, case])
    names = rng.choice([*FAMILIES], rng.integers(1, MOST_FAMILIES + 1))
    inside = int(rng.integers(0, DEEPEST)) * (rng.random() < 0.3)
    return Drawn(tuple((str(name), FAMILIES[name][1] // 2) for name in names), inside)


def memory(call: Callable[[], object]) -> int:
    """Return the most bytes that Python and NumPy hold during a call."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def counted(drawn: Drawn, door: str, folder: Path) -> tuple[bool, str]:
    """Return (whether the work grows by more than MOST_STEPS, the figures)."""
    models = [
        model(((name, factor * n) for name, n in drawn.families), drawn.inside)
        for factor in (1, 2, 4)
    ]
    calls = [DOORS[door](proto, folder) for proto in models]
    calls[0]()  # imports
    nodes = [sum(1 for _ in model_nodes(proto)) for proto in models]
    stepped = [steps(call) for call in calls]
    held = [memory(call) for call in calls]
    free = [FREE_STEPS + FREE_PER_NODE * count for count in nodes]
    faulty = grows(stepped, free) or grows(held, [FREE_BYTES] * 3)
    return faulty, f"{nodes} nodes, {stepped} steps, {held} bytes"


def grows(counts: list[int], free: list[int]) -> bool:
    """Return whether counts beyond those that are free more than double, by far."""
    return any(
        b > max(free_b, MOST_STEPS * a)
        for (a, b), free_b in zip(pairwise(counts), free[1:], strict=True)
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--case", type=int)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    end = time.monotonic() + options.seconds
    growing_count = count = 0
    with tempfile.TemporaryDirectory() as folder:
        for case in itertools.count() if options.case is None else [options.case]:
            if time.monotonic() > end:
                break
            drawn = draw(options.seed, case)
            count += 1
            for door in DOORS:
                try:
                    faulty, note = counted(drawn, door, Path(folder))
                except Exception as error:
                    faulty = True
                    note = f"{type(error).__name__}: {error}"
                growing_count += faulty
                if faulty or options.case is not None:
                    print(
                        f"--seed {options.seed} --case {case}: {door}, {drawn}: {note}", flush=True
                    )
    print(f"{count} models with seed {options.seed}: {growing_count} grow, or fail")
    sys.exit(growing_count > 0)


if __name__ == "__main__":
    main()
