#!/bin/bash
# The Python package, built against what is installed: kelp.Worker with numpy and kelp.torch.Worker, each with one
# digest for any number of workers, killed ones among them; what is refused; how scripts end.
# usage: tests/package/python.sh SOURCE_DIR BUILD_DIR
set -euo pipefail
usage='usage: tests/package/python.sh SOURCE_DIR BUILD_DIR'
source_dir="$(cd "${1:?$usage}" && pwd)"
build_dir="$(cd "${2:?$usage}" && pwd)"
scripts="$source_dir/tests/package/python"
python=/usr/bin/python3 # the distribution's, for which its packages are
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
unset KELP_BIN KELP_SOURCE KELP_TEST_PROGRAMS PYTHONPATH

fail() {
    printf '%s\n' "$1"
    exit 1
}
skip() {
    printf 'skipped: %s\n' "$1"
    exit 77
}
logged() { # WHAT COMMAND...: its output is shown when it fails
    local what="$1"
    shift
    "$@" >"$scratch/log" 2>&1 || {
        tail -n 20 "$scratch/log"
        fail "$what fails: $*"
    }
}
trains() { # RUN COMMAND...: and its workers' logs are shown when it fails
    local run="$1"
    shift
    kelp train "$@" --run "$run" --no-plots >"$scratch/log" 2>&1 || {
        tail -n 20 "$scratch/log" "$run"/logs/worker-*.log
        fail "training fails: kelp train $*"
    }
}
digest_of() { grep -oE '"digest":"[0-9a-f]{32}"' "$1/result.json"; }
same() { # RUN RUN
    local left right
    left="$(digest_of "$1")" right="$(digest_of "$2")"
    if [ "$left" != "$right" ]; then fail "$1 comes to $left, $2 to $right"; fi
    cmp "$1/digests.jsonl" "$2/digests.jsonl" || fail "$1 and $2: digests on the way differ"
}
has_module() { "$python" -c "import importlib.util as u, sys; sys.exit(u.find_spec('$1') is None)"; }

for module in numpy setuptools wheel pip; do
    has_module "$module" || skip "$python has no $module (deploy/install-deps.sh --python)"
done
[ -e "$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ] ||
    skip "$python has no headers (deploy/install-deps.sh --python)"

# ---- the installation, offline -------------------------------------------------------------------
prefix="$scratch/prefix"
for component in libkelp-worker1 kelp-dev; do
    logged 'the installation' cmake --install "$build_dir" --prefix "$prefix" --component "$component"
done
export PATH="$build_dir/bin:$PATH" PKG_CONFIG_PATH="$prefix/lib/pkgconfig"
cp -r "$source_dir/python" "$scratch/python"
rm -rf "$scratch"/python/build "$scratch"/python/*.egg-info "$scratch"/python/kelp/*.so
logged 'pip install' "$python" -m pip install --no-build-isolation --no-index --no-deps --no-cache-dir \
    --target "$scratch/site" "$scratch/python"
export PYTHONPATH="$scratch/site"
[ -e "$scratch/site/kelp/_kelp.abi3.so" ] || fail 'the extension is not of the stable ABI'
[[ "$(ldd "$scratch/site/kelp/_kelp.abi3.so")" == *"libkelp-worker.so.1 => $prefix/"* ]] ||
    fail 'the extension runs with another library'
mkdir "$scratch/work"
cd "$scratch/work"

# ---- numpy ---------------------------------------------------------------------------------------
cp "$source_dir"/examples/worker/mlp.yaml .
"$python" - <<'ROWS' # those of examples/worker/mlp.c
import numpy as np
state, rows = 1, np.empty((1000, 10), np.float32)
for row in rows:
    for i in range(8):
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
        row[i] = np.float32(np.uint32(state).astype(np.int32)) * np.float32(2.0**-31)
    row[8] = row[0] * row[1] + row[2]
    row[9] = abs(row[3]) - row[4]
rows.tofile("rows.bin")
ROWS
# numpy computes a single row otherwise than Kelp; without train.accumulate there is none.
trains theirs mlp.yaml --set train.accumulate=1
trains numpy-1 mlp.yaml --set train.accumulate=1 --workers 1 --worker-program "$scripts/mlp_numpy.py"
same theirs numpy-1
trains numpy-pieces mlp.yaml --workers 1 --worker-program "$scripts/mlp_numpy.py"
TEST_DIES="$scratch/died" trains numpy-2 mlp.yaml --workers 2 --worker-program "$scripts/mlp_numpy.py"
same numpy-pieces numpy-2
[ -e "$scratch/died" ] || fail 'no worker was killed'
grep -q '"event":"worker-lost"' numpy-2/events.jsonl || fail 'the killed worker was not missed'
# A worker that waits is interrupted, although it waits in C; the job goes on.
trains interrupted mlp.yaml --workers 2 --set cluster.lanes=1 --set train.accumulate=1 \
    --worker-program "$scripts/interrupt_numpy.py"
grep -qh 'it ended after' interrupted/logs/worker-*.log || fail 'no worker was interrupted'
grep -qh '^KeyboardInterrupt' interrupted/logs/worker-*.log || fail 'a worker was not ended by Ctrl-C'

# ---- torch ---------------------------------------------------------------------------------------
has_module torch || skip "$python has no torch (deploy/install-deps.sh --python); kelp.Worker is in order"
torch="$scripts/models_torch.py"
export KELP_PYTHON="$python"
runs() { # RUN OPTION... -- ARGUMENT...: of the script
    local run="$1" options=()
    shift
    while [ "$1" != -- ]; do
        options+=("$1")
        shift
    done
    shift
    kelp run --run "$run" --no-plots "${options[@]}" "$torch" "$@" >"$scratch/log" 2>&1 || {
        tail -n 20 "$scratch/log" "$run"/logs/worker-*.log
        fail "training fails: kelp run $torch $*"
    }
}
dies() { # COMMAND RUN ARGUMENT...
    rm -f "$scratch/died"
    TEST_DIES="$scratch/died" "$@"
    [ -e "$scratch/died" ] || fail 'no worker was killed'
    grep -q '"event":"worker-lost"' "$2/events.jsonl" || fail 'the killed worker was not missed'
}
dies runs mlp-1 --workers 2 -- mlp
# The job that the script described, and the weights that it began with, are kept in the run.
trains mlp-2 mlp-1/job.yaml --workers 1
same mlp-1 mlp-2
grep -q '"val/mse":.*"val/near":.*"val/far":' mlp-1/metrics.jsonl || fail "a script's own sums are no metrics"
# Batch norm, dropout, frozen and tied weights, bfloat16, random data, which processes fetch where workers die.
runs mixed-1 --workers 1 -- mixed
dies trains mixed-2 mixed-1/job.yaml --set 'model.arguments=[mixed, "1"]' --workers 2
same mixed-1 mixed-2
grep -qh 'batches were foreseen' mixed-2/logs/worker-*.log || fail 'no worker says what was fetched ahead'

# After the run: it measures what training measured last, and predicts, with any number of workers.
logged 'kelp evaluate' kelp evaluate mixed-1 --workers 2 --run measured
measured() { grep -oE '"val/[a-z]+":[^,}]*' "$1/metrics.jsonl" | tail -n 4; }
[ "$(measured mixed-1)" = "$(measured measured)" ] || fail "kelp evaluate says $(measured measured)"
logged 'kelp predict' kelp predict mixed-1 --part val --out predicted.npy --workers 1
logged 'kelp predict' kelp predict mixed-1 --part val --out again.npy --workers 2 --shards 2
cmp predicted.npy again.npy || fail 'predictions depend on the number of workers'
logged 'kelp.torch.load' "$torch" use mixed-1

# As torch alone, after each of five steps. Shards' arithmetic for other optimizers: tests/python/test_optim.py.
for kind in momentum adamw lstm transformer; do
    runs "plain-$kind" --workers 1 --set train.max_steps=5 --set data.shuffle=false -- plain "$kind"
    [ -e "compared-$kind" ] || fail "$kind was not compared with torch alone"
done

# ---- workers that differ, scripts that fail --------------------------------------------------------
fails() { # WORDS COMMAND...
    local words="$1" status=0
    shift
    rm -rf first failed
    "$@" >"$scratch/log" 2>&1 || status=$?
    if [ "$status" -ne 2 ] || ! tail -n 1 "$scratch/log" | grep -qE -- "$words"; then
        tail -n 20 "$scratch/log" failed/logs/worker-*.log
        fail "exit status $status, not 2 with '$words'"
    fi
}
differs() { # WORDS HOW WORKERS
    fails "$1" kelp train mlp-1/job.yaml --set "model.arguments=[differ, $2]" --run failed --no-plots --workers "$3"
}
differs 'worker-0: models_torch.py:[0-9]+: ValueError: the third step is one too many' 'raise' 1
differs 'worker-.: models_torch.py.*the script left its loop at step 2, before the job was over' 'break' 1
differs 'worker-.: .*samples.*random_split\(\)' 'length' 2
differs 'worker-.: .*what the program computes before the first step.*another loss, module, data' 'loss' 2
differs 'worker-.: .*threads 2' 'threads' 2
fails 'ValueError: submit\(\): kelp predict needs predictions=' env TEST_PREDICTS_NOT=1 kelp predict mixed-2 \
    --part val --out none.npy --run failed --workers 1
[ ! -e none.npy ] || fail 'there are predictions of a script that gives none'
fails 'models_torch.py:[0-9]+: ValueError: .*sparse gradients' kelp run --run failed "$torch" refused
if grep -q Traceback "$scratch/log"; then fail 'a refusal has a traceback'; fi
printf 'print("nothing to train")\n' >none.py
fails 'none.py ended without creating a worker' kelp run --run failed none.py

printf 'python: all in order\n'
