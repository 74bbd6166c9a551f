# Hosts for tests: network namespaces a, b, c that a bridge joins, with a member of etcd and a kelp node each. The job's
# files lie in the folder $scratch, which all of them see. To be sourced, with $bin set, and begun by begin; root alone
# can make them.
# shellcheck shell=bash disable=SC2154,SC2034 # $bin is the caller's, $node for it

hosts=(a b c)
declare -A address=([a]=10.77.0.1 [b]=10.77.0.2 [c]=10.77.0.3)
etcd_url="https://${address[a]}:2379,https://${address[b]}:2379,https://${address[c]}:2379"
job=three
mark="kelp$$"

skip() {
    printf 'skipped: %s\n' "$1"
    exit 77
}
fail() {
    printf 'FAILED: %s\n' "$1"
    tail -n 5 ./*.out 2>/dev/null || true
    exit 1
}

# ---- the network ----

on() {
    local host="$1"
    shift
    ip netns exec "$mark-$host" "$@"
}
# All processes of a host.
host_pids() { ip netns pids "$mark-$1" 2>/dev/null || true; }
kill_host() {
    local pids
    pids="$(host_pids "$1")"
    # shellcheck disable=SC2086 # one word each
    if [ -n "$pids" ]; then kill -KILL $pids 2>/dev/null || true; fi
}
# Cut off from all others, and back.
cut_off() { ip -n "$mark-switch" link set "port-$1" down; }
join() { ip -n "$mark-switch" link set "port-$1" up; }
# A host has one more address, 10.77.1.NUMBER.
add_address() { ip -n "$mark-$1" addr add "10.77.1.$2/16" dev eth0; }

clean() {
    for host in "${hosts[@]}"; do kill_host "$host"; done
    wait
    for host in "${hosts[@]}" switch; do ip netns del "$mark-$host" 2>/dev/null || true; done
    rm -rf "$scratch"
}

make_network() {
    [ "$(id -u)" -eq 0 ] || skip "network namespaces take root"
    for program in ip etcd setsid; do
        command -v "$program" >/dev/null || skip "there is no program $program"
    done
    ip netns add "$mark-switch" 2>err || skip "network namespaces: $(cat err)"
    ip -n "$mark-switch" link add br0 type bridge 2>err || skip "no bridge: $(cat err)"
    ip -n "$mark-switch" link set br0 up
    for host in "${hosts[@]}"; do
        ip netns add "$mark-$host"
        ip -n "$mark-$host" link set lo up
        ip link add eth0 netns "$mark-$host" type veth peer name "port-$host" netns "$mark-switch"
        ip -n "$mark-switch" link set "port-$host" master br0 up
        ip -n "$mark-$host" addr add "${address[$host]}/16" dev eth0
        ip -n "$mark-$host" link set eth0 up
    done
}

# ---- etcd, and the job ----

make_certs() {
    local names=()
    for host in "${hosts[@]}"; do names+=(--host "${address[$host]}"); done
    "$bin/kelp" certs init >/dev/null
    "$bin/kelp" certs issue etcd "${names[@]}" >/dev/null
    for role in coordinator shard worker operator reader; do
        "$bin/kelp" certs issue "$role" --job "$job" >/dev/null
    done
}

# HOST: its member, with the data that it has.
start_etcd() {
    local host="$1" members="" peer
    for peer in "${hosts[@]}"; do members+="${members:+,}$peer=http://${address[$peer]}:2380"; done
    on "$host" setsid etcd --name "$host" --data-dir "etcd-$host" --heartbeat-interval 50 --election-timeout 500 \
        --listen-client-urls "https://${address[$host]}:2379" --advertise-client-urls "https://${address[$host]}:2379" \
        --listen-peer-urls "http://${address[$host]}:2380" \
        --initial-advertise-peer-urls "http://${address[$host]}:2380" --initial-cluster "$members" \
        --cert-file authority/etcd/cert.pem --key-file authority/etcd/key.pem \
        --trusted-ca-file authority/etcd/ca.pem --client-cert-auth >>"etcd-$host.log" 2>&1 &
}

# Hosts with etcd, in a new folder. All goes when the script ends.
begin() {
    for variable in $(compgen -e | grep '^KELP_' || true); do unset "$variable"; done
    scratch="$(mktemp -d)"
    cd "$scratch" || exit 1
    export XDG_CACHE_HOME="$scratch/cache" KELP_NO_PLOTS=true
    trap clean EXIT
    make_network
    make_certs
    for host in "${hosts[@]}"; do start_etcd "$host"; done
}

# A verb on HOST, as an operator.
steer_on() {
    local host="$1" verb="$2"
    shift 2
    on "$host" "$bin/kelp" "$verb" "$@" --etcd "$etcd_url" --certs "authority/$job/operator"
}
steer() { steer_on a "$@"; }

submit() {
    for _ in $(seq 100); do
        steer submit job.yaml --run run >submit.log 2>&1 && break
        grep -q "has a job" submit.log && fail "$(cat submit.log)"
        sleep 0.1 # etcd starts
    done
    grep -q '^sha256' submit.log || fail "$(cat submit.log)"
}

declare -A node=()
# HOST [OPTION…]: its kelp node, in the background; its exit status goes to HOST.status. Its processes serve at the
# address that it uses towards etcd.
start() {
    local host="$1"
    shift
    rm -f "$host.status"
    {
        status=0
        on "$host" "$bin/kelp" node --etcd "$etcd_url" --job "$job" --host "$host" --certs "authority/$job" \
            --coordinator --shards 1 --workers 1 "$@" >>"$host.out" 2>&1 || status=$?
        echo "$status" >"$host.status"
    } &
    node[$host]=$!
}
# SIGTERM to a host's kelp node.
leave() {
    local pid
    for pid in $(host_pids "$1"); do
        if tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -q 'kelp node '; then kill -TERM "$pid"; fi
    done
}

# ---- steps ----

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
    for _ in $(seq 1200); do
        if [ "$(step_now)" -ge "$target" ]; then return; fi
        sleep 0.05
    done
    fail "no step $target within a minute"
}

# ---- what is said, and the end ----

# HOST STATUS WORDS: what kelp doctor says on that host, as its exit status and in a line.
doctor() {
    local status=0
    on "$1" "$bin/kelp" doctor "$job" --etcd "$etcd_url" --certs "authority/$job/reader" --timeout 3s \
        >doctor.out 2>&1 || status=$?
    [ "$status" = "$2" ] || fail "kelp doctor on host $1 ended with $status: $(cat doctor.out)"
    grep -qE "$3" doctor.out || fail "kelp doctor on host $1 does not say '$3': $(cat doctor.out)"
}

# The job is done, every host has ended with status 0 and has nothing left; the digest is that of kelp train.
expect_quiet() {
    local ours quiet host
    steer wait "$job" --timeout 10m >result.out 2>&1 || fail "kelp wait: $(cat result.out)"
    wait "${node[@]}"
    for host in "${hosts[@]}"; do
        [ "$(cat "$host.status")" = 0 ] || fail "host $host ended with $(cat "$host.status")"
    done
    for host in "${hosts[@]}"; do
        for pid in $(host_pids "$host"); do
            grep -q '^etcd' "/proc/$pid/cmdline" 2>/dev/null || fail "process $pid is left on host $host"
        done
    done
    ours="$(sed -nE 's/^digest +//p' result.out)"
    "$bin/kelp" train job.yaml --run quiet >quiet.out 2>/dev/null || fail "kelp train: $(cat quiet.out)"
    quiet="$(sed -nE 's/^digest +//p' quiet.out)"
    if [ -z "$ours" ] || [ "$ours" != "$quiet" ]; then fail "digest $ours, and $quiet of kelp train"; fi
    printf 'digest %s, that of kelp train; restores %s, steps again %s\n' "$ours" "$(count restores)" \
        "$(count steps_recomputed)"
}
count() { sed -nE "s/.*\"$1\":([0-9]+).*/\1/p" run/result.json; }
