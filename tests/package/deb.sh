#!/bin/bash
# The Debian packages: made, looked at by lintian, installed by apt on a clean Debian 12 of its own, where a user who is
# not root trains the example, and scripts with numpy and PyTorch. By hand: it needs root, a source of Debian packages
# and some minutes.
# usage: tests/package/deb.sh SOURCE_DIR BUILD_DIR [KEEP_DIR]   (KEEP_DIR: where the packages are left)
set -euo pipefail
usage='usage: tests/package/deb.sh SOURCE_DIR BUILD_DIR [KEEP_DIR]'
source_dir="$(cd "${1:?$usage}" && pwd)"
build_dir="$(cd "${2:?$usage}" && pwd)"
scratch="$(mktemp -d)"
chmod 755 "$scratch"
trap 'rm -rf "$scratch"' EXIT

skip() {
    printf 'skipped: %s\n' "$1"
    exit 77
}
if [ "$(id -u)" -ne 0 ]; then skip 'it makes a Debian of its own, which needs root'; fi
for program in lintian mmdebstrap; do
    command -v "$program" >/dev/null || skip "$program is not installed (deploy/install-deps.sh --dev)"
done

printf '== packages\n'
(cd "$build_dir" && cpack -G DEB -B "$scratch" >"$scratch/log" 2>&1) || {
    cat "$scratch/log"
    exit 1
}
main=("$scratch"/kelp_*.deb)
packages=("${main[@]}" "$scratch"/{libkelp-worker1,kelp-dev}_*.deb)
python=("$scratch"/python3-kelp_*.deb)
if [ -e "${python[0]}" ]; then
    packages+=("${python[@]}")
else
    python=()
    printf 'not tested: python3-kelp, which was built without headers (deploy/install-deps.sh --python)\n'
fi
for package in "${packages[@]}"; do
    printf '\n%s\n' "$(basename "$package")"
    dpkg-deb --field "$package"
done

printf '\n== lintian\n'
lintian --allow-root --fail-on error "${packages[@]}"

printf '\n== a clean Debian 12\n'
cat >"$scratch/try" <<'TRY'
#!/bin/sh
set -eu
cd "$HOME"
kelp --version
kelp train /usr/share/kelp/examples/etth1-dlinear.yaml
kelp status
kelp predict --out predictions.csv
head -n 3 predictions.csv
TRY
cat >"$scratch/try-python" <<'TRY'
#!/bin/sh
set -eu
cd "$HOME"
python3 -c 'import kelp, kelp.torch; print(kelp.__version__, kelp.__file__)'
python3 -c 'import importlib.metadata as m; print(m.version("kelp"), m.requires("kelp"))'
kelp run /tmp/plane_numpy.py
kelp run /usr/share/kelp/examples/pytorch/plane.py
TRY
cp "$source_dir/tests/package/python/plane_numpy.py" "$scratch"
chmod 755 "$scratch"/try* "$scratch"/*.py
hooks=()
inside() { hooks+=("--customize-hook=chroot \"\$1\" $1"); }
as_user() { inside "su user -c 'HOME=/home/user $1'"; }
apt() { # what it says is of interest when it fails
    local log="$scratch/apt.log"
    inside "apt-get -q -y -o Dpkg::Options::=--force-unsafe-io $1 >$log 2>&1 || { cat $log; exit 1; }"
}
hooks+=("--customize-hook=copy-in ${packages[*]} $scratch/try $scratch/try-python $scratch/plane_numpy.py /tmp")
# As by default, also what is recommended: mmdebstrap turns that off.
apt "install -o APT::Install-Recommends=true /tmp/$(basename "${main[0]}")"
inside 'useradd -m user'
as_user /tmp/try
if [ "${#python[@]}" -gt 0 ]; then
    # What python3-torch recommends are compilers.
    apt "install python3-torch /tmp/$(basename "$scratch"/libkelp-worker1_*.deb) /tmp/$(basename "${python[0]}")"
    inside 'test -e /usr/lib/python3/dist-packages/kelp/__pycache__' # a user could not write it
    as_user /tmp/try-python
    apt 'purge python3-kelp libkelp-worker1'
fi
apt 'purge kelp'
# Nothing of it may be left behind.
hooks+=("--customize-hook=! chroot \"\$1\" find /usr /etc /var/lib -path /var/lib/apt -prune -o -name '*kelp*' -print |
    grep .")
# Packages come from where those of this machine come from.
mmdebstrap --variant=minbase --quiet "${hooks[@]}" bookworm /dev/null
if [ -n "${3:-}" ]; then
    mkdir -p "$3"
    cp "${packages[@]}" "$3"
fi
printf '\ndeb: installed, trained and removed on a clean Debian 12\n'
