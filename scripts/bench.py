"""Time the operators against their peers, all in one run: ONNX Runtime's built-in kernels, PyTorch and OpenVINO.

python scripts/bench.py                          everything, some ten minutes
python scripts/bench.py --group baseline         one group of cases; --only TEXT picks from them
python scripts/bench.py --write                  the groups that docs/performance.md shows, its table and picture

Those peers take part that are installed. docs/performance.md explains the method and the columns.
"""

import argparse
import json
from pathlib import Path

import add_tests_to_path  # noqa: F401
import pages
import peers
from benchmark import report
from benchmark.cases import GROUPS
from benchmark.measure import LIMIT, READS, measure, series
from rich.console import Console
from rich.progress import Progress

from onnx_ops.system.files import staged_file

RUNTIMES = ("extensions", *peers.PEERS, LIMIT, READS)
TURNS, BUDGET = 5, 2.0  # the fewest turns; seconds per case that further turns may take
SHOWN_GROUPS = ("baseline", "smooth", "points")
PICTURE = "images/performance.png"  # beside the page


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--group", nargs="+", choices=GROUPS, help="default: all of them")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases with this in operator, name or element type")
    parser.add_argument(
        "--runtimes", nargs="*", choices=RUNTIMES, default=RUNTIMES, help="runtimes to time besides the native backend"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=11, help="the largest number of turns")
    parser.add_argument("--quick", action="store_true", help="take one turn only, as a trial")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all measurements as JSON")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the groups but scaling (needs matplotlib)")
    parser.add_argument("--write", action="store_true", help="put the groups that it shows into docs/performance.md")
    options = parser.parse_args()
    options.group = options.group or list(SHOWN_GROUPS if options.write else GROUPS)
    if options.write and not set(SHOWN_GROUPS) <= set(options.group):
        parser.error(f"--write needs {' and '.join(SHOWN_GROUPS)}")
    return options


def time_groups(cases_by_group, options, console):
    """Return {group: rows}; each group is printed as soon as it is complete."""
    turns = (1, 1) if options.quick else (min(TURNS, options.repeats), options.repeats)
    rows_by_group = {}
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("timing", total=sum(map(len, cases_by_group.values())))
        for group, cases in cases_by_group.items():
            rows = rows_by_group[group] = []
            for together in series(cases):
                rows += measure(together, group, options.threads, options.runtimes, turns, BUDGET)
                progress.advance(task, len(together))
            if rows:
                progress.console.print(report.table_of(group, rows, options.threads))
                progress.console.print(*report.sentences(group, rows), sep="\n", highlight=False)
    return rows_by_group


def main():
    options = arguments()
    console = Console(width=None if Console().is_terminal else 220)
    is_wanted = lambda case: options.only.lower() in f"{case.op_type} {case.name} {case.dtype}".lower()
    cases_by_group = {group: [c for c in GROUPS[group]() if is_wanted(c)] for group in options.group}
    rows_by_group = time_groups(cases_by_group, options, console)
    if options.json:
        rows = [report.data(row) for rows in rows_by_group.values() for row in rows]
        with staged_file(options.json) as new:
            new.write_text(json.dumps(rows, indent=1) + "\n")
    if options.plot:
        plotted = [row for group, rows in rows_by_group.items() if group != "scaling" for row in rows]
        report.plot(plotted, options.threads, options.plot)
    if options.write:
        rows = [row for group in SHOWN_GROUPS for row in rows_by_group[group]]
        report.plot(rows, options.threads, pages.ROOT / "docs" / PICTURE)
        setting, table = report.setting(options.threads), "\n".join(report.markdown(rows))
        text = f"{setting}\n\n![Ratios to the peers and to the limit]({PICTURE})\n\n{table}"
        pages.put("performance", text, "docs/performance.md")


if __name__ == "__main__":
    main()
