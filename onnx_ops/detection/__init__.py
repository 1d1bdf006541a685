"""The family of detectors' operators: RoiAlign, DeformConv, and multi-scale deformable
attention.
"""
