"""The table of operators: how an element of an output is made of elements of the inputs.

A rule returns a form, or the Query that the element was moved from. It raises Unknown or another of
the reader's FAILURES, or returns None, if that isn't known: the value is then a root.
"""

from collections.abc import Callable

from ..reader import Result, Rule, Site

TABLE: dict[str, Rule] = {}
Function = Callable[[Site], Result]


def operator(*names: str, moves: bool = False, domain: str = "") -> Callable[[Function], Function]:
    """Declare the rule of operators, by default of ai.onnx. moves: whether they only move
    elements.
    """
    titles = [f"{domain}.{name}" if domain else name for name in names]

    def declare(function: Function) -> Function:
        TABLE.update(dict.fromkeys(titles, Rule(function, moves)))
        return function

    return declare
