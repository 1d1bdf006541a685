"""Docstrings of public names: they document each parameter once, with its default, and their
examples work.
"""

import doctest
import inspect
import pydoc
import re
from importlib.util import find_spec

import numpy as np
import pytest
from support.pages import ROOT

import onnx_ops
from onnx_ops.custom.operator import CustomOperator
from onnx_ops.native import library

NAMES_OF_EXPORT = "export", "translations", "com_microsoft_grid_sample"
PUBLIC = {
    name: getattr(onnx_ops, name)
    for name in onnx_ops.__all__
    if name not in ("FLOATS", "INTEGERS", "export")
}
PUBLIC |= {f"export.{name}": getattr(onnx_ops.export, name) for name in NAMES_OF_EXPORT}
METHODS = {
    f"CustomOperator.{name}": getattr(CustomOperator, name)
    for name in ("__call__", "shape", "kernel", "gradient")
}
NEEDS = {  # of examples
    "build": "numba",
    "CustomOperator.kernel": "numba",
    "export.export": "onnxscript",
    "export.translations": "torch",
    "export.com_microsoft_grid_sample": "torch",
    "lower": "onnxruntime_extensions",
}
LONG = {
    "build",
    "warmup",
    *(f"export.{name}" for name in NAMES_OF_EXPORT),
}  # they compile, or import PyTorch
SECTIONS = [
    "Parameters",
    "Attributes",
    "Returns",
    "Raises",
    "See Also",
    "Examples",
]  # in this order
SECTION = re.compile(r"^(\w[\w ]*)\n(-+)\n", re.MULTILINE)
ENTRY = re.compile(r"^(\*{0,2}\w+(?:, \w+)*)(?: : (.+))?\n((?: {4}.*\n|\n)+)", re.MULTILINE)
FLAGS = doctest.NORMALIZE_WHITESPACE


def sections(text):
    """Return {heading: its text} of a docstring in NumPy's style; what comes before the first one
    is "".
    """
    parts = SECTION.split(text + "\n")
    assert all(len(a) == len(b) for a, b in zip(parts[1::3], parts[2::3], strict=True)), (
        "an underline's length"
    )
    return {"": parts[0], **dict(zip(parts[1::3], parts[3::3], strict=True))}


def entries(text):
    """Yield (name, type, description) of the parameters in a section; those that share a line have
    the same.
    """
    for names, kind, description in ENTRY.findall(text):
        for name in names.split(", "):
            yield name, kind, description


def shown(parameter):
    """Return the name of a parameter as docstrings have it."""
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}
    return stars.get(parameter.kind, "") + parameter.name


@pytest.mark.parametrize("name", [*PUBLIC, *METHODS])
def test_sections(name):
    value = (PUBLIC | METHODS)[name]
    text = inspect.getdoc(value)
    first, _, rest = text.partition("\n")
    assert len(first) <= 80
    assert first.endswith(".")
    assert rest.startswith("\n"), "an empty line comes after the first one"
    found = [*sections(text)][1:]
    assert found == [section for section in SECTIONS if section in found]
    assert "Examples" in found or name in METHODS


@pytest.mark.parametrize("name", [*PUBLIC, *METHODS])
def test_parameters(name):
    """Each parameter of the signature is documented once, in order, with a type and the default."""
    value = (PUBLIC | METHODS)[name]
    signature = inspect.signature(value)
    parameters = [p for p in signature.parameters.values() if p.name != "self"]
    documented = [*entries(sections(inspect.getdoc(value)).get("Parameters", ""))]
    assert [each for each, _, _ in documented] == [*map(shown, parameters)]
    for p, (_, kind, description) in zip(parameters, documented, strict=True):
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            continue
        assert kind, f"{p.name} has no type"
        assert description.strip(), f"{p.name} has no description"
        if p.default not in (p.empty, None, ()):
            default = f'"{p.default}"' if isinstance(p.default, str) else repr(p.default)
            assert kind.endswith(f", default {default}"), f"{p.name} has another default"
        elif p.default is p.empty:
            assert "optional" not in kind
            assert "default" not in kind


@pytest.mark.parametrize("name", [*PUBLIC, *METHODS])
def test_returns(name):
    value = (PUBLIC | METHODS)[name]
    returned = inspect.signature(value).return_annotation
    returns_nothing = isinstance(value, type) or returned in (None, "None")
    assert ("Returns" in sections(inspect.getdoc(value))) != returns_nothing


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.long] * (name in LONG)) for name in PUBLIC | METHODS],
)
@pytest.mark.filterwarnings(
    "ignore:.*:DeprecationWarning", "ignore:.*:FutureWarning"
)  # PyTorch's, at export
def test_examples(name, directory):
    needed = NEEDS.get(name)
    if needed and (not find_spec(needed) or (needed == "numba" and not library.have_numba())):
        pytest.skip(f"needs {needed}")
    text = inspect.getdoc((PUBLIC | METHODS)[name])
    names = {"np": np, "onnx_ops": onnx_ops, "__name__": "example"}
    test = doctest.DocTestParser().get_doctest(text, names, name, None, 0)
    output = []
    doctest.DocTestRunner(optionflags=FLAGS).run(test, out=output.append)
    assert not output, "".join(output)


def test_every_public_name_is_on_a_page():
    pages = "\n".join(page.read_text() for page in (ROOT / "docs/reference").glob("*.rst"))
    directive = re.compile(
        r"^\.\. (?:auto|py:)(?:function|class|data):: (?:onnx_ops\.)?([\w.]+)", re.MULTILINE
    )
    wanted = {*PUBLIC, "FLOATS", "INTEGERS", "custom.operator.CustomOperator"}
    assert {*directive.findall(pages)} == wanted


@pytest.mark.parametrize("name", ["col2im", "deform_conv", "grid_sample"])
def test_help_shows_the_signature(name):
    """`help` takes a function on arrays for a function, and shows annotations as the source has
    them.
    """
    value = PUBLIC[name]
    text = pydoc.render_doc(value, renderer=pydoc.plaintext)
    first = next(iter(inspect.signature(value).parameters))
    assert f"\n{name}({first}: 'ArrayLike', " in text
    assert inspect.getdoc(value).partition("\n")[0] in text
