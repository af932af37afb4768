#!/usr/bin/env bash
# Installs everything that Perdure needs to build, test and run, with apt, on Debian 12 or Ubuntu
# 24.04 (there without libtorch). This is the one list of dependencies: the scripts, CI and the
# documentation all come here.
#
#   cmake/deps.sh            install what is missing; does nothing when all is there
#   cmake/deps.sh --check    install nothing; exit 1 and name what is missing
#   cmake/deps.sh --list     print the list, one package a line
#
# Needs root and apt only when something is missing.
set -euo pipefail

packages=(
  # to build
  g++ cmake ninja-build ccache pkg-config git binutils
  # a second compiler and its sanitizers, and to check the sources (tests/lint.sh)
  clang libclang-rt-dev clang-tidy clang-format
  # supervisor, agent, command line
  libgrpc++-dev libgrpc-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev
  libsqlite3-dev libyaml-cpp-dev libcli11-dev
  # everywhere
  libspdlog-dev libfmt-dev nlohmann-json3-dev libxxhash-dev
  # storage and collectives
  liburing-dev libgloo-dev
  # the libtorch adapter and the examples; OpenBLAS, because the reference BLAS that would come in
  # as libtorch's dependency is many times slower
  libtorch-dev libopenblas-dev
  # tests and benchmarks
  libgtest-dev libgmock-dev libbenchmark-dev fio
  # power cuts on real file systems (tests/drills/power_cut.sh)
  e2fsprogs xfsprogs util-linux mount
)

# Ubuntu has no package of it: unpack one from pytorch.org and set Torch_DIR, or go without.
if [ "$(. /etc/os-release 2>/dev/null; printf '%s' "${ID:-}")" = ubuntu ]; then
  for i in "${!packages[@]}"; do
    [ "${packages[i]}" = libtorch-dev ] && unset 'packages[i]'
  done
fi

say() { printf 'deps: %s\n' "$*"; }
fail() { printf 'deps: %s\n' "$*" >&2; exit 1; }

mode=install
case "${1:-}" in
  "") ;;
  --check) mode=check ;;
  --list) printf '%s\n' "${packages[@]}"; exit 0 ;;
  -h|--help) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
  *) printf 'deps: unknown option %s (see --help)\n' "$1" >&2; exit 2 ;;
esac

command -v dpkg-query >/dev/null ||
  fail "this system has no dpkg; install by other means what this prints: $0 --list"

# A package counts as there only when it is fully installed, not when merely its configuration is.
missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done

if [ ${#missing[@]} -gt 0 ]; then
  [ "$mode" = install ] || fail "missing: ${missing[*]} (run $0 as root)"
  command -v apt-get >/dev/null || fail "no apt-get here; missing: ${missing[*]}"
  [ "$(id -u)" -eq 0 ] ||
    fail "installing needs root; run: sudo $0  (missing: ${missing[*]})"

  export DEBIAN_FRONTEND=noninteractive
  say "installing ${#missing[@]} of ${#packages[@]} packages: ${missing[*]}"
  # The index may be too old to name a version that the mirror still has: refresh once, then install.
  apt-get update -qq </dev/null
  apt-get install -y -qq --no-install-recommends \
    -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 "${missing[@]}" </dev/null >/dev/null
  say "installed"
else
  say "all ${#packages[@]} packages are there; nothing to do"
fi

# Debian lets several packages provide libblas.so.3. Having OpenBLAS installed is not yet using it.
link="libblas.so.3-$(dpkg-architecture -qDEB_HOST_MULTIARCH 2>/dev/null || gcc -print-multiarch)"
blas=$(update-alternatives --query "$link" 2>/dev/null | sed -n 's/^Value: //p' || true)
case "$blas" in
  *openblas*) ;;
  "") say "note: no alternative named $link; BLAS is whatever the loader finds" ;;
  *)
    openblas=$(update-alternatives --list "$link" | grep -m1 openblas || true)
    if [ -n "$openblas" ] && [ "$mode" = install ] && [ "$(id -u)" -eq 0 ]; then
      say "choosing OpenBLAS instead of $blas"
      update-alternatives --set "$link" "$openblas" >/dev/null
    else
      say "note: BLAS is $blas, which is slow; run $0 as root to choose OpenBLAS"
    fi ;;
esac
