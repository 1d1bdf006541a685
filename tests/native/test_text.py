"""Messages of the C library without Python (native/text.c and refusal.c): plain, of limited length,
in ASCII.
"""

import ctypes as C
import re
import subprocess
import sys

import numpy as np
import pytest
from support import native
from support.native import SOURCES

from onnx_ops.native import table

pytestmark = pytest.mark.skipif(
    sys.platform == "win32" or not native.accepts("gcc", ["-shared", "-fPIC"]), reason="needs gcc"
)
CHARACTERS = [
    *"a ~'\"\\\n\r\t\0\x1f\x7f\xa0\xa1\xad\xe9\u07ff",
    *"\u0800\u200b\u2028\u20ac\ud7ff\ue000\uf900\ufeff\ufffd",
    *"\U00010000\U0001f600\U000e0001\U0010ffff",
]
NO_UTF_8 = [
    b"\x80", b"\xbf", b"\xc1\xbf", b"\xc3", b"\xc3(", b"\xe2\x82", b"\xe2\x28\xa1", b"\xe0\x9f\xbf",
    b"\xed\xa0\x80",
    b"\xf0\x9f\x98", b"\xf0\x8f\xbf\xbf", b"\xf4\x90\x80\x80", b"\xf8\x88\x80\x80\x80", b"\xff",
]  # fmt: skip
STRINGS = [
    b"", *(c.encode() for c in CHARACTERS), *NO_UTF_8, *(b"a" + each + b"'z" for each in NO_UTF_8),
    bytes(range(256)),
    b"\xff" * 200, b"a" * 201, "\u20ac".encode() * 2000,
]  # fmt: skip


class Text(C.Structure):
    _fields_ = (("at", C.c_char * 4096), ("used", C.c_size_t))

    def content(self) -> str:
        content = C.string_at(C.addressof(self), self.used)
        assert self.used < 4096
        assert C.string_at(C.addressof(self) + self.used, 1) == b"\0"
        return content.decode()


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    sources = [SOURCES / f"{name}.c" for name in ("text", "refusal", "ort")]
    command = ["gcc", "-shared", "-fPIC", "-O1", f"-I{SOURCES}", *sources, "-o", "libtext.so"]
    subprocess.run(command, cwd=folder, check=True)
    loaded = C.CDLL(str(folder / "libtext.so"))
    loaded.plain_refusal.restype = Text
    return loaded


def as_shown(content: bytes) -> str:
    """Return what a message shows of a string: its first 200 bytes, as ASCII."""
    plain = set(range(32, 127)) - set(b"'\\")
    shown = "".join(chr(byte) if byte in plain else rf"\x{byte:02x}" for byte in content[:200])
    return f"'{shown}...'" if len(content) > 200 else f"'{shown}'"


def message(library, refusal, node=None, note=None, operator=None):
    """Return the message for a refusal by an operator of this row, d.Op by default."""
    operator = operator or table.Operator(domain=b"d", name=b"Op")
    name = (
        None
        if node is None
        else C.byref(table.Name(C.cast(C.c_char_p(node), C.c_void_p), len(node)))
    )
    return library.plain_refusal(C.byref(operator), name, C.byref(refusal), note).content()


def refusal_of(values, single=False, **fields):
    """Return a refusal of an array of int64 or double, or of bytes."""
    if isinstance(values, bytes):
        values, kinds = (
            np.frombuffer(values + bytes(8 - len(values) % 8), np.uint8)[: len(values)],
            table.OF_TEXT,
        )
    else:
        kinds = table.OF_DOUBLES if values.dtype == np.float64 else 0
    refusal = table.Refusal(
        argument=b"a", rule=b"r", values=values.ctypes.data, kinds=kinds, **fields
    )
    refusal.count, refusal.array = -1 if single else values.size, values
    return refusal


@pytest.mark.parametrize("content", STRINGS, ids=lambda content: ascii(content[:9]))
def test_strings(library, content):
    """No byte of a model reaches a terminal that could change how it shows the rest."""
    text = message(library, refusal_of(content), node=content)
    assert (
        text == f"d.Op{f' (node {as_shown(content)})' * bool(content)}: a = {as_shown(content)}: r"
    )
    assert text.isascii()
    assert text.isprintable()


def test_what_is_a_text(library):
    for content in STRINGS:
        try:
            content.decode()
            is_text = True
        except UnicodeDecodeError:
            is_text = False
        assert library.is_text(content, C.c_size_t(len(content))) == is_text, content


INTEGERS = np.array([0, -1, 2**63 - 1, -(2**63)])
DOUBLES = np.array([0.0, -1.5, 0.1, 1e22, 5e-324, np.inf, -np.inf, np.nan, 1 / 3])


@pytest.mark.parametrize("numbers", [INTEGERS, DOUBLES], ids=["integers", "doubles"])
def test_numbers(library, numbers):
    for number in numbers:
        shown = f"{number:.9g}" if numbers.dtype == np.float64 else str(number)
        expected, kinds = (
            int(np.array([number]).view(np.int64)[0]),
            3 * (numbers.dtype == np.float64),
        )
        refusal = refusal_of(np.array([number]), single=True, has_expected=1, expected=expected)
        refusal.kinds = kinds
        assert message(library, refusal) == f"d.Op: a = {shown}: r {shown}"
    for count in (0, 1, 2, 31, 32, 33, 10_000):
        values = np.resize(numbers, count)
        shown = [f"{n:.9g}" if numbers.dtype == np.float64 else str(n) for n in values[:32]]
        end = ", ..." * (count > 32)
        assert message(library, refusal_of(values)) == f"d.Op: a = [{', '.join(shown)}{end}]: r"


def test_notes_and_failures(library):
    """A note follows the values. A failure of compiled code has no argument."""
    nothing = table.Refusal(argument=b"a", rule=b"r")
    assert message(library, nothing, note=b"None") == "d.Op: a = None: r"
    assert (
        message(library, refusal_of(np.array([7, 8])), note=b"bytes") == "d.Op: a = [7, 8] bytes: r"
    )
    failure = table.Refusal(rule=b"has failed")
    assert message(library, failure, node=b"n") == "d.Op (node 'n'): has failed"
    assert (
        message(library, failure, operator=table.Operator(domain=b"", name=b"Op"))
        == "Op: has failed"
    )


def test_terms_of_an_operator(library):
    """A name in braces stands for the operator's own term, or for itself; a brace that isn't closed
    stays.
    """
    terms = (C.c_char_p * 4)(b"input", b"data", b"in", b"x")
    operator = table.Operator(domain=b"d", name=b"Op", terms=terms, term_count=2)
    refusal = refusal_of(np.array([3, -4]))
    refusal.argument, refusal.rule = b"shape of {input}", b"{in} and {inputs} {"
    assert (
        message(library, refusal, operator=operator)
        == "d.Op: shape of data = [3, -4]: x and inputs {"
    )


@pytest.mark.parametrize("character", ["a", "\u20ac", "\U0001f600"])
def test_a_message_ends_where_its_room_does(library, character):
    """It ends with a whole character."""
    for k in range(5):
        text = Text()
        for content in (b"b" * (4090 + k), character.encode() * 9, b"c"):
            library.say(C.byref(text), content, C.c_size_t(len(content)))
        assert re.fullmatch(rf"b+{character}*c?", text.content())
        assert text.used + (character != "a") * (len(character.encode()) - 1) >= 4095


def test_the_longest_message_has_its_rule(library):
    numbers = refusal_of(np.resize(INTEGERS[3:], 100))
    assert message(library, numbers, node=b"\xff" * 1000).endswith(", ...]: r")
