#!/bin/bash
# usage: deploy/build.sh [PRESET]   configure and build one preset (release) in build/PRESET
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

preset="${1:-release}"
folder="build/$preset"

for place in "$folder" build .; do
    if [ -e "$place" ]; then
        if [ ! -w "$place" ]; then
            printf 'build: %s is not writable for %s; another user built here: %s\n' "$(pwd)/$place" "$(id -un)" \
                'remove it as that user, or build in a clone of your own' >&2
            exit 1
        fi
        break
    fi
done
log="$(mktemp)"
trap 'rm -f "$log"' EXIT
if ! cmake --preset "$preset" >"$log" 2>&1; then
    cat "$log" >&2
    printf 'build: cmake could not configure %s; deploy/install-deps.sh installs what it needs\n' "$folder" >&2
    exit 1
fi
if ! cmake --build --preset "$preset" >"$log" 2>&1; then
    tail -n 60 "$log" >&2
    printf 'build: the build of %s failed; the compiler said why above\n' "$folder" >&2
    exit 1
fi
