"""Variants: functions compiled for one kernel of an operator and one set of data types."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

from .. import registry
from ..compiler import records
from ..declaration import dtypes as element_types
from ..declaration.errors import OpError
from ..declaration.jit import numba_obstacle
from ..declaration.limits import ABSENT

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from ..compiler.records import Entry
    from ..declaration.operator import Operator, Types
    from ..model.types import NumpyType
    from ..registry import Declared
    from .types import Compiled, Reached


# Data types of compiled code.
TYPES = [name for name, t in element_types.TABLE.items() if t.in_sessions and t.storage]


class Variant(NamedTuple):
    """A variant of an operator. Variants that share machine code have the same key.

    position   of the kernel among those of the operator
    signature  {type variable: element type}
    """

    operator: Operator
    position: int
    signature: Types

    def __reduce__(self) -> tuple[Callable[..., Variant], tuple[str, str, int, Types]]:
        return variant_named, (
            self.operator.domain,
            self.operator.name,
            self.position,
            self.signature,
        )

    @property
    def storage(self) -> tuple[NumpyType, ...] | None:
        return self.operator.storage(self.operator.kernel(self.position), self.signature)

    @property
    def key(self) -> tuple[Entry, ...]:
        return tuple(self.entries())

    @property
    def name(self) -> str:
        """Return the operator, what selects the kernel, and the types, as text.

        Attributes or ranks select a kernel among several.
        """
        operator = self.operator
        details = [str(choices[0]) for choices in operator.kernel(self.position).choices.values()]
        for i, rank in zip(operator.inputs, operator.combination(self.position), strict=True):
            if len(i.compiled_ranks) > 1:
                details.append(f"no {i.name}" if rank == ABSENT else f"rank {rank} of {i.name}")
        details += [self.signature[v] for v in self.variables]
        return f"{operator.title} {', '.join(details)}"

    @property
    def variables(self) -> list[str]:
        """Return the type variables of the tensors that kernels see."""
        return sorted({*self.operator.variables_seen})

    @property
    def types(self) -> set[str]:
        """Return the data types of the tensors that kernels see, where these can differ."""
        return {self.signature[v] for v in self.variables if len(self.operator.types[v]) > 1}

    @property
    def is_possible(self) -> bool:
        """Return whether the kernel supports these data types."""
        kernel = self.operator.kernel(self.position)
        with suppress(OpError):
            self.operator.check_types(kernel, self.signature)
            return self.storage is not None or not (self.operator.has_ranks or kernel.types)
        return False

    def entries(self) -> Iterator[Entry]:
        """Yield the entries (records.py): infer for unknown sizes, plan, the kernel if any."""
        if not self.operator.has_ranks:
            yield records.infer_entry(self.operator)
        yield records.plan_entry(self.operator, self.position)
        if self.storage:
            yield records.kernel_entry(self.operator, self.position, self.signature)

    def reached(self) -> Reached | None:
        """Describe its sources; None for this package's operators.

        These have the same modules in every process.
        """
        from ..compiler import key

        if registry.is_built_in(self.operator):
            return None
        entries = self.key
        try:
            reached: object = key.reached(
                [function for entry in entries for function in entry.functions]
            )
        except OSError as error:
            reached = str(error)
        return repr(entries), reached

    def compile(self, reached: Reached | None = None) -> Compiled:
        """Compile it; return [(symbol, object file)] of its functions.

        Raises OpError if one isn't kept.

        reached  result of `reached` in the process that requests this; None: this process
        """
        from ..compiler import cache
        from ..compiler.code import code

        if reached is not None and reached != self.reached():
            rule = (
                "has read other values here than in a process that imports its module anew, "
                "as those that compile do"
            )
            raise OpError("kernel", self.name, rule, "onnx_ops")
        with silence():
            compiled = [code(entry, self.operator.title) for entry in self.entries()]
            for function in compiled:
                if missing := function.kept.missing():
                    raise OpError(
                        "cache",
                        cache.directory(),
                        f"can't keep what is compiled: {missing}",
                        "onnx_ops",
                    )
            return [(function.symbol, str(function.kept.path)) for function in compiled]


@contextmanager
def silence() -> Iterator[None]:
    """Return a context without log messages about compilation."""
    if numba_obstacle():  # then nothing is compiled
        yield
        return
    from ..compiler import code

    token = code.is_silent.set(True)
    try:
        yield
    finally:
        code.is_silent.reset(token)


def variant_named(domain: str, name: str, position: int, signature: Types) -> Variant:
    """Return the variant of an operator with this name, in any process."""
    return Variant(registry.available()[domain, name], position, signature)


def asked_for(
    operators: Iterable[Declared | str] | Declared | None,
    dtypes: Collection[str] | None,
    default: Collection[str],
) -> list[Variant]:
    """Return all variants of operators for data types.

    operators  names as in models, or CustomOperators; None: all that have variants
    dtypes     names of data types; None: `default`

    Raises OpError if an operator has no variants, or one of the dtypes occurs in none.
    """
    declarations = declarations_of(operators)
    types = dtypes or default
    check_names("dtypes", types, TYPES)
    matches = list(combinations(declarations, types))
    names = dict.fromkeys(operator.name for operator in declarations)
    for name in () if operators is None else names:
        if all(variant.operator.name != name for variant in matches):
            rule = f"sessions have no {name} of these types alone"
            if not any(o.kernels for o in declarations if o.name == name):
                rule = (
                    f"no kernel of {name} can be compiled, which has none; give it one by .kernel"
                )
            raise OpError("dtypes", ", ".join(types), rule, "onnx_ops")
    for dtype in dtypes or ():
        if all(dtype not in variant.types for variant in matches):
            rule = f"sessions have no {' or '.join(names)} of it and the other types alone"
            without_kernel = [o.name for o in declarations if leaves_out(o, dtype)]
            if without_kernel:
                rule = (
                    f"no kernel of {' or '.join(without_kernel)} takes it; sessions in Python "
                    "compute the reference"
                )
            raise OpError("dtypes", repr(dtype), rule, "onnx_ops")
    return matches


def declarations_of(operators: Iterable[Declared | str] | Declared | None) -> list[Operator]:
    """Return the declarations of operators, as for `asked_for`; None: of all operators."""
    requested = [] if operators is None else registry.as_list(operators)
    names = [name for name in requested if isinstance(name, str)]
    custom = [operator for operator in requested if not isinstance(operator, str)]
    declarations = list(registry.available(custom).values())
    check_names("operators", names, [o.name for o in declarations])
    if operators is None:
        return declarations
    custom = [*map(registry.declaration_of, custom)]
    return [o for o in declarations if o.name in names or o in custom]


def leaves_out(operator: Operator, dtype: str) -> bool:
    """Return whether an operator supports a data type that one of its kernels doesn't support."""
    return any(
        dtype in operator.types[variable] and dtype not in names
        for kernel in operator.kernels
        for variable, names in kernel.types.items()
    )


def combinations(operators: Iterable[Operator], dtypes: Collection[str]) -> Iterator[Variant]:
    """Yield all variants of these operators in sessions with only these data types in tensors."""
    for operator in operators:
        for signature in operator.signatures():
            for position in operator.positions:
                variant = Variant(operator, position, signature)
                if variant.types <= set(dtypes) and variant.is_possible:
                    yield variant


def distinct(variants: Iterable[Variant]) -> dict[str, Variant]:
    """Return {name: variant} without variants that share machine code."""
    by_key: dict[tuple[Entry, ...], Variant] = {}
    for variant in variants:
        by_key.setdefault(variant.key, variant)
    return {variant.name: variant for variant in by_key.values()}


def check_names(argument: str, names: Iterable[str], allowed: Iterable[str]) -> None:
    """Raise OpError if one of the names isn't allowed."""
    for name in names:
        if name not in allowed:
            raise OpError(
                argument,
                repr(name),
                f"must be among {', '.join(dict.fromkeys(allowed))}",
                "onnx_ops",
            )
