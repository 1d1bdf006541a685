"""The decorator `onnx_ops.operator`, and the CustomOperator that it returns."""

from __future__ import annotations

import dis
import inspect
from dataclasses import replace
from pathlib import Path
from types import CellType, FunctionType, ModuleType
from typing import TYPE_CHECKING

from ..declaration.errors import errors_of, require
from ..declaration.jit import flags_of, jitable
from ..declaration.signature import declared, parameters_of
from .plans import with_functions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from ..declaration.attributes import Attribute
    from ..declaration.operator import Input, Operator, Output


TILE = ("index", "count", "workspace")  # parameters of a kernel between attributes and outputs


def operator(
    name: str,
    *,
    inputs: str,
    outputs: str,
    version: int = 1,
    types: Mapping[str, Sequence[str]] | None = None,
    ranks: Mapping[str, Sequence[int]] | None = None,
) -> Callable[[Callable[..., Any]], CustomOperator]:
    """Decorator: make an ONNX operator of a function on NumPy arrays.

    The inputs are the function's positional parameters. The attributes are its
    keyword-only parameters, annotated int, float, bool, str, `tuple[int, ...]`,
    `tuple[float, ...]`, `Literal["one", "other"]` or numpy.ndarray, with `|
    None` if None is the default. An attribute without a default is required.

    The function gets read-only views of ONNX Runtime's memory, which are valid
    during the call. It returns an array, or a tuple of arrays for several
    outputs. Its exceptions become errors of the session's run.

    Parameters
    ----------
    name : str
        "domain::Name", as in a model's node. "::Name" is an operator of
        ai.onnx.
    inputs : str
        Names with their data types or type variables: "x: T, k: int64, bias:
        T?, more: T*". ? marks an optional input, which is None if a node
        doesn't have it; * marks a last input that stands for one or more
        inputs.
    outputs : str
        Likewise: "y: T, indices: int64".
    version : int, default 1
        Version of the domain that introduced the operator.
    types : mapping, optional
        {type variable: data types}, such as {"T": onnx_ops.FLOATS}. Default:
        none, for inputs and outputs that name their data types.
    ranks : mapping, optional
        {input: ranks that a kernel is compiled for}, such as {"x": (3, 4)}. An
        input that isn't listed has rank 1 in the kernel. Without a kernel, this
        has no effect.

    Returns
    -------
    callable
        The decorator, which returns a `CustomOperator`.

    Raises
    ------
    OpError
        The decorator raises it if a declaration breaks a rule.

    See Also
    --------
    check : Compare every way to run the operator.

    Examples
    --------
    >>> @onnx_ops.operator(
    ...     "my.domain::Scale", inputs="x: T", outputs="y: T", types={"T": onnx_ops.FLOATS}
    ... )
    ... def scale(x, *, factor: float = 2.0):
    ...     return (x * factor).astype(x.dtype)
    >>> scale(np.arange(3, dtype=np.float32), factor=10.0)
    array([ 0., 10., 20.], dtype=float32)

    A model with a node Scale of the domain my.domain runs in
    `onnx_ops.InferenceSession(model, operators=[scale])`.
    """
    return lambda body: CustomOperator(
        declared(body, name, version, inputs, outputs, types or {}, ranks or {})
    )


class CustomOperator:
    """A custom operator: a function under the decorator `onnx_ops.operator`.

    It is a function on arrays, and what `operators=[...]` accepts.

    Attributes
    ----------
    declaration : Operator
        What everything else is derived from. `declaration.reference` is the
        decorated function.
    """

    def __init__(self, declaration: Operator) -> None:
        self.declaration = declaration
        self._given: dict[str, Any] = {}  # arguments of `with_functions`
        body = declaration.reference
        self.__name__ = declaration.name
        self.__doc__ = body.__doc__
        self.__module__ = body.__module__

    def __repr__(self) -> str:
        return f"<operator {self.declaration.title} of {self.__module__}>"

    def __call__(self, /, *inputs: Any, threads: int | None = None, **attributes: Any) -> Any:
        """Compute the output, or a tuple of several.

        Parameters
        ----------
        *inputs : array_like
            The inputs. None stands for an optional one that is left out.
        threads : int, optional
            Number of threads. Default: the CPUs that this process may use.
        **attributes
            The attributes. None stands for the default.

        Returns
        -------
        ndarray or tuple of ndarray
            The outputs.

        Raises
        ------
        OpError
            An input or attribute breaks a rule.
        """
        from ..native.execute import call

        return call(self.declaration, *inputs, threads=threads, **attributes)

    @property
    def torch(self) -> Any:
        """Return the operator in PyTorch, for calls with tensors.

        It is ``torch.ops.<namespace>.<name>``; the namespace is the domain with
        ``_`` for each dot, such as ``torch.ops.my_domain.Normalize``.
        Inputs are positional, attributes are given by name. A variadic input is
        a list of tensors. An input with values for the shape function is
        a list of integers. Reading this imports torch, and may raise OpError.
        """
        from ..export.torch_operators import torch_operator

        return torch_operator(self.declaration)

    def shape(
        self,
        rule: Callable[..., Any] | None = None,
        *,
        values: Iterable[str] = (),
        bound: bool = False,
    ) -> Any:
        """Decorator: set the shape function.

        It has the parameters of the operator's function, attributes as
        keyword-only ones. For each input it gets the shape, a tuple of ints, or
        None if an optional input is absent. A Literal attribute is an index
        into its strings. It returns the output's shape, or a tuple of
        shapes, and refuses values by `onnx_ops.require`: when the session is
        made, if the model states enough, else at the run. If there is a kernel,
        Numba compiles the shape function, too.

        Parameters
        ----------
        rule : callable, optional
            The shape function. Without it, a decorator with the other
            arguments is returned.
        values : iterable of str
            Inputs, vectors of at most 16 integers: the shape function gets
            their values in place of their shapes.
        bound : bool, default False
            If true, the first axis of each output may turn out shorter.

        Returns
        -------
        CustomOperator
            The operator itself.

        Raises
        ------
        OpError
            The parameters of the shape function are wrong.

        Examples
        --------
        >>> @onnx_ops.operator(
        ...     "my.domain::Double", inputs="x: T", outputs="y: T", types={"T": onnx_ops.FLOATS}
        ... )
        ... def double(x):
        ...     return np.concatenate([x, x])
        >>> @double.shape
        ... def _(x):
        ...     return (2 * x[0],)
        """
        if rule is None:
            return lambda rule: self.shape(rule, values=values, bound=bound)
        function = self.declaration
        values = [values] if isinstance(values, str) else list(values)
        inputs = {i.name: replace(i, values=i.name in values) for i in function.inputs}
        with errors_of(function):
            for name in values:
                require(name in inputs, "values", repr(name), f"must be among {', '.join(inputs)}")
                inputs[name] = replace(inputs[name], ranks=(1,))
                types = function.types[inputs[name].type]
                kept = set(types) <= {"int32", "int64"}
                wanted = "must be int32 or int64 if the shape function gets the values"
                require(kept, f"type of {name}", ", ".join(types), wanted)
            rule = checked("rule", rule, function, inputs, names_of(function.attributes))
        self.declaration = replace(function, inputs=tuple(inputs.values()))
        return self._give(rule=rule, bound=bound)

    def kernel(
        self,
        kernel: Callable[..., Any] | None = None,
        *,
        loop: Callable[..., Any] | None = None,
        workspace: Callable[..., int] | None = None,
        types: Mapping[str, Sequence[str]] | None = None,
    ) -> Any:
        """Decorator: set the kernel, which Numba compiles.

        The kernel gets the inputs as arrays, the attributes, `index`, `count`
        and `workspace`, then the outputs. It writes all elements of its share
        of these. An optional input that is absent is None. A list attribute is
        a vector, a Literal an index into its strings. 16-bit floats arrive as
        float32 and are rounded once, at the end. A kernel can't allocate
        memory. Functions that it calls need the decorator `onnx_ops.jitable`,
        or are Numba's. A kernel requires a shape function.

        Parameters
        ----------
        kernel : callable, optional
            The kernel. Without it, a decorator with the other arguments is
            returned.
        loop : callable, optional
            A function with the parameters of the shape function. It returns
            the number of steps, such as rows, of the computation. The kernel
            is called for each `index` below `count`, on any thread, and
            computes its share of the steps. Default: one call with index 0
            and count 1.
        workspace : callable, optional
            A function with the parameters of the shape function. It returns
            the number of bytes that each call gets, as an uninitialized
            vector of uint8, aligned to 64 bytes. Default: `workspace` is
            None.
        types : mapping, optional
            {type variable: data types} that the kernel supports. The
            operator's function computes the others. Default: all.

        Returns
        -------
        CustomOperator
            The operator itself.

        Raises
        ------
        OpError
            The kernel's parameters are wrong, or there is no shape function.

        Examples
        --------
        >>> @onnx_ops.operator(
        ...     "my.domain::Square", inputs="x: T", outputs="y: T", types={"T": ["float32"]}
        ... )
        ... def square(x):
        ...     return x * x
        >>> @square.shape
        ... def _(x):
        ...     return x
        >>> @square.kernel(loop=lambda x: x[0])
        ... def _(x, index, count, workspace, y):
        ...     for k in range(index, len(x), count):
        ...         y[k] = x[k] * x[k]
        >>> square(np.arange(4, dtype=np.float32))
        array([0., 1., 4., 9.], dtype=float32)
        """
        if kernel is None:
            return lambda kernel: self.kernel(kernel, loop=loop, workspace=workspace, types=types)
        operator = self.declaration
        types = types or {}
        inputs, outputs = names_of(operator.inputs), names_of(operator.outputs)
        attributes = names_of(operator.attributes)
        rules: dict[str, Any] = {"loop": loop, "workspace": workspace}
        with errors_of(operator):
            check_takes_kernel(operator, [*inputs, *attributes, *outputs], loop is not None, types)
            kernel = checked("kernel", kernel, operator, [*inputs, *attributes, *TILE, *outputs])
            for name, rule in rules.items():
                if rule is not None:
                    rules[name] = checked(name, rule, operator, inputs, attributes)
        return self._give(kernel=kernel, types=types, **rules)

    def _give(self, **functions: Any) -> CustomOperator:
        """Add functions to the declaration, or replace them; return the operator."""
        self._given |= functions
        self.declaration = with_functions(self.declaration, **self._given)
        return self

    def gradient(self, gradient: Callable[..., Any]) -> CustomOperator:
        """Decorator: set the function in PyTorch that computes the gradients.

        Parameters
        ----------
        gradient : callable
            It may take any of these parameters, matched by name:
            ``grad_<output>``, the gradient of an output; and the names of
            inputs, outputs and attributes. It returns the gradient of the
            input, or a tuple for several: None for an input without a
            gradient, a list for a variadic one. The tuple leaves out inputs
            that give their values to the shape function.

        Returns
        -------
        CustomOperator
            The operator itself.

        Raises
        ------
        OpError
            The function has a parameter of another name.
        """
        function = self.declaration
        inputs, outputs = names_of(function.inputs), names_of(function.outputs)
        attributes = names_of(function.attributes)
        names = [*(f"grad_{name}" for name in outputs), *inputs, *outputs, *attributes]
        with errors_of(function):
            for name in parameters_of("gradient", gradient):
                require(
                    name in names,
                    "parameters of the gradient",
                    name,
                    f"must be among {', '.join(names)}",
                )
        self.declaration = replace(function, gradient=gradient)
        return self


def check_takes_kernel(
    operator: Operator, names: Iterable[str], has_loop: bool, types: Mapping[str, Sequence[str]]
) -> None:
    """Raise OpError unless the operator's declaration permits a kernel for these types."""
    require(operator.plan.shape, "kernel", "given", "requires a shape function, set by .shape")
    for name in names:
        reserved = f"is a parameter of every kernel ({', '.join(TILE)}); give it another name"
        require(name not in TILE, "name", name, reserved)
    loop_rule = "can't be combined with bound=True, which permits only one tile"
    require(not (has_loop and operator.plan.is_bound), "loop", "given", loop_rule)
    last_input = operator.inputs[-1].name
    require(not operator.is_variadic, last_input, "variadic", "can't be passed to a kernel")
    for a in operator.attributes:
        fits = a.kind not in ("text", "tensor") and (a.required or a.default is not None)
        attribute_rule = (
            "can't be passed to a kernel: it must be a number, a list of numbers or a "
            "Literal, and never None"
        )
        require(fits, a.name, "declared", attribute_rule)
    for variable, supported in types.items():
        declared_names = operator.types.get(variable, ())
        type_rule = f"must be among {', '.join(declared_names) or ', '.join(operator.types)}"
        require(
            supported and {*supported} <= {*declared_names},
            f"type {variable}",
            ", ".join(supported),
            type_rule,
        )


def names_of(declared: Iterable[Attribute | Input | Output]) -> list[str]:
    return [declaration.name for declaration in declared]


def checked(
    role: str,
    function: Any,
    operator: Operator,
    positional: Iterable[str],
    keywords: Sequence[str] = (),
) -> FunctionType:
    """Return a function for compiled code.

    Raises OpError unless it has these parameters in this order, and compares no Literal with a
    string.
    """
    names = list(parameters_of(role, function))
    required = ", ".join([*positional, *(["*", *keywords] if keywords else [])])
    matches = names == [*positional, *keywords]
    require(matches, f"parameters of the {role}", f"({', '.join(names)})", f"must be ({required})")
    check_comparisons(role, function, operator)
    return compilable(function)


def check_comparisons(role: str, function: FunctionType, operator: Operator) -> None:
    """Raise OpError if a function compares a position of a Literal with a string.

    Compiled code would find the two unequal without an error. The check includes the marked
    functions that it calls.
    """
    if any(a.kind == "text" for a in operator.attributes):
        return  # a shape function without a kernel gets strings
    choices = {
        choice: f"{a.name} == {k}"
        for a in operator.attributes
        for k, choice in enumerate(a.choices)
    }
    functions = [function]
    for called in functions:  # grows in the loop
        code = called.__code__
        location = f"{Path(code.co_filename).name}, line {code.co_firstlineno}"
        loads = list(loaded(called))
        for k, (opname, _) in enumerate(loads):
            operands = loads[max(k - 2, 0) : k] if opname in ("COMPARE_OP", "CONTAINS_OP") else ()
            for _, value in operands:
                for text in value if isinstance(value, tuple | frozenset) else (value,):
                    if isinstance(text, str) and text in choices:
                        rule = "compares with a string, but gets a Literal as its position:"
                        require(False, role, location, f"{rule} write {choices[text]} for {text!r}")
        functions += [
            f
            for _, f in loads
            if isinstance(f, FunctionType) and f in flags_of and f not in functions
        ]


def loaded(function: FunctionType) -> Iterator[tuple[str, object]]:
    """Yield (name of an instruction, what it loads) of a function.

    The latter is a constant, a global or a closure value, or None.
    """
    code = function.__code__
    value = None
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    around = function.__globals__ | {
        name: cell.cell_contents for name, cell in cells if cell != CellType()
    }
    for instruction in dis.get_instructions(code):
        if instruction.opname == "LOAD_CONST":
            value = instruction.argval
        elif instruction.opname in ("LOAD_GLOBAL", "LOAD_DEREF"):
            value = around.get(instruction.argval)
        elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and isinstance(value, ModuleType):
            value = getattr(value, instruction.argval, None)
        else:
            value = None
        yield instruction.opname, value


def compilable(function: FunctionType) -> FunctionType:
    """Return the function for compiled code, with keyword-only parameters as positional ones."""
    code = function.__code__
    if code.co_flags & inspect.CO_VARARGS:
        return function  # of an operator with a variadic input, which has no kernel
    if code.co_kwonlyargcount:
        plain_code = code.replace(
            co_argcount=code.co_argcount + code.co_kwonlyargcount, co_kwonlyargcount=0
        )
        copy = FunctionType(
            plain_code, function.__globals__, function.__name__, None, function.__closure__
        )
        copy.__module__ = function.__module__
        copy.__qualname__ = function.__qualname__
        function = copy
    return jitable(function)
