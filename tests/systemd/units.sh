#!/bin/bash
# The unit of deploy/systemd/ as systemd reads it: without a complaint, and as closed as it is meant to be. Its user is
# made from kelp.conf. kelp node ends with the statuses that the unit knows.
# usage: tests/systemd/units.sh SOURCE_DIR BUILD_DIR     (exit status 77: skipped, and why)
set -euo pipefail
usage='usage: tests/systemd/units.sh SOURCE_DIR BUILD_DIR'
source_dir="$(cd "${1:?$usage}" && pwd)"
build_dir="$(cd "${2:?$usage}" && pwd)"
exposure_max=20 # tenths, of 100

for program in systemd-analyze systemd-sysusers; do
    command -v "$program" >/dev/null || {
        printf 'skipped: there is no program %s\n' "$program"
        exit 77
    }
done
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT

fail() {
    printf 'FAILED: %s\n' "$1"
    exit 1
}

# An instance, whose program and manual are those of the build.
unit="$scratch/kelp-node@fare.service"
sed "s#^ExecStart=kelp #ExecStart=$build_dir/bin/kelp #" "$source_dir/deploy/systemd/kelp-node@.service" >"$unit"
grep -q "^ExecStart=$build_dir/bin/kelp node --job %i$" "$unit" || fail 'the unit does not start kelp node'
MANPATH="$build_dir/cli/pages" systemd-analyze verify "$unit" >"$scratch/out" 2>&1 || {
    cat "$scratch/out"
    fail 'systemd-analyze verify'
}
[ ! -s "$scratch/out" ] || fail "systemd-analyze verify: $(cat "$scratch/out")"
systemd-analyze security --offline=true --threshold="$exposure_max" --no-pager "$unit" >"$scratch/out" 2>&1 ||
    fail "the unit is more open than it should be: $(grep -F '✗' "$scratch/out")"

mkdir "$scratch/etc"
systemd-sysusers --root="$scratch" "$source_dir/deploy/systemd/kelp.conf"
grep -q '^kelp:' "$scratch/etc/passwd" || fail 'kelp.conf makes no user kelp'
