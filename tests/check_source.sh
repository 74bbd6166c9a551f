#!/bin/bash
# What compilers do not check about the source: banned calls, which folder may include which,
# headers that compile alone (as C, and inside extern "C"), and the format.
# usage: tests/check_source.sh SOURCE_DIR BUILD_DIR
set -euo pipefail
source_dir="$(cd "${1:?usage: tests/check_source.sh SOURCE_DIR BUILD_DIR}" && pwd)"
build_dir="$(cd "${2:?usage: tests/check_source.sh SOURCE_DIR BUILD_DIR}" && pwd)"
cd "$source_dir"

scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
problems=0
report() {
    printf '%s\n' "$1"
    problems=$((problems + 1))
}

mapfile -t sources < <(find common proto kernels ps worker coordinator cli include tests bench \
    \( -name '*.c' -o -name '*.h' \) -type f 2>/dev/null | sort)

# ---- banned calls --------------------------------------------------------------------------------
# Each has a form that is bounded, reentrant or checked: snprintf, memcpy, strtok_r, strtol,
# fgets, localtime_r, common/tensors/philox.h. getenv belongs to the code that reads configuration.
banned='sprintf|vsprintf|strcpy|strcat|strncpy|strtok|atoi|atol|atof|gets|localtime|rand|srand'
may_getenv='^(common/(job|log|options|config|environment)[a-z_]*|cli/(main|options|flags|faultdisk)[a-z_]*|tests/.*|bench/.*)\.[ch]$'
for file in "${sources[@]}"; do
    # Without comments: block comments of whole lines and the rest of a line after //.
    code="$(sed -E 's,/\*.*\*/,,; /^[[:space:]]*\/\*/,/\*\//s/.*//; s,//.*,,' "$file" |
        grep -nE "(^|[^A-Za-z0-9_.>\"])($banned)[[:space:]]*\(" || true)"
    if [ -n "$code" ]; then report "$file:${code%%:*}: banned call: ${code#*:}"; fi
    if ! [[ "$file" =~ $may_getenv ]]; then
        code="$(grep -nE '(^|[^A-Za-z0-9_])(secure_)?getenv[[:space:]]*\(' "$file" || true)"
        if [ -n "$code" ]; then
            report "$file:${code%%:*}: getenv outside configuration code: ${code#*:}"
        fi
    fi
done

# ---- includes across folders ---------------------------------------------------------------------
folders='common|proto|kernels|ps|worker|coordinator|cli|tests|bench'
allowed_for() {
    case "$1" in
    common) printf 'common' ;;
    proto) printf 'common|proto' ;;
    kernels) printf 'common|kernels' ;;
    ps) printf 'common|proto|kernels|ps' ;;
    worker) printf 'common|proto|kernels|worker' ;;
    coordinator) printf 'common|proto|coordinator' ;;
    cli) printf 'common|proto|kernels|ps|worker|coordinator|cli' ;;
    include) printf 'common' ;;
    tests) printf 'common|proto|kernels|ps|worker|coordinator|cli|tests' ;;
    *) printf '%s' "$folders" ;;
    esac
}
for file in "${sources[@]}"; do
    folder="${file%%/*}"
    wrong="$(grep -nE "^[[:space:]]*#[[:space:]]*include[[:space:]]*\"($folders)/" "$file" |
        grep -vE "\"($(allowed_for "$folder"))/" || true)"
    if [ -n "$wrong" ]; then
        report "$file:${wrong%%:*}: $folder/ may not include this: ${wrong#*:}"
    fi
    wrong="$(grep -nE '^[[:space:]]*#[[:space:]]*include[[:space:]]*"\.\./' "$file" || true)"
    if [ -n "$wrong" ]; then report "$file:${wrong%%:*}: include by the path from the root"; fi
done

# ---- headers -------------------------------------------------------------------------------------
read -ra flags <<<"$(pkg-config --cflags grpc libprotobuf-c libcurl yaml-0.1 libcjson libxxhash zlib openblas check)"
flags+=(-D_GNU_SOURCE "-I$source_dir" "-I$source_dir/include" "-I$build_dir" "-I$build_dir/proto/generated")
for file in "${sources[@]}"; do
    if [[ "$file" != *.h ]]; then continue; fi
    if ! gcc -std=c11 -fsyntax-only -Wall -Wextra -Werror "${flags[@]}" -include "$file" -x c /dev/null \
        2>"$scratch/log"; then
        report "$file: does not compile alone as C: $(grep -m1 -E 'error|fatal' "$scratch/log")"
    fi
    if [[ "$file" == *_internal.h || "$file" == tests/* || "$file" == bench/* ]]; then continue; fi
    if ! command -v g++ >/dev/null; then continue; fi
    printf 'extern "C" {\n#include "%s"\n}\n' "$file" >"$scratch/header.cpp"
    if ! g++ -std=c++17 -fsyntax-only "${flags[@]}" "$scratch/header.cpp" 2>"$scratch/log"; then
        report "$file: does not compile inside extern \"C\": $(grep -m1 -E 'error|fatal' "$scratch/log")"
    fi
done
command -v g++ >/dev/null || printf 'not checked: headers inside extern "C" (g++ is not installed)\n'

# ---- format --------------------------------------------------------------------------------------
format=""
for candidate in clang-format-14 clang-format; do
    if command -v "$candidate" >/dev/null && "$candidate" --version | grep -q 'version 14\.'; then
        format="$candidate"
        break
    fi
done
if [ -n "$format" ]; then
    "$format" --dry-run -Werror "${sources[@]}" 2>"$scratch/log" ||
        report "format: $(grep -m3 -E 'error' "$scratch/log" | sed -E 's/: error.*//' | tr '\n' ' ')differ from .clang-format; run clang-format -i"
else
    printf 'not checked: format (clang-format 14 is not installed; deploy/install-deps.sh --dev)\n'
fi

# ---- scripts -------------------------------------------------------------------------------------
if command -v shellcheck >/dev/null; then
    mapfile -t scripts < <(find deploy tests bench .ci -type f -exec grep -lE "^#!/bin/(ba)?sh" {} + 2>/dev/null | sort)
    shellcheck "${scripts[@]}" >"$scratch/log" || {
        cat "$scratch/log"
        report "shellcheck: has remarks on the scripts"
    }
fi

if [ "$problems" -gt 0 ]; then
    printf '%d problems\n' "$problems"
    exit 1
fi
printf 'source: %d files in order\n' "${#sources[@]}"
