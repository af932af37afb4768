#!/usr/bin/env bash
# Runs the yardsticks and prints one JSON line for each case of each, then all as a table on stderr.
#
#   bench/run.sh             all but large_tensor, which writes 10 GiB
#   bench/run.sh ID …        only these
#
# The disk yardsticks write to $PERDURE_BENCH_DIR (default: the temporary directory) and need fio;
# checkpoint_peers needs a $PERDURE_BENCH_PYTHON (default: python3) with torch (bench/peers/README.md).
# Reads the binaries of the release build (build/bin/bench, or PERDURE_BUILD/bin/bench). Close other
# programs first. `ratio` is the median of pairs measured one right after the other, `spread` the
# middle half of them; `others` is the share of the CPUs that other programs took, where it was
# measured, and `load` the load average at the end.
set -euo pipefail
cd "$(dirname "$0")/.."

case "${1:-}" in
  -h|--help) sed -n '2,14s/^# \{0,1\}//p' "$0"; exit 0 ;;
esac
directory=${PERDURE_BUILD:-build}/bin/bench
[ -d "$directory" ] || {
  echo "run.sh: no $directory; build first: cmake --preset release && cmake --build build" >&2
  exit 2
}
if [ $# -eq 0 ]; then
  for binary in "$directory"/*; do
    [ "$(basename "$binary")" = large_tensor ] || set -- "$@" "$(basename "$binary")"
  done
fi
# A binary may answer several: capture_blocking is answered by `capture capture_blocking`.
binary_of() { if [ -x "$directory/$1" ]; then echo "$1"; else echo "${1%%_*} $1"; fi; }
for id in "$@"; do
  [ -x "$directory/$(binary_of "$id" | cut -d' ' -f1)" ] || {
    echo "run.sh: no yardstick $id (known: $(cd "$directory" && echo *))" >&2
    exit 2
  }
done
failed=0
lines=$(mktemp)
trap 'rm -f "$lines"' EXIT
for id in "$@"; do
  # shellcheck disable=SC2046  # a name, and perhaps an argument
  "$directory/"$(binary_of "$id") | tee -a "$lines" || { echo "run.sh: $id failed" >&2; failed=1; }
done
if command -v python3 > /dev/null; then python3 bench/table.py < "$lines" >&2; fi
exit $failed
