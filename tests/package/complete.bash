#!/bin/bash
# What bash offers for the last word of a line: sources a completion, fills COMP_WORDS as readline does.
# usage: bash --norc complete.bash SCRIPT LINE
set -uo pipefail
# shellcheck source=/dev/null
source "$1"
line="$2"
# Words end at blanks; '=' and ':' are words of their own (COMP_WORDBREAKS).
COMP_WORDS=()
read -ra typed <<<"$line"
for word in "${typed[@]}"; do
    while [[ "$word" =~ ^([^=:]*)([=:]+)(.*)$ ]]; do
        if [ -n "${BASH_REMATCH[1]}" ]; then COMP_WORDS+=("${BASH_REMATCH[1]}"); fi
        COMP_WORDS+=("${BASH_REMATCH[2]}")
        word="${BASH_REMATCH[3]}"
    done
    if [ -n "$word" ]; then COMP_WORDS+=("$word"); fi
done
if [[ "$line" == *' ' ]]; then COMP_WORDS+=(''); fi
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
COMP_LINE="$line"
COMP_POINT=${#line}
export COMP_LINE COMP_POINT COMP_CWORD
spec="$(complete -p "${COMP_WORDS[0]}")"
[[ "$spec" =~ -F\ ([a-z_]+) ]] || exit 1
"${BASH_REMATCH[1]}" "${COMP_WORDS[0]}" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD > 0 ? COMP_CWORD - 1 : 0]}"
if [ "${#COMPREPLY[@]}" -gt 0 ]; then printf '%s\n' "${COMPREPLY[@]}"; fi
