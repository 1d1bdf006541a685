"""The declaration of an operator, from which everything that touches a runtime is derived.

    (attributes, sizes of the inputs) --plan--> sizes of the outputs, number of tiles, bytes of workspace
                                                at every call, and before, as far as a session knows the sizes
    (tensors, tile, workspace) --kernel--> outputs
                                                at every call, one tile after the other or side by side
    (arrays, attributes) --reference--> outputs
                                                in NumPy: the definition, and what computes where no kernel can

Plans and kernels are written in the part of Python that Numba compiles, and also run uncompiled. `onnx_ops.operator`
makes a declaration of a user's functions: see custom/.
"""

import functools
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from . import dtypes
from .attributes import Attribute, attribute_values
from .errors import OpError
from .limits import ABSENT, MAX_ATTRIBUTES, MAX_GEOMETRY, MAX_INPUTS, MAX_KERNELS, MAX_OUTPUTS, MAX_SHOWN


@dataclass(frozen=True)
class Input:
    """An input. A plan gets its shape or, with `values=True` (a rank-1 integer tensor), its values.

    presence  "required", "optional" or, for the last input, "variadic": it stands for one or more inputs
    ranks     those for which plans and kernels are compiled, for each by itself. Empty: they take any rank. All inputs
              of an operator have ranks, or none; `Plan` and `Kernel` say how these get them
    """

    name: str
    type: str
    values: bool = False
    presence: str = "required"
    ranks: tuple[int, ...] = ()

    @property
    def compiled_ranks(self):
        """The ranks for which separate plans and kernels are compiled; (None,) if one takes all."""
        return (*self.ranks, *([ABSENT] if self.presence == "optional" else [])) if self.ranks else (None,)


@dataclass(frozen=True)
class Output:
    name: str
    type: str


def is_plain(value):
    """Return whether a value is of a type whose values mean the same if they and their texts are equal."""
    return type(value) in PLAIN or (type(value) in (list, tuple) and all(type(each) in PLAIN for each in value))


PLAIN = {str, int, float, bool, type(None)}


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
    """Return the dtype of a record of 64-bit integers. For the counts of its fields see `Plan.geometry`."""
    return np.dtype([(n, *(c if isinstance(c, tuple) else (np.int64, c or ()))) for n, c in counts.items()])


# A refusal by `require`: addresses of two texts and of the values, how many values there are (-1: a single number),
# whether there is an expected value, that value, which of these are doubles (1: the values, + 2: the expected one).
REFUSAL_FIELDS = ("argument", "rule", "values", "count", "has_expected", "expected", "doubles")
# Every geometry begins with a refusal, and room for its values; then come the numbers that every plan states.
REFUSAL = {"refusal": len(REFUSAL_FIELDS) + MAX_SHOWN}
WORK = {"workspace": None, "tiles": None}


@dataclass(frozen=True, eq=False)
class Plan:
    """The sizes of an operator's outputs, and how its work is cut.

    shape     (attributes, inputs, outputs) -> the output's rank, or a tuple of ranks. It writes the output's sizes into
              a vector of MAX_RANK numbers, `(y,) = outputs`. None: the reference decides on the shapes
    plan      (attributes, inputs, outputs, geometry): refuses inputs by `onnx_ops.require`, and fills in the geometry
    geometry  {field: None for a number, the length of a vector, or (dtype, number of rows)}: what kernels get to know.
              There are also the number of `tiles`, and how many bytes of `workspace` a tile needs. Rows are of
              np.record, so that their fields are attributes in Python, too
    is_bound  whether the outputs' first axes may turn out shorter

    `attributes` is a named tuple (attributes.py). Each of `inputs` is a vector of sizes, or of values for an input with
    `values`; it is empty if the input is absent or its rank unknown. Sizes may be UNKNOWN, or less, which stands for a
    name, in `shape`, which then writes the outputs' sizes as far as they follow. So may be sizes of outputs, and
    UNKNOWN is the rank of one of which nothing is known.

    But an input with `ranks` is a tuple of known sizes (a vector of values), or None if it is absent. Then functions
    may take the place of `plan`:

    loop       (*inputs, *attributes) -> a number of steps, of which whoever calls makes tiles. None: one step
    workspace  (*inputs, *attributes) -> bytes of workspace for each tile that runs. None: there is no workspace
    """

    shape: Callable | None = None
    plan: Callable | None = None
    geometry: Mapping = field(default_factory=dict)
    is_bound: bool = False
    loop: Callable | None = None
    workspace: Callable | None = None


@dataclass(frozen=True, eq=False)
class Kernel:
    """One of an operator's kernels.

    function   computes one tile: (*inputs, geometry, tile, workspace, *outputs). Inputs and outputs are flat arrays;
               inputs with `values` are left out. The workspace is an array of uninitialized bytes. But if the inputs
               have `ranks`, it is (attributes, inputs, *inputs, geometry, tile, workspace, *outputs): first what the
               plan gets, then arrays with axes, None for an absent one, and 16-bit floats are float32. If the plan
               `is_bound`, it returns the length of the outputs' first axes, or a tuple of these
    choices    {attribute: the strings, or integers, with which it is the kernel to run}, where an operator has several
    sees_bits  whether elements of all types are unsigned integers of their width to it: it may only write what it has
               read, and 0
    types      {type variable: element types}, where it takes fewer than the operator. The reference computes the others
    unless     a text on the attributes with which the operator takes all types; then the others are refused
    tupled     the position of the first of those inputs that the function gets together, as one tuple; None: of none
    """

    function: Callable
    choices: Mapping = field(default_factory=dict)
    sees_bits: bool = False
    types: Mapping = field(default_factory=dict)
    unless: str = ""
    tupled: int | None = None

    def grouped(self, inputs):
        """Return what the function gets for its inputs."""
        return inputs if self.tupled is None else [*inputs[: self.tupled], tuple(inputs[self.tupled :])]


@dataclass(frozen=True, eq=False, kw_only=True)
class Operator:
    """An operator of one domain.

    domain, name     as in a model's node; domain "" is ai.onnx
    versions, ranks  the versions of the domain that changed the operator, and the ranks of its first input
    has_older        whether a node of an older version of the domain is another operator, which is left to ONNX Runtime
    inputs, outputs  in order
    types            {type variable: names of element types}
    attributes       in the order in which plans get their values
    terms            {name: term} for the {names} in refusals that this operator's specification calls otherwise
    reference        (*arrays, **attributes) -> the output, or a tuple of several, in plain NumPy. An optional input
                     that isn't there is None
    is_wide          whether the reference computes in other types than the outputs', such as float64
    kernels          what computes the outputs, if not the reference
    gradient         a function in PyTorch, see `CustomOperator.gradient`. If it has a parameter `call`, that is a
                     function (domain, name, *inputs, **attributes) which runs another operator. None: there is no way
                     backwards

    `reference`, plans and kernels refuse values by `onnx_ops.require`.
    """

    domain: str
    name: str
    versions: tuple[int, ...]
    has_older: bool = False
    ranks: tuple[int, ...]
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    types: Mapping[str, tuple[str, ...]]
    attributes: tuple[Attribute, ...] = ()
    terms: Mapping = field(default_factory=dict)
    reference: Callable
    is_wide: bool = True
    plan: Plan
    kernels: tuple[Kernel, ...] = ()
    gradient: Callable | None = None

    def __post_init__(self):
        limits = {
            "inputs": (len(self.inputs), MAX_INPUTS),
            "outputs": (len(self.outputs), MAX_OUTPUTS),
            "attributes": (len(self.attributes), MAX_ATTRIBUTES),
            "kernels": (len(self.kernels), MAX_KERNELS),
            "bytes of geometry": (self.geometry_dtype.itemsize, MAX_GEOMETRY),
        }
        for what, (count, most) in limits.items():
            if count > most:
                raise OpError(what, count, f"must be at most {most}", self.title)

    @property
    def key(self):
        return self.domain, self.name

    @property
    def title(self):
        return f"{self.domain}.{self.name}" if self.domain else self.name

    @property
    def source(self):
        """The name of the module that declares the operator."""
        return self.reference.__module__

    @functools.cached_property
    def geometry_dtype(self):
        return record_dtype({**REFUSAL, **WORK, **self.plan.geometry})

    def signatures(self):
        """Yield all combinations of element types that ONNX Runtime has, as {type variable: name}."""
        names_in_sessions = [[n for n in names if dtypes.TABLE[n].in_sessions] for names in self.types.values()]
        for names in itertools.product(*names_in_sessions):
            yield dict(zip(self.types, names, strict=True))

    def values(self, given):
        """Return the AttributeValues for the given attributes, {name: value}. Raises OpError."""
        for name in given.keys() - {name for a in self.attributes for name in a.names}:
            if any(i.name == name for i in self.inputs):
                raise OpError(name, "given by name", "is an input, which is given by its position")
            known = ", ".join(a.name for a in self.attributes) or "none"
            raise OpError(name, repr(given[name]), f"no such attribute; there are {known}")
        found = [next((given[n] for n in a.names if given.get(n) is not None), None) for a in self.attributes]
        for a, value in zip(self.attributes, found, strict=True):
            if a.required and value is None:
                raise OpError(a.name, None, "must be given")
        values = [a.default if v is None else v for a, v in zip(self.attributes, found, strict=True)]
        if all(map(is_plain, values)):
            return self._cached_values(tuple(tuple(v) if type(v) is list else v for v in values), repr(values))
        return attribute_values(self.attributes, values)

    @functools.cached_property
    def _cached_values(self):
        return functools.lru_cache(maxsize=256)(lambda values, text: attribute_values(self.attributes, values))

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

    # Kernels are compiled for each combination of ranks: a position stands for a combination and a kernel.

    @functools.cached_property
    def combinations(self):
        """The combinations of ranks for which kernels are compiled."""
        return list(itertools.product(*(i.compiled_ranks for i in self.inputs))) if self.kernels else []

    @property
    def positions(self):
        """The positions of compiled kernels."""
        return range(len(self.combinations) * len(self.kernels))

    def combination(self, position):
        """Return the ranks of the inputs for which the kernel at a position is compiled."""
        return self.combinations[position // len(self.kernels)]

    def kernel(self, position):
        return self.kernels[position % len(self.kernels)]

    def position(self, choice, ranks):
        """Return the position of the kernel for a `choice` and ranks; None if none is compiled for these ranks."""
        for k, combination in enumerate(self.combinations):
            fits = len(ranks) == len(combination)
            if fits and all(wanted in (None, rank) for wanted, rank in zip(combination, ranks, strict=True)):
                return k * len(self.kernels) + choice
        return None

    @functools.cached_property
    def chooser(self):
        """(position of the attribute that chooses among the kernels, the kernel for each of its choices), or None.

        The attribute is a string, or an integer from 0 on.
        """
        for k, a in enumerate(self.attributes):
            if any(a.name in kernel.choices for kernel in self.kernels):
                names, every = [kernel.choices[a.name] for kernel in self.kernels], a.choices or range(a.bounds[1] + 1)
                return k, [next(number for number, some in enumerate(names) if c in some) for c in every]
        return None

    def choice(self, values):
        """Return which of the kernels the attributes choose."""
        if self.chooser is None:
            return 0
        attribute, kernels = self.chooser
        return kernels[values.vectors[attribute][0]]

    @functools.cached_property
    def has_ranks(self):
        """Whether plans and kernels are compiled for stated ranks of the inputs."""
        return any(i.ranks for i in self.inputs)

    @property
    def inputs_read(self):
        """The positions of the inputs that kernels get."""
        return tuple(k for k, i in enumerate(self.inputs) if i.ranks or not i.values)

    def check_types(self, kernel, signature):
        """Raise OpError if the operator doesn't take these element types with this kernel."""
        for variable, names in kernel.types.items() if kernel.unless else ():
            if signature[variable] not in names:
                argument = next(i.name for i in self.inputs if i.type == variable)
                rule = f"must be one of {', '.join(names)} unless {kernel.unless}"
                raise OpError(f"dtype of {argument}", signature[variable], rule)

    def storage(self, kernel, signature):
        """Return the dtypes that the kernel sees, of inputs, then of outputs; None if it doesn't take these types."""
        if any(signature[variable] not in names for variable, names in kernel.types.items()):
            return None
        variables = [self.inputs[k].type for k in self.inputs_read] + [o.type for o in self.outputs]
        types = {v: dtypes.TABLE[signature[v]] for v in variables}
        if any(t.storage is None for t in types.values()):  # not `in`: NumPy takes None for float64
            return None
        if self.has_ranks:
            return tuple(np.dtype(np.float32) if types[v].storage.names else types[v].numpy for v in variables)
        storage, out = {v: t.storage for v, t in types.items()}, self.outputs[0].type
        if kernel.sees_bits and storage[out].itemsize <= 8:
            storage[out] = np.dtype(f"uint{8 * storage[out].itemsize}")
        return tuple(storage[v] for v in variables)

    def numpy_types(self, signature):
        """Return NumPy's types of the outputs."""
        return tuple(dtypes.TABLE[signature[o.type]].numpy for o in self.outputs)
