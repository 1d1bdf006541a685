"""Operators that only the domains mmcv and mmdeploy have."""
