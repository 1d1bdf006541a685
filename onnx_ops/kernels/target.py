"""The CPU that this process compiles for: its own, unless `choose` names another before Numba is imported."""

import os
import sys
from dataclasses import dataclass

import llvmlite.binding as llvm

from ..errors import OpError
from .levels import LEVELS


@dataclass(frozen=True)
class Target:
    """triple: of the system; cpu, features: as LLVM calls them; linked: into a library, rather than loaded here."""

    triple: str
    cpu: str
    features: str
    linked: bool = False


_chosen: list = []
ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}  # other names for them


def architecture():
    """Of this machine, as in LEVELS."""
    name = llvm.get_process_triple().partition("-")[0]
    return ARCHITECTURES.get(name, name)


def level(name):
    """The target of a level; for another architecture than this machine's, a Linux. Raises OpError."""
    if name not in LEVELS:
        raise OpError("cpu", repr(name), f"must be one of {', '.join(LEVELS)}", "onnx_ops")
    kind, cpu, features = LEVELS[name]
    here = kind == architecture()
    return Target(llvm.get_process_triple() if here else f"{kind}-unknown-linux-gnu", cpu, features, True)


def current():
    """The target of this process, which Numba's own settings may have changed."""
    if _chosen:
        return _chosen[0]
    cpu = os.environ.get("NUMBA_CPU_NAME") or llvm.get_host_cpu_name()
    features = os.environ.get("NUMBA_CPU_FEATURES")
    if features is None:
        features = llvm.get_host_cpu_features().flatten()
    return Target(llvm.get_process_triple(), cpu, features)


def choose(target):
    """Have this process compile for another target; what it compiles then, it can't run."""
    if "numba" in sys.modules:
        raise RuntimeError("Numba has been imported, and compiles for this machine")
    _chosen.append(target)
    os.environ["NUMBA_CPU_NAME"], os.environ["NUMBA_CPU_FEATURES"] = target.cpu, target.features
    if target.triple != llvm.get_process_triple():
        # Numba asks llvmlite for the system that it runs on, by these names and no others.
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        os.environ["NUMBA_USE_LLVMLITE_MEMORY_MANAGER"] = "0"
        for module in (llvm, sys.modules["llvmlite.binding.targets"]):
            for name in ("get_process_triple", "get_default_triple"):
                setattr(module, name, lambda: target.triple)
        llvm.Target.from_default_triple = classmethod(lambda cls: cls.from_triple(target.triple))
