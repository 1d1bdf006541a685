"""The one exception of this package, and the one way in which a rule refuses a value."""


class OpError(ValueError):
    """A value that an operator cannot work with.

    Its text names the operator, the argument, the argument's value and the rule that the value breaks.
    In a session it arrives as ONNX Runtime's own exception type with the same text.
    """

    def __init__(self, argument, value, rule, operator=None):
        super().__init__(argument, value, rule, operator)
        self.argument, self.value, self.rule, self.operator = argument, value, rule, operator

    def __str__(self):
        where = f"{self.operator}: " if self.operator else ""
        return f"{where}{self.argument} = {self.value}: {self.rule}"


def refuse(argument, value, rule, expected=None):
    """Say that `argument = value` breaks `rule` (followed by the `expected` value, if one is given).

    A plan (see `operator.py`) returns what this returns. Run by Python it raises `OpError`; compiled it is just
    the number 1, upon which the caller runs the same plan again in Python for the words.
    """
    shown = [int(v) for v in value] if hasattr(value, "__len__") and not isinstance(value, str) else value
    raise OpError(argument, shown, rule if expected is None else f"{rule} {expected}")
