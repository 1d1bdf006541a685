"""Compile kernels ahead of time, so that sessions load them from the cache."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .. import registry
from ..declaration.dtypes import FLOATS
from ..declaration.errors import OpError
from ..declaration.jit import numba_obstacle
from ..model.files import USE_ONNX, is_lowered, is_ort_format
from ..native import library
from ..native.threads import check_count
from ..session import native_backend, variants
from ..session.runner import open_session
from ..session.workers import compile_variants

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from typing import Any

    from ..model.types import File
    from ..session.variants import Variant


def warmup(
    operators: Iterable[Any] | None = None,
    dtypes: Collection[str] | None = None,
    *,
    models: File | Collection[File] | None = None,
    jobs: int | None = 1,
    progress: Callable[[str, int, int], object] | None = None,
) -> int:
    """Compile the kernels that sessions would compile, and keep them on disk.

    Kernels that are kept already, or are in the library, are not compiled
    again.

    Parameters
    ----------
    operators : iterable of str or custom operators, optional
        Names as in models, such as "GridSample", and custom operators. Default:
        all of this package.
    dtypes : collection of str, optional
        Data types of the tensors, such as "float32": every combination of
        these. Default: the floating-point types, which takes some minutes.
    models : path, bytes, or collection of these, optional
        Compile only what sessions of these models compile. Then `dtypes` is not
        allowed, and `operators` are the custom operators of these models.
    jobs : int or None, default 1
        Number of processes that compile side by side. None: the number of CPUs.
    progress : callable, optional
        Called before each kernel with (its name, its index, the number of
        kernels).

    Returns
    -------
    int
        The number of kernels.

    Raises
    ------
    OpError
        There is nothing to compile, a kernel can't be compiled or kept, or
        arguments exclude each other.

    Examples
    --------
    >>> count = onnx_ops.warmup(models=["model.onnx"])
    """
    check_count("jobs", jobs)
    if models is None:
        needed = variants.distinct(variants.asked_for(operators, dtypes, FLOATS))
    else:
        custom = registry.as_list(operators or ())
        if dtypes is not None or any(isinstance(operator, str) for operator in custom):
            raise OpError(
                "models",
                "given",
                "can't be combined with names of operators or with dtypes",
                "onnx_ops",
            )
        needed = needed_by(
            [models] if isinstance(models, str | bytes | os.PathLike) else models, custom
        )
    missing = {name: variant for name, variant in needed.items() if not library.functions(*variant)}
    if missing and (obstacle := numba_obstacle()):
        raise OpError(None, None, obstacle, "onnx_ops")
    compile_variants(missing, jobs, progress)
    return len(needed)


def needed_by(models: Collection[File], custom: Iterable[Any] = ()) -> dict[str, Variant]:
    """Return {name: variant} for the variants that sessions of these models compile.

    Which nodes remain and the types of their tensors depend on ONNX Runtime's optimizations. So
    this makes a session of each model, which compiles nothing. As for any session, ONNX Runtime
    loads the weights and folds constants.
    """
    variants_of_models = []
    for model in models:
        title = _title(model)
        if is_ort_format(model):
            raise OpError("models", title, USE_ONNX, "onnx_ops")
        with variants.silence(), native_backend.survey() as needed:
            try:
                open_session(model, operators=custom)
            except OpError as error:
                if not is_lowered(model):
                    raise
                rule = (
                    "has nodes that onnx_ops.lower made, whose types are known only when they run"
                )
                raise OpError(
                    "models", title, f"{rule}; give operators and dtypes instead", "onnx_ops"
                ) from error
            except Exception as error:
                raise OpError(
                    "models", title, f"no session can be made of it: {error}", "onnx_ops"
                ) from error
        variants_of_models += needed
    if not variants_of_models:
        raise OpError(
            "models",
            ", ".join(map(_title, models)),
            "have no nodes with kernels of onnx_ops",
            "onnx_ops",
        )
    return variants.distinct(variants_of_models)


def _title(model: File) -> str:
    return repr("(bytes)" if isinstance(model, bytes) else os.fspath(model))
