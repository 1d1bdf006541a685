/* The system and the CPU that the library runs on. This file includes only its own header of the library's, because
 * Windows' headers use names of the others. */
#include "machine.h"
#include <string.h>
#if defined _WIN32
#include <windows.h>
#elif defined __APPLE__
#include <dlfcn.h>
#endif
#ifdef __x86_64__
#include <cpuid.h>
#endif

/* Keep the library loaded for ever. Returns whether that succeeds. ONNX Runtime unloads it with its last session, which
 * would leak the library's memory. On Linux, a linker flag does this. */
int stays(void) {
#if defined _WIN32
    HMODULE library;
    return GetModuleHandleExA(GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_PIN, (LPCSTR)stays,
                              &library);
#elif defined __APPLE__
    Dl_info library;
    return dladdr((const void *)stays, &library) && dlopen(library.dli_fname, RTLD_NOW);
#else
    return 1;
#endif
}

#ifdef __x86_64__
enum { EBX = 1, ECX, EDX };

static int has(unsigned leaf, int reg, unsigned bits) {
    unsigned words[4];
    return __get_cpuid_count(leaf, 0, words, words + 1, words + 2, words + 3) && (words[reg] & bits) == bits;
}

/* Which of the registers XMM (2), YMM (4) and AVX-512's (0xe0) the system saves. */
static unsigned saved_registers(void) {
    unsigned low = 0;
    if (has(1, ECX, 1u << 27)) __asm__ volatile("xgetbv" : "=a"(low) : "c"(0) : "edx");
#ifdef __APPLE__ /* macOS saves AVX-512's from the first instruction on that uses them, and only then says so */
    low |= 0xe0;
#endif
    return low;
}
#endif

/* Whether this machine can run code for a CPU. Reads CPUID, because __builtin_cpu_supports doesn't work in a library
 * that ziglang 0.17 has linked. */
int runs(const char *cpu) {
#ifdef __x86_64__
    unsigned saved = saved_registers(), extended = 0x80000001;
    /* SSE3, SSSE3, CMPXCHG16B, SSE4.1, SSE4.2, POPCNT; LAHF */
    int v2 = has(1, ECX, 1u | 1u << 9 | 1u << 13 | 1u << 19 | 1u << 20 | 1u << 23) && has(extended, ECX, 1);
    /* FMA, MOVBE, AVX, F16C; LZCNT; BMI1, AVX2, BMI2 */
    int v3 = v2 && has(1, ECX, 1u << 12 | 1u << 22 | 1u << 28 | 1u << 29) && has(extended, ECX, 1u << 5) &&
             has(7, EBX, 1u << 3 | 1u << 5 | 1u << 8) && (saved & 6) == 6;
    /* AVX-512 F, DQ, CD, BW, VL */
    int v4 = v3 && has(7, EBX, 1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31) && (saved & 0xe6) == 0xe6;
    if (!strcmp(cpu, "sapphirerapids")) return v4 && has(7, EDX, 1u << 23); /* AVX512-FP16 */
    if (!strcmp(cpu, "x86-64-v4")) return v4;
    if (!strcmp(cpu, "x86-64-v3")) return v3;
    return v2 && !strcmp(cpu, "x86-64-v2");
#else
    return !strcmp(cpu, "armv8-a");
#endif
}
