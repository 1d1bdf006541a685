"""The operators in ONNX Runtime sessions: registration, what the C library asks of Python, the extensions backend."""
