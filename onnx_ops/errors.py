"""The one exception of this package, and the one way in which a rule refuses a value."""

import re
from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

SHOWN = 400  # characters of a value or name: ONNX Runtime cuts messages at about 2,000, and the rule comes last
_terms: ContextVar[Mapping] = ContextVar("terms", default=MappingProxyType({}))  # of the operator whose plan is at work


class OpError(ValueError):
    """A value that an operator cannot work with.

    operator  who refuses, with the node's name where one is known
    argument  the name of what is refused
    value     the text of its value as the message shows it: `repr` of a string, of a long text beginning and end
    rule      what the value breaks

    The message consists of these four, which are the same in a function and in a session of either backend. In an
    ordinary session the error arrives as ONNX Runtime's own exception type, with the same message. A failure of another
    kind has no argument and no value (None), and its description for a rule.
    """

    def __init__(self, argument: Any, value: object, rule: str, operator: str | None = None) -> None:
        text = None if argument is None else shown(value)
        super().__init__(argument, text, rule, operator)
        self.argument, self.value, self.rule, self.operator = argument, text, rule, operator

    def __str__(self) -> str:
        where = f"{self.operator}: " if self.operator else ""
        what = f"{self.argument} = {self.value}: " if self.argument else ""
        return where + what + self.rule


def shown(value):
    """Its text, or of a long one the beginning and the end."""
    text = str(value)
    if len(text) <= SHOWN:
        return text
    cut = len(text) - SHOWN // 4
    backslashes = cut - len(text[:cut].rstrip("\\"))
    cut += backslashes % 2  # what an escape consists of stays together, as whoever reads the text back relies on
    return f"{text[: SHOWN // 2]} ... {text[cut:]}"


# Characters that a message shows by their number: what can't be seen, or changes how the rest looks. native/words.c has
# the same list.
_HIDDEN = re.compile(
    "[\0-\x1f\x7f-\xa0\xad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\uf8ff\ufeff\ufff0-\ufffb\U000e0000-\U0010ffff]"
)
_ESCAPES = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def quoted(text):
    """A string as Python writes it, but for which characters of Unicode are shown by their number."""

    def number(found):
        code = ord(found[0])
        return _ESCAPES.get(found[0]) or (
            f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
        )

    quote = '"' if "'" in text and '"' not in text else "'"
    return quote + _HIDDEN.sub(number, text.replace("\\", r"\\").replace(quote, "\\" + quote)) + quote


class named:
    """A context in which an OpError gets the operator's name, and `require` the operator's words for its arguments."""

    def __init__(self, operator, node=""):
        self.title = operator.title + (f" (node {shown(quoted(node))})" if node else "")
        self.terms = operator.terms

    def __enter__(self):
        self.before = _terms.set(self.terms)

    def __exit__(self, kind, error, traceback):
        _terms.reset(self.before)
        if isinstance(error, OpError) and error.operator is None:
            OpError.__init__(error, error.argument, error.value, error.rule, self.title)


def require(condition: object, argument: str, value: Any, rule: str, expected: int | None = None) -> None:
    """Raise OpError unless the condition holds: `argument = value` breaks the `rule`.

    value     a number, or a sequence of numbers
    expected  a number that the message has after the rule, which must be a literal text in compiled code

    Operators' functions refuse by this, compiled or not. Names of arguments may stand in braces in `argument` and
    `rule`, such as "shape of {input}": the message then has the operator's own term for them (`Operator.terms`), or
    else the name itself.
    """
    if not condition:
        value = [int(v) for v in value] if hasattr(value, "tolist") or isinstance(value, list | tuple) else value
        rule = spelled(rule)
        raise OpError(spelled(argument), value, rule if expected is None else f"{rule} {expected}")


def spelled(text):
    """`text` with each {name} replaced by the operator's term for it."""
    terms = _terms.get()
    return re.sub(r"\{(\w+)\}", lambda name: terms.get(name[1], name[1]), text)
