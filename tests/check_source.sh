#!/bin/bash
# What compilers do not check about the source: banned calls, which room may include which, circles
# of includes, the purity of the cores, the READMEs of rooms, the length of lines, headers, the
# format, scripts.
# usage: tests/check_source.sh SOURCE_DIR BUILD_DIR
set -euo pipefail
source_dir="$(cd "${1:?usage: tests/check_source.sh SOURCE_DIR BUILD_DIR}" && pwd)"
build_dir="$(cd "${2:?usage: tests/check_source.sh SOURCE_DIR BUILD_DIR}" && pwd)"
cd "$source_dir"

scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
problems=0
report() {
    printf '%s\n' "$1"
    problems=$((problems + 1))
}

# The headers of the emulated GPU are C++, and named as CUDA's.
mapfile -t sources < <(find common proto kernels ps worker coordinator cli include tests bench \
    \( -name '*.c' -o -name '*.h' \) -type f -not -path 'tests/lib/cuda/emulated/*' 2>/dev/null | sort)
mapfile -t device_sources < <(find kernels tests/lib/cuda \( -name '*.cu' -o -name '*.cuh' \) -type f | sort)

# ---- banned calls --------------------------------------------------------------------------------
# Each has a form that is bounded, reentrant or checked: snprintf, memcpy, strtok_r, strtol,
# fgets, localtime_r, common/tensors/philox.h. getenv belongs to the code that reads configuration.
# A wait for a condition goes by kelp_clock_wait(): pthread_cond_timedwait() goes by the date.
banned='pthread_cond_timedwait|sprintf|vsprintf|strcpy|strcat|strncpy|strtok|atoi|atol|atof|gets|localtime|rand|srand'
may_getenv='^(common/job/job_file|common/base/environment|common/program/(options/options|socket_folder)'
may_getenv+='|cli/(main|host/(manager|gpus)|launch/detach|faultdisk/[a-z_]*)|tests/.*|bench/.*)\.[ch]$'
mapfile -t suspects < <(grep -lE "(^|[^A-Za-z0-9_.>\"])($banned)[[:space:]]*\(" "${sources[@]}" \
    "${device_sources[@]}" || true)
for file in "${suspects[@]}"; do
    # Without comments: block comments of whole lines and the rest of a line after //.
    code="$(sed -E 's,/\*.*\*/,,; /^[[:space:]]*\/\*/,/\*\//s/.*//; s,//.*,,' "$file" |
        grep -nE "(^|[^A-Za-z0-9_.>\"])($banned)[[:space:]]*\(" || true)"
    if [ -n "$code" ]; then report "$file:${code%%:*}: banned call: ${code#*:}"; fi
done
mapfile -t suspects < <(grep -nE '(^|[^A-Za-z0-9_])(secure_)?getenv[[:space:]]*\(' "${sources[@]}" || true)
for line in "${suspects[@]}"; do
    if ! [[ "${line%%:*}" =~ $may_getenv ]]; then report "$line: getenv outside configuration code"; fi
done

# ---- what depends on the GPU's architecture ------------------------------------------------------
# These and what includes them have PTX for each architecture, which others share (kernels/CMakeLists.txt).
of_each='kernels/cuda/(shape\.cu|conv2d/(tensor|conv2d_tiles)\.cuh)'
including='kernels/cuda/conv2d/conv2d_(channels|gather|weight|tiles)\.cuh?'
including+='|tests/lib/cuda/emulated/[a-z_]+\.cu' # g++ alone compiles these
mapfile -t suspects < <({
    grep -lE '\<__CUDA_ARCH__\>|<(cuda_(bf|fp)[0-9]+\.h|mma\.h|cub/)' "${device_sources[@]}" |
        grep -vxE "$of_each" || true
    grep -lE '#include "kernels/cuda/conv2d/(tensor|conv2d_tiles)\.cuh"' "${device_sources[@]}" |
        grep -vxE "$including" || true
})
for file in "${suspects[@]}"; do
    report "$file: depends on __CUDA_ARCH__: kernels/CMakeLists.txt has to make its PTX for each architecture"
done

# ---- includes between rooms ----------------------------------------------------------------------
# A room is a folder. Each line: the room, and the rooms that it may include, besides itself. A room
# includes what lies further up alone, so there is no circle. Words in capitals stand for several
# rooms; sed puts them in.
room_table() {
    sed -E -e 's,COMMON,PURE common/log common/process NETWORK,' \
        -e 's,NETWORK,common/etcd common/rpc common/program common/program/options common/scrape common/tls,' \
        -e 's,VERBS,cli/verb RUN cli/runs SETS cli/doctor cli/checkpoint CHAOS cli/infer cli/replay cli/plot,' \
        -e 's,RUN,cli/run cli/cluster,' -e 's,CHAOS,cli/chaos cli/chaos/plan cli/chaos/report cli/chaos/network,' \
        -e 's,SETS,cli/host cli/init cli/certs cli/preflight STARTS cli/bench,' \
        -e 's,LEADER_CORE,coordinator/core coordinator/core/placement coordinator/core/checkpoints MEMBERS,' \
        -e 's,MEMBERS,coordinator/core/membership,' \
        -e 's,PS_CORE,ps/core ps/core/lanes ps/core/evidence ps/core/partition ps/core/snapshot ps/core/control,' \
        -e 's,LAUNCH,cli/host cli/preflight STARTS,' \
        -e 's,STARTS,cli/launch/watch cli/launch/children cli/launch,' \
        -e 's,PURE,common/base common/tensors common/job common/training,' <<'TABLE'
common/base:
common/log: common/base
common/process: common/base
common/tensors: common/base
common/tls: common/base
common/etcd: common/base common/tls
common/shm: common/base
common/rpc: common/base common/log common/shm common/tls
common/job: common/base common/tensors
common/training: common/base common/tensors common/job
common/program/options: common/base common/log common/job
common/program: common/base common/log common/process common/etcd common/job common/tls common/program/options
common/scrape: common/base common/log common/program common/program/options common/tls
include/kelp:
proto: common/base common/program common/program/options common/rpc common/training
kernels: common/base common/job common/training
kernels/cpu/loops: kernels
kernels/cpu: kernels kernels/cpu/loops
kernels/cuda: kernels kernels/cpu/loops
kernels/cuda/conv2d: kernels kernels/cuda
ps/core: PURE
ps/core/lanes: PURE ps/core
ps/core/evidence: PURE ps/core ps/core/lanes
ps/core/partition: PURE ps/core ps/core/lanes ps/core/evidence
ps/core/snapshot: PURE ps/core ps/core/partition
ps/core/control: PURE ps/core ps/core/partition ps/core/snapshot
ps/storage: common/base common/tensors ps/core
ps/shard/tensors: PURE common/shm kernels proto ps/core ps/core/partition
ps/shard: PURE common/log kernels proto PS_CORE ps/shard/tensors ps/storage
ps/service: COMMON proto PS_CORE ps/shard
ps/service/replicas: COMMON proto PS_CORE ps/shard ps/service
ps: COMMON kernels ps/core ps/service
worker/core: PURE
worker/data/text: common/base
worker/data: PURE worker/data/text
worker/data/arrays: PURE worker/data worker/data/text
worker/data/table: PURE worker/data worker/data/text
worker/model/graph: PURE common/log kernels
worker/model: PURE include/kelp kernels worker/core worker/data worker/model/graph
worker/model/models: worker/model worker/model/graph
worker/compute: COMMON common/shm kernels worker/core worker/data worker/model worker/model/graph
worker/links: COMMON proto worker/core worker/compute
worker: COMMON include/kelp proto worker/core worker/model worker/compute worker/links
worker/client: COMMON include/kelp worker worker/core worker/compute
coordinator/core: PURE
coordinator/core/arrangement: PURE coordinator/core
coordinator/core/placement: PURE coordinator/core coordinator/core/arrangement
coordinator/core/checkpoints: PURE coordinator/core
coordinator/core/membership: PURE coordinator/core
coordinator/term/outside: PURE common/log LEADER_CORE
coordinator/term/parts: PURE LEADER_CORE coordinator/term/outside
coordinator/term: PURE LEADER_CORE coordinator/term/outside coordinator/term/parts
coordinator/etcd: COMMON coordinator/core coordinator/term coordinator/term/outside
coordinator/common: COMMON proto coordinator/term
coordinator/files: COMMON coordinator/core coordinator/term coordinator/term/outside coordinator/etcd coordinator/common
coordinator/streams: COMMON proto coordinator/core coordinator/term coordinator/common
coordinator: COMMON coordinator/term coordinator/etcd coordinator/common coordinator/files coordinator/streams
cli/faultdisk: common/base
cli/verb: common/base common/log common/job common/program common/program/options
cli/run: COMMON proto cli/verb
cli/cluster: COMMON proto cli/verb cli/run
cli/runs: COMMON proto cli/verb RUN
cli/checkpoint: COMMON kernels proto ps/storage coordinator/etcd cli/verb RUN
cli/doctor: COMMON kernels proto cli/verb RUN
cli/certs: common/base common/etcd common/program common/program/options common/tls cli/verb
cli/init: common/base common/job worker/data worker/data/text
cli/preflight: COMMON worker/data worker/data/table worker/model cli/verb RUN
cli/host: common/base common/etcd
cli/launch/watch: common/base cli/cluster cli/checkpoint
cli/launch/children: COMMON proto cli/verb cli/run cli/host
cli/launch: COMMON proto cli/verb RUN cli/host cli/checkpoint cli/preflight STARTS
cli/infer: COMMON worker/compute worker/core worker/data worker/model cli/verb RUN cli/checkpoint LAUNCH
cli/replay: COMMON kernels ps/core/partition worker/compute RUN cli/checkpoint
cli/plot: COMMON worker/data worker/model worker/model/graph RUN cli/checkpoint
cli/bench: COMMON kernels proto worker worker/compute worker/core worker/links cli/verb RUN cli/plot LAUNCH
cli/chaos/network: common/base common/process
cli/chaos/plan: PURE
cli/chaos/report: PURE proto cli/plot cli/chaos/plan
cli/chaos: COMMON proto worker/data cli/faultdisk cli/verb RUN cli/host STARTS cli/plot CHAOS
cli: COMMON worker/compute worker/data worker/data/table worker/model worker/model/graph VERBS
cli/describe: COMMON coordinator ps worker cli/verb cli
TABLE
}
# Tests and benchmarks may include anything; nothing else may include them.
declare -A may_include=()
while IFS=':' read -r room allowed; do may_include["$room"]="$allowed"; done < <(room_table)
grep -nE '^[[:space:]]*#[[:space:]]*include[[:space:]]*"' "${sources[@]}" "${device_sources[@]}" |
    sed -E 's/^([^:]*):([0-9]*):[^"]*"([^"]*)".*/\1 \2 \3/; s, (kelp/[a-z]*\.h)$, include/\1,' >"$scratch/includes"
while read -r file line target; do
    room="${file%/*}"
    other="${target%/*}"
    case "$other" in
    "$room") continue ;;
    .. | ../* | */../*)
        report "$file:$line: \"$target\": include by the path from the root"
        continue
        ;;
    esac
    case "$room" in tests | tests/* | bench | bench/*) continue ;; esac
    printf '%s %s\n' "$room" "$other" >>"$scratch/edges"
    if [ -z "${may_include[$room]+known}" ]; then
        report "$file:$line: the room $room/ is not in the table of tests/check_source.sh"
    elif ! [[ " ${may_include[$room]} " == *" $other "* ]]; then
        report "$file:$line: $room/ may not include \"$target\"; allowed are:${may_include[$room]:- none}"
    fi
done <"$scratch/includes"
circle() { { tsort "$1" 2>&1 >/dev/null || true; } | sed -E '/loop:$/d; s/^tsort: //' | sort -u | tr '\n' ' '; }
found="$(circle "$scratch/edges")"
if [ -n "$found" ]; then report "rooms include one another: $found"; fi
# Nor is there a circle between the files of a room: name.h, name.c and name_internal.h count as one.
sed -E 's/^([^ ]*) [0-9]* /\1 /; s/(_internal)?\.[ch]( |$)/\2/g' "$scratch/includes" |
    awk '$1 != $2 && $1 !~ /^(tests|bench)\// { print }' >"$scratch/files"
found="$(circle "$scratch/files")"
if [ -n "$found" ]; then report "files include one another: $found"; fi

# ---- purity --------------------------------------------------------------------------------------
# A core decides; it does not read clocks, files, sockets or the environment, and starts no thread.
# libc has all of these, so that linking proves little: every symbol that a core takes from outside
# the cores stands in this list.
pure='mem(cpy|set|move|cmp|chr)|str(dup|len|nlen|cmp|ncmp|chr|rchr|spn|cspn|str)|v?snprintf'
pure+='|(m|c|re)alloc|free|qsort|bsearch'
pure+='|sqrt|pow|exp|log|cos|sin|fabs|floor|ceil|fmin|fmax|round|isfinite|__ctype_(b|tolower|toupper)_loc'
pure+='|__assert_fail|__stack_chk_fail|__(mem|str|v?sn)[a-z]*_chk|_GLOBAL_OFFSET_TABLE_'
pure+='|__(asan|ubsan|tsan|sanitizer|gcov|llvm)_.*'
cores=(common/libkelp_base.a ps/libkelp_ps_core.a worker/libkelp_worker_core.a
    coordinator/libkelp_coordinator_core.a)
impure_symbols_of() { # FILE...: what they take from outside and may not; a core may use kelp_base
    nm --format=posix "$@" "$build_dir/${cores[0]}" 2>/dev/null |
        awk 'NF == 2 && $2 == "U" { used[$1] = 1 } NF > 2 && $2 != "U" { own[$1] = 1 }
             END { for (name in used) if (!(name in own)) print name }' |
        grep -vxE "$pure" | sort | tr '\n' ' ' || true
}
for core in "${cores[@]}"; do
    if [ ! -e "$build_dir/$core" ]; then
        report "$core: is not built"
        continue
    fi
    impure="$(impure_symbols_of "$build_dir/$core")"
    if [ -n "$impure" ]; then report "$core: is not pure, it uses: $impure"; fi
done
# The list catches what it is there for.
gcc -x c -c -o "$scratch/planted.o" - <<'PLANTED'
#include <time.h>
int planted(struct timespec *now);
int planted(struct timespec *now) { return clock_gettime(CLOCK_MONOTONIC, now); }
PLANTED
if [ "$(impure_symbols_of "$scratch/planted.o")" != "clock_gettime " ]; then
    report "purity: a planted clock_gettime() is not found"
fi

# ---- READMEs of rooms ----------------------------------------------------------------------------
# Each file of a room is named in its README, in backticks, alone or by a pattern (`loops_*.c`). Verbs
# and models are not: their files have their names.
check_named() {
    local room="$1" file stem word
    # shellcheck disable=SC2016  # backticks of Markdown
    mapfile -t words < <(grep -o '`[^`]*`' "$room/README.md" | tr '`,/ ' '\n' | sed -E 's/\.([ch]|cuh?)$//' | sort -u)
    for file in "$room"/*.[ch] "$room"/*.cu "$room"/*.cuh; do
        [ -e "$file" ] || continue
        stem="$(basename "${file%.*}")"
        stem="${stem%_internal}"
        # shellcheck disable=SC2053  # the word is a pattern
        for word in "${words[@]}"; do if [ -n "$word" ] && [[ $stem == $word ]]; then continue 2; fi; done
        report "$room/README.md: does not name $(basename "$file")"
    done
}
for room in "${!may_include[@]}"; do
    if [ "$room" = include/kelp ]; then room=include; fi
    if [ ! -d "$room" ]; then
        report "$room/: stands in the table of tests/check_source.sh, but is not there"
    elif [ ! -e "$room/README.md" ]; then
        report "$room/: has no README.md"
    elif [ "$(wc -l <"$room/README.md")" -gt 15 ]; then
        report "$room/README.md: has more than 15 lines"
    elif [[ ! $room =~ ^(cli|worker/model/models)$ ]]; then
        check_named "$room"
    fi
done

# ---- length of lines -----------------------------------------------------------------------------
# Columns, not bytes: UTF-8. Data of tests, licences and pictures are not prose.
{ git ls-files 2>/dev/null || find . -type f -not -path './build/*' -printf '%P\n'; } |
    grep -vE '\.(svg|csv|json|jsonl|npy|safetensors|gz|png|bin)$|^(tests/fuzz/corpus|shared)/|^LICEN[CS]E' |
    grep -v '^tests/mistakes/.*\.txt$' \
    >"$scratch/files"
while read -r file; do report "$file: a leftover of patch or of an editor"; done < <(
    grep -E '(\.orig|\.rej|\.swp|~)$' "$scratch/files" || true)
mapfile -t long < <(LC_ALL=C.UTF-8 xargs -d '\n' grep -InHE '^.{121,}' <"$scratch/files" 2>/dev/null | cut -d: -f1,2)
for line in "${long[@]}"; do report "$line: is longer than 120 columns"; done

# ---- headers -------------------------------------------------------------------------------------
libraries=(grpc libprotobuf-c libcurl libcrypto yaml-0.1 libcjson libxxhash zlib openblas cairo check)
read -ra flags <<<"$(pkg-config --cflags "${libraries[@]}")"
flags+=(-D_GNU_SOURCE "-I$source_dir" "-I$source_dir/include" "-I$build_dir" "-I$build_dir/proto/generated")
mapfile -t headers < <(printf '%s\n' "${sources[@]}" | grep '\.h$')
for file in "${headers[@]}"; do
    guard="KELP_$(tr 'a-z/.-' 'A-Z___' <<<"${file#include/kelp/}")"
    if ! grep -qxF "#ifndef $guard" "$file"; then report "$file: its guard is not $guard"; fi
done
# Alone as C, two at a time; those that a source includes before anything else, the build has compiled alone.
printf '%s\n' "${sources[@]}" | grep '\.c$' | xargs grep -hm1 '^[[:space:]]*#' |
    sed -nE 's,^[# ]*include "(.*)"$,\1,p' | sed 's,^kelp/,include/&,' | sort -u >"$scratch/first"
if ! printf '%s\n' "${headers[@]}" | grep -vxFf "$scratch/first" | xargs -P 2 -I '{}' gcc -std=c11 -fsyntax-only \
    -Wall -Wextra -Werror "${flags[@]}" -include '{}' -x c /dev/null 2>"$scratch/log"; then
    report "headers do not compile alone as C: $(grep -E 'error|fatal' "$scratch/log")"
fi
# Inside extern "C", as C++: all public ones at once, as each brings what it needs.
if command -v g++ >/dev/null; then
    printf '%s\n' "${headers[@]}" | grep -vE '_internal\.h$|^(tests|bench)/' |
        sed -E 's,.*,extern "C" {\n#include "&"\n},' >"$scratch/headers.cpp"
    g++ -std=c++17 -fsyntax-only "${flags[@]}" "$scratch/headers.cpp" 2>"$scratch/log" ||
        report "headers inside extern \"C\": $(grep -m1 -E 'error|fatal' "$scratch/log")"
else
    printf 'not checked: headers inside extern "C" (g++ is not installed)\n'
fi

# ---- format --------------------------------------------------------------------------------------
format=""
for candidate in clang-format-14 clang-format; do
    if command -v "$candidate" >/dev/null && "$candidate" --version | grep -q 'version 14\.'; then
        format="$candidate"
        break
    fi
done
if [ -n "$format" ]; then
    "$format" --dry-run -Werror "${sources[@]}" "${device_sources[@]}" 2>"$scratch/log" ||
        report "format: $(sed -nE 's/: error.*//p' "$scratch/log" | head -n 3 | tr '\n' ' ')differ; run clang-format -i"
else
    printf 'not checked: format (clang-format 14 is not installed; deploy/install-deps.sh --dev)\n'
fi

# ---- scripts -------------------------------------------------------------------------------------
if command -v shellcheck >/dev/null; then
    mapfile -t scripts < <(find deploy tests bench .ci -type f -exec grep -lE "^#!/bin/(ba)?sh" {} + 2>/dev/null | sort)
    shellcheck "${scripts[@]}" >"$scratch/log" || {
        cat "$scratch/log"
        report "shellcheck: has remarks on the scripts"
    }
fi

if [ "$problems" -gt 0 ]; then
    printf '%d problems\n' "$problems"
    exit 1
fi
printf 'source: %d files in order\n' "${#sources[@]}"
