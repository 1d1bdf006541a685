"""What an operator declaration is.

    attributes --resolve--> parameters          once, when a session is made
    (parameters, shapes) --plan--> geometry     at every call
    (tensors, geometry, tile, workspace) --kernel--> outputs
                                                at every call, one tile after the other or side by side

All of these are written in the part of Python that Numba compiles, and also run uncompiled. Everything that touches a
runtime is derived from a declaration. What `onnx_ops.operator` makes of a function is one, too: see own/.
"""

import functools
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import index

import numpy as np

from . import dtypes
from .errors import OpError, quoted
from .kernels.jit import jitable

MAX_RANK = 16  # axes of a tensor, and length of an input whose values a plan reads
MAX_VALUES = 32  # of an attribute that is a list, of which compiled code has a copy
MAX_INPUTS = 16
MAX_OUTPUTS = 8
MAX_ATTRIBUTES = 16
MAX_KERNELS = 4
MAX_TILES = 64  # of a call: as many as a mask of workspaces in use has bits
MAX_GEOMETRY = 2048  # bytes of any operator's geometry, and of its parameters
TILE_ELEMENTS = 2**12  # of a function's inputs and outputs, for which another tile is worth while
ELEMENTS = 2**58  # of any tensor: its bytes fit 64 bits whatever the type
INT64 = np.iinfo(np.int64)
UNKNOWN = -1  # a dimension that `infer` is not told; names of dimensions are the numbers below
ABSENT = -1  # the rank of an optional input that a node doesn't have


@dataclass(frozen=True)
class Input:
    """An input. A plan gets its shape or, with `values=True` (a rank-1 integer tensor), its values.

    presence  "required", "optional" or, of the last one, "variadic": any number of them, at least one
    ranks     of a function, those that its body is compiled for
    """

    name: str
    type: str
    values: bool = False
    presence: str = "required"
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Output:
    name: str
    type: str


@dataclass(frozen=True)
class Kind:
    """What the values of an attribute are.

    text      as errors say it
    onnx      its name among onnx.AttributeProto's types
    is_list   whether there may be several
    """

    text: str
    onnx: str
    is_list: bool = False


KINDS = {
    "int": Kind("an integer", "INT"),
    "ints": Kind("a list of integers", "INTS", True),
    "string": Kind("a string", "STRING"),
    "float": Kind("a number", "FLOAT"),
    "floats": Kind("a list of numbers", "FLOATS", True),
    "text": Kind("a string", "STRING"),
    "tensor": Kind("a tensor", "TENSOR"),
}


@dataclass(frozen=True)
class Attribute:
    """An attribute of one of the KINDS. A "string" is one of the choices, a "text" is any.

    default   None stands for "depends on the inputs"; one that is required has no default
    bounds    the least and the greatest of integers
    lengths   of a list, the least and the greatest
    choices   what a string may be
    """

    name: str
    kind: str
    default: object = None
    required: bool = False
    bounds: tuple[int, int] = (INT64.min, INT64.max)
    lengths: tuple[int, int] = (1, MAX_VALUES)
    choices: tuple[str, ...] = ()

    def __post_init__(self):
        if self.kind not in KINDS:
            raise OpError(f"kind of {self.name}", repr(self.kind), f"must be one of {', '.join(KINDS)}")

    def vector(self, value):
        """`value` as what compiled code sees: a vector of int64, of float64 or, of a text, of bytes.

        A string is its position among the choices. A tensor remains one.
        """
        try:
            numbers = self._numbers(value)
        except (TypeError, ValueError):
            raise OpError(self.name, repr(value), self.kind_rule) from None
        if self.kind in ("text", "tensor"):
            return numbers
        least, most = self.limits
        in_bounds = self.kind.startswith("float") or all(least <= n <= most for n in numbers)
        if not (in_bounds and self.lengths[0] <= len(numbers) <= self.lengths[1]):
            shown = (
                quoted(_text(value)) if self.kind == "string" else numbers[0] if self.kind == "int" else list(numbers)
            )
            raise OpError(self.name, shown, self.rule)
        return np.array(numbers, np.float64 if self.kind.startswith("float") else np.int64)

    def _numbers(self, value):
        """The numbers that a value stands for; of a text or a tensor an array. TypeError, ValueError: it is no such."""
        if self.kind in ("string", "text"):
            text = _text(value)
            if self.kind == "text":
                return np.frombuffer(text.encode(errors="surrogateescape"), np.uint8)
            return (self.choices.index(text) if text in self.choices else -1,)
        if isinstance(value, bytes):
            raise TypeError  # whose elements would be integers
        if self.kind == "tensor":
            if hasattr(value, "raw_data"):  # an onnx.TensorProto
                from onnx import numpy_helper

                value = numpy_helper.to_array(value)
            array = np.asarray(value, order="C")
            if dtypes.name_of(array) not in dtypes.TABLE or dtypes.name_of(array) == "string":
                raise TypeError
            return array
        values = tuple(value) if KINDS[self.kind].is_list else (value,)
        if self.kind.startswith("int"):
            return tuple(map(index, values))
        if any(isinstance(v, str | bytes) for v in values):
            raise TypeError
        return np.array(values, np.float32).tolist()  # as a model keeps them

    @property
    def kind_rule(self):
        return f"must be {KINDS[self.kind].text}"

    @property
    def limits(self):
        """The bounds of what `resolve` sees."""
        return (0, len(self.choices) - 1) if self.kind == "string" else self.bounds

    @property
    def rule(self):
        """What a value of the right kind must be."""
        if self.kind == "string":
            return f"must be one of {', '.join(self.choices)}"
        least, most = map(spelled_out, self.bounds)
        if KINDS[self.kind].is_list:
            count = " to ".join(map(str, dict.fromkeys(self.lengths)))
            return f"must be {count} numbers" + (f" in [{least}, {most}]" if self.kind == "ints" else "")
        return (
            f"must be {least} or {most}" if self.bounds[1] - self.bounds[0] == 1 else f"must lie in [{least}, {most}]"
        )


def _text(value):
    return value.decode() if isinstance(value, bytes) else str.__str__(value)


def spelled_out(number):
    """As a power of two if it is a large one, or next to it."""
    for power in (number, number + 1):
        if abs(power) >= 2**16 and abs(power) & (abs(power) - 1) == 0:
            return f"{'-' * (power < 0)}2**{abs(power).bit_length() - 1}{' - 1' * (power - number)}"
    return str(number)


class Record:
    """One element of a structured dtype with its fields as attributes, as compiled code sees it."""

    __slots__ = ("_element",)

    def __init__(self, element):
        object.__setattr__(self, "_element", element)

    def __getattr__(self, name):
        try:
            return self._element[name]
        except ValueError:
            raise AttributeError(name) from None

    def __setattr__(self, name, value):
        self._element[name] = value


def words(counts):
    """The dtype of a record of 64-bit integers: a scalar where the count is None, else an array of that length."""
    return np.dtype([(n, np.int64) if c is None else (n, np.int64, (c,)) for n, c in counts.items()])


@jitable
def without_parameters(attributes, parameters):
    """What `resolve` is for operators that need none."""


# What every record that resolve, plan or infer fills in begins with: room for what `require` refuses, as the addresses
# of two texts and of the values, how many these are (-1: it is one number), whether there is an expected value, that
# value, and place for the values.
MAX_SHOWN = 32
REFUSAL = {"refusal": 6 + MAX_SHOWN}


@dataclass(frozen=True)
class Kernel:
    """One of an operator's kernels.

    function    (*tensors, geometry, tile, workspace, out) computes one tile; all flat arrays, the workspace of bytes
                that hold nothing yet
    attributes  which lead to it
    copies      whether it only copies elements, so that nothing but their size matters
    types       {type variable: element types} of those that it takes fewer of than the operator
    unless      what the attributes must be for all types to be taken
    """

    function: Callable
    attributes: Mapping = field(default_factory=dict)
    copies: bool = False
    types: Mapping = field(default_factory=dict)
    unless: str = ""


@dataclass(frozen=True, eq=False, kw_only=True)
class Declaration:
    """What an operator of one domain is for whoever uses it, however it is computed.

    domain, name     as in a model's node; domain "" is ai.onnx
    versions, ranks  the versions of the domain that changed the operator, and the ranks of its first input
    inputs, outputs  in order
    types            type variable -> names of element types
    attributes       in the order in which their values are handed on
    terms            {name: word} of the {names} in refusals that this operator's specification has other words for
    """

    domain: str
    name: str
    versions: tuple[int, ...]
    ranks: tuple[int, ...]
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    types: Mapping[str, tuple[str, ...]]
    attributes: tuple[Attribute, ...] = ()
    terms: Mapping = field(default_factory=dict)

    def __post_init__(self):
        for what, value, most in self.limited():
            if value > most:
                raise OpError(what, value, f"must be at most {most}", self.title)

    def limited(self):
        """Yield what there can't be more of than so many: its name, how many there are, and the limit."""
        yield "inputs", len(self.inputs), MAX_INPUTS
        yield "outputs", len(self.outputs), MAX_OUTPUTS
        yield "attributes", len(self.attributes), MAX_ATTRIBUTES

    is_function = has_rule = is_compiled = is_bound = has_loop = False  # see own/function.py

    def combinations(self):
        """For how many combinations of ranks a body is compiled by itself."""
        return 1

    def compiled_ranks(self, input):
        """The ranks of an input for which bodies are compiled; none where one body does for all."""
        return ()

    @property
    def title(self):
        return f"{self.domain}.{self.name}" if self.domain else self.name

    @property
    def source(self):
        """The module that declares it."""
        raise NotImplementedError

    def signatures(self):
        """All combinations of element types that ONNX Runtime has, as {type variable: name}."""
        known = [[n for n in names if dtypes.TABLE[n].in_sessions] for names in self.types.values()]
        for names in itertools.product(*known):
            yield dict(zip(self.types, names, strict=True))

    def vectors(self, given):
        """The vector of each attribute, from those that are given; None of one that isn't and has no default."""
        known = {a.name: a for a in self.attributes}
        for name in given.keys() - known.keys():
            raise OpError(name, repr(given[name]), f"no such attribute; there are {', '.join(known) or 'none'}")
        for name, a in known.items():
            if a.required and given.get(name) is None:
                raise OpError(name, None, "must be given")
        values = [a.default if given.get(a.name) is None else given[a.name] for a in self.attributes]
        return [None if v is None else a.vector(v) for a, v in zip(self.attributes, values, strict=True)]

    def each_input(self, count):
        """The declarations of so many inputs, the last one's again for those that a variadic one stands for."""
        least = len([i for i in self.inputs if i.presence != "optional"])
        most = count if self.inputs and self.inputs[-1].presence == "variadic" else len(self.inputs)
        if not least <= count <= most:
            rule = f"must be {least}" if least == most == len(self.inputs) else f"must be at least {least}"
            raise OpError("inputs", count, rule if count < least else f"must be at most {most}", self.title)
        return (*self.inputs[:count], *[self.inputs[-1]] * (count - len(self.inputs)))

    def padded(self, inputs):
        """So many inputs as there are, with None for optional ones that are left out at the end. Raises OpError."""
        for i, given in zip(self.each_input(len(inputs)), inputs, strict=True):
            if given is None and i.presence != "optional":
                raise OpError(i.name, None, "must be given", self.title)
        return [*inputs, *[None] * (len(self.inputs) - len(inputs))]

    def likeness(self):
        """For each output the first input whose type it has; None where its type is always the same."""
        variables = [i.type for i in self.inputs]
        return [variables.index(o.type) if o.type in variables else None for o in self.outputs]


@dataclass(frozen=True, eq=False, kw_only=True)
class Operator(Declaration):
    """An operator that is computed by kernels on flat arrays, which share out a plan's tiles. It has one output.

    parameters  what `resolve` finds: {field: None for a number, or the length of a vector}; in addition there is
                `kernel`, the position of the kernel that is meant
    geometry    what `plan` finds, likewise; in addition there are `rank` and `shape` of the output, the number of
                `tiles`, at most MAX_TILES, and how many bytes of `workspace` a tile needs
    resolve     (a vector for each attribute, empty where there is none, parameters)
    plan        (parameters, shapes, geometry)
    infer       (parameters, shapes, geometry): what `plan` would find for `rank` and `shape`, as far as that can be
                told. A dimension may be UNKNOWN, or less, which stands for a name. A shape is empty where the rank is
                unknown, and so are values where their number is; parameters are all 0 where attributes can't be told.
                The rank is -1 until it is known.
    kernels     at least one
    reference   (parameters, *inputs) -> output, plain NumPy in float64, written to be read

    The first three fill in the record that is their last argument, and refuse by `onnx_ops.require`.
    """

    plan: Callable
    infer: Callable
    kernels: tuple[Kernel, ...]
    reference: Callable
    resolve: Callable = without_parameters
    parameters: Mapping = field(default_factory=dict)
    geometry: Mapping = field(default_factory=dict)

    @property
    def source(self):
        return self.plan.__module__

    def limited(self):
        yield from super().limited()
        yield "kernels", len(self.kernels), MAX_KERNELS
        yield from ((f"length of {a.name}", a.lengths[1], MAX_VALUES) for a in self.attributes)
        yield "bytes of parameters", self.parameters_dtype.itemsize, MAX_GEOMETRY
        yield "bytes of geometry", self.geometry_dtype.itemsize, MAX_GEOMETRY

    @functools.cached_property
    def parameters_dtype(self):
        return words({**REFUSAL, "kernel": None, **self.parameters})

    @functools.cached_property
    def geometry_dtype(self):
        return words({**REFUSAL, "tiles": None, "workspace": None, "rank": None, "shape": MAX_RANK, **self.geometry})

    @property
    def tensors(self):
        """Positions of the inputs that kernels read."""
        return tuple(k for k, i in enumerate(self.inputs) if not i.values)

    def resolved(self, given):
        """The parameters, as a structured array of one element, from the attributes that are given."""
        vectors = [np.empty(0, np.int64) if v is None else v for v in self.vectors(given)]
        parameters = np.zeros(1, self.parameters_dtype)
        self.resolve(tuple(vectors), Record(parameters[0]))
        return parameters

    def output_shapes(self, parameters, shapes, values):
        """`inferred` of each output, or None; parameters are what `resolved` returns, or None."""
        known = None if parameters is None else Record(parameters[0])
        found = self.inferred(known, shapes, values)
        return None if found is None else [found]

    def inferred(self, parameters, shapes, values=None):
        """The output's dimensions as far as they can be told, or None if not even their number is known.

        parameters  a Record, or None where attributes can't be told
        shapes      of the inputs, whose dimensions are ints, names or None; None if the rank is unknown
        values      of the inputs, as far as they are known, lists of ints

        Raises OpError if what is known is refused.
        """
        names: list = []
        seen = []
        for i, shape, known in zip(self.inputs, shapes, values or [None] * len(shapes), strict=True):
            if i.values and known is None:
                known = [UNKNOWN] * shape[0] if shape and len(shape) == 1 and isinstance(shape[0], int) else []
            vector = []
            for dimension in (known if i.values else shape) or ():
                if isinstance(dimension, str):
                    names.append(dimension)
                    dimension = UNKNOWN - len(names)
                vector.append(UNKNOWN if dimension is None else dimension)
            seen.append(np.array(vector if len(vector) <= MAX_RANK else [], np.int64))
        geometry = np.zeros(1, self.geometry_dtype)
        geometry["rank"] = -1
        self.infer(parameters or Record(np.zeros(1, self.parameters_dtype)[0]), tuple(seen), Record(geometry[0]))
        rank, shape = int(geometry["rank"][0]), geometry["shape"][0].tolist()
        if rank < 0:
            return None
        return [d if d >= 0 else None if d == UNKNOWN else names[UNKNOWN - 1 - d] for d in shape[:rank]]

    def kernel(self, parameters):
        return self.kernels[parameters.kernel]

    def check_types(self, kernel, signature):
        """Raise OpError if the kernel doesn't take these element types."""
        for variable, names in kernel.types.items():
            if signature[variable] not in names:
                argument = next(i.name for i in self.inputs if i.type == variable)
                rule = f"must be one of {', '.join(names)} unless {kernel.unless}"
                raise OpError(f"dtype of {argument}", signature[variable], rule)

    def storage(self, kernel, signature):
        """The dtypes that the kernel sees, of its tensors, then of the output; None for types that it can't see."""
        variables = [self.inputs[k].type for k in self.tensors] + [self.outputs[0].type]
        found = {v: dtypes.TABLE[signature[v]].storage for v in variables}
        if any(dtype is None for dtype in found.values()):  # `in` would find None equal to float64
            return None
        out = self.outputs[0].type
        if kernel.copies and found[out].itemsize <= 8:
            found[out] = np.dtype(f"uint{8 * found[out].itemsize}")
        return tuple(found[v] for v in variables)
