"""Time the operators against ONNX Runtime's built-in kernels, PyTorch and OpenVINO, on shapes drawn
at random.

python scripts/measure/bench.py
    the scan, on one thread and on all, a quarter of an hour
python scripts/measure/bench.py --only GridSample --cases 100 --seed 3
python scripts/measure/bench.py --write
    the scan with the figures and the map of docs/performance.md
python scripts/measure/bench.py --group dtypes
    named cases that somebody chose, to compare two versions of a kernel

Those peers take part that are installed. docs/performance.md explains the method.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import add_tests_to_path  # noqa: F401
import numpy as np
from benchmark import report, scan, scan_map
from benchmark.cases import GROUPS
from benchmark.drawn import DRAWS
from benchmark.measure import LIMIT, READS, Row, measure, series
from rich.console import Console
from rich.markdown import Markdown
from rich.progress import Progress
from support import pages, peers

from onnx_ops.system import available_cpus
from onnx_ops.system.files import staged_file

RUNTIMES = ("extensions", *peers.PEERS, LIMIT, READS)
TURNS, BUDGET = (
    5,
    2.0,
)  # of named cases: the fewest turns; seconds per case that further turns may take
MAP = "images/performance.png"  # beside the page


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0, help="of the scan")
    parser.add_argument(
        "--cases",
        type=int,
        default=24,
        help="of the scan, for each operator; GridSample has thrice",
    )
    parser.add_argument(
        "--seconds", type=float, default=0.3, help="of the scan, for each case on one thread"
    )
    parser.add_argument(
        "--group", nargs="+", choices=GROUPS, help="named cases in place of the scan"
    )
    parser.add_argument(
        "--only",
        default="",
        metavar="TEXT",
        help="cases with this in operator, name or element type",
    )
    parser.add_argument(
        "--runtimes",
        nargs="*",
        choices=RUNTIMES,
        default=RUNTIMES,
        help="runtimes to time named cases with",
    )
    parser.add_argument(
        "--threads", type=int, nargs="+", help="default: 1 and as many as there are CPUs"
    )
    parser.add_argument(
        "--repeats", type=int, default=11, help="the largest number of turns of named cases"
    )
    parser.add_argument(
        "--quick", action="store_true", help="take one turn of named cases only, as a trial"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all measurements as JSON")
    parser.add_argument(
        "--map", type=Path, metavar="FILE", help="draw the map of the scan (needs matplotlib)"
    )
    parser.add_argument(
        "--write", action="store_true", help="put the scan into docs/performance.md"
    )
    options = parser.parse_args()
    options.threads = options.threads or sorted({1, len(available_cpus())})
    if options.group and (options.write or options.map):
        parser.error("--write and --map are of the scan, which --group leaves out")
    return options


# The scan


def scanned(options: argparse.Namespace, console: Console) -> list[scan.Outcome]:
    """Measure the scan's cases. A case that is slower than a peer is printed."""
    outcomes = []
    counts = {
        name: options.cases * (3 if name == "GridSample" else 1)
        for name in DRAWS
        if options.only in name
    }
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("timing", total=sum(counts.values()) * len(options.threads))
        for name, count in counts.items():
            rng = np.random.default_rng(options.seed)
            for _ in range(count):
                case = DRAWS[name](rng)
                for threads in options.threads:
                    outcome = scan.measured(case, threads, options.seconds)
                    outcomes.append(outcome)
                    progress.advance(task)
    return outcomes


def show_scan(options: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    """Measure and print the scan, draw and write what the options ask for; return its data."""
    outcomes = scanned(options, console)
    console.print(f"seed {options.seed}", highlight=False)
    tables = ["\n".join(lines) for lines in (scan.summary(outcomes), scan.slowest(outcomes))]
    for table in tables:
        console.print(Markdown(table))
    if options.map:
        scan_map.draw(outcomes, options.map)
    if options.write:
        scan_map.draw(outcomes, pages.ROOT / "docs" / MAP)
        figures, slow = tables
        setting = report.setting(f"seed {options.seed}")
        map_ = f"![Ratios to the fastest peer, and shares of a copy's speed]({MAP})"
        text = "\n\n".join([setting, figures, map_, "The cases that are slower than a peer:", slow])
        pages.put("performance", text, "docs/performance.md")
    return [scan.data(outcome) for outcome in outcomes]


# Named cases


def time_groups(options: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    """Measure named cases, and print each group as soon as it is complete; return their data."""
    turns = (1, 1) if options.quick else (min(TURNS, options.repeats), options.repeats)
    threads = max(options.threads)
    is_wanted = lambda case: (
        options.only.lower() in f"{case.op_type} {case.name} {case.dtype}".lower()
    )
    cases_by_group = {
        group: [case for case in GROUPS[group]() if is_wanted(case)] for group in options.group
    }
    all_rows: list[Row] = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("timing", total=sum(map(len, cases_by_group.values())))
        for group, cases in cases_by_group.items():
            rows: list[Row] = []
            for together in series(cases):
                rows += measure(together, group, threads, options.runtimes, turns, BUDGET)
                progress.advance(task, len(together))
            if rows:
                progress.console.print(report.table_of(group, rows, threads))
                progress.console.print(*report.sentences(group, rows), sep="\n", highlight=False)
            all_rows += rows
    return [report.data(row) for row in all_rows]


def main() -> None:
    options = arguments()
    console = Console(width=None if Console().is_terminal else 220)
    rows = time_groups(options, console) if options.group else show_scan(options, console)
    if options.json:
        with staged_file(options.json) as new:
            new.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
