"""Draw a map of a scan: a row for each operator and kind of case, a column for each size, a colour
for each ratio.
"""

import math
from collections.abc import Callable
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np

from onnx_ops.system.files import staged_file

from .drawn import Array
from .scan import Outcome

SIZES = {
    2**16: "64 kB",
    2**18: "256 kB",
    2**20: "1 MB",
    2**22: "4 MB",
    2**24: "16 MB",
    2**40: "more",
}  # up to
FASTER = 4.0  # times: the end of the colours
DARK = 0.7  # of the colours, which go from -1 to 1


def draw(outcomes: list[Outcome], file: Path) -> None:
    """Write a picture: ratios to the fastest peer for each number of threads, and shares of a
    copy's speed.
    """
    from matplotlib import pyplot

    outcomes = [outcome for outcome in outcomes if outcome.peers]
    rows = sorted({row_of(outcome) for outcome in outcomes})
    threads = sorted({outcome.threads for outcome in outcomes})
    panels: list[tuple[str, Callable[[Outcome], float], int, float]] = [
        (
            f"times as fast as the fastest peer, {count} thread{'s' * (count > 1)}",
            lambda o: o.to_fastest,
            count,
            FASTER,
        )
        for count in threads
    ]
    panels.append(
        ("share of a copy's speed, 1 thread", lambda outcome: outcome.of_copy, threads[0], 1.0)
    )
    size = 3.2 + 3.6 * len(panels), 1.6 + 0.32 * len(rows)
    figure, axes = pyplot.subplots(1, len(panels), sharey=True, figsize=size, layout="constrained")
    for axis, (title, value, count, end) in zip(axes, panels, strict=True):
        cells = cells_of([outcome for outcome in outcomes if outcome.threads == count], rows, value)
        colours = np.log(cells) / math.log(end) if end > 1 else 2 * cells - 1
        axis.imshow(colours, cmap="RdYlBu", vmin=-1, vmax=1, aspect="auto")
        write_numbers(axis, cells, colours)
        axis.set_title(title, fontsize=10)
        axis.set_xticks(range(len(SIZES)), SIZES.values(), fontsize=8)
        axis.set_xlabel("inputs and output, up to", fontsize=8)
        axis.set_yticks(range(len(rows)), [", ".join(row) for row in rows], fontsize=8)
        axis.spines[:].set_visible(False)
        axis.tick_params(length=0)
    with staged_file(file) as new:
        figure.savefig(new, dpi=110)


def row_of(outcome: Outcome) -> tuple[str, str]:
    return outcome.case.operator, outcome.case.kind


def cells_of(
    outcomes: list[Outcome], rows: list[tuple[str, str]], value: Callable[[Outcome], float]
) -> Array:
    """Return the geometric means of a value [row, size], NaN where there is no case."""
    cells = np.full((len(rows), len(SIZES)), np.nan)
    for r, row in enumerate(rows):
        for s, size in enumerate(SIZES):
            least = [0, *SIZES][s]
            values = [value(o) for o in outcomes if row_of(o) == row and least < o.bytes <= size]
            if values:
                cells[r, s] = geometric_mean(values)
    return cells


def write_numbers(axis: Any, cells: Array, colours: Array) -> None:
    """Write the numbers, in white on dark colours, which are those at both ends."""
    for (r, s), value in np.ndenumerate(cells):
        if not math.isnan(value):
            colour = "white" if abs(colours[r, s]) > DARK else "black"
            axis.text(s, r, f"{value:.2g}", ha="center", va="center", fontsize=8, color=colour)
