#!/bin/bash
# Where a step's time goes when a GPU trains: whole steps, through a shard on the same machine. Steps/s of two jobs, and
# what the worker and the shard spend a traced step on.
# usage: tests/gpu/steps.sh BIN SCRATCH [DEVICE]
#   BIN      the folder of kelp
#   SCRATCH  a folder that is made, for the runs
#   DEVICE   cuda, or what else cluster.device has
set -euo pipefail
bin="$(cd "${1:?usage: tests/gpu/steps.sh BIN SCRATCH [DEVICE]}" && pwd)"
mkdir -p "${2:?}"
scratch="$(cd "$2" && pwd)"
device="${3:-cuda}"
status=0

# job NAME HIDDEN LENGTH BATCH
job() {
    cat <<JOB
name: $1
model: {kind: mlp, hidden: $2}
data: {kind: synthetic, features: S, seq_len: $3, pred_len: $3, split: [12000, 2700, 2700]}
train: {epochs: 1, batch_size: $4, optimizer: adam, lr: 0.001}
cluster: {workers: 1, shards: 1, lanes: 8, device: $device}
JOB
}

# shares TRACE: of each process, what its first thread did in the traced steps.
shares() {
    awk '
        function text(key,   at) {
            at = index($0, "\"" key "\":\"")
            return at ? substr($0, at + length(key) + 4, index(substr($0, at + length(key) + 4), "\"") - 1) : ""
        }
        function number(key,   at) {
            at = index($0, "\"" key "\":")
            return at ? substr($0, at + length(key) + 3) + 0 : 0
        }
        /"process_name"/ {
            match($0, /"args":{"name":"[^"]*/)
            process[number("pid")] = substr($0, RSTART + 16, RLENGTH - 16)
            next
        }
        /"ph":"X"/ && number("tid") == 1 { took[number("pid"), text("name")] += number("dur") }
        END {
            for (pid in process) {
                worker = process[pid] ~ /^worker/
                count = split(worker ? "data;forward;loss;backward;wait for lane;merge;send;wait" : \
                    "receive;reduce;measure;update;send;wait", names, ";")
                all = worker ? took[pid, "step"] : took[pid, "message"] + took[pid, "wait"]
                line = process[pid] ":"
                for (i = 1; i <= count && all > 0; i++) {
                    line = line sprintf(" %s %.1f %%", names[i], 100 * took[pid, names[i]] / all)
                }
                print line
            }
        }' "$1" | sort
}

# run NAME HIDDEN LENGTH BATCH
run() {
    local run="$scratch/$1"
    rm -rf "$run" "$run".*
    job "$@" >"$run.yaml"
    if ! "$bin/kelp" train "$run.yaml" --no-plots --run "$run" --trace "$run.json" --trace-steps 20 >"$run.out" 2>&1
    then
        printf '%s: failed: %s\n' "$1" "$(tail -n 1 "$run.out")"
        status=1
        return
    fi
    grep ': done after' "$run.out"
    shares "$run.json"
}

run steps-small '[256, 256]' 96 64
run steps-wide '[4096, 4096]' 1024 512
exit "$status"
