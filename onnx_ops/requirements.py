"""Refuse the versions of other packages that this one was not made for, before they fail in ways that say nothing."""

import functools
import re

from .errors import OpError

_AT_LEAST = re.compile(r"([\w.-]+)[^;]*?>=([\d.]+)(?:; python_version.*)?$")  # not what only an extra asks for


@functools.cache
def check_versions():
    """Raise OpError if an installed package is older than this distribution's metadata asks for."""
    from importlib import metadata  # takes as long as the rest of `import onnx_ops`

    try:
        required = metadata.requires("onnx-ops") or ()
    except metadata.PackageNotFoundError:  # run from a checkout
        return
    for name, least in (found.groups() for found in map(_AT_LEAST.match, required) if found):
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:  # what this leaves without is said where it is needed
            continue
        if _numbers(version) < _numbers(least):
            raise OpError(name, version, f"must be at least {least}", "onnx_ops")


def _numbers(version):
    return tuple(map(int, re.match(r"[\d.]*\d", version)[0].split(".")))
