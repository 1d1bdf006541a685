"""Compiling ahead, so that no session has to."""

import json
import logging
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from subprocess import PIPE

import onnxruntime as ort

from .. import dtypes as element_types
from ..errors import OpError
from ..operator import Record
from ..operators import OPERATORS
from . import native
from .execute import compiled, cpus, have_numba
from .model import imported_domains
from .session import InferenceSession

WORKER = "from onnx_ops.runtime import warmup; warmup.work()"
QUIET = 4  # what ONNX Runtime would log of an error is in the exception, too
log = logging.getLogger("onnx_ops")


def warmup(operators=None, dtypes=None, *, models=None, jobs=1, progress=None):
    """Compile what sessions would, and keep it for later processes; what is kept already is only looked at.

    operators  names as in models, such as "GridSample"; default: all
    dtypes     names of element types, such as "float32": every combination of these as the types of an operator's
               tensors is compiled. Default: the floating-point ones, which takes a minute or two
    models     in place of both, paths or bytes: what sessions of these models compile, and nothing else
    jobs       processes that compile side by side; None: as many as there are CPUs
    progress   called before each variant with (its name, its index, how many there are)

    Returns the number of variants. Raises OpError, also where they can't be kept or there are none.
    """
    if not have_numba():
        raise OpError(None, None, "Numba can't be imported, which compiles the kernels", "onnx_ops")
    if models is None:
        found = asked_for(operators, dtypes)
    elif operators is None and dtypes is None:
        found = needed_by([models] if isinstance(models, str | bytes | os.PathLike) else models)
    else:
        raise OpError("models", "given", "can't be combined with operators or dtypes", "onnx_ops")
    compile_variants(found, jobs or len(cpus()), progress or (lambda name, index, total: None))
    return len(found)


def asked_for(operators, dtypes):
    """`variants` of these; raises OpError if there are none of one of the operators, or with one of the dtypes."""
    names = _known("operators", operators, dict.fromkeys(o.name for o in OPERATORS))
    types = _known("dtypes", dtypes or element_types.FLOATS, element_types.TABLE)
    found = list(combinations(names, types))
    for name in names if operators else ():
        if all(operator.name != name for operator, _, _ in found):
            raise OpError("dtypes", ", ".join(types), f"sessions have no {name} of these types alone", "onnx_ops")
    for dtype in dtypes or ():
        if all(dtype not in tensor_types(operator, signature) for operator, _, signature in found):
            rule = f"sessions have no {' or '.join(names)} of it and the other types alone"
            raise OpError("dtypes", repr(dtype), rule, "onnx_ops")
    return distinct(found)


def needed_by(models):
    """The variants that sessions of these models compile.

    Sessions tell, which are made as usual, but compile nothing: ONNX Runtime alone knows what its optimizations leave
    of a model, and the type of each tensor. So a model's weights are loaded and what is constant in it is computed, as
    at every start of the program that it is for.
    """
    every = variants({o.name for o in OPERATORS}, element_types.TABLE)
    names = {kernel(o, Record(o.resolved(attributes)[0]), s): name for name, (o, attributes, s) in every.items()}
    needed = [kernel(o, Record(parameters[0]), s) for model in models for o, parameters, s in nodes(model)]
    if not needed:
        raise OpError("models", ", ".join(map(_title, models)), "have no nodes for onnx_ops", "onnx_ops")
    return {names[k]: every[names[k]] for k in needed}


def nodes(model):
    """What `native.survey` tells of a model."""
    from .lowering import DOMAIN

    if DOMAIN in (imported_domains(model) or ()):
        rule = f"imports {DOMAIN}, as lowered models do; what types its nodes have is known only when they run"
        raise OpError("models", _title(model), f"{rule}; give operators and dtypes instead", "onnx_ops")
    options = ort.SessionOptions()
    options.log_severity_level = QUIET
    with _expected(), native.survey() as needed:
        try:
            InferenceSession(model, options, ["CPUExecutionProvider"])
        except OpError:
            raise
        except Exception as error:
            raise OpError("models", _title(model), f"no session can be made of it: {error}", "onnx_ops") from error
    return needed


def variants(names, dtypes):
    """`distinct` of all combinations of these operators and element types."""
    return distinct(combinations(names, dtypes))


def combinations(names, dtypes):
    """(operator, attributes, signature) for all that sessions have of these operators, with tensors of these types."""
    for operator in (o for o in OPERATORS if o.name in names):
        for signature in operator.signatures():
            for attributes in operator.variants if tensor_types(operator, signature) <= set(dtypes) else ():
                with suppress(OpError):
                    operator.allows(Record(operator.resolved(attributes)[0]), signature)
                    yield operator, attributes, signature


def tensor_types(operator, signature):
    """The element types of the tensors that kernels see."""
    return {signature[operator.inputs[k].type] for k in operator.tensors} | {signature[operator.output]}


def distinct(found):
    """{name: (operator, attributes, signature)}, one for each pair of a plan and a compiled kernel."""
    named, seen = {}, set()
    for operator, attributes, signature in found:
        key = kernel(operator, Record(operator.resolved(attributes)[0]), signature)
        if key not in seen:
            seen.add(key)
            variables = sorted({operator.inputs[k].type for k in operator.tensors} | {operator.output})
            settings = attributes.values() if len(operator.variants) > 1 else ()
            shown = ", ".join([*settings, *(signature[v] for v in variables)])
            named[f"{operator.title} {shown}"] = operator, attributes, signature
    return named


def kernel(operator, parameters, signature):
    """What tells a plan and a compiled kernel from others."""
    return operator.plan, operator.kernel(parameters), operator.storage(parameters, signature)


def compile_variants(found, jobs, progress):
    """Compile these variants in this process or, side by side, in `jobs` others.

    Raises OpError where they aren't kept.
    """
    described = [
        (name, [OPERATORS.index(operator), dict(attributes), signature])
        for name, (operator, attributes, signature) in found.items()
    ]
    if min(jobs, len(found)) < 2:
        for index, (name, variant) in enumerate(described):
            progress(name, index, len(found))
            compile_variant(*variant)
        return
    numbers, shares = count(), [described[k::jobs] for k in range(min(jobs, len(found)))]

    def compile_share(process, share):
        for name, variant in share:
            progress(name, next(numbers), len(found))
            with suppress(BrokenPipeError):
                print(json.dumps(variant), file=process.stdin, flush=True)
            outcome = process.stdout.readline()
            if not outcome:
                raise OpError(None, None, f"a process that compiles {name} has ended", "onnx_ops")
            if refusal := json.loads(outcome):
                raise OpError(*refusal)

    with ThreadPoolExecutor(len(shares)) as threads, ExitStack() as stack:
        processes = [stack.enter_context(_worker()) for _ in shares]
        list(threads.map(compile_share, processes, shares))


@contextmanager
def _worker():
    """A process that runs `work`, and ends if this block is interrupted; Ctrl-C in a terminal doesn't reach it."""
    command, path = [sys.executable, "-c", WORKER], os.pathsep.join(filter(None, sys.path))
    settings = {"env": {**os.environ, "PYTHONPATH": path}, "text": True, "start_new_session": True}
    with suppress(BrokenPipeError), subprocess.Popen(command, stdin=PIPE, stdout=PIPE, **settings) as process:
        try:
            yield process
        except BaseException:
            process.terminate()
            raise


def work():
    """Compile what each line of the input names, and answer with a line: null, or the parts of the OpError."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # which leaves no half-written file
    log.setLevel(logging.ERROR)  # what isn't kept is answered
    for line in sys.stdin:
        refusal = None
        try:
            compile_variant(*json.loads(line))
        except OpError as error:
            refusal = error.args
        print(json.dumps(refusal), flush=True)


def compile_variant(number, attributes, signature):
    """Compile what sessions would for operator `number`, with these attributes and element types.

    Raises OpError where it isn't kept.
    """
    from ..kernels import cache
    from .compute import compute

    operator = OPERATORS[number]
    with _expected():
        callbacks = compute(), *compiled(operator, operator.resolved(attributes), signature)
    for callback in filter(None, callbacks):
        if missing := callback.kept.missing():
            raise OpError("cache", cache.directory(), f"can't keep what is compiled: {missing}", "onnx_ops")


@contextmanager
def _expected():
    """While this lasts, nobody need be told that something is compiled."""
    from ..kernels import entry

    before = entry.expected.set(True)
    try:
        yield
    finally:
        entry.expected.reset(before)


def _title(model):
    return repr("(bytes)" if isinstance(model, bytes) else os.fspath(model))


def _known(argument, given, known):
    names = list(known if given is None else given)
    for name in names:
        if name not in known:
            raise OpError(argument, repr(name), f"must be among {', '.join(known)}", "onnx_ops")
    return names
