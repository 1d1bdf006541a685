"""Models as files and graphs, before ONNX Runtime reads them."""
