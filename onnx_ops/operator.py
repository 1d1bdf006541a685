"""What an operator declaration is.

    attributes --resolve--> parameters          once, when a session is made
    (parameters, shapes) --plan--> geometry     at every call, compiled
    (tensors, geometry, tile) --kernel--> out   at every call, compiled, one tile after the other or side by side

`resolve` is ordinary Python. `plan` and `kernel` are written in the part of Python that Numba compiles; both also run
uncompiled, which is how `plan` words its errors. Everything that touches a runtime is derived from a declaration.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from operator import index

import numpy as np

from . import dtypes
from .errors import OpError

MAX_RANK = 16  # axes of a tensor, and length of an input whose values a plan reads
MAX_INPUTS = 4
INT64 = np.iinfo(np.int64)


@dataclass(frozen=True)
class Input:
    """An input. A plan gets its shape or, with `values=True` (a rank-1 integer tensor), its values."""

    name: str
    type: str
    values: bool = False


@dataclass(frozen=True)
class Attribute:
    """An attribute of `kind` "int", "ints" or "string"; a default of None stands for "depends on the inputs"."""

    name: str
    kind: str
    default: object = None

    def check(self, value):
        """`value` as an int, a tuple of ints or a str."""
        try:
            if self.kind == "string":
                return value.decode() if isinstance(value, bytes) else str.__str__(value)
            if isinstance(value, bytes):
                raise TypeError  # whose elements would be integers
            numbers = tuple(map(index, value)) if self.kind == "ints" else (index(value),)
        except (TypeError, ValueError):
            raise OpError(self.name, value, f"must be {KINDS[self.kind]}") from None
        if not all(INT64.min <= n <= INT64.max for n in numbers):
            raise OpError(self.name, value, "must fit 64-bit integers")
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
    """The dtype of a record of 64-bit integers: a scalar where the count is None, else an array of that length."""
    return np.dtype([(n, np.int64) if c is None else (n, np.int64, (c,)) for n, c in counts.items()])


def geometry(**counts):
    """`words`, plus what every plan states: the output's rank and shape and the number of tiles."""
    return words(tiles=None, rank=None, shape=MAX_RANK, **counts)


@dataclass(frozen=True, eq=False)
class Operator:
    """One operator of one domain.

    domain, name, since_version: as in a model's node and opset import; domain "" is ai.onnx
    inputs, output:  the inputs in order, and the type variable of the output
    types:           type variable -> names of element types
    attributes:      in any order
    resolve:         (**attributes) -> dict of the fields of `parameters`; raises OpError
    plan:            (parameters, shapes, geometry) -> 0, or what `refuse` returns
    kernel:          parameters -> the function (*tensors, geometry, tile, out) that computes one tile; all flat arrays
    reference:       (parameters, *inputs) -> output, plain NumPy in float64, written to be read
    infer:           (shapes, values) -> the output's dimensions, or None if not even their number is known. A dimension
                     is an int, a name, or None if unknown; so is an input's shape, whose values are a list or None.
    lengths:         optional (parameters, [length of each input with values=True, or None]) -> None; raises OpError.
                     What can be refused before the first call.
    """

    domain: str
    name: str
    since_version: int
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
    lengths: Callable = lambda parameters, lengths: None

    def __post_init__(self):
        assert len(self.inputs) <= MAX_INPUTS

    @property
    def title(self):
        return f"{self.domain}.{self.name}" if self.domain else self.name

    @property
    def tensors(self):
        """Positions of the inputs that kernels read."""
        return tuple(k for k, i in enumerate(self.inputs) if not i.values)

    def signatures(self):
        """All combinations of element types, as {type variable: name}."""
        for names in itertools.product(*self.types.values()):
            yield dict(zip(self.types, names, strict=True))

    def resolved(self, given):
        """The parameters, as a structured array of one element, from the attributes that are given."""
        known = {a.name: a for a in self.attributes}
        for name in given.keys() - known.keys():
            raise OpError(name, given[name], f"no such attribute; there are {', '.join(known)}")
        values = {n: a.default if given.get(n) is None else a.check(given[n]) for n, a in known.items()}
        parameters = np.zeros(1, self.parameters)
        for field, value in self.resolve(**values).items():
            parameters[field][0] = value
        return parameters

    def storage(self, signature):
        """The dtypes that the kernel sees: those of its tensors, then the output's."""
        variables = [self.inputs[k].type for k in self.tensors] + [self.output]
        return tuple(dtypes.TABLE[signature[v]].storage for v in variables)
