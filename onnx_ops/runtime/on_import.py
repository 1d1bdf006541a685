"""Runs an action right after another module has been imported, without importing it."""

import sys


class OnImport:
    """A finder of `sys.meta_path` that calls `action` once the module `name` has been executed, at once if it has been.

    Only looking the module up changes nothing: the finder stays until the module is executed without an error.
    """

    def __init__(self, name, action):
        self.name, self.action = name, action
        if sys.modules.get(name) is not None:  # None forbids the import
            action()
        else:
            sys.meta_path.insert(0, self)

    def find_spec(self, name, path=None, target=None):
        spec = self._spec_of_others(path, target) if name == self.name else None
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader, self.act)
        return spec

    def _spec_of_others(self, path, target):
        """The spec that the finders after this one return; the import system has already asked those before it."""
        finders = list(sys.meta_path)
        if self not in finders:  # another thread has imported the module since this search began
            return None
        specs = (f.find_spec(self.name, path, target) for f in finders[finders.index(self) + 1 :])
        return next((spec for spec in specs if spec is not None), None)

    def act(self):
        """Remove this finder, and call the action, once: the module has been executed."""
        try:
            sys.meta_path.remove(self)
        except ValueError:  # the action has run, for a spec that another search has returned
            return
        self.action()


class _Loader:
    """A loader that calls `then` after it has executed a module; the module only sees the original loader."""

    def __init__(self, loader, then):
        self._loader, self._then = loader, then

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def exec_module(self, module):
        module.__loader__ = module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._then()
