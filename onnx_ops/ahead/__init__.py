"""Compiling ahead of time: into a library, or into the cache."""
