"""The one exception of this package, and the one way in which a rule refuses a value."""

SHOWN = 400  # characters of a value or name: ONNX Runtime cuts messages at about 2,000, and the rule comes last


class OpError(ValueError):
    """A value that an operator cannot work with.

    Its text names the operator, the argument, the argument's value and the rule that the value breaks. In an ordinary
    session it arrives as ONNX Runtime's own exception type, with the same text. (A failure of another kind has no
    argument, and its description for a rule.)
    """

    def __init__(self, argument: str, value: object, rule: str, operator: str | None = None) -> None:
        super().__init__(argument, value, rule, operator)
        self.argument, self.value, self.rule, self.operator = argument, value, rule, operator

    def __str__(self) -> str:
        where = f"{self.operator}: " if self.operator else ""
        what = f"{self.argument} = {shown(self.value)}: " if self.argument else ""
        return where + what + self.rule


def shown(value):
    """Its text, or of a long one the beginning and the end."""
    text = str(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN // 2]} ... {text[-SHOWN // 4 :]}"


class named:
    """A context in which an OpError gets the operator's name."""

    def __init__(self, operator, node=""):
        self.title = operator.title + (f" (node {shown(node)!r})" if node else "")
        self.terms = operator.terms

    def __enter__(self):
        pass

    def __exit__(self, kind, error, traceback):
        if isinstance(error, OpError) and error.operator is None:
            error.operator = self.title
            for term, own in self.terms.items():
                error.argument, error.rule = (text and text.replace(term, own) for text in (error.argument, error.rule))
            error.args = (error.argument, error.value, error.rule, error.operator)


def refuse(argument, value, rule, expected=None):
    """Say that `argument = value` breaks `rule` (followed by the `expected` value, if one is given).

    A plan (see `operator.py`) returns what this returns. Run by Python it raises `OpError`; compiled it is just
    the number 1, upon which the caller runs the same plan again in Python for the words.
    """
    value = [int(v) for v in value] if hasattr(value, "__len__") and not isinstance(value, str) else value
    raise OpError(argument, value, rule if expected is None else f"{rule} {expected}")
