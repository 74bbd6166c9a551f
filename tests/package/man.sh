#!/bin/bash
# Man pages: one for each program and verb, and that of job files; without a warning of groff, with every option and
# every key.
# usage: tests/package/man.sh SOURCE_DIR BUILD_DIR
set -euo pipefail
usage='usage: tests/package/man.sh SOURCE_DIR BUILD_DIR'
: "${1:?$usage}"
build_dir="$(cd "${2:?$usage}" && pwd)"
pages="$build_dir/cli/pages/man1"
job_page="$build_dir/cli/pages/man5/kelp-job.5"
export LC_ALL=C.UTF-8 MANPAGER=cat PAGER=cat
if ! command -v man >/dev/null; then
    printf 'skipped: man is not installed (man-db; deploy/install-deps.sh --dev)\n'
    exit 77
fi
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
problems=0
report() {
    printf '%s\n' "$1"
    problems=$((problems + 1))
}

verbs_of() {
    awk '/^Verbs:$/ { on = 1; next } on && /^$/ { exit } on && /^  / { print $1 }'
}
{
    printf '%s\n' kelp kelp-coordinator kelp-ps kelp-worker
    "$build_dir/bin/kelp" --help | verbs_of | sed 's/^/kelp-/'
    for verb in checkpoint certs bench; do
        "$build_dir/bin/kelp" "$verb" --help |
            sed -nE "s/^ *kelp $verb ([a-z]+(\|[a-z]+)+) --help\$/\1/p" | tr '|' '\n' | sed "s/^/kelp-$verb-/"
    done
} | sort >"$scratch/expected"
find "$pages" -name '*.1' -printf '%f\n' | sed 's/\.1$//' | sort >"$scratch/found"
diff "$scratch/expected" "$scratch/found" >"$scratch/diff" ||
    report "the pages are not those of the programs: $(tr '\n' ' ' <"$scratch/diff")"

# What man shows of a page, in $scratch/text, and what whatis does.
show() {
    local page="$1"
    if ! man --warnings -E UTF-8 -l "$page" >"$scratch/text" 2>"$scratch/warnings"; then
        report "${page##*/}: man cannot show it"
    fi
    if [ -s "$scratch/warnings" ]; then report "${page##*/}: $(head -n 3 "$scratch/warnings")"; fi
    if command -v lexgrog >/dev/null && ! lexgrog "$page" >"$scratch/whatis" 2>&1; then
        report "${page##*/}: $(cat "$scratch/whatis")"
    fi
}

# Options as --help lists them, without the value.
options_of() {
    grep -oE '^  (-[a-zA-Z], |    )--[a-z0-9-]+' | grep -oE -- '--[a-z0-9-]+' | sort -u
}
while IFS= read -r name; do
    page="$pages/$name.1"
    show "$page"
    # Verbs below kelp checkpoint, kelp certs and kelp bench are three words.
    program="$name"
    if [[ "$name" =~ ^kelp-(checkpoint|certs|bench)-([a-z]+)$ ]]; then
        program="kelp ${BASH_REMATCH[1]} ${BASH_REMATCH[2]}"
    elif "$build_dir/bin/kelp" --help | verbs_of | grep -x "${name#kelp-}" >/dev/null; then
        program="kelp ${name#kelp-}"
    fi
    read -ra words <<<"$program"
    while IFS= read -r option; do
        grep -qE -- "(^|[ ,])$option( |\$)" "$scratch/text" || report "$name.1: nothing about $option"
    done < <("$build_dir/bin/${words[0]}" "${words[@]:1}" --help | options_of)
    for section in NAME SYNOPSIS DESCRIPTION OPTIONS ENVIRONMENT 'EXIT STATUS' 'SEE ALSO'; do
        grep -qx -- "$section" "$scratch/text" || report "$name.1: no section $section"
    done
done <"$scratch/expected"

# Every key begins a line; nothing of the Markdown is left.
show "$job_page"
while IFS= read -r key; do
    grep -qE -- "^ +${key//./\\.}( |\$)" "$scratch/text" || report "kelp-job.5: nothing about $key"
done < <("$build_dir/bin/kelp" explain | awk '{ print $1 }')
for section in NAME SYNOPSIS DESCRIPTION EXAMPLES 'SEE ALSO'; do
    grep -qx -- "$section" "$scratch/text" || report "kelp-job.5: no section $section"
done
if grep -nE '`|\*\*' "$scratch/text" >"$scratch/log"; then
    report "kelp-job.5: Markdown: $(head -n 3 "$scratch/log")"
fi

if [ "$problems" -gt 0 ]; then
    printf '%d problems\n' "$problems"
    exit 1
fi
printf 'man: %d pages in order\n' "$(($(wc -l <"$scratch/expected") + 1))"
