"""Edit small models and compare what `onnx_ops.optimize` and backend="extensions" make of them
with the original.

Results that differ are compared with those in float64, by the factors of docs/optimize.md, except
at jumps.

Each failure is printed once: its check, the operators that replaced nodes, its cause, the seed, and
the edits without which it doesn't occur.

python scripts/fuzzing/fuzz_rewriting.py [--seconds N] [--seed S]   and other options, see --help
python scripts/fuzzing/fuzz_rewriting.py --seed S --case K          one edited model again
"""

import argparse
import logging
import multiprocessing
import os
import resource
import sys
import time
import warnings

import add_tests_to_path  # noqa: F401
from support.rewriting_fuzzer import Report, again

MEMORY = (
    12 * 2**30
)  # bytes that a process may address, so that no edited model exhausts the machine


SLOW = 300  # seconds after which an edited model counts as endless, on a busy machine, too


def child(report, case, end):
    """Examine edited models until the time is over. case: the number of the one that is being
    examined.
    """
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    os.dup2(
        os.open(os.devnull, os.O_WRONLY), 2
    )  # ONNX Runtime prints errors, which are intended here
    sys.stderr = sys.stdout
    logging.disable()
    warnings.simplefilter("ignore")
    while time.monotonic() < end:
        report.examine(case.value)
        case.value += 1


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="examine this edited model only")
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="NAME",
        help="leave out a seed or edit",
    )
    options = parser.parse_args()
    if options.case is not None:
        report = Report(options)
        report.examine(options.case)
        return int(bool(report.counts))
    spawn, end = multiprocessing.get_context("spawn"), time.monotonic() + options.seconds
    manager, case = spawn.Manager(), spawn.Value("q", 0)
    report = Report(options, manager.dict)
    while time.monotonic() < end:
        process, before = spawn.Process(target=child, args=(report, case, end)), None
        process.start()
        while process.is_alive() and case.value != before:
            before = case.value
            process.join(SLOW)
        process.kill()  # what takes so long never ends
        process.join()
        if process.exitcode:
            print(
                f"exit status {process.exitcode}\n   again: {again(options, case.value)}",
                flush=True,
            )
            report.counts[f"exit status {process.exitcode}",] = 1
            case.value += 1
    for kind, count in sorted(report.counts.items(), key=lambda item: -item[1]):
        print(f"{count:6} {' | '.join(kind)}")
    print(
        f"seed {options.seed}: {case.value} edited models, and those in which "
        "something was replaced:"
    )
    for name, (count, replaced) in sorted(report.replaced.items()):
        print(f"{count:6} {replaced:6} {name}")
    print(
        "of results that differ:",
        ", ".join(f"{count} {what}" for what, count in report.totals.items()) or "none",
    )
    return int(bool(report.counts))


if __name__ == "__main__":
    sys.exit(main())
