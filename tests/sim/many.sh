#!/bin/bash
# Run many seeds of kelp-sim on all processors, in blocks. A line for each block; a seed that fails is named, and
# the seeds behind it still run. Exit status: 0, or 1 when any seed failed.
# usage: tests/sim/many.sh KELP_SIM FROM COUNT [BLOCK]
set -euo pipefail
sim="${1:?usage: tests/sim/many.sh KELP_SIM FROM COUNT [BLOCK]}"
from="${2:?usage: tests/sim/many.sh KELP_SIM FROM COUNT [BLOCK]}"
count="${3:?usage: tests/sim/many.sh KELP_SIM FROM COUNT [BLOCK]}"
block="${4:-10000}"

# run_block FROM END: all seeds of it, also those behind one that fails.
run_block() {
    local first="$1" end="$2" out bad failed=0
    while [ "$first" -lt "$end" ]; do
        if out="$("$sim" --from "$first" --seeds "$((end - first))" 2>&1)"; then break; fi
        bad="$(sed -n 's/^seed \([0-9]*\) fails.*/\1/p' <<<"$out" | head -n 1)"
        failed=$((failed + 1))
        printf 'FAILED: %s\n' "$(grep -m1 '^seed ' <<<"$out" || tail -n 1 <<<"$out")"
        if [ -z "$bad" ]; then return 1; fi
        first=$((bad + 1))
    done
    printf 'seeds %d to %d: %d failed\n' "$1" "$((end - 1))" "$failed"
    [ "$failed" -eq 0 ]
}

pids=()
status=0
for ((at = from; at < from + count; at += block)); do
    end=$((at + block < from + count ? at + block : from + count))
    run_block "$at" "$end" &
    pids+=("$!")
    if [ "${#pids[@]}" -ge "$(nproc)" ]; then
        wait "${pids[0]}" || status=1
        pids=("${pids[@]:1}")
    fi
done
for pid in "${pids[@]}"; do wait "$pid" || status=1; done
exit "$status"
