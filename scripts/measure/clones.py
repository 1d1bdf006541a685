"""Copy this repository, so that programs can change and measure it elsewhere."""

import os
import shutil
import subprocess

import add_tests_to_path  # noqa: F401
from support.pages import ROOT

BUILT = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info", ".*_cache", "build", "out")


def clone(folder):
    """Clone what is committed. Where this is no clone, as in an unpacked sdist, copy the files."""
    if (ROOT / ".git").exists():
        subprocess.run(["git", "clone", "--quiet", ROOT, folder], check=True)
    else:
        shutil.copytree(ROOT, folder, symlinks=True, ignore=BUILT)


def environment(folder, **variables):
    """Return the environment of a process that imports the package from a clone."""
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        **{k: str(v) for k, v in variables.items()},
    }
