#!/usr/bin/env bash
# Fuzz the C library by libFuzzer: nodes with their attributes, types, shapes, values and faults (tests/native/fuzz.c).
#
#     scripts/fuzzing/fuzz_native.sh [--build-only] [FOLDER [MINUTES]]
#
# FOLDER (default: out/fuzz) gets the program, the nodes of the case tables as seeds, the corpus, which later runs go on
# with, and `found`: an input for each finding, minimized. MINUTES: 60 by default. JOBS: how many processes run
# (default: one for each core). It needs clang with libFuzzer, or says so. --build-only leaves out the fuzzing:
# `FOLDER/fuzz.sh [MINUTES]` does it then, also on a machine without Python and compilers.
set -euo pipefail
build_only=
if [ "${1-}" = --build-only ]; then build_only=1 && shift; fi
clone=$(cd "$(dirname "$0")/../.." && pwd)
folder=${1:-$clone/out/fuzz}
mkdir -p "$folder" && folder=$(cd "$folder" && pwd)
cd "$clone"
"${PYTHON:-python}" scripts/fuzzing/build_harness.py "$folder" fuzz
[ -e "$folder/fuzz" ] || exit 0
cat > "$folder/fuzz.sh" <<'RUN'
#!/usr/bin/env bash
# Fuzz for so many minutes; prints the findings. See scripts/fuzzing/fuzz_native.sh of the repository.
set -euo pipefail
cd "$(dirname "$0")"
mkdir -p corpus found
limits=(-max_len=16384 -timeout=25 -rss_limit_mb=2000)
./fuzz -fork="${JOBS:-$(nproc)}" -max_total_time=$((${1:-60} * 60)) "${limits[@]}" -ignore_crashes=1 \
    -ignore_timeouts=1 -ignore_ooms=1 -artifact_prefix=found/ corpus nodes > fuzz.log 2>&1 || true
grep -a "cov: " fuzz.log | tail -1
code=0
for input in found/*-*; do
    [ -e "$input" ] && [[ $input != *.small && $input != *.log ]] || continue
    code=1
    ./fuzz "${limits[@]}" -minimize_crash=1 -max_total_time=60 \
        -exact_artifact_path="$input.small" "$input" > "$input.log" 2>&1 || true
    echo "$input: $(grep -a -m 1 "FINDING\|ERROR: \|runtime error" "$input.log" || echo "see $input.log")"
done
[ $code = 0 ] && echo "no findings"
exit $code
RUN
chmod +x "$folder/fuzz.sh"
[ -n "$build_only" ] || exec "$folder/fuzz.sh" "${2:-60}"
