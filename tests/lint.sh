#!/usr/bin/env bash
# Checks the sources without running them: formatting, scripts, and clang-tidy's short list. (The
# locking that the annotations in base/mutex.h promise is checked where clang compiles anyway, in the
# sanitizer builds, which take -Wthread-safety for an error. Here is only the proof that it can fail.)
#
#   tests/lint.sh
#
# The debug preset says how each file is compiled; it is configured here, and nothing of it is built
# but the headers that protoc writes. clang-tidy goes over the files in the order of their last
# change, newest first, until LINT_SECONDS (default 150) are over; the rest is counted and named.
# The last line is "N passed, N failed", a check per file and kind.
set -uo pipefail
cd "$(dirname "$0")/.."
build=build-debug
export LINT_END=$(($(date +%s) + ${LINT_SECONDS:-150})) LINT_BUILD=$build
jobs=$(nproc)

for tool in clang-format clang-tidy; do
  command -v "$tool" >/dev/null ||
    { echo "lint: $tool is not installed (cmake/deps.sh installs it)"; echo "0 passed, 1 failed"; exit 1; }
done
cmake --preset debug >/dev/null && cmake --build --preset debug --target perdure_wire_proto_generated >/dev/null ||
  { echo "lint: the debug preset cannot be configured"; echo "0 passed, 1 failed"; exit 1; }

results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
export LINT_RESULTS=$results

folders=()
for folder in src include tests examples bench kernels; do [ -d "$folder" ] && folders+=("$folder"); done
mapfile -t sources < <(find "${folders[@]}" -name '*.cc' -o -name '*.h' | sort)
mapfile -t scripts < <(find cmake tests examples .ci bench -name '*.sh' -o -path .ci/run 2>/dev/null | sort)

# Each check leaves a line "ok|bad|later KIND FILE" in a file of its own.
note() { printf '%s %s %s\n' "$1" "$2" "$3" >>"$LINT_RESULTS/$BASHPID"; }
export -f note

format() {
  if clang-format --dry-run -Werror "$1" 2>&1; then note ok format "$1"; else note bad format "$1"; fi
}
export -f format

script() {
  if bash -n "$1" && [ -x "$1" ]; then
    note ok script "$1"
  else
    echo "$1: does not parse, or has no run bit"
    note bad script "$1"
  fi
}
export -f script

tidy() {
  local standard=() output
  if [ "$(date +%s)" -ge "$LINT_END" ]; then
    note later tidy "$1"
    return
  fi
  # The headers of libtorch 1.13 are no C++20 to clang 14; what uses them is C++17 as well.
  case $1 in src/torch/*|*train_gpt.cc) standard=(--extra-arg=-std=c++17) ;; esac
  # The compile commands are gcc's: clang need not know every warning option in them.
  if output=$(clang-tidy -p "$LINT_BUILD" --quiet ${standard[@]+"${standard[@]}"} \
      --extra-arg=-Wno-unknown-warning-option --extra-arg=-Wthread-safety "$1" 2>/dev/null); then
    note ok tidy "$1"
  else
    printf '%s\n' "$output"
    note bad tidy "$1"
  fi
}
export -f tidy

each() { # FUNCTION, files on stdin
  xargs -d '\n' -r -n 1 -P "$jobs" bash -c "$1 \"\$1\"" _
}

printf '%s\n' "${sources[@]}" | each format
printf '%s\n' "${scripts[@]}" | each script

# The analysis must be able to fail: a counter that is touched without its lock.
probe=$results/probe.cc
cat >"$probe" <<'PROBE'
#include "base/mutex.h"
struct Counter {
  perdure::Mutex mutex_;
  int value_ PERDURE_GUARDED_BY(mutex_) = 0;
  int Read() { return value_; }
};
PROBE
if clang++ -std=c++20 -Isrc -Iinclude -fsyntax-only -Werror -Wthread-safety "$probe" >"$results/said" 2>&1 ||
    ! grep -q 'requires holding mutex' "$results/said"; then
  echo "lint: an unlocked access was not found; the locking analysis does not work"
  note bad locking probe
fi

# Only what this build compiles: files of parts that are left out have no command. Newest first.
grep -o '"file": "[^"]*"' "$build/compile_commands.json" | cut -d'"' -f4 | sed "s|^$PWD/||" |
  grep -E '^(src|examples|bench)/' | sort -u |
  while read -r file; do
    printf '%s %s\n' "$(git log -1 --format=%ct -- "$file" 2>/dev/null || stat -c %Y "$file")" "$file"
  done | sort -rn | cut -d' ' -f2- | each tidy

cat "$results"/[0-9]* >"$results/all" 2>/dev/null
later=$(grep -c '^later' "$results/all")
[ "$later" -eq 0 ] ||
  echo "lint: the time was over before $later files:" \
    "$(sed -n 's/^later tidy //p' "$results/all" | tr '\n' ' ')"
passed=$(grep -c '^ok' "$results/all") failed=$(grep -c '^bad' "$results/all")
sed -n 's/^bad /lint: failed: /p' "$results/all" | sort
echo "$passed passed, $failed failed"
[ "$passed" -gt 0 ] && [ "$failed" -eq 0 ]
