#!/bin/bash
# bench/models measures lanes on a device: here on the fake one, as a GPU session has no time to find that it does not.
# usage: tests/gpu/models.sh SOURCE_DIR MODELS LIBRARY
#   MODELS   the benchmark
#   LIBRARY  what it takes as libkelp-cuda.so
set -euo pipefail
source="$(cd "${1:?usage: tests/gpu/models.sh SOURCE_DIR MODELS LIBRARY}" && pwd)"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
fail() {
    printf 'FAILED: %s\n' "$1"
    cat "$scratch/out"
    exit 1
}
mkdir -p "$scratch/bench" "$scratch/lib/kelp"
cp "${2:?}" "$scratch/bench/models"
cp "${3:?}" "$scratch/lib/kelp/libkelp-cuda.so"
models() {
    KELP_SOURCE="$source" "$scratch/bench/models" --device cuda --rounds 1 --only deepfm "$@" >"$scratch/out" 2>&1 ||
        fail "models --device cuda $*: it ended with $?"
}

models --python false
grep -Eq '^deepfm +128( +[0-9]+\.[0-9]| +[1-9][0-9]*){2} +- +- +-( +[0-9]+\.[0-9]){3} +-$' "$scratch/out" ||
    fail 'no row of the lanes'
models --kernels
grep -Eq '^one lane of eight on a GPU in float32, .* runs at [0-9.]+ TFLOP/s, a large copy at [1-9][0-9]* GB/s$' \
    "$scratch/out" || fail 'no speeds of the device'
# deepfm asks for 84 operators a step.
awk '$1 == "deepfm" && $2 == 128 && $3 > 0 && $4 >= 40 && $5 > 0 { found = 1 } END { exit !found }' "$scratch/out" ||
    fail 'no row of what the device was asked for'
echo 'passed'
