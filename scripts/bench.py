"""Time the operators against their peers, all in one run: ONNX Runtime's built-in kernels, PyTorch and OpenVINO.

python scripts/bench.py                          everything, some ten minutes
python scripts/bench.py --group baseline         one group of cases; --only TEXT picks from them
python scripts/bench.py --write                  the README's groups, table and picture
python scripts/bench.py --accuracy               errors of float32 results instead of times

Who is installed takes part; docs/performance.md tells how it is done and what the columns are.
"""

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import peers
import readme
from benchmark import accuracy, report
from benchmark.cases import GROUPS
from benchmark.measure import LIMIT, READS, measure, series

from onnx_ops.files import staged_file

RUNTIMES = ("extensions", *peers.PEERS, LIMIT, READS)
TURNS, BUDGET = 5, 2.0  # at least; and seconds per case in which there may be more
SHOWN = ("baseline", "smooth")  # in the README
PICTURE = "docs/images/performance.png"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--group", nargs="+", choices=GROUPS, help="default: all of them")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases with this in operator, name or element type")
    parser.add_argument("--runtimes", nargs="*", choices=RUNTIMES, default=RUNTIMES, help="beside the native backend")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=11, help="turns at most")
    parser.add_argument("--quick", action="store_true", help="one turn, to see that it runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all that was measured")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the groups but scaling (needs matplotlib)")
    parser.add_argument("--write", action="store_true", help=f"put {' and '.join(SHOWN)} into README.md")
    parser.add_argument("--accuracy", action="store_true", help="errors instead of times")
    given = parser.parse_args()
    given.group = given.group or list(SHOWN if given.write else GROUPS)
    if given.write and not set(SHOWN) <= set(given.group):
        parser.error(f"--write needs {' and '.join(SHOWN)}")
    return given


def timed(chosen, given, console):
    """The rows of each group, printed as soon as they are complete."""
    turns = (1, 1) if given.quick else (min(TURNS, given.repeats), given.repeats)
    found = {}
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("timing", total=sum(map(len, chosen.values())))
        for group, cases in chosen.items():
            rows = found[group] = []
            for together in series(cases):
                rows += measure(together, group, given.threads, given.runtimes, turns, BUDGET)
                progress.advance(task, len(together))
            if rows:
                progress.console.print(report.table(group, rows, given.threads))
                progress.console.print(*report.sentences(group, rows), sep="\n", highlight=False)
    return found


def main():
    given = arguments()
    console = Console(width=None if Console().is_terminal else 220)
    wanted = lambda case: given.only.lower() in f"{case.op_type} {case.name} {case.dtype}".lower()
    chosen = {group: [c for c in GROUPS[group]() if wanted(c)] for group in given.group}
    if given.accuracy:
        cases = [c for group in chosen.values() for c in group if c.dtype == "float32" and c.peers]
        with Progress(console=console, transient=True) as progress:
            console.print(
                accuracy.table([(c, accuracy.errors(c)) for c in progress.track(cases, description="running")])
            )
        return
    found = timed(chosen, given, console)
    if given.json:
        rows = [report.data(row) for rows in found.values() for row in rows]
        with staged_file(given.json) as new:
            new.write_text(json.dumps(rows, indent=1) + "\n")
    if given.plot:
        shown = [row for group, rows in found.items() if group != "scaling" for row in rows]
        report.plot(shown, given.threads, given.plot)
    if given.write:
        rows = [row for group in SHOWN for row in found[group]]
        report.plot(rows, given.threads, readme.ROOT / PICTURE)
        text = "\n".join(report.markdown(rows))
        readme.put("performance", f"![Ratios to the peers and to the limit]({PICTURE})\n\n{text}")


if __name__ == "__main__":
    main()
