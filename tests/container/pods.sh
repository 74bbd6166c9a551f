#!/bin/bash
# The image of deploy/container and the pods of deploy/kubernetes, by podman: etcd, coordinators, shards and ten workers
# have addresses of their own. A shard's pod and a worker's are lost and come back under new addresses, another shard's
# is told to end. The digest is that of kelp train outside, and no step is computed again.
# usage: tests/container/pods.sh SOURCE_DIR BUILD_DIR     (exit status 77: skipped, and why)
set -euo pipefail
usage='usage: tests/container/pods.sh SOURCE_DIR BUILD_DIR'
source_dir="$(cd "${1:?$usage}" && pwd)"
build_dir="$(cd "${2:?$usage}" && pwd)"
scratch="${3:-}" # set: the script goes on in namespaces of its own
base="$source_dir/deploy/kubernetes/base"
image=localhost/kelp:test
etcd_address=10.77.0.2
epochs=300 # the job outlasts all that happens to it

skip() {
    printf 'skipped: %s\n' "$1"
    exit 77
}
fail() {
    printf 'FAILED: %s\n' "$1"
    exit 1
}
now_ms() { date +%s%3N; }
# Its images, containers and networks are here alone.
podman_here() {
    podman --root "$scratch/store" --runroot "$scratch/state" --network-config-dir "$scratch/networks" \
        --cgroup-manager cgroupfs "$@"
}

# ---- outside: the image, certificates, what kelp train comes to ----

build_image() {
    local begin
    begin="$(now_ms)"
    "$source_dir/deploy/container/build.sh" --tag "$image" \
        --engine "podman --root $scratch/store --runroot $scratch/state --cgroup-manager cgroupfs" "$build_dir" ||
        fail "there is no image"
    printf 'image: %d MB after %d ms\n' "$(($(podman_here image inspect --format '{{.Size}}' "$image") / 1000000))" \
        $(($(now_ms) - begin))
}
# Secrets as the kubelet gives them to fsGroup 10001: of root, and readable for the group.
make_secrets() {
    local role
    "$build_dir/bin/kelp" certs init >/dev/null
    "$build_dir/bin/kelp" certs issue etcd --host kelp-etcd >/dev/null
    mkdir -p volumes/secrets
    cp -r authority/etcd volumes/secrets/kelp-etcd
    for role in coordinator shard worker operator reader; do
        "$build_dir/bin/kelp" certs issue "$role" --job series >/dev/null
        cp -r "authority/series/$role" "volumes/secrets/kelp-$role"
    done
    chown -R root:10001 volumes/secrets
    find volumes/secrets -type d -exec chmod 750 {} + -o -type f -exec chmod 440 {} +
}
outside() {
    mkdir -p volumes/kelp-job volumes/kelp-shared
    chown root:10001 volumes/kelp-shared
    chmod 2775 volumes/kelp-shared
    sed -E "s/epochs: [0-9]+/epochs: $epochs/" "$base/series.yaml" >volumes/kelp-job/job.yaml
    build_image
    make_secrets
    "$build_dir/bin/kelp" train volumes/kelp-job/job.yaml --run quiet --workers 1 --shards 1 \
        --set cluster.replicas=1 >quiet.out 2>quiet.err || fail "$(cat quiet.err)"
}

# ---- inside: pods, in namespaces that end with this script ----

# POD...: all with one call.
play() {
    python3 "$source_dir/tests/container/pods.py" "$base" "$image" "$scratch/volumes" "$etcd_address" "$@" >"$1.yaml"
    podman_here kube play --network kelp ${play_options[@]+"${play_options[@]}"} "$1.yaml" >"$1.out" 2>&1 ||
        fail "podman kube play $*: $(cat "$1.out")"
}
play_options=()
# POD STATUS: it ends with that.
ends() {
    local status
    status="$(podman_here wait "$1-kelp")"
    [ "$status" = "$2" ] || fail "pod $1 ended with $status: $(podman_here logs "$1-kelp" 2>&1 | tail -n 5)"
}
address_of() {
    local infra
    infra="$(podman_here pod inspect --format '{{.InfraContainerID}}' "$1")"
    podman_here inspect --format '{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}' "$infra"
}
# POD ROLE: it says so to who has a reader's certificate.
is_ready() {
    local certs=authority/series/reader
    curl --silent --show-error --fail --retry 10 --retry-delay 1 --retry-all-errors --cacert "$certs/ca.pem" \
        --cert "$certs/cert.pem" --key "$certs/key.pem" --resolve "$2.kelp:9400:$(address_of "$1")" \
        "https://$2.kelp:9400/readyz" >/dev/null 2>curl.err || fail "/readyz of pod $1: $(cat curl.err)"
}
# POD lost|drained: it comes back under another address. A lost one is gone at once, as with its node, and training goes
# on without it; one that is drained is told to end, and has no more when it does.
replace() {
    local before after
    before="$(address_of "$1")"
    if [ "$2" = lost ]; then
        podman_here pod rm --force --time 0 "$1" >/dev/null
        go_on 100
    else
        podman_here pod stop --time 60 "$1" >/dev/null
        ends "$1" 0
        podman_here pod rm "$1" >/dev/null
    fi
    play "$1"
    after="$(address_of "$1")"
    [ "$before" != "$after" ] || fail "pod $1 has its old address $after"
    printf '%s is %s: it had %s, and has %s\n' "$1" "$2" "$before" "$after"
}
# The newest step on record; 0: there is none.
step_now() {
    local step="" record=volumes/kelp-shared/series/digests.jsonl
    if [ -s "$record" ]; then step="$(tail -n 1 "$record" | sed -nE 's/.*"step":([0-9]+),.*/\1/p')"; fi
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
    fail "no step $target within a minute: $(podman_here logs kelp-coordinator-0-kelp 2>&1 | tail -n 3)"
}
count() { sed -nE "s/.*\"$1\":([0-9]+).*/\1/p" volumes/kelp-shared/series/result.json; }

inside() {
    local begin workers=() pod ours quiet
    ip link set lo up
    # crun takes a hierarchy of both kinds for one of the newer kind alone.
    if mountpoint -q /sys/fs/cgroup/unified; then umount /sys/fs/cgroup/unified; fi
    trap 'podman_here pod rm --all --force --time 0 >/dev/null 2>&1 || true' EXIT
    podman_here network create --subnet 10.77.0.0/24 kelp >/dev/null 2>network.err ||
        skip "podman makes no network here: $(tail -n 1 network.err)"

    play_options=(--ip "$etcd_address")
    play kelp-etcd-0
    play_options=()
    play kelp-submit
    ends kelp-submit 0
    for number in $(seq 0 9); do workers+=("kelp-worker-$number"); done
    begin="$(now_ms)"
    play "${workers[@]}"
    printf 'ten pods of workers: started after %d ms\n' $(($(now_ms) - begin))
    play kelp-coordinator-0 kelp-coordinator-1 kelp-shard-0 kelp-shard-1 kelp-shard-2 kelp-wait
    pod="$(podman_here inspect --format '{{.Config.User}} {{.HostConfig.ReadonlyRootfs}} {{.EffectiveCaps}}' \
        kelp-shard-0-kelp)"
    [ "$pod" = '10001:10001 true []' ] || fail "user, root file system and capabilities of a pod: $pod"
    go_on 200
    podman_here exec kelp-coordinator-0-kelp /usr/bin/kelp status series --certs /certs/operator |
        grep -q 'worker-0' || fail "kelp status in a coordinator's pod shows no worker"

    is_ready kelp-coordinator-0 coordinator
    is_ready kelp-shard-0 shard
    is_ready kelp-worker-1 worker

    replace kelp-shard-1 lost
    go_on 200
    replace kelp-worker-0 lost
    go_on 200
    replace kelp-shard-2 drained
    [ ! -e volumes/kelp-shared/series/result.json ] || fail "the job was over too soon: give it more epochs"
    ends kelp-wait 0
    for pod in "${workers[@]}" kelp-coordinator-0 kelp-coordinator-1 kelp-shard-0 kelp-shard-1 kelp-shard-2; do
        ends "$pod" 0
    done
    grep -q 'begins again: its job has cluster.compute: portable' volumes/empty/kelp-worker-1.tmp/run/logs/*.log ||
        fail "no worker executed itself again for cluster.compute: portable"

    ours="$(podman_here logs kelp-wait-kelp 2>/dev/null | sed -nE 's/^digest +//p')"
    quiet="$(sed -nE 's/^digest +//p' quiet.out)"
    if [ -z "$ours" ] || [ "$ours" != "$quiet" ]; then fail "digest $ours, and $quiet of kelp train outside"; fi
    printf 'pods: digest %s, restores %s, steps again %s\n' "$ours" "$(count restores)" "$(count steps_recomputed)"
    [ "$(count steps_recomputed)" = 0 ] || fail "steps were computed again, with a backup of each partition"
}

for variable in $(compgen -e | grep '^KELP_' || true); do unset "$variable"; done
if [ -n "$scratch" ]; then
    cd "$scratch"
    inside
    exit
fi
[ "$(id -u)" -eq 0 ] || skip "pods by podman take root"
for program in podman crun iptables unshare curl etcd cpack; do
    command -v "$program" >/dev/null ||
        skip "there is no $program (deploy/install-deps.sh --dev)"
done
python3 -c 'import yaml' 2>/dev/null || skip "Python has no module yaml (deploy/install-deps.sh --dev)"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
chmod 755 "$scratch"
cd "$scratch"
export XDG_CACHE_HOME="$scratch/cache" KELP_NO_PLOTS=true CONTAINERS_CONF="$scratch/containers.conf"
# Limits that are above those of the machine are refused; so are journals that it may not have.
cat >containers.conf <<'CONF'
[containers]
default_ulimits = ["nofile=10000:10000", "nproc=8000:8000"]
[engine]
events_logger = "file"
CONF
outside
status=0
unshare --mount --net --pid --fork --kill-child --mount-proc \
    "$source_dir/tests/container/pods.sh" "$source_dir" "$build_dir" "$scratch" || status=$?
exit "$status"
