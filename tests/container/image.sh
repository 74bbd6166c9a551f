#!/bin/bash
# What deploy/container/build.sh puts into an image, without an engine: Kelp runs in that file tree with its libraries
# alone, and there is no shell and no program with more rights than its user. And what it says of mistakes.
# usage: tests/container/image.sh SOURCE_DIR BUILD_DIR     (exit status 77: skipped, and why)
set -euo pipefail
usage='usage: tests/container/image.sh SOURCE_DIR BUILD_DIR'
source_dir="$(cd "${1:?$usage}" && pwd)"
build_dir="$(cd "${2:?$usage}" && pwd)"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT

fail() {
    printf 'FAILED: %s\n' "$1"
    exit 1
}
# STATUS LINE ARGUMENT...: that is the status, and the last line.
says() {
    local status=0
    "$source_dir/deploy/container/build.sh" "${@:3}" >"$scratch/said" 2>&1 || status=$?
    [ "$status" = "$1" ] || fail "${*:3}: status $status: $(cat "$scratch/said")"
    [ "$(tail -n 1 "$scratch/said")" = "container: $2" ] || fail "${*:3}: $(cat "$scratch/said")"
}
says 2 '--fast: no such option; --help lists them' --fast
says 2 '--tag needs a value; see --help' --tag
says 2 'one build is expected; see --help' "$build_dir" "$build_dir"
says 2 "$scratch: no bin/kelp there; deploy/build.sh release builds it" "$scratch"
says 2 'there is no nobody: install podman, name another program by --engine, or use --tar' --engine nobody "$build_dir"
mkdir -p "$scratch/build/bin" "$scratch/cuda"
cp "$build_dir/bin/kelp" "$scratch/build/bin"
says 2 "$scratch/build has no CUDA device: build it where nvcc is found, or leave --cuda out" \
    --cuda "$scratch/cuda" "$scratch/build"
mkdir -p "$scratch/build/lib/kelp"
touch "$scratch/build/lib/kelp/libkelp-cuda.so"
says 2 "$scratch/cuda: no libcublasLt.so.13 there" --cuda "$scratch/cuda" "$scratch/build"
says 1 'cpack could not make the package' --tar "$scratch/tree.tar" "$scratch/build"

for program in apt-get cpack dpkg-deb; do
    command -v "$program" >/dev/null || {
        printf 'skipped: there is no %s\n' "$program"
        exit 77
    }
done
if ! "$source_dir/deploy/container/build.sh" --tar "$scratch/tree.tar" "$build_dir" >"$scratch/said" 2>&1; then
    if grep -qE '^container: apt (knows no|could not fetch)' "$scratch/said"; then
        printf 'skipped: %s\n' "$(tail -n 1 "$scratch/said")"
        exit 77
    fi
    fail "$(cat "$scratch/said")"
fi
cat "$scratch/said"
mkdir "$scratch/tree"
tar -x -C "$scratch/tree" -f "$scratch/tree.tar"
cd "$scratch/tree"
bytes="$(du -sb . | cut -f1)"
[ "$bytes" -lt 350000000 ] || fail "the tree has $bytes bytes"
programs="$(find usr/bin usr/sbin -mindepth 1 -printf '%f\n' | sort | tr '\n' ' ')"
[ "$programs" = 'etcd etcdctl kelp kelp-coordinator kelp-ps kelp-worker ' ] || fail "programs: $programs"
found="$(find . \( -perm /6000 -o -name '*sh' -type f -perm /111 \) -print)"
[ -z "$found" ] || fail "more rights, or a shell: $found"
# By the tree's own loader, with the tree's own libraries.
loader="$(echo lib64/ld-linux-*.so.*)"
version="$("$loader" --inhibit-cache --library-path "$(echo "$PWD"/usr/lib/*-linux-gnu)" \
    ./usr/bin/kelp --version)"
[ "$version" = "$("$build_dir/bin/kelp" --version)" ] || fail "the tree's kelp says $version"
printf 'image: %d MB, %d packages\n' $((bytes / 1000000)) "$(find var/lib/dpkg/status.d -type f | wc -l)"
