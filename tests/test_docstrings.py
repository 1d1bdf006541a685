"""Docstrings of public names: they document each parameter once, with its default, and their
examples work.
"""

import builtins
import dataclasses
import doctest
import inspect
import pydoc
import re
from importlib.util import find_spec

import numpy as np
import pytest
from support.pages import ROOT

import onnx_ops
from onnx_ops import declare
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
PARTS = {  # of declarations; docs/operator-declarations.md has their example
    f"declare.{name}": getattr(declare, name)
    for name in declare.__all__
    if callable(getattr(declare, name)) and getattr(declare, name) not in PUBLIC.values()
}
CALLABLES = PUBLIC | METHODS | PARTS
# They take no value that they could refuse, or hold what is given.
RAISE_NOTHING = {
    "OpError", "jitable", "node_counts", "operators", "declare.Geometry",
    "declare.Input", "declare.Kernel", "declare.Output", "declare.Plan", "declare.share",
    "declare.vector",
}  # fmt: skip
OF_ARRAYS = "col2im", "deform_conv", "deformable_attention", "grid_sample", "im2col", "roi_align"
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
    "Notes",
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


def has_unstated_default(default):
    """Return whether a type needn't state the default: that of a field with a factory, or bounds
    with more digits than a reader reads.
    """
    return isinstance(default, type(dataclasses._HAS_DEFAULT_FACTORY)) or (
        isinstance(default, tuple) and default and max(map(abs, default)) >= 2**63 - 1
    )


@pytest.mark.parametrize("name", CALLABLES)
def test_sections(name):
    value = CALLABLES[name]
    text = inspect.getdoc(value)
    first, _, rest = text.partition("\n")
    assert len(first) <= 80
    assert first.endswith(".")
    assert rest.startswith("\n"), "an empty line comes after the first one"
    found = [*sections(text)][1:]
    assert found == [section for section in SECTIONS if section in found]
    assert "Examples" in found or name in METHODS or name in PARTS


@pytest.mark.parametrize("name", CALLABLES)
def test_parameters(name):
    """Each parameter of the signature is documented once, in order, with a type and the default."""
    value = CALLABLES[name]
    signature = inspect.signature(value)
    parameters = [p for p in signature.parameters.values() if p.name != "self"]
    documented = [*entries(sections(inspect.getdoc(value)).get("Parameters", ""))]
    assert [each for each, _, _ in documented] == [*map(shown, parameters)]
    for p, (_, kind, description) in zip(parameters, documented, strict=True):
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            continue
        assert kind, f"{p.name} has no type"
        assert description.strip(), f"{p.name} has no description"
        if has_unstated_default(p.default):
            assert kind.endswith(", optional"), f"{p.name} may be left out"
        elif p.default not in (p.empty, None, ()):
            default = f'"{p.default}"' if isinstance(p.default, str) else repr(p.default)
            default = p.default.__name__ if isinstance(p.default, type) else default
            assert kind.endswith(f", default {default}"), f"{p.name} has another default"
        elif p.default is p.empty:
            assert "optional" not in kind
            assert "default" not in kind


@pytest.mark.parametrize("name", CALLABLES)
def test_returns(name):
    value = CALLABLES[name]
    returned = inspect.signature(value).return_annotation
    returns_nothing = isinstance(value, type) or returned in (None, "None")
    assert ("Returns" in sections(inspect.getdoc(value))) != returns_nothing


@pytest.mark.parametrize("name", CALLABLES)
def test_raises(name):
    """It says which exceptions a call raises, and when."""
    text = sections(inspect.getdoc(CALLABLES[name])).get("Raises", "")
    raised = [*entries(text)]
    assert bool(raised) != (name in RAISE_NOTHING)
    for error, _, description in raised:
        assert error == "OpError" or issubclass(getattr(builtins, error), Exception)
        assert description.strip(), f"{name} does not say when it raises {error}"


@pytest.mark.parametrize("name", OF_ARRAYS)
def test_functions_on_arrays(name):
    """The docstring alone is enough to call one: shapes, units, the formula and its source."""
    text = sections(inspect.getdoc(PUBLIC[name]))
    kinds = [kind for _, kind, _ in entries(text["Parameters"])]
    for i, kind in zip(PUBLIC[name].declaration.inputs, kinds, strict=False):
        assert "shape (" in kind or "shape `(" in kind or i.values, f"{i.name} has no shape"
    assert "shape" in text["Returns"]
    assert "dtype of `" in text["Returns"]
    assert re.search(r"[Pp]ixels?\b", text["Parameters"]), "no unit"
    assert "Source: " in text["Notes"]


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
    wanted = {*PUBLIC, *PARTS, "FLOATS", "INTEGERS", "custom.operator.CustomOperator"}
    wanted |= {"declare.MAX_TILES", "declare.UNKNOWN"}
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
