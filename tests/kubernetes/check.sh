#!/bin/bash
# The manifests of deploy/kubernetes, each overlay as kubectl builds it: values by kubernetes-models, keys by tsc and
# kubernetes-types, and by check.mjs what these do not know.
# usage: tests/kubernetes/check.sh SOURCE_DIR BUILD_DIR [--install]
#   (--install fetches the three modules of npm into BUILD_DIR/kubernetes; exit status 77: skipped, and why)
set -euo pipefail
usage='usage: tests/kubernetes/check.sh SOURCE_DIR BUILD_DIR [--install]'
source_dir="$(cd "${1:?$usage}" && pwd)"
build_dir="$(cd "${2:?$usage}" && pwd)"
modules="$build_dir/kubernetes"

skip() {
    printf 'skipped: %s\n' "$1"
    exit 77
}
for program in kubectl node; do
    command -v "$program" >/dev/null || skip "there is no $program"
done
if [ "${3:-}" = --install ]; then
    mkdir -p "$modules"
    printf '{"private": true, "type": "module"}\n' >"$modules/package.json"
    npm install --prefix "$modules" --no-audit --no-fund --no-package-lock --silent \
        kubernetes-models@4 kubernetes-types@1 typescript@5 js-yaml@4
fi
[ -d "$modules/node_modules/kubernetes-models" ] ||
    skip "npm's modules are not there (tests/kubernetes/check.sh . build/release --install)"

# Modules are found from where the files lie.
cp "$source_dir/tests/kubernetes/check.mjs" "$modules/check.mjs"
problems=0
# NAME: checks $modules/NAME.yaml.
check() {
    node "$modules/check.mjs" "$modules/$1.yaml" "$modules/$1.ts" &&
        "$modules/node_modules/.bin/tsc" --strict --noEmit --skipLibCheck --pretty false "$modules/$1.ts"
}
for folder in "$source_dir"/deploy/kubernetes/base "$source_dir"/deploy/kubernetes/overlays/*; do
    name="$(basename "$folder")"
    kubectl kustomize "$folder" >"$modules/$name.yaml" 2>"$modules/$name.err" || {
        cat "$modules/$name.err"
        problems=$((problems + 1))
        continue
    }
    check "$name" || problems=$((problems + 1))
    printf '%s: %d objects\n' "$name" "$(grep -c '^kind: ' "$modules/$name.yaml")"
done

# MISTAKE WORDS: made in what kubectl built, it is found, and the report has the words.
finds() {
    sed -E "$1" "$modules/base.yaml" >"$modules/planted.yaml"
    if cmp -s "$modules/base.yaml" "$modules/planted.yaml"; then
        printf 'not planted: %s\n' "$1"
        problems=$((problems + 1))
    elif check planted >"$modules/planted.log" 2>&1 || ! grep -qE "$2" "$modules/planted.log"; then
        printf 'not found: %s\n' "$1"
        problems=$((problems + 1))
    fi
}
finds 's/replicas: 3$/replicas: three/' 'kelp-shard: .*replicas.*integer'
finds 's/podManagementPolicy: Parallel/podManagementPolcy: Parallel/' "podManagementPolcy"
finds 's/--grace=120s/--grace=150s/' 'kelp-shard: terminationGracePeriodSeconds'
finds 's/readOnlyRootFilesystem: true/readOnlyRootFilesystem: false/' 'kelp-etcd: readOnlyRootFilesystem'
finds 's/claimName: kelp-shared/claimName: kelp-other/' 'kelp-shard: .*kelp-other'
if [ "$problems" -gt 0 ]; then
    printf '%d problems\n' "$problems"
    exit 1
fi
