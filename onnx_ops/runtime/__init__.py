"""What runs the operators: functions on arrays, and ONNX Runtime sessions."""
