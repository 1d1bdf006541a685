"""The decorator `onnx_ops.operator`, and what it makes of a function."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any

from ..errors import named, require
from ..kernels.jit import jitable
from .signature import declared

TILE = ("index", "count", "workspace")  # what a kernel gets between attributes and outputs


def operator(
    name: str,
    *,
    inputs: str,
    outputs: str,
    version: int = 1,
    types: Mapping[str, Sequence[str]] | None = None,
    ranks: Mapping[str, Sequence[int]] | None = None,
) -> Callable[[Callable[..., Any]], "OwnOperator"]:
    """Decorator: make an ONNX operator of a function on NumPy arrays.

    name     "domain::Name", as in a model's node; "::Name" is of ai.onnx
    inputs   "x: T, k: int64, bias: T?, more: T*": names, each with an element type or a type variable; with ? it is
             optional, and None where a node doesn't have it, with * it stands for any number of inputs
    outputs  "y: T, indices: int64", likewise
    types    {type variable: element types}, such as {"T": onnx_ops.FLOATS}
    ranks    {input: ranks that a kernel is compiled for}; of an input that isn't named there it is 1
    version  of the domain, from which on there is this operator

    The inputs are the function's positional parameters. The attributes are its keyword-only ones, each with one of the
    annotations int, float, bool, str, tuple[int, ...], tuple[float, ...], Literal["one", "other"], numpy.ndarray, and
    `| None` if None is the default. One without a default is required.

    The function gets read-only views of ONNX Runtime's memory, which end with the call, and returns an array or, of
    several outputs, a tuple of arrays. An exception becomes an error of the session's run. Raises OpError.
    """

    def declare(body: Callable[..., Any]) -> OwnOperator:
        return OwnOperator(declared(body, name, version, inputs, outputs, types or {}, ranks or {}))

    return declare


class OwnOperator:
    """An operator for `operators=[...]`, which can also be called with arrays.

    declaration  what everything else is derived from, see function.py
    """

    def __init__(self, declaration):
        self.declaration = declaration
        body = declaration.body
        self.__name__, self.__doc__, self.__module__ = declaration.name, body.__doc__, body.__module__

    def __repr__(self):
        return f"<operator {self.declaration.title} of {self.__module__}>"

    def __call__(self, *inputs: Any, threads: int | None = None, **attributes: Any) -> Any:
        """The output, or a tuple of several, for anything that NumPy takes for arrays. Raises OpError.

        threads  default: the CPUs that this process may use
        """
        from ..functions import call

        return call(self.declaration, *inputs, threads=threads, **attributes)

    def shape(self, rule: Callable[..., Any] | None = None, *, values: Iterable[str] = (), bound: bool = False) -> Any:
        """Decorator: a rule that says what shapes the outputs have.

        It gets for each input its shape, a tuple of numbers, or None, and the attributes. It returns the output's shape
        or, of several outputs, a tuple of shapes. What it refuses by `onnx_ops.require` is an error when a session is
        made if the model shows it then, else of the run. Where there is a kernel the rule is compiled, too.

        values  names of inputs whose values it gets instead: vectors of at most 16 integers
        bound   the first axes of the outputs may turn out shorter
        """
        if rule is None:
            return lambda rule: self.shape(rule, values=values, bound=bound)
        function = self.declaration
        values = [values] if isinstance(values, str) else list(values)
        with named(function):
            names = [i.name for i in function.inputs]
            for name in values:
                require(name in names, "values", repr(name), f"must be among {', '.join(names)}")
                types = function.types[function.inputs[names.index(name)].type]
                kept = set(types) <= {"int32", "int64"}
                require(
                    kept, f"type of {name}", ", ".join(types), "must be int32 or int64 for a rule to get the values"
                )
            check_parameters("rule", rule, names, attributes_of(function))
        inputs = tuple(replace(i, values=i.name in values) for i in function.inputs)
        self.declaration = replace(function, inputs=inputs, rule=compilable(rule), is_bound=bound)
        return self

    def kernel(
        self,
        kernel: Callable[..., Any] | None = None,
        *,
        loop: Callable[..., int] | None = None,
        workspace: Callable[..., int] | None = None,
    ) -> Any:
        """Decorator: a function that Numba compiles, and that computes the outputs without Python.

        It gets the inputs as arrays, the attributes, `index`, `count` and `workspace`, then the outputs, and writes all
        elements of its share of these. An optional input that isn't there is None. Attributes that are lists are
        vectors, of a Literal it is the position. 16-bit floats arrive as float32 and are rounded once, at the end. It
        can't allocate memory. Functions that it calls are marked by `onnx_ops.jitable`, or Numba's.

        loop       a function of what the rule gets: how many steps, such as rows, the outputs' computation has. The
                   kernel is called for each `index` below `count`, on any thread, and takes its share of the steps.
                   Default: it is called once, with 0 of 1
        workspace  likewise: bytes that each of these calls gets as a vector of uint8, which hold nothing yet
        """
        if kernel is None:
            return lambda kernel: self.kernel(kernel, loop=loop, workspace=workspace)
        function = self.declaration
        inputs, outputs = [i.name for i in function.inputs], [o.name for o in function.outputs]
        attributes = attributes_of(function)
        with named(function):
            require(
                function.rule is not None, "kernel", "given", "needs a rule for the outputs' shapes first, by .shape"
            )
            for i in function.inputs:
                require(i.presence != "variadic", i.name, "variadic", "can't be handed to a kernel")
            for a in function.attributes:
                can_be = a.kind not in ("text", "tensor") and (a.required or a.default is not None)
                rule = (
                    "can't be handed to a kernel: it must be a number, a list of numbers or a Literal, and never None"
                )
                require(can_be, a.name, "declared", rule)
            check_parameters("kernel", kernel, [*inputs, *attributes, *TILE, *outputs])
            for what, each in (("loop", loop), ("workspace", workspace)):
                if each is not None:
                    check_parameters(what, each, inputs, attributes)
        functions = {"kernel": kernel, "loop": loop, "workspace": workspace}
        self.declaration = replace(function, **{name: f and compilable(f) for name, f in functions.items()})
        return self


def attributes_of(function):
    return [a.name for a in function.attributes]


def check_parameters(what, function, positional, keywords=()):
    """Raise OpError unless a function has these parameters in this order, the keywords as such or not."""
    found, wanted = list(inspect.signature(function).parameters), [*positional, *keywords]
    shown = ", ".join([*positional, *(["*", *keywords] if keywords else [])])
    require(found == wanted, f"parameters of the {what}", f"({', '.join(found)})", f"must be ({shown})")


def compilable(function):
    """A function as compiled code calls it, which has no keyword-only parameters."""
    code = function.__code__
    if code.co_kwonlyargcount:
        plain = code.replace(co_argcount=code.co_argcount + code.co_kwonlyargcount, co_kwonlyargcount=0)
        made = FunctionType(plain, function.__globals__, function.__name__, None, function.__closure__)
        made.__module__, made.__qualname__ = function.__module__, function.__qualname__
        function = made
    return jitable(function)
