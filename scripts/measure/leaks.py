"""Measure how much memory sessions, runs and failing runs leave behind, in bytes per call.

After a warm-up the resident size is read ten times; the result is the slope of the line through
these points. Plain sessions of ONNX Runtime, alone and with onnxruntime-extensions, are measured
for comparison.

python scripts/measure/leaks.py [--scale FRACTION]
"""

import argparse
import logging

import add_tests_to_path  # noqa: F401
from support.leaks import slope, workloads

COUNTS = {"sessions": 10_000, "runs": 100_000, "failing runs": 10_000}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale", type=float, default=1, help="factor for the number of calls")
    scale = parser.parse_args().scale
    logging.disable()  # the extensions backend logs what it refuses
    print("| calls | of | bytes per call |\n|---|---|---|")
    for kind, name, work in workloads():
        count = int(COUNTS[kind] * scale)
        print(f"| {count:,} {kind} | {name} | {slope(work, count):.1f} |", flush=True)


if __name__ == "__main__":
    main()
