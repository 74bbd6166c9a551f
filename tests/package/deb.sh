#!/bin/bash
# The Debian package: made, looked at by lintian, installed by apt on a clean Debian 12 of its own, where a user who is
# not root trains the example. By hand: it needs root, a source of Debian packages and some minutes.
# usage: tests/package/deb.sh SOURCE_DIR BUILD_DIR [KEEP_DIR]   (KEEP_DIR: where the packages are left)
set -euo pipefail
usage='usage: tests/package/deb.sh SOURCE_DIR BUILD_DIR [KEEP_DIR]'
: "${1:?$usage}"
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
chmod 755 "$scratch/try"
# As by default, also what is recommended: mmdebstrap turns that off. What apt says is of interest when it fails.
apt="chroot \"\$1\" apt-get -q -o APT::Install-Recommends=true"
install="$apt install -y /tmp/$(basename "${main[0]}") >$scratch/apt.log 2>&1 || { cat $scratch/apt.log; exit 1; }"
# Nothing of it may be left behind.
gone="! chroot \"\$1\" find /usr /etc /var/lib -path /var/lib/apt -prune -o -name '*kelp*' -print | grep ."
# Packages come from where those of this machine come from.
mmdebstrap --variant=minbase --quiet \
    --customize-hook="copy-in ${packages[*]} $scratch/try /tmp" \
    --customize-hook="$install" \
    --customize-hook="chroot \"\$1\" useradd -m user" \
    --customize-hook="chroot \"\$1\" su user -c 'HOME=/home/user /tmp/try'" \
    --customize-hook="chroot \"\$1\" apt-get -q purge -y kelp >>$scratch/apt.log 2>&1" \
    --customize-hook="$gone" \
    bookworm /dev/null
if [ -n "${3:-}" ]; then
    mkdir -p "$3"
    cp "${packages[@]}" "$3"
fi
printf '\ndeb: installed, trained and removed on a clean Debian 12\n'
