"""The C library for ONNX Runtime, its table of operators, and calls of compiled code without ONNX
Runtime.
"""
