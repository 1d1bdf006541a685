"""Common parts of all kernels: elements, loops over vectors, and shares of the work."""
