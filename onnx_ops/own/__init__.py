"""`onnx_ops.operator`: operators of one's own, made from functions on arrays.

    attributes --unchanged--> parameters                   once, when a session is made
    (shapes, attributes) --rule--> shapes of the outputs   at every call
    (arrays, attributes, index, count, workspace, outputs) --kernel--> outputs
                                                           at every call, one tile after the other or side by side
    (arrays, attributes) --body--> outputs                 in place of both, in Python

The rule is optional, and so is the kernel. With neither, the body alone decides on the shapes.
"""
