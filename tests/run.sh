#!/usr/bin/env bash
# Builds everything and runs every test. On a fresh Debian 12 machine, as root:
#
#   tests/run.sh                installs what is missing first (cmake/deps.sh)
#   tests/run.sh --no-install   fails when something is missing
#
# 1. release build, every test
# 2. AddressSanitizer and UndefinedBehaviorSanitizer, the tests labelled unit
# 3. ThreadSanitizer without gRPC (Debian's is not instrumented and reports falsely), unit again
# 4. the sources: format, clang-tidy (tests/lint.sh)
#
# Goes on after a failure, so that one run shows all of them. The last line is "N passed, N failed";
# the exit status is 0 only when nothing failed.
set -uo pipefail
cd "$(dirname "$0")/.."

install=1
for argument in "$@"; do
  case "${argument//_/-}" in
    --no-install) install=0 ;;
    -h|--help) sed -n '2,14s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "run.sh: unknown option $argument (known: --no-install)" >&2; exit 2 ;;
  esac
done

started=$SECONDS
passed=0 failed=0
summary=()

finish() {
  echo
  echo "== summary, $((SECONDS - started)) s"
  printf '  %s\n' "${summary[@]}"
  echo "$passed passed, $failed failed"
  [ "$passed" -gt 0 ] && [ "$failed" -eq 0 ]
  exit
}

count() { # STAGE PASSED FAILED SECONDS
  passed=$((passed + $2)) failed=$((failed + $3))
  summary+=("$(printf '%-34s %4d passed %4d failed %5d s' "$1" "$2" "$3" "$4")")
}

# What cannot even be prepared is one failure.
require() { # STAGE COMMAND...
  local stage=$1 begin=$SECONDS
  shift
  echo
  echo "== $stage"
  "$@" </dev/null && return 0
  echo "run.sh: failed: $*"
  count "$stage" 0 1 $((SECONDS - begin))
  return 1
}

# A compiler on gRPC or libtorch headers takes up to 2 GiB.
jobs=$(nproc)
memory_jobs=$(($(awk '/^MemAvailable/ {print $2}' /proc/meminfo) / 2097152 + 1))
[ "$memory_jobs" -lt "$jobs" ] && jobs=$memory_jobs

run_ctest() { # STAGE PRESET [CTEST ARGUMENT...]
  local stage=$1 preset=$2 begin=$SECONDS log out total bad
  shift 2
  echo
  echo "== $stage"
  log=$(mktemp)
  ctest --preset "$preset" --no-tests=error -j "$jobs" "$@" </dev/null 2>&1 | tee "$log"
  out=$(grep -oE '[0-9]+ tests? failed out of [0-9]+' "$log" | tail -n 1)
  rm -f "$log"
  if [ -z "$out" ]; then
    echo "run.sh: ctest did not say how many tests ran"
    count "$stage" 0 1 $((SECONDS - begin))
    return
  fi
  bad=${out%% *} total=${out##* }
  count "$stage" $((total - bad)) "$bad" $((SECONDS - begin))
}

if [ "$install" -eq 1 ]; then
  require "dependencies" cmake/deps.sh || finish
else
  require "dependencies" cmake/deps.sh --check || finish
fi

# A file that does not compile must not hide what the others would have shown: -k 0.
if require "configure release" cmake --preset release; then
  require "build release" cmake --build --preset release -j "$jobs" -- -k 0
  run_ctest "release" release
fi

if require "configure address and undefined" cmake --preset asan; then
  require "build address and undefined" \
    cmake --build --preset asan -j "$jobs" --target unit_tests -- -k 0
  export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1
  export UBSAN_OPTIONS=print_stacktrace=1
  export LSAN_OPTIONS=suppressions=$PWD/cmake/lsan.supp:print_suppressions=0
  run_ctest "address and undefined" asan -L '^unit$'
fi

if require "configure thread" cmake --preset tsan; then
  require "build thread" cmake --build --preset tsan -j "$jobs" --target unit_tests -- -k 0
  export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
  run_ctest "thread" tsan -L '^unit$'
fi

begin=$SECONDS
echo
echo "== lint"
log=$(mktemp)
tests/lint.sh </dev/null 2>&1 | tee "$log"
last=$(tail -n 1 "$log")
rm -f "$log"
if [[ $last =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed$ ]]; then
  count "lint" "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}" $((SECONDS - begin))
else
  count "lint" 0 1 $((SECONDS - begin))
fi
finish
