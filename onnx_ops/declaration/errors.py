"""The exception of this package, and `require`, by which rules refuse values."""

from __future__ import annotations

import re
from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Any

# Characters of a value or name: ONNX Runtime cuts messages at about 2,000, and the rule comes last.
SHOWN = 400
# The terms of the operator in `errors_of`.
_terms: ContextVar[Mapping[str, str]] = ContextVar("terms", default=MappingProxyType({}))


class OpError(ValueError):
    """A value that an operator refuses, or a failure of this package.

    The message consists of the attributes: "operator: argument = value: rule".
    It is the same in a function and in a session of either backend, where the
    operator has the node's name if the session can't be made. An ordinary
    session raises ONNX Runtime's exceptions, which end with this message.

    Parameters
    ----------
    argument : str or None
        The name of what is refused. None: another kind of failure, without a
        value.
    value : object
        The value that is refused.
    rule : str
        The rule that the value breaks, or the description of a failure.
    operator : str, optional
        The operator, with the node's name if it is known.

    Attributes
    ----------
    argument : str or None
        The name of what is refused.
    value : str or None
        The value as the message shows it. A long one is cut in the middle.
    rule : str
        The rule that the value breaks, or the description of a failure.
    operator : str or None
        The operator, with the node's name if it is known.

    Examples
    --------
    >>> try:
    ...     onnx_ops.im2col(np.ones((1, 1, 4, 4)), [2, 2], strides=[0, 1])
    ... except onnx_ops.OpError as error:
    ...     print(error)
    ...     print(error.argument, error.value, sep=", ")
    onnx_ops.Im2Col: strides = [0, 1]: must be 1 to 14 numbers in [1, 2**40]
    strides, [0, 1]
    """

    def __init__(
        self, argument: Any, value: object, rule: str, operator: str | None = None
    ) -> None:
        text = None if argument is None else shortened(value)
        super().__init__(argument, text, rule, operator)
        self.argument, self.value, self.rule, self.operator = argument, text, rule, operator

    def __str__(self) -> str:
        where = f"{self.operator}: " if self.operator else ""
        subject = f"{self.argument} = {self.value}: " if self.argument else ""
        # A compiler's message has several lines.
        return escaped(where + subject) + escaped(self.rule, kept="\n")


def reason(error: BaseException) -> str:
    """Return the type of an exception and its text, if it has one."""
    try:
        text = str(error)
    except Exception:
        text = "its text is unavailable"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def shortened(value: object) -> str:
    """Return the text of a value, or its beginning and its end if it is long."""
    text = str(value)
    if len(text) <= SHOWN:
        return text
    cut = len(text) - SHOWN // 4
    backslashes = cut - len(text[:cut].rstrip("\\"))
    cut += backslashes % 2  # don't split an escape: the text may be read back
    return f"{text[: SHOWN // 2]} ... {text[cut:]}"


# Characters that a message shows as escapes, because they are invisible or change how others look.
# A text, which `re` compiles when it is first used: `import onnx_ops` stays light.
_HIDDEN = (
    "[\0-\x1f\x7f-\xa0\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ud800-\uf8ff\ufeff\ufff0-\ufffb\U000e0000-\U0010ffff]"
)


def as_text(text: str | bytes) -> str:
    """Return a protobuf's string as text; it is bytes if it isn't UTF-8."""
    return text.decode(errors="replace") if isinstance(text, bytes) else text


def escaped(text: str | bytes, kept: str = "") -> str:
    """Return a stranger's text with the characters of _HIDDEN as escapes.

    It can be shown on a terminal, in a log or an error.

    kept  characters of _HIDDEN that stay, such as the newlines of a traceback
    """
    escape = lambda match: (
        match[0] if match[0] in kept else match[0].encode("unicode_escape").decode()
    )
    return re.sub(_HIDDEN, escape, as_text(text))


def quoted(text: str | bytes) -> str:
    """Return a string as `repr` does, with the escapes of _HIDDEN: a literal of Python.

    protobuf has bytes for a string that isn't UTF-8. Invalid bytes become U+FFFD.
    """
    text = as_text(text)
    quote = '"' if "'" in text and '"' not in text else "'"
    return quote + escaped(text.replace("\\", r"\\").replace(quote, "\\" + quote)) + quote


class errors_of:
    """A context that adds the title of an operator to an OpError.

    In it, `require` uses the operator's terms.
    """

    def __init__(self, operator: Any, node: str | bytes = "") -> None:
        self.operator = operator.title
        self.terms = operator.terms
        self.title = self.operator + (f" (node {shortened(quoted(node))})" if node else "")

    def __enter__(self) -> None:
        self.before = _terms.set(self.terms)

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _terms.reset(self.before)
        if isinstance(error, OpError) and error.operator in (None, self.operator):
            OpError.__init__(error, error.argument, error.value, error.rule, self.title)


def plain_number(value: Any) -> Any:
    """Convert a number to int or float, as compiled code has it; return other values unchanged."""
    if isinstance(value, bool) or hasattr(value, "__index__"):
        return int(value)
    return float(value) if hasattr(value, "__float__") else value


def require(
    condition: object, argument: str, value: Any, rule: str, expected: float | None = None
) -> None:
    """Raise OpError unless a condition holds, for "argument = value: rule".

    Operators' functions refuse values by this function, compiled or not.

    Parameters
    ----------
    condition : bool
        The condition.
    argument : str
        The name of what is refused. A name in braces, as in "shape of {input}",
        is replaced by the operator's own term for it.
    value : int, float or sequence of these
        The value that is refused.
    rule : str
        The rule, with the same replacements. In compiled code it must be a
        literal.
    expected : int or float, optional
        A number that the message shows after the rule.

    Raises
    ------
    OpError
        The condition is false.

    Examples
    --------
    >>> onnx_ops.require(3 > 4, "size", 3, "must be more than", 4)
    Traceback (most recent call last):
    onnx_ops.declaration.errors.OpError: size = 3: must be more than 4
    """
    if not condition:
        # From an array or a NumPy scalar.
        value = value.tolist() if hasattr(value, "tolist") else value
        if isinstance(value, list | tuple):
            numbers = list(map(plain_number, value))
            value = (
                list(map(float, numbers)) if any(isinstance(v, float) for v in numbers) else numbers
            )
        else:
            value = plain_number(value)
        expected = plain_number(expected)
        rule = in_own_terms(rule)
        raise OpError(
            in_own_terms(argument), value, rule if expected is None else f"{rule} {expected}"
        )


def in_own_terms(text: str) -> str:
    """Return `text` with each {name} replaced by the operator's term for it."""
    terms = _terms.get()
    return re.sub(r"\{(\w+)\}", lambda name: terms.get(name[1], name[1]), text)
