"""`python -m onnx_ops` is `onnx-ops`."""

from .cli import main

if __name__ == "__main__":
    main()
