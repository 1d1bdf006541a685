#!/usr/bin/env bash
# Runs tests/system/test_windows.py: the library for Windows, in ONNX Runtime's own build for Windows, under Wine.
#
#     scripts/release/windows.sh FOLDER [VERSION...]
#
# Installs Debian's wine64 and mingw-w64 if they lack and it may, and downloads the given versions of ONNX Runtime
# (default: the one that is installed here) into FOLDER.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=$1 && shift
versions=("$@")
[ ${#versions[@]} -gt 0 ] || versions=("$(python -c 'import onnxruntime; print(onnxruntime.__version__)')")
if ! command -v wine >/dev/null || ! command -v x86_64-w64-mingw32-gcc >/dev/null; then
    apt-get update -q && apt-get install -y -q --no-install-recommends wine wine64 gcc-mingw-w64-x86-64
fi
for version in "${versions[@]}"; do
    wheel=$folder/wheels/$version
    python -m pip download --quiet --no-deps --only-binary=:all: --platform win_amd64 --python-version 3.11 \
        --dest "$wheel" "onnxruntime==$version"
    python -m zipfile -e "$wheel"/*.whl "$folder/$version"
done
ONNX_OPS_WINDOWS=$folder python -m pytest -m wine tests/system/test_windows.py
