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
    echo "skipped: there is no PyTorch (deploy/install-deps.sh --python)"
    exit 77
fi
include="$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')"
if [ ! -e "$include/Python.h" ]; then
    echo "skipped: $python has no headers (deploy/install-deps.sh --python)"
    exit 77
fi
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
cp -r "$source_dir/python/kelp" "$scratch"
gcc -std=c11 -O2 -Wall -Wextra -Werror -shared -fPIC -I"$include" -I"$source_dir/include" \
    -o "$scratch/kelp/_kelp.abi3.so" "$source_dir/python/kelp/_kelp.c" \
    -L"$build_dir/lib" -lkelp-worker -Wl,-rpath,"$build_dir/lib"
cd "$source_dir/tests/python"
export PYTHONPATH="$scratch${PYTHONPATH:+:$PYTHONPATH}" PYTHONDONTWRITEBYTECODE=1
export KELP_TEST_PROGRAMS="$build_dir/tests"
if [ $# -eq 0 ]; then set -- discover -s . -t .; fi
"$python" -W ignore::UserWarning -m unittest "$@"
