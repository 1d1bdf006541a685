"""The C library for ONNX Runtime, its table, and calls of compiled code."""
