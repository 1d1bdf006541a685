"""Error messages of the C library (native/text.c), against those that errors.py makes of the same values."""

import ctypes as C
import random
import re
import subprocess
import sys

import numpy as np
import pytest
from support import native
from support.native import SOURCES

from onnx_ops.declaration.errors import quoted, shortened
from onnx_ops.native import table

pytestmark = pytest.mark.skipif(
    sys.platform == "win32" or not native.accepts("gcc", ["-shared", "-fPIC"]), reason="needs gcc"
)
CHARACTERS = [
    *"a ~'\"\\\n\r\t\0\x1f\x7f\xa0\xa1\xad\xe9\u07ff\u0800\u200b\u2028\u20ac\ud7ff\ue000\uf900\ufeff\ufffd",
    *"\U00010000\U0001f600\U000e0001\U0010ffff",
]
NO_UTF_8 = [
    b"\x80", b"\xbf", b"\xc1\xbf", b"\xc3", b"\xc3(", b"\xe2\x82", b"\xe2\x28\xa1", b"\xe0\x9f\xbf", b"\xed\xa0\x80",
    b"\xf0\x9f\x98", b"\xf0\x8f\xbf\xbf", b"\xf4\x90\x80\x80", b"\xf8\x88\x80\x80\x80", b"\xff",
]  # fmt: skip
DOUBLES = [
    0.0, -0.0, 1.0, -1.5, 0.1, 1e-4, 9.999e-5, 1e15, 1e16, 123456789012345.6, 1e22, 1e100, 5e-324, 2.0**-1022, 2 / 3,
    1.7976931348623157e308, float("inf"), -float("inf"), float("nan"), 1e-10, 0.001, 100.0,
]  # fmt: skip


class Text(C.Structure):
    _fields_ = (("at", C.c_char * 4096), ("used", C.c_size_t))

    def said(self):
        content = C.string_at(C.addressof(self), self.used)
        assert self.used < 4096
        assert C.string_at(C.addressof(self) + self.used, 1) == b"\0"
        return content.decode()


class Refusal(C.Structure):
    _fields_ = (
        ("argument", C.c_char_p), ("rule", C.c_char_p), ("values", C.c_void_p), ("count", C.c_int64),
        ("has_expected", C.c_int64), ("expected", C.c_int64), ("doubles", C.c_int64), ("shown", C.c_int64 * 32),
    )  # fmt: skip


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    command = ["gcc", "-shared", "-fPIC", "-O1", f"-I{SOURCES}", SOURCES / "text.c", "-o", "libtext.so"]
    subprocess.run(command, cwd=folder, check=True)
    return C.CDLL(str(folder / "libtext.so"))


def as_shown(content):
    """The text of bytes, with U+FFFD for each byte that begins no character."""
    return re.sub("[\udc80-\udcff]", "\ufffd", content.decode(errors="surrogateescape"))


def strings():
    """Short ones, each with one of the characters, and long ones of random characters, which are cut."""
    yield from (b"", *(c.encode() for c in CHARACTERS), *NO_UTF_8, *(b"a" + each + b"'z" for each in NO_UTF_8))
    rng = random.Random(0)
    for length in [2, 3, 10, 100, 395, 398, 399, 400, 401, 402, *[rng.randrange(300, 1500) for _ in range(200)]]:
        some = rng.sample(CHARACTERS, rng.randrange(1, 6))
        yield b"".join(rng.choice([*(c.encode() for c in some), rng.choice(NO_UTF_8)]) for _ in range(length))
        yield "".join(rng.choices([*some, "\\"], k=length)).encode()
    yield b"\\" * 3000


def test_strings(library):
    for content in strings():
        text = Text()
        library.say_quoted(C.byref(text), content, C.c_size_t(len(content)))
        assert text.said() == shortened(quoted(as_shown(content)))


def test_what_is_a_text(library):
    for content in strings():
        try:
            content.decode()
            is_text = True
        except UnicodeDecodeError:
            is_text = False
        assert library.is_text(content, C.c_size_t(len(content))) == is_text, content


@pytest.mark.parametrize("kind", [np.int64, np.float64])
def test_numbers(library, kind):
    rng = np.random.default_rng(0)
    bits = rng.integers(-(2**63), 2**63 - 1, 3000, np.int64, endpoint=True)
    if kind == np.float64:
        decimal = rng.integers(-9999, 9999, 2000) * 10.0 ** rng.integers(-25, 25, 2000)
        numbers = np.concatenate([DOUBLES, bits.view(np.float64), decimal])
    else:
        numbers = np.concatenate([bits >> rng.integers(0, 64, bits.size), np.iinfo(np.int64).min + np.arange(3), [0]])
    for count in [*range(12), *rng.integers(12, 200, 300).tolist(), numbers.size]:
        values = np.ascontiguousarray(rng.choice(numbers, count) if count < numbers.size else numbers)
        text = Text()
        address = C.c_void_p(values.ctypes.data)
        library.say_vector(C.byref(text), address, C.c_int64(count), C.c_int64(kind == np.float64))
        assert text.said() == shortened(values.tolist())
    for number in numbers.tolist():
        text = Text()
        refusal = Refusal(b"a", b"r", None, -1, 1, 0, 3 * (kind == np.float64))
        stored = np.array([number], kind)
        refusal.values, refusal.expected = stored.ctypes.data, int(stored.view(np.int64)[0])
        library.say_refusal(C.byref(text), C.byref(table.Operator()), C.byref(refusal))
        assert text.said() == f"a = {number}: r {number}"


def test_terms_of_an_operator(library):
    """A name in braces stands for the operator's own term, or for itself; a brace that isn't closed stays."""
    terms = (C.c_char_p * 4)(b"input", b"data", b"in", b"x")
    operator = table.Operator(terms=terms, term_count=2)
    values = (C.c_int64 * 2)(3, -4)
    refusal = Refusal(b"shape of {input}", b"{in} and {inputs} {", C.addressof(values), 2)
    text = Text()
    library.say_refusal(C.byref(text), C.byref(operator), C.byref(refusal))
    assert text.said() == "shape of data = [3, -4]: x and inputs {"


def test_a_message_ends_where_its_room_does(library):
    text = Text()
    for k in range(1, 200):
        library.say(C.byref(text), bytes([64 + k % 26]) * k, C.c_size_t(k))
    assert text.said() == "".join(chr(64 + k % 26) * k for k in range(1, 200))[:4095]
