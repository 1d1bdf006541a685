"""The operators in ONNX Runtime sessions: registration, callbacks of the C library, the extensions
backend.
"""
