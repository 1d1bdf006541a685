"""Compiled code on disk, so that only the first process compiles it.

A file's name holds a digest of all that its code was made from: the sources of the function's module and of every
module that it imports, directly or not, but for installed packages; whatever else the compiler was told; the versions
of the compiler; the CPU. An edit finds nothing stale, and an edit elsewhere loses nothing.
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
from .jit import BOUNDSCHECK, stamp, stamps

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]

ROOT = __name__.split(".", 1)[0]
MACHINERY = f"{ROOT}.kernels.compiler"  # what stands around every function
CHECKSUM = hashlib.sha256().digest_size
SETTINGS = {f"NUMBA_{name}" for name in "ENABLE_AVX OPT LOOP_VECTORIZE SLP_VECTORIZE".split()}


def spec_of(module):
    """A module's spec; None if there is no such module, or if it is a script."""
    try:
        return importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None


_PLACES = sysconfig.get_paths()
INSTALLED = (
    *(_PLACES[kind] + os.sep for kind in ("stdlib", "platstdlib", "purelib", "platlib")),
    # Packages may also be in the user's folder, or anywhere on PYTHONPATH: wherever those are that this one needs.
    *(str(Path(spec.origin).parent.parent) + os.sep for spec in map(spec_of, ("numba", "llvmlite", "numpy")) if spec),
)
# A statement that begins a line: parsing whole files would take longer than loading what has been compiled.
_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+[\w.]+[ \t]*import[ \t]*\((?:[^)#]|#.*)*\)|(?:from|import)[ \t]+(?:[^\\\n;#]|\\\n)*)",
    re.MULTILINE,
)
log = logging.getLogger("onnx_ops")


def directory():
    """Where files are kept: the user's cache directory, unless NUMBA_CACHE_DIR names another.

    Numba's own choice, beside the sources, would outlive an uninstalled package and be in the next one's way.
    """
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    return Path(chosen, ROOT) if chosen else Path(platformdirs.user_cache_dir(ROOT, appauthor=False))


@functools.cache
def source(module):
    """The text of a module's file, also from within a zip file.

    Raises OSError where there is none, or where it isn't what this process runs.
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
    """Whether a name in a package is a module. What the package is in gets imported, and no other module."""
    spec = spec_of(package)
    return bool(spec and spec.submodule_search_locations is not None and spec_of(f"{package}.{name}"))


def import_statements(text):
    """The nodes of the import statements in a source."""
    try:
        return [ast.parse(textwrap.dedent(statement)).body[0] for statement in _IMPORT.findall(text)]
    except SyntaxError:  # a line of a text begins like one
        return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]


@functools.cache
def imported(module):
    """The modules that a module imports anywhere in its source, other than those of Python and installed packages."""
    spec, found = spec_of(module), set()
    package = spec.parent if spec else ""  # of a script
    for node in import_statements(source(module)):
        if isinstance(node, ast.Import):
            found.update(name.name for name in node.names if is_followed(name.name, module))
            continue
        base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
        if is_followed(base, module):  # else its spec isn't asked for, which imports what it is in: Numba is large
            found.update(f"{base}.{name.name}" if is_module(base, name.name) else base for name in node.names)
    return found


def is_followed(name, importer):
    """Whether a module may be edited, or is of the same package as the one that imports it, or of this one."""
    package = name.partition(".")[0]
    if package in (importer.partition(".")[0], ROOT):
        return True
    spec = spec_of(package)
    if spec and not spec.origin:  # a namespace, which consists of several packages
        spec = spec_of(name)
    origin = spec and spec.origin
    return bool(origin) and os.path.isabs(origin) and not origin.startswith(INSTALLED)


@functools.cache
def sources(module):
    """{module: its source} of a module and all that it imports, directly or not."""
    found, left = {}, [module]
    while left:
        name = left.pop()
        if name not in found:
            found[name] = source(name)
            left.extend(imported(name))
    return found


@functools.cache
def compiler():
    """What else decides on the code that comes out: versions, the CPU, and how Numba is set."""
    from importlib import metadata

    versions = metadata.version("numba"), llvmlite.__version__, np.__version__, sys.implementation.cache_tag
    settings = sorted((name, value) for name, value in os.environ.items() if name in SETTINGS)
    return versions, target.current(), settings, BOUNDSCHECK


def digest(owners, *details):
    """Of what compiled code is made from.

    owners   the functions that it calls, or names of modules: the sources of the modules, of what these import and of
             whatever stands around every function
    details  what else the code depends on, with a stable repr

    Raises OSError where the sources don't tell.
    """
    owners = owners if isinstance(owners, tuple) else (owners,)
    functions = [owner for owner in owners if not isinstance(owner, str)]
    found = hashlib.sha256(repr((compiler(), details, [*map(identity, functions)])).encode())
    texts = dict(sources(MACHINERY))
    for owner in owners:
        texts |= sources(owner if isinstance(owner, str) else owner.__module__)
    for name, text in sorted(texts.items()):
        found.update(f"{name}\0{text}\0".encode())
    return found.hexdigest()[:16]


def identity(function):
    """What tells a function from others of its module; raises OSError where the module's source doesn't.

    Several may have one name, one after the other or all: it is known by its line, its code and the numbers and texts
    that it finds in its module.
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
    """The file of one compiled function: a checksum, and its object code.

    obstacle  why it can't be written, or None
    """

    obstacle = None

    def __init__(self, name, key):
        self.key = key
        self.path = directory() / f"{name}-{key}.code"
        if not self.path.is_absolute():  # there is no home directory
            raise OSError(f"{self.path.parent} is no absolute path")

    @contextmanager
    def exclusive(self):
        """While this lasts, other processes wait that would compile the same, where the system lets them."""
        with ExitStack() as stack:
            if fcntl and not os.path.exists(self.path):
                lock = self.path.with_suffix(".lock")
                with suppress(OSError):
                    self.path.parent.mkdir(parents=True, exist_ok=True)
                    fcntl.flock(stack.enter_context(open(lock, "w")), fcntl.LOCK_EX)
                    stack.callback(lock.unlink, missing_ok=True)
            yield

    def load(self):
        """The object code, or None. A file that was cut short or garbled is as good as none."""
        try:
            return object_in(self.path)
        except FileNotFoundError:
            return None
        except OSError as error:
            self.give_up(error)
            return None

    def save(self, content):
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
        """Why the next process will not find the compiled function, or None: it will."""
        return self.obstacle or (None if os.path.exists(self.path) else f"{self.path.name} is gone")


def object_in(path):
    """The object code in a file, or None where that isn't what was written."""
    content = Path(path).read_bytes()
    checksum, content = content[:CHECKSUM], content[CHECKSUM:]
    return content if hashlib.sha256(content).digest() == checksum else None


class NotKept:
    """What stands in for `Kept` where the obstacle is known before there is anything to keep."""

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
    """What kept a file from being written, without the name of the file, of which each function has one."""
    return error.strerror or str(error)


def not_kept(error):
    """Say so, once: it is no error, but the next process will compile again."""
    _tell_not_kept(reason(error))


@functools.cache
def _tell_not_kept(reason):
    log.warning("onnx_ops: compiled code is not kept in %s for the next process: %s", directory(), reason)
