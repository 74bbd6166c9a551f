#!/bin/bash
# What --version says, and where its commit comes from (common/program/options/commit.cmake).
# usage: tests/package/version.sh SOURCE_DIR BUILD_DIR
set -euo pipefail
source_dir="$(cd "${1:?usage: tests/package/version.sh SOURCE_DIR BUILD_DIR}" && pwd)"
build_dir="$(cd "${2:?usage: tests/package/version.sh SOURCE_DIR BUILD_DIR}" && pwd)"
if ! command -v git >/dev/null; then
    printf 'skipped: git is not installed\n'
    exit 77
fi
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE

fail() {
    printf '%s\n' "$1"
    exit 1
}

# Every program and a verb: name, version and commit on a short first line, then what was built in.
for program in kelp 'kelp train' kelp-coordinator kelp-ps kelp-worker; do
    read -ra words <<<"$program"
    text="$("$build_dir/bin/${words[0]}" "${words[@]:1}" --version)"
    first="${text%%$'\n'*}"
    [[ "$first" =~ ^"$program "[0-9]+\.[0-9]+\.[0-9]+' ('([0-9a-f]{7,}(-dirty)?|unknown commit)')'$ ]] ||
        fail "$program --version begins with: $first"
    for word in compiler loops BLAS CUDA libraries etcd OpenBLAS oneDNN gRPC RocksDB; do
        grep -qw -- "$word" <<<"$text" || fail "$program --version says nothing about $word"
    done
    if grep -qE ' ,|, *$| $' <<<"$text"; then fail "$program --version lacks a library's version: $text"; fi
done

commit_of() {
    cmake "-DSOURCE_DIR=$1" "-DOUT=$scratch/commit.c" -P "$source_dir/common/program/options/commit.cmake"
    sed -nE 's/^const char kelp__commit\[\] = "(.*)";$/\1/p' "$scratch/commit.c"
}
expect() { # FOLDER COMMIT WHAT
    local found
    found="$(commit_of "$1")"
    [ "$found" = "$2" ] || fail "$3: the commit is '$found', not '$2'"
}

mkdir -p "$scratch/clone/unpacked"
expect "$scratch/clone" 'unknown commit' 'no clone'
git -C "$scratch/clone" init -q
printf 'one\n' >"$scratch/clone/file"
git -C "$scratch/clone" add file
git -C "$scratch/clone" -c user.name=test -c user.email=test@localhost commit -q -m one
commit="$(git -C "$scratch/clone" rev-parse --short=7 HEAD)"
git -C "$scratch/clone" tag v1
expect "$scratch/clone" "$commit" 'a clean clone with a tag'

# Nothing is written again, and so nothing built again, while the commit is the same.
before="$(stat -c %y "$scratch/commit.c")"
expect "$scratch/clone" "$commit" 'again'
[ "$(stat -c %y "$scratch/commit.c")" = "$before" ] || fail 'an unchanged commit is written again'

: >"$scratch/clone/untracked"
expect "$scratch/clone" "$commit" 'an untracked file'
printf 'two\n' >"$scratch/clone/file"
expect "$scratch/clone" "$commit-dirty" 'a changed file'
# Sources unpacked inside somebody else's clone have no commit of their own.
expect "$scratch/clone/unpacked" 'unknown commit' 'a folder of another clone'
printf 'version: all in order\n'
