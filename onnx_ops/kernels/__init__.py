"""The kernels, which get plain arrays, `out` last, and their compiler. Nothing here depends on ONNX Runtime."""
