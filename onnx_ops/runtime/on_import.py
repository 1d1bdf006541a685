"""Something to do right after another module has been imported, without importing it."""

import importlib.util
import sys


class OnImport:
    """Calls `action` once `name` has been imported, now if it has been already. A finder of `sys.meta_path`."""

    def __init__(self, name, action):
        self.name, self.action = name, action
        if name in sys.modules:
            action()
        else:
            sys.meta_path.insert(0, self)

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_act(module):
                execute(module)
                self.action()

            spec.loader.exec_module = execute_and_act
        return spec
