"""The table of operators that the C library reads (native/table.h).

The declarations fill it.
"""

from __future__ import annotations

import ctypes as C
import zlib  # hashlib would take longer to import than this whole module
from typing import TYPE_CHECKING

from ..compiler import records
from ..declaration import dtypes
from ..declaration.attributes import KINDS
from ..declaration.errors import OpError
from ..declaration.jit import numba_obstacle
from ..declaration.limits import MAX_GEOMETRY, MAX_INPUTS, MAX_KERNELS, MAX_OUTPUTS, MAX_RANK
from ..declaration.operator import REFUSAL_FIELDS
from ..registry import first_version, is_built_in, is_default

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any, TypeAlias

    import numpy as np

    from ..declaration import attributes
    from ..declaration import operator as declarations

    Row: TypeAlias = Any  # a structure of the table; a type checker knows none of their fields

POINTER = C.c_void_p
TEXT = C.c_char_p
NUMBER = C.c_int64
POINTERS = C.POINTER(POINTER)
TEXTS = C.POINTER(TEXT)
NUMBERS = C.POINTER(NUMBER)
INFER, PLAN, KERNEL = range(3)  # the functions of an operator, numbered as in the library
_KINDS = tuple(KINDS)
_PRESENCES = ("required", "optional", "variadic")


def structure(title: str, /, **fields: Any) -> Any:
    """Return a ctypes structure with these fields.

    A list, such as `names`, has its length beside it, in `name_count`.
    """
    with_counts = []
    for name, field_type in fields.items():
        with_counts.append((name, field_type))
        if issubclass(field_type, C._Pointer):
            with_counts.append((f"{name[:-1]}_count", NUMBER))
    return type(title, (C.Structure,), {"_fields_": with_counts})


Attribute = structure(
    "Attribute",
    names=TEXTS, kind_rule=TEXT, rule=TEXT, kind=NUMBER, required=NUMBER, repeats=NUMBER,
    least=NUMBER, most=NUMBER, shortest=NUMBER, longest=NUMBER, choices=TEXTS, initials=NUMBERS,
    value_count=NUMBER,
)  # fmt: skip
Input = structure("Input", name=TEXT, wants_values=NUMBER, presence=NUMBER, ranks=NUMBERS)
Overload = structure(
    "Overload",
    types=NUMBER * (MAX_INPUTS + MAX_OUTPUTS), kernels=POINTERS, has_code=NUMBER * MAX_KERNELS,
    arguments=TEXT * MAX_KERNELS, refused=TEXT * MAX_KERNELS, rules=TEXT * MAX_KERNELS,
)  # fmt: skip
Operator = structure(
    "Operator",
    domain=TEXT, name=TEXT, declaration=TEXT, number=NUMBER, first_version=NUMBER,
    is_default=NUMBER, is_custom=NUMBER, geometry_size=NUMBER,
    attributes=C.POINTER(Attribute), inputs=C.POINTER(Input), outputs=NUMBERS,
    overloads=C.POINTER(Overload), terms=TEXTS, chooser=NUMBER, choices=NUMBERS,
    kernel_count=NUMBER, combination_count=NUMBER, has_shapes=NUMBER, has_ranks=NUMBER,
    has_bound=NUMBER, infer=POINTER, plans=POINTERS, kernels_made=NUMBER, results_made=NUMBER,
    customs=POINTER,
)  # fmt: skip
Table = structure("Table", operators=C.POINTER(C.POINTER(Operator)))
Answer = structure("Answer", outcome=NUMBER, message=C.c_char * 4096)
Run = structure(
    "Run",
    op=POINTER, overload=POINTER, call=POINTER, context=POINTER, outputs=POINTER * MAX_OUTPUTS,
    status=POINTER,
)  # fmt: skip
Python = structure(
    "Python", compile=POINTER, plan=POINTER, run=POINTER, refuse=POINTER, interrupt=POINTER
)
Name = structure("Name", at=POINTER, size=C.c_size_t)
Refusal = structure(
    "Refusal", **dict.fromkeys(REFUSAL_FIELDS, NUMBER) | {"argument": TEXT, "rule": TEXT}
)
OF_DOUBLES, OF_EXPECTED, OF_TEXT = 1, 2, 4  # bits of a refusal's kinds


def _field_position(record: np.dtype, field: str) -> int:
    """Return the position of a field in a record, counted in 64-bit numbers."""
    return records.offset_of(record, field) // 8


class Call(NUMBER * ((records.GEOMETRY + MAX_GEOMETRY) // 8)):  # type: ignore[misc]
    """The record of a call (records.py), as an array of numbers."""

    TENSOR = records.TENSOR.itemsize // 8
    DATA, SIZE, RANK, SHAPE = (
        _field_position(records.TENSOR, field) for field in ("data", "size", "rank", "shape")
    )
    COUNT, ATTRIBUTES = (
        _field_position(records.CALL, field) for field in ("input_count", "attributes")
    )
    GEOMETRY = records.GEOMETRY // 8

    def tensor(self, k: int) -> tuple[int, int, Any]:
        """Return (address, number of elements, shape) of tensor k.

        The shape is None for an ABSENT or unknown rank.
        """
        start = self.TENSOR * k
        rank = self[start + self.RANK]
        shape = None if rank < 0 else tuple(self[start + self.SHAPE : start + self.SHAPE + rank])
        return self[start + self.DATA], self[start + self.SIZE], shape

    def put_shape(self, k: int, shape: Sequence[int]) -> None:
        """Write the shape of tensor k, or the values that a plan gets in its place."""
        start = self.TENSOR * k
        rank = self[start + self.RANK] = len(shape)
        if rank <= MAX_RANK:  # C refuses a higher rank
            self[start + self.SHAPE : start + self.SHAPE + rank] = shape

    def put_array(self, k: int, array: np.ndarray) -> None:
        """Write the address and the number of elements of tensor k."""
        start = self.TENSOR * k
        self[start + self.DATA], self[start + self.SIZE] = array.ctypes.data, array.size


# The library has a list of the sizes of these.
LAYOUT = Attribute, Overload, Operator, Answer, Run, Call


def name_at(address: int | None) -> bytes:
    """Return the name in a `struct name`; b"" for a null pointer."""
    name = Name.from_address(address) if address else Name()
    return C.string_at(name.at, name.size) if name.size else b""


def array(item_type: Any, items: Sequence[Any]) -> C.Array[Any]:
    """Return a ctypes array of at least one item."""
    return (item_type * max(len(items), 1))(*items)


def listed(item_type: Any, **lists: Sequence[Any]) -> dict[str, Any]:
    """Return the fields for a structure's lists, such as `names` and `name_count`."""
    arrays = {name: array(item_type, items) for name, items in lists.items()}
    return arrays | {f"{name[:-1]}_count": len(items) for name, items in lists.items()}


def table_of(rows: Sequence[Row]) -> Row:
    """Return the table of these operators."""
    return Table(array(C.POINTER(Operator), list(map(C.pointer, rows))), len(rows))


def declaration(declared: declarations.Operator) -> str:
    """Return a digest of the parts of a declaration that compiled code and Python share."""
    kernels = [
        (k.function.__qualname__, k.sees_bits, sorted(k.types.items())) for k in declared.kernels
    ]
    layout = records.call_dtype(declared.geometry_dtype).descr, MAX_INPUTS
    content = (
        declared.title,
        declared.inputs,
        declared.outputs,
        declared.types,
        declared.attributes,
        kernels,
        layout,
    )
    return f"{zlib.crc32(repr(content).encode()):08x}"


def operator_row(
    declared: declarations.Operator, signatures: Iterable[dict[str, str]], number: int
) -> Row:
    """Return the row of an operator, with an overload for each of the signatures.

    signatures  {type variable: element type} of each
    """
    terms = [term.encode() for pair in declared.terms.items() for term in pair]
    likeness = [-1 if k is None else k for k in declared.likeness()]
    plans = len(declared.combinations)
    of_package = is_built_in(declared)
    chooser, chosen = declared.chooser or (-1, [])
    return Operator(
        domain=declared.domain.encode(),
        name=declared.name.encode(),
        declaration=declaration(declared).encode(),
        number=number,
        first_version=first_version(declared),
        is_default=is_default(declared.domain, of_package),
        is_custom=not of_package,
        geometry_size=declared.geometry_dtype.itemsize,
        terms=array(TEXT, terms),
        term_count=len(terms) // 2,
        chooser=chooser,
        kernel_count=len(declared.kernels),
        combination_count=0 if numba_obstacle() else plans,
        has_shapes=declared.plan.shape is not None,
        has_ranks=declared.has_ranks,
        has_bound=declared.plan.is_bound,
        **listed(Attribute, attributes=[attribute_row(a) for a in declared.attributes]),
        **listed(Input, inputs=list(map(input_row, declared.inputs))),
        **listed(
            Overload, overloads=[overload_row(declared, signature) for signature in signatures]
        ),
        **listed(NUMBER, outputs=likeness, choices=chosen),
        **listed(POINTER, plans=[None] * plans),
    )


def attribute_row(declared: attributes.Attribute) -> Row:
    """Return the row of an attribute."""
    least, most = declared.limits
    default = None if declared.default is None else declared.vector(declared.default)
    return Attribute(
        kind_rule=declared.kind_rule.encode(),
        rule=declared.rule.encode(),
        kind=_KINDS.index(declared.kind),
        required=declared.required,
        repeats=declared.repeats,
        least=least,
        most=most,
        shortest=declared.length_bounds[0],
        longest=declared.length_bounds[1],
        value_count=declared.count_of(default),
        **listed(
            TEXT,
            names=[name.encode() for name in declared.names],
            choices=[c.encode() for c in declared.choices],
        ),
        **listed(NUMBER, initials=[] if default is None else declared.content(default).tolist()),
    )


def input_row(declared: declarations.Input) -> Row:
    """Return the row of an input."""
    ranks = [rank for rank in declared.compiled_ranks if rank is not None]
    return Input(
        name=declared.name.encode(),
        wants_values=declared.values,
        presence=_PRESENCES.index(declared.presence),
        **listed(NUMBER, ranks=ranks),
    )


def overload_row(declared: Any, signature: dict[str, str]) -> Any:
    """Return an operator's overload for a signature, without kernels."""
    types = [0] * (MAX_INPUTS + MAX_OUTPUTS)
    types[: len(declared.inputs)] = [dtypes.TABLE[signature[i.type]].onnx for i in declared.inputs]
    for k, o in enumerate(declared.outputs):
        types[MAX_INPUTS + k] = dtypes.TABLE[signature[o.type]].onnx
    row = Overload(
        types=(NUMBER * len(types))(*types),
        **listed(POINTER, kernels=[None] * len(declared.positions)),
    )
    for k, kernel in enumerate(declared.kernels):
        row.has_code[k] = declared.storage(kernel, signature) is not None
        try:
            declared.check_types(kernel, signature)
        except OpError as error:
            row.arguments[k], row.refused[k], row.rules[k] = (
                str(text).encode() for text in error.args[:3]
            )
    return row
