"""The systems and CPUs that libraries are built for."""

# {name: LLVM's name of the system with an architecture}
SYSTEMS = {
    "linux": "{}-unknown-linux-gnu",
    "windows": "{}-pc-windows-gnu",
    "macos": "{}-apple-macosx11.0.0",
}

# {name: (architecture, LLVM's name, more features that compiled code may use)}, the oldest of an
# architecture first.
LEVELS = {
    "x86-64-v2": ("x86_64", "x86-64-v2", ""),
    "x86-64-v3": ("x86_64", "x86-64-v3", "+f16c"),
    "x86-64-v4": ("x86_64", "x86-64-v4", "+f16c,-prefer-256-bit"),
    "sapphirerapids": ("x86_64", "x86-64-v4", "+f16c,-prefer-256-bit,+avx512fp16"),
    "armv8-a": ("aarch64", "generic", "+neon"),
}
