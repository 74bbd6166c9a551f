#!/bin/bash
# A container image of a build: Kelp's Debian package, the libraries that it needs, and etcd. Packages come from
# where those of this machine come from (apt-get); what apt has in its cache is not fetched again.
set -euo pipefail

usage() {
    cat <<'USAGE'
usage: deploy/container/build.sh [options] [BUILD_DIR]

Make the container image of a build (build/release). It has kelp, the daemons, etcd and etcdctl, and no shell.

  --tag NAME        the image's name (default localhost/kelp:VERSION)
  --engine COMMAND  podman, docker or another program with their verb "build" (default podman)
  --cuda FOLDER     take cuBLASLt from there too, for cluster.device: cuda (such as /usr/local/cuda/lib64);
                    the build must have the CUDA device
  --tar FILE        write the image's file tree there as a tar archive, and make no image
USAGE
}

fail() {
    printf 'container: %s\n' "$1" >&2
    exit "${2:-1}"
}

tag=""
engine=podman
cuda=""
tar_file=""
build=""
while [ $# -gt 0 ]; do
    case "$1" in
    --tag | --engine | --cuda | --tar)
        [ $# -ge 2 ] || fail "$1 needs a value; see --help" 2
        case "$1" in
        --tag) tag="$2" ;;
        --engine) engine="$2" ;;
        --cuda) cuda="$2" ;;
        *) tar_file="$2" ;;
        esac
        shift
        ;;
    -h | --help)
        usage
        exit 0
        ;;
    -*) fail "$1: no such option; --help lists them" 2 ;;
    *)
        [ -z "$build" ] || fail "one build is expected; see --help" 2
        build="$1"
        ;;
    esac
    shift
done
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
build="${build:-$here/../../build/release}"
[ -x "$build/bin/kelp" ] || fail "$build: no bin/kelp there; deploy/build.sh release builds it" 2
build="$(cd "$build" && pwd)"
if [ -n "$cuda" ]; then
    [ -e "$build/lib/kelp/libkelp-cuda.so" ] ||
        fail "$build has no CUDA device: build it where nvcc is found, or leave --cuda out" 2
    compgen -G "$cuda/libcublasLt.so.13*" >/dev/null || fail "$cuda: no libcublasLt.so.13 there" 2
fi
for program in apt-get cpack dpkg-deb; do
    command -v "$program" >/dev/null || fail "there is no $program; this needs Debian 12 or Ubuntu 24.04, and cmake"
done
read -ra engine_words <<<"$engine"
if [ -z "$tar_file" ] && ! command -v "${engine_words[0]}" >/dev/null; then
    fail "there is no ${engine_words[0]}: install podman, name another program by --engine, or use --tar" 2
fi

scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
umask 022
# What a command says matters when it fails.
quietly() {
    "$@" >"$scratch/log" 2>&1 || {
        tail -n 20 "$scratch/log" >&2
        return 1
    }
}

# ---- packages ----

quietly cpack -G DEB --config "$build/CPackConfig.cmake" -B "$scratch/made" ||
    fail "cpack could not make the package"
kelp_deb="$(echo "$scratch"/made/kelp_*.deb)"
version="$(dpkg-deb -f "$kelp_deb" Version)"
tag="${tag:-localhost/kelp:$version}"

# As if nothing were installed: apt's answer is all that these packages need.
debs="$scratch/debs"
mkdir -p "$debs/partial"
: >"$scratch/status"
find /var/cache/apt/archives -maxdepth 1 -name '*.deb' -exec ln -s -t "$debs" {} +
apt() {
    apt-get -q -y -o "Dir::State::status=$scratch/status" -o "Dir::State::extended_states=$scratch/states" \
        -o "Dir::Cache::archives=$debs" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= \
        -o Debug::NoLocking=1 -o "APT::Sandbox::User=$(id -un)" --no-install-recommends "$@" \
        install "$kelp_deb" etcd-server etcd-client
}
quietly apt --simulate || fail "apt knows no packages that fit; apt-get update fetches the lists"
sed -nE 's/^Inst ([^ ]+) \(([^ ]+) .*\[([a-z0-9]+)\]\).*/\1 \2 \3/p' "$scratch/log" | grep -v '^kelp ' >"$scratch/list"
quietly apt --download-only || fail "apt could not fetch the packages; after apt-get update it may"

# ---- the file tree ----

root="$scratch/root"
mkdir -p "$root/usr/bin" "$root/usr/lib" "$root/usr/sbin" "$root/usr/lib64" "$root/etc" "$root/var/lib/dpkg/status.d" \
    "$root/tmp" "$root/run" "$root/proc" "$root/sys" "$root/dev"
for folder in bin lib sbin lib64; do ln -s "usr/$folder" "$root/$folder"; done
unpack() {
    dpkg-deb --fsys-tarfile "$1" | tar -x -C "$root" --no-same-owner --keep-directory-symlink
    # Where scanners look for what an image without dpkg has.
    dpkg-deb -f "$1" Package Status Version Architecture Maintainer Source Depends Description \
        >"$root/var/lib/dpkg/status.d/$(dpkg-deb -f "$1" Package)"
}
# What only the installation of packages needs.
not_run='adduser|debconf|dpkg|init-system-helpers|lib.*-perl|libpam.*|libperl.*|passwd|perl.*|tar|usrmerge'
unpack "$kelp_deb"
while read -r name number architecture; do
    if ! [[ "$name" =~ ^($not_run)$ ]]; then unpack "$debs/${name}_${number//:/%3a}_$architecture.deb"; fi
done <"$scratch/list"

# No other program, and nothing that nobody reads there.
find "$root/usr/bin" "$root/usr/sbin" -mindepth 1 -not -name 'kelp*' -not -name etcd -not -name etcdctl -delete
find "$root/usr/share" -mindepth 1 -maxdepth 1 -not -name doc -not -name kelp -not -name fonts -not -name fontconfig \
    -exec rm -rf {} +
find "$root/usr/share/doc" -not -type d -not -name copyright -delete
find "$root/usr/share/doc" -type d -empty -delete
find "$root/etc" -mindepth 1 -maxdepth 1 -not -name fonts -exec rm -rf {} +
rm -rf "$root/usr/include" "$root"/usr/lib/{systemd,sysusers.d,tmpfiles.d,pkgconfig} "$root/var/lib/etcd"
find "$root" -type f -perm /6000 -exec chmod u-s,g-s {} +

# What maintainer scripts would have done.
library="$root/usr/lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH 2>/dev/null || gcc -print-multiarch)"
ln -sf openblas-pthread/libopenblas.so.0 "$library/libopenblas.so.0"
printf 'root:x:0:0:root:/:/nonexistent\nkelp:x:10001:10001:Kelp:/tmp:/nonexistent\n' >"$root/etc/passwd"
printf 'root:x:0:\nkelp:x:10001:\n' >"$root/etc/group"
printf 'passwd: files\ngroup: files\nhosts: files dns\n' >"$root/etc/nsswitch.conf"
chmod 1777 "$root/tmp"
if [ -n "$cuda" ]; then
    mkdir -p "$root/usr/local/cuda/lib64"
    cp -P "$cuda"/libcublasLt.so.13* "$root/usr/local/cuda/lib64"
fi

# Every library that a program loads is in the tree.
loader="$(echo "$root"/usr/lib64/ld-linux-*.so.*)"
for program in "$root"/usr/bin/kelp*; do
    missing="$("$loader" --inhibit-cache --library-path "$library" --list "$program" |
        awk -v root="$root/" '!/vdso/ && index($0, root) == 0 { print $1 }')"
    [ -z "$missing" ] || fail "$(basename "$program") needs what no package brought: $missing"
done

mkdir "$scratch/context"
tar -c -C "$root" --sort=name --numeric-owner --owner=0 --group=0 -f "$scratch/context/rootfs.tar" .
if [ -n "$tar_file" ]; then
    cp "$scratch/context/rootfs.tar" "$tar_file"
    printf 'container: %s, %s\n' "$tar_file" "$(du -h "$tar_file" | cut -f1)"
    exit 0
fi
quietly "${engine_words[@]}" build --build-arg "VERSION=$version" --tag "$tag" --file "$here/Containerfile" \
    "$scratch/context" || fail "${engine_words[*]} build failed"
printf 'container: %s, %s\n' "$tag" "$(du -sh --apparent-size "$scratch/context/rootfs.tar" | cut -f1)"
