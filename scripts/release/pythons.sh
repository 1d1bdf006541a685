#!/usr/bin/env bash
# Get Python interpreters that this system lacks from Debian's unstable release, for noxfile.py and release.py:
#
#     scripts/release/pythons.sh FOLDER [VERSION...]
#     PATH=FOLDER/bin:$PATH nox -s "versions(newest Python)"
#
# VERSION is 3.14 and 3.15 by default. This needs apt and dpkg, and neither root nor a chroot: the interpreters are
# linked again, to the C library that they were built with, and are otherwise programs of this system. FOLDER gets
# 180 MB and can't be moved afterwards. MIRROR names a Debian mirror.
set -euo pipefail
mkdir -p "$1" && cd "$1"
shift
folder=$PWD
versions=("$@")
[ $# != 0 ] || versions=(3.14 3.15)
: "${MIRROR:=http://deb.debian.org/debian}"

# An apt for which nothing is installed downloads all that the interpreters need. The index of a mirror that is a
# snapshot may be older than it promises to be.
mkdir -p apt/lists/partial apt/archives/partial
: > apt/status
echo "deb $MIRROR sid main" > apt/sources.list
cat > apt/apt.conf <<CONF
Dir::State "$folder/apt";
Dir::State::status "$folder/apt/status";
Dir::Cache "$folder/apt";
Dir::Etc::SourceList "$folder/apt/sources.list";
Dir::Etc::SourceParts "-";
Acquire::Check-Valid-Until "false";
CONF
export APT_CONFIG=$folder/apt/apt.conf
rm -rf apt/archives/*.deb root bin
apt-get -qq update
packages=(libstdc++6 patchelf)
for version in "${versions[@]}"; do packages+=("python$version-venv"); done
apt-get -qq -y install --download-only --no-install-recommends "${packages[@]}"

mkdir -p root/usr/lib root/usr/lib64 bin
ln -s usr/lib usr/lib64 root
for package in apt/archives/*.deb; do dpkg-deb -x "$package" root; done

# The libraries are found from there, and by venv the wheel of pip. Two runs: Debian's patchelf 0.18 can't set both.
libraries=$folder/root/usr/lib/$(uname -m)-linux-gnu
loader=$(echo "$libraries"/ld-linux-*.so.*)
for version in "${versions[@]}"; do
    python=root/usr/bin/python$version
    "$loader" --library-path "$libraries" root/usr/bin/patchelf --force-rpath --set-rpath "$libraries" "$python"
    "$loader" --library-path "$libraries" root/usr/bin/patchelf --set-interpreter "$loader" "$python"
    sed -i "s#'/usr/share/python-wheels/'#'$folder/root/usr/share/python-wheels/'#" \
        root/usr/lib/python"$version"/_sysconfigdata__*.py
    ln -s "../$python" bin
    bin/python"$version" -c 'import ctypes, ensurepip, sqlite3, ssl, sys; print(sys.version)'
done
