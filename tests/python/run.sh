#!/bin/bash
# Unit tests of the packages in python/, which need PyTorch.
# usage: tests/python/run.sh SOURCE_DIR BUILD_DIR [TEST...]     (such as test_optim or test_data.Processes)
set -euo pipefail
source_dir="$(cd "${1:?usage: tests/python/run.sh SOURCE_DIR BUILD_DIR [TEST...]}" && pwd)"
build_dir="$(cd "${2:?usage: tests/python/run.sh SOURCE_DIR BUILD_DIR [TEST...]}" && pwd)"
shift 2

# The distribution's interpreter has the distribution's torch.
for python in /usr/bin/python3 python3; do
    if "$python" -c 'import torch' 2>/dev/null; then break; fi
    python=
done
if [ -z "$python" ]; then
    echo "skipped: there is no PyTorch (deploy/install-deps.sh --bench)"
    exit 77
fi
cd "$source_dir/tests/python"
export PYTHONPATH="$source_dir/python${PYTHONPATH:+:$PYTHONPATH}" PYTHONDONTWRITEBYTECODE=1
export KELP_TEST_PROGRAMS="$build_dir/tests"
if [ $# -eq 0 ]; then set -- discover -s . -t .; fi
exec "$python" -W ignore::UserWarning -m unittest "$@"
