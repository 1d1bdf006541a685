"""Prepare a caller's model and options for ONNX Runtime.

Every model takes this path, to a session of any kind.
"""

from __future__ import annotations

import math
import os
import warnings
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnxruntime as ort

from ..declaration.errors import OpError
from ..model.files import imports_and_nodes, is_ort_format
from ..native import library
from ..registry import DOMAINS, KEYS, available, built_in
from ..system.locks import OPTIONS
from . import native_backend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence, Set
    from types import ModuleType

    from ..declaration.operator import Operator
    from ..model.types import Source
    from ..registry import Available, Declared, Key
    from ..rewriting.finding import Finding
    from .types import AnyBackend

BACKENDS = "native", "extensions"  # as types.Backend
EXTERNAL_DATA = "session.model_external_initializers_file_folder_path"
DOMAINS_UNKNOWN = (
    "onnx_ops: the package's operators are not registered, since the domains of a model in ONNX "
    "Runtime's own format "
    "are unknown; state them, as by onnx_ops.register(options, domains=['', 'com.microsoft']), or "
    "use the .onnx file"
)
FEW = 2**28  # bytes of external data that are read here, if need be


@dataclass
class Prepared:
    """A model as ONNX Runtime gets it.

    model      its path or bytes
    is_ort     whether it is in ONNX Runtime's own format
    options    of the session, with the model's operators registered
    is_shared  whether other sessions may be made with these options, too
    threads    that the options state
    operators  what `registry.available` returns
    imports    the domains that the model imports; None if unknown
    nodes      (domain, op_type) of the model's nodes, see `imports_and_nodes`; None if unknown
    run_input  the name of the additional input of a lowered model, see lowering.py; None for others
    folder     of the external data of a model that has been rewritten, if the options must state
               one
    findings   what `optimize` has found in the model
    """

    model: Source | None
    is_ort: bool
    options: ort.SessionOptions
    is_shared: bool
    threads: int
    operators: Available
    imports: set[str] | None = None
    nodes: set[Key] | None = None
    run_input: str | None = None
    folder: str | None = None
    findings: Sequence[Finding] = ()

    def share(self) -> ort.SessionOptions:
        """Return the options for other sessions, which must not read from the folder."""
        if self.folder and not self.is_shared:
            self.options.add_session_config_entry(EXTERNAL_DATA, "")
        self.is_shared = True
        return self.options

    @contextmanager
    def with_external_data(self) -> Iterator[None]:
        """Return a context in which sessions with the options read data from the folder."""
        with OPTIONS if self.is_shared else nullcontext():
            before = native_backend.config_entry(self.options, EXTERNAL_DATA) or ""
            folder = self.folder or before
            if folder != before:
                self.options.add_session_config_entry(EXTERNAL_DATA, folder)
            try:
                yield
            finally:  # other sessions must not read from there
                if folder != before and self.is_shared:  # ONNX Runtime logs a warning
                    self.options.add_session_config_entry(EXTERNAL_DATA, before)


def prepare(
    model: Source | None,
    options: ort.SessionOptions | None,
    backend: AnyBackend,
    operators: Iterable[Declared],
    *,
    domains: Set[str] | None = None,
    optimize: bool = False,
    add_more: Callable[[Prepared], None] | None = None,
) -> Prepared:
    """Prepare a caller's model and options for ONNX Runtime; return the Prepared.

    Every model takes this path, to a session of any kind or to `register`. Warnings name the line
    that calls the caller of this function.

    model     path or bytes; for `register` also a ModelProto, or None, which stays as it is
    options   None for new ones
    domains   whose operators are registered; None: those that the model's nodes need
    add_more  registers more on the options: a function of the Prepared. Then backend may be
              "builtin"
    """
    # The caller's arguments.
    is_builtin = add_more and backend == "builtin"
    if backend not in BACKENDS and not is_builtin:
        raise OpError("backend", repr(backend), f"must be one of {', '.join(BACKENDS)}", "onnx_ops")
    every = available(operators)
    is_shared = options is not None
    custom = list(every.custom.values())
    model = os.fspath(model) if isinstance(model, os.PathLike) else model
    options = options or ort.SessionOptions()
    ready = Prepared(
        model, is_ort_format(model), options, is_shared, options.intra_op_num_threads, every
    )

    # The model is rewritten on request.
    if model is not None and not is_builtin and (optimize or backend == "extensions"):
        rewrite(ready, model, optimize, backend)

    # The options get operators by the imports and nodes of the model.
    if not (ready.model is None or ready.is_ort or ready.nodes):
        ready.imports, ready.nodes = imports_and_nodes(ready.model)
    if backend == "extensions":
        extensions().add_library(options, custom)
        return ready
    if add_more:
        add_more(ready)
    if not is_builtin:
        register_needed(ready, custom, domains)
    return ready


def rewrite(ready: Prepared, source: Source, optimize: bool, backend: AnyBackend) -> None:
    """Rewrite a Prepared's model as `optimize` and `backend` ask for, unless nothing would change.

    External data stay where they are, unless they are few.
    """
    if ready.is_ort:
        argument: tuple[str, object] = (
            ("optimize", True) if optimize else ("backend", "'extensions'")
        )
        rule = (
            "can't rewrite a model in ONNX Runtime's own format; use the .onnx file that it "
            "was made from"
        )
        raise OpError(*argument, rule, "onnx_ops")
    # A session of a model that runs as it is doesn't load these, nor onnx.
    from ..model.attributes import warn_of_unknown_attributes
    from ..model.external_data import opened, put_in_reach
    from ..rewriting import rewritten
    from .lowering import lower_for_session

    with OPTIONS:  # while another thread makes a session with them, they may state its folder
        # The folder from which ONNX Runtime reads external data.
        stated = native_backend.config_entry(ready.options, EXTERNAL_DATA)
    model, path = opened(source)
    origin = stated or path
    if optimize:
        warn_of_unknown_attributes(model, ready.operators)
        model, ready.findings = rewritten(model, origin, ready.operators, in_place=True)
    if backend == "extensions":
        model, ready.run_input = lower_for_session(model, ready.operators, origin)
    elif not any(finding.operator for finding in ready.findings):
        return
    # ONNX Runtime 1.20 finds no external data of a model that is passed as bytes. Newer ones log a
    # warning when a folder is taken out of the options again, which is worth a copy of few data.
    is_oldest = ort.__version__.startswith("1.20.")
    if path and (is_oldest or not stated):
        most = math.inf if is_oldest else FEW if ready.is_shared else 0
        ready.folder = put_in_reach(model, stated or path, most)
    ready.imports, ready.nodes = imports_and_nodes(model)
    ready.model = model.SerializeToString()


def register_needed(ready: Prepared, custom: list[Operator], domains: Set[str] | None) -> None:
    """Register operators on the options of a Prepared.

    domains  whose operators are registered; None: those that the model's nodes need

    Options for other sessions, too, get all operators of these domains, others those of the model's
    nodes. Custom operators replace those of their names.
    """
    ours = KEYS.keys() - ready.operators.custom.keys()
    used = ours if ready.nodes is None else ours & ready.nodes
    if domains is None:
        if ready.is_ort:
            # The options may be a copy, without operators.
            domains = native_backend.registered_domains(ready.options)
            if not domains:
                warnings.warn(DOMAINS_UNKNOWN, stacklevel=4)
        elif ready.imports is None:
            domains = native_backend.default_domains()
        else:
            custom = [
                operator for operator in custom if operator.domain not in DOMAINS - ready.imports
            ]
            domains = ready.imports & {domain for domain, _ in used}
    wanted = ours if ready.is_shared else used
    declared = [built_in(key) for key in KEYS if key in wanted and key[0] in domains] + custom
    if declared:
        native_backend.register_operators(ready.options, declared)


def extensions() -> ModuleType:
    """Return the module `extensions`, which imports onnxruntime_extensions. Raises OpError."""
    if obstacle := library.extensions_obstacle():
        raise OpError("backend", "'extensions'", obstacle, "onnx_ops")
    from . import extensions

    return extensions
