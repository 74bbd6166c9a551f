#!/bin/bash
# One build on machines where something is missing that cluster.device: cuda needs: each is one clear line, and the job
# does not start. Jobs on the CPU run all the same. (What is said without cuBLASLt or cuDNN: no_library.cu.)
# usage: tests/gpu/missing.sh BUILD_DIR
set -euo pipefail
build="$(cd "${1:?usage: tests/gpu/missing.sh BUILD_DIR}" && pwd)"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
fail() {
    printf 'FAILED: %s\n' "$1"
    exit 1
}
cd "$scratch"
export XDG_CACHE_HOME="$scratch/cache" KELP_NO_PLOTS=true
unset LD_LIBRARY_PATH
cat >job.yaml <<'JOB'
name: missing
model: {kind: mlp, hidden: [4]}
data: {kind: synthetic, rows: 400, split: [200, 100, 100], seq_len: 8, pred_len: 4}
train: {epochs: 1, batch_size: 16}
cluster: {workers: 1, lanes: 4}
JOB
mkdir -p folder/bin folder/lib/kelp
for program in kelp kelp-coordinator kelp-ps kelp-worker; do
    cp "$build/bin/$program" folder/bin
done

# says WHAT TEXT: kelp train says that of a job on the GPU, and nothing else, whatever the folder has.
says() {
    local status=0
    folder/bin/kelp train job.yaml --set cluster.device=cuda --run "run-$1" >"$1.out" 2>"$1.err" || status=$?
    [ "$status" -eq 2 ] || fail "$1: exit status $status: $(cat "$1.err")"
    [ "$(cat "$1.err")" = "kelp: cluster.device: cuda: $2" ] || fail "$1: $(cat "$1.err")"
    [ ! -e "run-$1" ] || fail "$1: a run was begun"
}
place="$scratch/folder/lib/kelp/libkelp-cuda.so"
says no-toolkit "this build has no CUDA device: libkelp-cuda.so is neither at $place nor on the library path; it is \
built where nvcc is found"
echo "no library" >"$place"
says no-library "cannot load the CUDA device: $place: file too short"
cc -shared -fPIC -x c -o "$place" - <<<'int nothing;'
says another-library "cannot load the CUDA device: libkelp-cuda.so has no kelp_cuda_entry"

if [ -e "$build/lib/kelp/libkelp-cuda.so" ]; then
    cp "$build/lib/kelp/libkelp-cuda.so" "$place"
    if ! ldconfig -p | grep -q libcuda.so.1; then
        says no-driver "no NVIDIA driver for CUDA 13.0 is loaded on this machine"
    fi
    # A driver whose machine has no GPU. All else that CUDA looks up in it is there, and is not called.
    cc -shared -fPIC -x c -o libcuda.so.1 - <<'DRIVER'
#include <string.h>
static int others(void) { return 999; }
int cuInit(unsigned flags) { (void)flags; return 100; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long flags, int *found)
{
    (void)version, (void)flags;
    *function = (void *)others;
    if (strcmp(name, "cuInit") == 0) { *function = (void *)cuInit; }
    if (strcmp(name, "cuDriverGetVersion") == 0) { *function = (void *)cuDriverGetVersion; }
    if (strcmp(name, "cuGetProcAddress") == 0) { *function = (void *)cuGetProcAddress_v2; }
    if (found) { *found = 0; }
    return 0;
}
DRIVER
    export LD_LIBRARY_PATH="$scratch"
    says no-device "this machine has no CUDA GPU"
    unset LD_LIBRARY_PATH
fi
folder/bin/kelp train job.yaml --run run-cpu >cpu.out 2>&1 || fail "on the CPU: $(cat cpu.out)"
grep -q '^digest' cpu.out || fail "on the CPU: $(cat cpu.out)"
echo "each says what is missing"
