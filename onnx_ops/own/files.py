"""Python files with operators of one's own, for the command line and for processes that compile."""

import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from ..declaration import Declaration
from ..errors import OpError
from ..operators import use


def use_file(path):
    """Have everything in this process know the operators in a Python file; returns them. Raises OpError."""
    place, name = Path(path).resolve(), Path(path).stem
    module = sys.modules.get(name)
    if module is None:
        spec = spec_from_file_location(name, place)
        module = sys.modules[name] = module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[name]
            if isinstance(error, OpError):
                raise
            rule = f"can't be imported: {type(error).__name__}: {error}"
            raise OpError("operators", repr(str(path)), rule, "onnx_ops") from error
    elif Path(getattr(module, "__file__", None) or "").resolve() != place:
        rule = f"has the name of the module {name}, which is imported; rename it"
        raise OpError("operators", repr(str(path)), rule, "onnx_ops")
    return use_module(module)


def use_module(module):
    """The same of a module."""
    members = {id(each): each for each in vars(module).values()}.values()
    found = [each for each in members if isinstance(getattr(each, "declaration", each), Declaration)]
    if not found:
        raise OpError("operators", repr(module.__file__), "has no operators, which onnx_ops.operator makes", "onnx_ops")
    use(found)
    return found


def places(operators):
    """Where other processes find these: names of modules, or paths. Raises OpError where they can't."""
    found = []
    for operator in operators:
        module = sys.modules[operator.source]
        file = getattr(module, "__file__", None)
        importable = module.__name__ != "__main__" and "." in module.__name__
        if not importable and file is None:
            rule = "is of no file, which other processes could read; write it into one"
            raise OpError("operators", operator.title, rule, "onnx_ops")
        found.append(module.__name__ if importable else str(Path(file).resolve()))
    return list(dict.fromkeys(found))


def use_place(place):
    """Have everything in this process know the operators that are in one of `places`; returns them."""
    return use_file(place) if Path(place).suffix == ".py" else use_module(import_module(place))
