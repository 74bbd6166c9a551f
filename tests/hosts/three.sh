#!/bin/bash
# One job on three hosts, which are network namespaces joined by a bridge: etcd, coordinators, shards and workers at
# ports with certificates. A host is cut off and comes back; another one is lost with all its processes, and comes back.
# No step is computed again, and the digest is that of kelp train.
# usage: tests/hosts/three.sh SOURCE_DIR BUILD_DIR     (exit status 77: skipped, and why)
set -euo pipefail
usage='usage: tests/hosts/three.sh SOURCE_DIR BUILD_DIR'
bin="$(cd "${2:?$usage}/bin" && pwd)" # of the build; nothing of the sources is needed

skip() {
    printf 'skipped: %s\n' "$1"
    exit 77
}
[ "$(id -u)" -eq 0 ] || skip "network namespaces take root"
for program in ip etcd setsid; do
    command -v "$program" >/dev/null || skip "there is no program $program"
done

for variable in $(compgen -e | grep '^KELP_' || true); do unset "$variable"; done
scratch="$(mktemp -d)"
mark="kelp$$"
etcd_url=https://10.77.0.1:2379
cd "$scratch"
export XDG_CACHE_HOME="$scratch/cache" KELP_NO_PLOTS=true

fail() {
    printf 'FAILED: %s\n' "$1"
    tail -n 5 ./*.out 2>/dev/null || true
    exit 1
}

# ---- the network ----

# All processes of a host.
host_pids() { ip netns pids "$mark-$1" 2>/dev/null || true; }
kill_host() {
    local pids
    pids="$(host_pids "$1")"
    # shellcheck disable=SC2086 # one word each
    if [ -n "$pids" ]; then kill -KILL $pids 2>/dev/null || true; fi
}
clean() {
    for host in a b c; do kill_host "$host"; done
    wait
    for host in a b c switch; do ip netns del "$mark-$host" 2>/dev/null || true; done
    rm -rf "$scratch"
}
trap clean EXIT

ip netns add "$mark-switch" 2>err || skip "network namespaces: $(cat err)"
ip -n "$mark-switch" link add br0 type bridge 2>err || skip "no bridge: $(cat err)"
ip -n "$mark-switch" link set br0 up
number=0
for host in a b c; do
    number=$((number + 1))
    ip netns add "$mark-$host"
    ip -n "$mark-$host" link set lo up
    ip link add eth0 netns "$mark-$host" type veth peer name "port-$host" netns "$mark-switch"
    ip -n "$mark-switch" link set "port-$host" master br0 up
    ip -n "$mark-$host" addr add "10.77.0.$number/24" dev eth0
    ip -n "$mark-$host" link set eth0 up
done
on() {
    local host="$1"
    shift
    ip netns exec "$mark-$host" "$@"
}

# ---- the job ----

cat >job.yaml <<'JOB'
name: three
seed: 3
model: {kind: dlinear}
data: {kind: synthetic, rows: 3000, split: [2000, 400, 400], seq_len: 48, pred_len: 24}
train: {epochs: 60, batch_size: 32, schedule: constant}
cluster: {workers: 2, shards: 3, replicas: 2, lanes: 4}
failure: {restart_backoff: 100ms}
checkpoint: {digest_steps: 5}
JOB
"$bin/kelp" certs init >/dev/null
"$bin/kelp" certs issue etcd --host 10.0.0.1 --host 10.77.0.1 >/dev/null
for role in coordinator shard worker operator reader; do
    "$bin/kelp" certs issue "$role" --job three >/dev/null
done
certs=authority/three
on a setsid etcd --data-dir etcd --listen-client-urls "$etcd_url" --advertise-client-urls "$etcd_url" \
    --listen-peer-urls http://127.0.0.1:2380 --initial-advertise-peer-urls http://127.0.0.1:2380 \
    --initial-cluster default=http://127.0.0.1:2380 --cert-file authority/etcd/cert.pem \
    --key-file authority/etcd/key.pem --trusted-ca-file authority/etcd/ca.pem --client-cert-auth >etcd.log 2>&1 &

# A verb on host A, as an operator.
steer() {
    local verb="$1"
    shift
    on a "$bin/kelp" "$verb" "$@" --etcd "$etcd_url" --certs "$certs/operator"
}
for _ in $(seq 100); do
    steer submit job.yaml --run run >submit.log 2>&1 && break
    grep -q "has a job" submit.log && fail "$(cat submit.log)"
    sleep 0.1 # etcd starts
done
grep -q '^sha256' submit.log || fail "$(cat submit.log)"

nodes=()
# HOST: its kelp node, in the background; its exit status goes to HOST.status. Its processes serve at the address that
# it uses towards etcd.
start() {
    {
        status=0
        on "$1" "$bin/kelp" node --etcd "$etcd_url" --job three --host "$1" --certs "$certs" \
            --coordinator --shards 1 --workers 1 >>"$1.out" 2>&1 || status=$?
        echo "$status" >"$1.status"
    } &
    nodes+=($!)
}
# The newest one on record; 0: there is none.
step_now() {
    local step=""
    if [ -s run/digests.jsonl ]; then step="$(tail -n 1 run/digests.jsonl | sed -nE 's/.*"step":([0-9]+),.*/\1/p')"; fi
    echo "${step:-0}"
}
# STEPS more than now, within a minute.
go_on() {
    local target
    target=$(($(step_now) + $1))
    for _ in $(seq 600); do
        if [ "$(step_now)" -ge "$target" ]; then return; fi
        sleep 0.1
    done
    fail "no step $target within a minute"
}

for host in a b c; do start "$host"; done
go_on 100
ip -n "$mark-switch" link set port-c down # cut off
go_on 200
ip -n "$mark-switch" link set port-c up
go_on 200
leader="$(steer status three -o json | sed -nE 's/.*"leader":"([abc])\..*/\1/p')"
lost=b # not host a: etcd is there
if [ "$leader" = c ]; then lost=c; fi
kill_host "$lost" # with all that is on it
go_on 200
start "$lost"
go_on 200
steer wait three --timeout 2m >result.out 2>&1 || fail "kelp wait: $(cat result.out)"
wait "${nodes[@]}"
for host in a b c; do
    [ "$(cat "$host.status")" = 0 ] || fail "host $host ended with $(cat "$host.status")"
done
ours="$(sed -nE 's/^digest +//p' result.out)"
"$bin/kelp" train job.yaml --run quiet >quiet.out 2>/dev/null
quiet="$(sed -nE 's/^digest +//p' quiet.out)"
if [ -z "$ours" ] || [ "$ours" != "$quiet" ]; then fail "digest $ours, and $quiet of kelp train"; fi
count() { sed -nE "s/.*\"$1\":([0-9]+).*/\1/p" run/result.json; }
printf 'three hosts: digest %s, restores %s, steps again %s\n' "$ours" "$(count restores)" "$(count steps_recomputed)"
if [ "$(count steps_recomputed)" != 0 ]; then fail "steps were computed again, with a backup of each partition"; fi
for host in b c; do
    [ -z "$(host_pids "$host")" ] || fail "processes are left on host $host"
done
