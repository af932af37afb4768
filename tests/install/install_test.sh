#!/usr/bin/env bash
# Installs the build into a scratch directory and uses it as a stranger would: what is there, what
# libperdure exports, and a ten-line program in C++17 built against it and run.
#
#   install_test.sh BUILD_DIR SOURCE_DIR COMPILER
set -euo pipefail
build=$1 source=$2 compiler=$3

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { echo "install_test: $*" >&2; exit 1; }

cmake --install "$build" --prefix "$scratch/prefix" >/dev/null
cd "$scratch"

# Headers: include/perdure, and nothing else.
expected=$(cd "$source/include" && find . -name '*.h' | sort)
found=$(cd prefix/include && find . -type f | sort)
[ -f prefix/include/perdure/torch.h ] || expected=$(grep -v 'perdure/torch.h$' <<<"$expected")
[ "$expected" = "$found" ] || fail "headers differ: $(diff <(echo "$expected") <(echo "$found"))"

# Symbols: the API and what the compiler makes of it.
library=$(find prefix -name 'libperdure.so' | head -n 1)
[ -n "$library" ] || fail "no libperdure.so was installed"
allowed='^((vtable|VTT|typeinfo|typeinfo name) for |(non-)?virtual thunk to )?perdure::'
symbols() { nm -D -C --defined-only "$1" | sed 's/^[0-9a-f]* *[A-Za-z] //'; }
foreign() { grep -vE "$allowed" || true; }
others=$(symbols "$library" | foreign)
[ -z "$others" ] || fail "libperdure exports more than its API: $(head -n 5 <<<"$others")"
count=$(symbols "$library" | wc -l)
[ "$count" -ge 20 ] || fail "libperdure exports only $count symbols"
[ -n "$(echo 'fmt::v9::vformat()' | foreign)" ] || fail "the check of the symbols finds nothing"
# Rooms are hidden even though they share the namespace: these are ours, and not the API's.
inside=$(symbols "$library" | grep -E 'perdure::(v1::|UniqueFd|ErrnoStatus|Reporter|KeyValue)' || true)
[ -z "$inside" ] || fail "libperdure exports its insides: $(head -n 5 <<<"$inside")"

# The consumer, with nothing of ours on its path but the prefix.
cmake -S "$source/tests/install/consumer" -B consumer -DCMAKE_CXX_COMPILER="$compiler" \
  -DCMAKE_PREFIX_PATH="$scratch/prefix" -DCMAKE_BUILD_TYPE=Release >configure.log 2>&1 ||
  { cat configure.log; fail "find_package(perdure) does not work"; }
cmake --build consumer >build.log 2>&1 || { cat build.log; fail "the consumer does not build"; }
output=$(env -u RANK -u WORLD_SIZE -u PERDURE_JOB -u PERDURE_AGENT consumer/consumer 2>run.log) ||
  { cat run.log; fail "the consumer does not run"; }
[ "$output" = "1 rank, sum 3" ] || fail "the consumer said: $output"

if [ -e prefix/bin/perdure ]; then
  prefix/bin/perdure --help >/dev/null || fail "the installed program does not run"
fi
echo "install_test: $count symbols, the consumer said: $output"
