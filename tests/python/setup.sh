#!/bin/bash
# What tests of the packages in python/ begin with, for bash scripts that have source_dir, build_dir and scratch: an
# interpreter that has PyTorch in $python, the packages in $scratch and PYTHONPATH. Without PyTorch it ends the script.

# The distribution's interpreter has the distribution's torch.
for python in /usr/bin/python3 python3; do
    if "$python" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)'; then break; fi
    python=
done
if [ -z "$python" ]; then
    echo 'skipped: there is no PyTorch (deploy/install-deps.sh --python)'
    exit 77
fi
extension="${build_dir:?}/python/kelp/_kelp.abi3.so"
if [ ! -e "$extension" ]; then
    echo 'skipped: the build found no headers of Python (deploy/install-deps.sh --python, then build again)'
    exit 77
fi
cp -r "${source_dir:?}/python/kelp" "${scratch:?}"
cp "$extension" "$scratch/kelp"
export PYTHONPATH="$scratch${PYTHONPATH:+:$PYTHONPATH}" PYTHONDONTWRITEBYTECODE=1
