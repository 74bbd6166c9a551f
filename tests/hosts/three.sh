#!/bin/bash
# One job on three hosts, each with a member of etcd, a coordinator, a shard and a worker, at ports with certificates. A
# host is cut off and comes back; the leader's is lost with all its processes, and comes back under another address; the
# third leaves in order and comes back. No step is computed again, and the digest is that of kelp train.
# usage: tests/hosts/three.sh SOURCE_DIR BUILD_DIR     (exit status 77: skipped, and why)
# shellcheck disable=SC1091,SC2034,SC2154 # names are shared with hosts.sh
set -euo pipefail
usage='usage: tests/hosts/three.sh SOURCE_DIR BUILD_DIR'
source_dir="$(cd "${1:?$usage}" && pwd)"
bin="$(cd "${2:?$usage}/bin" && pwd)"
. "$source_dir/tests/hosts/hosts.sh"

begin

cat >job.yaml <<'JOB'
name: three
seed: 3
model: {kind: dlinear}
data: {kind: synthetic, rows: 3000, split: [2000, 400, 400], seq_len: 48, pred_len: 24}
train: {epochs: 120, batch_size: 32, schedule: constant}
cluster: {workers: 2, shards: 3, replicas: 2, lanes: 4}
failure: {restart_backoff: 100ms}
checkpoint: {digest_steps: 5}
JOB
submit
for host in "${hosts[@]}"; do start "$host"; done
go_on 100
for host in "${hosts[@]}"; do doctor "$host" 0 '^processes    OK      shard c.shard-0 \(zone c\) at 10.77.0.3:'; done
cut_off c
doctor a 1 '^processes    PROBLEM shard c.shard-0 \(zone c\) at 10.77.0.3:[0-9]+: (timed out|No route to host)'
go_on 200
join c
go_on 200
lost="$(steer status "$job" -o json | sed -nE 's/.*"leader":"([abc])\..*/\1/p')"
kill_host "$lost" # with its member of etcd
go_on 200
start_etcd "$lost"
add_address "$lost" 1
start "$lost" --listen 10.77.1.1
go_on 200
other=b
if [ "$lost" = b ]; then other=a; fi
leave "$other"
wait "${node[$other]}"
[ "$(cat "$other.status")" = 0 ] || fail "host $other left with status $(cat "$other.status")"
start "$other"
go_on 200
expect_quiet
if [ "$(count steps_recomputed)" != 0 ]; then fail "steps were computed again, with a backup of each partition"; fi
