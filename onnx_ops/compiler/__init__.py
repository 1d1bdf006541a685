"""The compiler: machine code from declarations and kernels, just in time and ahead of time."""
