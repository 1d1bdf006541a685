"""Models as files and as graphs: what a session asks about them before ONNX Runtime reads them."""
