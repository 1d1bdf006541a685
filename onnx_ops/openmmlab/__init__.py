"""Operators of the domains mmcv and mmdeploy that only these have."""
