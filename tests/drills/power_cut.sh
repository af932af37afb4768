#!/usr/bin/env bash
# Real power cuts: a saver at work on ext4 and XFS, cut off at random moments.
#
#   power_cut.sh DRILL [--cuts N] [--seed N] [--filesystems "ext4 xfs"]
#
# DRILL is build/bin/tests/power_cut_drill; N cuts (default 30) on each file system. A thousand:
#   sudo tests/drills/power_cut.sh build/bin/tests/power_cut_drill --cuts 1000
#
# How a cut is made: the file system under test lives in an image file on a loop device, and the image
# lies on an XFS file system that can clone files. A clone is one moment of the image, taken while
# everything runs: what the kernel had not yet written to the device is not in it, as after a power cut.
# The clone is mounted, which replays its journal, and checked: every checkpoint that had been reported
# durable before the cut restores bit by bit, and nothing half is offered.
#
# First it shows that it can fail: a saver that leaves out an fsync is found out on both file systems.
#
# Needs root, losetup, mkfs.ext4, mkfs.xfs. Exit status: 0 all promises kept, 1 not, 2 wrong usage, 77 this
# machine cannot run it (said in one line).
set -euo pipefail

cannot() { echo "power_cut: cannot run here: $*" >&2; exit 77; }
usage() { echo "power_cut: $* (see the head of $0)" >&2; exit 2; }

# A mount namespace of its own: whatever happens, no mount and no loop device is left behind.
if [ "${1:-}" != --inside ]; then
  [ "$(id -u)" -eq 0 ] || cannot "mounting needs root"
  unshare --mount --propagation private true 2>/dev/null || cannot "no mount namespaces"
  exec unshare --mount --propagation private "$0" --inside "$@"
fi
shift

[ $# -ge 1 ] || usage "name the drill's binary"
drill=$1 cuts=30 seed=$((RANDOM * 32768 + RANDOM)) filesystems="ext4 xfs"
shift
while [ $# -gt 0 ]; do
  [ $# -ge 2 ] || usage "$1 needs a value"
  case "$1" in
    --cuts) cuts=$2 ;;
    --seed) seed=$2 ;;
    --filesystems) filesystems=$2 ;;
    *) usage "unknown option $1" ;;
  esac
  shift 2
done
[ -x "$drill" ] || usage "$drill is not a program"
drill=$(realpath "$drill")
for program in losetup mkfs.xfs mkfs.ext4; do
  command -v "$program" >/dev/null || cannot "$program is missing (cmake/deps.sh installs it)"
done
[ -e /dev/loop-control ] || cannot "there are no loop devices"

RANDOM=$seed
echo "power_cut: seed $seed"

# Memory when there is enough of it: what is measured is what the file systems order, not the disk.
work_parent=${TMPDIR:-/tmp}
if [ -d /dev/shm ] && [ "$(df --output=avail -k /dev/shm | tail -n 1)" -gt 2000000 ]; then
  work_parent=/dev/shm
fi
work=$(mktemp -d "$work_parent/perdure-power-cut-XXXXXX")
saver=
finish() {
  [ -z "$saver" ] || kill -KILL "$saver" 2>/dev/null || true
  wait 2>/dev/null || true
  umount -R "$work/outer" 2>/dev/null || umount -l "$work/outer" 2>/dev/null || true
  rm -rf "$work"
}
trap finish EXIT

mkdir "$work/outer"
truncate -s 4G "$work/outer.img"
mkfs.xfs -q -m reflink=1 "$work/outer.img"
mount -o loop "$work/outer.img" "$work/outer" 2>/dev/null || cannot "loop devices or XFS do not work"
cd "$work/outer"
mkdir live dead

options_of() { # the clone has the label and UUID of the original, which is mounted
  case "$1" in xfs) echo loop,nouuid ;; *) echo loop ;; esac
}

# A killed process is reaped before the kernel has ended its requests in flight, and they hold the mount.
unmount() { # DIRECTORY
  local try
  for ((try = 0; try < 100; ++try)); do
    umount "$1" 2>/dev/null && return
    sleep 0.05
  done
  umount "$1"
}

start() { # FILESYSTEM [SAVER ARGUMENT...]
  local filesystem=$1
  shift
  rm -f image.img
  truncate -s 320M image.img
  mkfs."$filesystem" -q image.img >/dev/null
  mount -o loop image.img live
  "$drill" save live/root "$@" >"$work/reports" &
  saver=$!
}

stop() {
  kill -KILL "$saver"
  wait "$saver" 2>/dev/null || true
  saver=
  unmount live
}

# One cut; prints what is wrong with it, or nothing.
cut_once() { # FILESYSTEM
  local reported
  sleep "0.0$((RANDOM % 90 + 10))"
  kill -0 "$saver" 2>/dev/null || { echo "the saver ended: $(tail -n 1 "$work/reports")"; return; }
  # Read before the clone: all of this must be in it.
  reported=$(awk '/^durable [0-9]+$/ {step = $2} END {print step == "" ? -1 : step}' "$work/reports")
  cp --reflink=always image.img cut.img
  mount -o "$(options_of "$1")" cut.img dead || { echo "the file system did not come back"; return; }
  "$drill" check dead/root "$reported" || true
  unmount dead
}

failed=0
for filesystem in $filesystems; do
  for broken in shard-fsync directory-fsync; do
    start "$filesystem" --leave-out "$broken"
    problem=
    for ((i = 1; i <= 40; ++i)); do
      problem=$(cut_once "$filesystem")
      [ -z "$problem" ] || break
    done
    stop
    if [ -n "$problem" ]; then
      echo "power_cut: $filesystem: a saver without $broken is found out by cut $i: $problem"
    else
      echo "power_cut: $filesystem: a saver without $broken was NOT found out by $i cuts"
      failed=1
    fi
  done
  start "$filesystem"
  bad=0
  for ((i = 1; i <= cuts; ++i)); do
    problem=$(cut_once "$filesystem")
    [ -n "$problem" ] || continue
    echo "power_cut: $filesystem: cut $i: $problem"
    bad=$((bad + 1))
  done
  stop
  echo "power_cut: $filesystem: $cuts cuts, $(grep -c '^durable' "$work/reports") checkpoints reported, $bad bad"
  [ "$bad" -eq 0 ] || failed=1
done
exit $failed
