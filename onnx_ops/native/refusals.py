"""OpErrors for what compiled code and the C library refuse."""

import ctypes as C
from typing import Any

from ..declaration.errors import OpError, errors_of, quoted, require
from . import table


def refuse(operator: Any, address: int, node: bytes = b"", note: str = "") -> None:
    """Raise the OpError for the `struct refusal` at an address.

    node  the node's name
    note  text that follows the values
    """
    refusal = table.Refusal.from_address(address)
    number_type = C.c_double if refusal.kinds & table.OF_EXPECTED else C.c_int64
    expected = (
        number_type.from_buffer(C.c_int64(refusal.expected)).value if refusal.has_expected else None
    )
    rule = refusal.rule.decode()
    with errors_of(operator, node):
        if refusal.argument is None:
            raise OpError(None, None, rule)
        value = values_of(refusal)
        if note:
            value = note if value is None else f"{value} {note}"
        require(False, refusal.argument.decode(errors="ignore"), value, rule, expected)


def values_of(refusal: Any) -> Any:
    """Return the values of a refusal as `require` takes them; None if there are none."""
    if not refusal.values:
        return None
    if refusal.kinds & table.OF_TEXT:
        return quoted(C.string_at(refusal.values, refusal.count))
    number = C.c_double if refusal.kinds & table.OF_DOUBLES else C.c_int64
    values = list((number * abs(refusal.count)).from_address(refusal.values))
    return values[0] if refusal.count < 0 else values
