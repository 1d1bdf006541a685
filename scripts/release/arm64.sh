#!/usr/bin/env bash
# Build the package's wheel for arm64 on x86-64 and test it in an emulated arm64 system: models, onnx's node tests, and
# the tests that run sessions. Run it as root, on Debian with qemu-user-static and debootstrap, where python3 has the
# package (pip install -e ".[cross]"):
#
#     scripts/release/arm64.sh FOLDER [TEST...]
#
# FOLDER gets the system (1 GB, installed once, in 10 to 20 minutes) and the wheel. MIRROR names a Debian mirror.
set -euo pipefail
clone=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$1" && cd "$1"
shift
folder=$PWD root=$PWD/root packages=$PWD/root/packages
tests=("${@:-tests/arrays/test_node_cases.py tests/model/test_models.py tests/arrays/test_coverage.py tests/session/test_backends.py tests/arrays/test_relations.py}")
: "${MIRROR:=http://deb.debian.org/debian}"

# The CPU that programs inside see: ONNX Runtime ends where it finds an x86 there.
cat > cpuinfo <<'CPU'
processor	: 0
BogoMIPS	: 50.00
Features	: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp
CPU implementer	: 0x41
CPU architecture: 8
CPU variant	: 0x3
CPU part	: 0xd0c
CPU revision	: 1
CPU

inside() { # a shell line in the emulated system
    unshare --mount sh -c '
        mount --make-rprivate / && mount -t proc proc "$1/proc" && mount --bind "$2/cpuinfo" "$1/proc/cpuinfo"
        mount -t sysfs -o ro sysfs "$1/sys" && mount --rbind /dev "$1/dev" && mount -t tmpfs tmpfs "$1/dev/shm"
        exec env -i PATH=/packages/bin:/usr/bin:/bin:/usr/sbin HOME=/root LANG=C.UTF-8 PYTHONPATH=/packages chroot "$1" sh -c "$3"
    ' sh "$root" "$folder" "$1"
}

[ -e /proc/sys/fs/binfmt_misc/register ] || mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
[ -e /proc/sys/fs/binfmt_misc/qemu-aarch64 ] || cat /usr/lib/binfmt.d/qemu-aarch64.conf > /proc/sys/fs/binfmt_misc/register
if [ ! -e system ]; then
    debootstrap --arch=arm64 --foreign --variant=minbase --include=python3 bookworm "$root" "$MIRROR"
    chroot "$root" /debootstrap/debootstrap --second-stage
    touch system
fi

# The wheel, with every kernel for armv8-a; and what it needs, for the Python of that Debian.
rm -rf wheels "$packages"
python3 "$clone/scripts/release/release.py" wheels manylinux_2_28_aarch64 --wheels
python3 -m pip install --quiet --only-binary=:all: --python-version 3.11 --implementation cp --target "$packages" \
    --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 \
    --platform manylinux_2_26_aarch64 --platform manylinux_2_17_aarch64 --platform manylinux2014_aarch64 \
    "$(echo wheels/*.whl)[cli]" hypothesis psutil pytest setuptools

rm -rf "$root/clone" && mkdir "$root/clone"
git -C "$clone" archive HEAD models tests scripts docs pyproject.toml README.md | tar x -C "$root/clone"
inside 'cd /clone && python3 -m onnx_ops list && python3 -m onnx_ops validate models && python3 -m onnx_ops validate --onnx'
inside "cd /clone && python3 -c 'import importlib.util as i; assert not i.find_spec(\"numba\")' && python3 -m pytest -q -p no:cacheprovider ${tests[*]}"
