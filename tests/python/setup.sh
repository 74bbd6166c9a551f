#!/bin/bash
# What tests of the packages in python/ begin with, for bash scripts that have source_dir, build_dir and scratch: an
# interpreter that has PyTorch in $python, the packages in $scratch and PYTHONPATH. Without PyTorch it ends the script.

# The distribution's interpreter has the distribution's torch.
for python in /usr/bin/python3 python3; do
    if "$python" -c 'import torch' 2>/dev/null; then break; fi
    python=
done
if [ -z "$python" ]; then
    echo 'skipped: there is no PyTorch (deploy/install-deps.sh --python)'
    exit 77
fi
include="$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')"
if [ ! -e "$include/Python.h" ]; then
    echo "skipped: $python has no headers (deploy/install-deps.sh --python)"
    exit 77
fi
cp -r "${source_dir:?}/python/kelp" "${scratch:?}"
gcc -std=c11 -O2 -Wall -Wextra -Werror -shared -fPIC -I"$include" -I"$source_dir/include" \
    -o "$scratch/kelp/_kelp.abi3.so" "$source_dir/python/kelp/_kelp.c" \
    -L"${build_dir:?}/lib" -lkelp-worker -Wl,-rpath,"$build_dir/lib"
export PYTHONPATH="$scratch${PYTHONPATH:+:$PYTHONPATH}" PYTHONDONTWRITEBYTECODE=1
