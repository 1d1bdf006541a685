"""Compiled loops: plain arrays in, `out` last; nothing here knows of ONNX or of ONNX Runtime."""
