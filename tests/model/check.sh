#!/bin/bash
# Check the models of this folder with spin: sound as they are, and an error for each rule that is left out. A line
# for each run. Exits 77 when spin is not there.
# usage: tests/model/check.sh
set -euo pipefail
models="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
if ! command -v spin >/dev/null; then
    printf 'skipped: spin is not installed\n'
    exit 77
fi
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
problems=0

# explore LEVEL MODEL DEFINE...: what spin's verifier says of it, compiled at this level.
explore() {
    local level="$1" model="$2"
    shift 2
    (cd "$scratch" && rm -f pan* && spin -a "${@/#/-D}" "$models/$model.pml" >/dev/null &&
        cc "$level" -DVECTORSZ=4096 -DCOLLAPSE -DSAFETY -w -o pan pan.c && ./pan -m100000 -w22)
}

# check WANTED MODEL DEFINE...: WANTED is "errors: 0" or "errors: 1".
check() {
    local wanted="$1" level=-O1 said states
    shift
    # An error is found within moments, and the compiler takes longer.
    if [ "$wanted" = "errors: 1" ]; then level=-O0; fi
    if ! said="$(explore "$level" "$@" 2>&1)"; then said="$said; spin or cc failed"; fi
    states="$(sed -n 's/^ *\([0-9]*\) states, stored.*/\1/p' <<<"$said")"
    if grep -q "$wanted" <<<"$said" && ! grep -q 'max search depth too small' <<<"$said"; then
        printf '%s: %s in %s states, as it should\n' "$*" "$wanted" "${states:-?}"
    else
        printf '%s: not "%s": %s\n' "$*" "$wanted" "$(tail -n 3 <<<"$said")"
        problems=$((problems + 1))
    fi
}

calm=(KILLS=0 WRONG=0 BREAKS=0)
check "errors: 0" replicas "${calm[@]}"
check "errors: 0" replicas KILLS=0 WRONG=0 BREAKS=1
check "errors: 0" replicas KILLS=1 WRONG=1 BREAKS=0 JOINERS=0
check "errors: 0" decisions
for rule in EARLY COPYSYNCING LAG SHOWNOW NOGREET NOKEEP LATE NOOLDER ANYREPORT; do
    check "errors: 1" replicas KILLS=1 WRONG=0 BREAKS=0 "$rule"
done
check "errors: 1" replicas KILLS=0 WRONG=0 BREAKS=1 NORESTATE
check "errors: 1" replicas KILLS=0 WRONG=1 BREAKS=0 NOFENCE
for rule in FORGET FORGETSYNCING STALE NORESEND NOREASK; do
    check "errors: 1" decisions "$rule"
done
check "errors: 0" snapshots
check "errors: 0" snapshots WRONG=1
for rule in EARLYMOVE NOTNAMED EPOCHBOUND KEEPORDER NODEADLINE NOTGONE DROPCAPTURE REORDER; do
    check "errors: 1" snapshots "$rule"
done
if [ "$problems" -gt 0 ]; then
    printf '%d problems\n' "$problems"
    exit 1
fi
