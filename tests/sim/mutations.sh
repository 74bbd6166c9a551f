#!/bin/bash
# Plant bugs and see whether kelp-sim finds them: each patch in tests/sim/mutations breaks one rule
# in a copy of one source file. The copy is compiled and linked with the simulator and the cores of
# a build in place of the file; some seed must fail then. Without a patch, the same seeds must pass.
# A patch that does not apply any more is a failure: it has to be made anew. A line "Seeds: N" above
# the change asks for more seeds, for a bug that takes a rare coincidence.
# usage: tests/sim/mutations.sh SOURCE_DIR BUILD_DIR [SEEDS]
set -euo pipefail
source_dir="$(cd "${1:?usage: tests/sim/mutations.sh SOURCE_DIR BUILD_DIR [SEEDS]}" && pwd)"
build_dir="$(cd "${2:?usage: tests/sim/mutations.sh SOURCE_DIR BUILD_DIR [SEEDS]}" && pwd)"
seeds="${3:-4000}"

scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
problems=0
report() {
    printf '%s\n' "$1"
    problems=$((problems + 1))
}

# The object comes first, so that the linker does not take the archive's.
libraries=("$build_dir/tests/libkelp_sim.a" "$build_dir/coordinator/libkelp_coordinator_core.a"
    "$build_dir/worker/libkelp_worker_core.a" "$build_dir/ps/libkelp_ps_core.a" "$build_dir/common/libkelp_base.a")

# try PATCH: prints what happened; fails when the bug is not found.
try() {
    local patch="$1" name file wanted world=()
    name="$(basename "$patch" .patch)"
    file="$(sed -n 's,^+++ b/,,p' "$patch")"
    wanted="$(sed -n 's,^Seeds: ,,p' "$patch")"
    if grep -q '^World: replicas$' "$patch"; then world=(--replicas); fi
    mkdir -p "$scratch/$name/$(dirname "$file")"
    cp "$source_dir/$file" "$scratch/$name/$file"
    if ! patch --quiet --fuzz=0 --strip=1 --directory="$scratch/$name" <"$patch" >"$scratch/log" 2>&1; then
        report "$name: the patch does not apply to $file any more: make it anew"
        return
    fi
    if ! cc -std=c11 -O1 -D_GNU_SOURCE -ffp-contract=off "-I$source_dir" "-I$source_dir/include" \
        -o "$scratch/$name/kelp-sim" "$scratch/$name/$file" "${libraries[@]}" -lm >"$scratch/log" 2>&1; then
        report "$name: does not compile: $(head -n 1 "$scratch/log")"
        return
    fi
    if "$scratch/$name/kelp-sim" "${world[@]}" --seeds "${wanted:-$seeds}" >"$scratch/log" 2>/dev/null; then
        report "$name: NOT FOUND within ${wanted:-$seeds} seeds: $(head -n 1 "$patch")"
    else
        printf '%s: found. %s\n' "$name" "$(grep -m1 -E '^seed ' "$scratch/log")"
    fi
}

if ! "$build_dir/tests/kelp-sim" --seeds "$seeds" >"$scratch/log"; then
    report "without a bug: $(grep -m1 -E '^seed ' "$scratch/log")"
fi
if ! "$build_dir/tests/kelp-sim" --replicas --seeds "$seeds" >"$scratch/log"; then
    report "replicas without a bug: $(grep -m1 -E '^seed ' "$scratch/log")"
fi
for patch in "$source_dir"/tests/sim/mutations/*.patch; do try "$patch"; done
if [ "$problems" -gt 0 ]; then
    printf '%d problems\n' "$problems"
    exit 1
fi
