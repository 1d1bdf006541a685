"""Python files with operators of one's own, for the command line and for processes that compile."""

import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from ..declaration import Operator
from ..errors import OpError, reason
from ..operators import OPERATORS, use


def use_file(path):
    """Make the operators in a Python file known to this process; returns them. Raises OpError."""
    file, name = Path(path).resolve(), Path(path).stem
    if file.suffix != ".py" or not name.isidentifier():
        rule = "must be the name of a module and .py, such as my_operators.py"
        raise OpError("operators", repr(str(path)), rule, "onnx_ops")
    module = sys.modules.get(name)
    if module is None:
        spec = spec_from_file_location(name, file)
        assert spec is not None  # as the file's name ends in .py
        assert spec.loader is not None
        module = sys.modules[name] = module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException as error:
            del sys.modules[name]
            if isinstance(error, OpError) or not isinstance(error, Exception | SystemExit):
                raise
            raise OpError("operators", repr(str(path)), f"can't be imported: {reason(error)}", "onnx_ops") from error
    elif Path(getattr(module, "__file__", None) or "").resolve() != file:
        rule = f"has the name of the module {name}, which is imported; rename it"
        raise OpError("operators", repr(str(path)), rule, "onnx_ops")
    return use_module(module)


def use_module(module):
    """Make the operators in a module known to this process; returns them. Raises OpError."""
    members = {id(each): each for each in vars(module).values()}.values()
    operators = [each for each in members if isinstance(getattr(each, "declaration", each), Operator)]
    if not operators:
        raise OpError("operators", repr(module.__file__), "has no operators, which onnx_ops.operator makes", "onnx_ops")
    use(operators)
    return operators


def sources_of(operators):
    """Return where other processes find these operators: names of modules, or paths of files. Raises OpError.

    Those of this package are known to every process.
    """
    locations = []
    for operator in operators:
        if operator in OPERATORS:
            continue
        module = sys.modules[operator.source]
        if module.__name__ != "__main__" and "." in module.__name__:
            locations.append(module.__name__)
        elif (file := getattr(module, "__file__", None)) is None:
            rule = "is of no file, which other processes could read; write it into one"
            raise OpError("operators", operator.title, rule, "onnx_ops")
        else:
            locations.append(str(Path(file).resolve()))
    return list(dict.fromkeys(locations))


def use_source(source):
    """Make the operators at one of `sources_of` known to this process; returns them."""
    return use_file(source) if Path(source).suffix == ".py" else use_module(import_module(source))
