"""Which CPUs the library finds that a machine can run code for (native/machine.c), on machines that
are made up.
"""

import platform
import subprocess

import pytest
from support import native
from support.native import SOURCES

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or not native.accepts("gcc"),
    reason="needs gcc, and an x86-64 processor",
)
LEVELS = ["x86-64-v2", "x86-64-v3", "x86-64-v4", "sapphirerapids"]
# {level: {feature: (leaf, register, bit)}} of Intel's manual, volume 2, CPUID.
FEATURES = {
    "x86-64-v2": {
        "sse3": (1, "ecx", 0), "ssse3": (1, "ecx", 9), "cmpxchg16b": (1, "ecx", 13),
        "sse4.1": (1, "ecx", 19),
        "sse4.2": (1, "ecx", 20), "popcnt": (1, "ecx", 23), "lahf": (0x80000001, "ecx", 0),
    },
    "x86-64-v3": {
        "fma": (1, "ecx", 12), "movbe": (1, "ecx", 22), "osxsave": (1, "ecx", 27),
        "avx": (1, "ecx", 28),
        "f16c": (1, "ecx", 29), "lzcnt": (0x80000001, "ecx", 5), "bmi1": (7, "ebx", 3),
        "avx2": (7, "ebx", 5),
        "bmi2": (7, "ebx", 8),
    },
    "x86-64-v4": {
        "avx512f": (7, "ebx", 16), "avx512dq": (7, "ebx", 17), "avx512cd": (7, "ebx", 28),
        "avx512bw": (7, "ebx", 30),
        "avx512vl": (7, "ebx", 31),
    },
    "sapphirerapids": {"avx512fp16": (7, "edx", 23)},
}  # fmt: skip
SAVED = {
    "x86-64-v3": [1, 2],
    "x86-64-v4": [5, 6, 7],
}  # bits of XCR0: XMM and YMM; opmask, upper ZMM, other ZMM
REGISTERS = "eax", "ebx", "ecx", "edx"
LEAVES = 1, 7, 0x80000001
# machine.c with instructions that read the words of the command line: those of the leaves, and
# XCR0.
PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define _CPUID_H_INCLUDED
static unsigned words_of[3][4], xcr0;
static int has_leaves;
static int __get_cpuid_count(unsigned leaf, unsigned sub, unsigned *a, unsigned *b, unsigned *c,
                             unsigned *d) {
    unsigned *words = words_of[leaf == 1 ? 0 : leaf == 7 ? 1 : 2];
    *a = words[0], *b = words[1], *c = words[2], *d = words[3];
    return has_leaves && !sub;
}
#define __asm__
#define volatile(...) (low = xcr0)
#include "machine.c"
int main(int count, char **words) {
    unsigned *to = words_of[0];
    has_leaves = atoi(words[1]), xcr0 = strtoul(words[2], 0, 10);
    for (int k = 0; k < 12; k++) to[k] = strtoul(words[3 + k], 0, 10);
    for (int k = 15; k < count; k++) printf("%d\\n", runs(words[k]));
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("machine")
    (folder / "program.c").write_text(PROGRAM)
    subprocess.run(["gcc", f"-I{SOURCES}", "-o", "program", "program.c"], cwd=folder, check=True)
    return folder / "program"


def runs(program, without=(), saved=range(8), has_leaves=True):
    """Return the CPUs for which a machine runs code that lacks some features, or whose system saves
    some registers.
    """
    words = {(leaf, register): 0 for leaf in LEAVES for register in REGISTERS}
    for features in FEATURES.values():
        for name, (leaf, register, bit) in features.items():
            words[leaf, register] |= (name not in without) << bit
    cpus = [*LEVELS, "armv8-a"]
    numbers = int(has_leaves), sum(1 << bit for bit in saved), *words.values()
    done = subprocess.run(
        [program, *map(str, numbers), *cpus], capture_output=True, text=True, check=True
    )
    return [cpu for cpu, found in zip(cpus, done.stdout.split(), strict=True) if found != "0"]


def test_a_machine_with_everything(program):
    assert runs(program) == LEVELS


@pytest.mark.parametrize(
    "lacking", [(level, name) for level in LEVELS for name in FEATURES[level]], ids="-".join
)
def test_a_feature_that_lacks(program, lacking):
    level, name = lacking
    assert runs(program, [name]) == LEVELS[: LEVELS.index(level)]


@pytest.mark.parametrize(
    "lacking", [(level, bit) for level, bits in SAVED.items() for bit in bits], ids=str
)
def test_registers_that_the_system_does_not_save(program, lacking):
    level, bit = lacking
    assert runs(program, saved=set(range(8)) - {bit}) == LEVELS[: LEVELS.index(level)]


def test_a_processor_without_these_leaves(program):
    assert runs(program, has_leaves=False) == []
