#!/bin/bash
# Scripts of kelp.torch that fail (tests/package/python/trouble_torch.py): each ends with its exit status and one line,
# or goes on, and leaves nothing behind: no process, no file.
# usage: tests/python/trouble.sh SOURCE_DIR BUILD_DIR [HOW...]
set -euo pipefail
source_dir="$(cd "${1:?usage: tests/python/trouble.sh SOURCE_DIR BUILD_DIR [HOW...]}" && pwd)"
build_dir="$(cd "${2:?usage: tests/python/trouble.sh SOURCE_DIR BUILD_DIR [HOW...]}" && pwd)"
shift 2

scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
# shellcheck source=tests/python/setup.sh
. "$source_dir/tests/python/setup.sh"
export PATH="$build_dir/bin:$PATH" KELP_PYTHON="$python" TMPDIR="$scratch/tmp" TEST_ONCE="$scratch/once"
mkdir "$scratch/work"
cd "$scratch/work"

left() { # processes of this test's runs, which have its TEST_ONCE
    grep -lzxF "TEST_ONCE=$TEST_ONCE" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3 |
        while read -r pid; do if [[ "$(readlink "/proc/$pid/exe")" == *python* ]]; then echo "$pid"; fi; done || true
}
expect() { # HOW STATUS WORDS: of the exit status, and a line that is among the last six
    local status=0 end found
    rm -rf "$TEST_ONCE" "$TMPDIR" run
    mkdir "$TMPDIR"
    timeout 300 kelp run --run run --no-plots --workers 2 "$source_dir/tests/package/python/trouble_torch.py" "$1" \
        >log 2>&1 || status=$?
    if [ "$status" -ne "$2" ] || ! tail -n 6 log | grep -qE -- "$3"; then
        tail -n 20 log run/logs/worker-*.log
        printf '%s: exit status %s, not %s with "%s"\n' "$1" "$status" "$2" "$3"
        exit 1
    fi
    end=$((SECONDS + 30))
    while found="$(left)" && [ -n "$found" ]; do # a fork server first imports torch
        if [ "$SECONDS" -ge "$end" ]; then
            printf '%s: processes are left: %s\n' "$1" "$found"
            exit 1
        fi
        sleep 0.1
    done
    if [ -n "$(ls -A "$TMPDIR")" ]; then
        printf '%s: files are left: %s\n' "$1" "$(ls -A "$TMPDIR")"
        exit 1
    fi
    printf '%-12s exit status %s\n' "$1" "$2"
}
here='worker-.: trouble_torch.py'
while read -r how status words; do
    if [ $# -eq 0 ] || [[ " $* " == *" $how "* ]]; then expect "$how" "$status" "$words"; fi
done <<CASES
data-raises 2 $here:[0-9]+: LookupError: there is no row 77
data-dies 0 ^restarts +1
fetch-dies 0 ^restarts +1
exits 2 $here:.* the script left its loop at step 5
exits-0 2 $here:.* the script left its loop at step 5
breaks 2 $here:.* the script left its loop at step 5
twice 2 $here:[0-9]+: RuntimeError: step 5: submit\(\) was called twice
no-submit 2 $here:[0-9]+: RuntimeError: step 0: a batch was not submitted
single 2 $here:[0-9]+: ValueError: 1 \(BatchNorm1d\) norms a single value
steps 2 $here:[0-9]+: RuntimeError: parameter .* was changed in place
jit 2 trouble_torch.py exited with status 2
CASES
