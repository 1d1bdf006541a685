"""Compiled code on disk, so that only the first process compiles it.

A file's name holds a digest of all that its code was made from: the sources of the function's module and of every
module of this package that it imports, directly or not; whatever else the compiler was told; the versions of the
compiler; the CPU. Nothing stale can be found, and an edit elsewhere loses nothing.
"""

import functools
import hashlib
import importlib.util
import logging
import os
import pickle
import re
import sys
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path

import llvmlite
import numba
import numpy as np
import platformdirs
from numba import config
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.registry import cpu_target
from numba.core.runtime import rtsys
from numba.core.serialize import dumps

from ..files import staged_file
from .jit import stamp, stamps

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]

ROOT = __name__.split(".", 1)[0]
MACHINERY = f"{ROOT}.kernels.entry"  # what stands around every function
TRIED = ((0, 60), (0, 68))
CHECKSUM = hashlib.sha256().digest_size
_IMPORT = re.compile(r"^[ \t]*from[ \t]+(\.+)([\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^#\n]*)", re.MULTILINE)
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
    spec = importlib.util.find_spec(module)
    loader = spec and spec.loader
    if hasattr(loader, "get_source"):
        text = loader.get_source(module)
    else:
        text = Path(spec.origin).read_text() if spec and spec.origin else None
    if text is None:
        raise OSError(f"the module {module} has no source file")
    if module in stamps and stamp(stamps[module][0]) != stamps[module]:
        raise OSError(f"the module {module} has been edited since it was imported")
    return text


@functools.cache
def imported(module):
    """The modules of its own package that a module names in relative imports."""
    package, found = importlib.util.find_spec(module).parent, set()
    for dots, base, names in _IMPORT.findall(source(module)):
        base = importlib.util.resolve_name(dots + base, package)
        for name in re.findall(r"(\w+)(?:\s+as\s+\w+)?", names):
            found.add(f"{base}.{name}" if _is_module(f"{base}.{name}") else base)
    return found


def _is_module(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # its parent is no package
        return False


@functools.cache
def sources(module):
    """{module: its source} of a module and all that it imports, directly or not, of the package itself."""
    found, left = {}, [module]
    while left:
        name = left.pop()
        if name not in found:
            found[name] = source(name)
            left.extend(imported(name))
    return found


@functools.cache
def compiler():
    """What else decides on the code that comes out."""
    codegen = cpu_target.target_context.codegen().magic_tuple()
    versions = numba.__version__, llvmlite.__version__, np.__version__, sys.implementation.cache_tag
    return codegen, versions, config.OPT, config.LOOP_VECTORIZE, config.SLP_VECTORIZE, config.BOUNDSCHECK


def digest(modules, *details):
    """Of the sources of some modules and of what they import, the compiler, and details that have a stable repr."""
    found = hashlib.sha256(repr((compiler(), details)).encode())
    for name, text in sorted({k: v for module in (*modules, MACHINERY) for k, v in sources(module).items()}.items()):
        found.update(f"{name}\0{text}\0".encode())
    return found.hexdigest()[:16]


class Kept:
    """The file of one compiled function, in the form that Numba calls a cache.

    obstacle  why it can't be written, or None
    """

    obstacle = None

    def __init__(self, name, key):
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

    def load_overload(self, signature, target_context):
        """The compiled function, or None. A file that was cut short or garbled is as good as none."""
        try:
            content = self.path.read_bytes()
        except OSError:
            return None
        if hashlib.sha256(content[CHECKSUM:]).digest() != content[:CHECKSUM]:
            return None
        # Numba would first import all that it needs to compile, which takes longer than the rest. Code that is loaded
        # refers to functions of Numba's runtime by name; LLVM ends the process if it doesn't know one. Hence only with
        # versions that were found to need no more than this.
        if TRIED[0] <= numba.version_info.short <= TRIED[1]:
            rtsys.initialize(target_context)
        else:
            target_context.refresh()
        return CompileResult._rebuild(target_context, *pickle.loads(content[CHECKSUM:]))

    def save_overload(self, signature, compiled):
        content = dumps(compiled._reduce())
        try:
            with staged_file(self.path) as place:
                place.write_bytes(hashlib.sha256(content).digest() + content)
        except OSError as error:
            self.obstacle = reason(error)
            not_kept(error)

    def missing(self):
        """Why the next process will not find the compiled function, or None: it will."""
        return self.obstacle or (None if os.path.exists(self.path) else f"{self.path.name} is gone")


class NotKept(NullCache):
    """What stands in for `Kept` where the obstacle is known before there is anything to keep."""

    path, exclusive = None, nullcontext

    def __init__(self, obstacle):
        self.obstacle = reason(obstacle)

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
