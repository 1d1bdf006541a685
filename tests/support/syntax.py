"""What tests read of the sources of Python."""

import ast
from collections.abc import Iterable, Iterator


def statements(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield all statements of a module's or a statement's body, without their expressions, which
    are most of a tree.
    """
    for node in body:
        yield node
        for field in ("body", "handlers", "cases", "orelse", "finalbody"):
            yield from statements(getattr(node, field, ()))
