# Completion of kelp, its verbs and daemons for zsh. The tables above come from the programs.

# Words of standard input, with a tab and what each means, as offers.
_kelp_describe() { # TAG [OPTION OF compadd ...]
    local tag="$1" line
    local -a words meanings
    shift
    while IFS= read -r line; do
        words+=("${line%%$'\t'*}")
        meanings+=("${line/$'\t'/  -- }")
    done
    (( ${#words} )) || return 1
    local expl
    _wanted "$tag" expl "$tag" compadd "$@" -l -d meanings -a words
}

_kelp_set() {
    if compset -P 1 '*='; then
        local key="${IPREFIX%=}"
        key="${key##*=}"
        local -a words
        words=(${(f)"$(_kelp_choices "$key")"})
        if (( ${#words} )); then
            compadd -a words
        else
            _files
        fi
    else
        _kelp_describe 'job key' -S = < <(_kelp_keys '')
    fi
}

_kelp_runs() {
    local -a runs
    runs=(runs/*/job.yaml(N:h))
    if (( ${#runs} )); then
        local expl
        _wanted runs expl run compadd -f -a runs
    else
        _files -/
    fi
}

# Those of the run that was typed, else of runs/latest.
_kelp_checkpoints() {
    local run=runs/latest word
    for word in "${(@Q)words}"; do
        if [[ -d "$word/checkpoints" ]]; then run="$word"; fi
    done
    local -a names
    names=("$run"/checkpoints/step-*(N/:t))
    compadd -a names
}

_kelp_offer() { # HINT
    local hint
    for hint in ${=1}; do
        case "$hint" in
        '='*) compadd -- "${hint#=}" ;;
        run) _kelp_runs ;;
        yaml) _files -g '*.(yaml|yml)(-.)' ;;
        file) _files ;;
        folder) _files -/ ;;
        set) _kelp_set ;;
        key) _kelp_describe 'job key' < <(_kelp_keys '') ;;
        checkpoint) _kelp_checkpoints ;;
        verb) _kelp_describe verb < <(_kelp_verbs kelp) ;;
        esac
    done
}

_kelp() {
    local path_of="${words[1]:t}" position=1 option="" word at
    local current="${words[CURRENT]}"
    for (( at = 2; at < CURRENT; at++ )); do
        word="${words[at]}"
        if [[ -n "$option" ]]; then
            option=""
        elif [[ "$word" == -* ]]; then
            if [[ "$word" != *=* && -n "$(_kelp_hint "$path_of $word")" ]]; then option="$word"; fi
        elif (( position == 1 )) && [[ -n "$(_kelp_verbs "$path_of" | grep "^$word"$'\t')" ]]; then
            path_of="$path_of $word"
        else
            (( position < 9 )) && (( position++ ))
        fi
    done
    if [[ -n "$option" ]]; then
        _kelp_offer "$(_kelp_hint "$path_of $option")"
    elif [[ "$current" == --*=* ]]; then
        compset -P 1 '*='
        _kelp_offer "$(_kelp_hint "$path_of ${current%%=*}")"
    elif [[ "$current" == -* ]]; then
        _kelp_describe option < <(_kelp_options "$path_of")
    else
        (( position == 1 )) && _kelp_describe verb < <(_kelp_verbs "$path_of")
        _kelp_offer "$(_kelp_hint "$path_of $position")"
    fi
}

_kelp "$@"
