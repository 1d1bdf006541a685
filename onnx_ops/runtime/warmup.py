"""Compiling ahead, so that no session has to."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from subprocess import PIPE

from .. import dtypes as element_types
from ..errors import OpError
from ..operator import Record
from ..operators import OPERATORS
from .execute import compiled, cpus, have_numba

WORKER = "from onnx_ops.runtime import warmup; warmup.work()"


def warmup(operators=None, dtypes=None, *, jobs=1, progress=None):
    """Compile what sessions would, and keep it for later processes; what is kept already is only looked at.

    operators  names as in models, such as "GridSample"; default: all
    dtypes     names of element types, such as "float32": every combination of these as the types of an operator's
               tensors is compiled. Default: the floating-point ones, which takes a minute or two
    jobs       processes that compile side by side; None: as many as there are CPUs
    progress   called before each variant with (its name, its index, how many there are)

    Returns the number of variants. Raises OpError.
    """
    if not have_numba():
        raise OpError(None, None, "Numba can't be imported, which compiles the kernels", "onnx_ops")
    names = _known("operators", operators, dict.fromkeys(o.name for o in OPERATORS))
    dtypes = _known("dtypes", dtypes or element_types.FLOATS, element_types.TABLE)
    found = variants(names, dtypes)
    compile_variants(found, jobs or len(cpus()), progress or (lambda name, index, total: None))
    return len(found)


def variants(names, dtypes):
    """{name: (operator, attributes, signature)} one for each pair of a plan and a compiled kernel."""
    found, seen = {}, set()
    for operator in (o for o in OPERATORS if o.name in names):
        tensors = {operator.inputs[k].type for k in operator.tensors} | {operator.output}
        for signature in operator.signatures():
            for attributes in operator.variants if all(signature[v] in dtypes for v in tensors) else ():
                record = Record(operator.resolved(attributes)[0])
                try:
                    operator.allows(record, signature)
                except OpError:
                    continue
                key = operator.plan, operator.kernel(record), operator.storage(record, signature)
                if key not in seen:
                    seen.add(key)
                    shown = ", ".join([*attributes.values(), *(signature[v] for v in sorted(tensors))])
                    found[f"{operator.title} {shown}"] = operator, attributes, signature
    return found


def compile_variants(found, jobs, progress):
    """Compile these variants in this process or, side by side, in `jobs` others."""
    described = [
        (name, [OPERATORS.index(operator), dict(attributes), signature])
        for name, (operator, attributes, signature) in found.items()
    ]
    if min(jobs, len(found)) < 2:
        for index, (name, variant) in enumerate(described):
            progress(name, index, len(found))
            compile_variant(*variant)
        return
    numbers, shares = count(), [described[k::jobs] for k in range(jobs)]

    def compile_share(share):
        path = os.pathsep.join(filter(None, sys.path))
        command, environment = [sys.executable, "-c", WORKER], {**os.environ, "PYTHONPATH": path}
        with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, env=environment, text=True) as process:
            for name, variant in share:
                progress(name, next(numbers), len(found))
                print(json.dumps(variant), file=process.stdin, flush=True)
                if not process.stdout.readline():
                    raise OpError(None, None, f"a process that compiles {name} has ended", "onnx_ops")
            process.stdin.close()

    with ThreadPoolExecutor(jobs) as threads:
        list(threads.map(compile_share, filter(None, shares)))


def work():
    """What a process of `compile_variants` does: compile what each line names, and say that it is done."""
    for line in sys.stdin:
        compile_variant(*json.loads(line))
        print("done", flush=True)


def compile_variant(number, attributes, signature):
    """Compile what sessions would for operator `number`, with these attributes and element types."""
    from ..kernels import entry
    from .compute import compute

    told = entry.expected.set(True)
    try:
        compute()
        operator = OPERATORS[number]
        compiled(operator, operator.resolved(attributes), signature)
    finally:
        entry.expected.reset(told)


def _known(argument, given, known):
    names = list(known if given is None else given)
    for name in names:
        if name not in known:
            raise OpError(argument, repr(name), f"must be among {', '.join(known)}", "onnx_ops")
    return names
