"""The operators as ONNX Runtime custom ops, bound to its C interface: no copies, and no GIL while they compute.

ONNX Runtime calls `create_kernel` once for every node, and from then on the compiled `compute` (compute.py). Whatever
the operator's plan refuses comes back to `slow`, in Python, which finds the words. These and `infer` and `hook` are
called by way of trampoline.c.

ONNX Runtime keeps pointers to all of this until its last session is gone, which at exit can be after Python has begun
to free modules: everything it may call or read is immortal, and kernel state is malloc'ed and freed by libc.
"""

import ctypes as C
import functools
import importlib.util
import itertools
import logging
import math
import os
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from .. import dtypes
from ..errors import OpError, named
from ..locks import REGISTRATION
from ..operator import Record
from ..operators import OPERATORS
from . import abi, interrupts
from .execute import compiled, explain, have_numba, run, run_reference, seen
from .state import API, STATE

POINTER = C.c_void_p
UNFINISHED = 1  # in place of an OrtStatus*: there is an interrupt, see trampoline.c
LARGEST_RESULT = 2**26  # bytes of a constant result that is kept
_api = None  # set when ONNX Runtime calls `hook` for the first time; the same for every session of the process
_trampoline = None  # set when its path is first asked for
_domains: dict[str, int] = {}  # domain -> OrtCustomOpDomain*, one per process, never released
_custom_ops: dict = {}  # address of an OrtCustomOp -> (operator, signature)
_unknown_dimensions = itertools.count()
log = logging.getLogger("onnx_ops")
_wanted = threading.local()  # the domains that the next registration on this thread is for
_survey = threading.local()  # what sessions that are made on this thread would compile, while that is asked


def immortal(thing):
    """`thing`, never to be freed."""
    C.pythonapi.Py_IncRef(C.py_object(thing))
    return thing


def callback(restype, *argtypes):
    """Decorator: the function as the address of a C callback that lives for ever."""

    def wrap(function):
        return C.cast(immortal(C.CFUNCTYPE(restype, *argtypes)(function)), POINTER).value

    return wrap


def behind_trampoline(*argtypes):
    """Decorator: the function as the C callback that a function in trampoline.c calls.

    It returns an OrtStatus*, None for success, or UNFINISHED, which is also what an exception stands for.
    """

    def wrap(function):
        @functools.wraps(function)
        def call(*args):
            *args, status = args
            status[0] = function(*args)

        return callback(None, *argtypes, C.POINTER(POINTER))(call)

    return wrap


def get_library_path() -> str:
    """For `options.register_custom_ops_library(...)`: a library with the operators of all domains but com.microsoft.

    Raises OpError if there is none in this installation.
    """
    spec = importlib.util.find_spec("onnx_ops.runtime.trampoline")
    missing = None
    if spec is None and not os.path.exists(__file__):
        missing = "no C library can be loaded from inside a zip file, where onnx_ops is; unpack it"
    elif spec is None:
        missing = "the C trampoline was not built when onnx_ops was installed; install a C compiler and onnx_ops again"
    elif not have_numba():
        missing = "Numba can't be imported, which compiles the kernels"
    if missing:
        raise OpError("backend", "'native'", f'{missing}, or use backend="extensions"', "onnx_ops")
    path = str(spec and spec.origin)
    load_trampoline(path)
    return path


class Python(C.Structure):
    """What trampoline.c calls."""

    _fields_ = [(name, POINTER) for name in ("hook", "create_kernel", "infer", "slow", "compute", "interrupt")]


@functools.cache
def load_trampoline(path):
    """Load the library, which calls this module's functions from then on."""
    global _trampoline
    _trampoline = immortal(C.CDLL(path))
    python = Python.in_dll(_trampoline, "python")
    python.create_kernel, python.infer, python.slow = create_kernel, infer, slow
    python.interrupt, python.hook = interrupts.INTERRUPT, hook
    interrupts.listeners.append(_trampoline.wait_for_interrupt)


def address(name):
    """Of a function in trampoline.c."""
    return C.cast(getattr(_trampoline, name), POINTER).value


def register(options, domains):
    """Put these domains' operators on the options; those that they have already stay as they are."""
    path = get_library_path()
    _wanted.domains = domains
    try:
        options.register_custom_ops_library(path)
    finally:
        del _wanted.domains


def default_domains():
    """All but com.microsoft, which as a custom domain breaks models that ONNX Runtime fuses nodes of into it."""
    return {operator.domain for operator in OPERATORS} - {"com.microsoft"}


@behind_trampoline(POINTER, POINTER)
def hook(options, api_base):
    """RegisterCustomOps: adds the wanted domains that these options don't have yet."""
    global _api
    try:
        with REGISTRATION:
            if _api is None:
                _api = abi.Api(api_base)
            for name in sorted(getattr(_wanted, "domains", None) or default_domains()):
                key = f"onnx_ops.registered.{name}".encode()
                if not _api.get("HasSessionConfigEntry", options, key, kind=C.c_int):
                    _api.AddCustomOpDomain(options, _domain(name))
                    _api.AddSessionConfigEntry(options, key, b"1")
    except BaseException as error:
        return failed(error, api=_api or abi.Api(api_base, version=1))  # the oldest can say what is wrong, too
    return None


def failed(error, title="onnx_ops", api=None):
    """What a function `behind_trampoline` returns for an exception."""
    if not isinstance(error, Exception) and interrupts.postpone(error):
        return UNFINISHED
    api = api or _api
    if isinstance(error, OpError):
        return api.status(abi.INVALID_ARGUMENT, str(error))
    return api.status(abi.FAIL, f"{title}: {type(error).__name__}: {error}")


def _domain(name):
    from .compute import compute

    if name not in _domains:
        Python.in_dll(_trampoline, "python").compute = immortal(compute()).address
        domain = POINTER()
        _api.CreateCustomOpDomain(name.encode(), C.byref(domain))
        try:
            for operator in OPERATORS:
                if operator.domain == name:
                    for signature in operator.signatures():
                        _api.CustomOpDomain_Add(domain, C.addressof(custom_op(operator, signature)))
        except BaseException:
            _api.raw("ReleaseCustomOpDomain", domain)
            raise
        _domains[name] = domain.value
    return _domains[name]


@behind_trampoline(POINTER, POINTER)
def infer(op, context):
    """InferOutputShapeFn: what is known of the output before any input is there."""
    operator, _ = _custom_ops[op]
    try:
        count = len(operator.inputs)
        infos = [_api.get("ShapeInferContext_GetInputTypeShape", context, C.c_size_t(k)) for k in range(count)]
        # An unknown rank looks like rank 0.
        shape = operator.infer(None, [_api.dimensions(info) or None for info in infos], [None] * count)
        if shape is not None:
            source = infos[[i.type for i in operator.inputs].index(operator.output)]
            set_output_shape(context, _api.get("GetTensorElementType", source, kind=C.c_int), shape)
    except Exception as error:  # ONNX Runtime ignores the status: without a shape the model still runs
        log.warning("%s: shape inference: %s: %s", operator.title, type(error).__name__, error)
    except BaseException as error:
        return UNFINISHED if interrupts.postpone(error) else None
    return None


def set_output_shape(context, element_type, shape):
    # Without a name an unknown dimension would become a literal -1.
    names = ["" if isinstance(d, int) else d or f"onnx_ops_{next(_unknown_dimensions)}" for d in shape]
    sizes = [d if isinstance(d, int) else -1 for d in shape]
    count = C.c_size_t(len(shape))
    info = _api.get("CreateTensorTypeAndShapeInfo")
    try:
        _api.SetTensorElementType(info, C.c_int(element_type))
        _api.SetDimensions(info, (C.c_int64 * len(shape))(*sizes), count)
        _api.SetSymbolicDimensions(info, (C.c_char_p * len(shape))(*(n.encode() for n in names)), count)
        _api.ShapeInferContext_SetOutputTypeShape(context, C.c_size_t(0), info)
    finally:
        _api.raw("ReleaseTensorTypeAndShapeInfo", info)


IN_TRAMPOLINE = {  # a function of an OrtCustomOp: its name in trampoline.c
    "GetName": "name",
    "GetExecutionProviderType": "provider",
    "GetInputTypeCount": "input_count",
    "GetInputType": "input_type",
    "GetOutputTypeCount": "output_count",
    "GetOutputType": "output_type",
    "GetInputCharacteristic": "required",
    "GetOutputCharacteristic": "required",
    "GetInputMemoryType": "required",
    "GetVariadicInputMinArity": "one",
    "GetVariadicInputHomogeneity": "one",
    "GetVariadicOutputMinArity": "one",
    "GetVariadicOutputHomogeneity": "one",
    "GetStartVersion": "first_version",
    "GetEndVersion": "last_version",
    "CreateKernelV2": "create_kernel",
    "KernelComputeV2": "compute",
    "InferOutputShapeFn": "infer",
}


def custom_op(operator, signature):
    """The OrtCustomOp for one combination of element types."""
    types = [dtypes.TABLE[signature[i.type]].onnx for i in operator.inputs]
    made = abi.CustomOp(
        version=abi.OP_VERSION,
        name=operator.name.encode(),
        inputs=len(types),
        types=tuple(types),
        output=dtypes.TABLE[signature[operator.output]].onnx,
        first_version=first_version(operator),
        KernelDestroy=libc_address("free"),
    )
    for field, function in IN_TRAMPOLINE.items():
        setattr(made, field, address(function))
    immortal(made)
    _custom_ops[C.addressof(made)] = operator, signature
    return made


def first_version(operator):
    """In ai.onnx one that ONNX Runtime's own kernels don't have.

    Its constant folding looks for its own kernel of a node whose inputs are all constant, by this version; one that it
    finds doesn't fit our schema, and the session fails. It then warns that it can't fold the node; `constant_result`
    does in its place.
    """
    return operator.versions[0] - (operator.domain == "")


@functools.cache
def libc():
    library = C.cdll.msvcrt if sys.platform == "win32" else C.CDLL(None)
    library.malloc.restype, library.malloc.argtypes = POINTER, [C.c_size_t]
    return library


def allocate(size):
    """The address of memory that KernelDestroy frees, or None."""
    return libc().malloc(size)


def libc_address(name):
    return C.cast(getattr(libc(), name), POINTER).value


@contextmanager
def survey():
    """While this lasts, sessions that this thread makes compile nothing, and can't run their nodes of ours.

    Yields the list to which each of these nodes adds (its operator, parameters, {type variable: element type}).
    """
    _survey.needed = []
    try:
        yield _survey.needed
    finally:
        del _survey.needed


@behind_trampoline(POINTER, POINTER, C.POINTER(POINTER))
def create_kernel(op, info, out):
    """CreateKernelV2: everything that can be checked, resolved and compiled before the first run."""
    operator, signature = _custom_ops[op]
    try:
        size = C.c_size_t()
        _api.KernelInfo_GetNodeName(info, None, C.byref(size))
        node = C.create_string_buffer(size.value)
        _api.KernelInfo_GetNodeName(info, node, C.byref(size))
        with named(operator, node.value.decode(errors="replace")):
            parameters = operator.resolved({a.name: attribute(info, a) for a in operator.attributes})
            inputs = [known_input(i, info, k) for k, i in enumerate(operator.inputs)]
            shape = check_early(operator, Record(parameters[0]), inputs)
            operator.allows(Record(parameters[0]), signature)
            if (needed := getattr(_survey, "needed", None)) is not None:
                needed.append((operator, parameters, signature))
                return None
            plan, tile = map(immortal, compiled(operator, parameters, signature))
            result = constant_result(operator, parameters, signature, inputs, shape) if tile else None
        state = np.zeros(1, STATE)
        for name in API:
            state[name] = _api.address(name)
        for name in ("malloc", "free"):
            state[name] = libc_address(name)
        state["slow"], state["plan"] = address("slow"), plan.address
        state["tile"] = tile.address if tile else 0
        state["custom_op"], state["inputs"] = op, len(operator.inputs)
        for k, i in enumerate(operator.inputs):
            state["values"][0, k] = dtypes.TABLE[signature[i.type]].numpy.itemsize if i.values else 0
        out[0] = laid_out(state, parameters, result)
        return None
    except BaseException as error:
        return failed(error, operator.title)


def laid_out(state, parameters, result):
    """The address of a kernel's state, followed by its parameters and, if there is room, its constant result."""
    size = state.nbytes + parameters.nbytes
    memory = allocate(size + result.nbytes) if result is not None else None
    if memory:
        state["result"], state["result_bytes"] = memory + size, result.nbytes
        state["rank"], state["shape"][0, : result.ndim] = result.ndim, result.shape
        C.memmove(memory + size, result.ctypes.data, result.nbytes)
    else:
        memory = allocate(size)
    if not memory:
        raise MemoryError("no room for a kernel's state")
    state["parameters"] = memory + state.nbytes
    C.memmove(memory, state.ctypes.data, state.nbytes)
    C.memmove(memory + state.nbytes, parameters.ctypes.data, parameters.nbytes)
    return memory


def constant_result(operator, parameters, signature, inputs, shape):
    """What every run of the node gives, if its inputs are all constant and the output is not too large to be kept."""
    arrays = [i.constant for i in inputs]
    if any(a is None for a in arrays):
        return None
    size = math.prod(shape) * dtypes.TABLE[signature[operator.output]].numpy.itemsize
    try:
        return run(operator, parameters, arrays, threads=1) if 0 < size <= LARGEST_RESULT else None
    except MemoryError:  # there may be enough of it when the node runs
        return None


def attribute(info, declared):
    """The attribute's value in the node, or None if it has none.

    ONNX Runtime checks no attributes of custom ops, and reads a list of another kind as an empty one.
    """
    name, size = declared.name.encode(), C.c_size_t()
    try:
        _api.KernelInfoGetAttributeArray_int64(info, name, None, C.byref(size))
    except abi.Error:
        return None
    try:
        if declared.kind == "int":
            return _api.get("KernelInfoGetAttribute_int64", info, name, kind=C.c_int64)
        if declared.kind == "string":
            _api.KernelInfoGetAttribute_string(info, name, None, C.byref(size))
            content = C.create_string_buffer(size.value)
            _api.KernelInfoGetAttribute_string(info, name, content, C.byref(size))
            return content.value
        if size.value:
            values = (C.c_int64 * size.value)()
            _api.KernelInfoGetAttributeArray_int64(info, name, values, C.byref(size))
            return list(values)
    except abi.Error:
        pass
    return declared.check(WrongKind())


class WrongKind:
    """Stands for an attribute whose value can't be read, because it is of another kind than declared."""

    def __repr__(self):
        return "(of another kind)"


@dataclass
class KnownInput:
    """What the model itself tells of a node's input: dimensions as in abi.Api.dimensions, and the array if constant."""

    dimensions: list
    constant: np.ndarray | None


def known_input(declared, info, position):
    """Of the input at this position of a node. A constant is an array over ONNX Runtime's own memory."""
    type_info = _api.get("KernelInfo_GetInputTypeInfo", info, C.c_size_t(position))
    try:
        dimensions = _api.dimensions(_api.get("CastTypeInfoToTensorInfo", type_info))
    finally:
        _api.raw("ReleaseTypeInfo", type_info)
    is_constant, value = C.c_int(), POINTER()
    _api.KernelInfoGetConstantInput_tensor(info, C.c_size_t(position), C.byref(is_constant), C.byref(value))
    return KnownInput(dimensions, tensor(value.value) if is_constant.value else None)


def check_early(operator, parameters, inputs):
    """Refuse what the model's own shapes and constants already show to be wrong; raises OpError.

    Returns the output's shape, or None where it isn't known.
    """
    plan_sees, lengths = [], []
    for declared, known in zip(operator.inputs, inputs, strict=True):
        dims = known.dimensions
        if known.constant is not None:
            plan_sees.append(seen(declared, known.constant))
        elif not declared.values and dims and all(isinstance(d, int) for d in dims):
            plan_sees.append(np.array(dims, np.int64))  # an unknown rank is reported as rank 0
        else:
            plan_sees.append(None)
        if declared.values and known.constant is not None:
            lengths.append(len(plan_sees[-1]))
        elif declared.values:
            lengths.append(dims[0] if len(dims) == 1 and isinstance(dims[0], int) else None)
    operator.lengths(parameters, lengths)
    if any(s is None for s in plan_sees):
        return None
    geometry = np.zeros(1, operator.geometry)[0]
    operator.plan(parameters, plan_sees, Record(geometry))
    return geometry["shape"][: geometry["rank"]].tolist()


def tensor(value):
    """An OrtValue* as a NumPy array over its memory, for as long as ONNX Runtime keeps it; of strings, a copy."""
    info = _api.get("GetTensorTypeAndShape", value)
    try:
        dims, number = _api.dimensions(info), _api.get("GetTensorElementType", info, kind=C.c_int)
    finally:
        _api.raw("ReleaseTensorTypeAndShapeInfo", info)
    dtype = next(t.numpy for t in dtypes.TABLE.values() if t.onnx == number)
    if 0 in dims:
        return np.empty(dims, dtype)
    if dtype.hasobject:
        return strings(value, math.prod(dims)).reshape(dims)
    nbytes = math.prod(dims) * dtype.itemsize
    memory = (C.c_char * nbytes).from_address(_api.get("GetTensorMutableData", value))
    return np.frombuffer(memory, dtype).reshape(dims)


def strings(value, count):
    size = _api.get("GetStringTensorDataLength", value, kind=C.c_size_t)
    content, offsets = C.create_string_buffer(size + 1), (C.c_size_t * (count + 1))()
    _api.GetStringTensorContent(value, content, C.c_size_t(size), offsets, C.c_size_t(count))
    offsets[count] = size
    content, found = content.raw, np.empty(count, object)
    found[:] = [content[a:b].decode(errors="surrogateescape") for a, b in itertools.pairwise(offsets)]
    return found


def write_strings(context, array):
    dims = (C.c_int64 * max(array.ndim, 1))(*array.shape)
    value = _api.get("KernelContext_GetOutput", context, C.c_size_t(0), dims, C.c_size_t(array.ndim))
    content = [s.encode(errors="surrogateescape") for s in array.ravel()]
    _api.FillStringTensor(value, (C.c_char_p * max(len(content), 1))(*content), C.c_size_t(len(content)))


@behind_trampoline(POINTER, POINTER, C.c_int64)
def slow(state_at, context, needed):
    """For a call that `compute` leaves to Python: strings, and what fails, to say why.

    That is whatever the plan refuses and, where some are `needed`, bytes of workspace that could not be had.
    """
    title = "onnx_ops"
    try:
        state = np.frombuffer((C.c_char * STATE.itemsize).from_address(state_at), STATE)[0]
        operator, _ = _custom_ops[int(state["custom_op"])]
        title = operator.title
        if needed:
            raise OpError("workspace", f"{needed} bytes", "can't be allocated", title)
        parameters = (C.c_char * operator.parameters.itemsize).from_address(int(state["parameters"]))
        arrays = [
            tensor(_api.get("KernelContext_GetInput", context, C.c_size_t(k))) for k in range(len(operator.inputs))
        ]
        parameters = np.frombuffer(parameters, operator.parameters)
        if state["tile"]:
            explain(operator, parameters, arrays)
        write_strings(context, run_reference(operator, parameters, arrays))
        return None
    except BaseException as error:
        return failed(error, title)
