"""The pages of the operators have the same sections, and their tables are those of the
declarations.
"""

import re

import pytest
from support.pages import ROOT

from onnx_ops.declaration import dtypes
from onnx_ops.declaration.attributes import KINDS
from onnx_ops.registry import OPERATORS

PAGES = (
    "col2im",
    "im2col",
    "im2col_product",
    "grid_sample",
    "computed_grid_sample",
    "roi_align",
    "deform_conv",
    "deformable_attention",
    "mmdeploy",
    "suppression",
)
SECTIONS = [  # which begin each page, in this order
    "Computation",
    "Inputs",
    "Outputs",
    "Attributes",
    "Data types",
    "Errors",
    "Differences",
    "Example",
]
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
NAME = re.compile(r"`(\w+)`(?: to `\w+?_(\d+)`)?( \(optional\))?")
ONNX = "ai.onnx"  # how pages call the domain ""


def sections(page):
    """Return {heading: text} of a page; "" stands for what comes before the first one."""
    text = (ROOT / f"docs/{page}.md").read_text()
    # Headings are looked for outside of code, where # begins a comment.
    masked = CODE.sub(lambda match: re.sub(r"^#", "-", match[0], flags=re.MULTILINE), text)
    headings = [*re.finditer(r"^## (.+)\n", masked, re.MULTILINE)]
    begins = [0, *(heading.end() for heading in headings)]
    ends = [*(heading.start() for heading in headings), len(text)]
    names = ["", *(heading[1] for heading in headings)]
    return {n: text[b:e] for n, b, e in zip(names, begins, ends, strict=True)}


def rows(text, first):
    """Return the rows of the tables with a column `first`, as {column: cell}."""
    found = []
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        lines = [[cell.strip() for cell in line.strip("| \n").split(" | ")]
            for line in table.splitlines()]  # fmt: skip
        if first in lines[0]:
            found += [dict(zip(lines[0], line, strict=False)) for line in lines[2:]]
    return found


def words(cell):
    return [word.strip("` ") for word in cell.split(",")]


def is_for(row, operator):
    """Return whether a row is for an operator, by its columns `operator` and `domain`."""
    named = operator.name in words(row.get("operator", operator.name))
    return named and (operator.domain or ONNX) in words(row.get("domain", operator.domain or ONNX))


def named(rows, column, operator):
    """Yield (name, whether it is optional, row) of the names in a column, for an operator."""
    for row in rows:
        for name, last, optional in NAME.findall(row[column]) if is_for(row, operator) else ():
            stem = name.rpartition("_")[0]
            names = [f"{stem}_{k}" for k in range(int(last) + 1)] if last else [name]
            yield from ((n, bool(optional), row) for n in names)


def data_types(row, page_types, operator):
    """Return the data types that a row's type stands for: a variable of the page, or one itself."""
    for line in page_types:
        if line["type"] == row["type"] and is_for(line, operator):
            return dtypes.ALL if line["data types"] == "all" else tuple(words(line["data types"]))
    return (row["type"],)


OF_PAGE = {  # {page: the operators that its first table lists}
    page: [
        o for o in OPERATORS if any(is_for(row, o) for row in rows(sections(page)[""], "domain"))
    ]
    for page in PAGES
}


def test_each_operator_has_a_page():
    listed = [o.title for operators in OF_PAGE.values() for o in operators]
    assert sorted(listed) == sorted(o.title for o in OPERATORS)


@pytest.mark.parametrize("page", PAGES)
def test_sections(page):
    found = sections(page)
    assert [*found][1 : 1 + len(SECTIONS)] == SECTIONS
    assert all(found[name].strip() for name in SECTIONS)
    assert re.search(r"^ {4}\S|^\*\*", found["Computation"], re.MULTILINE), "no formula"
    assert "OpError" in found["Errors"]


@pytest.mark.parametrize("page", PAGES)
def test_differences(page):
    """They name implementations, and have figures with versions, or say that nothing was run."""
    text = sections(page)["Differences"]
    assert rows(text, "other implementation")
    assert "errors -->\n| largest error | onnx_ops | ONNX Runtime 1." in text or "not run" in text


@pytest.mark.parametrize("page", PAGES)
def test_example(page):
    """It asserts what the operator of the page returns."""
    codes = CODE.findall(sections(page)["Example"])
    assert any(code.startswith("```python") and "assert " in code for code in codes)


@pytest.mark.parametrize("page", PAGES)
def test_versions(page):
    listed = rows(sections(page)[""], "domain")
    for o in OF_PAGE[page]:
        (row,) = [row for row in listed if is_for(row, o)]
        assert tuple(map(int, words(row["versions"]))) == o.versions


@pytest.mark.parametrize("page", PAGES)
def test_inputs_and_outputs(page):
    """They are those of the declaration, in its order, with its data types."""
    found = sections(page)
    types = rows(found["Data types"], "data types")
    for o in OF_PAGE[page]:
        inputs = [*named(rows(found["Inputs"], "input"), "input", o)]
        outputs = [*named(rows(found["Outputs"], "output"), "output", o)]
        assert [(name, optional) for name, optional, _ in inputs] == [
            (i.name, i.presence == "optional") for i in o.inputs
        ]
        assert [name for name, _, _ in outputs] == [output.name for output in o.outputs]
        for declared, (name, _, row) in zip((*o.inputs, *o.outputs), inputs + outputs, strict=True):
            stated = data_types(row, types, o)
            assert {*stated} == {*o.types[declared.type]}, f"{name} of {o.title}"


@pytest.mark.parametrize("page", PAGES)
def test_attributes(page):
    """They are those of the declaration, with type, default, choices and other names."""
    listed = rows(sections(page)["Attributes"], "attribute")
    for o in OF_PAGE[page]:
        found = {name: row for name, _, row in named(listed, "attribute", o)}
        assert found.keys() == {a.name for a in o.attributes}
        for a in o.attributes:
            row = found[a.name]
            assert row["type"] == KINDS[a.kind].onnx.lower(), a.name
            assert (row["default"] == "required") == a.required, a.name
            if a.default is not None:
                shown = row["default"].strip('`"')
                same = (
                    shown == a.default if isinstance(a.default, str) else float(shown) == a.default
                )
                assert same, a.name
            assert {*a.choices, *a.other_names} <= {*re.findall(r"`(\w+)`", row["meaning"])}, a.name


def test_pages_are_on_the_site():
    """docs/index.md lists them together."""
    text = (ROOT / "docs/index.md").read_text()
    assert "\n".join(PAGES) in text
