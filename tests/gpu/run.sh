#!/bin/bash
# All that needs a GPU, in one call of under ten minutes: the operators against the CPU and against
# themselves, compute-sanitizer, whole jobs, speed. Parts that are not there are skipped with a word.
# usage: tests/gpu/run.sh [--seconds N] [--only PATTERN] FOLDER REPORT [MNIST]
#   --seconds N     no part begins or goes on after that (default 590)
#   --only PATTERN  parts whose names match, such as 'cudnn*' or 'operators'
#   FOLDER  a build (build/release, or one of KELP_PARTS=kernels, which has no jobs), or what
#           deploy/folder.sh --tests made of one
#   REPORT  a folder that is made: report.txt, and a log of each part
#   MNIST   the data set's folder, for tests/gpu/jobs.sh
# Exit status: 0 all passed or are not there, 1 some failed, 2 none failed, and for some the time was over.
set -uo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
usage='usage: tests/gpu/run.sh [--seconds N] [--only PATTERN] FOLDER REPORT [MNIST]'
seconds=590
only='*'
while [[ "${1:-}" == --* ]]; do
    case "$1" in
    --seconds) seconds="${2:?$usage}" ;;
    --only) only="${2:?$usage}" ;;
    *)
        printf 'run.sh: %s: no such option; %s\n' "$1" "$usage" >&2
        exit 2
        ;;
    esac
    shift 2
done
[[ "$seconds" =~ ^[1-9][0-9]{0,5}$ ]] || {
    printf 'run.sh: --seconds %s: a whole number of seconds, 1 to 999999\n' "$seconds" >&2
    exit 2
}
folder="$(cd "${1:?$usage}" && pwd)"
mkdir -p "${2:?}"
report="$(cd "$2" && pwd)"
mnist="${3:-}"
libraries="${LD_LIBRARY_PATH:-}" # those of the machine, for its Python
# shellcheck source=/dev/null
[ ! -e "$folder/env.sh" ] || . "$folder/env.sh"
# NVIDIA's libraries where pip has put them for the machine's Python, if they are nowhere else.
of_python="$(LD_LIBRARY_PATH="$libraries" python3 2>/dev/null - <<'PYTHON'
import ctypes, glob, os, sys
folders = []
for name in "libcublasLt.so.13", "libcudnn.so.9":
    try:
        ctypes.CDLL(name)
    except OSError:
        if not os.path.exists("/usr/local/cuda/lib64/" + name):
            found = [file for place in sys.path for file in glob.glob(place + "/nvidia/*/lib/" + name)]
            folders += [os.path.dirname(file) for file in found[:1]]
print(":".join(folders), end="")
PYTHON
)" || true
[ -z "$of_python" ] || export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$of_python"
examples="$folder/examples"
[ -d "$examples" ] || examples="$here/../../examples"
scripts="$folder/bench"
[ -e "$scripts/torch_models.py" ] || scripts="$here/../../bench"
failed=0
late=0

say() {
    printf '%s\n' "$*" | tee -a "$report/report.txt"
}

# part NAME SECONDS COMMAND ...: what it says goes to the report, and the end of it to the terminal.
part() {
    local name="$1" limit="$2" status line begin="$SECONDS" left=$((seconds - SECONDS))
    shift 2
    # shellcheck disable=SC2053 # a pattern
    [[ "$name" == $only ]] || return 0
    if [ "$left" -le 0 ]; then
        say "== $name: not run: the $seconds s are over (--only $name runs it alone)"
        late=1
        return 0
    fi
    timeout --kill-after=5 "$((left < limit ? left : limit))" "$@" >"$report/$name.log" 2>&1
    status=$?
    case "$status" in
    0) say "== $name: passed ($((SECONDS - begin)) s)" ;;
    77)
        line="$(tail -n 1 "$report/$name.log")"
        say "== $name: skipped: ${line#skipped: }"
        return 0
        ;;
    124 | 137) # ended, or killed since it did not end
        if [ "$left" -lt "$limit" ]; then
            say "== $name: cut after $((SECONDS - begin)) s: the $seconds s are over (--only $name runs it alone)"
            late=1
        else
            say "== $name: FAILED: it takes longer than $limit s"
            failed=1
        fi
        ;;
    *)
        say "== $name: FAILED with $status ($((SECONDS - begin)) s)"
        failed=1
        ;;
    esac
    head -n 500 "$report/$name.log" >>"$report/report.txt"
    tail -n 20 "$report/$name.log"
}

: >"$report/report.txt"
say "$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>&1 | head -n 1)"
[ -z "$of_python" ] || say "libraries of Python: $of_python"
python="env LD_LIBRARY_PATH='$libraries' python3"
# What decides most comes first.
part operators 120 "$folder/tests/gpu_operators" --repeats 100 --large-repeats 5
part cudnn 60 "$folder/tests/gpu_operators" --cudnn 1 --repeats 100 --large-repeats 20 windows
part bench 210 "$folder/bench/gpu"
if [ -x "$folder/bench/models" ]; then
    part models 120 "$folder/bench/models" --device cuda --scripts "$scripts" --python "$python"
    part kernels 60 "$folder/bench/models" --device cuda --kernels
    for precision in tf32 bfloat16; do
        part "models-$precision" 60 "$folder/bench/models" --device cuda --precision "$precision" \
            --only mlp_wide,convnet,resnet18 --scripts "$scripts" --python "$python"
        part "kernels-$precision" 30 "$folder/bench/models" --device cuda --precision "$precision" --kernels \
            --only mlp_wide,convnet,resnet18
    done
else
    say "== models: skipped: $folder has no bench/models"
fi
if [ -x "$folder/bin/kelp" ]; then
    part jobs 150 "$here/jobs.sh" "$folder/bin" "$examples" "$report/runs" "$mnist"
    part steps 60 "$here/steps.sh" "$folder/bin" "$report/runs"
    rm -rf "$report/runs"
else
    say "== jobs: skipped: $folder has no programs"
fi
for precision in tf32 bfloat16; do
    part "operators-$precision" 60 "$folder/tests/gpu_operators" --precision "$precision" --repeats 20 \
        --large-repeats 2 products windows
    part "cudnn-$precision" 60 "$folder/tests/gpu_operators" --cudnn 1 --precision "$precision" --repeats 20 \
        --large-repeats 5 windows
done
sanitizer="$(command -v compute-sanitizer || command -v /usr/local/cuda/bin/compute-sanitizer || true)"
if [ -n "$sanitizer" ]; then
    sanitize() { # TOOL OPTION ...
        part "$1" 100 "$sanitizer" --tool "$@" --error-exitcode 9 --print-limit 5 \
            "$folder/tests/gpu_operators" --repeats 0 --large 0 --load 0 --jobs 1
    }
    sanitize memcheck --report-api-errors no # one test asks for more memory than there is
    for tool in initcheck synccheck racecheck; do
        sanitize "$tool"
    done
else
    say "== compute-sanitizer: skipped: it is neither on the path nor in /usr/local/cuda/bin"
fi
[ "$failed" -eq 0 ] || exit 1
[ "$late" -eq 0 ] || exit 2
