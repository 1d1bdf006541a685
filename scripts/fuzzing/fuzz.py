"""Compare all backends with the reference on random calls, valid and invalid.

A seed draws 500 calls: operators, data types, shapes, attributes and values. The script draws from
further seeds until the time is over or a call fails. Then it prints the seed and the smallest call
that fails, or the call that ended the process. A line every 20 seconds reports the progress. With
ONNX_OPS_BOUNDSCHECK=1 every index in compiled code is checked.

python scripts/fuzzing/fuzz.py [--minutes N] [--seed S] [--few-types] [--operator NAME]
"""

import argparse
import multiprocessing
import os
import resource
import sys
import time
import warnings
from tempfile import NamedTemporaryFile

import add_tests_to_path  # noqa: F401
from support import fuzzing

from onnx_ops.declaration.jit import BOUNDSCHECK
from onnx_ops.registry import OPERATORS

EXAMPLES = 500  # calls drawn from one seed
PERIOD = 20  # seconds between lines on the progress
MEMORY = 12 * 2**30  # bytes that a process may address, so that no call exhausts the machine


def child(seed, few_types, name, last, results):
    """Verify the calls of one seed, of the operators with this name or, if it is None, of all.

    The file `last` holds the last call.
    """
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    # ONNX Runtime prints errors, which are intended here.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    sys.stderr = sys.stdout

    call_count, shown = 0, time.monotonic()

    def before(pair):
        nonlocal call_count, shown
        if time.monotonic() - shown >= PERIOD:
            shown = time.monotonic()
            rest = (
                f"{call_count} of {EXAMPLES} calls"
                if call_count <= EXAMPLES
                else "a call fails; it is made smaller"
            )
            print(f"seed {seed}: {rest}", flush=True)
        call_count += 1
        text = f"{pair}\n".encode()
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text, 0)

    descriptor = os.open(last, os.O_RDWR)
    types = {"types": fuzzing.FEW_TYPES, "grids": fuzzing.FEW_GRIDS} if few_types else {}
    drawn = [o for o in OPERATORS if name in (None, o.name)]
    case_count = fuzzing.verify_calls(
        seed, EXAMPLES, fuzzing.calls(**types, operators=drawn), before
    )
    index_count = 0
    if BOUNDSCHECK:
        from onnx_ops.compiler.bounds import checks

        index_count = checks()
    results.put((case_count, index_count))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--few-types",
        action="store_true",
        help="leave out types whose kernels take long to compile",
    )
    parser.add_argument(
        "--operator",
        metavar="NAME",
        choices=sorted(fuzzing.FAMILIES),
        help="draw calls of this operator only; FAMILIES in tests/support/fuzzing.py lists the "
        "names",
    )
    options = parser.parse_args()
    spawn, began = multiprocessing.get_context("spawn"), time.monotonic()
    seed, case_count, index_count = options.seed, 0, 0
    print(
        f"{EXAMPLES} calls from seed {seed}; each kernel is compiled when a call first needs it",
        flush=True,
    )
    while True:
        results = spawn.SimpleQueue()
        with NamedTemporaryFile() as last:
            process = spawn.Process(
                target=child, args=(seed, options.few_types, options.operator, last.name, results)
            )
            process.start()
            process.join()
            if process.exitcode:
                print(
                    f"seed {seed}, exit status {process.exitcode}; the last call "
                    f"was\n{last.read().decode()}"
                )
                narrowed = " --few-types" * options.few_types
                narrowed += f" --operator {options.operator}" if options.operator else ""
                print(f"again: python scripts/fuzzing/fuzz.py --minutes 0 --seed {seed}{narrowed}")
                return 1
        cases, indices = results.get()
        case_count, index_count, seed = case_count + cases, index_count + indices, seed + 1
        print(
            f"seeds {options.seed} to {seed - 1}: {case_count} cases"
            + f", {index_count} indices checked" * BOUNDSCHECK,
            flush=True,
        )
        if time.monotonic() - began >= 60 * options.minutes:
            return 0


if __name__ == "__main__":
    sys.exit(main())
