"""The operators as Python ops of onnxruntime-extensions (`@onnx_op`), in the domain ai.onnx.contrib.

That library hands over copies of the inputs and takes the output as a list. It has no channel for errors: an exception
in an op's body ends the process. So a body catches everything, logs it, keeps it for the session whose run it was, and
returns an empty tensor of the right rank, never plausible data. `onnx_ops.InferenceSession` raises what was kept; of
what a plain session's op has met, an interrupt is raised after the run.
"""

import functools
import itertools
import logging
from contextlib import suppress

import numpy as np
import onnxruntime as ort
import onnxruntime_extensions as extensions
from onnx import TensorProto, helper

from .. import dtypes
from ..declaration import MAX_RANK
from ..errors import OpError, named
from ..locks import REGISTRATION, RUNS
from ..operators import OPERATORS, known
from . import execute, interrupts
from .lowering import DOMAIN, VERSION, lists_of, op_type, optional_inputs, unable

PROBE, MISSING = "onnx_ops_probe", "onnx_ops_of_nobody"  # an op that the library has, and one that it never has
log = logging.getLogger("onnx_ops")
_numbers = itertools.count(1)
_errors: dict = {}  # number of a run that is under way -> the first error in one of its ops, or None


class Output:
    """An array in the form in which onnxruntime-extensions takes results, which must not become a list on the way.

    It calls `.shape` and `.flatten().tolist()`, and copies from the buffer of whatever that is; strings, which have no
    buffer, it takes from a list.
    """

    def __init__(self, array):
        self.array, self.shape = array, array.shape

    def flatten(self):
        return self

    def tolist(self):
        return self.array.ravel().tolist() if self.array.dtype.hasobject else self.array


def add_library(options, own=()):
    """Put the library's ops, ours among them, on a session's options; nothing happens where they are already.

    own  operators of one's own, which the library must learn before its first use. Raises OpError
    """
    key = "onnx_ops.registered.extensions"
    with REGISTRATION:  # twice makes every session fail
        for operator in own:
            declare(operator)
        _handed_over.append(True)
        try:
            options.get_session_config_entry(key)
        except RuntimeError:  # there is none
            if not _registered(options):
                options.register_custom_ops_library(extensions.get_library_path())
            options.add_session_config_entry(key, "1")


def _registered(options):
    """Whether the options have the library already, which they don't tell.

    A session tells, of a model that no session can be made of: the first op that it complains of is the library's
    probe, if that is missing. So nothing is optimized, and written where the options say.
    """
    nodes = [
        helper.make_node(PROBE, ["x"], ["y"], domain=DOMAIN),
        helper.make_node(MISSING, ["y"], ["z"], domain=DOMAIN),
    ]
    x, z = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xz")
    imports = [helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, VERSION)]
    model = helper.make_model(helper.make_graph(nodes, "probe", [x], [z]), opset_imports=imports, ir_version=8)
    profiling = options.enable_profiling
    if profiling:
        options.enable_profiling = False  # or the session would leave a file, too
    try:
        ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    except Exception as error:
        if MISSING in str(error):
            return True
        if PROBE in str(error):
            return False
        raise
    finally:
        if profiling:
            options.enable_profiling = True
    raise AssertionError(f"there is an op called {MISSING}")


_handed_over: list = []  # not empty once sessions hold pointers to the library's ops
_declared: list = []  # the operators that it has


def declare(operator):
    """Give the library the ops of an operator; OpError where it's too late, or where it can't have them."""
    if operator in _declared:
        return
    reason = unable(operator)
    if _handed_over and not reason:
        reason = "must have been there when the first session was made with it, as its list of ops is then final"
    if reason:
        raise OpError("backend", "'extensions'", reason, operator.title)
    for signature in operator.signatures():
        # The library has no arrays of 16-bit floats; lowering casts them.
        if not {"float16", "bfloat16"} & set(signature.values()):
            _declare(operator, signature)
    _declared.append(operator)


def _declare(operator, signature):
    kinds = extensions.PyCustomOpDef

    def kind(variable):
        return getattr(kinds, "dt_" + {"float32": "float", "float64": "double"}.get(variable, variable))

    types = {"int": kinds.dt_int64, "ints": kinds.dt_int64, "float": kinds.dt_float, "floats": kinds.dt_double}
    lists = [types[a.kind] for a in lists_of(operator)]
    scalars = {a.name: types.get(a.kind, kinds.dt_string) for a in operator.attributes if a not in lists_of(operator)}
    extensions.onnx_op(
        op_type=op_type(operator),
        inputs=[*(kind(signature[i.type]) for i in operator.inputs), *lists, kinds.dt_int64],
        outputs=[kind(signature[o.type]) for o in operator.outputs],
        attrs=scalars,
    )(functools.partial(body, operator, [dtypes.TABLE[signature[o.type]].numpy for o in operator.outputs]))


def body(operator, kinds, *inputs, **attributes):
    """What an op does; never raises."""
    try:
        found = list(map(Output, _computed(operator, inputs, attributes)))
    except BaseException as error:
        found = [Output(np.empty([0] * rank, kind)) for rank, kind in zip(_ranks(operator, inputs), kinds, strict=True)]
        if isinstance(error, Exception):
            _keep(inputs[-1], _logged(operator, error))
        elif not _keep(inputs[-1], error) and interrupts.postpone(error):
            found[0].interrupt = interrupts.interrupt_at_end()
    return found[0] if len(found) == 1 else tuple(found)


def _computed(operator, inputs, attributes):
    count = len(operator.inputs)
    *lists, (_, threads, *present) = inputs[count:]
    absent = [i for i, there in zip(optional_inputs(operator), present, strict=True) if not there]
    attributes.update((a.name, tuple(v.tolist()) or None) for a, v in zip(lists_of(operator), lists, strict=True))
    parameters = _parameters(operator, tuple(attributes.items()))
    inputs = [None if i in absent else a for i, a in zip(operator.inputs, inputs, strict=False)]
    return execute.compute(operator, parameters, inputs, int(threads))


def _ranks(operator, inputs):
    """The ranks that the outputs would have, which ONNX Runtime compares; 1 if that can't be told, or can't be."""
    with suppress(Exception):
        ranks = execute.output_ranks(operator, inputs[: len(operator.inputs)])
        return [rank if rank <= MAX_RANK else 1 for rank in ranks]
    return [1] * len(operator.outputs)


@functools.lru_cache(maxsize=1024)
def _parameters(operator, attributes):
    with named(operator):
        return operator.resolved(dict(attributes))


def _logged(operator, error):
    """The OpError for an exception, which is logged; never raises."""
    known = isinstance(error, OpError)
    with suppress(BaseException):  # what users' logging does is theirs, but it must not end the process
        log.error("%s", error if known else operator.title, exc_info=None if known else error)
    return error if known else OpError(None, None, f"{type(error).__name__}: {error}", operator.title)


def _keep(run, error):
    """Keep the first error, or an interrupt, for the session whose run it was; False where that is a plain one."""
    number = int(run.flat[0]) if run.size else 0
    with RUNS:
        ours = number in _errors
        if ours and (_errors[number] is None or not isinstance(error, Exception)):
            _errors[number] = error
    return ours


def begin(threads):
    """A run is about to start: the value of its graph input, see lowering.py."""
    with RUNS:
        number = next(_numbers)
        _errors[number] = None
    return np.array([number, threads], np.int64)


def end(run):
    """The run has ended, or not even started: the OpError or interrupt that an op of it met, or None. Again: None."""
    with RUNS:
        return _errors.pop(int(run[0]), None)


# Once, and all of them: the library keeps its ops in a vector that sessions hold pointers into.
extensions.onnx_op(op_type=PROBE, inputs=[extensions.PyCustomOpDef.dt_float])(Output)
for operator in known().values():
    if operator in OPERATORS or not unable(operator):
        declare(operator)
