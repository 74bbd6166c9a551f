#!/bin/bash
# Whole jobs on this machine's GPU: the digest is the same for 1, 2 and 4 workers, for one that has 1
# and 3 streams, and when a worker is killed. Prints a line for each run.
# usage: tests/gpu/jobs.sh BIN EXAMPLES SCRATCH [MNIST]
#   BIN       the folder of kelp
#   EXAMPLES  the folder of the example jobs
#   SCRATCH   a folder that is made, for the runs
#   MNIST     the data set's folder; without it the jobs on generated series alone
set -euo pipefail
bin="$(cd "${1:?usage: tests/gpu/jobs.sh BIN EXAMPLES SCRATCH [MNIST]}" && pwd)"
examples="$(cd "${2:?}" && pwd)"
mkdir -p "${3:?}"
scratch="$(cd "$3" && pwd)"
mnist="${4:-}"
failed=0

# run NAME JOB SETTING ...: one run; its digest goes to $digest.
run() {
    local name="$1" begin end
    shift
    begin="$(date +%s%N)"
    if ! "$bin/kelp" train "$@" --no-plots --run "$scratch/$name" --set cluster.device=cuda \
        >"$scratch/$name.out" 2>&1; then
        printf '%s: failed: %s\n' "$name" "$(tail -n 1 "$scratch/$name.out")"
        digest=""
        failed=1
        return
    fi
    end="$(date +%s%N)"
    digest="$(sed -nE 's/.*"digest": *"([0-9a-f]+)".*/\1/p' "$scratch/$name/result.json" | head -n 1)"
    printf '%-28s %s %6d ms\n' "$name" "$digest" $(((end - begin) / 1000000))
}

# same NAME JOB ...: such runs end alike.
same() {
    local name="$1" workers streams first
    shift
    run "$name-1" "$@" --workers 1
    first="$digest"
    for workers in 2 4; do
        run "$name-$workers" "$@" --workers "$workers"
        [ -n "$first" ] && [ "$digest" = "$first" ] || failed=1
    done
    for streams in 1 3; do
        run "$name-streams-$streams" "$@" --workers 1 --set "cluster.streams=$streams"
        [ -n "$first" ] && [ "$digest" = "$first" ] || failed=1
    done
    run "$name-killed" "$@" --workers 2 --fault worker-1:kill@step=20
    [ -n "$first" ] && [ "$digest" = "$first" ] || failed=1
}

same etth1 "$examples/etth1-dlinear.yaml" --set train.epochs=1
same mlp "$examples/mlp.yaml" --set train.epochs=1
if [ -n "$mnist" ]; then
    same mnist "$examples/mnist-convnet.yaml" --set "data.path=$mnist" --set train.epochs=1
else
    printf 'mnist: skipped: no folder of the data set was given\n'
fi
if [ "$failed" -ne 0 ]; then
    printf 'jobs: some failed, or digests differ\n'
    exit 1
fi
printf 'jobs: the same digests\n'
