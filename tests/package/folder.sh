#!/bin/bash
# The folder of deploy/folder.sh needs nothing of the machine but its C library: in a root where nothing else is, a job
# ends there with the digest that it has here. Packed it is small enough to be sent along.
# usage: tests/package/folder.sh SOURCE_DIR BUILD_DIR
set -euo pipefail
source_dir="$(cd "${1:?usage: tests/package/folder.sh SOURCE_DIR BUILD_DIR}" && pwd)"
build_dir="$(cd "${2:?usage: tests/package/folder.sh SOURCE_DIR BUILD_DIR}" && pwd)"
packed_max=$((60 << 20))
unshare --mount --pid --fork true 2>/dev/null || {
    echo 'only root may change the root'
    exit 77
}
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
fail() {
    printf 'FAILED: %s\n' "$1"
    exit 1
}

root="$scratch/root"
mkdir -p "$root/tmp" "$root/dev" "$root/proc" "$root/etc"
"$source_dir/deploy/folder.sh" "$build_dir" "$root/kelp" >"$scratch/folder.log" ||
    fail "$(tail -n 1 "$scratch/folder.log")"
bytes="$(tar -C "$root" -czf - kelp | wc -c)"
[ "$bytes" -le "$packed_max" ] || fail "packed it has $bytes bytes, over $packed_max"

# shellcheck source=/dev/null
found="$(. "$root/kelp/env.sh" && command -v kelp)"
[ "$found" = "$root/kelp/bin/kelp" ] || fail "with env.sh kelp is $found"

# The loader, and what belongs to the machine: libraries that the folder leaves out.
ldd "$build_dir/bin/kelp" "$build_dir/bin/kelp-ps" "$(command -v etcd)" | grep -oE '/[^ ]+' | sort -u |
    grep -E '/(ld-linux[^/]*|lib(c|m|dl|rt|pthread|resolv|anl|util))\.so' |
    while read -r library; do install -D "$library" "$root$library"; done
echo 'root:x:0:0:root:/:/none' >"$root/etc/passwd"
cat >"$root/job.yaml" <<'JOB'
name: folder
model: {kind: dlinear}
data: {kind: synthetic}
train: {epochs: 1}
cluster: {workers: 2, shards: 2}
JOB
# In namespaces of its own, so that nothing is left mounted or running.
cat >"$scratch/there.sh" <<'THERE'
set -euo pipefail
mount --bind /dev "$1/dev"
mount -t proc proc "$1/proc"
change_root="$(command -v chroot)"
export LD_LIBRARY_PATH=/kelp/lib PATH=/kelp/bin
exec "$change_root" "$1" /kelp/bin/kelp train --no-plots --run /tmp/run /job.yaml
THERE
env -i PATH="$PATH" unshare --mount --pid --fork "$BASH" "$scratch/there.sh" "$root" >"$scratch/there.log" 2>&1 ||
    fail "$(tail -n 5 "$scratch/there.log")"
"$build_dir/bin/kelp" train --no-plots --run "$scratch/run" "$root/job.yaml" >"$scratch/here.log" 2>&1 ||
    fail "$(tail -n 5 "$scratch/here.log")"
digest_of() { sed -nE 's/.*"digest":"([0-9a-f]{32})".*/\1/p' "$1/result.json"; }
there="$(digest_of "$root/tmp/run")" here="$(digest_of "$scratch/run")"
if [ -z "$there" ] || [ "$there" != "$here" ]; then fail "there its digest is '$there', here '$here'"; fi
printf 'folder: %s MiB packed, digest %s\n' "$((bytes >> 20))" "$there"
