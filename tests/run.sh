#!/bin/bash
# Install what is needed, build, run the tests, and say in the last line how many passed, failed and
# were skipped. Fails when anything failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
    cat <<'USAGE'
usage: tests/run.sh [--quick] [--preset NAME] [--label LABEL] [--sim-seeds FROM:COUNT]

Without options: every test in the release build, then most of them again under the address and
undefined-behaviour sanitizers (half an hour on two cores): not the golden ones, and not those that
wait most of the time (long_under_sanitizers); --preset asan-ubsan runs these too.

  --quick         unit, property, sim, fuzz and lint tests of the release build alone
  --preset NAME   this preset alone: release, debug, asan-ubsan, tsan, no-cuda
  --label LABEL   tests of this label alone: unit, property, sim, golden, integration, fuzz, lint
  --sim-seeds FROM:COUNT   simulate these clusters in the release build, and nothing else (a million
                  takes an hour and a half on two cores)

Real data and reference fixtures are looked for in ../shared/data and ../shared/reference, or
where KELP_DATA and KELP_REFERENCE say; tests that miss them are skipped and say so.
USAGE
}

fail_usage() {
    printf 'tests/run.sh: %s\n' "$1" >&2
    exit 2
}

preset=""
label=""
quick=0
sim_seeds=""
while [ $# -gt 0 ]; do
    case "$1" in
    --quick) quick=1 ;;
    --preset | --label | --sim-seeds)
        if [ $# -lt 2 ]; then fail_usage "$1 needs a value"; fi
        case "$1" in
        --preset) preset="$2" ;;
        --label) label="$2" ;;
        *) sim_seeds="$2" ;;
        esac
        shift
        ;;
    --preset=*) preset="${1#*=}" ;;
    --label=*) label="${1#*=}" ;;
    --sim-seeds=*) sim_seeds="${1#*=}" ;;
    -h | --help)
        usage
        exit 0
        ;;
    *) fail_usage "$1: no such option; there are --quick, --preset, --label, --sim-seeds and --help" ;;
    esac
    shift
done
case "$preset" in
"" | release | debug | asan-ubsan | tsan | no-cuda) ;;
*) fail_usage "--preset $preset: no such preset; there are release, debug, asan-ubsan, tsan and no-cuda" ;;
esac
case "$label" in
"" | unit | property | sim | golden | integration | fuzz | lint) ;;
*) fail_usage "--label $label: no such label; there are unit, property, sim, golden, integration, fuzz and lint" ;;
esac

if [[ -n "$sim_seeds" && ! "$sim_seeds" =~ ^[0-9]+:[0-9]+$ ]]; then
    fail_usage "--sim-seeds $sim_seeds: give the first seed and how many, as 1:20000"
fi

scratch="$(mktemp -d)"
background=0 # the process group of a build
background_preset=""
clean_up() {
    if [ "$background" -ne 0 ]; then kill -- "-$background" 2>/dev/null || true; fi
    rm -rf "$scratch"
}
trap clean_up EXIT
passed=0
failed=0
skipped=0
failed_names=()
skipped_names=()
started="$SECONDS"

# Add one preset's results (CTest's JUnit file) to the totals. A test that did not run is skipped
# when it said so by its exit status; any other that has no verdict counts as failed.
count_results() {
    local name status why line
    while IFS= read -r line; do
        name="${line#*<testcase name=\"}"
        name="${name%%\"*}"
        status="${line##*status=\"}"
        status="${status%%\"*}"
        case "$status" in
        run) passed=$((passed + 1)) ;;
        notrun | disabled)
            why="$(awk -v test="<testcase name=\"$name\"" '
                index($0, test) { inside = 1 }
                inside && match($0, /skipped: .*/) { print substr($0, RSTART + 9); exit }
                inside && /SKIP_RETURN_CODE/ { coded = 1 }
                inside && index($0, "</testcase>") { if (coded) print "it gives no reason"; exit }
            ' "$2")"
            if [ -n "$why" ]; then
                skipped=$((skipped + 1))
                skipped_names+=("$name ($1): $why")
            else
                failed=$((failed + 1))
                failed_names+=("$name ($1): it did not run")
            fi
            ;;
        *)
            failed=$((failed + 1))
            failed_names+=("$name ($1)")
            ;;
        esac
    done < <(grep -E '<testcase name="' "$2" || true)
}

# Minutes of waiting for leases, elections, restarts and whole runs, or of starting the same command
# hundreds of times: under the sanitizers only when their preset is asked for. So are jobs whose bits are compared: the
# release build proves them, and unit tests have the same kernels and queues under the sanitizers.
long_under_sanitizers='^(mistakes|readme|chaos_hosts)$'
long_under_sanitizers+='|^test_(etcd(_cluster|_election|_faults|_server|_watch)?|rpc(_faults)?'
long_under_sanitizers+='|resume|recovery|power_loss|cover_workers|survival|chaos|cli_(cluster|ends)'
long_under_sanitizers+='|same_bits(_bfloat16|_fake|_models|_portable|_streams|_transports)?'
long_under_sanitizers+='|cluster_doctor|node|no_shared_folder|rescale|update_bits'
long_under_sanitizers+='|resume_killed|moved_run|run_control|model_card_kinds|init)$'

# build_preset NAME: or wait for its build, when that runs in the background.
build_preset() {
    local built=0
    printf '== %s: building\n' "$1"
    if [ "$background" -ne 0 ] && [ "$1" = "$background_preset" ]; then
        wait "$background" || built=1
        background=0
        cat "$scratch/background.log"
    else
        deploy/build.sh "$1" || built=1
    fi
    if [ "$built" -ne 0 ]; then
        failed=$((failed + 1))
        failed_names+=("build of $1")
    fi
    return "$built"
}

# Tests wait much of the time: the next build takes what processors they leave. In a process group, to be ended as one.
build_in_background() {
    background_preset="$1"
    set -m
    nice -n 19 deploy/build.sh "$1" >"$scratch/background.log" 2>&1 </dev/null &
    background=$!
    set +m
}

# run_preset NAME LABELS [EXCEPT [NEXT]]: build it and run the tests whose label matches (all when empty) and
# whose name does not match EXCEPT. Meanwhile the preset NEXT is built.
run_preset() {
    local results="$scratch/$1.xml" before=$((passed + failed + skipped))
    if ! build_preset "$1"; then return; fi
    if [ -n "${4:-}" ]; then build_in_background "$4"; fi
    printf '== %s: testing%s\n' "$1" "${2:+ ($2)}"
    # Four times as many as processors: an integration test counts as two, and waits most of the time.
    ctest --preset "$1" -j "$((4 * $(nproc)))" ${2:+-L "$2"} ${3:+-E "$3"} --output-junit "$results" || true
    if [ -s "$results" ]; then count_results "$1" "$results"; fi
    if [ $((passed + failed + skipped)) -eq "$before" ]; then
        failed=$((failed + 1))
        failed_names+=("$1: no test ran${2:+ of label $2}")
    fi
}

if [ "$quick" -eq 1 ]; then
    deploy/install-deps.sh
else
    deploy/install-deps.sh --python
fi

if [ -n "$sim_seeds" ]; then
    deploy/build.sh release
    tests/sim/many.sh build/release/tests/kelp-sim "${sim_seeds%%:*}" "${sim_seeds#*:}"
    exit
fi

labels="${label:+^$label\$}"
if [ "$quick" -eq 1 ] && [ -z "$label" ]; then
    labels='^(unit|property|sim|fuzz|lint)$'
fi
if [ -n "$preset" ]; then
    run_preset "$preset" "$labels"
else
    case "$quick,$label" in
    1,* | 0,golden | 0,lint) next="" ;;
    *) next=asan-ubsan ;;
    esac
    run_preset release "$labels" "" "$next"
    case "$next,$label" in
    ,*) ;;
    *,) run_preset asan-ubsan '^(unit|property|sim|fuzz|integration)$' "$long_under_sanitizers" ;;
    *) run_preset asan-ubsan "$labels" ;;
    esac
fi

printf '\n== summary (%d s)\n' "$((SECONDS - started))"
for name in "${skipped_names[@]}"; do printf 'skipped: %s\n' "$name"; done
for name in "${failed_names[@]}"; do printf 'FAILED: %s\n' "$name"; done
printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
[ "$failed" -eq 0 ]
