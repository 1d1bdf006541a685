"""The command-line interface: `onnx-ops`, or `python -m onnx_ops`."""

import sys
from io import TextIOWrapper


def main() -> None:
    """Run the command that sys.argv states."""
    try:
        from .app import app
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich", "PIL"):
            raise
        sys.exit(
            f"Error: the command line needs {error.name}: "
            'pip install "click>=8.1" "pillow>=10.1" "rich>=13"'
        )
    except (KeyboardInterrupt, ImportError) as error:
        if not isinstance(error.__cause__ or error, KeyboardInterrupt):
            raise
        sys.exit(130)  # a module in C++ that Ctrl-C interrupts raises an ImportError
    # Else a name that the terminal can't show would end a command after its work. Errors are
    # "surrogateescape" in the locale C, which suffices for UTF-8 alone.
    out = sys.stdout
    if isinstance(out, TextIOWrapper) and (
        out.errors == "strict" or (out.errors == "surrogateescape" and out.encoding != "utf-8")
    ):
        out.reconfigure(errors="backslashreplace")
    # Python can only report a Ctrl-C that arrives where a C callback begins. It arrives again after
    # the callback.
    sys.unraisablehook = lambda report: (
        report.exc_type is KeyboardInterrupt or sys.__unraisablehook__(report)
    )
    app(prog_name="onnx-ops")
