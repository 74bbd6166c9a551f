# shellcheck shell=bash
# Completion of kelp, its verbs and daemons for bash. The tables above come from the programs.

# Offer FILTER's answer as names of files, so that folders get a slash and blanks are escaped.
_kelp_files() {
    compopt -o filenames 2>/dev/null
    mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen "$@" | sort -u)
}

_kelp_runs() { # CURRENT: folders of runs here, else any folder
    local folder found=0
    for folder in runs/*/; do
        folder="${folder%/}"
        if [[ -e "$folder/job.yaml" && "$folder" == "$1"* ]]; then
            COMPREPLY+=("$folder")
            found=1
        fi
    done
    if [ "$found" -eq 1 ]; then
        compopt -o filenames 2>/dev/null
    else
        _kelp_files -d -- "$1"
    fi
}

# Those of the run that was typed, else of runs/latest.
_kelp_checkpoints() { # CURRENT
    local run=runs/latest word
    for word in "${words[@]}"; do
        if [ -d "$word/checkpoints" ]; then run="$word"; fi
    done
    for word in "$run"/checkpoints/step-*/; do
        word="${word%/}"
        if [ -d "$word" ]; then _kelp_words "$1" <<<"${word##*/}"; fi
    done
}

_kelp_words() { # CURRENT, WORDS on standard input, a tab and a meaning behind each
    local word rest
    while IFS=$'\t' read -r word rest; do
        : "$rest"
        if [[ "$word" == "$1"* ]]; then COMPREPLY+=("$word"); fi
    done
}

_kelp_set() { # CURRENT: KEY=VALUE; bash replaces what follows the '='
    local value="${1#*=}"
    if [ "$value" = "$1" ]; then
        compopt -o nospace 2>/dev/null
        _kelp_words "$1" < <(_kelp_keys '')
        COMPREPLY=("${COMPREPLY[@]/%/=}")
    elif [ -n "$(_kelp_choices "${1%%=*}")" ]; then
        _kelp_words "$value" < <(_kelp_choices "${1%%=*}")
    else
        _kelp_files -f -- "$value"
    fi
}

_kelp_offer() { # CURRENT HINT
    local hint
    for hint in $2; do
        case "$hint" in
        =*) _kelp_words "$1" <<<"${hint#=}" ;;
        run) _kelp_runs "$1" ;;
        yaml)
            _kelp_files -f -X '!*.yaml' -- "$1"
            _kelp_files -f -X '!*.yml' -- "$1"
            _kelp_files -d -- "$1"
            ;;
        file) _kelp_files -f -- "$1" ;;
        folder) _kelp_files -d -- "$1" ;;
        set) _kelp_set "$1" ;;
        key) _kelp_words "$1" < <(_kelp_keys '') ;;
        checkpoint) _kelp_checkpoints "$1" ;;
        verb) _kelp_words "$1" < <(_kelp_verbs kelp) ;;
        esac
    done
}

# The words up to the current one, into words: bash takes '=' and ':' for words of their own.
_kelp_join() {
    local at word glue=0
    words=()
    for ((at = 0; at <= COMP_CWORD; at++)); do
        word="${COMP_WORDS[at]}"
        if [[ "$word" =~ ^[=:]+$ ]] && [ "${#words[@]}" -gt 0 ]; then
            words[-1]+="$word"
            glue=1
        elif [ "$glue" -eq 1 ]; then
            words[-1]+="$word"
            glue=0
        else
            words+=("$word")
        fi
    done
}

# Sets path, position and option (whose value is being typed) from the words before the current one.
_kelp_read() {
    local word
    path="${words[0]##*/}"
    position=1
    option=""
    for word in "${words[@]:1:${#words[@]}-2}"; do
        if [ -n "$option" ]; then
            option=""
        elif [[ "$word" == -* ]]; then
            if [[ "$word" != *=* && -n "$(_kelp_hint "$path $word")" ]]; then option="$word"; fi
        elif [ "$position" -eq 1 ] && grep -q "^$word"$'\t' <<<"$(_kelp_verbs "$path")"; then
            path="$path $word"
        else
            position=$((position < 9 ? position + 1 : 9))
        fi
    done
}

_kelp() {
    local words=() path position option current
    COMPREPLY=()
    _kelp_join
    _kelp_read
    current="${words[-1]}"
    if [ -n "$option" ]; then
        _kelp_offer "$current" "$(_kelp_hint "$path $option")"
    elif [[ "$current" == --*=* ]]; then
        _kelp_offer "${current#*=}" "$(_kelp_hint "$path ${current%%=*}")"
    elif [[ "$current" == -* ]]; then
        _kelp_words "$current" < <(_kelp_options "$path")
    else
        if [ "$position" -eq 1 ]; then _kelp_words "$current" < <(_kelp_verbs "$path"); fi
        _kelp_offer "$current" "$(_kelp_hint "$path $position")"
    fi
}

complete -F _kelp kelp kelp-coordinator kelp-ps kelp-worker
