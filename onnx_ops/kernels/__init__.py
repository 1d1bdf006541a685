"""What the kernels of all families are made of: elements, loops over vectors, and shares of the work."""
