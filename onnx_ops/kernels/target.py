"""The CPU that this process compiles for: this machine's, unless `choose` names another before Numba is imported."""

import os
import sys
from dataclasses import dataclass

import llvmlite.binding as llvm

from ..errors import OpError
from .levels import LEVELS


@dataclass(frozen=True)
class Target:
    """A CPU and a system to compile for.

    triple         LLVM's name of the system
    cpu, features  LLVM's names
    linked         whether the code is linked into a library, rather than loaded into this process
    """

    triple: str
    cpu: str
    features: str
    linked: bool = False


_chosen: list = []
ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}  # {other name: name in LEVELS}


def architecture():
    """This machine's architecture, as in LEVELS."""
    name = llvm.get_process_triple().partition("-")[0]
    return ARCHITECTURES.get(name, name)


def level(name):
    """The target for a level. For another architecture than this machine's the system is Linux. Raises OpError."""
    if name not in LEVELS:
        raise OpError("cpu", repr(name), f"must be one of {', '.join(LEVELS)}", "onnx_ops")
    kind, cpu, features = LEVELS[name]
    is_ours = kind == architecture()
    return Target(llvm.get_process_triple() if is_ours else f"{kind}-unknown-linux-gnu", cpu, features, True)


def current():
    """The target of this process; Numba's environment variables may name another CPU."""
    if _chosen:
        return _chosen[0]
    cpu = os.environ.get("NUMBA_CPU_NAME") or llvm.get_host_cpu_name()
    features = os.environ.get("NUMBA_CPU_FEATURES")
    if features is None:
        features = llvm.get_host_cpu_features().flatten()
    return Target(llvm.get_process_triple(), cpu, features)


def choose(target):
    """Have this process compile for another target. It can't run that code."""
    if "numba" in sys.modules:
        raise RuntimeError("Numba has been imported, and compiles for this machine")
    _chosen.append(target)
    os.environ["NUMBA_CPU_NAME"], os.environ["NUMBA_CPU_FEATURES"] = target.cpu, target.features
    if target.triple != llvm.get_process_triple():
        # Numba asks llvmlite for the system by these names only.
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        os.environ["NUMBA_USE_LLVMLITE_MEMORY_MANAGER"] = "0"
        for module in (llvm, sys.modules["llvmlite.binding.targets"]):
            for name in ("get_process_triple", "get_default_triple"):
                setattr(module, name, lambda: target.triple)
        llvm.Target.from_default_triple = classmethod(lambda cls: cls.from_triple(target.triple))
