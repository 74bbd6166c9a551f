#!/bin/zsh
# What zsh offers for the last word of each line of standard input, and END: a zsh of its own on a pseudo-terminal gets
# the line and a tab, and its compadd tells what it was given.
# usage: zsh -f complete.zsh FOLDER     (FOLDER holds _kelp)
zmodload zsh/zpty || exit 1
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
mkfifo "$scratch/offers"
cat >"$scratch/setup" <<SETUP
exec 9>"$scratch/offers"
PROMPT=
fpath=("$1" \$fpath)
autoload -U compinit
compinit -u -D
bindkey '^I' complete-word
comppostfuncs=(offers_end)
SETUP
cat >>"$scratch/setup" <<'SETUP'
# Keys that come before the line editor reads them are edited by the terminal.
ready() { print -u 9 -- READY; }
zle -N zle-line-init ready
offers_end() {
    compstate[insert]= compstate[list]=
    print -u 9 -- END
    comppostfuncs=(offers_end)
}
compadd() {
    local -a hits pre suf
    # Calls that ask instead of offering.
    if [[ ${@[1,(i)(-|--)]} == *-(O|A|D)\ * ]]; then
        builtin compadd "$@"
        return
    fi
    builtin compadd -A hits "$@"
    zparseopts -E -D -- p:=pre S:=suf 2>/dev/null
    local hit
    for hit in $hits; do
        print -r -u 9 -- "$pre[2]${(Q)hit}$suf[2]"
    done
    builtin compadd "$@"
}
SETUP
zpty shell zsh -f -i
zpty -w shell ". $scratch/setup"
exec 8<"$scratch/offers"
IFS= read -r -t 60 -u 8 offer
while IFS= read -r line; do
    zpty -w -n shell $'\C-u'"$line"$'\t'
    while IFS= read -r -t 60 -u 8 offer; do
        print -r -- "$offer"
        if [[ "$offer" == END ]]; then
            while zpty -r -t shell echoed; do :; done # it must not wait for a reader
            continue 2
        fi
    done
    print -u 2 -- "no end of the offers for '$line'; the shell says: $(zpty -r shell)"
    exit 1
done
zpty -d shell
