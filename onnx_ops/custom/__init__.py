"""`onnx_ops.operator`: custom operators, made from functions on arrays.

The function is the declaration's reference. A shape function and a kernel are optional. Without a
shape function, the function decides on the shapes.
"""
