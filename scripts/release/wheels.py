"""Build the wheels of all platforms on one machine, with every kernel compiled ahead: users need no
compiler.

pip install ".[cross]"
python scripts/release/wheels.py dist                        # all: a quarter of an hour each
python scripts/release/wheels.py dist win_amd64 --cpu x86-64-v3
ONNX_OPS_WHEELS=dist pytest tests/ahead/test_wheels.py     # opens and checks them
"""

import argparse
import os
import shlex
import subprocess
import sys
from pathlib import Path

from onnx_ops.ahead.build import ziglang
from onnx_ops.compiler.cpu_levels import LEVELS, PLATFORMS

ROOT = Path(__file__).parents[2]


def build(platform, system, architecture, folder, cpus):
    levels = [
        name
        for name, (architecture_of_level, *_) in LEVELS.items()
        if architecture_of_level == architecture and (not cpus or name in cpus)
    ]
    if not levels:
        raise SystemExit(f"{platform}: none of {', '.join(cpus)} is of {architecture}")
    # Ziglang also for this machine: the tags say with which oldest version of the system the
    # library runs.
    compiler = shlex.join(ziglang(system, architecture))
    variables = {"ONNX_OPS_AHEAD": " ".join(levels), "ONNX_OPS_SYSTEM": system, "CC": compiler}
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        folder,
        ROOT,
    ]
    print(platform, *levels, flush=True)
    # The times of the files in a wheel, which would else differ from build to build.
    if time := os.environ.get("SOURCE_DATE_EPOCH") or time_of_commit():
        variables["SOURCE_DATE_EPOCH"] = time
    subprocess.run(list(map(str, command)), env={**os.environ, **variables}, check=True)


def time_of_commit():
    """Return the time of the last commit, in seconds; "" outside of a clone."""
    command = ["git", "log", "-1", "--format=%ct"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "platforms", nargs="*", choices=[*PLATFORMS.values(), []], help="default: all"
    )
    parser.add_argument(
        "--cpu",
        action="append",
        default=[],
        help="of onnx_ops.build; default: all of the architecture",
    )
    options = parser.parse_args()
    for target, name in PLATFORMS.items():
        if name in options.platforms or not options.platforms:
            build(name, *target, options.folder, options.cpu)
