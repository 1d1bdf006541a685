"""What an operator is: its inputs, outputs, attributes, element types, plan, kernels, reference and refusals.

All of it also runs uncompiled.
"""
