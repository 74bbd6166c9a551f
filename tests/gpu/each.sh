#!/bin/bash
# Each worker of a machine sees one GPU, in turn: those of --gpus, else those that CUDA_VISIBLE_DEVICES names. BIN has
# programs whose GPU is emulated or real.
# usage: tests/gpu/each.sh BIN
set -euo pipefail
bin="$(cd "${1:?usage: tests/gpu/each.sh BIN}" && pwd)"
scratch="$(mktemp -d)"
train=""
clean() {
    if [ -n "$train" ]; then kill -TERM "$train" 2>/dev/null || true; fi
    wait
    rm -rf "$scratch"
}
trap clean EXIT
fail() {
    printf 'FAILED: %s\n' "$1"
    cat "$scratch"/*.out 2>/dev/null || true
    exit 1
}
cd "$scratch"
export XDG_CACHE_HOME="$scratch/cache" KELP_NO_PLOTS=true
cat >job.yaml <<'JOB'
name: each
model: {kind: mlp, hidden: [4]}
data: {kind: synthetic, rows: 400, split: [200, 100, 100], seq_len: 8, pred_len: 4}
train: {epochs: 1000000, batch_size: 16}
cluster: {workers: 3, lanes: 4, device: cuda}
JOB

# RUN GPUS…: what the three workers of that run see.
sees() {
    local run="$1" worker pid
    shift
    for worker in 0 1 2; do
        for _ in $(seq 300); do
            pid="$(pgrep -P "$train" -f -- "--id worker-$worker " || true)"
            if [ -n "$pid" ]; then break; fi
            kill -0 "$train" 2>/dev/null || fail "kelp train has ended"
            sleep 0.1
        done
        [ -n "$pid" ] || fail "worker-$worker does not start"
        printf '%s\n' "$(tr '\0' '\n' <"/proc/$pid/environ" | sed -n 's/^CUDA_VISIBLE_DEVICES=//p')"
    done >"$run.seen"
    [ "$(tr '\n' ' ' <"$run.seen")" = "$* " ] || fail "the workers see $(tr '\n' ' ' <"$run.seen"), not $*"
    kill -TERM "$train"
    wait "$train" || true
    train=""
}
"$bin/kelp" train job.yaml --run typed --gpus 5,7 --pause-timeout 0s >typed.out 2>&1 &
train=$!
sees typed 5 7 5
CUDA_VISIBLE_DEVICES=1,2,GPU-0 "$bin/kelp" train job.yaml --run given --pause-timeout 0s >given.out 2>&1 &
train=$!
sees given 1 2 GPU-0
echo "each worker sees one GPU"
