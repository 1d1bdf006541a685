"""The C library that ONNX Runtime loads, its table of operators, and calls of compiled code without ONNX Runtime."""
