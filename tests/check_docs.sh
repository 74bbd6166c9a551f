#!/bin/bash
# What can be checked of the pages of the documentation: the options in docs/CLI.md are those of the programs, and its
# JSON keys are complete; links and paths lead somewhere, and no line is longer than 120 columns.
# usage: tests/check_docs.sh SOURCE_DIR BUILD_DIR [--update]   (--update writes the options into docs/CLI.md)
set -euo pipefail
export LC_ALL=C.UTF-8
usage='usage: tests/check_docs.sh SOURCE_DIR BUILD_DIR [--update]'
source_dir="$(cd "${1:?$usage}" && pwd)"
build_dir="$(cd "${2:?$usage}" && pwd)"
update="${3:-}"
cd "$source_dir"

scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
problems=0
report() {
    printf '%s\n' "$1"
    problems=$((problems + 1))
}

# ---- options -------------------------------------------------------------------------------------
# A block of docs/CLI.md begins with the comment "<!-- PROGRAM --help -->" and ends with "<!-- end -->". In between
# stands what the program prints, without what all programs print alike.
reference=docs/CLI.md
help_of() {
    local words
    read -ra words <<<"$1"
    # No setting of the caller may show.
    env -i PATH="$PATH" "$build_dir/bin/${words[0]}" "${words[@]:1}" --help |
        awk '/^Help:$/ { skip = 1 } /^Examples:$/ { skip = 0 } !skip { print }' | cat -s
}
# The page as it should be: blocks from the programs, the rest as it stands. Names the blocks in $scratch/blocks.
page_as_it_should_be() {
    local line block=""
    while IFS= read -r line; do
        if [[ "$line" =~ ^'<!-- '(kelp.*)' --help -->'$ ]]; then
            block="${BASH_REMATCH[1]}"
            printf '%s\n' "$block" >>"$scratch/blocks"
            # shellcheck disable=SC2016 # the fence of Markdown
            printf '%s\n```text\n%s\n```\n' "$line" "$(help_of "$block")"
        elif [ "$line" = '<!-- end -->' ]; then
            block=""
        fi
        if [ -z "$block" ]; then printf '%s\n' "$line"; fi
    done <"$reference"
}
page_as_it_should_be >"$scratch/CLI.md"
if [ "$update" = --update ]; then
    cp "$scratch/CLI.md" "$reference"
elif ! diff -u "$reference" "$scratch/CLI.md" >"$scratch/diff"; then
    head -n 20 "$scratch/diff"
    report "$reference differs from what the programs print; tests/check_docs.sh . build/release --update writes it"
fi

# Every verb has its block: those of kelp --help, and those of kelp checkpoint, certs and bench, which --help
# names.
verbs_of() {
    awk '/^Verbs:$/ { on = 1; next } on && /^$/ { exit } on && /^  / { print $1 }'
}
{
    "$build_dir/bin/kelp" --help | verbs_of | sed 's/^/kelp /'
    for verb in checkpoint certs bench; do
        "$build_dir/bin/kelp" "$verb" --help |
            sed -nE "s/^ *kelp $verb ([a-z]+(\\|[a-z]+)+) --help\$/\\1/p" | tr '|' '\n' | sed "s/^/kelp $verb /"
    done
    printf '%s\n' kelp kelp-coordinator kelp-ps kelp-worker
} | sort >"$scratch/verbs"
sort "$scratch/blocks" >"$scratch/documented"
while IFS= read -r line; do
    report "$reference: no block for '$line', or more than one"
done < <(comm -23 "$scratch/verbs" "$scratch/documented"; uniq -d "$scratch/documented")

# ---- JSON keys -----------------------------------------------------------------------------------
# Each key that a verb prints stands somewhere on the page, in backticks.
while IFS= read -r key; do
    # shellcheck disable=SC2016 # the backticks of Markdown
    if ! grep -qF '`'"$key"'`' "$reference"; then report "$reference: nothing about the JSON key '$key'"; fi
done < <({
    grep -rhoE '\\"[a-z_0-9]+\\":' cli --include='*.c' | tr -d '\\":'
    grep -rhoE 'json_(member|text)\((out, )?"[a-z_0-9]+"' cli --include='*.c' | sed -E 's/^[^"]*"(.*)"$/\1/'
} | sort -u)

# ---- lines, links and paths ----------------------------------------------------------------------
# a/{b,c} as a/b and a/c.
expand() {
    local word words
    if [[ "$1" =~ ^([^{]*)'{'([^}]*)'}'(.*)$ ]]; then
        IFS=, read -ra words <<<"${BASH_REMATCH[2]}"
        for word in "${words[@]}"; do printf '%s\n' "${BASH_REMATCH[1]}$word${BASH_REMATCH[3]}"; done
    else
        printf '%s\n' "$1"
    fi
}
# Where a heading can be reached: lower case, without punctuation, dashes for spaces.
anchors_of() {
    awk '/^```/ { code = !code } !code && /^#+ / { sub(/^#+ /, ""); print }' "$1" |
        tr '[:upper:]' '[:lower:]' | sed -E 's/[^a-z0-9 _-]//g; s/ /-/g'
}
folders='common|proto|kernels|ps|worker|coordinator|cli|include|tests|bench|deploy|docs|examples'
mapfile -t pages < <(find . -name '*.md' -not -path './build/*' | sed 's,^\./,,' | sort)
for page in "${pages[@]}"; do
    line="$(grep -nE '^.{121,}$' "$page" | head -n 1 || true)"
    if [ -n "$line" ]; then report "$page:${line%%:*}: longer than 120 columns"; fi
    folder="$(dirname "$page")"
    while IFS= read -r link; do
        target="${link%%#*}"
        anchor=""
        if [[ "$link" == *#* ]]; then anchor="${link#*#}"; fi
        if [[ "$link" =~ ^https?: ]]; then continue; fi
        file="$page"
        if [ -n "$target" ]; then file="$folder/$target"; fi
        if [ ! -e "$file" ]; then
            report "$page: the link to '$link' leads nowhere"
        elif [ -n "$anchor" ] && ! anchors_of "$file" | grep -qx -- "$anchor"; then
            report "$page: '$link': no such heading"
        fi
    done < <(grep -oE '\]\([^) ]+\)' "$page" | sed -E 's/^\]\(//; s/\)$//')
    # `folder/file` in backticks is a file, or a header and its source file without their endings; `test_name` is a
    # test program. NAME and <kind> stand for what the reader puts there.
    # shellcheck disable=SC2016 # the backticks of Markdown
    while IFS= read -r path; do
        if [[ "$path" == *NAME* || "$path" == *'<'* ]]; then continue; fi
        if [[ "$path" == test_* ]]; then
            if [ -z "$(find tests -name "$path.c")" ]; then report "$page: there is no test $path"; fi
        elif ! compgen -G "$path" >/dev/null && ! compgen -G "$path.[ch]" >/dev/null; then
            report "$page: there is no $path"
        fi
    done < <(grep -oE '`(test_[a-z_0-9]+|('"$folders"')/[^ `]*)`' "$page" | tr -d '`' | sed -E 's/:.*$//; s,/$,,' |
        while IFS= read -r path; do expand "$path"; done | sort -u)
done

# ---- tests ---------------------------------------------------------------------------------------
# `test_program:name` in backticks is a test of that program.
# shellcheck disable=SC2016 # the backticks of Markdown
while IFS=: read -r program name; do
    file="$(find tests -name "$program.c")"
    if [ -z "$file" ] || ! grep -qE "TEST(_AGAIN)?\(${name}[,)]" "$file"; then
        report "a page names the test $program:$name, which is not there"
    fi
done < <(grep -ohE '`test_[a-z_0-9]+:[a-z_0-9]+`' "${pages[@]}" | tr -d '`' | sort -u)

# ---- messages and names --------------------------------------------------------------------------
# Messages that docs/OPERATIONS.md quotes are those of the programs: each run of three words or more, between numbers,
# names, values and what is left out, stands in the source. So do functions that a page names.
find common proto kernels ps worker coordinator cli include \( -name '*.[ch]' -o -name CMakeLists.txt \) \
    -exec cat {} + | tr '\n' ' ' | sed -E 's/" *"//g' >"$scratch/source"
# shellcheck disable=SC2016 # the backticks of Markdown
quoted() { tr '\n' ' ' | grep -oE '`[^`]+`' | tr -d '`'; }
while IFS= read -r words; do
    if ! grep -qF -- "$words" "$scratch/source"; then report "docs/OPERATIONS.md: no program says '$words'"; fi
done < <(sed -n '/^## Failures/,/^## Backup/p' docs/OPERATIONS.md | quoted | grep -vE '^(kelp|etcdctl) ' |
    sed -E 's/[a-z_.]+=("[^"]*"|[^ ,;]*)|(worker|shard)-[0-9]+/\n/g; s/…|[0-9][0-9.]*( s|( [KMG]iB))?|[()"]/\n/g' |
    sed -E 's/^[ ,;:]+//; s/[ ,;:]+$//' | grep -E '^[a-z]+([ ,;:]+[a-z]+){2}' | sort -u)
# shellcheck disable=SC2016 # the backticks of Markdown
while IFS= read -r name; do
    if ! grep -qwF -- "$name" "$scratch/source"; then report "a page names $name, which the source does not have"; fi
done < <(grep -ohE '`kelp_[a-z0-9_]+(\(|`)' ./*.md docs/*.md | tr -d '`(' | grep -v '_$' | sort -u)

# Headings that the source names beside a page must be there.
while IFS= read -r reference; do
    page="${reference%%,*}"
    heading="${reference#*\"}"
    if ! grep -qxE "#+ ${heading%\"}" "$page"; then report "the source names $reference, which is not there"; fi
done < <(grep -rhoE 'docs/[A-Z]+\.md, "[^"]+"' CMakeLists.txt common proto kernels ps worker coordinator cli include \
    tests bench | sort -u)

if [ "$problems" -gt 0 ]; then
    printf '%d problems\n' "$problems"
    exit 1
fi
printf 'docs: %d pages in order\n' "${#pages[@]}"
