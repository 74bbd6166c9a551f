#!/bin/bash
# From a clone to a trained model: install packages, build, train examples/etth1-dlinear.yaml on
# this machine with data that Kelp generates itself. Arguments go to `kelp train`, for example
#   ./deploy/quickstart.sh --workers 3 --shards 2
#   ./deploy/quickstart.sh --set data.kind=csv --set data.path=ETTh1.csv
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

deploy/install-deps.sh
printf 'quickstart: building (a few minutes the first time)\n'
deploy/build.sh release
printf 'quickstart: build/release/bin/kelp train examples/etth1-dlinear.yaml%s\n' "${*:+ $*}"
exec build/release/bin/kelp train examples/etth1-dlinear.yaml "$@"
