"""Draw operators, element types, shapes, attributes and values, good and bad; compare all backends with the reference.

Goes on until the time is over or something is found: then the smallest such call is printed, with the seed that leads
there. A call that ends the process is named, too. ONNX_OPS_BOUNDSCHECK=1 has every index in compiled code checked.

python scripts/fuzz.py [--minutes N] [--seed S] [--few-types]
"""

import argparse
import logging
import multiprocessing
import os
import resource
import sys
import time
import warnings
from pathlib import Path
from tempfile import NamedTemporaryFile

import hypothesis

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import fuzzing

from onnx_ops.kernels.jit import BOUNDSCHECK

EXAMPLES = 500  # of one seed
MEMORY = 12 * 2**30  # that a process may address, lest one call takes the machine down


def examples(seed, count, strategy, before=lambda pair: None):
    """Check `count` pairs (see fuzzing.calls); returns how many cases that were, one for each backend that ran one."""
    done, unraisable = 0, []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count, deadline=None, database=None, print_blob=False, report_multiple_bugs=False,
        suppress_health_check=list(hypothesis.HealthCheck),
    )  # fmt: skip
    @hypothesis.given(strategy)
    def each(pair):
        nonlocal done
        before(pair)
        done += fuzzing.check(*pair)
        # What compiled code raises arrives here.
        assert not unraisable, f"{unraisable.pop()!r}"

    previous, sys.unraisablehook = sys.unraisablehook, lambda raised: unraisable.append(raised.exc_value)
    logging.disable()  # of what the extensions backend refuses
    try:
        each()
    finally:
        logging.disable(logging.NOTSET)
        sys.unraisablehook = previous
    return done


def child(seed, few_types, last, results):
    """Check the calls of one seed, with the last one's text in the file `last`."""
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    # What ONNX Runtime has to say about errors that are meant to be.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    sys.stderr = sys.stdout

    def before(pair):
        text = f"{pair}\n".encode()
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text, 0)

    descriptor = os.open(last, os.O_RDWR)
    types = (fuzzing.FEW_TYPES, fuzzing.FEW_GRIDS) if few_types else ()
    done = examples(seed, EXAMPLES, fuzzing.calls(*types), before)
    checked = 0
    if BOUNDSCHECK:
        from onnx_ops.kernels.bounds import checks

        checked = checks()
    results.put((done, checked))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--few-types", action="store_true", help="leave out types whose kernels take long to compile")
    given = parser.parse_args()
    spawn, began = multiprocessing.get_context("spawn"), time.monotonic()
    seed, done, checked = given.seed, 0, 0
    while True:
        results = spawn.SimpleQueue()
        with NamedTemporaryFile() as last:
            process = spawn.Process(target=child, args=(seed, given.few_types, last.name, results))
            process.start()
            process.join()
            if process.exitcode:
                print(f"seed {seed}, exit status {process.exitcode}; the last call was\n{last.read().decode()}")
                print(f"again: python scripts/fuzz.py --minutes 0 --seed {seed}" + " --few-types" * given.few_types)
                return 1
        cases, indices = results.get()
        done, checked, seed = done + cases, checked + indices, seed + 1
        print(
            f"seeds {given.seed} to {seed - 1}: {done} cases" + f", {checked} indices checked" * BOUNDSCHECK, flush=True
        )
        if time.monotonic() - began >= 60 * given.minutes:
            return 0


if __name__ == "__main__":
    sys.exit(main())
