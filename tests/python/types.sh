#!/bin/bash
# The types of the packages in python/, by mypy --strict. What it learns of torch and numpy stays in the build folder.
# usage: tests/python/types.sh SOURCE_DIR BUILD_DIR
set -euo pipefail
usage='usage: tests/python/types.sh SOURCE_DIR BUILD_DIR'
source_dir="$(cd "${1:?$usage}" && pwd)"
build_dir="$(cd "${2:?$usage}" && pwd)"
python=/usr/bin/python3 # the distribution's, for which its packages are
for module in mypy numpy torch; do
    if ! "$python" -c "import sys, importlib.util as u; sys.exit(u.find_spec('$module') is None)"; then
        printf 'skipped: %s has no %s (deploy/install-deps.sh --python)\n' "$python" "$module"
        exit 77
    fi
done
cd "$source_dir/python"
"$python" -m mypy --strict --cache-dir "$build_dir/mypy" kelp
