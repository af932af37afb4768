#!/usr/bin/env bash
# From a bare Debian 12 machine to a training run that survives four faults, bit for bit.
#
#   examples/quickstart.sh                installs what is missing (as root), builds, runs
#   examples/quickstart.sh --no-install   fails when something is missing
#
# Trains a small character transformer (examples/05_train_gpt) twice, on 2 simulated nodes with 2
# ranks each and 1 spare node:
#
#   calm    nothing happens
#   storm   1. SIGKILL of a rank between two checkpoints
#           2. SIGKILL of a rank in the middle of writing a checkpoint
#           3. SIGSTOP of a rank: it does not end, it just does nothing any more
#           4. a whole node is lost, its agent and its ranks; the spare takes its place
#
# and compares the two: the loss of every step, and every byte of the final checkpoint's tensors. Exit
# status 0 only when they are identical. Everything it writes lies in one directory, which it names.
# PERDURE_QUICKSTART_DIR and PERDURE_QUICKSTART_STEPS change where, and how long it trains.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
steps=${PERDURE_QUICKSTART_STEPS:-401}

install=1
for argument in "$@"; do
  case "${argument//_/-}" in
    --no-install) install=0 ;;
    -h|--help) sed -n '2,19s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "quickstart: unknown option $argument (known: --no-install)" >&2; exit 2 ;;
  esac
done

say() { printf "\n== %s\n" "$*"; }
die() { printf 'quickstart: %s\n' "$*" >&2; exit 1; }

# ---------------------------------------------------------------- install, build
say "Dependencies"
if [ "$install" -eq 1 ]; then
  "$root/cmake/deps.sh"
else
  "$root/cmake/deps.sh" --check
fi

say "Build"
cd "$root"
cmake --preset release >/dev/null
cmake --build --preset release --target perdure_program train_gpt
perdure=$root/build/bin/perdure

work=${PERDURE_QUICKSTART_DIR:-$(mktemp -d "${TMPDIR:-/tmp}/perdure-quickstart.XXXXXX")}
mkdir -p "$work"
say "Everything the two runs write lies in $work"

# ---------------------------------------------------------------- one run
runner=""
# Ctrl-C, or a failure here: end the job that is running, and only that.
cleanup() {
  if [ -n "$runner" ] && kill -0 "$runner" 2>/dev/null; then
    kill -TERM "$runner" 2>/dev/null || true
    wait "$runner" 2>/dev/null || true
  fi
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

prepare() { # RUN
  mkdir -p "$work/$1"
  cat >"$work/$1/job.yaml" <<JOB
training_job:
  name: gpt-tiny
  command: ["$root/build/bin/train_gpt", --steps, "$steps", --loss-file, "$work/$1/loss.csv"]
  launch: {launcher: local, nodes: 2, spares: 1, ranks_per_node: 2, env: {OMP_NUM_THREADS: "1"}}
  checkpoint: {directory: checkpoints, interval_steps: 20, keep_last_n: 3}
  fault_tolerance:
    heartbeat_timeout_s: 10       # a demonstration: be quick to call a silence a hang
    stop_grace_s: 5
    auto_isolate_bad_node: false  # the drills below hit the same nodes on purpose
JOB
}

begin() { # RUN: starts it in the background
  prepare "$1"
  state=$work/$1/gpt-tiny.perdure
  losses=$work/$1/loss.csv
  checkpoints=$work/$1/checkpoints
  shown=0
  "$perdure" run "$work/$1/job.yaml" >"$work/$1/run.log" 2>&1 &
  runner=$!
}

finish() { # RUN: waits for its end
  local status=0
  wait "$runner" || status=$?
  runner=""
  [ "$status" -eq 0 ] || { tail -n 20 "$work/$1/run.log" >&2; die "run $1 ended with $status"; }
}

# What rank 0 last wrote: "step,generation,loss".
last_step() { local step; step=$(tail -n 1 "$losses" 2>/dev/null | cut -d, -f1) || true; echo "${step:--1}"; }
last_generation() { local g; g=$(tail -n 1 "$losses" 2>/dev/null | cut -d, -f2) || true; echo "${g:-0}"; }

# Polls a condition until it holds; the job must not end before.
until_true() { # SECONDS WHAT CONDITION...
  local end=$((SECONDS + $1)) what=$2
  shift 2
  until "$@"; do
    [ "$SECONDS" -lt "$end" ] || die "waited too long: $what"
    kill -0 "$runner" 2>/dev/null || { finish storm; die "the run ended before: $what"; }
    sleep 0.02
  done
}
step_reached() { [ "$(last_step)" -ge "$1" ]; }
generation_reached() { [ "$(last_generation)" -ge "$1" ]; }

# ---------------------------------------------------------------- calm
say "Run 1 of 2, calm: $steps steps on 4 ranks, nothing happens"
begin calm
began=$SECONDS
finish calm
echo "done in $((SECONDS - began)) s"

# ---------------------------------------------------------------- storm
# What the supervisor said since the last call, sentence by sentence.
sentences() {
  local text
  text=$("$perdure" events --state "$state" --from $((shown + 1)) 2>/dev/null) || return 0
  shown=$((shown + $(grep -c '^t=' <<<"$text" || true)))
  grep -E '^ +"' <<<"$text" | sed 's/^ */    supervisor: /' || true
}

# The next generation trains: the fault is healed.
healed() { # GENERATION BEFORE
  until_true 120 "generation $(($1 + 1))" generation_reached $(($1 + 1))
  sentences
  echo "    training again: generation $(last_generation), step $(last_step)"
}

fault() { # AT_STEP WHAT, then the chaos verb's arguments
  local step=$1 generation
  say "$2"
  shift 2
  generation=$(last_generation)
  "$perdure" chaos "$@" --at-step "$step" --state "$state"
  healed "$generation"
}

# The attempt that lies on the checkpoint root while a save is being written; empty when none does.
attempt() { find "$checkpoints" -maxdepth 1 -name '.tmp-step-*' -printf '%f\n' 2>/dev/null | head -n 1; }
pid_of() { # RANK
  "$perdure" status --json --state "$state" | tr -d ' \n' | tr '{' '\n' | grep -E "\"rank\":$1[,}]" |
    grep -oE '"pid":[0-9]+' | cut -d: -f2
}

# Only rank 0 can commit. It is stopped when an attempt shows up; if the attempt is still there after
# that, the save is unfinished and will remain so, and the rank is killed. If the commit was faster,
# rank 0 goes on and the next save is tried.
cut_off_a_save() {
  local generation pid caught
  generation=$(last_generation)
  pid=$(pid_of 0)
  while :; do
    caught=$(attempt)
    if [ -n "$caught" ]; then
      kill -STOP "$pid"
      caught=$(attempt)
      [ -z "$caught" ] || break
      kill -CONT "$pid"
    fi
    kill -0 "$runner" 2>/dev/null || die "the run ended before a save could be cut off"
    sleep 0.01
  done
  kill -KILL "$pid"
  cut_off=${caught#.tmp-}
  cut_off=${cut_off%-*}
  echo "SIGKILL for rank 0 while it wrote $caught"
  healed "$generation"
  [ ! -e "$checkpoints/$cut_off" ] || die "$cut_off was committed although its writer was killed"
}

say "Run 2 of 2, storm: the same job, and four faults"
begin storm
began=$SECONDS
until_true 120 "the first step" step_reached 0

fault $((steps * 14 / 100 + 1)) "Fault 1: SIGKILL of rank 3, between two checkpoints" kill --rank 3

say "Fault 2: SIGKILL of rank 0, in the middle of writing a checkpoint"
until_true 120 "step $((steps * 28 / 100))" step_reached $((steps * 28 / 100))
cut_off_a_save

fault $((steps * 52 / 100)) "Fault 3: SIGSTOP of rank 1; its process stays, and does nothing" stop --rank 1
fault $((steps * 76 / 100)) "Fault 4: node b is lost, its agent and its ranks" kill --node b

say "To the end"
finish storm
sentences
echo "done in $((SECONDS - began)) s"

# ---------------------------------------------------------------- what it cost, and whether it matters
say "Report"
"$perdure" report --state "$work/storm/gpt-tiny.perdure"

say "Comparison"
# Of each step the last line: the generation that did it last lies on the lineage.
losses_of() { awk -F, 'NF == 3 { last[$1] = $3 } END { for (s in last) print s "," last[s] }' "$1" | sort -n; }
losses_of "$work/calm/loss.csv" >"$work/calm/losses"
losses_of "$work/storm/loss.csv" >"$work/storm/losses"
[ "$(wc -l <"$work/calm/losses")" -eq "$steps" ] || die "the calm run has not every step in loss.csv"

identical=yes
if cmp -s "$work/calm/losses" "$work/storm/losses"; then
  echo "losses of $steps steps: the same, to the last bit"
else
  echo "losses differ, first at step $(diff "$work/calm/losses" "$work/storm/losses" | sed -n '2s/^[<>] \([0-9]*\),.*/\1/p')"
  identical=no
fi

# The tensors of a shard are everything after its header, whose length its first 8 bytes tell.
tensor_hash() { # CHECKPOINT DIRECTORY
  local shard header
  for shard in "$1"/*.safetensors; do
    header=$(od -An -tu8 -N8 "$shard")
    tail -c +$((8 + header + 1)) "$shard"
  done | sha256sum | cut -d' ' -f1
}
newest() { find "$work/$1/checkpoints" -maxdepth 1 -name 'step-*' -printf '%f\n' | sort | tail -n 1; }
for run in calm storm; do
  "$perdure" checkpoint verify --directory "$work/$run/checkpoints" "$(newest $run)" >/dev/null ||
    die "the final checkpoint of run $run does not verify"
done
calm_hash=$(tensor_hash "$work/calm/checkpoints/$(newest calm)")
storm_hash=$(tensor_hash "$work/storm/checkpoints/$(newest storm)")
echo "tensors of $(newest calm) (calm):   ${calm_hash:0:32}"
echo "tensors of $(newest storm) (storm): ${storm_hash:0:32}"
[ "$calm_hash" = "$storm_hash" ] || identical=no

echo
echo "bit-identical to the undisturbed run: $identical"
[ "$identical" = yes ]
