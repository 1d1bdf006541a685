"""Edit small models and compare what `optimize` and lowering make of them with the original.

Results that differ are compared with those in float64, by the factors of docs/optimize.md, except
at jumps.
"""

import contextlib
import re
import sys
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

import numpy as np
import onnx

import onnx_ops
from onnx_ops.model.nodes import all_nodes, graphs_in, inlined, model_nodes
from onnx_ops.rewriting import rewritten, trial

from . import edited_models
from .backends import HAVE_EXTENSIONS
from .exact import FACTORS, Evaluator, Oracle
from .model_edits import chance, one_of

# A documented difference: nodes that gather nothing need no pixels.
NO_PIXELS = "image axes must not be empty"
VARIANTS, TRIES = 3, 12  # failures of one kind that are printed, and that are examined for that
LEVELS = ["ORT_ENABLE_ALL", "ORT_ENABLE_ALL", "ORT_DISABLE_ALL"]  # ONNX Runtime's optimizations


@dataclass(frozen=True)
class Failure:
    """check: what was compared; operators: what replaced nodes; cause: how it fails; note: that of
    one edited model.
    """

    check: str
    operators: tuple = ()
    cause: str = ""
    note: str = ""

    @property
    def kind(self):
        """What failures of one kind have in common."""
        return self.check, ", ".join(self.operators) or "nothing", self.cause


def cause_of(error):
    """Return what an exception says, without what differs by edited model."""
    text = re.split(
        r"Status Message: |\[ShapeInferenceError\] |, Error |initialization: ", str(error)
    )[-1]
    text = re.sub(
        r"/\S*|\S*::\S*|'[^']*'|\[[^]]*\]|\([^)]*\)|\S*[\d_]\S*|\S+(?= in initializer)", "", text
    )
    return f"{type(error).__name__}: {' '.join(text.split())[:80]}"


def place_of(error):
    """Return the kind of an exception and the function of this package that raised it."""
    frame = next(
        (
            f
            for f in reversed(traceback.extract_tb(error.__traceback__))
            if "onnx_ops" in f.filename
        ),
        None,
    )
    return type(error).__name__ + (f" in {Path(frame.filename).stem}.{frame.name}" if frame else "")


def attempt(function, *arguments, **options):
    """Return what a function returns, or the exception that it raises."""
    try:
        return function(*arguments, **options)
    except Exception as error:
        return error


def without_functions(proto):
    """Return a model with its functions inlined; as it is, where that can't be."""
    flat = attempt(inlined, proto)
    return proto if isinstance(flat, Exception) else flat


def trial_of(is_large):
    """Return a context in which replacements aren't tried out, as in large models, if
    `is_large`.
    """
    return mock.patch.object(trial, "SECONDS", 0) if is_large else contextlib.nullcontext()


# Operators that add up in another order where ONNX Runtime moves a Transpose past them.
SUMS = {"ReduceSum", "ReduceMean", "MatMul", "Gemm", "Conv", "Einsum"}


class Checker:
    """Compares an edited model with what is made of it.

    number  from which it draws what is checked
    """

    def __init__(self, draft, number):
        self.draft, self.proto, self.rng = draft, draft.proto, np.random.default_rng(number)
        self.level, self.operators = one_of(self.rng, LEVELS), ()
        # Elements of results that differ, those left out, and results without an oracle.
        self.totals = Counter()
        self.is_large = chance(self.rng)
        self.other_level = next(level for level in LEVELS if level != self.level)

    def fail(self, check, cause="", note=""):
        is_error = isinstance(cause, Exception)
        return Failure(
            check,
            self.operators,
            cause_of(cause) if is_error else cause,
            str(cause) if is_error else note,
        )

    def failures(self):
        """Return the failures of all checks."""
        try:
            with warnings.catch_warnings(), trial_of(self.is_large):
                warnings.simplefilter("error")
                self.optimized, findings = rewritten(self.proto)
        except Exception as error:
            return [self.fail("optimize raises", place_of(error), str(error))]
        self.operators = tuple(
            sorted({finding.operator for finding in findings if finding.operator})
        )
        if not self.operators and self.optimized != self.proto:
            return [self.fail("optimize changes a model in which it replaces nothing")]
        plain = attempt(edited_models.opened, self.proto, self.level)
        if isinstance(plain, Exception):
            return []
        failures = []
        if self.operators:
            session = attempt(edited_models.opened, self.optimized, self.level)
            failures = [*self.model(), *self.compared(plain, session, "optimized")]
        if not failures and chance(self.rng, 0.1) and HAVE_EXTENSIONS:
            settings = {"backend": "extensions", "optimize": chance(self.rng)}
            options, content = edited_models.options(self.level), self.proto.SerializeToString()
            session = attempt(onnx_ops.InferenceSession, content, options, **settings)
            failures += self.compared(
                plain, session, "extensions" + ", optimized" * settings["optimize"]
            )
        return failures

    def model(self):
        """Check the optimized model itself."""
        onnx_ops.register_schemas()
        flat = attempt(inlined, self.proto)  # as onnx checks little in functions
        valid, now = (
            attempt(onnx.checker.check_model, p, full_check=True) for p in (flat, self.optimized)
        )
        if self.draft.runs and valid is None and now is not None:
            yield self.fail("onnx refuses the optimized model", now)
        before, after = map(unused_constants, (self.proto, self.optimized))
        if after - before:
            yield self.fail("unused constants", note=str(after - before))
        notes = [*self.misstated_in_between(self.optimized).values()]
        if notes and not self.misstated_in_between(self.proto):
            yield self.fail("values in between: stated shapes", note=notes[0])

    def misstated_in_between(self, proto):
        """Return what `misstated` does, for all values but those in subgraphs, with and without
        optimizations.
        """
        differences, flat = {}, without_functions(proto)
        for level in dict.fromkeys(LEVELS):
            session = attempt(edited_models.opened, edited_models.with_all_outputs(flat), level)
            results = attempt(
                lambda session=session: session.run(None, self.draft.feeds(self.draft.sizes))
            )
            differences |= {} if isinstance(results, Exception) else misstated(session, results)
        return differences

    def compared(self, plain, session, how):
        """Compare two sessions, for several sizes and values."""
        if isinstance(session, Exception):  # an operator refuses what ONNX Runtime misstates, too
            is_ours = self.draft.runs and not self.misstated_in_between(self.proto)
            return [self.fail(f"{how}: doesn't open", session)] * is_ours
        for inputs_of_graph in ("inputs", "overridable_initializers"):
            inputs_before, inputs_after = (
                {v.name: (v.type, v.shape) for v in getattr(s, f"get_{inputs_of_graph}")()}
                for s in (plain, session)
            )
            if inputs_before != inputs_after:
                return [
                    self.fail(
                        f"{how}: other {inputs_of_graph}",
                        note=f"{inputs_after} instead of {inputs_before}",
                    )
                ]
        failures = {}  # one of each kind
        for inputs in self.inputs(plain):
            expected = attempt(plain.run, None, inputs)
            if isinstance(expected, Exception) and how.startswith("extensions"):
                # Onnxruntime-extensions ends the process where ONNX Runtime has lost a value.
                continue
            got = attempt(session.run, None, inputs)
            failure = self.difference(expected, got, how, inputs)
            ran = not isinstance(expected, Exception) and not isinstance(got, Exception)
            if failure is None and ran and not misstated(plain, expected):
                notes = misstated(session, got).values()
                failure = next(
                    (self.fail(f"{how}: stated shapes", note=note) for note in notes), None
                )
            if (
                failure
                and failure.kind not in failures
                and not self.is_ambiguous(inputs, expected, got)
            ):
                shapes = {name: array.shape for name, array in inputs.items()}
                failures[failure.kind] = replace(
                    failure, note=f"{failure.note} with inputs {shapes}"
                )
        return list(failures.values())

    def inputs(self, plain):
        """Yield inputs of the sizes of the draft, and then of others where these are open."""
        sizes = self.draft.sizes
        # ONNX Runtime's Einsum of an empty value ends the process; its Conv by an empty kernel
        # never ends.
        names_of_inputs = {value.name for value in self.proto.graph.input}
        is_deadly = lambda node: (
            node.op_type == "Einsum"
            or (node.op_type == "Conv" and node.input[1] in names_of_inputs)
        )
        deadly = 0 if any(map(is_deadly, model_nodes(self.proto))) else None
        yield from (self.draft.feeds(sizes, seed) for seed in range(3))
        for name in sorted(
            sizes.keys() & {dimension.dim_param for _, _, dimension in self.draft.dimensions()}
        ):
            for size in {0, 1, sizes[name] - 1, sizes[name] + int(self.rng.integers(1, 4))} - {
                sizes[name],
                deadly,
            }:
                yield self.draft.feeds({**sizes, name: size})
        if defaults := plain.get_overridable_initializers():
            name = one_of(self.rng, defaults).name
            array = np.asarray(self.draft.values[name])
            yield {
                **self.draft.feeds(sizes),
                name: self.rng.permutation(array.ravel()).reshape(array.shape),
            }

    def difference(self, expected, got, how, inputs):
        """Return the Failure that two lists of results, or exceptions, amount to; None if they are
        alike.
        """
        if isinstance(expected, Exception):  # fewer nodes may refuse less
            return None
        if isinstance(got, Exception):
            return None if NO_PIXELS in str(got) else self.fail(f"{how}: refuses", got)
        for expected_output, output in zip(expected, got, strict=True):
            if not isinstance(expected_output, np.ndarray):
                continue
            if (expected_output.shape, expected_output.dtype) != (output.shape, output.dtype):
                note = f"{output.dtype}{list(output.shape)} instead of "
                note += f"{expected_output.dtype}{list(expected_output.shape)}"
                return self.fail(f"{how}: shape", note=note)
        arrays = [
            pair for pair in zip(expected, got, strict=True) if isinstance(pair[0], np.ndarray)
        ]
        if all(np.array_equal(*pair, equal_nan=pair[0].dtype.kind == "f") for pair in arrays):
            return None
        note = self.not_as_near(expected, got, inputs)
        return note and self.fail(f"{how}: values", note=note)

    def not_as_near(self, plain, fused, inputs):
        """Return by how much results are farther from the exact ones than docs/optimize.md allows;
        None if not.
        """
        factor = max((FACTORS[operator] for operator in self.operators), default=0)
        if factor == 0 and SUMS.isdisjoint(n.op_type for n in all_nodes(self.optimized.graph)):
            return "copies differ"
        factor = max(factor, 1)
        oracle = attempt(Oracle, self.proto, inputs)
        verdicts = (
            oracle if isinstance(oracle, Exception) else attempt(oracle.judge, plain, fused, factor)
        )
        if isinstance(verdicts, Exception):  # onnx's evaluator doesn't run what ONNX Runtime runs
            self.totals["without an oracle"] += 1
            return None if same(plain, fused) else f"differ, and without an oracle, for {verdicts}"
        for verdict, array in zip(verdicts, plain, strict=True):
            self.totals["elements"] += np.size(array)
            self.totals["left out"] += round(verdict.left_out * np.size(array))
        return next((str(verdict) for verdict in verdicts if not verdict.holds), None)

    def is_ambiguous(self, inputs, expected, got):
        """Return whether ONNX Runtime itself gives another result with other optimizations.

        Also if it computes with empty tensors what isn't defined: onnx's reference refuses that, or
        confirms ours.
        """
        run = lambda proto: edited_models.opened(proto, self.other_level).run(None, inputs)
        for proto, results in (self.proto, expected), (self.optimized, got):
            again = attempt(run, proto)
            if isinstance(again, Exception) != isinstance(results, Exception) or self.is_other(
                results, again
            ):
                return True
        reference = attempt(Evaluator(self.proto).run, None, inputs)
        if isinstance(reference, Exception):
            flat, values = self.in_between(inputs)
            is_empty = any(
                isinstance(value, np.ndarray) and value.size == 0 for value in values.values()
            )
            # What is empty in a subgraph isn't known.
            inside = Counter(n.op_type for n in all_nodes(flat.graph)) - Counter(
                n.op_type for n in flat.graph.node
            )
            return is_empty or "Concat" in inside
        confirmed, doubted = (
            not isinstance(r, Exception) and same(r, reference) for r in (got, expected)
        )
        return (confirmed and not doubted) or self.is_undefined(inputs)

    def is_other(self, results, again):
        return not isinstance(again, Exception) and not same(results, again)

    def in_between(self, inputs):
        """Return (model without functions, which hide their values, {name: value} as far as it
        runs).
        """
        flat = without_functions(self.proto)
        session = attempt(
            edited_models.opened, edited_models.with_all_outputs(flat), self.other_level
        )
        results = attempt(lambda: session.run(None, inputs))
        if isinstance(results, Exception):
            return flat, inputs
        return flat, {
            o.name: value for o, value in zip(session.get_outputs(), results, strict=True)
        } | inputs

    def is_undefined(self, inputs):
        """Return whether a Concat joins values whose other axes differ, of which ONNX Runtime
        ignores the empty ones.

        Also if a Reshape of no elements copies sizes where an open one is 0, see docs/optimize.md.
        """
        flat, values = self.in_between(inputs)
        for node in flat.graph.node:
            known_inputs = [values[name] for name in node.input if name in values]
            if (
                node.op_type == "Reshape"
                and len(known_inputs) == 2
                and known_inputs[0].size == 0
                and 0 in known_inputs[1]
            ):
                return True
            if (
                node.op_type == "Concat"
                and len({np.delete(a.shape, node.attribute[0].i).tobytes() for a in known_inputs})
                > 1
            ):
                return True
        return False


def same(results, other_results):
    """Return whether results agree but for rounding."""
    pairs = list(zip(results, other_results, strict=True))
    return all(np.shape(a) == np.shape(b) for a, b in pairs) and all(
        np.allclose(a, b, 1e-3, 1e-3, equal_nan=True)
        for a, b in pairs
        if np.asarray(a).dtype.kind in "biuf"
    )


def misstated(session, results):
    """Return {output: what a session states of its shape} where the result has another one."""
    return {
        output.name: f"{output.name} is {list(array.shape)}, stated {output.shape}"
        for output, array in zip(session.get_outputs(), results, strict=True)
        if isinstance(array, np.ndarray) and not agrees(output.shape, array.shape)
    }


def agrees(stated, shape):
    """Return whether a stated shape may be an array's.

    ONNX Runtime states none as that of a scalar.
    """
    fits = (
        not isinstance(dimension, int) or dimension == size
        for dimension, size in zip(stated, shape, strict=False)
    )
    return stated == [] or (len(stated) == len(shape) and all(fits))


def unused_constants(proto):
    used = {
        value.name for graph in graphs_in(proto.graph) for value in (*graph.input, *graph.output)
    }
    used |= {name for node in all_nodes(proto.graph) for name in node.input}
    return {tensor.name for tensor in proto.graph.initializer} - used


def minimal(start, steps, number, kind_of_failure):
    """Leave out all steps without which a failure of this kind still occurs."""
    for step in list(steps):
        fewer = [s for s in steps if s != step]
        if any(
            failure.kind == kind_of_failure
            for failure in Checker(edited_models.made(start, fewer)[0], number).failures()
        ):
            steps = fewer
    return steps


class Report:
    """Prints each failure once.

    counts   {kind of failure: how many edited models have it}
    printed  {kind of failure and seed: texts of the edits by which it occurs}
    totals   {what Checkers count: how many}
    replaced {name of a seed: (how many edited models of it, and how many with a replacement)}
    """

    def __init__(self, options, new_dict=dict):
        self.options = options
        self.counts, self.printed, self.totals, self.replaced = (new_dict() for _ in range(4))

    def examine(self, case):
        """Make an edited model and report its failures."""
        start, steps, number = edited_models.plan(self.options.seed, case, self.options.without)
        draft, steps = edited_models.made(start, steps)
        checker = Checker(draft, number)
        for failure in checker.failures():
            self.add(case, start, steps, number, failure)
        for counted, count in checker.totals.items():
            self.totals[counted] = self.totals.get(counted, 0) + count
        models_before, replaced_before = self.replaced.get(start[0], (0, 0))
        self.replaced[start[0]] = models_before + 1, replaced_before + bool(checker.operators)

    def add(self, case, start, steps, number, failure):
        kind_of_failure, origin = failure.kind, (*failure.kind, start[0])
        self.counts[kind_of_failure] = self.counts.get(kind_of_failure, 0) + 1
        printed = self.printed.get(origin, [])
        if len(set(printed)) >= VARIANTS or len(printed) > TRIES:
            return
        steps = minimal(start, steps, number, kind_of_failure)
        text = " ".join(sorted({name for name, _ in steps})) or "no edit"
        self.printed[origin] = [*printed, text]
        if text not in printed:
            print(
                f"{' | '.join(origin)}\n   by {text}\n   {failure.note[:300]}\n   again: "
                f"{again(self.options, case)}"
            )
            sys.stdout.flush()


def again(options, case):
    """Return the arguments that examine an edited model again."""
    return " ".join(
        [f"--seed {options.seed} --case {case}", *map("--without {!r}".format, options.without)]
    )
