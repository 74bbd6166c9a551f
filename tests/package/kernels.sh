#!/bin/bash
# Kernels alone (KELP_PARTS=kernels) are built and tested with a compiler and the C library: nothing else is looked for,
# included or loaded. The CUDA library itself is built as everywhere, so it is left out here.
# usage: tests/package/kernels.sh SOURCE_DIR BUILD_DIR
set -euo pipefail
source_dir="$(cd "${1:?usage: tests/package/kernels.sh SOURCE_DIR BUILD_DIR}" && pwd)"
build_dir="$(cd "${2:?usage: tests/package/kernels.sh SOURCE_DIR BUILD_DIR}" && pwd)"
compiler="$(sed -n 's/^CMAKE_C_COMPILER:[A-Z]*=//p' "$build_dir/CMakeCache.txt")"
compiler_cxx="$(sed -n 's/^CMAKE_CXX_COMPILER:[A-Z]*=//p' "$build_dir/CMakeCache.txt")"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
fail() {
    printf 'FAILED: %s\n' "$1"
    exit 1
}

# No pkg-config on the path, no package that CMake finds by itself.
mkdir "$scratch/path"
for program in "$compiler" "$compiler_cxx" ccache cmake make ar ranlib as ld nm objdump objcopy strip readelf uname \
    env sh sed; do
    if command -v "$program" >/dev/null; then
        ln -s "$(command -v "$program")" "$scratch/path/$(basename "$program")"
    fi
done
alone() { env PATH="$scratch/path" PKG_CONFIG_LIBDIR=/nonexistent "$@"; }
cd "$scratch"
# Neither -O2 nor -g, which take half of the time: how fast it is, no test asks.
alone cmake -G 'Unix Makefiles' -S "$source_dir" -B build -DKELP_PARTS=kernels -DKELP_CUDA=OFF \
    -DCMAKE_BUILD_TYPE=Quick -DCMAKE_C_FLAGS=-O1 -DCMAKE_CXX_FLAGS=-O1 \
    -DCMAKE_C_COMPILER="$compiler" -DCMAKE_CXX_COMPILER="$compiler_cxx" -DCMAKE_DISABLE_FIND_PACKAGE_PkgConfig=ON \
    >configure.log 2>&1 || { tail -n 20 configure.log && fail "it is not configured"; }
alone cmake --build build -j 2 >build.log 2>&1 || { tail -n 40 build.log && fail "it is not built"; }

# Headers of the source, of the compiler and of the C library, and no others.
libraries='cblas|dnnl|xxhash|grpc|rocksdb|protobuf|yaml|cJSON|curl|openssl|zlib|cairo|microhttpd|omp'
foreign="$(find build -name '*.d' -exec sed -E 's,\\$,,; s, +,\n,g' {} + | sort -u |
    grep -E "/($libraries)[^/]*\.h\$" || true)"
[ -z "$foreign" ] || fail "it includes $foreign"
if find build -name '*.d' -exec cat {} + | grep -qE '/usr/(local/)?include/check\.h'; then
    fail "it includes Check"
fi
tests="$(find build/tests -maxdepth 1 -name 'test_*' -type f -perm -u+x | sort)"
[ "$(wc -l <<<"$tests")" -ge 11 ] || fail "it has these tests: $tests"
for program in $tests build/bench/kernels build/bench/gpu; do
    foreign="$(ldd "$program" |
        grep -vE '^[[:space:]]*(linux-vdso|/lib.*/ld-linux|lib(c|m|gcc_s|stdc\+\+)\.so)' || true)"
    [ -z "$foreign" ] || fail "$program loads $foreign"
done

for program in $tests; do
    KELP_CUDA_ORDERS=1 "$program" >"$scratch/test.log" 2>&1 ||
        { cat "$scratch/test.log" && fail "$(basename "$program") fails"; }
done
# Check's stand-in sees failures: a test that fails, one that ends by a signal, one that takes too long.
cat >planted.c <<'PLANTED'
#include <stdlib.h>
#include <unistd.h>
#include "tests/lib/suite.h"
KELP_CASE("planted", .timeout_s = 1)
KELP_TEST(passes) { ck_assert_int_eq(1, 1); }
KELP_TEST(differs) { ck_assert_int_eq(1, 2); }
KELP_TEST(aborts) { abort(); }
KELP_TEST(hangs) { for (;;) { (void)pause(); } }
KELP_ABORT_TEST(should_abort) { (void)_i; }
KELP_ABORT_TEST(does_abort) { abort(); }
PLANTED
"$compiler" -std=gnu11 -D_GNU_SOURCE -I"$source_dir" -I"$source_dir/tests/lib/check" planted.c \
    "$source_dir/tests/lib/check/suite_plain.c" "$source_dir/tests/lib/suite_main.c" -o planted
if ./planted >planted.out; then fail "failed tests are not seen"; fi
grep -q '^6 tests, 4 failed$' planted.out || { cat planted.out && fail "these are not counted"; }

./build/bench/kernels 2 2>error.txt && fail "two threads are not refused"
grep -qx 'kernels: 2 threads: the plain matrix product of this build runs 1 at most' error.txt ||
    fail "$(cat error.txt)"
printf 'kernels alone: %d test programs\n' "$(wc -l <<<"$tests")"
