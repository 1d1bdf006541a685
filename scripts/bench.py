"""Time the operators against their peers, all in one run: ONNX Runtime's built-in kernels, PyTorch and OpenVINO.

python scripts/bench.py [--group NAME ...] [--only TEXT] [--threads N] [--repeats N] [--json FILE]
"""

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import peers
from benchmark import report
from benchmark.cases import GROUPS
from benchmark.measure import LIMIT, measure, series

RUNTIMES = ("extensions", *peers.PEERS, LIMIT)
TURNS, BUDGET = 5, 3.0  # at least, and seconds per case in which there may be more


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--group", nargs="*", choices=GROUPS, default=list(GROUPS), help="default: all of them")
    parser.add_argument("--only", default="", help="cases whose operator, name or element type contains this")
    parser.add_argument("--runtimes", nargs="*", choices=RUNTIMES, default=RUNTIMES, help="beside the native backend")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=11, help="turns at most")
    parser.add_argument("--quick", action="store_true", help="one turn, to see that it runs")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    turns = (1, 1) if arguments.quick else (min(TURNS, arguments.repeats), arguments.repeats)
    console = Console(width=None if Console().is_terminal else 220)

    def wanted(case):
        return arguments.only.lower() in f"{case.op_type} {case.name} {case.dtype}".lower()

    chosen = {name: [c for c in GROUPS[name]() if wanted(c)] for name in arguments.group}
    found = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("timing", total=sum(map(len, chosen.values())))
        for name, cases in chosen.items():
            rows = []
            for together in series(cases):
                rows += measure(together, name, arguments.threads, arguments.runtimes, turns, BUDGET)
                progress.advance(task, len(together))
            if rows:
                progress.console.print(report.table(name, rows, arguments.threads))
                progress.console.print(*report.sentences(name, rows), sep="\n", highlight=False)
            found += rows
    if arguments.json:
        arguments.json.write_text(json.dumps([report.data(row) for row in found], indent=1) + "\n")


if __name__ == "__main__":
    main()
