"""What ties the operators to a runtime: functions on arrays, and ONNX Runtime sessions."""
