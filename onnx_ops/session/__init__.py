"""Run the operators in ONNX Runtime sessions.

Registration, callbacks of the C library, the backend with onnxruntime-extensions.
"""
