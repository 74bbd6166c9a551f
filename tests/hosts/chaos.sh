#!/bin/bash
# kelp chaos --hosts: each kind of fault is done once to three hosts, and the digest is that of the quiet run. Killed by
# SIGKILL on the way, the command leaves no process behind, and no network; this by an ordinary user, if root may become
# one.
# usage: tests/hosts/chaos.sh SOURCE_DIR BUILD_DIR     (exit status 77: skipped, and why)
set -euo pipefail
bin="$(cd "${2:?usage: tests/hosts/chaos.sh SOURCE_DIR BUILD_DIR}/bin" && pwd)"
for variable in $(compgen -e | grep '^KELP_' || true); do unset "$variable"; done
scratch="$(mktemp -d)"
cd "$scratch"
mkdir tmp
chmod -R 755 .
export XDG_CACHE_HOME="$scratch/cache" TMPDIR="$scratch/tmp" KELP_NO_PLOTS=true
command=""
clean() {
    if [ -n "$command" ]; then kill -KILL "$command" 2>/dev/null || true; fi
    rm -rf "$scratch"
}
trap clean EXIT
fail() {
    printf 'FAILED: %s\n' "$1"
    tail -n 5 ./*.out run*/host-*.log 2>/dev/null || true
    exit 1
}
has() { grep -qF "$1" run/chaos.json || fail "chaos.json has no $1"; }

# Steps that take a while: five faults take some ten seconds, however fast the machine is.
cat >job.yaml <<'JOB'
name: hosts
seed: 3
model: {kind: dlinear}
data: {kind: synthetic, rows: 6000, split: [5000, 500, 500], seq_len: 192, pred_len: 192}
train: {epochs: 2000, batch_size: 256, schedule: constant, evaluate: false}
cluster: {replicas: 2, lanes: 4}
checkpoint: {digest_steps: 5}
JOB
cat >plan.yaml <<'PLAN'
faults:
  - {kind: split, target: host-0, step: 20, for: 400ms:800ms}
  - {kind: leave, target: host, step: 40, for: 100ms}
  - {kind: one-way, target: host, step: 60, for: 400ms:800ms}
  - {kind: move, target: host-1, step: 80, for: 400ms:800ms}
  - {kind: kill, target: host-2, step: 100, for: 400ms:800ms}
PLAN
# As many as fill that time on this machine; more, if that was a misjudgement.
"$bin/kelp" train job.yaml --set train.epochs=10 --workers 3 --shards 3 --run speed >speed.out 2>&1 || fail "kelp train"
speed="$(sed -nE 's/.*"steps_per_s":([0-9]+).*/\1/p' speed/result.json)"
least=$((50 + speed / 2)) # epochs of 19 steps: ten seconds
for epochs in "$least" $((4 * least)); do
    status=0
    rm -rf run
    "$bin/kelp" chaos job.yaml --hosts 3 --plan plan.yaml --epochs "$epochs" --run run >chaos.out 2>&1 || status=$?
    if [ "$status" != 1 ] || ! grep -q 'give it more --epochs' chaos.out; then break; fi # a fast machine
done
if [ "$status" = 2 ] && grep -q 'which this machine does not permit' chaos.out; then
    printf 'skipped: %s\n' "$(cat chaos.out)"
    exit 77
fi
cat chaos.out
[ "$status" = 0 ] || fail "kelp chaos ended with $status"
for kind in split leave one-way move kill; do has "\"kind\":\"$kind\",\"role\":\"host\""; done
has '"equal":true'
has '"steps_recomputed":0'
has '"restores":[]'
grep -q '^split host  *1  *[0-9.]* s' chaos.out || fail "the table has no row for split"
[ -z "$(ls -A tmp)" ] || fail "files are left: $(ls -A tmp)"

# ---- etcd that ends, and where it is not permitted ----

digest=0123456789abcdef0123456789abcdef
status=0
"$bin/kelp" chaos job.yaml --hosts 3 --plan plan.yaml --digest "$digest" --etcd-program /bin/false --run run1 \
    >ended.out 2>&1 || status=$?
[ "$status" = 1 ] || fail "kelp chaos ended with $status where etcd cannot be started"
grep -qE '^the run with faults failed after 0 of 5: etcd on host-[0-2] exited with status 1' ended.out ||
    fail "no word on etcd: $(cat ended.out)"

# Root of a user namespace in which none may be made, without the right to make networks.
# shellcheck disable=SC2016 # for the other shell
within='echo 0 >/proc/sys/user/max_user_namespaces &&
    exec setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin "$@"'
status=0
unshare --user --map-root-user sh -c "$within" sh "$bin/kelp" chaos job.yaml --hosts 3 --run none >refused.out 2>&1 ||
    status=$?
[ "$status" = 2 ] || fail "kelp chaos ended with $status where it is not permitted"
[ "$(wc -l <refused.out)" = 1 ] || fail "more than one line: $(cat refused.out)"
grep -qF 'a user namespace (user.max_user_namespaces): ' refused.out || fail "the line is: $(cat refused.out)"
[ ! -e none ] || fail "a folder is left of a run that was not permitted"

# ---- killed on the way ----

as=()
nobody=(setpriv --reuid 65534 --regid 65534 --clear-groups)
if [ "$(id -u)" -eq 0 ] && "${nobody[@]}" "$bin/kelp" --version >/dev/null 2>&1; then
    as=("${nobody[@]}")
    chown 65534 . tmp
fi
# Numbers of the processes that are on one of these networks.
on_networks() {
    local process
    for process in /proc/[0-9]*; do
        if grep -qxF "$(readlink "$process/ns/net" 2>/dev/null)" "$1"; then echo "${process#/proc/}"; fi
    done
}
"${as[@]}" "$bin/kelp" chaos job.yaml --hosts 3 --digest "$digest" --run run2 >killed.out 2>&1 &
command=$!
for _ in $(seq 600); do
    if [ -s run2/chaos/digests.jsonl ] || ! kill -0 "$command" 2>/dev/null; then break; fi
    sleep 0.1
done
[ -s run2/chaos/digests.jsonl ] || fail "no step within a minute, by '${as[*]}'"
# What runs on the hosts has certificates that lie in TMPDIR.
mapfile -t running < <(grep -lF "$TMPDIR/" /proc/[0-9]*/cmdline 2>/dev/null | cut -d/ -f3)
for process in "$command" "${running[@]}"; do readlink "/proc/$process/ns/net" || true; done | sort -u >made
[ "$(wc -l <made)" = 4 ] || fail "three hosts and the command are on $(wc -l <made) networks"
[ "$(on_networks made | wc -l)" -ge 16 ] || fail "on the hosts are only: $(on_networks made | tr '\n' ' ')"
kill -KILL "$command"
wait "$command" 2>/dev/null || true
command=""
for _ in $(seq 100); do
    left="$(on_networks made | tr '\n' ' ')"
    if [ -z "$left" ]; then break; fi
    sleep 0.1
done
[ -z "$left" ] || fail "left behind by SIGKILL: processes $left"
printf 'hosts: five faults, and nothing is left after SIGKILL (%s); %d s\n' "${as[*]:-same user}" "$SECONDS"
