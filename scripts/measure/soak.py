"""Run the service of docs/service.md under load for long: right results, flat memory, no request
lost.

Eight clients send requests, good ones and hostile ones, to one or several processes, in which
sessions come and go. All processes start at the same time, with one cache of compiled code, which
is empty unless --warm is given. In the end SIGTERM stops them under load. The lines after the table
list what was wrong; then the exit status is 1.

With a longer --patience, requests that a busy machine delays aren't wrong. Clients that are slow on
purpose are slower then, and must still be cut off.

python scripts/measure/soak.py [--minutes N] [--processes N] [--patience SECONDS] [--warm]
    [--seed S]
"""

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import add_tests_to_path  # noqa: F401
from support import soak_models
from support.soak import PATIENCE, leftovers, run, use_cache


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument(
        "--patience",
        type=float,
        default=PATIENCE,
        help="seconds that the service waits for a request",
    )
    parser.add_argument(
        "--warm", action="store_true", help="start with this machine's cache of compiled code"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with TemporaryDirectory() as name:
        soak_models.prepare(Path(name))
        if options.warm:
            use_cache(Path(name))
        lines, faults = run(
            Path(name), options.minutes, options.processes, options.patience, seed=options.seed
        )
        faults += [
            f"left in the cache: {file}" for file in leftovers(Path(name)) if not options.warm
        ]
    print(*lines, *faults, sep="\n")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
