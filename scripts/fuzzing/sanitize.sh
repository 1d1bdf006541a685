#!/usr/bin/env bash
# Run the C library under sanitizers:
#
#     scripts/fuzzing/sanitize.sh [FOLDER]
#
# 1. The harness (tests/native) with every node of the case tables, by gcc and by clang, under AddressSanitizer with
#    LeakSanitizer and UndefinedBehaviorSanitizer: each node as it is, each call and allocation failing, registration.
# 2. The harness from eleven threads under ThreadSanitizer, by gcc and by clang, for SECONDS_OF_THREADS (30).
# 3. Tests of sessions, in Python, with the library under gcc's AddressSanitizer and UndefinedBehaviorSanitizer. Leaks
#    aren't looked for there: Python and ONNX Runtime free little at exit. AddressSanitizer sets aside 16 MB of freed
#    memory, and not 256, which test_constants.py would take for a leak.
#
# What Numba compiles is not instrumented: in the harness, its tensors end where an unreadable page begins. A compiler
# or sanitizer that is lacking is left out, with a message. FOLDER keeps the programs and their output. JOBS: how many
# processes run (default: one for each core).
set -euo pipefail
clone=$(cd "$(dirname "$0")/../.." && pwd)
if [ $# != 0 ]; then
    mkdir -p "$1" && folder=$(cd "$1" && pwd)
else
    folder=$(mktemp -d) && trap 'rm -rf "$folder"' EXIT
fi
: "${JOBS:=$(nproc)}" "${SECONDS_OF_THREADS:=30}" "${PYTHON:=python}"
cd "$clone"
tests=(tests/declaration/test_third_operator.py tests/declaration/test_attributes.py tests/model/test_hostile_models.py
    tests/session/test_constants.py)
code=0

"$PYTHON" scripts/fuzzing/build_harness.py "$folder" gcc-address gcc-thread clang-address clang-thread

report() { # the findings in a file of output, and the sum of the numbers in its last lines
    grep -a "FINDING\|ERROR: \|WARNING: \|runtime error" "$1" | sort | uniq -c | sort -rn | head -30 || true
    awk -v name="$2" '/ points;/ {points += $1; computed += $6; refused += $10}
        END {print name ": " points " points, " computed " nodes computed, " refused " refused"}' "$1"
}
# Run a program on all nodes, in batches.
batches() { printf '%s\0' "$folder"/nodes/*.node | xargs -0 -n 10 -P "$JOBS" "$folder/$1" "$2"; }

for compiler in gcc clang; do
    program=$compiler-address
    [ -e "$folder/$program" ] || continue
    for command in run faults; do
        batches "$program" "$command" > "$folder/$program.$command" 2>&1 || code=1
        report "$folder/$program.$command" "$program, $command"
    done
    "$folder/$program" registration > "$folder/$program.registration" 2>&1 || code=1
    report "$folder/$program.registration" "$program, registration"
done

for compiler in gcc clang; do
    program=$compiler-thread
    [ -e "$folder/$program" ] || continue
    "$folder/$program" threads "$SECONDS_OF_THREADS" "$folder"/nodes/*.node > "$folder/$program.threads" 2>&1 || code=1
    report "$folder/$program.threads" "$program"
    tail -2 "$folder/$program.threads" | head -1
done

# The tests of sessions, from a copy whose library is instrumented. The runtime must be loaded before Python.
runtime=$(gcc -print-file-name=libasan.so 2>/dev/null || true)
if [ -e "$runtime" ]; then
    rm -rf "$folder/clone" && mkdir "$folder/clone"
    cp -r onnx_ops tests scripts models docs setup.py pyproject.toml README.md SECURITY.md LICENSE NOTICE "$folder/clone"
    cd "$folder/clone"
    flags="-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g -O1"
    CC=gcc CFLAGS=$flags "$PYTHON" setup.py --quiet build_ext --inplace
    nm onnx_ops/native/libonnx_ops.so | grep -q __asan_report || { echo "the library isn't instrumented"; exit 1; }
    LD_PRELOAD="$runtime $(gcc -print-file-name=libubsan.so)" ASAN_OPTIONS=detect_leaks=0:quarantine_size_mb=16 PYTHONPATH=$PWD \
        "$PYTHON" -m pytest -q -p no:cacheprovider "${tests[@]}" || code=1
else
    echo "the tests of sessions are left out: gcc has no libasan.so"
fi
exit $code
