#!/bin/bash
# Jobs of Slurm that run deploy/slurm/kelp.sbatch. Its nodes are network namespaces joined by a bridge. One job is left
# alone; one is preempted, loses a node, and then the node of its batch script; one gets a node more, and is cancelled.
# The digests are that of kelp train, and nothing is left on any node.
# usage: tests/hosts/slurm.sh SOURCE_DIR BUILD_DIR     (exit status 77: skipped, and why)
set -euo pipefail
usage='usage: tests/hosts/slurm.sh SOURCE_DIR BUILD_DIR'
batch="$(cd "${1:?$usage}" && pwd)/deploy/slurm/kelp.sbatch"
bin="$(cd "${2:?$usage}/bin" && pwd)"

skip() {
    printf 'skipped: %s\n' "$1"
    exit 77
}
[ "$(id -u)" -eq 0 ] || skip "network namespaces take root"
for program in ip etcd slurmctld slurmd sbatch munged; do
    command -v "$program" >/dev/null || skip "there is no program $program"
done

for variable in $(compgen -e | grep -E '^(KELP|SLURM|SBATCH)_' || true); do unset "$variable"; done
scratch="$(mktemp -d)"
mark="kelp$$"
hosts=(a b c d e f)
long=f-and-more-than-20-letters # Slurm's name of f
cd "$scratch"
mkdir tmp state munge log
chmod 755 . munge
export XDG_CACHE_HOME="$scratch/cache" KELP_NO_PLOTS=true KELP_BIN="$bin" SLURM_CONF="$scratch/slurm.conf"
export TMPDIR="$scratch/tmp" # of the jobs too: what they leave is there
export KELP_GRACE=5s         # of a cancelled job, and of one without etcd

fail() {
    printf 'FAILED: %s\n' "$1"
    tail -n 20 ./*.out log/slurmctld 2>/dev/null || true
    exit 1
}
# SECONDS WHAT COMMAND...: until it succeeds.
await() {
    local until=$((SECONDS + $1)) what="$2"
    shift 2
    until "$@"; do
        [ "$SECONDS" -lt "$until" ] || fail "not in time: $what"
        sleep 0.1
    done
}

# ---- the network ----

host_pids() { ip netns pids "$mark-$1" 2>/dev/null || true; }
kill_host() {
    local pids
    pids="$(host_pids "$1")"
    # shellcheck disable=SC2086 # one word each
    if [ -n "$pids" ]; then kill -KILL $pids 2>/dev/null || true; fi
}
clean() {
    for host in "${hosts[@]}" switch; do kill_host "$host"; done
    if [ -s munge/pid ]; then kill "$(cat munge/pid)" 2>/dev/null || true; fi
    wait
    for host in "${hosts[@]}" switch; do ip netns del "$mark-$host" 2>/dev/null || true; done
    rm -rf "$scratch"
}
trap clean EXIT

ip netns add "$mark-switch" 2>err || skip "network namespaces: $(cat err)"
ip -n "$mark-switch" link add br0 type bridge 2>err || skip "no bridge: $(cat err)"
ip -n "$mark-switch" addr add 10.77.0.254/24 dev br0
ip -n "$mark-switch" link set br0 up
ip -n "$mark-switch" link set lo up
number=0
for host in "${hosts[@]}"; do
    number=$((number + 1))
    ip netns add "$mark-$host"
    ip -n "$mark-$host" link set lo up
    ip link add eth0 netns "$mark-$host" type veth peer name "port-$host" netns "$mark-switch"
    ip -n "$mark-switch" link set "port-$host" master br0 up
    ip -n "$mark-$host" addr add "10.77.0.$number/24" dev eth0
    ip -n "$mark-$host" link set eth0 up
done
# With the host's name, which Slurm's daemons ask for.
on() {
    local host="$1"
    shift
    # shellcheck disable=SC2016 # for the other shell
    ip netns exec "$mark-$host" unshare --uts sh -c 'hostname "$0"; exec "$@"' "$host" "$@"
}

# ---- Slurm ----

dd if=/dev/urandom of=munge/key bs=128 count=1 status=none
chmod 600 munge/key
munged --force --key-file=munge/key --socket="$scratch/munge/socket" --pid-file="$scratch/munge/pid" \
    --log-file="$scratch/log/munged" --seed-file="$scratch/munge/seed" --num-threads=1 2>/dev/null
cat >slurm.conf <<CONF
ClusterName=kelp
SlurmctldHost=switch(10.77.0.254)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$scratch/munge/socket
CredType=cred/munge
SlurmctldPort=6817
SlurmdPort=6818
SlurmctldPidFile=$scratch/state/slurmctld.pid
SlurmdPidFile=$scratch/state/slurmd-%n.pid
SlurmctldLogFile=$scratch/log/slurmctld
SlurmdLogFile=$scratch/log/slurmd-%n
StateSaveLocation=$scratch/state
SlurmdSpoolDir=$scratch/state/spool-%n
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
MpiDefault=none
SwitchType=switch/none
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,sched_min_interval=0,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SlurmctldParameters=preempt_send_user_signal
ReturnToService=2
SlurmdTimeout=5
KillWait=30
MessageTimeout=5
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=a NodeAddr=10.77.0.1 CPUs=4 RealMemory=1000
NodeName=b NodeAddr=10.77.0.2 CPUs=4 RealMemory=1000
NodeName=c NodeAddr=10.77.0.3 CPUs=4 RealMemory=1000
NodeName=d NodeAddr=10.77.0.4 CPUs=4 RealMemory=1000
NodeName=e NodeAddr=10.77.0.5 CPUs=4 RealMemory=1000
NodeName=$long NodeAddr=10.77.0.6 CPUs=4 RealMemory=1000
NodeName=myself NodeAddr=127.0.0.1 CPUs=1 RealMemory=1000 State=DOWN
PartitionName=main Nodes=a,b,c,d,e,$long Default=YES MaxTime=INFINITE PriorityTier=1 GraceTime=60
PartitionName=high Nodes=a,b,c MaxTime=INFINITE PriorityTier=10 PreemptMode=OFF
CONF
echo CgroupPlugin=cgroup/v1 >cgroup.conf # a network namespace has no /sys/fs/cgroup

start_slurmd() {
    local name="$1"
    if [ "$name" = f ]; then name="$long"; fi
    mkdir -p "state/spool-$name"
    on "$1" slurmd -D -N "$name" >/dev/null 2>>"log/slurmd-$1.err" &
}
# As by a loss of power: it says no more. And afterwards.
lose() {
    ip -n "$mark-switch" link set "port-$1" down
    kill_host "$1"
}
bring_back() {
    ip -n "$mark-switch" link set "port-$1" up
    start_slurmd "$1"
}
on switch slurmctld -D >/dev/null 2>log/slurmctld.err &
for host in "${hosts[@]}"; do start_slurmd "$host"; done
idle() { [ "$(on switch sinfo -h -p main -t idle -o %D 2>/dev/null)" = "$1" ]; }
await 180 "six idle nodes" idle 6

# ---- the job ----

cat >job.yaml <<'JOB'
name: slurm
seed: 3
model: {kind: dlinear}
data: {kind: synthetic, rows: 3000, split: [2000, 400, 400], seq_len: 48, pred_len: 24}
train: {epochs: 60, batch_size: 32, schedule: constant}
cluster: {workers: 2, shards: 3, replicas: 2, lanes: 4}
failure: {restart_backoff: 100ms}
checkpoint: {digest_steps: 5}
JOB

# FOLDER NODES [OPTIONS OF kelp submit...]: prints the number of Slurm's job.
submit() {
    local folder="$1" nodes="$2" workers=(--workers 1)
    shift 2
    if [ "$folder" = one ]; then workers=(); fi # as many as it has lanes for
    on switch sbatch --parsable --exclusive --nodelist="$nodes" --nodes="$(tr , '\n' <<<"$nodes" | wc -l)" \
        --output="$folder.out" --cpus-per-task=3 "$batch" "${workers[@]}" job.yaml "$folder" "$@"
}
# JOB KEY: what Slurm says of it.
told() { on switch scontrol show job "$1" --oneliner 2>/dev/null | sed -nE "s/.* $2=([^ ]*).*/\1/p"; }
is() { [ "$(told "$1" JobState)" = "$2" ]; }
# The newest step on record; 0: there is none.
step_now() {
    local step=""
    if [ -s "$1/run/digests.jsonl" ]; then
        step="$(tail -n 1 "$1/run/digests.jsonl" | sed -nE 's/.*"step":([0-9]+),.*/\1/p')"
    fi
    echo "${step:-0}"
}
is_at() { [ "$(step_now "$1")" -ge "$2" ]; }
# FOLDER STEPS: more than now.
go_on() { await 180 "step $(($(step_now "$1") + $2)) of $1" is_at "$1" "$(($(step_now "$1") + $2))"; }
# A requeued job would wait two minutes. In the second in which it was requeued its nodes refuse it.
release() { on switch scontrol update jobid="$1" starttime=now+2 2>/dev/null; }
restart() { # JOB NUMBER: Slurm has requeued it so often
    await 180 "requeued job $1" is "$1" PENDING
    [ "$(told "$1" Restarts)" = "$2" ] || fail "job $1 was requeued $(told "$1" Restarts) times, not $2"
    await 180 "released job $1" release "$1"
    await 180 "job $1 running again" is "$1" RUNNING
}
digest_of() { sed -nE 's/^digest +//p' "$1"; }
same() {
    local digest
    digest="$(digest_of "$1.out")"
    [ "$digest" = "$quiet" ] || fail "digest of $1: $digest, and $quiet of kelp train"
}

# ---- mistakes ----

bash "$batch" --help | grep -q '^usage: sbatch' || fail "no help"
# NODE STATUS TEXT ARGUMENTS...: what the script says where it gets no further.
refuses() {
    local status=0 node="$1" wanted="$2" text="$3"
    shift 3
    SLURM_JOB_ID=1 SLURM_JOB_NUM_NODES=3 SLURMD_NODENAME="$node" on d bash "$batch" "$@" >refused.out 2>&1 || status=$?
    [ "$status" = "$wanted" ] || fail "status $status of kelp.sbatch $*"
    grep -qF -- "$text" refused.out || fail "kelp.sbatch $* does not say: $text"
}
refuses a 2 "a job file and a folder are needed" job.yaml
refuses a 2 "--workers and --shards are numbers" --workers many job.yaml none
refuses a 2 "--wrokers: no such option" --wrokers 2 job.yaml none
refuses a 2 "--etcd needs --certs" --etcd https://10.77.0.1:2379 job.yaml none
refuses a 2 "--certs: no such folder" --certs nowhere job.yaml none
refuses a 2 "slurm.conf: is no job file" slurm.conf none
refuses a 2 "no job runs in $scratch/none" --join none
refuses nobody 1 "has no address here" job.yaml none
refuses myself 1 "the address of myself is 127.0.0.1 here" job.yaml none
status=0
bash "$batch" job.yaml none >refused.out 2>&1 || status=$?
[ "$status" = 2 ] || fail "status $status without Slurm"
grep -q "batch script of Slurm" refused.out || fail "no line about Slurm"
rm -r none refused.out

# ---- runs ----

started="$SECONDS"
"$bin/kelp" certs init >/dev/null
"$bin/kelp" certs issue etcd --host 10.77.0.4 --host 10.77.0.254 --out authority/slurm/etcd >/dev/null
for role in coordinator shard worker operator reader; do
    "$bin/kelp" certs issue "$role" --job slurm >/dev/null
done
certs="$scratch/authority/slurm"
second="$(submit two a,b,c)"
third="$(KELP_CERTS="$certs" submit three d,e --set train.epochs=5000)"

# Preempted: a checkpoint, requeued, and on it goes.
go_on two 20
on switch sbatch -p high -N3 --nodelist=a,b,c --exclusive --output=/dev/null --wrap true >/dev/null
restart "$second" 1
grep -q "USR1: the job pauses" two.out || fail "the preempted job has not paused"
[ -n "$(ls two/run/checkpoints)" ] || fail "the preempted job has made no checkpoint"
go_on two 20
printf '[%d s] the preempted job goes on\n' $((SECONDS - started))

# A lost node: the others go on.
lose c
go_on two 100
if ! is "$second" RUNNING || [ "$(told "$second" Restarts)" != 1 ]; then fail "the loss of a node has ended the job"; fi
printf '[%d s] the job goes on without a node\n' $((SECONDS - started))

# The node of the batch script is lost, and with it etcd. Meanwhile another job of Slurm brings a node to the third;
# it leaves at USR1, and comes back.
lose a
refuses d 2 "batch job $third runs in $scratch/three" job.yaml three
more="$(on switch sbatch --parsable --nodes=1 --nodelist="$long" --output=more.out "$batch" --workers 1 --join three)"
joined() {
    on d "$bin/kelp" status slurm --etcd "$(head -n 1 three/cluster)" --certs "$certs/operator" 2>/dev/null |
        grep -q "^j$more-0.worker-0 *working"
}
await 180 "a worker of another job" joined
on switch scancel --batch --signal=USR1 "$more"
restart "$more" 1
await 180 "the worker again" joined
printf '[%d s] a node has joined, left, and joined again\n' $((SECONDS - started))

# Cancelled.
on switch scancel "$third"
"$bin/kelp" train job.yaml --run quiet >quiet.out 2>/dev/null
quiet="$(digest_of quiet.out)"
[ -n "$quiet" ] || fail "no digest of kelp train"
await 180 "the end of the job that joined" is "$more" COMPLETED
await 180 "the end of the cancelled job" is "$third" CANCELLED
printf '[%d s] the third job is cancelled\n' $((SECONDS - started))

# Undisturbed, with an etcd that is there before.
on switch etcd --data-dir etcd --listen-client-urls https://10.77.0.254:2379 \
    --advertise-client-urls https://10.77.0.254:2379 --listen-peer-urls http://127.0.0.1:2380 \
    --initial-advertise-peer-urls http://127.0.0.1:2380 --initial-cluster default=http://127.0.0.1:2380 \
    --cert-file "$certs/etcd/cert.pem" --key-file "$certs/etcd/key.pem" --trusted-ca-file "$certs/etcd/ca.pem" \
    --client-cert-auth >log/etcd 2>&1 &
await 60 "an etcd" on switch bash -c 'exec 3<>/dev/tcp/10.77.0.254/2379' 2>/dev/null
first="$(KELP_CERTS="$certs" KELP_ETCD=https://10.77.0.254:2379 submit one "d,e,$long")"
await 180 "the end of the first job" is "$first" COMPLETED
same one
for worker in d.worker-1 node-2.worker-1; do # the third name is too long
    grep -qF "\"id\":\"$worker\"" one/run/result.json || fail "the first job has no $worker"
done
if grep -qF d.worker-2 one/run/result.json; then fail "the first job has more workers than lanes take"; fi
printf '[%d s] the undisturbed job is done\n' $((SECONDS - started))

# Requeued by the nodes that are left.
await 180 "requeued job $second" is "$second" PENDING
bring_back a
bring_back c
restart "$second" 2
await 180 "the end of the job that lost its first node" is "$second" COMPLETED
same two
if grep -h "nobody has watched" one.out two.out; then fail "the node of a batch script was not watched"; fi
printf '[%d s] the job of the lost nodes is done\n' $((SECONDS - started))

# ---- afterwards ----

nothing_waits() { [ -z "$(on switch squeue -h -o %i)" ]; }
await 180 "an empty queue" nothing_waits
[ "$(told "$third" JobState),$(told "$third" Restarts)" = CANCELLED,0 ] || fail "the cancelled job came back"
for host in "${hosts[@]}"; do
    for pid in $(host_pids "$host"); do
        [ "$(cat "/proc/$pid/comm")" = slurmd ] || fail "on $host is left: $(tr '\0' ' ' <"/proc/$pid/cmdline")"
    done
    left="$(on "$host" ss -Hltn | grep -v ':6818 ' || true)"
    [ -z "$left" ] || fail "a port of $host is left: $left"
done
[ -z "$(ls -A tmp)" ] || fail "files are left: $(ls -A tmp)"
holds() { [ "$(cd "$1" && echo *)" = "$2" ] || fail "in $1 is left: $(ls "$1")"; }
holds one "job.txt run"
holds two "job.txt run"
holds three "etcd etcd.log job.txt run" # to go on with
printf 'slurm: digest %s after a preemption, a lost node and a lost batch script; %d s\n' "$quiet" "$SECONDS"
