"""The site.

Its pages are Markdown that reads well on GitHub, too; docs/contributing.md has the command.
"""

import os
import re
from pathlib import Path

import click
from docutils import nodes
from sphinx.util.docutils import SphinxDirective

import onnx_ops
from onnx_ops.cli.app import app as command_line

DOCS = Path(__file__).parent
ROOT = DOCS.parent
PAGES = {  # {file of the repository: the page that includes it}
    ROOT / "README.md": DOCS / "index.md",
    ROOT / "SECURITY.md": DOCS / "security.md",
    ROOT / "NOTICE": DOCS / "notice.md",
}
WIDTH = 80  # of help texts, in characters
LINK = re.compile(r"\]\(([^)#:]+)(#[^)]*)?\)")  # as in tests/test_docs.py

project = "onnx_ops"
version = release = onnx_ops.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
root_doc = "index"

myst_heading_anchors = 4  # as GitHub makes them, so that links to headings are checked
myst_url_schemes = ["http", "https", "mailto"]

autodoc_typehints = "none"  # docstrings have the types
autosummary_generate = False
default_role = "py:obj"  # of single backticks in docstrings
napoleon_google_docstring = False
python_maximum_signature_line_length = 88

html_theme = "furo"
html_title = f"onnx_ops {version}"
html_copy_source = False


def link(text, path, page):
    """Return the text of a file with its links as the site has them, from a page."""

    def target(match):
        to, anchor = (path.parent / match[1]).resolve(), match[2] or ""
        return f"]({os.path.relpath(PAGES.get(to, to), page.parent)}{anchor})"

    return LINK.sub(target, text)


class Help(SphinxDirective):
    """The help texts of the command line: of the program itself, and of each command in a
    section.
    """

    def run(self):
        self.env.note_reread()  # at each build
        settings = command_line.context_settings | {"terminal_width": WIDTH}
        program = click.Context(command_line, info_name="onnx-ops", **settings)
        commands = [
            click.Context(each, program, name) for name, each in command_line.commands.items()
        ]
        return [self.text(program), *map(self.section, commands)]

    def section(self, context):
        title = context.command_path
        section = nodes.section(
            "", nodes.title(title, title), self.text(context), ids=[nodes.make_id(title)]
        )
        self.state.document.note_implicit_target(section, section)
        return section

    def text(self, context):
        return nodes.literal_block(text := context.get_help(), text, language="none")


def setup(app):
    app.add_directive("command-line-help", Help)

    def read(app, name, content):
        path = DOCS / f"{name}.md"
        content[:] = [link(content[0], path, path)]

    def include(app, path, page, content):
        content[:] = [link(content[0], (DOCS / path).resolve(), DOCS / f"{page}.md")]

    app.connect("source-read", read)
    app.connect("include-read", include)
