# Completion of kelp, its verbs and daemons for fish. The tables above come from the programs.

# Prints path, position, and the option whose value is being typed, of the words before the current one.
function __kelp_read
    set -l words (commandline -opc)
    set -l path (string replace -r '.*/' '' -- $words[1])
    set -l position 1
    set -l option
    for word in $words[2..-1]
        if test -n "$option"
            set option
        else if string match -q -- '-*' $word
            if not string match -q -- '*=*' $word; and test -n "$(_kelp_hint "$path $word")"
                set option $word
            end
        else if test $position -eq 1; and _kelp_verbs $path | string match -qr -- "^$word\t"
            set path "$path $word"
        else if test $position -lt 9
            set position (math $position + 1)
        end
    end
    printf '%s\n' $path $position $option
end

function __kelp_set # KEY=VALUE that is being typed
    set -l key (string replace -r '=.*' '' -- $argv[1])
    if string match -q -- '*=*' $argv[1]
        set -l choices (_kelp_choices $key)
        if test -n "$choices"
            printf "$key=%s\n" $choices
        else
            set -l value (string replace -r '^[^=]*=' '' -- $argv[1])
            printf "$key=%s\n" (__fish_complete_path $value | string replace -r '\t.*' '')
        end
    else
        _kelp_keys | string replace \t =\t
    end
end

function __kelp_offer # CURRENT HINT
    for hint in (string split ' ' -- $argv[2])
        switch $hint
            case '=*'
                string sub -s 2 -- $hint
            case run
                set -l runs
                for folder in runs/*/
                    if test -e {$folder}job.yaml
                        set -a runs (string trim -r -c / $folder)
                    end
                end
                if test -n "$runs"
                    printf '%s\trun\n' $runs
                else
                    __fish_complete_directories $argv[1]
                end
            case yaml
                __fish_complete_path $argv[1] | string match -r '^[^\t]*(?:\.ya?ml|/)(?:\t.*)?$'
            case file
                __fish_complete_path $argv[1]
            case folder
                __fish_complete_directories $argv[1]
            case set
                __kelp_set $argv[1]
            case key
                _kelp_keys
            case checkpoint
                # Those of the run that was typed, else of runs/latest.
                set -l run runs/latest
                for word in (commandline -opc)
                    if test -d $word/checkpoints
                        set run $word
                    end
                end
                for folder in $run/checkpoints/step-*/
                    string replace -r '.*/(.+)/$' '$1' -- $folder
                end
            case verb
                _kelp_verbs kelp
        end
    end
end

function __kelp_complete
    set -l read (__kelp_read)
    set -l current (commandline -ct)
    if set -q read[3]
        __kelp_offer "$current" (_kelp_hint "$read[1] $read[3]")
    else if string match -qr -- '^--[^=]+=' $current
        # --option=value: fish wants the whole word.
        set -l option (string replace -r '=.*' '' -- $current)
        set -l value (string replace -r '^[^=]*=' '' -- $current)
        for offer in (__kelp_offer "$value" (_kelp_hint "$read[1] $option"))
            printf '%s=%s\n' $option $offer
        end
    else if string match -q -- '-*' $current
        _kelp_options $read[1]
    else
        if test $read[2] -eq 1
            _kelp_verbs $read[1]
        end
        __kelp_offer "$current" (_kelp_hint "$read[1] $read[2]")
    end
end

for program in kelp kelp-coordinator kelp-ps kelp-worker
    complete -c $program -f -k -a '(__kelp_complete)'
end
