"""The family of PyTorch's grid_sample: GridSample, and ComputedGridSample, which computes its
grid.
"""
