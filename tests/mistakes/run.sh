#!/bin/bash
# Mistakes that people make, and what they are told: each entry of tests/mistakes/*.txt is run in a folder of its own,
# and its exit status and standard error must be those on file.
# usage: tests/mistakes/run.sh SOURCE_DIR BUILD_DIR [--update]   (--update writes the files again; review the diff)
#
#     == name                       an entry
#     $ printf 'x' >file            commands of bash; before the last one they must succeed
#     $ kelp train file
#     exit 2                        of the last command
#     kelp: file: …                 its standard error, with times, ports, processes and the folder made equal
#
# Each folder begins with the files of tests/mistakes/files.sh: jobs that are right, their data, and `runs/done`.
set -euo pipefail
export LC_ALL=C.UTF-8
usage='usage: tests/mistakes/run.sh SOURCE_DIR BUILD_DIR [--update]'
here="$(cd "${1:?$usage}/tests/mistakes" && pwd)"
bin="$(cd "${2:?$usage}/bin" && pwd)"
update="${3:-}"

for variable in $(compgen -e | grep '^KELP_' || true); do unset "$variable"; done
unset ETCDCTL_API HTTP_PROXY HTTPS_PROXY http_proxy https_proxy
export PATH="$bin:$PATH"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/files" "$scratch/out" "$scratch/cache"
export XDG_CACHE_HOME="$scratch/cache" XDG_STATE_HOME="$scratch/state"
(cd "$scratch/files" && bash -eu "$here/files.sh" >"$scratch/log" 2>&1) || {
    cat "$scratch/log"
    echo "files.sh failed"
    exit 1
}

# What changes from run to run.
plain() {
    sed -E -e "s#$scratch/(here|files)#HERE#g" -e "s#$bin#BIN#g" -e 's/[0-9]{8}-[0-9]{6}/TIME/g' \
        -e 's/(127\.0\.0\.1|localhost):[0-9]{5}/\1:PORT/g' -e 's/(pid|process) [0-9]+/\1 N/g' \
        -e 's/(shard-[0-9]+)\.[0-9a-f]{16}/\1.ID/g' -e 's/[0-9]+(\.[0-9]+)? (GiB|MiB) free/N \2 free/g' \
        -e 's/\r/\n/g' | sed -e '/^$/d'
}

commands=()
run_entry() {
    local status=0 last=$((${#commands[@]} - 1)) i
    rm -rf "$scratch/here"
    cp -a "$scratch/files" "$scratch/here"
    printf '%s\n' "$1"
    for i in "${!commands[@]}"; do
        printf '$ %s\n' "${commands[$i]}"
        if [ "$i" -lt "$last" ]; then
            (cd "$scratch/here" && bash -euc "${commands[$i]}" >/dev/null 2>"$scratch/err" </dev/null) || {
                printf 'this command failed before: %s\n' "$(plain <"$scratch/err")"
                return 0
            }
        fi
    done
    (cd "$scratch/here" && timeout 60 bash -uc "${commands[$last]}" >/dev/null 2>"$scratch/err" </dev/null) || status=$?
    printf 'exit %d\n' "$status"
    plain <"$scratch/err"
}

# The file with what is printed now. Lines before the first entry stay as they are.
again() {
    local line name=""
    while IFS= read -r line || [ -n "$line" ]; do
        case "$line" in
        '== '*)
            if [ -n "$name" ]; then run_entry "$name" && echo; fi
            name="$line"
            commands=()
            ;;
        '$ '*) if [ -n "$name" ]; then commands+=("${line#\$ }"); fi ;;
        *) if [ -z "$name" ]; then printf '%s\n' "$line"; fi ;;
        esac
    done <"$1"
    if [ -n "$name" ]; then run_entry "$name"; fi
}

status=0
count=0
for file in "$here"/*.txt; do
    again "$file" >"$scratch/out/${file##*/}"
    count=$((count + $(grep -c '^== ' "$file")))
    if [ "$update" = --update ]; then
        cp "$scratch/out/${file##*/}" "$file"
    elif ! diff -u "$file" "$scratch/out/${file##*/}"; then
        status=1
    fi
done
if [ "$status" -ne 0 ]; then
    echo "messages differ; tests/mistakes/run.sh . build/release --update writes them, for a review line by line"
fi
echo "mistakes: $count"
exit "$status"
