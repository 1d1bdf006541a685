"""Refuse the versions of other packages that this one was not made for, as soon as they have been imported."""

import re
import sys

from .errors import OpError

# The same versions as in pyproject.toml. They are compared with those that the imported modules state, since
# importlib.metadata takes longer than a first session.
LEAST = {
    "ml-dtypes": "0.5",
    "numpy": "1.26",
    "onnx": "1.19",
    "onnxruntime": "1.20",
    "onnxruntime-extensions": "0.13",
    "platformdirs": "3",
}
_MODULES = [(name, name.replace("-", "_"), least) for name, least in LEAST.items()]
_new_enough: set = set()  # {(name, version)} of packages that passed


def check_versions():
    """Raise OpError if a package that has been imported is too old."""
    for name, module, least in _MODULES:
        version = getattr(sys.modules.get(module), "__version__", least)
        if (name, version) not in _new_enough:
            if _numbers(version) < _numbers(least):
                raise OpError(name, version, f"must be at least {least}", "onnx_ops")
            _new_enough.add((name, version))


def _numbers(version):
    match = re.match(r"\d+(\.\d+)*", str(version))
    return tuple(map(int, match[0].split("."))) if match else (sys.maxsize,)
