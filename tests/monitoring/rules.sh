#!/bin/bash
# What deploy/monitoring/ has for Prometheus and Grafana: each figure that it names is told by a daemon, each alert has
# a test in which it fires and one in which it does not, and promtool runs them.
# usage: tests/monitoring/rules.sh SOURCE_DIR
set -euo pipefail
source_dir="$(cd "${1:?usage: tests/monitoring/rules.sh SOURCE_DIR}" && pwd)"
cd "$source_dir/deploy/monitoring"

problems=0
report() {
    printf '%s\n' "$1"
    problems=$((problems + 1))
}

# docs/METRICS.md has the table of the source; test_figures compares them.
told="$(grep -oE '^\| `kelp_[a-z_]+' "$source_dir/docs/METRICS.md" | grep -oE 'kelp_[a-z_]+' | sort -u)"
for file in kelp.rules.yml kelp.rules.test.yml kelp.board.json; do
    # A histogram is told as buckets, a sum and a count.
    names="$(grep -oE '\bkelp_[a-z_]+' "$file" | sed -E 's/_seconds_(bucket|sum|count)$/_seconds/' | sort -u)"
    [ -n "$names" ] || report "$file: names no figure"
    while read -r name; do
        grep -qxF "$name" <<<"$told" || report "$file: no daemon tells $name"
    done <<<"$names"
done
while read -r alert; do
    count="$(grep -cE "alertname: $alert(\}|$)" kelp.rules.test.yml || true)"
    [ "$count" -ge 2 ] || report "kelp.rules.test.yml: $alert is to fire in one test, and not in another"
done < <(sed -nE 's/^ *- alert: ([A-Za-z]+)$/\1/p' kelp.rules.yml)
# Words of events and parts that are compared are those of the figures.
while read -r label; do
    grep -qF "${label//\"/\\\"}" "$source_dir/common/scrape/figures.c" || report "no figure has $label"
done < <(grep -ohE '(event|part|state|place)=\\?"[a-z-]+\\?"' kelp.rules.yml kelp.board.json | tr -d "\\\\" | sort -u)
if [ "$problems" -gt 0 ]; then
    printf '%d problems\n' "$problems"
    exit 1
fi

if ! command -v promtool >/dev/null; then
    printf 'skipped: promtool is not installed (the package prometheus of Debian has it); names were checked\n'
    exit 77
fi
promtool check rules kelp.rules.yml
promtool check config --syntax-only prometheus.yml
promtool test rules kelp.rules.test.yml
