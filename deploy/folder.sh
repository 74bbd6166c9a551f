#!/bin/bash
# Everything that Kelp needs to run, in one folder: for machines where nothing can be installed.
set -euo pipefail

usage() {
    cat <<'USAGE'
usage: deploy/folder.sh [--tests] BUILD_DIR FOLDER

Copy the programs of a build (build/release), their libraries, the CUDA device, and etcd into
FOLDER, which is made. A machine of the same architecture with a C library at least as new as
this one's runs it from wherever it lies: . FOLDER/env.sh; kelp train JOB.yaml

  --tests  also what tests/gpu/run.sh runs: tests/gpu, bench/gpu, bench/models and the examples

CUDA's own libraries (cuBLASLt, cuDNN) are not copied: the GPU's machine has them.
USAGE
}

fail() {
    printf 'folder: %s\n' "$1" >&2
    exit "${2:-1}"
}

tests=false
positional=()
for argument in "$@"; do
    case "$argument" in
    --tests) tests=true ;;
    --help)
        usage
        exit 0
        ;;
    -*) fail "$argument: no such option; --help lists them" 2 ;;
    *) positional+=("$argument") ;;
    esac
done
[ "${#positional[@]}" -eq 2 ] || fail "a build and a folder are needed; see --help" 2
source_dir="$(cd "$(dirname "$0")/.." && pwd)"
build="$(cd "${positional[0]}" 2>/dev/null && pwd)" || fail "${positional[0]}: no such folder" 2
folder="${positional[1]}"
[ -x "$build/bin/kelp" ] || fail "$build: no bin/kelp there; deploy/build.sh release builds it" 2
[ ! -e "$folder" ] || fail "$folder: is there already" 2
etcd="$(command -v etcd)" || fail "etcd is not on the path"

mkdir -p "$folder/bin" "$folder/lib"
install -m 755 "$build"/bin/kelp "$build"/bin/kelp-* "$etcd" "$folder/bin"
if [ -e "$build/lib/kelp/libkelp-cuda.so" ]; then
    install -D -m 644 -t "$folder/lib/kelp" "$build/lib/kelp/libkelp-cuda.so"
fi
if [ "$tests" = true ]; then
    mkdir -p "$folder/tests" "$folder/bench"
    install -m 755 "$build/tests/gpu_operators" "$folder/tests"
    install -m 755 "$build/bench/gpu" "$build/bench/models" "$folder/bench"
    install -m 644 "$source_dir/bench/torch_models.py" "$folder/bench"
    cp -r "$source_dir/examples" "$source_dir/tests/gpu" "$folder"
fi
find "$folder" -type f -perm -u+x -exec sh -c 'strip --strip-unneeded "$1" 2>/dev/null || true' _ {} \;

# What they load, but for the C library and the loader, which belong to the machine.
belongs_to_machine='^(ld-linux.*|linux-vdso|libc|libm|libdl|librt|libpthread|libresolv|libnss_.*|libanl|libutil)\.so'
find "$folder" -type f -perm -u+x -exec ldd {} \; 2>/dev/null |
    sed -nE 's,^[[:space:]]*[^ ]+ => (/[^ ]+) .*,\1,p' | sort -u |
    while read -r library; do
        name="$(basename "$library")"
        if ! [[ "$name" =~ $belongs_to_machine ]]; then
            install -m 644 "$library" "$folder/lib/$name"
        fi
    done

cat >"$folder/env.sh" <<'ENV'
# Sourced by bash: the programs of this folder, and their libraries, come first.
kelp_folder="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
export PATH="$kelp_folder/bin:$PATH"
export LD_LIBRARY_PATH="$kelp_folder/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
unset kelp_folder
ENV
printf 'folder: %s, %s\n' "$folder" "$(du -sh "$folder" | cut -f1)"
