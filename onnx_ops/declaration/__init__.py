"""Declare operators: inputs, outputs, attributes, data types, plans, kernels, references and
refusals.

All of this also runs without a compiler.
"""
