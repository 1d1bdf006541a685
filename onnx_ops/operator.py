"""What an operator declaration is.

    attributes --resolve--> parameters          once, when a session is made
    (parameters, shapes) --plan--> geometry     at every call, compiled
    (tensors, geometry, tile, workspace) --kernel--> out
                                                at every call, compiled, one tile after the other or side by side

`resolve` is ordinary Python. `plan` and `kernel` are written in the part of Python that Numba compiles; both also run
uncompiled, which is how `plan` words its errors. Everything that touches a runtime is derived from a declaration.
"""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import index

import numpy as np

from . import dtypes
from .errors import OpError

MAX_RANK = 16  # axes of a tensor, and length of an input whose values a plan reads
MAX_INPUTS = 4
MAX_TILES = 64  # of a call: as many as a mask of workspaces in use has bits
MAX_GEOMETRY = 2048  # bytes of any operator's geometry
ELEMENTS = 2**58  # of any tensor: its bytes fit 64 bits whatever the type
INT64 = np.iinfo(np.int64)


@dataclass(frozen=True)
class Input:
    """An input. A plan gets its shape or, with `values=True` (a rank-1 integer tensor), its values."""

    name: str
    type: str
    values: bool = False


@dataclass(frozen=True)
class Attribute:
    """An attribute of `kind` "int", "ints" or "string"; a default of None stands for "depends on the inputs".

    One that is required has no default.
    """

    name: str
    kind: str
    default: object = None
    required: bool = False

    def check(self, value):
        """`value` as an int, a tuple of ints or a str."""
        try:
            if self.kind == "string":
                return value.decode() if isinstance(value, bytes) else str.__str__(value)
            if isinstance(value, bytes):
                raise TypeError  # whose elements would be integers
            numbers = tuple(map(index, value)) if self.kind == "ints" else (index(value),)
        except (TypeError, ValueError):
            raise OpError(self.name, repr(value), f"must be {KINDS[self.kind]}") from None
        if not all(INT64.min <= n <= INT64.max for n in numbers):
            raise OpError(self.name, repr(value), "must fit 64-bit integers")
        return numbers if self.kind == "ints" else numbers[0]


KINDS = {"int": "an integer", "ints": "a list of integers", "string": "a string"}


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


def words(**counts):
    """The dtype of a record of 64-bit integers: a scalar where the count is None, else an array of that length.

    Without any it still has the size of one: NumPy finds no records of no size in memory.
    """
    fields = [(n, np.int64) if c is None else (n, np.int64, (c,)) for n, c in counts.items()]
    return np.dtype(fields or {"names": [], "formats": [], "itemsize": 8})


def geometry(**counts):
    """`words`, plus what every plan states: the output's rank and shape, the number of tiles, at most MAX_TILES, and
    how many bytes of workspace a tile needs."""
    return words(tiles=None, workspace=None, rank=None, shape=MAX_RANK, **counts)


@dataclass(frozen=True, eq=False)
class Operator:
    """One operator of one domain.

    domain, name:    as in a model's node; domain "" is ai.onnx
    versions, ranks: the versions of the domain that changed the operator, and the ranks of its first input
    inputs, output:  the inputs in order, and the type variable of the output
    types:           type variable -> names of element types
    attributes:      in any order
    resolve:         (**attributes) -> dict of the fields of `parameters`; raises OpError
    plan:            (parameters, shapes, geometry) -> 0, or what `refuse` returns
    kernel:          parameters -> the function (*tensors, geometry, tile, workspace, out) that computes one tile; all
                     flat arrays, the workspace of bytes that hold nothing yet
    variants:        attributes that between them lead to every kernel there is
    copies:          parameters -> whether the kernel only copies elements, so that nothing but their size matters
    reference:       (parameters, *inputs) -> output, plain NumPy in float64, written to be read
    infer:           (parameters, shapes, values) -> the output's dimensions, or None if not even their number is known.
                     A dimension is an int, a name, or None if unknown; so is an input's shape, whose values are a list
                     or None. The parameters are None where attributes can't be told.
    allows:          optional (parameters, {type variable: element type}) -> None; raises OpError
    lengths:         optional (parameters, [length of each input with values=True, or None]) -> None; raises OpError.
                     What can be refused before the first call.
    terms:           {name: word} of the {names} in the refusals of `plan` and `lengths` that this operator's
                     specification has other words for
    """

    domain: str
    name: str
    versions: tuple[int, ...]
    ranks: tuple[int, ...]
    inputs: tuple[Input, ...]
    output: str
    types: dict[str, tuple[str, ...]]
    attributes: tuple[Attribute, ...]
    parameters: np.dtype
    geometry: np.dtype
    resolve: Callable
    plan: Callable
    kernel: Callable
    reference: Callable
    infer: Callable
    variants: tuple[Mapping, ...] = ({},)
    copies: Callable = lambda parameters: False
    allows: Callable = lambda parameters, signature: None
    lengths: Callable = lambda parameters, lengths: None
    terms: Mapping = field(default_factory=dict)

    def __post_init__(self):
        for what, value, most in (
            ("inputs", len(self.inputs), MAX_INPUTS),
            ("bytes of geometry", self.geometry.itemsize, MAX_GEOMETRY),
        ):
            if value > most:
                raise OpError(what, value, f"must be at most {most}", self.title)

    @property
    def title(self):
        return f"{self.domain}.{self.name}" if self.domain else self.name

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
        values = {n: a.default if given.get(n) is None else a.check(given[n]) for n, a in known.items()}
        parameters = np.zeros(1, self.parameters)
        for name, value in self.resolve(**values).items():
            parameters[name][0] = value
        return parameters

    def storage(self, parameters, signature):
        """The dtypes that the kernel sees, of its tensors, then of the output; None for types that it can't see."""
        variables = [self.inputs[k].type for k in self.tensors] + [self.output]
        found = {v: dtypes.TABLE[signature[v]].storage for v in variables}
        if any(dtype is None for dtype in found.values()):  # `in` would find None equal to float64
            return None
        if self.copies(parameters) and found[self.output].itemsize <= 8:
            found[self.output] = np.dtype(f"uint{8 * found[self.output].itemsize}")
        return tuple(found[v] for v in variables)
