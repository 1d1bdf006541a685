"""What a built library is: for which system and architecture, what it exports and needs."""

import re

import pytest

NEEDED = {  # what every installation of a system has
    "linux": re.compile(r"lib(c|m|dl|pthread|gcc_s)\.so\.\d|ld-linux.*"),
    "windows": re.compile(r"(kernel32|msvcrt|ntdll|api-ms-win-crt-[\w-]+)\.dll", re.IGNORECASE),
    "macos": re.compile(r"/usr/lib/libSystem\.B\.dylib"),
}


def check_library(content: bytes, system: str, architecture: str, name: str) -> None:
    """Assert that the bytes of a library are for this system and architecture, and need nothing but
    the system.
    """
    lief = pytest.importorskip("lief")
    if system == "linux":
        library = lief.ELF.parse(list(content))
        assert (
            library.header.machine_type
            == {"x86_64": lief.ELF.ARCH.X86_64, "aarch64": lief.ELF.ARCH.AARCH64}[architecture]
        )
        versions = [
            a.name
            for each in library.symbols_version_requirement
            for a in each.get_auxiliary_symbols()
        ]
        assert all(
            tuple(map(int, v.split("_")[1].split("."))) <= (2, 28)
            for v in versions
            if v.startswith("GLIBC_2")
        )
        needed = library.libraries
    elif system == "windows":
        library = lief.PE.parse(list(content))
        machines = {
            "x86_64": lief.PE.Header.MACHINE_TYPES.AMD64,
            "aarch64": lief.PE.Header.MACHINE_TYPES.ARM64,
        }
        assert library.header.machine == machines[architecture]
        needed = library.libraries
    else:
        library = lief.MachO.parse(list(content)).at(0)
        cpus = {
            "x86_64": lief.MachO.Header.CPU_TYPE.X86_64,
            "aarch64": lief.MachO.Header.CPU_TYPE.ARM64,
        }
        assert library.header.cpu_type == cpus[architecture]
        assert library.build_version.minos[:2] == [11, 0]
        assert (
            library.has_code_signature or architecture == "x86_64"
        )  # Apple's own CPUs run no code without one
        install_name, *needed = [each.name for each in library.libraries]
        assert install_name == f"@rpath/{name}"
    assert [each for each in needed if not NEEDED[system].fullmatch(each)] == []
    exported = {
        each.name.lstrip("_" if system == "macos" else "") for each in library.exported_functions
    }
    assert "RegisterCustomOps" in exported
