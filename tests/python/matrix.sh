#!/bin/bash
# The same bits from PyTorch: each model of tests/package/python/models_torch.py on clusters of several sizes. In each a
# worker is killed, one joins and a shard is lost; the digest is that of one worker and one shard that nothing disturbs.
# usage: tests/python/matrix.sh SOURCE_DIR BUILD_DIR [--quick | --chaos PLAN] [MODEL...]
#   --quick       one model, with the layers of all, on one larger cluster
#   --chaos PLAN  kelp chaos with that plan (quick, all) instead of the sizes
set -euo pipefail
usage='usage: tests/python/matrix.sh SOURCE_DIR BUILD_DIR [--quick | --chaos PLAN] [MODEL...]'
source_dir="$(cd "${1:?$usage}" && pwd)"
build_dir="$(cd "${2:?$usage}" && pwd)"
shift 2
models=(mlp norm lstm transformer tied bfloat16 augmented)
variants=(1x1 1x3 2x1 2x3 5x1 5x3)
plan=
case "${1:-}" in
--quick)
    models=(every)
    variants=(2x3)
    shift
    ;;
--chaos)
    plan="${2:?$usage}"
    shift 2
    ;;
esac
[ $# -eq 0 ] || models=("$@")

scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
# shellcheck source=tests/python/setup.sh
. "$source_dir/tests/python/setup.sh"
export PATH="$build_dir/bin:$PATH" KELP_PYTHON="$python"
script="$source_dir/tests/package/python/models_torch.py"
mkdir "$scratch/work"
cd "$scratch/work"
"$python" "$script" rows

# Data processes change no bit; where a model has random data they fetch it.
arguments_of() {
    case "$1" in
    augmented | mixed | every) echo "$1, 2" ;;
    *) echo "$1" ;;
    esac
}
job_of() { # MODEL: options of its job
    job=("$1/job.yaml" --set model.python="$script" --set "model.arguments=[$(arguments_of "$1")]")
}
digest_of() { grep -oE '"digest":"[0-9a-f]{32}"' "$1/result.json" | cut -d'"' -f4; }
has_event() { # RUN EVENT WHO
    grep -q "\"event\":\"$2\",\"who\":\"$3\"" "$1/events.jsonl"
}
# RUN MODEL WORKERS SHARDS [faults]: why it is not in order, in $problem. The job has 112 steps.
trains() {
    local run="$1" workers="$3" shards="$4" joiner="worker-$3" faults=() job=()
    job_of "$2"
    problem=
    if [ $# -gt 4 ]; then
        faults=(--workers "$workers:$((workers + 1))" --at step=20:kill=worker-0 --at step=40:add-worker
            --at step=75:kill=shard-$((shards - 1)))
        export TEST_JOINS="$joiner:50:$PWD/$run/events.jsonl"
    else
        faults=(--workers "$workers")
        unset TEST_JOINS
    fi
    if ! kelp train "${job[@]}" --run "$run" --no-plots --shards "$shards" --set train.epochs=8 \
        --set checkpoint.steps=25 "${faults[@]}" >"$run.log" 2>&1; then
        tail -n 20 "$run.log" "$run"/logs/worker-*.log
        problem='it fails'
    elif [ $# -gt 4 ]; then
        has_event "$run" worker-lost worker-0 || problem='worker-0 was not lost'
        has_event "$run" worker-joined "$joiner" || problem="$joiner did not join"
        has_event "$run" shard-lost "shard-$((shards - 1))" || problem='no shard was lost'
    fi
}
breaks() { # RUN MODEL: likewise, by kelp chaos
    local job=() epochs=350 # of 14 steps: a little longer than the plan
    job_of "$2"
    problem=
    if [ "$plan" = quick ]; then epochs=110; fi
    if ! kelp chaos "${job[@]}" --run "$1" --plan "$plan" --epochs "$epochs" >"$1.log" 2>&1; then
        cat "$1.log"
        problem="it fails; kelp chaos says why above"
    fi
}

results=() failures=0
tell() { # MODEL VARIANT DIGEST EQUAL
    local line
    line="$(printf '%-12s %-12s %-32s %s' "$@")"
    results+=("$line")
    printf '%s\n' "$line"
}
for model in "${models[@]}"; do
    mkdir "$model"
    # shellcheck disable=SC2046 # words, as kelp passes them
    KELP_DESCRIBE="$model" "$python" "$script" $(arguments_of "$model" | tr -d ,)
    if [ -n "$plan" ]; then
        breaks "$model-chaos" "$model"
        digest="$(grep -oE '"digest":"[0-9a-f]*"' "$model-chaos/chaos.json" | cut -d'"' -f4 || true)"
        tell "$model" "chaos $plan" "${digest:--}" "${problem:-equal}"
        if [ -n "$problem" ]; then failures=$((failures + 1)); fi
        continue
    fi
    quiet="$model-quiet"
    trains "$quiet" "$model" 1 1
    [ -z "$problem" ] || exit 1
    expected="$(digest_of "$quiet")"
    tell "$model" '1x1 quiet' "$expected" -
    for variant in "${variants[@]}"; do
        run="$model-$variant"
        trains "$run" "$model" "${variant%x*}" "${variant#*x}" faults
        digest=-
        if [ -z "$problem" ]; then
            digest="$(digest_of "$run")"
            if [ "$digest" != "$expected" ]; then
                problem='another digest'
            elif ! cmp -s "$quiet/digests.jsonl" "$run/digests.jsonl"; then
                problem='another digest on the way'
            fi
        fi
        tell "$model" "$variant" "$digest" "${problem:-equal}"
        if [ -n "$problem" ]; then failures=$((failures + 1)); fi
    done
done

printf '\n%-12s %-12s %-32s %s\n' MODEL VARIANT DIGEST EQUAL
printf '%s\n' "${results[@]}"
if [ "$failures" -gt 0 ]; then
    printf '%d of %d are not in order\n' "$failures" "${#results[@]}"
    exit 1
fi
