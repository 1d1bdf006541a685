"""The CPU that this process compiles for: this machine's, unless Numba's variables or `choose` name
another.

`choose` must be called before Numba is imported.
"""

import os
import sys
from dataclasses import dataclass, replace

import llvmlite.binding as llvm

from ..declaration.errors import OpError
from .cpu_levels import LEVELS, SYSTEMS

ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}  # {other name: name in LEVELS}
# LLVM uses half of a 512-bit vector for Intel's CPUs, because the first ones that had them slowed
# down for it. Those since Ice Lake, which have AVX512_VBMI2, don't: GridSample's coordinates take
# half the time.
WHOLE_VECTORS = "-prefer-256-bit"


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

    @property
    def settings(self) -> set[str]:
        """Return the names of features, each after a plus or a minus."""
        return set(filter(None, self.features.split(",")))

    def has(self, feature: str) -> bool:
        """Return whether compiled code may use this feature."""
        return f"+{feature}" in self.settings and f"-{feature}" not in self.settings

    @property
    def vector_bytes(self) -> int:
        """Return the bytes of a vector if the widest vectors are best."""
        return 64 if WHOLE_VECTORS in self.settings else 32

    @property
    def gathers(self) -> bool:
        """Return whether a gather instruction is faster than a load for each element.

        It is faster on Intel's CPUs since Sapphire Rapids, which have AVX512_FP16, and slower on
        Zen 4.
        """
        return self.has("avx512fp16") and self.settings.isdisjoint(
            f"-avx512{subset}" for subset in ("f", "bw", "dq", "vl")
        )


_chosen: list = []


def architecture() -> str:
    """This machine's architecture, as in LEVELS."""
    name = llvm.get_process_triple().partition("-")[0]
    return ARCHITECTURES.get(name, name)


def level(cpu: str, system: str) -> Target:
    """Return the target for a CPU of LEVELS and a system of SYSTEMS. Raises OpError."""
    for argument, name, names in (("cpu", cpu, LEVELS), ("system", system, SYSTEMS)):
        if name not in names:
            raise OpError(argument, repr(name), f"must be one of {', '.join(names)}", "onnx_ops")
    architecture, cpu, features = LEVELS[cpu]
    return Target(SYSTEMS[system].format(architecture), cpu, features, True)


def current() -> Target:
    """Return the target of this process: this machine's CPU, or the one in Numba's environment
    variables.

    If the widest vectors are best, LLVM gets an option for them, unless the variables state
    another.
    """
    if _chosen:
        return _chosen[0]
    cpu = os.environ.get("NUMBA_CPU_NAME") or llvm.get_host_cpu_name()
    features = os.environ.get("NUMBA_CPU_FEATURES")
    if features is None:
        host = llvm.get_host_cpu_features()
        if os.environ.get("NUMBA_ENABLE_AVX") == "0":
            host.update({name: False for name in host if name.startswith("avx")})
        features = "" if cpu.lower() == "generic" else host.flatten()
    target = Target(llvm.get_process_triple(), cpu, features)
    if (
        cpu == "x86-64-v4" or target.has("avx512vbmi2")
    ) and "+prefer-256-bit" not in target.settings:
        return replace(target, features=",".join(filter(None, (features, WHOLE_VECTORS))))
    return target


def choose(target: Target) -> None:
    """Choose another target for this process, which can't run that code."""
    if "numba" in sys.modules:
        raise RuntimeError("Numba has been imported, and compiles for this machine")
    _chosen.append(target)
    os.environ["NUMBA_CPU_NAME"] = target.cpu
    os.environ["NUMBA_CPU_FEATURES"] = target.features
    if target.triple != llvm.get_process_triple():
        # Numba asks llvmlite for the system by these names only.
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        os.environ["NUMBA_USE_LLVMLITE_MEMORY_MANAGER"] = "0"
        for module in (llvm, sys.modules["llvmlite.binding.targets"]):
            for name in ("get_process_triple", "get_default_triple"):
                setattr(module, name, lambda: target.triple)
        llvm.Target.from_default_triple = classmethod(lambda cls: cls.from_triple(target.triple))
