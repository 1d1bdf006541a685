"""The family of PyTorch's fold and unfold: Col2Im, Im2Col, and products of Im2Col's columns.

Each operator has a file with its declaration, and one with its kernels (`*_kernels.py`), as in all
families.
"""
