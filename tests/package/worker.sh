#!/bin/bash
# The worker as a library, as a program outside the tree finds it: what is exported, what structs are, the example that
# trains to kelp-worker's digest, what it is told, long lanes, and leaving.
# usage: tests/package/worker.sh SOURCE_DIR BUILD_DIR
set -euo pipefail
usage='usage: tests/package/worker.sh SOURCE_DIR BUILD_DIR'
source_dir="$(cd "${1:?$usage}" && pwd)"
build_dir="$(cd "${2:?$usage}" && pwd)"
here="$source_dir/tests/package"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
unset KELP_BIN KELP_SOURCE KELP_TEST_PROGRAMS

fail() {
    printf '%s\n' "$1"
    exit 1
}
logged() { # WHAT COMMAND...: its output is shown when it fails
    local what="$1"
    shift
    "$@" >"$scratch/log" 2>&1 || {
        tail -n 20 "$scratch/log"
        fail "$what fails: $*"
    }
}
refused() { # EXIT_STATUS WORDS COMMAND...
    local expected="$1" words="$2" status=0
    shift 2
    "$@" >"$scratch/log" 2>&1 || status=$?
    if [ "$status" -ne "$expected" ] || ! grep -qF -- "$words" "$scratch/log"; then
        tail -n 20 "$scratch/log"
        fail "exit status $status, not $expected with '$words': $*"
    fi
}
digest_of() { grep -oE '"digest":"[0-9a-f]{32}"' "$1/result.json"; }
losses_of() { grep -oE '"(step|epoch|train/loss|val/loss|val/mse|val/mae)":[^,}]*' "$1/metrics.jsonl"; }

logged 'the installation' cmake --install "$build_dir" --prefix "$scratch/first"
mv "$scratch/first" "$scratch/prefix"
prefix="$scratch/prefix"
export PATH="$prefix/bin:$PATH" PKG_CONFIG_PATH="$prefix/lib/pkgconfig"
library="$(realpath "$prefix/lib/libkelp-worker.so")"
read -ra flags <<<"$(pkg-config --cflags --libs kelp-worker) -Wl,-rpath,$prefix/lib -Wl,--as-needed"

# ---- the ABI -------------------------------------------------------------------------------------
soname="$(readelf -d "$library" | sed -nE 's/.*SONAME.*\[(.*)\]/\1/p')"
[ "$soname" = libkelp-worker.so.1 ] || fail "the library calls itself '$soname', not libkelp-worker.so.1"
exported() { nm -D --defined-only "$library" | awk '$2 != "A" { print $3 }' | sort; }
if ! diff <(exported) "$here/worker.symbols" >"$scratch/diff"; then
    cat "$scratch/diff"
    fail 'the library exports (<) other symbols than tests/package/worker.symbols (>); none may go, new ones are added'
fi
declared() {
    sed 's,/\*.*,,; /^ \*/d' "$prefix/include/kelp/worker.h" | grep -oE '\bkelp_worker_[a-z_]+\(' | tr -d '('
}
if ! diff <(declared | sort -u) <(sed 's/@.*//' "$here/worker.symbols") >"$scratch/diff"; then
    cat "$scratch/diff"
    fail 'kelp/worker.h declares (<) other functions than are exported (>)'
fi
# Whatever a program links to comes by the distribution, and nothing for computing is among it.
needed="$(readelf -d "$library" | grep NEEDED)"
if [[ "$needed" =~ blas|dnnl|gomp|rocksdb|microhttpd|gnutls ]]; then
    fail "the library needs what a worker does not: $needed"
fi
strict=(-Wall -Wextra -pedantic -Werror)
logged 'structs as they were' gcc -std=c11 "${strict[@]}" -c -o "$scratch/abi.o" "$here/worker_abi.c" "${flags[@]}"
logged 'the header as C99' gcc -std=c99 "${strict[@]}" -fsyntax-only -x c "$prefix/include/kelp/worker.h"
logged 'the header as C++' g++ -std=c++11 "${strict[@]}" -fsyntax-only -x c++ "$prefix/include/kelp/worker.h"
if grep -n '#include "' "$prefix/include/kelp/worker.h"; then fail 'kelp/worker.h includes a header of Kelp'; fi

# ---- the example, built with what is installed -----------------------------------------------------
cp -r "$prefix/share/kelp/examples/worker" "$scratch/example"
cd "$scratch/example"
logged 'the example of a worker' make CFLAGS='-O2 -Wall -Wextra -Werror'
[[ "$(ldd mlp)" == *"libkelp-worker.so.1 => $prefix/"* ]] || fail "the example runs with another library: $(ldd mlp)"
logged 'its rows' ./mlp --write-rows rows.bin
long=(--set train.epochs=100 --no-plots)
logged 'kelp-worker' kelp train mlp.yaml --run theirs "${long[@]}"
read -ra blas <<<"$(pkg-config --cflags --libs openblas) -lm"
logged 'the example that dies' gcc -std=gnu11 -O2 -ffp-contract=off -Wl,--wrap=kelp_worker_submit -o mlp_dies mlp.c \
    "$here/dies.c" "${flags[@]}" "${blas[@]}"
logged 'the example' kelp train mlp.yaml --run ours "${long[@]}" --worker-program ./mlp_dies
digest="$(digest_of theirs)"
[ -n "$digest" ] || fail "there is no digest in $(cat theirs/result.json)"
[ "$(digest_of ours)" = "$digest" ] || fail "the example comes to $(digest_of ours), kelp-worker to $digest"
[ -e died ] || fail "no worker was killed: $(cat "$scratch/log")"
lost() { grep -q '"event":"worker-lost"' "$1/events.jsonl"; }
lost ours || fail "the killed worker was not missed: $(cat ours/events.jsonl)"
cmp theirs/digests.jsonl ours/digests.jsonl || fail 'digests on the way differ'
diff <(losses_of theirs) <(losses_of ours) >"$scratch/diff" || fail "losses differ: $(cat "$scratch/diff")"
# As many lanes as there are: one worker, and one lane.
for size in '--workers 1' '--set cluster.lanes=1' '--set transport.precision=bfloat16' '--set transport.kind=grpc'; do
    read -ra options <<<"$size"
    rm -rf other own
    logged "kelp-worker, $size" kelp train mlp.yaml --run other --no-plots "${options[@]}"
    logged "the example, $size" kelp train mlp.yaml --run own --no-plots --worker-program ./mlp "${options[@]}"
    [ "$(digest_of own)" = "$(digest_of other)" ] || fail "another digest with $size: $(digest_of own)"
done
# The model that it trained is one of Kelp's.
logged 'kelp digest' kelp digest ours/model.safetensors
grep -qF "${digest:10:32}" "$scratch/log" || fail "its model has another digest: $(cat "$scratch/log")"
# A run goes on with it.
logged 'a resume' kelp train --resume --run ours --set train.epochs=102 --worker-program ./mlp --no-plots
logged 'kelp-worker, for longer' kelp train --resume --run theirs --set train.epochs=102 --no-plots
[ "$(digest_of ours)" = "$(digest_of theirs)" ] || fail 'a resume with the example comes to another digest'

# ---- what it is told -------------------------------------------------------------------------------
refused 2 "--worker-program './none': No such file" kelp train mlp.yaml --worker-program ./none
refused 2 "--worker-program 'mlp.c' cannot be executed" kelp train mlp.yaml --worker-program mlp.c
refused 2 'names another; --at step=N:kill=worker-1 kills that one' \
    kelp train mlp.yaml --worker-program ./mlp --fault worker-1:kill@step=5
refused 2 '--trace is for kelp-worker' kelp train mlp.yaml --worker-program ./mlp --trace trace.json
refused 2 'the job must have train.loss: mse' env KELP_TRAIN_LOSS=mae sh -c \
    'kelp train mlp.yaml --worker-program ./mlp --run refused --no-restart; cat refused/logs/worker-0.log; exit 2'
refused 2 '--etcd URL[,URL...] is missing' ./mlp --job a --id b
refused 2 'the options of a worker alone' ./mlp --etcd http://127.0.0.1:1 --job a --id b more
refused 2 'job and id are 1 to' ./mlp --etcd http://127.0.0.1:1 --job 'a/b' --id b
refused 2 'spec_sha256 is 64' ./mlp --etcd http://127.0.0.1:1 --job a --id b --spec-sha256 x
refused 2 "certs: " ./mlp --etcd http://127.0.0.1:1 --job a --id b --certs /nowhere
refused 2 'log-level' ./mlp --etcd http://127.0.0.1:1 --job a --id b --log-level loud

# ---- a worker that looks at everything ---------------------------------------------------------------
logged 'a worker' gcc -std=gnu11 "${strict[@]}" -pthread -o own_worker "$here/own_worker.c" "${flags[@]}"
logged 'a worker alone' env OWN_WORKER_ALONE=1 kelp train mlp.yaml --run alone --no-plots --workers 1 \
    --worker-program ./own_worker
logged 'three workers' kelp train mlp.yaml --run three --no-plots --workers 3 --worker-program ./own_worker
[ "$(digest_of alone)" = "$(digest_of three)" ] || fail 'three workers come to another digest than one'
# Others lose nobody in a lane of three seconds, although silence is found after one.
logged 'a slow lane' env OWN_WORKER=slow kelp train mlp.yaml --run slow --no-plots --workers 1 \
    --worker-program ./own_worker --set failure.detect=1s
[ "$(digest_of alone)" = "$(digest_of slow)" ] || fail 'a slow lane changes the digest'
if lost slow; then fail 'a worker in a slow lane was taken for lost'; fi
# It stops itself: what it submitted counts, and another takes its place.
logged 'workers that stop' env OWN_WORKER=stop kelp train mlp.yaml --run stops --no-plots --workers 2 \
    --set train.max_steps=6 --worker-program ./own_worker
grep -q 'own_worker: ends with 2' stops/logs/worker-*.log || fail 'no worker stopped in order'
# One that is drained in a long lane hears of it there.
OWN_WORKER='wait' kelp train mlp.yaml --run drained --no-plots --workers 2 --worker-program ./own_worker \
    --pause-timeout 0s --set failure.detect=1s >"$scratch/drained.log" 2>&1 &
train=$!
timeout 60 grep -q -m 1 'a long lane begins' <(tail -n +1 --pid="$train" -F drained/logs/worker-1.log 2>/dev/null) ||
    fail "worker-1 got no lane: $(cat "$scratch/drained.log")"
logged 'kelp drain' kelp drain worker-1 drained
grep -q 'own_worker: ends with 2' drained/logs/worker-1.log || fail 'a drained worker did not end in order'
grep -q 'own_worker: not wanted any more' drained/logs/worker-1.log || fail 'a drained worker was not told in its lane'
kill -INT "$train"
wait "$train" || true

# ---- a job that names its program --------------------------------------------------------------------
logged 'the worker of a job' gcc -std=gnu11 "${strict[@]}" -o job_worker "$here/job_worker.c" "${flags[@]}"
printf 'import os, sys\nprint("data in", os.environ.get("KELP_DATA"))\n%s\n' \
    'os.execv("./job_worker", ["job_worker"] + sys.argv[1:])' >script.py
mkdir jobs state
export XDG_STATE_HOME="$PWD/state"
cat >jobs/program.yaml <<'EOF'
name: program
model: {program: ../job_worker, arguments: [--sums, "squared,correct"]}
train: {epochs: 5, batch_size: 20, optimizer: sgd, lr: 0.1}
cluster: {lanes: 4}
EOF
sed 's,program: ../job_worker,python: ../script.py,' jobs/program.yaml >jobs/script.yaml
short=(--no-plots)
logged 'a job of a program' kelp train jobs/program.yaml --run program "${short[@]}"
KELP_DATA=here logged 'a job of a script' kelp train jobs/script.yaml --run script --workers 3 "${short[@]}"
grep -q '^data in here$' script/logs/worker-0.log || fail 'a script does not get the variables of the command'
[ -n "$(digest_of program)" ] || fail "there is no digest in $(cat program/result.json)"
[ "$(digest_of program)" = "$(digest_of script)" ] || fail 'a script comes to another digest than its program'
# Metrics are those whose sums are submitted.
metrics="$(grep -oE '"val/[a-z]+"' program/metrics.jsonl | sort -u | tr -d '\n')"
[ "$metrics" = '"val/accuracy""val/loss""val/mse""val/rmse"' ] || fail "the metrics are $metrics"
logged 'with other sums' kelp train jobs/program.yaml --run sums --set 'model.arguments=[--sums, absolute]' --no-plots
metrics="$(grep -oE '"val/[a-z]+"' sums/metrics.jsonl | sort -u | tr -d '\n')"
[ "$metrics" = '"val/loss""val/mae"' ] || fail "without these sums the metrics are $metrics"
refused 2 'val/mse: the lane has no sums for it' kelp train jobs/program.yaml --run monitored \
    --set 'model.arguments=[--sums, absolute]' --set train.monitor=val/mse
# It goes on, and what a run brings along is asked for.
logged 'a resume' kelp train --resume --run program --set train.epochs=6 "${short[@]}"
rm -r state/kelp
refused 2 'is a program that would run as you' kelp train --resume --run program --set train.epochs=7
logged 'a resume that is let in' kelp train --resume --run program --set train.epochs=7 --allow-plugin "${short[@]}"
# Mistakes end it at once, in one line.
refused 2 "model.program '$PWD/none': No such file" kelp train jobs/program.yaml --set model.program=none
refused 2 "model.program '$PWD/script.py' cannot be executed" kelp train jobs/program.yaml --set model.program=script.py
refused 2 "model.python needs './python'" env KELP_PYTHON=./python kelp train jobs/script.yaml
refused 2 'job_worker: the data are gone' kelp train jobs/program.yaml \
    --set 'model.arguments=[--refuse, the data are gone]'
refused 2 "what is '--crash'?" kelp train jobs/program.yaml --set 'model.arguments=[--crash]'
printf '#!/none\n' >no_interpreter && chmod +x no_interpreter
refused 2 'no_interpreter' kelp train jobs/program.yaml --set model.program=no_interpreter
printf '#!/bin/sh\necho a library is missing\nexit 127\n' >no_library && chmod +x no_library
refused 2 ': a library is missing; see' kelp train jobs/program.yaml --set model.program=no_library
printf 'print("hello")\n' >idle.py
refused 2 'ended without joining the job; its last line: hello' kelp train jobs/script.yaml --set model.python=idle.py
refused 2 '--fault is for kelp-worker, and the job has a program' \
    kelp train jobs/program.yaml --fault worker-1:kill@step=5
refused 2 "Kelp's own models only" kelp verify program --replay
# After the run its program evaluates what it trained, as it did last.
measured() { grep -oE '"(val|test)/[a-z]+":[^,}]*' "$1/metrics.jsonl" | tail -n 8; }
logged 'kelp evaluate' kelp evaluate program --workers 2 --run evaluated
[ "$(measured program)" = "$(measured evaluated)" ] || fail "kelp evaluate measures $(measured evaluated)"
logged 'a checkpoint' kelp evaluate script --checkpoint newest --run evaluated-script --allow-plugin
[ "$(digest_of script)" = "$(digest_of evaluated-script)" ] || fail 'kelp evaluate took other weights'
refused 2 'the data are gone' kelp evaluate program --allow-plugin --set 'model.arguments=[--refuse, the data are gone]'
refused 2 "--data: the job's program has the data itself ($PWD/job_worker)" kelp evaluate program --data rows.bin
refused 2 '--fault is for kelp-worker' kelp evaluate program --fault worker-0:kill@version=1
# It predicts, too, where it can.
predicts=(--allow-plugin --set 'model.arguments=[--predict, "2"]')
logged 'kelp predict' kelp predict program --part train --out one.csv --workers 1 "${predicts[@]}"
logged 'kelp predict' kelp predict program --part train --out three.csv --workers 3 --shards 2 "${predicts[@]}"
cmp one.csv three.csv || fail 'predictions depend on the number of workers'
[ "$(head -n 1 one.csv) $(wc -l <one.csv)" = 'sample,prediction_0,prediction_1 201' ] ||
    fail "predictions: $(head one.csv)"
awk -F, 'NR > 1 && ($1 != $2 || $1 != NR - 2 || $3 != 0) { exit 1 }' one.csv || fail "predictions: $(head one.csv)"
logged 'kelp predict' kelp predict program --out one.npy --allow-plugin --set 'model.arguments=[--predict, "1"]'
grep -qaF "'descr': '<f4', 'fortran_order': False, 'shape': (20, 1,)" one.npy ||
    fail "predictions: $(head -n 1 one.npy)"
refused 2 "0 of the lane's 5 samples have a prediction" kelp predict program --out none.csv
refused 2 '--targets: the job' kelp predict program --out none.csv --targets
[ ! -e none.csv ] || fail 'there are predictions of a program that gives none'
rm -r state/kelp
refused 2 'is a program that would run as you' kelp evaluate program
logged 'one that is let in' kelp evaluate program --allow-plugin
# Its tensors are those of the run; nothing is started.
kelp model show program >"$scratch/log"
grep -qE '^weight +parameter +\[4\] +4$' "$scratch/log" || fail "kelp model show: $(cat "$scratch/log")"
grep -q '"parameters":5,"held":0,"statistics":0,"tensors":2' <(kelp model show program -o json) ||
    fail "kelp model show: $(kelp model show program -o json)"
refused 2 'give the folder of a run instead' kelp model show jobs/program.yaml
refused 2 'give --epochs N for more than' kelp chaos jobs/program.yaml
# Weights to begin with, by name, from a safetensors file: of all tensors, where the program does not say which.
start=(--set "model.init=$PWD/program/model.safetensors" --set train.lr=0)
for arguments in '[]' '[--init]'; do
    rm -rf from
    logged "model.init, $arguments" kelp train jobs/program.yaml --run from "${start[@]}" "${short[@]}" \
        --set "model.arguments=$arguments"
    [ "$(digest_of from)" = "$(digest_of program)" ] || fail "model.init with $arguments comes to $(digest_of from)"
done
refused 2 'weight comes from model.init' kelp train jobs/program.yaml --set 'model.arguments=[--init]'
refused 2 "model.init: $PWD/rows.bin: " kelp train jobs/program.yaml --set "model.init=$PWD/rows.bin"
refused 4 'no tensor weight' kelp train jobs/program.yaml --set "model.init=$PWD/ours/model.safetensors"
# What is held keeps its bits, whatever there is to update.
for optimizer in sgd adamw lamb; do
    rm -rf holds
    logged "held, with $optimizer" kelp train jobs/program.yaml --run holds --set 'model.arguments=[--hold]' \
        --set "train.optimizer=$optimizer" --set train.weight_decay=0.1 "${short[@]}"
done
logged 'held, with clipping' kelp train jobs/program.yaml --run clips --set 'model.arguments=[--hold]' \
    --set train.clip_norm=0.5 --set transport.precision=bfloat16 "${short[@]}"
# Sums of its own: their means are metrics, and training may go by them, like the best checkpoints.
named=(--set 'model.arguments=[--named]' --set 'model.sums=[close, far=min, never]')
logged 'sums of its own' kelp train jobs/program.yaml --run named "${named[@]}" --set train.monitor=val/far \
    --set checkpoint.keep_best=1 --set checkpoint.metric=val/close --set checkpoint.order=max --set checkpoint.epochs=1
grep -qE '^METRIC +loss +mse +mae +accuracy +close +far$' "$scratch/log" ||
    fail "the summary has no such columns: $(cat "$scratch/log")"
metrics="$(grep -oE '"val/[a-z]+"' named/metrics.jsonl | sort -u | tr -d '\n')"
[ "$metrics" = '"val/accuracy""val/close""val/far""val/loss""val/mae""val/mse""val/rmse"' ] ||
    fail "the metrics are $metrics"
[ "$(digest_of named)" = "$(digest_of sums)" ] || fail 'sums change the weights'
logged 'one worker' kelp train jobs/program.yaml --run alike --workers 1 "${named[@]}" --no-plots
cmp <(grep -o '"val/.*' named/metrics.jsonl) <(grep -o '"val/.*' alike/metrics.jsonl) ||
    fail 'one worker has other sums'
logged 'kelp checkpoint ls' kelp checkpoint ls named
grep -q 'val/close' "$scratch/log" || fail "kelp checkpoint ls: $(cat "$scratch/log")"
refused 2 "the job has no sum 'far'; name it in model.sums" \
    kelp train jobs/program.yaml --set 'model.arguments=[--named]'
refused 2 'val/never: the lane has no sums for it' \
    kelp train jobs/program.yaml "${named[@]}" --set train.monitor=val/never
refused 2 'checkpoint.order: a larger value of checkpoint.metric is better' \
    kelp train jobs/program.yaml "${named[@]}" --set checkpoint.keep_best=1 --set checkpoint.metric=val/close
# A script that describes its job itself, with weights to begin with.
cat >run.py <<'EOF'
import os, shutil, sys

folder = os.environ.get("KELP_DESCRIBE")
if folder:
    shutil.copy("program/model.safetensors", folder + "/init.safetensors")
    with open(folder + "/job.yaml", "w") as file:
        file.write("model: {init: init.safetensors}\ntrain: {epochs: 2, batch_size: 20, lr: 0.1, optimizer: sgd}\n"
                   "cluster: {lanes: 4}\n")
    print("described", sys.argv[1:], file=open("described", "a"))
    sys.exit(0)
os.execv("./job_worker", ["job_worker"] + sys.argv[1:])
EOF
own=(run.py --sums 'a "b" \ c' --init)
logged 'kelp run' kelp run --workers 3 --run described-run --no-plots "${own[@]}"
[ "$(cat described)" = "described ['--sums', 'a \"b\" \\\\ c', '--init']" ] || fail "the script saw $(cat described)"
grep -q '^name: run$' described-run/job.yaml || fail "the job is called $(head -n 1 described-run/job.yaml)"
grep -q 'init: init/init.safetensors' described-run/job.yaml || fail "the weights lie elsewhere"
cmp program/model.safetensors described-run/init/init.safetensors || fail 'the run keeps other weights'
logged 'the job that it described' kelp train described-run/job.yaml --run again --no-plots
[ "$(digest_of again)" = "$(digest_of described-run)" ] || fail "the job by itself comes to $(digest_of again)"
# The run goes on with the weights that it began with, described again or not.
cp ours/model.safetensors other.safetensors
logged 'kelp train goes on' kelp train --resume --run described-run --set train.epochs=3 --no-plots
sed -i 's,program/model,other,' run.py
logged 'kelp run goes on' kelp run --resume --run described-run --set train.epochs=4 --no-plots "${own[@]}"
logged 'four epochs' kelp train again/job.yaml --run four --set train.epochs=4 --no-plots
[ "$(digest_of four)" = "$(digest_of described-run)" ] || fail "a run that went on comes to $(digest_of described-run)"
printf 'raise ValueError("no")\n' >raises.py
mkdir folders
refused 2 'ValueError: no' env TMPDIR="$PWD/folders" kelp run raises.py
[[ "$(tail -n 1 "$scratch/log")" == 'ValueError: no' ]] || fail 'the last line is not that of the script'
refused 2 'idle.py ended without creating a worker' kelp run idle.py
refused 2 'none.py: No such file' kelp run none.py
refused 2 'usage: kelp run SCRIPT' kelp run
refused 2 'model.program: does not go with model.python' kelp run --set model.program=./job_worker run.py
refused 2 "needs './python'" env KELP_PYTHON=./python kelp run run.py
[ -z "$(ls folders)" ] || fail "kelp run leaves $(ls folders) behind"
# A worker with another answer hears what may be the reason.
refused 2 'differs from' kelp train jobs/program.yaml --set 'model.arguments=[--differ]'
grep -qF ': another loss, model or transforms (cluster.mixed' "$scratch/log" || fail "no reasons: $(cat "$scratch/log")"
# Under faults.
printf 'faults: [{kind: kill, target: worker, step: 50}, {kind: kill, target: worker, step: 300}]\n' >plan.yaml
logged 'kelp chaos' kelp chaos jobs/script.yaml --plan plan.yaml --epochs 400 --run chaos
grep -q '^equal' "$scratch/log" || fail "kelp chaos: $(cat "$scratch/log")"
# On a host where the program lies elsewhere.
mkdir etcd elsewhere
(cd etcd && exec etcd --name one --data-dir data --listen-client-urls unix://localhost:1 --logger zap \
    --advertise-client-urls unix://localhost:1 --listen-peer-urls unix://localhost:2 \
    --initial-advertise-peer-urls http://localhost:2 --initial-cluster one=http://localhost:2 >log 2>&1) &
etcd=$!
trap 'kill "$etcd"; rm -rf "$scratch"' EXIT
url="unix:$PWD/etcd/localhost:1"
timeout 60 grep -q -m 1 'serving client traffic' <(tail -n +1 --pid="$etcd" -F etcd/log 2>/dev/null) ||
    fail "etcd does not start: $(cat etcd/log)"
logged 'kelp submit' kelp submit jobs/program.yaml --etcd "$url" --run hosts
sha256="$(awk '$1 == "sha256" { print $2 }' "$scratch/log")"
node=(kelp node --etcd "$url" --job program --host here --workers 2)
refused 2 'runs a program' "${node[@]}"
refused 2 'is computed by the program' kelp-worker --etcd "$url" --job program --id mine --spec-sha256 "$sha256"
mv job_worker elsewhere
refused 2 'No such file' "${node[@]}" --spec-sha256 "$sha256"
logged 'kelp node' "${node[@]}" --coordinator --shards 1 --spec-sha256 "$sha256" \
    --map-path "$PWD/job_worker=$PWD/elsewhere/job_worker"
[ "$(digest_of hosts)" = "$(digest_of sums)" ] || fail "kelp node comes to another digest: $(digest_of hosts)"

printf 'worker: all in order\n'
