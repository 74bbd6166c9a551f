#!/bin/bash
# Completions: each case is completed by bash, zsh and fish, as far as they are installed.
# usage: tests/package/completions.sh SOURCE_DIR BUILD_DIR
set -euo pipefail
usage='usage: tests/package/completions.sh SOURCE_DIR BUILD_DIR'
source_dir="$(cd "${1:?$usage}" && pwd)"
build_dir="$(cd "${2:?$usage}" && pwd)"
scripts="$build_dir/cli/pages"
here="$source_dir/tests/package"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
export HOME="$scratch/home" LC_ALL=C.UTF-8
unset XDG_CONFIG_HOME XDG_DATA_HOME XDG_DATA_DIRS ZDOTDIR
problems=0

# What there is to be completed.
mkdir -p "$HOME" "$scratch"/work/{notes,runs/junk,runs/taxi-1/checkpoints/step-5.g1,runs/taxi-2/checkpoints/step-10.g2}
cd "$scratch/work"
: >runs/taxi-1/job.yaml
: >runs/taxi-2/job.yaml
: >job.yaml
: >small.yml
: >table.csv
: >'two words.yaml'
ln -s taxi-2 runs/latest

# check SHELL LINE EXPECTED...: each expected word is offered; !WORD is not; =WORD alone is.
check() {
    local shell="$1" line="$2" word
    shift 2
    if ! "complete_$shell" "$line" 2>"$scratch/stderr" | sort -u >"$scratch/offered" || [ -s "$scratch/stderr" ]; then
        printf '%s: "%s" fails: %s\n' "$shell" "$line" "$(cat "$scratch/stderr")"
        problems=$((problems + 1))
    fi
    for word in "$@"; do
        case "$word" in
        '!'*) ! grep -qxF -- "${word#!}" "$scratch/offered" ;;
        '=') [ ! -s "$scratch/offered" ] ;;
        '='*) [ "$(cat "$scratch/offered")" = "${word#=}" ] ;;
        *) grep -qxF -- "$word" "$scratch/offered" ;;
        esac || {
            printf '%s: "%s": %s fails; offered: %s\n' "$shell" "$line" "$word" "$(tr '\n' ' ' <"$scratch/offered")"
            problems=$((problems + 1))
        }
    done
}

# The words that a shell offers for the last word of a line, one a line. They are told apart by their beginning: bash
# offers what follows an '=', the others the whole word.
complete_bash() { bash --norc "$here/complete.bash" "$scripts/kelp" "$1"; }
complete_zsh() {
    local offer
    printf '%s\n' "$1" >&6
    while IFS= read -r offer <&5; do
        if [ "$offer" = END ]; then return 0; fi
        printf '%s\n' "$offer"
    done
    return 1
}
complete_fish() { fish --no-config -c "source $scripts/kelp.fish; complete -C '$1'" | sed 's/\t.*//'; }

cases() {
    local shell="$1" key="$2" dir="$3"
    check "$shell" 'kelp tra' '=train'
    check "$shell" 'kelp ' train status checkpoint predict data
    check "$shell" 'kelp nothing' '='
    check "$shell" 'kelp he' '=help'
    check "$shell" 'kelp help st' status stop '!train' '!runs/taxi-1'
    check "$shell" 'kelp help status ' '='
    check "$shell" 'kelp --v' '=--version'
    check "$shell" 'kelp train --shar' '=--shards'
    check "$shell" 'kelp train -' --set --resume --run --help '!--threads'
    check "$shell" 'kelp train ' job.yaml small.yml 'two words.yaml' '!table.csv' '!train'
    check "$shell" 'kelp train --resume jo' '=job.yaml'
    check "$shell" 'kelp train --workers 2:4 jo' '=job.yaml'
    check "$shell" 'kelp train --workers=2:4 jo' '=job.yaml'
    check "$shell" 'kelp train job.yaml --log-level d' '=debug'
    check "$shell" 'kelp train --log-level ' error warn info debug trace '!job.yaml'
    check "$shell" 'kelp train --workers ' '='
    check "$shell" 'kelp train --run no' "=notes$dir"
    check "$shell" 'kelp train --set train.optimiz' '=train.optimizer='
    check "$shell" 'kelp train --set train.optimizer=adag' "=${key:+train.optimizer=}adagrad"
    check "$shell" 'kelp train --set data.shuffle=' "${key:+data.shuffle=}true" "${key:+data.shuffle=}false"
    check "$shell" 'kelp train --set data.path=tab' "=${key:+data.path=}table.csv"
    check "$shell" 'kelp train --set data.kind=csv --set data.ki' '=data.kind='
    check "$shell" 'kelp status ' runs/taxi-1 runs/taxi-2 runs/latest '!runs/junk' '!job.yaml'
    check "$shell" 'kelp status runs/l' '=runs/latest'
    check "$shell" 'kelp diff runs/taxi-1 runs/taxi-' runs/taxi-1 runs/taxi-2
    check "$shell" 'kelp status -o j' '=json'
    check "$shell" 'kelp predict ' runs/taxi-1 job.yaml
    check "$shell" 'kelp model ' '=show'
    check "$shell" 'kelp model show ' job.yaml '!show'
    check "$shell" 'kelp checkpoint ' ls show verify export import rm runs/taxi-1
    check "$shell" 'kelp checkpoint ex' '=export'
    check "$shell" 'kelp checkpoint ls --ru' '=--run'
    check "$shell" 'kelp checkpoint verify notes no' "=notes$dir"
    check "$shell" 'kelp checkpoint rm ' '=step-10.g2'
    check "$shell" 'kelp checkpoint show --run runs/taxi-1 st' '=step-5.g1'
    check "$shell" 'kelp predict runs/taxi-1 --checkpoint ' 'step-5.g1' '!step-10.g2'
    check "$shell" 'kelp checkpoint export ' step-10.g2 newest
    check "$shell" 'kelp chaos --plan ' quick all hosts job.yaml
    check "$shell" 'kelp train --at ' '='
    check "$shell" 'kelp ls --sort=val notes no' "=notes$dir"
    check "$shell" 'kelp-ps --thr' '=--threads'
    check "$shell" 'kelp-worker --log-level=de' "=${key:+--log-level=}debug"
    check "$shell" 'kelp-coordinator ' '='
}

# Functions and nothing else: a script that is sourced must not print or fail.
bash -n "$scripts/kelp"
for shell in bash zsh fish; do
    if ! command -v "$shell" >/dev/null; then
        printf '%s: not tested, it is not installed (deploy/install-deps.sh --dev)\n' "$shell"
        continue
    fi
    case "$shell" in
    bash) cases bash '' '' ;;
    zsh)
        coproc ZSH { zsh -f "$here/complete.zsh" "$scripts"; }
        exec 5<&"${ZSH[0]}" 6>&"${ZSH[1]}" # a pipeline has not the coprocess's own
        cases zsh '' ''
        ;;
    fish) cases fish whole / ;;
    esac
    printf '%s: tested\n' "$shell"
done

if [ "$problems" -gt 0 ]; then
    printf '%d problems\n' "$problems"
    exit 1
fi
printf 'completions: all in order\n'
