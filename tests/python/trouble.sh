#!/bin/bash
# Scripts that fail (tests/package/python/trouble_torch.py, trouble_numpy.py) or are interrupted: each ends with its
# exit status and one line, or goes on, and leaves nothing behind: no process, no file.
# usage: tests/python/trouble.sh SOURCE_DIR BUILD_DIR [--quick|HOW...]     (--quick: what needs little time)
set -euo pipefail
usage='usage: tests/python/trouble.sh SOURCE_DIR BUILD_DIR [--quick|HOW...]'
source_dir="$(cd "${1:?$usage}" && pwd)"
build_dir="$(cd "${2:?$usage}" && pwd)"
shift 2

scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
# shellcheck source=tests/python/setup.sh
. "$source_dir/tests/python/setup.sh"
export PATH="$build_dir/bin:$PATH" KELP_PYTHON="$python" TMPDIR="$scratch/tmp" TEST_ONCE="$scratch/once"
mkdir "$scratch/work"
cd "$scratch/work"
printf 'import kelp.torch\nfor batch in worker\n    pass\n' >syntax.py

left() { # processes of this test's runs, which have its TEST_ONCE
    grep -lzxF "TEST_ONCE=$TEST_ONCE" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3 |
        while read -r pid; do
            if [[ "$(readlink "/proc/$pid/exe")" =~ python|kelp|etcd ]]; then echo "$pid"; fi
        done || true
}
fail() { # WORDS HOW
    tail -n 20 log run/logs/worker-*.log 2>/dev/null || true
    printf '%s: %s\n' "$2" "$1"
    exit 1
}
# Which process is told to end, when, is the test's to say: no job of the shell ignores SIGINT.
interrupted() { # HOW COMMAND...: Ctrl-C once the script has come as far as it says
    local pid end=$((SECONDS + 120)) how="$1"
    shift
    "$python" -c 'import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execvp(sys.argv[1], sys.argv[1:])' "$@" &
    pid=$!
    until [ -e "$TEST_ONCE" ]; do
        if [ "$SECONDS" -ge "$end" ] || ! kill -0 "$pid"; then return 1; fi
        sleep 0.05
    done
    kill -INT "$pid"
    wait "$pid"
}
expect() { # SCRIPT HOW STATUS LINES WORDS: of the exit status, and words among the last lines
    local how="$2" status=0 end found script="$1" run=(timeout 300)
    rm -rf "$TEST_ONCE" "$TMPDIR" run
    mkdir "$TMPDIR"
    if [ "$3" -eq 130 ]; then run=(interrupted "$how"); fi
    "${run[@]}" kelp run --run run --no-plots --workers 2 "$script" "$how" >log 2>&1 || status=$?
    if [ "$status" -ne "$3" ] || ! tail -n "$4" log | grep -qE -- "$5"; then
        fail "exit status $status, not $3 with \"$5\"" "$how"
    fi
    end=$((SECONDS + 30))
    while found="$(left)" && [ -n "$found" ]; do # a fork server first imports torch
        if [ "$SECONDS" -ge "$end" ]; then fail "processes are left: $found" "$how"; fi
        sleep 0.1
    done
    if [ -n "$(ls -A "$TMPDIR")" ]; then fail "files are left: $(ls -A "$TMPDIR")" "$how"; fi
    printf '%-12s exit status %s\n' "$how" "$3"
}
in_torch='worker-.: trouble_torch.py'
in_numpy='worker-.: trouble_numpy.py'
before='before it created a worker'
while read -r quick script how status lines words; do
    case "$script" in
    syntax) path=syntax.py ;;
    *) path="$source_dir/tests/package/python/trouble_$script.py" ;;
    esac
    if [ $# -eq 0 ] || [[ "$1" == --quick && "$quick" == q ]] || [[ " $* " == *" $how "* ]]; then
        expect "$path" "$how" "$status" "$lines" "$words"
    fi
done <<CASES
q syntax syntax 2 1 ^SyntaxError: 
q numpy missing 2 1 ^ModuleNotFoundError: No module named 'a_module_that_nobody_has'
q numpy before 2 1 worker-.: LookupError: there is no table today
- numpy says-why 2 1 worker-.: no table, no training
q numpy ends-silent 2 1 trouble_numpy.py: exited with status 1 $before
- numpy exits-early 2 1 trouble_numpy.py: exited with status 3 $before
q numpy told-to-end 130 1 stopped while .*trouble_numpy.py started; no run was begun
q numpy stubborn 130 1 stopped while .*trouble_numpy.py started; no run was begun
q numpy trains 130 1 paused at step [0-9]+; continue with kelp train --resume
q numpy mean 2 1 $in_numpy:[0-9]+: ValueError: submit\(\): correct is 0.3; it must be how many
q numpy second 2 1 $in_numpy:[0-9]+: RuntimeError: a second Worker in one script: .*; training is done
- numpy after 2 1 $in_numpy:[0-9]+: LookupError: there is nothing after the loop; training is done
- numpy exits-after 2 1 worker-.: exited with status 3; training is done
q numpy goes-on 0 1 worker-. was ended in what its program does after the loop
- torch data-raises 2 1 $in_torch:[0-9]+: LookupError: there is no row 77
- torch data-dies 0 6 ^restarts +1
q torch fetch-dies 0 6 ^restarts +1
- torch exits 2 1 $in_torch:.* the script left its loop at step 5
- torch exits-0 2 1 $in_torch:.* the script left its loop at step 5
- torch exits-words 2 1 $in_torch:.* the script left its loop at step 5
- torch breaks 2 1 $in_torch:.* the script left its loop at step 5
- torch twice 2 1 $in_torch:[0-9]+: RuntimeError: step 5: submit\(\) was called twice
- torch no-submit 2 1 $in_torch:[0-9]+: RuntimeError: step 0: a batch was not submitted
- torch single 2 1 $in_torch:[0-9]+: ValueError: 1 \(BatchNorm1d\) norms a single value
- torch steps 2 1 $in_torch:[0-9]+: RuntimeError: parameter .* was changed in place
q torch sum 2 1 $in_torch:[0-9]+: ValueError: submit\(\): the loss is a sum over the batch
q torch waits 130 1 paused at step [0-9]+; continue with kelp train --resume
q torch jit 2 1 trouble_torch.py:[0-9]+: ValueError: .*ScriptModule
CASES
# What a script does is seen whatever its log leaves out.
for how in before after; do
    if [ $# -eq 0 ] || [[ " $* " == *" $how-quietly "* ]] || [[ "$1" == --quick && "$how" == before ]]; then
        words='there is no table today'
        if [ "$how" = after ]; then words='there is nothing after the loop; training is done'; fi
        KELP_LOG_LEVEL=warn expect "$source_dir/tests/package/python/trouble_numpy.py" "$how" 2 1 "$words"
    fi
done
# Ctrl-C when the script has described its job and nothing is started yet: as kelp run asks etcd, which is the test.
if [ $# -eq 0 ] || [ "$1" == --quick ] || [[ " $* " == *" between "* ]]; then
    rm -rf "$TMPDIR" run
    mkdir "$TMPDIR"
    "$python" - "$source_dir/tests/package/python/trouble_numpy.py" >log 2>&1 <<'END' || fail "$(cat log)" between
import glob, os, signal, socket, subprocess, sys

etcd = socket.create_server(("127.0.0.1", 0))
etcd.settimeout(60)
url = f"http://127.0.0.1:{etcd.getsockname()[1]}"
command = ["kelp", "run", "--run", "run", "--etcd", url, sys.argv[1], "ends"]
kelp = subprocess.Popen(command, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
asked, _ = etcd.accept()
assert glob.glob(os.environ["TMPDIR"] + "/kelp-run-*"), "the description is gone before it is used"
kelp.send_signal(signal.SIGINT)
asked.close()
etcd.close()
status = kelp.wait(60)
assert status == -signal.SIGINT, f"exit status {status}"
END
    if [ -n "$(ls -A "$TMPDIR")" ]; then fail "files are left: $(ls -A "$TMPDIR")" between; fi
    printf '%-12s ended by the signal\n' between
fi
# Past the end of its schedule a run learns nothing more, which it says.
if [ $# -eq 0 ] || [ "$1" == --quick ] || [[ " $* " == *" cosine "* ]]; then
    expect "$source_dir/tests/package/python/trouble_numpy.py" cosine 0 4 '^digest'
    if grep -q 'learning rate is 0' log; then fail 'its learning rate is 0' cosine; fi
    kelp train --resume --run run --no-plots --set train.epochs=4 --allow-plugin >log 2>&1 ||
        fail 'it does not go on' cosine
    grep -q 'the learning rate is 0 from step 25 on.*the steps 25 to 32 change nothing' log ||
        fail 'that its learning rate is 0 is not told' cosine
fi
