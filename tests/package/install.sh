#!/bin/bash
# cmake --install: the programs run from where they were put, also when that folder moves; a model of one's own is built
# with pkg-config alone. worker.sh tries the worker as a library.
# usage: tests/package/install.sh SOURCE_DIR BUILD_DIR
set -euo pipefail
usage='usage: tests/package/install.sh SOURCE_DIR BUILD_DIR'
source_dir="$(cd "${1:?$usage}" && pwd)"
build_dir="$(cd "${2:?$usage}" && pwd)"
here="$source_dir/tests/package"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
unset KELP_BIN KELP_SOURCE KELP_TEST_PROGRAMS

fail() {
    printf '%s\n' "$1"
    exit 1
}
logged() { # WHAT COMMAND...: its output is shown when it fails
    local what="$1"
    shift
    "$@" >"$scratch/log" 2>&1 || {
        tail -n 20 "$scratch/log"
        fail "$what fails: $*"
    }
}

logged 'the installation' cmake --install "$build_dir" --prefix "$scratch/first"
# Nothing may depend on the folder that was named.
mv "$scratch/first" "$scratch/moved"
prefix="$scratch/moved"
export PATH="$prefix/bin:$PATH" PKG_CONFIG_PATH="$prefix/lib/pkgconfig"

# ---- what is there -------------------------------------------------------------------------------
for file in bin/{kelp,kelp-coordinator,kelp-ps,kelp-worker} lib/kelp/kelp-faultdisk.so lib/libkelp-worker.so{,.1} \
    include/kelp/{model,worker}.h lib/pkgconfig/kelp{,-worker}.pc share/man/man1/kelp{,-train,-checkpoint-ls,-ps}.1 \
    share/man/man5/kelp-job.5 \
    share/kelp/examples/etth1-dlinear.yaml share/kelp/examples/{plugin/conv_small.c,worker/Makefile} \
    share/doc/kelp/{README.md,docs/JOB.md,docs/images/overview.svg} share/zsh/site-functions/_kelp \
    share/bash-completion/completions/{kelp,kelp-ps} share/fish/vendor_completions.d/{kelp,kelp-ps}.fish; do
    [ -s "$prefix/$file" ] || fail "$file is not installed"
done
if [ -e "$build_dir/lib/kelp/libkelp-cuda.so" ] && ! [ -s "$prefix/lib/kelp/libkelp-cuda.so" ]; then
    fail 'the CUDA device is built and not installed'
fi
while IFS= read -r file; do
    fail "$file names the folder of the build or the source"
done < <(grep -rIlF -e "$build_dir" -e "$source_dir" "$prefix" || true)
for file in "$prefix"/bin/* "$prefix"/lib/kelp/* "$prefix"/lib/*.so; do
    if readelf -d "$file" | grep -qE 'RUNPATH|RPATH'; then fail "$file looks for libraries in a folder of its own"; fi
done

# ---- a run ---------------------------------------------------------------------------------------
mkdir "$scratch/work"
cd "$scratch/work"
logged 'training' kelp train "$prefix/share/kelp/examples/etth1-dlinear.yaml" --set train.epochs=1 --no-plots
grep -q '^etth1-dlinear: done after 265 steps' "$scratch/log" || fail "training says: $(cat "$scratch/log")"
logged 'predict' kelp predict --out predictions.csv
[ -s predictions.csv ] || fail 'there are no predictions'
if command -v man >/dev/null; then
    logged 'man' env LC_ALL=C.UTF-8 MANPAGER=cat man -M "$prefix/share/man" kelp-train
    grep -q -- '--workers' "$scratch/log" || fail 'man does not show kelp-train(1)'
fi

# ---- the package for Python ------------------------------------------------------------------------
module="$(compgen -G "$prefix/lib/python3*/*-packages/kelp/_kelp.abi3.so" || true)"
if [ -z "$module" ]; then
    [ ! -e "$build_dir/python/kelp/_kelp.abi3.so" ] || fail 'the package for Python is built and not installed'
    printf 'not tested: the package for Python was built without headers (deploy/install-deps.sh --python)\n'
else
    packages="${module%/kelp/*}"
    for file in kelp/{__init__.py,_kelp.pyi,py.typed,torch/__init__.py} kelp-*.dist-info/METADATA; do
        compgen -G "$packages/$file" >/dev/null || fail "$packages/$file is not installed"
    done
    diff <(cd "$source_dir/python/kelp" && git ls-files -- '*.py' | sort) \
        <(cd "$packages/kelp" && find . -type f -name '*.py' -printf '%P\n' | sort) ||
        fail 'the package has (>) other files than python/kelp (<)'
    if /usr/bin/python3 -c 'import numpy' 2>/dev/null; then
        PYTHONPATH="$packages" KELP_PYTHON=/usr/bin/python3 logged 'a script with numpy' \
            kelp run --run plane --no-plots "$here/python/plane_numpy.py"
        grep -q '^plane_numpy: done after 100 steps' "$scratch/log" || fail "kelp run says: $(cat "$scratch/log")"
    else
        printf 'not tested: a script, without numpy (deploy/install-deps.sh --python)\n'
    fi
fi

# ---- a model of one's own ------------------------------------------------------------------------
read -ra flags <<<"$(pkg-config --cflags kelp)"
logged 'a model' gcc -shared -fPIC -Wall -Werror "${flags[@]}" -o model.so "$here/own_model.c"
cat >model.yaml <<'JOB'
name: own
data: {kind: synthetic, target: OT, features: S, seq_len: 24, pred_len: 24, split: [960, 96, 96]}
model: {kind: plugin, plugin: ./model.so}
train: {loss: mse, epochs: 1}
JOB
logged 'kelp model show' kelp model show model.yaml
grep -q '^2 parameters in 2 tensors' "$scratch/log" || fail "the model is shown as: $(cat "$scratch/log")"
# The example's own build file finds the header from where it lies.
logged 'the example of a model' cmake -S "$prefix/share/kelp/examples/plugin" -B "$scratch/plugin"
logged 'the example of a model' cmake --build "$scratch/plugin"
[ -s "$scratch/plugin/conv_small.so" ] || fail 'the example of a model is not built'

printf 'install: all in order\n'
