"""The operators on NumPy arrays, and as references for onnx's own evaluator."""
