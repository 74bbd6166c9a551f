#!/bin/bash
# One job on three hosts, to which so many faults are done, each once all is well again: a host is cut off and comes
# back, is lost with all that is on it and comes back, comes back under another address, leaves in order and comes back,
# or what it sends to another one is lost. Which, when and for how long follows from the seed. The digest is that of
# kelp train. For each kind: the longest time without a step on record, from the fault to 100 steps after its end.
# usage: tests/hosts/faults.sh SOURCE_DIR BUILD_DIR [FAULTS] [SEED] [REPLICAS]     (exit status 77: skipped, and why)
# shellcheck disable=SC1091,SC2034,SC2154 # names are shared with hosts.sh
set -euo pipefail
usage='usage: tests/hosts/faults.sh SOURCE_DIR BUILD_DIR [FAULTS] [SEED] [REPLICAS]'
source_dir="$(cd "${1:?$usage}" && pwd)"
bin="$(cd "${2:?$usage}/bin" && pwd)"
faults="${3:-10}"
RANDOM="${4:-1}"
replicas="${5:-2}"
. "$source_dir/tests/hosts/hosts.sh"

begin

# 62 steps an epoch; a fault takes some seconds.
cat >job.yaml <<JOB
name: $job
seed: 3
model: {kind: dlinear}
data: {kind: synthetic, rows: 3000, split: [2000, 400, 400], seq_len: 48, pred_len: 24}
train: {epochs: $((20 + faults * 40)), batch_size: 32, schedule: constant}
cluster: {workers: 2, shards: 3, replicas: $replicas, lanes: 4}
failure: {restart_backoff: 100ms, max_failures: -1}
checkpoint: {steps: 1000, digest_steps: 5}
JOB
submit
for host in "${hosts[@]}"; do start "$host"; done
go_on 100
partitions=3
backed=$((partitions * (replicas - 1)))

milliseconds() { date +%s%3N; }
# Until so many steps more are on record: the longest time without one, into $gap, unless it was longer before.
watch_steps() {
    local target since now step seen
    seen="$(step_now)"
    since="$(milliseconds)"
    target=$((seen + $1))
    for _ in $(seq 6000); do
        step="$(step_now)"
        now="$(milliseconds)"
        if [ $((now - since)) -gt "$gap" ]; then gap=$((now - since)); fi
        if [ "$step" -gt "$seen" ]; then
            seen="$step"
            since="$now"
        fi
        if [ "$step" -ge "$target" ]; then return; fi
        sleep 0.01
    done
    fail "no $1 steps in a minute or more"
}
another() {
    local rest=()
    for host in "${hosts[@]}"; do [ "$host" = "$1" ] || rest+=("$host"); done
    echo "${rest[RANDOM % 2]}"
}
# A host comes back, at its own address or at one more.
come_back() {
    local victim="$1"
    shift
    start_etcd "$victim"
    start "$victim" "$@"
}
extra=0
do_fault() {
    local kind="$1" victim="$2" peer
    gap=0
    case "$kind" in
    cut)
        cut_off "$victim"
        watch_steps "$((50 + RANDOM % 1000))"
        join "$victim"
        ;;
    one-way)
        peer="$(another "$victim")"
        lose "$victim" "$peer"
        watch_steps "$((50 + RANDOM % 1000))"
        pass "$victim" "$peer"
        ;;
    kill)
        kill_host "$victim"
        watch_steps 50
        come_back "$victim"
        ;;
    address)
        kill_host "$victim"
        watch_steps 50
        extra=$((extra + 1))
        add_address "$victim" "$extra"
        come_back "$victim" --listen "10.77.1.$extra"
        ;;
    leave)
        leave "$victim"
        watch_steps 50
        wait "${node[$victim]}"
        [ "$(cat "$victim.status")" = 0 ] || fail "host $victim left with status $(cat "$victim.status")"
        start "$victim"
        ;;
    esac
    watch_steps 100
}

kinds=(cut kill one-way leave address)
for number in $(seq "$faults"); do
    kind="${kinds[RANDOM % ${#kinds[@]}]}"
    victim="${hosts[RANDOM % ${#hosts[@]}]}"
    await_calm "$backed"
    do_fault "$kind" "$victim"
    printf '%s %s\n' "$kind" "$gap" >>gaps
    printf '%3d %-8s host %s: %5d ms without a step\n' "$number" "$kind" "$victim" "$gap"
done
expect_quiet
for kind in "${kinds[@]}"; do
    sed -n "s/^$kind //p" gaps | sort -n |
        awk -v kind="$kind" '{ ms[NR] = $1 }
            END { if (NR) printf "%-8s %3d times, without a step: median %d ms, worst %d ms\n",
                  kind, NR, ms[int((NR + 1) / 2)], ms[NR] }'
done
