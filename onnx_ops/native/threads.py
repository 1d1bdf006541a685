"""The threads that run the tiles of functions on arrays.

In sessions, ONNX Runtime's threads run them.

This module also checks numbers of threads and processes.
"""

from __future__ import annotations

from _thread import start_new_thread
from collections import deque
from queue import SimpleQueue
from typing import TYPE_CHECKING

from .. import system
from ..declaration.errors import OpError
from ..declaration.limits import MAX_TILES
from ..system.locks import POOL

if TYPE_CHECKING:
    from collections.abc import Callable, Sized
    from typing import Any

MOST = 2**31 - 1  # threads of a session of ONNX Runtime


def check_count(argument: str, count: Any, where: str = "onnx_ops") -> None:
    """Raise OpError unless a number of threads or processes is positive, or None.

    None stands for the default.
    """
    if count is not None and not (hasattr(count, "__index__") and 1 <= count <= MOST):
        raise OpError(argument, repr(count), "must be an integer in [1, 2**31 - 1]", where)


def on_threads(tile: Callable[[int], object], tiles: int, threads: int | None = None) -> None:
    """Call tile(0), ..., tile(tiles - 1) on up to `threads` threads, this one among them.

    If the call ends early, for example by an interrupt, no further tile begins, and the call waits
    for running tiles.

    threads  default: the CPUs that this process may use; at most MAX_TILES, the number of parts of
             a workspace
    """
    helpers = min(threads or len(system.available_cpus()), tiles, MAX_TILES) - 1 if tiles > 1 else 0
    if helpers == 0:
        for index in range(tiles):
            tile(index)
        return
    # Each entry has the function, so that a helper that starts too late keeps nothing of the call
    # alive. All methods of these queues are atomic, without the GIL too, and no interrupt leaves
    # them locked.
    waiting = deque((tile, index) for index in range(tiles))
    active: deque[None] = deque()
    ended: SimpleQueue[None] = SimpleQueue()
    errors: deque[BaseException] = deque()

    def help_out() -> None:
        # A helper is active before it looks for a tile; `settle` removes the tiles before it looks
        # for active helpers.
        active.append(None)
        try:
            run_waiting(waiting)
        except BaseException as error:
            errors.append(error)
        finally:
            active.pop()
            ended.put(None)

    try:
        for _ in range(helpers):
            ask_for_help(help_out)
        run_waiting(waiting)
    finally:
        settle(waiting, active, ended)
    if errors:
        raise errors[0]


def run_waiting(waiting: deque[tuple[Callable[[int], object], int]]) -> None:
    """Run the tiles that wait, each a function with its argument, until none waits."""
    while waiting:
        try:
            tile, index = waiting.popleft()
        except IndexError:  # another thread has taken the last one
            return
        tile(index)


def settle(waiting: deque[Any], active: Sized, ended: SimpleQueue[None]) -> None:
    """Remove the tiles that wait, and wait until no helper is active.

    An interrupt is raised only after that.
    """
    interrupt = None
    while waiting or active:
        try:
            waiting.clear()
            while active:
                ended.get()
        except BaseException as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt


# concurrent.futures can't be used here: an interrupt in `submit` can leave its locks locked.
_requests: SimpleQueue[Callable[[], None]] = SimpleQueue()
_helpers = 0


def ask_for_help(function: Callable[[], None]) -> None:
    """Call a function that raises nothing on a helper thread. There are as many helpers as CPUs."""
    global _helpers
    with POOL:
        while _helpers < len(system.available_cpus()):
            start_new_thread(_help, (_requests,))
            _helpers += 1
    _requests.put(function)


def _help(requests: SimpleQueue[Callable[[], None]]) -> None:
    while True:
        requests.get()()


def _forget_helpers() -> None:
    global _requests, _helpers
    _requests, _helpers = SimpleQueue(), 0


system.at_fork(after_in_child=_forget_helpers)  # a child has none of its parent's threads
