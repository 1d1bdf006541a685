"""`onnx_ops.operator`: custom operators, made from functions on arrays.

The function is the declaration's reference. A rule for shapes and a kernel are optional. With neither, the function
alone decides on the shapes.
"""
