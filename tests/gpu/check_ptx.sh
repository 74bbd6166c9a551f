#!/bin/bash
# What nvcc makes of the GPU's kernels: no sum whose order depends on the threads (atomics on floats),
# no multiplication and addition in one (contraction), in the PTX for Turing, in that for Blackwell, and in
# any other that the build has made. What is fused on purpose is assembly in the source, which the compiler
# marks (kernels/cuda/conv2d/tensor.cuh).
# That nothing is spilled or lies in local memory, the build itself checks.
# usage: tests/gpu/check_ptx.sh SOURCE_DIR NVCC [KEPT]
# KEPT: where the build has left PTX (nvcc --keep); what is not there, or older than its source, is compiled.
# Exit status: 77: there is no nvcc.
set -euo pipefail
cd "${1:?usage: tests/gpu/check_ptx.sh SOURCE_DIR NVCC [KEPT]}"
nvcc="${2:-}"
kept="${3:-}"
if [ -z "$nvcc" ] || ! [ -x "$nvcc" ]; then
    printf 'skipped: there is no nvcc\n'
    exit 77
fi
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT

# Instructions that make a result depend on more than the operands and their order.
banned='(^|[^a-z])(atom|red)[.][a-z.0-9]*[.](f16|f32|f64|bf16|f16x2|bf16x2)|fma[.]r[nzmp]([.]ftz)?[.]f(32|64)'
banned+='|[.]approx[.]'
found() { # FILE ...: comments do not count, nor does a fused operation between the compiler's marks
    awk -v banned="$banned" '
        /^[[:space:]]*\/\/ begin inline asm/ { assembly = 1 }
        /^[[:space:]]*\/\/ end inline asm/ { assembly = 0 }
        /^[[:space:]]*\/\// { next }
        assembly && /^[[:space:]]*fma[.]rn[.]f32 / { next }
        $0 ~ banned { print FILENAME ":" FNR ":" $0 }' "$@"
}
compile() { # ARCHITECTURE FILE MORE ...
    local architecture="$1" file="$2"
    shift 2
    "$nvcc" -std=c++17 -O3 -arch="compute_$architecture" -fmad=false -D_GNU_SOURCE -I. "$@" -ptx "$file" \
        -o "$scratch/$(basename "$file").$architecture.ptx"
}

# The list catches what it is there for.
cat >"$scratch/planted.cu" <<'PLANTED'
__global__ void planted(float *sum, float a, float b) { atomicAdd(sum, __fmaf_rn(a, b, *sum)); }
__global__ void planted_assembly(float *sum, float a, float b)
{
    float c;
    asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(c) : "f"(a), "f"(b), "f"(*sum));
    asm volatile("red.global.add.f32 [%0], %1;" ::"l"(sum), "f"(__fmaf_rn(a, c, b)));
}
PLANTED
compile 90 "$scratch/planted.cu"
if [ "$(found "$scratch/planted.cu.90.ptx" | wc -l)" -ne 4 ]; then
    printf 'ptx: two planted atomic sums and two planted fma are not found, or one that may be there is\n'
    exit 1
fi
rm "$scratch"/planted.*

bring() { # FILE
    local name architecture ptx
    name="$(basename "$1" .cu)"
    for ptx in "$kept/$name".compute_*.ptx; do
        architecture="${ptx##*.compute_}"
        if [ "$ptx" -nt "$1" ]; then cp "$ptx" "$scratch/$name.cu.${architecture%.ptx}.ptx"; fi
    done
    for architecture in 75 100; do
        [ -e "$scratch/$name.cu.$architecture.ptx" ] || compile "$architecture" "$1"
    done
}
export -f compile bring
export nvcc kept scratch
printf '%s\n' kernels/cuda/*.cu kernels/cuda/*/*.cu | xargs -P 2 -I '{}' bash -c 'bring {}'
bad="$(found "$scratch"/*.ptx)"
if [ -n "$bad" ]; then
    printf '%s\n' "${bad//$scratch\//}" | head -n 10
    exit 1
fi
printf 'ptx: %d files in order\n' "$(find "$scratch" -name '*.ptx' | wc -l)"
