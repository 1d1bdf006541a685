"""The declaration of an operator, from which everything that touches a runtime is derived.

    attributes --resolve--> parameters          once, when a session is made
    (parameters, shapes) --plan--> geometry     at every call, and before, if a session knows the shapes
    (tensors, geometry, tile, workspace) --kernel--> outputs
                                                at every call, one tile after the other or side by side

These functions are written in the part of Python that Numba compiles, and also run uncompiled. `onnx_ops.operator`
makes a declaration, too, from a function: see own/.
"""

import functools
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import index

import numpy as np

from . import dtypes
from .compiler.jit import jitable
from .errors import OpError, quoted

MAX_RANK = 16  # axes of a tensor, and elements of an input whose values a plan reads
MAX_VALUES = 32  # values of an attribute that is a list, of which compiled code has a copy
MAX_INPUTS = 16
MAX_OUTPUTS = 8
MAX_ATTRIBUTES = 16
MAX_KERNELS = 4
MAX_TILES = 64  # tiles of a call: as many as there are bits in the mask of workspaces in use
LINE = 64  # bytes of a cache line, and of the widest vectors: a tile's workspace begins at a multiple of it
MAX_GEOMETRY = 2048  # bytes of any operator's geometry, and of its parameters
TILE_ELEMENTS = 2**12  # elements of a function's inputs and outputs that are worth one more tile
ELEMENTS = 2**58  # the most of any tensor: its bytes fit into 64 bits whatever the type
INT64 = np.iinfo(np.int64)
UNKNOWN = -1  # a dimension that `infer` doesn't know; lower numbers stand for names of dimensions
ABSENT = -1  # the rank of an optional input that a node doesn't have


@dataclass(frozen=True)
class Input:
    """An input. A plan gets its shape or, with `values=True` (a rank-1 integer tensor), its values.

    presence  "required", "optional" or, for the last input, "variadic": it stands for one or more inputs
    ranks     the ranks that the kernel of a function (own/) is compiled for
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
    """A kind of attribute values.

    text      what errors call it
    onnx      its name among onnx.AttributeProto's types
    is_list   whether a value is a list
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
    """An attribute of one of the KINDS. A "string" is one of the choices, a "text" is any string.

    default        None stands for "depends on the inputs"; a required attribute has no default
    bounds         the least and the greatest value of integers
    length_bounds  the least and the greatest length of a list
    choices        the values that a "string" may have
    """

    name: str
    kind: str
    default: object = None
    required: bool = False
    bounds: tuple[int, int] = (INT64.min, INT64.max)
    length_bounds: tuple[int, int] = (1, MAX_VALUES)
    choices: tuple[str, ...] = ()

    def __post_init__(self):
        if self.kind not in KINDS:
            raise OpError(f"kind of {self.name}", repr(self.kind), f"must be one of {', '.join(KINDS)}")

    def vector(self, value):
        """Return a value as compiled code sees it: a vector of int64, of float64 or, for a text, of bytes.

        A string becomes its position among the choices. A tensor stays a tensor.
        """
        try:
            numbers = self._numbers(value)
        except (TypeError, ValueError):
            raise OpError(self.name, repr(value), self.kind_rule) from None
        if self.kind in ("text", "tensor"):
            return numbers
        least, most = self.limits
        in_bounds = self.kind.startswith("float") or all(least <= n <= most for n in numbers)
        if not (in_bounds and self.length_bounds[0] <= len(numbers) <= self.length_bounds[1]):
            refused = (
                quoted(_text(value)) if self.kind == "string" else numbers[0] if self.kind == "int" else list(numbers)
            )
            raise OpError(self.name, refused, self.rule)
        return np.array(numbers, np.float64 if self.kind.startswith("float") else np.int64)

    def _numbers(self, value):
        """Return a value's numbers, or an array for a text or a tensor. Raises TypeError or ValueError for others."""
        if self.kind in ("string", "text"):
            text = _text(value)
            if self.kind == "text":
                return np.frombuffer(text.encode(errors="surrogateescape"), np.uint8)
            return (self.choices.index(text) if text in self.choices else -1,)
        if isinstance(value, bytes):
            raise TypeError  # else its elements would be taken for integers
        if self.kind == "tensor":
            if hasattr(value, "raw_data"):  # an onnx.TensorProto
                from onnx import numpy_helper

                value = numpy_helper.to_array(value)
            array = np.asarray(value)
            array = np.asarray(array, array.dtype.newbyteorder("="), order="C")
            if dtypes.name_of(array) not in dtypes.TABLE or dtypes.name_of(array) == "string":
                raise TypeError
            return array
        values = tuple(value) if KINDS[self.kind].is_list else (value,)
        if self.kind.startswith("int"):
            return tuple(map(index, values))
        if any(isinstance(v, str | bytes) for v in values):
            raise TypeError
        return np.array(values, np.float32).tolist()  # rounded as in a model

    @property
    def kind_rule(self):
        return f"must be {KINDS[self.kind].text}"

    @property
    def limits(self):
        """The bounds of the integers that `resolve` gets."""
        return (0, len(self.choices) - 1) if self.kind == "string" else self.bounds

    @property
    def rule(self):
        """A text on what a value of the right kind must be."""
        if self.kind == "string":
            return f"must be one of {', '.join(self.choices)}"
        least, most = map(spelled_out, self.bounds)
        if KINDS[self.kind].is_list:
            count = " to ".join(map(str, dict.fromkeys(self.length_bounds)))
            return f"must be {count} numbers" + (f" in [{least}, {most}]" if self.kind == "ints" else "")
        return (
            f"must be {least} or {most}" if self.bounds[1] - self.bounds[0] == 1 else f"must lie in [{least}, {most}]"
        )


def _text(value):
    return value.decode() if isinstance(value, bytes) else str.__str__(value)


def spelled_out(number):
    """Return a number's text: a large power of two, or the number before it, as such a power."""
    for power in (number, number + 1):
        if abs(power) >= 2**16 and abs(power) & (abs(power) - 1) == 0:
            return f"{'-' * (power < 0)}2**{abs(power).bit_length() - 1}{' - 1' * (power - number)}"
    return str(number)


class Record:
    """An element of a structured dtype whose fields are attributes, as in compiled code."""

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


def record_dtype(counts):
    """Return the dtype of a record of 64-bit integers. A field is a scalar if its count is None, else an array."""
    return np.dtype([(n, np.int64) if c is None else (n, np.int64, (c,)) for n, c in counts.items()])


@jitable
def without_parameters(attributes, parameters):
    """Do nothing: the `resolve` of operators without parameters."""


# Every record that resolve, plan or infer fills in begins with this field, where `require` states a refusal: the
# addresses of two texts and of the values, how many values there are (-1: a single number), whether there is an
# expected value, that value, which of them are doubles (1: the values, 2: the expected one, 3: both), and room for the
# values.
MAX_SHOWN = 32
REFUSAL = {"refusal": 7 + MAX_SHOWN}


@dataclass(frozen=True)
class Kernel:
    """One of an operator's kernels.

    function    (*tensors, geometry, tile, workspace, out) computes one tile. Tensors are flat arrays, the workspace is
                one of uninitialized bytes
    attributes  an example of attributes for which `resolve` selects it, by `kernel_index`
    sees_bits   whether elements of all types are unsigned integers of their width to it: it may only write what it
                has read, and 0
    types       {type variable: element types}, where it takes fewer than the operator
    unless      a text on the attributes with which the operator takes all types
    """

    function: Callable
    attributes: Mapping = field(default_factory=dict)
    sees_bits: bool = False
    types: Mapping = field(default_factory=dict)
    unless: str = ""


@dataclass(frozen=True, eq=False, kw_only=True)
class Declaration:
    """The interface of an operator of one domain, however it is computed.

    domain, name     as in a model's node; domain "" is ai.onnx
    versions, ranks  the versions of the domain that changed the operator, and the ranks of its first input
    inputs, outputs  in order
    types            {type variable: names of element types}
    attributes       in the order in which `resolve` gets their values
    terms            {name: term} for the {names} in refusals that this operator's specification calls otherwise
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
        """Yield (name, count, limit) of everything whose count is limited."""
        yield "inputs", len(self.inputs), MAX_INPUTS
        yield "outputs", len(self.outputs), MAX_OUTPUTS
        yield "attributes", len(self.attributes), MAX_ATTRIBUTES

    is_function = has_rule = is_compiled = is_bound = has_loop = False  # see own/function.py

    def combinations(self):
        """Return for how many combinations of ranks a separate kernel is compiled."""
        return 1

    def compiled_ranks(self, input):
        """Return the ranks of an input for which separate kernels are compiled; none if one kernel takes all ranks."""
        return ()

    @property
    def title(self):
        return f"{self.domain}.{self.name}" if self.domain else self.name

    @property
    def source(self):
        """The name of the module that declares the operator."""
        raise NotImplementedError

    def signatures(self):
        """Yield all combinations of element types that ONNX Runtime has, as {type variable: name}."""
        names_in_sessions = [[n for n in names if dtypes.TABLE[n].in_sessions] for names in self.types.values()]
        for names in itertools.product(*names_in_sessions):
            yield dict(zip(self.types, names, strict=True))

    def vectors(self, given):
        """Return the vector of each attribute from the given values; None if it has neither value nor default."""
        declared = {a.name: a for a in self.attributes}
        for name in given.keys() - declared.keys():
            if any(i.name == name for i in self.inputs):
                raise OpError(name, "given by name", "is an input, which is given by its position")
            raise OpError(name, repr(given[name]), f"no such attribute; there are {', '.join(declared) or 'none'}")
        for name, a in declared.items():
            if a.required and given.get(name) is None:
                raise OpError(name, None, "must be given")
        values = [a.default if given.get(a.name) is None else given[a.name] for a in self.attributes]
        return [None if v is None else a.vector(v) for a, v in zip(self.attributes, values, strict=True)]

    def each_input(self, count):
        """Return the declarations of `count` inputs; a variadic one is repeated for all that it stands for."""
        least = len([i for i in self.inputs if i.presence != "optional"])
        most = count if self.inputs and self.inputs[-1].presence == "variadic" else len(self.inputs)
        if not least <= count <= most:
            rule = f"must be {least}" if least == most == len(self.inputs) else f"must be at least {least}"
            raise OpError("inputs", count, rule if count < least else f"must be at most {most}", self.title)
        return (*self.inputs[:count], *[self.inputs[-1]] * (count - len(self.inputs)))

    def padded(self, inputs):
        """Return the inputs with None for optional ones that are left out at the end. Raises OpError."""
        for i, value in zip(self.each_input(len(inputs)), inputs, strict=True):
            if value is None and i.presence != "optional":
                raise OpError(i.name, None, "must be given", self.title)
        return [*inputs, *[None] * (len(self.inputs) - len(inputs))]

    def likeness(self):
        """Return for each output the position of the first input that has its type; None if its type is constant."""
        variables = [i.type for i in self.inputs]
        return [variables.index(o.type) if o.type in variables else None for o in self.outputs]


@dataclass(frozen=True, eq=False, kw_only=True)
class Operator(Declaration):
    """An operator with one output that kernels on flat arrays compute, in the tiles of a plan.

    parameters  the record that `resolve` fills in: {field: None for a number, or the length of a vector}. It also has
                `kernel_index`, the position of the kernel to run
    geometry    the record that `plan` fills in, likewise. It also has `rank` and `shape` of the output, the number of
                `tiles`, at most MAX_TILES, and how many bytes of `workspace` a tile needs
    resolve     (a vector for each attribute, empty if it has no value, parameters)
    plan        (parameters, shapes, geometry)
    infer       (parameters, shapes, geometry): fills in `rank` and `shape` as `plan` would, as far as they are known.
                A dimension may be UNKNOWN, or less, which stands for a name. A shape is empty if the rank is unknown,
                and values if their number is. The rank is -1 until it is set.
    kernels     at least one
    reference   (parameters, *inputs) -> output, plain NumPy in float64, written to be read

    `resolve`, `plan` and `infer` fill in the record that is their last argument, and refuse by `onnx_ops.require`.
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
        yield from ((f"length of {a.name}", a.length_bounds[1], MAX_VALUES) for a in self.attributes)
        yield "bytes of parameters", self.parameters_dtype.itemsize, MAX_GEOMETRY
        yield "bytes of geometry", self.geometry_dtype.itemsize, MAX_GEOMETRY

    @functools.cached_property
    def parameters_dtype(self):
        return record_dtype({**REFUSAL, "kernel_index": None, **self.parameters})

    @functools.cached_property
    def geometry_dtype(self):
        return record_dtype(
            {**REFUSAL, "tiles": None, "workspace": None, "rank": None, "shape": MAX_RANK, **self.geometry}
        )

    @property
    def tensors(self):
        """The positions of the inputs that kernels read."""
        return tuple(k for k, i in enumerate(self.inputs) if not i.values)

    def resolved(self, given):
        """Return the parameters for the given attributes, as a structured array of one element."""
        vectors = [np.empty(0, np.int64) if v is None else v for v in self.vectors(given)]
        parameters = np.zeros(1, self.parameters_dtype)
        self.resolve(tuple(vectors), Record(parameters[0]))
        return parameters

    def output_shapes(self, parameters, shapes, values):
        """Return [what `inferred` returns], or None for None; parameters are what `resolved` returns.

        Without parameters, as the attributes are unknown, nothing is known.
        """
        shape = None if parameters is None else self.inferred(Record(parameters[0]), shapes, values)
        return None if shape is None else [shape]

    def inferred(self, parameters, shapes, values=None):
        """Return the output's dimensions, each an int, a name or None; None if not even their number is known.

        parameters  a Record
        shapes      of the inputs, whose dimensions are ints, names or None; a shape is None if the rank is unknown
        values      of the inputs, lists of ints, or None where they are unknown

        Raises OpError if what is known is refused.
        """
        names: list = []
        vectors = []
        for i, shape, known_values in zip(self.inputs, shapes, values or [None] * len(shapes), strict=True):
            if i.values and known_values is None:
                known_values = [UNKNOWN] * shape[0] if shape and len(shape) == 1 and isinstance(shape[0], int) else []
            vector = []
            for dimension in (known_values if i.values else shape) or ():
                if isinstance(dimension, str):
                    names.append(dimension)
                    dimension = UNKNOWN - len(names)
                vector.append(UNKNOWN if dimension is None else dimension)
            vectors.append(np.array(vector if len(vector) <= MAX_RANK else [], np.int64))
        geometry = np.zeros(1, self.geometry_dtype)
        geometry["rank"] = -1
        self.infer(parameters, tuple(vectors), Record(geometry[0]))
        rank, shape = int(geometry["rank"][0]), geometry["shape"][0].tolist()
        if rank < 0:
            return None
        return [d if d >= 0 else None if d == UNKNOWN else names[UNKNOWN - 1 - d] for d in shape[:rank]]

    def selected_kernel(self, parameters):
        return self.kernels[parameters.kernel_index]

    def check_types(self, kernel, signature):
        """Raise OpError if the kernel doesn't take these element types."""
        for variable, names in kernel.types.items():
            if signature[variable] not in names:
                argument = next(i.name for i in self.inputs if i.type == variable)
                rule = f"must be one of {', '.join(names)} unless {kernel.unless}"
                raise OpError(f"dtype of {argument}", signature[variable], rule)

    def storage(self, kernel, signature):
        """Return the dtypes that the kernel sees, of its tensors, then of the output; None if a type has no storage."""
        variables = [self.inputs[k].type for k in self.tensors] + [self.outputs[0].type]
        storage = {v: dtypes.TABLE[signature[v]].storage for v in variables}
        if any(dtype is None for dtype in storage.values()):  # not `in`: NumPy takes None for float64
            return None
        out = self.outputs[0].type
        if kernel.sees_bits and storage[out].itemsize <= 8:
            storage[out] = np.dtype(f"uint{8 * storage[out].itemsize}")
        return tuple(storage[v] for v in variables)
