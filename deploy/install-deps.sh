#!/bin/bash
# Install what building, testing and running Kelp needs, from the system's own packages.
# Debian 12 and Ubuntu 24.04. Says nothing and needs no rights when everything is there.
set -euo pipefail

packages=(
    cmake ninja-build gcc g++ pkg-config
    libgrpc-dev libprotobuf-c-dev protobuf-c-compiler protobuf-compiler
    libcurl4-openssl-dev libssl-dev libyaml-dev libcjson-dev libxxhash-dev zlib1g-dev libcairo2-dev
    libopenblas-pthread-dev libdnnl-dev
    librocksdb-dev libmicrohttpd-dev libgnutls28-dev
    etcd-server etcd-client
    check iproute2 man-db spin
    slurmctld slurmd slurm-client munge
)
# Daemons that come with them. Kelp and its tests start their own.
services=(etcd-server:etcd munge:munge slurmctld:slurmctld slurmd:slurmd)
dev_packages=(clang-format-14 clang-tidy-14 shellcheck gdb zsh fish lintian mmdebstrap
    podman crun iptables catatonit python3-yaml)
bench_packages=(python3-torch)
python_packages=(python3-torch python3-numpy python3-setuptools python3-pip python3-venv python3-wheel python3-dev mypy)

usage() {
    cat <<'USAGE'
usage: deploy/install-deps.sh [--dev] [--bench] [--python] [--list]

Install the packages that Kelp needs (root, or a user who may use sudo).

  --dev    also what contributors use: clang-format, clang-tidy, shellcheck, gdb, and what tests
           of the installation use: zsh, fish, lintian, mmdebstrap, podman
  --bench  also python3-torch, which the benchmarks compare with (about 1 GB)
  --python also what builds and tests the Python package: python3-torch, numpy, setuptools, pip, mypy
  --list   print the packages that are missing and install nothing
USAGE
}

fail() {
    printf 'install-deps: %s\n' "$1" >&2
    exit "${2:-1}"
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    else
        sudo "$@"
    fi
}

is_installed() {
    case "$(dpkg-query -W -f='${db:Status-Abbrev}\n' "$1" 2>/dev/null || true)" in
    ii*) return 0 ;;
    *) return 1 ;;
    esac
}

print_missing() {
    local package
    for package in "$@"; do
        is_installed "$package" || printf '%s\n' "$package"
    done
}

# Keep packages from starting daemons while they are installed: an etcd would take port 2379 for nothing.
hold_services() {
    if [ -e /usr/sbin/policy-rc.d ]; then
        return # somebody has decided already
    fi
    local policy="$scratch/policy-rc.d"
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    as_root install -m 755 "$policy" /usr/sbin/policy-rc.d
    services_held=1
}

release_services() {
    if [ "$services_held" -eq 1 ]; then
        as_root rm -f /usr/sbin/policy-rc.d
        services_held=0
    fi
}

# Nor may they start with the next boot, unless they were there before us.
disable_services() {
    local service
    if command -v systemctl >/dev/null; then
        for service in "$@"; do as_root systemctl disable --now "$service.service" >/dev/null 2>&1 || true; done
    fi
}

run_apt() {
    # sudo would drop the proxy settings.
    if ! as_root env DEBIAN_FRONTEND=noninteractive ${http_proxy:+"http_proxy=$http_proxy"} \
        ${https_proxy:+"https_proxy=$https_proxy"} apt-get -q -o DPkg::Lock::Timeout=300 "$@" \
        >"$scratch/apt.log" 2>&1; then
        tail -n 15 "$scratch/apt.log" >&2
        return 1
    fi
}

install_packages() {
    local absent=() package stale=0
    printf 'install-deps: installing %d packages: %s\n' "$#" "$*"
    # Without that mode apt-get reports success also when nothing could be fetched.
    if ! run_apt -o APT::Update::Error-Mode=any update; then
        stale=1
        printf 'install-deps: the package lists could not be fetched; going on with those that are there\n' >&2
    fi
    for package in "$@"; do
        apt-cache show "$package" >/dev/null 2>&1 || absent+=("$package")
    done
    if [ "${#absent[@]}" -gt 0 ] && [ "$stale" -eq 1 ]; then
        fail "not in the package lists, which could not be fetched: ${absent[*]}; check the network \
(and http_proxy), then try again"
    fi
    if [ "${#absent[@]}" -gt 0 ]; then
        fail "no package source offers: ${absent[*]}; Debian 12 (main) and Ubuntu 24.04 (main and universe) \
have them, see /etc/apt/sources.list"
    fi
    hold_services
    run_apt install -y --no-install-recommends "$@" ||
        fail "apt-get could not install the packages; its last lines are above"
}

with_dev=0
with_bench=0
with_python=0
list_only=0
for argument in "$@"; do
    case "$argument" in
    --dev) with_dev=1 ;;
    --bench) with_bench=1 ;;
    --python) with_python=1 ;;
    --list) list_only=1 ;;
    -h | --help)
        usage
        exit 0
        ;;
    *) fail "$argument: no such option; there are --dev, --bench, --python, --list and --help" 2 ;;
    esac
done
if [ "$with_dev" -eq 1 ]; then packages+=("${dev_packages[@]}"); fi
if [ "$with_bench" -eq 1 ]; then packages+=("${bench_packages[@]}"); fi
if [ "$with_python" -eq 1 ]; then packages+=("${python_packages[@]}"); fi

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    fail "this is not Debian or Ubuntu (no apt-get); install the equivalents of: ${packages[*]}"
fi
mapfile -t missing < <(print_missing "${packages[@]}")
if [ "$list_only" -eq 1 ]; then
    if [ "${#missing[@]}" -gt 0 ]; then printf '%s\n' "${missing[@]}"; fi
    exit 0
fi
if [ "${#missing[@]}" -eq 0 ]; then
    exit 0
fi
if [ "$(id -u)" -ne 0 ] && ! command -v sudo >/dev/null; then
    fail "these packages are missing: ${missing[*]}; run deploy/install-deps.sh as root, or install sudo"
fi
if [ "$(id -u)" -ne 0 ] && ! sudo -v 2>/dev/null; then
    fail "these packages are missing: ${missing[*]}; sudo refused, run deploy/install-deps.sh as root"
fi

services_held=0
scratch="$(mktemp -d)"
trap 'release_services; rm -rf "$scratch"' EXIT
new_services=()
for entry in "${services[@]}"; do is_installed "${entry%:*}" || new_services+=("${entry#*:}"); done
install_packages "${missing[@]}"
disable_services "${new_services[@]}"
mapfile -t missing < <(print_missing "${packages[@]}")
if [ "${#missing[@]}" -gt 0 ]; then
    fail "still missing after the installation: ${missing[*]}"
fi
printf 'install-deps: done\n'
