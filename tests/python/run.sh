#!/bin/bash
# Unit tests of the packages in python/, which need PyTorch.
# usage: tests/python/run.sh SOURCE_DIR BUILD_DIR [TEST...]     (such as test_optim or test_data.Processes)
set -euo pipefail
source_dir="$(cd "${1:?usage: tests/python/run.sh SOURCE_DIR BUILD_DIR [TEST...]}" && pwd)"
build_dir="$(cd "${2:?usage: tests/python/run.sh SOURCE_DIR BUILD_DIR [TEST...]}" && pwd)"
shift 2

scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
# shellcheck source=tests/python/setup.sh
. "$source_dir/tests/python/setup.sh"
cd "$source_dir/tests/python"
export KELP_TEST_PROGRAMS="$build_dir/tests"
if [ $# -eq 0 ]; then set -- discover -s . -t .; fi
"$python" -W ignore::UserWarning -m unittest "$@"
