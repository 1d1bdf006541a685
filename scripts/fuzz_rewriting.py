"""Mutate small models and compare what `onnx_ops.optimize` and backend="extensions" make of them with the original.

Each failure is printed once, by its check, the operators and the mutations without which it doesn't occur.

python scripts/fuzz_rewriting.py [--seconds N] [--seed S] [--save FOLDER]
python scripts/fuzz_rewriting.py --seed S --case K [--save FOLDER]   one mutant again
"""

import argparse
import logging
import multiprocessing
import os
import re
import resource
import sys
import time
import traceback
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import add_tests_to_path  # noqa: F401
import mutants
import numpy as np
import onnx

import onnx_ops
from onnx_ops.rewriting import rewritten

MEMORY = 12 * 2**30  # bytes that a process may address, so that no mutant exhausts the machine
SLOW = 60  # seconds after which a mutant counts as endless
VARIANTS, TRIES = 3, 30  # failures of one kind that are printed, and that are examined for that
ATTENTION = "MultiScaleDeformableAttention"


@dataclass(frozen=True)
class Failure:
    """check: what was compared; operators: what replaced nodes; cause: how it fails; note: that of one mutant."""

    check: str
    operators: tuple = ()
    cause: str = ""
    note: str = ""

    @property
    def kind(self):
        """What failures of one kind have in common."""
        return self.check, ", ".join(self.operators) or "nothing", self.cause


def cause(error):
    """Return what an exception says, without what differs by mutant."""
    text = str(error).split("Status Message: ")[-1].split("[ShapeInferenceError] ")[-1]
    text = re.sub(r"/\S*|\S*::\S*|'[^']*'|\[[^]]*\]|\([^)]*\)|\S*[\d_]\S*", "", text)
    return f"{type(error).__name__}: {' '.join(text.split())[:80]}"


def plan(seed, case):
    """Draw a mutant: a name of a seed, and mutations with the number that each draws from."""
    rng = np.random.default_rng([seed, case])
    names = [mutants.one_of(rng, mutants.EDITED) for _ in range(rng.geometric(0.4))]
    names += [mutants.one_of(rng, mutants.OBSERVED) for _ in range(rng.integers(2))]
    names += [mutants.one_of(rng, mutants.WRAPPED) for _ in range(max(0, rng.integers(-2, 3)))]
    names += [mutants.one_of(rng, mutants.EDITED)] * mutants.chance(rng, 0.2)
    names += ["versions"] * mutants.chance(rng, 0.4) + ["by_inference"] * mutants.chance(rng, 0.4)
    names += [mutants.one_of(rng, mutants.TOOLS)] * mutants.chance(rng, 0.04)
    numbers = rng.integers(2**32, size=len(names) + 2).tolist()
    return (mutants.one_of(rng, mutants.SEEDS), numbers.pop()), list(zip(names, numbers, strict=False)), numbers[-1]


def made(start, steps):
    """Return (Draft, the steps that changed it) of a plan."""
    draft = mutants.Draft(*mutants.SEEDS[start[0]](np.random.default_rng(start[1])))
    return draft, [step for step in steps if draft.apply(*step, may_break=step[1] % 8 == 0)]


class Checker:
    """Compares a mutant with what is made of it. number: from which it draws which checks are done."""

    def __init__(self, draft, number):
        self.draft, self.proto, self.rng = draft, draft.proto, np.random.default_rng(number)
        self.level = mutants.one_of(self.rng, ["ORT_ENABLE_ALL", "ORT_ENABLE_ALL", "ORT_DISABLE_ALL"])
        self.other_level = "ORT_DISABLE_ALL" if self.level == "ORT_ENABLE_ALL" else "ORT_ENABLE_ALL"

    def failures(self):
        """Yield the failures of all checks."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                self.optimized, findings = rewritten(self.proto)
                rewritten(self.proto, standard=True)
        except Exception as error:
            yield raised("optimize raises", error)
            return
        self.operators = tuple(sorted({f.operator for f in findings if f.operator}))
        plain = attempt(mutants.opened, self.proto, self.level)
        if isinstance(plain, Exception):
            return
        if self.operators:
            yield from self.model()
            session = attempt(mutants.opened, self.optimized, self.level)
            yield from self.compared(plain, session, "optimized")
        elif self.optimized != self.proto:
            yield self.fail("optimize changes a model in which it replaces nothing")
        if mutants.chance(self.rng, 0.1):
            more = {"backend": "extensions", "optimize": mutants.chance(self.rng)}
            content = self.proto.SerializeToString()
            session = attempt(onnx_ops.InferenceSession, content, mutants.options(self.level), **more)
            yield from self.compared(plain, session, "extensions" + ", optimized" * more["optimize"])

    def fail(self, check, detail="", note=""):
        if isinstance(detail, Exception):
            return Failure(check, self.operators, cause(detail), str(detail))
        return Failure(check, self.operators, detail, note)

    def model(self):
        """Check the optimized model itself."""
        valid, still_valid = (
            attempt(onnx.checker.check_model, p, full_check=True) for p in (self.proto, self.optimized)
        )
        if valid is None and still_valid is not None:
            yield self.fail("onnx refuses the optimized model", still_valid)
        unused = [unused_constants(p) for p in (self.proto, self.optimized)]
        if unused[1] - unused[0]:
            yield self.fail("unused constants", note=str(unused[1] - unused[0]))
        if [i.name for i in self.proto.graph.input] != [i.name for i in self.optimized.graph.input]:
            yield self.fail("other inputs")
        all_outputs = attempt(mutants.opened, mutants.with_all_outputs(self.optimized), self.other_level)
        if not isinstance(all_outputs, Exception):
            results = attempt(all_outputs.run, None, self.draft.feeds(self.draft.sizes))
            if not isinstance(results, Exception):
                yield from self.stated(all_outputs, results, "all values")

    def stated(self, session, results, which):
        for output, array in zip(session.get_outputs(), results, strict=True):
            if isinstance(array, np.ndarray) and not agrees(output.shape, array.shape):
                note = f"{output.name} is {list(array.shape)}, stated {output.shape}"
                yield self.fail(f"{which}: stated shapes", note=note)
                return

    def compared(self, plain, session, how):
        """Compare two sessions, for several sizes and values."""
        if isinstance(session, Exception):
            yield self.fail(f"{how}: doesn't open", session)
            return
        for what in ("inputs", "overridable_initializers"):
            one, other = ({v.name: (v.type, v.shape) for v in getattr(s, f"get_{what}")()} for s in (plain, session))
            if one != other:
                yield self.fail(f"{how}: other {what}", note=f"{other} instead of {one}")
                return
        for feeds in self.feeds(plain):
            expected, got = (attempt(s.run, None, feeds) for s in (plain, session))
            failure = self.difference(expected, got, how, feeds)
            if failure is None and not isinstance(expected, Exception):
                failure = next(self.stated(session, got, how), None)
                failure = None if failure and any(self.stated(plain, expected, how)) else failure
            if failure and not self.is_ambiguous(feeds, expected):
                shapes = {name: array.shape for name, array in feeds.items()}
                yield replace(failure, note=f"{failure.note} with inputs {shapes}")
                return

    def feeds(self, plain):
        """Yield inputs of the sizes of the draft, and then of others where these are open."""
        sizes = self.draft.sizes
        yield from (self.draft.feeds(sizes, seed) for seed in (0, 1))
        used = {d.dim_param for i in self.draft.inputs for d in i.type.tensor_type.shape.dim}
        for name in sorted(sizes.keys() & used):
            for size in {0, 1, sizes[name] - 1, sizes[name] + int(self.rng.integers(1, 4))} - {sizes[name]}:
                yield self.draft.feeds({**sizes, name: size})
        if defaults := plain.get_overridable_initializers():
            value = mutants.one_of(self.rng, defaults)
            array = np.asarray(self.draft.values[value.name])
            yield {**self.draft.feeds(sizes), value.name: self.rng.permutation(array.ravel()).reshape(array.shape)}

    def difference(self, expected, got, how, feeds):
        if isinstance(expected, Exception) or isinstance(got, Exception):
            if isinstance(got, Exception) and not isinstance(expected, Exception):
                return self.fail(f"{how}: refuses", got)
            empty = any(array.size == 0 for array in feeds.values())  # many of ONNX Runtime's operators refuse these
            return None if isinstance(got, Exception) or empty else self.fail(f"{how}: runs what is refused", expected)
        for k, (one, other) in enumerate(zip(expected, got, strict=True)):
            if not isinstance(one, np.ndarray):
                continue
            if one.shape != other.shape or one.dtype != other.dtype:
                note = f"{other.dtype}{list(other.shape)} instead of {list(one.shape)}, output {k}"
                return self.fail(f"{how}: shape", note=note)
            if not self.is_close(one, other):
                return self.fail(f"{how}: values")
        return None

    def is_close(self, one, other):
        if one.dtype.kind == "f" and self.tolerance():
            return np.allclose(one, other, 1e-3, self.tolerance(), equal_nan=True)
        return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")

    def tolerance(self):
        """How far a result may be off, see docs/optimize.md."""
        computed_by_onnx_runtime = any(
            n.op_type == "AffineGrid" and not n.domain for n in mutants.model_nodes(self.proto)
        )
        return 1e-3 if ATTENTION in self.operators or computed_by_onnx_runtime else 0

    def is_ambiguous(self, feeds, expected):
        """Return whether ONNX Runtime itself gives another result with other optimizations."""
        again = attempt(lambda: mutants.opened(self.proto, self.other_level).run(None, feeds))
        return self.difference(expected, again, "", feeds) is not None


def attempt(function, *arguments, **more):
    """Return what a function returns, or the exception that it raises."""
    try:
        return function(*arguments, **more)
    except Exception as error:
        return error


def raised(check, error):
    frame = next((f for f in reversed(traceback.extract_tb(error.__traceback__)) if "onnx_ops" in f.filename), None)
    where = f"{type(error).__name__} in {Path(frame.filename).stem}.{frame.name}" if frame else type(error).__name__
    return Failure(check, (), where, str(error))


def agrees(stated, shape):
    """Return whether a stated shape may be an array's. ONNX Runtime states none as that of a scalar."""
    fits = all(
        not isinstance(dimension, int) or dimension == size for dimension, size in zip(stated, shape, strict=False)
    )
    return stated == [] or (len(stated) == len(shape) and fits)


def unused_constants(proto):
    nodes = list(mutants.all_nodes(proto.graph))
    used = {name for node in nodes for name in node.input} | {value.name for value in proto.graph.input}
    used |= {o.name for graph in (proto.graph, *(g for n in nodes for g in mutants.subgraphs(n))) for o in graph.output}
    return {tensor.name for tensor in proto.graph.initializer} - used


def minimal(start, steps, number, kind):
    """Leave out all steps without which a failure of this kind still occurs."""
    for step in list(steps):
        fewer = [s for s in steps if s != step]
        if any(f.kind == kind for f in Checker(made(start, fewer)[0], number).failures()):
            steps = fewer
    return steps


class Report:
    """Prints each failure once. printed: {kind: texts of mutations by which it occurs}, shared by all processes."""

    def __init__(self, options, counts, printed):
        self.options, self.counts, self.printed = options, counts, printed

    def add(self, case, start, steps, number, failure):
        kind = failure.kind
        self.counts[kind] = self.counts.get(kind, 0) + 1
        printed = self.printed.get(kind, [])
        if len(printed) >= VARIANTS or self.counts[kind] > TRIES:
            return
        steps = minimal(start, steps, number, kind)
        text = " ".join([start[0].replace(" ", "_"), *sorted({name for name, _ in steps})])
        if text in printed:
            return
        self.printed[kind] = [*printed, text]
        print(f"{' | '.join(kind)}\n   by {text}\n   {failure.note[:300]}")
        print(f"   again: --seed {self.options.seed} --case {case}", flush=True)
        if self.options.save:
            self.save(made(start, steps)[0].proto, case)

    def save(self, proto, case):
        folder = Path(self.options.save)
        folder.mkdir(parents=True, exist_ok=True)
        onnx.save(proto, folder / f"{self.options.seed}_{case}.onnx")
        (folder / f"{self.options.seed}_{case}.txt").write_text(onnx.printer.to_text(proto))


def examine(case, report):
    """Make a mutant and report its failures; returns whether something was replaced in it."""
    start, steps, number = plan(report.options.seed, case)
    draft, steps = made(start, steps)
    checker = Checker(draft, number)
    for failure in list(checker.failures()):
        report.add(case, start, steps, number, failure)
    return bool(getattr(checker, "operators", ()))


def child(options, case, replaced, end, counts, printed):
    """Examine mutants until the time is over. case: the one that is being examined."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # ONNX Runtime prints errors, which are intended here
    sys.stderr = sys.stdout
    logging.disable()
    report = Report(options, counts, printed)
    while time.monotonic() < end:
        replaced.value += examine(case.value, report)
        case.value += 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="examine this mutant only")
    parser.add_argument("--save", metavar="FOLDER", help="write failing models there")
    options = parser.parse_args()
    if options.case is not None:
        report = Report(options, {}, {})
        examine(options.case, report)
        return int(bool(report.counts))
    spawn, end = multiprocessing.get_context("spawn"), time.monotonic() + options.seconds
    manager, case, replaced = spawn.Manager(), spawn.Value("q", 0), spawn.Value("q", 0)
    counts, printed = manager.dict(), manager.dict()
    while time.monotonic() < end:
        process = spawn.Process(target=child, args=(options, case, replaced, end, counts, printed))
        process.start()
        before = None
        while process.is_alive() and case.value != before:
            before = case.value
            process.join(SLOW)
        process.kill()
        process.join()
        if process.exitcode:
            print(f"exit status {process.exitcode}\n   again: --seed {options.seed} --case {case.value}", flush=True)
            case.value += 1
    for kind, count in sorted(counts.items(), key=lambda item: -item[1]):
        print(f"{count:6} {' | '.join(kind)}")
    print(f"seed {options.seed}: {case.value} mutants, {replaced.value} in which something was replaced")
    return int(bool(counts))


if __name__ == "__main__":
    sys.exit(main())
