"""The declaration of an operator, from which everything that touches a runtime is derived.

    (attributes, sizes of the inputs) --plan--> sizes of the outputs, tiles, bytes of workspace
        at every call; also before, if the session knows the sizes
    (tensors, tile, workspace) --kernel--> outputs
        at every call, one tile after the other or in parallel
    (arrays, attributes) --reference--> outputs
        in NumPy: defines the operator, and computes it without a kernel

Plans and kernels are written in the subset of Python that Numba compiles, and also run uncompiled.
`onnx_ops.operator` makes a declaration from a user's functions: see custom/.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, field
from inspect import get_annotations
from typing import TYPE_CHECKING

import numpy as np

from . import dtypes
from .attributes import Attribute, attribute_values
from .errors import OpError
from .limits import (
    ABSENT,
    MAX_ATTRIBUTES,
    MAX_GEOMETRY,
    MAX_INPUTS,
    MAX_KERNELS,
    MAX_OUTPUTS,
    MAX_SHOWN,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any, TypeAlias

    from numpy.typing import DTypeLike

    from .attributes import AttributeValues

    # {type variable: data type}: those of one call, or of one kernel
    Types: TypeAlias = Mapping[str, str]
    # Of each input: ABSENT for an absent one, None for any.
    Ranks: TypeAlias = tuple[int | None, ...]


@dataclass(frozen=True)
class Input:
    """An input of an operator.

    A plan gets its shape or, with `values`, its values.

    Parameters
    ----------
    name : str
        The name, as in error messages and in calls.
    type : str
        A type variable of the operator, such as "T".
    values : bool, default False
        If true, the input is a vector of at most 16 integers, and plans get the
        values.
    presence : {"required", "optional", "variadic"}, default "required"
        "variadic" is for the last input: it stands for one or more inputs.
    ranks : tuple of int, default ()
        Ranks for which plans and kernels are compiled separately. Empty: they
        accept any rank. Either all inputs of an operator have ranks or none.
        `Plan` and `Kernel` describe the arguments in both cases.
    """

    name: str
    type: str
    values: bool = False
    presence: str = "required"
    ranks: tuple[int, ...] = ()

    @property
    def compiled_ranks(self) -> Ranks:
        """Return the ranks for which separate plans and kernels are compiled.

        (None,) means that one accepts all.
        """
        return (
            (*self.ranks, *([ABSENT] if self.presence == "optional" else []))
            if self.ranks
            else (None,)
        )


@dataclass(frozen=True)
class Output:
    """An output of an operator.

    Parameters
    ----------
    name : str
        The name.
    type : str
        A type variable of the operator, such as "T".
    """

    name: str
    type: str


def is_plain(value: Any) -> bool:
    """Return whether two values of this type are the same if they and their texts are equal."""
    return type(value) in PLAIN or (
        type(value) in (list, tuple) and all(type(element) in PLAIN for element in value)
    )


PLAIN = {str, int, float, bool, type(None)}


class Record:
    """An element of a structured dtype whose fields are attributes, as in compiled code."""

    __slots__ = ("_element",)

    def __init__(self, element: np.void) -> None:
        object.__setattr__(self, "_element", element)

    def __getattr__(self, name: str) -> Any:
        try:
            return self._element[name]
        except ValueError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: object) -> None:
        self._element[name] = value


def vector(length: int, dtype: DTypeLike = np.int64) -> Any:
    """Declare a field of a `Geometry` as a vector.

    Parameters
    ----------
    length : int
        Number of elements.
    dtype : dtype, default int64
        Integers, or the dtype of a record, whose fields are attributes.

    Returns
    -------
    tuple
        The value of the field in the class: `sizes: Any = vector(3)`.
    """
    return dtype, length


# A refusal by `require`: addresses of two texts and of the values, number of values (-1: a single
# number), whether it has an expected value, that value, and bits (1: the values are doubles, 2: the
# expected value is one).
REFUSAL_FIELDS = ("argument", "rule", "values", "count", "has_expected", "expected", "kinds")
REFUSAL_SIZE = len(REFUSAL_FIELDS) + MAX_SHOWN  # with room for the values


class Geometry:
    """The parameters of a kernel, which the plan computes from the shapes.

    Operators add fields in a subclass, one line for each: `size: int` is a
    64-bit integer, `sizes: Any = vector(3)` a vector. The plan assigns them, and
    the kernel reads them, as attributes.

    Attributes
    ----------
    refusal : vector
        What `require` refuses in compiled code. Leave it alone.
    workspace : int
        Bytes that each running tile needs; 0 unless the plan sets it.
    tiles : int
        Number of tiles, into which the plan cuts the work. 0 for empty outputs.
    """

    refusal: Any = vector(REFUSAL_SIZE)
    workspace: int  # bytes that each running tile needs
    tiles: int  # number of tiles, into which the plan cuts the work


def record_dtype(record: type) -> np.dtype:
    """Return the dtype of a record, whose fields a class declares as in `Geometry`.

    The fields of the root class come first, then those of the class itself, then those of the
    classes between.
    """
    classes = record.__mro__[-2], *record.__mro__
    fields = {name: vars(c).get(name, (np.int64,)) for c in classes for name in get_annotations(c)}
    return np.dtype([(name, *field_type) for name, field_type in fields.items()])


HEAD: Any = record_dtype(Geometry)  # of the fields at the beginning of every geometry


@dataclass(frozen=True, eq=False)
class Plan:
    """The functions that compute the sizes of outputs, and cut work into tiles.

    `attributes` is a named tuple of the attributes. Each of `inputs` is a vector
    of sizes, or of values for an input with `values`. It is empty if the input
    is absent or its rank is unknown. In `shape`, a size may be UNKNOWN, or a
    lower number that stands for a dimension's name. `shape` then writes the
    outputs' sizes as far as they are determined, with the same numbers for the
    others. The rank of an output is UNKNOWN if it isn't determined.

    An input with `ranks` is a tuple of known sizes (a vector of values), or None
    if it is absent. `loop` and `workspace` may then replace `plan`.

    Parameters
    ----------
    shape : callable, optional
        ``(attributes, inputs, outputs)`` -> the output's rank, or a tuple of
        ranks. It writes the output's sizes into a vector of 16 numbers, `(y,) =
        outputs`. Default: the reference decides on the shapes.
    plan : callable, optional
        ``(attributes, inputs, outputs, geometry)``. It refuses inputs by
        `onnx_ops.require`, and fills in the geometry.
    geometry : type, default Geometry
        The class that declares the geometry's fields. Vectors of records are of
        np.record, so that Python, too, reads their fields as attributes.
    is_bound : bool, default False
        Whether the outputs' first axes may be shorter than stated.
    loop : callable, optional
        ``(*inputs, *attributes)`` -> number of steps, which the caller groups
        into tiles. Default: one step.
    workspace : callable, optional
        ``(*inputs, *attributes)`` -> bytes of workspace for each running tile.
        Default: no workspace.
    """

    shape: Callable | None = None
    plan: Callable | None = None
    geometry: type[Geometry] = Geometry
    is_bound: bool = False
    loop: Callable | None = None
    workspace: Callable | None = None


@dataclass(frozen=True, eq=False)
class Kernel:
    """One of an operator's kernels.

    Parameters
    ----------
    function : callable
        It computes one tile: ``(*inputs, geometry, tile, workspace,
        *outputs)``. Inputs and outputs are flat arrays; inputs with `values`
        are left out. The workspace is an array of uninitialized bytes. If the
        inputs have `ranks`, it is ``(attributes, inputs, *inputs, geometry,
        tile, workspace, *outputs)``: the plan's arguments, then arrays with
        axes, None for an absent one, with 16-bit floats as float32. If the plan `is_bound`, it
        returns the length of the outputs' first axes, or a tuple of these.
    choices : mapping, optional
        {attribute: the strings or integers that select this kernel}, where an
        operator has several kernels.
    sees_bits : bool, default False
        If true, the kernel sees every element as an unsigned integer of the same
        width. It may only copy elements or write zeros.
    types : mapping, optional
        {type variable: data types} if the kernel supports fewer than the
        operator. The reference computes others.
    unless : str, default ""
        Text on the attributes with which the operator supports all types; with
        other attributes they are refused.
    tupled : int, optional
        Position of the first of the last inputs, which the function gets as one
        tuple. Default: no tuple.
    """

    function: Callable
    choices: Mapping = field(default_factory=dict)
    sees_bits: bool = False
    types: Mapping = field(default_factory=dict)
    unless: str = ""
    tupled: int | None = None

    def grouped(self, inputs: list[Any]) -> list[Any]:
        """Return the function's arguments for its inputs."""
        return (
            inputs
            if self.tupled is None
            else [*inputs[: self.tupled], tuple(inputs[self.tupled :])]
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class Operator:
    """An operator of one domain.

    `reference`, plans and kernels refuse values by `onnx_ops.require`.

    Parameters
    ----------
    domain : str
        The domain, as in a model's node; "" is ai.onnx.
    name : str
        The name, as in a model's node.
    versions : tuple of int, default (1,)
        The versions of the domain that changed the operator.
    has_older : bool, default False
        Whether nodes of older versions are another operator, which ONNX Runtime
        runs.
    ranks : tuple of int
        The ranks of its first input.
    inputs : tuple of Input
        At most 16, in order.
    outputs : tuple of Output
        At most 8, in order.
    types : mapping
        {type variable: names of data types}, such as {"T": ("float32",)}.
    attributes : tuple of Attribute, default ()
        At most 16, in the order in which plans get their values.
    terms : mapping, optional
        {name: term} of this operator's specification for the {names} in
        refusals.
    reference : callable
        ``(*arrays, **attributes)`` -> the output, or a tuple of several, in
        plain NumPy. An absent optional input is None.
    is_wide : bool, default True
        Whether the reference computes in other types than the outputs', such as
        float64.
    plan : Plan
        The sizes of outputs, and the tiles.
    kernels : tuple of Kernel, default ()
        They compute the outputs; if there are none, the reference does.
    gradient : callable, optional
        A function in PyTorch, see `CustomOperator.gradient`. Its parameter
        `call`, if any, is a function ``(domain, name, *inputs, **attributes)``
        that runs another operator. Default: no gradient.

    Raises
    ------
    OpError
        A declaration exceeds a limit.
    """

    domain: str
    name: str
    versions: tuple[int, ...] = (1,)
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

    def __post_init__(self) -> None:
        limits = {
            "inputs": (len(self.inputs), MAX_INPUTS),
            "outputs": (len(self.outputs), MAX_OUTPUTS),
            "attributes": (len(self.attributes), MAX_ATTRIBUTES),
            "kernels": (len(self.kernels), MAX_KERNELS),
            "bytes of geometry": (self.geometry_dtype.itemsize, MAX_GEOMETRY),
        }
        for name, (count, most) in limits.items():
            if count > most:
                raise OpError(name, count, f"must be at most {most}", self.title)

    @property
    def key(self) -> tuple[str, str]:
        return self.domain, self.name

    @property
    def title(self) -> str:
        return f"{self.domain}.{self.name}" if self.domain else self.name

    @property
    def source(self) -> str:
        """Return the name of the module that declares the operator."""
        return self.reference.__module__

    @functools.cached_property
    def geometry_dtype(self) -> np.dtype:
        return record_dtype(self.plan.geometry)

    def signatures(self) -> Iterator[dict[str, str]]:
        """Yield all combinations of data types that ONNX Runtime has, as {type variable: name}."""
        names_in_sessions = [
            [n for n in names if dtypes.TABLE[n].in_sessions] for names in self.types.values()
        ]
        for names in itertools.product(*names_in_sessions):
            yield dict(zip(self.types, names, strict=True))

    @property
    def attribute_names(self) -> list[str]:
        """Return the names of the attributes, with their aliases."""
        return [name for a in self.attributes for name in a.names]

    def values(self, attributes: Mapping[str, Any]) -> AttributeValues:
        """Return the AttributeValues for attributes, {name: value}. Raises OpError."""
        for name in attributes.keys() - self.attribute_names:
            if any(i.name == name for i in self.inputs):
                raise OpError(name, "given by name", "is an input, which is given by its position")
            names = ", ".join(a.name for a in self.attributes) or "none"
            raise OpError(name, repr(attributes[name]), f"no such attribute; there are {names}")
        values = []
        for a in self.attributes:
            value = next(
                (attributes[n] for n in a.names if attributes.get(n) is not None), a.default
            )
            if a.required and value is None:
                raise OpError(a.name, None, "must be given")
            values.append(value)
        if all(map(is_plain, values)):
            return self._cached_values(
                tuple(tuple(v) if type(v) is list else v for v in values), repr(values)
            )
        return attribute_values(self.attributes, values)

    @functools.cached_property
    def _cached_values(self) -> Callable[[tuple[Any, ...], str], AttributeValues]:
        return functools.lru_cache(maxsize=256)(
            lambda values, text: attribute_values(self.attributes, values)
        )

    @functools.cached_property
    def is_variadic(self) -> bool:
        """Return whether the last input stands for one or more inputs."""
        return any(i.presence == "variadic" for i in self.inputs)

    def each_input(self, count: int) -> tuple[Input, ...]:
        """Return the declarations of `count` inputs; a variadic one is repeated."""
        least = len([i for i in self.inputs if i.presence != "optional"])
        most = count if self.is_variadic else len(self.inputs)
        if not least <= count <= most:
            rule = f"must be {least}" if least == most else f"must be at least {least}"
            raise OpError(
                "inputs", count, rule if count < least else f"must be at most {most}", self.title
            )
        return (*self.inputs[:count], *[self.inputs[-1]] * (count - len(self.inputs)))

    def pairs(self, inputs: Sequence[Any]) -> list[tuple[Input, Any]]:
        """Return (declaration, element) for sequences of one element for each input.

        Raises OpError for a wrong number of inputs.
        """
        return list(zip(self.each_input(len(inputs)), inputs, strict=True))

    def padded(self, inputs: Sequence[Any]) -> list[Any]:
        """Append None to the inputs for optional ones that are absent at the end.

        Raises OpError.
        """
        for i, value in self.pairs(inputs):
            if value is None and i.presence != "optional":
                raise OpError(i.name, None, "must be given", self.title)
        return [*inputs, *[None] * (len(self.inputs) - len(inputs))]

    def likeness(self) -> list[int | None]:
        """Return for each output the position of the first input of the same type.

        It is None for a constant type.
        """
        variables = [i.type for i in self.inputs]
        return [variables.index(o.type) if o.type in variables else None for o in self.outputs]

    # Kernels are compiled for each combination of ranks. A position stands for a combination and a
    # kernel.

    @functools.cached_property
    def combinations(self) -> list[Ranks]:
        """Return the combinations of ranks for which kernels are compiled."""
        return (
            list(itertools.product(*(i.compiled_ranks for i in self.inputs)))
            if self.kernels
            else []
        )

    @property
    def positions(self) -> range:
        """Return the positions of compiled kernels."""
        return range(len(self.combinations) * len(self.kernels))

    def combination(self, position: int) -> Ranks:
        """Return the ranks of the inputs for which the kernel at a position is compiled."""
        return self.combinations[position // len(self.kernels)]

    def kernel(self, position: int) -> Kernel:
        return self.kernels[position % len(self.kernels)]

    def position(self, choice: int, ranks: Ranks) -> int | None:
        """Return the position of the kernel for a `choice` and ranks, or None.

        None: no kernel is compiled for these ranks.
        """
        for k, combination in enumerate(self.combinations):
            if all(wanted in (None, rank) for wanted, rank in zip(combination, ranks, strict=True)):
                return k * len(self.kernels) + choice
        return None

    @functools.cached_property
    def chooser(self) -> tuple[int, list[int]] | None:
        """Return the attribute that selects a kernel, and the kernels of its choices, or None.

        They are (position of the attribute, list of the numbers of kernels).

        The attribute is a string, or an integer from 0 on.
        """
        for k, a in enumerate(self.attributes):
            if any(a.name in kernel.choices for kernel in self.kernels):
                names = [kernel.choices[a.name] for kernel in self.kernels]
                every = a.choices or range(a.bounds[1] + 1)
                return k, [
                    next(number for number, choices in enumerate(names) if c in choices)
                    for c in every
                ]
        return None

    def choice(self, values: AttributeValues) -> int:
        """Return the number of the kernel that the attributes select."""
        if self.chooser is None:
            return 0
        attribute, kernels = self.chooser
        vector: Any = values.vectors[attribute]  # not None: it has a default
        return kernels[vector[0]]

    @functools.cached_property
    def has_ranks(self) -> bool:
        """Return whether plans and kernels are compiled for stated ranks of the inputs.

        If so, they get tuples and arrays with axes in place of vectors and flat arrays, None for an
        absent input, only known sizes, and 16-bit floats as float32. The plan states steps of a
        loop, from which the caller makes tiles. See docs/how-it-works.md, "Ranks".
        """
        return any(i.ranks for i in self.inputs)

    @property
    def inputs_read(self) -> tuple[int, ...]:
        """Return the positions of the inputs that kernels get."""
        return tuple(k for k, i in enumerate(self.inputs) if i.ranks or not i.values)

    @property
    def variables_seen(self) -> list[str]:
        """Return the type variables of what kernels get, of inputs, then of outputs."""
        return [self.inputs[k].type for k in self.inputs_read] + [o.type for o in self.outputs]

    def check_types(self, kernel: Kernel, signature: Types) -> None:
        """Raise OpError if the operator doesn't support these data types with this kernel."""
        for variable, names in kernel.types.items() if kernel.unless else ():
            if signature[variable] not in names:
                argument = next(i.name for i in self.inputs if i.type == variable)
                rule = f"must be one of {', '.join(names)} unless {kernel.unless}"
                raise OpError(f"dtype of {argument}", signature[variable], rule)

    def storage(self, kernel: Kernel, signature: Types) -> tuple[np.dtype, ...] | None:
        """Return the dtypes that the kernel sees, of inputs, then of outputs.

        It is None for unsupported types.
        """
        if any(signature[variable] not in names for variable, names in kernel.types.items()):
            return None
        variables = self.variables_seen
        types = {v: dtypes.TABLE[signature[v]] for v in variables}
        storage = {v: t.storage for v, t in types.items() if t.storage is not None}
        if len(storage) < len(types):
            return None
        if self.has_ranks:
            return tuple(
                np.dtype(np.float32) if storage[v].names else types[v].numpy for v in variables
            )
        out = self.outputs[0].type
        if kernel.sees_bits and storage[out].itemsize <= 8:
            storage[out] = np.dtype(f"uint{8 * storage[out].itemsize}")
        return tuple(storage[v] for v in variables)

    def numpy_types(self, signature: Types) -> tuple[np.dtype, ...]:
        """Return the NumPy dtypes of the outputs."""
        return tuple(dtypes.TABLE[signature[o.type]].numpy for o in self.outputs)
