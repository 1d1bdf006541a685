"""What an operator declaration is.

    attributes --resolve--> parameters          once, when a session is made
    (parameters, shapes) --plan--> geometry     at every call
    (tensors, geometry, tile, workspace) --kernel--> out
                                                at every call, one tile after the other or side by side

All of these are written in the part of Python that Numba compiles, and also run uncompiled. Everything that touches a
runtime is derived from a declaration.
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
MAX_VALUES = 2 * MAX_RANK  # of an attribute that is a list
MAX_INPUTS = 8
MAX_ATTRIBUTES = 8
MAX_KERNELS = 4
MAX_TILES = 64  # of a call: as many as a mask of workspaces in use has bits
MAX_GEOMETRY = 2048  # bytes of any operator's geometry, and of its parameters
ELEMENTS = 2**58  # of any tensor: its bytes fit 64 bits whatever the type
INT64 = np.iinfo(np.int64)
UNKNOWN = -1  # a dimension that `infer` is not told; names of dimensions are the numbers below


@dataclass(frozen=True)
class Input:
    """An input. A plan gets its shape or, with `values=True` (a rank-1 integer tensor), its values."""

    name: str
    type: str
    values: bool = False


KINDS = {"int": "an integer", "ints": "a list of integers", "string": "a string"}


@dataclass(frozen=True)
class Attribute:
    """An attribute of `kind` "int", "ints" or "string".

    default   None stands for "depends on the inputs"; one that is required has no default
    bounds    the least and the greatest number
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
        """`value` as what `resolve` sees: a vector of int64, which holds a string's position among the choices."""
        try:
            if self.kind == "string":
                text = value.decode() if isinstance(value, bytes) else str.__str__(value)
                numbers = (self.choices.index(text) if text in self.choices else -1,)
            elif isinstance(value, bytes):
                raise TypeError  # whose elements would be integers
            else:
                numbers = tuple(map(index, value)) if self.kind == "ints" else (index(value),)
        except (TypeError, ValueError):
            raise OpError(self.name, repr(value), self.kind_rule) from None
        least, most = self.limits
        if not (self.lengths[0] <= len(numbers) <= self.lengths[1] and all(least <= n <= most for n in numbers)):
            shown = {"string": lambda: quoted(text), "ints": lambda: list(numbers), "int": lambda: numbers[0]}
            raise OpError(self.name, shown[self.kind](), self.rule)
        return np.array(numbers, np.int64)

    @property
    def kind_rule(self):
        return f"must be {KINDS[self.kind]}"

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
        if self.kind == "ints":
            count = " to ".join(map(str, dict.fromkeys(self.lengths)))
            return f"must be {count} numbers in [{least}, {most}]"
        return (
            f"must be {least} or {most}" if self.bounds[1] - self.bounds[0] == 1 else f"must lie in [{least}, {most}]"
        )


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
    return 0


# What every record that resolve, plan or infer fills in begins with: room for `refuse` to say what is wrong, as the
# addresses of two texts and of the values, how many these are (-1: it is one number), whether there is an expected
# value, that value, and a place for a number.
REFUSAL = {"refusal": 7}


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


@dataclass(frozen=True, eq=False)
class Operator:
    """One operator of one domain.

    domain, name:    as in a model's node; domain "" is ai.onnx
    versions, ranks: the versions of the domain that changed the operator, and the ranks of its first input
    inputs, output:  the inputs in order, and the type variable of the output
    types:           type variable -> names of element types
    attributes:      in the order in which `resolve` gets them
    parameters:      what `resolve` finds: {field: None for a number, or the length of a vector}; in addition there is
                     `kernel`, the position of the kernel that is meant
    geometry:        what `plan` finds, likewise; in addition there are `rank` and `shape` of the output, the number of
                     `tiles`, at most MAX_TILES, and how many bytes of `workspace` a tile needs
    resolve:         (a vector for each attribute, empty where there is none, parameters) -> 0, or what `refuse` returns
    plan:            (parameters, shapes, geometry) -> the same
    infer:           (parameters, shapes, geometry) -> the same: what `plan` would find for `rank` and `shape`, as far
                     as that can be told. A dimension may be UNKNOWN, or less, which stands for a name. A shape is
                     empty where the rank is unknown, and so are values where their number is; parameters are all 0
                     where attributes can't be told. The rank is -1 until it is known.
    kernels:         at least one
    reference:       (parameters, *inputs) -> output, plain NumPy in float64, written to be read
    terms:           {name: word} of the {names} in refusals that this operator's specification has other words for
    """

    domain: str
    name: str
    versions: tuple[int, ...]
    ranks: tuple[int, ...]
    inputs: tuple[Input, ...]
    output: str
    types: dict[str, tuple[str, ...]]
    plan: Callable
    infer: Callable
    kernels: tuple[Kernel, ...]
    reference: Callable
    attributes: tuple[Attribute, ...] = ()
    resolve: Callable = without_parameters
    parameters: Mapping = field(default_factory=dict)
    geometry: Mapping = field(default_factory=dict)
    terms: Mapping = field(default_factory=dict)

    def __post_init__(self):
        for what, value, most in (
            ("inputs", len(self.inputs), MAX_INPUTS),
            ("attributes", len(self.attributes), MAX_ATTRIBUTES),
            ("kernels", len(self.kernels), MAX_KERNELS),
            *((f"length of {a.name}", a.lengths[1], MAX_VALUES) for a in self.attributes),
            ("bytes of parameters", self.parameters_dtype.itemsize, MAX_GEOMETRY),
            ("bytes of geometry", self.geometry_dtype.itemsize, MAX_GEOMETRY),
        ):
            if value > most:
                raise OpError(what, value, f"must be at most {most}", self.title)

    @property
    def title(self):
        return f"{self.domain}.{self.name}" if self.domain else self.name

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

    def signatures(self):
        """All combinations of element types that ONNX Runtime has, as {type variable: name}."""
        known = [[n for n in names if dtypes.TABLE[n].in_sessions] for names in self.types.values()]
        for names in itertools.product(*known):
            yield dict(zip(self.types, names, strict=True))

    def resolved(self, given):
        """The parameters, as a structured array of one element, from the attributes that are given."""
        known = {a.name: a for a in self.attributes}
        for name in given.keys() - known.keys():
            raise OpError(name, repr(given[name]), f"no such attribute; there are {', '.join(known) or 'none'}")
        for name, a in known.items():
            if a.required and given.get(name) is None:
                raise OpError(name, None, "must be given")
        values = [a.default if given.get(a.name) is None else given[a.name] for a in self.attributes]
        vectors = [
            np.empty(0, np.int64) if v is None else a.vector(v) for a, v in zip(self.attributes, values, strict=True)
        ]
        parameters = np.zeros(1, self.parameters_dtype)
        self.resolve(tuple(vectors), Record(parameters[0]))
        return parameters

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
        variables = [self.inputs[k].type for k in self.tensors] + [self.output]
        found = {v: dtypes.TABLE[signature[v]].storage for v in variables}
        if any(dtype is None for dtype in found.values()):  # `in` would find None equal to float64
            return None
        if kernel.copies and found[self.output].itemsize <= 8:
            found[self.output] = np.dtype(f"uint{8 * found[self.output].itemsize}")
        return tuple(found[v] for v in variables)
