"""The compiler: machine code from the functions of declarations and kernels, on demand and ahead."""
