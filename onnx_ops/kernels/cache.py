"""Compiled code on disk, so that only the first process compiles it.

A file's name holds a digest of everything that its code depends on: the sources of the function's module and of every
module that it imports, directly or not, except installed packages other than its own and this one; all other input of
the compiler, whose own sources are among it; the compiler's versions; the CPU. So code is never used after an edit of
these sources, and an edit elsewhere invalidates nothing.
"""

import ast
import functools
import hashlib
import importlib.util
import logging
import os
import re
import secrets
import sys
import sysconfig
import textwrap
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path

import llvmlite
import numpy as np
import platformdirs

from ..files import staged_file
from . import target
from .jit import ADDRESS, BOUNDSCHECK, stamp, stamps

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]

ROOT = __name__.split(".", 1)[0]
MACHINERY = f"{ROOT}.kernels.compiler"  # the code of every function depends on this module
CHECKSUM = hashlib.sha256().digest_size
NUMBA_SETTINGS = {f"NUMBA_{name}" for name in "ENABLE_AVX OPT LOOP_VECTORIZE SLP_VECTORIZE".split()}


def spec_of(module):
    """A module's spec; None if there is no such module, or if it is a script."""
    try:
        return importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None


_PLACES = sysconfig.get_paths()
INSTALLED = (
    *(_PLACES[kind] + os.sep for kind in ("stdlib", "platstdlib", "purelib", "platlib")),
    # Packages may also be in the user's folder, or anywhere on PYTHONPATH, as these show.
    *(str(Path(spec.origin).parent.parent) + os.sep for spec in map(spec_of, ("numba", "llvmlite", "numpy")) if spec),
)
# An import statement at the beginning of a line: parsing whole files would take longer than loading compiled code.
_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+[\w.]+[ \t]*import[ \t]*\((?:[^)#]|#.*)*\)|(?:from|import)[ \t]+(?:[^\\\n;#]|\\\n)*)",
    re.MULTILINE,
)
log = logging.getLogger("onnx_ops")


def directory():
    """The directory of the files: in the user's cache directory, unless NUMBA_CACHE_DIR names another.

    Numba keeps its files beside the sources, where they would stay when the package is uninstalled.
    """
    parent = os.environ.get("NUMBA_CACHE_DIR")
    return Path(parent, ROOT) if parent else Path(platformdirs.user_cache_dir(ROOT, appauthor=False))


@functools.cache
def source(module):
    """The text of a module's file, which may be in a zip file.

    Raises OSError if there is none, or if it was edited after this process imported it.
    """
    spec = spec_of(module)
    loader = spec and spec.loader
    script = getattr(sys.modules.get(module), "__file__", None)
    if not spec and script:
        text = Path(script).read_text()
    elif hasattr(loader, "get_source"):
        text = loader.get_source(module)
    else:
        text = Path(spec.origin).read_text() if spec and spec.origin else None
    if text is None:
        raise OSError(f"the module {module} has no source file")
    if module in stamps and stamp(stamps[module][0]) != stamps[module]:
        raise OSError(f"the module {module} has been edited since it was imported")
    return text


def is_module(package, name):
    """Whether a name in a package is a module. This imports only the package's parent packages."""
    spec = spec_of(package)
    return bool(spec and spec.submodule_search_locations is not None and spec_of(f"{package}.{name}"))


def import_statements(text):
    """Parse the import statements in a source; returns their syntax nodes."""
    try:
        return [ast.parse(textwrap.dedent(statement)).body[0] for statement in _IMPORT.findall(text)]
    except SyntaxError:  # a line of a string literal begins like an import
        return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]


@functools.cache
def imported(module):
    """The modules that a module imports anywhere in its source, except those of Python and installed packages."""
    spec, modules = spec_of(module), set()
    package = spec.parent if spec else ""  # a script has no package
    for node in import_statements(source(module)):
        if isinstance(node, ast.Import):
            modules.update(name.name for name in node.names if is_followed(name.name, module))
            continue
        base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
        if is_followed(base, module):  # only then: `is_module` imports parent packages, and Numba is large
            modules.update(f"{base}.{name.name}" if is_module(base, name.name) else base for name in node.names)
    return modules


def is_followed(name, importer):
    """Whether a digest covers an imported module: one of this package, of the importer's, or that isn't installed."""
    package = name.partition(".")[0]
    if package in (importer.partition(".")[0], ROOT):
        return True
    spec = spec_of(package)
    if spec and not spec.origin:  # a namespace package: its parts may be in several places
        spec = spec_of(name)
    origin = spec and spec.origin
    return bool(origin) and os.path.isabs(origin) and not origin.startswith(INSTALLED)


@functools.cache
def sources(module):
    """{name: source} of a module and of all modules that it imports, directly or not."""
    texts, remaining = {}, [module]
    while remaining:
        name = remaining.pop()
        if name not in texts:
            texts[name] = source(name)
            remaining.extend(imported(name))
    return texts


@functools.cache
def compiler():
    """What code depends on besides its sources: versions, the CPU, and Numba's settings."""
    from importlib import metadata

    versions = metadata.version("numba"), llvmlite.__version__, np.__version__, sys.implementation.cache_tag
    settings = sorted((name, value) for name, value in os.environ.items() if name in NUMBA_SETTINGS)
    return versions, target.current(), settings, BOUNDSCHECK


def digest(owners, *details):
    """A digest of what compiled code depends on.

    owners   the functions that it calls, or names of modules. Their modules' sources are part of the digest, and those
             of all modules that these or the compiler import
    details  what else the code depends on, with a stable repr

    Raises OSError where the sources don't determine the code.
    """
    owners = owners if isinstance(owners, tuple) else (owners,)
    functions = [owner for owner in owners if not isinstance(owner, str)]
    checksum = hashlib.sha256(repr((compiler(), details, [*map(identity, functions)])).encode())
    texts = dict(sources(MACHINERY))
    for owner in owners:
        texts |= sources(owner if isinstance(owner, str) else owner.__module__)
    for name, text in sorted(texts.items()):
        checksum.update(f"{name}\0{text}\0".encode())
    return checksum.hexdigest()[:16]


def identity(function):
    """What tells a function from others in its module. Raises OSError for a function that uses a closure's variables.

    Functions of one module can have the same name. They differ by their line, their code, and the numbers and texts
    that they read from their module.
    """
    code = function.__code__
    if function.__closure__:
        raise OSError(f"{function.__qualname__} uses variables of the function around it")
    plain = bool, int, float, complex, str, bytes, tuple, type(None)
    values = {name: function.__globals__.get(name) for name in code.co_names}
    values = {name: value for name, value in values.items() if isinstance(value, plain)}
    constants = [each for each in code.co_consts if isinstance(each, plain)]
    return function.__qualname__, code.co_firstlineno, code.co_code, constants, values


class Kept:
    """The file of a compiled function: a checksum, and its object code.

    obstacle  why the file can't be written, or None
    """

    obstacle = None

    def __init__(self, name, key):
        self.key = key
        self.path = directory() / f"{name}-{key}.code"
        if not self.path.is_absolute():  # there is no home directory
            raise OSError(f"{self.path.parent} is no absolute path")

    @contextmanager
    def exclusive(self):
        """A context in which other processes that would compile the same wait, where the system has file locks."""
        with ExitStack() as stack:
            if fcntl and not os.path.exists(self.path):
                lock = self.path.with_suffix(".lock")
                with suppress(OSError):
                    self.path.parent.mkdir(parents=True, exist_ok=True)
                    fcntl.flock(stack.enter_context(open(lock, "w")), fcntl.LOCK_EX)
                    stack.callback(lock.unlink, missing_ok=True)
            yield

    def load(self):
        """Read the object code; returns None if there is no file, or if it is damaged."""
        try:
            return object_in(self.path)
        except FileNotFoundError:
            return None
        except OSError as error:
            self.give_up(error)
            return None

    def save(self, content):
        if ADDRESS.encode() in content:
            self.give_up(OSError("it holds addresses, which are of this process alone"))
        if self.obstacle:
            return
        try:
            with staged_file(self.path) as place:
                place.write_bytes(hashlib.sha256(content).digest() + content)
        except OSError as error:
            self.give_up(error)

    def give_up(self, error):
        self.obstacle = reason(error)
        not_kept(error)

    def missing(self):
        """Why the next process won't find the compiled function, or None if it will."""
        return self.obstacle or (None if os.path.exists(self.path) else f"{self.path.name} is gone")


def object_in(path):
    """Read the object code in a file; returns None if the file is damaged."""
    content = Path(path).read_bytes()
    checksum, content = content[:CHECKSUM], content[CHECKSUM:]
    return content if hashlib.sha256(content).digest() == checksum else None


class NotKept:
    """Takes the place of `Kept` for a function that can't be kept, for a reason that is known before it is compiled."""

    path, exclusive = None, nullcontext

    def __init__(self, obstacle):
        self.key, self.obstacle = secrets.token_hex(8), reason(obstacle)

    def load(self):
        return None

    def save(self, content):
        pass

    def missing(self):
        return self.obstacle


def reason(error):
    """The text of an error without the file's name, so that it is the same for all functions."""
    return error.strerror or str(error)


def not_kept(error):
    """Log that code isn't kept, once for each reason: the next process will compile it again."""
    _warn_not_kept(reason(error))


@functools.cache
def _warn_not_kept(reason):
    log.warning("onnx_ops: compiled code is not kept in %s for the next process: %s", directory(), reason)
