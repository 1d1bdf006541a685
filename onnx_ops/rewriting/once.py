"""Methods whose results are kept."""

from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any, TypeVar

T = TypeVar("T")


def once(method: Callable[..., T]) -> Callable[..., T]:
    """Have a method work its result out once for the same arguments.

    Its object keeps results as `known`, {(name of the method, *arguments): result}.
    """

    @wraps(method)
    def known(owner: Any, *arguments: Hashable) -> T:
        key = method.__name__, *arguments
        if key not in owner.known:
            owner.known[key] = method(owner, *arguments)
        return owner.known[key]

    return known
