"""Declare operators: their inputs, outputs, attributes, data types and functions.

All of this also runs without a compiler.
"""
