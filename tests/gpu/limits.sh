#!/bin/bash
# tests/gpu/run.sh keeps to its time, says what did not run, and finds Python's libraries: with a folder whose programs
# only wait.
# usage: tests/gpu/limits.sh SOURCE_DIR
set -euo pipefail
run="$(cd "${1:?usage: tests/gpu/limits.sh SOURCE_DIR}" && pwd)/tests/gpu/run.sh"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
fail() {
    printf 'FAILED: %s\n' "$1"
    cat "$scratch/out"
    exit 1
}
mkdir -p "$scratch/folder/tests" "$scratch/folder/bench"
cat >"$scratch/folder/tests/gpu_operators" <<'PROGRAM'
#!/bin/bash
case "$*" in
*"--precision tf32 --repeats"*"products"*) [[ ":$LD_LIBRARY_PATH:" == *":$FOLDER_OF_PYTHON:"* ]] ;;
*"--cudnn 1 --precision"*) exit 1 ;;
*"--cudnn 1"*) sleep 60 ;;
esac
PROGRAM
printf '#!/bin/bash\necho there is no GPU\nexit 77\n' >"$scratch/folder/bench/gpu"
chmod +x "$scratch"/folder/*/*

# expect STATUS OPTION ...
expect() {
    local wanted="$1" status=0
    shift
    "$run" "$@" "$scratch/folder" "$scratch/report" >"$scratch/out" 2>&1 || status=$?
    [ "$status" -eq "$wanted" ] || fail "$*: status $status, not $wanted"
}
# says LINE
says() { grep -qE "^== $1\$" "$scratch/out" || fail "it does not say: $1"; }

expect 2 --seconds 2
says 'operators: passed \([0-9]+ s\)'
says 'cudnn: cut after [0-9]+ s: the 2 s are over \(--only cudnn runs it alone\)'
says 'bench: not run: the 2 s are over \(--only bench runs it alone\)'
expect 0 --only 'operators*'
! grep -q cudnn "$scratch/out" || fail "it runs more than --only says"
expect 0 --only bench
says 'bench: skipped: there is no GPU'
expect 1 --only 'cudnn-tf32'
says 'cudnn-tf32: FAILED with 1 \([0-9]+ s\)'
# Libraries that Python alone has.
mkdir "$scratch/path"
printf '#!/bin/bash\nprintf "/of/python"\n' >"$scratch/path/python3"
chmod +x "$scratch/path/python3"
export FOLDER_OF_PYTHON=/of/python
PATH="$scratch/path:$PATH" expect 0 --only operators-tf32
grep -qxF 'libraries of Python: /of/python' "$scratch/out" || fail "it says nothing of Python's libraries"
expect 1 --only operators-tf32
expect 2 --seconds soon
expect 2 --later
echo 'tests/gpu/run.sh keeps to its time'
