#!/bin/bash
# Every decoder under libFuzzer, with the address and undefined-behaviour sanitizers.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
    cat <<'USAGE'
usage: tests/fuzz.sh SECONDS [PATTERN]

Runs each target of the programs tests/fuzz/test_fuzz_* for so many seconds, as many programs at a
time as there are processors (KELP_FUZZ_JOBS=N: so many). PATTERN: only programs whose names match.
Needs clang. Inputs that reach new code stay in build/fuzz/tests/corpus for the next run; an input
that fails is kept there and named.
USAGE
}

case "${1-}" in
-h | --help)
    usage
    exit 0
    ;;
"" | *[!0-9]*)
    usage >&2
    exit 2
    ;;
esac
if ! command -v clang >/dev/null; then
    echo "tests/fuzz.sh: libFuzzer is part of clang, which is not installed" >&2
    exit 2
fi
cmake --preset fuzz >/dev/null
cmake --build --preset fuzz
# The time is libFuzzer's to end, not Check's, which cannot count more than half an hour: rounds, and
# each goes on with the corpus of the one before.
left=$1
while [ "$left" -gt 0 ]; do
    round=$((left < 1800 ? left : 1800))
    left=$((left - round))
    KELP_FUZZ_SECONDS=$round CK_TIMEOUT_MULTIPLIER=100000 \
        ctest --preset fuzz -L fuzz -R "${2-.}" -j "${KELP_FUZZ_JOBS:-$(nproc)}"
done
