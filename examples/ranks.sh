#!/usr/bin/env bash
# Starts N ranks of a program on this machine without a supervisor, with the environment variables that
# torchrun, and others after it, give to the processes of a job.
#
#   examples/ranks.sh N PROGRAM [ARGUMENT...]
#
# Ends when all have ended, with the first exit status that was not 0. Ctrl-C ends all ranks.
set -euo pipefail
if [ $# -lt 2 ] || ! [[ $1 =~ ^[1-9][0-9]*$ ]]; then
  echo "usage: $0 N PROGRAM [ARGUMENT...]" >&2
  exit 2
fi
world=$1
shift
command -v "$1" >/dev/null || { echo "$0: no program $1; build it first" >&2; exit 2; }

# A port that the system says is free. (perl-base is on every Debian machine.)
port=${MASTER_PORT:-$(perl -MIO::Socket::INET -e \
  'print IO::Socket::INET->new(Listen => 1, LocalAddr => "127.0.0.1", LocalPort => 0)->sockport')}

pids=()
trap 'for pid in "${pids[@]}"; do kill -TERM "$pid" 2>/dev/null || true; done' INT TERM
for ((rank = 0; rank < world; rank++)); do
  RANK=$rank LOCAL_RANK=$rank GROUP_RANK=0 WORLD_SIZE=$world LOCAL_WORLD_SIZE=$world \
    MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$@" &
  pids+=($!)
done

status=0
for pid in "${pids[@]}"; do
  rc=0
  wait "$pid" || rc=$?
  while kill -0 "$pid" 2>/dev/null; do wait "$pid" || rc=$?; done # a signal cut the wait short
  if [ "$status" -eq 0 ]; then status=$rc; fi
done
exit "$status"
