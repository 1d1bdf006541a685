"""Run an action right after another module has been imported, without importing it."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


class OnImport:
    """A finder of `sys.meta_path` that calls `action` once a module has been executed.

    It calls it at once if the module is imported already.

    Only looking the module up changes nothing: the finder stays until the module is executed
    without an error.
    """

    def __init__(self, name: str, action: "Callable[[], object]") -> None:
        self.name, self.action = name, action
        if sys.modules.get(name) is not None:  # None forbids the import
            action()
        else:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        finders = list(sys.meta_path)
        # Another thread may have imported the module meanwhile.
        if name != self.name or self not in finders:
            return None
        # The import system has already tried those before.
        later_finders = finders[finders.index(self) + 1 :]
        spec: Any = next(
            filter(None, (finder.find_spec(name, path, target) for finder in later_finders)), None
        )
        if spec is not None and hasattr(spec.loader, "exec_module"):
            execute = spec.loader.exec_module

            def execute_and_act(module: "ModuleType") -> None:
                spec.loader.exec_module = execute
                execute(module)
                # Else the action has run, for a spec that another search has returned.
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                    self.action()

            spec.loader.exec_module = execute_and_act
        return spec
