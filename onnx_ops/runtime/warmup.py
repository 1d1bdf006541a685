"""Compiling ahead, so that no session has to."""

import os
from contextlib import contextmanager

from .. import dtypes as element_types
from .. import operators as every
from ..errors import OpError
from ..kernels.jit import numba_obstacle
from ..own.files import places
from . import library, native, variants
from .execute import cpus
from .model import imported_domains
from .runner import open_session
from .variants import kernel_key
from .workers import share_out


def warmup(operators=None, dtypes=None, *, models=None, jobs=1, progress=None):
    """Compile what sessions would, and keep it for later processes; what is kept already is only looked at.

    Where the library has it all compiled there is nothing to do, and this does nothing.

    operators  names as in models, such as "GridSample"; default: all
    dtypes     names of element types, such as "float32": every combination of these as the types of an operator's
               tensors is compiled. Default: the floating-point ones, which takes a minute or two
    models     in place of both, paths or bytes: what sessions of these models compile, and nothing else
    jobs       processes that compile side by side; None: as many as there are CPUs
    progress   called before each variant with (its name, its index, how many there are)

    Returns the number of variants. Raises OpError, also where they can't be kept or there are none.
    """
    if models is None:
        meant = variants.chosen(operators)
        if operators is None:
            meant = [operator for operator in meant if variants.kernel_count(operator)]
        found = variants.asked_for(meant, dtypes, are_all=operators is None)
    elif operators is None and dtypes is None:
        found = needed_by([models] if isinstance(models, str | bytes | os.PathLike) else models)
    else:
        raise OpError("models", "given", "can't be combined with operators or dtypes", "onnx_ops")
    left = {name: variant for name, variant in found.items() if not in_library(*variant)}
    if left and (lack := numba_obstacle()):
        raise OpError(None, None, lack, "onnx_ops")
    compile_variants(left, jobs or len(cpus()), progress or (lambda name, index, total: None))
    return len(found)


def in_library(operator, position, signature):
    """Whether the library has it compiled."""
    return bool(library.functions(operator, position, signature))


def needed_by(models):
    """The variants that sessions of these models compile.

    Sessions tell, which are made as usual, but compile nothing: ONNX Runtime alone knows what its optimizations leave
    of a model, and the type of each tensor. So a model's weights are loaded and what is constant in it is computed, as
    at every start of the program that it is for.
    """
    there = variants.variants(every.known().values(), element_types.TABLE)
    names = {kernel_key(*variant): name for name, variant in there.items()}
    needed = [kernel_key(*node) for model in models for node in nodes(model)]
    if not needed:
        raise OpError("models", ", ".join(map(_title, models)), "have no nodes for onnx_ops", "onnx_ops")
    return {names[k]: there[names[k]] for k in needed}


def nodes(model):
    """What `native.survey` tells of a model."""
    from .lowering import DOMAIN

    if DOMAIN in (imported_domains(model) or ()):
        rule = f"imports {DOMAIN}, as lowered models do; what types its nodes have is known only when they run"
        raise OpError("models", _title(model), f"{rule}; give operators and dtypes instead", "onnx_ops")
    with _expected(), native.survey() as needed:
        try:
            open_session(model)
        except OpError:
            raise
        except Exception as error:
            raise OpError("models", _title(model), f"no session can be made of it: {error}", "onnx_ops") from error
    return needed


def compile_variants(found, jobs, progress):
    """Compile these variants in this process or, side by side, in `jobs` others.

    Raises OpError where they aren't kept.
    """
    described = variants.tasks(found)
    if min(jobs, len(found)) < 2:
        for index, (name, variant) in enumerate(described):
            progress(name, index, len(found))
            compile_variant(*variant)
        return
    own = places(operator for operator, _, _ in found.values() if operator.is_function)
    share_out(compile_variant, described, jobs, progress, own=own)


def compile_variant(*variant):
    """Compile what sessions would for an operator, see `variants.codes`.

    Raises OpError where it isn't kept.
    """
    with _expected():
        variants.codes(*variant)


@contextmanager
def _expected():
    """While this lasts, nobody need be told that something is compiled."""
    if not library.have_numba():  # then nothing is
        yield
        return
    from ..kernels import code

    before = code.expected.set(True)
    try:
        yield
    finally:
        code.expected.reset(before)


def _title(model):
    return repr("(bytes)" if isinstance(model, bytes) else os.fspath(model))
